//! One cell of any Arrow column as a plain value that can be compared, sorted and shown.
//!
//! This whole crate uses [`Value`]. Generators make values and then arrays of them, the oracle compares key
//! values, and outputs are compared as rows of values. No Arrow kernel is used, so a fault in an Arrow kernel
//! cannot hide a fault in a join.

use std::cmp::Ordering;
use std::fmt;

use arrow::datatypes::{DataType, i256};

/// A cell. Values of one column have the order of Arrow's default sort: ascending, nulls first, floats by
/// total order, bytes and lists lexicographically.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// No value.
    Null,
    /// A boolean.
    Bool(bool),
    /// An integer, or a date, time, timestamp or duration in nanoseconds.
    Int(i128),
    /// A decimal, at the scale of its [`Comparison`].
    Decimal(i256),
    /// A float, as the integer that sorts by total order: see [`float_order`]. In numeric comparisons (see
    /// [`Comparison::numeric`]), zero is 0 and NaN is the largest integer.
    Float(i64),
    /// A string or binary.
    Bytes(Vec<u8>),
    /// A list of any kind. A map is a list of pairs of key and value.
    List(Vec<Value>),
    /// A struct, or the parts of an interval.
    Tuple(Vec<Value>),
    /// A member of a union.
    Tagged(i8, Box<Value>),
}

impl Value {
    /// Whether this is [`Value::Null`].
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// Compares with nulls last, at every depth.
    pub fn cmp_nulls_last(&self, other: &Value) -> Ordering {
        match (self, other) {
            (Value::Null, _) | (_, Value::Null) => self.is_null().cmp(&other.is_null()),
            (Value::List(a), Value::List(b)) | (Value::Tuple(a), Value::Tuple(b)) => {
                row_cmp_nulls_last(a, b)
            }
            (Value::Tagged(a, x), Value::Tagged(b, y)) => {
                a.cmp(b).then_with(|| x.cmp_nulls_last(y))
            }
            (a, b) => a.cmp(b),
        }
    }
}

/// Compares rows of values with nulls last, at every depth. A shorter row comes before a longer one.
pub fn row_cmp_nulls_last(a: &[Value], b: &[Value]) -> Ordering {
    let differing = a.iter().zip(b).map(|(x, y)| x.cmp_nulls_last(y)).find(|o| o.is_ne());
    differing.unwrap_or_else(|| a.len().cmp(&b.len()))
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let listed = |f: &mut fmt::Formatter<'_>, items: &[Value], open, close| {
            write!(f, "{open}")?;
            for (i, item) in items.iter().enumerate() {
                let comma = if i > 0 { ", " } else { "" };
                write!(f, "{comma}{item}")?;
            }
            write!(f, "{close}")
        };
        match self {
            Value::Null => write!(f, "null"),
            Value::Bool(v) => write!(f, "{v}"),
            Value::Int(v) => write!(f, "{v}"),
            Value::Decimal(v) => write!(f, "{v}d"),
            Value::Float(v) => write!(f, "float#{v:x}"),
            Value::Bytes(v) => write!(f, "\"{}\"", v.escape_ascii()),
            Value::List(items) => listed(f, items, '[', ']'),
            Value::Tuple(items) => listed(f, items, '(', ')'),
            Value::Tagged(tag, value) => write!(f, "{tag}:{value}"),
        }
    }
}

/// Returns the integer that sorts as `f64::total_cmp` does. Different bits stay different.
pub fn float_order(bits: i64) -> i64 {
    bits ^ (((bits >> 63) as u64) >> 1) as i64
}

/// The rules by which the columns of a key pair are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparison {
    /// Compare numbers as `f64`. Otherwise a float is compared by its own bits.
    pub as_float: bool,
    /// Compare numbers as decimals of this scale.
    pub scale: Option<i8>,
    /// Compare floats as numbers: both zeros are one value, and all NaNs are one value. Otherwise floats with
    /// different bits differ. With numeric comparison, a value no longer has the original bits.
    pub numeric: bool,
}

impl Comparison {
    /// The rules for two columns of the same type.
    pub fn alone(data_type: &DataType) -> Comparison {
        Comparison::of(data_type, data_type)
    }

    /// The rules for columns of two types.
    pub fn of(left: &DataType, right: &DataType) -> Comparison {
        let (left, right) = (leaf(left), leaf(right));
        let scale = match (scale(left), scale(right)) {
            (None, None) => None,
            (l, r) => Some(l.unwrap_or(0).max(r.unwrap_or(0))),
        };
        let as_float = left != right && (left.is_floating() || right.is_floating());
        Comparison { as_float, scale, numeric: false }
    }

    /// The same rules, but floats are compared as numbers.
    pub fn numeric(self) -> Comparison {
        Comparison { numeric: true, ..self }
    }

    /// The rules for values of this type that are nested in the values of a column.
    pub(crate) fn inside(&self, data_type: &DataType) -> Comparison {
        Comparison { numeric: self.numeric, ..Comparison::alone(data_type) }
    }

    pub(crate) fn integer(&self, v: i128) -> Value {
        match self.scale {
            _ if self.as_float => self.float(v as f64),
            Some(scale) => Value::Decimal(i256::from_i128(v).wrapping_mul(power_of_ten(scale))),
            None => Value::Int(v),
        }
    }

    pub(crate) fn float(&self, v: f64) -> Value {
        match self.numeric {
            true if v.is_nan() => Value::Float(i64::MAX),
            // Minus zero is equal to zero.
            true if v == 0.0 => Value::Float(0),
            _ => Value::Float(float_order(v.to_bits() as i64)),
        }
    }

    pub(crate) fn decimal(&self, v: i256, own_scale: i8) -> Value {
        let shift = self.scale.unwrap_or(own_scale) - own_scale;
        Value::Decimal(v.wrapping_mul(power_of_ten(shift)))
    }
}

/// Returns the type of the values inside dictionaries and runs.
pub fn leaf(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => leaf(values),
        DataType::RunEndEncoded(_, values) => leaf(values.data_type()),
        other => other,
    }
}

fn scale(data_type: &DataType) -> Option<i8> {
    match data_type {
        DataType::Decimal32(_, s)
        | DataType::Decimal64(_, s)
        | DataType::Decimal128(_, s)
        | DataType::Decimal256(_, s) => Some(*s),
        _ => None,
    }
}

pub(crate) fn power_of_ten(exponent: i8) -> i256 {
    i256::from_i128(10).wrapping_pow(exponent.max(0) as u32)
}

/// Returns the number of nanoseconds in one unit of a temporal type; `None` for other types.
pub(crate) fn nanoseconds(data_type: &DataType) -> Option<i128> {
    use arrow::datatypes::TimeUnit::*;
    let unit = match data_type {
        DataType::Date32 => return Some(86_400_000_000_000),
        DataType::Date64 => Millisecond,
        DataType::Time32(unit)
        | DataType::Time64(unit)
        | DataType::Timestamp(unit, _)
        | DataType::Duration(unit) => *unit,
        _ => return None,
    };
    Some(match unit {
        Second => 1_000_000_000,
        Millisecond => 1_000_000,
        Microsecond => 1_000,
        Nanosecond => 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_sort_by_total_order_and_zeros_differ() {
        let floats =
            [f64::NEG_INFINITY, -1.0, -f64::MIN_POSITIVE, -0.0, 0.0, 1.0, f64::INFINITY, f64::NAN];
        let order: Vec<_> = floats.iter().map(|f| float_order(f.to_bits() as i64)).collect();
        assert!(order.is_sorted_by(|a, b| a < b), "{order:?}");
    }

    #[test]
    fn on_numeric_terms_zeros_are_equal_and_nan_is_one_value_after_all_others() {
        let terms = Comparison::alone(&DataType::Float64).numeric();
        let nans = [f64::NAN, -f64::NAN, f64::from_bits(0x7ff0_0000_0000_0001)];
        assert!(nans.iter().all(|&nan| terms.float(nan) == terms.float(f64::NAN)));
        assert_eq!(terms.float(-0.0), terms.float(0.0));
        let floats = [f64::NEG_INFINITY, -1.0, -5e-324, 0.0, 5e-324, f64::INFINITY, f64::NAN];
        assert!(floats.map(|v| terms.float(v)).is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn decimals_meet_at_the_larger_scale() {
        let (a, b) = (DataType::Decimal128(10, 2), DataType::Decimal64(12, 4));
        let comparison = Comparison::of(&a, &b);
        let left = comparison.decimal(i256::from_i128(150), 2);
        assert_eq!(left, comparison.decimal(i256::from_i128(15000), 4));
        assert_ne!(left, comparison.decimal(i256::from_i128(15001), 4));
    }

    #[test]
    fn nulls_sort_first_and_short_lists_before_long_ones() {
        let list = |items: &[i128]| Value::List(items.iter().map(|&i| Value::Int(i)).collect());
        assert!(Value::Null < list(&[]) && list(&[]) < list(&[1]) && list(&[1]) < list(&[1, 0]));
    }

    #[test]
    fn nulls_last_holds_at_every_depth() {
        let tuple = |a: &[Value]| Value::Tuple(a.to_vec());
        let sorted = [
            tuple(&[Value::Int(1), Value::Int(5)]),
            tuple(&[Value::Int(1), Value::Null]),
            tuple(&[Value::Null, Value::Int(0)]),
            Value::Null,
        ];
        assert!(sorted.is_sorted_by(|a, b| a.cmp_nulls_last(b).is_lt()));
    }
}

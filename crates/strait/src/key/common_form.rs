//! The common form in which two columns of different types are compared.
//!
//! A pair of key columns is converted to one [`Form`] that can hold every value of both types. So two forms
//! are equal exactly if the values are, and nothing is rounded. Dictionaries and runs are removed first,
//! because the encoding of a column does not affect its values.

use arrow::datatypes::{DataType, IntervalUnit, TimeUnit, i256};

/// The form that the values of both sides are converted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// All values are null.
    Null,
    /// An unsigned integer with this many bits. Also booleans, and byte strings read as a big-endian number.
    Unsigned(u32),
    /// A signed integer with this many bits.
    Signed(u32),
    /// A float with this many bits, under the total order of IEEE 754. [`float`](super::float) describes
    /// which floats are made equal before.
    Float(u32),
    /// A 128-bit signed integer.
    Wide,
    /// A 256-bit signed integer.
    Wider,
    /// A byte string.
    Bytes,
    /// A nested value, as bytes in Arrow's row format.
    Rows,
}

impl Form {
    /// Returns the number of bits of a value, if it fits a word.
    pub(super) fn bits(self) -> Option<u32> {
        match self {
            Form::Null => Some(0),
            Form::Unsigned(bits) | Form::Signed(bits) | Form::Float(bits) => Some(bits),
            Form::Wide | Form::Wider | Form::Bytes | Form::Rows => None,
        }
    }

    /// Returns the low `bits()` bits, as an unsigned number that sorts like the value.
    #[inline(always)]
    pub(super) fn order(self, value: u64) -> u64 {
        match self {
            Form::Signed(bits) => (value ^ sign(bits)) & mask(bits),
            Form::Float(bits) if value & sign(bits) != 0 => !value & mask(bits),
            Form::Float(bits) => value | sign(bits),
            _ => value,
        }
    }
}

/// Returns the highest of `bits` bits.
#[inline(always)]
pub(super) fn sign(bits: u32) -> u64 {
    if bits == 0 { 0 } else { 1 << (bits - 1) }
}

/// Returns the `bits` low bits.
#[inline(always)]
pub(super) fn mask(bits: u32) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}

/// A form, and the factors that convert the integers of the left and the right side to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CommonType {
    pub(super) form: Form,
    pub(super) factors: [i256; 2],
}

impl CommonType {
    fn plain(form: Form) -> CommonType {
        CommonType { form, factors: [i256::ONE; 2] }
    }

    fn tens(form: Form, powers: [u32; 2]) -> Option<CommonType> {
        let power = |p| i256::from_i128(10).checked_pow(p);
        Some(CommonType { form, factors: [power(powers[0])?, power(powers[1])?] })
    }
}

/// Returns the type without the dictionaries and runs around it.
pub(super) fn peeled_type(data_type: &DataType) -> &DataType {
    match data_type {
        DataType::Dictionary(_, values) => peeled_type(values),
        DataType::RunEndEncoded(_, values) => peeled_type(values.data_type()),
        other => other,
    }
}

/// Returns the common form of two peeled types, if there is one without loss.
pub(super) fn common_type(left: &DataType, right: &DataType) -> Option<CommonType> {
    use DataType::*;
    let plain = |form| Some(CommonType::plain(form));
    match (left, right) {
        (Null, Null) => plain(Form::Null),
        (Null, other) | (other, Null) => common_type(other, other),
        (Boolean, Boolean) => plain(Form::Unsigned(1)),
        (Date32, Date32) => plain(Form::Signed(32)),
        (Date64, Date64) => plain(Form::Signed(64)),
        (Date32, Date64) => Some(CommonType { form: Form::Signed(64), factors: [DAY, i256::ONE] }),
        (Date64, Date32) => Some(CommonType { form: Form::Signed(64), factors: [i256::ONE, DAY] }),
        (Time32(a), Time32(b)) if a == b => plain(Form::Signed(32)),
        (Time32(a) | Time64(a), Time32(b) | Time64(b)) => {
            // Seconds and milliseconds have 32 bits. As nanoseconds they fit 64 bits.
            let coarser_is_32_bits = a == b || power(*a).min(power(*b)) < 6;
            units(*a, *b, coarser_is_32_bits)
        }
        (Timestamp(a, za), Timestamp(b, zb)) if za.is_some() == zb.is_some() => {
            units(*a, *b, a == b)
        }
        (Duration(a), Duration(b)) => units(*a, *b, a == b),
        (Interval(a), Interval(b)) if a == b => plain(match a {
            IntervalUnit::YearMonth => Form::Signed(32),
            IntervalUnit::DayTime => Form::Unsigned(64),
            IntervalUnit::MonthDayNano => Form::Wide,
        }),
        (FixedSizeBinary(a), FixedSizeBinary(b)) if a == b && (0..=8).contains(a) => {
            plain(Form::Unsigned(8 * *a as u32))
        }
        (a, b) if is_text(a) && is_text(b) => plain(Form::Bytes),
        (a, b) if is_binary(a) && is_binary(b) => plain(Form::Bytes),
        (a, b) if a.is_nested() && alike(a, b) => plain(Form::Rows),
        (a, b) => numbers(a, b),
    }
}

/// Milliseconds per day.
const DAY: i256 = i256::from_i128(86_400_000);

/// Returns the power of ten of this unit per second.
fn power(unit: TimeUnit) -> u32 {
    match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 3,
        TimeUnit::Microsecond => 6,
        TimeUnit::Nanosecond => 9,
    }
}

/// Two times are compared in the finer unit, in 128 bits unless 64 bits are certain to suffice.
fn units(a: TimeUnit, b: TimeUnit, fits: bool) -> Option<CommonType> {
    let (a, b) = (power(a), power(b));
    let finer = a.max(b);
    CommonType::tens(if fits { Form::Signed(64) } else { Form::Wide }, [finer - a, finer - b])
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn is_binary(data_type: &DataType) -> bool {
    use DataType::*;
    matches!(data_type, Binary | LargeBinary | BinaryView | FixedSizeBinary(_))
}

/// A number type: `digits` and `scale` in decimal, `bits` in memory.
#[derive(Clone, Copy)]
struct Number {
    kind: Kind,
    bits: u32,
    digits: i32,
    scale: i32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unsigned,
    Signed,
    Float,
}

fn number(data_type: &DataType) -> Option<Number> {
    use DataType::*;
    use Kind::{Float, Signed, Unsigned};
    let (kind, bits, digits, scale) = match *data_type {
        UInt8 => (Unsigned, 8, 3, 0),
        UInt16 => (Unsigned, 16, 5, 0),
        UInt32 => (Unsigned, 32, 10, 0),
        UInt64 => (Unsigned, 64, 20, 0),
        Int8 => (Signed, 8, 3, 0),
        Int16 => (Signed, 16, 5, 0),
        Int32 => (Signed, 32, 10, 0),
        Int64 => (Signed, 64, 19, 0),
        Float16 => (Float, 16, 0, 0),
        Float32 => (Float, 32, 0, 0),
        Float64 => (Float, 64, 0, 0),
        Decimal32(precision, scale) => (Signed, 32, precision.into(), scale.into()),
        Decimal64(precision, scale) => (Signed, 64, precision.into(), scale.into()),
        Decimal128(precision, scale) => (Signed, 128, precision.into(), scale.into()),
        Decimal256(precision, scale) => (Signed, 256, precision.into(), scale.into()),
        _ => return None,
    };
    Some(Number { kind, bits, digits, scale })
}

fn numbers(left: &DataType, right: &DataType) -> Option<CommonType> {
    let (a, b) = (number(left)?, number(right)?);
    let bits = a.bits.max(b.bits);
    match (a.kind, b.kind) {
        (Kind::Float, Kind::Float) => Some(CommonType::plain(Form::Float(bits))),
        (Kind::Float, _) | (_, Kind::Float) => {
            let (float, integer) = if a.kind == Kind::Float { (a, b) } else { (b, a) };
            let decimal = left.is_decimal() || right.is_decimal();
            // A 32-bit float holds every integer of 24 bits, a 64-bit float every integer of 53 bits.
            match integer.bits {
                _ if decimal => None,
                8 | 16 => Some(CommonType::plain(Form::Float(float.bits.max(32)))),
                32 => Some(CommonType::plain(Form::Float(64))),
                _ => None,
            }
        }
        _ if a.scale != b.scale => decimals(a, b),
        _ if a.kind == b.kind => Some(CommonType::plain(integer(a.kind, bits)?)),
        _ => {
            let unsigned = if a.kind == Kind::Unsigned { a } else { b };
            Some(CommonType::plain(integer(Kind::Signed, bits.max(2 * unsigned.bits))?))
        }
    }
}

fn integer(kind: Kind, bits: u32) -> Option<Form> {
    match (kind, bits) {
        (Kind::Unsigned, ..=64) => Some(Form::Unsigned(bits)),
        (Kind::Signed, ..=64) => Some(Form::Signed(bits)),
        (Kind::Signed, 128) => Some(Form::Wide),
        (Kind::Signed, 256) => Some(Form::Wider),
        _ => None,
    }
}

/// Decimals of different scales are compared in the larger scale, with room for both integer parts.
fn decimals(a: Number, b: Number) -> Option<CommonType> {
    let scale = a.scale.max(b.scale);
    let digits = scale + (a.digits - a.scale).max(b.digits - b.scale);
    let form = match digits {
        ..=38 if a.bits <= 128 && b.bits <= 128 => Form::Wide,
        ..=76 => Form::Wider,
        _ => return None,
    };
    let power = |n: Number| u32::try_from(scale - n.scale).ok();
    CommonType::tens(form, [power(a)?, power(b)?])
}

/// Returns whether two types have the same bytes in the row format for equal values. The row format does not
/// contain names, nullability and the width of offsets.
fn alike(left: &DataType, right: &DataType) -> bool {
    use DataType::*;
    let list = |data_type: &DataType| match data_type {
        List(f) | LargeList(f) | ListView(f) | LargeListView(f) => Some(f.clone()),
        _ => None,
    };
    if let (Some(a), Some(b)) = (list(left), list(right)) {
        return alike(a.data_type(), b.data_type());
    }
    match (left, right) {
        (Dictionary(_, a), b) => alike(a, b),
        (a, Dictionary(_, b)) => alike(a, b),
        (FixedSizeList(a, n), FixedSizeList(b, m)) => n == m && alike(a.data_type(), b.data_type()),
        (Map(a, _), Map(b, _)) => alike(a.data_type(), b.data_type()),
        (Struct(a), Struct(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| alike(a.data_type(), b.data_type()))
        }
        (Timestamp(a, za), Timestamp(b, zb)) => a == b && za.is_some() == zb.is_some(),
        (a, b) if is_text(a) && is_text(b) => true,
        (FixedSizeBinary(_), _) | (_, FixedSizeBinary(_)) => left == right,
        (a, b) if is_binary(a) && is_binary(b) => true,
        (a, b) => a == b,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::datatypes::Field;

    use super::*;

    fn form(left: DataType, right: DataType) -> Option<Form> {
        let there = common_type(&left, &right).map(|m| m.form);
        assert_eq!(
            there,
            common_type(&right, &left).map(|m| m.form),
            "{left} and {right} are symmetric"
        );
        there
    }

    #[test]
    fn numbers_widen_until_nothing_is_lost() {
        use DataType::*;
        assert_eq!(form(Int32, Int64), Some(Form::Signed(64)));
        assert_eq!(form(UInt8, UInt32), Some(Form::Unsigned(32)));
        assert_eq!(form(UInt8, Int8), Some(Form::Signed(16)));
        assert_eq!(form(UInt8, Int64), Some(Form::Signed(64)));
        assert_eq!(form(UInt32, Int32), Some(Form::Signed(64)));
        assert_eq!(form(UInt64, Int8), Some(Form::Wide));
        assert_eq!(form(Int16, Float32), Some(Form::Float(32)));
        assert_eq!(form(Int32, Float32), Some(Form::Float(64)));
        assert_eq!(form(Float16, Float64), Some(Form::Float(64)));
        assert_eq!(form(Int64, Float64), None);
        assert_eq!(form(Boolean, Int8), None);
    }

    #[test]
    fn decimals_get_room_for_both_parts() {
        use DataType::*;
        assert_eq!(form(Decimal32(5, 2), Decimal64(12, 2)), Some(Form::Signed(64)));
        assert_eq!(form(Decimal64(5, 2), Decimal64(12, 3)), Some(Form::Wide));
        assert_eq!(form(Decimal128(38, 0), Decimal128(38, 10)), Some(Form::Wider));
        assert_eq!(form(Decimal256(76, 0), Decimal256(76, 1)), None);
        assert_eq!(form(Decimal128(20, 0), Int64), Some(Form::Wide));
        assert_eq!(form(Decimal256(10, 0), UInt64), Some(Form::Wider));
        assert_eq!(form(Decimal128(10, -3), Int32), Some(Form::Wide));
        assert_eq!(form(Decimal32(5, 0), Float64), None);
    }

    #[test]
    fn times_meet_in_the_finer_unit() {
        use DataType::*;
        use TimeUnit::*;
        let zone = |z: &str| Some(Arc::from(z));
        assert_eq!(form(Timestamp(Second, None), Timestamp(Second, None)), Some(Form::Signed(64)));
        assert_eq!(form(Timestamp(Second, None), Timestamp(Nanosecond, None)), Some(Form::Wide));
        let same = form(Timestamp(Second, zone("UTC")), Timestamp(Second, zone("+01:00")));
        assert_eq!(same, Some(Form::Signed(64)));
        assert_eq!(form(Timestamp(Second, zone("UTC")), Timestamp(Second, None)), None);
        assert_eq!(form(Time32(Second), Time32(Second)), Some(Form::Signed(32)));
        assert_eq!(form(Time32(Second), Time64(Nanosecond)), Some(Form::Signed(64)));
        assert_eq!(form(Time64(Microsecond), Time64(Nanosecond)), Some(Form::Wide));
        assert_eq!(form(Date32, Date64), Some(Form::Signed(64)));
        assert_eq!(form(Duration(Second), Timestamp(Second, None)), None);
        assert_eq!(form(Date32, Int32), None);
    }

    #[test]
    fn families_of_bytes_keep_apart() {
        use DataType::*;
        assert_eq!(form(Utf8, Utf8View), Some(Form::Bytes));
        assert_eq!(form(Binary, FixedSizeBinary(3)), Some(Form::Bytes));
        assert_eq!(form(FixedSizeBinary(4), FixedSizeBinary(8)), Some(Form::Bytes));
        assert_eq!(form(FixedSizeBinary(4), FixedSizeBinary(4)), Some(Form::Unsigned(32)));
        assert_eq!(form(FixedSizeBinary(9), FixedSizeBinary(9)), Some(Form::Bytes));
        assert_eq!(form(Utf8, Binary), None);
        assert_eq!(form(Utf8, Int32), None);
    }

    #[test]
    fn nested_types_meet_where_their_rows_are_the_same() {
        use DataType::*;
        let field = |name: &str, t| Arc::new(Field::new(name, t, name == "a"));
        let small = List(field("a", Utf8));
        assert_eq!(form(small.clone(), LargeList(field("b", Utf8View))), Some(Form::Rows));
        assert_eq!(form(small.clone(), LargeList(field("b", Int8))), None);
        let dictionary = Dictionary(Box::new(Int8), Box::new(Utf8));
        assert_eq!(form(small.clone(), ListView(field("c", dictionary))), Some(Form::Rows));
        let one = Struct(vec![field("a", Int8)].into());
        assert_eq!(form(one.clone(), Struct(vec![field("z", Int8)].into())), Some(Form::Rows));
        assert_eq!(form(one, small), None);
    }

    #[test]
    fn order_is_the_order_of_the_values() {
        let signed = [i64::MIN, -1, 0, 1, i64::MAX].map(|v| Form::Signed(64).order(v as u64));
        assert!(signed.is_sorted());
        let narrow = [-128i64, -1, 0, 127].map(|v| Form::Signed(8).order(v as u64));
        assert_eq!(narrow, [0, 127, 128, 255]);
        let floats = [f32::NEG_INFINITY, -1.0, -0.0, 0.0, 1.0, f32::INFINITY, f32::NAN]
            .map(|v| Form::Float(32).order(v.to_bits().into()));
        assert!(floats.windows(2).all(|w| w[0] < w[1]));
    }
}

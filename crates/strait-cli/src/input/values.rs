//! Makes arrays of the fields of CSV records. Only the types that most files have are made here. Arrow's parser
//! makes the others, and also splits text that is unusual. Dates and times are always parsed in [`times`].

use std::borrow::Cow;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, ArrowPrimitiveType, NullBufferBuilder, PrimitiveArray, RecordBatch,
    RecordBatchOptions, StringArray,
};
use arrow::buffer::{OffsetBuffer, ScalarBuffer};
use arrow::compute::kernels::cast_utils::Parser;
use arrow::datatypes::{DataType, Float64Type, Int64Type, SchemaRef};

use super::fields::Fields;
use super::times;

/// Returns whether [`batch`] knows the type.
pub(super) fn is_known(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Int64 | DataType::Float64 | DataType::Utf8)
        || times::is_time(data_type)
}

/// Makes a batch of some columns, from one record on. `nulls` are the values that mean null, besides the empty
/// one. Returns `None` if Arrow's parser must make it, for example because a value is invalid.
pub(super) fn batch(
    fields: &Fields<'_>,
    (columns, schema): (&[usize], &SchemaRef),
    first: usize,
    nulls: &[String],
) -> Option<RecordBatch> {
    let rows = fields.records().saturating_sub(first);
    let array = |(&column, data_type): (&usize, &DataType)| -> Option<ArrayRef> {
        let values = Values { fields, column, first, rows, nulls };
        Some(match data_type {
            DataType::Int64 => Arc::new(values.numbers::<Int64Type>(integer)?),
            DataType::Float64 => Arc::new(values.numbers::<Float64Type>(float)?),
            DataType::Utf8 => Arc::new(values.text()?),
            other if times::is_time(other) => times::array(values.iter(), other).ok()?,
            _ => return None,
        })
    };
    let types = schema.fields().iter().map(|field| field.data_type());
    let arrays: Option<Vec<ArrayRef>> = columns.iter().zip(types).map(array).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(Arc::clone(schema), arrays?, &options).ok()
}

/// The values of a column.
struct Values<'a> {
    fields: &'a Fields<'a>,
    column: usize,
    first: usize,
    rows: usize,
    nulls: &'a [String],
}

impl Values<'_> {
    /// Returns the values without their quotes. `None` means null.
    fn iter(&self) -> impl Iterator<Item = Option<Cow<'_, [u8]>>> {
        self.fields.column(self.column, self.first).map(|field| {
            let value = unquoted(field);
            let is_null =
                value.is_empty() || self.nulls.iter().any(|null| null.as_bytes() == &*value);
            (!is_null).then_some(value)
        })
    }

    /// Parses values with `usual`, and those that it does not know with Arrow's parser.
    fn numbers<T: ArrowPrimitiveType + Parser>(
        &self,
        usual: impl Fn(&[u8]) -> Option<T::Native>,
    ) -> Option<PrimitiveArray<T>> {
        let parse = |value: &[u8]| usual(value).or_else(|| T::parse(str::from_utf8(value).ok()?));
        primitive(self.iter(), parse).ok()
    }

    fn text(&self) -> Option<StringArray> {
        let bytes = self.fields.column(self.column, self.first).map(<[u8]>::len).sum();
        let mut text: Vec<u8> = Vec::with_capacity(bytes);
        let mut offsets = Vec::with_capacity(self.rows + 1);
        offsets.push(0);
        let mut validity = NullBufferBuilder::new(self.rows);
        for value in self.iter() {
            match value {
                Some(value) => {
                    text.extend_from_slice(&value);
                    validity.append_non_null();
                }
                None => validity.append_null(),
            }
            offsets.push(i32::try_from(text.len()).ok()?);
        }
        let offsets = OffsetBuffer::new(ScalarBuffer::from(offsets));
        StringArray::try_new(offsets, text.into(), validity.finish()).ok()
    }
}

/// Parses the values of a column. `None` stands for null. The error is the row of the first value that cannot be
/// parsed.
#[inline]
pub(super) fn primitive<T: ArrowPrimitiveType, V: AsRef<[u8]>>(
    values: impl Iterator<Item = Option<V>>,
    parse: impl Fn(&[u8]) -> Option<T::Native>,
) -> Result<PrimitiveArray<T>, usize> {
    let rows = values.size_hint().0;
    let mut parsed = Vec::with_capacity(rows);
    let mut validity = NullBufferBuilder::new(rows);
    for value in values {
        match value {
            Some(value) => {
                parsed.push(parse(value.as_ref()).ok_or(parsed.len())?);
                validity.append_non_null();
            }
            None => {
                parsed.push(T::Native::default());
                validity.append_null();
            }
        }
    }
    Ok(PrimitiveArray::new(parsed.into(), validity.finish()))
}

/// Returns the value of a field, without its quotes.
#[inline]
pub(super) fn unquoted(field: &[u8]) -> Cow<'_, [u8]> {
    match field {
        [b'"', value @ .., b'"'] => unescaped(value),
        value => Cow::Borrowed(value),
    }
}

/// Replaces two quotes by one.
fn unescaped(value: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'"', value).is_none() {
        return Cow::Borrowed(value);
    }
    let mut plain = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some(quote) = memchr::memchr(b'"', rest) {
        plain.extend_from_slice(&rest[..=quote]);
        rest = rest.get(quote + 2..).unwrap_or_default();
    }
    plain.extend_from_slice(rest);
    Cow::Owned(plain)
}

/// Splits the sign off.
fn signed(value: &[u8]) -> (bool, &[u8]) {
    match value {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    }
}

/// Returns the number that the digits stand for. There must be at most 18 of them, so that it does not
/// overflow.
#[inline]
pub(super) fn number(digits: &[u8]) -> Option<i64> {
    let add = |number: i64, &digit: &u8| {
        let digit = digit.wrapping_sub(b'0');
        (digit < 10).then(|| 10 * number + i64::from(digit))
    };
    digits.iter().try_fold(0, add)
}

/// Parses an integer of at most 18 digits.
pub(super) fn integer(value: &[u8]) -> Option<i64> {
    let (is_negative, digits) = signed(value);
    if !(1..=18).contains(&digits.len()) {
        return None;
    }
    number(digits).map(|number| if is_negative { -number } else { number })
}

/// The powers of ten up to 10^15, which are exact.
const POWERS: [f64; 16] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// Parses a number of at most 15 digits without an exponent. The digits and the power of ten are exact, so the
/// quotient is the nearest float.
pub(super) fn float(value: &[u8]) -> Option<f64> {
    let (is_negative, digits) = signed(value);
    if !(1..=16).contains(&digits.len()) {
        return None;
    }
    // The number without its point, and the number of digits before the point.
    let (mut scaled, mut whole) = (0, digits.len());
    for (at, &byte) in digits.iter().enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit < 10 {
            scaled = 10 * scaled + i64::from(digit);
        } else if byte == b'.' && whole == digits.len() && at > 0 {
            whole = at;
        } else {
            return None;
        }
    }
    let fraction = match digits.len() - whole {
        0 if whole > 15 => return None,
        0 => 0,
        // A point needs digits after it.
        1 => return None,
        point_and_fraction => point_and_fraction - 1,
    };
    let number = scaled as f64 / POWERS.get(fraction)?;
    Some(if is_negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_arrow() {
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..100_000 {
            let length = random.usize(..20);
            let value: Vec<u8> =
                (0..length).map(|_| b"0123456789-.+e5"[random.usize(..15)]).collect();
            if let Some(parsed) = integer(&value) {
                assert_eq!(Some(parsed), Int64Type::parse(&text(&value)), "{}", text(&value));
            }
            let digits =
                [random.i64(-1 << 40..1 << 40), random.i64(0..1 << 20)].map(|n| n.to_string());
            for value in [value, digits.join(".").into_bytes(), digits[1].clone().into_bytes()] {
                if let Some(parsed) = float(&value) {
                    let expected = Float64Type::parse(&text(&value)).map(f64::to_bits);
                    assert_eq!(Some(parsed.to_bits()), expected, "{}", text(&value));
                }
            }
        }
        assert_eq!(float(b"-0.0").map(f64::to_bits), Some((-0.0f64).to_bits()));
        assert_eq!(float(b"21168.23"), Some(21168.23));
    }

    #[test]
    fn quotes_are_removed() {
        assert_eq!(&*unescaped(b"a\"\"b\"\""), b"a\"b\"");
        assert_eq!(&*unescaped(b"\"\""), b"\"");
        assert_eq!(&*unescaped(b"ab"), b"ab");
    }
}

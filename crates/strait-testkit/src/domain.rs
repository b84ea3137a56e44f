//! The values that a column may have: dense, scattered or adversarial, including the ends of the type's
//! range.

use arrow::datatypes::{ArrowPrimitiveType, DataType, Float16Type, IntervalUnit, i256};

use crate::encode::range;
use crate::random::Rng;
use crate::value::{Comparison, Value, float_order, leaf, nanoseconds, power_of_ten};

type Half = <Float16Type as ArrowPrimitiveType>::Native;

/// How the values of a column are distributed over the range of its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// Consecutive values, from a random start.
    Dense,
    /// Random values from the whole range.
    Scattered,
    /// Values with equal low bits; strings with a long common prefix.
    LowBitsEqual,
    /// The ends of the range, zero, minus one, the empty string, NaN.
    Extreme,
    /// A random style for each value.
    Mixed,
    /// Integers that collide under a mixer and a hash that everyone [knows](crate::chosen).
    Chosen,
}

impl Style {
    /// All styles.
    pub const ALL: [Style; 6] = [
        Style::Dense,
        Style::Scattered,
        Style::LowBitsEqual,
        Style::Extreme,
        Style::Mixed,
        Style::Chosen,
    ];
}

/// Draws values of one type.
#[derive(Debug, Clone)]
pub struct Domain {
    data_type: DataType,
    comparison: Comparison,
    style: Style,
    start: u64,
    /// Whether an earlier key column also has chosen values.
    second: bool,
}

impl Domain {
    /// Values of `data_type`, which are compared by the rules of `comparison`.
    pub fn new(rng: &mut Rng, data_type: &DataType, comparison: Comparison, style: Style) -> Self {
        let start = if rng.chance(1, 2) { rng.below(4) as u64 } else { rng.bits() };
        Domain { data_type: data_type.clone(), comparison, style, start, second: false }
    }

    /// Lets dense values start where every type has values. Two different types can match only there.
    pub fn near_zero(self) -> Self {
        Domain { start: self.start % 4, ..self }
    }

    /// The values of a later key column. With [`Style::Chosen`], they follow from the first column's values.
    pub fn after_the_first(self) -> Self {
        Domain { second: true, ..self }
    }

    /// Returns the `i`th value, if the style has an order, else a random one. The value is never null, but
    /// may contain nulls.
    pub fn draw(&self, rng: &mut Rng, i: usize) -> Value {
        let style = match self.style {
            Style::Mixed => *rng.pick(&Style::ALL[..4]),
            style => style,
        };
        self.value(rng, leaf(&self.data_type), style, i)
    }

    fn value(&self, rng: &mut Rng, data_type: &DataType, style: Style, i: usize) -> Value {
        use DataType::*;
        match data_type {
            Null => Value::Null,
            Boolean => Value::Bool(rng.chance(1, 2)),
            Utf8 | LargeUtf8 | Utf8View => Value::Bytes(text(rng, style, i).into_bytes()),
            Binary | LargeBinary | BinaryView => match rng.chance(1, 2) {
                true => Value::Bytes(text(rng, style, i).into_bytes()),
                false => Value::Bytes(octets(rng, style, i)),
            },
            FixedSizeBinary(size) => {
                let mut bytes = octets(rng, style, i);
                bytes.resize(*size as usize, 0);
                Value::Bytes(bytes)
            }
            Float16 | Float32 | Float64 => self.float(rng, data_type, style, i),
            Decimal32(p, s) | Decimal64(p, s) | Decimal128(p, s) | Decimal256(p, s) => {
                self.decimal(rng, (*p, *s), style, i)
            }
            Interval(IntervalUnit::DayTime) => tuple([
                self.int(rng, (&Int32, style), i),
                self.int(rng, (&Int32, Style::Dense), i % 2),
            ]),
            Interval(IntervalUnit::MonthDayNano) => tuple([
                self.int(rng, (&Int32, Style::Dense), i % 3),
                self.int(rng, (&Int32, Style::Extreme), i),
                self.int(rng, (&Int64, style), i),
            ]),
            List(f) | LargeList(f) | ListView(f) | LargeListView(f) => {
                let length = rng.below(4);
                Value::List((0..length).map(|j| self.inner(rng, f.data_type(), i + j)).collect())
            }
            FixedSizeList(f, size) => {
                let items = (0..*size as usize).map(|j| self.inner(rng, f.data_type(), i + j));
                Value::List(items.collect())
            }
            Map(entries, _) => {
                let DataType::Struct(fields) = entries.data_type() else { return Value::Null };
                let length = rng.below(3);
                let entry = |j| {
                    let key = self.value(rng, fields[0].data_type(), Style::Dense, i + j);
                    Value::Tuple(vec![key, self.inner(rng, fields[1].data_type(), i)])
                };
                Value::List((0..length).map(entry).collect())
            }
            Struct(fields) => {
                Value::Tuple(fields.iter().map(|f| self.inner(rng, f.data_type(), i)).collect())
            }
            Union(fields, _) => {
                let members: Vec<_> = fields.iter().collect();
                let (tag, field) = *rng.pick(&members);
                Value::Tagged(tag, Box::new(self.inner(rng, field.data_type(), i)))
            }
            _ => self.int(rng, (data_type, style), i),
        }
    }

    /// Draws a part of a nested value. It is null now and then.
    fn inner(&self, rng: &mut Rng, data_type: &DataType, i: usize) -> Value {
        if rng.chance(1, 6) {
            return crate::encode::blank(data_type);
        }
        let alone = Domain { comparison: Comparison::alone(data_type), ..self.clone() };
        let style = if rng.chance(1, 4) { Style::Extreme } else { Style::Dense };
        alone.value(rng, leaf(data_type), style, i)
    }

    fn int(&self, rng: &mut Rng, (data_type, style): (&DataType, Style), i: usize) -> Value {
        let (min, max) = range(data_type);
        let span = (max - min) as u128 + 1;
        let wrap = |offset: u128| min + (offset % span) as i128;
        let half = u128::BITS - span.leading_zeros();
        let raw = match style {
            Style::Dense => wrap((-min) as u128 + u128::from(self.start) + i as u128),
            Style::LowBitsEqual => wrap((i as u128) << (half / 2)),
            Style::Chosen if self.second && (min, half) == (i64::MIN.into(), 65) => {
                crate::chosen::pair(i as u64)[1].into()
            }
            Style::Chosen if half == 65 => wrap(crate::chosen::wide(i as u64).into()),
            Style::Chosen if half == 33 => wrap(crate::chosen::narrow(i as u32).into()),
            Style::Extreme => *rng.pick(&[min, max, min + 1, max - 1, 0, 1, (-1).max(min)]),
            _ => wrap(rng.bits128()),
        };
        match nanoseconds(data_type) {
            Some(unit) => Value::Int(raw * unit),
            None => self.comparison.integer(raw),
        }
    }

    fn decimal(
        &self,
        rng: &mut Rng,
        (precision, scale): (u8, i8),
        style: Style,
        i: usize,
    ) -> Value {
        let bound = power_of_ten(precision as i8);
        let raw = match style {
            Style::Dense => i256::from_i128(i as i128),
            Style::LowBitsEqual => {
                i256::from_i128(i as i128).wrapping_mul(power_of_ten(precision as i8 / 2))
            }
            Style::Extreme => {
                let most = bound.wrapping_sub(i256::ONE);
                *rng.pick(&[most, most.wrapping_neg(), i256::ZERO, i256::MINUS_ONE, i256::ONE])
            }
            _ => i256::from_parts(rng.bits128(), rng.bits128() as i128),
        };
        self.comparison.decimal(raw.wrapping_rem(bound), scale)
    }

    fn float(&self, rng: &mut Rng, data_type: &DataType, style: Style, i: usize) -> Value {
        const EXTREMES: [f64; 16] = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            f64::NAN,
            -f64::NAN,
            f64::from_bits(0xfff9 << 48),
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MAX,
            f64::MIN_POSITIVE,
            // The smallest subnormal number of each type.
            5e-324,
            1.4e-45,
            6e-8,
            0.1,
            f64::EPSILON,
        ];
        let plain = match style {
            Style::Dense => i as f64 + (self.start % 1000) as f64,
            Style::LowBitsEqual => (i as f64) * 65536.0,
            Style::Extreme => *rng.pick(&EXTREMES),
            _ => (rng.unit() - 0.5) * 1000.0,
        };
        let plain = if plain == 0.0 && rng.chance(1, 2) { -plain } else { plain };
        if self.comparison.as_float {
            // Only values that both types can hold can match.
            let plain = match data_type {
                DataType::Float16 => Half::from_f64(plain).to_f64(),
                DataType::Float32 => f64::from(plain as f32),
                _ => plain,
            };
            return self.comparison.float(plain);
        }
        // When floats are compared by their bits, NaNs with other payloads and signs are ordinary values.
        let odd = style == Style::Extreme && rng.chance(1, 3);
        let nan = rng.below(4);
        let bits = match data_type {
            DataType::Float16 if odd => i64::from([0xFE01_u16, 0x7E01, 0xFC01, 0x7C01][nan] as i16),
            DataType::Float16 => i64::from(Half::from_f64(plain).to_bits() as i16),
            DataType::Float32 if odd => {
                let nans = [0xFF80_0001_u32, 0x7F80_0001, 0xFFC0_0001, 0x7FC0_0001];
                i64::from(nans[nan] as i32)
            }
            DataType::Float32 => i64::from((plain as f32).to_bits() as i32),
            _ if odd => ([0xFFF0_u64, 0x7FF0, 0xFFF8, 0x7FF8][nan] << 48 | 1) as i64,
            _ => plain.to_bits() as i64,
        };
        Value::Float(float_order(bits))
    }
}

fn tuple<const N: usize>(parts: [Value; N]) -> Value {
    Value::Tuple(parts.to_vec())
}

fn text(rng: &mut Rng, style: Style, i: usize) -> String {
    match style {
        Style::Dense => format!("{i}"),
        Style::LowBitsEqual => format!("a prefix longer than a view holds inline {i}"),
        Style::Extreme => {
            let texts = [
                "",
                "\0",
                "\0\0",
                "a",
                "a\0",
                "Straße",
                "\u{10FFFF}",
                "exactly12byt",
                "exactly12byte",
            ];
            rng.pick(&texts).to_string()
        }
        _ => (0..rng.below(24)).map(|_| char::from(b'a' + rng.below(26) as u8)).collect(),
    }
}

fn octets(rng: &mut Rng, style: Style, i: usize) -> Vec<u8> {
    match style {
        Style::Dense => (i as u32).to_le_bytes().to_vec(),
        Style::LowBitsEqual => [&[7; 14], (i as u16).to_be_bytes().as_slice()].concat(),
        Style::Extreme => rng.pick(&[vec![], vec![0], vec![0; 9], vec![0xFF; 16]]).clone(),
        _ => (0..rng.below(20)).map(|_| rng.bits() as u8).collect(),
    }
}

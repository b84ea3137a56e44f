//! Chooses the encoding of each Parquet column from a sample of its rows.
//!
//! A dictionary makes a column with few different values small. For a column with many different values, it
//! costs the time to look up every value, and is given up when it is full. Values that repeat the value before
//! them, such as the columns of an order in each of its items, are small after compression even without a
//! dictionary. So the sizes of all three encodings are estimated, after compression.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::DataType;
use parquet::basic::Compression as Codec;

use super::strings::{MOST_WORDS, holds_strings};

/// The most rows of a sample.
const SAMPLE_ROWS: usize = 8192;

/// A sample with fewer rows says too little.
const FEWEST_ROWS: usize = 1024;

/// The most bytes of a dictionary. The writer gives up a dictionary of 1 MiB, and the estimate may be too low.
const DICTIONARY_BYTES: f64 = 768.0 * 1024.0;

/// The same for strings that are encoded by a [`StringColumn`](super::strings::StringColumn).
const WORDS_BYTES: f64 = 0.75 * MOST_WORDS as f64;

/// If at least this part of the strings repeats the string before it, a dictionary takes less time than the
/// compression of plain values. The sizes are about the same.
const REPEATS_PAY: f64 = 0.5;

/// A dictionary pays if the column takes at most this part of its plain size.
const DICTIONARY_PAYS: f64 = 0.8;

/// Differences take less time than a dictionary. So they are chosen even if they are larger by this factor.
const DIFFERENCES_PAY: f64 = 1.1;

/// Differences must take at most this part of the plain size.
const PLAIN_LOSES: f64 = 0.9;

/// Differences need no compression, which takes more time than they do. Snappy is chosen for speed, so there
/// they may be larger than compressed plain values by this factor.
const PLAIN_LOSES_TO_SNAPPY: f64 = 2.25;

/// The bytes of a plain value that repeats the value before it, after compression.
const REPEATED_BYTES: f64 = 0.7;

/// The encoding of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ColumnEncoding {
    /// A dictionary, and plain values when it is full.
    Dictionary,
    Plain,
    /// Differences of integers (DELTA_BINARY_PACKED).
    Differences,
}

/// What the encodings of a file depend on.
pub(super) struct Setting {
    /// Rows per row group.
    pub(super) group_rows: usize,
    pub(super) codec: Codec,
    /// Whether columns of strings may be encoded here. Otherwise, Arrow's writer encodes them.
    pub(super) own: bool,
    /// The same for columns of integers.
    pub(super) own_numbers: bool,
}

/// Chooses the encoding of a column. Returns None if the sample says too little, or if the type is always encoded
/// in the same way.
pub(super) fn choose(array: &ArrayRef, setting: &Setting) -> Option<ColumnEncoding> {
    let rows = array.len().min(SAMPLE_ROWS);
    if rows < FEWEST_ROWS {
        return None;
    }
    let sample = Sample::of(&array.slice(0, rows))?;
    let compressed = setting.codec != Codec::UNCOMPRESSED;
    let plain = if compressed { sample.compressed_bytes() } else { sample.plain_bytes };
    let distinct = sample.distinct(setting.group_rows);
    let in_dictionary = distinct * sample.plain_bytes;
    let index = distinct.max(2.0).log2().ceil() / 8.0;
    let words = setting.own && holds_strings(array.data_type());
    let dictionary = match in_dictionary <= if words { WORDS_BYTES } else { DICTIONARY_BYTES } {
        true => index + in_dictionary / setting.group_rows as f64,
        false => f64::INFINITY,
    };
    let repeats = words && dictionary.is_finite() && sample.repeats() >= REPEATS_PAY;
    let plain_loses = match setting.codec {
        Codec::SNAPPY if setting.own_numbers => PLAIN_LOSES_TO_SNAPPY,
        _ => PLAIN_LOSES,
    };
    Some(match sample.difference_bytes() {
        Some(bytes) if bytes <= plain_loses * plain && bytes <= DIFFERENCES_PAY * dictionary => {
            ColumnEncoding::Differences
        }
        _ if repeats || dictionary <= DICTIONARY_PAYS * plain => ColumnEncoding::Dictionary,
        _ => ColumnEncoding::Plain,
    })
}

/// The values of a sample.
struct Sample {
    /// The values, or hashes of the values.
    values: Vec<i64>,
    /// Whether `values` has integers that Parquet stores as integers.
    integers: bool,
    /// The average bytes of a plain value.
    plain_bytes: f64,
}

impl Sample {
    fn of(array: &ArrayRef) -> Option<Sample> {
        match array.data_type() {
            DataType::Utf8 => Some(Sample::of_bytes(array.as_string::<i32>())),
            DataType::LargeUtf8 => Some(Sample::of_bytes(array.as_string::<i64>())),
            DataType::Utf8View => Some(Sample::of_bytes(array.as_string_view())),
            DataType::Binary => Some(Sample::of_bytes(array.as_binary::<i32>())),
            DataType::LargeBinary => Some(Sample::of_bytes(array.as_binary::<i64>())),
            DataType::BinaryView => Some(Sample::of_bytes(array.as_binary_view())),
            other => Sample::of_numbers(array, other),
        }
    }

    fn of_bytes<'a, V: AsRef<[u8]> + 'a>(values: impl IntoIterator<Item = Option<V>>) -> Sample {
        let hasher = RandomState::new();
        let (mut hashes, mut bytes) = (Vec::with_capacity(SAMPLE_ROWS), 0);
        for value in values.into_iter().flatten() {
            bytes += value.as_ref().len();
            hashes.push(hasher.hash_one(value.as_ref()) as i64);
        }
        let plain_bytes = 4.0 + bytes as f64 / hashes.len().max(1) as f64;
        Sample { values: hashes, integers: false, plain_bytes }
    }

    fn of_numbers(array: &ArrayRef, data_type: &DataType) -> Option<Sample> {
        let (integers, plain_bytes) = match data_type {
            DataType::Float32 => (false, 4.0),
            DataType::Float64 => (false, 8.0),
            // Parquet stores decimals of up to 9 digits in 32 bits, and of up to 18 digits in 64 bits.
            DataType::Decimal32(digits, _)
            | DataType::Decimal64(digits, _)
            | DataType::Decimal128(digits, _) => match digits {
                ..=9 => (true, 4.0),
                10..=18 => (true, 8.0),
                _ => return None,
            },
            DataType::Date64 => (true, 8.0),
            other if other.is_integer() || other.is_temporal() => match other {
                DataType::Interval(_) => return None,
                other => (true, if other.primitive_width()? <= 4 { 4.0 } else { 8.0 }),
            },
            _ => return None,
        };
        let data = array.to_data();
        let width = data_type.primitive_width()?;
        let bytes = data.buffers().first()?.as_slice();
        let bytes = bytes.get(array.offset() * width..(array.offset() + array.len()) * width)?;
        let value = |bytes: &[u8]| {
            let mut value = [0; 8];
            let kept = width.min(8);
            value[..kept].copy_from_slice(&bytes[..kept]);
            let unused = 64 - 8 * kept as u32;
            // Shifts the sign to its place.
            (i64::from_le_bytes(value) << unused) >> unused
        };
        let values = bytes.chunks_exact(width).enumerate();
        let values =
            values.filter(|&(row, _)| array.is_valid(row)).map(|(_, v)| value(v)).collect();
        Some(Sample { values, integers, plain_bytes })
    }

    /// Estimates the bytes of a plain value after compression. Bytes that are the same in all integers take
    /// little, and so do values that repeat the value before them.
    fn compressed_bytes(&self) -> f64 {
        let repeats = self.repeats();
        let mut new_bytes = self.plain_bytes;
        if self.integers {
            let least = self.values.iter().min().copied().unwrap_or(0);
            let most = self.values.iter().max().copied().unwrap_or(0);
            let bits = u64::BITS - (most.wrapping_sub(least) as u64).leading_zeros();
            new_bytes = (f64::from(bits.div_ceil(8)) + 0.5).min(self.plain_bytes);
        }
        (1.0 - repeats) * new_bytes + repeats * REPEATED_BYTES
    }

    /// Returns the part of the values that repeat the value before them.
    fn repeats(&self) -> f64 {
        let repeats = self.values.windows(2).filter(|pair| pair[0] == pair[1]).count();
        repeats as f64 / self.values.len().max(1) as f64
    }

    /// Estimates the number of different values in `rows` rows.
    ///
    /// The second half of the sample repeats a part of the values of the first half. If each further half
    /// repeats the same part of its new values, the numbers of new values are a geometric series. This is
    /// exact for values that are drawn at random, and for values that are all new.
    fn distinct(&self, rows: usize) -> f64 {
        let half = self.values.len() / 2;
        let mut seen: HashSet<i64> = HashSet::with_capacity(self.values.len());
        seen.extend(&self.values[..half]);
        let first = seen.len() as f64;
        seen.extend(&self.values[half..]);
        let ratio = (seen.len() as f64 - first) / first.max(1.0);
        let halves = rows as f64 / half.max(1) as f64;
        if ratio >= 0.999 {
            return first * halves.max(2.0);
        }
        (first * (1.0 - ratio.powf(halves)) / (1.0 - ratio)).max(seen.len() as f64)
    }

    /// Estimates the bytes of a value that is encoded as a difference. Returns None if the values are not
    /// integers.
    fn difference_bytes(&self) -> Option<f64> {
        /// The number of differences that share a bit width.
        const TOGETHER: usize = 32;
        if !self.integers || self.values.len() < 2 {
            return None;
        }
        let differences: Vec<i64> =
            self.values.windows(2).map(|pair| pair[1].wrapping_sub(pair[0])).collect();
        let bits = |some: &[i64]| {
            let least = some.iter().min().copied().unwrap_or(0);
            let most = some.iter().max().copied().unwrap_or(0);
            let range = most.wrapping_sub(least) as u64;
            u64::from(u64::BITS - range.leading_zeros()) * some.len() as u64
        };
        let bits: u64 = differences.chunks(TOGETHER).map(bits).sum();
        Some(bits as f64 / 8.0 / differences.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Decimal128Array, Float64Array, Int32Array, Int64Array, StringArray};
    use std::sync::Arc;

    const ROWS: usize = 1 << 18;

    /// Chooses the encoding that Zstandard compresses.
    fn chosen(array: impl Array + 'static) -> Option<ColumnEncoding> {
        let codec = Codec::ZSTD(parquet::basic::ZstdLevel::default());
        chosen_for(codec, true, Arc::new(array))
    }

    fn chosen_for(codec: Codec, own: bool, array: ArrayRef) -> Option<ColumnEncoding> {
        choose(&array, &Setting { group_rows: ROWS, codec, own, own_numbers: own })
    }

    fn random(most: i64) -> impl Iterator<Item = i64> {
        let mut random = fastrand::Rng::with_seed(7);
        (0..SAMPLE_ROWS).map(move |_| random.i64(0..most))
    }

    #[test]
    fn few_values_get_a_dictionary() {
        use ColumnEncoding::Dictionary;
        let quantities = random(50).map(|v| 100 * v);
        assert_eq!(chosen(Int64Array::from_iter_values(quantities)), Some(Dictionary));
        let floats = random(9).map(|v| v as f64);
        assert_eq!(chosen(Float64Array::from_iter_values(floats)), Some(Dictionary));
        let words = random(1000).map(|v| format!("Clerk#{v:09}"));
        assert_eq!(chosen(StringArray::from_iter_values(words)), Some(Dictionary));
        assert_eq!(chosen(StringArray::new_null(SAMPLE_ROWS)), Some(Dictionary));
    }

    #[test]
    fn many_values_get_none() {
        use ColumnEncoding::{Differences, Plain};
        let words = random(1 << 40).map(|v| format!("a comment {v}"));
        assert_eq!(chosen(StringArray::from_iter_values(words)), Some(Plain));
        let floats = random(1 << 40).map(|v| v as f64);
        assert_eq!(chosen(Float64Array::from_iter_values(floats)), Some(Plain));
        assert_eq!(chosen(Int64Array::from_iter_values(random(i64::MAX))), Some(Plain));
        let prices = Decimal128Array::from_iter_values(random(10_000_000).map(i128::from));
        let prices = prices.with_precision_and_scale(15, 2).unwrap();
        assert_eq!(chosen(prices), Some(Differences));
    }

    /// The columns of an order, in each of its four items.
    #[test]
    fn repeated_values_need_no_dictionary() {
        use ColumnEncoding::{Differences, Plain};
        let keys = Int32Array::from_iter_values((0..8192).map(|i| i / 4 * 7));
        assert_eq!(chosen(keys), Some(Differences));
        let prices = random(50_000_000).flat_map(|price| [price; 4]);
        let prices = Int64Array::from_iter_values(prices.take(8192));
        assert_eq!(chosen(prices.clone()), Some(Plain));
        let prices: ArrayRef = Arc::new(prices);
        for own in [true, false] {
            let with = |codec| chosen_for(codec, own, Arc::clone(&prices));
            assert_eq!(with(Codec::UNCOMPRESSED), Some(Differences));
            assert_eq!(with(Codec::SNAPPY), Some(if own { Differences } else { Plain }));
        }
    }

    /// The comments of orders, in each of their items.
    #[test]
    fn repeated_strings_get_a_large_dictionary() {
        use ColumnEncoding::{Dictionary, Plain};
        let comments = |items: i32| {
            let comments = (0..8192).map(|i| format!("a comment of some length {:20}", i / items));
            Arc::new(StringArray::from_iter_values(comments)) as ArrayRef
        };
        let chosen = |own, items| chosen_for(Codec::SNAPPY, own, comments(items));
        assert_eq!(chosen(true, 4), Some(Dictionary));
        assert_eq!(chosen(false, 4), Some(Plain), "too large for the dictionary of Arrow's writer");
        assert_eq!(chosen(true, 1), Some(Plain));
    }

    #[test]
    fn little_or_nested_data_decides_nothing() {
        assert_eq!(chosen(Int64Array::from_iter_values(0..1000)), None);
        assert_eq!(chosen(arrow::array::BooleanArray::from(vec![true; 5000])), None);
        let wide = Decimal128Array::from_iter_values(random(10).map(i128::from));
        assert_eq!(chosen(wide.with_precision_and_scale(38, 2).unwrap()), None);
    }

    #[test]
    fn the_number_of_values_is_estimated() {
        let estimate =
            |values: Vec<i64>| Sample { values, integers: true, plain_bytes: 8.0 }.distinct(ROWS);
        let exact = estimate((0..8192).collect());
        assert_eq!(exact, ROWS as f64);
        let few = estimate(random(100).collect());
        assert_eq!(few, 100.0);
        let many = estimate(random(10_000).collect());
        assert!((8_000.0..12_000.0).contains(&many), "{many}");
        assert_eq!(estimate(vec![5; 8192]), 1.0);
    }
}

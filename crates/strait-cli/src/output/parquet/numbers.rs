//! Encodes Parquet columns of integers, and of other types that Parquet stores as integers.
//!
//! Arrow's column writer encodes one value at a time. This writer collects the values of a page, and encodes
//! them together.

use std::ops::RangeInclusive;

use arrow::array::{Array, ArrayRef};
use arrow::datatypes::{DataType, TimeUnit};
use parquet::basic::{Encoding, Type};
use parquet::errors::{ParquetError, Result};
use parquet::file::statistics::{Statistics, ValueStatistics};
use parquet::schema::types::ColumnDescPtr;

use super::bits::{greatest, least};
use super::chunk::{DataPage, Ending, Order, OwnChunk, Pages};
use super::codec::PageCodec;
use super::delta;
use super::dictionary::Numbers;
use super::encodings::ColumnEncoding;
use super::page::{Body, Levels, PAGE_ROWS};
use super::rle;

/// Returns whether columns of this type can be encoded here. All of them are ordered as signed integers.
pub(super) fn holds_numbers(data_type: &DataType) -> bool {
    match data_type {
        DataType::Int32 | DataType::Int64 | DataType::Date32 | DataType::Time64(_) => true,
        // Parquet stores decimals of up to 18 digits as integers.
        DataType::Decimal32(digits, _)
        | DataType::Decimal64(digits, _)
        | DataType::Decimal128(digits, _) => *digits <= 18,
        DataType::Timestamp(unit, _) => *unit != TimeUnit::Second,
        _ => false,
    }
}

/// A column chunk that is being written.
pub(super) struct NumberColumn {
    /// Whether Parquet stores 32-bit integers.
    narrow: bool,
    /// The values that the column can hold. Arrow does not check the digits of decimals.
    range: RangeInclusive<i64>,
    encoding: ColumnEncoding,
    dictionary: Numbers,
    levels: Levels,
    /// The values of the page that are not null.
    values: Vec<i64>,
    /// The dictionary indices of the page.
    indices: Vec<u32>,
    body: Body,
    pages: Pages,
    bounds: Option<(i64, i64)>,
    order: Order<i64>,
}

impl NumberColumn {
    pub(super) fn new(descr: ColumnDescPtr, encoding: ColumnEncoding) -> NumberColumn {
        NumberColumn {
            narrow: descr.physical_type() == Type::INT32,
            range: range(&descr),
            encoding,
            dictionary: Numbers::new(),
            levels: Levels::default(),
            values: Vec::new(),
            indices: Vec::new(),
            body: Body::default(),
            pages: Pages::new(descr),
            bounds: None,
            order: Order::default(),
        }
    }

    /// Encodes an array of a type that [holds numbers](holds_numbers).
    pub(super) fn write(&mut self, array: &ArrayRef, codec: &mut PageCodec) -> Result<()> {
        let data = array.to_data();
        match array.data_type().primitive_width() {
            Some(4) => self.write_rows(array, data.buffer::<i32>(0), i64::from, codec),
            Some(8) => self.write_rows(array, data.buffer::<i64>(0), |v| v, codec),
            Some(16) => self.write_rows(array, data.buffer::<i128>(0), nearest, codec),
            _ => {
                let other = array.data_type();
                Err(ParquetError::General(format!("a column of integers has {other}")))
            }
        }
    }

    fn write_rows<T: Copy>(
        &mut self,
        array: &ArrayRef,
        values: &[T],
        integer: impl Fn(T) -> i64,
        codec: &mut PageCodec,
    ) -> Result<()> {
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
        if nulls.is_some() && !self.pages.optional() {
            return Err(ParquetError::General("a column without nulls has a null".to_string()));
        }
        let mut start = 0;
        while start < array.len() {
            let end = array.len().min(start + PAGE_ROWS - self.levels.rows());
            let some = &values[start..end];
            self.make_room(some.len());
            match nulls {
                None => self.values.extend(some.iter().map(|&value| integer(value))),
                Some(nulls) => {
                    let valid = some.iter().zip(start..).filter(|&(_, row)| nulls.is_valid(row));
                    self.values.extend(valid.map(|(&value, _)| integer(value)));
                }
            }
            self.levels.add(nulls, start..end);
            if self.levels.rows() >= PAGE_ROWS {
                self.end_page(codec)?;
            }
            start = end;
        }
        Ok(())
    }

    /// Allocates memory for more values of the page. A table may have thousands of columns with few rows each, so the
    /// memory grows with the rows, up to that of a whole page.
    fn make_room(&mut self, rows: usize) {
        let (held, needed) = (self.values.capacity(), self.values.len() + rows);
        if needed > held {
            let wanted = needed.max((2 * held).min(PAGE_ROWS));
            self.values.reserve_exact(wanted - self.values.len());
        }
    }

    /// Returns the memory of the column chunk so far, in bytes. The second page-sized part is for the compressed copy of a
    /// page.
    pub(super) fn memory_size(&self) -> u64 {
        let page = self.values.capacity() * size_of::<i64>();
        let indices = self.indices.capacity() * size_of::<u32>();
        let parts = 2 * page + indices + self.body.memory_size() + self.levels.memory_size();
        (parts + self.dictionary.memory_size() + self.pages.memory_size()) as u64
    }

    fn end_page(&mut self, codec: &mut PageCodec) -> Result<()> {
        let bounds = least(&self.values).zip(greatest(&self.values));
        if let Some((least, most)) = bounds {
            self.pages.check_range(least, most, &self.range)?;
        }
        let encoding = self.encode();
        if let Some((least, most)) = bounds {
            self.order.add(least, most);
            let (all_least, all_most) = self.bounds.unwrap_or((least, most));
            self.bounds = Some((all_least.min(least), all_most.max(most)));
        }
        let width = if self.narrow { 4 } else { 8 };
        let bytes = |value: i64| value.to_le_bytes()[..width].to_vec();
        let page = DataPage {
            rows: self.levels.rows(),
            nulls: self.levels.nulls(),
            encoding,
            body: self.body.complete(&self.levels, self.pages.optional()),
            bounds: bounds.map(|(least, most)| (bytes(least), bytes(most))),
            value_bytes: None,
        };
        self.pages.add(page, codec)?;
        self.body.clear();
        self.levels.clear();
        self.values.clear();
        Ok(())
    }

    /// Encodes the values of the page. Returns their encoding.
    fn encode(&mut self) -> Encoding {
        if self.encoding == ColumnEncoding::Dictionary {
            self.indices.clear();
            for &value in &self.values {
                let Some(index) = self.dictionary.index(value) else {
                    // The rest of the chunk is plain.
                    self.encoding = ColumnEncoding::Plain;
                    break;
                };
                self.indices.push(index);
            }
        }
        let out = self.body.values();
        match self.encoding {
            ColumnEncoding::Dictionary => {
                rle::encode_indices(&self.indices, self.dictionary.values().len(), out);
                Encoding::RLE_DICTIONARY
            }
            ColumnEncoding::Differences => {
                delta::encode(&self.values, self.narrow, out);
                Encoding::DELTA_BINARY_PACKED
            }
            ColumnEncoding::Plain => {
                plain(&self.values, self.narrow, out);
                Encoding::PLAIN
            }
        }
    }

    /// Ends the column chunk.
    pub(super) fn close(mut self, codec: &mut PageCodec) -> Result<OwnChunk> {
        if self.levels.rows() > 0 {
            self.end_page(codec)?;
        }
        let nulls = Some(self.pages.nulls() as u64);
        let (least, most) = self.bounds.unzip();
        // Old readers know no other statistics of signed integers than these.
        let statistics = if self.narrow {
            let (least, most) = (least.map(|v| v as i32), most.map(|v| v as i32));
            let statistics = ValueStatistics::new(least, most, None, nulls, false);
            Statistics::Int32(statistics.with_backwards_compatible_min_max(true))
        } else {
            let statistics = ValueStatistics::new(least, most, None, nulls, false);
            Statistics::Int64(statistics.with_backwards_compatible_min_max(true))
        };
        let values = self.dictionary.values();
        let mut bytes = Vec::new();
        plain(values, self.narrow, &mut bytes);
        let dictionary = (values.len(), &bytes[..]);
        let order = self.order.of_pages();
        self.pages.close(Ending { dictionary, statistics, order }, codec)
    }
}

/// Returns the values that a column can hold.
fn range(descr: &ColumnDescPtr) -> RangeInclusive<i64> {
    let digits = u32::try_from(descr.type_precision()).unwrap_or(0);
    match 10i64.checked_pow(digits) {
        Some(end) if digits > 0 => 1 - end..=end - 1,
        _ if descr.physical_type() == Type::INT32 => i64::from(i32::MIN)..=i64::from(i32::MAX),
        _ => i64::MIN..=i64::MAX,
    }
}

/// Returns the nearest integer of 64 bits. A decimal of at most 18 digits is one.
fn nearest(value: i128) -> i64 {
    value.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

fn plain(values: &[i64], narrow: bool, out: &mut Vec<u8>) {
    let start = out.len();
    if narrow {
        out.resize(start + 4 * values.len(), 0);
        for (bytes, &value) in out[start..].as_chunks_mut().0.iter_mut().zip(values) {
            *bytes = (value as i32).to_le_bytes();
        }
    } else {
        out.resize(start + 8 * values.len(), 0);
        for (bytes, &value) in out[start..].as_chunks_mut().0.iter_mut().zip(values) {
            *bytes = value.to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{codecs, halves, read_back};
    use super::*;
    use ColumnEncoding::{Dictionary, Differences, Plain};
    use arrow::array::{Decimal128Array, Int32Array, Int64Array};
    use arrow::compute::cast;
    use parquet::basic::Compression as Codec;
    use parquet::file::metadata::ParquetMetaData;
    use std::sync::Arc;

    fn check(
        array: &ArrayRef,
        nullable: bool,
        codec: Codec,
        encoding: ColumnEncoding,
    ) -> Arc<ParquetMetaData> {
        let (read, metadata) = read_back((array.data_type(), nullable), codec, |descr, codec| {
            let mut column = NumberColumn::new(descr, encoding);
            for part in halves(array) {
                column.write(&part, codec).unwrap();
            }
            column.close(codec).unwrap()
        });
        assert!(*read == **array, "{} as {encoding:?}, {codec}", array.data_type());
        let statistics = metadata.row_group(0).column(0).statistics().unwrap();
        assert_eq!(statistics.null_count_opt(), Some(array.null_count() as u64));
        metadata
    }

    fn check_all(array: ArrayRef) {
        for codec in codecs() {
            for encoding in [Dictionary, Differences, Plain] {
                check(&array, true, codec, encoding);
                if array.null_count() == 0 {
                    check(&array, false, codec, encoding);
                }
            }
        }
    }

    fn with_nulls(values: impl Iterator<Item = i64>) -> ArrayRef {
        let some = values.enumerate().map(|(i, value)| (i % 3 != 1).then_some(value));
        Arc::new(Int64Array::from_iter(some))
    }

    #[test]
    fn numbers_come_back() {
        let mut random = fastrand::Rng::with_seed(5);
        for bits in [0, 1, 7, 17, 33, 62] {
            let values: Vec<i64> = (0..41_000).map(|_| random.i64(-1..1 << bits)).collect();
            check_all(with_nulls(values.iter().copied()));
            check_all(Arc::new(Int64Array::from(values)));
        }
        for rows in [0, 1, 2, 32, 33, 34, 128, 129, 130, 257] {
            check_all(Arc::new(Int64Array::from_iter_values(7..7 + rows)));
            check_all(with_nulls(0..rows));
        }
        check_all(Arc::new(Int64Array::new_null(21_000)));
    }

    /// Arrow lets an array have decimals with more digits than its type. Their bytes, or their statistics, would be
    /// those of other values.
    #[test]
    fn decimals_beyond_their_digits_are_refused() {
        for (data_type, value) in [
            (DataType::Decimal128(9, 2), 1_000_000_000),
            (DataType::Decimal128(9, 2), -1_000_000_000_000),
            (DataType::Decimal128(18, 2), 1_i128 << 64),
        ] {
            for encoding in [Dictionary, Differences, Plain] {
                let values = Decimal128Array::from_iter_values([5, value, 7]);
                let array: ArrayRef = Arc::new(values.with_data_type(data_type.clone()));
                let (_, metadata) = read_back((&data_type, true), Codec::SNAPPY, |descr, codec| {
                    let mut column = NumberColumn::new(descr.clone(), encoding);
                    column.write(&array, codec).unwrap();
                    let refused = column.close(codec).map(|_| ()).unwrap_err().to_string();
                    assert!(refused.contains("digits of its type"), "{refused}");
                    NumberColumn::new(descr, encoding).close(codec).unwrap()
                });
                assert_eq!(metadata.num_row_groups(), 1);
            }
        }
    }

    /// The columns of a wide table take little memory while they have few rows.
    #[test]
    fn columns_with_few_rows_are_small() {
        let few: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10));
        let page: ArrayRef = Arc::new(Int64Array::from_iter_values(0..PAGE_ROWS as i64 - 20));
        read_back((&DataType::Int64, true), Codec::SNAPPY, |descr, codec| {
            let write = |descr: ColumnDescPtr, array: &ArrayRef, codec: &mut PageCodec| {
                let mut column = NumberColumn::new(descr, Dictionary);
                column.write(array, codec).unwrap();
                column
            };
            let make = |codec: &mut PageCodec| -> Vec<NumberColumn> {
                (0..2000).map(|_| write(descr.clone(), &few, codec)).collect()
            };
            let (columns, held) = crate::counted::most_held(|| make(codec));
            assert!(held < 8 << 20, "{held} bytes for {} columns", columns.len());
            // A whole page takes no more than its values.
            let mut column = write(descr.clone(), &page, codec);
            column.write(&few, codec).unwrap();
            assert_eq!(column.values.capacity(), PAGE_ROWS);
            column.close(codec).unwrap()
        });
    }

    /// Differences of such values overflow.
    #[test]
    fn extreme_numbers_come_back() {
        let extremes = [i64::MIN, i64::MAX, 0, -1, i64::MAX, i64::MIN, 1];
        check_all(Arc::new(Int64Array::from_iter_values(extremes.repeat(50))));
        let extremes = [i32::MIN, i32::MAX, 0, -1, i32::MAX, i32::MIN, 1];
        check_all(Arc::new(Int32Array::from_iter_values(extremes.repeat(50))));
    }

    #[test]
    fn all_types_come_back() {
        let numbers: ArrayRef = Arc::new(Int32Array::from_iter(
            (0..25_000).map(|i| (i % 7 != 0).then_some(i * 31 % 5000)),
        ));
        let millis = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
        for data_type in [
            DataType::Int32,
            DataType::Int64,
            DataType::Date32,
            DataType::Time64(TimeUnit::Microsecond),
            DataType::Time64(TimeUnit::Nanosecond),
            DataType::Timestamp(TimeUnit::Nanosecond, None),
            millis,
            DataType::Decimal32(9, 2),
            DataType::Decimal64(9, 2),
            DataType::Decimal64(18, 2),
            DataType::Decimal128(9, 0),
            DataType::Decimal128(18, 4),
        ] {
            assert!(holds_numbers(&data_type));
            let wide = cast(&numbers, &DataType::Int64).unwrap();
            let array = cast(&numbers, &data_type).or_else(|_| cast(&wide, &data_type)).unwrap();
            for encoding in [Dictionary, Differences, Plain] {
                check(&array, true, Codec::SNAPPY, encoding);
            }
        }
        let unsigned = [DataType::UInt32, DataType::UInt64, DataType::Decimal128(19, 0)];
        assert!(!unsigned.iter().any(holds_numbers), "their bytes are ordered in another way");
    }

    #[test]
    fn pages_have_bounds() {
        let values = Int64Array::from_iter((0..50_000).map(|i| (i >= 20_000).then_some(-i)));
        let metadata = check(&(Arc::new(values) as ArrayRef), true, Codec::SNAPPY, Differences);
        let index = &metadata.column_index().unwrap()[0][0];
        let parquet::file::page_index::column_index::ColumnIndexMetaData::INT64(pages) = index
        else {
            panic!("{index:?}")
        };
        let least: Vec<_> = pages.min_values_iter().collect();
        assert_eq!(least, [None, Some(&-39_999), Some(&-49_999)]);
        assert_eq!(index.get_boundary_order(), Some(parquet::basic::BoundaryOrder::DESCENDING));
        let statistics = metadata.row_group(0).column(0).statistics().unwrap();
        assert_eq!(statistics.max_bytes_opt(), Some(&(-20_000_i64).to_le_bytes()[..]));
        assert_eq!(statistics.min_bytes_opt(), Some(&(-49_999_i64).to_le_bytes()[..]));
    }

    #[test]
    fn a_full_dictionary_is_followed_by_plain_pages() {
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..200_000));
        let metadata = check(&values, false, Codec::SNAPPY, Dictionary);
        let data = metadata.row_group(0).column(0).page_encoding_stats_mask().unwrap();
        assert!(data.all_set([Encoding::RLE_DICTIONARY, Encoding::PLAIN].iter()));
    }

    /// Compression of random bits gains nothing, but takes time to write and to read.
    #[test]
    fn pages_that_do_not_shrink_are_not_compressed() {
        let mut random = fastrand::Rng::with_seed(5);
        let random: ArrayRef =
            Arc::new(Int64Array::from_iter_values((0..30_000).map(|_| random.i64(0..1 << 20))));
        let codec = |array: &ArrayRef| {
            let metadata = check(array, true, Codec::SNAPPY, Differences);
            metadata.row_group(0).column(0).compression()
        };
        assert_eq!(codec(&random), Codec::UNCOMPRESSED);
        let regular: ArrayRef =
            Arc::new(Int64Array::from_iter_values((0..30_000).map(|i| i % 4 * 1000)));
        assert_eq!(codec(&regular), Codec::SNAPPY);
    }
}

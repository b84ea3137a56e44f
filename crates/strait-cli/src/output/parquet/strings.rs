//! Encodes Parquet columns of strings.
//!
//! Arrow's column writer hashes every string of every row. This writer remembers the dictionary indices of views,
//! so most rows of a view array cost one comparison of integers. When the dictionary is full, or if the strings
//! have too many values for one, they are written as plain values.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::DataType;
use parquet::basic::Encoding;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::statistics::{Statistics, ValueStatistics};
use parquet::schema::types::ColumnDescPtr;

use super::bounds::Bounds;
use super::chunk::{DataPage, Ending, Order, OwnChunk, Pages};
use super::codec::PageCodec;
use super::dictionary::Words;
use super::page::{Body, Levels, PAGE_ROWS};
use super::recent::Recent;
use super::rle;

/// A page of plain values ends when it has this many bytes.
const PAGE_BYTES: usize = 1 << 20;

/// The most bytes of a dictionary. Readers need all of it for any page.
pub(super) const MOST_WORDS: usize = 6 << 20;

/// Returns whether columns of this type can be encoded here.
pub(super) fn holds_strings(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// A column chunk that is being written.
pub(super) struct StringColumn {
    /// The dictionary.
    words: Words,
    recent: Recent,
    /// Whether the dictionary is full, or not wanted.
    full: bool,
    levels: Levels,
    /// The words of the page, if the dictionary is not full.
    indices: Vec<u32>,
    /// Otherwise, its plain values.
    body: Body,
    /// The bytes of the page's strings.
    value_bytes: i64,
    page_bounds: Bounds,
    bounds: Bounds,
    order: Order<Vec<u8>>,
    pages: Pages,
}

/// The strings of an array.
struct Strings<'a, V, B> {
    nulls: Option<&'a NullBuffer>,
    /// Returns the view of a row, if the array has views. Rows of the same array with equal views have equal
    /// strings.
    view: V,
    /// Returns the string of a row.
    bytes: B,
}

impl StringColumn {
    /// With `dictionary`, strings are put into a dictionary until it is full.
    pub(super) fn new(descr: ColumnDescPtr, dictionary: bool) -> StringColumn {
        StringColumn {
            words: Words::new(MOST_WORDS),
            recent: Recent::new(),
            full: !dictionary,
            levels: Levels::default(),
            indices: Vec::new(),
            body: Body::default(),
            value_bytes: 0,
            page_bounds: Bounds::default(),
            bounds: Bounds::default(),
            order: Order::default(),
            pages: Pages::new(descr),
        }
    }

    /// Encodes an array of a type that [holds strings](holds_strings).
    pub(super) fn write(&mut self, array: &ArrayRef, codec: &mut PageCodec) -> Result<()> {
        let nulls = array.nulls().filter(|nulls| nulls.null_count() > 0);
        if nulls.is_some() && !self.pages.optional() {
            return Err(ParquetError::General("a column without nulls has a null".to_string()));
        }
        self.recent.forget();
        let (len, none) = (array.len(), |_| None);
        match array.data_type() {
            DataType::Utf8 => {
                let strings = array.as_string::<i32>();
                let bytes = |row| strings.value(row).as_bytes();
                self.write_rows(len, &Strings { nulls, view: none, bytes }, codec)
            }
            DataType::LargeUtf8 => {
                let strings = array.as_string::<i64>();
                let bytes = |row| strings.value(row).as_bytes();
                self.write_rows(len, &Strings { nulls, view: none, bytes }, codec)
            }
            DataType::Utf8View => {
                let strings = array.as_string_view();
                let bytes = |row| strings.value(row).as_bytes();
                let view = |row: usize| Some(strings.views()[row]);
                self.write_rows(len, &Strings { nulls, view, bytes }, codec)
            }
            other => Err(ParquetError::General(format!("a column of strings has {other}"))),
        }
    }

    fn write_rows<'a, V, B>(
        &mut self,
        len: usize,
        strings: &Strings<'a, V, B>,
        codec: &mut PageCodec,
    ) -> Result<()>
    where
        V: Fn(usize) -> Option<u128>,
        B: Fn(usize) -> &'a [u8],
    {
        let mut start = 0;
        while start < len {
            let rows = start..len.min(start + PAGE_ROWS - self.levels.rows());
            let is_plain = self.full;
            start = match is_plain {
                false => self.add_words(strings, rows),
                true => self.add_plain(strings, rows)?,
            };
            // A page has either words or plain values.
            let ends = self.levels.rows() >= PAGE_ROWS
                || self.body.len() >= PAGE_BYTES
                || self.full != is_plain && self.levels.rows() > 0;
            if ends {
                self.end_page(is_plain, codec)?;
            }
        }
        Ok(())
    }

    /// Adds the words of rows to the page, until the dictionary is full. Returns the first row that was not added.
    fn add_words<'a, V, B>(&mut self, strings: &Strings<'a, V, B>, rows: Range<usize>) -> usize
    where
        V: Fn(usize) -> Option<u128>,
        B: Fn(usize) -> &'a [u8],
    {
        let (start, mut end) = (rows.start, rows.end);
        let page = self.pages.len() as u32;
        for row in rows {
            if strings.nulls.is_some_and(|nulls| nulls.is_null(row)) {
                continue;
            }
            let view = (strings.view)(row);
            if let Some(view) = view
                && let Some(index) = self.recent.index(view)
            {
                self.indices.push(index);
                self.value_bytes += i64::from(view as u32);
                continue;
            }
            let value = (strings.bytes)(row);
            let Some((index, first)) = self.words.index(value, page) else {
                self.full = true;
                end = row;
                break;
            };
            if let Some(view) = view {
                self.recent.remember(view, index);
            }
            self.indices.push(index);
            self.value_bytes += value.len() as i64;
            if first {
                self.page_bounds.add(value);
            }
        }
        self.levels.add(strings.nulls, start..end);
        end
    }

    /// Adds plain values to the page, until it has enough bytes. Returns the first row that was not added.
    fn add_plain<'a, V, B>(
        &mut self,
        strings: &Strings<'a, V, B>,
        rows: Range<usize>,
    ) -> Result<usize>
    where
        B: Fn(usize) -> &'a [u8],
    {
        let (start, mut end) = (rows.start, rows.end);
        for row in rows {
            if strings.nulls.is_some_and(|nulls| nulls.is_null(row)) {
                continue;
            }
            let value = (strings.bytes)(row);
            let plain = self.body.values();
            plain.extend_from_slice(&plain_length(value.len())?.to_le_bytes());
            plain.extend_from_slice(value);
            self.value_bytes += value.len() as i64;
            self.page_bounds.add(value);
            if self.body.len() >= PAGE_BYTES {
                end = row + 1;
                break;
            }
        }
        self.levels.add(strings.nulls, start..end);
        Ok(end)
    }

    fn end_page(&mut self, is_plain: bool, codec: &mut PageCodec) -> Result<()> {
        if !is_plain {
            rle::encode_indices(&self.indices, self.words.len(), self.body.values());
        }
        let bounds = std::mem::take(&mut self.page_bounds);
        self.bounds.add_all(&bounds);
        let bounds = bounds.shortened();
        if let Some((least, most)) = &bounds {
            self.order.add(least.bytes.clone(), most.bytes.clone());
        }
        let page = DataPage {
            rows: self.levels.rows(),
            nulls: self.levels.nulls(),
            encoding: if is_plain { Encoding::PLAIN } else { Encoding::RLE_DICTIONARY },
            body: self.body.complete(&self.levels, self.pages.optional()),
            bounds: bounds.map(|(least, most)| (least.bytes, most.bytes)),
            value_bytes: Some(self.value_bytes),
        };
        self.pages.add(page, codec)?;
        self.body.clear();
        self.levels.clear();
        self.indices.clear();
        self.value_bytes = 0;
        // The next page must add each word to its bounds.
        self.recent.forget();
        Ok(())
    }

    /// Ends the column chunk.
    pub(super) fn close(mut self, codec: &mut PageCodec) -> Result<OwnChunk> {
        if self.levels.rows() > 0 {
            self.end_page(self.full, codec)?;
        }
        let nulls = Some(self.pages.nulls() as u64);
        let (least, most) = self.bounds.shortened().unzip();
        let exact = (
            least.as_ref().is_some_and(|bound| bound.exact),
            most.as_ref().is_some_and(|bound| bound.exact),
        );
        let least = least.map(|bound| ByteArray::from(bound.bytes));
        let most = most.map(|bound| ByteArray::from(bound.bytes));
        let statistics = ValueStatistics::new(least, most, None, nulls, false)
            .with_min_is_exact(exact.0)
            .with_max_is_exact(exact.1);
        let ending = Ending {
            dictionary: (self.words.len(), self.words.plain()),
            statistics: Statistics::ByteArray(statistics),
            order: self.order.of_pages(),
        };
        self.pages.close(ending, codec)
    }
}

/// Returns the length of a plain value, as Parquet stores it. A page must have less than 2 GiB.
fn plain_length(length: usize) -> Result<u32> {
    const MOST: usize = 1 << 30;
    match u32::try_from(length) {
        Ok(short) if length <= MOST => Ok(short),
        _ => Err(ParquetError::General(format!(
            "a string of {length} bytes is too long for a Parquet page; write .arrow instead"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::round_trip::{codecs, halves, read_back};
    use super::*;
    use arrow::array::{LargeStringArray, StringArray, StringViewArray};
    use parquet::basic::Compression as Codec;
    use parquet::file::metadata::ParquetMetaData;
    use parquet::file::page_index::column_index::ColumnIndexMetaData;
    use std::sync::Arc;

    /// Writes strings as arrays of all types, with and without a dictionary, and compares what is read.
    fn check(strings: &[Option<String>], nullable: bool, codec: Codec) {
        for dictionary in [true, false] {
            check_one(strings, (nullable, dictionary), codec);
        }
    }

    fn check_one(
        strings: &[Option<String>],
        (nullable, dictionary): (bool, bool),
        codec: Codec,
    ) -> Arc<ParquetMetaData> {
        let views: ArrayRef = Arc::new(StringViewArray::from_iter(strings.iter().cloned()));
        let short: ArrayRef = Arc::new(StringArray::from_iter(strings.iter().cloned()));
        let long: ArrayRef = Arc::new(LargeStringArray::from_iter(strings.iter().cloned()));
        let mut last = None;
        for array in [long, short, views] {
            let (read, metadata) =
                read_back((array.data_type(), nullable), codec, |descr, codec| {
                    let mut column = StringColumn::new(descr, dictionary);
                    for part in halves(&array) {
                        column.write(&part, codec).unwrap();
                    }
                    column.close(codec).unwrap()
                });
            assert!(*read == *array, "{}", array.data_type());
            let chunk = metadata.row_group(0).column(0);
            let statistics = chunk.statistics().unwrap();
            let nulls = strings.iter().filter(|s| s.is_none()).count();
            assert_eq!(statistics.null_count_opt(), Some(nulls as u64));
            let least = strings.iter().flatten().min().map(|s| s.as_bytes());
            let most = strings.iter().flatten().max().map(|s| s.as_bytes());
            assert!(statistics.min_bytes_opt() <= least && most <= statistics.max_bytes_opt());
            assert_eq!(
                statistics.min_is_exact(),
                statistics.min_bytes_opt() == least && nulls < strings.len()
            );
            assert_eq!(
                statistics.max_is_exact(),
                statistics.max_bytes_opt() == most && nulls < strings.len()
            );
            let bytes: usize = strings.iter().flatten().map(String::len).sum();
            assert_eq!(chunk.unencoded_byte_array_data_bytes(), Some(bytes as i64));
            last = Some(metadata);
        }
        last.unwrap()
    }

    fn words(rows: usize, different: usize) -> Vec<Option<String>> {
        let mut random = fastrand::Rng::with_seed(different as u64);
        let word = |i: usize| {
            ["", "a", "ab", "abcd", "DELIVER IN PERSON"][i % 5].repeat(1 + i / 7 % 3)
                + &i.to_string()
        };
        (0..rows).map(|_| Some(word(random.usize(0..different)))).collect()
    }

    #[test]
    fn words_come_back() {
        for codec in codecs() {
            for different in [1, 2, 7, 300, 5000] {
                let mut strings = words(45_000, different);
                check(&strings, false, codec);
                check(&strings, true, codec);
                strings.iter_mut().step_by(3).for_each(|s| *s = None);
                check(&strings, true, codec);
            }
            check(&vec![None; 50_000], true, codec);
            check(&vec![Some(String::new()); 100], false, codec);
            check(&[Some("one row".to_string())], false, codec);
            check(&[None], true, codec);
        }
    }

    /// Equal strings in a row have equal views, as rows that a join has repeated.
    #[test]
    fn repeated_views_come_back() {
        let strings = (0..40_000).map(|i| format!("a comment on order {}", i / 4));
        let strings: Vec<_> = strings.map(Some).collect();
        let single = StringViewArray::from_iter_values(strings.iter().step_by(4).flatten());
        let rows = arrow::array::UInt32Array::from_iter_values((0..40_000).map(|i| i / 4));
        let repeated = arrow::compute::take(&single, &rows, None).unwrap();
        let (read, _) = read_back((&DataType::Utf8View, true), Codec::SNAPPY, |descr, codec| {
            let mut column = StringColumn::new(descr, true);
            for part in halves(&repeated) {
                column.write(&part, codec).unwrap();
            }
            column.close(codec).unwrap()
        });
        let read = read.as_string_view();
        assert!(read.iter().eq(strings.iter().map(Option::as_deref)));
    }

    /// Two arrays may have equal views, but different strings.
    #[test]
    fn views_of_another_array_are_not_confused() {
        let array = |text: &str| -> ArrayRef { Arc::new(StringViewArray::from(vec![text; 10])) };
        let (one, other) = (array("the same beginning, 1"), array("the same beginning, 2"));
        assert_eq!(one.as_string_view().views()[0], other.as_string_view().views()[0]);
        let (read, _) = read_back((&DataType::Utf8View, false), Codec::SNAPPY, |descr, codec| {
            let mut column = StringColumn::new(descr, true);
            column.write(&one, codec).unwrap();
            column.write(&other, codec).unwrap();
            column.close(codec).unwrap()
        });
        assert_eq!(*read.slice(0, 10), *one);
        assert_eq!(*read.slice(10, 10), *other);
    }

    #[test]
    fn a_full_dictionary_is_followed_by_plain_pages() {
        let mut strings: Vec<_> =
            (0..300_000).map(|i| Some(format!("there are not few words {i}"))).collect();
        check_one(&strings, (false, true), Codec::SNAPPY);
        strings.iter_mut().skip(1).step_by(5).for_each(|s| *s = None);
        let metadata = check_one(&strings, (true, true), Codec::SNAPPY);
        let chunk = metadata.row_group(0).column(0);
        let data = chunk.page_encoding_stats_mask().unwrap();
        assert!(data.all_set([Encoding::RLE_DICTIONARY, Encoding::PLAIN].iter()));
        // Values that are longer than a dictionary and a page may be.
        strings[290_000] = Some("x".repeat(7 << 20));
        strings[0] = Some("y".repeat(7 << 20));
        check(&strings, true, Codec::SNAPPY);
    }

    #[test]
    fn a_value_must_fit_a_page() {
        assert_eq!(plain_length(7).unwrap(), 7);
        assert_eq!(plain_length(1 << 30).unwrap(), 1 << 30);
        for long in [(1 << 30) + 1, 1 << 32, usize::MAX] {
            assert!(plain_length(long).unwrap_err().to_string().contains("too long"), "{long}");
        }
    }

    /// A reader may skip pages by their statistics.
    #[test]
    fn pages_have_statistics() {
        let strings: Vec<_> = (0..60_000).map(|i| Some(format!("{:02}", i / 20_000))).collect();
        for dictionary in [true, false] {
            let metadata = check_one(&strings, (false, dictionary), Codec::SNAPPY);
            let index = &metadata.column_index().unwrap()[0][0];
            let ColumnIndexMetaData::BYTE_ARRAY(pages) = index else { panic!("{index:?}") };
            let ranges: Vec<_> = pages.min_values_iter().zip(pages.max_values_iter()).collect();
            let of = |text: &'static str| (Some(text.as_bytes()), Some(text.as_bytes()));
            assert_eq!(ranges, [of("00"), of("01"), of("02")]);
            assert_eq!(index.get_boundary_order(), Some(parquet::basic::BoundaryOrder::ASCENDING));
            let pages = metadata.offset_index().unwrap()[0][0].page_locations();
            let rows: Vec<i64> = pages.iter().map(|page| page.first_row_index).collect();
            assert_eq!(rows, [0, 20_000, 40_000]);
        }
    }
}

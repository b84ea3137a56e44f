//! Encodes Parquet columns of strings with few different values.
//!
//! Arrow's column writer hashes every string of every row. This writer first looks into a small cache of
//! words, so most rows cost one comparison with the word that the cache has. When the dictionary is full, the
//! rest of the column chunk is written as plain values.

use std::io::{Chain, Cursor};

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::DataType;
use bytes::Bytes;
use parquet::basic::{Encoding, PageType, Type};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::data_type::ByteArray;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{
    ColumnChunkMetaData, ColumnIndexBuilder, OffsetIndexBuilder, PageEncodingStats,
};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::statistics::{Statistics, ValueStatistics};
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;

use super::codec::PageCodec;
use super::dictionary::Words;
use super::rle;

/// Rows per page, as in Arrow's writer.
const PAGE_ROWS: usize = 20_000;

/// A page of plain values ends when it has this many bytes.
const PAGE_BYTES: usize = 1 << 20;

/// Longer values are not used as statistics.
const LONGEST_STATISTIC: usize = 256;

/// Returns whether columns of this type can be encoded here.
pub(super) fn holds_words(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// A column chunk that is being written.
pub(super) struct WordColumn {
    descr: ColumnDescPtr,
    words: Words,
    /// Whether the dictionary is full.
    full: bool,
    page: OpenPage,
    /// The complete data pages.
    pages: TrackedWrite<Vec<u8>>,
    /// The position and the size of each data page.
    locations: Vec<(usize, usize)>,
    column_index: ColumnIndexBuilder,
    offset_index: OffsetIndexBuilder,
    least: Option<Vec<u8>>,
    most: Option<Vec<u8>>,
    rows: u64,
    nulls: u64,
    value_bytes: i64,
    uncompressed: usize,
    /// The number of data pages with dictionary indices, and with plain values.
    counts: [i32; 2],
}

/// The rows of a page.
#[derive(Default)]
struct OpenPage {
    rows: usize,
    /// Zero for a null and one for a value, if the column may have nulls.
    levels: Vec<u32>,
    /// The words of the rows, if the dictionary is not full.
    indices: Vec<u32>,
    /// Otherwise, their plain values.
    plain: Vec<u8>,
    nulls: usize,
    value_bytes: i64,
    least: Option<Vec<u8>>,
    most: Option<Vec<u8>>,
}

impl WordColumn {
    pub(super) fn new(descr: ColumnDescPtr) -> WordColumn {
        WordColumn {
            descr,
            words: Words::default(),
            full: false,
            page: OpenPage::default(),
            pages: TrackedWrite::new(Vec::new()),
            locations: Vec::new(),
            column_index: ColumnIndexBuilder::new(Type::BYTE_ARRAY),
            offset_index: OffsetIndexBuilder::new(),
            least: None,
            most: None,
            rows: 0,
            nulls: 0,
            value_bytes: 0,
            uncompressed: 0,
            counts: [0; 2],
        }
    }

    /// Encodes an array of a type that [holds words](holds_words).
    pub(super) fn write(&mut self, array: &ArrayRef, codec: &mut PageCodec) -> Result<()> {
        match array.data_type() {
            DataType::Utf8 => {
                let strings = array.as_string::<i32>();
                self.write_rows(array, |row| strings.value(row).as_bytes(), codec)
            }
            DataType::LargeUtf8 => {
                let strings = array.as_string::<i64>();
                self.write_rows(array, |row| strings.value(row).as_bytes(), codec)
            }
            DataType::Utf8View => {
                let strings = array.as_string_view();
                self.write_rows(array, |row| strings.value(row).as_bytes(), codec)
            }
            other => Err(ParquetError::General(format!("a column of strings has {other}"))),
        }
    }

    fn write_rows<'a>(
        &mut self,
        array: &'a ArrayRef,
        value: impl Fn(usize) -> &'a [u8],
        codec: &mut PageCodec,
    ) -> Result<()> {
        let nulls = array.logical_nulls().filter(|nulls| nulls.null_count() > 0);
        let optional = self.descr.max_def_level() > 0;
        if nulls.is_some() && !optional {
            return Err(ParquetError::General("a column without nulls has a null".to_string()));
        }
        for row in 0..array.len() {
            let valid = nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
            if optional {
                self.page.levels.push(u32::from(valid));
            }
            self.page.rows += 1;
            if valid {
                self.add(value(row), codec)?;
            } else {
                self.page.nulls += 1;
            }
            if self.page.rows >= PAGE_ROWS || self.page.plain.len() >= PAGE_BYTES {
                self.end_page(codec)?;
            }
        }
        Ok(())
    }

    /// Adds a value. Its row was counted already.
    #[inline]
    fn add(&mut self, value: &[u8], codec: &mut PageCodec) -> Result<()> {
        if !self.full {
            let page = self.locations.len() as u32;
            if let Some((index, first)) = self.words.index(value, page) {
                self.page.indices.push(index);
                self.page.value_bytes += value.len() as i64;
                if first {
                    self.page.note(value);
                }
                return Ok(());
            }
            // The rows before this one are a page with dictionary indices. This row begins a plain page.
            self.full = true;
            self.page.rows -= 1;
            let level = self.page.levels.pop();
            if self.page.rows > 0 {
                self.end_page(codec)?;
            }
            self.page.levels.extend(level);
            self.page.rows += 1;
        }
        self.page.value_bytes += value.len() as i64;
        self.page.plain.extend_from_slice(&plain_length(value.len())?.to_le_bytes());
        self.page.plain.extend_from_slice(value);
        self.page.note(value);
        Ok(())
    }

    fn end_page(&mut self, codec: &mut PageCodec) -> Result<()> {
        let page = std::mem::take(&mut self.page);
        let mut body = Vec::with_capacity(page.plain.len() + 2 * page.indices.len() + 64);
        if self.descr.max_def_level() > 0 {
            body.extend_from_slice(&[0; 4]);
            rle::encode(&page.levels, 1, &mut body);
            let length = (body.len() - 4) as u32;
            body[..4].copy_from_slice(&length.to_le_bytes());
        }
        let plain = !page.plain.is_empty();
        let encoding = if plain {
            body.extend_from_slice(&page.plain);
            Encoding::PLAIN
        } else {
            let width = rle::bit_width(self.words.len().saturating_sub(1) as u32);
            body.push(width as u8);
            rle::encode(&page.indices, width, &mut body);
            Encoding::RLE_DICTIONARY
        };
        let length = body.len();
        let data = Page::DataPage {
            buf: codec.compress(body)?.into(),
            num_values: page.rows as u32,
            encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let page_writer = &mut SerializedPageWriter::new(&mut self.pages);
        let written = page_writer.write_page(CompressedPage::new(data, length))?;
        self.locations.push((written.offset as usize, written.compressed_size));
        self.uncompressed += written.uncompressed_size;
        self.counts[usize::from(plain)] += 1;
        self.offset_index.append_row_count(page.rows as i64);
        self.offset_index.append_unencoded_byte_array_data_bytes(Some(page.value_bytes));
        self.rows += page.rows as u64;
        self.nulls += page.nulls as u64;
        self.value_bytes += page.value_bytes;
        self.add_statistics(&page);
        // The vectors of the next page use the same memory.
        let OpenPage { mut levels, mut indices, .. } = page;
        levels.clear();
        indices.clear();
        (self.page.levels, self.page.indices) = (levels, indices);
        Ok(())
    }

    fn add_statistics(&mut self, page: &OpenPage) {
        let nulls = page.nulls as i64;
        match (&page.least, &page.most) {
            (Some(least), Some(most)) => {
                if least.len().max(most.len()) > LONGEST_STATISTIC {
                    self.column_index.to_invalid();
                } else {
                    self.column_index.append(false, least.clone(), most.clone(), nulls);
                }
                if self.least.as_ref().is_none_or(|known| least < known) {
                    self.least = Some(least.clone());
                }
                if self.most.as_ref().is_none_or(|known| most > known) {
                    self.most = Some(most.clone());
                }
            }
            _ => self.column_index.append(true, Vec::new(), Vec::new(), nulls),
        }
    }

    /// Ends the column chunk.
    pub(super) fn close(mut self, codec: &mut PageCodec) -> Result<WordChunk> {
        if self.page.rows > 0 {
            self.end_page(codec)?;
        }
        let mut dictionary = TrackedWrite::new(Vec::new());
        let values = self.words.take_plain();
        let length = values.len();
        let page = Page::DictionaryPage {
            buf: codec.compress(values)?.into(),
            num_values: self.words.len() as u32,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        let written = SerializedPageWriter::new(&mut dictionary)
            .write_page(CompressedPage::new(page, length))?;
        self.uncompressed += written.uncompressed_size;
        let (dictionary, pages) = (dictionary.into_inner()?, self.pages.into_inner()?);
        for &(position, size) in &self.locations {
            let offset = (dictionary.len() + position) as i64;
            self.offset_index.append_offset_and_size(offset, size as i32);
        }
        let known = |value: &Option<Vec<u8>>| {
            value.clone().filter(|value| value.len() <= LONGEST_STATISTIC).map(ByteArray::from)
        };
        let (least, most) = (known(&self.least), known(&self.most));
        let statistics = ValueStatistics::new(least, most, None, Some(self.nulls), false);
        let bytes = (dictionary.len() + pages.len()) as u64;
        let stats = |page_type, encoding, count| PageEncodingStats { page_type, encoding, count };
        let [indices, plain] = self.counts;
        let mut encoding_stats = vec![stats(PageType::DICTIONARY_PAGE, Encoding::PLAIN, 1)];
        if indices > 0 {
            encoding_stats.push(stats(PageType::DATA_PAGE, Encoding::RLE_DICTIONARY, indices));
        }
        if plain > 0 {
            encoding_stats.push(stats(PageType::DATA_PAGE, Encoding::PLAIN, plain));
        }
        let metadata = ColumnChunkMetaData::builder(self.descr)
            .set_compression(codec.codec())
            .set_encodings(vec![Encoding::PLAIN, Encoding::RLE, Encoding::RLE_DICTIONARY])
            .set_page_encoding_stats(encoding_stats)
            .set_total_compressed_size(bytes as i64)
            .set_total_uncompressed_size(self.uncompressed as i64)
            .set_num_values(self.rows as i64)
            .set_data_page_offset(dictionary.len() as i64)
            .set_dictionary_page_offset(Some(0))
            .set_statistics(Statistics::ByteArray(statistics))
            .set_unencoded_byte_array_data_bytes(Some(self.value_bytes))
            .build()?;
        let column_index = match self.column_index.valid() {
            true => Some(self.column_index.build()?),
            false => None,
        };
        let close = ColumnCloseResult {
            bytes_written: bytes,
            rows_written: self.rows,
            metadata,
            bloom_filter: None,
            column_index,
            offset_index: Some(self.offset_index.build()),
        };
        let bytes = TwoParts(dictionary.into(), pages.into());
        Ok(WordChunk { bytes, close })
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

impl OpenPage {
    /// Adds a value to the page's statistics.
    fn note(&mut self, value: &[u8]) {
        if self.least.as_deref().is_none_or(|known| value < known) {
            self.least = Some(value.to_vec());
        }
        if self.most.as_deref().is_none_or(|known| value > known) {
            self.most = Some(value.to_vec());
        }
    }
}

/// A complete column chunk.
pub(super) struct WordChunk {
    pub(super) bytes: TwoParts,
    pub(super) close: ColumnCloseResult,
}

/// The bytes of a column chunk: its dictionary page, and its data pages.
pub(super) struct TwoParts(Bytes, Bytes);

impl Length for TwoParts {
    fn len(&self) -> u64 {
        (self.0.len() + self.1.len()) as u64
    }
}

impl ChunkReader for TwoParts {
    type T = Chain<Cursor<Bytes>, Cursor<Bytes>>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        let part = |bytes: &Bytes, start: u64| {
            let mut cursor = Cursor::new(bytes.clone());
            cursor.set_position(start.min(bytes.len() as u64));
            cursor
        };
        let second = part(&self.1, start.saturating_sub(self.0.len() as u64));
        Ok(std::io::Read::chain(part(&self.0, start), second))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let mut bytes = vec![0; length];
        std::io::Read::read_exact(&mut self.get_read(start)?, &mut bytes)?;
        Ok(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{LargeStringArray, RecordBatch, StringArray, StringViewArray};
    use arrow::datatypes::{Field, Schema};
    use parquet::arrow::ArrowWriter;
    use parquet::arrow::arrow_reader::{
        ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
    };
    use parquet::basic::Compression as Codec;
    use parquet::file::metadata::PageIndexPolicy;
    use std::sync::Arc;

    fn codecs() -> [Codec; 3] {
        let zstd = Codec::ZSTD(parquet::basic::ZstdLevel::default());
        [Codec::UNCOMPRESSED, Codec::SNAPPY, zstd]
    }

    /// Writes a file with one row group and one column. Returns the file.
    fn written(arrays: &[ArrayRef], nullable: bool, codec: Codec) -> Bytes {
        let field = Field::new("w", arrays[0].data_type().clone(), nullable);
        let schema = Arc::new(Schema::new(vec![field]));
        let (mut writer, _) = ArrowWriter::try_new(Vec::new(), schema, None)
            .and_then(ArrowWriter::into_serialized_writer)
            .unwrap();
        let codec = &mut PageCodec::new(codec).unwrap();
        let mut column = WordColumn::new(writer.schema_descr().column(0));
        arrays.iter().try_for_each(|array| column.write(array, codec)).unwrap();
        let chunk = column.close(codec).unwrap();
        let mut group = writer.next_row_group().unwrap();
        group.append_column(&chunk.bytes, chunk.close).unwrap();
        group.close().unwrap();
        writer.into_inner().unwrap().into()
    }

    /// Returns all strings, and the metadata with the page indexes.
    fn read(file: &Bytes) -> (Vec<Option<String>>, ArrowReaderMetadata) {
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
        let metadata = ArrowReaderMetadata::load(file, options).unwrap();
        let reader =
            ParquetRecordBatchReaderBuilder::new_with_metadata(file.clone(), metadata.clone());
        let mut strings = Vec::new();
        for batch in reader.build().unwrap() {
            let batch: RecordBatch = batch.unwrap();
            let column = arrow::compute::cast(batch.column(0), &DataType::Utf8).unwrap();
            strings.extend(column.as_string::<i32>().iter().map(|s| s.map(str::to_string)));
        }
        (strings, metadata)
    }

    fn check(strings: &[Option<String>], nullable: bool, codec: Codec) -> ArrowReaderMetadata {
        let views: ArrayRef = Arc::new(StringViewArray::from_iter(strings.iter().cloned()));
        let short: ArrayRef = Arc::new(StringArray::from_iter(strings.iter().cloned()));
        let long: ArrayRef = Arc::new(LargeStringArray::from_iter(strings.iter().cloned()));
        let mut last = None;
        for array in [views, short, long] {
            // Two batches, which are slices.
            let half = array.len() / 2;
            let parts = [array.slice(0, half), array.slice(half, array.len() - half)];
            let (read, metadata) = read(&written(&parts, nullable, codec));
            assert!(read == strings, "{}", array.data_type());
            let chunk = metadata.metadata().row_group(0).column(0);
            let statistics = chunk.statistics().unwrap();
            let nulls = strings.iter().filter(|s| s.is_none()).count();
            assert_eq!(statistics.null_count_opt(), Some(nulls as u64));
            let least = strings.iter().flatten().min().filter(|s| s.len() <= LONGEST_STATISTIC);
            assert_eq!(statistics.min_bytes_opt(), least.map(|s| s.as_bytes()));
            let most = strings.iter().flatten().max().filter(|s| s.len() <= LONGEST_STATISTIC);
            assert_eq!(statistics.max_bytes_opt(), most.map(|s| s.as_bytes()));
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
        }
    }

    #[test]
    fn a_full_dictionary_is_followed_by_plain_pages() {
        let mut strings: Vec<_> =
            (0..200_000).map(|i| Some(format!("not few words {i}"))).collect();
        check(&strings, false, Codec::SNAPPY);
        strings.iter_mut().skip(1).step_by(2).for_each(|s| *s = None);
        let metadata = check(&strings, true, Codec::SNAPPY);
        let chunk = metadata.metadata().row_group(0).column(0);
        let words = chunk.data_page_offset() - chunk.dictionary_page_offset().unwrap();
        assert!(chunk.compressed_size() > 2 * words, "most values are not in the dictionary");
        // A value that is longer than a dictionary may be.
        strings[70_000] = Some("x".repeat(3 << 20));
        strings[0] = Some("y".repeat(3 << 20));
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
        let metadata = check(&strings, false, Codec::SNAPPY);
        let metadata = metadata.metadata();
        let index = &metadata.column_index().unwrap()[0][0];
        let parquet::file::page_index::column_index::ColumnIndexMetaData::BYTE_ARRAY(index) = index
        else {
            panic!("{index:?}")
        };
        let ranges: Vec<_> = index.min_values_iter().zip(index.max_values_iter()).collect();
        let of = |text: &'static str| (Some(text.as_bytes()), Some(text.as_bytes()));
        assert_eq!(ranges, [of("00"), of("01"), of("02")]);
        let rows: Vec<i64> = metadata.offset_index().unwrap()[0][0]
            .page_locations()
            .iter()
            .map(|page| page.first_row_index)
            .collect();
        assert_eq!(rows, [0, 20_000, 40_000]);
    }
}

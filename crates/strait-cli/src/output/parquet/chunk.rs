//! A column chunk that is encoded here: its pages, its statistics and its page index.

use std::io::{Chain, Cursor, Read};
use std::ops::RangeInclusive;

use bytes::Bytes;
use parquet::basic::{BoundaryOrder, Compression as Codec, Encoding, PageType};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{
    ColumnChunkMetaData, ColumnIndexBuilder, OffsetIndexBuilder, PageEncodingStats,
};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::statistics::Statistics;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
use parquet::schema::types::ColumnDescPtr;

use super::codec::PageCodec;

/// Compression pays if the compressed first page is smaller than this fraction of the page.
const COMPRESSION_PAYS: f64 = 0.95;

/// The data pages of a column chunk.
pub(super) struct Pages {
    descr: ColumnDescPtr,
    /// The bytes of all pages; `None` before the first page, because a writer allocates a buffer.
    bytes: Option<TrackedWrite<Vec<u8>>>,
    /// The codec of the chunk, after its first page.
    codec: Option<Codec>,
    /// The position and the size of each page.
    locations: Vec<(usize, usize)>,
    column_index: ColumnIndexBuilder,
    offset_index: OffsetIndexBuilder,
    /// The number of pages per encoding.
    counts: Vec<(Encoding, i32)>,
    rows: usize,
    nulls: usize,
    value_bytes: i64,
    uncompressed: usize,
}

/// A complete page.
pub(super) struct DataPage<'a> {
    pub(super) rows: usize,
    pub(super) nulls: usize,
    pub(super) encoding: Encoding,
    pub(super) body: &'a [u8],
    /// The least and the greatest value, as the page index stores them. None if all rows are null.
    pub(super) bounds: Option<(Vec<u8>, Vec<u8>)>,
    /// The bytes of all strings of the page.
    pub(super) value_bytes: Option<i64>,
}

/// What a column knows when its chunk ends.
pub(super) struct Ending<'a> {
    /// The number of values in the dictionary, and their plain bytes. Not stored if no page uses it.
    pub(super) dictionary: (usize, &'a [u8]),
    pub(super) statistics: Statistics,
    pub(super) order: BoundaryOrder,
}

impl Pages {
    /// Rejects values that the type of the column does not allow.
    pub(super) fn check_range(
        &self,
        least: i64,
        most: i64,
        range: &RangeInclusive<i64>,
    ) -> Result<()> {
        if range.contains(&least) && range.contains(&most) {
            return Ok(());
        }
        Err(ParquetError::General(format!(
            "column \"{}\" has a value with more than the {} digits of its type; give it a wider type with --cast",
            self.descr.name(),
            self.descr.type_precision()
        )))
    }

    pub(super) fn new(descr: ColumnDescPtr) -> Pages {
        let column_index = ColumnIndexBuilder::new(descr.physical_type());
        Pages {
            descr,
            bytes: None,
            codec: None,
            locations: Vec::new(),
            column_index,
            offset_index: OffsetIndexBuilder::new(),
            counts: Vec::new(),
            rows: 0,
            nulls: 0,
            value_bytes: 0,
            uncompressed: 0,
        }
    }

    /// Whether the column may have nulls.
    pub(super) fn optional(&self) -> bool {
        self.descr.max_def_level() > 0
    }

    /// Returns the memory of the pages and of the facts about them, in bytes.
    pub(super) fn memory_size(&self) -> usize {
        const FACTS_PER_PAGE: usize = 256;
        let bytes = self.bytes.as_ref().map_or(0, |bytes| bytes.inner().capacity());
        bytes + self.locations.len() * FACTS_PER_PAGE
    }

    /// The number of complete pages.
    pub(super) fn len(&self) -> usize {
        self.locations.len()
    }

    pub(super) fn nulls(&self) -> usize {
        self.nulls
    }

    /// Appends a page. If the compression of the first page gains next to nothing, the whole chunk is stored
    /// without compression. A dictionary may gain more, so this is only done for pages without one.
    pub(super) fn add(&mut self, page: DataPage<'_>, codec: &mut PageCodec) -> Result<()> {
        let mut bytes = match self.codec {
            Some(Codec::UNCOMPRESSED) => codec.copy(page.body)?,
            _ => codec.compress(page.body)?,
        };
        if self.codec.is_none() {
            let pays = bytes.len() as f64 <= COMPRESSION_PAYS * page.body.len() as f64;
            let stored = page.encoding != Encoding::RLE_DICTIONARY && !pays;
            self.codec = Some(if stored { Codec::UNCOMPRESSED } else { codec.codec() });
            if stored {
                drop(bytes);
                bytes = codec.copy(page.body)?;
            }
        }
        let data = Page::DataPage {
            buf: bytes,
            num_values: page.rows as u32,
            encoding: page.encoding,
            def_level_encoding: Encoding::RLE,
            rep_level_encoding: Encoding::RLE,
            statistics: None,
        };
        let bytes = self.bytes.get_or_insert_with(|| TrackedWrite::new(Vec::new()));
        let written = SerializedPageWriter::new(bytes)
            .write_page(CompressedPage::new(data, page.body.len()))?;
        self.locations.push((written.offset as usize, written.compressed_size));
        self.uncompressed += written.uncompressed_size;
        match self.counts.iter_mut().find(|(encoding, _)| *encoding == page.encoding) {
            Some((_, count)) => *count += 1,
            None => self.counts.push((page.encoding, 1)),
        }
        self.offset_index.append_row_count(page.rows as i64);
        self.offset_index.append_unencoded_byte_array_data_bytes(page.value_bytes);
        self.rows += page.rows;
        self.nulls += page.nulls;
        self.value_bytes += page.value_bytes.unwrap_or(0);
        let (least, most) = page.bounds.clone().unwrap_or_default();
        self.column_index.append(page.bounds.is_none(), least, most, page.nulls as i64);
        Ok(())
    }

    /// Ends the column chunk.
    pub(super) fn close(mut self, ending: Ending<'_>, codec: &mut PageCodec) -> Result<OwnChunk> {
        let used = self.codec.unwrap_or(codec.codec());
        let has_dictionary =
            self.counts.iter().any(|(encoding, _)| *encoding == Encoding::RLE_DICTIONARY);
        let first = match has_dictionary {
            true => self.dictionary_page(ending.dictionary, codec)?,
            false => Vec::new(),
        };
        let pages = self.bytes.map_or(Ok(Vec::new()), TrackedWrite::into_inner)?;
        for &(position, size) in &self.locations {
            let offset = (first.len() + position) as i64;
            self.offset_index.append_offset_and_size(offset, size as i32);
        }
        let stats = |page_type, encoding, count| PageEncodingStats { page_type, encoding, count };
        let mut encodings = vec![Encoding::RLE];
        let mut encoding_stats = Vec::new();
        if has_dictionary {
            encodings.push(Encoding::PLAIN);
            encoding_stats.push(stats(PageType::DICTIONARY_PAGE, Encoding::PLAIN, 1));
        }
        for &(encoding, count) in &self.counts {
            encoding_stats.push(stats(PageType::DATA_PAGE, encoding, count));
            if !encodings.contains(&encoding) {
                encodings.push(encoding);
            }
        }
        let strings = self.descr.physical_type() == parquet::basic::Type::BYTE_ARRAY;
        let bytes = first.len() + pages.len();
        let metadata = ColumnChunkMetaData::builder(self.descr)
            .set_compression(used)
            .set_encodings(encodings)
            .set_page_encoding_stats(encoding_stats)
            .set_total_compressed_size(bytes as i64)
            .set_total_uncompressed_size(self.uncompressed as i64)
            .set_num_values(self.rows as i64)
            .set_data_page_offset(first.len() as i64)
            .set_dictionary_page_offset(has_dictionary.then_some(0))
            .set_statistics(ending.statistics)
            .set_unencoded_byte_array_data_bytes(strings.then_some(self.value_bytes))
            .build()?;
        self.column_index.set_boundary_order(ending.order);
        let close = ColumnCloseResult {
            bytes_written: bytes as u64,
            rows_written: self.rows as u64,
            metadata,
            bloom_filter: None,
            column_index: Some(self.column_index.build()?),
            offset_index: Some(self.offset_index.build()),
        };
        Ok(OwnChunk { bytes: TwoParts(first.into(), pages.into()), close })
    }

    fn dictionary_page(
        &mut self,
        (count, values): (usize, &[u8]),
        codec: &mut PageCodec,
    ) -> Result<Vec<u8>> {
        let buf = match self.codec {
            Some(Codec::UNCOMPRESSED) => codec.copy(values)?,
            _ => codec.compress(values)?,
        };
        let page = Page::DictionaryPage {
            buf,
            num_values: count as u32,
            encoding: Encoding::PLAIN,
            is_sorted: false,
        };
        let mut bytes = TrackedWrite::new(Vec::new());
        let written = SerializedPageWriter::new(&mut bytes)
            .write_page(CompressedPage::new(page, values.len()))?;
        self.uncompressed += written.uncompressed_size;
        bytes.into_inner()
    }
}

/// Whether the bounds of pages ascend or descend.
pub(super) struct Order<V> {
    last: Option<(V, V)>,
    ascends: bool,
    descends: bool,
}

impl<V> Default for Order<V> {
    fn default() -> Self {
        Order { last: None, ascends: true, descends: true }
    }
}

impl<V: Ord> Order<V> {
    /// Adds the bounds of a page.
    pub(super) fn add(&mut self, least: V, most: V) {
        if let Some((last_least, last_most)) = &self.last {
            self.ascends &= *last_least <= least && *last_most <= most;
            self.descends &= *last_least >= least && *last_most >= most;
        }
        self.last = Some((least, most));
    }

    pub(super) fn of_pages(&self) -> BoundaryOrder {
        match (self.ascends, self.descends) {
            (true, _) => BoundaryOrder::ASCENDING,
            (false, true) => BoundaryOrder::DESCENDING,
            (false, false) => BoundaryOrder::UNORDERED,
        }
    }
}

/// A complete column chunk.
pub(super) struct OwnChunk {
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
        Ok(part(&self.0, start).chain(second))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        let mut bytes = vec![0; length];
        self.get_read(start)?.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }
}

//! The pages of Parquet files. Headers are checked before their pages are read. The memory of a page and of
//! its values is reserved before it is allocated.

use std::ops::Range;
use std::sync::Arc;

use parquet::arrow::arrow_reader::RowGroups;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageIterator, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData, RowGroupMetaData};

use super::codec::{Codec, Shared};
use super::file::PageFile;
use super::levels::{Dictionary, Shape};
use super::page_memory::{Needs, PageMemory};
use super::thrift::{
    DATA_PAGE, DATA_PAGE_V2, DICTIONARY_PAGE, INDEX_PAGE, PageHeader, page_header,
};
use super::wanted::Wanted;

/// The numbers of bytes that are read to find a header, tried one after another. Most headers are short, but
/// they may contain statistics with long values.
const HEADER_BYTES: [usize; 3] = [512, 64 << 10, 16 << 20];

/// The row group whose pages are read.
pub(super) struct Group {
    pub(super) file: Arc<PageFile>,
    pub(super) metadata: Arc<ParquetMetaData>,
    pub(super) group: usize,
    /// The rows that the decoder returns.
    pub(super) wanted: Arc<Wanted>,
    /// For each leaf, whether batches have copies of the values, so that they do not refer to pages.
    pub(super) copied: Vec<bool>,
    pub(super) held: Arc<PageMemory>,
    pub(super) zstd: Shared,
}

impl RowGroups for Group {
    fn num_rows(&self) -> usize {
        self.row_groups().map(|group| group.num_rows().max(0) as usize).sum()
    }

    fn column_chunks(&self, column: usize) -> Result<Box<dyn PageIterator>> {
        Ok(Box::new(Chunks {
            file: Arc::clone(&self.file),
            metadata: Arc::clone(&self.metadata),
            group: Some(self.group),
            wanted: Arc::clone(&self.wanted),
            column,
            are_copies: self.copied.get(column).copied().unwrap_or(false),
            held: Arc::clone(&self.held),
            zstd: Arc::clone(&self.zstd),
        }))
    }

    fn row_groups(&self) -> Box<dyn Iterator<Item = &RowGroupMetaData> + '_> {
        Box::new(std::iter::once(self.metadata.row_group(self.group)))
    }

    fn metadata(&self) -> &ParquetMetaData {
        &self.metadata
    }
}

/// The chunks of one column. There is one, because one row group is read.
struct Chunks {
    file: Arc<PageFile>,
    metadata: Arc<ParquetMetaData>,
    group: Option<usize>,
    wanted: Arc<Wanted>,
    column: usize,
    are_copies: bool,
    held: Arc<PageMemory>,
    zstd: Shared,
}

impl Iterator for Chunks {
    type Item = Result<Box<dyn PageReader>>;

    fn next(&mut self) -> Option<Self::Item> {
        let group = self.group.take()?;
        let chunk = self.metadata.row_group(group).columns().get(self.column);
        let pages = chunk
            .ok_or_else(|| bad("a row group has fewer columns than the schema"))
            .and_then(|chunk| self.pages(chunk));
        Some(pages.map(|pages| Box::new(pages) as _))
    }
}

impl Chunks {
    fn pages(&self, chunk: &ColumnChunkMetaData) -> Result<Pages> {
        let Range { start, end } = chunk_bytes(chunk)?;
        if end > self.file.size() {
            return Err(bad("a column chunk lies past the end of the file"));
        }
        self.held.begin_chunk(self.column, self.are_copies);
        Ok(Pages {
            file: Arc::clone(&self.file),
            at: start,
            end,
            next: None,
            codec: Codec::new(chunk.compression(), &self.zstd),
            shape: Shape::new(chunk.column_descr()),
            dictionary: Dictionary::default(),
            column: self.column,
            row: 0,
            wanted: Arc::clone(&self.wanted),
            held: Arc::clone(&self.held),
        })
    }
}

impl PageIterator for Chunks {}

/// Returns the position of a column chunk in its file.
pub(super) fn chunk_bytes(chunk: &ColumnChunkMetaData) -> Result<Range<u64>> {
    let start = chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset());
    let (start, length) = (unsigned(start)?, unsigned(chunk.compressed_size())?);
    let end = start.checked_add(length);
    Ok(start..end.ok_or_else(|| bad("a column chunk lies past the end of the file"))?)
}

/// The pages of a column chunk.
struct Pages {
    file: Arc<PageFile>,
    /// The start of the next page, and the end of the chunk.
    at: u64,
    end: u64,
    next: Option<PageHeader>,
    codec: Codec,
    shape: Shape,
    dictionary: Dictionary,
    column: usize,
    /// The first row of the next page, if each row has one value.
    row: u64,
    wanted: Arc<Wanted>,
    held: Arc<PageMemory>,
}

impl Pages {
    /// Reads the next header, if there is one.
    fn header(&mut self) -> Result<Option<PageHeader>> {
        if let Some(header) = self.next.take() {
            return Ok(Some(header));
        }
        while self.at < self.end {
            let header = self.parse_header()?;
            let (compressed, _) = (unsigned(header.compressed)?, unsigned(header.uncompressed)?);
            self.at += header.length as u64;
            if compressed > self.end - self.at {
                return Err(bad("a page is larger than its column chunk"));
            }
            match header.kind {
                // Such pages are allowed, but not needed here.
                INDEX_PAGE => self.at += compressed,
                DATA_PAGE | DATA_PAGE_V2 | DICTIONARY_PAGE if header.complete => {
                    return Ok(Some(header));
                }
                kind => return Err(bad(&format!("a page of unknown kind {kind}"))),
            }
        }
        Ok(None)
    }

    fn parse_header(&self) -> Result<PageHeader> {
        let left = self.end - self.at;
        for bytes in HEADER_BYTES {
            let bytes = left.min(bytes as u64) as usize;
            if let Some(header) = page_header(&self.file.bytes(self.at, bytes)?) {
                return Ok(header);
            }
            if bytes as u64 == left {
                break;
            }
        }
        Err(bad("the header of a page cannot be read"))
    }

    /// Reads and decompresses the page after its header.
    fn page(&mut self, header: &PageHeader) -> Result<Page> {
        let (compressed, uncompressed) =
            (unsigned(header.compressed)?, unsigned(header.uncompressed)?);
        if !self.codec.is_none() && uncompressed > self.codec.most(compressed) {
            return Err(bad("a page claims to be larger than it can be"));
        }
        // When the decoder asks for a page, it has finished with the dictionary before it.
        self.held.dictionary_decoded(self.column);
        let is_v2 = header.kind == DATA_PAGE_V2;
        let is_compressed = !(self.codec.is_none() || (is_v2 && !header.is_compressed));
        let decompressed = if is_compressed { uncompressed } else { 0 };
        self.held.admit_page(compressed.saturating_add(decompressed))?;
        let raw = self.file.bytes(self.at, compressed as usize)?;
        self.at += compressed;
        // The levels of version 2 pages are never compressed.
        let plain = match is_v2 {
            true => unsigned(header.definition_bytes)? + unsigned(header.repetition_bytes)?,
            false => 0,
        };
        if plain > compressed || plain > uncompressed {
            return Err(bad("the levels of a page are larger than the page"));
        }
        let buf = if !is_compressed {
            raw
        } else {
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(uncompressed as usize).map_err(|e| bad(&e.to_string()))?;
            let (levels, values) = raw.split_at(plain as usize);
            bytes.extend_from_slice(levels);
            let length = (uncompressed - plain) as usize;
            if length > 0 {
                self.codec.decompress(values, length, &mut bytes)?;
            }
            drop(raw);
            self.held.decompressed(compressed);
            bytes.into()
        };
        let encoding = encoding(header.encoding)?;
        let num_values = u32::try_from(header.values).map_err(|_| bad("a page of no size"))?;
        if header.kind == DICTIONARY_PAGE {
            let bytes = buf.len() as u64;
            let beside = Dictionary::memory(bytes, num_values);
            self.held.admit_dictionary(self.column, bytes, beside)?;
            self.dictionary = self.shape.dictionary(&buf, num_values)?;
            return Ok(Page::DictionaryPage { buf, num_values, encoding, is_sorted: false });
        }
        let page = if is_v2 {
            let count = |number: i64| u32::try_from(number).map_err(|_| bad("a count below zero"));
            let (num_nulls, num_rows) = (count(header.nulls)?, count(header.rows)?);
            if num_nulls > num_values || num_rows > num_values {
                return Err(bad("a page has more rows or nulls than values"));
            }
            Page::DataPageV2 {
                buf,
                num_values,
                encoding,
                num_nulls,
                num_rows,
                def_levels_byte_len: count(header.definition_bytes)?,
                rep_levels_byte_len: count(header.repetition_bytes)?,
                is_compressed: header.is_compressed,
                statistics: None,
            }
        } else {
            Page::DataPage {
                buf,
                num_values,
                encoding,
                def_level_encoding: self::encoding(header.definition_encoding)?,
                rep_level_encoding: self::encoding(header.repetition_encoding)?,
                statistics: None,
            }
        };
        self.admit_values(&page)?;
        Ok(page)
    }

    /// Reserves the memory that decoding a page needs.
    fn admit_values(&mut self, page: &Page) -> Result<()> {
        // Reading the lengths takes memory in proportion to their number.
        let lengths = self.shape.lengths_bytes(page);
        self.held.admit_page(lengths)?;
        let content = self.shape.content(page, &self.dictionary)?;
        let enough = self.held.enough();
        let (all, fixed) = (u64::from(page.num_values()), self.shape.fixed_bytes());
        let most = match all.saturating_mul(fixed) <= enough {
            true => all,
            false => self.shape.most_slots(page, self.held.rows())?,
        };
        let mut count = all;
        if !self.shape.is_repeated() {
            let end = self.row.saturating_add(all);
            count = self.wanted.count(self.row..end);
            self.row = end;
        }
        let is_scattered = self.wanted.is_scattered();
        let needs = Needs {
            page: lengths + page.buffer().len() as u64,
            count,
            most,
            fixed,
            is_repeated: self.shape.is_repeated(),
            bytes: |values| match is_scattered {
                true => content.most_of_any(values, all, enough),
                false => content.most(values, enough),
            },
        };
        self.held.admit_values(self.column, &needs)
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        match self.header()? {
            None => Ok(None),
            Some(header) => self.page(&header).map(Some),
        }
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        let header = self.header()?;
        self.next.clone_from(&header);
        Ok(header.map(|header| PageMetadata {
            num_rows: (header.kind == DATA_PAGE_V2).then_some(header.rows.max(0) as usize),
            num_levels: (header.kind != DICTIONARY_PAGE).then_some(header.values.max(0) as usize),
            is_dict: header.kind == DICTIONARY_PAGE,
        }))
    }

    fn skip_next_page(&mut self) -> Result<()> {
        if let Some(header) = self.header()? {
            self.at += unsigned(header.compressed)?;
            if header.kind != DICTIONARY_PAGE {
                self.row = self.row.saturating_add(header.values.max(0) as u64);
            }
        }
        Ok(())
    }
}

impl Iterator for Pages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

fn encoding(number: i64) -> Result<Encoding> {
    Ok(match number {
        0 => Encoding::PLAIN,
        2 => Encoding::PLAIN_DICTIONARY,
        3 => Encoding::RLE,
        #[allow(deprecated)]
        4 => Encoding::BIT_PACKED,
        5 => Encoding::DELTA_BINARY_PACKED,
        6 => Encoding::DELTA_LENGTH_BYTE_ARRAY,
        7 => Encoding::DELTA_BYTE_ARRAY,
        8 => Encoding::RLE_DICTIONARY,
        9 => Encoding::BYTE_STREAM_SPLIT,
        other => return Err(bad(&format!("unknown encoding {other}"))),
    })
}

fn unsigned(number: i64) -> Result<u64> {
    u64::try_from(number).map_err(|_| bad("a size below zero"))
}

pub(super) fn bad(what: &str) -> ParquetError {
    ParquetError::General(what.to_string())
}

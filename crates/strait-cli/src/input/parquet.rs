//! Parquet files: their footers and their rows.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use arrow::array::RecordBatch;
use arrow::compute::concat_batches;
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, RowSelection,
};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::file::metadata::{ParquetMetaDataReader, RowGroupMetaData};
use parquet::file::statistics::Statistics;
use strait::MemoryReservation;

use super::codec::{Codec, Shared};
use super::file::{Ends, PageFile};
use super::page_memory::{BatchShape, PageMemory};
use super::pages::Group;
use super::thrift::footer_shape;
use super::wanted::Wanted;
use super::{ipc, levels, pages, schema, sizes};
use crate::failure::{Told, of_join, one_line};
use crate::memory::{Memory, Refusal};
use crate::panics::caught;

/// The first and the last bytes of a Parquet file.
const MAGIC: &[u8; 4] = b"PAR1";

/// The bytes at the end: the length of the footer, and the magic.
const END: u64 = 8;

/// The deepest schema in Parquet's levels: a list takes two or three levels.
const DEEPEST: u64 = 3 * schema::DEEPEST as u64;

/// The most elements of a schema in Parquet's terms.
const MAX_ELEMENTS: u64 = 3 * schema::MAX_COLUMNS as u64;

const ENCRYPTED: &str =
    "is an encrypted Parquet file, which Strait does not read; decrypt it first";

/// A batch may take at most 1/N of a memory limit, where N is this number.
const BATCH_SHARE: u64 = 16;

/// A file's footer, and its memory reservation.
#[derive(Clone)]
pub(super) struct Footer {
    metadata: ArrowReaderMetadata,
    _reservation: Arc<MemoryReservation>,
}

impl std::ops::Deref for Footer {
    type Target = ArrowReaderMetadata;

    fn deref(&self) -> &ArrowReaderMetadata {
        &self.metadata
    }
}

/// Reads the footer. If a file has none, the error says what is wrong with it.
pub(super) fn footer(path: &Path, memory: &Memory) -> anyhow::Result<Footer> {
    let shown = path.display();
    let mut file = Ends::open(path).with_context(|| format!("cannot read {shown}"))?;
    let (start, end) = ends(&mut file).with_context(|| format!("cannot read {shown}"))?;
    if start == *b"PARE" || end == *b"PARE" {
        bail!("{shown} {ENCRYPTED}");
    }
    if start != *MAGIC {
        bail!(
            "{shown} is not a Parquet file: it does not begin with PAR1; give it the ending of the format it has"
        );
    }
    if end != *MAGIC {
        bail!(
            "{shown} is truncated: it begins as a Parquet file but does not end as one; \
             a copy or write was cut short, so get the file again"
        );
    }
    let damaged = |why: String| {
        let why = one_line(&why);
        anyhow!("{shown} is damaged: its Parquet footer cannot be read ({why}); get the file again")
    };
    let bytes = footer_bytes(&mut file, memory, &shown.to_string())?
        .ok_or_else(|| damaged("it claims to be longer than the file".to_string()))?;
    let shape = footer_shape(&bytes.0).ok_or_else(|| damaged("it makes no sense".to_string()))?;
    // In these files, only the pages are encrypted. The footer is signed.
    if shape.is_encrypted {
        bail!("{shown} {ENCRYPTED}");
    }
    if shape.depth > DEEPEST {
        return Err(damaged(format!("its columns are nested more than {DEEPEST} levels deep")));
    }
    if shape.elements > MAX_ELEMENTS {
        return Err(damaged(format!("it has more than {} columns", schema::MAX_COLUMNS)));
    }
    let decoded = 512 * shape.elements + 1024 * shape.chunks + 256 * shape.groups;
    let reservation = memory.reserve(decoded, "the footer of a Parquet file");
    let reservation = reservation.map_err(|error| refused(error, &shown.to_string()))?;
    let metadata = caught(|| decoded_footer(&bytes.0)).unwrap_or_else(Err).map_err(damaged)?;
    Ok(Footer { metadata, _reservation: Arc::new(reservation) })
}

fn refused(error: strait::Error, name: &str) -> anyhow::Error {
    of_join(error).context(format!("cannot read {name}"))
}

/// Returns the bytes of the footer, and their reservation. Returns None if the file is shorter than it
/// claims.
fn footer_bytes(
    file: &mut Ends,
    memory: &Memory,
    name: &str,
) -> anyhow::Result<Option<(Vec<u8>, MemoryReservation)>> {
    let context = || format!("cannot read {name}");
    let end = file.size() - END;
    let length = four(file, end).with_context(context)?;
    let length = u64::from(u32::from_le_bytes(length));
    let Some(start) = end.checked_sub(length).filter(|&start| start >= MAGIC.len() as u64) else {
        return Ok(None);
    };
    let reservation = memory.reserve(2 * length, "the footer of a Parquet file");
    let reservation = reservation.map_err(|error| refused(error, name))?;
    let bytes = file.read(start..start + length).with_context(context)?;
    Ok(Some((bytes, reservation)))
}

/// Decodes a footer, and checks the properties that the reader relies on.
fn decoded_footer(bytes: &[u8]) -> Result<ArrowReaderMetadata, String> {
    let metadata = ParquetMetaDataReader::decode_metadata(bytes).map_err(|e| e.to_string())?;
    for pair in metadata.file_metadata().key_value_metadata().into_iter().flatten() {
        if let ("ARROW:schema", Some(value)) = (pair.key.as_str(), &pair.value) {
            check_arrow_schema(value)?;
        }
    }
    let leaves = metadata.file_metadata().schema_descr().num_columns();
    for group in metadata.row_groups() {
        if group.num_columns() != leaves {
            return Err("a row group has other columns than the schema".to_string());
        }
        let shortest = group.columns().iter().map(|column| column.num_values()).min();
        if group.num_rows() < 0 || shortest.is_some_and(|values| values < group.num_rows()) {
            return Err("a row group has fewer values than rows".to_string());
        }
    }
    let metadata = ArrowReaderMetadata::try_new(Arc::new(metadata), ArrowReaderOptions::new())
        .map_err(|error| error.to_string())?;
    schema::check(metadata.schema())?;
    Ok(metadata)
}

/// Checks the Arrow schema that Arrow's writers add to a footer. A few bytes can represent millions of
/// columns there.
fn check_arrow_schema(encoded: &str) -> Result<(), String> {
    // If it cannot be decoded, the Parquet crate gives a better error message.
    let Ok(bytes) = BASE64_STANDARD.decode(encoded) else { return Ok(()) };
    let message = match bytes.get(..4) {
        Some([0xff, 0xff, 0xff, 0xff]) => bytes.get(8..),
        _ => Some(&bytes[..]),
    };
    let message = message.ok_or("its Arrow schema is cut short")?;
    arrow::ipc::root_as_message_with_opts(&ipc::verifier(message.len()), message)
        .map(drop)
        .map_err(|error| format!("its Arrow schema is damaged: {error:?}"))
}

/// Returns the first and the last four bytes.
fn ends(file: &mut Ends) -> std::io::Result<([u8; 4], [u8; 4])> {
    let (size, mut end) = (file.size(), [0; 4]);
    if size < 4 {
        return Ok((end, end));
    }
    // A file that consists only of the magic must not count as one with both.
    if size >= 12 {
        end = four(file, size - 4)?;
    }
    // If the end is right, the start of an object is not checked: that would take another request.
    let start = if end == *MAGIC && file.is_far_from_start() { end } else { four(file, 0)? };
    Ok((start, end))
}

/// Returns four bytes of the file.
fn four(file: &mut Ends, at: u64) -> std::io::Result<[u8; 4]> {
    let bytes = file.read(at..at + 4)?;
    bytes.try_into().map_err(|_| std::io::ErrorKind::UnexpectedEof.into())
}

/// An open file, and where the errors of its reader are kept.
pub(super) struct Opened {
    file: PageFile,
    refusal: Refusal,
}

/// Some columns of a row group.
pub(super) struct Chunks<'a> {
    path: &'a Path,
    footer: &'a Footer,
    group: usize,
    mask: ProjectionMask,
}

impl<'a> Chunks<'a> {
    /// The given columns, in the order of the file.
    pub(super) fn new(path: &'a Path, footer: &'a Footer, group: usize, columns: &[usize]) -> Self {
        let mask = ProjectionMask::roots(footer.parquet_schema(), columns.iter().copied());
        Chunks { path, footer, group, mask }
    }

    /// Returns whether reading can begin at any row without decoding the rows before it.
    pub(super) fn can_skip(&self) -> bool {
        // For an object, two decoders would fetch the same bytes twice. So its row groups are not divided.
        let is_object = crate::store::object(self.path).is_some();
        let leaves = self.footer.parquet_schema().columns().iter().enumerate();
        let mut leaves = leaves.filter(|(leaf, _)| self.mask.leaf_included(*leaf));
        !is_object && leaves.all(|(_, c)| c.max_rep_level() == 0)
    }

    /// Returns the bytes of the column chunks.
    fn ranges(&self) -> Vec<Range<u64>> {
        let leaves = self.footer.metadata().row_group(self.group).columns().iter().enumerate();
        let leaves = leaves.filter(|(leaf, _)| self.mask.leaf_included(*leaf));
        let ranges = leaves.filter_map(|(_, chunk)| pages::chunk_bytes(chunk).ok());
        ranges.collect()
    }

    /// Opens the file, and begins to fetch the column chunks if it is an object.
    fn open_file(&self, memory: &Memory) -> std::io::Result<Opened> {
        let refusal = Refusal::default();
        Ok(Opened { file: PageFile::open(self.path, || self.ranges(), memory, &refusal)?, refusal })
    }

    /// Begins to fetch the column chunks if they are in an object, and if no memory limit forbids it.
    pub(super) fn begin(&self, memory: &Memory) -> Option<Opened> {
        let is_object = || crate::store::object(self.path).is_some();
        if memory.limit().is_none() && is_object() { self.open_file(memory).ok() } else { None }
    }

    /// Returns the number of rows per batch: under a memory limit, wide rows make it smaller.
    pub(super) fn batch_rows(&self, memory: &Memory) -> usize {
        let group = self.footer.metadata().row_group(self.group);
        let in_group = sizes::group_rows(group).max(1);
        let mut rows = strait::DEFAULT_BATCH_SIZE as u64;
        if let Some(limit) = memory.limit() {
            let leaves = group.columns().iter().enumerate();
            let leaves = leaves.filter(|(leaf, _)| self.mask.leaf_included(*leaf));
            let widths = leaves.map(|(_, column)| {
                // A row of a repeated column has several values.
                let values = (column.num_values().max(0) as u64).div_ceil(in_group).max(1);
                let fixed = levels::Shape::new(column.column_descr()).fixed_bytes();
                let bytes = 2 * (sizes::decoded_bytes(column) / in_group);
                fixed.saturating_mul(values).saturating_add(bytes)
            });
            let row = widths.fold(1, u64::saturating_add);
            rows = (limit / BATCH_SHARE / row).clamp(64, rows);
        }
        // Decoders allocate memory for a whole batch at once.
        rows.min(in_group) as usize
    }

    /// Reads the rows after the first `skipped` rows. `begun` is the file if it is open already.
    pub(super) fn read(
        &self,
        begun: Option<Opened>,
        skipped: u64,
        memory: &Memory,
    ) -> Result<ParquetReader, ArrowError> {
        let all = sizes::group_rows(self.footer.metadata().row_group(self.group));
        let rows = self.batch_rows(memory);
        self.open(begun, Wanted::range(skipped..all.max(skipped)), (rows, 0), memory)
    }

    /// Reads only the wanted rows, in one batch.
    pub(super) fn read_wanted(
        &self,
        wanted: Wanted,
        memory: &Memory,
    ) -> Result<ParquetReader, ArrowError> {
        let rows = usize::try_from(wanted.rows()).unwrap_or(usize::MAX);
        // The pages of a batch may be many, and each has few of its rows.
        let group = self.footer.metadata().row_group(self.group);
        let leaves = group.columns().iter().enumerate();
        let leaves = leaves.filter(|(leaf, _)| self.mask.leaf_included(*leaf));
        let fixed = leaves.map(|(_, leaf)| levels::Shape::new(leaf.column_descr()).fixed_bytes());
        let expected = wanted.rows().saturating_mul(fixed.fold(0, u64::saturating_add));
        self.open(None, wanted, (rows, expected), memory)
    }

    /// Reads the wanted rows in batches of `rows` rows, which need at least `expected` bytes.
    fn open(
        &self,
        begun: Option<Opened>,
        wanted: Wanted,
        (rows, expected): (usize, u64),
        memory: &Memory,
    ) -> Result<ParquetReader, ArrowError> {
        let told = |error: anyhow::Error| {
            Told(format!("{:#}", error.context(format!("cannot read {}", self.path.display()))))
        };
        let opened = begun.map_or_else(|| self.open_file(memory), Ok);
        let Opened { file, refusal } = opened.map_err(|error| told(error.into()))?;
        let metadata = Arc::clone(self.footer.metadata());
        let group = metadata.row_group(self.group);
        check_codecs(group, &self.mask).map_err(told)?;
        let columns = self.footer.parquet_schema().num_columns();
        let what = format!("decoding {}", self.path.display());
        let batch = BatchShape { columns, rows, expected };
        let held = Arc::new(PageMemory::new(memory, &refusal, what, batch)?);
        let open = || {
            let hint = Some(self.footer.schema().fields());
            let schema = self.footer.parquet_schema();
            let levels = parquet_to_arrow_field_levels(schema, self.mask.clone(), hint)?;
            let (group, copied, zstd) = (self.group, copied(self.footer), Shared::default());
            let (file, held) = (Arc::new(file), Arc::clone(&held));
            let selected = wanted.selectors().map(RowSelection::from);
            let wanted = Arc::new(wanted);
            let group = Group { file, metadata, group, wanted, copied, held, zstd };
            ParquetRecordBatchReader::try_new_with_row_groups(&levels, &group, rows, selected)
        };
        let reader = caught(open).map_err(|why| told(anyhow!(why)))?;
        let reader = reader.map_err(|error| told(error.into()))?;
        Ok(ParquetReader { reader, held, refusal, is_broken: false })
    }
}

/// Rejects a file if the pages of the given columns cannot be decompressed.
pub(super) fn check(path: &Path, footer: &Footer, columns: &[usize]) -> anyhow::Result<()> {
    // Columns from the names of folders are not in the file.
    let stored = footer.schema().fields().len();
    let columns = columns.iter().copied().filter(|&column| column < stored);
    let mask = ProjectionMask::roots(footer.parquet_schema(), columns);
    for group in footer.metadata().row_groups() {
        let checked = check_codecs(group, &mask);
        checked.with_context(|| format!("cannot read {}", path.display()))?;
    }
    Ok(())
}

/// Rejects columns whose pages cannot be decompressed.
fn check_codecs(group: &RowGroupMetaData, mask: &ProjectionMask) -> anyhow::Result<()> {
    for (leaf, chunk) in group.columns().iter().enumerate() {
        let compression = chunk.compression();
        if mask.leaf_included(leaf) && !Codec::reads(compression) {
            let column = chunk.column_path();
            let codec = compression.to_string();
            let codec = codec.split('(').next().unwrap_or_default();
            bail!(
                "column {column} is compressed with {codec}, which Strait does not read; write the file with zstd or snappy"
            );
        }
    }
    Ok(())
}

/// For each leaf, returns whether batches have copies of the values in pages.
fn copied(footer: &Footer) -> Vec<bool> {
    let parquet = footer.parquet_schema();
    let is_copied = |leaf| {
        let root = footer.schema().fields().get(parquet.get_column_root_idx(leaf));
        root.is_some_and(|field| match field.data_type() {
            DataType::Utf8View | DataType::BinaryView | DataType::Dictionary(..) => false,
            other => !other.is_nested(),
        })
    };
    (0..parquet.num_columns()).map(is_copied).collect()
}

/// Reads batches, and reserves the memory that decoding needs.
pub(super) struct ParquetReader {
    reader: ParquetRecordBatchReader,
    held: Arc<PageMemory>,
    refusal: Refusal,
    is_broken: bool,
}

impl ParquetReader {
    /// Returns the next `rows` rows, or fewer at the end of the row group; `None` after the end. `rows` must not
    /// be larger than a batch.
    pub(super) fn read(&mut self, rows: usize) -> Result<Option<RecordBatch>, ArrowError> {
        let Some(batch) = self.batch()? else { return Ok(None) };
        if batch.num_rows() >= rows {
            return Ok(Some(batch.slice(0, rows)));
        }
        // The row group has ended, unless the decoder returns less than a batch.
        let (schema, mut read, mut batches) = (batch.schema(), batch.num_rows(), vec![batch]);
        while read < rows
            && let Some(batch) = self.batch().inspect_err(|_| self.is_broken = true)?
        {
            read += batch.num_rows();
            batches.push(batch);
        }
        let batch = concat_batches(&schema, &batches)?;
        Ok(Some(batch.slice(0, rows.min(read))).filter(|batch| batch.num_rows() > 0))
    }

    fn batch(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        let read = match self.held.begin_batch() {
            Ok(()) => self.reader.next().transpose().inspect_err(|_| self.is_broken = true),
            Err(error) => Err(error.into()),
        };
        self.held.end_batch();
        read.map_err(|error| self.refusal.take().map_or(error, ArrowError::from))
    }

    /// Returns whether an error has left the decoder without some of its rows.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken
    }

    /// Returns the most memory that decoding a batch has needed.
    pub(super) fn most_memory(&self) -> u64 {
        self.held.most()
    }
}

/// Returns the smallest and the largest value of a column of signed integers in row groups of the file, if the
/// footer has them.
pub(super) fn range(
    metadata: &ArrowReaderMetadata,
    groups: &[usize],
    column: usize,
) -> Option<(i128, i128)> {
    use DataType::{Int8, Int16, Int32, Int64};
    if !matches!(metadata.schema().field(column).data_type(), Int8 | Int16 | Int32 | Int64) {
        return None;
    }
    let schema = metadata.parquet_schema();
    let leaf =
        (0..schema.num_columns()).find(|&leaf| schema.get_column_root_idx(leaf) == column)?;
    let mut range: Option<(i128, i128)> = None;
    let groups = groups.iter().map(|&group| metadata.metadata().row_group(group));
    for group in groups.filter(|group| group.num_rows() > 0) {
        let (low, high) = match group.column(leaf).statistics()? {
            Statistics::Int32(values) => ((*values.min_opt()?).into(), (*values.max_opt()?).into()),
            Statistics::Int64(values) => ((*values.min_opt()?).into(), (*values.max_opt()?).into()),
            _ => return None,
        };
        range = Some(range.map_or((low, high), |(l, h)| (low.min(l), high.max(h))));
    }
    range
}

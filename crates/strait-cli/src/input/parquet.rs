//! Parquet files: their footers and their rows.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::{DataType, SchemaRef};
use arrow::error::ArrowError;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
};
use parquet::arrow::{ProjectionMask, parquet_to_arrow_field_levels};
use parquet::file::metadata::{ParquetMetaData, ParquetMetaDataReader};
use parquet::file::statistics::Statistics;
use strait::MemoryReservation;

use super::codec::{Codec, Shared};
use super::page_memory::PageMemory;
use super::pages::Groups;
use super::thrift::footer_shape;
use super::{ipc, levels, schema, sizes};
use crate::failure::{of_join, one_line};
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

/// A batch may take one part in this many of a memory limit.
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
    let mut file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
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
    file: &mut File,
    memory: &Memory,
    name: &str,
) -> anyhow::Result<Option<(Vec<u8>, MemoryReservation)>> {
    let context = || format!("cannot read {name}");
    let end = file.metadata().with_context(context)?.len() - END;
    let mut length = [0; 4];
    file.seek(SeekFrom::Start(end)).with_context(context)?;
    file.read_exact(&mut length).with_context(context)?;
    let length = u64::from(u32::from_le_bytes(length));
    let Some(start) = end.checked_sub(length).filter(|&start| start >= MAGIC.len() as u64) else {
        return Ok(None);
    };
    let reservation = memory.reserve(2 * length, "the footer of a Parquet file");
    let reservation = reservation.map_err(|error| refused(error, name))?;
    let mut bytes = vec![0; length as usize];
    file.seek(SeekFrom::Start(start)).with_context(context)?;
    file.read_exact(&mut bytes).with_context(context)?;
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
fn ends(file: &mut File) -> std::io::Result<([u8; 4], [u8; 4])> {
    let (mut start, mut end) = ([0; 4], [0; 4]);
    if file.metadata()?.len() < 4 {
        return Ok((start, end));
    }
    file.read_exact(&mut start)?;
    // A file that consists only of the magic must not count as one with both.
    if file.metadata()?.len() >= 12 {
        file.seek(SeekFrom::End(-4))?;
        file.read_exact(&mut end)?;
    }
    Ok((start, end))
}

/// Reads the given columns in file order, of one row group or of all.
pub(super) fn read(
    path: &Path,
    footer: &Footer,
    columns: &[usize],
    group: Option<usize>,
    memory: &Memory,
) -> anyhow::Result<Box<dyn RecordBatchReader + Send>> {
    let context = || format!("cannot read {}", path.display());
    let file = Arc::new(File::open(path).with_context(context)?);
    let metadata = Arc::clone(footer.metadata());
    let groups = match group {
        Some(group) => vec![group],
        None => (0..metadata.num_row_groups()).collect(),
    };
    let mask = ProjectionMask::roots(footer.parquet_schema(), columns.iter().copied());
    check_codecs(&metadata, &groups, &mask).with_context(context)?;
    let in_groups = groups.iter().map(|&group| sizes::group_rows(metadata.row_group(group)));
    let in_groups = in_groups.fold(0, u64::saturating_add);
    // Decoders allocate memory for a whole batch at once.
    let rows = batch_rows(&metadata, &mask, memory);
    let rows = rows.min(usize::try_from(in_groups).unwrap_or(usize::MAX)).max(1);
    let leaves = footer.parquet_schema().num_columns();
    let refusal = Refusal::default();
    let held = PageMemory::new(memory, &refusal, leaves, rows)
        .map_err(|error| refused(error, &path.display().to_string()))?;
    let held = Arc::new(held);
    let open = || {
        let hint = Some(footer.schema().fields());
        let levels = parquet_to_arrow_field_levels(footer.parquet_schema(), mask, hint)?;
        let (held, zstd) = (Arc::clone(&held), Shared::default());
        let groups = Groups { file, metadata, groups, copied: copied(footer), held, zstd };
        ParquetRecordBatchReader::try_new_with_row_groups(&levels, &groups, rows, None)
    };
    let opened = caught(open).map_err(|why| anyhow!(why)).with_context(context)?;
    let reader = opened.with_context(context)?;
    Ok(Box::new(ParquetReader { reader, held, refusal }))
}

/// Rejects a file if the pages of the given columns cannot be decompressed.
pub(super) fn check(path: &Path, footer: &Footer, columns: &[usize]) -> anyhow::Result<()> {
    let metadata = footer.metadata();
    let groups: Vec<usize> = (0..metadata.num_row_groups()).collect();
    // Columns from the names of folders are not in the file.
    let stored = footer.schema().fields().len();
    let columns = columns.iter().copied().filter(|&column| column < stored);
    let mask = ProjectionMask::roots(footer.parquet_schema(), columns);
    check_codecs(metadata, &groups, &mask)
        .with_context(|| format!("cannot read {}", path.display()))
}

/// Rejects columns whose pages cannot be decompressed.
fn check_codecs(
    metadata: &ParquetMetaData,
    groups: &[usize],
    mask: &ProjectionMask,
) -> anyhow::Result<()> {
    for &group in groups {
        for (leaf, chunk) in metadata.row_group(group).columns().iter().enumerate() {
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

/// Returns the number of rows per batch: under a memory limit, wide rows make it smaller.
fn batch_rows(metadata: &ParquetMetaData, mask: &ProjectionMask, memory: &Memory) -> usize {
    let Some(limit) = memory.limit() else { return strait::DEFAULT_BATCH_SIZE };
    let groups = metadata.row_groups().iter();
    let groups: Vec<_> = groups.map(|group| (group, sizes::group_rows(group).max(1))).collect();
    let mut row = 1;
    for leaf in 0..metadata.file_metadata().schema_descr().num_columns() {
        if !mask.leaf_included(leaf) {
            continue;
        }
        let mut widest = 0;
        for &(group, rows) in &groups {
            let column = group.column(leaf);
            let bytes = sizes::decoded_bytes(column);
            // A row of a repeated column has several values.
            let values = (column.num_values().max(0) as u64).div_ceil(rows).max(1);
            let fixed = levels::Shape::new(column.column_descr()).fixed_bytes();
            widest = widest.max(fixed.saturating_mul(values).saturating_add(2 * (bytes / rows)));
        }
        row = u64::saturating_add(row, widest);
    }
    let rows = (limit / BATCH_SHARE / row).clamp(64, strait::DEFAULT_BATCH_SIZE as u64);
    rows as usize
}

/// Reads batches, and reserves the memory that decoding needs.
struct ParquetReader {
    reader: ParquetRecordBatchReader,
    held: Arc<PageMemory>,
    refusal: Refusal,
}

impl Iterator for ParquetReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = match self.held.begin_batch() {
            Ok(()) => self.reader.next(),
            Err(error) => Some(Err(error.into())),
        };
        self.held.end_batch();
        batch
            .map(|batch| batch.map_err(|error| self.refusal.take().map_or(error, ArrowError::from)))
    }
}

impl RecordBatchReader for ParquetReader {
    fn schema(&self) -> SchemaRef {
        self.reader.schema()
    }
}

/// Returns the smallest and the largest value of a column of signed integers, if the footer has them.
pub(super) fn range(metadata: &ArrowReaderMetadata, column: usize) -> Option<(i128, i128)> {
    use DataType::{Int8, Int16, Int32, Int64};
    if !matches!(metadata.schema().field(column).data_type(), Int8 | Int16 | Int32 | Int64) {
        return None;
    }
    let schema = metadata.parquet_schema();
    let leaf =
        (0..schema.num_columns()).find(|&leaf| schema.get_column_root_idx(leaf) == column)?;
    let mut range: Option<(i128, i128)> = None;
    for group in metadata.metadata().row_groups().iter().filter(|group| group.num_rows() > 0) {
        let (low, high) = match group.column(leaf).statistics()? {
            Statistics::Int32(values) => ((*values.min_opt()?).into(), (*values.max_opt()?).into()),
            Statistics::Int64(values) => ((*values.min_opt()?).into(), (*values.max_opt()?).into()),
            _ => return None,
        };
        range = Some(range.map_or((low, high), |(l, h)| (low.min(l), high.max(h))));
    }
    range
}

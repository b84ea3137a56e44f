//! Parquet files: what their footer says, and their rows.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use anyhow::{Context, bail};
use arrow::array::RecordBatchReader;
use arrow::datatypes::DataType;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use parquet::file::statistics::Statistics;

/// What a Parquet file begins and ends with.
const MAGIC: &[u8; 4] = b"PAR1";

/// Reads the footer, and tells apart what is wrong with a file that has none.
pub(super) fn metadata(path: &Path) -> anyhow::Result<ArrowReaderMetadata> {
    let shown = path.display();
    let mut file = File::open(path).with_context(|| format!("cannot read {shown}"))?;
    let (start, end) = ends(&mut file).with_context(|| format!("cannot read {shown}"))?;
    if start != *MAGIC {
        bail!(
            "{shown} is not a Parquet file: it does not begin with PAR1; give it the ending of the format it has"
        );
    }
    if end == *b"PARE" {
        bail!("{shown} is an encrypted Parquet file; decrypt it first");
    }
    if end != *MAGIC {
        bail!(
            "{shown} is truncated: it begins as a Parquet file but does not end as one; \
             a copy or write was cut short, so get the file again"
        );
    }
    ArrowReaderMetadata::load(&file, ArrowReaderOptions::new()).map_err(|error| {
        anyhow::anyhow!(
            "{shown} is damaged: its Parquet footer cannot be read ({error}); get the file again"
        )
    })
}

/// The first and the last four bytes.
fn ends(file: &mut File) -> std::io::Result<([u8; 4], [u8; 4])> {
    let (mut start, mut end) = ([0; 4], [0; 4]);
    if file.metadata()?.len() < 4 {
        return Ok((start, end));
    }
    file.read_exact(&mut start)?;
    // A file of just the magic must not pass for one with both.
    if file.metadata()?.len() >= 12 {
        file.seek(SeekFrom::End(-4))?;
        file.read_exact(&mut end)?;
    }
    Ok((start, end))
}

/// Reads the given columns, in the order of the file: of one row group, or of all.
pub(super) fn read(
    path: &Path,
    metadata: &ArrowReaderMetadata,
    columns: &[usize],
    group: Option<usize>,
) -> anyhow::Result<Box<dyn RecordBatchReader + Send>> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mask = ProjectionMask::roots(metadata.parquet_schema(), columns.iter().copied());
    let mut builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata.clone())
        .with_projection(mask)
        .with_batch_size(strait::DEFAULT_BATCH_SIZE);
    if let Some(group) = group {
        builder = builder.with_row_groups(vec![group]);
    }
    let reader = builder.build().with_context(|| format!("cannot read {}", path.display()))?;
    Ok(Box::new(reader))
}

/// The rows of the file, and the bytes of the given columns once decompressed.
pub(super) fn size(metadata: &ArrowReaderMetadata, columns: &[usize]) -> (u64, u64) {
    let schema = metadata.parquet_schema();
    let mut size = (0, 0);
    for group in metadata.metadata().row_groups() {
        size.0 += group.num_rows().max(0) as u64;
        for (leaf, column) in group.columns().iter().enumerate() {
            if columns.contains(&schema.get_column_root_idx(leaf)) {
                size.1 += column.uncompressed_size().max(0) as u64;
            }
        }
    }
    size
}

/// The smallest and largest value of a column of signed integers, if the footer tells.
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

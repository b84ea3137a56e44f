//! Estimates the work of reading a table's files.

use super::format::{Format, Squeeze};
use super::table::{Files, TableFile};
use super::{file, sizes};
use crate::costs::{NANOSECOND, is_text, read};

/// Returns the seconds that one core needs to read and decode the given columns of some files, as far as the
/// files tell.
pub(super) fn seconds(files: &Files, columns: &[usize]) -> f64 {
    files.files.iter().map(|file| of_file(files, file, columns)).sum::<f64>() * NANOSECOND
}

/// Returns the nanoseconds for one file.
fn of_file(files: &Files, file: &TableFile, columns: &[usize]) -> f64 {
    if let Some(footer) = &file.footer {
        // Columns from folder names are not in the file.
        let fields = files.stored.fields();
        let stored = columns.iter().copied().filter(|&column| column < fields.len());
        let (texts, fixed): (Vec<usize>, Vec<usize>) =
            stored.partition(|&column| is_text(fields[column].data_type()));
        let bytes = |columns: &[usize]| sizes::size(footer, &file.groups, columns).1 as f64;
        return bytes(&fixed) * read::PARQUET_FIXED + bytes(&texts) * read::PARQUET_TEXT;
    }
    let bytes = file::size(&file.found.path).unwrap_or(0) as f64;
    let (text, squeezing) = match file.found.format {
        Format::Csv(text) => unsqueezed(bytes, text.squeeze),
        Format::Json(squeeze) => unsqueezed(bytes, squeeze),
        Format::Parquet | Format::Ipc => (bytes, 0.0),
    };
    let parsing = match file.found.format {
        Format::Csv(_) => {
            let values = text / file.record.max(1) as f64 * columns.len() as f64;
            text * read::CSV + values * read::CSV_VALUE
        }
        Format::Json(_) => text * read::JSON,
        Format::Parquet | Format::Ipc => text * read::ARROW,
    };
    parsing + squeezing
}

/// Returns the bytes of text in a file, and the nanoseconds to decompress them.
fn unsqueezed(bytes: f64, squeeze: Squeeze) -> (f64, f64) {
    let text = bytes * read::SQUEEZED;
    match squeeze {
        Squeeze::None => (bytes, 0.0),
        Squeeze::Gzip => (text, text * read::GZIP),
        Squeeze::Zstd => (text, text * read::ZSTD),
    }
}

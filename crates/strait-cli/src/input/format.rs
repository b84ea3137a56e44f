//! Determines the format of a file: from its ending, or else from its first bytes.

use std::io;
use std::path::Path;

use arrow::datatypes::DataType;

use super::file;

/// The format of an input file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Parquet,
    Csv(Text),
    /// JSON lines.
    Json(Squeeze),
    /// Arrow IPC, file or stream.
    Ipc,
}

/// The form of a text file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) squeeze: Squeeze,
    /// The delimiter that its ending suggests.
    pub(super) delimiter: u8,
}

/// The compression of a text file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Squeeze {
    None,
    Gzip,
    Zstd,
}

/// The known endings, for messages.
pub(super) const KNOWN: &str = ".parquet, .csv, .tsv, .jsonl, .ndjson (these also with .gz or .zst), .arrow, .feather, .ipc or .arrows";

impl Format {
    /// The name of the format.
    pub(super) fn name(self) -> &'static str {
        match self {
            Format::Parquet => "Parquet",
            Format::Csv(_) => "CSV",
            Format::Json(_) => "JSON lines",
            Format::Ipc => "Arrow IPC",
        }
    }

    /// Whether files of this format are text.
    pub(super) fn is_text(self) -> bool {
        matches!(self, Format::Csv(_) | Format::Json(_))
    }

    /// Returns the type with which a column is read if it is to be cast. The values of text files are cast from
    /// their text, whatever the first rows suggested.
    pub(super) fn read_as(self, inferred: &DataType) -> DataType {
        match self {
            Format::Csv(_) => DataType::Utf8,
            Format::Json(_) if !inferred.is_nested() => DataType::Utf8,
            _ => inferred.clone(),
        }
    }

    /// Returns the format of a file, if it can be determined.
    pub(super) fn of(path: &Path) -> io::Result<Option<Format>> {
        match Format::by_ending(path) {
            Some(format) => Ok(Some(format)),
            None => Format::by_magic(path),
        }
    }

    pub(super) fn by_ending(path: &Path) -> Option<Format> {
        let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
        let (stem, squeeze) = match name.rsplit_once('.')? {
            (stem, "gz") => (stem, Squeeze::Gzip),
            (stem, "zst" | "zstd") => (stem, Squeeze::Zstd),
            _ => (name.as_str(), Squeeze::None),
        };
        let text = |delimiter| Some(Format::Csv(Text { squeeze, delimiter }));
        match stem.rsplit_once('.')?.1 {
            "csv" => text(b','),
            "tsv" | "tab" => text(b'\t'),
            "jsonl" | "ndjson" | "json" => Some(Format::Json(squeeze)),
            "parquet" | "parq" | "pq" if squeeze == Squeeze::None => Some(Format::Parquet),
            "arrow" | "feather" | "ipc" | "arrows" | "ipcs" if squeeze == Squeeze::None => {
                Some(Format::Ipc)
            }
            _ => None,
        }
    }

    fn by_magic(path: &Path) -> io::Result<Option<Format>> {
        Ok(match file::start(path, 8)?.as_slice() {
            [b'P', b'A', b'R', b'1', ..] => Some(Format::Parquet),
            [b'A', b'R', b'R', b'O', b'W', b'1', ..] => Some(Format::Ipc),
            // A stream begins with a continuation mark and the length of its schema.
            [0xff, 0xff, 0xff, 0xff, ..] => Some(Format::Ipc),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings() {
        let of = |name: &str| Format::by_ending(Path::new(name));
        let text = |squeeze, delimiter| Some(Format::Csv(Text { squeeze, delimiter }));
        assert_eq!(of("a.csv"), text(Squeeze::None, b','));
        assert_eq!(of("a.tsv.gz"), text(Squeeze::Gzip, b'\t'));
        assert_eq!(of("A.CSV.ZST"), text(Squeeze::Zstd, b','));
        assert_eq!(of("part.0.parquet"), Some(Format::Parquet));
        assert_eq!(of("a.feather"), Some(Format::Ipc));
        assert_eq!(of("a.parquet.gz"), None);
        assert_eq!(of("a.ndjson.gz"), Some(Format::Json(Squeeze::Gzip)));
        assert_eq!(of("README"), None);
    }
}

//! Determines the output file and its format from the name alone.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::ValueEnum;

use crate::store::Location;

/// The destination of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
    /// An Arrow IPC stream on stdout.
    Stdout,
    /// A file.
    File(PathBuf, FileFormat),
    /// An object in a store.
    Object(Location, FileFormat),
}

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FileFormat {
    Parquet,
    /// CSV, TSV or JSON lines.
    Text(Notation, Squeeze),
    /// Arrow's file format, with a footer.
    IpcFile,
    /// Arrow's stream format.
    IpcStream,
}

/// The form of a text file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Notation {
    /// A header and a line per row, with this byte between fields.
    Delimited(u8),
    /// A JSON object per row and line.
    JsonLines,
}

const CSV: Notation = Notation::Delimited(b',');
const TSV: Notation = Notation::Delimited(b'\t');

/// The compression of text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Squeeze {
    None,
    Gzip,
    Zstd,
}

/// The compression of columns in Parquet and Arrow files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compression {
    Zstd,
    Snappy,
    None,
}

const ENDINGS: [(&str, FileFormat); 19] = [
    (".parquet", FileFormat::Parquet),
    (".pq", FileFormat::Parquet),
    (".csv", FileFormat::Text(CSV, Squeeze::None)),
    (".csv.gz", FileFormat::Text(CSV, Squeeze::Gzip)),
    (".csv.zst", FileFormat::Text(CSV, Squeeze::Zstd)),
    (".tsv", FileFormat::Text(TSV, Squeeze::None)),
    (".tsv.gz", FileFormat::Text(TSV, Squeeze::Gzip)),
    (".tsv.zst", FileFormat::Text(TSV, Squeeze::Zstd)),
    (".jsonl", FileFormat::Text(Notation::JsonLines, Squeeze::None)),
    (".jsonl.gz", FileFormat::Text(Notation::JsonLines, Squeeze::Gzip)),
    (".jsonl.zst", FileFormat::Text(Notation::JsonLines, Squeeze::Zstd)),
    (".ndjson", FileFormat::Text(Notation::JsonLines, Squeeze::None)),
    (".ndjson.gz", FileFormat::Text(Notation::JsonLines, Squeeze::Gzip)),
    (".ndjson.zst", FileFormat::Text(Notation::JsonLines, Squeeze::Zstd)),
    (".arrow", FileFormat::IpcFile),
    (".feather", FileFormat::IpcFile),
    (".ipc", FileFormat::IpcFile),
    (".arrows", FileFormat::IpcStream),
    (".ipcs", FileFormat::IpcStream),
];

impl FileFormat {
    /// Returns the format for a path's ending.
    fn of(path: &Path) -> Option<FileFormat> {
        let name = path.file_name()?.to_string_lossy().to_ascii_lowercase();
        ENDINGS.iter().find(|(ending, _)| name.ends_with(ending)).map(|&(_, format)| format)
    }

    /// Returns the format for its name in SQL, as in `STORED AS PARQUET`.
    #[cfg_attr(not(feature = "sql"), allow(dead_code))]
    pub(crate) fn named(name: &str) -> Option<FileFormat> {
        Some(match name.to_ascii_lowercase().as_str() {
            "parquet" => FileFormat::Parquet,
            "csv" => FileFormat::Text(CSV, Squeeze::None),
            "tsv" => FileFormat::Text(TSV, Squeeze::None),
            "json" | "ndjson" | "jsonl" => FileFormat::Text(Notation::JsonLines, Squeeze::None),
            "arrow" => FileFormat::IpcFile,
            _ => return None,
        })
    }

    /// Whether the formats differ in more than their compression.
    fn differs(self, other: FileFormat) -> bool {
        match (self, other) {
            (FileFormat::Text(a, _), FileFormat::Text(b, _)) => a != b,
            (a, b) => a != b,
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Stdout => f.write_str("stdout"),
            Destination::File(path, _) => path.display().fmt(f),
            Destination::Object(location, _) => location.fmt(f),
        }
    }
}

impl Destination {
    /// Returns the destination for a path or a URL. If no format is named, the ending says which format to write.
    pub(crate) fn with_format(text: &str, named: Option<FileFormat>) -> Result<Self, String> {
        if text == "-" {
            return Ok(Destination::Stdout);
        }
        let location = Location::parse(text);
        let path =
            location.as_ref().map_or(PathBuf::from(text), |url| PathBuf::from(url.to_string()));
        let format = match (FileFormat::of(&path), named) {
            (Some(ending), Some(named)) if ending.differs(named) => {
                return Err("the ending and the format differ; change one of them".to_string());
            }
            (None, Some(_)) if text.ends_with(".gz") || text.ends_with(".zst") => {
                return Err("the ending names a compression; name the whole format, as in .csv.gz, or use another ending"
                    .to_string());
            }
            (Some(format), _) | (None, Some(format)) => format,
            (None, None) => {
                return Err("the ending does not say which format to write; use .parquet, .csv, .tsv, \
                     .jsonl or .ndjson (text also with .gz or .zst), .arrow, .feather, .ipc or .arrows, \
                     or - for a stream on stdout"
                    .to_string());
            }
        };
        Ok(match location {
            Some(location) => Destination::Object(location, format),
            None => Destination::File(path, format),
        })
    }
}

impl FromStr for Destination {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Destination::with_format(text, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_tells_the_format() {
        let format = |text: &str| match text.parse() {
            Ok(Destination::File(_, format)) => Some(format),
            _ => None,
        };
        assert_eq!(format("a/b.parquet"), Some(FileFormat::Parquet));
        assert_eq!(format("B.CSV.GZ"), Some(FileFormat::Text(CSV, Squeeze::Gzip)));
        assert_eq!(format("b.tsv"), Some(FileFormat::Text(TSV, Squeeze::None)));
        assert_eq!(format("b.tsv.zst"), Some(FileFormat::Text(TSV, Squeeze::Zstd)));
        let json = FileFormat::Text(Notation::JsonLines, Squeeze::Gzip);
        assert_eq!(format("b.ndjson.gz"), Some(json));
        assert_eq!(format("x.arrow"), Some(FileFormat::IpcFile));
        assert_eq!(format("x.arrows"), Some(FileFormat::IpcStream));
        assert_eq!(format("x.xlsx"), None);
        assert_eq!("-".parse(), Ok(Destination::Stdout));
    }
}

//! The bytes of an input file, on disk or in an object store.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use arrow::error::ArrowError;
use bytes::Bytes;
use parquet::errors::ParquetError;
use parquet::file::reader::{ChunkReader, Length};

use crate::failure::Told;
use crate::memory::{Memory, Refusal};
use crate::store::{Object, Ranges, Sequential, object};

/// A file that is read from its start to its end.
pub(super) enum InputFile {
    Disk(File),
    Object(Box<Sequential>),
}

impl InputFile {
    /// Opens a file. The error names the file, unless memory was refused.
    pub(super) fn open(path: &Path, memory: &Memory) -> Result<InputFile, ArrowError> {
        if let Some(object) = object(path) {
            return Ok(InputFile::Object(Box::new(Sequential::new(&object, memory)?)));
        }
        let told = |error| Told(format!("cannot read {}: {error}", path.display()));
        Ok(InputFile::Disk(File::open(path).map_err(told)?))
    }

    /// The number of bytes.
    pub(super) fn size(&self) -> io::Result<u64> {
        match self {
            InputFile::Disk(file) => Ok(file.metadata()?.len()),
            InputFile::Object(object) => Ok(object.size()),
        }
    }
}

impl Read for InputFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            InputFile::Disk(file) => file.read(buffer),
            InputFile::Object(object) => object.read(buffer),
        }
    }
}

impl Seek for InputFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            InputFile::Disk(file) => file.seek(to),
            InputFile::Object(object) => object.seek(to),
        }
    }
}

/// Returns the first bytes of a file, up to `length`.
pub(super) fn start(path: &Path, length: u64) -> io::Result<Vec<u8>> {
    if let Some(object) = object(path) {
        let bytes = object.bytes(0..length.min(object.size()));
        return Ok(bytes.map_err(io::Error::other)?.to_vec());
    }
    let mut start = Vec::new();
    File::open(path)?.take(length).read_to_end(&mut start)?;
    Ok(start)
}

/// Returns the number of bytes of a file, if the system tells it.
pub(super) fn size(path: &Path) -> Option<u64> {
    match object(path) {
        Some(object) => Some(object.size()),
        None => Some(path.metadata().ok()?.len()),
    }
}

/// The two ends of a Parquet file. The footer is at the end.
pub(super) enum Ends {
    Disk(File, u64),
    /// An object, and its last bytes with their position.
    Object(Arc<Object>, (u64, Bytes)),
}

impl Ends {
    pub(super) fn open(path: &Path) -> io::Result<Ends> {
        if let Some(object) = object(path) {
            let tail = object.tail().map_err(io::Error::other)?;
            return Ok(Ends::Object(object, tail));
        }
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        Ok(Ends::Disk(file, size))
    }

    /// The number of bytes of the file.
    pub(super) fn size(&self) -> u64 {
        match self {
            Ends::Disk(_, size) => *size,
            Ends::Object(object, _) => object.size(),
        }
    }

    /// Reads bytes. They must exist.
    pub(super) fn read(&mut self, range: Range<u64>) -> io::Result<Vec<u8>> {
        match self {
            Ends::Disk(file, _) => {
                let mut bytes = vec![0; (range.end - range.start) as usize];
                file.seek(SeekFrom::Start(range.start))?;
                file.read_exact(&mut bytes)?;
                Ok(bytes)
            }
            Ends::Object(_, (start, tail)) if range.start >= *start => {
                let (from, to) = ((range.start - *start) as usize, (range.end - *start) as usize);
                tail.get(from..to)
                    .map(<[u8]>::to_vec)
                    .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
            }
            Ends::Object(object, _) => Ok(object.bytes(range).map_err(io::Error::other)?.to_vec()),
        }
    }

    /// Whether reading the start takes a request of its own.
    pub(super) fn is_far_from_start(&self) -> bool {
        matches!(self, Ends::Object(_, (start, _)) if *start > 0)
    }
}

/// A Parquet file whose pages are read.
pub(super) enum PageFile {
    Disk(File),
    /// An object, and where its errors are kept.
    Object(Ranges, Refusal),
}

impl PageFile {
    /// Opens a file. `chunks` returns the column chunks that will be read.
    pub(super) fn open(
        path: &Path,
        chunks: impl FnOnce() -> Vec<Range<u64>>,
        memory: &Memory,
        refusal: &Refusal,
    ) -> io::Result<PageFile> {
        Ok(match object(path) {
            Some(object) => {
                let ranges = Ranges::new(&object, chunks(), memory);
                ranges.begin();
                PageFile::Object(ranges, refusal.clone())
            }
            None => PageFile::Disk(File::open(path)?),
        })
    }

    /// The number of bytes.
    pub(super) fn size(&self) -> u64 {
        match self {
            PageFile::Disk(file) => file.len(),
            PageFile::Object(ranges, _) => ranges.size(),
        }
    }

    /// Reads bytes of a column chunk.
    pub(super) fn bytes(&self, at: u64, length: usize) -> Result<Bytes, ParquetError> {
        match self {
            PageFile::Disk(file) => file.get_bytes(at, length),
            PageFile::Object(ranges, refusal) => {
                ranges.bytes(at, length).map_err(|error| ParquetError::General(refusal.note(error)))
            }
        }
    }
}

//! The bytes of text files: decompresses them, and scans CSV for records that are too long.

use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use arrow::error::ArrowError;
use flate2::read::MultiGzDecoder;
use strait::MemoryReservation;

use super::file::InputFile;
use super::format::Squeeze;
use crate::failure::{Told, of_join};
use crate::memory::{Memory, Refusal};

/// The longest record. Text columns cannot hold more in one batch.
pub(super) const MAX_RECORD: u64 = i32::MAX as u64;

/// The bytes that some programs write before the first record.
pub(super) const BYTE_ORDER_MARK: [u8; 3] = *b"\xef\xbb\xbf";

/// The buffers of a decompressor, in addition to its window.
const DECOMPRESSOR: u64 = 512 << 10;

/// The largest window of a Zstandard file, unless it was written with `--ultra` or `--long`.
const USUAL_WINDOW: u64 = 8 << 20;

/// Decompressed text, and the memory reservation of its decompressor.
pub(super) struct Opened {
    bytes: Box<dyn BufRead + Send>,
    _reservation: MemoryReservation,
}

/// Opens a file, decompresses it, and skips a byte order mark. The error names the file, unless memory was
/// refused.
pub(super) fn open(path: &Path, squeeze: Squeeze, memory: &Memory) -> Result<Opened, ArrowError> {
    let told = |error| Told(format!("cannot read {}: {error}", path.display()));
    let what = format!("decompressing {}", path.display());
    let mut reservation = memory.reserve(DECOMPRESSOR, &what)?;
    let mut file = BufReader::with_capacity(1 << 18, InputFile::open(path, memory)?);
    let bytes: Box<dyn Read + Send> = match squeeze {
        Squeeze::None => Box::new(file),
        Squeeze::Gzip => Box::new(MultiGzDecoder::new(file)),
        Squeeze::Zstd => {
            let window = window(file.fill_buf().map_err(told)?);
            let mut decoder = zstd::Decoder::with_buffer(file).map_err(told)?;
            if let Some(limit) = memory.limit() {
                // Later frames may need more than the first one, up to the usual window.
                let window = window.max((limit / 8).min(USUAL_WINDOW)).next_power_of_two();
                memory.resize(&mut reservation, DECOMPRESSOR + window, &what)?;
                let bits = window.ilog2().max(10);
                decoder.window_log_max(bits).map_err(told)?;
            }
            Box::new(decoder)
        }
    };
    let mut bytes = BufReader::with_capacity(1 << 18, bytes);
    let mut start = Vec::new();
    (&mut bytes).take(3).read_to_end(&mut start).map_err(told)?;
    if start == BYTE_ORDER_MARK {
        start.clear();
    }
    Ok(Opened { bytes: Box::new(io::Cursor::new(start).chain(bytes)), _reservation: reservation })
}

/// Does the same outside of a join. The error always names the file.
pub(super) fn open_now(path: &Path, squeeze: Squeeze, memory: &Memory) -> anyhow::Result<Opened> {
    open(path, squeeze, memory).map_err(|error| match strait::Error::from_arrow(error) {
        error @ strait::Error::MemoryLimit { .. } => {
            of_join(error).context(format!("cannot read {}", path.display()))
        }
        error => of_join(error),
    })
}

/// Returns the window size that the first frame of a Zstandard file needs: RFC 8878, section 3.1.1.1.
fn window(start: &[u8]) -> u64 {
    const UNKNOWN: u64 = 8 << 20;
    let Some((&[0x28, 0xb5, 0x2f, 0xfd, descriptor], rest)) = start.split_first_chunk::<5>() else {
        return UNKNOWN;
    };
    let single_segment = descriptor & 0x20 != 0;
    let size = if !single_segment {
        let Some(&window) = rest.first() else { return UNKNOWN };
        let base = 1u64 << (10 + (window >> 3));
        base + base / 8 * u64::from(window & 7)
    } else {
        let skipped = [0, 1, 2, 4][usize::from(descriptor & 3)];
        let length = [1, 2, 4, 8][usize::from(descriptor >> 6)];
        let Some(size) = rest.get(skipped..skipped + length) else { return UNKNOWN };
        size.iter().rev().fold(0, |size, &byte| size << 8 | u64::from(byte))
    };
    // The decoder rejects larger windows.
    size.clamp(1 << 10, 1 << 27)
}

impl Read for Opened {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.bytes.read(buffer)
    }
}

impl BufRead for Opened {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.bytes.fill_buf()
    }

    fn consume(&mut self, bytes: usize) {
        self.bytes.consume(bytes);
    }
}

/// A reader whose first call returns only one byte. The CSV parser skips a byte order mark only if its first call gets
/// the whole mark. [`open`] has already skipped the mark of the file. A second mark belongs to a value, so the parser
/// must not skip it.
pub(super) struct Unmarked<R> {
    inner: R,
    has_begun: bool,
}

impl<R> Unmarked<R> {
    pub(super) fn new(inner: R) -> Unmarked<R> {
        Unmarked { inner, has_begun: false }
    }
}

impl<R: Read> Read for Unmarked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = if self.has_begun { buffer.len() } else { buffer.len().min(1) };
        self.has_begun = true;
        self.inner.read(&mut buffer[..most])
    }
}

/// Passes bytes on, and reserves the memory that the longest record among them needs.
pub(super) struct Scanned<R> {
    inner: R,
    scan: Scan,
    memory: Memory,
    reservation: MemoryReservation,
    refusal: Refusal,
}

/// Tracks the records of a CSV file in the same way as the parser.
#[derive(Debug)]
pub(super) struct Scan {
    delimiter: u8,
    state: State,
    /// Bytes and fields of the current record.
    record: u64,
    fields: u64,
    longest: u64,
    most_fields: u64,
    records: u64,
    bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// At the start of a field, where a quote opens a quoted field.
    FieldStart,
    Unquoted,
    Quoted,
    /// After a quote in a quoted field: either its end, or the first half of an escaped quote.
    QuoteInQuoted,
}

impl Scan {
    pub(super) fn new(delimiter: u8) -> Scan {
        Scan {
            delimiter,
            state: State::FieldStart,
            record: 0,
            fields: 1,
            longest: 0,
            most_fields: 1,
            records: 0,
            bytes: 0,
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        use State::{FieldStart, QuoteInQuoted, Quoted, Unquoted};
        for &byte in bytes {
            self.record += 1;
            self.state = match (self.state, byte) {
                (Quoted, b'"') => QuoteInQuoted,
                (Quoted, _) | (FieldStart | QuoteInQuoted, b'"') => Quoted,
                (_, b'\n' | b'\r') => {
                    self.end_record();
                    FieldStart
                }
                (_, byte) if byte == self.delimiter => {
                    self.fields += 1;
                    FieldStart
                }
                _ => Unquoted,
            };
        }
        self.bytes += bytes.len() as u64;
        self.longest = self.longest.max(self.record);
        self.most_fields = self.most_fields.max(self.fields);
    }

    fn end_record(&mut self) {
        self.longest = self.longest.max(self.record);
        self.most_fields = self.most_fields.max(self.fields);
        // The two bytes of a line end count as one.
        self.records += u64::from(self.record > 1);
        self.record = 0;
        self.fields = 1;
    }

    /// The memory that reading the longest record needs: its text, a second copy while a buffer grows, and
    /// its fields.
    fn memory(&self) -> u64 {
        3 * self.longest + 256 * self.most_fields
    }

    /// The average length of a record.
    pub(super) fn average(&self) -> u64 {
        self.bytes / self.records.max(1) + 1
    }
}

impl<R: Read> Scanned<R> {
    pub(super) fn new(
        inner: R,
        delimiter: u8,
        memory: &Memory,
        refusal: &Refusal,
    ) -> strait::Result<Self> {
        let reservation = memory.reserve(0, "a record of a CSV file")?;
        let scan = Scan::new(delimiter);
        Ok(Scanned { inner, scan, memory: memory.clone(), reservation, refusal: refusal.clone() })
    }

    pub(super) fn scan(&self) -> &Scan {
        &self.scan
    }
}

impl<R: Read> Read for Scanned<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.scan.feed(&buffer[..read]);
        if self.scan.longest > MAX_RECORD {
            return Err(io::Error::other("a record is longer than 2 GiB; is a quote missing?"));
        }
        let needed = self.scan.memory().max(self.reservation.bytes());
        self.memory
            .resize(&mut self.reservation, needed, "a record of a CSV file")
            .map_err(|error| io::Error::other(self.refusal.note(error)))?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_followed_through_quotes() {
        let scanned = |text: &str| {
            let mut scan = Scan::new(b',');
            text.as_bytes().chunks(3).for_each(|piece| scan.feed(piece));
            (scan.records, scan.longest, scan.most_fields)
        };
        assert_eq!(scanned("a,b\nc,d,e\n"), (2, 6, 3));
        assert_eq!(scanned("a,\"b\nc\"\nd\n"), (2, 8, 2));
        assert_eq!(scanned("a,\"b\"\"\nc\"\nd\n"), (2, 10, 2));
        // A quote within a field is an ordinary character.
        assert_eq!(scanned("5\",b\nc\n"), (2, 5, 2));
        assert_eq!(scanned("a\r\nb\r\n"), (2, 2, 1));
    }

    /// Compressed files can be concatenated, and the first frame may be the shortest.
    #[test]
    fn frames_may_have_longer_windows_than_the_first() {
        let rows: String = (0..400_000u64).map(|i| format!("{},{i}\n", i * 7919)).collect();
        let mut file = zstd::encode_all(&b"a,b\n"[..], 3).expect("compresses");
        file.extend(zstd::encode_all(rows.as_bytes(), 3).expect("compresses"));
        let path = std::env::temp_dir().join(format!("strait-frames-{}.zst", std::process::id()));
        std::fs::write(&path, file).expect("a temporary file");
        let mut read = String::new();
        let opened = open(&path, Squeeze::Zstd, &Memory::new(Some(64 << 20)));
        let length = opened.expect("opens").read_to_string(&mut read);
        std::fs::remove_file(&path).expect("it was there");
        assert_eq!(length.expect("both frames"), 4 + rows.len());
        assert!(read.ends_with(&rows));
    }

    #[test]
    fn windows_are_read_from_the_first_frame() {
        let text = vec![b'x'; 3 << 20];
        let frame = zstd::encode_all(text.as_slice(), 1).unwrap();
        assert!((1 << 19..=1 << 22).contains(&window(&frame)), "{}", window(&frame));
        let bulk = zstd::bulk::compress(&text[..1000], 1).unwrap();
        assert_eq!(window(&bulk), 1 << 10);
        assert_eq!(window(b"no frame"), 8 << 20);
    }
}

//! Cuts text at every place, in pieces of every length. Its records must stay whole, and no byte may be lost.

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::error::ArrowError;

use super::{Random, corpus_folder, files, mutate};
use crate::input::block::{Block, BlockReader, Records};
use crate::input::format::Squeeze;
use crate::input::pieces::{Pieces, Spare};
use crate::input::records::whole_records;
use crate::input::text::open;
use crate::memory::Memory;

/// Cuts CSV text after records, or any text after lines.
struct Cut {
    length: u64,
    /// The number of calls of [`whole`](Records::whole).
    calls: AtomicUsize,
    is_csv: bool,
}

impl Records for Cut {
    fn what(&self) -> &str {
        "a test"
    }

    fn length(&self) -> u64 {
        self.length
    }

    fn whole(&self, text: &[u8]) -> Option<(usize, u64)> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        if self.is_csv {
            return whole_records(text, b',');
        }
        let end = memchr::memrchr(b'\n', text)? + 1;
        Some((end, memchr::memchr_iter(b'\n', &text[..end]).count() as u64))
    }

    fn too_long(&self) -> &'static str {
        "too long"
    }
}

fn cut(length: u64, is_csv: bool) -> Cut {
    Cut { length, calls: AtomicUsize::new(0), is_csv }
}

/// Reads a file from its start to its end.
fn streamed(path: &Path, records: &Cut) -> Vec<Block> {
    let memory = Memory::new(None);
    let opened = open(path, Squeeze::None, &memory).unwrap();
    let mut reader = BlockReader::new(opened, &memory, "a test").unwrap();
    std::iter::from_fn(|| reader.next(records, &memory).unwrap()).collect()
}

/// Reads all pieces that are left, some of them before earlier ones. Uses the memory of blocks again.
fn rest(
    pieces: &Pieces,
    records: &Cut,
    random: &mut Random,
) -> Result<Vec<(u64, u64, Vec<u8>)>, ArrowError> {
    let memory = Memory::new(None);
    let (mut claimed, mut spare, mut found) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        claimed.extend(pieces.claim());
        if claimed.is_empty() {
            return Ok(found);
        }
        if pieces.is_claimed() || random.below(2) == 0 {
            let number = claimed.swap_remove(random.below(claimed.len()));
            for block in pieces.read(number, records, &memory, spare.pop())? {
                found.push((block.lines_before, block.lines, block.text.to_vec()));
                spare.extend(Spare::of(block));
            }
        }
    }
}

fn in_pieces(path: &Path, records: &Cut, random: &mut Random) -> Vec<(u64, u64, Vec<u8>)> {
    let pieces = Pieces::open(path, records.length, 1 + random.below(5)).unwrap();
    pieces.map(|pieces| rest(&pieces, records, random).unwrap()).unwrap_or_default()
}

/// The records that the CSV parser finds.
fn parsed(text: &[u8]) -> Vec<csv::ByteRecord> {
    let mut reader = csv::ReaderBuilder::new();
    let reader = reader.has_headers(false).flexible(true).from_reader(text);
    reader.into_byte_records().map(|record| record.unwrap()).collect()
}

/// Checks that blocks are the whole text, and that each block has whole records.
fn check(text: &[u8], blocks: &[(u64, u64, Vec<u8>)], is_csv: bool, case: &str) {
    let shown = || format!("{case}: {:?}", String::from_utf8_lossy(text));
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let texts: Vec<&[u8]> = blocks.iter().map(|(_, _, text)| &**text).collect();
    assert_eq!(texts.concat(), text, "{}", shown());
    assert!(texts.iter().all(|text| !text.is_empty()), "{}", shown());
    if is_csv {
        let records: Vec<_> = texts.iter().flat_map(|text| parsed(text)).collect();
        assert_eq!(records, parsed(text), "{}", shown());
    }
    let mut at = 0;
    let mut lines = 0;
    for (lines_before, more, text_of_block) in blocks {
        assert_eq!(*lines_before, lines, "{}", shown());
        if !text.contains(&b'\r') {
            let before = text[..at].iter().filter(|&&byte| byte == b'\n').count();
            assert_eq!(lines, before as u64, "{}", shown());
        }
        (at, lines) = (at + text_of_block.len(), lines + more);
    }
}

/// Reads a text in both ways, in blocks of the given lengths.
fn check_all(text: &[u8], lengths: impl Iterator<Item = usize>, random: &mut Random) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    for length in lengths {
        for is_csv in [true, false] {
            let records = cut(length as u64, is_csv);
            let blocks = in_pieces(file.path(), &records, random);
            check(text, &blocks, is_csv, &format!("pieces of {length}"));
            let blocks: Vec<_> = streamed(file.path(), &records)
                .into_iter()
                .map(|block| (block.lines_before, block.lines, block.text.to_vec()))
                .collect();
            check(text, &blocks, is_csv, &format!("blocks of {length}"));
        }
    }
}

/// Texts with quotes, with both kinds of line ends, and with empty lines.
const TEXTS: [&str; 14] = [
    "",
    "\n",
    "a",
    "\"",
    "\r\n\r\n\r\n",
    "\u{feff}a,b\r\n1,\"x\ny\"\r\n\r\n2,z\r\n",
    "\u{feff}",
    "a,b\n1,\"x\n\n\ny\"\n\n\n2,\"\"\"\n\"\"\"\n3,4",
    "a,b\n1,\"it\"\"s\n\"\"\n\"\n\"2\",\"\"\n",
    "h\n\"a long value in quotes\nwith a line end\",1\nx,5\"\ny,\"6\n",
    "a\rb,\"c\rd\"\re\r",
    "a,b\r\n\"1\r\n\",2\r\n\r\n\"\r\n\"\r\n",
    "one record that is much longer than the others,2,3,4,5,6,7\na\nb\nc\nd\ne\nf\n",
    "\"never closed\n1,2\n3,4\n5,6\n",
];

#[test]
fn records_stay_whole_at_every_length() {
    let mut random = Random(fastrand::Rng::with_seed(31));
    for text in TEXTS {
        check_all(text.as_bytes(), 1..text.len() + 3, &mut random);
    }
    for _ in 0..150 {
        let length = random.below(50);
        let text: Vec<u8> = (0..length).map(|_| b"aab,,\"\"\n\n\r"[random.below(10)]).collect();
        check_all(&text, 1..length + 3, &mut random);
        // Longer fields, and line ends of one kind.
        let choices: [&[u8]; 7] =
            [b"value", b"\"in, quotes\"", b"\"a\r\nb\"", b"\"\"\"\"", b",", b"\r\n", b"\r\n"];
        let text: Vec<u8> = (0..length).flat_map(|_| choices[random.below(7)]).copied().collect();
        check_all(&text, (1..20).chain([33, 64, 100, 1000]), &mut random);
    }
}

#[test]
fn changed_text_is_cut_between_records() {
    let texts: Vec<Vec<u8>> = files(&corpus_folder())
        .into_iter()
        .filter(|(name, _)| name.ends_with(".csv") || name.ends_with(".jsonl"))
        .map(|(_, bytes)| bytes)
        .collect();
    assert!(texts.len() > 1);
    for seed in 0..400 {
        let mut random = Random(fastrand::Rng::with_seed(seed));
        let mut text = texts[random.below(texts.len())].clone();
        mutate(&mut text, &texts[random.below(texts.len())], &mut random);
        let most = [8, 100, 5000][random.below(3)];
        let length = 1 + random.below(most);
        check_all(&text, std::iter::once(length), &mut random);
    }
}

/// Text without line ends in quotes is scanned once, apart from the first line of each piece.
#[test]
fn usual_pieces_are_cut_without_another_scan() {
    let text: String = (0..2000).map(|i| format!("{i},\"quoted, {i}\",x\r\n")).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &text).unwrap();
    let mut random = Random(fastrand::Rng::with_seed(5));
    let records = cut(1000, true);
    let blocks = in_pieces(file.path(), &records, &mut random);
    let pieces = text.len().div_ceil(1000);
    assert_eq!((blocks.len(), records.calls.into_inner()), (pieces, 2 * pieces));
}

/// A record of many pieces is not scanned once per piece.
#[test]
fn a_long_record_is_read_in_growing_steps() {
    let text = format!("a,\"{}\"\nb\nc\n", "x\n".repeat(50_000));
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &text).unwrap();
    let mut random = Random(fastrand::Rng::with_seed(6));
    let records = cut(100, true);
    let blocks = in_pieces(file.path(), &records, &mut random);
    check(text.as_bytes(), &blocks, true, "long");
    // Each piece is scanned by itself. The scans of the whole record are few.
    let pieces = text.len().div_ceil(100);
    assert!(records.calls.into_inner() < pieces + pieces / 4 + 100);
}

#[test]
fn many_workers_cut_one_file() {
    let text: String = (0..20_000).map(|i| format!("{i},\"a\n{i}\"\n\n")).collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &text).unwrap();
    for length in [50, 777, 10_000] {
        let pieces = Pieces::open(file.path(), length, 4).unwrap().unwrap();
        let (records, memory) = (cut(length, true), Memory::new(None));
        let work = || {
            let mut found = Vec::new();
            while !pieces.is_claimed() {
                let Some(number) = pieces.claim() else {
                    std::thread::yield_now();
                    continue;
                };
                for block in pieces.read(number, &records, &memory, None).unwrap() {
                    found.push((block.lines_before, block.lines, block.text.to_vec()));
                }
            }
            found
        };
        let mut found: Vec<_> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
            workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
        });
        found.sort();
        check(text.as_bytes(), &found, true, "four workers");
        assert_eq!(memory.budget().used(), 0);
    }
}

/// A file that is cut short while it is read gives an error, unless all of it was read before. Text that is appended
/// is not read.
#[test]
fn files_may_change_while_they_are_read() {
    let text: String = (0..200).map(|i| format!("{i},\"a\n{i}\"\n")).collect();
    let mut random = Random(fastrand::Rng::with_seed(7));
    for _ in 0..300 {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), &text).unwrap();
        let length = 1 + random.below(300) as u64;
        let (records, memory) = (cut(length, true), Memory::new(None));
        let pieces = Pieces::open(file.path(), length, 3).unwrap().unwrap();
        let mut found = Vec::new();
        for _ in 0..random.below(10) {
            if let Some(number) = pieces.claim() {
                let blocks = pieces.read(number, &records, &memory, None).unwrap();
                found.extend(blocks.iter().flat_map(|block| block.text.to_vec()));
            }
        }
        let to = random.below(2 * text.len());
        File::options().write(true).open(file.path()).unwrap().set_len(to as u64).unwrap();
        match rest(&pieces, &records, &mut random) {
            Ok(rest) => {
                found.extend(rest.into_iter().flat_map(|(_, _, text)| text));
                assert_eq!(found, text.as_bytes(), "{length} {to}");
            }
            Err(error) => {
                assert!(to < text.len(), "{length} {to}");
                assert!(error.to_string().contains("became shorter"), "{error}");
            }
        }
    }
}

//! Reads files as an attacker would make them: valid files with some changed bytes. Reading must end with
//! rows or with an error. It must not panic, abort, hang, or hold more memory than the limit.
//!
//! `STRAIT_FUZZ_CASES` is the number of cases, and `STRAIT_FUZZ_SEED` is the first seed. A case that ends the
//! process leaves its file in the temporary folder, under a name that begins with `strait-hostile`.
//! `STRAIT_WRITE_CORPUS=1` writes the valid files again.

mod corpus;
mod cuts;
mod made;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::arguments::{CsvArguments, Source};
use crate::counted::most_held;
use crate::input::{InputTable, find};
use crate::memory::Memory;
use crate::output::Preview;

/// The memory limit for every file.
const LIMIT: u64 = 16 << 20;

/// Memory that reading may use without a reservation: file buffers, and small allocations.
const BESIDE: u64 = 4 << 20;

/// The default number of cases.
const CASES: u64 = 4000;

/// Much longer than any case takes, unless it hangs.
const HANGS: Duration = Duration::from_secs(120);

/// Reads a whole table, and previews its first rows. Returns the number of rows, or the error message.
fn read(path: &Path, memory: &Memory) -> Result<u64, String> {
    let attempt = || -> anyhow::Result<u64> {
        let found = find(&Source::Path(path.to_path_buf()))?;
        let table = InputTable::open(found, &CsvArguments::default(), memory)?;
        let columns: Vec<usize> = (0..table.schema().fields().len()).collect();
        let mut preview = Preview::new(table.schema(), 10, memory)?;
        let mut rows = 0;
        for batch in table.batches(&columns) {
            let batch = batch.map_err(crate::failure::of_stream)?;
            rows += batch.num_rows() as u64;
            // A value that cannot be shown gives an error, not a panic.
            let _ = preview.add(&batch);
            // Null columns take no memory, so they may have any number of rows.
            if rows > 1 << 24 {
                break;
            }
        }
        Ok(rows)
    };
    attempt().map_err(|error| format!("{error:#}"))
}

/// Reads a table under the limit, and checks the outcome. An error message must name the file.
fn checked(path: &Path) -> Result<u64, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(crate::panics::install);
    let memory = Memory::new(Some(LIMIT));
    let (result, held) = most_held(|| read(path, &memory));
    let most = LIMIT + LIMIT / 10 + BESIDE;
    assert!(held <= most, "{}: {held} bytes held, {result:?}", path.display());
    assert_eq!(memory.budget().used(), 0, "{}: a reservation is left", path.display());
    if let Err(message) = &result {
        let name = path.file_name().unwrap().to_string_lossy();
        assert!(message.contains(&*name), "the message does not name {name}: {message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
    result
}

/// Random numbers that depend only on a seed.
struct Random(fastrand::Rng);

impl Random {
    /// A number below `end`; zero if `end` is zero.
    fn below(&mut self, end: usize) -> usize {
        self.0.usize(..end.max(1))
    }

    /// A position in a file, often near an end, where the metadata is.
    fn place(&mut self, length: usize) -> usize {
        let near = length.min(64 + length / 4);
        match self.below(4) {
            0 => self.below(near),
            1 => length - 1 - self.below(near),
            _ => self.below(length),
        }
    }

    fn range(&mut self, length: usize) -> std::ops::Range<usize> {
        let start = self.place(length);
        start..length.min(start + 1 + self.below(64))
    }
}

/// Invalid lengths.
const HUGE: [i64; 8] =
    [-1, i32::MAX as i64, i32::MIN as i64, u32::MAX as i64, 1 << 30, i64::MAX, i64::MIN, 1 << 40];

/// Changes a few bytes of a valid file.
fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..1 + random.below(3) {
        if bytes.is_empty() {
            return;
        }
        let at = random.place(bytes.len());
        match random.below(10) {
            0..3 => bytes[at] ^= 1 << random.below(8),
            3 => bytes[at] = random.below(256) as u8,
            4 => bytes.truncate(at),
            5 => drop(bytes.drain(random.range(bytes.len()))),
            6 if !other.is_empty() => {
                let from = random.range(other.len());
                let end = bytes.len().min(at + from.len());
                bytes.splice(at..end, other[from].iter().copied());
            }
            7 => {
                let copied = bytes[random.range(bytes.len())].to_vec();
                bytes.splice(at..at, copied);
            }
            8 => {
                let number = HUGE[random.below(HUGE.len())].to_le_bytes();
                let at = at - at % 4;
                let width = [4, 8][random.below(2)].min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&number[..width]);
            }
            _ => {
                // The same as a variable-length number.
                let number = [0xfe, 0xff, 0xff, 0xff, 0x0f];
                let width = number.len().min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&number[..width]);
            }
        }
    }
}

/// Returns the names and contents of the files in the corpus.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .map(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, fs::read(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

fn corpus_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")
}

/// Kills the process if a case hangs, and says which case.
fn watch(case: &'static AtomicU64) {
    std::thread::spawn(move || {
        let (mut last, mut since) = (u64::MAX, Instant::now());
        loop {
            std::thread::sleep(Duration::from_secs(5));
            let now = case.load(Ordering::Relaxed);
            if now != last {
                (last, since) = (now, Instant::now());
            } else if now != u64::MAX && since.elapsed() > HANGS {
                let _ = writeln!(std::io::stderr(), "STRAIT_FUZZ_SEED={now} never ends");
                std::process::abort();
            }
        }
    });
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

#[test]
fn changed_files_never_do_harm() {
    static CASE: AtomicU64 = AtomicU64::new(u64::MAX);
    watch(&CASE);
    let corpus = files(&corpus_folder());
    let folder = tempfile::Builder::new().prefix("strait-hostile").tempdir().unwrap();
    let first = number("STRAIT_FUZZ_SEED", 0);
    let mut whole = 0;
    let cases = number("STRAIT_FUZZ_CASES", CASES);
    for seed in first..first + cases {
        CASE.store(seed, Ordering::Relaxed);
        let mut random = Random(fastrand::Rng::with_seed(seed));
        let (name, bytes) = &corpus[random.below(corpus.len())];
        let ending = &name[name.find('.').unwrap()..];
        let alike: Vec<_> = corpus.iter().filter(|(name, _)| name.ends_with(ending)).collect();
        let other = &alike[random.below(alike.len())].1;
        let mut bytes = bytes.clone();
        // Half of the time, compressed text is changed before it is compressed.
        let squeezed = random.below(2) == 0 && corpus::is_squeezed(name);
        if squeezed {
            bytes = corpus::unsqueezed(name, &bytes);
            mutate(&mut bytes, &[], &mut random);
            bytes = corpus::squeezed(name, &bytes);
        } else {
            mutate(&mut bytes, other, &mut random);
        }
        let path = folder.path().join(format!("case{ending}"));
        fs::write(&path, &bytes).unwrap();
        let result = std::panic::catch_unwind(|| {
            let result = checked(&path);
            if ending == ".csv" || ending == ".jsonl" {
                // Without a limit, the file is read in pieces.
                let unlimited = read(&path, &Memory::new(None));
                let is_refused = result.as_ref().is_err_and(|message| message.contains("memory"));
                assert!(is_refused || result == unlimited, "{result:?} and {unlimited:?}");
            }
            result
        });
        match result {
            Ok(result) => whole += u64::from(result.is_ok()),
            Err(panic) => {
                let kept = std::env::temp_dir().join(format!("strait-hostile-{seed}{ending}"));
                fs::copy(&path, &kept).unwrap();
                eprintln!("STRAIT_FUZZ_SEED={seed} STRAIT_FUZZ_CASES=1 fails: {}", kept.display());
                std::panic::resume_unwind(panic);
            }
        }
    }
    CASE.store(u64::MAX, Ordering::Relaxed);
    // Most changes must cause an error, but not all of them. Otherwise the test tests nothing.
    assert!(cases < 1000 || (whole > cases / 100 && whole < cases * 9 / 10), "{whole} of {cases}");
}

#[test]
fn files_that_once_did_harm() {
    for (name, _) in files(&corpus_folder().join("regressions")) {
        let _ = checked(&corpus_folder().join("regressions").join(name));
    }
}

#[test]
fn the_corpus_is_valid_and_as_it_is_made() {
    let made = corpus::made();
    if std::env::var_os("STRAIT_WRITE_CORPUS").is_some() {
        fs::create_dir_all(corpus_folder().join("regressions")).unwrap();
        for (name, bytes) in &made {
            fs::write(corpus_folder().join(name), bytes).unwrap();
        }
    }
    let names = |files: &[(String, Vec<u8>)]| -> Vec<String> {
        files.iter().map(|(name, _)| name.clone()).collect()
    };
    let mut sorted = names(&made);
    sorted.sort();
    assert_eq!(names(&files(&corpus_folder())), sorted);
    for name in sorted {
        assert_eq!(checked(&corpus_folder().join(&name)), Ok(corpus::ROWS), "{name}");
    }
}

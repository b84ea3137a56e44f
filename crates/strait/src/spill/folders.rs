//! Unnamed temporary files in one or several folders: the default store.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use super::problem::{DiskLimit, InFolder};
use super::store::{SpillFile, SpillStore};
use crate::schedule::lock;

/// Unnamed temporary files in one or several folders.
///
/// The files have no names. So the system deletes them when the process ends, even if it is killed.
///
/// ```
/// use strait::{SpillStore, TempFolders};
///
/// // At most 1 MiB on disk at once.
/// let folders = TempFolders::new(vec![std::env::temp_dir()]).with_limit(Some(1 << 20));
/// let file = folders.create()?;
/// file.append(&[0; 1000])?;
/// assert_eq!(folders.used(), 1000);
/// assert!(file.append(&[0; 1 << 20]).is_err());
/// drop(file);
/// assert_eq!(folders.used(), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct TempFolders {
    /// At least one folder.
    folders: Vec<PathBuf>,
    /// The number of files that were created. It chooses the next folder.
    created: AtomicUsize,
    limit: u64,
    used: Arc<AtomicU64>,
}

impl TempFolders {
    /// Creates a store that uses the folders in turns, or the system's folder for temporary files if there are
    /// none. The folders must exist. The folders are first used when a join creates a file.
    pub fn new(folders: Vec<PathBuf>) -> TempFolders {
        let folders = if folders.is_empty() { vec![std::env::temp_dir()] } else { folders };
        TempFolders { folders, created: AtomicUsize::new(0), limit: u64::MAX, used: Arc::default() }
    }

    /// Sets the most bytes that all files together may have at once. `None` means no limit.
    pub fn with_limit(mut self, bytes: Option<u64>) -> TempFolders {
        self.limit = bytes.unwrap_or(u64::MAX);
        self
    }

    /// Returns the bytes that all files together have now.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

impl SpillStore for TempFolders {
    fn create(&self) -> io::Result<Arc<dyn SpillFile>> {
        let turn = self.created.fetch_add(1, Ordering::Relaxed) % self.folders.len();
        let folder = self.folders[turn].clone();
        let file = unnamed(&folder).map_err(|error| InFolder::wrap(&folder, error))?;
        let (file, used) = (Arc::new(file), Arc::clone(&self.used));
        Ok(Arc::new(TempFile { file, folder, length: Mutex::new(0), limit: self.limit, used }))
    }

    fn place(&self) -> String {
        let names: Vec<String> = self.folders.iter().map(|f| f.display().to_string()).collect();
        names.join(", ")
    }
}

/// A file of [`TempFolders`].
struct TempFile {
    file: Arc<File>,
    folder: PathBuf,
    /// The bytes that were appended, including the bytes of a failed append.
    length: Mutex<u64>,
    limit: u64,
    /// The bytes of all files of the store.
    used: Arc<AtomicU64>,
}

impl SpillFile for TempFile {
    fn append(&self, bytes: &[u8]) -> io::Result<()> {
        let mut length = lock(&self.length);
        let more = bytes.len() as u64;
        let grown = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(more).filter(|&total| total <= self.limit)
        });
        if let Err(used) = grown {
            let refused = DiskLimit { limit: self.limit, used, needed: more };
            let refused = io::Error::new(io::ErrorKind::QuotaExceeded, refused);
            return Err(InFolder::wrap(&self.folder, refused));
        }
        let at = *length;
        *length += more;
        // `write_all_at` writes the rest after a short write, and tries again after a signal.
        let written = self.file.write_all_at(bytes, at);
        written.map_err(|error| InFolder::wrap(&self.folder, error))
    }

    fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        advise_sequential(&self.file);
        let (file, folder) = (Arc::clone(&self.file), self.folder.clone());
        Ok(Box::new(TempReader { file, folder, at: 0 }))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        self.used.fetch_sub(*lock(&self.length), Ordering::Relaxed);
    }
}

/// A position in a file. Readers of one file share its descriptor, but not their positions.
struct TempReader {
    file: Arc<File>,
    folder: PathBuf,
    at: u64,
}

impl Read for TempReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(into, self.at);
        let read = read.map_err(|error| InFolder::wrap(&self.folder, error))?;
        self.at += read as u64;
        Ok(read)
    }
}

/// Creates a file without a name.
fn unnamed(folder: &Path) -> io::Result<File> {
    #[cfg(target_os = "linux")]
    match born_unnamed(folder) {
        // The file system or the kernel does not support such files.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL | libc::ENOSYS)
            ) => {}
        result => return result,
    }
    named_and_removed(folder)
}

/// Creates a file that never has a name.
#[cfg(target_os = "linux")]
fn born_unnamed(folder: &Path) -> io::Result<File> {
    // `O_EXCL` means that the file cannot get a name later.
    let flags = libc::O_TMPFILE | libc::O_EXCL;
    OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(flags).open(folder)
}

/// Creates a file with a random name, and removes the name at once. If the process is killed in between, an
/// empty file is left.
fn named_and_removed(folder: &Path) -> io::Result<File> {
    const ATTEMPTS: usize = 16;
    let mut taken = io::Error::from(io::ErrorKind::AlreadyExists);
    for _ in 0..ATTEMPTS {
        let path = folder.join(format!(".strait-{:016x}", fastrand::u64(..)));
        match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Ok(file) => return std::fs::remove_file(&path).map(|()| file),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => taken = error,
            Err(error) => return Err(error),
        }
    }
    Err(taken)
}

/// Tells the system that the file is read from front to back, so that it reads ahead.
fn advise_sequential(file: &File) {
    #[cfg(target_os = "linux")]
    {
        use std::os::fd::AsRawFd;
        // SAFETY: the descriptor is open. The call changes no memory. Without the advice, reading is only
        // slower, so the result does not matter.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_SEQUENTIAL) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates an empty folder for one test.
    fn folder(name: &str) -> PathBuf {
        let name = format!("strait-spill-{name}-{}-{:x}", std::process::id(), fastrand::u64(..));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a new folder");
        path
    }

    fn content(file: &dyn SpillFile) -> Vec<u8> {
        let mut bytes = Vec::new();
        file.open().expect("opens").read_to_end(&mut bytes).expect("reads");
        bytes
    }

    #[test]
    fn no_file_has_a_name() {
        let (first, second) = (folder("first"), folder("second"));
        let entries = |path: &Path| std::fs::read_dir(path).expect("a folder").count();
        let store = TempFolders::new(vec![first.clone(), second.clone()]);
        assert_eq!(store.place(), format!("{}, {}", first.display(), second.display()));
        let files: Vec<_> = (0..4).map(|_| store.create().expect("creates")).collect();
        for file in &files {
            file.append(b"0123456789").expect("appends");
        }
        assert_eq!((entries(&first), entries(&second)), (0, 0));
        assert_eq!(store.used(), 40);
        assert!(files.iter().all(|file| content(file.as_ref()) == b"0123456789"));
        drop(files);
        assert_eq!(store.used(), 0);
        std::fs::remove_dir(first).expect("is empty");
        std::fs::remove_dir(second).expect("is empty");
    }

    #[test]
    fn without_unnamed_files_a_name_is_removed_at_once() {
        let path = folder("named");
        let file = named_and_removed(&path).expect("creates");
        assert_eq!(std::fs::read_dir(&path).expect("a folder").count(), 0);
        file.write_all_at(b"abc", 0).expect("writes");
        std::fs::remove_dir(path).expect("is empty");
    }

    #[test]
    fn files_are_spread_over_the_folders() {
        let (there, gone) = (folder("there"), PathBuf::from("/nowhere/at/all"));
        let store = TempFolders::new(vec![there.clone(), gone]);
        let created: Vec<bool> = (0..4).map(|_| store.create().is_ok()).collect();
        assert_eq!(created, [true, false, true, false]);
        std::fs::remove_dir(there).expect("is empty");
    }

    #[test]
    fn errors_name_the_folder() {
        let store = TempFolders::new(vec![PathBuf::from("/nowhere/at/all")]);
        let error = store.create().err().expect("no such folder");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
        assert!(error.to_string().starts_with("/nowhere/at/all: "), "{error}");
    }

    #[test]
    fn readers_have_their_own_positions() {
        let file = TempFolders::new(vec![]).create().expect("creates");
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        bytes.chunks(777).for_each(|part| file.append(part).expect("appends"));
        let (mut one, mut other) = (file.open().expect("opens"), file.open().expect("opens"));
        let (mut a, mut b) = (vec![0; 5000], vec![0; 100_000]);
        one.read_exact(&mut a).expect("reads");
        other.read_exact(&mut b).expect("reads");
        assert!(a == bytes[..5000] && b == bytes);
        one.read_exact(&mut a).expect("reads");
        assert!(a == bytes[5000..10_000]);
    }

    #[test]
    fn the_limit_counts_the_bytes_of_all_files() {
        let store = TempFolders::new(vec![]).with_limit(Some(100));
        let (one, other) = (store.create().expect("creates"), store.create().expect("creates"));
        one.append(&[1; 60]).expect("fits");
        let error = other.append(&[2; 41]).expect_err("does not fit");
        assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        let text = error.to_string();
        assert!(["100 B", "60 B", "41 B", "disk"].iter().all(|part| text.contains(part)), "{text}");
        other.append(&[2; 40]).expect("fits");
        drop(one);
        other.append(&[3; 60]).expect("fits after the other file is gone");
        assert_eq!(content(other.as_ref()), [vec![2; 40], vec![3; 60]].concat());
    }

    /// `/dev/full` refuses all bytes.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_is_an_error_with_its_kind() {
        let file = OpenOptions::new().read(true).write(true).open("/dev/full").expect("Linux");
        let (folder, used) = (PathBuf::from("/full"), Arc::new(AtomicU64::new(0)));
        let (file, length) = (Arc::new(file), Mutex::new(0));
        let file = TempFile { file, folder, length, limit: u64::MAX, used: Arc::clone(&used) };
        let error = file.append(&[1; 10]).expect_err("full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().starts_with("/full: "), "{error}");
        drop(file);
        assert_eq!(used.load(Ordering::Relaxed), 0);
    }
}

//! A temporary file that gets its name when it is complete.
//!
//! On Linux, it has no name until then: if the process is killed, the system frees it. Where this is not
//! possible, and for a moment before it replaces another file, it has a temporary name. A process that is
//! killed leaves a file with such a name behind. The next process that writes to the folder removes it.
//!
//! A process locks its temporary file as long as it lives. So a file without a lock has no process any more.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Seek};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::NamedTempFile;

use crate::interrupt;

/// The end of every temporary name.
const ENDING: &str = ".strait.tmp";

/// The bytes of the target's name that are part of a temporary name.
const LONGEST_NAME: usize = 100;

/// The random characters of a temporary name.
const RANDOM: usize = 6;

/// A file is created before it is locked. So a file that is younger than this may get its lock soon.
const YOUNG: Duration = Duration::from_secs(60);

/// A temporary file in the folder where it will get its name.
pub(super) enum Temporary {
    Unnamed(File),
    Named(NamedTempFile),
}

impl Temporary {
    /// Creates a temporary file in the folder of `target`, without a name if the file system can do this.
    /// `permissions` are those of a file that it will replace.
    pub(super) fn new(target: &Path, permissions: Option<Permissions>) -> io::Result<Temporary> {
        let folder = folder_of(target);
        remove_leftovers(folder);
        let made = match unnamed(folder, permissions.clone()) {
            Ok(file) => Temporary::Unnamed(file),
            Err(why) => {
                log::debug!("{} holds no unnamed file: {why}", folder.display());
                Temporary::named(target, permissions)?
            }
        };
        // Where files cannot be locked, nobody removes leftovers.
        let _ = made.file().lock();
        Ok(made)
    }

    fn named(target: &Path, permissions: Option<Permissions>) -> io::Result<Temporary> {
        let replaced = permissions.clone();
        let make = || {
            let prefix = prefix(target);
            let mut builder = tempfile::Builder::new();
            builder.prefix(&prefix).suffix(ENDING).rand_bytes(RANDOM);
            if let Some(permissions) = permissions.or_else(ordinary) {
                builder.permissions(permissions);
            }
            builder.tempfile_in(folder_of(target))
        };
        let made = interrupt::make(make, NamedTempFile::path)?;
        // The process's umask has changed the permissions of the new file.
        let kept =
            replaced.map_or(Ok(()), |permissions| made.as_file().set_permissions(permissions));
        let made = Temporary::Named(made);
        match kept {
            Ok(()) => Ok(made),
            Err(error) => {
                made.remove();
                Err(error)
            }
        }
    }

    pub(super) fn file(&self) -> &File {
        match self {
            Temporary::Unnamed(file) => file,
            Temporary::Named(named) => named.as_file(),
        }
    }

    /// Gives the file its name. It replaces a file of this name only if `overwrite` says so.
    pub(super) fn persist(self, target: &Path, overwrite: bool) -> io::Result<()> {
        match self {
            Temporary::Unnamed(file) => match name(&file, target, overwrite) {
                Ok(()) => Ok(()),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
                // Some file systems can create unnamed files but cannot name them. Then the file is copied.
                Err(why) => {
                    log::info!(
                        "{} is copied, because it cannot be linked: {why}",
                        target.display()
                    );
                    copied(&file, target)?.persist(target, overwrite)
                }
            },
            Temporary::Named(named) => {
                let path = named.path().to_path_buf();
                let renamed = interrupt::forget_after(&path, || match overwrite {
                    true => named.persist(target),
                    false => named.persist_noclobber(target),
                });
                renamed.map_err(|error| error.error).map(drop)
            }
        }
    }

    /// Removes the file.
    pub(super) fn remove(self) {
        if let Temporary::Named(named) = self {
            let path = named.path().to_path_buf();
            interrupt::forget_after(&path, || drop(named));
        }
    }
}

/// Gives an unnamed file its name.
fn name(file: &File, target: &Path, overwrite: bool) -> io::Result<()> {
    if !overwrite {
        return link(file, target);
    }
    // A link cannot replace a file, but a rename can. The signal handler waits for both.
    interrupt::uninterrupted(|| {
        let named = linked(file, target)?;
        fs::rename(&named, target).inspect_err(|_| drop(fs::remove_file(&named)))
    })
}

/// Copies a file to a new one with a temporary name.
fn copied(file: &File, target: &Path) -> io::Result<Temporary> {
    let made = Temporary::named(target, Some(file.metadata()?.permissions()))?;
    let _ = made.file().lock();
    let copy = || {
        let (mut from, mut to) = (file, made.file());
        from.seek(io::SeekFrom::Start(0))?;
        io::copy(&mut from, &mut to)
    };
    match copy() {
        Ok(_) => Ok(made),
        Err(error) => {
            made.remove();
            Err(error)
        }
    }
}

/// Links the file under a temporary name in the folder of `target`, and returns the path.
fn linked(file: &File, target: &Path) -> io::Result<PathBuf> {
    let prefix = prefix(target);
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(ENDING).rand_bytes(RANDOM);
    // The builder tries other names if the first exists.
    let made = builder.make_in(folder_of(target), |path| link(file, path))?;
    made.into_temp_path().keep().map_err(|error| error.error)
}

fn prefix(target: &Path) -> String {
    // With the random part and the ending, the name must not become too long.
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    format!(".{}.", &name[..name.floor_char_boundary(LONGEST_NAME)])
}

pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

#[cfg(target_os = "linux")]
fn unnamed(folder: &Path, permissions: Option<Permissions>) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    let mut options = OpenOptions::new();
    let file =
        options.read(true).write(true).mode(0o666).custom_flags(libc::O_TMPFILE).open(folder)?;
    // The file gets its name through this path.
    fs::metadata(in_proc(&file))?;
    if let Some(permissions) = permissions {
        file.set_permissions(permissions)?;
    }
    Ok(file)
}

#[cfg(not(target_os = "linux"))]
fn unnamed(_: &Path, _: Option<Permissions>) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(target_os = "linux")]
fn in_proc(file: &File) -> PathBuf {
    use std::os::fd::AsRawFd;

    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// Gives an unnamed file a name. Fails if the name is taken.
#[cfg(target_os = "linux")]
fn link(file: &File, path: &Path) -> io::Result<()> {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    let c_string = |path: &Path| CString::new(path.as_os_str().as_bytes());
    let (from, to) = (c_string(&in_proc(file))?, c_string(path)?);
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both paths end with a zero byte and live until the call returns.
    match unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), follow) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(not(target_os = "linux"))]
fn link(_: &File, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Removes the temporary files of dead processes. It fails silently: a leftover harms nobody.
fn remove_leftovers(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| is_temporary(&entry.file_name())) {
        if is_left_over(&entry.path()) {
            log::info!("removing {}, which a dead process left", entry.path().display());
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_temporary(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let random = name.strip_suffix(ENDING).and_then(|name| name.rsplit_once('.'));
    random.is_some_and(|(start, random)| {
        let is_random = random.len() == RANDOM && random.bytes().all(|b| b.is_ascii_alphanumeric());
        is_random && start.len() > 1 && start.starts_with('.')
    })
}

/// Returns whether the temporary file has no process any more.
fn is_left_over(path: &Path) -> bool {
    let is_old = |found: fs::Metadata| {
        let age = found.modified().ok().and_then(|at| at.elapsed().ok());
        found.is_file() && age.is_some_and(|age| age > YOUNG)
    };
    // A link or a pipe is not opened. It is none of our files.
    fs::symlink_metadata(path).is_ok_and(is_old)
        && OpenOptions::new().write(true).open(path).is_ok_and(|file| file.try_lock().is_ok())
}

/// The permissions of new files, before the process's umask applies.
fn ordinary() -> Option<Permissions> {
    #[cfg(unix)]
    return Some(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    #[cfg(not(unix))]
    None
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::SystemTime;

    use super::*;

    type Make = fn(&Path) -> io::Result<Temporary>;

    /// Both kinds of temporary files.
    const KINDS: [Make; 2] =
        [|path| Temporary::new(path, None), |path| Temporary::named(path, None)];

    fn names(folder: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name();
        let names = fs::read_dir(folder).unwrap().map(name);
        names.map(|name| name.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_complete_file_gets_its_name() {
        for make in KINDS {
            let folder = tempfile::tempdir().unwrap();
            let target = folder.path().join("rows.csv");
            let temporary = make(&target).unwrap();
            temporary.file().write_all(b"new").unwrap();
            temporary.persist(&target, false).unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"new");
            assert_eq!(names(folder.path()), ["rows.csv"]);
        }
    }

    #[test]
    fn a_file_is_replaced_only_if_asked() {
        for make in KINDS {
            let folder = tempfile::tempdir().unwrap();
            let target = folder.path().join("rows.csv");
            fs::write(&target, "old").unwrap();
            let refused = make(&target).unwrap().persist(&target, false).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(fs::read(&target).unwrap(), b"old");
            let temporary = make(&target).unwrap();
            temporary.file().write_all(b"new").unwrap();
            temporary.persist(&target, true).unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"new");
            make(&target).unwrap().remove();
            assert_eq!(names(folder.path()), ["rows.csv"]);
        }
    }

    /// The target of the second rename is a folder, so the rename fails.
    #[test]
    fn a_rename_that_fails_leaves_no_temporary_name() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("rows");
        fs::create_dir(&target).unwrap();
        for make in KINDS {
            assert!(make(&target).unwrap().persist(&target, true).is_err());
            assert_eq!(names(folder.path()), ["rows"]);
        }
    }

    /// The system does not link a file whose last name was removed. So its bytes are copied.
    #[test]
    fn a_file_that_cannot_be_linked_is_copied() {
        for overwrite in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let (target, removed) = (folder.path().join("rows"), folder.path().join("removed"));
            let mut open = OpenOptions::new();
            let mut file = open.read(true).write(true).create_new(true).open(&removed).unwrap();
            file.write_all(b"new").unwrap();
            fs::remove_file(&removed).unwrap();
            assert!(name(&file, &target, overwrite).is_err());
            Temporary::Unnamed(file).persist(&target, overwrite).unwrap();
            assert_eq!(fs::read(&target).unwrap(), b"new");
            assert_eq!(names(folder.path()), ["rows"]);
        }
    }

    #[test]
    fn leftovers_of_dead_processes_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("rows.csv");
        let old = SystemTime::now() - 2 * YOUNG;
        let put = |name: &str, time| {
            let file = File::create(folder.path().join(name)).unwrap();
            file.set_modified(time).unwrap();
            file
        };
        drop(put(".dead.csv.abc123.strait.tmp", old));
        drop(put(".young.csv.abc123.strait.tmp", SystemTime::now()));
        drop(put(".other.tmp", old));
        drop(put(".mine.strait.tmp", old));
        let locked = put(".alive.csv.abc123.strait.tmp", old);
        locked.lock().unwrap();
        Temporary::new(&target, None).unwrap().remove();
        let mut left = names(folder.path());
        left.sort();
        let alive = [".alive.csv.abc123.strait.tmp", ".mine.strait.tmp", ".other.tmp"];
        assert_eq!(left[..3], alive);
        assert_eq!(left[3..], [".young.csv.abc123.strait.tmp"]);
    }
}

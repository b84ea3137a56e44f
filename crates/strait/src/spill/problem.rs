//! Errors of the disk, with advice that fits the cause.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use crate::error::{Error, bytes};

/// What a join does with a file.
#[derive(Debug, Clone, Copy)]
pub(super) enum Doing {
    Create,
    Write,
    Read,
}

impl Doing {
    fn text(self) -> &'static str {
        match self {
            Doing::Create => "create a file for spilled rows in",
            Doing::Write => "write spilled rows to",
            Doing::Read => "read spilled rows back from",
        }
    }

    /// Returns the error of a call of a store. The place is the folder that failed, if the store tells it.
    pub(super) fn failed(self, place: &str, error: &io::Error) -> Error {
        let inside = error.get_ref().and_then(|inner| inner.downcast_ref::<InFolder>());
        let (place, error) = match inside {
            Some(inside) => (inside.folder.display().to_string(), &inside.error),
            None => (place.to_string(), error),
        };
        let reason = format!("{error}{}", self.advice(error));
        Error::Spill { doing: self.text().to_string(), place, reason }
    }

    fn advice(self, error: &io::Error) -> &'static str {
        if error.get_ref().is_some_and(|inner| inner.is::<DiskLimit>()) {
            return ", or raise the memory limit";
        }
        if let Some(libc::EMFILE | libc::ENFILE) = error.raw_os_error() {
            return "; raise the system's limit on open files (ulimit -n), or raise the memory limit";
        }
        match error.kind() {
            ErrorKind::StorageFull => {
                "; free space there, or name another folder (temp dir), or raise the memory limit"
            }
            ErrorKind::QuotaExceeded => {
                "; raise the disk quota there, or name another folder (temp dir), or raise the memory limit"
            }
            ErrorKind::FileTooLarge => {
                "; raise the system's limit on the size of files (ulimit -f), or raise the memory limit"
            }
            ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                "; make the folder writable for this user, or name another folder (temp dir)"
            }
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                "; create the folder, or name another folder (temp dir)"
            }
            _ => "; check the disk, or name another folder (temp dir)",
        }
    }
}

/// Returns the error of a file that does not have the bytes that were written to it.
pub(super) fn damaged(place: &str, what: impl fmt::Display) -> Error {
    let reason = format!(
        "{what}; the disk may be defective, or another program changed the file; check the disk, or name another folder (temp dir)"
    );
    Error::Spill { doing: Doing::Read.text().to_string(), place: place.to_string(), reason }
}

/// An error together with the folder in which it occurred.
#[derive(Debug)]
pub(super) struct InFolder {
    folder: PathBuf,
    error: io::Error,
}

impl InFolder {
    /// Adds the folder to an error. The result has the same kind.
    pub(super) fn wrap(folder: &Path, error: io::Error) -> io::Error {
        io::Error::new(error.kind(), InFolder { folder: folder.to_path_buf(), error })
    }
}

impl fmt::Display for InFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.folder.display(), self.error)
    }
}

impl std::error::Error for InFolder {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The limit on the bytes on disk refused an append.
#[derive(Debug)]
pub(super) struct DiskLimit {
    pub(super) limit: u64,
    pub(super) used: u64,
    pub(super) needed: u64,
}

impl fmt::Display for DiskLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [limit, used, needed] = [self.limit, self.used, self.needed].map(bytes);
        write!(
            f,
            "the limit of {limit} on disk is too small: {used} are in use, and {needed} more are needed; raise the limit (option disk)"
        )
    }
}

impl std::error::Error for DiskLimit {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_fits_the_cause() {
        let full = io::Error::from_raw_os_error(libc::ENOSPC);
        assert_eq!(
            Doing::Write.failed("/tmp", &full).to_string(),
            "cannot write spilled rows to /tmp: No space left on device (os error 28); \
             free space there, or name another folder (temp dir), or raise the memory limit"
        );
        let limit = io::Error::new(
            ErrorKind::QuotaExceeded,
            DiskLimit { limit: 1 << 20, used: 1 << 19, needed: 1 << 20 },
        );
        let limit = InFolder::wrap(Path::new("/b"), limit);
        assert_eq!(
            Doing::Write.failed("/a, /b", &limit).to_string(),
            "cannot write spilled rows to /b: the limit of 1.0 MiB on disk is too small: \
             512.0 KiB are in use, and 1.0 MiB more are needed; raise the limit (option disk), or raise the memory limit"
        );
        let cases = [
            (libc::EACCES, "writable"),
            (libc::EROFS, "writable"),
            (libc::ENOENT, "create the folder"),
            (libc::EMFILE, "ulimit -n"),
            (libc::EFBIG, "ulimit -f"),
            (libc::EDQUOT, "quota"),
            (libc::EIO, "check the disk"),
        ];
        for (code, advice) in cases {
            let error = InFolder::wrap(Path::new("/data"), io::Error::from_raw_os_error(code));
            let text = Doing::Create.failed("x", &error).to_string();
            assert!(text.contains(" in /data: ") && text.contains(advice), "{text}");
        }
        let text = damaged("/tmp", "block 3 has a wrong checksum").to_string();
        assert!(text.contains("from /tmp: block 3 has a wrong checksum; the disk may"), "{text}");
    }
}

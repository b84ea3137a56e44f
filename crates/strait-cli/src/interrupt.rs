//! SIGINT and SIGTERM remove temporary files and end the process with status 130. SIGXFSZ is ignored: a write
//! beyond the limit on file sizes then fails, and the command reports this.
//!
//! Temporary files are created, renamed and forgotten only under one lock. The signal handler takes this lock
//! and never releases it. A file is therefore either complete under its own name, or removed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;

use crate::progress;

static TEMPORARIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// The exit status of an interrupted command: 128 + SIGINT.
const INTERRUPTED: i32 = 130;

fn temporaries() -> MutexGuard<'static, Vec<PathBuf>> {
    TEMPORARIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs the handler.
pub(crate) fn install() -> anyhow::Result<()> {
    // SAFETY: no code of this program runs when an ignored signal comes.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    ctrlc::set_handler(|| {
        let temporaries = temporaries();
        progress::clear();
        for path in temporaries.iter() {
            let removed = match path.is_dir() {
                true => std::fs::remove_dir_all(path),
                false => std::fs::remove_file(path),
            };
            match removed {
                // A file in a temporary folder was removed with the folder.
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    eprintln!("error: cannot remove {}: {error}", path.display());
                }
                _ => {}
            }
        }
        eprintln!("interrupted");
        std::process::exit(INTERRUPTED);
    })
    .context("cannot set a signal handler")
}

/// Creates a temporary file or folder, and remembers its path until [`settle`].
pub(crate) fn make<T>(
    make: impl FnOnce() -> io::Result<T>,
    path: impl FnOnce(&T) -> &Path,
) -> io::Result<T> {
    let mut temporaries = temporaries();
    let made = make()?;
    temporaries.push(path(&made).to_path_buf());
    Ok(made)
}

/// Calls `act`, which renames or removes the temporary at `path`, and forgets the path.
pub(crate) fn settle<T>(path: &Path, act: impl FnOnce() -> T) -> T {
    let mut temporaries = temporaries();
    let result = act();
    temporaries.retain(|p| p != path);
    result
}

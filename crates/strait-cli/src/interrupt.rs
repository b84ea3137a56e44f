//! SIGINT, SIGTERM and SIGHUP remove temporary files, abort uploads, and end the process with status 128 + the signal's number.
//! In the prompt of `strait sql`, SIGINT cancels the running statement instead.
//! SIGXFSZ is ignored: a write beyond the limit on file sizes then fails, and the command reports this.
//!
//! Temporary files are created, renamed and forgotten only under one lock. The signal handler takes this lock
//! and never releases it. A file is therefore either complete under its own name, or removed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::Context;

use crate::failure::say;
use crate::{progress, store};

static TEMPORARIES: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// The signal that ends the process.
static SIGNAL: AtomicI32 = AtomicI32::new(libc::SIGINT);

/// Stores the number of the signal, because the handler of `ctrlc` does not get it. Then calls that handler.
extern "C" fn note(signal: libc::c_int) {
    SIGNAL.store(signal, Ordering::Relaxed);
    // SAFETY: a signal handler may call `raise`. SIGINT has the handler that `install` set before.
    unsafe { libc::raise(libc::SIGINT) };
}

/// What SIGINT does instead of ending the process. The prompt of `strait sql` sets it.
static INSTEAD: Mutex<Option<Box<dyn Fn() + Send>>> = Mutex::new(None);

/// Lets SIGINT call `instead`, or end the process again if it is `None`. Other signals end the process in any case.
#[cfg_attr(not(feature = "sql"), allow(dead_code))]
pub(crate) fn replace(instead: Option<Box<dyn Fn() + Send>>) {
    *INSTEAD.lock().unwrap_or_else(PoisonError::into_inner) = instead;
}

/// Calls `make`, and makes sure that SIGINT has the same handler afterwards. Libraries for terminals take SIGINT.
#[cfg(feature = "sql")]
pub(crate) fn kept<T>(make: impl FnOnce() -> T) -> T {
    // SAFETY: a zeroed `sigaction` is a valid value. The calls read and write only this local variable and the handler.
    let mut handler: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: the same.
    let read = unsafe { libc::sigaction(libc::SIGINT, std::ptr::null(), &mut handler) };
    let made = make();
    if read == 0 {
        // SAFETY: the same. The handler was installed before.
        unsafe { libc::sigaction(libc::SIGINT, &handler, std::ptr::null_mut()) };
    }
    made
}

/// Calls what SIGINT does instead of ending the process. Returns whether there is such a thing.
fn replaced() -> bool {
    if SIGNAL.load(Ordering::Relaxed) != libc::SIGINT {
        return false;
    }
    let instead = INSTEAD.lock().unwrap_or_else(PoisonError::into_inner);
    instead.as_ref().map(|instead| instead()).is_some()
}

fn temporaries() -> MutexGuard<'static, Vec<PathBuf>> {
    TEMPORARIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs the handler.
pub(crate) fn install() -> anyhow::Result<()> {
    // SAFETY: no code of this program runs when an ignored signal comes.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    ctrlc::set_handler(|| {
        if replaced() {
            return;
        }
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
                    say(format_args!("error: cannot remove {}: {error}", path.display()));
                }
                _ => {}
            }
        }
        store::abort_uploads();
        say(format_args!("interrupted"));
        std::process::exit(128 + SIGNAL.load(Ordering::Relaxed));
    })
    .context("cannot set a signal handler")?;
    for signal in [libc::SIGTERM, libc::SIGHUP] {
        let handler = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
        // SAFETY: `note` calls only what a signal handler may call.
        unsafe { libc::signal(signal, handler) };
    }
    Ok(())
}

/// Creates a temporary file or folder, and remembers its path until [`forget_after`].
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
pub(crate) fn forget_after<T>(path: &Path, act: impl FnOnce() -> T) -> T {
    let mut temporaries = temporaries();
    let result = act();
    temporaries.retain(|p| p != path);
    result
}

/// Calls `act` while no signal can end the process. SIGKILL still can.
pub(crate) fn uninterrupted<T>(act: impl FnOnce() -> T) -> T {
    let _temporaries = temporaries();
    act()
}

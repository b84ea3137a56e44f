//! Writes text and bytes to stdout, which its reader may close.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};

/// Whether stdout was closed, or open for reading only, when the process began. Writes would seem to succeed: Rust's
/// runtime opens `/dev/null` in place of a closed stdout before `main`, and ignores that a descriptor cannot be written.
static WAS_CLOSED: AtomicBool = AtomicBool::new(false);

/// The linker puts this function among those that run before Rust's runtime.
#[cfg(target_os = "linux")]
#[used]
// SAFETY: the section holds pointers to functions of this type, and `note_closed` calls nothing that needs the
// runtime.
#[unsafe(link_section = ".init_array")]
static NOTE_CLOSED: extern "C" fn() = note_closed;

#[cfg(target_os = "linux")]
extern "C" fn note_closed() {
    // SAFETY: the call only reads the flags of a descriptor.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFL) };
    let is_closed = flags == -1 || flags & libc::O_ACCMODE == libc::O_RDONLY;
    WAS_CLOSED.store(is_closed, Ordering::Relaxed);
}

/// Fails if there is no stdout that can be written. `or` completes the advice.
pub(crate) fn check_stdout(or: &str) -> anyhow::Result<()> {
    if WAS_CLOSED.load(Ordering::Relaxed) {
        bail!("stdout is closed or open for reading only; redirect it to a file or a pipe{or}");
    }
    Ok(())
}

/// The reader closed stdout, as `head` does. The command stops without a message.
#[derive(Debug)]
pub(crate) struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stdout was closed")
    }
}

impl std::error::Error for Closed {}

/// Writes all of the text to stdout.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    check_stdout("")?;
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).or_else(failed_write)
}

/// Returns the error of a write to stdout. It is [`Closed`] if the reader went away.
pub(crate) fn failed_write(error: io::Error) -> anyhow::Result<()> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Err(Closed.into()),
        _ => Err(error).context("cannot write to stdout"),
    }
}

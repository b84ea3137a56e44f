//! Writes text and bytes to stdout, which its reader may close.

use std::fmt;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, bail};

/// Whether stdout was closed when the process began. Rust's runtime opens `/dev/null` in its place before `main`,
/// so writes would seem to succeed.
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
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    WAS_CLOSED.store(flags == -1, Ordering::Relaxed);
}

/// Fails if there is no stdout.
pub(crate) fn check_stdout() -> anyhow::Result<()> {
    if WAS_CLOSED.load(Ordering::Relaxed) {
        bail!("stdout is closed; redirect it to a file or a pipe, or write a file with -o");
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
    check_stdout()?;
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

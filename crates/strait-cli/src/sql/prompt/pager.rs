//! Shows a result. If it does not fit the screen, a pager shows it.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, Write};
use std::process::{Command, Stdio};

use console::Term;

use crate::output::print;

/// The pager if `PAGER` is not set.
const PAGER: &str = "less -S";

/// Shows a text, in a pager if it may be used and the text is longer than the screen.
pub(super) fn show(text: &str, may_page: bool) -> anyhow::Result<()> {
    let pager = may_page.then(|| chosen(env::var_os("PAGER"))).flatten();
    let terminal = Term::stdout();
    let height = terminal.is_term().then(|| terminal.size_checked()).flatten();
    let fits = height.is_none_or(|(rows, _)| text.lines().count() < usize::from(rows));
    match pager.filter(|_| !fits) {
        Some(pager) => page(&pager, text).or_else(|_| print(text)),
        None => print(text),
    }
}

/// Returns the command of the pager. `None` if the user wants no pager.
fn chosen(variable: Option<OsString>) -> Option<OsString> {
    match variable {
        None => Some(PAGER.into()),
        Some(pager) if pager.is_empty() || pager == OsStr::new("cat") => None,
        Some(pager) => Some(pager),
    }
}

/// Passes a text to a pager, and waits for its end. Fails if the pager cannot be started.
fn page(pager: &OsStr, text: &str) -> io::Result<()> {
    let mut command = Command::new("sh");
    command.arg("-c").arg(pager).stdin(Stdio::piped());
    let mut running = command.spawn()?;
    if let Some(mut input) = running.stdin.take() {
        match input.write_all(text.as_bytes()) {
            // The user may leave the pager early.
            Err(error) if error.kind() != ErrorKind::BrokenPipe => return Err(error),
            _ => {}
        }
    }
    const NOT_FOUND: i32 = 127;
    match running.wait()?.code() {
        Some(NOT_FOUND) => Err(io::Error::from(ErrorKind::NotFound)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_chooses_the_pager() {
        assert_eq!(chosen(None), Some(PAGER.into()));
        assert_eq!(chosen(Some("more".into())), Some("more".into()));
        assert_eq!(chosen(Some("".into())), None);
        assert_eq!(chosen(Some("cat".into())), None);
    }

    #[test]
    fn a_pager_gets_the_text_and_may_end_early() {
        let folder = tempfile::tempdir().unwrap();
        let copy = folder.path().join("copy");
        page(OsStr::new(&format!("cat > '{}'", copy.display())), "a\nb\n").unwrap();
        assert_eq!(std::fs::read_to_string(copy).unwrap(), "a\nb\n");
        page(OsStr::new("true"), &"a\n".repeat(1 << 20)).unwrap();
        assert!(page(OsStr::new("no-such-pager 2> /dev/null"), "a\n").is_err());
    }
}

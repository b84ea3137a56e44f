//! Turns an error into its message and exit status.

use std::fmt;
use std::process::ExitCode;

use arrow::error::ArrowError;

use crate::output::Closed;
use crate::progress;

/// Prints the error, if there is one, and chooses the exit status.
pub(crate) fn exit(result: anyhow::Result<()>) -> ExitCode {
    progress::clear();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of stdout has seen enough: `strait … | head` is not a failure.
        Err(error) if error.is::<Closed>() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", printable(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

/// Replaces control characters, which could affect a terminal. Messages contain column names from files.
fn printable(text: &str) -> String {
    let harmless = |c: char| if c.is_control() && c != '\n' { ' ' } else { c };
    text.chars().map(harmless).collect()
}

/// A failure whose message can be shown unchanged.
#[derive(Debug)]
pub(crate) struct Told(pub(crate) String);

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Told {}

impl From<Told> for ArrowError {
    fn from(told: Told) -> Self {
        ArrowError::ExternalError(Box::new(told))
    }
}

/// Replaces line ends and other control characters, and cuts a very long text. Messages quote the content of
/// damaged files.
pub(crate) fn one_line(text: &str) -> String {
    const LONGEST: usize = 400;
    let kept = &text[..text.floor_char_boundary(LONGEST)];
    let shown = kept.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.chain((kept.len() < text.len()).then_some('…')).collect()
}

/// Returns the root cause of a join's failure: the reader's own message if a reader failed, otherwise the
/// library's.
pub(crate) fn of_join(error: strait::Error) -> anyhow::Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(inner) = cause {
        if let Some(Told(message)) = inner.downcast_ref() {
            return Told(message.clone()).into();
        }
        if let Some(refused @ strait::Error::MemoryLimit { .. }) = inner.downcast_ref() {
            return Told(format!("{refused}; --memory sets it")).into();
        }
        // The library's error holds `ArrowError` in an `Arc`, which hides its source.
        cause = match inner.downcast_ref::<strait::Error>() {
            Some(strait::Error::Arrow { source, .. }) => Some(source.as_ref()),
            _ => match inner.downcast_ref::<ArrowError>() {
                Some(ArrowError::ExternalError(boxed)) => Some(boxed.as_ref()),
                _ => inner.source(),
            },
        };
    }
    error.into()
}

/// Same as [`of_join`], for errors from the join's reader.
pub(crate) fn of_stream(error: ArrowError) -> anyhow::Error {
    of_join(strait::Error::from_arrow(error))
}

#[cfg(test)]
mod tests {
    use super::{one_line, printable};

    #[test]
    fn messages_do_nothing_to_a_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc\u{7}"), "a [2Jb\nc ");
        assert_eq!(one_line("a\nb\u{1b}c"), "a b c");
        assert_eq!(one_line(&"é".repeat(1000)).chars().count(), 201);
    }
}

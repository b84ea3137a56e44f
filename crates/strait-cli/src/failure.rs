//! From an error to its message and exit status.

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
        // Whoever read stdout has seen enough: `strait … | head` is no failure.
        Err(error) if error.is::<Closed>() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", printable(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

/// The text without control characters that would do something to a terminal: column names of files
/// are part of messages.
fn printable(text: &str) -> String {
    let harmless = |c: char| if c.is_control() && c != '\n' { ' ' } else { c };
    text.chars().map(harmless).collect()
}

/// A failure with a message that is fit to be read as it is.
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

/// The text without line ends and other control characters, and without its end if it is very long:
/// messages quote what damaged files hold.
pub(crate) fn one_line(text: &str) -> String {
    const LONGEST: usize = 400;
    let kept = &text[..text.floor_char_boundary(LONGEST)];
    let shown = kept.chars().map(|c| if c.is_control() { ' ' } else { c });
    shown.chain((kept.len() < text.len()).then_some('…')).collect()
}

/// What a join's failure comes down to: the reader's own words where a reader failed, the library's
/// otherwise.
pub(crate) fn of_join(error: strait::Error) -> anyhow::Error {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(inner) = cause {
        if let Some(Told(message)) = inner.downcast_ref() {
            return Told(message.clone()).into();
        }
        // `ArrowError` is shared by an `Arc` in the library's error, which hides what it holds.
        cause = match inner.downcast_ref::<strait::Error>() {
            Some(strait::Error::Arrow { source, .. }) => Some(source.as_ref()),
            _ => match inner.downcast_ref::<ArrowError>() {
                Some(ArrowError::ExternalError(boxed)) => Some(boxed.as_ref()),
                _ => inner.source(),
            },
        };
    }
    match error {
        strait::Error::MemoryLimit { .. } => Told(format!("{error}; --memory sets it")).into(),
        other => other.into(),
    }
}

/// [`of_join`] for the errors that come out of the join's reader.
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

//! Turns an error into its message and exit status.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

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
            say_error(&error);
            ExitCode::FAILURE
        }
    }
}

/// Writes the message of an error to stderr.
pub(crate) fn say_error(error: &anyhow::Error) {
    let causes: Vec<String> = error.chain().map(message).collect();
    say(format_args!("error: {}", printable(&causes.join(": "))));
}

/// Writes a line to stderr. If stderr cannot be written, the line is lost, and the exit status stays the same.
pub(crate) fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Returns the message of one cause of an error.
fn message(cause: &(dyn std::error::Error + 'static)) -> String {
    match cause.downcast_ref::<strait::Error>() {
        Some(spill @ strait::Error::Spill { .. }) => with_flags(&spill.to_string()),
        error => match error.and_then(BeyondLimit::of) {
            Some(refused) => refused.to_string(),
            None => cause.to_string(),
        },
    }
}

/// Names the flags of the command instead of the settings of the library, in a message about files on disk.
pub(crate) fn with_flags(message: &str) -> String {
    message
        .replace("(temp dir)", "(--temp-dir)")
        .replace("(option disk)", "(--disk)")
        .replace("raise the memory limit", "raise --memory")
}

/// The smallest limit that is advised. The readers and the writer of a small join need about this much.
const LEAST_LIMIT: u64 = 32 << 20;

/// A request for memory that the limit refused. Its message advises another limit.
#[derive(Debug, Clone)]
struct BeyondLimit {
    what: String,
    needed: u64,
    used: u64,
    limit: u64,
    hint: String,
    /// The memory that the plan predicts for the join, without reading and writing, or an estimate from the sizes of
    /// the files; 0 if it is not known, or if the join may spill.
    predicted: u64,
    /// What else the user can do, as the end of a sentence.
    instead: &'static str,
}

impl BeyondLimit {
    fn of(error: &strait::Error) -> Option<BeyondLimit> {
        let strait::Error::MemoryLimit { what, needed, used, limit, hint } = error else {
            return None;
        };
        let (what, hint) = (what.clone(), hint.clone());
        let (needed, used, limit) = (*needed, *used, *limit);
        let (predicted, instead) = NOTED.get().copied().unwrap_or_default();
        Some(BeyondLimit { what, needed, used, limit, hint, predicted, instead })
    }

    /// Returns the limit to try.
    ///
    /// A limit that only just allows the refused request does not suffice: other threads need memory, too, and so do
    /// later stages of the join. The next run would fail again. So the advice is twice this limit, or 1.5 times the
    /// memory that the plan predicts, if that is more.
    fn advised(&self) -> u64 {
        let now = self.used.saturating_add(self.needed).max(self.limit);
        let whole = self.predicted.saturating_add(self.predicted / 2);
        now.saturating_mul(2).max(whole).max(LEAST_LIMIT)
    }
}

impl fmt::Display for BeyondLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BeyondLimit { what, hint, instead, .. } = self;
        let [limit, needed, used] = [self.limit, self.needed, self.used].map(strait::bytes);
        write!(
            f,
            "the memory limit of {limit} is too small: {what} needs {needed} more, and {used} are already in use; try \
             --memory {}{hint}{instead}",
            rounded_up(self.advised())
        )
    }
}

impl std::error::Error for BeyondLimit {}

/// The arguments of [`note_prediction`]. This is a static because readers turn a refused request into a text on their
/// own threads, which do not have the plan. A process runs at most one join with a memory limit.
static NOTED: OnceLock<(u64, &str)> = OnceLock::new();

/// Stores the predicted memory and a hint for later errors. The prediction is 0 if it is not known, or if the join may
/// spill.
pub(crate) fn note_prediction(bytes: u64, instead: &'static str) {
    let _ = NOTED.set((bytes, instead));
}

/// Returns the limit to try if memory of a statement does not suffice, as a value of `--memory`.
#[cfg(feature = "sql")]
pub(crate) fn larger_limit(limit: u64) -> String {
    rounded_up(limit.saturating_mul(2).max(LEAST_LIMIT))
}

/// Formats a size for `--memory`. Rounds up to whole MiB, or to whole GiB from 10 GiB on, but not beyond the largest size
/// that `--memory` accepts.
fn rounded_up(bytes: u64) -> String {
    match bytes.div_ceil(1 << 20) {
        mebibytes if mebibytes < 10 << 10 => format!("{mebibytes}MiB"),
        mebibytes => format!("{}GiB", mebibytes.div_ceil(1 << 10).min(u64::MAX >> 30)),
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
        let refused = inner.downcast_ref::<BeyondLimit>().cloned();
        if let Some(refused) = refused.or_else(|| BeyondLimit::of(inner.downcast_ref()?)) {
            return refused.into();
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
    use super::{BeyondLimit, message, of_join, one_line, printable, rounded_up};

    /// The advised limit is more than the refused request would have needed.
    #[test]
    fn a_limit_is_advised_with_room() {
        let advice = |limit: u64, used: u64, needed: u64, predicted: u64| {
            let (what, hint) = ("a page".to_string(), ", or read fewer columns".to_string());
            let refused = of_join(strait::Error::MemoryLimit { what, needed, used, limit, hint });
            let mut refused = refused.context("a.csv");
            refused.downcast_mut::<BeyondLimit>().expect("it is refused").predicted = predicted;
            let message = format!("{refused:#}");
            assert!(message.starts_with("a.csv: the memory limit of"), "{message}");
            let advice = message.split("try --memory ").nth(1).expect("it has an advice");
            advice.strip_suffix(", or read fewer columns").expect("it has a hint").to_string()
        };
        assert_eq!(advice(1 << 10, 0, 5, 0), "32MiB");
        assert_eq!(advice(64 << 20, 60 << 20, 8 << 20, 0), "136MiB");
        assert_eq!(advice(64 << 20, 60 << 20, 8 << 20, 1 << 30), "1536MiB");
        // A request may be refused although it would fit, so that others fit later.
        assert_eq!(advice(64 << 20, 0, 1, 0), "128MiB");
        let most = advice(1 << 40, u64::MAX, 1, u64::MAX);
        assert_eq!(crate::arguments::parse_size(&most), Ok(((1 << 34) - 1) << 30), "{most}");
        assert_eq!(rounded_up((9 << 30) + 1), "9217MiB");
        assert_eq!(rounded_up((10 << 30) + 1), "11GiB");
    }

    #[test]
    fn messages_about_files_on_disk_name_flags() {
        let (doing, place) = ("write rows to".to_string(), "/tmp".to_string());
        let reason =
            "free space, or name another folder (temp dir), or raise the memory limit".to_string();
        let error = strait::Error::Spill { doing, place, reason };
        assert_eq!(
            message(&error),
            "cannot write rows to /tmp: free space, or name another folder (--temp-dir), or raise --memory"
        );
    }

    #[test]
    fn messages_do_nothing_to_a_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc\u{7}"), "a [2Jb\nc ");
        assert_eq!(one_line("a\nb\u{1b}c"), "a b c");
        assert_eq!(one_line(&"é".repeat(1000)).chars().count(), 201);
    }
}

//! The errors of a join, with advice on what to try.

mod retry;

use std::fmt;

use arrow::datatypes::DataType;
use arrow::error::ArrowError;

pub(crate) use self::retry::too_long;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a join. Every message says what happened, to which column or limit, and what to try.
///
/// ```
/// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
/// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
/// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
/// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
/// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
/// # }
/// use strait::{Error, Join};
///
/// match Join::inner().on("it").run(ids(vec![1]), ids(vec![1])) {
///     Err(Error::UnknownColumn { name, nearest, .. }) => {
///         assert_eq!((name.as_str(), nearest.as_deref()), ("it", Some("id")));
///     }
///     _ => panic!("there is no such column"),
/// }
/// let refused = Join::inner().on("id").threads(0).run(ids(vec![1]), ids(vec![1]));
/// assert!(matches!(refused, Err(Error::InvalidOption { name: "threads", .. })));
/// ```
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The join has no key columns. It needs at least one pair.
    #[error("the join has no key columns; name at least one pair, as in Join::inner().on(\"id\")")]
    NoKeys,

    /// A table does not have a column of this name.
    #[error("{side} table has no column \"{name}\"{}", advice(.nearest, .available))]
    UnknownColumn {
        /// `left`, `right` or `output`.
        side: &'static str,
        /// The name that was asked for.
        name: String,
        /// The most similar name that exists, if any is similar.
        nearest: Option<String>,
        /// All names that exist.
        available: Vec<String>,
    },

    /// Several columns of one table have this name.
    #[error("{side} table has {count} columns named \"{name}\"; rename all but one of them")]
    AmbiguousColumn {
        /// `left`, `right` or `output`.
        side: &'static str,
        /// The name.
        name: String,
        /// The number of columns with this name.
        count: usize,
    },

    /// The two columns of a key pair have no common type that loses no information.
    #[error(
        "cannot compare left column \"{left}\" ({left_type}) with right column \"{right}\" ({right_type}) without losing information; cast one of them to the other's type first"
    )]
    KeyTypes {
        /// The left column.
        left: String,
        /// Its type.
        left_type: DataType,
        /// The right column.
        right: String,
        /// Its type.
        right_type: DataType,
    },

    /// A key column has a type that cannot be compared.
    #[error(
        "column \"{name}\" of the {side} table has type {data_type}, which cannot be a join key: {why}"
    )]
    KeyType {
        /// `left` or `right`.
        side: &'static str,
        /// The column.
        name: String,
        /// Its type.
        data_type: DataType,
        /// The reason.
        why: String,
    },

    /// Two output columns would have the same name.
    #[error(
        "two output columns would be named \"{name}\"; choose another suffix or mark column name, or select fewer columns"
    )]
    OutputCollision {
        /// The name.
        name: String,
    },

    /// The memory limit is too small.
    #[error(
        "the memory limit of {} is too small: {what} needs {} more, and {} are already in use; raise the limit to at least {}{hint}",
        bytes(*.limit), bytes(*.needed), bytes(*.used), at_least(.used.saturating_add(*.needed))
    )]
    MemoryLimit {
        /// The purpose of the memory.
        what: String,
        /// The bytes that were requested.
        needed: u64,
        /// The bytes that were already reserved.
        used: u64,
        /// The limit in bytes.
        limit: u64,
        /// What else to try.
        hint: String,
    },

    /// The operating system refused memory that the limit would have allowed.
    #[error("the system refused {} for {what}; set a memory limit below what the machine has free, or join smaller tables", bytes(*.needed))]
    OutOfMemory {
        /// The purpose of the memory.
        what: String,
        /// The bytes that were requested.
        needed: u64,
    },

    /// There is no GPU that the join can use.
    #[error("no GPU: {why}")]
    NoGpu {
        /// What the search looked for, what it found, and what to try.
        why: String,
    },

    /// NVRTC, the library that compiles the kernels, was not found.
    #[error(
        "NVRTC, which compiles the GPU's kernels, was not found{failure}; looked for {}; install the CUDA toolkit or run `pip install \"nvidia-cuda-nvrtc==13.*\"`, or set STRAIT_NVRTC to the path of libnvrtc.so", .looked.join(", ")
    )]
    NoCompiler {
        /// The places that were searched, in order.
        looked: Vec<String>,
        /// The system's error for the library that the user named, if any.
        failure: String,
    },

    /// A kernel did not compile.
    #[error("kernel \"{module}\" does not compile for {architecture} with NVRTC {version}: {log}")]
    KernelCompile {
        /// The kernel's file.
        module: String,
        /// The architecture, such as `sm_90`.
        architecture: String,
        /// The compiler's version.
        version: String,
        /// The compiler's messages.
        log: String,
    },

    /// A call to the CUDA driver failed.
    #[error("the GPU failed while {doing}: {name} ({detail}){hint}")]
    Cuda {
        /// What the join was doing.
        doing: String,
        /// The name of the error, such as `CUDA_ERROR_ILLEGAL_ADDRESS`.
        name: String,
        /// The driver's description of the error.
        detail: String,
        /// What to try.
        hint: String,
    },

    /// The GPU's memory, or the part of it that joins may use, is too small.
    #[error(
        "GPU memory does not suffice: {what} needs {}, and {} of the budget of {} are already in use; {hint}",
        bytes(*.needed), bytes(*.used), bytes(*.budget)
    )]
    DeviceMemory {
        /// The purpose of the memory.
        what: String,
        /// The bytes that were requested.
        needed: u64,
        /// The bytes that joins already held.
        used: u64,
        /// The bytes that joins may hold.
        budget: u64,
        /// What to try.
        hint: String,
    },

    /// A reader or a batch does not have the expected schema.
    #[error("a batch of the {side} table does not have the schema its reader announced: {detail}")]
    SchemaChanged {
        /// `left` or `right`.
        side: &'static str,
        /// What differs.
        detail: String,
    },

    /// Code of the caller panicked.
    #[error("{code} panicked: {message}")]
    CallerPanicked {
        /// The code that panicked.
        code: CallerCode,
        /// The message of the panic.
        message: String,
    },

    /// The residual filter returned another number of booleans than it got rows.
    #[error(
        "the residual filter returned {answers} booleans for a batch of {rows} rows; it must return one boolean per row"
    )]
    FilterLength {
        /// The number of rows that the filter got.
        rows: usize,
        /// The number of booleans that it returned.
        answers: usize,
    },

    /// The values of a key column cannot be joined.
    #[error("{problem}; {advice}")]
    KeyValues {
        /// What is wrong with the values.
        problem: String,
        /// What to try.
        advice: String,
    },

    /// The system did not start a thread.
    #[error(
        "could not start a thread: {why}; use fewer threads, or raise the system's limit on threads (ulimit -u)"
    )]
    Thread {
        /// The system's error.
        why: String,
    },

    /// The join was cancelled because its reader was dropped.
    #[error("the join was cancelled")]
    Cancelled,

    /// A table has more rows than a join on a GPU can address.
    #[error(
        "a table has {rows} rows, and this algorithm on a GPU can join at most {most}; use the algorithm multi-pass, or the CPU (device cpu)"
    )]
    TooManyRows {
        /// The number of rows of the table.
        rows: u64,
        /// The largest number of rows that the join accepts.
        most: u64,
    },

    /// An option has an invalid value, or contradicts another option.
    #[error("option {name}: {problem}; {advice}")]
    InvalidOption {
        /// The name of the option, such as `threads`.
        name: &'static str,
        /// What is wrong with its value.
        problem: String,
        /// What to try.
        advice: String,
    },

    /// The GPU, its driver or the operating system does not support what an option asks for.
    #[error("{problem}; {advice}")]
    Unsupported {
        /// What is not supported.
        problem: String,
        /// What to try.
        advice: String,
    },

    /// The join could not write rows that do not fit its memory limit, or could not read them back.
    #[error("cannot {doing} {place}: {reason}")]
    Spill {
        /// What the join was doing, such as `write spilled rows to`.
        doing: String,
        /// The folder or other place.
        place: String,
        /// The cause, and what to try.
        reason: String,
    },

    /// A bug in Strait.
    #[error("internal error: {what}; please report it")]
    Internal {
        /// What happened.
        what: String,
    },

    /// The join has to restart with another seed. Callers never see this error.
    #[doc(hidden)]
    #[error("the join's seed does not suit its keys; run the join again")]
    BadSeed,

    /// A reader or an Arrow kernel returned an error.
    #[error("{context}: {source}")]
    Arrow {
        /// What the join was doing.
        context: String,
        /// The error.
        source: std::sync::Arc<ArrowError>,
    },
}

impl Error {
    /// Returns a function that adds to an Arrow error what the join was doing. If the Arrow error wraps an
    /// [`Error`] of this crate, the function returns that error unchanged.
    pub(crate) fn arrow(context: impl Into<String>) -> impl FnOnce(ArrowError) -> Error {
        let context = context.into();
        move |error| match error {
            ArrowError::ExternalError(inner) => match inner.downcast::<Error>() {
                // Only the join itself may ask for another seed, not a reader or a filter.
                Ok(ours) if !matches!(*ours, Error::BadSeed) => *ours,
                Ok(ours) => Error::Arrow { context, source: external(ours) },
                Err(inner) => Error::Arrow { context, source: external(inner) },
            },
            source => Error::Arrow { context, source: std::sync::Arc::new(source) },
        }
    }

    /// Does the same for an error of the caller's sink, filter or reader. There is one difference: an error after
    /// which a join tries again stays inside the Arrow error. Otherwise, the join would treat it as its own error
    /// and try again. It would then lose rows, or call the caller's code again.
    pub(crate) fn of_caller(context: impl Into<String>) -> impl FnOnce(ArrowError) -> Error {
        let context = context.into();
        move |error| Error::arrow(context.clone())(error).by_caller(context)
    }

    /// Does what [`of_caller`](Error::of_caller) does for an error that is already an [`Error`].
    pub(crate) fn by_caller(self, context: String) -> Error {
        match self.may_be_retried() {
            true => Error::Arrow { context, source: external(Box::new(self)) },
            false => self,
        }
    }

    /// Returns an [`Error::InvalidOption`].
    pub(crate) fn invalid_option(
        name: &'static str,
        problem: impl Into<String>,
        advice: impl Into<String>,
    ) -> Error {
        Error::InvalidOption { name, problem: problem.into(), advice: advice.into() }
    }

    /// Returns an [`Error::Unsupported`].
    pub(crate) fn unsupported(problem: impl Into<String>, advice: impl Into<String>) -> Error {
        Error::Unsupported { problem: problem.into(), advice: advice.into() }
    }

    /// Returns an [`Error::KeyValues`].
    pub(crate) fn key_values(problem: impl Into<String>, advice: impl Into<String>) -> Error {
        Error::KeyValues { problem: problem.into(), advice: advice.into() }
    }

    /// Returns the error of a thread that the system did not start.
    pub(crate) fn thread(error: std::io::Error) -> Error {
        Error::Thread { why: error.to_string() }
    }

    /// Returns an [`Error::Internal`].
    pub(crate) fn internal(what: impl Into<String>) -> Error {
        Error::Internal { what: what.into() }
    }

    /// Converts an error of a [`JoinReader`](crate::JoinReader) back: returns the [`Error`] that the Arrow
    /// error wraps, or an [`Error::Arrow`].
    pub fn from_arrow(error: ArrowError) -> Error {
        Error::arrow("joining")(error)
    }
}

impl From<Error> for ArrowError {
    fn from(error: Error) -> Self {
        ArrowError::ExternalError(Box::new(error))
    }
}

/// Code of the caller that a join calls.
///
/// ```
/// # use arrow::array::{Int64Array, RecordBatch, RecordBatchIterator, RecordBatchReader};
/// # fn ids(ids: Vec<i64>) -> impl RecordBatchReader + Send + 'static {
/// #     let column = std::sync::Arc::new(Int64Array::from(ids)) as _;
/// #     let batch = RecordBatch::try_from_iter([("id", column)]).expect("one column");
/// #     RecordBatchIterator::new([Ok(batch.clone())], batch.schema())
/// # }
/// use strait::{CallerCode, Error, Filter, Join, Side};
///
/// let filter = Filter::new([(Side::Left, "id")], |_: &RecordBatch| panic!("a bug in the filter"));
/// match Join::inner().on("id").filter(filter).count(ids(vec![1]), ids(vec![1])) {
///     Err(Error::CallerPanicked { code, .. }) => assert_eq!(code, CallerCode::Filter),
///     _ => panic!("the filter panicked"),
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CallerCode {
    /// The reader of the left table.
    LeftReader,
    /// The reader of the right table.
    RightReader,
    /// The predicate of the residual [`Filter`](crate::Filter).
    Filter,
    /// The [`Sink`](crate::Sink) that receives the output.
    Sink,
}

impl fmt::Display for CallerCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CallerCode::LeftReader => "the reader of the left table",
            CallerCode::RightReader => "the reader of the right table",
            CallerCode::Filter => "the residual filter",
            CallerCode::Sink => "the sink of the output",
        })
    }
}

/// Wraps an error in an Arrow error.
fn external(error: Box<dyn std::error::Error + Send + Sync>) -> std::sync::Arc<ArrowError> {
    std::sync::Arc::new(ArrowError::ExternalError(error))
}

/// Returns `; did you mean "x"?`, or the list of existing names.
fn advice(nearest: &Option<String>, available: &[String]) -> String {
    match nearest {
        Some(name) => format!("; did you mean \"{name}\"?"),
        None if available.is_empty() => "; it has no columns".to_string(),
        None => {
            let shown: Vec<_> = available.iter().take(20).map(|n| format!("\"{n}\"")).collect();
            let more = available.len().saturating_sub(20);
            let tail = if more > 0 { format!(" and {more} more") } else { String::new() };
            format!("; it has {}{tail}", shown.join(", "))
        }
    }
}

/// Formats a size for people: `1.5 GiB`.
///
/// ```
/// assert_eq!(strait::bytes(1536), "1.5 KiB");
/// ```
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit < UNITS.len() - 1 {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Formats a size, rounded up. For a limit that must be at least `n`.
fn at_least(n: u64) -> String {
    if n < 1024 {
        return bytes(n);
    }
    // Rounding to one decimal digit goes up if almost half a tenth of the unit is added first.
    let unit = 1u64 << (n.ilog2() / 10 * 10);
    bytes(n.saturating_add(unit / 20 - 1))
}

/// Returns the name among `names` that is most similar to `wanted`, if one is similar enough to be a typing
/// error.
///
/// ```
/// let nearest = strait::nearest_name("custmer", ["customer", "orders"]);
/// assert_eq!(nearest.as_deref(), Some("customer"));
/// ```
pub fn nearest_name<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let wanted_lower = wanted.to_lowercase();
    names
        .into_iter()
        .map(|name| (edit_distance(&wanted_lower, &name.to_lowercase()), name))
        .filter(|&(distance, name)| distance <= 1 + wanted.len().max(name.len()) / 4)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, name)| name.to_string())
}

/// Computes the Levenshtein distance, row by row.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_typos_and_case() {
        let names = ["o_orderkey", "o_custkey", "o_totalprice"];
        assert_eq!(nearest_name("o_orderky", names).as_deref(), Some("o_orderkey"));
        assert_eq!(nearest_name("O_CUSTKEY", names).as_deref(), Some("o_custkey"));
        assert_eq!(nearest_name("zebra", names), None);
    }

    #[test]
    fn sizes_read_well() {
        assert_eq!(bytes(17), "17 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(8 << 30), "8.0 GiB");
        assert_eq!(at_least(101), "101 B");
        assert_eq!(at_least((10 << 20) + (128 << 10)), "10.2 MiB");
        assert_eq!(at_least(10 << 20), "10.0 MiB");
    }
}

//! What can go wrong in a join, and what to try about it.

use arrow::datatypes::DataType;
use arrow::error::ArrowError;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong. Every message says what happened, to which column or limit, and what to try.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A join needs at least one pair of key columns.
    #[error("the join has no key columns; name at least one pair, as in Join::inner().on(\"id\")")]
    NoKeys,

    /// A column was named that the side does not have.
    #[error("{side} table has no column \"{name}\"{}", advice(.nearest, .available))]
    UnknownColumn {
        /// `left`, `right` or `output`.
        side: &'static str,
        /// The name that was asked for.
        name: String,
        /// The most similar name there is, if one is similar.
        nearest: Option<String>,
        /// The names there are.
        available: Vec<String>,
    },

    /// A name is borne by several columns of one side.
    #[error("{side} table has {count} columns named \"{name}\"; rename all but one of them")]
    AmbiguousColumn {
        /// `left`, `right` or `output`.
        side: &'static str,
        /// The name.
        name: String,
        /// How many columns bear it.
        count: usize,
    },

    /// The two columns of a key pair have no type in common that loses nothing.
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

    /// A key column's type cannot be compared at all.
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
        /// Why not.
        why: String,
    },

    /// Two output columns would bear one name.
    #[error(
        "two output columns would be named \"{name}\"; choose another suffix or mark column name, or select fewer columns"
    )]
    OutputCollision {
        /// The name.
        name: String,
    },

    /// The memory limit does not suffice.
    #[error(
        "the memory limit of {} is too small: {what} needs {} more, {} are in use; raise the limit to at least {}{hint}",
        bytes(*.limit), bytes(*.needed), bytes(*.used), at_least(.used.saturating_add(*.needed))
    )]
    MemoryLimit {
        /// What the memory was for.
        what: String,
        /// How much it asked for, in bytes.
        needed: u64,
        /// How much was reserved already.
        used: u64,
        /// The limit.
        limit: u64,
        /// What else to try.
        hint: String,
    },

    /// The system refused memory that the limit would have allowed.
    #[error("the system refused {} for {what}; set a memory limit below what the machine has free, or join smaller tables", bytes(*.needed))]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// How much it asked for, in bytes.
        needed: u64,
    },

    /// There is no GPU to join on.
    #[error("no GPU: {why}")]
    NoGpu {
        /// What was looked for, what was found, and what to try.
        why: String,
    },

    /// The library that compiles kernels is missing.
    #[error(
        "NVRTC, which compiles the GPU's kernels, was not found{failure}; looked for {}; install the CUDA toolkit or run `pip install \"nvidia-cuda-nvrtc==13.*\"`, and let STRAIT_NVRTC name the libnvrtc.so that is to be used", .looked.join(", ")
    )]
    NoCompiler {
        /// Where it was looked for, in that order.
        looked: Vec<String>,
        /// What the system said of the one that was named, if one was.
        failure: String,
    },

    /// A kernel does not compile.
    #[error("kernel \"{module}\" does not compile for {architecture} with NVRTC {version}: {log}")]
    KernelCompile {
        /// The kernel's file.
        module: String,
        /// As in `sm_90`.
        architecture: String,
        /// The compiler's version.
        version: String,
        /// What the compiler said.
        log: String,
    },

    /// A call of the CUDA driver failed.
    #[error("the GPU failed while {doing}: {name} ({detail}){hint}")]
    Cuda {
        /// What was being done.
        doing: String,
        /// The error's name, as in `CUDA_ERROR_ILLEGAL_ADDRESS`.
        name: String,
        /// The driver's words for it.
        detail: String,
        /// What to try.
        hint: &'static str,
    },

    /// The GPU's memory, or what of it joins may use, does not suffice.
    #[error(
        "the GPU's memory does not suffice: {what} needs {}, {} of the budget of {} are in use; {hint}",
        bytes(*.needed), bytes(*.used), bytes(*.budget)
    )]
    DeviceMemory {
        /// What the memory was for.
        what: String,
        /// How much it asked for, in bytes.
        needed: u64,
        /// How much joins held already.
        used: u64,
        /// How much they may hold.
        budget: u64,
        /// What to try.
        hint: String,
    },

    /// A batch did not have the schema its reader announced.
    #[error("a batch of the {side} table does not have the schema its reader announced: {detail}")]
    SchemaChanged {
        /// `left` or `right`.
        side: &'static str,
        /// What differs.
        detail: String,
    },

    /// The caller's filter, progress callback or reader panicked, or a thread could not be made.
    #[error("{0}")]
    Worker(String),

    /// The join was cancelled: its reader was dropped, or the progress callback said so.
    #[error("the join was cancelled")]
    Cancelled,

    /// A table has more rows than a join on a GPU can address.
    #[error(
        "a table of {rows} rows is too long for that join on a GPU, which takes {most}; use --algorithm multi-pass, or --device cpu"
    )]
    TooManyRows {
        /// The rows of the table.
        rows: u64,
        /// The most rows that the join takes.
        most: u64,
    },

    /// A setting out of range.
    #[error("{0}")]
    Setting(String),

    /// The join has to begin again with another seed. Callers never see this one.
    #[doc(hidden)]
    #[error("the join's seed does not suit its keys; run the join again")]
    BadSeed,

    /// A reader or an Arrow kernel failed.
    #[error("{context}: {source}")]
    Arrow {
        /// What was being done.
        context: String,
        /// The failure.
        source: std::sync::Arc<ArrowError>,
    },
}

impl Error {
    /// Says what was being done when Arrow failed; an error of ours that came through Arrow stays
    /// itself.
    pub(crate) fn arrow(context: impl Into<String>) -> impl FnOnce(ArrowError) -> Error {
        let context = context.into();
        move |error| match error {
            ArrowError::ExternalError(inner) => match inner.downcast::<Error>() {
                Ok(ours) => *ours,
                Err(inner) => Error::Arrow {
                    context,
                    source: std::sync::Arc::new(ArrowError::ExternalError(inner)),
                },
            },
            source => Error::Arrow { context, source: std::sync::Arc::new(source) },
        }
    }

    /// Whether a join that failed with this on a device may succeed without one. The caller's own code,
    /// its data and its wish to stop would fail elsewhere too.
    pub(crate) fn concerns_device(&self) -> bool {
        !matches!(self, Error::Arrow { .. } | Error::SchemaChanged { .. } | Error::Cancelled)
    }

    /// The error of this crate that came through a reader as an Arrow error.
    pub fn from_arrow(error: ArrowError) -> Error {
        Error::arrow("joining")(error)
    }
}

impl From<Error> for ArrowError {
    fn from(error: Error) -> Self {
        ArrowError::ExternalError(Box::new(error))
    }
}

/// `; did you mean "x"?` or the list of what there is.
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

/// A size as people read it: `1.5 GiB`.
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

/// A size that `n` does not exceed, as people read it: what a limit has to be raised to.
fn at_least(n: u64) -> String {
    if n < 1024 {
        return bytes(n);
    }
    // Half a tenth of the unit it is shown in makes rounding go up.
    let unit = 1u64 << (n.ilog2() / 10 * 10);
    bytes(n.saturating_add(unit / 20 - 1))
}

/// The name among `names` that `wanted` was most likely meant to be.
pub fn nearest_name<'a>(wanted: &str, names: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let wanted_lower = wanted.to_lowercase();
    names
        .into_iter()
        .map(|name| (edit_distance(&wanted_lower, &name.to_lowercase()), name))
        .filter(|&(distance, name)| distance <= 1 + wanted.len().max(name.len()) / 4)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, name)| name.to_string())
}

/// Levenshtein's distance, by rows of its table.
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

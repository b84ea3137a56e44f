//! What a join may try after an error. All such decisions are in this file.
//!
//! | error | fewer rows at a time | the plan's escalation | the CPU instead of the GPU |
//! | --- | --- | --- | --- |
//! | `MemoryLimit` | yes | no | yes |
//! | `Arrow`, if offsets or dictionary keys overflowed | yes | no | no |
//! | `DeviceMemory`, `TooManyRows` | no | yes | yes |
//! | `Arrow`, `SchemaChanged`, `KeyValues` (the caller's data) | no | no | no |
//! | `CallerPanicked`, `FilterLength` (the caller's code) | no | no | no |
//! | `Spill` (the disk) | no | no | no |
//! | `Cancelled` | no | no | no |
//! | all others, such as `Cuda`, `NoCompiler`, `Unsupported`, `Internal` | no | no | yes |
//!
//! The caller's code and data would fail on the CPU as well. A filter that panicked must not be called again
//! with the same rows. An internal error on a device may be a bug of the device's code only, so the CPU may try.
//!
//! Each method says only whether a retry can help. The caller also checks whether a retry is allowed, and
//! whether the output written so far permits it.

use arrow::error::ArrowError;

use super::Error;

impl Error {
    /// Returns whether a batch of fewer rows may avoid this error.
    pub(crate) fn fewer_rows_may_help(&self) -> bool {
        match self {
            Error::MemoryLimit { .. } => true,
            Error::Arrow { source, .. } => too_long(source),
            _ => false,
        }
    }

    /// Returns whether the plan's escalation, which needs less GPU memory, may succeed after this error.
    pub(crate) fn escalation_may_help(&self) -> bool {
        matches!(self, Error::DeviceMemory { .. } | Error::TooManyRows { .. })
    }

    /// Returns whether a join may try again in any way after this error.
    pub(crate) fn may_be_retried(&self) -> bool {
        self.fewer_rows_may_help() || self.escalation_may_help() || self.cpu_may_help()
    }

    /// Adds the reason why the CPU cannot continue a join that failed on a device, and what to try.
    pub(crate) fn with_hint(mut self, why: &'static str) -> Error {
        match &mut self {
            Error::Cuda { hint, .. }
            | Error::DeviceMemory { hint, .. }
            | Error::MemoryLimit { hint, .. } => hint.push_str(why),
            _ => log::warn!("{self}{why}"),
        }
        self
    }

    /// Returns whether a join that failed with this error on a device may succeed on the CPU.
    pub(crate) fn cpu_may_help(&self) -> bool {
        !matches!(
            self,
            Error::Arrow { .. }
                | Error::SchemaChanged { .. }
                | Error::KeyValues { .. }
                | Error::CallerPanicked { .. }
                | Error::FilterLength { .. }
                | Error::Spill { .. }
                | Error::Cancelled
        )
    }
}

/// Returns whether fewer rows at a time would help, because offsets, run ends or dictionary keys overflowed.
pub(crate) fn too_long(error: &ArrowError) -> bool {
    match error {
        ArrowError::OffsetOverflowError(_) | ArrowError::DictionaryKeyOverflowError => true,
        // `MutableArrayData` of Arrow reports an overflow only by this message.
        ArrowError::InvalidArgumentError(message) => message.contains("offset overflow"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::error::CallerCode;

    /// The rows of the table above, with one example each.
    #[test]
    fn each_error_may_be_retried_as_the_table_says() {
        let arrow = |source| Error::Arrow { context: "x".to_string(), source: Arc::new(source) };
        let text = String::new;
        let panicked = Error::CallerPanicked { code: CallerCode::Filter, message: text() };
        let (needed, used, limit, budget) = (2, 1, 1, 1);
        let cases = [
            (
                Error::MemoryLimit { what: text(), needed, used, limit, hint: text() },
                [true, false, true],
            ),
            (arrow(ArrowError::DictionaryKeyOverflowError), [true, false, false]),
            (
                Error::DeviceMemory { what: text(), needed, used, budget, hint: text() },
                [false, true, true],
            ),
            (Error::TooManyRows { rows: 2, most: 1 }, [false, true, true]),
            (arrow(ArrowError::DivideByZero), [false; 3]),
            (Error::SchemaChanged { side: "left", detail: text() }, [false; 3]),
            (Error::KeyValues { problem: text(), advice: text() }, [false; 3]),
            (panicked, [false; 3]),
            (Error::FilterLength { rows: 2, answers: 1 }, [false; 3]),
            (Error::Cancelled, [false; 3]),
            (Error::internal("a bug"), [false, false, true]),
            (Error::unsupported("no such copy", "use another"), [false, false, true]),
        ];
        for (error, expected) in cases {
            let fewer = error.fewer_rows_may_help();
            assert_eq!(
                [fewer, error.escalation_may_help(), error.cpu_may_help()],
                expected,
                "{error:?}"
            );
        }
    }
}

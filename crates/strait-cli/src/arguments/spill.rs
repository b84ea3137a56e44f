//! The flags for temporary files: whether a join may write rows to disk, and where.

use std::path::PathBuf;

use clap::builder::TypedValueParser;
use clap::{Args, ValueHint};
use strait::{Algorithm, SpillCompression};

use super::device::named;
use super::size;

/// Temporary files of a join.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SpillArguments {
    /// A folder for the temporary files of a join that does not fit --memory; may be repeated
    /// [default: the system's folder for temporary files]
    ///
    /// If several folders are named, the files are spread over them. The files have no names, so no rows are left on
    /// disk if the command is killed. The folder must be on a disk: rows in a folder that is in memory (tmpfs) take
    /// memory that --memory does not count.
    #[arg(long = "temp-dir", value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) temp_dirs: Vec<PathBuf>,

    /// The most bytes that temporary files may have at once, as in 100GiB [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) disk: Option<u64>,

    /// How rows in temporary files are compressed: none, lz4 or zstd [default: none]. It pays if the disk is slow or
    /// full
    #[arg(long, value_name = "HOW", value_parser = compression())]
    pub(crate) spill_compression: Option<SpillCompression>,

    /// Does not write rows to temporary files. A join that does not fit --memory fails
    #[arg(long, conflicts_with_all = ["temp_dirs", "disk", "spill_compression"])]
    pub(crate) no_spill: bool,
}

impl SpillArguments {
    /// Whether any of the flags was given.
    pub(super) fn is_given(&self) -> bool {
        self.only_for_files().is_some() || self.no_spill
    }

    /// Returns the first given flag that has an effect only if rows are written to temporary files.
    fn only_for_files(&self) -> Option<&'static str> {
        let flags = [
            (!self.temp_dirs.is_empty(), "--temp-dir"),
            (self.disk.is_some(), "--disk"),
            (self.spill_compression.is_some(), "--spill-compression"),
        ];
        flags.into_iter().find_map(|(is_given, flag)| is_given.then_some(flag))
    }

    /// Refuses flags that would have no effect.
    pub(super) fn check(
        &self,
        memory: Option<u64>,
        algorithm: Option<Algorithm>,
    ) -> Result<(), String> {
        if self.no_spill && algorithm == Some(Algorithm::Spill) {
            return Err(
                "--no-spill contradicts --algorithm spill; leave out one of them".to_string()
            );
        }
        let Some(flag) = self.only_for_files() else { return Ok(()) };
        match algorithm {
            Some(Algorithm::Spill) => Ok(()),
            _ if memory.is_some() => Ok(()),
            _ => Err(format!(
                "{flag} has no effect without --memory: only a join with a memory limit writes rows to disk; give \
                 --memory SIZE or --algorithm spill, or leave out {flag}"
            )),
        }
    }
}

fn compression() -> impl TypedValueParser<Value = SpillCompression> {
    named(SpillCompression::ALL.to_vec(), SpillCompression::name)
}

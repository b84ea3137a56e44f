//! A temporary folder of a benchmark.

use std::path::{Path, PathBuf};

use anyhow::Context;
use tempfile::TempDir;

use crate::interrupt;

/// A temporary folder, which is removed however the command ends.
pub(super) struct Temporary(Option<TempDir>, PathBuf);

impl Temporary {
    /// Makes a folder in the system's folder for temporary files.
    pub(super) fn new() -> anyhow::Result<Temporary> {
        Temporary::within(&std::env::temp_dir())
    }

    /// Makes a folder in another folder.
    pub(super) fn within(parent: &Path) -> anyhow::Result<Temporary> {
        let make = || tempfile::Builder::new().prefix("strait-bench-").tempdir_in(parent);
        let folder = interrupt::make(make, TempDir::path)
            .with_context(|| format!("cannot make a folder in {}", parent.display()))?;
        let path = folder.path().to_path_buf();
        Ok(Temporary(Some(folder), path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.1
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let folder = self.0.take();
        interrupt::forget_after(&self.1, || drop(folder));
    }
}

//! Code that the studies of `strait bench beyond` share: a record of points, and their plot.

use std::path::PathBuf;

use anyhow::Context;
use strait_bench::link::Card;
use strait_bench::plot::Plot;
use strait_bench::workload::Tables;
use strait_bench::{HostPlacement, HostTables};

use super::super::record::{Record, write_whole};
use super::{Open, Setting, Shown};
use crate::arguments::BeyondArguments;

/// The default limit on GPU memory.
const GPU_MEMORY: u64 = 8 << 30;

/// A study that is being measured.
pub(super) struct Study<'a> {
    pub(super) card: Card,
    pub(super) setting: Setting,
    record: Record,
    /// Points that could not be measured.
    pub(super) failed: u64,
    open: &'a Open<'a>,
    name: &'static str,
    folder: PathBuf,
}

impl<'a> Study<'a> {
    /// Begins a study with this name, and a record with these columns after the common ones.
    pub(super) fn begin(
        name: &'static str,
        arguments: &BeyondArguments,
        card: Card,
        open: &'a Open<'a>,
        columns: &[&str],
    ) -> anyhow::Result<Study<'a>> {
        let folder = arguments.out.clone();
        std::fs::create_dir_all(&folder)
            .with_context(|| format!("cannot make folder {}", folder.display()))?;
        let setting = Setting::new(arguments, GPU_MEMORY);
        Ok(Study { card, setting, record: Record::new(columns)?, failed: 0, open, name, folder })
    }

    /// Copies the tables to pinned memory, and then drops them.
    pub(super) fn load(&self, tables: &mut Tables) -> anyhow::Result<HostTables> {
        strait::release_memory();
        let loaded = (self.open)(&self.setting, HostPlacement::Pinned, tables)?;
        tables.build.batches = Vec::new();
        tables.probe.batches = Vec::new();
        Ok(loaded)
    }

    /// Adds a point to the record.
    pub(super) fn add(&mut self, cells: impl IntoIterator<Item = String>) -> anyhow::Result<()> {
        self.record.add(cells)?;
        self.record.save(&self.folder, self.name)?;
        Ok(())
    }

    /// Writes the record and the plot. Returns where they are, and the number of failed points.
    pub(super) fn end(self, plot: &Plot) -> anyhow::Result<Shown> {
        let path = self.record.write(&self.folder, self.name)?;
        let image = self.folder.join(format!("{}.svg", self.name));
        write_whole(&image, plot.svg().as_bytes())?;
        Ok((format!("{}\n{}\n", path.display(), image.display()), self.failed))
    }
}

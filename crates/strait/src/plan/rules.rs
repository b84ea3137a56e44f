//! The rules by which the details of a plan follow from facts. There is one function per decision. The
//! predictions use the same functions. `gpu_rules.rs` has the decisions that only plans for a GPU have.

use crate::matches::Keep;
use crate::materialise::MAX_INLINED;
use crate::options::{Algorithm, Yields};
use crate::partition::RowId;
use crate::plan::Statistics;
use crate::plan::decision::{
    Details, HoldReason, Inlining, KeySource, ProbeSide, RowIdReason, TableKind,
};
use crate::plan::gpu_memory::reads_words;
use crate::plan::refine::{Facts, GpuFacts, Payload};
use crate::plan::shape::{TableShape, radix_passes, table_shape};
use crate::word::Width;

/// Inlined columns for a GPU may take this fraction (1/8) of the memory that a limit leaves.
const FOR_INLINED: u64 = 8;
/// The number of build rows that a plan assumes if nothing is known about them.
pub(super) const UNKNOWN_ROWS: u64 = 1 << 20;
/// Callers can state any number of rows. This limit keeps all estimates within 64 bits.
pub(super) const MAX_PLANNED_ROWS: u64 = 1 << 44;

/// An algorithm on a processor, with all facts that its details follow from.
pub(super) struct Case<'a> {
    pub(super) algorithm: Algorithm,
    /// The GPU that it runs on; `None` on the CPU.
    pub(super) gpu: Option<GpuFacts>,
    pub(super) build: &'a Statistics,
    pub(super) probe: &'a Statistics,
    pub(super) facts: &'a Facts,
    /// The threads of the join.
    pub(super) threads: usize,
    /// The memory limit of the join.
    pub(super) limit: Option<u64>,
}

impl Case<'_> {
    /// Decides everything.
    pub(super) fn details(&self) -> Details {
        let (table, radix_bits) = match self.on_gpu() {
            true => self.gpu_partitions(),
            false => self.partitions(),
        };
        Details {
            yields: self.yields(),
            word_bits: self.word().bits(),
            value_bits: self.value().bits(),
            build_keys: self.key_source(0),
            probe_keys: self.key_source(1),
            inlining: self.inlining(),
            probe_side: self.probe_side(),
            key_filter: self.key_filter(),
            table,
            table_in_gpu_memory: self.table_in_gpu_memory(),
            radix_bits,
            parts: self.parts(),
            part_rows: self.part_rows(),
            transfer: self.transfer(),
            chunk_rows: self.chunk_rows(),
            order: self.order(),
            over_the_link: self.over_the_link(),
        }
    }

    pub(super) fn on_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// Decides whether the probe side is streamed or held. It is streamed if the whole build side stays in
    /// one table or one set of partitions, and if the transfer method can stream.
    pub(super) fn probe_side(&self) -> ProbeSide {
        if let Some(reason) = self.facts.learned.held {
            return ProbeSide::Held(reason);
        }
        match self.why_held() {
            Some(reason) => ProbeSide::Held(reason),
            None if self.may_stream() => ProbeSide::Streamed,
            None => ProbeSide::Held(HoldReason::Transfer),
        }
    }

    /// Returns the reason why the algorithm needs the whole probe side before it joins; `None` if it can
    /// stream the probe side past a build side that stays where it is.
    fn why_held(&self) -> Option<HoldReason> {
        match self.algorithm {
            Algorithm::NoPartition | Algorithm::StreamedProbe => None,
            Algorithm::MultiPass if self.parts() == Some(1) => None,
            Algorithm::MultiPass => Some(HoldReason::ReadAgain),
            Algorithm::SortMerge => Some(HoldReason::Sorted),
            Algorithm::Radix | Algorithm::CpuPartitioned | Algorithm::Triton | Algorithm::Spill => {
                Some(HoldReason::Partitioned)
            }
        }
    }

    /// Decides whether the source of the probe side may get a filter over the build keys. It then may leave out probe
    /// rows without a match, so the output must not need them. Only one table over the whole build side can be
    /// such a filter.
    fn key_filter(&self) -> bool {
        let one_table = self.algorithm == Algorithm::NoPartition && !self.on_gpu();
        one_table
            && self.facts.learned.divided.is_none()
            && self.facts.roles.drops_unmatched_probe_rows()
    }

    /// Returns whether a side can be read while it is joined. On a GPU, only staging can transfer such a side:
    /// the other methods pin or map whole columns.
    pub(super) fn may_stream(&self) -> bool {
        !self.on_gpu() || self.facts.gpu_options.transfer.stages()
    }

    /// Decides what the algorithm has to find.
    pub(super) fn yields(&self) -> Yields {
        self.facts.roles.yields(self.all_match(), self.facts.count_only)
    }

    /// Returns whether equal key words always are a match.
    pub(super) fn all_match(&self) -> bool {
        // Sort-merge on the CPU ranks the keys that are not exact, so equal ranks are equal keys.
        let ranked = self.algorithm == Algorithm::SortMerge && !self.on_gpu();
        (self.facts.keys.exact || ranked) && !self.facts.filtered
    }

    /// Decides the width of key words.
    pub(super) fn word(&self) -> Width {
        let Facts { keys, overrides, learned, .. } = self.facts;
        if let Some(made) = &learned.made {
            return made.word;
        }
        // A GPU has row numbers and key words of the same width.
        let wide_rows = overrides.wide_rows || self.numbered_rows() > u64::from(u32::MAX);
        if self.on_gpu() && wide_rows { Width::W64 } else { keys.width }
    }

    /// Decides the width of values: row ids, or inlined columns.
    fn value(&self) -> Width {
        if self.on_gpu() {
            return self.word();
        }
        let wide_rows =
            self.facts.overrides.wide_rows || self.numbered_rows() > <u32 as RowId>::MAX_SIDE_ROWS;
        let wide = wide_rows || self.inlining().bytes() > size_of::<u32>();
        if wide { Width::W64 } else { Width::W32 }
    }

    /// Returns the number of rows that are numbered at once, as far as it is known: those of the longer side.
    /// The rows of a streamed side are numbered chunk by chunk.
    fn numbered_rows(&self) -> u64 {
        // This number decides the word width. The number of parts of multi-pass depends on that width, so
        // `parts()` would call itself. So a multi-pass probe side counts as held here.
        let probe = match self.algorithm != Algorithm::MultiPass
            && self.why_held().is_none()
            && self.may_stream()
        {
            true => 0,
            false => self.probe.rows.unwrap_or(0),
        };
        self.build.rows.unwrap_or(0).max(probe)
    }

    /// Decides where the key words of a side come from: 0 for the build side, 1 for the probe side.
    pub(super) fn key_source(&self, side: usize) -> KeySource {
        let Facts { keys, learned, gpu_options, .. } = self.facts;
        if let Some(made) = &learned.made {
            return made.key_sources[side];
        }
        if !self.on_gpu() {
            return if keys.plain[side] { KeySource::Column } else { KeySource::Computed };
        }
        // Workers can stage words directly from the column, unless the CPU also needs the words.
        let staged = gpu_options.transfer.stages()
            && !reads_words(self.algorithm)
            && self.word() == keys.width;
        let nulls = [self.build.nulls, self.probe.nulls][side];
        match (keys.in_column[side].filter(|_| staged), learned.null_keys[side]) {
            (None, _) | (Some(_), Some(true)) => KeySource::Computed,
            (Some(true), None) if nulls != Some(0) => KeySource::ColumnIfNoNulls,
            (Some(_), _) => KeySource::Column,
        }
    }

    /// Decides whether the build columns of the output are inlined.
    pub(super) fn inlining(&self) -> Inlining {
        if let Some(made) = &self.facts.learned.made {
            return made.inlining.clone();
        }
        if !self.on_gpu() && self.algorithm != Algorithm::NoPartition {
            return Inlining::RowIds(RowIdReason::Algorithm);
        }
        let Some(payload) = &self.facts.payload else { return Inlining::BuildSideUnknown };
        if let Some(reason) = self.why_row_ids(payload) {
            return Inlining::RowIds(reason);
        }
        let columns = payload.columns.iter().map(|column| column.name.clone()).collect();
        let bytes = payload.columns.iter().filter_map(|column| column.width).sum();
        let known = self.facts.learned.null_columns.is_some()
            || payload.columns.iter().all(|column| !column.nullable);
        match known {
            true => Inlining::Inlined { columns, bytes },
            false => Inlining::IfNoNulls { columns, bytes },
        }
    }

    /// Returns the reason why the build columns may not be inlined; `None` if they may, as far as the facts
    /// tell.
    fn why_row_ids(&self, payload: &Payload) -> Option<RowIdReason> {
        let Facts { keys, roles, filtered, learned, overrides, .. } = self.facts;
        if !keys.exact || *filtered {
            return Some(RowIdReason::MatchesAreVerified);
        }
        if roles.build != Keep::Nothing {
            return Some(RowIdReason::BuildRowsAreFlagged);
        }
        if !roles.pairs {
            return Some(RowIdReason::NoColumns);
        }
        if !payload.by_values {
            return Some(RowIdReason::RowNumbersAreReturned);
        }
        if payload.columns.is_empty() {
            return Some(RowIdReason::NoColumns);
        }
        let mut bytes = 0;
        for column in &payload.columns {
            match column.width {
                Some(width) => bytes += width,
                None => return Some(RowIdReason::NoFixedWidth(column.name.clone())),
            }
        }
        let word = self.word().bytes();
        let most = if self.on_gpu() { word as usize } else { MAX_INLINED };
        if bytes > most {
            return Some(RowIdReason::TooWide { bytes, most });
        }
        let null_columns = learned.null_columns.as_deref().unwrap_or_default();
        if let Some(null) = payload.columns.iter().find(|c| null_columns.contains(&c.column)) {
            return Some(RowIdReason::Nulls(null.name.clone()));
        }
        let needed = self.build.rows.unwrap_or(0).saturating_mul(word);
        if self.on_gpu() && learned.memory_left.is_some_and(|left| needed > left / FOR_INLINED) {
            return Some(RowIdReason::MemoryLimit);
        }
        overrides.row_ids.then_some(RowIdReason::Test)
    }

    /// Decides the kind of table and the radix bits of each pass on the CPU. Without the words of the build
    /// side, the bits are estimated.
    fn partitions(&self) -> (Option<TableKind>, Vec<u32>) {
        let Facts { keys, learned, machine, overrides, .. } = self.facts;
        let [word, value] = [self.word(), self.value()].map(|width| width.bytes() as usize);
        match self.algorithm {
            Algorithm::Radix => {
                let rows = self.build.rows.unwrap_or(UNKNOWN_ROWS).min(MAX_PLANNED_ROWS);
                (None, radix_passes(rows as usize, word, value, machine, *overrides).0)
            }
            Algorithm::NoPartition => {
                let cells = || self.build.cells().map(|cells| (0, cells - 1));
                let (rows, range) = match learned.words {
                    Some(words) => (words.matchable, words.range),
                    None => (self.matchable_rows(0), cells()),
                };
                // Each part of a table would need an array over all keys.
                let range = range.filter(|_| keys.may_be_dense && learned.divided.is_none());
                let shape = table_shape(rows as usize, range, word, value, machine, *overrides);
                let open = learned.words.is_none() && keys.may_be_dense;
                match shape {
                    TableShape::Hash { passes } if !open => (Some(TableKind::Hash), passes.0),
                    TableShape::Dense { min, max, passes } if !open => {
                        (Some(TableKind::Array { min, max }), passes.0)
                    }
                    TableShape::Hash { passes } | TableShape::Dense { passes, .. } => {
                        (Some(TableKind::ArrayIfDense), passes.0)
                    }
                }
            }
            _ => (None, Vec::new()),
        }
    }

    /// Returns the rows of a side that may match, as they were counted or by the statistics: 0 for the build
    /// side, 1 for the probe side. If the length of the probe side is unknown, it is assumed to be four times
    /// that of the build side.
    pub(super) fn matchable_rows(&self, side: usize) -> u64 {
        if let Some(rows) = self.facts.learned.matchable[side] {
            return rows;
        }
        let all = |side: &Statistics| side.rows.map(|rows| rows.min(MAX_PLANNED_ROWS));
        let build = all(self.build).unwrap_or(UNKNOWN_ROWS);
        let (rows, nulls) = match side {
            0 => (build, self.build.nulls),
            _ => (all(self.probe).unwrap_or(4 * build), self.probe.nulls),
        };
        rows.saturating_sub(nulls.unwrap_or(0))
    }
}

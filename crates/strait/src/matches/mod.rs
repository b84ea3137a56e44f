//! Join types: decides which candidate pairs are matches, and which rows the join type returns.
//!
//! At run time, only this module knows join types. The algorithms produce candidates. [`Matcher::resolve`]
//! verifies hashed keys on the real columns, applies the residual filter, flags the rows that have a match,
//! and writes the pairs if the join type returns them. After the last candidate of a side,
//! [`Matcher::emit_by_flag`] writes the rows of the side that the join type returns by their flag.
//!
//! | type, if the left table is the probe side | pairs | build rows by flag | probe rows by flag |
//! | --- | --- | --- | --- |
//! | inner | yes | | |
//! | left, right, full | yes | unmatched, if preserved | unmatched, if preserved |
//! | left semi, anti, mark | | | matched, unmatched, all with a mark |
//! | right semi, anti, mark | | matched, unmatched, all with a mark | |
//!
//! [`FlagPlan`] says who flags these rows.

mod flags;
mod ordered;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::array::{Array, RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;

use crate::context::Context;
use crate::error::{CallerCode, Error, Result};
use crate::input::Location;
use crate::key::{KeyPlan, KeyValues};
use crate::materialise::{ABSENT, Chosen, Columns, Picked};
use crate::memory::{Budget, Reservation};
use crate::options::{JoinType, Predicate, Side, Yields};
use crate::output::{Emitter, Rows, fewer};
use crate::partition::RowId;
use crate::schedule::{Workers, catch_panic};
use crate::table::Flags;
use crate::table::{Ask, Pairs};
pub(crate) use flags::{FlagPlan, FlaggedBy, FoundBy};
pub(crate) use ordered::KeyOrderWriter;

/// Which rows of a side are written by their flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keep {
    Nothing,
    Matched,
    Unmatched,
    /// All rows, with the flag as the mark column.
    Marked,
}

/// What a join type returns of the build side and the probe side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Roles {
    pub(crate) pairs: bool,
    pub(crate) build: Keep,
    pub(crate) probe: Keep,
}

impl Roles {
    /// Returns what has to be found. It is less than all pairs if every candidate is a match, and only the
    /// number of rows is needed, or only whether rows have a match.
    pub(crate) fn yields(self, all_match: bool, count_only: bool) -> Yields {
        let kept = [self.build, self.probe] != [Keep::Nothing; 2];
        match self.pairs {
            true if all_match && count_only && !kept => Yields::Count,
            false if all_match => Yields::Exists,
            _ => Yields::Pairs,
        }
    }

    /// Returns whether only columns of build rows are needed, and no flags.
    pub(crate) fn only_columns_of_build(self) -> bool {
        self.pairs && self.build == Keep::Nothing
    }

    /// Returns whether probe rows without a match have no effect on the output.
    pub(crate) fn drops_unmatched_probe_rows(self) -> bool {
        matches!(self.probe, Keep::Nothing | Keep::Matched)
    }

    pub(crate) fn of(join_type: JoinType, build_side: Side) -> Roles {
        let (pairs, left, right) = match join_type {
            JoinType::Inner => (true, Keep::Nothing, Keep::Nothing),
            JoinType::Left => (true, Keep::Unmatched, Keep::Nothing),
            JoinType::Right => (true, Keep::Nothing, Keep::Unmatched),
            JoinType::Full => (true, Keep::Unmatched, Keep::Unmatched),
            JoinType::LeftSemi => (false, Keep::Matched, Keep::Nothing),
            JoinType::RightSemi => (false, Keep::Nothing, Keep::Matched),
            JoinType::LeftAnti => (false, Keep::Unmatched, Keep::Nothing),
            JoinType::RightAnti => (false, Keep::Nothing, Keep::Unmatched),
            JoinType::LeftMark => (false, Keep::Marked, Keep::Nothing),
            JoinType::RightMark => (false, Keep::Nothing, Keep::Marked),
        };
        match build_side {
            Side::Left => Roles { pairs, build: left, probe: right },
            Side::Right => Roles { pairs, build: right, probe: left },
        }
    }
}

impl JoinType {
    /// Returns whether the output has the rows of a side that have no match. Mark joins return them, too.
    ///
    /// ```
    /// use strait::{JoinType, Side};
    ///
    /// assert!(JoinType::LeftAnti.returns_unmatched(Side::Left));
    /// assert!(!JoinType::LeftAnti.returns_unmatched(Side::Right));
    /// ```
    pub fn returns_unmatched(self, side: Side) -> bool {
        matches!(Roles::of(self, side).build, Keep::Unmatched | Keep::Marked)
    }

    /// Returns whether the output has each row of a side at least once.
    ///
    /// ```
    /// use strait::{JoinType, Side};
    ///
    /// assert!(JoinType::Left.returns_all(Side::Left));
    /// assert!(!JoinType::LeftAnti.returns_all(Side::Left));
    /// ```
    pub fn returns_all(self, side: Side) -> bool {
        let roles = Roles::of(self, side);
        roles.build == Keep::Marked || (roles.pairs && roles.build == Keep::Unmatched)
    }
}

/// A residual filter whose columns are resolved.
#[derive(Clone)]
pub(crate) struct BoundFilter {
    pub(crate) columns: Vec<(Side, usize)>,
    pub(crate) schema: SchemaRef,
    pub(crate) predicate: Predicate,
}

/// One side, or a morsel of it, for matching.
pub(crate) struct Unit {
    pub(crate) side: Side,
    pub(crate) columns: Columns,
    pub(crate) rows: usize,
    /// The key columns, if candidates must be verified.
    values: Option<KeyValues>,
    /// The flags of rows that have a match, if the join type needs them.
    pub(crate) flags: Option<Flags>,
}

impl Unit {
    /// Copies its key columns into a layout for verification at random rows.
    pub(crate) fn flatten_keys(&mut self, cx: &Context<'_>) -> Result<()> {
        match &mut self.values {
            Some(values) => values.flatten(cx, self.rows),
            None => Ok(()),
        }
    }

    /// Returns the positions of some rows in the unit's key columns.
    fn places(&self, values: &KeyValues, rows: &[u64]) -> Vec<Location> {
        let place = |&row: &u64| Location { batch: 0, row: row as u32 };
        match values.flat() {
            true => rows.iter().map(place).collect(),
            false => self.columns.locate_all(rows),
        }
    }
}

/// Decides which candidates are matches.
pub(crate) struct Matcher<'a> {
    pub(crate) roles: Roles,
    pub(crate) keys: &'a KeyPlan,
    /// Whether the key words represent keys exactly, so that no candidate must be verified.
    pub(crate) exact: bool,
    pub(crate) filter: Option<&'a BoundFilter>,
    pub(crate) workers: &'a Workers,
    pub(crate) budget: &'a Arc<Budget>,
    /// What has to be found.
    pub(crate) yields: Yields,
    /// How the candidates are found.
    pub(crate) found: FoundBy,
    pub(crate) candidates: &'a AtomicU64,
}

impl Matcher<'_> {
    /// Creates a unit of a side. It has flags if somebody sets them: see [`Matcher::flags`].
    pub(crate) fn unit(
        &self,
        side: Side,
        columns: Columns,
        batches: &[RecordBatch],
        flagged: Option<FlaggedBy>,
    ) -> Result<Unit> {
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        let values = match self.exact {
            true => None,
            false => Some(self.keys.values(side, batches, (self.workers, self.budget))?),
        };
        let flags = match flagged {
            None => None,
            Some(_) => Some(Flags::new(rows, self.budget)?),
        };
        Ok(Unit { side, columns, rows, values, flags })
    }

    /// Returns whether every candidate is a match.
    pub(crate) fn all_match(&self) -> bool {
        self.exact && self.filter.is_none()
    }

    /// Returns who flags the rows that have a match.
    pub(crate) fn flags(&self) -> FlagPlan {
        FlagPlan::of(self.roles, self.yields, self.all_match(), self.found)
    }

    /// Returns what a lookup in a table has to find, at most `cap` pairs at a time.
    pub(crate) fn ask<'u>(&self, build: &'u Unit, cap: usize) -> Ask<'u> {
        let by_search = self.flags().build == Some(FlaggedBy::Search);
        Ask { yields: self.yields, flags: build.flags.as_ref().filter(|_| by_search), cap }
    }

    /// Resolves candidates: keeps the matches, flags their rows if that is the matcher's task, and writes the
    /// pairs if the join type returns them. Leaves `pairs` empty.
    pub(crate) fn resolve(
        &self,
        build: &Unit,
        probe: &Unit,
        pairs: &mut Pairs<u64>,
        emitter: &mut Emitter<'_>,
    ) -> Result<()> {
        self.note(pairs, emitter);
        if pairs.len() == 0 {
            return Ok(());
        }
        self.verify(build, probe, pairs)?;
        self.apply_filter([build, probe], pairs, emitter)?;
        if self.flags().build == Some(FlaggedBy::Matcher)
            && let Some(flags) = &build.flags
        {
            pairs.build.iter().for_each(|&row| flags.set(row));
        }
        let rows = std::mem::take(&mut pairs.build);
        pairs.build = self.write(build, probe, Chosen::Ids(rows), pairs, emitter)?.into_ids();
        pairs.clear();
        Ok(())
    }

    /// Resolves pairs of inlined values and probe rows. All of them are matches. Leaves `pairs` empty.
    pub(crate) fn resolve_inlined<I: RowId>(
        &self,
        build: &Unit,
        probe: &Unit,
        pairs: &mut Pairs<I>,
        emitter: &mut Emitter<'_>,
    ) -> Result<()> {
        debug_assert!(self.all_match() && self.roles.only_columns_of_build());
        self.note(pairs, emitter);
        let values = I::into_values(std::mem::take(&mut pairs.build));
        if let Chosen::Values(values) =
            self.write(build, probe, Chosen::Values(values), pairs, emitter)?
        {
            pairs.build = I::of_values(values);
        }
        pairs.clear();
        Ok(())
    }

    /// Counts candidates.
    fn note<B>(&self, pairs: &mut Pairs<B>, emitter: &mut Emitter<'_>) {
        self.candidates.fetch_add(pairs.len() as u64 + pairs.counted, Ordering::Relaxed);
        emitter.count(std::mem::take(&mut pairs.counted));
    }

    /// Flags the probe rows of matches if that is the matcher's task. Writes them with their build rows if the
    /// join type returns pairs. Returns the build rows, so that their memory can be used again.
    fn write<B>(
        &self,
        build: &Unit,
        probe: &Unit,
        build_rows: Chosen,
        pairs: &mut Pairs<B>,
        emitter: &mut Emitter<'_>,
    ) -> Result<Chosen> {
        if self.flags().probe == Some(FlaggedBy::Matcher)
            && let Some(flags) = &probe.flags
        {
            match pairs.run {
                Some(first) => (first..).take(build_rows.len()).for_each(|row| flags.set(row)),
                None => pairs.probe.iter().for_each(|&row| flags.set(row)),
            }
        }
        if !self.roles.pairs || build_rows.len() == 0 {
            return Ok(build_rows);
        }
        let probe_rows = match pairs.run {
            Some(first) => Chosen::Run(first..first + build_rows.len() as u64),
            None => Chosen::Ids(std::mem::take(&mut pairs.probe)),
        };
        let (left, right) = match build.side {
            Side::Left => (build_rows, probe_rows),
            Side::Right => (probe_rows, build_rows),
        };
        let rows = emitter.rows(sides(build, probe), Rows { left, right, marks: None })?;
        let (build_rows, probe_rows) = match build.side {
            Side::Left => (rows.left, rows.right),
            Side::Right => (rows.right, rows.left),
        };
        if let Chosen::Ids(ids) = probe_rows {
            pairs.probe = ids;
        }
        Ok(build_rows)
    }

    /// Removes pairs with equal words but different keys.
    fn verify(&self, build: &Unit, probe: &Unit, pairs: &mut Pairs<u64>) -> Result<()> {
        let (Some(build_values), Some(probe_values)) = (&build.values, &probe.values) else {
            return Ok(());
        };
        let build_at = build.places(build_values, &pairs.build);
        let at: [Vec<Location>; 2] = [build_at, probe.columns.locate_all(&pairs.probe_rows())];
        let mut keep = vec![true; pairs.len()];
        self.keys.equal(build_values, &at[0], probe_values, &at[1], &mut keep)?;
        retain(pairs, &keep);
        Ok(())
    }

    /// Returns whether `rows[i]` and `others[i]` of one side have equal keys, for all `i`.
    pub(crate) fn same_keys(&self, unit: &Unit, rows: &[u64], others: &[u64]) -> Result<bool> {
        let Some(values) = &unit.values else { return Ok(true) };
        let [rows, others] = [rows, others].map(|rows| unit.places(values, rows));
        let mut same = vec![true; rows.len()];
        self.keys.equal(values, &rows, values, &others, &mut same)?;
        Ok(same.iter().all(|&same| same))
    }

    /// Removes pairs for which the residual filter is not true.
    fn apply_filter(
        &self,
        units: [&Unit; 2],
        pairs: &mut Pairs<u64>,
        emitter: &mut Emitter<'_>,
    ) -> Result<()> {
        if let Some(passed) = self.filtered(units, pairs, emitter)? {
            retain(pairs, &passed);
        }
        Ok(())
    }

    /// Returns which candidates with equal keys are matches; `None` if all are. Counts the candidates.
    pub(crate) fn judge(
        &self,
        units: [&Unit; 2],
        pairs: &Pairs<u64>,
        emitter: &mut Emitter<'_>,
    ) -> Result<Option<Vec<bool>>> {
        self.candidates.fetch_add(pairs.len() as u64, Ordering::Relaxed);
        self.filtered(units, pairs, emitter)
    }

    fn filtered(
        &self,
        units: [&Unit; 2],
        pairs: &Pairs<u64>,
        emitter: &mut Emitter<'_>,
    ) -> Result<Option<Vec<bool>>> {
        let Some(filter) = self.filter else { return Ok(None) };
        if pairs.len() == 0 {
            return Ok(None);
        }
        let probe_rows = match pairs.run {
            Some(first) => Chosen::Run(first..first + pairs.len() as u64),
            None => Chosen::Ids(pairs.probe.clone()),
        };
        let mut passed = Vec::with_capacity(pairs.len());
        let rows = [Chosen::Ids(pairs.build.clone()), probe_rows];
        self.evaluate((filter, units), rows, emitter, &mut passed)?;
        Ok(Some(passed))
    }

    /// Evaluates the filter for pairs of rows, and appends its results to `passed`. Splits the pairs into
    /// halves if their columns exceed memory or the offsets of a type.
    fn evaluate(
        &self,
        (filter, units): (&BoundFilter, [&Unit; 2]),
        rows: [Chosen; 2],
        emitter: &mut Emitter<'_>,
        passed: &mut Vec<bool>,
    ) -> Result<()> {
        let len = rows[0].len();
        let [build, probe] = rows;
        let picked = [units[0].columns.pick(build, false), units[1].columns.pick(probe, false)];
        let gathered =
            emitter.patiently(fewer(len), || self.filter_batch(filter, units, &picked, len));
        let (batch, _reserved) = match gathered {
            Ok(batch) => batch,
            Err(error) if len > 1 && error.fewer_rows_may_help() => {
                for range in [0..len / 2, len / 2..len] {
                    let part = |i: usize| picked[i].chosen.part(range.clone());
                    self.evaluate((filter, units), [part(0), part(1)], emitter, passed)?;
                }
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let answers = catch_panic(|| (filter.predicate)(&batch))
            .map_err(|message| Error::CallerPanicked { code: CallerCode::Filter, message })?
            .map_err(Error::of_caller("the residual filter"))?;
        if answers.len() != len {
            return Err(Error::FilterLength { rows: len, answers: answers.len() });
        }
        passed.extend((0..len).map(|i| answers.is_valid(i) && answers.value(i)));
        Ok(())
    }

    /// Gathers the filter's columns for pairs of rows. Dropping the reservation releases their memory.
    fn filter_batch(
        &self,
        filter: &BoundFilter,
        units: [&Unit; 2],
        picked: &[Picked; 2],
        len: usize,
    ) -> Result<(RecordBatch, Reservation)> {
        let from = |side: Side| usize::from(side != units[0].side);
        let columns = || filter.columns.iter().map(|&(side, column)| (from(side), column));
        let bytes = columns().map(|(i, column)| units[i].columns.bytes(column, &picked[i])).sum();
        let reserved = self.budget.reserve(bytes, "the columns of the residual filter")?;
        let gathered = columns().map(|(i, column)| units[i].columns.gather(column, &picked[i]));
        let failed = Error::arrow("gathering the filter's columns");
        let options = RecordBatchOptions::new().with_row_count(Some(len));
        let batch = gathered.collect::<Result<Vec<_>, _>>().and_then(|columns| {
            RecordBatch::try_new_with_options(Arc::clone(&filter.schema), columns, &options)
        });
        Ok((batch.map_err(failed)?, reserved))
    }

    /// Writes the unit's rows in `range` that the join type returns by their flag: matched rows, unmatched rows, or
    /// all rows with a mark. Writes at most `cap` rows at once.
    pub(crate) fn emit_by_flag(
        &self,
        unit: &Unit,
        keep: Keep,
        (range, cap): (Range<usize>, usize),
        emitter: &mut Emitter<'_>,
    ) -> Result<()> {
        let rows = range.start as u64..range.end as u64;
        self.emit_some_by_flag(unit, keep, (rows, cap), emitter)
    }

    /// Does the same for some rows of the unit.
    pub(crate) fn emit_some_by_flag(
        &self,
        unit: &Unit,
        keep: Keep,
        (rows, cap): (impl Iterator<Item = u64>, usize),
        emitter: &mut Emitter<'_>,
    ) -> Result<()> {
        let Some(flags) = &unit.flags else { return Ok(()) };
        let wanted = |&row: &u64| match keep {
            Keep::Nothing => false,
            Keep::Matched => flags.get(row),
            Keep::Unmatched => !flags.get(row),
            Keep::Marked => true,
        };
        let size = emitter.batch_size().min(cap);
        let mut rows = rows.filter(wanted).peekable();
        while rows.peek().is_some() {
            let some: Vec<u64> = rows.by_ref().take(size).collect();
            self.emit_alone(unit, some, keep == Keep::Marked, emitter)?;
        }
        Ok(())
    }

    /// Writes rows of one side, with absent rows on the other side.
    pub(crate) fn emit_alone(
        &self,
        unit: &Unit,
        rows: Vec<u64>,
        marked: bool,
        emitter: &mut Emitter<'_>,
    ) -> Result<()> {
        let marks = match &unit.flags {
            Some(flags) if marked => Some(rows.iter().map(|&row| flags.get(row)).collect()),
            _ => None,
        };
        let (absent, rows) = (Chosen::Ids(vec![ABSENT; rows.len()]), Chosen::Ids(rows));
        let (rows, columns) = match unit.side {
            Side::Left => (Rows { left: rows, right: absent, marks }, [Some(&unit.columns), None]),
            Side::Right => (Rows { left: absent, right: rows, marks }, [None, Some(&unit.columns)]),
        };
        emitter.rows(columns, rows)?;
        Ok(())
    }
}

/// Returns the columns of both units, left first.
pub(crate) fn sides<'u>(build: &'u Unit, probe: &'u Unit) -> [Option<&'u Columns>; 2] {
    match build.side {
        Side::Left => [Some(&build.columns), Some(&probe.columns)],
        Side::Right => [Some(&probe.columns), Some(&build.columns)],
    }
}

/// Removes the pairs whose `keep` is false. The order stays.
fn retain(pairs: &mut Pairs<u64>, keep: &[bool]) {
    // In most cases all pairs are kept. Then a run stays a run.
    if keep.iter().all(|&keep| keep) {
        return;
    }
    pairs.spell_out();
    let mut kept = 0;
    for (i, &keep) in keep.iter().enumerate() {
        // The values are always written, but not always counted. So there is no branch to mispredict.
        pairs.build[kept] = pairs.build[i];
        pairs.probe[kept] = pairs.probe[i];
        kept += usize::from(keep);
    }
    pairs.build.truncate(kept);
    pairs.probe.truncate(kept);
}

//! The dynamic filter of a join: which rows of the probe side may have a match.
//!
//! While the build side is read, the tasks look at its keys. At the end of the build side, the filter is published to
//! the scans of the probe side. It has the range of each key. If there is one key column and the build side has few
//! rows, it also has all keys.
//!
//! If partitions run separately, one filter holds for all of them: a scan of the probe side reads rows of all partitions.
//! So the filter is published when the build side of the last partition has ended. A run whose build side has ended
//! waits with its probe side until the build sides of the other runs have ended, but only of runs that have begun.
//! Perhaps nobody asks for the partitions of the others before this partition has ended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use arrow::array::{Array, ArrayRef};
use arrow::compute::concat;
use arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{NullEquality, Result, ScalarValue};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, DynamicFilterPhysicalExpr, InListExpr, IsNullExpr, lit,
};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion_functions_aggregate_common::min_max::{max_batch, min_batch};

use super::lock;

/// Collects the keys of the build side for the dynamic filter of a join.
pub(crate) struct Bounds {
    filter: Arc<dyn PhysicalExpr>,
    /// The keys of the probe side.
    probe_keys: Vec<Arc<dyn PhysicalExpr>>,
    probe_schema: SchemaRef,
    nulls_match: bool,
    /// The most build rows whose keys are listed in the filter.
    most_listed: usize,
    state: Mutex<State>,
    /// The build side of a run has ended.
    ended: Condvar,
}

/// How long a thread waits for other build sides before it checks again whether its join was cancelled.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

struct State {
    /// The number of build inputs that have not ended. If partitions run separately, each has one.
    inputs: usize,
    /// The number of runs that read their build sides.
    reading: usize,
    rows: usize,
    has_null: bool,
    ranges: Vec<Range>,
    /// The keys of the only key column, as long as the rows are few.
    listed: Vec<ArrayRef>,
}

/// The range of one key column.
enum Range {
    Empty,
    Of(ScalarValue, ScalarValue),
    /// Nothing is known, because filters and joins do not compare values of this type in the same way.
    Unknown,
}

impl Bounds {
    /// Returns the collector of a join, or `None` if no scan of the probe side uses a dynamic filter of the join.
    pub(crate) fn of(
        join: &HashJoinExec,
        probe: &Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
        inputs: usize,
    ) -> Result<Option<Arc<Bounds>>> {
        let (_, probe_rows_may_be_left_out) = join.join_type().on_lr_is_preserved();
        let produced = join.dynamic_expressions_produced();
        let [filter] = produced.as_slice() else { return Ok(None) };
        let is_wanted = config.optimizer.enable_join_dynamic_filter_pushdown
            && probe_rows_may_be_left_out
            // `NOT IN` must know whether the probe side has rows, and nulls.
            && !join.null_aware
            && is_used(probe, filter)?;
        if !is_wanted || filter.downcast_ref::<DynamicFilterPhysicalExpr>().is_none() {
            return Ok(None);
        }
        let build_schema = join.left().schema();
        let range = |(build, _): &(Arc<dyn PhysicalExpr>, _)| match build.data_type(&build_schema) {
            Ok(of) if has_order(&of) => Range::Empty,
            _ => Range::Unknown,
        };
        let ranges = join.on().iter().map(range).collect();
        let state =
            State { inputs, reading: 0, rows: 0, has_null: false, ranges, listed: Vec::new() };
        Ok(Some(Arc::new(Bounds {
            filter: Arc::clone(filter),
            probe_keys: join.on().iter().map(|(_, probe)| Arc::clone(probe)).collect(),
            probe_schema: probe.schema(),
            nulls_match: join.null_equality() == NullEquality::NullEqualsNull,
            most_listed: config.optimizer.hash_join_inlist_pushdown_max_distinct_values,
            state: Mutex::new(state),
            ended: Condvar::new(),
        })))
    }

    /// Records that a run begins to read its build side.
    pub(super) fn begin(self: &Arc<Bounds>) -> Arc<BuildSide> {
        lock(&self.state).reading += 1;
        Arc::new(BuildSide { bounds: Arc::clone(self), ended: AtomicBool::new(false) })
    }

    /// Looks at the keys of some build rows. If the left input is read once for several runs, each run shows all of its
    /// rows. After the first run has shown them, this does nothing.
    pub(super) fn see(&self, keys: &[ArrayRef]) -> Result<()> {
        if lock(&self.state).inputs == 0 {
            return Ok(());
        }
        let seen = keys.iter().map(|key| (min_batch(key), max_batch(key))).collect::<Vec<_>>();
        let mut state = lock(&self.state);
        state.rows += keys.first().map_or(0, |key| key.len());
        state.has_null |= keys.iter().any(|key| key.logical_null_count() > 0);
        for (range, seen) in state.ranges.iter_mut().zip(seen) {
            range.include(seen);
        }
        match (keys, state.rows <= self.most_listed) {
            ([key], true) => state.listed.push(Arc::clone(key)),
            _ => state.listed.clear(),
        }
        Ok(())
    }

    /// Records that the whole build side of one run was read. After the last one, publishes the filter.
    fn input_ended(&self) {
        let mut state = lock(&self.state);
        if state.inputs == 0 {
            return;
        }
        state.inputs -= 1;
        if state.inputs > 0 {
            return;
        }
        let Some(filter) = self.filter.downcast_ref::<DynamicFilterPhysicalExpr>() else { return };
        // Without the filter, the scans read all rows. So if this fails, the query only takes more time.
        match self.expression(&state).and_then(|expression| filter.update(expression)) {
            Ok(()) => filter.mark_complete(),
            Err(error) => {
                log::warn!("a dynamic filter could not be published: {error}");
                filter.mark_complete();
            }
        }
    }

    /// Returns an expression that is true for each probe row that may have a match.
    fn expression(&self, state: &State) -> Result<Arc<dyn PhysicalExpr>> {
        if state.rows == 0 {
            return Ok(lit(false));
        }
        let binary = |left: &Arc<dyn PhysicalExpr>, operator, right| {
            Arc::new(BinaryExpr::new(Arc::clone(left), operator, right)) as Arc<dyn PhysicalExpr>
        };
        let mut all: Option<Arc<dyn PhysicalExpr>> = None;
        let mut and = |condition: Arc<dyn PhysicalExpr>| {
            all = Some(match all.take() {
                Some(others) => binary(&others, Operator::And, condition),
                None => condition,
            });
        };
        for (key, range) in self.probe_keys.iter().zip(&state.ranges) {
            match range {
                Range::Unknown => {}
                // All keys of the build side are null.
                Range::Empty => and(lit(false)),
                Range::Of(least, most) => {
                    and(binary(key, Operator::GtEq, lit(least.clone())));
                    and(binary(key, Operator::LtEq, lit(most.clone())));
                }
            }
        }
        if let ([key], [Range::Of(..)], false) =
            (self.probe_keys.as_slice(), state.ranges.as_slice(), state.listed.is_empty())
        {
            let arrays: Vec<&dyn Array> = state.listed.iter().map(|key| key.as_ref()).collect();
            let list = concat(&arrays)?;
            let listed =
                InListExpr::try_new_from_array(Arc::clone(key), list, false, &self.probe_schema)?;
            and(Arc::new(listed));
        }
        let all = all.unwrap_or_else(|| lit(true));
        if !(self.nulls_match && state.has_null) {
            return Ok(all);
        }
        // A null of the probe side may match a null of the build side.
        Ok(self.probe_keys.iter().fold(all, |any, key| {
            binary(&any, Operator::Or, Arc::new(IsNullExpr::new(Arc::clone(key))))
        }))
    }
}

/// The build side of one run. It ends at the latest when it is dropped.
pub(super) struct BuildSide {
    bounds: Arc<Bounds>,
    ended: AtomicBool,
}

impl BuildSide {
    /// Records that the whole build side was read.
    pub(super) fn was_read(&self) {
        if !self.ended.load(Ordering::SeqCst) {
            self.bounds.input_ended();
        }
        self.end();
    }

    fn end(&self) {
        if !self.ended.swap(true, Ordering::SeqCst) {
            lock(&self.bounds.state).reading -= 1;
            self.bounds.ended.notify_all();
        }
    }

    /// Waits until the filter is published, or until no other run reads its build side.
    pub(super) fn wait_for_others(&self, cancelled: impl Fn() -> bool) {
        let mut state = lock(&self.bounds.state);
        loop {
            let own = usize::from(!self.ended.load(Ordering::SeqCst));
            if state.inputs == 0 || state.reading <= own || cancelled() {
                return;
            }
            let waited = self.bounds.ended.wait_timeout(state, LOOK_AGAIN);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for BuildSide {
    fn drop(&mut self) {
        self.end();
    }
}

impl Range {
    fn include(&mut self, (least, most): (Result<ScalarValue>, Result<ScalarValue>)) {
        let (Ok(least), Ok(most)) = (least, most) else {
            *self = Range::Unknown;
            return;
        };
        if least.is_null() || most.is_null() {
            return;
        }
        *self = match std::mem::replace(self, Range::Unknown) {
            Range::Unknown => Range::Unknown,
            Range::Empty => Range::Of(least, most),
            Range::Of(low, high) => match (low.partial_cmp(&least), high.partial_cmp(&most)) {
                (Some(of_low), Some(of_high)) => Range::Of(
                    if of_low.is_gt() { least } else { low },
                    if of_high.is_lt() { most } else { high },
                ),
                _ => Range::Unknown,
            },
        };
    }
}

/// Returns whether comparisons of values of this type agree with the equality of the join. For floats, they do not:
/// joins treat NaN and -0.0 in another way than the statistics of files.
fn has_order(of: &DataType) -> bool {
    of.is_integer()
        || (of.is_temporal() && !matches!(of, DataType::Interval(_)))
        || of.is_decimal()
        || matches!(
            of,
            DataType::Utf8
                | DataType::LargeUtf8
                | DataType::Utf8View
                | DataType::Binary
                | DataType::LargeBinary
                | DataType::BinaryView
                | DataType::Boolean
        )
}

/// Returns whether an operator of the plan evaluates the filter.
fn is_used(plan: &Arc<dyn ExecutionPlan>, filter: &Arc<dyn PhysicalExpr>) -> Result<bool> {
    let Some(id) = filter.expression_id() else { return Ok(false) };
    let mut used = false;
    plan.apply(|node| {
        node.apply_expressions(&mut |root| {
            root.apply(|expression| {
                used |= expression.expression_id() == Some(id);
                Ok(if used { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
            })
        })?;
        Ok(if used { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    Ok(used)
}

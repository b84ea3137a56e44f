//! Makes the plan of a bound join, and opens the device that the plan needs.
//!
//! The plan follows from the statistics of both sides. [`BoundJoin::explain`] makes it before any row is
//! read, from the statistics that the user gave. A running join plans again after it has read the build side,
//! with the rows and bytes that it counted, and with the columns that have nulls. Both call [`choose`]. Facts
//! that are learned later go to [`Plan::refine`].

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::Array;

use super::candidate::{self, Candidate};
use crate::algorithm::gpu::learned_of_device;
use crate::bind::BoundJoin;
use crate::build_side::{BuildSide, Wishes};
use crate::device::{Device, Prospect, Shape};
use crate::error::{Result, bytes};
use crate::input::{BufferedSource, Relation};
use crate::join::Join;
use crate::machine::Machine;
use crate::matches::Roles;
use crate::options::{Algorithm, JoinType, NullEquality, Side};
use crate::plan::{
    Facts, GpuCandidate, HostMemory, KeyFacts, Learned, Payload, PayloadColumn, Plan, Reason,
    Request, Statistics, choose,
};
use crate::word::{KeyWord, Width};

/// The facts that a plan follows from, besides the join and the device.
pub(super) struct Known<'a> {
    pub(crate) machine: &'a Machine,
    pub(crate) join_type: JoinType,
    pub(crate) side: Option<Side>,
    pub(crate) build: Statistics,
    pub(crate) probe: Statistics,
    /// The facts that were learned from the build side, once it has been read.
    pub(crate) learned: Learned,
    /// Whether the probe side must be streamed, whatever algorithm the caller asked for. It then is the rows of one key
    /// that do not fit memory.
    pub(crate) streams: bool,
}

impl BoundJoin {
    /// Returns the plan with its predicted times, from the [statistics](crate::Join::statistics) of both
    /// sides. Nothing is read.
    ///
    /// A running join plans again after it has read the build side, with the numbers of rows and bytes that
    /// it counted. So its plan may differ. Decisions that depend on facts that are only learned while reading
    /// are open in this plan; its text shows their rules.
    ///
    /// ```
    /// # use arrow::datatypes::{DataType, Field, Schema};
    /// # let schema = Schema::new(vec![Field::new("id", DataType::Int64, false)]);
    /// use strait::{Algorithm, Join, Output, Reason};
    ///
    /// let join = Join::inner().on("id").algorithm(Algorithm::Radix);
    /// let plan = join.bind(Output::Rows, &schema, &schema)?.explain();
    /// assert_eq!(plan.algorithm, Algorithm::Radix);
    /// assert_eq!(plan.reason, Reason::AskedFor);
    /// # Ok::<(), strait::Error>(())
    /// ```
    pub fn explain(&self) -> Plan {
        let machine = Machine::detect();
        let side = self.build_side().side();
        let known = Known::new(&machine, side, &self.join.statistics, self.join.join_type);
        match self.prospects(&known) {
            (plan, Some(prospect)) => match prospect.check() {
                Ok(()) => plan,
                Err(why) => self.without_device(&known, &plan, &why.to_string()),
            },
            (plan, None) => plan,
        }
    }

    /// Returns the choice of the build side, as far as it is made before the join reads its sides.
    pub(super) fn build_side(&self) -> BuildSide {
        let Join { build_side: asked, prompt, .. } = self.join;
        let memory_limit = self.join.limit_now();
        BuildSide::choose(Wishes { asked, prompt, memory_limit }, &self.join.statistics)
    }

    /// Makes a plan from the facts that are known before a device is opened. Returns it with the device that it needs.
    fn prospects(&self, known: &Known<'_>) -> (Plan, Option<Prospect>) {
        if let Some(device) = &self.device {
            let budget = device.memory().budget;
            return (self.plan(known, Some(Usable::opened(&**device, budget))), None);
        }
        self.prospects_among(known, candidate::candidate(&self.join), candidate::found)
    }

    /// Does this for a join whose caller asked for no device. If this process has not looked for GPUs yet, calls
    /// `look` only if a GPU could finish before the CPU.
    fn prospects_among(
        &self,
        known: &Known<'_>,
        candidate: Candidate,
        look: impl FnOnce() -> Option<Prospect>,
    ) -> (Plan, Option<Prospect>) {
        let prospect = match candidate {
            Candidate::None => None,
            Candidate::Known(prospect) => Some(prospect),
            Candidate::NotLookedFor => {
                let on_cpu = self.plan(known, None);
                if !on_cpu.gpu_may_gain() {
                    return (Plan { gpu_skipped: true, ..on_cpu }, None);
                }
                look()
            }
        };
        let plan = self.plan(
            known,
            prospect.as_ref().map(|prospect| Usable {
                name: prospect.name(),
                budget: prospect.budget(self.join.gpu_memory),
                open: prospect.is_open(),
                shapes: None,
            }),
        );
        let wanted = prospect.filter(|_| plan.device.is_gpu());
        (plan, wanted)
    }

    /// Returns the plan and the opened device that it needs. A GPU that the caller did not ask for is opened
    /// only if the plan uses it. The join is then planned again with the memory that is free on that GPU.
    pub(super) fn decide(&self, known: &Known<'_>) -> Result<(Plan, Option<Arc<dyn Device>>)> {
        let (plan, prospect) = self.prospects(known);
        let Some(prospect) = prospect else {
            let device = self.device.clone().filter(|_| plan.device.is_gpu());
            return Ok((plan, device));
        };
        let opened =
            prospect.open(self.join.gpu_memory, self.join.overrides.faults()).and_then(|device| {
                let free = device.available()?;
                Ok((device, free))
            });
        let (device, free) = match opened {
            Ok(opened) => opened,
            Err(why) if self.may_use_cpu() => {
                return Ok((self.without_device(known, &plan, &why.to_string()), None));
            }
            Err(why) => return Err(why),
        };
        let again = self.plan(known, Some(Usable::opened(&*device, free)));
        if again.device.is_gpu() {
            return Ok((again, Some(device)));
        }
        if !self.may_use_cpu() {
            // An algorithm that needs a GPU is tried anyway, and its error says how much memory is missing.
            return Ok((plan, Some(device)));
        }
        let why = format!("too little of its memory is free ({})", bytes(free));
        Ok((self.without_device(known, &plan, &why), None))
    }

    /// Returns whether the join continues on the CPU if a GPU fails. It does so if the caller asked neither
    /// for a GPU nor for an algorithm that runs on GPUs only.
    pub(super) fn may_use_cpu(&self) -> bool {
        self.device.is_none() && !self.join.needs_gpu()
    }

    /// Returns the plan for the CPU after a plan for a GPU was abandoned.
    pub(super) fn without_device(&self, known: &Known<'_>, abandoned: &Plan, why: &str) -> Plan {
        log::warn!("the GPU was abandoned: {why}; joining on the CPU");
        self.plan(known, None).after(abandoned, why)
    }

    /// Returns the plan for the CPU after a GPU failed in the middle of the probe side. Only an algorithm
    /// that streams the probe side can continue there: the other algorithms would number the remaining rows
    /// from zero.
    pub(super) fn without_device_midway(
        &self,
        known: &Known<'_>,
        abandoned: &Plan,
        why: &str,
    ) -> Plan {
        log::warn!("the GPU was abandoned: {why}; joining the rest of the rows on the CPU");
        let mut plan = self.plan_by(known, None, Some(Algorithm::NoPartition));
        plan.reason = Reason::Continues;
        plan.after(abandoned, why)
    }

    /// Returns the plan for the CPU.
    pub(super) fn plan_on_cpu(&self, known: &Known<'_>) -> Plan {
        self.plan(known, None)
    }

    /// Plans for the CPU, and also for a device, if there is one.
    fn plan(&self, known: &Known<'_>, device: Option<Usable<'_>>) -> Plan {
        let asked = match known.streams {
            true => Some(Algorithm::NoPartition),
            false => self.join.algorithm_in_memory(),
        };
        self.plan_by(known, device, asked)
    }

    /// Makes a plan. It compares the CPU with the device, if there is a device. If `asked` has an algorithm, the plan
    /// uses this algorithm.
    fn plan_by(
        &self,
        known: &Known<'_>,
        device: Option<Usable<'_>>,
        asked: Option<Algorithm>,
    ) -> Plan {
        let Known { machine, join_type, side, mut build, mut probe, .. } = *known;
        if self.join.null_equality == NullEquality::Equal {
            // Rows with a null match like other rows.
            (build.nulls, probe.nulls) = (None, None);
        }
        let mut learned = known.learned.clone();
        learned.shapes = device.as_ref().and_then(|device| device.shapes);
        let device = device.map(|Usable { name, budget, open, .. }| GpuCandidate {
            name: name.to_string(),
            budget,
            asked: self.device.is_some() || self.join.overrides.simulated.is_some(),
            open,
            row_bytes: self.keys.width().bytes(),
            columns: HostMemory::Arrow,
        });
        let assumed = BuildSide::or_assumed(side);
        let facts = Facts {
            keys: KeyFacts::of(&self.keys, assumed),
            roles: Roles::of(join_type, assumed),
            filtered: self.filter.is_some(),
            count_only: self.output.count_only(),
            payload: side.map(|side| self.payload(side)),
            gpu_options: self.join.gpu_options,
            machine: machine.clone(),
            overrides: self.join.overrides,
            gpu: None,
            learned,
        };
        choose(Request {
            device,
            asked,
            partitioner: self.join.gpu_options.partitioner,
            join_type,
            build_side: side,
            build,
            probe,
            threads: self.join.threads,
            limit: self.join.limit_now(),
            prompt: self.join.prompt,
            costs: self.join.job_costs,
            key: self.keys.encoding(),
            facts,
        })
    }

    /// Returns the columns that the output needs of the build side.
    fn payload(&self, side: Side) -> Payload {
        let schema = &self.schemas[side as usize];
        let wanted: BTreeSet<usize> = self.output.gathered(side).into_iter().collect();
        let column = |column: usize| {
            let field = schema.field(column);
            let width = field.data_type().primitive_width();
            let (name, nullable) = (field.name().clone(), field.is_nullable());
            PayloadColumn { column, name, width, nullable }
        };
        let columns = wanted.into_iter().map(column).collect();
        Payload { by_values: self.output.by_values(side), columns }
    }

    /// Returns the facts for the plan that are known only when the build side has been read.
    pub(super) fn learned(&self, side: Side, build: &Relation) -> Learned {
        let mut columns = self.output.gathered(side);
        let has_nulls = |column| build.batches().iter().any(|b| b.column(column).null_count() > 0);
        columns.retain(|&column| has_nulls(column));
        let (build_rows, null_columns) = (Some(build.rows()), Some(columns));
        let sampled_cells = self.sampled_cells(side, build);
        Learned { build_rows, null_columns, sampled_cells, ..Learned::default() }
    }

    /// Estimates the range of the build side's key words from a sample. Returns the number of cells that an array
    /// needs if the words are its positions, or `None` if the words are not integers of a range.
    fn sampled_cells(&self, side: Side, build: &Relation) -> Option<u64> {
        if !self.keys.exact() || !self.keys.dense_candidate() {
            return None;
        }
        match self.keys.width() {
            Width::W32 => self.sampled::<u32>(side, build),
            Width::W64 => self.sampled::<u64>(side, build),
        }
    }

    fn sampled<K: KeyWord>(&self, side: Side, build: &Relation) -> Option<u64> {
        const SLICES: u64 = 64;
        const SLICE: usize = 64;
        let step = (build.rows() / SLICES).max(1);
        let mut range: Option<(u64, u64)> = None;
        let mut words = Vec::new();
        for row in (0..build.rows()).step_by(usize::try_from(step).ok()?) {
            let at = build.places().locate(row);
            let batch = build.batches().get(at.batch as usize)?;
            let len = SLICE.min(batch.num_rows() - at.row as usize);
            let slice = batch.slice(at.row as usize, len);
            // An error would come again, with its message, when the join computes all words.
            let valid = self.keys.words::<K>(side, &slice, &mut words).ok()?;
            let there = |i: usize| valid.as_ref().is_none_or(|valid| valid.is_valid(i));
            for word in (0..).zip(&words).filter(|&(i, _)| there(i)).map(|(_, w)| w.to_u64()) {
                let (min, max) = range.unwrap_or((word, word));
                range = Some((min.min(word), max.max(word)));
            }
        }
        let (min, max) = range?;
        (max - min).checked_add(1)
    }

    /// Returns the statistics of the probe rows that are left after a device failed.
    pub(super) fn probe_left(
        &self,
        known: &Known<'_>,
        probe: Option<&BufferedSource>,
    ) -> Statistics {
        let rows = probe.and_then(BufferedSource::known_rows);
        let held = probe.map_or(0, BufferedSource::read_bytes);
        // If the probe side was not read to its end, its size is not known. Then the plan assumes that it
        // does not fit the memory limit.
        let least = if rows.is_some() { 0 } else { self.join.limit_now().unwrap_or(0) };
        Statistics { rows, bytes: Some(held.max(least)), ..known.probe }
    }
}

/// A device that a plan may use.
struct Usable<'a> {
    name: &'a str,
    /// The device memory that the join may use, in bytes.
    budget: u64,
    /// Whether this process has opened it before.
    open: bool,
    /// The sizes of its work, if this join has opened it.
    shapes: Option<[Shape; 2]>,
}

impl<'a> Usable<'a> {
    fn opened(device: &'a dyn Device, budget: u64) -> Usable<'a> {
        let shapes = learned_of_device(device).shapes;
        Usable { name: device.name(), budget, open: true, shapes }
    }
}

impl<'a> Known<'a> {
    /// Takes the statistics of the left and the right side. If the build side is not known, it assumes the
    /// left side.
    pub(super) fn new(
        machine: &'a Machine,
        side: Option<Side>,
        [left, right]: &[Statistics; 2],
        join_type: JoinType,
    ) -> Known<'a> {
        let (build, probe) = match BuildSide::or_assumed(side) {
            Side::Right => (*right, *left),
            Side::Left => (*left, *right),
        };
        let learned = Learned::default();
        Known { machine, join_type, side, build, probe, learned, streams: false }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use arrow::datatypes::{DataType, Field, Schema};

    use super::*;
    use crate::output::Output;
    use crate::plan::JobCosts;

    /// Returns the plan of a join of two tables with this many rows, and whether it looked for a GPU.
    fn planned(join: Join, rows: u64, candidate: Candidate) -> (Plan, bool) {
        let schema = Schema::new(vec![Field::new("k", DataType::Int64, false)]);
        let statistics = Statistics::rows(rows).with_bytes(8 * rows);
        let join = join.on("k").threads(16);
        let join = join.statistics(Side::Left, statistics).statistics(Side::Right, statistics);
        let bound = join.bind(Output::Count, &schema, &schema).unwrap();
        let machine = Machine { cores: 16, l2: 2 << 20, last_level: 300 << 20, memory: 0 };
        let known = Known::new(&machine, Some(Side::Left), &bound.join.statistics, JoinType::Inner);
        let looked = Cell::new(false);
        let look = || {
            looked.set(true);
            Some(Prospect::Simulated(1))
        };
        let (plan, prospect) = bound.prospects_among(&known, candidate, look);
        assert_eq!(prospect.is_some(), plan.device.is_gpu(), "{plan}");
        (plan, looked.get())
    }

    /// Finding and opening a GPU takes half a second. Nobody looks for it if the CPU needs less.
    #[test]
    fn a_gpu_is_looked_for_only_if_it_could_gain() {
        let unlimited = || Join::inner().gpu_memory(1 << 40);
        for rows in [0, 1000, 1 << 24] {
            let (plan, looked) = planned(unlimited(), rows, Candidate::NotLookedFor);
            assert!(!looked && plan.gpu_skipped && !plan.device.is_gpu(), "{plan}");
            assert!(plan.predictions.iter().all(|p| !p.on_gpu), "{plan}");
            assert!(plan.to_string().contains("no GPU was looked for"), "{plan}");
        }
        let (plan, looked) = planned(unlimited(), 1 << 30, Candidate::NotLookedFor);
        assert!(looked && !plan.gpu_skipped && plan.device.is_gpu(), "{plan}");
        // A GPU that is known costs no search.
        let known = Candidate::Known(Prospect::Simulated(1));
        let (plan, looked) = planned(unlimited(), 1 << 24, known);
        assert!(!looked && !plan.gpu_skipped && plan.device.is_gpu(), "{plan}");
        let (plan, looked) = planned(unlimited(), 1 << 30, Candidate::None);
        assert!(!looked && !plan.gpu_skipped && !plan.device.is_gpu(), "{plan}");
    }

    /// The threads read and write on both processors. A GPU gains only on the join.
    #[test]
    fn reading_and_writing_are_no_reason_to_look_for_a_gpu() {
        let costs = JobCosts::none().with_reading(Side::Right, 1000.0);
        let join = Join::inner().job_costs(costs);
        let (plan, looked) = planned(join, 1 << 20, Candidate::NotLookedFor);
        assert!(!looked && plan.gpu_skipped, "{plan}");
        assert!(plan.predictions.iter().all(|p| p.seconds > 1000.0 / 16.0), "{plan}");
    }

    /// If no algorithm fits the memory limit on the CPU, its time does not tell whether a GPU could gain.
    #[test]
    fn a_gpu_is_looked_for_if_the_cpu_has_too_little_memory() {
        let looked = |join: Join, rows| planned(join, rows, Candidate::NotLookedFor).1;
        assert!(looked(Join::inner().memory_limit(1), 1000));
        // The same holds if the caller has left only one algorithm.
        for algorithm in [Algorithm::Radix, Algorithm::NoPartition] {
            let asked = |limit| Join::inner().algorithm(algorithm).memory_limit(limit);
            assert!(looked(asked(48 << 20), 4 << 20), "{algorithm}");
            assert!(!looked(asked(8 << 30), 4 << 20), "{algorithm}");
        }
    }
}

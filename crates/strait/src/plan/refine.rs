//! Refines a plan by the facts that a join learns while it reads.
//!
//! A plan is made from [`Facts`] that are known before any row is read, and from [`Statistics`]. While a join
//! runs, it learns more: which columns have nulls, how many rows there are, the range of the keys. It passes
//! these facts to [`Plan::refine`], which decides the details again. Conductors read the details, and the
//! user's GPU options: the place of the table, the partitioner, the histogram and the cache.

use crate::device::Shape;
use crate::error::{Error, Result};
use crate::gpu_options::{GpuOptions, Transfer};
use crate::key::KeyPlan;
use crate::machine::Machine;
use crate::matches::Roles;
use crate::options::{Algorithm, JoinType, Side, Yields};
use crate::overrides::TestOverrides;
use crate::plan::choose::HostMemory;
use crate::plan::rules::Case;
use crate::plan::working_sets::pack;
use crate::plan::{ChunkRows, HoldReason, Inlining, KeySource, Plan, ResultOrder, Statistics};
use crate::word::Width;

/// The facts that the [details](crate::plan::Details) of a plan follow from, apart from the [`Statistics`] of
/// both sides.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) keys: KeyFacts,
    pub(crate) roles: Roles,
    /// Whether there is a residual filter.
    pub(crate) filtered: bool,
    /// Whether only the number of output rows is needed.
    pub(crate) count_only: bool,
    /// The build columns of the output; `None` if the build side is not known yet.
    pub(crate) payload: Option<Payload>,
    pub(crate) gpu_options: GpuOptions,
    pub(crate) machine: Machine,
    pub(crate) overrides: TestOverrides,
    /// The GPU of the plan; `None` on the CPU.
    pub(crate) gpu: Option<GpuFacts>,
    pub(crate) learned: Learned,
}

/// The facts about the GPU of a plan that are known before the join starts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GpuFacts {
    /// The GPU memory that the plan may use, in bytes.
    pub(crate) gpu_bytes: u64,
    /// The host memory that holds the columns.
    pub(crate) columns: HostMemory,
    /// The bytes per row that always cross to the GPU: the key word, and the value if there is one.
    pub(crate) row_bytes: u64,
}

/// The facts about the keys. Arrays have the build side first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KeyFacts {
    pub(crate) width: Width,
    /// Whether equal words are equal keys.
    pub(crate) exact: bool,
    /// Whether keys of a dense range have words of a dense range.
    pub(crate) may_be_dense: bool,
    /// Whether the CPU reads words from the column as fast as from a buffer.
    pub(crate) plain: [bool; 2],
    /// `Some` if the values of the column are the words, apart from a bias. The inner value tells whether the
    /// column may have nulls.
    pub(crate) in_column: [Option<bool>; 2],
}

/// The columns that the output needs of the build side.
#[derive(Debug, Clone)]
pub(crate) struct Payload {
    /// Whether the output needs only the values of these columns: no row numbers, and no coalesced keys.
    pub(crate) by_values: bool,
    pub(crate) columns: Vec<PayloadColumn>,
}

#[derive(Debug, Clone)]
pub(crate) struct PayloadColumn {
    /// The index of the column in its side.
    pub(crate) column: usize,
    pub(crate) name: String,
    /// The bytes per value, if they are fixed.
    pub(crate) width: Option<usize>,
    pub(crate) nullable: bool,
}

/// The facts that a join learns while it reads. `None` means that a fact is not known yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Learned {
    pub(crate) build_rows: Option<u64>,
    pub(crate) probe_rows: Option<u64>,
    /// The build columns of the output that have nulls.
    pub(crate) null_columns: Option<Vec<usize>>,
    /// Whether a key column has nulls, build side first.
    pub(crate) null_keys: [Option<bool>; 2],
    pub(crate) words: Option<LearnedWords>,
    /// The number of cells of an array that the build side's words address, estimated from a sample.
    pub(crate) sampled_cells: Option<u64>,
    /// The bytes that a memory limit leaves before columns are inlined for a GPU.
    pub(crate) memory_left: Option<u64>,
    /// The bytes that a memory limit leaves before the first chunk of a streamed probe side is read.
    pub(crate) left_for_chunks: Option<u64>,
    /// The reason why the probe side is held, once it is held.
    pub(crate) held: Option<HoldReason>,
    /// The rows that may match, build side first.
    pub(crate) matchable: [Option<u64>; 2],
    /// The sizes of a GPU's work for words of 32 bits and of 64 bits, once the GPU is open.
    pub(crate) shapes: Option<[Shape; 2]>,
    /// The GPU memory that is free before the conductor divides the build side.
    pub(crate) free: Option<u64>,
    /// Whether each build key occurs once. Known for the keys that a GPU has inserted so far.
    pub(crate) unique: Option<bool>,
    /// The rows of a part that needed more GPU memory than there is.
    pub(crate) refused: Option<u64>,
    /// The most rows of a chunk, after memory was refused.
    pub(crate) most_chunk_rows: Option<u64>,
    /// The build rows that were divided into parts.
    pub(crate) divided: Option<Divided>,
    /// The form of the key words and values that the abandoned algorithm already made. The next algorithm
    /// must use the same form.
    pub(crate) made: Option<Made>,
}

/// Build rows, and the number of parts that they were divided into.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Divided {
    pub(crate) rows: u64,
    pub(crate) parts: u64,
}

/// The form of key words and values that exist already, so it can no longer be decided.
#[derive(Debug, Clone)]
pub(crate) struct Made {
    pub(super) word: Width,
    pub(super) inlining: Inlining,
    /// Build side first.
    pub(super) key_sources: [KeySource; 2],
}

/// The facts about the key words of the build side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LearnedWords {
    /// The number of rows that may match.
    pub(crate) matchable: u64,
    /// The smallest and the largest word of these rows.
    pub(crate) range: Option<(u64, u64)>,
}

impl Facts {
    /// Returns the facts about a join of columns in host memory or GPU memory, without Arrow tables. Their key
    /// words exist already.
    pub(crate) fn of_columns(width: Width, yields: Yields, machine: &Machine) -> Facts {
        Facts {
            keys: KeyFacts {
                width,
                exact: true,
                may_be_dense: true,
                plain: [true; 2],
                in_column: [Some(false); 2],
            },
            roles: Roles::of(JoinType::Inner, Side::Left),
            filtered: false,
            count_only: yields == Yields::Count,
            payload: None,
            gpu_options: GpuOptions::new(),
            machine: machine.clone(),
            overrides: TestOverrides::default(),
            gpu: None,
            learned: Learned::default(),
        }
    }
}

impl KeyFacts {
    /// Returns the facts about the keys of a join with this build side.
    pub(crate) fn of(keys: &KeyPlan, build: Side) -> KeyFacts {
        let sides = [build, build.other()];
        KeyFacts {
            width: keys.width(),
            exact: keys.exact(),
            may_be_dense: keys.exact() && keys.dense_candidate(),
            plain: sides.map(|side| keys.plain(side)),
            in_column: sides.map(|side| keys.in_column(side)),
        }
    }
}

impl KeySource {
    /// Decides where the key words of a chunk of the probe side come from, when the chunk has been read: from the
    /// column, or computed. A held side is one chunk.
    ///
    /// The decision depends on whether the key column of this chunk has nulls. The plan of a streamed side cannot know
    /// this: a chunk may have nulls although the chunks before it had none, and the [`Statistics`] of the caller may be
    /// wrong.
    pub(crate) fn of_chunk(self, has_nulls: bool) -> KeySource {
        match self {
            KeySource::Column | KeySource::ColumnIfNoNulls if !has_nulls => KeySource::Column,
            _ => KeySource::Computed,
        }
    }
}

impl Learned {
    /// Adds facts. They replace older facts of the same kind.
    fn add(&mut self, new: Learned) {
        let both = |new: [Option<u64>; 2], old: [Option<u64>; 2]| [0, 1].map(|i| new[i].or(old[i]));
        let [build, probe] = new.null_keys;
        *self = Learned {
            build_rows: new.build_rows.or(self.build_rows),
            probe_rows: new.probe_rows.or(self.probe_rows),
            null_columns: new.null_columns.or(self.null_columns.take()),
            null_keys: [build.or(self.null_keys[0]), probe.or(self.null_keys[1])],
            words: new.words.or(self.words),
            sampled_cells: new.sampled_cells.or(self.sampled_cells),
            memory_left: new.memory_left.or(self.memory_left),
            left_for_chunks: new.left_for_chunks.or(self.left_for_chunks),
            held: new.held.or(self.held),
            matchable: both(new.matchable, self.matchable),
            shapes: new.shapes.or(self.shapes),
            free: new.free.or(self.free),
            unique: new.unique.or(self.unique),
            refused: new.refused.or(self.refused),
            most_chunk_rows: new.most_chunk_rows.or(self.most_chunk_rows),
            divided: new.divided.or(self.divided),
            made: new.made.or(self.made.take()),
        };
    }
}

impl Plan {
    /// Adds facts that the join has learned, and decides the details again. A newer fact replaces an older fact of the
    /// same kind. The order of facts of different kinds does not matter.
    pub(crate) fn refine(&mut self, learned: Learned) {
        self.build = self.build.counted(learned.build_rows, None);
        self.probe = self.probe.counted(learned.probe_rows, None);
        self.facts.learned.add(learned);
        self.details = self.case(self.algorithm).details();
    }

    /// Forgets that the build side was divided, and decides the details again.
    pub(crate) fn undivide(&mut self) {
        if self.facts.learned.divided.take().is_some() {
            self.refine(Learned::default());
        }
    }

    /// Returns the plan after its escalation has taken over. The key words and the inlined columns stay as they
    /// were made for the abandoned algorithm.
    pub(crate) fn escalated(&self, to: Algorithm, why: &str) -> Plan {
        let details = &self.details;
        let made = Made {
            word: details.word(),
            inlining: details.inlining.clone(),
            key_sources: [details.build_keys, details.probe_keys],
        };
        let mut plan = Plan { algorithm: to, escalation: None, ..self.clone() };
        // Facts that the abandoned algorithm learned for itself.
        let learned = &mut plan.facts.learned;
        (learned.unique, learned.refused, learned.divided) = (None, None, None);
        learned.free = None;
        plan.refine(Learned { made: Some(made), ..Learned::default() });
        plan.after(self, why)
    }

    /// Returns the order of the results. Fails if the plan is not for a GPU.
    pub(crate) fn order(&self) -> Result<ResultOrder> {
        self.details.order.ok_or_else(|| Error::internal("a plan for the CPU has no result order"))
    }

    /// Returns how rows cross to the GPU. Fails if the plan is not for a GPU.
    pub(crate) fn transfer(&self) -> Result<Transfer> {
        let missing = || Error::internal("a plan for the CPU has no transfer method");
        self.details.transfer.ok_or_else(missing)
    }

    /// Returns the rows per chunk. Fails if the plan is not for a GPU.
    pub(crate) fn chunk_rows(&self) -> Result<ChunkRows> {
        let missing = || Error::internal("a plan for the CPU has no chunks");
        self.details.chunk_rows.ok_or_else(missing)
    }

    /// Returns the most build rows of a part. Fails if the algorithm does not divide the build side.
    pub(crate) fn part_rows(&self) -> Result<u64> {
        let missing = || Error::internal(format!("{} has no parts", self.algorithm));
        self.details.part_rows.ok_or_else(missing)
    }

    /// Returns the radix bits of all passes together.
    pub(crate) fn radix_bits(&self) -> u32 {
        self.details.radix_bits.iter().sum()
    }

    /// Decides which partitions are joined together, when their build rows have been counted. Returns the
    /// partitions of each working set.
    pub(crate) fn working_sets(&mut self, rows: &[u64]) -> Result<Vec<Vec<usize>>> {
        let fit = self.part_rows()?;
        let sets = pack(rows, fit);
        // A set that does not fit is joined in blocks.
        let blocks = |set: &Vec<usize>| set.iter().map(|&p| rows[p]).sum::<u64>().div_ceil(fit);
        let divided = Divided { rows: rows.iter().sum(), parts: sets.iter().map(blocks).sum() };
        self.refine(Learned { divided: Some(divided), ..Learned::default() });
        Ok(sets)
    }

    fn case(&self, algorithm: Algorithm) -> Case<'_> {
        let (build, probe): (&Statistics, &Statistics) = (&self.build, &self.probe);
        let Plan { facts, threads, memory_limit: limit, .. } = self;
        Case { algorithm, gpu: facts.gpu, build, probe, facts, threads: *threads, limit: *limit }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::key::KeyEncoding;
    use crate::plan::{GpuCandidate, JobCosts, Request, RowIdReason, TableKind, choose};

    /// Returns the plan of a join with build columns `v` and `w` of four bytes each, which may have nulls.
    pub(in crate::plan) fn plan(
        algorithm: Algorithm,
        gpu_memory: Option<u64>,
        change: impl Fn(&mut Facts),
    ) -> Plan {
        let machine = Machine { cores: 2, l2: 2 << 20, last_level: 64 << 20, memory: 0 };
        let mut facts = Facts::of_columns(Width::W64, Yields::Pairs, &machine);
        let column = |(column, name): (usize, &str)| PayloadColumn {
            column,
            name: name.to_string(),
            width: Some(4),
            nullable: true,
        };
        let columns = [(1, "v"), (2, "w")].map(column).to_vec();
        facts.payload = Some(Payload { by_values: true, columns });
        facts.keys.in_column = [Some(true); 2];
        change(&mut facts);
        choose(Request {
            asked: Some(algorithm),
            partitioner: None,
            join_type: JoinType::Inner,
            build_side: Some(Side::Left),
            build: Statistics::rows(1 << 20),
            probe: Statistics::unknown(),
            threads: 2,
            limit: None,
            prompt: false,
            costs: JobCosts::none(),
            key: KeyEncoding::of_words(Width::W64),
            facts,
            device: gpu_memory.map(|budget| GpuCandidate {
                name: "a GPU".to_string(),
                budget,
                asked: true,
                open: true,
                row_bytes: 8,
                columns: HostMemory::Arrow,
            }),
        })
    }

    fn names() -> Vec<String> {
        ["v", "w"].map(str::to_string).to_vec()
    }

    #[test]
    fn a_plan_tells_what_comes_back_from_a_gpu() {
        for (join_type, verified, expected) in [
            (JoinType::Inner, false, (16, true, 0)),
            // The GPU flags the build rows, unless the host has to verify the matches.
            (JoinType::Left, false, (16, true, 1)),
            (JoinType::Left, true, (16, true, 0)),
            (JoinType::RightSemi, false, (0, true, 0)),
            (JoinType::LeftSemi, false, (0, false, 1)),
        ] {
            let plan = plan(Algorithm::NoPartition, Some(1 << 30), |facts| {
                facts.roles = Roles::of(join_type, Side::Left);
                facts.filtered = verified;
            });
            let link = plan.details.over_the_link.expect("a plan for a GPU");
            let flag = link.per_build_flag.max(link.per_probe_flag);
            let told = (link.per_match, link.probe_bits, flag);
            assert_eq!(told, expected, "{join_type}, verified: {verified}");
        }
    }

    #[test]
    fn nulls_decide_whether_columns_are_inlined() {
        for (algorithm, gpu) in [(Algorithm::NoPartition, None), (Algorithm::Radix, Some(1 << 30))]
        {
            let open = plan(algorithm, gpu, |_| {});
            let expected = Inlining::IfNoNulls { columns: names(), bytes: 8 };
            assert_eq!((open.details.inlining.clone(), open.details.value_bits), (expected, 64));
            let with = |null_columns| {
                let mut plan = open.clone();
                let null_columns = Some(null_columns);
                plan.refine(Learned { null_columns, ..Learned::default() });
                plan.details.inlining
            };
            assert_eq!(with(vec![]), Inlining::Inlined { columns: names(), bytes: 8 });
            let nulls = RowIdReason::Nulls("w".to_string());
            assert_eq!(with(vec![2]), Inlining::RowIds(nulls));
        }
    }

    #[test]
    fn the_reason_for_row_ids_is_given() {
        let reason =
            |algorithm, gpu, change: &dyn Fn(&mut Facts)| match plan(algorithm, gpu, change)
                .details
                .inlining
            {
                Inlining::RowIds(reason) => reason,
                inlined => panic!("{inlined}"),
            };
        let table = |change: &dyn Fn(&mut Facts)| reason(Algorithm::NoPartition, None, change);
        assert_eq!(reason(Algorithm::Radix, None, &|_| {}), RowIdReason::Algorithm);
        let unknown = plan(Algorithm::NoPartition, None, |facts| facts.payload = None);
        assert_eq!(unknown.details.inlining, Inlining::BuildSideUnknown);
        assert_eq!(table(&|facts| facts.keys.exact = false), RowIdReason::MatchesAreVerified);
        assert_eq!(table(&|facts| facts.filtered = true), RowIdReason::MatchesAreVerified);
        let flagged = |facts: &mut Facts| facts.roles = Roles::of(JoinType::Full, Side::Left);
        assert_eq!(table(&flagged), RowIdReason::BuildRowsAreFlagged);
        let semi = |facts: &mut Facts| facts.roles = Roles::of(JoinType::RightSemi, Side::Left);
        assert_eq!(table(&semi), RowIdReason::NoColumns);
        let of_payload = |change: fn(&mut Payload)| {
            table(&move |facts| facts.payload.iter_mut().for_each(change))
        };
        let numbers = of_payload(|payload| payload.by_values = false);
        assert_eq!(numbers, RowIdReason::RowNumbersAreReturned);
        assert_eq!(of_payload(|payload| payload.columns.clear()), RowIdReason::NoColumns);
        let text = of_payload(|payload| payload.columns[1].width = None);
        assert_eq!(text, RowIdReason::NoFixedWidth("w".to_string()));
        let wide = of_payload(|payload| payload.columns[0].width = Some(8));
        assert_eq!(wide, RowIdReason::TooWide { bytes: 12, most: 8 });
        assert_eq!(table(&|facts| facts.overrides.row_ids = true), RowIdReason::Test);
        // On a GPU, a value has the width of a key word, and a limit may leave too little memory.
        let narrow = |facts: &mut Facts| facts.keys.width = Width::W32;
        let wide = reason(Algorithm::Triton, Some(1 << 30), &narrow);
        assert_eq!(wide, RowIdReason::TooWide { bytes: 8, most: 4 });
        let scarce = |facts: &mut Facts| facts.learned.memory_left = Some((64 << 20) - 1);
        assert_eq!(reason(Algorithm::Triton, Some(1 << 30), &scarce), RowIdReason::MemoryLimit);
    }

    #[test]
    fn nulls_decide_where_the_key_words_of_a_chunk_come_from() {
        for planned in [KeySource::Column, KeySource::ColumnIfNoNulls] {
            assert_eq!(planned.of_chunk(false), KeySource::Column);
            assert_eq!(planned.of_chunk(true), KeySource::Computed);
        }
        // The plan may have other reasons to compute the words.
        assert_eq!(KeySource::Computed.of_chunk(false), KeySource::Computed);
    }

    #[test]
    fn one_column_as_wide_as_a_word_is_staged_from_its_batches() {
        let of = |names: &[&str], bytes| {
            let columns = names.iter().map(|name| name.to_string()).collect();
            Inlining::Inlined { columns, bytes }
        };
        assert!(of(&["v"], 8).is_one_word(Width::W64) && of(&["v"], 4).is_one_word(Width::W32));
        assert!(
            !of(&["v"], 4).is_one_word(Width::W64) && !of(&["v", "w"], 8).is_one_word(Width::W64)
        );
        assert!(!Inlining::RowIds(RowIdReason::Test).is_one_word(Width::W64));
    }

    #[test]
    fn the_range_of_the_words_decides_the_table() {
        let open = plan(Algorithm::NoPartition, None, |_| {});
        assert_eq!(open.details.table, Some(TableKind::ArrayIfDense));
        assert!(!open.details.radix_bits.is_empty());
        let with = |matchable, range| {
            let mut plan = open.clone();
            let words = Some(LearnedWords { matchable, range });
            plan.refine(Learned { words, ..Learned::default() });
            (plan.details.table, plan.details.radix_bits)
        };
        let array = TableKind::Array { min: 5, max: 1 << 20 };
        assert_eq!(with(1 << 20, Some((5, 1 << 20))).0, Some(array));
        assert_eq!(with(1000, Some((0, u64::MAX))), (Some(TableKind::Hash), vec![1]));
        assert_eq!(with(0, None).0, Some(TableKind::Hash));
        let hashed = plan(Algorithm::NoPartition, None, |facts| facts.keys.may_be_dense = false);
        assert_eq!(hashed.details.table, Some(TableKind::Hash));
    }

    #[test]
    fn nulls_and_rows_decide_where_a_gpu_reads_words() {
        let on_gpu = |algorithm| plan(algorithm, Some(1 << 30), |_| {});
        let sources = |plan: &Plan| [plan.details.build_keys, plan.details.probe_keys];
        let mut open = on_gpu(Algorithm::NoPartition);
        assert_eq!(sources(&open), [KeySource::ColumnIfNoNulls; 2]);
        open.refine(Learned { null_keys: [Some(true), Some(false)], ..Learned::default() });
        assert_eq!(sources(&open), [KeySource::Computed, KeySource::Column]);
        // The CPU may read the words of triton.
        assert_eq!(sources(&on_gpu(Algorithm::Triton)), [KeySource::Computed; 2]);
        // Row numbers of more than 32 bits make the words of a GPU wider than the column.
        let narrow = |facts: &mut Facts| facts.keys.width = Width::W32;
        let mut long = plan(Algorithm::Radix, Some(1 << 30), narrow);
        assert_eq!((long.details.word_bits, long.details.value_bits), (32, 32));
        long.refine(Learned { probe_rows: Some(1 << 32), ..Learned::default() });
        assert_eq!((long.details.word_bits, sources(&long)), (64, [KeySource::Computed; 2]));
        let mut on_cpu = plan(Algorithm::Radix, None, narrow);
        assert_eq!((on_cpu.details.word_bits, on_cpu.details.value_bits), (32, 32));
        on_cpu.refine(Learned { probe_rows: Some(1 << 32), ..Learned::default() });
        assert_eq!((on_cpu.details.word_bits, on_cpu.details.value_bits), (32, 64));
    }

    /// The details follow from all facts together, whatever their order.
    #[test]
    fn facts_may_come_in_any_order() {
        let facts = [
            Learned { build_rows: Some(1 << 24), ..Learned::default() },
            Learned { null_columns: Some(vec![1]), ..Learned::default() },
            Learned {
                words: Some(LearnedWords { matchable: 1 << 24, range: Some((0, 1 << 40)) }),
                ..Learned::default()
            },
        ];
        let refined = |order: [usize; 3]| {
            let mut plan = plan(Algorithm::NoPartition, None, |_| {});
            order.iter().for_each(|&i| plan.refine(facts[i].clone()));
            plan.details
        };
        let first = refined([0, 1, 2]);
        assert_eq!((first.table, first.radix_bits.as_slice()), (Some(TableKind::Hash), &[10][..]));
        for order in [[2, 1, 0], [1, 0, 2], [2, 0, 1]] {
            assert_eq!(refined(order), first);
        }
    }

    #[test]
    fn an_escalation_keeps_what_was_made() {
        let plan = plan(Algorithm::Triton, Some(1 << 20), |_| {});
        let after = plan.escalated(Algorithm::MultiPass, "GPU memory is full");
        assert_eq!((after.algorithm, after.escalation), (Algorithm::MultiPass, None));
        assert_eq!(after.details.build_keys, KeySource::Computed);
        assert!(after.details.parts > Some(1) && after.details.parts < plan.details.parts);
        assert_eq!(after.abandoned[0].algorithm, Algorithm::Triton);
    }

    /// Callers can state any statistics.
    #[test]
    fn extreme_statistics_are_planned() {
        let most = Statistics::rows(u64::MAX).with_key_range(0, i128::from(u64::MAX) - 1);
        for (algorithm, gpu) in [
            (Algorithm::NoPartition, None),
            (Algorithm::Radix, None),
            (Algorithm::SortMerge, None),
            (Algorithm::MultiPass, Some(1)),
        ] {
            let mut plan = plan(algorithm, gpu, |_| {});
            (plan.build, plan.probe) = (most, most);
            plan.refine(Learned::default());
            assert_eq!(plan.details.value_bits, 64, "{plan}");
        }
    }

    #[test]
    fn open_decisions_are_explained() {
        let text = plan(Algorithm::NoPartition, None, |_| {}).to_string();
        for rule in [
            "v, w inlined if none has a null, 8 B per row; else row ids",
            "an array if the keys are dense (at most 4 cells per row), else a hash table",
            "right, rows unknown, planned as four times the rows of the build side; streamed",
        ] {
            assert!(text.contains(rule), "{rule}: {text}");
        }
        let text = plan(Algorithm::MultiPass, Some(1 << 20), |_| {}).to_string();
        for rule in [
            "read from the key column if it has no nulls, else computed",
            "staged-copy; 8 B per row, 8 B more per build row if columns are inlined; 16 B per match come back",
            "held, because it is read once per part of the build side",
        ] {
            assert!(text.contains(rule), "{rule}: {text}");
        }
    }
}

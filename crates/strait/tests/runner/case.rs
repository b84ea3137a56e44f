//! One case: a join, two tables, and all settings, all derived from one seed.

use std::collections::HashMap;

use arrow::datatypes::DataType;
use strait::testing::{Fault, FaultKind, TestOverrides};
use strait::{
    Algorithm, FloatEquality, GpuOptions, Histogram, JoinType, NullEquality, Output, Partitioner,
    Processor, Side, SpillCompression, Statistics, TablePlace, Transfer,
};
use strait_testkit::domain::Style;
use strait_testkit::shape::{Skew, Split};
use strait_testkit::{Comparison, KeyKind, Pair, Rng, Shape, kinds, oracle};

use super::predicate::Cells;
use super::unusual::{self, Unusual};

/// The residual filters that are tested. All but the last two read the Int32 column `n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilterKind {
    /// `(left.n + right.n) % m != 0`; null if either `n` is null.
    SumNotDivisible(i64),
    /// `left.n` is even.
    LeftEven,
    /// `right.n` is even.
    RightEven,
    /// Null for every pair.
    AlwaysNull,
    /// The first left key is not null.
    KeyNotNull,
    /// A predicate of the hashes of any columns.
    Cells(Cells),
}

/// The algorithm that a case asks for. With None, the planner chooses.
pub(crate) type Choice = Option<Algorithm>;

/// How the case calls the join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// `Join::run`, with all columns.
    Whole,
    /// `Join::bind`, then `BoundJoin::run` with only the columns that the bound join needs.
    Bound,
}

/// All settings of a case.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    /// With None, the planner chooses.
    pub(crate) algorithm: Choice,
    pub(crate) join_type: JoinType,
    pub(crate) null_equality: NullEquality,
    pub(crate) float_equality: FloatEquality,
    pub(crate) filter: Option<FilterKind>,
    pub(crate) output: Output,
    pub(crate) build_side: Option<Side>,
    /// The statistics that the planner gets for each side, right or wrong.
    pub(crate) statistics: [Statistics; 2],
    pub(crate) threads: usize,
    pub(crate) batch_size: usize,
    pub(crate) keep_keys: bool,
    pub(crate) suffix: &'static str,
    pub(crate) mark_column: &'static str,
    /// The seed that chooses the output columns. With None, the output has all columns.
    pub(crate) select: Option<u64>,
    pub(crate) memory_limit: Option<u64>,
    /// Whether the join may spill.
    pub(crate) spill: bool,
    /// Whether it spills to temporary files. Most cases spill to memory instead: creating and deleting files takes
    /// most of the time of a small join.
    pub(crate) temp_files: bool,
    pub(crate) spill_compression: SpillCompression,
    /// The processor of the join, unless `force` selects a simulated device.
    pub(crate) processor: Processor,
    pub(crate) gpu_memory: Option<u64>,
    pub(crate) gpu_options: GpuOptions,
    pub(crate) entry: Entry,
    pub(crate) force: TestOverrides,
    pub(crate) unusual: Unusual,
    pub(crate) shape: Shape,
}

impl Case {
    /// The case of a seed, for one choice of algorithm.
    pub(crate) fn random(algorithm: Choice, seed: u64) -> (Case, Pair) {
        let number = algorithm.map_or(0, |algorithm| algorithm as u64 + 1);
        let mut rng = Rng::new(seed ^ (number << 56));
        let keys = kinds::random_key(&mut rng);
        let join_type = *rng.pick(&JoinType::ALL);
        let cell = (algorithm, join_type, keys);
        let (mut case, pair) = match rng.below(400) {
            0 => Case::with(&mut rng, cell, true),
            1 => Case::bulk(&mut rng, cell),
            _ => Case::with(&mut rng, cell, false),
        };
        // Thousands of rows with the same hash make millions of candidates, which take seconds.
        let thousands = pair.left.rows() + pair.right.rows() > 1000;
        case.force.collide &= !thousands || rng.chance(1, 8);
        unusual::apply(&mut rng, &mut case, &pair);
        case.temp_files = case.spill && rng.chance(1, 8);
        if case.spill {
            case.spill_compression = *rng.pick(&SpillCompression::ALL);
        }
        (case, pair)
    }

    /// A case with the given algorithm, join type and key. The rest is random.
    pub(crate) fn with(
        rng: &mut Rng,
        (algorithm, join_type, keys): (Choice, JoinType, Vec<KeyKind>),
        large: bool,
    ) -> (Case, Pair) {
        let mut shape = Shape::random(rng, keys, large);
        let filters = [
            FilterKind::SumNotDivisible(2),
            FilterKind::SumNotDivisible(5),
            FilterKind::LeftEven,
            FilterKind::RightEven,
            FilterKind::AlwaysNull,
            FilterKind::KeyNotNull,
        ];
        let filter = rng.chance(2, 5).then(|| *rng.pick(&filters));
        shape.numbers |= filter.is_some();
        let asks_to_spill = algorithm == Some(Algorithm::Spill);
        let outputs = [Output::Rows, Output::Rows, Output::Pairs, Output::Count];
        let case = Case {
            algorithm,
            join_type,
            null_equality: *rng.pick(&[NullEquality::NeverEqual, NullEquality::Equal]),
            float_equality: *rng.pick(&FloatEquality::ALL),
            filter,
            output: *rng.pick(&outputs),
            build_side: *rng.pick(&[None, None, Some(Side::Left), Some(Side::Right)]),
            statistics: [statistics(rng), statistics(rng)],
            threads: rng.between(1, 3),
            batch_size: *rng.pick(&[1, 2, 7, 64, 1000, strait::DEFAULT_BATCH_SIZE]),
            keep_keys: rng.chance(1, 3),
            suffix: ["_right", "_r", ".other"][rng.below(3)],
            mark_column: ["mark", "has a match"][rng.below(2)],
            select: rng.chance(1, 4).then(|| rng.bits()),
            memory_limit: match asks_to_spill && rng.chance(1, 2) {
                true => Some(1 << rng.between(14, 24)),
                false => memory_limit(rng),
            },
            spill: asks_to_spill || rng.chance(1, 3),
            temp_files: false,
            spill_compression: SpillCompression::None,
            processor: processor(),
            gpu_memory: None,
            gpu_options: GpuOptions::default(),
            entry: *rng.pick(&[Entry::Whole, Entry::Bound]),
            force: force(rng, large),
            unusual: Unusual::default(),
            shape,
        };
        let mut case = on_device(rng, case);
        // Most joins fit memory, so they spill only if they must.
        case.force.spill_at_once = case.spill && rng.chance(1, 2);
        let pair = Pair::generate(rng, &case.shape);
        match large && too_many_pairs(&case, &pair) {
            // For example, a boolean key with thousands of rows. Use small tables instead.
            true => Case::with(rng, (case.algorithm, case.join_type, case.shape.keys), false),
            false => (case, pair),
        }
    }
}

impl Case {
    /// The comparison rules of each key.
    pub(crate) fn terms(&self) -> Vec<Comparison> {
        self.shape.keys.iter().map(|key| self.compared(key.comparison())).collect()
    }

    /// The comparison rules for keys and for the order of the output.
    pub(crate) fn compared(&self, terms: Comparison) -> Comparison {
        match self.float_equality {
            FloatEquality::Numeric => terms.numeric(),
            FloatEquality::Total => terms,
            other => unreachable!("this test does not know {other}"),
        }
    }

    /// Whether the case runs on a device, real or simulated.
    pub(crate) fn on_device(&self) -> bool {
        let simulated = self.force.simulated.is_some() && !self.on_cpu_under_auto();
        simulated || matches!(self.processor, Processor::Gpu(_))
    }

    /// Whether `auto` does not use the device: a sort-merge join must return its rows in order.
    fn on_cpu_under_auto(&self) -> bool {
        self.force.auto && self.algorithm == Some(Algorithm::SortMerge)
    }

    /// Whether a device failure ends the join, even before the first row.
    pub(crate) fn ends_with_device(&self) -> bool {
        !self.force.auto || self.algorithm.is_some_and(Algorithm::needs_gpu)
    }

    /// A case with tables of tens of thousands of rows, on three threads.
    pub(crate) fn long(rng: &mut Rng, cell: (Choice, JoinType, Vec<KeyKind>)) -> (Case, Pair) {
        let (mut case, _) = Case::with(rng, cell, false);
        let shape = &mut case.shape;
        shape.distinct = 40_000;
        shape.style = *rng.pick(&[Style::Dense, Style::LowBitsEqual]);
        for side in [&mut shape.left, &mut shape.right] {
            side.rows = rng.between(50_000, 80_000);
            side.nulls = 0;
            side.skew = Skew::Uniform;
            side.split = Split::Random(20_000);
            side.payload = vec![DataType::Int64];
        }
        (case.threads, case.memory_limit) = (3, None);
        case.batch_size = case.batch_size.max(1000);
        let TestOverrides { wide_rows, simulated, seed, spill_at_once, table_parts, .. } =
            case.force;
        let bad_seeds = case.force.bad_seeds.min(1);
        let force = TestOverrides { wide_rows, simulated, seed, ..TestOverrides::default() };
        case.force = TestOverrides { bad_seeds, spill_at_once, table_parts, ..force };
        case.gpu_memory = None;
        case.force.tiny_partitions = rng.chance(1, 4);
        let pair = Pair::generate(rng, &case.shape);
        (case, pair)
    }
}

/// Whether so many rows have equal keys that the oracle would take too long.
pub(crate) fn too_many_pairs(case: &Case, pair: &Pair) -> bool {
    let terms = case.terms();
    let mut counts = HashMap::<_, [usize; 2]>::new();
    for (side, table) in [&pair.left, &pair.right].into_iter().enumerate() {
        let names = pair.keys.iter().map(|(l, r)| if side == 0 { l.as_str() } else { r.as_str() });
        let columns: Vec<_> = names.zip(terms.iter().copied()).collect();
        for key in oracle::keys(&table.batches, &columns) {
            counts.entry(key).or_default()[side] += 1;
        }
    }
    counts.values().map(|[left, right]| left * right).sum::<usize>() > 40_000
}

/// Returns no statistics in most cases, else facts that are mostly wrong.
fn statistics(rng: &mut Rng) -> Statistics {
    let mut known = Statistics::unknown();
    if rng.chance(2, 3) {
        return known;
    }
    let number = |rng: &mut Rng| rng.chance(1, 2).then(|| rng.bits() >> rng.below(64));
    (known.rows, known.bytes) = (number(rng), number(rng));
    (known.distinct, known.nulls) = (number(rng), number(rng));
    known.key_range = rng.chance(1, 4).then(|| (-i128::from(rng.bits()), i128::from(rng.bits())));
    known.sorted = rng.chance(1, 4);
    known
}

/// Returns no limit in most cases, else one that may or may not suffice.
fn memory_limit(rng: &mut Rng) -> Option<u64> {
    match rng.below(20) {
        0 => Some(1 << rng.between(8, 24)),
        1 => Some(1 << 34),
        _ => None,
    }
}

/// Returns the CPU, unless `STRAIT_DEVICE=gpu` selects a GPU for every case.
fn processor() -> Processor {
    match std::env::var("STRAIT_DEVICE") {
        Ok(name) => name.parse().unwrap_or_else(|error| panic!("STRAIT_DEVICE: {error}")),
        Err(_) => Processor::Cpu,
    }
}

/// Puts the case on a simulated device if its algorithm needs a GPU, and otherwise in one of three cases.
/// Some of these devices have little memory, or too little.
fn on_device(rng: &mut Rng, mut case: Case) -> Case {
    let needs_gpu = case.algorithm.is_some_and(Algorithm::needs_gpu);
    if case.processor == Processor::Cpu && (needs_gpu || rng.chance(1, 3)) {
        case.force.simulated = Some(rng.bits());
        case.gpu_memory = rng.chance(1, 5).then(|| 1 << rng.between(10, 22));
        // Some cases run as if `auto` had chosen the device. In some, an operation of the device fails.
        case.force.auto = rng.chance(1, 6);
        let most = 1 << rng.below(9);
        let nth = rng.below(most) as u64;
        case.force.fault =
            rng.chance(1, 8).then(|| Fault { kind: *rng.pick(&FaultKind::ALL), nth });
    }
    if case.on_device() {
        case.gpu_options = gpu_options(rng, &case);
    }
    case
}

/// Chooses the GPU options: the defaults in half of the cases.
fn gpu_options(rng: &mut Rng, case: &Case) -> GpuOptions {
    let options = GpuOptions::new();
    if rng.chance(1, 2) {
        return options;
    }
    let transfer = match *rng.pick(&Transfer::ALL) {
        // Few machines support this.
        Transfer::Coherence if case.force.simulated.is_none() => Transfer::Auto,
        transfer => transfer,
    };
    let options = options.transfer(transfer);
    let table = *rng.pick(&TablePlace::ALL);
    let of_triton = case.algorithm == Some(Algorithm::Triton);
    let theirs: Vec<_> =
        Partitioner::ALL.into_iter().filter(|p| p.to_host() == of_triton).collect();
    let partitioner = *rng.pick(&theirs);
    match case.algorithm {
        Some(Algorithm::Triton) => {
            // A cache of zero bytes is one of the choices.
            let cache = rng.chance(1, 2).then(|| (1 << rng.between(0, 22)) & !1);
            let histogram = match partitioner {
                Partitioner::Dma => Histogram::None,
                _ => *rng.pick(&Histogram::ALL),
            };
            options.partitioner(partitioner).cache(cache).histogram(histogram)
        }
        Some(Algorithm::Radix) => options.partitioner(partitioner),
        Some(Algorithm::NoPartition) | None => options.table(table),
        _ => options,
    }
}

fn force(rng: &mut Rng, large: bool) -> TestOverrides {
    let seed = Some(rng.bits());
    // If every hash is the same, every key is compared with every other one. This is only feasible for small
    // tables.
    let most = if large { 2 } else { 5 };
    let bad_seeds = if rng.chance(1, 8) { rng.between(1, most) as u32 } else { 0 };
    let rare = rng.chance(1, 2);
    let mut on = || rare && rng.chance(1, 3);
    TestOverrides {
        collide: on() && !large,
        wide_rows: on(),
        tiny_partitions: on(),
        tiny_chunks: on(),
        row_ids: on(),
        table_parts: on(),
        seed,
        bad_seeds,
        ..TestOverrides::default()
    }
}

//! Joins of sides in host memory on a simulated device. Every conductor, transfer method and partitioner must
//! find the same matches as a loop over all pairs, for any order in which the device runs its work.

use std::sync::Arc;

use super::*;
use crate::device::simulated::{Settings, Simulated, TINY};
use crate::device::{EVENTS, Event, Flavour, HostView};
use crate::gpu_options::{GpuOptions, Histogram, Partitioner, TablePlace, Transfer};
use crate::key::KeyEncoding;
use crate::machine::Machine;
use crate::matches::{FlagPlan, FlaggedBy};
use crate::options::{JoinType, Yields};
use crate::plan::{
    Facts, GpuCandidate, HostMemory, JobCosts, Learned, Request, ResultOrder, Statistics, choose,
};
use crate::schedule::Workers;
use crate::transfer::{BlockColumn, Drain, HostColumn};
use crate::word::Width;

/// Collects all pairs and flags.
struct Kept {
    drain: Drain<()>,
    pairs: Vec<(u64, u64)>,
    flags: [Vec<bool>; 2],
}

impl Kept {
    fn take_all(&mut self, session: &Session<'_>) -> Result<()> {
        let Kept { drain, pairs, .. } = self;
        drain.take_all(session, &mut |a| taken(pairs, a.rows, a.columns))
    }
}

fn taken(pairs: &mut Vec<(u64, u64)>, rows: usize, columns: &[&[u8]]) -> Result<()> {
    let word = |bytes: &[u8], i: usize| {
        let mut all = [0; 8];
        all.copy_from_slice(&bytes[8 * i..8 * (i + 1)]);
        u64::from_le_bytes(all)
    };
    pairs.extend((0..rows).map(|i| (word(columns[0], i), word(columns[1], i))));
    Ok(())
}

impl PairsOnly for Kept {
    fn block(&mut self, session: &Session<'_>, block: OutputBlock) -> Result<Option<Event>> {
        let Kept { drain, pairs, .. } = self;
        let columns = [block.build, block.probe].map(|view| BlockColumn { view, bits: 64 });
        drain.send(session, &columns, block.rows, (), &mut |a| taken(pairs, a.rows, a.columns))
    }

    fn flags(&mut self, which: Which, first: u64, flags: &[u8]) -> Result<()> {
        for (i, &flag) in flags.iter().enumerate() {
            self.flags[which as usize][first as usize + i] |= flag != 0;
        }
        Ok(())
    }

    fn meanwhile(&mut self, session: &Session<'_>) -> Result<()> {
        self.take_all(session)
    }
}

/// One test case: settings of the join and of the device.
struct Case {
    seed: u64,
    memory: u64,
    algorithm: Algorithm,
    gpu_options: GpuOptions,
    escalation: Option<Algorithm>,
    /// Whether the build side is joined in short parts.
    tiny_parts: bool,
    flavour: Flavour,
    chunk_rows: Option<u64>,
}

impl Case {
    /// Plans the join of two sides with these numbers of rows.
    fn plan(&self, [build, probe]: [usize; 2]) -> Plan {
        let machine = Machine::detect();
        let mut facts = Facts::of_columns(Width::W64, Yields::Pairs, &machine);
        facts.gpu_options = self.gpu_options;
        facts.overrides.tiny_partitions = self.tiny_parts;
        let columns = if self.pinned() { HostMemory::Pinned } else { HostMemory::Pageable };
        let mut plan = choose(Request {
            asked: Some(self.algorithm),
            partitioner: self.gpu_options.partitioner,
            join_type: JoinType::Inner,
            build_side: None,
            build: Statistics::rows(build as u64),
            probe: Statistics::rows(probe as u64),
            threads: 2,
            limit: None,
            prompt: false,
            costs: JobCosts::none(),
            key: KeyEncoding::of_words(Width::W64),
            facts,
            device: Some(GpuCandidate {
                name: "simulated".to_string(),
                budget: self.memory,
                asked: true,
                open: true,
                row_bytes: 8,
                columns,
            }),
        });
        plan.escalation = self.escalation;
        plan
    }

    /// For odd seeds, the columns lie in pinned memory, which stages may read directly.
    fn pinned(&self) -> bool {
        self.seed % 2 == 1
    }
}

/// Joins two key columns, and compares the result with a loop over all pairs.
fn check(case: &Case, build: &[u64], probe: &[u64]) -> Result<()> {
    checked(case, build, probe).map(|_| ())
}

/// Does the same. Returns how often the host has waited for all work of a stream.
fn checked(case: &Case, build: &[u64], probe: &[u64]) -> Result<usize> {
    let Case { seed, memory, gpu_options, flavour, chunk_rows, .. } = case;
    let mut plan = case.plan([build.len(), probe.len()]);
    plan.refine(Learned { most_chunk_rows: *chunk_rows, ..Learned::default() });
    let settings = Settings { memory: *memory, shape: TINY, seed: *seed, ..Settings::default() };
    let device = Simulated::new(settings);
    let session = Session::new(&device, Width::W64)?;
    let workers = Workers::new(2, Arc::default());
    let link = TransferContext {
        session: &session,
        workers: &workers,
        transfer: plan.transfer()?,
        most_rows: plan.chunk_rows()?.build,
    };
    let side = |keys: &[u64]| -> Result<HostSide> {
        let column = match case.pinned() {
            // SAFETY: the slices outlive the session.
            false => unsafe { HostColumn::pageable(HostView::of(keys)) },
            true => {
                let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
                let pinned = session.device.pinned(bytes.len().max(1), "a column")?;
                // SAFETY: nobody else has this memory yet.
                let room = unsafe { pinned.bytes_mut() };
                room[..bytes.len()].copy_from_slice(&bytes);
                HostColumn::pinned(&pinned, 0, bytes.len() as u64)
            }
        };
        Ok(HostSide { keys: column, values: None, rows: keys.len() as u64 })
    };
    let flags = matches!(flavour, Flavour::PairsFlagged | Flavour::Exists);
    let by_kernels = flags.then_some(FlaggedBy::Search);
    let wanted = Wanted {
        flavour: *flavour,
        keys: false,
        signed: false,
        flags: FlagPlan { build: by_kernels, probe: by_kernels },
        build_flags: None,
        probe_flags: None,
        expected_rows: probe.len() as u64,
    };
    let mut kept = Kept {
        drain: Drain::new(),
        pairs: Vec::new(),
        flags: [vec![false; build.len()], vec![false; probe.len()]],
    };
    let (build_side, probe_side) = (side(build)?, Incoming::from(side(probe)?));
    let found = join_from_host(&link, &mut plan, &build_side, &probe_side, &wanted, &mut kept)?;
    kept.take_all(&session)?;
    let waits = device.waits();

    let what = format!("{} by {gpu_options:?}, {flavour:?}, seed {seed}", plan.algorithm);
    says_what_ran(&plan, &session, &what);
    let mut pairs: Vec<(u64, u64)> = Vec::new();
    for (p, key) in probe.iter().enumerate() {
        let same = build.iter().enumerate().filter(|(_, other)| *other == key);
        pairs.extend(same.map(|(b, _)| (b as u64, p as u64)));
    }
    match flavour {
        Flavour::Pairs | Flavour::PairsFlagged => {
            kept.pairs.sort_unstable();
            let mut expected = pairs.clone();
            expected.sort_unstable();
            assert_eq!(kept.pairs, expected, "{what}");
            assert_eq!(found.rows, pairs.len() as u64, "{what}");
        }
        Flavour::Aggregate => {
            let sums = pairs.iter().fold((0, 0), |sums, pair| (sums.0 + pair.0, sums.1 + pair.1));
            let wanted =
                JoinResult { rows: pairs.len() as u64, build_sum: sums.0, probe_sum: sums.1 };
            assert_eq!(found, wanted, "{what}");
        }
        Flavour::Exists => {}
    }
    if flags {
        let has = |keys: &[u64], others: &[u64]| -> Vec<bool> {
            keys.iter().map(|key| others.contains(key)).collect()
        };
        assert_eq!(kept.flags, [has(build, probe), has(probe, build)], "{what}");
    }
    Ok(waits)
}

/// A count adds up on the device. The host reads it back once, and not once per chunk.
#[test]
fn a_streamed_count_is_read_back_once() {
    let (build, probe) = (unique(100), keys(2000, 3, 150));
    for algorithm in [Algorithm::NoPartition, Algorithm::MultiPass] {
        let waits = |chunk_rows: u64| {
            let mut case = case(0, algorithm, GpuOptions::default());
            (case.flavour, case.chunk_rows) = (Flavour::Aggregate, Some(chunk_rows));
            case.tiny_parts = false;
            checked(&case, &build, &probe).unwrap()
        };
        // Ten times as many chunks of the probe side. The build side has at most six more chunks.
        let (few, many) = (waits(200), waits(20));
        assert!(many < few + 20, "{algorithm}: {few} waits for 10 chunks, {many} for 100");
    }
}

/// Checks that a plan says what ran, also after an escalation.
fn says_what_ran(plan: &Plan, session: &Session<'_>, what: &str) {
    let (work, details) = (session.work(), &plan.details);
    assert_eq!(work.transfers.first().copied(), details.transfer, "{what}");
    assert_eq!(work.radix_bits, details.radix_bits, "{what}");
    assert_eq!((work.chunks_in_order, details.order), (0, Some(ResultOrder::Unordered)), "{what}");
    let planned = details.parts.unwrap_or(0);
    match plan.algorithm {
        // Working sets without probe rows are not joined.
        Algorithm::CpuPartitioned | Algorithm::Triton => assert!(work.parts <= planned, "{what}"),
        _ => assert_eq!(work.parts, planned, "{what}"),
    }
}

/// Returns random keys with at most `distinct` different values.
fn keys(rows: u64, seed: u64, distinct: u64) -> Vec<u64> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..rows).map(|_| random.u64(..distinct).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

fn unique(rows: u64) -> Vec<u64> {
    (0..rows).map(|i| (i + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
}

const FLAVOURS: [Flavour; 4] =
    [Flavour::Pairs, Flavour::PairsFlagged, Flavour::Exists, Flavour::Aggregate];

fn case(seed: u64, algorithm: Algorithm, gpu_options: GpuOptions) -> Case {
    Case {
        seed,
        memory: 2 << 20,
        algorithm,
        gpu_options,
        escalation: None,
        tiny_parts: seed % 2 == 1,
        flavour: FLAVOURS[seed as usize / 2 % 4],
        chunk_rows: [None, Some(7), Some(20)][seed as usize % 3],
    }
}

#[test]
fn every_conductor_finds_every_pair() {
    let build = [unique(90), keys(90, 1, 30), vec![7; 40], keys(3, 2, 2)];
    let probe = [keys(150, 3, 100), unique(120), vec![7; 30], keys(200, 4, 3)];
    for algorithm in Algorithm::ON_GPU {
        for (i, build) in build.iter().enumerate() {
            for (j, probe) in probe.iter().enumerate() {
                for seed in 0..8 {
                    let seed = seed + 8 * (i + 4 * j) as u64;
                    check(&case(seed, algorithm, GpuOptions::default()), build, probe).unwrap();
                }
            }
        }
    }
}

#[test]
fn every_way_to_cross_and_to_partition_gives_the_same() {
    let build = keys(80, 5, 60);
    let probe = keys(140, 6, 70);
    for seed in 0..8 {
        for transfer in Transfer::ALL {
            let gpu_options = GpuOptions { transfer, ..GpuOptions::default() };
            for algorithm in Algorithm::ON_GPU {
                check(&case(seed, algorithm, gpu_options), &build, &probe).unwrap();
            }
        }
        for table in TablePlace::ALL {
            let gpu_options = GpuOptions { table, ..GpuOptions::default() };
            check(&case(seed, Algorithm::NoPartition, gpu_options), &build, &probe).unwrap();
        }
        for partitioner in Partitioner::ALL.into_iter().filter(|p| p.to_host()) {
            for histogram in Histogram::ALL {
                for cache in [None, Some(0), Some(1 << 12), Some(1 << 30)] {
                    let partitioner = Some(partitioner);
                    let gpu_options =
                        GpuOptions { partitioner, histogram, cache, ..GpuOptions::default() };
                    let joined = check(&case(seed, Algorithm::Triton, gpu_options), &build, &probe);
                    let refused =
                        partitioner == Some(Partitioner::Dma) && histogram != Histogram::None;
                    assert_eq!(joined.is_err(), refused, "{gpu_options:?}: {joined:?}");
                }
            }
        }
    }
}

/// With less and less memory, a join either succeeds or reports the memory it needs. It never gives a wrong
/// answer. Algorithms for any size succeed even with the smallest budgets.
#[test]
fn budgets_from_the_smallest_up() {
    let build = keys(300, 7, 200);
    let probe = keys(500, 8, 250);
    let plain = Algorithm::ON_GPU.into_iter().map(|algorithm| (algorithm, GpuOptions::default()));
    let scattered = [Partitioner::Standard, Partitioner::Shared, Partitioner::Hierarchical]
        .into_iter()
        .flat_map(|partitioner| Histogram::ALL.map(|histogram| (partitioner, histogram)))
        .map(|(partitioner, histogram)| {
            let partitioner = Some(partitioner);
            (Algorithm::Triton, GpuOptions { partitioner, histogram, ..GpuOptions::default() })
        });
    for (algorithm, gpu_options) in plain.chain(scattered) {
        let mut least = u64::MAX;
        for shift in 0..24 {
            let memory = (3u64 << 20) >> (shift / 2);
            for seed in 0..3 {
                let mut case = case(seed + shift, algorithm, gpu_options);
                case.memory = memory;
                case.tiny_parts = false;
                match check(&case, &build, &probe) {
                    Ok(()) => least = least.min(memory),
                    Err(Error::DeviceMemory { .. }) => {}
                    Err(error) => panic!("{algorithm} in {memory}: {error}"),
                }
            }
        }
        // The redo list takes a large part of this, for any number of rows.
        let enough = if algorithm.needs_gpu() { 256 << 10 } else { 512 << 10 };
        assert!(least <= enough, "{algorithm}, {gpu_options:?} needs {least}");
    }
}

/// A stream may be far longer than the number of events that a device remembers. Rows that were copied out
/// long ago must not prevent later chunks from being joined.
#[test]
fn long_streams_with_few_matches() {
    let build = [1, 2, 3];
    let mut probe = vec![9; 3 * EVENTS];
    for at in [0, 1, EVENTS, 3 * EVENTS - 1] {
        probe[at] = 2;
    }
    for algorithm in [Algorithm::NoPartition, Algorithm::MultiPass] {
        let mut case = case(0, algorithm, GpuOptions::default());
        for flavour in FLAVOURS {
            (case.flavour, case.chunk_rows, case.tiny_parts) = (flavour, Some(1), false);
            check(&case, &build, &probe).unwrap();
        }
    }
}

/// A plan that needs more memory than there is escalates to several passes, and gives the same result.
#[test]
fn a_join_that_may_escalates() {
    let build = unique(2000);
    let probe = keys(3000, 9, 2500);
    for algorithm in Algorithm::ON_GPU {
        for seed in 0..4 {
            let mut case = case(seed, algorithm, GpuOptions::default());
            (case.memory, case.tiny_parts, case.chunk_rows) = (160 << 10, false, Some(50));
            let alone = check(&case, &build, &probe);
            assert!(alone.is_ok() || matches!(alone, Err(Error::DeviceMemory { .. })), "{alone:?}");
            case.escalation = Some(Algorithm::MultiPass);
            check(&case, &build, &probe).unwrap();
        }
    }
}

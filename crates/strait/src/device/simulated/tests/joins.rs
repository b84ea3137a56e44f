//! Join stages against a nested loop: every way to find matches, every flavour, both word widths, with an
//! output so small that tasks are cut and redone.

use super::*;
use crate::device::Flavour;
use crate::device::abi::{
    ClearTable, Columns, DeviceTable, FillGroups, Insert, JoinShared, MergeJoin, Output,
    PlaceGroups, Probe, Redo, Task,
};
use crate::device::simulated::word::Tuple;

const SEEDS: u64 = 40;
const FLAVOURS: [Flavour; 4] =
    [Flavour::Pairs, Flavour::PairsFlagged, Flavour::Exists, Flavour::Aggregate];

/// How matches are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Shared,
    /// A hashed table with unique keys, or with groups. True means from tuples, false from columns.
    Unique(bool),
    Groups(bool),
    Direct,
    /// An array, which may be full.
    Array,
    Merge,
}

/// Two sides with raw keys. Values are row numbers, starting at 100 and at 200.
struct Sides<W> {
    build: Vec<Tuple<W>>,
    probe: Vec<Tuple<W>>,
}

fn sides<W: TestWord>(bench: &mut Bench, way: Way) -> Sides<W> {
    let build_rows = 1 + bench.random.u64(..40) as usize;
    let probe_rows = 1 + bench.random.u64(..40) as usize;
    let domain = 1 + bench.random.u64(..30);
    let direct = matches!(way, Way::Direct | Way::Array);
    let spread = |key: u64| if direct { key + 50 } else { key << (W::BITS - 6) };
    let mut keys: Vec<u64> = (0..build_rows).map(|_| bench.random.u64(..domain)).collect();
    if matches!(way, Way::Unique(_) | Way::Array) {
        keys.sort_unstable();
        keys.dedup();
        bench.random.shuffle(&mut keys);
    }
    let side = |keys: Vec<u64>, first: u64| -> Vec<Tuple<W>> {
        let word = |key: u64| W::from_u64(spread(key));
        let row = |(value, key)| Tuple { key: word(key), value: W::from_u64(value) };
        (first..).zip(keys).map(row).collect()
    };
    let build = side(keys, 100);
    let others = (0..probe_rows).map(|_| bench.random.u64(..domain + 3)).collect();
    Sides { build, probe: side(others, 200) }
}

type Rows = Vec<(u64, u64, u64)>;

fn naive<W: TestWord>(sides: &Sides<W>) -> Rows {
    let mut rows = Rows::new();
    for build in &sides.build {
        for probe in sides.probe.iter().filter(|probe| probe.key == build.key) {
            rows.push((build.key.to_u64(), build.value.to_u64(), probe.value.to_u64()));
        }
    }
    rows.sort_unstable();
    rows
}

/// A function from tasks, their count and an output to a stage.
type Launch = Box<dyn Fn(u64, u32, Output) -> DeviceStage>;

/// Prepares the memory that a stage needs. Returns its tasks, and a function from tasks and output to the
/// stage.
fn prepare<W: TestWord>(bench: &mut Bench, way: Way, sides: &Sides<W>) -> (Vec<Task>, Launch) {
    let mix = |side: &[Tuple<W>]| -> Vec<Tuple<W>> {
        side.iter().map(|t| Tuple { key: t.key.mix(mixer()), ..*t }).collect()
    };
    match way {
        Way::Shared => {
            let (build, probe) = (mix(&sides.build), mix(&sides.probe));
            let mut tasks = Vec::new();
            for (b, build) in (0u64..).zip(build.chunks(4)) {
                for (p, probe) in (0u64..).zip(probe.chunks(3)) {
                    let (build_rows, probe_rows) = (build.len() as u32, probe.len() as u32);
                    tasks.push(Task { build: 4 * b, probe: 3 * p, build_rows, probe_rows });
                }
            }
            let (build, probe) = (bench.put(&build), bench.put(&probe));
            let stage = move |tasks, count, output| {
                let join = JoinShared { build, probe, tasks, count, unused: 0, output };
                DeviceStage::JoinShared(Flavour::Pairs, join)
            };
            (tasks, Box::new(stage))
        }
        Way::Merge => {
            let sorted = |side: &[Tuple<W>]| {
                let mut side = side.to_vec();
                side.sort_by_key(|tuple| tuple.key);
                side
            };
            let (build_rows, probe_rows) = (sides.build.len() as u64, sides.probe.len() as u64);
            let build = bench.put(&sorted(&sides.build));
            let probe = bench.put(&sorted(&sides.probe));
            let splits = bench.room::<u64>(2 * sides.probe.len());
            let stage = move |tasks, count, output| {
                let tile = 5;
                DeviceStage::MergeJoin(
                    Flavour::Pairs,
                    MergeJoin {
                        build,
                        build_rows,
                        probe,
                        probe_rows,
                        tasks,
                        splits,
                        count,
                        tile,
                        output,
                    },
                )
            };
            (Vec::new(), Box::new(stage))
        }
        Way::Unique(_) | Way::Groups(_) | Way::Direct | Way::Array => {
            let table = build_table(bench, way, sides);
            let tuples = matches!(way, Way::Unique(true) | Way::Groups(true));
            let (columns, tuples) = source(bench, &sides.probe, tuples);
            let rows = sides.probe.len() as u64;
            let stage = move |tasks, count, output| {
                let tile = 5;
                DeviceStage::Probe(
                    Flavour::Pairs,
                    Probe { table, columns, tuples, rows, tasks, count, tile, output },
                )
            };
            (Vec::new(), Box::new(stage))
        }
    }
}

/// Puts a side into device memory: columns with raw keys, or tuples with mixed keys.
pub(super) fn source<W: TestWord>(
    bench: &mut Bench,
    side: &[Tuple<W>],
    tuples: bool,
) -> (Columns, u64) {
    if tuples {
        let mixed: Vec<Tuple<W>> =
            side.iter().map(|t| Tuple { key: t.key.mix(mixer()), ..*t }).collect();
        return (Columns::default(), bench.put(&mixed));
    }
    let keys: Vec<W> = side.iter().map(|tuple| tuple.key).collect();
    let values: Vec<W> = side.iter().map(|tuple| tuple.value).collect();
    // Values are row numbers, so the device may also compute them.
    let counted = bench.random.u64(..2) == 0;
    let first = if counted { side[0].value.to_u64() } else { 0 };
    let values = if counted { 0 } else { bench.put(&values) };
    (Columns { keys: bench.put(&keys), values, first }, 0)
}

fn build_table<W: TestWord>(bench: &mut Bench, way: Way, sides: &Sides<W>) -> DeviceTable {
    let rows = sides.build.len();
    let unique = matches!(way, Way::Unique(_) | Way::Array);
    let direct = matches!(way, Way::Direct | Way::Array);
    let (slot_count, slot) = match way {
        Way::Direct => (30, 8),
        // Up to the largest key, so that some arrays are full.
        Way::Array => {
            let places = sides.build.iter().map(|tuple| tuple.key.to_u64() - 49).max();
            (places.unwrap_or(1) as usize, size_of::<W>())
        }
        Way::Unique(_) => (64, 2 * size_of::<W>()),
        _ => (64, 16),
    };
    let table = DeviceTable {
        slots: bench.room::<u8>(slot_count * slot),
        groups: if unique { 0 } else { bench.room::<W>(rows) },
        taken: if way == Way::Array { bench.room::<u32>(1) } else { 0 },
        slot_count: slot_count as u64,
        min: if direct { 50 } else { 0 },
        bits: if direct { 5 } else { 6 },
        direct: u32::from(direct),
        mixing: mixing::<W>(),
    };
    let tuples = matches!(way, Way::Unique(true) | Way::Groups(true));
    let (columns, tuples) = source(bench, &sides.build, tuples);
    let rows = rows as u64;
    let slot_of = if unique { 0 } else { bench.room::<u32>(rows as usize) };
    let rank = if unique { 0 } else { bench.room::<u32>(rows as usize) };
    let control = bench.zeros::<Control>(1);
    bench.run::<W>(DeviceStage::ClearTable(ClearTable { table }));
    let insert = Insert { table, columns, tuples, rows, slot_of, rank, control };
    bench.run::<W>(DeviceStage::Insert(insert));
    assert_eq!(bench.control(control), Control::default());
    if unique {
        bench.run::<W>(DeviceStage::Insert(insert));
        assert_eq!(bench.control(control).duplicates, 1, "all of them come again");
        let full = way == Way::Array && rows == table.slot_count;
        return DeviceTable { taken: if full { 0 } else { table.taken }, ..table };
    }
    let cursor = bench.zeros::<u64>(1);
    bench.run::<W>(DeviceStage::PlaceGroups(PlaceGroups { table, cursor }));
    assert_eq!(bench.get::<u64>(cursor, 1), [rows]);
    let fill = FillGroups { table, columns, tuples, rows, slot_of, rank };
    bench.run::<W>(DeviceStage::FillGroups(fill));
    table
}

fn with_flavour(stage: DeviceStage, flavour: Flavour) -> DeviceStage {
    match stage {
        DeviceStage::JoinShared(_, stage) => DeviceStage::JoinShared(flavour, stage),
        DeviceStage::Probe(_, stage) => DeviceStage::Probe(flavour, stage),
        DeviceStage::MergeJoin(_, stage) => DeviceStage::MergeJoin(flavour, stage),
        other => other,
    }
}

/// Cuts a task that has too many rows.
fn cut(redo: &Redo, most: u64, shared: bool) -> Vec<Task> {
    let Redo { task, rows } = *redo;
    if rows <= most {
        return vec![task];
    }
    if task.probe_rows > 1 {
        let half = task.probe_rows / 2;
        let rest = task.probe_rows - half;
        let second = Task { probe: task.probe + u64::from(half), probe_rows: rest, ..task };
        return vec![Task { probe_rows: half, ..task }, second];
    }
    let take = |from: u64| (rows - from).min(most) as u32;
    let pieces = (0..rows).step_by(most as usize);
    if !shared {
        return pieces
            .map(|from| Task { build: task.build + from, build_rows: take(from), ..task })
            .collect();
    }
    let take = |from: u32| (task.build_rows - from).min(most as u32);
    (0..task.build_rows)
        .step_by(most as usize)
        .map(|from| Task { build: task.build + u64::from(from), build_rows: take(from), ..task })
        .collect()
}

/// The complete result of a join.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    rows: Rows,
    build_flags: Vec<u8>,
    probe_flags: Vec<u8>,
    counted: u64,
    sums: (u64, u64),
}

/// Joins like a conductor: empties the output when it is full, and redoes tasks that found no room.
fn conduct<W: TestWord>(seed: u64, way: Way, flavour: Flavour, capacity: u64) -> (Rows, Outcome) {
    let mut bench = Bench::new(seed);
    let sides = sides::<W>(&mut bench, way);
    let (mut tasks, stage) = prepare(&mut bench, way, &sides);
    let shared = way == Way::Shared;
    let room = capacity as usize;
    let control = bench.zeros::<Control>(1);
    let most = 3.min(capacity);
    let mut output = Output {
        keys: bench.room::<W>(room),
        build: bench.room::<W>(room),
        probe: bench.room::<W>(room),
        build_flags: bench.zeros::<u8>(300),
        probe_flags: bench.zeros::<u8>(300),
        capacity,
        most,
        control,
        redo: 0,
        mixed: u32::from(!matches!(way, Way::Merge | Way::Direct)),
        unmixing: unmixing::<W>(),
        sign: 0,
    };
    let mut outcome = Outcome::default();
    let mut tiles = (sides.probe.len() as u64).div_ceil(5) as u32;
    if shared {
        tiles = 0;
    }
    let mut next = 0;
    loop {
        let count = if tiles > 0 { tiles } else { tasks.len() as u32 };
        let list = if tiles > 0 { 0 } else { bench.put(&tasks) };
        let mut redone = Vec::new();
        while next < count {
            // A task with several rounds may have one redo entry per round.
            output.redo = bench.room::<Redo>(3 * count as usize);
            bench.write(control, &[Control { next, ..Control::default() }]);
            bench.run::<W>(with_flavour(stage(list, count, output), flavour));
            let found = bench.control(control);
            let full = found.full != 0;
            let written = if full { found.counted } else { found.rows } as usize;
            let column = |address| bench.get::<W>(address, written);
            let (keys, build, probe) =
                (column(output.keys), column(output.build), column(output.probe));
            for at in 0..written {
                let row = (keys[at].to_u64(), build[at].to_u64(), probe[at].to_u64());
                outcome.rows.push(row);
            }
            redone.extend(bench.get::<Redo>(output.redo, found.redone as usize));
            outcome.counted += if full { 0 } else { found.counted };
            outcome.sums.0 += found.build_sum;
            outcome.sums.1 += found.probe_sum;
            assert!(full || found.next > count);
            next = found.next;
        }
        tasks = redone.iter().flat_map(|redo| cut(redo, most, shared)).collect();
        (tiles, next) = (0, 0);
        if tasks.is_empty() {
            break;
        }
    }
    outcome.rows.sort_unstable();
    outcome.build_flags = bench.get(output.build_flags, 300);
    outcome.probe_flags = bench.get(output.probe_flags, 300);
    (naive(&sides), outcome)
}

fn check<W: TestWord>(way: Way) {
    for seed in 0..SEEDS {
        for flavour in FLAVOURS {
            let capacity = [1, 4, 9, 5000][seed as usize % 4];
            let (rows, outcome) = conduct::<W>(seed, way, flavour, capacity);
            let flags = |of: fn(&(u64, u64, u64)) -> u64| {
                let mut flags = vec![0u8; 300];
                if matches!(flavour, Flavour::Exists | Flavour::PairsFlagged) {
                    rows.iter().for_each(|row| flags[of(row) as usize] = 1);
                }
                flags
            };
            let aggregate = flavour == Flavour::Aggregate;
            let sum = |of: fn(&(u64, u64, u64)) -> u64| {
                if aggregate { rows.iter().map(of).sum() } else { 0 }
            };
            let writes = matches!(flavour, Flavour::Pairs | Flavour::PairsFlagged);
            let expected = Outcome {
                build_flags: flags(|row| row.1),
                probe_flags: flags(|row| row.2),
                counted: if aggregate { rows.len() as u64 } else { 0 },
                sums: (sum(|row| row.1), sum(|row| row.2)),
                rows: if writes { rows.clone() } else { Rows::new() },
            };
            assert_eq!(outcome, expected, "seed {seed}, {way:?}, {flavour:?}");
        }
    }
}

#[test]
fn co_partitions_are_joined() {
    check::<u32>(Way::Shared);
    check::<u64>(Way::Shared);
}

#[test]
fn unique_tables_are_probed() {
    for tuples in [false, true] {
        check::<u32>(Way::Unique(tuples));
        check::<u64>(Way::Unique(tuples));
    }
}

#[test]
fn tables_of_groups_are_probed() {
    for tuples in [false, true] {
        check::<u32>(Way::Groups(tuples));
        check::<u64>(Way::Groups(tuples));
    }
}

#[test]
fn direct_tables_are_probed() {
    check::<u32>(Way::Direct);
    check::<u64>(Way::Direct);
}

#[test]
fn arrays_are_probed() {
    check::<u32>(Way::Array);
    check::<u64>(Way::Array);
}

#[test]
fn sorted_sides_are_merged() {
    check::<u32>(Way::Merge);
    check::<u64>(Way::Merge);
}

#[test]
fn narrow_values_may_be_signed() {
    let mut bench = Bench::new(1);
    let side = [Tuple { key: 1u32, value: u32::MAX }];
    let (build, probe) = (bench.put(&side), bench.put(&side));
    let task = Task { build: 0, probe: 0, build_rows: 1, probe_rows: 1 };
    for (sign, sum) in [(1, u64::MAX), (0, u64::from(u32::MAX))] {
        let control = bench.zeros::<Control>(1);
        let output = Output { control, sign, ..Output::default() };
        let tasks = bench.put(&[task]);
        let join = JoinShared { build, probe, tasks, count: 1, unused: 0, output };
        bench.run::<u32>(DeviceStage::JoinShared(Flavour::Aggregate, join));
        assert_eq!(bench.control(control).build_sum, sum);
    }
}

#[test]
fn tasks_and_outputs_outside_are_errors() {
    let run = |task: Task, capacity: u64| {
        let mut bench = Bench::new(4);
        let side = bench.put(&[Tuple { key: 1u32, value: 1 }; 4]);
        let room = bench.room::<u32>(8);
        let output = Output {
            build: room,
            probe: room,
            capacity,
            most: capacity,
            control: bench.zeros::<Control>(1),
            redo: bench.room::<Redo>(3),
            ..Output::default()
        };
        let tasks = bench.put(&[task]);
        let join = JoinShared { build: side, probe: side, tasks, count: 1, unused: 0, output };
        message(bench.try_run::<u32>(DeviceStage::JoinShared(Flavour::Pairs, join)))
    };
    let task = Task { build: 0, probe: 2, build_rows: 4, probe_rows: 2 };
    assert_eq!(run(task, 8), "");
    assert!(run(task, 9).contains("output build"));
    assert!(run(Task { build: 1, ..task }, 8).contains("build tuples"));
    assert!(run(Task { probe: 3, ..task }, 8).contains("probe tuples"));
    assert!(run(Task { build_rows: 5, ..task }, 8).contains("shared memory"));
}

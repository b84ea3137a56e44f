//! Co-partitions in which one key has many rows. A thread block sets this key aside, so its rows take another
//! path than the rows of other keys. Every flavour must return the same rows as a nested loop, also if the
//! output is so small that tasks are redone and cut.

use std::collections::HashMap;

use super::*;
use crate::device::abi::{JoinShared, Redo, Task};

/// One case: how many rows of a table have other keys, and how many probe rows have the frequent key.
#[derive(Debug, Clone, Copy)]
struct Case {
    others: Others,
    /// Whether the rows of the frequent key are adjacent.
    together: bool,
    /// Probe rows with the frequent key.
    probes: usize,
}

/// The rows of a full table that do not have the frequent key.
#[derive(Debug, Clone, Copy)]
enum Others {
    None,
    One,
    Half,
    /// Nearly all rows. The key may or may not count as frequent.
    Most,
}

/// Both sides, in words that are already mixed. The value of a tuple is its row number.
struct Sides<W> {
    build: Vec<W>,
    probe: Vec<W>,
    /// Rows per table.
    table: usize,
}

/// A row of output: key, build value and probe value.
type Row = [u64; 3];

fn sides<W: TestWord>(bench: &mut Bench, case: Case) -> Sides<W> {
    let full = bench.device.shape(W::WORD).build_rows as usize;
    let table = if bench.large && reduced() { full.min(2500) } else { full };
    let others = match case.others {
        Others::None => 0,
        Others::One => 1,
        Others::Half => table / 2,
        Others::Most => table - table / 8,
    };
    let frequent = bench.random.u64(..);
    // The low bits choose the bucket, so these keys share the bucket of the frequent key.
    let colliding = |number: usize| W::from_u64(frequent ^ (number as u64 + 1) << 16);
    // Two full tables, and one that is not full.
    let mut build: Vec<W> = Vec::new();
    for row in 0..2 * table + table / 3 {
        build.push(match row % table {
            place if place >= others => W::from_u64(frequent),
            place if place % 2 == 0 => colliding(row),
            _ => W::from_u64(bench.random.u64(..)),
        });
    }
    let mut probe = vec![W::from_u64(frequent); case.probes];
    // With most of the other keys, the probe side takes several rounds.
    let step = if matches!(case.others, Others::Most) && !reduced() { 2 } else { 37 };
    probe.extend(build.iter().filter(|key| **key != W::from_u64(frequent)).step_by(step));
    // These keys have no match.
    probe.extend((0..20).map(|number| colliding(40_000 + number)));
    if !case.together {
        build.chunks_mut(table).for_each(|table| bench.random.shuffle(table));
    }
    bench.random.shuffle(&mut probe);
    Sides { build, probe, table }
}

/// Returns all matches, in order. Keys are as they are in the tuples.
fn naive<W: TestWord>(sides: &Sides<W>) -> Vec<Row> {
    let mut places = HashMap::<u64, Vec<u64>>::new();
    for (row, key) in (0..).zip(&sides.build) {
        places.entry(key.to_u64()).or_default().push(row);
    }
    let mut rows = Vec::new();
    for (row, key) in (0..).zip(&sides.probe) {
        let build = places.get(&key.to_u64()).map_or(&[][..], Vec::as_slice);
        rows.extend(build.iter().map(|&build| [key.to_u64(), build, row]));
    }
    rows.sort_unstable();
    rows
}

/// Cuts a task that has too many rows: its probe side first, then its build side.
fn cut(redo: &Redo, most: u64) -> Vec<Task> {
    let Redo { task, rows } = *redo;
    if rows <= most {
        return vec![task];
    }
    if task.probe_rows > 1 {
        let half = task.probe_rows / 2;
        let second = Task {
            probe: task.probe + u64::from(half),
            probe_rows: task.probe_rows - half,
            ..task
        };
        return vec![Task { probe_rows: half, ..task }, second];
    }
    let half = task.build_rows / 2;
    let second =
        Task { build: task.build + u64::from(half), build_rows: task.build_rows - half, ..task };
    vec![Task { build_rows: half, ..task }, second]
}

/// The columns and the counts that a join returns.
#[derive(Default)]
struct Found {
    rows: Vec<Row>,
    counted: u64,
    sums: [u64; 2],
}

/// Joins all tasks like a conductor: empties the output when it is full, and redoes tasks.
fn conduct<W: TestWord>(
    bench: &mut Bench,
    (flavour, mut join): (Flavour, JoinShared),
    mut tasks: Vec<Task>,
) -> Found {
    let mut found = Found::default();
    while !tasks.is_empty() {
        let (mut redone, mut next) = (Vec::new(), 0);
        join.tasks = bench.put(&tasks);
        join.count = tasks.len() as u32;
        while next < join.count {
            // Every round of a task may be redone.
            join.output.redo = bench.room::<Redo>(16 * tasks.len());
            join.output.control = bench.put(&[Control { next, ..Control::default() }]);
            bench.run::<W>(DeviceStage::JoinShared(flavour, join));
            let control = bench.get::<Control>(join.output.control, 1)[0];
            let full = control.full != 0;
            let written = if full { control.counted } else { control.rows } as usize;
            let column = |address| bench.get::<W>(address, written);
            let [keys, build, probe] =
                [join.output.keys, join.output.build, join.output.probe].map(column);
            let row = |at: usize| [keys[at].to_u64(), build[at].to_u64(), probe[at].to_u64()];
            found.rows.extend((0..written).map(row));
            found.counted += if full { 0 } else { control.counted };
            found.sums[0] = found.sums[0].wrapping_add(control.build_sum);
            found.sums[1] = found.sums[1].wrapping_add(control.probe_sum);
            redone.extend(bench.get::<Redo>(join.output.redo, control.redone as usize));
            assert!(full || control.next > join.count, "tasks were left");
            next = control.next;
        }
        tasks = redone.iter().flat_map(|redo| cut(redo, join.output.most)).collect();
    }
    found.rows.sort_unstable();
    found
}

fn check<W: TestWord>(bench: &mut Bench, case: Case) {
    let what = format!("{:?} {case:?}", W::WORD);
    let sides = sides::<W>(bench, case);
    let expected = naive(&sides);
    let all = expected.len() as u64;
    let mut tasks = Vec::new();
    let round = bench.device.shape(W::WORD).probe_rows as usize;
    for build in (0..sides.build.len()).step_by(sides.table) {
        for probe in (0..sides.probe.len()).step_by(round) {
            tasks.push(Task {
                build: build as u64,
                probe: probe as u64,
                build_rows: sides.table.min(sides.build.len() - build) as u32,
                probe_rows: round.min(sides.probe.len() - probe) as u32,
            });
        }
    }
    let tuples = |keys: &[W]| -> Vec<Tuple<W>> {
        (0u64..).zip(keys).map(|(row, &key)| [key, W::from_u64(row)]).collect()
    };
    let flag = |length: usize, of: fn(&Row) -> u64| {
        let mut flags = vec![0u8; length];
        expected.iter().for_each(|row| flags[of(row) as usize] = 1);
        flags
    };
    let build_flags = flag(sides.build.len(), |row| row[1]);
    let probe_flags = flag(sides.probe.len(), |row| row[2]);
    let sum = |of: fn(&Row) -> u64| expected.iter().map(of).fold(0, u64::wrapping_add);
    let sums = [sum(|row| row[1]), sum(|row| row[2])];
    let unmixing = Mixing::of(mixer::<W>().inverse());

    // An output with room for everything, and one in which tasks are redone and cut.
    for (capacity, most) in [(all.max(1), all.max(1)), (all / 3 + 1, all / 7 + 1)] {
        for (flavour, flagging, mixed) in [
            (Flavour::Pairs, [false, false], 1),
            (Flavour::PairsFlagged, [true, true], 0),
            (Flavour::Exists, [false, true], 0),
            (Flavour::Exists, [true, true], 0),
            (Flavour::Aggregate, [false, false], 0),
        ] {
            let rows = matches!(flavour, Flavour::Pairs | Flavour::PairsFlagged);
            if capacity < all && !rows {
                continue;
            }
            let what = format!("{what}, {flavour:?}, flags {flagging:?}, {capacity} of {all} rows");
            let build = bench.put(&flat(&tuples(&sides.build)));
            let probe = bench.put(&flat(&tuples(&sides.probe)));
            let [of_build, of_probe] = [sides.build.len(), sides.probe.len()];
            let output = Output {
                keys: bench.room::<W>(capacity as usize),
                build: bench.room::<W>(capacity as usize),
                probe: bench.room::<W>(capacity as usize),
                build_flags: if flagging[0] { bench.zeros::<u8>(of_build) } else { 0 },
                probe_flags: if flagging[1] { bench.zeros::<u8>(of_probe) } else { 0 },
                capacity,
                most,
                mixed,
                unmixing,
                ..Output::default()
            };
            let join = JoinShared { build, probe, output, ..JoinShared::default() };
            let found = conduct::<W>(bench, (flavour, join), tasks.clone());
            if rows {
                let mut wanted = expected.clone();
                if mixed == 1 {
                    let unmix = |key: u64| W::from_u64(key).mix(mixer::<W>().inverse()).to_u64();
                    wanted.iter_mut().for_each(|row| row[0] = unmix(row[0]));
                    wanted.sort_unstable();
                }
                assert!(found.rows == wanted, "{what}");
            }
            if flavour == Flavour::Aggregate {
                assert_eq!((found.counted, found.sums), (all, sums), "{what}");
            }
            if flagging[0] {
                assert!(bench.get::<u8>(output.build_flags, of_build) == build_flags, "{what}");
            }
            if flagging[1] {
                assert!(bench.get::<u8>(output.probe_flags, of_probe) == probe_flags, "{what}");
            }
            bench.clear();
        }
    }
}

#[test]
fn frequent_keys_find_all_their_rows() {
    everywhere(|bench| {
        let many = match (bench.large, reduced()) {
            (false, _) => 3,
            (true, true) => 5,
            (true, false) => 70,
        };
        let all = [Others::None, Others::One, Others::Half, Others::Most];
        // Under the sanitizer, a case on a GPU takes seconds.
        let (others, probes): (&[Others], &[usize]) = match bench.large && reduced() {
            true => (&all[2..3], &[1, many]),
            false => (&all, &[0, 1, many]),
        };
        for &others in others {
            for together in [false, true] {
                // The key has no probe row, one probe row, or many.
                for &probes in probes {
                    let case = Case { others, together, probes };
                    check::<u32>(bench, case);
                    check::<u64>(bench, case);
                }
            }
        }
    });
}

/// So many probe rows have the frequent key that each warp has some in every round.
#[test]
fn frequent_keys_of_both_sides_meet() {
    everywhere(|bench| {
        let probes = match (bench.large, reduced()) {
            (false, _) => 9,
            (true, true) => 40,
            (true, false) => 500,
        };
        let case = Case { others: Others::Half, together: false, probes };
        check::<u32>(bench, case);
        check::<u64>(bench, case);
    });
}

//! Partitioning stages against naive answers.

use super::*;
use crate::device::abi::{
    BINS, Bounds, Columns, Digit, Gather, Histogram, ListTasks, LookBack, MAX_PASSES, Offsets,
    Survey, Task,
};
use crate::device::simulated::word::Tuple;

const SEEDS: u64 = 20;

fn digit<W: TestWord>(key: W, digit: Digit) -> usize {
    ((key.to_u64() >> digit.shift) & u64::from(digit.mask)) as usize
}

fn survey<W: TestWord>(seed: u64) {
    let mut bench = Bench::new(seed);
    let keys = bench.words::<W>(30, u64::MAX);
    let column = bench.put(&keys);
    let found = bench.zeros::<u64>(4);
    // In two parts, because the results of several surveys are combined.
    for (at, rows) in [(0, 11), (11, 19)] {
        let keys = column + at * size_of::<W>() as u64;
        bench.run::<W>(DeviceStage::Survey(Survey { keys, rows, found }));
    }
    let not = |key: &W| W::from_u64(!key.to_u64()).to_u64();
    let expected = [
        keys.iter().map(|key| key.to_u64()).max().unwrap(),
        keys.iter().map(not).max().unwrap(),
        keys.iter().fold(0, |bits, key| bits | key.to_u64()),
        keys.iter().fold(0, |bits, key| bits | not(key)),
    ];
    assert_eq!(bench.get::<u64>(found, 4), expected);
}

fn histogram<W: TestWord>(seed: u64, mix: bool) {
    let mut bench = Bench::new(seed);
    let keys = bench.words::<W>(100, u64::MAX);
    let column = bench.put(&keys);
    let mut digits = [Digit::default(); MAX_PASSES];
    digits[0] = Digit { shift: W::BITS - 8, mask: 255 };
    digits[1] = Digit { shift: 3, mask: 15 };
    let bins = bench.zeros::<u64>(2 * BINS);
    let mix_keys = u32::from(mix);
    let stage = Histogram {
        keys: column,
        rows: 100,
        bins,
        digits,
        passes: 2,
        mix: mix_keys,
        mixing: mixing::<W>(),
        stride: 1,
        unused: 0,
    };
    // The same keys in a column and in tuples.
    let tuples: Vec<Tuple<W>> =
        keys.iter().map(|&key| Tuple { key, value: key.mix(mixer()) }).collect();
    bench.run::<W>(DeviceStage::Histogram(stage));
    let of_tuples = Histogram { keys: bench.put(&tuples), stride: 2, ..stage };
    bench.run::<W>(DeviceStage::Histogram(of_tuples));
    let mut expected = vec![0u64; 2 * BINS];
    for key in keys {
        let key = if mix { key.mix(mixer()) } else { key };
        expected[digit(key, digits[0])] += 2;
        expected[BINS + digit(key, digits[1])] += 2;
    }
    assert_eq!(bench.get::<u64>(bins, 2 * BINS), expected);

    bench.run::<W>(DeviceStage::Offsets(Offsets { bins, passes: 2, unused: 0 }));
    let begins = bench.get::<u64>(bins, 2 * BINS);
    for pass in [0, BINS] {
        for bin in 0..BINS {
            let before: u64 = expected[pass..pass + bin].iter().sum();
            assert_eq!(begins[pass + bin], before);
        }
    }
    let wrong = bench.try_run::<W>(DeviceStage::Histogram(Histogram { stride: 0, ..stage }));
    assert!(message(wrong).contains("one or two words apart"));
}

/// One pass over rows in two launches. The second continues where the first ended.
struct Pass {
    columns: Columns,
    tuples: u64,
    to_tuples: u64,
    to_keys: u64,
    to_values: u64,
    digit: Digit,
    mix: u32,
    stable: u32,
}

fn pass<W: TestWord>(bench: &mut Bench, keys: &[W], rows: u64, pass: &Pass) {
    let mut begins = vec![0u64; BINS];
    for (bin, begin) in begins.iter_mut().enumerate() {
        *begin = keys.iter().filter(|&&key| digit(key, pass.digit) < bin).count() as u64;
    }
    let mut base = bench.put(&begins);
    let (word, tuple) = (size_of::<W>() as u64, 2 * size_of::<W>() as u64);
    let cut = bench.random.u64(..rows - 1) + 1;
    for (at, rows) in [(0, cut), (cut, rows - cut)] {
        let moved = |address: u64, size: u64| if address == 0 { 0 } else { address + at * size };
        let next_base = bench.room::<u64>(BINS);
        let stage = LookBack {
            columns: Columns {
                keys: moved(pass.columns.keys, word),
                values: moved(pass.columns.values, word),
                first: pass.columns.first + at,
            },
            tuples: moved(pass.tuples, tuple),
            to_tuples: pass.to_tuples,
            to_keys: pass.to_keys,
            to_values: pass.to_values,
            rows,
            base,
            next_base,
            status: bench.zeros::<u32>(rows.div_ceil(8) as usize * BINS),
            ticket: bench.zeros::<u32>(1),
            digit: pass.digit,
            mix: pass.mix,
            mixing: mixing::<W>(),
            stable: pass.stable,
        };
        bench.run::<W>(DeviceStage::LookBack(stage));
        base = next_base;
    }
}

/// Columns to tuples by one digit, then tuples to columns by a higher one: the result is sorted by both.
fn look_back<W: TestWord>(seed: u64, mix: bool, values: bool) {
    let mut bench = Bench::new(seed);
    let rows = 2 + bench.random.u64(..60) as usize;
    let keys = bench.words::<W>(rows, u64::MAX);
    let payload = bench.words::<W>(rows, u64::MAX);
    let columns = Columns {
        keys: bench.put(&keys),
        values: if values { bench.put(&payload) } else { 0 },
        first: 1000,
    };
    let key = |key: W| if mix { key.mix(mixer()) } else { key };
    let value = |row: usize| if values { payload[row] } else { W::from_u64(1000 + row as u64) };
    let (low, high) = (Digit { shift: 5, mask: 7 }, Digit { shift: 8, mask: 3 });
    let mut expected: Vec<Tuple<W>> =
        (0..rows).map(|row| Tuple { key: key(keys[row]), value: value(row) }).collect();
    let mixed: Vec<W> = expected.iter().map(|tuple| tuple.key).collect();

    let to_tuples = bench.room::<Tuple<W>>(rows);
    let first = Pass {
        columns,
        tuples: 0,
        to_tuples,
        to_keys: 0,
        to_values: 0,
        digit: low,
        mix: u32::from(mix),
        stable: 1,
    };
    pass(&mut bench, &mixed, rows as u64, &first);
    expected.sort_by_key(|tuple| digit(tuple.key, low));
    assert_eq!(bench.get::<Tuple<W>>(to_tuples, rows), expected);

    let (to_keys, to_values) = (bench.room::<W>(rows), bench.room::<W>(rows));
    let none = Columns::default();
    let last = Pass {
        columns: none,
        tuples: to_tuples,
        to_tuples: 0,
        to_keys,
        to_values,
        digit: high,
        ..first
    };
    pass(&mut bench, &mixed, rows as u64, &last);
    expected.sort_by_key(|tuple| digit(tuple.key, high));
    let (keys, values): (Vec<W>, Vec<W>) = expected.iter().map(|t| (t.key, t.value)).unzip();
    assert_eq!(bench.get::<W>(to_keys, rows), keys);
    assert_eq!(bench.get::<W>(to_values, rows), values);
}

/// If order is not required, digits are right, and for some seed the rows come in another order.
fn unstable<W: TestWord>(seed: u64) -> bool {
    let mut bench = Bench::new(seed);
    let keys = bench.words::<W>(20, 256);
    let columns = Columns { keys: bench.put(&keys), values: 0, first: 0 };
    let to_tuples = bench.room::<Tuple<W>>(20);
    let digit_wanted = Digit { shift: 6, mask: 3 };
    let only = Pass {
        columns,
        tuples: 0,
        to_tuples,
        to_keys: 0,
        to_values: 0,
        digit: digit_wanted,
        mix: 0,
        stable: 0,
    };
    pass(&mut bench, &keys, 20, &only);
    let found = bench.get::<Tuple<W>>(to_tuples, 20);
    assert!(found.is_sorted_by_key(|tuple| digit(tuple.key, digit_wanted)));
    let mut rows: Vec<u64> = found.iter().map(|tuple| tuple.value.to_u64()).collect();
    let kept = found.is_sorted_by_key(|tuple| (digit(tuple.key, digit_wanted), tuple.value));
    rows.sort_unstable();
    assert_eq!(rows, (0..20).collect::<Vec<u64>>());
    kept
}

fn bounds_and_tasks<W: TestWord>(seed: u64, bits: u32) {
    let mut bench = Bench::new(seed);
    let partitions = 1u32 << bits;
    let shift = W::BITS - bits;
    let mut side = |rows: usize| {
        let mut keys = bench.words::<W>(rows, u64::MAX);
        keys.sort_unstable();
        let tuples: Vec<Tuple<W>> = keys.iter().map(|&key| Tuple { key, value: key }).collect();
        let (address, bounds) = (bench.put(&tuples), bench.room::<u64>(partitions as usize + 1));
        let stage = Bounds { tuples: address, rows: rows as u64, bounds, shift, partitions };
        bench.run::<W>(DeviceStage::Bounds(stage));
        let found = bench.get::<u64>(bounds, partitions as usize + 1);
        let part = |key: W| key.to_u64().checked_shr(shift).unwrap_or(0);
        for (partition, &begin) in (0u64..).zip(&found) {
            assert_eq!(begin, keys.iter().filter(|&&key| part(key) < partition).count() as u64);
        }
        (bounds, found)
    };
    let (build_bounds, build) = side(17);
    let (probe_bounds, probe) = side(23);

    let list = |bench: &mut Bench, capacity: u32| {
        let (tasks, count) = (bench.room::<Task>(capacity as usize), bench.room::<u32>(1));
        let (build_rows, probe_rows) = (4, 3);
        bench.run::<W>(DeviceStage::ListTasks(ListTasks {
            build_bounds,
            probe_bounds,
            tasks,
            count,
            partitions,
            build_rows,
            probe_rows,
            capacity,
        }));
        let count = bench.get::<u32>(count, 1)[0];
        (count, bench.get::<Task>(tasks, count.min(capacity) as usize))
    };
    let (count, tasks) = list(&mut bench, 500);
    assert_eq!(tasks.len(), count as usize);
    let mut met: Vec<(u64, u64)> = Vec::new();
    for task in tasks {
        assert!((1..=4).contains(&task.build_rows) && (1..=3).contains(&task.probe_rows));
        for build in task.build..task.build + u64::from(task.build_rows) {
            met.extend((0..u64::from(task.probe_rows)).map(|row| (build, task.probe + row)));
        }
    }
    met.sort_unstable();
    let mut expected: Vec<(u64, u64)> = (0..partitions as usize)
        .flat_map(|p| (build[p]..build[p + 1]).map(move |row| (p, row)))
        .flat_map(|(p, row)| (probe[p]..probe[p + 1]).map(move |other| (row, other)))
        .collect();
    expected.sort_unstable();
    assert_eq!(met, expected);
    assert_eq!(list(&mut bench, 2).0, count, "also where there is no room for them");
}

fn gather<W: TestWord>(seed: u64) {
    for width in [1usize, 2, 4, 8, 16] {
        let mut bench = Bench::new(seed);
        let source: Vec<u8> =
            bench.words::<u32>(20 * width, 256).iter().map(|&w| w as u8).collect();
        let rows = bench.words::<W>(33, 20);
        let (from, by) = (bench.put(&source), bench.put(&rows));
        let target = bench.room::<u8>(33 * width);
        let stage =
            Gather { rows: by, source: from, target, count: 33, width: width as u32, unused: 0 };
        bench.run::<W>(DeviceStage::Gather(stage));
        let row = |row: &W| source[row.to_u64() as usize * width..][..width].to_vec();
        assert_eq!(
            bench.get::<u8>(target, 33 * width),
            rows.iter().flat_map(row).collect::<Vec<_>>()
        );
        bench.write(by, &[W::from_u64(20)]);
        assert!(message(bench.try_run::<W>(DeviceStage::Gather(stage))).contains("source"));
    }
}

#[test]
fn surveys_find_what_bits_keys_have() {
    (0..SEEDS).for_each(survey::<u32>);
    (0..SEEDS).for_each(survey::<u64>);
}

#[test]
fn digits_are_counted_and_begin_where_they_should() {
    for seed in 0..SEEDS {
        histogram::<u32>(seed, seed % 2 == 0);
        histogram::<u64>(seed, seed % 2 == 0);
    }
}

#[test]
fn look_back_passes_sort() {
    for seed in 0..4 * SEEDS {
        look_back::<u32>(seed, seed & 1 != 0, seed & 2 != 0);
        look_back::<u64>(seed, seed & 1 != 0, seed & 2 != 0);
    }
}

#[test]
fn rows_keep_their_order_only_where_asked() {
    assert!((0..SEEDS).any(|seed| !unstable::<u32>(seed)));
    assert!((0..SEEDS).any(|seed| !unstable::<u64>(seed)));
}

#[test]
fn a_look_back_needs_zeros_and_a_target_apart() {
    let run = |status_byte: u8, ticket_byte: u8, over_itself: bool| {
        let mut bench = Bench::new(1);
        let tuples = bench.put(&[Tuple { key: 1u32, value: 1 }; 16]);
        let target = bench.room::<Tuple<u32>>(16);
        let stage = LookBack {
            tuples,
            to_tuples: if over_itself { tuples } else { target },
            rows: 16,
            base: bench.zeros::<u64>(BINS),
            next_base: bench.room::<u64>(BINS),
            status: bench.put(&vec![status_byte; 2 * BINS * 4]),
            ticket: bench.put(&[ticket_byte; 4]),
            digit: Digit { shift: 0, mask: 255 },
            stable: 1,
            ..LookBack::default()
        };
        let first = message(bench.try_run::<u32>(DeviceStage::LookBack(stage)));
        let second = message(bench.try_run::<u32>(DeviceStage::LookBack(stage)));
        assert!(second.contains("zero") || !first.is_empty(), "it uses them up: {second}");
        first
    };
    assert_eq!(run(0, 0, false), "");
    assert!(run(1, 0, false).contains("status was not zero"));
    assert!(run(0, 1, false).contains("ticket was not zero"));
    assert!(run(0, 0, true).contains("overlaps"));
}

#[test]
fn partitions_meet_in_tasks() {
    for seed in 0..SEEDS {
        for bits in [0, 1, 3] {
            bounds_and_tasks::<u32>(seed, bits);
            bounds_and_tasks::<u64>(seed, bits);
        }
    }
}

/// The partitions of a part: the bits above the radix bits must have no effect.
#[test]
fn bounds_see_only_their_bits() {
    let run = |keys: &[u64], partitions: u32| {
        let mut bench = Bench::new(1);
        let tuple = |key: &u64| Tuple { key: 0xab00_0000_0000_0000 | key << 48, value: *key };
        let tuples = bench.put(&keys.iter().map(tuple).collect::<Vec<_>>());
        let (rows, bounds) = (keys.len() as u64, bench.room::<u64>(5));
        let stage = Bounds { tuples, rows, bounds, shift: 48, partitions };
        let ran = bench.try_run::<u64>(DeviceStage::Bounds(stage));
        ran.map(|()| bench.get::<u64>(bounds, 5))
    };
    assert_eq!(run(&[0, 0, 1, 3, 3, 3], 4).unwrap(), [0, 2, 3, 3, 6]);
    assert!(message(run(&[0, 1], 3)).contains("power of two"));
    assert!(message(run(&[1, 0], 4)).contains("not ordered"));
}

#[test]
fn values_are_fetched_by_row() {
    gather::<u32>(1);
    gather::<u64>(2);
}

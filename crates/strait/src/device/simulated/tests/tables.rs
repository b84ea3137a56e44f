//! Special cases of tables: keys that equal the marks of empty slots, and tables that are full.

use super::joins::source;
use super::*;
use crate::device::Flavour;
use crate::device::abi::{
    ClearTable, Columns, DeviceTable, FillGroups, Insert, Output, PlaceGroups, Probe,
};
use crate::device::simulated::word::Tuple;

/// Returns a table with mixed keys.
fn of_mixed<W: TestWord>() -> DeviceTable {
    DeviceTable { mixing: mixing::<W>(), ..DeviceTable::default() }
}

/// Keys that equal the marks of empty slots are found, and only where they were inserted.
#[test]
fn no_key_is_reserved() {
    fn check<W: TestWord>() {
        let mut bench = Bench::new(2);
        let key = |slot: u64| W::from_u64(slot << (W::BITS - 3)).mix(unmixer());
        let tuple = |slot: u64| Tuple { key: key(slot), value: W::from_u64(slot) };
        let build: Vec<Tuple<W>> = [0, 1, 2, 5, 7].map(tuple).to_vec();
        let probe: Vec<Tuple<W>> = (0..8).map(tuple).collect();
        let table = DeviceTable {
            slots: bench.room::<Tuple<W>>(8),
            slot_count: 8,
            bits: 3,
            ..of_mixed::<W>()
        };
        bench.run::<W>(DeviceStage::ClearTable(ClearTable { table }));
        let control = bench.zeros::<Control>(1);
        let (columns, _) = source(&mut bench, &build, false);
        let columns = Columns { values: 0, first: 0, ..columns };
        let insert = Insert { table, columns, rows: 5, control, ..Insert::default() };
        bench.run::<W>(DeviceStage::Insert(insert));
        let probe_flags = bench.zeros::<u8>(8);
        let output = Output { control, probe_flags, ..Output::default() };
        let (columns, _) = source(&mut bench, &probe, false);
        let columns = Columns { values: 0, first: 0, ..columns };
        let stage =
            Probe { table, columns, rows: 8, count: 2, tile: 5, output, ..Probe::default() };
        bench.run::<W>(DeviceStage::Probe(Flavour::Exists, stage));
        assert_eq!(bench.get::<u8>(probe_flags, 8), [1, 1, 1, 0, 0, 1, 0, 1]);
    }
    check::<u32>();
    check::<u64>();
}

#[test]
fn a_full_table_is_an_error() {
    let mut bench = Bench::new(3);
    let keys: Vec<u32> = (0..4).collect();
    let table =
        DeviceTable { slots: bench.room::<u64>(4), slot_count: 4, bits: 2, ..of_mixed::<u32>() };
    bench.run::<u32>(DeviceStage::ClearTable(ClearTable { table }));
    let columns = Columns { keys: bench.put(&keys), ..Columns::default() };
    let control = bench.zeros::<Control>(1);
    let insert = |rows| Insert { table, columns, rows, control, ..Insert::default() };
    bench.run::<u32>(DeviceStage::Insert(insert(3)));
    let full = bench.try_run::<u32>(DeviceStage::Insert(insert(4)));
    assert!(message(full).contains("full"));
}

/// A compact table with unique keys or with groups, with load factors up to 95 %. It has keys at both ends
/// of the range, and keys that equal the marks of empty slots. Every inserted key is found, and no other.
fn compact<W: TestWord>(seed: u64, slot_count: u64, rows: u64, groups: bool) {
    let mut bench = Bench::new(seed);
    let mark = |slot: u64| W::from_u64((slot << 32).div_ceil(slot_count) << (W::BITS - 32));
    // Mixed keys: both ends, marks of some slots, and others. Half of them are inserted.
    let ones = W::from_u64(u64::MAX);
    let mut mixed = vec![ones, W::from_u64(0)];
    mixed.extend((0..rows).map(|_| mark(bench.random.u64(..slot_count))));
    mixed.extend(bench.words::<W>(2 * rows as usize, u64::MAX));
    mixed.sort_unstable();
    mixed.dedup();
    bench.random.shuffle(&mut mixed);
    for end in [ones, W::from_u64(0)] {
        let at = mixed.iter().position(|&key| key == end).unwrap();
        mixed.swap(at, if end == ones { 0 } else { 1 });
    }
    let keys: Vec<W> = mixed.iter().map(|key| key.mix(unmixer())).collect();
    let (rows, all) = (rows.min(keys.len() as u64), keys.len());
    let mut table = DeviceTable { slot_count, ..of_mixed::<W>() };
    let control = bench.zeros::<Control>(1);
    let columns = Columns { keys: bench.put(&keys), values: 0, first: 0 };
    let mut insert = Insert { columns, rows, control, ..Insert::default() };
    if groups {
        table.slots = bench.room::<[u64; 2]>(slot_count as usize);
        table.groups = bench.room::<W>(rows as usize);
        insert.slot_of = bench.room::<u32>(rows as usize);
        insert.rank = bench.room::<u32>(rows as usize);
    } else {
        table.slots = bench.room::<Tuple<W>>(slot_count as usize);
    }
    insert.table = table;
    bench.run::<W>(DeviceStage::ClearTable(ClearTable { table }));
    bench.run::<W>(DeviceStage::Insert(insert));
    if groups {
        let cursor = bench.zeros::<u64>(1);
        bench.run::<W>(DeviceStage::PlaceGroups(PlaceGroups { table, cursor }));
        let (slot_of, rank) = (insert.slot_of, insert.rank);
        let fill = FillGroups { table, columns, tuples: 0, rows, slot_of, rank };
        bench.run::<W>(DeviceStage::FillGroups(fill));
    }
    let (build_flags, probe_flags) = (bench.zeros::<u8>(rows as usize), bench.zeros::<u8>(all));
    let output = Output { control, build_flags, probe_flags, ..Output::default() };
    let count = all.div_ceil(5) as u32;
    let probe =
        Probe { table, columns, rows: all as u64, count, tile: 5, output, ..Probe::default() };
    bench.run::<W>(DeviceStage::Probe(Flavour::Exists, probe));
    let expected: Vec<u8> = (0..all as u64).map(|row| u8::from(row < rows)).collect();
    assert_eq!(bench.get::<u8>(probe_flags, all), expected, "{slot_count} slots, seed {seed}");
    assert_eq!(bench.get::<u8>(build_flags, rows as usize), vec![1u8; rows as usize]);
}

#[test]
fn compact_tables_of_any_size_find_their_keys() {
    for seed in 0..4 {
        for slots in [2, 3, 7, 10, 21, 64, 97, 255, 1000] {
            for rows in [slots / 2, slots * 19 / 20] {
                compact::<u32>(seed, slots, rows.max(1), seed & 1 != 0);
                compact::<u64>(seed, slots, rows.max(1), seed & 1 != 0);
            }
        }
    }
}

#[test]
fn compact_tables_have_two_slots_or_more_and_never_fill() {
    let run = |slot_count: u64, rows: u64| {
        let mut bench = Bench::new(4);
        let table = DeviceTable { slots: bench.room::<u64>(8), slot_count, ..of_mixed::<u32>() };
        let cleared = bench.try_run::<u32>(DeviceStage::ClearTable(ClearTable { table }));
        if cleared.is_err() {
            return message(cleared);
        }
        let keys: Vec<u32> = (0..rows as u32).collect();
        let columns = Columns { keys: bench.put(&keys), ..Columns::default() };
        let control = bench.zeros::<Control>(1);
        let insert = Insert { table, columns, rows, control, ..Insert::default() };
        message(bench.try_run::<u32>(DeviceStage::Insert(insert)))
    };
    assert!(run(1, 0).contains("2 to 2^32"));
    assert!(run(1 << 32, 0).contains("2 to 2^32"));
    assert_eq!(run(5, 4), "");
    assert!(run(5, 5).contains("full"));
}

//! Corners of tables: keys that look like empty slots, and tables that are full.

use super::joins::source;
use super::*;
use crate::device::Flavour;
use crate::device::abi::{ClearTable, Columns, Insert, Output, Probe, Table};
use crate::device::simulated::word::Tuple;

/// Keys that equal the marks of empty slots are found, and only where they were put.
#[test]
fn no_key_is_reserved() {
    fn check<W: TestWord>() {
        let mut bench = Bench::new(2);
        let key = |slot: u64| W::from_u64(slot << (W::BITS - 3)).unmix();
        let tuple = |slot: u64| Tuple { key: key(slot), value: W::from_u64(slot) };
        let build: Vec<Tuple<W>> = [0, 1, 2, 5, 7].map(tuple).to_vec();
        let probe: Vec<Tuple<W>> = (0..8).map(tuple).collect();
        let table =
            Table { slots: bench.room::<Tuple<W>>(8), slot_count: 8, bits: 3, ..Table::default() };
        bench.run::<W>(Stage::ClearTable(ClearTable { table }));
        let control = bench.zeros::<Control>(1);
        let (columns, _) = source(&mut bench, &build, false);
        let columns = Columns { values: 0, first: 0, ..columns };
        let insert = Insert { table, columns, rows: 5, control, ..Insert::default() };
        bench.run::<W>(Stage::Insert(insert));
        let probe_flags = bench.zeros::<u8>(8);
        let output = Output { control, probe_flags, ..Output::default() };
        let (columns, _) = source(&mut bench, &probe, false);
        let columns = Columns { values: 0, first: 0, ..columns };
        let stage =
            Probe { table, columns, rows: 8, count: 2, tile: 5, output, ..Probe::default() };
        bench.run::<W>(Stage::Probe(Flavour::Exists, stage));
        assert_eq!(bench.get::<u8>(probe_flags, 8), [1, 1, 1, 0, 0, 1, 0, 1]);
    }
    check::<u32>();
    check::<u64>();
}

#[test]
fn a_full_table_is_an_error() {
    let mut bench = Bench::new(3);
    let keys: Vec<u32> = (0..4).collect();
    let table = Table { slots: bench.room::<u64>(4), slot_count: 4, bits: 2, ..Table::default() };
    bench.run::<u32>(Stage::ClearTable(ClearTable { table }));
    let columns = Columns { keys: bench.put(&keys), ..Columns::default() };
    let control = bench.zeros::<Control>(1);
    let insert = |rows| Insert { table, columns, rows, control, ..Insert::default() };
    bench.run::<u32>(Stage::Insert(insert(3)));
    let full = bench.try_run::<u32>(Stage::Insert(insert(4)));
    assert!(message(full).contains("full"));
}

//! Tests which bits passes take, and all partitioners with one pass and several, on a simulated device.

use super::*;
use crate::device::DeviceSide;
use crate::device::simulated::{Settings, Simulated, TINY};
use crate::word::KeyWord;
use crate::word::Width;

type Partition =
    fn(&Session<'_>, &DeviceSide, &Digits, &mut Option<View>, &str) -> crate::error::Result<View>;

const PARTITIONERS: [(&str, Partition); 3] =
    [("look-back", ordered), ("bucket-pool", chained), ("shared-histogram", counted)];

/// Keys of a side. Kind 0: all different; kind 1: half of them different, the others equal; else: all equal.
fn keys(rows: u64, kind: u64) -> Vec<u64> {
    let key = |row: u64| match kind {
        0 => row.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        1 if row.is_multiple_of(2) => row,
        _ => 42,
    };
    (0..rows).map(key).collect()
}

fn check(name: &str, partition: Partition, bits: u32, kind: u64) {
    let device =
        Simulated::new(Settings { memory: 64 << 20, shape: TINY, seed: kind, coherent: true });
    let session = Session::new(&device, Width::W64).unwrap();
    let digits = Digits::top(bits, 64);
    let mut spare = None;
    // The second and the third side use the spare memory of the first, if it is large enough.
    for rows in [100, 37, 301] {
        let keys = keys(rows, kind);
        let column = session.allocate(rows * 8, "keys").unwrap();
        session.write(&keys, column).unwrap();
        let side = DeviceSide { keys: column, rows, ..DeviceSide::default() };
        let tuples = partition(&session, &side, &digits, &mut spare, "a side").unwrap();
        let words: Vec<u64> = session.read(tuples, 2 * rows as usize).unwrap();
        let mut found: Vec<(u64, u64)> = words.chunks(2).map(|t| (t[0], t[1])).collect();
        let what = format!("{name}: {bits} bits, {rows} rows of kind {kind}");
        assert!(found.is_sorted_by_key(|tuple| tuple.0 >> (64 - bits)), "{what}");
        let mut expected: Vec<(u64, u64)> =
            keys.iter().map(|key| key.mix(session.mixer())).zip(0..).collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected, "{what}");
    }
}

#[test]
fn partitioners_agree() {
    for (name, partition) in PARTITIONERS {
        for bits in [1, 5, 8, 9, 16, 17] {
            (0..3).for_each(|kind| check(name, partition, bits, kind));
        }
    }
}

fn widths(digits: &Digits) -> Vec<(u32, u32)> {
    digits.digits.iter().map(|d| (d.shift, d.mask.count_ones())).collect()
}

#[test]
fn top_bits_are_shared_out_over_passes() {
    assert_eq!(widths(&Digits::top(15, 64)), [(49, 8), (57, 7)]);
    assert_eq!(widths(&Digits::top(8, 32)), [(24, 8)]);
    assert_eq!(widths(&Digits::top(17, 64)), [(47, 6), (53, 6), (59, 5)]);
    assert_eq!(widths(&Digits::top(0, 64)), [(0, 0)]);
}

#[test]
fn only_bits_that_vary_are_sorted() {
    assert_eq!(widths(&Digits::varying((1 << 27) - 1)), [(0, 8), (8, 8), (16, 8), (24, 3)]);
    assert_eq!(widths(&Digits::varying(0b1011 << 40)), [(40, 4)]);
    assert_eq!(widths(&Digits::varying(1 << 63 | 1)), [(0, 8), (63, 1)]);
    assert_eq!(widths(&Digits::varying(0)), [(0, 1)]);
    assert_eq!(widths(&Digits::varying(u64::MAX)).len(), 8);
}

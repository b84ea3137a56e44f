//! Scatterers, tallies and packed keys against naive answers.

use super::*;
use crate::device::abi::{Columns, Digit, Pack, Scatter, Tally, Unpack};
use crate::device::simulated::word::Tuple;

const SEEDS: u64 = 20;
const SCATTERERS: [Scatterer; 4] =
    [Scatterer::Standard, Scatterer::Linear, Scatterer::Shared, Scatterer::Hierarchical];

fn digit<W: TestWord>(key: W, digit: Digit) -> usize {
    ((key.to_u64() >> digit.shift) & u64::from(digit.mask)) as usize
}

/// Rows as columns or tuples, and as the tuples that must arrive.
struct Rows<W> {
    columns: Columns,
    tuples: u64,
    mixed: Vec<Tuple<W>>,
}

fn rows<W: TestWord>(bench: &mut Bench, count: usize, tuples: bool) -> Rows<W> {
    let keys = bench.words::<W>(count, u64::MAX);
    let payload = bench.words::<W>(count, u64::MAX);
    let mixed = |row: usize| Tuple { key: keys[row].mix(mixer()), value: payload[row] };
    let mixed: Vec<Tuple<W>> = (0..count).map(mixed).collect();
    let columns = match tuples {
        true => Columns::default(),
        false => Columns { keys: bench.put(&keys), values: bench.put(&payload), first: 0 },
    };
    Rows { columns, tuples: if tuples { bench.put(&mixed) } else { 0 }, mixed }
}

/// Scatters in two launches. The second continues where the first ended. There are gaps between partitions.
fn scatter<W: TestWord>(seed: u64, how: Scatterer, bits: u32) {
    let mut bench = Bench::new(seed);
    let wanted = Digit { shift: W::BITS - bits.max(1), mask: (1 << bits) - 1 };
    let partitions = 1usize << bits;
    let gap = bench.random.u64(..3);
    let launches = [seed & 1 != 0, seed & 2 != 0].map(|tuples| {
        let count = bench.random.u64(..50) as usize;
        rows::<W>(&mut bench, count, tuples)
    });
    let all: Vec<Tuple<W>> = launches.iter().flat_map(|rows| rows.mixed.clone()).collect();

    let counts = bench.zeros::<u64>(partitions);
    for rows in &launches {
        let (keys, stride) = match rows.tuples {
            0 => (rows.columns.keys, 1),
            tuples => (tuples, 2),
        };
        let (count, mix) = (rows.mixed.len() as u64, u32::from(rows.tuples == 0));
        bench.run::<W>(DeviceStage::Tally(Tally {
            keys,
            rows: count,
            counts,
            digit: wanted,
            stride,
            mix,
            mixing: mixing::<W>(),
        }));
    }
    let counts = bench.get::<u64>(counts, partitions);
    for (partition, &count) in counts.iter().enumerate() {
        let of = all.iter().filter(|tuple| digit(tuple.key, wanted) == partition).count();
        assert_eq!(count, of as u64);
    }

    let (mut begins, mut next) = (Vec::new(), gap);
    for count in &counts {
        begins.push(next);
        next += count + gap;
    }
    let (cursors, to_tuples) = (bench.put(&begins), bench.room::<Tuple<W>>(next as usize));
    let bytes = bench.device.scatter_bytes(W::WORD, how, partitions as u32);
    assert_eq!(bytes > 0, how == Scatterer::Hierarchical);
    let buffers = if bytes > 0 { bench.room::<u8>(bytes as usize) } else { 0 };
    for Rows { columns, tuples, mixed } in &launches {
        let (columns, tuples, rows) = (*columns, *tuples, mixed.len() as u64);
        let (digit, mixing) = (wanted, mixing::<W>());
        let stage = Scatter { columns, tuples, to_tuples, rows, cursors, buffers, digit, mixing };
        bench.run::<W>(DeviceStage::Scatter(how, stage));
    }
    let ends = bench.get::<u64>(cursors, partitions);
    let target = bench.get::<Tuple<W>>(to_tuples, next as usize);
    for partition in 0..partitions {
        assert_eq!(ends[partition], begins[partition] + counts[partition]);
        let mut found = target[begins[partition] as usize..ends[partition] as usize].to_vec();
        let of = |tuple: &&Tuple<W>| digit(tuple.key, wanted) == partition;
        let mut expected: Vec<Tuple<W>> = all.iter().filter(of).copied().collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}

#[test]
fn every_scatterer_brings_tuples_to_their_partitions() {
    for seed in 0..SEEDS {
        for how in SCATTERERS {
            for bits in [0, 1, 4, 11] {
                scatter::<u32>(seed, how, bits);
                scatter::<u64>(seed, how, bits);
            }
        }
    }
}

#[test]
fn scatterers_need_room_apart() {
    let run = |change: fn(&mut Scatter)| {
        let mut bench = Bench::new(1);
        let tuple = |key: u64| Tuple { key, value: key };
        let tuples = bench.put(&[0, 1, 2, 3, 0, 1].map(tuple));
        let mut stage = Scatter {
            tuples,
            to_tuples: bench.room::<Tuple<u64>>(8),
            rows: 6,
            cursors: bench.put(&[0u64, 2, 4, 6]),
            buffers: bench.room::<Tuple<u64>>(5),
            digit: Digit { shift: 0, mask: 3 },
            ..Scatter::default()
        };
        change(&mut stage);
        message(bench.try_run::<u64>(DeviceStage::Scatter(Scatterer::Hierarchical, stage)))
    };
    assert_eq!(run(|_| ()), "");
    assert!(run(|stage| stage.to_tuples = stage.tuples - 64).contains("overlaps the source"));
    assert!(run(|stage| stage.to_tuples += 8).contains("not a multiple of 16"));
    assert!(run(|stage| stage.to_tuples += 64).contains("target tuples"));
    assert!(run(|stage| stage.buffers += 16).contains("buffers"));
    assert!(run(|stage| stage.cursors += 8).contains("cursors"));
    assert!(run(|stage| stage.digit.mask = 2).contains("outside the key"));
    assert!(run(|stage| stage.digit.mask = 4095).contains("outside the key"));
    let mut bench = Bench::new(1);
    let overlapping = Scatter {
        tuples: bench.put(&[Tuple { key: 0u64, value: 0 }, Tuple { key: 1, value: 0 }]),
        to_tuples: bench.room::<Tuple<u64>>(2),
        rows: 2,
        cursors: bench.put(&[1u64, 1]),
        digit: Digit { shift: 0, mask: 1 },
        ..Scatter::default()
    };
    let wrong = bench.try_run::<u64>(DeviceStage::Scatter(Scatterer::Shared, overlapping));
    assert!(message(wrong).contains("overlap one another"));
}

/// Unpacks packs of every width, at any byte. `change` may break them. Returns the device's message.
fn unpack<W: TestWord>(seed: u64, change: impl Fn(&mut Vec<Pack>)) -> String {
    let mut bench = Bench::new(seed);
    let (mut packed, mut packs, mut expected) = (Vec::<u8>::new(), Vec::new(), Vec::<W>::new());
    for bytes in [3u32, 0, 8, 1, 5, 2, 7, 4, 6, 0] {
        packed.resize(packed.len() + bench.random.u64(..4) as usize, 0xee);
        let (base, rows) = (bench.random.u64(..), bench.random.u64(..12) as u32);
        let (at, first) = (packed.len() as u64, expected.len() as u64);
        for _ in 0..rows {
            let value =
                bench.random.u64(..) & 1u64.checked_shl(8 * bytes).map_or(!0, |end| end - 1);
            packed.extend_from_slice(&value.to_le_bytes()[..bytes as usize]);
            expected.push(W::from_u64(base.wrapping_add(value)));
        }
        packs.push(Pack { at, base, first, rows, bytes });
    }
    change(&mut packs);
    let stage = Unpack {
        packed: bench.put(&packed),
        packs: bench.put(&packs),
        keys: bench.room::<W>(expected.len()),
        count: packs.len() as u32,
        unused: 0,
    };
    let ran = bench.try_run::<W>(DeviceStage::Unpack(stage));
    if ran.is_ok() {
        assert_eq!(bench.get::<W>(stage.keys, expected.len()), expected);
    }
    message(ran)
}

#[test]
fn packed_keys_become_words() {
    for seed in 0..SEEDS {
        assert_eq!(unpack::<u32>(seed, |_| ()), "");
        assert_eq!(unpack::<u64>(seed, |_| ()), "");
    }
}

#[test]
fn packs_lie_within_memory_and_apart() {
    let says = |change: fn(&mut Vec<Pack>)| unpack::<u64>(1, change);
    assert!(says(|packs| packs[0].bytes = 9).contains("8 bytes at most"));
    assert!(says(|packs| packs[0] = Pack { at: 1 << 20, rows: 1, ..packs[0] }).contains("packed"));
    assert!(says(|packs| packs[1] = Pack { first: 1 << 20, rows: 1, ..packs[1] }).contains("keys"));
    assert!(says(|packs| packs.push(Pack { first: 0, rows: 1, ..packs[1] })).contains("one row"));
}

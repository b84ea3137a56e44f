//! The partitioners other than look-back, stage by stage, against naive answers.

use super::*;
use crate::device::abi::{
    BINS, BucketPool, Chains, Columns, Compact, CutChains, Digit, Offsets, SharedHistogram,
};
use crate::device::simulated::word::Tuple;

const SEEDS: u64 = 20;
/// Tuples per bucket, as a power of two.
const BUCKET_BITS: u32 = 1;

fn digit<W: TestWord>(key: W, digit: Digit) -> u64 {
    (key.to_u64() >> digit.shift) & u64::from(digit.mask)
}

/// Random rows in columns, and the tuples they become.
struct Rows<W> {
    columns: Columns,
    tuples: Vec<Tuple<W>>,
}

/// Returns rows with keys below `end`. Few different keys make long partitions.
fn rows<W: TestWord>(bench: &mut Bench, count: usize, end: u64, values: bool) -> Rows<W> {
    let keys = bench.words::<W>(count, end);
    let payload: Vec<W> = match values {
        true => bench.words::<W>(count, u64::MAX),
        false => (0..count as u64).map(|row| W::from_u64(1000 + row)).collect(),
    };
    let columns = Columns {
        keys: bench.put(&keys),
        values: if values { bench.put(&payload) } else { 0 },
        first: 1000,
    };
    let tuple = |(key, value): (&W, &W)| Tuple { key: key.mix(mixer()), value: *value };
    Rows { columns, tuples: keys.iter().zip(&payload).map(tuple).collect() }
}

/// Checks that both have the same tuples, and that `found` is ordered by partition.
fn assert_partitioned<W: TestWord>(
    found: &[Tuple<W>],
    expected: &[Tuple<W>],
    partition: impl Fn(W) -> u64,
) {
    assert!(found.is_sorted_by_key(|tuple| partition(tuple.key)));
    let sorted = |tuples: &[Tuple<W>]| {
        let mut tuples = tuples.to_vec();
        tuples.sort_unstable();
        tuples
    };
    assert_eq!(sorted(found), sorted(expected));
}

/// Runs one pass of the three stages, over chunks of two tiles.
fn counted<W: TestWord>(bench: &mut Bench, stage: SharedHistogram) -> Vec<Tuple<W>> {
    let chunks = stage.rows.div_ceil(16);
    let stage = SharedHistogram {
        to_tuples: bench.room::<Tuple<W>>(stage.rows as usize),
        chunk: 16,
        counts: bench.room::<u32>(chunks as usize * BINS),
        bins: bench.room::<u64>(BINS),
        chunks: chunks as u32,
        ..stage
    };
    bench.run::<W>(DeviceStage::SharedCount(stage));
    bench.run::<W>(DeviceStage::SharedScan(stage));
    bench.run::<W>(DeviceStage::Offsets(Offsets { bins: stage.bins, passes: 1, unused: 0 }));
    bench.run::<W>(DeviceStage::SharedScatter(stage));
    bench.get(stage.to_tuples, stage.rows as usize)
}

/// Orders columns by the lower digit, then tuples by the higher one, which must keep their order.
fn shared_histogram<W: TestWord>(seed: u64, end: u64, values: bool) {
    let mut bench = Bench::new(seed);
    let count = 1 + bench.random.u64(..70) as usize;
    let rows = rows::<W>(&mut bench, count, end, values);
    let (low, high) = (Digit { shift: 5, mask: 7 }, Digit { shift: 8, mask: 3 });
    let first = SharedHistogram {
        columns: rows.columns,
        rows: count as u64,
        digit: low,
        mixing: mixing::<W>(),
        ..SharedHistogram::default()
    };
    let once = counted::<W>(&mut bench, first);
    assert_partitioned(&once, &rows.tuples, |key| digit(key, low));
    let tuples = bench.put(&once);
    let second = SharedHistogram { tuples, digit: high, ..first };
    let mut expected = once;
    expected.sort_by_key(|tuple| digit(tuple.key, high));
    assert_eq!(counted::<W>(&mut bench, second), expected);
}

/// Cuts chains into pieces, and checks the starts of the pieces against a naive sum.
fn cut(bench: &mut Bench, counts: u64, rows: u64, chains: u32, piece: u32) -> u64 {
    let starts = bench.room::<u32>(chains as usize + 1);
    bench.run::<u64>(DeviceStage::CutChains(CutChains { counts, rows, starts, chains, piece }));
    let lengths = match counts {
        0 => vec![rows as u32],
        counts => bench.get::<u32>(counts, chains as usize),
    };
    let found = bench.get::<u32>(starts, chains as usize + 1);
    for chain in 0..=chains as usize {
        let before: u32 = lengths[..chain].iter().map(|length| length.div_ceil(piece)).sum();
        assert_eq!(found[chain], before);
    }
    starts
}

/// Returns the stage of one pass. Its pool has exactly the buckets that the worst case needs.
fn pass<W: TestWord>(
    bench: &mut Bench,
    columns: Columns,
    from: Chains,
    step: (u64, u32, Digit),
) -> BucketPool {
    let (rows, parents, digit) = step;
    let digit_bits = digit.mask.count_ones();
    let most = |chains: u64| (rows >> BUCKET_BITS) + rows.min(chains);
    let buckets = most(u64::from(parents) << digit_bits);
    let to = Chains {
        tuples: bench.room::<Tuple<W>>((buckets << BUCKET_BITS) as usize),
        directory: bench.zeros::<u32>((most(parents.into()) << digit_bits) as usize),
        slots: cut(bench, from.counts, rows, parents, 1 << BUCKET_BITS),
        counts: bench.zeros::<u32>((parents << digit_bits) as usize),
        digit_bits,
        bucket_bits: BUCKET_BITS,
    };
    let pieces = if from.tuples == 0 { 0 } else { cut(bench, from.counts, rows, parents, 8) };
    BucketPool {
        columns,
        from,
        to,
        pieces,
        rows,
        cursor: bench.zeros::<u32>(1),
        digit,
        parents,
        piece: 8,
        buckets: buckets as u32,
        unused: 0,
        mixing: mixing::<W>(),
    }
}

/// Splits columns by the higher digit, then chains by the lower one, then copies the chains together.
fn bucket_pool<W: TestWord>(seed: u64, end: u64, values: bool) {
    let mut bench = Bench::new(seed);
    let count = 1 + bench.random.u64(..70);
    let rows = rows::<W>(&mut bench, count as usize, end, values);
    let (low, high) = (Digit { shift: 5, mask: 7 }, Digit { shift: 8, mask: 3 });
    let first = pass::<W>(&mut bench, rows.columns, Chains::default(), (count, 1, high));
    bench.run::<W>(DeviceStage::BucketPool(first));
    let second = pass::<W>(&mut bench, rows.columns, first.to, (count, 4, low));
    bench.run::<W>(DeviceStage::BucketPool(second));
    let to_tuples = bench.room::<Tuple<W>>(count as usize);
    let compact = Compact {
        from: second.to,
        pieces: cut(&mut bench, second.to.counts, count, 32, 8),
        starts: cut(&mut bench, second.to.counts, count, 32, 1),
        to_tuples,
        rows: count,
        chains: 32,
        piece: 8,
    };
    bench.run::<W>(DeviceStage::Compact(compact));
    let found = bench.get::<Tuple<W>>(to_tuples, count as usize);
    assert_partitioned(&found, &rows.tuples, |key| digit(key, high) << 3 | digit(key, low));
}

#[test]
fn passes_with_shared_histograms_partition() {
    for seed in 0..2 * SEEDS {
        let end = if seed & 2 != 0 { 2 } else { u64::MAX };
        shared_histogram::<u32>(seed, end, seed & 1 != 0);
        shared_histogram::<u64>(seed, end, seed & 1 != 0);
    }
}

#[test]
fn chunks_cover_the_rows_and_targets_lie_apart() {
    let run = |change: fn(&mut SharedHistogram)| {
        let mut bench = Bench::new(1);
        let tuples = bench.put(&[Tuple { key: 1u32, value: 1 }; 20]);
        let mut stage = SharedHistogram {
            tuples,
            to_tuples: bench.room::<Tuple<u32>>(20),
            rows: 20,
            chunk: 16,
            counts: bench.zeros::<u32>(2 * BINS),
            bins: bench.zeros::<u64>(BINS),
            digit: Digit { shift: 0, mask: 255 },
            chunks: 2,
            ..SharedHistogram::default()
        };
        change(&mut stage);
        message(bench.try_run::<u32>(DeviceStage::SharedScatter(stage)))
    };
    assert_eq!(run(|_| ()), "");
    assert!(run(|stage| stage.chunks = 1).contains("rows outside all chunks"));
    assert!(run(|stage| stage.chunk = 17).contains("whole tiles"));
    assert!(run(|stage| stage.to_tuples = stage.tuples).contains("overlaps"));
    assert!(run(|stage| stage.digit.mask = 256).contains("outside the key"));
}

#[test]
fn chains_of_buckets_partition() {
    for seed in 0..2 * SEEDS {
        // All rows in one or two partitions, or spread over all.
        let end = if seed & 2 != 0 { 2 } else { u64::MAX };
        bucket_pool::<u32>(seed, end, seed & 1 != 0);
        bucket_pool::<u64>(seed, end, seed & 1 != 0);
    }
}

#[test]
fn buckets_are_taken_from_a_pool_that_is_large_enough_and_unused() {
    let run = |change: fn(&mut BucketPool)| {
        let mut bench = Bench::new(1);
        let rows = rows::<u64>(&mut bench, 20, 1, false);
        let step = (20, 1, Digit { shift: 3, mask: 3 });
        let mut stage = pass::<u64>(&mut bench, rows.columns, Chains::default(), step);
        change(&mut stage);
        let first = message(bench.try_run::<u64>(DeviceStage::BucketPool(stage)));
        let second = message(bench.try_run::<u64>(DeviceStage::BucketPool(stage)));
        assert!(second.contains("zero") || !first.is_empty(), "it uses them up: {second}");
        first
    };
    assert_eq!(run(|_| ()), "");
    assert!(run(|stage| stage.buckets = 9).contains("the pool is empty"));
    assert!(run(|stage| stage.buckets += 1).contains("the pool: "));
    assert!(run(|stage| stage.piece = 9).contains("within a tile"));
    assert!(run(|stage| stage.to.digit_bits = 1).contains("no chain"));
    assert!(run(|stage| stage.to.bucket_bits = 0).contains("longer than its parent"));
}

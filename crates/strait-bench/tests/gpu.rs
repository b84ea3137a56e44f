//! Joins of columns in device memory, compared with a simple count. They always run on a simulated device,
//! and also on a GPU if there is one. With `STRAIT_REQUIRE_GPU=1`, a missing GPU is an error.
//! `STRAIT_REDUCED=1` keeps tables small, for runs under compute-sanitizer.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
use strait::gpu::Gpu;
use strait::{Algorithm, GpuOptions, Partitioner};
use strait_bench::{GpuTables, JoinRequest, ResultKind, SortedPairs, WordSize};

/// With None, the planner chooses.
const ALGORITHMS: [Option<Algorithm>; 4] =
    [None, Some(Algorithm::NoPartition), Some(Algorithm::Radix), Some(Algorithm::SortMerge)];

const RESULTS: [ResultKind; 4] =
    [ResultKind::Count, ResultKind::Aggregate, ResultKind::Materialise, ResultKind::Pairs];

/// The GPU, if there is one.
fn gpu() -> Option<Gpu> {
    let found = Gpu::detect();
    if std::env::var("STRAIT_REQUIRE_GPU").is_ok_and(|value| value == "1") {
        let gpus = found.expect("STRAIT_REQUIRE_GPU=1, and there is no GPU");
        return Some(gpus.into_iter().next().expect("a GPU"));
    }
    found.ok().and_then(|gpus| gpus.into_iter().next())
}

fn reduced() -> bool {
    std::env::var("STRAIT_REDUCED").is_ok_and(|value| value == "1")
}

/// A reproducible random sequence.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// One key and one payload per row, in batches of different lengths.
fn table(keys: &[u64], narrow: bool, salt: u64) -> Vec<RecordBatch> {
    let payload: Vec<u64> = (0..keys.len() as u64).map(|i| payload(i, salt)).collect();
    let column = |values: &[u64]| -> ArrayRef {
        match narrow {
            true => Arc::new(values.iter().map(|&v| v as i32).collect::<Int32Array>()),
            false => Arc::new(values.iter().map(|&v| v as i64).collect::<Int64Array>()),
        }
    };
    let mut batches = Vec::new();
    let mut at = 0;
    while at < keys.len() || batches.is_empty() {
        let len = (keys.len() - at).min(1 + keys.len() / 3);
        let columns = [("key", column(&keys[at..at + len])), ("p", column(&payload[at..at + len]))];
        batches.push(RecordBatch::try_from_iter(columns).expect("two columns of one length"));
        at += len;
    }
    batches
}

fn payload(row: u64, salt: u64) -> u64 {
    (row ^ salt).wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33
}

/// Returns the number of rows, and the sums of both payloads and of the keys over these rows.
fn by_hand(build: &[u64], probe: &[u64], salts: [u64; 2], narrow: bool) -> (u64, [u64; 2], u64) {
    let mut groups = HashMap::<u64, (u64, u64)>::new();
    for (row, &key) in build.iter().enumerate() {
        let group = groups.entry(key).or_default();
        group.0 += 1;
        group.1 = group.1.wrapping_add(payload(row as u64, salts[0]));
    }
    let (mut rows, mut sums, mut keys) = (0, [0u64; 2], 0u64);
    for (row, key) in probe.iter().enumerate() {
        if let Some(&(count, sum)) = groups.get(key) {
            rows += count;
            let shown = if narrow { *key as i32 as u64 } else { *key };
            keys = keys.wrapping_add(shown.wrapping_mul(count));
            sums[0] = sums[0].wrapping_add(sum);
            let of_row = payload(row as u64, salts[1]).wrapping_mul(count);
            sums[1] = sums[1].wrapping_add(of_row);
        }
    }
    (rows, sums, keys)
}

/// Joins in every way on one device, and compares the results.
fn check_on(name: &str, tables: &GpuTables, build: &[u64], probe: &[u64]) {
    let narrow = tables.word() == WordSize::Four;
    let (rows, sums, keys) = by_hand(build, probe, [1, 2], narrow);
    for algorithm in ALGORITHMS {
        for partitioner in Partitioner::ALL.into_iter().filter(|p| !p.to_host()) {
            if algorithm != Some(Algorithm::Radix) && partitioner != Partitioner::default() {
                continue;
            }
            for result in RESULTS {
                let what = format!("{name}: {algorithm:?} {} {result:?}", partitioner.name());
                let gpu_options = GpuOptions::new().partitioner(partitioner);
                // Pairs are found with another hash seed. The rows must be the same.
                let hash_seed = (result == ResultKind::Pairs).then_some(3);
                let request = JoinRequest { algorithm, gpu_options, result, hash_seed };
                let ran = tables.run(&request, true);
                let ran = ran.unwrap_or_else(|error| panic!("{what}: {error}"));
                assert_eq!(ran.rows, rows, "{what}: rows");
                let joined_by = ran.algorithm.expect("the algorithm of a join");
                match algorithm {
                    Some(asked) => assert_eq!(joined_by, asked, "{what}"),
                    None => assert_ne!(joined_by, Algorithm::SortMerge, "{what}"),
                }
                if matches!(result, ResultKind::Aggregate | ResultKind::Materialise) && rows > 0 {
                    assert_eq!(ran.sums, sums, "{what}: sums");
                }
                // Row numbers are not payload: nobody may compare them with sums of payload.
                if result == ResultKind::Pairs {
                    assert!(ran.sums.is_empty(), "{what}: sums");
                }
                if result == ResultKind::Materialise {
                    assert_eq!(ran.key_sum, keys, "{what}: keys");
                }
            }
        }
    }
}

/// Joins the first few keys on simulated devices with several seeds, and all keys on a GPU.
fn check(name: &str, narrow: bool, build: &[u64], probe: &[u64], gpu_memory: Option<u64>) {
    let small = |keys: &[u64]| keys[..keys.len().min(60)].to_vec();
    let (small_build, small_probe) = (small(build), small(probe));
    // A sanitizer can check nothing on a simulated device.
    for seed in 0..if reduced() { 0 } else { 8 } {
        let tables = [table(&small_build, narrow, 1), table(&small_probe, narrow, 2)];
        let loaded = GpuTables::simulate(seed, [&tables[0], &tables[1]]).expect("room");
        check_on(&format!("{name}, seed {seed}"), &loaded, &small_build, &small_probe);
    }
    if let Some(gpu) = gpu() {
        let tables = [table(build, narrow, 1), table(probe, narrow, 2)];
        let loaded = [tables[0].as_slice(), tables[1].as_slice()];
        let loaded = GpuTables::load(&gpu, gpu_memory, loaded).expect("room");
        check_on(name, &loaded, build, probe);
    }
}

/// Returns the number of rows of a table; fewer under a sanitizer.
fn rows(bits: u32) -> u64 {
    1 << if reduced() { bits.min(10) } else { bits }
}

fn uniform(seed: u64, rows: u64, distinct: u64, key: impl Fn(u64) -> u64) -> Vec<u64> {
    let mut random = Random(seed);
    (0..rows).map(|_| key(random.below(distinct))).collect()
}

/// Returns every key of a range once, in random order.
fn shuffled(seed: u64, rows: u64, key: impl Fn(u64) -> u64) -> Vec<u64> {
    let mut random = Random(seed);
    let mut keys: Vec<u64> = (0..rows).map(key).collect();
    for i in (1..keys.len()).rev() {
        keys.swap(i, random.below(i as u64 + 1) as usize);
    }
    keys
}

/// Scatters numbers over 63 or 31 bits.
fn sparse(narrow: bool) -> impl Fn(u64) -> u64 {
    move |i| match narrow {
        true => i.wrapping_mul(0x9e37_79b1) & 0x7fff_ffff,
        false => i.wrapping_mul(0x9e37_79b9_7f4a_7c15) & (u64::MAX >> 1),
    }
}

#[test]
fn unique_keys_sparse_and_dense() {
    for narrow in [false, true] {
        let n = rows(17);
        let build = shuffled(1, n, sparse(narrow));
        let probe = uniform(2, 3 * n + 7, n, sparse(narrow));
        check("sparse", narrow, &build, &probe, None);
        let build = shuffled(3, n, |i| i + 1000);
        let probe = uniform(4, 2 * n + 1, 2 * n, |i| i + 500);
        check("dense, half match", narrow, &build, &probe, None);
    }
}

/// Unique dense keys: a whole range, and most of a range. The short table fits the cache of a simulated
/// device as an array, but not as a hash table. The long table does the same for a GPU.
#[test]
fn dense_keys_in_the_cache() {
    for narrow in [false, true] {
        for n in [50, rows(21) + 3] {
            let range = shuffled(21, n, |i| i + 7);
            let probe = uniform(22, n + 9, n + 20, |i| i + 3);
            check("a range", narrow, &range, &probe, None);
            let most: Vec<u64> = range.iter().copied().filter(|key| key % 5 != 0).collect();
            check("most of a range", narrow, &most, &probe, None);
        }
    }
}

#[test]
fn duplicates_on_both_sides() {
    for narrow in [false, true] {
        let n = rows(15);
        let build = uniform(5, n, n / 4, sparse(narrow));
        let probe = uniform(6, 2 * n, n / 3, sparse(narrow));
        check("duplicates", narrow, &build, &probe, None);
    }
}

#[test]
fn patterns_of_bits() {
    let n = rows(16);
    check(
        "equal low halves",
        false,
        &shuffled(7, n, |i| i << 32),
        &uniform(8, n, n, |i| i << 32),
        None,
    );
    let high = |i| 0xdead_beef_0000_0000 | i;
    check("equal high halves", false, &shuffled(9, n, high), &uniform(10, n, n, high), None);
    for k in if reduced() { &[20][..] } else { &[5, 20, 40] } {
        let k = *k;
        let multiple = move |i: u64| i << k;
        check("multiples", false, &shuffled(11, n, multiple), &uniform(12, n, n, multiple), None);
    }
    let ends = |i: u64| [0, u64::MAX, 1, u64::MAX - 1, 1 << 63][i as usize % 5].wrapping_add(i / 5);
    check(
        "ends of the range",
        false,
        &shuffled(13, n / 8, ends),
        &uniform(14, n, n / 8, ends),
        None,
    );
    let ends = |i: u64| [0u32, 0xffff_ffff, 1 << 31][i as usize % 3].wrapping_add((i / 3) as u32);
    let narrow_ends = move |i: u64| u64::from(ends(i) as i32 as u32);
    check(
        "ends, narrow",
        true,
        &shuffled(15, n / 8, narrow_ends),
        &uniform(16, n, n / 8, narrow_ends),
        None,
    );
}

#[test]
fn one_key_everywhere() {
    // Every row matches every other row. Under a sanitizer, a thousand rows take six minutes.
    let n = rows(if reduced() { 8 } else { 11 });
    check("all equal", false, &vec![42; n as usize], &vec![42; n as usize + 3], None);
    check("all equal, zero", true, &vec![0; n as usize], &vec![0; n as usize], None);
    check("all different", false, &vec![1; n as usize], &vec![2; n as usize], None);
}

#[test]
fn half_of_a_side_is_one_key() {
    for narrow in [false, true] {
        let n = rows(17);
        let mut random = Random(17);
        let key = sparse(narrow);
        let mut half: Vec<u64> = (0..n).map(|i| if i % 2 == 0 { key(3) } else { key(i) }).collect();
        for i in (1..half.len()).rev() {
            half.swap(i, random.below(i as u64 + 1) as usize);
        }
        let whole = shuffled(18, n, &key);
        check("half of the build side", narrow, &half, &whole, None);
        check("half of the probe side", narrow, &whole, &half, None);
    }
}

/// Few keys share the build side, so every table in shared memory has a frequent key.
#[test]
fn few_keys_have_all_build_rows() {
    for narrow in [false, true] {
        let build = uniform(23, rows(15), 9, sparse(narrow));
        let probe = uniform(24, 200, 40, sparse(narrow));
        check("few keys", narrow, &build, &probe, None);
    }
}

#[test]
fn empty_and_tiny_sides() {
    for narrow in [false, true] {
        check("both empty", narrow, &[], &[], None);
        check("no build rows", narrow, &[], &[1, 2, 3], None);
        check("no probe rows", narrow, &[1, 2, 3], &[], None);
        check("one each", narrow, &[7], &[7], None);
        check("a few", narrow, &[7, 8, 7], &[7, 7, 9], None);
    }
}

/// An output that is many times larger than the GPU's memory is returned block by block.
#[test]
fn an_output_larger_than_the_budget() {
    let n = rows(17);
    let build = uniform(19, n, n / 64, sparse(false));
    let probe = uniform(20, n, n / 64, sparse(false));
    // 2^17 rows per side, with 64 matches each: 2^23 rows of 24 bytes, 192 MiB.
    check("many to many", false, &build, &probe, Some(96 << 20));
}

/// Pairs are sorted by the bits that vary, wherever these are.
#[test]
fn pairs_are_sorted() {
    let n = rows(18);
    type Named = (&'static str, fn(u64) -> u64);
    let sets: [Named; 5] = [
        ("all bits", |i| Random(i).next()),
        ("few bits", |i| i % 5),
        ("high bits", |i| i << 50),
        ("two ends", |i| (i & 1) << 63 | (i >> 1 & 1)),
        ("one key", |_| 7),
    ];
    for (name, key) in sets {
        let pairs = |rows: u64| {
            let keys: Int64Array = (0..rows).map(|i| key(Random(i).next()) as i64).collect();
            let values: Int64Array = (0..rows as i64).collect();
            let columns: [(&str, ArrayRef); 2] = [("key", Arc::new(keys)), ("v", Arc::new(values))];
            RecordBatch::try_from_iter(columns).expect("two columns of one length")
        };
        for (seed, rows) in [(1, 0), (2, 1), (3, 50), (4, 100)] {
            let sorting = SortedPairs::simulate(seed, &pairs(rows)).expect("room");
            sorting.run(true).unwrap_or_else(|error| panic!("{name}, seed {seed}: {error}"));
        }
        if let Some(gpu) = gpu() {
            let sorting = SortedPairs::load(&gpu, None, &pairs(n)).expect("room");
            sorting.run(true).unwrap_or_else(|error| panic!("{name}: {error}"));
        }
    }
}

//! Random joins of streamed probe sides.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{
    ArrayRef, AsArray, DictionaryArray, Int64Array, RecordBatch, StringArray, StringViewArray,
};
use arrow::datatypes::{Int32Type, Int64Type};
use strait::testing::{Fault, FaultKind, TestOverrides};
use strait::{
    Algorithm, Error, Filter, GpuOptions, Join, JoinType, MemoryBudget, NullEquality, Output,
    Processor, Side, TablePlace, Transfer,
};

use super::{PARTIAL, rows_of};

/// Random small numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % n
    }
}

/// A table with a nullable key and columns of several encodings, in batches of uneven lengths.
fn mixed(random: &mut Random, rows: usize, keys: u64, text_keys: bool) -> Vec<RecordBatch> {
    let mut made = Vec::new();
    let nulls = [0, 5, 100][random.below(3) as usize];
    let mut left = rows;
    let mut number = 0i64;
    while left > 0 {
        let len = (1 + random.below(60) as usize).min(left);
        left -= len;
        let all_null = random.below(8) == 0 && nulls > 0;
        let keys: Vec<Option<i64>> = (0..len)
            .map(|_| {
                let null = all_null || random.below(100) < nulls.min(20);
                let key = random.below(keys) as i64;
                (!null).then_some(key)
            })
            .collect();
        let key: ArrayRef = match text_keys {
            true => Arc::new(StringArray::from_iter(
                keys.iter().map(|k| k.map(|k| format!("key number {k}"))),
            )),
            false => Arc::new(Int64Array::from(keys)),
        };
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(number..number + len as i64));
        number += len as i64;
        let words: Vec<Option<String>> = (0..len)
            .map(|i| (i % 7 != 3).then(|| format!("{}-{}", random.below(30), "y".repeat(i % 20))))
            .collect();
        let dictionary: ArrayRef =
            Arc::new(words.iter().map(|w| w.as_deref()).collect::<DictionaryArray<Int32Type>>());
        let views: ArrayRef = Arc::new(StringViewArray::from_iter(words.iter()));
        let mut lists = arrow::array::ListBuilder::new(arrow::array::Int64Builder::new());
        for i in 0..len {
            (0..i % 4).for_each(|v| lists.values().append_value(v as i64 + number));
            lists.append(i % 5 != 1);
        }
        let lists: ArrayRef = Arc::new(lists.finish());
        made.push(
            RecordBatch::try_from_iter_with_nullable([
                ("k", key, true),
                ("n", numbers, true),
                ("d", dictionary, true),
                ("v", views, true),
                ("l", lists, true),
            ])
            .expect("columns of one length"),
        );
    }
    made
}

/// Whether all rows are among the expected ones, none more often than there. Both are sorted.
fn is_part(rows: &[String], expected: &[String]) -> bool {
    let mut expected = expected.iter();
    rows.iter().all(|row| expected.any(|other| other == row))
}

/// Random joins on a device give the rows of the CPU, under limits and faults, for a fast and a slow consumer.
#[test]
fn random_streams_are_joined_as_on_the_cpu() {
    let seconds: u64 = std::env::var("STREAMS_S").map_or(5, |s| s.parse().unwrap());
    let first: u64 = std::env::var("STREAMS_SEED").map_or(1, |s| s.parse().unwrap());
    let (start, mut seed) = (Instant::now(), first);
    let (mut done, mut refused, mut faults, mut partial) = (0, 0, 0, 0);
    while start.elapsed() < Duration::from_secs(seconds) {
        seed += 1;
        let random = &mut Random(seed);
        random.0 = random.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let text_keys = random.below(3) == 0;
        let keys = [20, 200, 2000][random.below(3) as usize];
        let (b, p) = (1 + random.below(300) as usize, 1 + random.below(900) as usize);
        let build = mixed(random, b, keys, text_keys);
        let probe = mixed(random, p, keys, text_keys);
        let join_type = JoinType::ALL[random.below(JoinType::ALL.len() as u64) as usize];
        let output =
            [Output::Rows, Output::Rows, Output::Pairs, Output::Count][random.below(4) as usize];
        let side = [Side::Left, Side::Right][random.below(2) as usize];
        let (left, right) = if side == Side::Left { (&build, &probe) } else { (&probe, &build) };
        let cpu = Join::new(join_type).on("k").build_side(side).threads(1);
        let cpu = cpu.device(Processor::Cpu);
        let algorithm = [Algorithm::NoPartition, Algorithm::StreamedProbe, Algorithm::MultiPass]
            [random.below(3) as usize];
        let fault = (random.below(3) == 0).then(|| Fault {
            kind: FaultKind::ALL[1 + random.below(7) as usize],
            nth: random.below(200),
        });
        let auto = random.below(2) == 0 && algorithm == Algorithm::NoPartition;
        let force = TestOverrides {
            simulated: Some(seed),
            tiny_chunks: random.below(2) == 0,
            tiny_partitions: random.below(2) == 0,
            row_ids: random.below(3) == 0,
            wide_rows: random.below(3) == 0,
            collide: random.below(6) == 0 && p < 200,
            auto,
            fault,
            ..TestOverrides::default()
        };
        let limit = (random.below(2) == 0).then(|| (60 + random.below(400)) << 10);
        let budget = MemoryBudget::new(limit);
        let join = Join::new(join_type).on("k").build_side(side).memory_budget(&budget);
        let algorithm = if random.below(4) == 0 { None } else { Some(algorithm) };
        let join = join.algorithm(algorithm).test_overrides(force);
        let options = match random.below(3) {
            0 => GpuOptions::new().transfer(Transfer::ALL[random.below(8) as usize]),
            1 if matches!(algorithm, None | Some(Algorithm::NoPartition)) => {
                GpuOptions::new().table(TablePlace::ALL[random.below(3) as usize])
            }
            _ => GpuOptions::new(),
        };
        let join = join.gpu_options(options);
        let memory = (random.below(3) == 0).then(|| (20 + random.below(600)) << 10);
        let join = if let Some(memory) = memory { join.gpu_memory(memory) } else { join };
        let filter = || {
            let columns = [(Side::Left, "n"), (Side::Right, "n")];
            Filter::new(columns, |batch: &RecordBatch| {
                let [l, r] = [0, 1].map(|i| batch.column(i).as_primitive::<Int64Type>());
                Ok((0..batch.num_rows())
                    .map(|i| Some((l.value(i) + r.value(i)) % 5 != 0))
                    .collect())
            })
        };
        let filtered = random.below(3) == 0;
        let join = if filtered { join.filter(filter()) } else { join };
        let equal = random.below(3) == 0;
        let join = if equal { join.null_equality(NullEquality::Equal) } else { join };
        let cpu = if filtered { cpu.filter(filter()) } else { cpu };
        let cpu = if equal { cpu.null_equality(NullEquality::Equal) } else { cpu };
        let expected = rows_of(&cpu, output, left, right, false).unwrap();
        let join = join.threads(1 + random.below(3) as usize).prompt(random.below(3) == 0);
        let join = join.batch_size(1 + random.below(300) as usize);
        let pause = random.below(3) == 0;
        let what = format!(
            "seed {seed}: {join_type:?} {output:?} {algorithm:?} {limit:?} {memory:?} {options:?} filter {filtered} equal {equal} {force:?} text {text_keys} \
             b {b} p {p} side {side:?} pause {pause}"
        );
        let begun = Instant::now();
        PARTIAL.take();
        let ran = rows_of(&join, output, left, right, pause);
        let before = PARTIAL.take();
        assert!(is_part(&before, &expected), "{what}: doubled rows before an error");
        partial += usize::from(!before.is_empty());
        match ran {
            Ok(rows) => assert!(rows == expected, "{what}: {} of {}", rows.len(), expected.len()),
            Err(Error::MemoryLimit { .. }) if limit.is_some() => refused += 1,
            Err(Error::DeviceMemory { .. }) if memory.is_some() => refused += 1,
            Err(error) => {
                assert!(fault.is_some(), "{what}: {error}");
                faults += 1;
            }
        }
        assert_eq!(budget.used(), 0, "{what}");
        if begun.elapsed() > Duration::from_secs(10) {
            panic!("{what}: took {:?}", begun.elapsed());
        }
        done += 1;
    }
    println!(
        "{done} joins from seed {first}: {refused} refused, {faults} faults, {partial} partial"
    );
}

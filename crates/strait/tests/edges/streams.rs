//! Probe sides that a device joins while they are read. Found by a hostile review of the streaming probe.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow::array::AsArray;
use arrow::array::{
    Array, ArrayRef, BooleanArray, DictionaryArray, FixedSizeListArray, Int32Array, Int64Array,
    ListArray, NullArray, RecordBatch, RecordBatchIterator, RecordBatchReader, RunArray,
    StringArray, StringViewArray, StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Int8Type, Int32Type, Int64Type};
use arrow::error::ArrowError;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use strait::testing::{Fault, FaultKind, TestOverrides};
use strait::{
    Algorithm, Error, Filter, GpuOptions, Join, JoinType, MemoryBudget, NullEquality, Output,
    Processor, Side, TablePlace, Transfer,
};

use super::{batches, drained, keyed, whole};

/// A simulated device, with chunks of seven rows.
fn tiny(seed: u64) -> TestOverrides {
    TestOverrides { simulated: Some(seed), tiny_chunks: true, ..TestOverrides::default() }
}

/// Returns the rows of some batches as text, sorted.
fn texts(batches: &[RecordBatch]) -> Vec<String> {
    let mut rows = Vec::new();
    let options = FormatOptions::default().with_null("null");
    for batch in batches {
        let columns: Vec<_> = batch
            .columns()
            .iter()
            .map(|c| ArrayFormatter::try_new(c.as_ref(), &options).expect("prints"))
            .collect();
        rows.extend(
            (0..batch.num_rows()).map(|i| {
                columns.iter().map(|c| c.value(i).to_string()).collect::<Vec<_>>().join("|")
            }),
        );
    }
    rows.sort();
    rows
}

/// All batches share one dictionary of 80 MB. A chunk has room for 64 MiB. The dictionary must not count once
/// per batch and once more per cut: 8 batches of 4000 rows are a few chunks, not hundreds.
#[test]
fn a_shared_dictionary_does_not_shorten_chunks() {
    let values: ArrayRef =
        Arc::new(StringArray::from_iter_values((0..80).map(|_| "z".repeat(1_000_000))));
    let batch = |n: i64| {
        let indices = Int32Array::from_iter_values((0..4000).map(|i| i % 80));
        let column: ArrayRef =
            Arc::new(DictionaryArray::<Int32Type>::new(indices, Arc::clone(&values)));
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(n * 4000..(n + 1) * 4000));
        RecordBatch::try_from_iter([("k", keys), ("d", column)]).unwrap()
    };
    let probe: Vec<RecordBatch> = (0..8).map(batch).collect();
    let force = TestOverrides { simulated: Some(1), ..TestOverrides::default() };
    let join = Join::inner().on("k").threads(1).build_side(Side::Left).test_overrides(force);
    let join = join.algorithm(Algorithm::NoPartition).batch_size(1 << 20);
    let reader = join.run(whole(&keyed(0..32_000)), batches(probe[0].schema(), probe)).unwrap();
    let sizes: Vec<usize> = reader.map(|batch| batch.unwrap().num_rows()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), 32_000);
    let least = sizes.iter().min().unwrap();
    assert!(
        sizes.len() <= 32,
        "{} chunks for 8 batches, the shortest of {least} rows",
        sizes.len()
    );
}

/// Batches that are slices of one table share the elements of its lists, as `to_batches` of pyarrow makes them.
/// The elements must not count once per slice.
#[test]
fn slices_of_a_table_with_lists_do_not_shorten_chunks() {
    const ROWS: usize = 20_000;
    const LENGTH: usize = 1000;
    let item = Arc::new(Field::new("item", DataType::Int64, true));
    let elements: ArrayRef = Arc::new(Int64Array::from(vec![7; ROWS * LENGTH]));
    let offsets = OffsetBuffer::from_lengths(vec![LENGTH; ROWS]);
    let lists: ArrayRef = Arc::new(ListArray::new(item, offsets, elements, None));
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..ROWS as i64));
    let all = RecordBatch::try_from_iter([("k", keys), ("l", lists)]).unwrap();
    let probe = (0..40).map(|i| all.slice(i * 500, 500)).collect();
    let force = TestOverrides { simulated: Some(1), ..TestOverrides::default() };
    let join = Join::inner().on("k").threads(1).build_side(Side::Left).test_overrides(force);
    let join = join.algorithm(Algorithm::NoPartition).batch_size(1 << 20);
    let reader = join.run(whole(&keyed(0..ROWS as i64)), batches(all.schema(), probe)).unwrap();
    let sizes: Vec<usize> = reader.map(|batch| batch.unwrap().num_rows()).collect();
    assert_eq!(sizes.iter().sum::<usize>(), ROWS);
    let least = sizes.iter().min().unwrap();
    assert!(sizes.len() <= 80, "{} chunks for 160 MB, the shortest of {least} rows", sizes.len());
}

/// The bytes of views lie in buffers that a slice shares. A chunk of such rows must not take gigabytes.
#[test]
fn chunks_of_views_are_as_short_as_others() {
    let peak = |column: ArrayRef| {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..100));
        let batch = RecordBatch::try_from_iter([("k", keys), ("t", column)]).unwrap();
        let probe = vec![batch.clone(); 2000];
        let force = TestOverrides { simulated: Some(1), ..TestOverrides::default() };
        let join = Join::inner().on("k").threads(1).build_side(Side::Left).test_overrides(force);
        let join = join.algorithm(Algorithm::NoPartition);
        let ran = join.run(whole(&keyed(0..100)), batches(batch.schema(), probe)).unwrap();
        drained(ran).unwrap().1.peak_memory >> 20
    };
    let long = "z".repeat(10_000);
    let plain = peak(Arc::new(StringArray::from_iter_values((0..100).map(|_| &long))));
    let views = peak(Arc::new(StringViewArray::from_iter_values((0..100).map(|_| &long))));
    assert!(views < 2 * plain, "2 GB of text: {views} MiB at once as views, {plain} MiB as text");
}

/// If few rows of a held probe side match, few bytes come back. (`explain` says 16 B per match.)
#[test]
fn few_matches_of_a_held_side_are_few_bytes() {
    let build = keyed(0..1000);
    let probe = keyed((0..50_000).map(|i| i * 100));
    let force =
        TestOverrides { simulated: Some(1), tiny_partitions: true, ..TestOverrides::default() };
    let join = Join::inner().on("k").threads(1).build_side(Side::Left).test_overrides(force);
    let join = join.algorithm(Algorithm::MultiPass);
    let (_, report) = drained(join.run(whole(&build), whole(&probe)).unwrap()).unwrap();
    let back = report.crossed.from_gpu;
    assert_eq!(report.output_rows, 10);
    assert!(back < 10_000, "10 matches of 50000 rows: {back} bytes came back\n{report}");
}

/// Keys, and a text of so many bytes for each row.
fn with_text(keys: std::ops::Range<i64>, bytes: usize) -> RecordBatch {
    let long = "z".repeat(bytes);
    let text: ArrayRef = Arc::new(StringArray::from_iter_values(keys.clone().map(|_| &long)));
    let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(keys));
    RecordBatch::try_from_iter([("k", keys), ("t", text)]).expect("columns of one length")
}

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

fn table(made: &[RecordBatch]) -> impl RecordBatchReader + Send + 'static {
    batches(made[0].schema(), made.to_vec())
}

fn rows_of(
    join: &Join,
    output: Output,
    left: &[RecordBatch],
    right: &[RecordBatch],
    pause: bool,
) -> Result<Vec<String>, Error> {
    if output == Output::Count {
        return join.count(table(left), table(right)).map(|(rows, _)| vec![rows.to_string()]);
    }
    let reader = match output {
        Output::Pairs => join.pairs(table(left), table(right)),
        _ => join.run(table(left), table(right)),
    }?;
    let mut all = Vec::new();
    for batch in reader {
        if pause {
            std::thread::sleep(Duration::from_micros(500));
        }
        match batch {
            Ok(batch) => all.push(batch),
            Err(error) => {
                PARTIAL.set(texts(&all));
                return Err(Error::from_arrow(error));
            }
        }
    }
    Ok(texts(&all))
}

thread_local! {
    /// The rows that came before the error of the last join that failed.
    static PARTIAL: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
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
            1 => GpuOptions::new().table(TablePlace::ALL[random.below(3) as usize]),
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

/// With memory for some limit, whether a join succeeds must not depend on the speed of the consumer.
#[test]
fn slow_consumers_change_no_outcome() {
    let probe: Vec<RecordBatch> = (0..12).map(|_| with_text(0..400, 30)).collect();
    let build = with_text(0..400, 300);
    let mut differ = Vec::new();
    let (mut kept, mut refused) = (0, 0);
    for prompt in [false, true] {
        for kib in (150..420).step_by(6) {
            let force =
                TestOverrides { simulated: Some(1), seed: Some(1), ..TestOverrides::default() };
            let join = Join::inner().on("k").build_side(Side::Left).test_overrides(force);
            let join = join.algorithm(Algorithm::NoPartition).memory_limit(kib << 10);
            let join = join.threads(1).batch_size(100).prompt(prompt);
            let rows = |pause| {
                rows_of(&join, Output::Rows, std::slice::from_ref(&build), &probe, pause)
                    .map(|r| r.len())
                    .ok()
            };
            let (fast, slow) = (rows(false), rows(true));
            assert!(fast.is_none_or(|rows| rows == 4800), "{fast:?}");
            *(if fast.is_some() { &mut kept } else { &mut refused }) += 1;
            if fast != slow {
                differ.push(format!("{kib} KiB, prompt {prompt}: {fast:?} fast, {slow:?} slowly"));
            }
        }
    }
    assert!(kept > 0 && refused > 0, "{kept} kept, {refused} refused: no test");
    assert!(differ.is_empty(), "{differ:#?}");
}

/// A reader that fails in the middle of a stream: its own error is reported, and nothing is joined twice.
#[test]
fn a_reader_that_fails_in_a_stream_is_reported() {
    for auto in [false, true] {
        for good in 0..12 {
            for panics in [false, true] {
                let batch = keyed(0..10);
                let mut number = 0;
                let schema = batch.schema();
                let reader = std::iter::from_fn(move || {
                    number += 1;
                    match number <= good {
                        true => Some(Ok(batch.clone())),
                        false if panics => panic!("line 17"),
                        false => Some(Err(ArrowError::ParseError("line 17".to_string()))),
                    }
                });
                let reader = RecordBatchIterator::new(reader, schema);
                let join = Join::inner().on("k").build_side(Side::Left).threads(2);
                let join = join.algorithm(Algorithm::NoPartition);
                let join = join.test_overrides(TestOverrides { auto, ..tiny(good) });
                let ran = join.run(whole(&keyed(0..5)), reader).unwrap();
                let error = drained(ran).expect_err("the reader fails").to_string();
                assert!(error.contains("line 17"), "{error}");
            }
        }
    }
}

/// Dropping the output ends a streamed join within 100 ms, whatever it does.
#[test]
fn dropping_the_output_ends_a_stream() {
    for (what, limit) in [("free", u64::MAX), ("limited", 4 << 20)] {
        for algorithm in [Algorithm::NoPartition, Algorithm::StreamedProbe] {
            for blocks in [false, true] {
                for taken in [0, 1, 3] {
                    let batch = keyed((0..2000).map(|i| i % 50));
                    let (schema, mut number) = (batch.schema(), 0);
                    let reader = std::iter::from_fn(move || {
                        number += 1;
                        if blocks && number == 5 {
                            std::thread::sleep(Duration::from_secs(3));
                        }
                        Some(Ok(batch.clone()))
                    });
                    let join = Join::inner().on("k").build_side(Side::Left).threads(2);
                    let join = join.algorithm(algorithm).memory_limit(limit);
                    let force = TestOverrides { simulated: Some(1), ..TestOverrides::default() };
                    let join = join.test_overrides(force).prompt(true);
                    let build = keyed(0..50);
                    let mut out =
                        join.run(whole(&build), RecordBatchIterator::new(reader, schema)).unwrap();
                    for _ in 0..taken {
                        out.next().unwrap().unwrap();
                    }
                    std::thread::sleep(Duration::from_millis(50));
                    let begun = Instant::now();
                    drop(out);
                    let took = begun.elapsed();
                    assert!(
                        took < Duration::from_millis(100),
                        "{what} {algorithm} {blocks} {taken}: {took:?}"
                    );
                }
            }
        }
    }
}

/// Ten thousand batches of a few rows lose no row. (Prints the times; timings are no assertions.)
#[test]
fn tiny_batches_of_a_stream_are_joined_together() {
    let all = keyed((0..40_000).map(|i| i % 1000));
    let build = keyed(0..1000);
    let run = |probe: Vec<RecordBatch>, force: Option<TestOverrides>| {
        let join = Join::inner().on("k").build_side(Side::Left).threads(1);
        let join = join.algorithm(Algorithm::NoPartition);
        let join = match force {
            Some(force) => join.test_overrides(force),
            None => join.device(Processor::Cpu),
        };
        let begun = Instant::now();
        let ran = join.run(whole(&build), batches(all.schema(), probe)).unwrap();
        let rows: usize = drained(ran).unwrap().0.iter().map(RecordBatch::num_rows).sum();
        assert_eq!(rows, 40_000);
        begun.elapsed()
    };
    let cut: Vec<RecordBatch> = (0..10_000).map(|i| all.slice(4 * i, 4)).collect();
    let force = TestOverrides { simulated: Some(1), ..TestOverrides::default() };
    let (one, many, cpu) =
        (run(vec![all.clone()], Some(force)), run(cut.clone(), Some(force)), run(cut, None));
    println!("one batch {one:?}, 10000 batches {many:?}, on the CPU {cpu:?}");
}

/// With `prompt`, the rows of a batch come before the reader is asked for the next one, on a device too.
#[test]
fn prompt_rows_come_while_the_reader_of_a_stream_blocks() {
    for algorithm in [Algorithm::NoPartition, Algorithm::StreamedProbe, Algorithm::MultiPass] {
        for (join_type, limit) in
            [JoinType::Inner, JoinType::Right, JoinType::RightSemi, JoinType::Full]
                .into_iter()
                .flat_map(|t| [(t, None), (t, Some(2 << 20))])
        {
            for (rows, tiny_chunks) in [(1, false), (100, false), (100, true)] {
                for build in [keyed(0..50), keyed(0..0), keyed((0..50).map(|i| i % 25))] {
                    if build.num_rows() == 0
                        && matches!(join_type, JoinType::Inner | JoinType::RightSemi)
                    {
                        continue;
                    }
                    let (seen, wait) = std::sync::mpsc::channel::<()>();
                    let wait = std::sync::Mutex::new(wait);
                    let batch = keyed((0..rows).map(|i| i % 50));
                    let (schema, mut number) = (batch.schema(), 0);
                    let reader = std::iter::from_fn(move || {
                        number += 1;
                        if number > 1 {
                            let wait = wait.lock().unwrap();
                            let heard = wait.recv_timeout(Duration::from_secs(5));
                            assert!(heard.is_ok(), "asked for batch {number} too early");
                        }
                        (number <= 6).then(|| Ok(batch.clone()))
                    });
                    let force = TestOverrides {
                        simulated: Some(1),
                        tiny_chunks,
                        ..TestOverrides::default()
                    };
                    let join = Join::new(join_type).on("k").build_side(Side::Left).threads(2);
                    let join = join.algorithm(algorithm).prompt(true).test_overrides(force);
                    let budget = MemoryBudget::new(limit);
                    let join = join.memory_budget(&budget);
                    let what = format!("{algorithm} {join_type:?} {limit:?} {rows} {tiny_chunks}");
                    let out =
                        join.run(whole(&build), RecordBatchIterator::new(reader, schema)).unwrap();
                    for batch in out {
                        batch.unwrap_or_else(|error| panic!("{what}: {error}"));
                        let _ = seen.send(());
                    }
                }
            }
        }
    }
}

/// A reader reserves memory in the budget of the join while it reads, as decoders do. Chunks in flight, and output
/// that the consumer has not taken yet, must not let it fail. (On the CPU, `Flow::start` sees to that:
/// `a_reader_that_shares_the_budget_is_not_refused`.)
#[test]
fn a_reader_that_shares_the_budget_of_a_stream_is_not_refused() {
    let long = "z".repeat(100_000);
    let batch = |views: bool| {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10));
        let texts = (0..10).map(|_| &long);
        let texts: ArrayRef = match views {
            true => Arc::new(StringViewArray::from_iter_values(texts)),
            false => Arc::new(StringArray::from_iter_values(texts)),
        };
        RecordBatch::try_from_iter([("k", keys), ("t", texts)]).unwrap()
    };
    let run = |force: Option<TestOverrides>, views: bool, pause: u64| {
        let budget = MemoryBudget::new(Some(16 << 20));
        let (shared, schema) = (Arc::clone(&budget), batch(views).schema());
        // Every batch has its own memory.
        let made: Vec<RecordBatch> = (0..100).map(|_| batch(views)).collect();
        let reader = made.into_iter().map(move |batch| {
            let page = shared.reserve(4 << 20, "a decoded page").map_err(ArrowError::from)?;
            std::thread::sleep(Duration::from_micros(200));
            drop(page);
            Ok(batch)
        });
        let join = Join::inner().on("k").build_side(Side::Left).threads(1).batch_size(10);
        let join = join.algorithm(Algorithm::NoPartition).memory_budget(&budget);
        let join = match force {
            Some(force) => join.test_overrides(force),
            None => join.device(Processor::Cpu),
        };
        let mut rows = 0;
        for batch in
            join.run(whole(&keyed(0..10)), RecordBatchIterator::new(reader, schema)).unwrap()
        {
            rows += batch.map_err(Error::from_arrow)?.num_rows();
            std::thread::sleep(Duration::from_millis(pause));
        }
        Ok::<usize, Error>(rows)
    };
    let simulated = TestOverrides { simulated: Some(1), ..TestOverrides::default() };
    let mut failed = Vec::new();
    for pause in [0, 3] {
        for views in [false, true] {
            assert_eq!(run(None, views, pause).expect("the CPU waits"), 1000);
            for auto in [false, true] {
                match run(Some(TestOverrides { auto, ..simulated }), views, pause) {
                    Ok(rows) => assert_eq!(rows, 1000),
                    Err(error) => {
                        failed.push(format!("pause {pause}, views {views}, auto {auto}: {error}"))
                    }
                }
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// The same, if the memory is taken by output that a slow consumer has not taken yet.
#[test]
fn a_reader_that_shares_the_budget_of_a_stream_waits_for_the_consumer() {
    let build = with_text(0..10, 300_000);
    let run = |force: Option<TestOverrides>, prompt: bool, pause: u64| {
        let budget = MemoryBudget::new(Some(16 << 20));
        // In no order, so that output is copied.
        let batch = keyed((0..10).map(|i| i * 3 % 10));
        let (shared, schema) = (Arc::clone(&budget), batch.schema());
        let reader = (0..60).map(move |_| {
            let page = shared.reserve(5 << 20, "a decoded page").map_err(ArrowError::from)?;
            drop(page);
            Ok(batch.clone())
        });
        let join = Join::inner().on("k").build_side(Side::Left).threads(2).batch_size(10);
        let join = join.algorithm(Algorithm::NoPartition).memory_budget(&budget).prompt(prompt);
        let join = match force {
            Some(force) => join.test_overrides(force),
            None => join.device(Processor::Cpu),
        };
        let mut rows = 0;
        for batch in join.run(whole(&build), RecordBatchIterator::new(reader, schema)).unwrap() {
            rows += batch.map_err(Error::from_arrow)?.num_rows();
            std::thread::sleep(Duration::from_millis(pause));
        }
        Ok::<usize, Error>(rows)
    };
    let mut failed = Vec::new();
    for prompt in [false, true] {
        for pause in [0, 20] {
            assert_eq!(run(None, prompt, pause).expect("the CPU waits"), 600);
            for auto in [false, true] {
                let force = TestOverrides { tiny_chunks: !prompt, auto, ..tiny(1) };
                match run(Some(force), prompt, pause) {
                    Ok(rows) => assert_eq!(rows, 600),
                    Err(error) => {
                        failed.push(format!("pause {pause}, prompt {prompt}, auto {auto}: {error}"))
                    }
                }
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Encoded and nested columns, in slices of batches: chunks cut them again, and gather from several batches.
#[test]
fn encoded_columns_of_a_stream_are_those_of_the_cpu() {
    let batch = |n: i64| {
        let rows = 97;
        let keys: ArrayRef =
            Arc::new(Int64Array::from_iter_values((0..rows).map(|i| (i * 7 + n) % 200)));
        let words: Vec<String> = (0..rows).map(|i| format!("{n}:{}", i % 90)).collect();
        let small: ArrayRef =
            Arc::new(words.iter().map(|w| w.as_str()).collect::<DictionaryArray<Int8Type>>());
        let ends =
            Int32Array::from_iter_values((1..=rows as i32 / 2).map(|i| 2 * i).chain([rows as i32]));
        let values = StringArray::from_iter(
            (0..ends.len()).map(|i| (i % 5 != 2).then(|| format!("r{n}-{i}"))),
        );
        let runs: ArrayRef = Arc::new(RunArray::<Int32Type>::try_new(&ends, &values).unwrap());
        let field =
            |name: &str, a: &ArrayRef| Arc::new(Field::new(name, a.data_type().clone(), true));
        let nested: ArrayRef = Arc::new(StructArray::from(vec![
            (field("s", &small), Arc::clone(&small)),
            (field("k", &keys), Arc::clone(&keys)),
        ]));
        let fixed: ArrayRef =
            Arc::new(FixedSizeListArray::new(field("item", &keys), 1, Arc::clone(&keys), None));
        let nothing: ArrayRef = Arc::new(NullArray::new(rows as usize));
        let bits: ArrayRef = Arc::new(BooleanArray::from_iter(
            (0..rows).map(|i| (i % 3 != 0).then_some(i % 2 == 0)),
        ));
        RecordBatch::try_from_iter_with_nullable([
            ("k", keys, true),
            ("d", small, true),
            ("r", runs, true),
            ("s", nested, true),
            ("f", fixed, true),
            ("z", nothing, true),
            ("b", bits, true),
        ])
        .unwrap()
        .slice(3, 90)
    };
    let probe: Vec<RecordBatch> = (0..12).map(batch).collect();
    for modulus in [1i64, 9] {
        let build = vec![keyed((0..200).filter(|k| k % modulus == 0))];
        for join_type in [JoinType::Inner, JoinType::Right, JoinType::RightAnti, JoinType::Full] {
            let join = Join::new(join_type).on("k").build_side(Side::Left).threads(1);
            let cpu = join.clone().device(Processor::Cpu);
            let expected = rows_of(&cpu, Output::Rows, &build, &probe, false).unwrap();
            for limit in [u64::MAX, 3 << 20, 600 << 10] {
                for tiny_chunks in [false, true] {
                    let force = TestOverrides {
                        simulated: Some(3),
                        tiny_chunks,
                        ..TestOverrides::default()
                    };
                    let join = join.clone().algorithm(Algorithm::NoPartition).test_overrides(force);
                    let join = join.memory_limit(limit);
                    let what = format!("{join_type:?} {modulus} {limit} {tiny_chunks}");
                    match rows_of(&join, Output::Rows, &build, &probe, false) {
                        Ok(rows) => assert!(rows == expected, "{what}"),
                        Err(Error::MemoryLimit { .. }) if limit < 1 << 20 => {}
                        Err(error) => panic!("{what}: {error}"),
                    }
                }
            }
        }
    }
}

/// The planner knows nothing about the length of this probe side, except that it is longer than the build side.
/// It may be endless. So it is streamed, and not held because a GPU would be a millisecond faster if it had four
/// times the rows of the build side.
#[test]
fn a_probe_side_of_unknown_length_is_streamed() {
    for output in [Output::Rows, Output::Pairs] {
        let force = TestOverrides { simulated: Some(1), auto: true, ..TestOverrides::default() };
        let join = Join::inner().on("k").prompt(true).threads(16).test_overrides(force);
        let read = Arc::new(AtomicUsize::new(0));
        let (counter, batch) = (Arc::clone(&read), keyed(0..100));
        let schema = batch.schema();
        let reader = std::iter::from_fn(move || {
            (counter.fetch_add(1, Ordering::Relaxed) < 1000).then(|| Ok(batch.clone()))
        });
        let reader = RecordBatchIterator::new(reader, schema);
        let mut out = match output {
            Output::Pairs => join.pairs(whole(&keyed(0..10)), reader),
            _ => join.run(whole(&keyed(0..10)), reader),
        }
        .unwrap();
        out.next().unwrap().unwrap();
        let read = read.load(Ordering::Relaxed);
        assert_eq!(out.by_ref().filter(Result::is_err).count(), 0);
        let algorithm = out.report().unwrap().plan.algorithm;
        assert!(read < 900, "{algorithm} read {read} of 1000 batches before its first row");
    }
}

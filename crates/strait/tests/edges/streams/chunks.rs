//! The rows and bytes of a chunk, and the columns that are gathered from chunks.

use std::sync::Arc;
use std::time::Instant;

use arrow::array::{
    Array, ArrayRef, BooleanArray, DictionaryArray, FixedSizeListArray, Int32Array, Int64Array,
    ListArray, NullArray, RecordBatch, RunArray, StringArray, StringViewArray, StructArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Int8Type, Int32Type};
use strait::testing::TestOverrides;
use strait::{Algorithm, Error, Join, JoinType, Output, Processor, Side, Statistics};

use super::super::{batches, drained, keyed, whole};
use super::{rows_of, tiny};

/// All batches share one dictionary of 80 MB. A chunk has room for 64 MiB. If the dictionary counted once per batch and
/// once more per cut, 8 batches of 4000 rows would become hundreds of chunks. They must become a few.
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

/// The key words of a chunk come from its column, unless the chunk has nulls. The statistics may say that there are
/// no nulls, and the first chunks may have none.
#[test]
fn nulls_may_come_in_a_later_chunk() {
    let probe = |key: fn(i64) -> Option<i64>| {
        let keys: ArrayRef = Arc::new(Int64Array::from_iter((0..100).map(key)));
        RecordBatch::try_from_iter_with_nullable([("k", keys, true)]).unwrap()
    };
    let probe = [probe(Some), probe(|i| (i % 3 != 0).then_some(i)), probe(Some)];
    let build = [keyed(0..50)];
    for said in [Statistics::unknown(), Statistics::unknown().with_nulls(0)] {
        for algorithm in [Algorithm::NoPartition, Algorithm::StreamedProbe] {
            let join = Join::new(JoinType::Right).on("k").build_side(Side::Left);
            let join = join.statistics(Side::Right, said).algorithm(algorithm);
            let cpu = join.clone().algorithm(Algorithm::NoPartition).device(Processor::Cpu);
            let expected = rows_of(&cpu, Output::Rows, &build, &probe, false).unwrap();
            let join = join.test_overrides(tiny(7));
            let found = rows_of(&join, Output::Rows, &build, &probe, false).unwrap();
            assert_eq!(found, expected, "{algorithm}, {said:?}");
        }
    }
}

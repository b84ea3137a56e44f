//! Tables with several payload columns, and requests that the engine refuses. All on a simulated GPU.

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int32Array, Int64Array, RecordBatch};
use strait::internal::{
    Block, BlockReceiver, GpuTable, HostTable, OpenGpu, join_from_host_memory, join_in_gpu_memory,
};
use strait::{Algorithm, GpuOptions, Partitioner, Result};
use strait_bench::{GpuTables, HostPlacement, HostTables, JoinRequest, ResultKind, WordSize};

fn batch(columns: &[ArrayRef]) -> RecordBatch {
    let names = ["key", "p1", "p2"];
    RecordBatch::try_from_iter(names.into_iter().zip(columns.iter().cloned())).expect("a batch")
}

fn narrow(values: impl Iterator<Item = i64>) -> ArrayRef {
    Arc::new(values.map(|v| v as i32).collect::<Int32Array>())
}

fn wide(values: impl Iterator<Item = i64>) -> ArrayRef {
    Arc::new(values.collect::<Int64Array>())
}

fn request(algorithm: Option<Algorithm>, result: ResultKind) -> JoinRequest {
    JoinRequest { algorithm, gpu_options: GpuOptions::new(), result, hash_seed: None }
}

/// Payload columns keep their own width, with their sign, and are gathered by row number.
#[test]
fn several_payload_columns_are_gathered() {
    let build = batch(&[
        wide((0..40).map(|i| i * 1_000_003)),
        narrow((0..40).map(|i| 7 - i)),
        wide((0..40).map(|i| (i - 20) << 40)),
    ]);
    let probe =
        batch(&[narrow((0..90).map(|i| (i % 30) * 1_000_003)), narrow((0..90).map(|i| -i))]);
    let tables = [std::slice::from_ref(&build), std::slice::from_ref(&probe)];
    let of_build = |value: &dyn Fn(i64) -> i64| (0..90).map(|i| value(i % 30)).sum::<i64>() as u64;
    let expected = [of_build(&|i| 7 - i), of_build(&|i| (i - 20) << 40), -(89 * 90 / 2) as u64];
    let keys = of_build(&|i| i * 1_000_003);
    for seed in 0..4 {
        let loaded = GpuTables::simulate(seed, tables).expect("room");
        assert_eq!(loaded.word(), WordSize::Eight);
        assert!(loaded.read_rate().expect("a rate") > 0.0);
        for algorithm in [None, Some(Algorithm::Radix), Some(Algorithm::SortMerge)] {
            let how = request(algorithm, ResultKind::Materialise);
            let run = loaded.run(&how, true).expect("an answer");
            assert_eq!((run.rows, run.key_sum), (90, keys), "{algorithm:?}");
            assert_eq!(run.sums, expected, "{algorithm:?}");
            let unchecked = loaded.run(&how, false).expect("an answer");
            assert_eq!((unchecked.rows, unchecked.sums.len()), (90, 0), "{algorithm:?}");
        }
        let refused = loaded.run(&request(None, ResultKind::Aggregate), true).unwrap_err();
        assert!(refused.to_string().contains("--payload-columns 1"), "{refused}");
        let refused = loaded.run(&request(Some(Algorithm::Triton), ResultKind::Count), true);
        assert!(refused.unwrap_err().to_string().contains("tables in host memory"));
    }
}

/// The planner chooses for tables in GPU memory: the array of dense keys stays in the cache.
#[test]
fn the_algorithm_that_joined_is_named() {
    let table = |keys: ArrayRef| batch(&[keys, wide(0..50)]);
    let joined_by = |key: &dyn Fn(i64) -> i64| {
        let table = table(wide((0..50).map(key)));
        let tables = [std::slice::from_ref(&table); 2];
        let loaded = GpuTables::simulate(1, tables).expect("room");
        loaded.run(&request(None, ResultKind::Count), true).expect("an answer").algorithm
    };
    assert_eq!(joined_by(&|i| i), Some(Algorithm::NoPartition));
    assert_eq!(joined_by(&|i| i << 40), Some(Algorithm::Radix));
    assert_eq!(joined_by(&|i| i / 2), Some(Algorithm::Radix), "keys that occur twice");
}

/// For tables in host memory, the planner of `strait join` chooses.
#[test]
fn the_planner_chooses_for_tables_in_host_memory() {
    let table = batch(&[wide((0..500).map(|i| i << 40)), wide(0..500)]);
    let tables = [std::slice::from_ref(&table); 2];
    for placement in [HostPlacement::Pinned, HostPlacement::Pageable] {
        let loaded = HostTables::simulate(1, 1 << 20, placement, tables).expect("room");
        for result in [ResultKind::Count, ResultKind::Aggregate, ResultKind::Materialise] {
            let run = loaded.run(&request(None, result), true).expect("an answer");
            assert_eq!(run.rows, 500);
            if result != ResultKind::Count {
                assert_eq!(run.sums, [499 * 250; 2]);
            }
        }
        // A partitioner of `radix` excludes `triton`; one of `triton` is refused.
        let how = |partitioner| JoinRequest {
            gpu_options: GpuOptions::new().partitioner(partitioner),
            ..request(None, ResultKind::Count)
        };
        let run = loaded.run(&how(Partitioner::LookBack), true).expect("an answer");
        assert_ne!(run.algorithm, Some(Algorithm::Triton));
        let refused = loaded.run(&how(Partitioner::Dma), true).unwrap_err();
        assert!(refused.to_string().contains("only triton partitions by dma"), "{refused}");
    }
}

struct Ignored;

impl BlockReceiver for Ignored {
    fn block(&mut self, _: &Block<'_>) -> Result<()> {
        Ok(())
    }
}

#[test]
fn tables_that_do_not_belong_together_are_refused() {
    let batches = [batch(&[narrow(0..5), narrow(0..5)])];
    let gpus = [OpenGpu::simulated(1, 1 << 20), OpenGpu::simulated(2, 1 << 20)];
    let how = request(None, ResultKind::Count);
    let words = [WordSize::Four, WordSize::Eight];
    for (gpu, word, expected) in [
        (&gpus[1], words[0], "two GPUs"),
        (&gpus[0], words[1], "4 and of 8 bytes"),
        (&gpus[0], words[0], ""),
    ] {
        let build = GpuTable::load(&gpus[0], words[0], &batches).expect("room");
        let probe = GpuTable::load(gpu, word, &batches).expect("room");
        let told = join_in_gpu_memory([&build, &probe], &how, &mut Ignored);
        let told = told.err().map_or(String::new(), |error| error.to_string());
        assert!(told.contains(expected) && told.is_empty() == expected.is_empty(), "{told}");

        let placement = HostPlacement::Pinned;
        let build = HostTable::load(&gpus[0], placement, words[0], &batches).expect("room");
        let probe = HostTable::load(gpu, placement, word, &batches).expect("room");
        let told = join_from_host_memory([&build, &probe], &how, &mut Ignored);
        let told = told.err().map_or(String::new(), |error| error.to_string());
        assert!(told.contains(expected) && told.is_empty() == expected.is_empty(), "{told}");
    }
}

#[test]
fn columns_that_are_not_words_are_refused() {
    let gpu = OpenGpu::simulated(1, 1 << 20);
    let refused = |columns: &[ArrayRef], word: WordSize, expected: &str| {
        let batches = [batch(columns)];
        let in_gpu_memory = GpuTable::load(&gpu, word, &batches).map(drop).unwrap_err();
        let pinned = HostTable::load(&gpu, HostPlacement::Pinned, word, &batches);
        for error in [in_gpu_memory, pinned.map(drop).unwrap_err()] {
            assert!(error.to_string().contains(expected), "{error}");
        }
    };
    refused(&[wide(0..3)], WordSize::Four, "words of 8 bytes");
    refused(&[narrow(0..3), wide(0..3)], WordSize::Four, "words of 8 bytes");
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![1.0]));
    refused(&[floats], WordSize::Eight, "give signed integers");
    let nulls: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
    refused(&[nulls], WordSize::Eight, "has nulls");
    assert!(WordSize::of(&[&[]]).is_ok_and(|word| word == WordSize::Four));
    assert!(GpuTable::load(&gpu, WordSize::Eight, &[]).is_err(), "a table without columns");
    assert!(HostTable::load(&gpu, HostPlacement::Pageable, WordSize::Eight, &[]).is_err());
}

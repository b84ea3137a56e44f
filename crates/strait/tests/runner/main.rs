//! The test runner: compares every algorithm, join type and kind of key with the naive oracle.
//!
//! A seed determines a case completely. `STRAIT_CASES` is the total number of cases (100,000 by default),
//! `STRAIT_SEED` is the first seed, and `STRAIT_JOBS` is the number of threads per algorithm (one per eight
//! cores by default). A failing case prints its settings and a command that repeats this case alone. One
//! third of the cases run on a simulated device. `STRAIT_DEVICE=gpu` runs all cases on a GPU.

mod bulk;
mod case;
mod check;
mod expect;
mod order;
mod predicate;
mod readers;
mod store;
mod together;
mod unusual;
mod watch;

use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::datatypes::DataType;
use case::{Case, Choice, FilterKind};
use readers::{Feed, Taking};
use strait::{Algorithm, JoinType, Statistics};
use strait_testkit::{KeyKind, Pair, Rng, Table, kinds};

/// Every algorithm, and None, for which the planner chooses.
const CHOICES: [Choice; 9] = [
    None,
    Some(Algorithm::NoPartition),
    Some(Algorithm::Radix),
    Some(Algorithm::SortMerge),
    Some(Algorithm::StreamedProbe),
    Some(Algorithm::MultiPass),
    Some(Algorithm::CpuPartitioned),
    Some(Algorithm::Triton),
    Some(Algorithm::Spill),
];

/// The default number of random cases, over all algorithms.
const CASES: u64 = 100_000;

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

/// Runs cases and collects the failures, up to a maximum.
#[derive(Default)]
struct Tally {
    rows: usize,
    failures: Vec<(String, String)>,
}

impl Tally {
    /// Runs one case. Returns false once enough cases have failed.
    fn run(&mut self, case: &Case, pair: &Pair, repeat: &str) -> bool {
        const ENOUGH: usize = 20;
        let _watch = watch::Watch::over(repeat);
        let outcome = catch_unwind(AssertUnwindSafe(|| check::check(case, pair)));
        let failure = match outcome {
            Ok(Ok(rows)) => {
                self.rows += rows;
                return true;
            }
            Ok(Err(failure)) => failure,
            Err(payload) => {
                let text = payload.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
                format!("it panicked: {}", text.unwrap_or("with no message"))
            }
        };
        let full = if self.failures.is_empty() { format!("\n{case:#?}") } else { String::new() };
        self.failures.push((format!("{failure}{full}"), repeat.to_string()));
        self.failures.len() < ENOUGH
    }

    /// Adds the results of another thread.
    fn add(&mut self, other: Tally) {
        self.rows += other.rows;
        self.failures.extend(other.failures);
    }

    /// Panics if a case has failed. The message describes the failures and how to repeat each.
    fn assert_none_failed(&self) {
        let told: Vec<_> = (self.failures.iter())
            .map(|(failure, repeat)| format!("{failure}\nrepeat it with\n  {repeat}\n"))
            .collect();
        assert!(told.is_empty(), "{} cases failed\n{}", told.len(), told.join("\n"));
    }
}

/// Runs one algorithm's share of the random cases on several threads.
fn random_cases(algorithm: Choice, test: &str) {
    let cases = setting("STRAIT_CASES", CASES).div_ceil(CHOICES.len() as u64);
    let first = setting("STRAIT_SEED", 1);
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u64);
    let jobs = setting("STRAIT_JOBS", cores / CHOICES.len() as u64).clamp(1, cases.max(1));
    let next = AtomicU64::new(0);
    let job = || {
        let mut tally = Tally::default();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= cases {
                return tally;
            }
            let seed = first.wrapping_add(i);
            let repeat = format!(
                "STRAIT_SEED={seed} STRAIT_CASES=1 cargo test -p strait --test runner {test} -- --exact --nocapture"
            );
            let Ok((case, pair)) = catch_unwind(|| Case::random(algorithm, seed)) else {
                tally.failures.push(("the case could not be made".to_string(), repeat));
                continue;
            };
            if cases == 1 {
                println!("{case:#?}");
            }
            if !tally.run(&case, &pair, &repeat) {
                next.store(cases, Ordering::Relaxed);
            }
        }
    };
    let mut tally = Tally::default();
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..jobs).map(|_| scope.spawn(job)).collect();
        tally.add(job());
        for other in others {
            tally.add(other.join().expect("cases that panic are caught"));
        }
    });
    tally.assert_none_failed();
    // One case may have no rows, but not all of them.
    assert!(tally.rows > 0 || cases < 100, "{cases} cases and not one row");
}

#[test]
fn random_auto() {
    random_cases(None, "random_auto");
}

#[test]
fn random_no_partition() {
    random_cases(Some(Algorithm::NoPartition), "random_no_partition");
}

#[test]
fn random_radix() {
    random_cases(Some(Algorithm::Radix), "random_radix");
}

#[test]
fn random_sort_merge() {
    random_cases(Some(Algorithm::SortMerge), "random_sort_merge");
}

#[test]
fn random_streamed_probe() {
    random_cases(Some(Algorithm::StreamedProbe), "random_streamed_probe");
}

#[test]
fn random_multi_pass() {
    random_cases(Some(Algorithm::MultiPass), "random_multi_pass");
}

#[test]
fn random_cpu_partitioned() {
    random_cases(Some(Algorithm::CpuPartitioned), "random_cpu_partitioned");
}

#[test]
fn random_spill() {
    random_cases(Some(Algorithm::Spill), "random_spill");
}

#[test]
fn random_triton() {
    random_cases(Some(Algorithm::Triton), "random_triton");
}

/// Tables that are long enough for every stage to use several threads.
#[test]
fn long_tables_on_three_threads() {
    let mut tally = Tally::default();
    let base = setting("STRAIT_SEED", 1);
    let keys = [KeyKind::same(DataType::Int64), KeyKind::same(DataType::Utf8)];
    for (i, algorithm) in CHOICES.into_iter().enumerate() {
        for (j, join_type) in JoinType::ALL.into_iter().enumerate() {
            let seed = base.wrapping_mul(1_000_003).wrapping_add((i * 10 + j) as u64);
            let keys = vec![keys[(i + j) % keys.len()].clone()];
            let (case, pair) = Case::long(&mut Rng::new(seed), (algorithm, join_type, keys));
            let repeat = format!(
                "STRAIT_SEED={base} cargo test -p strait --test runner long_ -- --nocapture"
            );
            tally.run(&case, &pair, &repeat);
        }
    }
    tally.assert_none_failed();
    assert!(tally.rows > 1_000_000, "only {} rows", tally.rows);
}

/// Tests every kind of payload in a batch of more than 32,767 rows, and in hundreds of batches.
#[test]
fn every_payload_in_bulk() {
    let mut tally = Tally::default();
    let base = setting("STRAIT_SEED", 1);
    let repeat = format!(
        "STRAIT_SEED={base} cargo test -p strait --test runner every_payload_in_bulk -- --exact --nocapture"
    );
    for (i, payload) in kinds::payloads().chunks(3).enumerate() {
        for j in 0..2 {
            let seed = base.wrapping_mul(1_000_003).wrapping_add((i * 2 + j) as u64);
            let mut rng = Rng::new(seed);
            let algorithm = CHOICES[(i + j) % CHOICES.len()];
            let join_type = JoinType::ALL[(i / 2) % 4];
            let key = vec![KeyKind::same(DataType::Int64)];
            let (case, pair) =
                Case::bulk_of(&mut rng, (algorithm, join_type, key), (j == 0, payload));
            tally.run(&case, &pair, &repeat);
        }
    }
    tally.assert_none_failed();
    assert!(tally.rows > 100_000, "only {} rows", tally.rows);
}

/// Full joins merge the dictionaries of both sides' keys. The merged dictionary has more values than narrow
/// keys can address.
#[test]
fn narrow_dictionary_keys_in_full_joins() {
    let mut tally = Tally::default();
    let base = setting("STRAIT_SEED", 1);
    let repeat = format!(
        "STRAIT_SEED={base} cargo test -p strait --test runner narrow_dictionary_keys -- --nocapture"
    );
    for (i, index) in [DataType::Int8, DataType::UInt8, DataType::Int16].into_iter().enumerate() {
        for (j, value) in
            [DataType::Utf8, DataType::Utf8View, DataType::Int64].into_iter().enumerate()
        {
            let key = vec![KeyKind::same(kinds::dictionary(index.clone(), value))];
            for (k, algorithm) in CHOICES.into_iter().enumerate() {
                let seed = base.wrapping_mul(1_000_003).wrapping_add((i * 100 + j * 10 + k) as u64);
                let cell = (algorithm, JoinType::Full, key.clone());
                let (case, pair) = Case::bulk_of(&mut Rng::new(seed), cell, (false, &[]));
                tally.run(&case, &pair, &repeat);
            }
        }
    }
    tally.assert_none_failed();
    assert!(tally.rows > 10_000, "only {} rows", tally.rows);
}

/// About one case in 400 is bulky, and every unusual setting occurs often enough to matter.
#[test]
fn random_cases_have_everything() {
    let mut seen = HashMap::<&str, usize>::new();
    for seed in 1..=4000 {
        let (case, pair) = Case::random(Some(Algorithm::Radix), seed);
        let mut note = |what, is: bool| *seen.entry(what).or_default() += usize::from(is);
        let tables = [&pair.left, &pair.right];
        let rows = |table: &Table| table.batches.iter().map(|b| b.num_rows()).max().unwrap_or(0);
        note("33,000 rows", tables.iter().any(|t| t.rows() >= 33_000));
        note("a batch of more than 32,767 rows", tables.iter().any(|t| rows(t) > 32_767));
        note("200 batches", tables.iter().any(|t| t.batches.len() >= 200));
        note("a long text", tables.iter().any(|t| t.schema.index_of("t").is_ok()));
        note("a filter over any columns", matches!(case.filter, Some(FilterKind::Cells(_))));
        let feeds = case.unusual.feeds;
        note("a slow input", feeds.contains(&Feed::Slow));
        note("an input that fails", feeds.iter().any(|f| matches!(f, Feed::Fails(_))));
        note("an input that panics", feeds.iter().any(|f| matches!(f, Feed::Panics(_))));
        note("an input that blocks", feeds.iter().any(|f| matches!(f, Feed::Blocks(_))));
        note("a slow consumer", case.unusual.taking == Taking::Slowly);
        let dropped = matches!(case.unusual.taking, Taking::DropAfter(_));
        note("a dropped output", dropped);
        note("other nullability", case.unusual.declared.is_some());
        note("a shared budget", case.unusual.shared_budget);
        note("statistics", case.statistics.iter().any(|s| *s != Statistics::unknown()));
        note("a concurrent source", case.unusual.concurrent != [false; 2]);
        note("a sink", case.unusual.sink);
        note("a limit twice", case.unusual.again_slowly.is_some());
        note("many threads", case.threads > 3 && case.force.tiny_partitions);
        note("a huge batch size", case.batch_size >= 1 << 34);
    }
    let rare: Vec<_> = seen.iter().filter(|(_, times)| **times < 2).collect();
    assert!(rare.is_empty(), "too rare in 4000 cases: {rare:?}");
    assert!(seen["33,000 rows"] + seen["200 batches"] >= 10, "{seen:?}");
}

#[test]
fn every_algorithm_join_type_and_key() {
    let mut tally = Tally::default();
    let mut covered = HashSet::new();
    let base = setting("STRAIT_SEED", 1);
    for kind in kinds::all() {
        for algorithm in CHOICES {
            for join_type in JoinType::ALL {
                let seed = base.wrapping_mul(1_000_003).wrapping_add(covered.len() as u64);
                let cell = (algorithm, join_type, vec![kind.clone()]);
                let (case, pair) = Case::with(&mut Rng::new(seed), cell, false);
                let repeat = format!(
                    "STRAIT_SEED={base} cargo test -p strait --test runner every_ -- --nocapture"
                );
                tally.run(&case, &pair, &repeat);
                covered.insert((algorithm, join_type, kind.to_string()));
            }
        }
    }
    tally.assert_none_failed();
    let all = CHOICES.len() * JoinType::ALL.len() * kinds::all().len();
    assert_eq!(covered.len(), all, "not every cell of the cross was covered");
}

//! The one runner: every algorithm, join type and kind of key, against the naive oracle.
//!
//! A case is wholly determined by a seed. `STRAIT_CASES` says how many cases there are in all
//! (100,000 by default), `STRAIT_SEED` where they start. A failing case prints what it is and the
//! command that repeats it alone. A third of the cases run on a simulated device;
//! `STRAIT_DEVICE=gpu` runs all of them on a GPU.

mod case;
mod check;
mod expect;
mod order;
mod watch;

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use arrow::datatypes::DataType;
use case::Case;
use strait::{Algorithm, JoinType};
use strait_testkit::{KeyKind, Pair, Rng, kinds};

/// Random cases that run by default, over all algorithms.
const CASES: u64 = 100_000;

fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} is not a number: {text}")),
        Err(_) => default,
    }
}

/// Runs cases and gathers those that fail, up to a few.
#[derive(Default)]
struct Tally {
    rows: usize,
    failures: Vec<(String, String)>,
}

impl Tally {
    /// Runs one case. False when enough have failed.
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

    /// Panics with all there is to know about the first failure, and how to repeat each.
    fn assert_none_failed(&self) {
        let told: Vec<_> = (self.failures.iter())
            .map(|(failure, repeat)| format!("{failure}\nrepeat it with\n  {repeat}\n"))
            .collect();
        assert!(told.is_empty(), "{} cases failed\n{}", told.len(), told.join("\n"));
    }
}

/// This algorithm's share of the random cases.
fn random_cases(algorithm: Algorithm, test: &str) {
    let cases = setting("STRAIT_CASES", CASES).div_ceil(Algorithm::ALL.len() as u64);
    let first = setting("STRAIT_SEED", 1);
    let mut tally = Tally::default();
    for seed in (0..cases).map(|i| first.wrapping_add(i)) {
        let (case, pair) = Case::random(algorithm, seed);
        let repeat = format!(
            "STRAIT_SEED={seed} STRAIT_CASES=1 cargo test -p strait --test runner {test} -- --exact --nocapture"
        );
        if cases == 1 {
            println!("{case:#?}");
        }
        if !tally.run(&case, &pair, &repeat) {
            break;
        }
    }
    tally.assert_none_failed();
    // One case may be empty, all of them cannot.
    assert!(tally.rows > 0 || cases < 100, "{cases} cases and not one row");
}

#[test]
fn random_auto() {
    random_cases(Algorithm::Auto, "random_auto");
}

#[test]
fn random_no_partition() {
    random_cases(Algorithm::NoPartition, "random_no_partition");
}

#[test]
fn random_radix() {
    random_cases(Algorithm::Radix, "random_radix");
}

#[test]
fn random_sort_merge() {
    random_cases(Algorithm::SortMerge, "random_sort_merge");
}

#[test]
fn random_streamed_probe() {
    random_cases(Algorithm::StreamedProbe, "random_streamed_probe");
}

#[test]
fn random_multi_pass() {
    random_cases(Algorithm::MultiPass, "random_multi_pass");
}

#[test]
fn random_cpu_partitioned() {
    random_cases(Algorithm::CpuPartitioned, "random_cpu_partitioned");
}

#[test]
fn random_triton() {
    random_cases(Algorithm::Triton, "random_triton");
}

/// Tables long enough that every stage shares its work among threads.
#[test]
fn long_tables_on_three_threads() {
    let mut tally = Tally::default();
    let base = setting("STRAIT_SEED", 1);
    let keys = [KeyKind::same(DataType::Int64), KeyKind::same(DataType::Utf8)];
    for (i, algorithm) in Algorithm::ALL.into_iter().enumerate() {
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

#[test]
fn every_algorithm_join_type_and_key() {
    let mut tally = Tally::default();
    let mut covered = HashSet::new();
    let base = setting("STRAIT_SEED", 1);
    for kind in kinds::all() {
        for algorithm in Algorithm::ALL {
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
    let all = Algorithm::ALL.len() * JoinType::ALL.len() * kinds::all().len();
    assert_eq!(covered.len(), all, "not every cell of the cross was covered");
}

//! The memory limit as the operating system sees it.
//!
//! Each case is a join in a process of its own, which this binary starts: itself, with a case number in
//! its environment. The child reads its peak of resident memory from the kernel. It may be larger than
//! before the join by the limit, a tenth of it, and [`CONSTANT`].
//!
//! `STRAIT_LIMITS_CASES` says how many random joins are run, and `STRAIT_SEED` which.

mod case;
mod tables;

use std::process::Command;

/// What is not the join's, or is too small to reserve: the batch in each reader's hands and in the
/// consumer's, stacks of threads, and memory that the allocator keeps after it was freed.
const CONSTANT: u64 = 48 << 20;
/// Random joins that are run unless the environment says otherwise.
const CASES: u64 = 24;
/// Names the case that a child runs.
const CHILD: &str = "STRAIT_LIMITS_CASE";

/// What a child says of its join.
#[derive(Debug)]
struct Outcome {
    /// The number of rows, or `refused` if the limit did not suffice.
    rows: String,
    /// How much resident memory has grown at most.
    grown: u64,
    limit: u64,
}

/// Runs a case in a process of its own.
fn in_child(case: &str) -> Outcome {
    let this = std::env::current_exe().expect("the path of this binary");
    let mut command = Command::new(this);
    command.args(["--exact", "the_child", "--nocapture", "--test-threads", "1"]);
    // One arena per process: others would keep memory that is free.
    command.env(CHILD, case).env("MALLOC_ARENA_MAX", "1");
    let output = command.output().expect("the child starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "case {case}: {}\n{text}\n{errors}", output.status);
    let said = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let line = line.unwrap_or_else(|| panic!("case {case} did not say {name}\n{text}"));
        line.trim().to_string()
    };
    let number = |name: &str| said(name).parse().expect("a number");
    Outcome { rows: said("rows:"), grown: number("grown:"), limit: number("limit:") }
}

fn assert_kept(case: &str, outcome: &Outcome) {
    let most = outcome.limit + outcome.limit / 10 + CONSTANT;
    let again =
        format!("{CHILD}={case} cargo test -p strait --test limits the_child -- --nocapture");
    assert!(
        outcome.grown <= most,
        "case {case}: {outcome:?}: {} bytes more than allowed; to see it: {again}",
        outcome.grown - most
    );
}

/// Does nothing unless it is a child of another test.
#[test]
fn the_child() {
    if let Ok(case) = std::env::var(CHILD) {
        case::run(&case);
    }
}

#[test]
fn random_joins_stay_within_their_limit() {
    let from = |name: &str, default| {
        std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
    };
    let (seed, cases) = (from("STRAIT_SEED", 1), from("STRAIT_LIMITS_CASES", CASES));
    let mut refused = 0;
    for case in 0..cases {
        let case = format!("random {}", seed * 1_000_000 + case);
        let outcome = in_child(&case);
        assert_kept(&case, &outcome);
        refused += u64::from(outcome.rows == "refused");
    }
    assert!(cases < 10 || refused < cases * 2 / 3, "{refused} of {cases} were refused: no test");
}

/// Each batch of output refers to many input batches, as views do, and is read slowly.
#[test]
fn a_slow_consumer_of_views_holds_no_more_than_the_limit() {
    for case in ["views 1", "views 4", "slices 4"] {
        let outcome = in_child(case);
        assert_kept(case, &outcome);
        assert_ne!(outcome.rows, "refused", "{case}: the limit suffices for a fast consumer");
    }
}

/// One worker goes the same way under a limit whether its output is read at once or late.
#[test]
fn how_fast_output_is_read_does_not_matter() {
    let (mut kept, mut refused) = (0, 0);
    for seed in 0..8 {
        for limit in [100_000, 400_000, 1_600_000, 6_400_000] {
            let [fast, slow] = [false, true].map(|slow| case::small(seed, limit, slow));
            assert_eq!(fast, slow, "seed {seed}, limit {limit}: rows read fast and slowly");
            *(if fast.is_some() { &mut kept } else { &mut refused }) += 1;
        }
    }
    assert!(kept > 0 && refused > 0, "{kept} kept, {refused} refused: no test");
}

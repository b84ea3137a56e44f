//! The memory limit, as the operating system measures it.
//!
//! Each case is a join in its own process. For this, the binary starts itself with the name of a case in its
//! environment. The child reads its peak resident memory from the kernel. The peak may exceed the memory
//! before the join by the limit, plus a tenth of the limit, plus [`CONSTANT`].
//!
//! `STRAIT_LIMITS_CASES` is the number of random joins, and `STRAIT_SEED` selects them.

mod case;
mod tables;

use std::process::Command;

/// Memory that does not belong to the join, or is too small to reserve: the batches that the readers and the
/// consumer hold, thread stacks, and freed memory that the allocator keeps.
const CONSTANT: u64 = 48 << 20;
/// The default number of random joins.
const CASES: u64 = 24;
/// The environment variable with the name of the child's case.
const CHILD: &str = "STRAIT_LIMITS_CASE";

/// The outcome that a child reports.
#[derive(Debug)]
struct Outcome {
    /// The number of rows, or `refused` if the limit did not suffice.
    rows: String,
    /// The largest growth of resident memory.
    grown: u64,
    limit: u64,
}

/// Runs a case in its own process.
fn in_child(case: &str) -> Outcome {
    let this = std::env::current_exe().expect("the path of this binary");
    let mut command = Command::new(this);
    command.args(["--exact", "the_child", "--nocapture", "--test-threads", "1"]);
    // One arena per process: other arenas would keep free memory.
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

/// Runs the child's case. Does nothing in a process that another test did not start.
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

/// Each output batch refers to many input batches, as views do, and is read slowly.
#[test]
fn a_slow_consumer_of_views_holds_no_more_than_the_limit() {
    for case in ["views 1", "views 4", "slices 4"] {
        let outcome = in_child(case);
        assert_kept(case, &outcome);
        assert_ne!(outcome.rows, "refused", "{case}: the limit suffices for a fast consumer");
    }
}

/// With one thread, a limit suffices or fails in the same way whether the output is read at once or late.
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

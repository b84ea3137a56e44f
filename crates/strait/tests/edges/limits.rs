//! The errors of the memory limit, and the progress of a running join.

use std::sync::{Arc, Mutex};

use strait::{Algorithm, Error, Join, Progress, Side, Stage, Statistics};

use super::{count, drained, keyed, whole};

#[test]
fn a_limit_too_small_says_how_much_was_needed() {
    let (left, right) = (keyed(0..50_000), keyed(0..50_000));
    for algorithm in Algorithm::ANYWHERE {
        let join = Join::inner().on("k").algorithm(algorithm).memory_limit(100_000);
        let outcome = join.run(whole(&left), whole(&right)).and_then(drained);
        let error = outcome.expect_err("100 kB do not hold 800 kB");
        let Error::MemoryLimit { needed, used, limit, .. } = &error else {
            panic!("{algorithm}: {error:?}");
        };
        assert_eq!(*limit, 100_000);
        assert!(used <= limit && used + needed > *limit, "{algorithm}: {error:?}");
        let text = error.to_string();
        assert!(text.contains("97.7 KiB"), "the limit: {text}");
        assert!(text.contains(&strait::bytes(used + needed)), "what is needed: {text}");
        assert!(text.contains("raise the limit"), "what to do: {text}");
    }
}

#[test]
fn raising_the_limit_as_told_leads_to_success() {
    let (left, right) = (keyed(0..20_000), keyed(0..20_000));
    for algorithm in Algorithm::ANYWHERE {
        let mut limit = 1000;
        let mut tries = 0;
        let rows = loop {
            let join = Join::inner().on("k").algorithm(algorithm).threads(2).memory_limit(limit);
            match join.count(whole(&left), whole(&right)) {
                Ok((rows, report)) => {
                    assert!(report.peak_memory <= limit, "{algorithm}");
                    break rows;
                }
                Err(Error::MemoryLimit { needed, used, .. }) => {
                    limit = limit.max(used + needed) + 1
                }
                Err(other) => panic!("{algorithm}: {other}"),
            }
            tries += 1;
            assert!(tries < 1000, "{algorithm}: the advice leads nowhere");
        };
        assert_eq!(rows, 20_000);
    }
}

#[test]
fn a_generous_limit_changes_nothing() {
    let (left, right) = (keyed(0..20_000), keyed((0..20_000).map(|i| i % 500)));
    for algorithm in Algorithm::ANYWHERE {
        let join = Join::inner().on("k").algorithm(algorithm);
        let free = count(&join, &left, &right);
        let limited = count(&join.memory_limit(1 << 30), &left, &right);
        assert_eq!((free, limited), (20_000, 20_000), "{algorithm}");
    }
}

#[test]
fn progress_ends_with_all_rows_read_and_written() {
    let (left, right) = (keyed(0..60_000), keyed((0..30_000).map(|i| i * 2)));
    for algorithm in Algorithm::ANYWHERE {
        let seen: Arc<Mutex<Vec<Progress>>> = Arc::default();
        let heard = Arc::clone(&seen);
        let join = Join::inner()
            .on("k")
            .algorithm(algorithm)
            .on_progress(move |progress| heard.lock().unwrap().push(*progress));
        let (_, report) = drained(join.run(whole(&left), whole(&right)).unwrap()).unwrap();
        let seen = seen.lock().unwrap();
        let last = seen.last().expect("the callback is called at least once");
        assert_eq!(last.stage, Stage::Done, "{algorithm}");
        assert_eq!((last.left_rows, last.right_rows), (60_000, 30_000), "{algorithm}");
        assert_eq!(last.output_rows, report.output_rows, "{algorithm}");
        for pair in seen.windows(2) {
            assert!(pair[0].left_rows <= pair[1].left_rows, "rows are never unread");
            assert!(pair[0].right_rows <= pair[1].right_rows, "rows are never unread");
            assert!(pair[0].output_rows <= pair[1].output_rows, "rows are never unwritten");
        }
        for progress in seen.iter().filter(|p| p.total > 0) {
            assert!(!progress.stage.name().is_empty());
        }
    }
}

#[test]
fn a_progress_callback_that_panics_does_not_harm_the_join() {
    let table = keyed(0..1000);
    let join = Join::inner().on("k").on_progress(|_| panic!("no interest"));
    assert_eq!(count(&join, &table, &table), 1000);
}

#[test]
fn a_plan_can_be_explained_before_it_runs() {
    let table = keyed([1]);
    let join = Join::inner()
        .on("k")
        .statistics(Side::Left, Statistics::rows(10_000_000))
        .statistics(Side::Right, Statistics::rows(1_000_000));
    for algorithm in [None].into_iter().chain(Algorithm::ANYWHERE.map(Some)) {
        let join = join.clone().algorithm(algorithm);
        let bound = join.bind(strait::Output::Rows, &table.schema(), &table.schema()).unwrap();
        let plan = bound.explain();
        assert_eq!(plan.algorithm, algorithm.unwrap_or(plan.algorithm));
        assert_eq!(plan.build_side, Some(Side::Right));
        assert!(plan.to_string().contains(plan.algorithm.name()), "{plan}");
    }
}

/// A run plans with the statistics that the join was given, and with its own counts.
#[test]
fn a_run_plans_with_the_statistics() {
    let (left, right) = (keyed(0..1000), keyed(0..10));
    let told = Statistics::rows(7).with_bytes(1).with_key_range(0, 9).with_distinct(5);
    let join = Join::inner().on("k").statistics(Side::Left, told);
    let join = join.statistics(Side::Right, Statistics::rows(123_456_789).with_bytes(1 << 40));
    let (rows, report) = join.count(whole(&left), whole(&right)).unwrap();
    let plan = &report.plan;
    assert_eq!((rows, plan.build_side), (10, Some(Side::Left)));
    // The build side was counted. The probe side is streamed, so its given statistics stay.
    assert_eq!((plan.build.rows, plan.build.key_range), (Some(1000), Some((0, 9))));
    assert_eq!((plan.build.distinct, plan.probe.rows), (Some(5), Some(123_456_789)));
}

#[test]
fn the_report_counts_rows_and_stages() {
    let (left, right) = (keyed(0..1000), keyed(500..700));
    for algorithm in super::NAMED {
        let join = Join::inner().on("k").algorithm(algorithm);
        let (_, report) = drained(join.run(whole(&left), whole(&right)).unwrap()).unwrap();
        let rows = (report.left_rows, report.right_rows, report.output_rows);
        assert_eq!(rows, (1000, 200, 200), "{algorithm}");
        assert!(report.candidates >= 200, "{algorithm}");
        assert!(report.peak_memory > 0 && !report.stages.is_empty(), "{algorithm}");
    }
}

#[test]
fn batch_sizes_and_threads_may_be_any_number() {
    let (left, right) = (keyed((0..3000).map(|i| i % 700)), keyed(0..1000));
    for algorithm in Algorithm::ANYWHERE {
        let join = Join::new(strait::JoinType::Full).on("k").algorithm(algorithm);
        let expected = count(&join, &left, &right);
        for size in [1 << 20, 1 << 34, usize::MAX] {
            for limit in [None, Some(8 << 20)] {
                let join =
                    join.clone().batch_size(size).threads(if size == 1 << 20 { 4096 } else { 2 });
                let join = limit.iter().fold(join, |join, &limit| join.memory_limit(limit));
                let reader = join.run(whole(&left), whole(&right)).expect("the join starts");
                let (batches, _) = drained(reader).expect("the join succeeds");
                let rows: usize = batches.iter().map(|batch| batch.num_rows()).sum();
                assert_eq!(rows as u64, expected, "{algorithm}, batches of {size}, {limit:?}");
            }
        }
        assert_eq!(count(&join.threads(usize::MAX), &left, &right), expected, "{algorithm}");
    }
}

//! The table of all jobs, with the bars that they have to reach.

use strait::Processor;

use super::contest::{Contest, Entrant, Summary};
use super::suite::Written;
use crate::arguments::Engine;
use crate::bench::aligned::aligned;

/// The figures that a job has to reach.
pub(super) struct Bars {
    /// The time of the best peer divided by Strait's, for jobs that write a file.
    written: f64,
    /// The same for jobs that count.
    count: f64,
}

/// The most CPU seconds, compared with the fastest peer's.
const CPU: f64 = 1.0;
/// The highest peak memory, compared with the leanest peer's.
const PEAK: f64 = 1.2;
/// The largest file, compared with DuckDB's.
const SIZE: f64 = 1.1;
/// The speed of `auto`, compared with the better of `cpu` and `gpu`.
const AUTO: f64 = 0.9;

impl Bars {
    pub(super) fn of(threads: usize) -> Bars {
        match threads {
            0..16 => Bars { written: 1.3, count: 2.0 },
            _ => Bars { written: 1.5, count: 1.5 },
        }
    }

    fn ratio(&self, written: Written) -> f64 {
        if written == Written::Count { self.count } else { self.written }
    }

    fn described(&self) -> String {
        format!(
            "Bars: ratio at least {} ({} for counts) with no more CPU seconds than the best peer, peak at most {PEAK} \
             times\nthe leanest peer's, file at most {SIZE} times DuckDB's, auto at least {AUTO} of the better of cpu \
             and gpu.\nA figure that misses its bar has an exclamation mark.\n",
            self.written, self.count
        )
    }
}

/// Formats all contests: one line per job and processor of Strait.
pub(super) fn table(contests: &[Contest], peers: &[Engine], bars: &Bars) -> String {
    let mut header = vec!["job".to_string(), "on".to_string()];
    header.extend(peers.iter().map(|peer| peer.name().to_string()));
    let rest = ["strait", "ratio", "best peer", "CPU s", "ratio", "peak", "ratio", "size", "ratio"];
    header.extend(rest.map(Into::into));
    let compares_auto = contests.iter().any(|contest| auto_ratio(contest).is_some());
    if compares_auto {
        header.push("auto".into());
    }
    let mut rows = vec![header];
    for contest in contests {
        for strait in contest.strait() {
            let mut row = line(contest, strait, peers, bars);
            if compares_auto && strait.entrant == Entrant::Strait(Processor::Auto) {
                row.push(at_least(auto_ratio(contest), AUTO));
            }
            rows.push(row);
        }
    }
    format!(
        "Median seconds. Ratio: the best peer's time divided by Strait's, without the peer's import. The ratios after \
         CPU s, peak and size:\nStrait's figure divided by that of the best peer, of the leanest peer, and of \
         DuckDB.\n{}\n{}",
        bars.described(),
        aligned(&rows, 2)
    )
}

fn line(contest: &Contest, strait: &Summary, peers: &[Engine], bars: &Bars) -> Vec<String> {
    let mut row = vec![contest.job.name.to_string(), strait.entrant.variant()];
    row.extend(peers.iter().map(|&peer| {
        contest.best_of(peer).map_or("-".to_string(), |best| format!("{:.2}", best.seconds))
    }));
    let best = contest.best();
    let leanest = contest.peers().map(|peer| peer.peak).min();
    let duckdb = contest.best_of(Engine::DuckDb);
    let counts = contest.job.written == Written::Count;
    let size = duckdb.filter(|_| !counts).map(|duckdb| share(strait.bytes, duckdb.bytes));
    row.extend([
        format!("{:.2}", strait.seconds),
        at_least(ratio(contest, strait), bars.ratio(contest.job.written)),
        best.map_or("-".to_string(), |best| best.entrant.engine().to_string()),
        format!("{:.2}", strait.cpu_seconds),
        at_most(best.map(|best| strait.cpu_seconds / best.cpu_seconds.max(1e-9)), CPU),
        strait::bytes(strait.peak),
        at_most(leanest.map(|leanest| share(strait.peak, leanest)), PEAK),
        if counts { "-".to_string() } else { strait::bytes(strait.bytes) },
        at_most(size, SIZE),
    ]);
    row
}

/// The time of the best peer, divided by the time of an entrant.
pub(super) fn ratio(contest: &Contest, entrant: &Summary) -> Option<f64> {
    contest.best().map(|best| best.seconds / entrant.seconds.max(1e-9))
}

/// The time of the better of `cpu` and `gpu`, divided by the time of `auto`, if all three ran.
pub(super) fn auto_ratio(contest: &Contest) -> Option<f64> {
    let seconds = |wanted: fn(Processor) -> bool| {
        let on = |s: &&Summary| matches!(s.entrant, Entrant::Strait(device) if wanted(device));
        contest.strait().filter(on).map(|s| s.seconds).min_by(f64::total_cmp)
    };
    let cpu = seconds(|device| device == Processor::Cpu)?;
    let gpu = seconds(|device| matches!(device, Processor::Gpu(_)))?;
    let auto = seconds(|device| device == Processor::Auto)?;
    Some(cpu.min(gpu) / auto.max(1e-9))
}

fn share(part: u64, whole: u64) -> f64 {
    part as f64 / (whole as f64).max(1.0)
}

fn at_least(figure: Option<f64>, bar: f64) -> String {
    marked(figure, |figure| figure >= bar)
}

fn at_most(figure: Option<f64>, bar: f64) -> String {
    marked(figure, |figure| figure <= bar)
}

/// Formats a figure, with a mark if it misses its bar.
fn marked(figure: Option<f64>, reached: impl Fn(f64) -> bool) -> String {
    match figure {
        None => "-".to_string(),
        Some(figure) => format!("{figure:.2}{}", if reached(figure) { " " } else { "!" }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::suite::JOBS;
    use super::*;

    fn summary(entrant: Entrant, seconds: f64, peak: u64, bytes: u64) -> Summary {
        Summary {
            entrant,
            version: "1".to_string(),
            seconds,
            min_seconds: seconds,
            cpu_seconds: 2.0 * seconds,
            process_seconds: seconds,
            process_cpu_seconds: 2.0 * seconds,
            peak,
            bytes,
        }
    }

    fn contest(job: usize, strait: &[(Processor, f64)], peers: &[(Engine, f64)]) -> Contest {
        let strait =
            strait.iter().map(|&(on, s)| summary(Entrant::Strait(on), s, 130 << 20, 100 << 20));
        let peers =
            peers.iter().map(|&(e, s)| summary(Entrant::Peer(e, "x"), s, 100 << 20, 100 << 20));
        let summaries = strait.chain(peers).collect();
        Contest { job: &JOBS[job], rows: Some(1), summaries, failures: Vec::new() }
    }

    #[test]
    fn figures_that_miss_their_bar_are_marked() {
        let peers = [(Engine::DuckDb, 2.6), (Engine::DuckDb, 3.0), (Engine::Polars, 2.8)];
        let fast = contest(0, &[(Processor::Auto, 1.0)], &peers);
        let slow = contest(1, &[(Processor::Auto, 2.4)], &peers);
        let engines = [Engine::DuckDb, Engine::Polars, Engine::DataFusion];
        let text = table(&[fast, slow], &engines, &Bars::of(2));
        let line = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(
            line("four "),
            "four auto 2.60 2.80 - 1.00 2.60 duckdb 2.00 0.38 130.0 MiB 1.30! 100.0 MiB 1.00"
        );
        assert!(line("all-snappy").contains(" 2.40 1.08! duckdb 4.80 0.92 "), "{text}");
        assert!(text.contains("at least 1.3 (2 for counts)"), "{text}");
        assert!(!text.contains("  auto\n"), "{text}");
    }

    #[test]
    fn the_planners_choice_is_compared_with_both_processors() {
        let devices = [(Processor::Cpu, 1.0), (Processor::Gpu(0), 2.0), (Processor::Auto, 1.25)];
        let held = contest(3, &devices, &[(Engine::Polars, 2.0)]);
        assert_eq!(auto_ratio(&held), Some(0.8));
        assert_eq!(auto_ratio(&contest(3, &devices[1..], &[])), None);
        let text = table(&[held], &[Engine::Polars], &Bars::of(16));
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with("count")).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[2].ends_with("0.80!"), "{text}");
        // A count writes no file.
        assert!(lines[0].contains(" 2.00  "), "{text}");
        assert!(lines[0].ends_with('-'), "{text}");
    }

    #[test]
    fn strait_alone_has_no_ratios() {
        let text = table(&[contest(0, &[(Processor::Auto, 1.0)], &[])], &[], &Bars::of(2));
        let line = text.lines().last().unwrap();
        let cells: Vec<_> = line.split_whitespace().collect();
        assert_eq!(
            cells,
            "four auto 1.00 - - 2.00 - 130.0 MiB - 100.0 MiB -".split(' ').collect::<Vec<_>>()
        );
    }
}

//! `strait bench tpch`: the queries of TPC-H in `strait sql`, and in DataFusion with its own joins and readers.
//!
//! ```text
//!  generate ─► 8 Parquet files ─► per query and round: both engines in turns ─► table, record
//!                                                          time; equal rows?
//! ```

mod engine;
mod queries;

use anyhow::bail;
use arrow::array::RecordBatch;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use clap::ValueEnum;
use strait_bench::measure::median;

use self::engine::{Engine, Joins, Planned, Run, Settings};
use self::queries::QUERIES;
use super::aligned::aligned;
use super::record::Record;
use super::temporary::Temporary;
use crate::arguments::{BenchTpchArguments, TpchTable};
use crate::failure::say;
use crate::generate::write_tpch;
use crate::join::cores;
use crate::output::print;

/// Runs the command.
pub(super) fn run(arguments: &BenchTpchArguments) -> anyhow::Result<()> {
    let parent = arguments.temp_dir.clone().unwrap_or_else(std::env::temp_dir);
    let folder = Temporary::within(&parent)?;
    let threads = arguments.threads.unwrap_or_else(cores);
    if arguments.data.is_none() {
        for &table in TpchTable::value_variants() {
            let path = folder.path().join(format!("{}.parquet", table.name()));
            write_tpch(table, arguments.scale, &path, false, Some(threads))?;
        }
        say(format_args!(
            "tables: scale factor {}, in {}",
            arguments.scale,
            folder.path().display()
        ));
    }
    let settings = Settings {
        tables: arguments.data.as_deref().unwrap_or(folder.path()),
        temporary: folder.path(),
        threads,
        memory: arguments.memory,
    };
    let results = measure(arguments, settings)?;

    let mut record = Record::new(&COLUMNS)?;
    for result in &results {
        for entry in &result.entries {
            record.add(cells(arguments, threads, result.query, entry))?;
        }
    }
    let path = record.write(&arguments.out, "tpch")?;
    print(&table(&results))?;
    say(format_args!("record: {}", path.display()));
    let different: Vec<_> =
        results.iter().filter(|result| result.differ()).map(|result| result.query).collect();
    if !different.is_empty() {
        bail!("the rows of both engines differ in the queries {different:?}");
    }
    Ok(())
}

/// One query with both engines.
struct Outcome {
    query: u8,
    entries: Vec<Entry>,
}

/// One query with one engine.
struct Entry {
    joins: Joins,
    /// The times of all rounds, or why the query failed.
    seconds: Result<Vec<f64>, String>,
    plan: Planned,
    /// The rows of the first round, sorted.
    rows: Vec<String>,
}

impl Outcome {
    fn of(&self, joins: Joins) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.joins == joins)
    }

    /// Returns true if both engines answered the query, and their answers differ.
    fn differ(&self) -> bool {
        let answered: Vec<_> = self.entries.iter().filter(|entry| entry.seconds.is_ok()).collect();
        answered.windows(2).any(|pair| pair[0].rows != pair[1].rows)
    }
}

impl Entry {
    fn median(&self) -> Option<f64> {
        let mut seconds = self.seconds.as_ref().ok()?.clone();
        seconds.sort_by(f64::total_cmp);
        Some(median(&seconds))
    }

    fn add(&mut self, run: anyhow::Result<Run>) -> anyhow::Result<()> {
        let Ok(times) = &mut self.seconds else { return Ok(()) };
        match run {
            Ok(run) => {
                if times.is_empty() {
                    self.rows = lines(&run.rows)?;
                }
                times.push(run.seconds);
                self.plan = run.plan;
            }
            Err(why) => self.seconds = Err(format!("{why:#}")),
        }
        Ok(())
    }
}

/// Runs all queries. An engine that fails a query does not run it again.
fn measure(arguments: &BenchTpchArguments, settings: Settings<'_>) -> anyhow::Result<Vec<Outcome>> {
    let mut engines = Vec::new();
    for joins in Joins::BOTH {
        engines.push(Engine::open(joins, settings)?);
    }
    let mut results = Vec::new();
    for (number, sql) in (1..).zip(QUERIES) {
        if !arguments.queries.is_empty() && !arguments.queries.contains(&number) {
            continue;
        }
        let entry = |joins| Entry {
            joins,
            seconds: Ok(Vec::new()),
            plan: Planned::default(),
            rows: Vec::new(),
        };
        let mut entries = Joins::BOTH.map(entry);
        for round in 0..arguments.repeat {
            for turn in 0..entries.len() {
                // The engine that was second is first in the next round.
                let at = (turn + round as usize) % entries.len();
                if entries[at].seconds.is_ok() {
                    let run = engines[at].run(sql);
                    entries[at].add(run)?;
                }
            }
        }
        let result = Outcome { query: number, entries: entries.into() };
        let shown = result.entries.iter().map(|entry| match &entry.seconds {
            Ok(_) => format!("{} {:.3} s", entry.joins.name(), entry.median().unwrap_or(0.0)),
            Err(why) => format!("{} failed: {why}", entry.joins.name()),
        });
        say(format_args!("Q{number}: {}", shown.collect::<Vec<_>>().join(", ")));
        results.push(result);
    }
    Ok(results)
}

/// Returns the rows as sorted lines of text. ORDER BY does not order rows that are equal in all of its columns, so the
/// lines are sorted here.
fn lines(batches: &[RecordBatch]) -> anyhow::Result<Vec<String>> {
    let options = FormatOptions::new().with_null("null");
    let mut lines = Vec::new();
    for batch in batches {
        let columns = batch.columns().iter();
        let columns = columns.map(|column| ArrayFormatter::try_new(column.as_ref(), &options));
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let values = columns.iter().map(|column| column.value(row).to_string());
            lines.push(values.collect::<Vec<_>>().join("|"));
        }
    }
    lines.sort_unstable();
    Ok(lines)
}

/// The columns of the record, after the common ones.
const COLUMNS: [&str; 12] = [
    "scale",
    "query",
    "engine",
    "threads",
    "memory_limit",
    "repeat",
    "median_seconds",
    "min_seconds",
    "rows",
    "joins_replaced",
    "joins_declined",
    "failure",
];

fn cells(arguments: &BenchTpchArguments, threads: usize, query: u8, entry: &Entry) -> [String; 12] {
    let seconds = |seconds: Option<f64>| seconds.map_or(String::new(), |s| format!("{s:.6}"));
    let least = entry.seconds.as_ref().ok().and_then(|s| s.iter().copied().reduce(f64::min));
    let of_strait = entry.joins == Joins::Strait;
    [
        arguments.data.as_ref().map_or(arguments.scale.to_string(), |_| String::new()),
        query.to_string(),
        entry.joins.name().to_string(),
        threads.to_string(),
        arguments.memory.map_or(String::new(), |bytes| bytes.to_string()),
        arguments.repeat.to_string(),
        seconds(entry.median()),
        seconds(least),
        entry.rows.len().to_string(),
        if of_strait { entry.plan.replaced.to_string() } else { String::new() },
        if of_strait { entry.plan.declined.join("; ") } else { String::new() },
        entry.seconds.as_ref().err().cloned().unwrap_or_default(),
    ]
}

/// Returns the table of all queries, with the sum of the queries that both engines answer.
fn table(results: &[Outcome]) -> String {
    let head = ["query", "datafusion", "strait", "ratio", "joins", "spilled", "not replaced"];
    let mut rows = vec![head.map(str::to_string).to_vec()];
    let mut sums = [0.0; 2];
    for result in results {
        let both = Joins::BOTH.map(|joins| result.of(joins).and_then(Entry::median));
        if let [Some(stock), Some(strait)] = both {
            sums[0] += stock;
            sums[1] += strait;
        }
        let plan = result.of(Joins::Strait).map(|entry| entry.plan.clone()).unwrap_or_default();
        let shown =
            |seconds: Option<f64>| seconds.map_or("failed".to_string(), |s| format!("{s:.3}"));
        rows.push(vec![
            format!("Q{}", result.query),
            shown(both[0]),
            shown(both[1]),
            ratio(both),
            plan.replaced.to_string(),
            if plan.spilled > 0 { strait::bytes(plan.spilled as u64) } else { "-".to_string() },
            plan.declined.join("; "),
        ]);
    }
    let sum = |at: usize| format!("{:.3}", sums[at]);
    rows.push(vec!["sum".to_string(), sum(0), sum(1), ratio(sums.map(Some))]);
    let is_answered =
        |result: &&Outcome| result.of(Joins::Strait).is_some_and(|entry| entry.seconds.is_ok());
    format!(
        "Median seconds. Ratio: Strait's time divided by DataFusion's. The sum has the queries that both answer. Strait \
         answers {} of {}.\n{}",
        results.iter().filter(is_answered).count(),
        results.len(),
        aligned(&rows, 1)
    )
}

/// Returns the time of Strait divided by the time of DataFusion.
fn ratio(both: [Option<f64>; 2]) -> String {
    match both {
        [Some(stock), Some(strait)] if stock > 0.0 => format!("{:.2}", strait / stock),
        _ => "-".to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(joins: Joins, seconds: Result<Vec<f64>, String>, rows: &[&str]) -> Entry {
        let plan = Planned { replaced: 2, declined: vec!["why".to_string()], spilled: 1 << 20 };
        Entry { joins, seconds, plan, rows: rows.iter().map(|row| row.to_string()).collect() }
    }

    fn outcome(query: u8, stock: Result<Vec<f64>, String>, rows: &[&str]) -> Outcome {
        let strait = entry(Joins::Strait, Ok(vec![3.0, 1.0, 2.0]), &["a"]);
        Outcome { query, entries: vec![entry(Joins::DataFusion, stock, rows), strait] }
    }

    #[test]
    fn the_sum_has_the_queries_that_both_answer() {
        let results =
            [outcome(1, Ok(vec![4.0]), &["a"]), outcome(2, Err("no memory".to_string()), &[])];
        let text = table(&results);
        let line = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).expect("a line");
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("Q1"), "Q1 4.000 2.000 0.50 2 1.0 MiB why");
        assert_eq!(line("Q2"), "Q2 failed 2.000 - 2 1.0 MiB why");
        assert_eq!(line("sum"), "sum 4.000 2.000 0.50");
        assert!(text.contains("Strait answers 2 of 2"), "{text}");
    }

    #[test]
    fn different_rows_are_noticed() {
        assert!(!outcome(1, Ok(vec![1.0]), &["a"]).differ());
        assert!(outcome(1, Ok(vec![1.0]), &["b"]).differ());
        // A query that failed has no rows to compare.
        assert!(!outcome(1, Err("no memory".to_string()), &[]).differ());
    }
}

//! `COPY table TO 'file'` and `COPY (SELECT …) TO 'file'`: write rows as `-o` does.
//!
//! DataFusion's own `COPY` is not used: it replaces files without a question, and leaves half of a file if it fails.

use anyhow::{anyhow, bail};
use clap::ValueEnum;
use datafusion::sql::parser::{CopyToSource, CopyToStatement, Statement};
use datafusion::sql::sqlparser::ast::{Statement as Query, Value};
use datafusion::sql::sqlparser::dialect::GenericDialect;
use datafusion::sql::sqlparser::parser::Parser;

use super::results;
use super::session::Session;
use super::target::Target;
use crate::arguments::check_format;
use crate::digits::counted;
use crate::output::{Compression, Destination, FileFormat};

/// The options of `COPY`.
const OPTIONS: &str = "overwrite true, compression zstd|snappy|none, row_group_rows N";

/// A `COPY` statement.
pub(super) struct Copy {
    /// Returns the rows.
    query: Statement,
    target: Target,
}

impl Copy {
    /// Returns `None` if a statement is not `COPY`.
    pub(super) fn of(statement: &Statement) -> anyhow::Result<Option<Copy>> {
        let Statement::CopyTo(copy) = statement else { return Ok(None) };
        if !copy.partitioned_by.is_empty() {
            bail!(
                "COPY cannot write a folder per value; leave out PARTITIONED BY, or write one file per value with WHERE"
            )
        }
        let query = match &copy.source {
            CopyToSource::Query(query) => Query::Query(query.clone()),
            CopyToSource::Relation(name) => {
                let text = format!("SELECT * FROM {name}");
                let parsed = Parser::parse_sql(&GenericDialect {}, &text)?.pop();
                parsed.ok_or_else(|| anyhow!("COPY needs a table or a query"))?
            }
        };
        Ok(Some(Copy { query: Statement::Statement(Box::new(query)), target: target(copy)? }))
    }

    /// Carries out the statement. Returns what happened.
    pub(super) fn run(self, session: &Session) -> anyhow::Result<String> {
        let Copy { query, target } = self;
        target.check().map_err(|error| with_options(&error))?;
        let query = session.plan_rows(query)?;
        let sink = target.open(session, &query).map_err(|error| with_options(&error))?;
        let rows = results::write(session, query, sink)?;
        Ok(format!("wrote {} to {}", counted(rows, "row"), target.to))
    }
}

/// Returns the file that a statement writes.
fn target(copy: &CopyToStatement) -> anyhow::Result<Target> {
    let stored = match &copy.stored_as {
        None => None,
        Some(name) => Some(FileFormat::named(name).ok_or_else(|| {
            anyhow!("COPY cannot write {name}; write STORED AS PARQUET, CSV, TSV, JSON or ARROW")
        })?),
    };
    let to = Destination::with_format(&copy.target, stored)
        .map_err(|why| anyhow!("COPY … TO '{}': {why}", copy.target))?;
    if to == Destination::Stdout {
        bail!("COPY needs a file; to write to stdout, use SELECT with --format or -o -")
    }
    if let Destination::Object(location, _) = &to {
        location.check(true).map_err(anyhow::Error::msg)?;
    }
    let mut target = Target { to, overwrite: false, compression: None, row_group_rows: None };
    for (name, value) in &copy.options {
        let text = match value {
            Value::SingleQuotedString(text) | Value::DoubleQuotedString(text) => text.clone(),
            value => value.to_string(),
        };
        let wrong = || anyhow!("COPY does not know the option {name} {text}; it has {OPTIONS}");
        match name.to_ascii_lowercase().as_str() {
            "overwrite" => {
                target.overwrite = text.to_ascii_lowercase().parse().map_err(|_| wrong())?;
            }
            "compression" => {
                let compression = Compression::from_str(&text, true).map_err(|_| wrong())?;
                target.compression = Some(compression);
            }
            "row_group_rows" => {
                let rows = crate::arguments::row_group_rows(&text);
                target.row_group_rows = Some(rows.map_err(|why| anyhow!("row_group_rows: {why}"))?);
            }
            _ => return Err(wrong()),
        }
    }
    check_format(Some(&target.to), target.row_group_rows, target.compression)
        .map_err(|why| with_options(&anyhow!(why)))?;
    Ok(target)
}

/// Returns an error whose message names the options of `COPY` instead of the flags of the command line.
fn with_options(error: &anyhow::Error) -> anyhow::Error {
    let text = format!("{error:#}")
        .replace("--overwrite", "OPTIONS (overwrite true)")
        .replace("--row-group-rows", "row_group_rows")
        .replace("--compression", "compression");
    anyhow!(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::sql::parser::DFParser;

    fn parsed(text: &str) -> anyhow::Result<Copy> {
        let statement = DFParser::parse_sql(text).unwrap().pop_front().unwrap();
        Ok(Copy::of(&statement)?.unwrap())
    }

    #[test]
    fn options_are_checked() {
        let copy = parsed(
            "COPY t TO 'a.parquet' OPTIONS (overwrite true, compression 'Snappy', row_group_rows 100000)",
        );
        let target = copy.unwrap().target;
        assert!(target.overwrite);
        assert_eq!(target.compression, Some(Compression::Snappy));
        assert_eq!(target.row_group_rows, Some(100_000));
        for (text, part) in [
            ("COPY t TO 'a.parquet' OPTIONS (delimiter ';')", "does not know the option delimiter"),
            ("COPY t TO 'a.parquet' OPTIONS (overwrite perhaps)", "option overwrite perhaps"),
            ("COPY t TO 'a.csv' OPTIONS (row_group_rows 5)", "row_group_rows is for Parquet"),
            ("COPY t TO 'a.csv' OPTIONS (compression zstd)", "name text output .csv.gz"),
            ("COPY t TO 'a.parquet' PARTITIONED BY (x)", "leave out PARTITIONED BY"),
            ("COPY t TO '-'", "COPY needs a file"),
            ("COPY t TO 'a.xlsx'", "the ending does not say which format"),
            ("COPY t TO 'a.csv' STORED AS PARQUET", "the ending and the format differ"),
            ("COPY t TO 'a' STORED AS AVRO", "cannot write AVRO"),
        ] {
            let error = parsed(text).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn other_statements_are_not_copied() {
        let statement = DFParser::parse_sql("SELECT 1").unwrap().pop_front().unwrap();
        assert!(Copy::of(&statement).unwrap().is_none());
    }

    #[test]
    fn a_table_may_have_any_name() {
        for name in ["t", "\"My table\"", "'a b.csv'", "\"a\"\"b\""] {
            let copy = parsed(&format!("COPY {name} TO 'out' STORED AS csv")).unwrap();
            assert_eq!(copy.query.to_string(), format!("SELECT * FROM {name}"));
        }
    }
}

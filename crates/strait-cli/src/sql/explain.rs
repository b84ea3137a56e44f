//! Turns errors of DataFusion into messages that say what happened, where, and what to try.

use std::error::Error;
use std::sync::Arc;

use anyhow::anyhow;
use datafusion::common::{Column, Diagnostic, SchemaError};
use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::parser::ParserError;
use tokio::task::JoinError;

use crate::failure::{Told, larger_limit, one_line, with_flags};

/// The kinds of errors that DataFusion and Arrow put before their messages. They do not help a user.
const KINDS: [&str; 13] = [
    "Arrow error: ",
    "Cast error: ",
    "Compute error: ",
    "Error during planning: ",
    "Execution error: ",
    "External error: ",
    "External: ",
    "Internal error: ",
    "Invalid argument error: ",
    "IO error: ",
    "Object Store error: ",
    "Parquet error: ",
    "This feature is not implemented: ",
];

/// The most names that a message lists.
const LISTED: usize = 12;

/// Turns an error into a message. `tables` are the names of the tables, and `limit` is the value of `--memory`.
pub(super) fn explained(
    error: &DataFusionError,
    tables: &[String],
    limit: Option<u64>,
) -> anyhow::Error {
    let mut place = String::new();
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(inner) = cause {
        if let Some(Told(message)) = inner.downcast_ref() {
            return Told(message.clone()).into();
        }
        if let Some(found) = inner.downcast_ref::<strait::Error>() {
            return of_strait(found, limit);
        }
        // DataFusion shares the error of a task with all streams that wait for it.
        let shared = inner.downcast_ref::<Arc<JoinError>>().map(Arc::as_ref);
        let task = shared.or_else(|| inner.downcast_ref::<JoinError>());
        if let Some(panicked) = task.filter(|task| task.is_panic()) {
            let why = one_line(&panicked.to_string());
            return anyhow!("the statement cannot be carried out ({why}); a file may be damaged");
        }
        let inner = match inner.downcast_ref::<Arc<DataFusionError>>() {
            Some(shared) => shared.as_ref(),
            None => inner,
        };
        if let Some(found) = inner.downcast_ref::<DataFusionError>() {
            if let DataFusionError::Diagnostic(diagnostic, _) = found {
                place = position(diagnostic);
            }
            if let DataFusionError::SQL(error, _) = found {
                return anyhow!("{}", syntax(error));
            }
            if let Some(message) = explanation(found, tables, limit) {
                return anyhow!("{place}{message}");
            }
        }
        cause = inner.source();
    }
    anyhow!("{place}{}", plain(&error.find_root().strip_backtrace()))
}

/// Explains a failure of a join.
fn of_strait(error: &strait::Error, limit: Option<u64>) -> anyhow::Error {
    match (error, limit) {
        (strait::Error::MemoryLimit { what, needed, .. }, Some(limit)) => {
            let more = format!("{what} needs {} more", strait::bytes(*needed));
            anyhow!("{}", beyond_limit(&more, limit))
        }
        _ => anyhow!("{}", with_flags(&one_line(&error.to_string()))),
    }
}

/// Returns the position of an error in the statements, as the start of a message.
fn position(diagnostic: &Diagnostic) -> String {
    diagnostic.span.map_or(String::new(), |span| {
        format!("line {}, column {}: ", span.start.line, span.start.column)
    })
}

/// Explains the errors that need more than DataFusion's own message.
fn explanation(error: &DataFusionError, tables: &[String], limit: Option<u64>) -> Option<String> {
    match error {
        DataFusionError::SchemaError(error, _) => schema(error),
        DataFusionError::Plan(message) => {
            let rest = message.strip_prefix("table '")?;
            let (name, _) = rest.split_once("' not found")?;
            Some(no_table(name, tables))
        }
        DataFusionError::ResourcesExhausted(message) => {
            let limit = limit?;
            let (first, _) = message.split_once(" - ").unwrap_or((message, ""));
            Some(beyond_limit(&plain(first), limit))
        }
        _ => None,
    }
}

/// Explains a syntax error. Its message ends with the position.
fn syntax(error: &ParserError) -> String {
    let message = match error {
        ParserError::ParserError(message) | ParserError::TokenizerError(message) => plain(message),
        ParserError::RecursionLimitExceeded => {
            return "the statement is nested too deeply; split it".to_string();
        }
    };
    match message.rsplit_once(" at Line: ") {
        Some((what, at)) => {
            let at = at.replace(" Column: ", " column ");
            format!("line {at}: this is not SQL: {}", lower_first(what))
        }
        None => format!("this is not SQL: {}", lower_first(&message)),
    }
}

fn lower_first(text: &str) -> String {
    let mut rest = text.chars();
    let first = rest.next().map(|c| c.to_ascii_lowercase());
    first.into_iter().chain(rest).collect()
}

/// Explains that there is no table of this name.
fn no_table(name: &str, tables: &[String]) -> String {
    // DataFusion shows the name with its catalog and its schema.
    let short = name.strip_prefix("datafusion.").unwrap_or(name);
    let short = short.strip_prefix("public.").unwrap_or(short);
    let names = tables.iter().map(String::as_str);
    let similar = strait::nearest_name(short, names.clone());
    let similar = similar.map_or(String::new(), |name| format!("; did you mean {name}?"));
    let known = match tables.is_empty() {
        true => "there are no tables yet".to_string(),
        false => format!("the tables are {}", listed(names)),
    };
    let file = if short.contains('.') { short } else { "orders.parquet" };
    let as_folder = match !short.contains('.') && std::path::Path::new(short).exists() {
        true => format!(", and {short} as './{short}'"),
        false => String::new(),
    };
    format!(
        "there is no table \"{short}\"{similar}; {known}; write a file in quotes, as in FROM '{file}'{as_folder}, or name it with --table"
    )
}

/// Explains errors about columns.
fn schema(error: &SchemaError) -> Option<String> {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => Some(no_column(field, valid_fields)),
        SchemaError::AmbiguousReference { field } => Some(format!(
            "column \"{}\" is in several tables; write the name of the table before it, as in t.{}",
            field.name, field.name
        )),
        _ => None,
    }
}

fn no_column(field: &Column, valid: &[Column]) -> String {
    let names: Vec<&str> = valid.iter().map(|column| &*column.name).collect();
    let wanted = &field.name;
    let similar = match strait::nearest_name(wanted, names.iter().copied()) {
        Some(name) if name.to_lowercase() == wanted.to_lowercase() => {
            format!("; did you mean \"{name}\"? Names with capital letters need double quotes")
        }
        Some(name) => format!("; did you mean {name}?"),
        None => String::new(),
    };
    let known = match names.is_empty() {
        true => "no columns can be used here".to_string(),
        false => format!("the columns are {}", listed(names.iter().copied())),
    };
    format!("there is no column \"{}\"{similar}; {known}", field.flat_name())
}

/// Lists the first names, and says how many more there are.
fn listed<'a>(names: impl Iterator<Item = &'a str> + Clone) -> String {
    let all = names.clone().count();
    let first: Vec<&str> = names.take(LISTED).collect();
    match all - first.len() {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

fn beyond_limit(what: &str, limit: u64) -> String {
    format!(
        "the memory limit of {} is too small: {what}; try --memory {}, or fewer --threads",
        strait::bytes(limit),
        larger_limit(limit)
    )
}

/// Returns a message in one line, without the kind of error that DataFusion puts before it.
fn plain(message: &str) -> String {
    let mut rest = message.trim();
    while let Some(shorter) = KINDS.iter().find_map(|kind| rest.strip_prefix(kind)) {
        rest = shorter.trim_start();
    }
    one_line(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_get_similar_ones() {
        let tables = ["orders".to_string(), "people".to_string()];
        let message = no_table("datafusion.public.order", &tables);
        assert!(message.contains("no table \"order\"; did you mean orders?"), "{message}");
        assert!(message.contains("the tables are orders, people"), "{message}");
        let message = no_table("datafusion.nowhere.parquet", &[]);
        assert!(message.contains("FROM 'nowhere.parquet'"), "{message}");
        let columns = ["Name", "city"].map(Column::from_name);
        let message = no_column(&Column::from_name("name"), &columns);
        assert!(message.contains("did you mean \"Name\"? Names with capital"), "{message}");
        let message = no_column(&Column::from_name("cty"), &columns);
        assert!(message.ends_with("did you mean city?; the columns are Name, city"), "{message}");
    }

    #[test]
    fn syntax_errors_begin_with_their_position() {
        let error = ParserError::ParserError("Expected: x, found: y at Line: 2, Column: 8".into());
        assert_eq!(syntax(&error), "line 2, column 8: this is not SQL: expected: x, found: y");
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..20).map(|i| i.to_string()).collect();
        let shown = listed(names.iter().map(String::as_str));
        assert!(shown.ends_with("11 and 8 more"), "{shown}");
    }

    #[test]
    fn causes_are_found_below_others() {
        let told = || DataFusionError::External(Box::new(Told("no such file".to_string())));
        let shared = DataFusionError::Shared(Arc::new(told().context("x")));
        assert_eq!(explained(&shared, &[], None).to_string(), "no such file");
        let exhausted = DataFusionError::ResourcesExhausted("A sort failed - 3 remain".to_string());
        let message = explained(&exhausted, &[], Some(64 << 20)).to_string();
        assert!(message.contains("A sort failed; try --memory 128MiB"), "{message}");
    }

    #[test]
    fn a_panic_is_an_error() {
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        let fails = async { assert!(std::hint::black_box(false), "an odd length") };
        let panicked = runtime.block_on(runtime.spawn(fails)).unwrap_err();
        let error = DataFusionError::External(Box::new(Arc::new(panicked)));
        let message = explained(&error.context("Join Error"), &[], None).to_string();
        assert!(message.contains("an odd length\"); a file may be damaged"), "{message}");
    }
}

//! Completes words of statements, and lets a statement have several lines.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use rustyline::completion::{Completer, FilenameCompleter, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};

use super::text::{End, end};

const COMMANDS: [&str; 4] = ["\\?", "\\d", "\\q", "\\timing"];

const KEYWORDS: [&str; 78] = [
    "ALL",
    "ANALYZE",
    "AND",
    "ANTI",
    "AS",
    "ASC",
    "BETWEEN",
    "BY",
    "CASE",
    "CAST",
    "COPY",
    "COUNT",
    "CREATE",
    "CROSS",
    "CURRENT_DATE",
    "DATE",
    "DATE_TRUNC",
    "DELETE",
    "DESC",
    "DESCRIBE",
    "DISTINCT",
    "DROP",
    "ELSE",
    "END",
    "EXCEPT",
    "EXISTS",
    "EXPLAIN",
    "EXTRACT",
    "FALSE",
    "FILTER",
    "FIRST",
    "FROM",
    "FULL",
    "GROUP",
    "HAVING",
    "IN",
    "INNER",
    "INSERT",
    "INTERSECT",
    "INTERVAL",
    "INTO",
    "IS",
    "JOIN",
    "LAST",
    "LATERAL",
    "LEFT",
    "LIKE",
    "LIMIT",
    "MAX",
    "MIN",
    "NATURAL",
    "NOT",
    "NULL",
    "NULLS",
    "OFFSET",
    "ON",
    "OR",
    "ORDER",
    "OUTER",
    "OVER",
    "PARTITION",
    "RIGHT",
    "ROW_NUMBER",
    "SELECT",
    "SEMI",
    "SET",
    "SHOW",
    "SUM",
    "TABLE",
    "THEN",
    "TIMESTAMP",
    "TRUE",
    "UNION",
    "USING",
    "VALUES",
    "VIEW",
    "WHERE",
    "WITH",
];

/// The names of tables and columns.
#[derive(Debug, Clone, Default)]
pub(super) struct Names(Arc<Mutex<BTreeSet<String>>>);

impl Names {
    /// Replaces all names.
    pub(super) fn set(&self, tables: Vec<String>, columns: Vec<String>) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *names = tables.into_iter().chain(columns).map(|name| quoted(&name)).collect();
    }

    /// Returns the names that begin with `start`, in any case of letters.
    fn beginning_with(&self, start: &str) -> Vec<String> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.iter().filter(|name| begins(name, start)).cloned().collect()
    }
}

/// Returns the name as a statement writes it.
fn quoted(name: &str) -> String {
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '.';
    match name.chars().all(plain) && !name.starts_with(|c: char| c.is_ascii_digit()) {
        true => name.to_string(),
        false => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}

/// Whether a name begins with a text, without regard to quotes and to the case of letters.
fn begins(name: &str, start: &str) -> bool {
    let name = name.trim_start_matches('"').to_lowercase();
    name.starts_with(&start.trim_start_matches('"').to_lowercase())
}

/// What the prompt knows about statements.
pub(super) struct Completion {
    names: Names,
    files: FilenameCompleter,
}

impl Completion {
    pub(super) fn new(names: Names) -> Completion {
        Completion { names, files: FilenameCompleter::new() }
    }

    /// Returns the start of the word at the end of a line, and the words that it may become.
    fn words(&self, line: &str) -> (usize, Vec<String>) {
        if line.starts_with('\\') && !line.contains(char::is_whitespace) {
            let commands = COMMANDS.iter().filter(|command| command.starts_with(line));
            return (0, commands.map(|command| command.to_string()).collect());
        }
        let inside = |c: char| c.is_alphanumeric() || c == '_' || c == '"';
        let start = line
            .rfind(|c| !inside(c))
            .map_or(0, |before| before + line[before..].chars().next().map_or(1, char::len_utf8));
        let word = &line[start..];
        if word.is_empty() && !line.ends_with('.') {
            return (start, Vec::new());
        }
        let mut words = self.names.beginning_with(word);
        if !line[..start].ends_with('.') {
            let keywords = KEYWORDS.iter().filter(|keyword| begins(keyword, word));
            let lower = word.starts_with(|c: char| c.is_lowercase());
            let in_case = |keyword: &&str| {
                if lower { keyword.to_lowercase() } else { keyword.to_string() }
            };
            words.extend(keywords.map(in_case));
        }
        (start, words)
    }
}

impl Completer for Completion {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        // Paths are between single quotes.
        if let End::Quotes(_) = end(&line[..pos]) {
            let (start, mut files) = self.files.complete(line, pos, context)?;
            for file in &mut files {
                file.replacement = file.replacement.replace('\'', "''");
            }
            // The only file that fits ends the path. The path of a folder goes on.
            if let [file] = files.as_mut_slice()
                && !file.replacement.ends_with('/')
                && !line[pos..].starts_with('\'')
            {
                file.replacement.push('\'');
            }
            return Ok((start, files));
        }
        let (start, words) = self.words(&line[..pos]);
        let pair = |word: String| Pair { display: word.clone(), replacement: word };
        Ok((start, words.into_iter().map(pair).collect()))
    }
}

impl Validator for Completion {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(match end(context.input()) {
            End::Complete => ValidationResult::Valid(None),
            _ => ValidationResult::Incomplete,
        })
    }
}

impl Hinter for Completion {
    type Hint = String;
}

impl Highlighter for Completion {}

impl Helper for Completion {}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> (usize, Vec<String>) {
        let names = Names::default();
        let columns = ["o_orderkey", "Name", "o_orderdate"].map(str::to_string).to_vec();
        names.set(vec!["orders".to_string()], columns);
        Completion::new(names).words(line)
    }

    #[test]
    fn words_are_names_and_keywords() {
        assert_eq!(words("select o_"), (7, vec!["o_orderdate".into(), "o_orderkey".into()]));
        assert_eq!(words("SEL"), (0, vec!["SELECT".into()]));
        assert_eq!(words("sel"), (0, vec!["select".into()]));
        assert_eq!(words("select na"), (7, vec!["\"Name\"".into(), "natural".into()]));
        assert_eq!(words("select o.o_orderk"), (9, vec!["o_orderkey".into()]));
        assert_eq!(words("select (ord"), (8, vec!["orders".into(), "order".into()]));
        assert_eq!(words("select "), (7, vec![]));
        assert_eq!(words("\\t"), (0, vec!["\\timing".into()]));
    }
}

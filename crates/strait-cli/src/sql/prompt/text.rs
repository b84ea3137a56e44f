//! The text that a user types: where a statement ends, and the commands of the prompt.

/// A command of the prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Command {
    Leave,
    Help,
    Timing,
    /// Lists the tables.
    Tables,
    /// Shows the columns of this table.
    Columns(String),
    /// No command has this name.
    Unknown(String),
}

/// Returns the command in a text. `None` if the text is SQL.
pub(super) fn command(text: &str) -> Option<Command> {
    let text = text.trim();
    let bare = text.trim_end_matches(';').trim_end();
    if ["quit", "exit"].iter().any(|word| bare.eq_ignore_ascii_case(word)) {
        return Some(Command::Leave);
    }
    if !text.starts_with('\\') {
        return None;
    }
    let (name, rest) = bare.split_once(char::is_whitespace).unwrap_or((bare, ""));
    // Names may be written as in statements.
    let table = rest.trim().trim_matches(|c| c == '\'' || c == '"');
    Some(match (name, table) {
        ("\\q", "") => Command::Leave,
        ("\\?" | "\\h" | "\\help", "") => Command::Help,
        ("\\timing", "") => Command::Timing,
        ("\\d" | "\\dt", "") => Command::Tables,
        ("\\d", table) => Command::Columns(table.to_string()),
        (name, _) => Command::Unknown(name.to_string()),
    })
}

/// The part of a statement in which a text ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// After a statement and its semicolon: only blanks and comments follow. Also if the text has no statement.
    Complete,
    /// In a statement.
    Statement,
    /// In text or in a path between single quotes, which begins at this byte.
    Quotes(usize),
    /// In a name between double quotes, or in a comment of several lines.
    Inside,
}

/// Returns the part of a statement in which a text ends. A text that begins with a command of the prompt is complete.
pub(super) fn end(text: &str) -> End {
    if command(text).is_some() {
        return End::Complete;
    }
    let bytes = text.as_bytes();
    let (mut at, mut complete) = (0, true);
    while at < bytes.len() {
        let rest = &text[at..];
        let skipped = match bytes[at] {
            quote @ (b'\'' | b'"') => match rest[1..].find(char::from(quote)) {
                // A doubled quote counts as the end of one text and the start of the next text. The result is the
                // same.
                Some(length) => length + 2,
                None if quote == b'\'' => return End::Quotes(at),
                None => return End::Inside,
            },
            b'-' if rest.starts_with("--") => {
                at += rest.find('\n').map_or(rest.len(), |length| length + 1);
                continue;
            }
            b'/' if rest.starts_with("/*") => match rest.find("*/") {
                Some(length) => {
                    at += length + 2;
                    continue;
                }
                None => return End::Inside,
            },
            b';' => {
                complete = true;
                at += 1;
                continue;
            }
            byte if byte.is_ascii_whitespace() => {
                at += 1;
                continue;
            }
            _ => rest.chars().next().map_or(1, char::len_utf8),
        };
        complete = false;
        at += skipped;
    }
    if complete { End::Complete } else { End::Statement }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_ends_at_its_semicolon() {
        for text in
            ["", "  ", "select 1;", "select ';';  \n", "select 1; -- done", "-- a", "\\d", "quit"]
        {
            assert_eq!(end(text), End::Complete, "{text}");
        }
        for text in ["select 1", "select 1; select", "select 'a'';b'", "select 1 -- ;", "é"] {
            assert_eq!(end(text), End::Statement, "{text}");
        }
        assert_eq!(end("select ';"), End::Quotes(7));
        assert_eq!(end("select 'a'' ;"), End::Quotes(10));
        assert_eq!(end("select \";"), End::Inside);
        assert_eq!(end("select 1 /* ; "), End::Inside);
        assert_eq!(end("select 1 /* ; */ ;"), End::Complete);
    }

    #[test]
    fn commands_begin_with_a_backslash() {
        assert_eq!(command(" \\q "), Some(Command::Leave));
        assert_eq!(command("EXIT;"), Some(Command::Leave));
        assert_eq!(command("\\d"), Some(Command::Tables));
        assert_eq!(command("\\d 'a b.csv';"), Some(Command::Columns("a b.csv".to_string())));
        assert_eq!(command("\\timing"), Some(Command::Timing));
        assert_eq!(command("\\x 1"), Some(Command::Unknown("\\x".to_string())));
        assert_eq!(command("select '\\q'"), None);
    }
}

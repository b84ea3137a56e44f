//! Reads the tokens of a JSON line. It accepts exactly the JSON that serde accepts, and only says that a line is
//! wrong. The caller then asks serde why.

use std::borrow::Cow;

/// A line is not JSON, or a value does not fit its column.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong;

/// The rest of a line, which must be UTF-8.
pub(super) struct Scan<'a> {
    line: &'a str,
    at: usize,
}

/// A token that begins a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token<'a> {
    Null,
    Bool(bool),
    /// The text of a number, and whether it has neither a fraction nor an exponent.
    Number(&'a str, bool),
    /// The text between the quotes, and whether it has escapes.
    String(&'a str, bool),
    Array,
    Object,
}

impl<'a> Scan<'a> {
    pub(super) fn new(line: &'a str) -> Scan<'a> {
        Scan { line, at: 0 }
    }

    /// Returns the next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        let rest = self.line.as_bytes().get(self.at..)?;
        let skipped = rest.iter().position(|byte| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n'))?;
        self.at += skipped;
        rest.get(skipped).copied()
    }

    fn expect(&mut self, byte: u8) -> Result<(), Wrong> {
        if self.peek() != Some(byte) {
            return Err(Wrong);
        }
        self.at += 1;
        Ok(())
    }

    /// Checks that nothing follows.
    pub(super) fn end(&mut self) -> Result<(), Wrong> {
        if self.peek().is_none() { Ok(()) } else { Err(Wrong) }
    }

    /// Reads a scalar, or the beginning of an array or object.
    pub(super) fn token(&mut self) -> Result<Token<'a>, Wrong> {
        match self.peek().ok_or(Wrong)? {
            b'"' => self.string().map(|(text, has_escapes)| Token::String(text, has_escapes)),
            b'{' => self.literal("{", Token::Object),
            b'[' => self.literal("[", Token::Array),
            b'n' => self.literal("null", Token::Null),
            b't' => self.literal("true", Token::Bool(true)),
            b'f' => self.literal("false", Token::Bool(false)),
            _ => self.number(),
        }
    }

    fn literal(&mut self, word: &str, token: Token<'a>) -> Result<Token<'a>, Wrong> {
        if !self.line[self.at..].starts_with(word) {
            return Err(Wrong);
        }
        self.at += word.len();
        Ok(token)
    }

    /// Moves to the next element of an array or object, or to its end. Returns whether there is one. `first`
    /// says whether none was read yet.
    fn more(&mut self, first: bool, end: u8) -> Result<bool, Wrong> {
        let next = self.peek().ok_or(Wrong)?;
        if next == end {
            self.at += 1;
            return Ok(false);
        }
        if !first {
            self.expect(b',')?;
        }
        Ok(true)
    }

    /// Moves to the next value of an array. Returns whether there is one.
    pub(super) fn element(&mut self, first: bool) -> Result<bool, Wrong> {
        self.more(first, b']')
    }

    /// Moves to the value of an object's next field, and returns the name of the field.
    pub(super) fn field(&mut self, first: bool) -> Result<Option<Cow<'a, str>>, Wrong> {
        if !self.more(first, b'}')? {
            return Ok(None);
        }
        if self.peek() != Some(b'"') {
            return Err(Wrong);
        }
        let (text, has_escapes) = self.string()?;
        let name = if has_escapes { Cow::Owned(unescaped(text)?) } else { Cow::Borrowed(text) };
        self.expect(b':')?;
        Ok(Some(name))
    }

    /// Skips a value whose token was read. It may be nested as deep as it wants.
    pub(super) fn skip(&mut self, token: Token<'a>) -> Result<(), Wrong> {
        // The arrays (false) and objects (true) around the position.
        let mut around = Vec::new();
        let (mut token, mut first) = (token, true);
        loop {
            match token {
                Token::Array => around.push(false),
                Token::Object => around.push(true),
                _ => first = false,
            }
            loop {
                let Some(&is_object) = around.last() else { return Ok(()) };
                let has_more = match is_object {
                    true => self.field(first)?.is_some(),
                    false => self.element(first)?,
                };
                first = false;
                if has_more {
                    break;
                }
                around.pop();
            }
            (token, first) = (self.token()?, true);
        }
    }

    /// Reads a string. Its escapes are checked, apart from surrogates.
    fn string(&mut self) -> Result<(&'a str, bool), Wrong> {
        let start = self.at + 1;
        let bytes = self.line.as_bytes();
        let (mut at, mut has_escapes) = (start, false);
        loop {
            let special = |byte: &u8| matches!(byte, b'"' | b'\\' | ..0x20);
            at += bytes.get(at..).ok_or(Wrong)?.iter().position(special).ok_or(Wrong)?;
            match bytes[at] {
                b'"' => break,
                b'\\' => {
                    has_escapes = true;
                    at += match bytes.get(at + 1) {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
                        Some(b'u') => {
                            let digits = bytes.get(at + 2..at + 6).ok_or(Wrong)?;
                            if !digits.iter().all(u8::is_ascii_hexdigit) {
                                return Err(Wrong);
                            }
                            6
                        }
                        _ => return Err(Wrong),
                    };
                }
                _ => return Err(Wrong),
            }
        }
        self.at = at + 1;
        Ok((&self.line[start..at], has_escapes))
    }

    fn number(&mut self) -> Result<Token<'a>, Wrong> {
        let bytes = self.line.as_bytes();
        let digits = |at: usize| {
            let rest = bytes.get(at..).unwrap_or_default();
            rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len())
        };
        let start = self.at;
        let mut at = start + usize::from(bytes.get(start) == Some(&b'-'));
        let whole = digits(at);
        if whole == 0 || whole > 1 && bytes[at] == b'0' {
            return Err(Wrong);
        }
        at += whole;
        let mut is_integer = true;
        if bytes.get(at) == Some(&b'.') {
            let fraction = digits(at + 1);
            (at, is_integer) = (at + 1 + fraction, false);
            if fraction == 0 {
                return Err(Wrong);
            }
        }
        if matches!(bytes.get(at), Some(b'e' | b'E')) {
            at += 1 + usize::from(matches!(bytes.get(at + 1), Some(b'+' | b'-')));
            let exponent = digits(at);
            (at, is_integer) = (at + exponent, false);
            if exponent == 0 {
                return Err(Wrong);
            }
        }
        self.at = at;
        Ok(Token::Number(&self.line[start..at], is_integer))
    }
}

/// Replaces the escapes of a string.
pub(super) fn unescaped(text: &str) -> Result<String, Wrong> {
    serde_json::from_str(&format!("\"{text}\"")).map_err(|_| Wrong)
}

#[cfg(test)]
mod tests {
    use serde::de::IgnoredAny;

    use super::*;

    fn scanned(line: &str) -> Result<(), Wrong> {
        let mut scan = Scan::new(line);
        let token = scan.token()?;
        scan.skip(token)?;
        scan.end()
    }

    /// Both accept the same lines.
    #[test]
    fn json_is_what_serde_says() {
        let pieces = [
            "{",
            "}",
            "[",
            "]",
            ",",
            ":",
            "\"a\"",
            "\"\\u00e9\"",
            "\"\\x\"",
            "\"\\n",
            "\"",
            "1",
            "-",
            "0",
            "1.5",
            ".",
            "e3",
            "E+",
            "true",
            "null",
            "nul",
            " ",
            "\t",
            "\u{1}",
            "é",
            "{\"a\":1}",
            "[1,2]",
            "{\"a\":",
            "\"b\":[",
            "\r",
        ];
        let mut random = fastrand::Rng::with_seed(5);
        let mut valid = 0;
        for _ in 0..200_000 {
            let line: String =
                (0..random.usize(1..8)).map(|_| pieces[random.usize(..pieces.len())]).collect();
            let expected = serde_json::from_str::<IgnoredAny>(&line).is_ok();
            assert_eq!(scanned(&line).is_ok(), expected, "{line:?}");
            valid += usize::from(expected);
        }
        assert!(valid > 2_000, "{valid}");
        for depth in [127, 128, 100_000] {
            let line = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            let expected = serde_json::from_str::<IgnoredAny>(&line).is_ok();
            assert_eq!(scanned(&line).is_ok(), expected, "{depth}");
        }
    }

    #[test]
    fn strings_are_unescaped() {
        assert_eq!(unescaped("a\\n\\u00e9\\\"").as_deref(), Ok("a\né\""));
        assert_eq!(unescaped("\\ud800"), Err(Wrong));
    }
}

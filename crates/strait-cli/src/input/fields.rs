//! Finds the fields of CSV records, 64 bytes at a time.

use std::ops::Range;

use memchr::memchr_iter;

/// The fields of some whole records. All records have the same number of fields.
pub(super) struct Fields<'a> {
    text: &'a [u8],
    /// The end of each field, record by record.
    ends: Vec<u32>,
    /// The number of fields per record.
    fields: usize,
    has_returns: bool,
}

impl<'a> Fields<'a> {
    /// Finds the fields of at most `lines` lines and a last record without a line end. Returns `None` if
    /// Arrow's parser has to decide what the text means, for example because a record has too few fields, or a
    /// line is empty.
    pub(super) fn split(
        text: &'a [u8],
        delimiter: u8,
        fields: usize,
        lines: usize,
    ) -> Option<Fields<'a>> {
        let is_usual = delimiter.is_ascii() && !matches!(delimiter, 0 | b'"' | b'\n' | b'\r');
        if !is_usual || fields == 0 || u32::try_from(text.len()).is_err() {
            return None;
        }
        // Without a line feed, a carriage return ends a record, too.
        let mut returns = memchr_iter(b'\r', text).peekable();
        let has_returns = returns.peek().is_some();
        if returns.any(|at| text.get(at + 1) != Some(&b'\n')) {
            return None;
        }
        let ends = vec![0; fields.checked_mul(lines.checked_add(1)?)?];
        let mut splitter =
            Splitter { text, ends, found: 0, record_end: fields, fields, quoted: None };
        let (chunks, rest) = text.as_chunks::<CHUNK>();
        for (at, chunk) in chunks.iter().enumerate() {
            splitter.chunk(CHUNK * at, chunk, delimiter)?;
        }
        if !rest.is_empty() {
            // None of the wanted bytes is zero.
            let mut chunk = [0; CHUNK];
            chunk[..rest.len()].copy_from_slice(rest);
            splitter.chunk(text.len() - rest.len(), &chunk, delimiter)?;
        }
        if text.last().is_some_and(|&byte| byte != b'\n') {
            splitter.special(text.len(), b'\n')?;
        }
        let Splitter { mut ends, found, record_end, quoted, .. } = splitter;
        ends.truncate(found);
        let is_whole = quoted.is_none() && found + fields == record_end;
        is_whole.then_some(Fields { text, ends, fields, has_returns })
    }

    pub(super) fn records(&self) -> usize {
        self.ends.len() / self.fields
    }

    /// Returns the bytes of a column, from one record on. Quoted values still have their quotes.
    pub(super) fn column(&self, column: usize, first: usize) -> impl Iterator<Item = &'a [u8]> {
        let is_last = column + 1 == self.fields;
        (first..self.records()).map(move |record| {
            let value = &self.text[self.range(record * self.fields + column)];
            match value.split_last() {
                Some((b'\r', value)) if is_last && self.has_returns => value,
                _ => value,
            }
        })
    }

    fn range(&self, field: usize) -> Range<usize> {
        let start = field.checked_sub(1).map_or(0, |before| self.ends[before] as usize + 1);
        start..self.ends[field] as usize
    }
}

/// The number of bytes that are compared at a time. There is a bit for each.
const CHUNK: usize = 64;

/// Returns one bit for each byte of the chunk that `is` true for.
#[inline]
fn bits(chunk: &[u8; CHUNK], is: impl Fn(u8) -> bool) -> u64 {
    // The compiler compares many bytes at a time.
    let mut found = [0u8; CHUNK];
    found.iter_mut().zip(chunk).for_each(|(found, &byte)| *found = u8::from(is(byte)));
    let (words, _) = found.as_chunks::<8>();
    // Moves the lowest bits of eight bytes next to one another.
    let together =
        |word: &[u8; 8]| u64::from_le_bytes(*word).wrapping_mul(0x0102_0408_1020_4080) >> 56;
    words.iter().enumerate().fold(0, |bits, (i, word)| bits | together(word) << (8 * i))
}

/// The state between two chunks.
struct Splitter<'a> {
    text: &'a [u8],
    ends: Vec<u32>,
    /// The number of fields that were found, and this number at the end of the record.
    found: usize,
    record_end: usize,
    fields: usize,
    /// The state of the current field, if it begins with a quote.
    quoted: Option<Quoted>,
}

/// The state of a quoted field.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quoted {
    Inside,
    /// The position after the last quote. It ended the field, unless another quote follows.
    Ended(usize),
}

impl Splitter<'_> {
    /// Finds the fields that end in a chunk. Returns `None` if the parser has to decide.
    #[inline]
    fn chunk(&mut self, at: usize, chunk: &[u8; CHUNK], delimiter: u8) -> Option<()> {
        let ends = bits(chunk, |byte| byte == delimiter || byte == b'\n');
        // This takes less time than bits, and most chunks have no quotes.
        let has_quotes = chunk.iter().fold(0, |found, &byte| found | u8::from(byte == b'"')) != 0;
        if has_quotes || self.quoted.is_some() {
            let mut found = ends | bits(chunk, |byte| byte == b'"');
            while found != 0 {
                let at = at + found.trailing_zeros() as usize;
                self.special(at, self.text[at])?;
                found &= found - 1;
            }
            return Some(());
        }
        let mut found = ends;
        while found != 0 {
            let bit = found.trailing_zeros() as usize;
            self.end(at + bit, chunk[bit] == b'\n')?;
            found &= found - 1;
        }
        Some(())
    }

    /// Continues after a delimiter, a line end or a quote.
    fn special(&mut self, at: usize, byte: u8) -> Option<()> {
        if byte == b'"' {
            let start = self.found.checked_sub(1).map_or(0, |i| self.ends[i] as usize + 1);
            self.quoted = match self.quoted {
                None if at == start => Some(Quoted::Inside),
                // A quote within a field is an ordinary character.
                None => None,
                Some(Quoted::Inside) => Some(Quoted::Ended(at + 1)),
                // The second half of an escaped quote.
                Some(Quoted::Ended(end)) if end == at => Some(Quoted::Inside),
                Some(Quoted::Ended(_)) => return None,
            };
            return Some(());
        }
        match self.quoted.take() {
            Some(Quoted::Inside) => {
                self.quoted = Some(Quoted::Inside);
                return Some(());
            }
            Some(Quoted::Ended(end)) => {
                let is_return = byte == b'\n' && self.text[..at].ends_with(b"\r");
                // Text after a quoted field.
                if end != at - usize::from(is_return) {
                    return None;
                }
            }
            None => {}
        }
        self.end(at, byte == b'\n')
    }

    /// Ends a field.
    #[inline]
    fn end(&mut self, at: usize, is_line_end: bool) -> Option<()> {
        if self.fields == 1 && is_line_end {
            // An empty line is no record, but it looks like a record of one empty field.
            let start = self.found.checked_sub(1).map_or(0, |last| self.ends[last] as usize + 1);
            if matches!(&self.text[start..at], [] | [b'\r']) {
                return None;
            }
        }
        *self.ends.get_mut(self.found)? = at as u32;
        self.found += 1;
        if is_line_end {
            if self.found != self.record_end {
                return None;
            }
            self.record_end += self.fields;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str, fields: usize) -> Option<Vec<Vec<String>>> {
        let lines = text.matches('\n').count();
        let found = Fields::split(text.as_bytes(), b',', fields, lines)?;
        let column = |i| found.column(i, 0).map(|b| String::from_utf8_lossy(b).into_owned());
        Some((0..fields).map(|i| column(i).collect()).collect())
    }

    #[test]
    fn fields_are_found() {
        let text = "a,bb,c\n1,,3\r\nlong text,\"q,\n\"\"x\",\"\"\n,,\ny,5\",z";
        let expected: [&[&str]; 3] = [
            &["a", "1", "long text", "", "y"],
            &["bb", "", "\"q,\n\"\"x\"", "", "5\""],
            &["c", "3", "\"\"", "", "z"],
        ];
        assert_eq!(split(text, 3).unwrap(), expected);
        assert_eq!(split("", 1).unwrap(), [Vec::<String>::new()]);
        assert_eq!(split("\"a\"\r\n", 1).unwrap(), [["\"a\""]]);
    }

    #[test]
    fn the_parser_decides_on_unusual_text() {
        let unusual = ["a,b\n", "a,b,c,d\n", "\"a\"b,c,d\n", "a,b,\"c", "a\rb,c,d\n", "\na,b,c\n"];
        for text in unusual {
            assert_eq!(split(text, 3), None, "{text}");
        }
    }
}

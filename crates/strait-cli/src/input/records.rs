//! Finds the records of CSV text without parsing their fields.

use memchr::{memchr, memchr_iter, memrchr};

use super::block::Records;

/// Cuts CSV text after whole records.
pub(super) struct CsvRecords {
    pub(super) delimiter: u8,
    /// The length of a block.
    pub(super) block: u64,
    /// The purpose of the memory, for error messages.
    pub(super) what: String,
}

impl Records for CsvRecords {
    fn what(&self) -> &str {
        &self.what
    }

    fn length(&self) -> u64 {
        self.block
    }

    fn whole(&self, text: &[u8]) -> Option<(usize, u64)> {
        whole_records(text, self.delimiter)
    }

    fn too_long(&self) -> &'static str {
        "a record is longer than 2 GiB; is a quote missing?"
    }
}

/// Finds the last complete record of a text. Returns the position after it, and the number of line ends before
/// that position. The text must begin with a record. Its last record may be incomplete.
pub(super) fn whole_records(text: &[u8], delimiter: u8) -> Option<(usize, u64)> {
    // Old files have carriage returns only.
    [b'\n', b'\r'].into_iter().find_map(|line_end| {
        // A line feed may follow a carriage return at the end of the text. They are one line end.
        let text = if line_end == b'\r' { text.strip_suffix(b"\r").unwrap_or(text) } else { text };
        let end = last_end(text, delimiter, line_end)?;
        Some((end, memchr_iter(line_end, &text[..end]).count() as u64))
    })
}

/// Returns the position after the last `line_end` that is not in quotes.
fn last_end(text: &[u8], delimiter: u8, line_end: u8) -> Option<usize> {
    // The text from here to the next quote is not in quotes.
    let (mut from, mut last) = (0, None);
    loop {
        let quote = opening_quote(text, from, delimiter);
        let unquoted = &text[from..quote.unwrap_or(text.len())];
        last = memrchr(line_end, unquoted).map(|at| from + at + 1).or(last);
        match quote.and_then(|quote| closing_quote(text, quote + 1)) {
            Some(quote) => from = quote + 1,
            None => return last,
        }
    }
}

/// Returns the next quote that begins a field. A quote within a field is an ordinary character.
fn opening_quote(text: &[u8], mut from: usize, delimiter: u8) -> Option<usize> {
    loop {
        let quote = from + memchr(b'"', &text[from..])?;
        let before = quote.checked_sub(1).map(|at| text[at]);
        if before.is_none_or(|byte| byte == delimiter || byte == b'\n' || byte == b'\r') {
            return Some(quote);
        }
        from = quote + 1;
    }
}

/// Returns the quote that ends a quoted field, if the byte after it is known. Two quotes stand for a quote in
/// the field.
fn closing_quote(text: &[u8], mut from: usize) -> Option<usize> {
    loop {
        let quote = from + memchr(b'"', text.get(from..)?)?;
        if *text.get(quote + 1)? != b'"' {
            return Some(quote);
        }
        from = quote + 2;
    }
}

/// Returns the number of line ends before a record. The first record has the number 1. Empty lines are no
/// records.
pub(super) fn lines_before(text: &[u8], delimiter: u8, record: u64) -> u64 {
    let (mut lines, mut records) = (0, 0);
    let (mut in_quotes, mut is_start, mut in_record) = (false, true, false);
    for (at, &byte) in text.iter().enumerate() {
        let is_line_end = byte == b'\n' || byte == b'\r' && text.get(at + 1) != Some(&b'\n');
        if !in_record && byte != b'\n' && byte != b'\r' {
            (in_record, records) = (true, records + 1);
            if records >= record {
                break;
            }
        }
        lines += u64::from(is_line_end);
        if byte == b'"' && (in_quotes || is_start) {
            // An escaped quote ends and begins the quotes.
            in_quotes = !in_quotes;
            is_start = !in_quotes;
            continue;
        }
        if !in_quotes {
            is_start = byte == delimiter || byte == b'\n' || byte == b'\r';
            in_record &= byte != b'\n' && byte != b'\r';
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_end_outside_of_quotes() {
        let ends = |text: &str| whole_records(text.as_bytes(), b',');
        assert_eq!(ends("a,b\nc,d\ne"), Some((8, 2)));
        assert_eq!(ends("a,\"b\nc\"\nd"), Some((8, 2)));
        assert_eq!(ends("a,\"b\nc"), None);
        assert_eq!(ends("a\nb,\"c\n\"\"\n\"\nd"), Some((12, 4)));
        // The quote may be the first half of an escaped one.
        assert_eq!(ends("a\nb,\"c\n\""), Some((2, 1)));
        assert_eq!(ends("5\",b\nc\n"), Some((7, 2)));
        assert_eq!(ends("\"a\"\n\"b\"\n"), Some((8, 2)));
        assert_eq!(ends("a\rb\rc"), Some((4, 2)));
        assert_eq!(ends("abc"), None);
        assert_eq!(ends(""), None);
    }

    /// A parser finds the same records in the whole text and in its two parts.
    #[test]
    fn text_can_be_cut_after_whole_records() {
        let parsed = |text: &[u8]| -> Vec<csv::ByteRecord> {
            let mut reader = csv::ReaderBuilder::new();
            let reader = reader.has_headers(false).flexible(true).from_reader(text);
            reader.into_byte_records().map(|record| record.unwrap()).collect()
        };
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..3000 {
            let length = random.usize(..60);
            let text: Vec<u8> = (0..length).map(|_| b"a,\"\nb"[random.usize(..5)]).collect();
            let end = whole_records(&text, b',').map_or(0, |(end, _)| end);
            let parts = [parsed(&text[..end]), parsed(&text[end..])].concat();
            assert_eq!(parts, parsed(&text), "{:?}", String::from_utf8_lossy(&text));
        }
    }

    #[test]
    fn records_are_found_by_their_number() {
        let text = b"h\n\n\"a\n\"\"b\",1\r\nc,d\"e\n\n\nf";
        let lines: Vec<u64> = (1..=4).map(|record| lines_before(text, b',', record)).collect();
        assert_eq!(lines, [0, 2, 4, 7]);
        assert_eq!(lines_before(b"a\rb\rc", b',', 3), 2);
    }
}

//! The least and the greatest string of a page or of a column chunk.
//!
//! Long strings are shortened, as in Arrow's writer. This is allowed, because a bound need not be a value of the column.
//! Every value must lie between both bounds. The greatest string cannot be shortened if it begins with many repetitions of
//! the greatest character. The whole string would make the footer of the file as long as the value, and readers read the
//! whole footer. So the bounds of such a column chunk are left out of the file.

use parquet::basic::Type;
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::Result;
use parquet::file::page_index::column_index::ColumnIndexMetaData;
use parquet::file::statistics::{Statistics, ValueStatistics};

/// The most bytes of a bound, as in Arrow's writer.
const MOST_BYTES: usize = 64;

/// The least and the greatest of some strings.
#[derive(Default)]
pub(super) struct Bounds {
    all: Option<(Vec<u8>, Vec<u8>)>,
    /// The first bytes of both.
    least_start: u64,
    most_start: u64,
}

/// A lower bound or an upper bound of some strings.
pub(super) struct Bound {
    pub(super) bytes: Vec<u8>,
    /// Whether it is a value.
    pub(super) exact: bool,
}

impl Bounds {
    #[inline]
    pub(super) fn add(&mut self, value: &[u8]) {
        // The first bytes decide for nearly all strings.
        let start = start(value);
        if start <= self.least_start || start >= self.most_start {
            self.compare(value, start);
        }
    }

    #[cold]
    fn compare(&mut self, value: &[u8], start: u64) {
        let Some((least, most)) = &mut self.all else {
            self.all = Some((value.to_vec(), value.to_vec()));
            (self.least_start, self.most_start) = (start, start);
            return;
        };
        if value < &least[..] {
            *least = value.to_vec();
            self.least_start = start;
        }
        if value > &most[..] {
            *most = value.to_vec();
            self.most_start = start;
        }
    }

    /// Adds the strings of other bounds.
    pub(super) fn add_all(&mut self, other: &Bounds) {
        if let Some((least, most)) = &other.all {
            self.add(least);
            self.add(most);
        }
    }

    /// Returns bounds that are not long. Returns None if there was no string.
    pub(super) fn shortened(&self) -> Option<(Bound, Bound)> {
        let (least, most) = self.all.as_ref()?;
        Some((shortened(least, str::to_string), shortened(most, next)))
    }
}

/// Leaves bounds that a file should not have out of the metadata of a column chunk. A reader then reads pages that it
/// could have skipped.
///
/// Some readers take a missing bound for an empty string if the chunk has the other one, and then skip rows. So a chunk
/// has both bounds or none. A page index needs the bounds of every page. So if one of them is left out, the whole page
/// index of the chunk is left out.
///
/// Arrow's writer shortens bounds of values of a fixed length, too. The specification does not allow this, and some
/// readers fail. So the bounds of such a chunk and of its pages are kept only if all of them have that length.
pub(super) fn without_bad_bounds(chunk: &mut ColumnCloseResult) -> Result<()> {
    let descr = chunk.metadata.column_descr();
    let length = match descr.physical_type() {
        Type::BYTE_ARRAY => None,
        Type::FIXED_LEN_BYTE_ARRAY => Some(descr.type_length()),
        _ => return Ok(()),
    };
    let is_bad = |bound: &[u8]| {
        let is_other = length.is_some_and(|length| usize::try_from(length) != Ok(bound.len()));
        bound.len() > MOST_BYTES || is_other
    };
    let has_bad_page = match &chunk.column_index {
        Some(
            ColumnIndexMetaData::BYTE_ARRAY(pages)
            | ColumnIndexMetaData::FIXED_LEN_BYTE_ARRAY(pages),
        ) => pages.min_values_iter().chain(pages.max_values_iter()).flatten().any(is_bad),
        _ => false,
    };
    let all = chunk.metadata.statistics();
    let bounds = all.map(|all| (all.min_bytes_opt(), all.max_bytes_opt()));
    let is_bad_chunk = match bounds {
        None | Some((None, None)) => false,
        Some((Some(least), Some(most))) => is_bad(least) || is_bad(most),
        Some(_) => true,
    };
    let is_fixed = length.is_some();
    if has_bad_page || is_fixed && is_bad_chunk {
        chunk.column_index = None;
    }
    let is_kept = if is_fixed { !is_bad_chunk && !has_bad_page } else { !is_bad_chunk };
    if is_kept {
        return Ok(());
    }
    let without = match all {
        Some(Statistics::ByteArray(all)) => Statistics::ByteArray(without_bounds(all)),
        Some(Statistics::FixedLenByteArray(all)) => {
            Statistics::FixedLenByteArray(without_bounds(all))
        }
        _ => return Ok(()),
    };
    chunk.metadata = chunk.metadata.clone().into_builder().set_statistics(without).build()?;
    Ok(())
}

fn without_bounds<T>(all: &ValueStatistics<T>) -> ValueStatistics<T> {
    ValueStatistics::new(None, None, all.distinct_count(), all.null_count_opt(), false)
}

/// Returns the first eight bytes as an integer. If two integers differ, they sort like their strings.
#[inline]
fn start(value: &[u8]) -> u64 {
    match value.first_chunk() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..value.len()].copy_from_slice(value);
            u64::from_be_bytes(bytes)
        }
    }
}

/// Shortens a string if it is too long and can be shortened. Otherwise, [`without_bad_bounds`] leaves it out when the
/// chunk is complete. `bound` turns the beginning of the string into a bound.
fn shortened<S: Into<Option<String>>>(value: &[u8], bound: impl Fn(&str) -> S) -> Bound {
    let exact = || Bound { bytes: value.to_vec(), exact: true };
    if value.len() <= MOST_BYTES {
        return exact();
    }
    let Ok(text) = str::from_utf8(value) else { return exact() };
    let beginning = &text[..text.floor_char_boundary(MOST_BYTES)];
    match bound(beginning).into() {
        Some(bound) => Bound { bytes: bound.into_bytes(), exact: false },
        None => exact(),
    }
}

/// Returns a string that is greater than all strings that begin with `text`. Returns None if its characters
/// cannot be increased.
fn next(text: &str) -> Option<String> {
    text.char_indices().rev().find_map(|(at, last)| {
        let next = (last..=char::MAX).nth(1)?;
        // The next character may have one byte more.
        (at + next.len_utf8() <= MOST_BYTES).then(|| format!("{}{next}", &text[..at]))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[&str]) -> Option<(Bound, Bound)> {
        let mut bounds = Bounds::default();
        values.iter().for_each(|value| bounds.add(value.as_bytes()));
        bounds.shortened()
    }

    #[test]
    fn short_bounds_are_values() {
        assert!(of(&[]).is_none());
        let cases = [
            (&["b", "", "abcdefghi", "abcdefgh"][..], "", "b"),
            (&["abcdefghi", "abcdefghj", "abcdefgh"], "abcdefgh", "abcdefghj"),
            (&["\0", "\0\0"], "\0", "\0\0"),
            (&["ü", "z"], "z", "ü"),
        ];
        for (values, least, most) in cases {
            let (found_least, found_most) = of(values).unwrap();
            assert!(found_least.exact && found_most.exact);
            assert_eq!(found_least.bytes, least.as_bytes(), "{values:?}");
            assert_eq!(found_most.bytes, most.as_bytes(), "{values:?}");
        }
    }

    #[test]
    fn long_bounds_are_shortened() {
        let long = "x".repeat(100);
        let (least, most) = of(&[&long]).unwrap();
        assert!(!least.exact && !most.exact);
        assert_eq!(least.bytes, long.as_bytes()[..64]);
        assert_eq!(most.bytes, ("x".repeat(63) + "y").into_bytes());
        // A character of two bytes begins at byte 63.
        let umlauts = "x".repeat(63) + &"ü".repeat(50);
        let (least, most) = of(&[&umlauts]).unwrap();
        assert_eq!(least.bytes, "x".repeat(63).as_bytes());
        assert_eq!(most.bytes, ("x".repeat(62) + "y").into_bytes());
        // The greatest character cannot be increased.
        let most_char = "a".to_string() + &char::MAX.to_string().repeat(40);
        assert_eq!(of(&[&most_char]).unwrap().1.bytes, b"b");
        // The next character of these is longer, or is not the next number.
        let longer = "\u{7f}".repeat(100);
        assert_eq!(of(&[&longer]).unwrap().1.bytes, ("\u{7f}".repeat(62) + "\u{80}").into_bytes());
        let last = "\u{d7ff}".repeat(40);
        assert_eq!(
            of(&[&last]).unwrap().1.bytes,
            ("\u{d7ff}".repeat(20) + "\u{e000}").into_bytes()
        );
        let all = char::MAX.to_string().repeat(40);
        let (_, most) = of(&[&all]).unwrap();
        assert!(most.exact && most.bytes == all.as_bytes());
    }
}

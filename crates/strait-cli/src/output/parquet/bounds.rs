//! The least and the greatest string of a page or of a column chunk.
//!
//! Long strings are shortened, as in Arrow's writer: statistics may be any strings between which all values are.

/// The most bytes of a shortened string.
const MOST_BYTES: usize = 64;

/// The least and the greatest of some strings.
#[derive(Default)]
pub(super) struct Bounds {
    all: Option<(Vec<u8>, Vec<u8>)>,
    /// The first bytes of both.
    least_start: u64,
    most_start: u64,
}

/// A string that is not greater than all values, or not less.
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

/// Returns the first eight bytes, so that integers are ordered as their strings.
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

/// Shortens a string if it is too long and can be shortened. `bound` makes a bound of its beginning.
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
        let next = char::from_u32(u32::from(last) + 1)?;
        // A longer character could make the bound too long.
        (next.len_utf8() == last.len_utf8()).then(|| format!("{}{next}", &text[..at]))
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
        let all = char::MAX.to_string().repeat(40);
        let (_, most) = of(&[&all]).unwrap();
        assert!(most.exact && most.bytes == all.as_bytes());
    }
}

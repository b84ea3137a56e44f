//! The dictionary of a column chunk of strings, with a cache in front of its hash table.

use std::collections::HashMap;

/// The most bytes of a dictionary.
const MOST_BYTES: usize = 1 << 20;

/// The number of words in the cache, as a power of two.
const CACHE_BITS: u32 = 12;

/// The dictionary of a column chunk.
pub(super) struct Words {
    /// The words as plain values.
    plain: Vec<u8>,
    words: Vec<Word>,
    indices: HashMap<Box<[u8]>, u32>,
    /// Words by a cheap hash of their bytes. An entry may be any word.
    cache: Box<[u32]>,
}

struct Word {
    /// Its bytes in the plain values.
    start: usize,
    end: usize,
    /// The number of the page in which it was last used.
    page: u32,
}

impl Default for Words {
    fn default() -> Self {
        let cache = vec![0; 1 << CACHE_BITS].into_boxed_slice();
        Words { plain: Vec::new(), words: Vec::new(), indices: HashMap::new(), cache }
    }
}

impl Words {
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// Takes the words as plain values. The dictionary must not be used after that.
    pub(super) fn take_plain(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.plain)
    }

    /// Returns the index of a word, and whether the page uses it for the first time. Adds the word if it is
    /// new. Returns None if it is new and the dictionary is full.
    #[inline]
    pub(super) fn index(&mut self, value: &[u8], page: u32) -> Option<(u32, bool)> {
        let slot = slot(value);
        let cached = self.cache[slot];
        if let Some(word) = self.words.get_mut(cached as usize)
            && self.plain[word.start..word.end] == *value
        {
            let first = word.page != page;
            word.page = page;
            return Some((cached, first));
        }
        let index = self.find_or_add(value)?;
        self.cache[slot] = index;
        let word = &mut self.words[index as usize];
        let first = word.page != page;
        word.page = page;
        Some((index, first))
    }

    fn find_or_add(&mut self, value: &[u8]) -> Option<u32> {
        if let Some(&index) = self.indices.get(value) {
            return Some(index);
        }
        if self.plain.len() + 4 + value.len() > MOST_BYTES {
            return None;
        }
        let index = self.words.len() as u32;
        self.plain.extend_from_slice(&(value.len() as u32).to_le_bytes());
        let start = self.plain.len();
        self.plain.extend_from_slice(value);
        self.words.push(Word { start, end: self.plain.len(), page: u32::MAX });
        self.indices.insert(value.into(), index);
        Some(index)
    }
}

/// Returns the place of a value in the cache, from its length and from its first and last bytes.
#[inline]
fn slot(value: &[u8]) -> usize {
    let n = value.len();
    let eight = |at: usize| value[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
    let four = |at: usize| {
        value[at..].first_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)))
    };
    let (first, last) = match n {
        0 => (0, 0),
        1..4 => (u64::from(value[0]), u64::from(value[n / 2]) << 8 | u64::from(value[n - 1])),
        4..8 => (four(0), four(n - 4)),
        _ => (eight(0), eight(n - 8)),
    };
    let mixed = (first ^ last.rotate_left(29) ^ n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> (u64::BITS - CACHE_BITS)) as usize
}

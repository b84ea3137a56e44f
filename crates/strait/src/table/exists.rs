//! Existence: which of many key words a table has.

use crate::partition::RowId;
use crate::processor::on_this_processor;
use crate::table::probe::{AHEAD, Lookup};
use crate::word::KeyWord;

/// Appends one bit per word to `bits`: whether the table has the word. The first word's bit is the lowest bit
/// of a new element. The unused bits of the last element are zero.
pub(super) fn append_exists<K: KeyWord, I: RowId, T: Lookup<K, I>>(
    table: &T,
    words: &[K],
    bits: &mut Vec<u64>,
) {
    on_this_processor!(append(table, words, bits) where
        [K: KeyWord, I: RowId, T: Lookup<K, I>](table: &T, words: &[K], bits: &mut Vec<u64>))
}

#[inline(always)]
fn append<K: KeyWord, I: RowId, T: Lookup<K, I>>(table: &T, words: &[K], bits: &mut Vec<u64>) {
    const ELEMENT: usize = u64::BITS as usize;
    let mut starts = [0usize; AHEAD];
    for element in words.chunks(ELEMENT) {
        let mut found = 0;
        for (block, words) in element.chunks(AHEAD).enumerate() {
            for (start, &word) in starts.iter_mut().zip(words) {
                *start = table.locate(word);
                table.fetch(*start);
            }
            // No branch depends on a single word.
            for (i, (&word, &start)) in words.iter().zip(&starts).enumerate() {
                let hit = table.find::<false, false>(word, start).hit;
                found |= u64::from(hit) << (block * AHEAD + i);
            }
        }
        bits.push(found);
    }
}

//! The key words of probe rows, and the filter that looks them up in a table before the rows are decoded.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::buffer::{BooleanBuffer, NullBuffer};

use crate::error::{Error, Result};
use crate::input::KeyLookup;
use crate::key::KeyPlan;
use crate::options::Side;
use crate::partition::RowId;
use crate::table::{BuildTable, MorselKeys};
use crate::word::KeyWord;

/// The words of this many rows of a morsel are computed at a time, so that the words stay in the nearest cache. It is
/// a multiple of 64, so that the bits of each block begin at a new `u64`.
pub(super) const BLOCK: usize = 4 * 1024;

/// Mixes words if the table needs it.
fn place<K: KeyWord, I: RowId>(keys: &KeyPlan, table: &BuildTable<K, I>, words: &mut [K]) {
    if let BuildTable::Hash(_) = table {
        K::mix_all(words, keys.mixer());
    }
}

/// Looks up the keys of probe rows in the build table.
///
/// Equal keys have equal words, so a row whose word is not in the table has no match. If words are hashes, a row
/// whose word is in the table may still have no match.
pub(super) struct TableLookup<'a, K: KeyWord, I: RowId> {
    keys: &'a KeyPlan,
    table: &'a BuildTable<K, I>,
    /// The probe side.
    side: Side,
    columns: Vec<usize>,
}

impl<'a, K: KeyWord, I: RowId> TableLookup<'a, K, I> {
    /// Creates the lookup for the probe side `side`. The seed of the keys must not change any more.
    pub(super) fn new(keys: &'a KeyPlan, table: &'a BuildTable<K, I>, side: Side) -> Self {
        TableLookup { keys, table, side, columns: keys.columns(side) }
    }
}

impl<K: KeyWord, I: RowId> KeyLookup for TableLookup<'_, K, I> {
    fn columns(&self) -> &[usize] {
        &self.columns
    }

    fn may_match(&self, keys: &[ArrayRef], rows: usize) -> Result<BooleanBuffer> {
        let mut words = Vec::new();
        let mut bits = Vec::with_capacity(rows.div_ceil(64));
        let at = |index: usize| self.columns.binary_search(&index).ok();
        for first in (0..rows).step_by(BLOCK) {
            let len = BLOCK.min(rows - first);
            let block: Vec<_> = keys.iter().map(|key| key.slice(first, len)).collect();
            let array = |index: usize| block.get(at(index)?);
            let valid = match self.keys.words_of(self.side, len, array, &mut words) {
                // Keep all rows of this block. An error would go to the source, which may lose its rows then.
                Err(Error::MemoryLimit { .. }) => {
                    bits.resize(bits.len() + len.div_ceil(64), u64::MAX);
                    continue;
                }
                valid => valid?,
            };
            place(self.keys, self.table, &mut words);
            let start = bits.len();
            self.table.append_exists(&words, &mut bits);
            if let Some(valid) = valid {
                remove_invalid(&mut bits[start..], &valid);
            }
        }
        Ok(BooleanBuffer::new(bits.into(), 0, rows))
    }
}

/// Clears the bits of rows that match no row because of a null.
fn remove_invalid(bits: &mut [u64], valid: &NullBuffer) {
    let valid = valid.inner().bit_chunks();
    bits.iter_mut().zip(valid.iter_padded()).for_each(|(bits, valid)| *bits &= valid);
}

/// The words of a block of rows, placed as the table needs them.
#[derive(Default)]
pub(super) struct MorselWords<K> {
    /// The words of the rows that may match.
    words: Vec<K>,
    /// The numbers of these rows, if not all rows may match.
    rows: Option<Vec<u32>>,
}

impl<K: KeyWord> MorselWords<K> {
    pub(super) fn fill<I: RowId>(
        &mut self,
        keys: &KeyPlan,
        table: &BuildTable<K, I>,
        side: Side,
        batch: &RecordBatch,
    ) -> Result<()> {
        let valid = keys.words(side, batch, &mut self.words)?;
        place(keys, table, &mut self.words);
        self.rows = valid.map(|valid| {
            let rows: Vec<u32> = valid.valid_indices().map(|i| i as u32).collect();
            // Row numbers ascend, so no word is overwritten before it is moved.
            rows.iter().enumerate().for_each(|(i, &row)| self.words[i] = self.words[row as usize]);
            self.words.truncate(rows.len());
            rows
        });
        Ok(())
    }

    /// Returns the keys. The first row of the block is row `first` of the morsel.
    pub(super) fn view(&self, first: usize) -> MorselKeys<'_, K> {
        MorselKeys { words: &self.words, rows: self.rows.as_deref(), first }
    }
}

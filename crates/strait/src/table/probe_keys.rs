//! The keys that are walked through a table: words of a morsel, or tuples of a partition.

use crate::partition::{RowId, Tuple};
use crate::word::KeyWord;

/// The keys of some probe rows.
pub(crate) trait ProbeKeys<K> {
    /// What a key comes in.
    type Item;
    /// All of them.
    fn items(&self) -> &[Self::Item];
    fn key(item: &Self::Item) -> K;
    /// The row of a key, or what [`to_rows`](ProbeKeys::to_rows) makes the row of.
    fn row(&self, index: usize) -> u64;
    /// Makes rows of what [`row`](ProbeKeys::row) answered.
    fn to_rows(&self, rows: &mut [u64]);
    /// Whether row ids follow one another as the keys do.
    fn in_order(&self) -> bool;
    fn len(&self) -> usize {
        self.items().len()
    }
}

impl<K: KeyWord, I: RowId> ProbeKeys<K> for &[Tuple<K, I>] {
    type Item = Tuple<K, I>;
    #[inline(always)]
    fn items(&self) -> &[Tuple<K, I>] {
        self
    }
    #[inline(always)]
    fn key(item: &Tuple<K, I>) -> K {
        item.key
    }
    #[inline(always)]
    fn row(&self, index: usize) -> u64 {
        self[index].row.to_u64()
    }
    fn to_rows(&self, _: &mut [u64]) {}
    fn in_order(&self) -> bool {
        false
    }
}

/// The words of some rows of a morsel that may match.
pub(crate) struct MorselKeys<'a, K> {
    pub(crate) words: &'a [K],
    /// The row of each word, where not all rows may match.
    pub(crate) rows: Option<&'a [u32]>,
    /// The row of the morsel that these begin with.
    pub(crate) first: usize,
}

impl<K: KeyWord> ProbeKeys<K> for MorselKeys<'_, K> {
    type Item = K;
    #[inline(always)]
    fn items(&self) -> &[K] {
        self.words
    }
    #[inline(always)]
    fn key(item: &K) -> K {
        *item
    }
    #[inline(always)]
    fn row(&self, index: usize) -> u64 {
        (self.first + index) as u64
    }
    fn to_rows(&self, numbered: &mut [u64]) {
        if let Some(rows) = self.rows {
            let first = self.first as u64;
            let row = |number: u64| first + u64::from(rows[(number - first) as usize]);
            numbered.iter_mut().for_each(|number| *number = row(*number));
        }
    }
    fn in_order(&self) -> bool {
        self.rows.is_none()
    }
}

//! The keys of a probe: words of a morsel, or tuples of a partition.

use crate::partition::{RowId, Tuple};
use crate::word::KeyWord;

/// The keys of some probe rows.
pub(crate) trait ProbeKeys<K> {
    /// The type that holds a key.
    type Item;
    /// Returns all keys.
    fn items(&self) -> &[Self::Item];
    fn key(item: &Self::Item) -> K;
    /// Returns the row of a key, or a number that [`to_rows`](ProbeKeys::to_rows) converts to the row.
    fn row(&self, index: usize) -> u64;
    /// Converts numbers that [`row`](ProbeKeys::row) returned to rows, in place.
    fn to_rows(&self, rows: &mut [u64]);
    /// Returns whether the rows of consecutive keys are consecutive.
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

/// The words of those rows of a morsel that may match.
pub(crate) struct MorselKeys<'a, K> {
    pub(crate) words: &'a [K],
    /// The row of each word, if not all rows may match.
    pub(crate) rows: Option<&'a [u32]>,
    /// The first row, within the morsel.
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

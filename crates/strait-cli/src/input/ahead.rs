//! Row groups of objects that are fetched before a worker opens them.

use std::sync::{Mutex, PoisonError};

use super::parquet::Opened;

/// The most row groups that are fetched before they are opened.
const MOST: usize = 4;

/// A row group: the index of its file, and its own index.
type Id = (usize, usize);

/// The row groups that were begun, and not opened.
#[derive(Default)]
pub(super) struct Ahead(Mutex<Vec<(Id, Opened)>>);

impl Ahead {
    /// Begins to fetch the first of the `next` row groups, if they are in objects.
    pub(super) fn begin(
        &self,
        next: impl Iterator<Item = Id>,
        open: impl Fn(Id) -> Option<Opened>,
    ) {
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for id in next.take(MOST) {
            if begun.iter().any(|(other, _)| *other == id) {
                continue;
            }
            let Some(opened) = open(id) else { return };
            begun.push((id, opened));
        }
    }

    /// Returns a row group, if it was begun.
    pub(super) fn take(&self, id: Id) -> Option<Opened> {
        let mut begun = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = begun.iter().position(|(other, _)| *other == id)?;
        Some(begun.swap_remove(at).1)
    }
}

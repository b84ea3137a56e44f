//! Where a join writes its rows, and in which form.

use std::io;
use std::sync::Arc;

use super::block::{Block, StoredBlock};
use super::compression::SpillCompression;
use super::store::{SpillFile, SpillStore};
use crate::memory::Budget;

/// The purpose of the memory for a compressed block.
const COMPRESSING: &str = "compressing rows for the disk";

/// Where a join writes its rows, and in which form.
#[derive(Debug)]
pub(crate) struct SpillTarget {
    store: Arc<dyn SpillStore>,
    compression: SpillCompression,
    /// Compression takes its memory from it.
    budget: Arc<Budget>,
}

impl SpillTarget {
    pub(crate) fn new(
        store: &Arc<dyn SpillStore>,
        compression: SpillCompression,
        budget: &Arc<Budget>,
    ) -> Arc<SpillTarget> {
        let (store, budget) = (Arc::clone(store), Arc::clone(budget));
        Arc::new(SpillTarget { store, compression, budget })
    }

    /// Names the place for messages.
    pub(crate) fn place(&self) -> String {
        self.store.place()
    }

    pub(super) fn create(&self) -> io::Result<Arc<dyn SpillFile>> {
        self.store.create()
    }

    /// Returns the form in which a block is written.
    ///
    /// If memory for the compressed bytes is refused, the block is written as it is. A join often writes blocks because
    /// memory was refused, so compression must not fail then.
    pub(super) fn form(&self, block: &Block) -> StoredBlock {
        let compressed = match self.compression {
            SpillCompression::None => None,
            compression => {
                let needed = block.compressing_bytes(compression);
                let reserved = self.budget.reserve(needed, COMPRESSING).ok();
                reserved.and_then(|reserved| block.compressed(compression, reserved))
            }
        };
        compressed.unwrap_or_else(|| block.uncompressed())
    }
}

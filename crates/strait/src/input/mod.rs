//! Reads the two sides, batch by batch, and holds the batches that the join needs later.
//!
//! ```text
//!  left input ───► BufferedSource ─┐                              ┌─► Relation        the build side
//!                                  ├─ read_smaller_first: read ───┤
//!  right input ──► BufferedSource ─┘  as build_side.rs says       └─► BufferedSource  the probe side: first the
//!                                                                                     batches that were read
//! ```

mod buffered;
mod chunk;
mod feed;
mod key_filter;
mod reader;
mod relation;
mod smaller_first;
mod source;

use arrow::array::RecordBatchReader;

pub(crate) use buffered::{BufferedSource, ReservedMorsel};
pub(crate) use chunk::{Chunk, ChunkLimits, slice_bytes};
pub(crate) use feed::{Expected, Feed};
pub use key_filter::KeyFilter;
pub(crate) use key_filter::KeyLookup;
pub(crate) use relation::{Location, Piece, Places, Relation};
pub(crate) use smaller_first::{next_step, read_smaller_first};
pub use source::{Input, Morsel, Source, SourceContext};

/// The reader of one side.
pub(crate) type Reader = Box<dyn RecordBatchReader + Send>;

/// The largest number of rows per batch, so that a row number within a batch fits 32 bits. Longer batches are
/// sliced.
pub(crate) const MAX_ROWS_PER_BATCH: usize = 1 << 30;

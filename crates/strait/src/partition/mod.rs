//! stand-in
mod tuple;
pub(crate) use tuple::{RowId, Tuple};

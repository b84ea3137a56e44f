//! The bytes of a page while its rows are added: first the definition levels, then the values.

use std::ops::Range;

use arrow::buffer::NullBuffer;

use super::rle;

/// Rows per page, as in Arrow's writer.
pub(super) const PAGE_ROWS: usize = 20_000;

/// The levels of a page without nulls fit this many bytes. They are only known when the page is complete, so
/// this much is left free before the values.
const ROOM: usize = 16;

/// The rows of a page, and which of them are null.
#[derive(Default)]
pub(super) struct Levels {
    rows: usize,
    nulls: usize,
    /// Zero for a null and one for a value. Empty until there is a null.
    levels: Vec<u32>,
}

impl Levels {
    pub(super) fn memory_size(&self) -> usize {
        self.levels.capacity() * size_of::<u32>()
    }

    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    pub(super) fn nulls(&self) -> usize {
        self.nulls
    }

    /// Adds rows of an array.
    pub(super) fn add(&mut self, nulls: Option<&NullBuffer>, rows: Range<usize>) {
        if let Some(nulls) = nulls {
            self.levels.resize(self.rows, 1);
            self.levels.extend(rows.clone().map(|row| u32::from(nulls.is_valid(row))));
            self.nulls += rows.clone().filter(|&row| nulls.is_null(row)).count();
        } else if !self.levels.is_empty() {
            self.levels.resize(self.rows + rows.len(), 1);
        }
        self.rows += rows.len();
    }

    /// Forgets all rows.
    pub(super) fn clear(&mut self) {
        (self.rows, self.nulls) = (0, 0);
        self.levels.clear();
    }
}

/// The bytes of a page.
pub(super) struct Body(Vec<u8>);

impl Default for Body {
    fn default() -> Self {
        Body(vec![0; ROOM])
    }
}

impl Body {
    pub(super) fn memory_size(&self) -> usize {
        self.0.capacity()
    }

    /// The vector to which values are appended.
    pub(super) fn values(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    /// The number of bytes of the values.
    pub(super) fn len(&self) -> usize {
        self.0.len() - ROOM
    }

    /// Completes the page, and returns its bytes. A column without nulls has no levels. Call
    /// [`clear`](Body::clear) after that.
    pub(super) fn complete(&mut self, levels: &Levels, optional: bool) -> &[u8] {
        let mut bytes = Vec::with_capacity(ROOM);
        if optional {
            bytes.extend_from_slice(&[0; 4]);
            match levels.levels.is_empty() {
                true => rle::encode_ones(levels.rows, &mut bytes),
                false => rle::encode(&levels.levels, 1, &mut bytes),
            }
            let length = (bytes.len() - 4) as u32;
            bytes[..4].copy_from_slice(&length.to_le_bytes());
        }
        match ROOM.checked_sub(bytes.len()) {
            Some(start) => {
                self.0[start..ROOM].copy_from_slice(&bytes);
                &self.0[start..]
            }
            None => {
                self.0.splice(..ROOM, bytes);
                &self.0
            }
        }
    }

    /// Forgets the bytes, but keeps their memory.
    pub(super) fn clear(&mut self) {
        self.0.clear();
        self.0.resize(ROOM, 0);
    }
}

//! How do narrow key columns become one exact word?
//!
//! Each column takes a field of the word, the first column the highest. A field is the value in
//! an unsigned encoding that sorts as the value does ([`Form::order`]), with a null bit above it
//! where null has to equal null: set for null, so that null sorts last.

use arrow::buffer::NullBuffer;

use super::column::Sink;
use super::meet::{Form, mask, sign};
use crate::word::KeyWord;

/// The place of a column in the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) form: Form,
    /// The bits of the value.
    pub(super) bits: u32,
    /// Whether there is a null bit above the value.
    pub(super) null_bit: bool,
    /// The bits of the fields before this one.
    pub(super) before: u32,
}

/// Puts a column's values into their field of the words.
pub(super) struct Pack<'a, K> {
    pub(super) field: Field,
    pub(super) nulls: Option<&'a NullBuffer>,
    pub(super) out: &'a mut Vec<K>,
}

impl<K: KeyWord> Sink for Pack<'_, K> {
    fn take(self, values: impl Iterator<Item = u64>) {
        let bits = self.field.bits;
        match self.field.form {
            Form::Float(_) => self.ordered(values.map(|v| {
                // All bits of a negative float turn, only the sign of another one.
                let negative = (v & sign(bits) != 0) as u64;
                (v ^ (sign(bits) | negative.wrapping_neg())) & mask(bits)
            })),
            Form::Signed(_) => {
                let (flip, mask) = (sign(bits), mask(bits));
                self.ordered(values.map(|v| (v ^ flip) & mask))
            }
            _ => self.ordered(values),
        }
    }
}

impl<K: KeyWord> Pack<'_, K> {
    fn ordered(self, values: impl Iterator<Item = u64>) {
        match self.nulls.filter(|_| self.field.null_bit) {
            None => self.put(values),
            Some(nulls) => {
                let null = 1 << self.field.bits;
                let value = |(value, valid)| if valid { value } else { null };
                self.put(values.zip(nulls.iter()).map(value))
            }
        }
    }

    fn put(self, fields: impl Iterator<Item = u64>) {
        let shift = self.field.bits + u32::from(self.field.null_bit);
        if self.field.before == 0 {
            self.out.clear();
            self.out.extend(fields.map(K::from_u64));
        } else {
            // Some field is before this one, so the shift is less than a word.
            for (word, field) in self.out.iter_mut().zip(fields) {
                *word = K::from_u64(word.to_u64() << shift | field);
            }
        }
    }
}

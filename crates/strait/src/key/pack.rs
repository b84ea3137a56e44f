//! Packs narrow key columns into one exact word.
//!
//! Each column has a field of the word; the first column has the highest bits. A field is the value in an
//! unsigned encoding that sorts like the value ([`Form::order`]). If null has to equal null, there is a null
//! bit above the value. It is set for null, so that null sorts last.

use arrow::buffer::NullBuffer;

use super::column::Sink;
use super::common_form::{Form, mask, sign};
use crate::word::KeyWord;

/// The position of a column in the word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) form: Form,
    /// The number of bits of the value.
    pub(super) bits: u32,
    /// Whether there is a null bit above the value.
    pub(super) null_bit: bool,
    /// The number of bits of the fields before this one.
    pub(super) before: u32,
}

/// Writes a column's values into their field of the words.
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
                // A negative float has all its bits flipped, any other float only its sign bit.
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
            // There is a field before this one, so the shift is less than the width of a word.
            for (word, field) in self.out.iter_mut().zip(fields) {
                *word = K::from_u64(word.to_u64() << shift | field);
            }
        }
    }
}

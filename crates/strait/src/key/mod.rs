//! What do the rest of the engine's stages see of a key?
//!
//! One [word](word::KeyWord) a row, `u32` or `u64`, made from the join columns of either side by
//! one [`KeyPlan`]. Pairs of columns of different types first [meet] in a form that loses
//! nothing. Then there are two ways:
//!
//! - **Packed** ([`pack`]): all columns fit in a word together. Equal words are equal keys, and
//!   words sort as keys do: the first column is in the highest bits, each in an encoding that
//!   sorts as an unsigned number.
//! - **Hashed** ([`hash`]): anything else. Equal keys have equal words, but not the other way
//!   round, so every match is [verified](verify) on the values. Where the order of keys counts,
//!   they are [ranked](rank) instead.
//!
//! A worked example: keys `(Int16, Boolean, Int8)`, where only the last column is nullable on
//! both sides and null equals null. The word has 16 + 1 + 9 = 26 bits, so it is a `u32`:
//!
//! ```text
//!   row                bits 25..10            9      8     7..0
//!   ( 1, true, -1)     1000 0000 0000 0001    1      0     0111 1111     sign bits are flipped
//!   (-1, false, 5)     0111 1111 1111 1111    0      0     1000 0101
//!   ( 1, true, null)   1000 0000 0000 0001    1      1     0000 0000     null sorts last
//! ```
//!
//! Unless null equals null, a row with a null in any key column is marked invalid: it matches
//! nothing whatever its word is. No word is reserved.

mod column;
mod float;
mod hash;
mod meet;
mod pack;
mod pair;
mod rank;
mod record;
mod seed;
mod slices;
mod verify;

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, DataType, Field, Schema};

use self::meet::Form;
use self::pair::KeyColumn;
use self::verify::{Column, Data};
use crate::error::{Error, Result};
use crate::input::Location;
use crate::memory::Budget;
use crate::options::{NullEquality, Side};
use crate::schedule::Workers;
use crate::word::{KeyWord, Mixer, Width};

pub(crate) use self::float::has_floats;
pub(crate) use self::pair::Equality;
pub(crate) use self::rank::Ranked;
pub(crate) use self::seed::Seed;
pub(crate) use self::verify::KeyValues;

/// How the key columns of both sides become words.
#[derive(Clone)]
pub(crate) struct KeyPlan {
    columns: Arc<[KeyColumn]>,
    null_equality: NullEquality,
    mode: Mode,
    seed: Seed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// So many bits of the word are used.
    Packed(u32),
    Hashed,
    /// Hashed, and all hashes are the same.
    Collide,
}

/// What key columns in their common form are held for.
const VERIFYING: &str = "comparing keys";

/// The word of every row under [`Mode::Collide`].
const COLLISION: u64 = 42;

impl KeyPlan {
    /// The plan for pairs of columns, by their indices in the two schemas. With `collide`, all
    /// words are the same and verification does all the work.
    pub(crate) fn new(
        left: &Schema,
        right: &Schema,
        keys: &[(usize, usize)],
        equality: impl Into<Equality>,
        collide: bool,
    ) -> Result<KeyPlan> {
        let equality = equality.into();
        if keys.is_empty() {
            return Err(Error::NoKeys);
        }
        let mut columns = Vec::with_capacity(keys.len());
        for &(l, r) in keys {
            let fields = [field(left, Side::Left, l)?, field(right, Side::Right, r)?];
            columns.push(KeyColumn::new([l, r], fields, equality)?);
        }
        let mut bits = Some(0u32);
        for column in &mut columns {
            column.field.before = bits.unwrap_or(0);
            let own = column.form.bits().map(|own| own + u32::from(column.field.null_bit));
            bits = bits.zip(own).map(|(bits, own)| bits + own).filter(|&bits| bits <= 64);
        }
        let mode = match bits {
            _ if collide => Mode::Collide,
            Some(bits) => Mode::Packed(bits),
            None => Mode::Hashed,
        };
        Ok(KeyPlan {
            columns: columns.into(),
            null_equality: equality.nulls,
            mode,
            seed: Seed::new(0),
        })
    }

    /// The same with another seed: hashed words, and the places of all words, are others.
    pub(crate) fn reseeded(&self, seed: Seed) -> KeyPlan {
        KeyPlan { seed, ..self.clone() }
    }

    /// The seed that hashed words and the places of words depend on.
    pub(crate) fn seed(&self) -> &Seed {
        &self.seed
    }

    /// The mixer that places words of this width.
    pub(crate) fn mixer<K: KeyWord>(&self) -> Mixer<K> {
        self.seed.mixer()
    }

    /// The width of the words.
    pub(crate) fn width(&self) -> Width {
        if self.significant_bits() <= 32 { Width::W32 } else { Width::W64 }
    }

    /// Whether equal words are equal keys, and words sort as the keys do: column after column,
    /// ascending, nulls last. Else words are hashes, and matches have to be verified.
    pub(crate) fn exact(&self) -> bool {
        matches!(self.mode, Mode::Packed(_))
    }

    /// Whether words are hashes of the keys, which follow from the seed.
    pub(crate) fn hashed(&self) -> bool {
        self.mode == Mode::Hashed
    }

    /// The plan in words, as in `Int32 + Date32 packed in 64 bits`.
    pub(crate) fn describe(&self) -> String {
        let names: Vec<String> = self.columns.iter().map(KeyColumn::describe).collect();
        let names = names.join(" + ");
        let width = self.width().bits();
        match self.mode {
            Mode::Packed(_) if self.columns.len() == 1 => {
                format!("{names}, direct in {width} bits")
            }
            Mode::Packed(_) => format!("{names} packed in {width} bits"),
            Mode::Hashed => format!("{names} hashed to {width} bits, matches verified"),
            Mode::Collide => format!("{names} hashed to one word, matches verified"),
        }
    }

    /// How many low bits of a word can be other than zero.
    pub(crate) fn significant_bits(&self) -> u32 {
        match self.mode {
            Mode::Packed(bits) => bits,
            Mode::Hashed | Mode::Collide => 64,
        }
    }

    /// Whether the word is one integer, at most with its sign bit flipped, so that keys of a
    /// dense range are words of a dense range.
    pub(crate) fn dense_candidate(&self) -> bool {
        match (self.mode, &*self.columns) {
            (Mode::Packed(_), [column]) if !column.field.null_bit => match column.form {
                Form::Signed(_) => true,
                Form::Unsigned(_) => !matches!(
                    column.plain_type,
                    DataType::FixedSizeBinary(_) | DataType::Interval(_)
                ),
                _ => false,
            },
            _ => false,
        }
    }

    /// Whether the words of a side's rows are read from its column about as fast as from memory that
    /// they were written to.
    pub(crate) fn plain(&self, side: Side) -> bool {
        self.dense_candidate() && self.columns.iter().all(|column| !column.encoded(side))
    }

    /// Whether the words of both sides are the values of their columns, but for a bias; and if so,
    /// whether there may be nulls, for which they are not.
    pub(crate) fn lies_in_columns(&self) -> Option<bool> {
        let [column] = &*self.columns else { return None };
        let sides = [Side::Left, Side::Right];
        let bits = self.width().bits();
        let lies = sides.iter().all(|&side| self.plain(side) && column.fills(side, bits));
        lies.then(|| sides.iter().any(|&side| column.may_have_nulls(side)))
    }

    /// A side's key column where each word is a value of it but for one bias, modulo its width, and
    /// all rows may match: the values of each batch as they lie there, and the bias.
    pub(crate) fn unbiased_values<K: KeyWord + ArrowNativeType>(
        &self,
        side: Side,
        batches: &[RecordBatch],
    ) -> Result<Option<(Vec<ScalarBuffer<K>>, u64)>> {
        let [column] = &*self.columns else { return Ok(None) };
        if !self.plain(side) {
            return Ok(None);
        }
        let mut values = Vec::with_capacity(batches.len());
        for batch in batches {
            let Some(of_batch) = column.unbiased_values(side, &column.peel(side, batch)?) else {
                return Ok(None);
            };
            values.push(of_batch);
        }
        // To turn the highest bit is to add it.
        let bias = match column.form {
            Form::Signed(bits) => meet::sign(bits),
            _ => 0,
        };
        Ok(Some((values, bias)))
    }

    /// Clears `out` and fills it with one word a row of `batch`; `K` is `u32` for
    /// [`Width::W32`], `u64` for [`Width::W64`]. Returns the rows that may match, `None` if all
    /// may. The words of the others may be anything.
    pub(crate) fn words<K: KeyWord>(
        &self,
        side: Side,
        batch: &RecordBatch,
        out: &mut Vec<K>,
    ) -> Result<Option<NullBuffer>> {
        debug_assert_eq!(self.width() == Width::W32, K::BITS == 32);
        out.clear();
        out.reserve(batch.num_rows());
        let mut valid = None;
        for (i, column) in self.columns.iter().enumerate() {
            let peeled = column.peel(side, batch)?;
            if !self.nulls_may_match(column) {
                valid = NullBuffer::union(valid.as_ref(), peeled.nulls.as_ref());
            }
            match self.mode {
                Mode::Packed(_) => column.pack(side, peeled, out)?,
                Mode::Hashed => {
                    let nulls_equal = self.null_equality == NullEquality::Equal;
                    column.hash(side, peeled, (i, &self.seed), nulls_equal, out)?
                }
                Mode::Collide => {}
            }
        }
        if self.mode == Mode::Collide {
            out.resize(batch.num_rows(), K::from_u64(COLLISION));
        }
        Ok(valid.filter(|valid| valid.null_count() > 0))
    }

    fn nulls_may_match(&self, column: &KeyColumn) -> bool {
        // A packed column without a null bit is one that has no nulls on one side.
        self.null_equality == NullEquality::Equal
            && (!self.exact() || column.field.null_bit || column.form == Form::Null)
    }

    /// The key columns of a side's batches, in the form they are compared in.
    /// What they take beyond the batches is reserved in the budget.
    pub(crate) fn values(
        &self,
        side: Side,
        batches: &[RecordBatch],
        with: (&Workers, &Arc<Budget>),
    ) -> Result<KeyValues> {
        self.values_of(batches.iter().map(|batch| (side, batch)), with)
    }

    fn values_of<'a>(
        &self,
        chunks: impl Iterator<Item = (Side, &'a RecordBatch)> + Clone,
        (workers, budget): (&Workers, &Arc<Budget>),
    ) -> Result<KeyValues> {
        let mut reserved = budget.reserve(0, VERIFYING)?;
        let mut between = |bytes: usize| {
            workers.check()?;
            reserved.grow(bytes as u64, VERIFYING)
        };
        let mut columns = Vec::with_capacity(self.columns.len());
        for key in self.columns.iter() {
            let mut column =
                Column { form: key.form, data: Data::empty(key.form), nulls: Vec::new() };
            for (side, batch) in chunks.clone() {
                key.append(side, batch, &mut column, &mut between)?;
            }
            columns.push(column);
        }
        Ok(KeyValues { columns, flat: false, reserved: vec![reserved] })
    }

    /// Clears `keep[i]` unless the keys at `a_at[i]` and `b_at[i]` are equal. All have one length.
    pub(crate) fn equal(
        &self,
        a: &KeyValues,
        a_at: &[Location],
        b: &KeyValues,
        b_at: &[Location],
        keep: &mut [bool],
    ) {
        debug_assert!(a_at.len() == keep.len() && b_at.len() == keep.len());
        a.equal(a_at, b, b_at, self.null_equality == NullEquality::Equal, keep);
    }

    /// Exact words for any keys, that sort as the keys do: dense ranks over both sides.
    pub(crate) fn ranks(
        &self,
        left: &[RecordBatch],
        right: &[RecordBatch],
        (workers, budget): (&Workers, &Arc<Budget>),
    ) -> Result<(Ranked, Ranked)> {
        rank::ranks(self, left, right, (workers, budget))
    }
}

fn field(schema: &Schema, side: Side, index: usize) -> Result<&Field> {
    schema.fields().get(index).map(AsRef::as_ref).ok_or_else(|| {
        let count = schema.fields().len();
        Error::Setting(format!("the {} table has no column {index}, only {count}", side.name()))
    })
}

#[cfg(test)]
mod tests;

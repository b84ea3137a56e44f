//! Keys: converts the key columns of a row into one key word.
//!
//! A [`KeyPlan`] converts the key columns of either side into one word per row ([`KeyWord`]), `u32` or `u64`.
//! Columns of different types are first converted to a [common form](common_form) that loses nothing.
//! Then there are two ways:
//!
//! - **Packed** ([`pack`]): all columns fit one word together. Equal words mean equal keys, and words sort
//!   like keys: the first column is in the highest bits, and each column has an encoding that sorts as an
//!   unsigned number.
//! - **Hashed** ([`hash`]): all other keys. Equal keys have equal words, but different keys may have equal
//!   words too. So every match is [verified](verify) on the values. If the order of keys matters, they are
//!   [ranked](rank) instead.
//!
//! An example: keys of type `(Int16, Boolean, Int8)`, where only the last column is nullable on both sides,
//! and null equals null. The word has 16 + 1 + 9 = 26 bits, so it is a `u32`:
//!
//! ```text
//!   row                bits 25..10            9      8     7..0
//!   ( 1, true, -1)     1000 0000 0000 0001    1      0     0111 1111     sign bits are flipped
//!   (-1, false, 5)     0111 1111 1111 1111    0      0     1000 0101
//!   ( 1, true, null)   1000 0000 0000 0001    1      1     0000 0000     null sorts last
//! ```
//!
//! Unless null equals null, a row with a null in any key column is marked invalid. It matches no row,
//! whatever its word is. No word is reserved.

mod column;
mod common_form;
mod encoding;
mod float;
mod hash;
mod nested;
mod order;
mod pack;
mod pair;
mod rank;
mod record;
mod reserve;
mod row_size;
mod seed;
mod slices;
mod verify;

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, DataType, Field, Schema};

use self::common_form::Form;
use self::pair::KeyColumn;
use self::verify::{Column, Data};
use crate::error::{Error, Result};
use crate::input::Location;
use crate::memory::Budget;
use crate::options::{NullEquality, Side};
use crate::schedule::Workers;
use crate::word::{KeyWord, Mixer, Width};

pub use self::encoding::{KeyEncoding, KeyForm};
pub(crate) use self::float::has_floats;
pub(crate) use self::nested::has_unions;
pub(crate) use self::order::{InOrder, SORTED_BYTES_PER_ROW, UNMATCHABLE, just_after};
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
    /// The budget for the conversion of nested keys in [`words`](KeyPlan::words). `values` and `ranks` get a budget as
    /// an argument.
    budget: Arc<Budget>,
    /// The workers of the join. If they are cancelled, [`words`](KeyPlan::words) and [`equal`](KeyPlan::equal) end.
    workers: Workers,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// The number of bits of the word that are used.
    Packed(u32),
    Hashed,
    /// Hashed, and all hashes are equal.
    Collide,
}

/// The purpose of memory for key columns in their common form.
const VERIFYING: &str = "comparing keys";

/// The word of every row in [`Mode::Collide`].
const COLLISION: u64 = 42;

impl KeyPlan {
    /// Creates a plan for pairs of columns, given by their indices in the two schemas. With `collide`, all
    /// words are equal, so that only verification separates keys.
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
            budget: Budget::new(None),
            workers: Workers::new(1, Arc::default()),
        })
    }

    /// Returns the same plan with another seed. It changes hashed words, and the placing of all words.
    pub(crate) fn reseeded(&self, seed: Seed) -> KeyPlan {
        KeyPlan { seed, ..self.clone() }
    }

    /// Returns the plan for the workers of a join, and with a budget, in which `words` reserves memory for the conversion
    /// of nested keys. If the workers are cancelled, `words` and `equal` return [`Error::Cancelled`] soon.
    pub(crate) fn within(&self, workers: &Workers, budget: &Arc<Budget>) -> KeyPlan {
        KeyPlan { workers: workers.clone(), budget: Arc::clone(budget), ..self.clone() }
    }

    /// Returns the seed that hashed words and the placing of words depend on.
    pub(crate) fn seed(&self) -> &Seed {
        &self.seed
    }

    /// Returns the mixer that places words of this width.
    pub(crate) fn mixer<K: KeyWord>(&self) -> Mixer<K> {
        self.seed.mixer()
    }

    /// Returns the width of the words.
    pub(crate) fn width(&self) -> Width {
        if self.significant_bits() <= 32 { Width::W32 } else { Width::W64 }
    }

    /// Returns whether equal words mean equal keys, and words sort like keys: column by column, ascending,
    /// nulls last. Otherwise words are hashes, and matches must be verified.
    pub(crate) fn exact(&self) -> bool {
        matches!(self.mode, Mode::Packed(_))
    }

    /// Returns whether words are hashes that depend on the seed.
    pub(crate) fn hashed(&self) -> bool {
        self.mode == Mode::Hashed
    }

    /// Returns the encoding, which is displayed as `Int32 + Date32 packed in 64 bits`.
    pub(crate) fn encoding(&self) -> KeyEncoding {
        let columns = self.columns.iter().map(|column| column.types.clone()).collect();
        let form = match self.mode {
            Mode::Packed(_) if self.columns.len() == 1 => KeyForm::Direct,
            Mode::Packed(_) => KeyForm::Packed,
            Mode::Hashed => KeyForm::Hashed,
            Mode::Collide => KeyForm::Colliding,
        };
        KeyEncoding { columns, form, word_bits: self.width().bits() }
    }

    /// Returns the number of low bits of a word that can be nonzero.
    pub(crate) fn significant_bits(&self) -> u32 {
        match self.mode {
            Mode::Packed(bits) => bits,
            Mode::Hashed | Mode::Collide => 64,
        }
    }

    /// Returns whether the word is one integer, at most with its sign bit flipped. Then keys of a dense range
    /// have words of a dense range.
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

    /// Returns whether reading the words of a side from its column is about as fast as reading them from a
    /// buffer.
    pub(crate) fn plain(&self, side: Side) -> bool {
        self.dense_candidate() && self.columns.iter().all(|column| !column.encoded(side))
    }

    /// Returns `Some` if the words of a side are the values of its column plus a bias. The inner value tells
    /// whether there may be nulls. The words of null rows are an exception.
    pub(crate) fn in_column(&self, side: Side) -> Option<bool> {
        let [column] = &*self.columns else { return None };
        let in_column = self.plain(side) && column.fills(side, self.width().bits());
        in_column.then(|| column.may_have_nulls(side))
    }

    /// Returns whether these batches have nulls in the key column, if the words are
    /// [in the column](KeyPlan::in_column); otherwise `None`.
    pub(crate) fn nulls_in_column(
        &self,
        side: Side,
        batches: &[RecordBatch],
    ) -> Result<Option<bool>> {
        let ([column], Some(_)) = (&*self.columns, self.in_column(side)) else { return Ok(None) };
        for batch in batches {
            if column.peel(side, batch)?.nulls.is_some() {
                return Ok(Some(true));
            }
        }
        Ok(Some(false))
    }

    /// Returns the values of a side's key column, one buffer per batch, and a bias, if each word is a value
    /// plus the bias, modulo the width, and all rows may match. Nothing is copied.
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
        // Flipping the highest bit is the same as adding it.
        let bias = match column.form {
            Form::Signed(bits) => common_form::sign(bits),
            _ => 0,
        };
        Ok(Some((values, bias)))
    }

    /// Returns the key columns of a side, in ascending order and each once.
    pub(crate) fn columns(&self, side: Side) -> Vec<usize> {
        let index = |column: &KeyColumn| column.indices[pair::part(side)];
        let indices: BTreeSet<usize> = self.columns.iter().map(index).collect();
        indices.into_iter().collect()
    }

    /// Clears `out` and fills it with one word per row of `batch`. `K` must be `u32` for [`Width::W32`] and
    /// `u64` for [`Width::W64`]. Returns the rows that may match; `None` if all may. The words of other rows
    /// are unspecified.
    pub(crate) fn words<K: KeyWord>(
        &self,
        side: Side,
        batch: &RecordBatch,
        out: &mut Vec<K>,
    ) -> Result<Option<NullBuffer>> {
        self.words_of(side, batch.num_rows(), |index| batch.columns().get(index), out)
    }

    /// Does the same as [`words`](KeyPlan::words) for the `rows` rows of some columns. `array` returns the
    /// column with an index.
    pub(crate) fn words_of<'a, K: KeyWord>(
        &self,
        side: Side,
        rows: usize,
        array: impl Fn(usize) -> Option<&'a ArrayRef>,
        out: &mut Vec<K>,
    ) -> Result<Option<NullBuffer>> {
        debug_assert_eq!(self.width() == Width::W32, K::BITS == 32);
        out.clear();
        out.reserve(rows);
        let mut valid = None;
        for (i, column) in self.columns.iter().enumerate() {
            let peeled = column.peel_array(side, array(column.indices[pair::part(side)]))?;
            if !self.nulls_may_match(column) {
                valid = NullBuffer::union(valid.as_ref(), peeled.nulls.as_ref());
            }
            match self.mode {
                Mode::Packed(_) => column.pack(side, peeled, out)?,
                Mode::Hashed => {
                    let nulls_equal = self.null_equality == NullEquality::Equal;
                    let with = (nulls_equal, (&self.workers, &self.budget));
                    column.hash(side, peeled, (i, &self.seed), with, out)?
                }
                Mode::Collide => {}
            }
        }
        if self.mode == Mode::Collide {
            out.resize(rows, K::from_u64(COLLISION));
        }
        Ok(valid.filter(|valid| valid.null_count() > 0))
    }

    fn nulls_may_match(&self, column: &KeyColumn) -> bool {
        // A packed column without a null bit has no nulls on at least one side.
        self.null_equality == NullEquality::Equal
            && (!self.exact() || column.field.null_bit || column.form == Form::Null)
    }

    /// Returns the key columns of a side's batches, in the form in which they are compared. Memory beyond the
    /// batches is reserved in the budget.
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
                key.append(side, batch, &mut column, (&mut between, (workers, budget)))?;
            }
            columns.push(column);
        }
        Ok(KeyValues { columns, flat: false, reserved: vec![reserved] })
    }

    /// Sets `keep[i]` to false unless the keys at `a_at[i]` and `b_at[i]` are equal. All slices must have the
    /// same length.
    pub(crate) fn equal(
        &self,
        a: &KeyValues,
        a_at: &[Location],
        b: &KeyValues,
        b_at: &[Location],
        keep: &mut [bool],
    ) -> Result<()> {
        debug_assert!(a_at.len() == keep.len() && b_at.len() == keep.len());
        let nulls_equal = self.null_equality == NullEquality::Equal;
        a.equal(a_at, b, b_at, (nulls_equal, &self.workers), keep)
    }

    /// Computes exact words for any keys: dense ranks over both sides. They sort like the keys.
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
        Error::internal(format!("the {} table has no column {index}, only {count}", side.name()))
    })
}

#[cfg(test)]
mod tests;

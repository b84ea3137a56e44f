//! The order of keys, for rows that are sorted and written to disk.
//!
//! [`KeyPlan::in_order`] sorts the rows of some batches by key. [`KeyBytes`] turns single keys into byte strings. The
//! order of the byte strings is the order of the keys, in all batches and on both sides. So the keys of different
//! batches can be compared although the batches are never in memory together.
//!
//! The order is the order of the output of the sort-merge join: column by column, and null is larger than any value. A
//! row that matches nothing because of a null in its key comes after all other rows.
//!
//! ```text
//!  key (-1, "a\0b"), both columns valid:
//!    00                        the row may match; 01 and nothing else if it cannot
//!    00 7f ff ff ff ff …       a number: big-endian, so that its bytes sort like its value
//!    00 61 00 ff 62 00 00      a string: a zero byte is written as 00 ff, and the end as 00 00
//! ```
//!
//! A null is the byte `01` in place of `00`, without a value.

use std::sync::Arc;

use arrow::array::RecordBatch;

use super::KeyPlan;
use super::common_form::sign;
use super::rank::{Entry, bytes, sort, value};
use super::verify::{Column, Data, KeyValues, is_valid};
use crate::error::Result;
use crate::input::Location;
use crate::memory::{Budget, Reservation};
use crate::options::Side;
use crate::schedule::Workers;
use crate::word::{KeyWord, Width};

/// The bytes per row that sorting takes: the entry, and the key word or the position of a row that cannot match.
pub(crate) const SORTED_BYTES_PER_ROW: u64 = 32;
/// The purpose of this memory.
const SORTING: &str = "sorting rows by their keys";
/// The number of rows between two checks for cancellation.
const LOOK_EVERY: usize = 16 * 1024;

/// The key of a row that cannot match. It is larger than the keys of all rows that may match.
pub(crate) const UNMATCHABLE: [u8; 1] = [1];

/// The positions of some rows, sorted by key.
pub(crate) struct InOrder {
    entries: Vec<Entry>,
    /// The rows that cannot match because of a null in their key.
    unmatchable: Vec<Location>,
    _reserved: Reservation,
}

impl InOrder {
    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() + self.unmatchable.len()
    }

    /// Returns the position of a row. Rows that cannot match come last.
    pub(crate) fn at(&self, row: usize) -> Option<Location> {
        match self.entries.get(row) {
            Some(entry) => Some(entry.at),
            None => self.unmatchable.get(row - self.entries.len()).copied(),
        }
    }
}

/// The keys of some batches of one side, as byte strings.
pub(crate) struct KeyBytes {
    values: KeyValues,
    /// For each key column, whether a null may match a null.
    nulls_may_match: Vec<bool>,
}

impl KeyPlan {
    /// Returns the keys of some batches as byte strings. Memory beyond the batches is reserved.
    pub(crate) fn key_bytes(
        &self,
        side: Side,
        batches: &[RecordBatch],
        with: (&Workers, &Arc<Budget>),
    ) -> Result<KeyBytes> {
        let values = self.values(side, batches, with)?;
        let nulls_may_match = self.columns.iter().map(|column| self.nulls_may_match(column));
        Ok(KeyBytes { values, nulls_may_match: nulls_may_match.collect() })
    }

    /// Sorts the rows of some batches by key, on all workers. Leaves out rows that cannot match if `drops_unmatchable`
    /// is true.
    pub(crate) fn in_order(
        &self,
        side: Side,
        batches: &[RecordBatch],
        drops_unmatchable: bool,
        (workers, budget): (&Workers, &Arc<Budget>),
    ) -> Result<InOrder> {
        let rows: usize = batches.iter().map(RecordBatch::num_rows).sum();
        let _reserved = budget.reserve(rows as u64 * SORTED_BYTES_PER_ROW, SORTING)?;
        let entries = Vec::with_capacity(rows);
        let mut sorted = InOrder { entries, unmatchable: Vec::new(), _reserved };
        match (self.exact(), self.width()) {
            (true, Width::W32) => self.enter_words::<u32>(side, batches, &mut sorted, workers)?,
            (true, Width::W64) => self.enter_words::<u64>(side, batches, &mut sorted, workers)?,
            (false, _) => {
                let keys = self.key_bytes(side, batches, (workers, budget))?;
                keys.enter(batches, &mut sorted, workers)?;
                let compare = |a: &Entry, b: &Entry| {
                    a.prefix.cmp(&b.prefix).then_with(|| keys.values.compare(a.at, b.at))
                };
                sort(&mut sorted.entries, compare, workers)?;
            }
        }
        if self.exact() {
            sort(&mut sorted.entries, |a, b| a.prefix.cmp(&b.prefix), workers)?;
        }
        if drops_unmatchable {
            sorted.unmatchable.clear();
        }
        Ok(sorted)
    }

    /// Enters all rows with their key words, which sort like the keys.
    fn enter_words<K: KeyWord>(
        &self,
        side: Side,
        batches: &[RecordBatch],
        to: &mut InOrder,
        workers: &Workers,
    ) -> Result<()> {
        let mut words = Vec::<K>::new();
        for (number, batch) in (0..).zip(batches) {
            workers.check()?;
            let valid = self.words::<K>(side, batch, &mut words)?;
            for (row, word) in (0..).zip(&words) {
                let at = Location { batch: number, row };
                match valid.as_ref().is_none_or(|valid| valid.is_valid(row as usize)) {
                    true => to.entries.push(Entry { prefix: word.to_u64(), at }),
                    false => to.unmatchable.push(at),
                }
            }
        }
        Ok(())
    }
}

impl KeyBytes {
    /// Enters all rows with the prefixes of their keys.
    fn enter(&self, batches: &[RecordBatch], to: &mut InOrder, workers: &Workers) -> Result<()> {
        for (batch, rows) in (0..).zip(batches.iter().map(RecordBatch::num_rows)) {
            for row in 0..rows {
                if row % LOOK_EVERY == 0 {
                    workers.check()?;
                }
                let at = Location { batch, row: row as u32 };
                match self.may_match(at) {
                    true => {
                        let prefix = self.values.columns.first().map_or(0, |c| c.prefix(at));
                        to.entries.push(Entry { prefix, at });
                    }
                    false => to.unmatchable.push(at),
                }
            }
        }
        Ok(())
    }

    /// Returns whether a row may match. It cannot match if its key has a null that equals no null.
    fn may_match(&self, at: Location) -> bool {
        let columns = self.values.columns.iter().zip(&self.nulls_may_match);
        columns.into_iter().all(|(column, nulls)| *nulls || is_valid(&column.nulls, at))
    }

    /// Returns the key of a row.
    pub(crate) fn key(&self, at: Location) -> Vec<u8> {
        if !self.may_match(at) {
            return UNMATCHABLE.to_vec();
        }
        let mut key = vec![0];
        for column in &self.values.columns {
            match is_valid(&column.nulls, at) {
                true => {
                    key.push(0);
                    column.append(at, &mut key);
                }
                false => key.push(1),
            }
        }
        key
    }
}

/// Returns the smallest byte string that is larger than `key`.
pub(crate) fn just_after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

impl Column {
    /// Appends a value that is not null.
    fn append(&self, at: Location, key: &mut Vec<u8>) {
        match &self.data {
            Data::Null => {}
            Data::W32(_) | Data::W64(_) => key.extend(self.word(at).to_be_bytes()),
            Data::W128(chunks) => {
                let value = value(chunks, at) as u128 ^ 1 << 127;
                key.extend(value.to_be_bytes());
            }
            Data::W256(chunks) => {
                let (low, high) = value(chunks, at).to_parts();
                let high = high as u128;
                let top = (high >> 64) as u64 ^ sign(64);
                key.extend(top.to_be_bytes());
                key.extend((high as u64).to_be_bytes());
                key.extend(low.to_be_bytes());
            }
            Data::Bytes(chunks) => append_bytes(bytes(chunks, at), key),
            Data::Records(records) => append_bytes(records.get(at.row), key),
        }
    }
}

/// Appends a byte string in a form that no other form is a prefix of.
fn append_bytes(bytes: &[u8], key: &mut Vec<u8>) {
    key.reserve(bytes.len() + 2);
    for part in bytes.split_inclusive(|&byte| byte == 0) {
        key.extend_from_slice(part);
        if part.last() == Some(&0) {
            key.push(0xff);
        }
    }
    key.extend([0, 0]);
}

#[cfg(test)]
mod tests {
    use arrow::array::{
        ArrayRef, BinaryArray, Decimal128Array, Decimal256Array, Float64Array, Int16Array,
        StringArray, UInt64Array,
    };
    use arrow::datatypes::i256;

    use super::*;
    use crate::key::Equality;
    use crate::options::NullEquality;

    fn keys_of(columns: Vec<ArrayRef>, equality: NullEquality) -> (KeyPlan, RecordBatch) {
        let named = (0..).zip(columns).map(|(i, column): (i32, _)| (format!("c{i}"), column, true));
        let batch = RecordBatch::try_from_iter_with_nullable(named).expect("columns");
        let pairs: Vec<_> = (0..batch.num_columns()).map(|i| (i, i)).collect();
        let schema = batch.schema();
        let plan = KeyPlan::new(&schema, &schema, &pairs, Equality::from(equality), false);
        (plan.expect("comparable"), batch)
    }

    /// The rows of a column, given in ascending order, have ascending byte strings, and are sorted into this order.
    fn check(columns: Vec<ArrayRef>, equality: NullEquality) {
        let (plan, batch) = keys_of(columns, equality);
        let (workers, budget) = (Workers::new(2, Arc::default()), Budget::new(None));
        let with = (&workers, &budget);
        let keys = plan.key_bytes(Side::Left, std::slice::from_ref(&batch), with).expect("fits");
        let key = |row: usize| keys.key(Location { batch: 0, row: row as u32 });
        let rows = batch.num_rows();
        for row in 1..rows {
            assert!(key(row - 1) < key(row), "{row}: {:?} {:?}", key(row - 1), key(row));
            assert!(just_after(&key(row - 1)) <= key(row), "{row}");
        }
        let order = UInt64Array::from_iter_values((0..rows as u64).rev());
        let backwards = arrow::compute::take_record_batch(&batch, &order).expect("rows");
        let sorted = plan.in_order(Side::Left, &[backwards], false, with).expect("fits");
        let found: Vec<_> =
            (0..sorted.len()).map(|row| sorted.at(row).expect("a row").row as usize).collect();
        assert_eq!(found, (0..rows).rev().collect::<Vec<_>>());
    }

    #[test]
    fn byte_strings_sort_like_keys() {
        let equal = NullEquality::Equal;
        let texts = ["", "a", "a\0", "a\0\0", "a\0b", "a\u{1}", "ab", "b"];
        let nullable = texts.iter().map(|text| Some(*text)).chain([None]);
        check(vec![Arc::new(StringArray::from_iter(nullable))], equal);
        let wide = [i128::MIN, -1, 0, 1, i128::MAX].map(Some);
        check(vec![Arc::new(Decimal128Array::from_iter(wide))], equal);
        let wider = [i256::MIN, i256::MINUS_ONE, i256::ZERO, i256::from_i128(1), i256::MAX];
        check(vec![Arc::new(Decimal256Array::from_iter_values(wider))], equal);
        let floats = [f64::NEG_INFINITY, -1.5, -0.0, 1.0, f64::INFINITY, f64::NAN];
        check(vec![Arc::new(Float64Array::from_iter_values(floats))], equal);
        let numbers = Int16Array::from(vec![Some(-2), Some(-1), Some(-1), Some(3), None, None]);
        let bytes: [Option<&[u8]>; 6] = [None, Some(b""), Some(b"\0"), Some(b"x"), Some(b""), None];
        check(vec![Arc::new(numbers), Arc::new(BinaryArray::from_iter(bytes))], equal);
        check(vec![Arc::new(Int16Array::from(vec![Some(-2), Some(7), None]))], equal);
    }

    #[test]
    fn rows_that_cannot_match_come_last() {
        let numbers = Int16Array::from(vec![None, Some(9), None, Some(-3)]);
        let (plan, batch) = keys_of(vec![Arc::new(numbers)], NullEquality::NeverEqual);
        let (workers, budget) = (Workers::new(1, Arc::default()), Budget::new(None));
        let with = (&workers, &budget);
        let rows = |drops| {
            let sorted = plan.in_order(Side::Left, std::slice::from_ref(&batch), drops, with);
            let sorted = sorted.expect("fits");
            (0..sorted.len()).map(|row| sorted.at(row).expect("a row").row).collect::<Vec<_>>()
        };
        assert_eq!(rows(false), [3, 1, 0, 2]);
        assert_eq!(rows(true), [3, 1]);
        let keys = plan.key_bytes(Side::Left, std::slice::from_ref(&batch), with).expect("fits");
        assert_eq!(keys.key(Location { batch: 0, row: 0 }), UNMATCHABLE);
        assert!(keys.key(Location { batch: 0, row: 1 }).as_slice() < &UNMATCHABLE[..]);
    }
}

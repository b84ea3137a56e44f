//! Ranks keys that are too wide for a word.
//!
//! All keys of both sides are sorted together and numbered. Equal keys get equal numbers, and numbers sort
//! like keys. The first eight bytes decide most comparisons of strings. So each key has a prefix, which
//! avoids most accesses to the values.

use std::cmp::Ordering;
use std::sync::Arc;
use std::sync::Mutex;

use arrow::array::BooleanBufferBuilder;
use arrow::array::RecordBatch;
use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::ArrowNativeType;

use super::KeyPlan;
use super::common_form::Form;
use super::verify::{Bytes, Column, Data, KeyValues, is_valid};
use crate::error::{Error, Result};
use crate::input::Location;
use crate::memory::Budget;
use crate::options::{NullEquality, Side};
use crate::schedule::Workers;
use crate::schedule::lock;

/// The number of rows between two checks for cancellation.
const LOOK_EVERY: usize = 16 * 1024;

/// The rank of every row of a side, in the order of its batches.
#[derive(Debug)]
pub(crate) struct Ranked {
    /// One word per row. It is unspecified if the row cannot match.
    pub(crate) words: Vec<u64>,
    /// The rows that may match; `None` if all may.
    pub(crate) valid: Option<NullBuffer>,
}

/// A row that has to be ranked.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) prefix: u64,
    pub(super) at: Location,
}

pub(super) fn ranks(
    plan: &KeyPlan,
    left: &[RecordBatch],
    right: &[RecordBatch],
    (workers, budget): (&Workers, &Arc<Budget>),
) -> Result<(Ranked, Ranked)> {
    let left_chunks = left.iter().map(|batch| (Side::Left, batch));
    let right_chunks = right.iter().map(|batch| (Side::Right, batch));
    let values = plan.values_of(left_chunks.chain(right_chunks), (workers, budget))?;
    let nulls_match = plan.null_equality == NullEquality::Equal;
    // Chunks of both sides are numbered together. `starts` has the first row of each chunk within its side.
    let mut starts = Vec::with_capacity(left.len() + right.len());
    let mut valid = [BooleanBufferBuilder::new(0), BooleanBufferBuilder::new(0)];
    let rows = left.iter().chain(right).map(RecordBatch::num_rows).sum();
    let mut entries = Vec::with_capacity(rows);
    for (chunk, batch) in left.iter().chain(right).enumerate() {
        let valid = &mut valid[usize::from(chunk >= left.len())];
        starts.push(valid.len());
        for row in 0..batch.num_rows() {
            if row % LOOK_EVERY == 0 {
                workers.check()?;
            }
            let at = Location { batch: narrow(chunk, "batches")?, row: narrow(row, "rows")? };
            let may_match =
                nulls_match || values.columns.iter().all(|column| is_valid(&column.nulls, at));
            valid.append(may_match);
            if may_match {
                let prefix = values.columns.first().map_or(0, |column| column.prefix(at));
                entries.push(Entry { prefix, at });
            }
        }
    }
    let compare =
        |a: &Entry, b: &Entry| a.prefix.cmp(&b.prefix).then_with(|| values.compare(a.at, b.at));
    sort(&mut entries, compare, workers)?;

    let mut words = [vec![0; valid[0].len()], vec![0; valid[1].len()]];
    let mut rank = 0;
    let mut before: Option<&Entry> = None;
    for (i, entry) in entries.iter().enumerate() {
        if i % LOOK_EVERY == 0 {
            workers.check()?;
        }
        rank += u64::from(before.is_some_and(|before| compare(before, entry).is_ne()));
        let chunk = entry.at.batch as usize;
        let side = usize::from(chunk >= left.len());
        words[side][starts[chunk] + entry.at.row as usize] = rank;
        before = Some(entry);
    }
    let [left_words, right_words] = words;
    let [mut left_valid, mut right_valid] = valid;
    let ranked = |words, valid: &mut BooleanBufferBuilder| {
        let valid = NullBuffer::new(valid.finish());
        Ranked { words, valid: Some(valid).filter(|valid| valid.null_count() > 0) }
    };
    Ok((ranked(left_words, &mut left_valid), ranked(right_words, &mut right_valid)))
}

/// Sorts entries. Unlike one call of the standard library's sort, it checks for cancellation while it runs.
///
/// It cuts the entries into parts, as quicksort does: all entries of a part sort before the entries of the next part.
/// Workers then sort the parts.
pub(super) fn sort(
    entries: &mut [Entry],
    compare: impl Fn(&Entry, &Entry) -> Ordering + Sync,
    workers: &Workers,
) -> Result<()> {
    /// Parts up to this length are sorted at once.
    const PART: usize = 32 * 1024;
    let mut parts = Vec::new();
    // A part that is still long after this many cuts is sorted as it is.
    let most_cuts = 2 * entries.len().max(2).ilog2();
    let mut whole = vec![(entries, most_cuts)];
    while let Some((part, cuts)) = whole.pop() {
        if part.len() <= PART || cuts == 0 {
            parts.push(Mutex::new(part));
        } else {
            let (less, more) = cut(part, &compare, workers)?;
            whole.extend([(less, cuts - 1), (more, cuts - 1)]);
        }
    }
    workers.each(parts.len(), |part, _| {
        lock(&parts[part]).sort_unstable_by(&compare);
        Ok(())
    })
}

/// Puts smaller entries first, larger ones last, and entries equal to the pivot between them. Returns the
/// smaller and the larger ones.
fn cut<'e>(
    entries: &'e mut [Entry],
    compare: &impl Fn(&Entry, &Entry) -> Ordering,
    workers: &Workers,
) -> Result<(&'e mut [Entry], &'e mut [Entry])> {
    const SAMPLE: usize = 63;
    let step = entries.len() / SAMPLE;
    let mut sample: Vec<Entry> = entries.iter().step_by(step.max(1)).copied().collect();
    sample.sort_unstable_by(compare);
    let pivot = sample[sample.len() / 2];
    let (mut less, mut at, mut more) = (0, 0, entries.len());
    let mut steps = 0;
    while at < more {
        if steps % LOOK_EVERY == 0 {
            workers.check()?;
        }
        steps += 1;
        match compare(&entries[at], &pivot) {
            Ordering::Less => {
                entries.swap(less, at);
                (less, at) = (less + 1, at + 1);
            }
            Ordering::Equal => at += 1,
            Ordering::Greater => {
                more -= 1;
                entries.swap(at, more);
            }
        }
    }
    let (rest, greater) = entries.split_at_mut(more);
    Ok((&mut rest[..less], greater))
}

fn narrow(n: usize, what: &str) -> Result<u32> {
    u32::try_from(n).map_err(|_| {
        Error::key_values(
            format!("more than 2^32 {what} at once cannot be sorted"),
            "make batches of another size",
        )
    })
}

impl KeyValues {
    /// Compares column by column. Null is larger than any value.
    pub(super) fn compare(&self, a: Location, b: Location) -> Ordering {
        self.columns
            .iter()
            .map(|column| match (is_valid(&column.nulls, a), is_valid(&column.nulls, b)) {
                (true, true) => column.compare(a, b),
                (a, b) => b.cmp(&a),
            })
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    }
}

impl Column {
    fn compare(&self, a: Location, b: Location) -> Ordering {
        match &self.data {
            Data::Null => Ordering::Equal,
            Data::W32(_) | Data::W64(_) => self.word(a).cmp(&self.word(b)),
            Data::W128(chunks) => value(chunks, a).cmp(&value(chunks, b)),
            Data::W256(chunks) => value(chunks, a).cmp(&value(chunks, b)),
            Data::Bytes(chunks) => bytes(chunks, a).cmp(bytes(chunks, b)),
            Data::Records(records) => records.get(a.row).cmp(records.get(b.row)),
        }
    }

    /// Returns a number whose order agrees with the order of values: a larger value never has a smaller
    /// number.
    pub(super) fn prefix(&self, at: Location) -> u64 {
        if !is_valid(&self.nulls, at) {
            return u64::MAX;
        }
        match &self.data {
            Data::Null => 0,
            Data::W32(_) | Data::W64(_) => self.word(at),
            Data::W128(chunks) => Form::Signed(64).order((value(chunks, at) >> 64) as u64),
            Data::W256(chunks) => {
                let (_, high) = value(chunks, at).to_parts();
                Form::Signed(64).order((high >> 64) as u64)
            }
            Data::Bytes(chunks) => first_bytes(bytes(chunks, at)),
            Data::Records(records) => first_bytes(records.get(at.row)),
        }
    }

    pub(super) fn word(&self, at: Location) -> u64 {
        match &self.data {
            Data::W32(chunks) => self.form.order(value(chunks, at).into()),
            Data::W64(chunks) => self.form.order(value(chunks, at)),
            _ => 0,
        }
    }
}

pub(super) fn value<T: ArrowNativeType>(chunks: &[ScalarBuffer<T>], at: Location) -> T {
    chunks[at.batch as usize][at.row as usize]
}

fn first_bytes(bytes: &[u8]) -> u64 {
    let mut first = [0; 8];
    let len = bytes.len().min(8);
    first[..len].copy_from_slice(&bytes[..len]);
    u64::from_be_bytes(first)
}

pub(super) fn bytes(chunks: &[Bytes], at: Location) -> &[u8] {
    chunks[at.batch as usize].get(at.row)
}

//! Reservations for the buffers of input batches, one per buffer, held while any batch refers to the buffer.
//!
//! Batches may share buffers: slices of one table, or a common dictionary. Output batches may refer to input
//! buffers, because slices and views do. So each buffer has its own reservation, which lives as long as any
//! batch that holds it.
//!
//! Only joins with a memory limit have a ledger.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, Weak};

use arrow::array::{Array, ArrayData, ArrayRef, RecordBatch};

use crate::error::Result;
use crate::memory::{Budget, Reservation};
use crate::schedule::lock;

/// The reservations of the buffers that a batch refers to.
pub(crate) type Hold = Vec<Arc<Reservation>>;

/// If there are more entries than this, entries of freed buffers are removed.
const SWEEP_FROM: usize = 1024;

/// The reservations of all input buffers that are held.
pub(crate) struct Ledger {
    budget: Arc<Budget>,
    live: Mutex<Live>,
}

#[derive(Default)]
struct Live {
    /// The entries, by the address of the allocation.
    buffers: HashMap<usize, Entry>,
    sweep_at: usize,
}

/// The reservations of one allocation. The length of an allocation may become known only step by step, for
/// example through the C data interface, when a longer slice of it arrives. Then a new part covers the bytes
/// that the previous parts do not cover.
#[derive(Default)]
struct Entry {
    /// The end of each part, in bytes, and its reservation.
    parts: Vec<(usize, Weak<Reservation>)>,
}

impl Entry {
    /// Removes the parts from the first released one on. Returns how many bytes are still reserved.
    fn trim(&mut self) -> usize {
        let gone = self.parts.iter().position(|(_, part)| part.strong_count() == 0);
        self.parts.truncate(gone.unwrap_or(self.parts.len()));
        self.parts.last().map_or(0, |&(end, _)| end)
    }

    /// Adds the reservations of the first `bytes` bytes to `hold`. Returns false if not all of them are
    /// reserved.
    fn share(&self, bytes: usize, hold: &mut Hold) -> bool {
        let before = hold.len();
        for (end, part) in &self.parts {
            let Some(part) = part.upgrade() else { break };
            hold.push(part);
            if *end >= bytes {
                return true;
            }
        }
        hold.truncate(before);
        false
    }
}

/// The buffers that an output batch refers to.
#[derive(Default)]
pub(crate) struct Referred {
    /// The reservations of input buffers.
    pub(crate) hold: Hold,
    /// The total bytes of all other buffers.
    pub(crate) own: u64,
}

impl Ledger {
    pub(crate) fn new(budget: &Arc<Budget>) -> Ledger {
        Ledger { budget: Arc::clone(budget), live: Mutex::default() }
    }

    /// Reserves the buffers of an input batch that are not reserved yet: all of them or none.
    #[cfg(test)]
    pub(crate) fn hold(&self, batch: &RecordBatch, what: &str) -> Result<Hold> {
        self.hold_leaving(batch, 0, what)
    }

    /// Reserves the buffers of an input batch that are not reserved yet: all of them or none. At least
    /// `spare` bytes must be left after that.
    pub(crate) fn hold_leaving(&self, batch: &RecordBatch, spare: u64, what: &str) -> Result<Hold> {
        let mut live = lock(&self.live);
        let mut needed = frame(batch);
        let mut longest: HashMap<usize, usize> = HashMap::new();
        each_buffer(batch, &mut |address, bytes| {
            let longest = longest.entry(address).or_default();
            *longest = bytes.max(*longest);
        });
        for (&address, &bytes) in &longest {
            let reserved = live.buffers.get_mut(&address).map_or(0, Entry::trim);
            needed += bytes.saturating_sub(reserved) as u64;
        }
        let mut reservation = self.budget.reserve_leaving(needed, spare, what)?;
        let mut hold = Hold::new();
        for (address, bytes) in longest {
            let entry = live.buffers.entry(address).or_default();
            let reserved = entry.trim();
            entry.share(reserved.min(bytes), &mut hold);
            if bytes > reserved {
                let part = Arc::new(reservation.split((bytes - reserved) as u64));
                entry.parts.push((bytes, Arc::downgrade(&part)));
                hold.push(part);
            }
        }
        hold.push(Arc::new(reservation));
        live.sweep();
        Ok(hold)
    }

    /// Registers buffers that the join itself allocated, as parts of `reservation`.
    pub(crate) fn adopt(&self, arrays: &[ArrayRef], reservation: &Arc<Reservation>) {
        let mut live = lock(&self.live);
        for array in arrays {
            of_data(&array.to_data(), &mut |address, bytes| {
                let parts = vec![(bytes, Arc::downgrade(reservation))];
                live.buffers.insert(address, Entry { parts });
            });
        }
    }

    /// Looks up the buffers that an output batch refers to.
    pub(crate) fn refer(&self, batch: &RecordBatch) -> Referred {
        let live = lock(&self.live);
        let mut seen = HashSet::new();
        let mut referred = Referred::default();
        each_buffer(batch, &mut |address, bytes| {
            if seen.insert(address) {
                let entry = live.buffers.get(&address);
                if !entry.is_some_and(|entry| entry.share(bytes, &mut referred.hold)) {
                    referred.own += bytes as u64;
                }
            }
        });
        referred
    }
}

impl Live {
    /// Removes the entries of freed buffers. The interval between two runs grows with the number of entries,
    /// so the cost per new entry is constant.
    fn sweep(&mut self) {
        if self.buffers.len() > self.sweep_at.max(SWEEP_FROM) {
            self.buffers.retain(|_, entry| entry.trim() > 0);
            self.sweep_at = 2 * self.buffers.len();
        }
    }
}

/// Returns the approximate bytes of a batch besides its buffers: the batch, its arrays, and the join's
/// records about it.
pub(crate) fn frame(batch: &RecordBatch) -> u64 {
    const NOTED: usize = 256;
    (size_of::<RecordBatch>() + NOTED + batch.num_columns() * size_of::<ArrayData>()) as u64
}

/// Calls `visit(address, bytes)` for the allocation of every buffer of a batch. If several buffers share an
/// allocation, it is visited once per buffer.
pub(crate) fn each_buffer(batch: &RecordBatch, visit: &mut dyn FnMut(usize, usize)) {
    batch.columns().iter().for_each(|column| of_data(&column.to_data(), visit));
}

fn of_data(data: &ArrayData, visit: &mut dyn FnMut(usize, usize)) {
    let nulls = data.nulls().map(|nulls| nulls.buffer());
    for buffer in data.buffers().iter().chain(nulls).filter(|buffer| buffer.capacity() > 0) {
        visit(buffer.data_ptr().as_ptr() as usize, buffer.capacity());
    }
    data.child_data().iter().for_each(|child| of_data(child, visit));
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int64Array};

    use super::*;

    fn batch(rows: i64) -> RecordBatch {
        let column: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
        RecordBatch::try_from_iter([("k", column)]).expect("one column")
    }

    #[test]
    fn a_buffer_counts_once_while_anybody_refers_to_it() {
        let budget = Budget::new(Some(1 << 30));
        let ledger = Ledger::new(&budget);
        let whole = batch(100_000);
        let parts: Vec<RecordBatch> = (0..10).map(|i| whole.slice(i * 10_000, 10_000)).collect();
        let mut holds: Vec<Hold> =
            parts.iter().map(|part| ledger.hold(part, "a test").expect("fits")).collect();
        let frames = 10 * frame(&whole);
        assert!((800_000..900_000).contains(&(budget.used() - frames)), "{}", budget.used());
        let output = ledger.refer(&parts[3].slice(5, 10));
        assert_eq!((output.own, output.hold.len()), (0, 1));
        holds.clear();
        assert!(budget.used() >= 800_000, "the output still refers to it");
        drop(output);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn what_is_not_of_the_input_is_the_outputs_own() {
        let budget = Budget::new(Some(1 << 30));
        let ledger = Ledger::new(&budget);
        let _hold = ledger.hold(&batch(100), "a test").expect("fits");
        let other = batch(1000);
        let referred = ledger.refer(&other);
        assert!(referred.own >= 8000 && referred.hold.is_empty());
    }

    #[test]
    fn entries_of_buffers_that_are_gone_are_forgotten() {
        let budget = Budget::new(Some(1 << 30));
        let ledger = Ledger::new(&budget);
        let mut kept = Vec::new();
        for _ in 0..5000 {
            let batch = batch(1);
            drop(ledger.hold(&batch, "a test").expect("fits"));
            // Keeps the batch alive, so that its address is not used again.
            kept.push(batch);
        }
        assert!(lock(&ledger.live).buffers.len() <= SWEEP_FROM + 1);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_batch_that_does_not_fit_leaves_nothing_reserved() {
        let budget = Budget::new(Some(100_000));
        let ledger = Ledger::new(&budget);
        let error = ledger.hold(&batch(100_000), "a test").expect_err("does not fit");
        let crate::Error::MemoryLimit { needed, .. } = error else { panic!("{error}") };
        assert!(needed >= 800_000, "{needed}");
        assert_eq!(budget.used(), 0);
    }
}

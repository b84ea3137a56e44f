//! A device without a GPU: stages run on the CPU, late, in a random order that streams and events
//! allow, and memory that is fresh or freed is poisoned.
//!
//! So every conductor is tested on any machine, and hard: a missing wait, a buffer freed or
//! overwritten too early, or a size that is too small shows as an error or a wrong answer, for some
//! seed. The same seed gives the same order again.
//!
//! | file | what it holds |
//! | --- | --- |
//! | [`memory`] | addresses, poison, the capacity |
//! | [`schedule`] | streams, events, and what runs when |
//! | [`stages`] | a twin on the CPU for each kernel |

mod memory;
mod random;
mod schedule;
mod stages;
mod word;

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::memory::Space;
use self::random::Random;
use self::schedule::{Operation, Schedule};
use self::stages::Machine;
use super::{Device, Event, Memory, MemoryUse, Pinned, Shape, Stage, Stream, View, Word};
use crate::error::{Error, Result};

/// Pieces of work so small that tests of a few dozen rows have several of each.
pub(crate) const TINY: Shape = Shape {
    tile: 8,
    build_rows: 4,
    probe_rows: 3,
    probe_tile: 5,
    merge_tile: 5,
    most_rows: 16,
    l2: 1 << 10,
};

/// What a simulated device is like.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// The bytes it has.
    pub(crate) memory: u64,
    /// How large its pieces of work are, for words of either width.
    pub(crate) shape: Shape,
    /// What all its random choices follow from.
    pub(crate) seed: u64,
}

/// See the [module](self).
pub(crate) struct Simulated {
    shape: Shape,
    schedule: Arc<Mutex<Schedule>>,
    /// Picks the poison of pinned memory.
    random: Mutex<Random>,
}

impl Simulated {
    pub(crate) fn new(settings: Settings) -> Simulated {
        let Settings { memory, shape, seed } = settings;
        let mut seeds = Random::new(seed);
        let mut random = || Random::new(seeds.next());
        let space = Space::new(memory, random());
        let machine = Machine { space, random: random(), shape };
        let schedule = Arc::new(Mutex::new(Schedule::new(machine, random())));
        Simulated { shape, schedule, random: Mutex::new(random()) }
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        lock(&self.schedule)
    }
}

impl Device for Simulated {
    fn name(&self) -> &str {
        "simulated"
    }

    fn shape(&self, _word: Word) -> Shape {
        self.shape
    }

    fn memory(&self) -> MemoryUse {
        self.schedule().machine.space.usage()
    }

    fn allocate(&self, bytes: u64, what: &str) -> Result<Memory> {
        let view = self.schedule().machine.space.allocate(bytes, what)?;
        let owner = Owner { schedule: Arc::clone(&self.schedule), address: view.address };
        Ok(Memory { view, _owner: Box::new(owner) })
    }

    fn pinned(&self, bytes: usize, what: &str) -> Result<Arc<Pinned>> {
        let byte = memory::fresh(&mut lock(&self.random));
        // Of the widest integers, so that it is aligned for any value.
        let words = bytes.div_ceil(size_of::<u128>()).max(1);
        let mut owner: Vec<u128> = Vec::new();
        owner
            .try_reserve_exact(words)
            .map_err(|_| Error::OutOfMemory { what: what.to_string(), needed: bytes as u64 })?;
        owner.resize(words, u128::from_ne_bytes([byte; 16]));
        let start = owner.as_mut_ptr().cast::<u8>();
        Ok(Arc::new(Pinned { start, len: bytes, _owner: Box::new(owner) }))
    }

    fn stream(&self, index: usize) -> Result<Stream> {
        Ok(self.schedule().stream(index))
    }

    fn copy_in(&self, stream: Stream, from: &Arc<Pinned>, at: usize, to: View) -> Result<()> {
        within(from, at, to.bytes)?;
        let from = Arc::clone(from);
        self.schedule().enqueue(stream, Operation::CopyIn { from, at, to })
    }

    fn copy_out(&self, stream: Stream, from: View, to: &Arc<Pinned>, at: usize) -> Result<()> {
        within(to, at, from.bytes)?;
        let to = Arc::clone(to);
        self.schedule().enqueue(stream, Operation::CopyOut { from, to, at })
    }

    fn fill(&self, stream: Stream, to: View, byte: u8) -> Result<()> {
        self.schedule().enqueue(stream, Operation::Fill { to, byte })
    }

    unsafe fn run(&self, stream: Stream, word: Word, stage: &Stage) -> Result<()> {
        self.schedule().enqueue(stream, Operation::Run { word, stage: *stage })
    }

    fn record(&self, stream: Stream) -> Result<Event> {
        self.schedule().record(stream)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        self.schedule().wait(stream, event)
    }

    /// None pass here; but the events have to have happened.
    fn seconds(&self, from: Event, to: Event) -> Result<f64> {
        let schedule = self.schedule();
        for event in [from, to] {
            if !schedule.happened(event)? {
                let why = format!("simulated device: event {} has not happened yet", event.0);
                return Err(Error::Worker(why));
            }
        }
        Ok(0.0)
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        self.schedule().synchronize(stream)
    }
}

/// Gives device memory back.
struct Owner {
    schedule: Arc<Mutex<Schedule>>,
    address: u64,
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut schedule = lock(&self.schedule);
        schedule.machine.space.free(self.address);
        schedule.forget();
    }
}

/// A panic elsewhere leaves the schedule as it was between two operations: still of use.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a copy of `bytes` stays within pinned memory.
fn within(pinned: &Pinned, at: usize, bytes: u64) -> Result<()> {
    let end = (at as u64).checked_add(bytes);
    if end.is_some_and(|end| end <= pinned.len as u64) {
        return Ok(());
    }
    let len = pinned.len;
    Err(Error::Worker(format!(
        "simulated device: copy: {bytes} bytes from {at} on are outside pinned memory of {len}"
    )))
}

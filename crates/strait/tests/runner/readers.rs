//! Readers and consumers that misbehave: input that is slow, fails, panics or blocks, and output that is read
//! slowly or only in part.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once};
use std::time::{Duration, Instant};

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use strait::Side;
use strait_testkit::Rng;

use super::check::{Failure, ensure};

/// How one input table is read. The number is how many batches come first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Feed {
    /// Batch after batch.
    #[default]
    Plain,
    /// With a pause before the first few batches.
    Slow,
    /// Batches, then an error.
    Fails(usize),
    /// Batches, then a panic.
    Panics(usize),
    /// Batches, then blocks until the output has been dropped.
    Blocks(usize),
}

/// How the output is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Taking {
    /// All of it, as fast as possible.
    #[default]
    All,
    /// All of it, with a pause before the first few batches.
    Slowly,
    /// This many batches, then the reader is dropped.
    DropAfter(usize),
}

/// The length of a pause before a batch, and the number of pauses.
const PAUSE: Duration = Duration::from_micros(300);
const PAUSES: usize = 4;

/// Much longer than dropping a join's reader takes, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(5);

impl Feed {
    /// A random misbehaviour, somewhere in a table of this many batches.
    pub(crate) fn random(rng: &mut Rng, batches: usize) -> Feed {
        let after = rng.below(batches + 1);
        match rng.below(4) {
            0 => Feed::Slow,
            1 => Feed::Fails(after),
            2 => Feed::Panics(after),
            _ => Feed::Blocks(after),
        }
    }

    /// The text that the join's error must contain, if this input makes it fail.
    pub(crate) fn complaint(self, side: Side) -> Option<String> {
        let side = side.name();
        match self {
            Feed::Fails(after) => Some(format!("line {after} of the {side} file has no comma")),
            Feed::Panics(after) => Some(format!("{TRIPS} over {side} batch {after}")),
            _ => None,
        }
    }
}

impl Taking {
    /// Pauses before output batch `number`, if this consumer is slow.
    pub(crate) fn pause(self, number: usize) {
        if self == Taking::Slowly && number < PAUSES {
            std::thread::sleep(PAUSE);
        }
    }
}

/// The beginning of the message of a deliberate panic.
const TRIPS: &str = "the reader trips";

/// Keeps deliberate panics out of the test's output, because there are thousands.
fn hush() {
    static HUSHED: Once = Once::new();
    HUSHED.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let text = info.payload().downcast_ref::<String>();
            if !text.is_some_and(|text| text.starts_with(TRIPS)) {
                usual(info);
            }
        }));
    });
}

/// The gate at which a blocking reader waits. All readers of a case share it.
#[derive(Default)]
pub(crate) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    readers: usize,
    waiting: bool,
    open: bool,
    gave_up: bool,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Waits until `given_up` or until the wait has clearly failed.
    pub(crate) fn wait_until(&self, given_up: impl Fn() -> bool) {
        self.state().waiting = true;
        self.changed.notify_all();
        self.state().gave_up |= !soon(given_up);
    }

    /// Waits until the gate opens, or until the wait has clearly failed.
    fn wait(&self) {
        let mut state = self.state();
        state.waiting = true;
        self.changed.notify_all();
        let waited = self.changed.wait_timeout_while(state, PATIENCE, |state| !state.open);
        let (mut state, timeout) = waited.unwrap_or_else(|e| e.into_inner());
        state.gave_up |= timeout.timed_out();
    }

    /// Waits a moment for a reader to arrive at the gate. If nobody reads the output, a join may never read
    /// its input that far.
    pub(crate) fn await_waiting(&self) {
        let most = Duration::from_millis(20);
        drop(self.changed.wait_timeout_while(self.state(), most, |state| !state.waiting));
    }

    /// Lets all readers pass. Fails if a reader waited so long that dropping the output must have waited for
    /// it.
    pub(crate) fn open(&self) -> Result<(), Failure> {
        let mut state = self.state();
        state.open = true;
        self.changed.notify_all();
        ensure!(!state.gave_up, "dropping the output waits for an input that blocks");
        Ok(())
    }

    /// Checks that all readers of the case are dropped. This may take a moment.
    pub(crate) fn check_dropped(&self) -> Result<(), Failure> {
        let waited = self.changed.wait_timeout_while(self.state(), PATIENCE, |s| s.readers > 0);
        let (state, _) = waited.unwrap_or_else(|e| e.into_inner());
        ensure!(state.readers == 0, "{} inputs outlive their join", state.readers);
        Ok(())
    }
}

/// The reader of a table.
pub(crate) struct Fed {
    pub(crate) schema: SchemaRef,
    batches: std::vec::IntoIter<RecordBatch>,
    read: usize,
    side: Side,
    pub(crate) feed: Feed,
    pub(crate) gate: Arc<Gate>,
}

impl Fed {
    /// A reader of these batches that behaves as `feed` says.
    pub(crate) fn new(
        (schema, batches): (SchemaRef, Vec<RecordBatch>),
        (side, feed): (Side, Feed),
        gate: &Arc<Gate>,
    ) -> Fed {
        if matches!(feed, Feed::Panics(_)) {
            hush();
        }
        gate.state().readers += 1;
        Fed { schema, batches: batches.into_iter(), read: 0, side, feed, gate: Arc::clone(gate) }
    }
}

impl Iterator for Fed {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let read = self.read;
        self.read += 1;
        let complaint = || self.feed.complaint(self.side).unwrap_or_default();
        match self.feed {
            Feed::Slow if read < PAUSES => std::thread::sleep(PAUSE),
            Feed::Fails(after) if read == after => {
                return Some(Err(ArrowError::ParseError(complaint())));
            }
            Feed::Panics(after) if read == after => std::panic::panic_any(complaint()),
            Feed::Blocks(after) if read == after => {
                self.gate.wait();
                return None;
            }
            _ => {}
        }
        self.batches.next().map(Ok)
    }
}

impl RecordBatchReader for Fed {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

impl Drop for Fed {
    fn drop(&mut self) {
        self.gate.state().readers -= 1;
        self.gate.changed.notify_all();
    }
}

/// Returns whether the condition becomes true soon.
pub(crate) fn soon(condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    true
}

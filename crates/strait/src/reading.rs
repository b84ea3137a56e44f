//! Calls the readers of a join on a thread of its own, so that a reader that blocks does not delay
//! the end of the join.
//!
//! ```text
//!  conductor or worker                    reading thread
//!  ask(reader) ───────── reader ────────► reader.next()
//!       ▲                                     │
//!       └──────── reader and batches ◄────────┘
//! ```
//!
//! The thread owns a reader only while it calls it. If the join is cancelled meanwhile, the caller
//! stops waiting. The thread then drops the reader as soon as `next` returns, and ends. Until then it
//! holds nothing of the join but that reader.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;

use crate::error::{Error, Result};
use crate::input::Reader;
use crate::join::Side;
use crate::reader::lock;
use crate::schedule::{guarded, said, wait_while};

/// The thread answers after this time if it has a batch. Readers of tables in memory deliver many
/// batches in this time, and the two switches between threads are paid once for all of them.
const ANSWER_AFTER: Duration = Duration::from_micros(100);
/// How long the end of a join waits for a reader that is just being called. Most readers return
/// within this time and are dropped before the join ends.
const PARTING: Duration = Duration::from_millis(20);

/// A thread that calls readers. It starts with the first request.
pub(crate) struct ReadingThread {
    board: Arc<Board>,
    cancelled: Arc<AtomicBool>,
    /// How many batches one answer may have.
    most: usize,
}

/// What the thread answers to a request.
pub(crate) struct Answer {
    /// The reader. None if it has ended or failed; then it was dropped.
    pub(crate) reader: Option<Reader>,
    pub(crate) batches: VecDeque<RecordBatch>,
    /// What the reader failed with, after these batches.
    pub(crate) failure: Option<Error>,
}

#[derive(Default)]
struct Board {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
enum State {
    /// The thread has not been started.
    #[default]
    Unstarted,
    Idle,
    Asked(Request),
    Reading,
    Answered(Answer),
    /// Nobody will ask any more.
    Over,
    /// The thread holds no reader and has ended, or is about to.
    Ended,
}

struct Request {
    side: Side,
    reader: Reader,
    most: usize,
}

impl ReadingThread {
    /// A thread whose answers have at most `most` batches.
    pub(crate) fn new(most: usize, cancelled: &Arc<AtomicBool>) -> Arc<ReadingThread> {
        let cancelled = Arc::clone(cancelled);
        Arc::new(ReadingThread { board: Arc::default(), cancelled, most })
    }

    /// Reads the next batches of `reader`. Ends with [`Error::Cancelled`] once the join was cancelled,
    /// even while the reader blocks; then the reader is gone.
    pub(crate) fn ask(&self, side: Side, reader: Reader) -> Result<Answer> {
        let board = &self.board;
        let wait = |condition: fn(&mut State) -> bool| {
            wait_while(&self.cancelled, &board.changed, lock(&board.state), condition)
        };
        let mut state = wait(|state| !matches!(state, State::Unstarted | State::Idle))?;
        if matches!(*state, State::Unstarted) {
            let board = Arc::clone(board);
            let thread = std::thread::Builder::new().name("strait-reader".to_string());
            let started = thread.spawn(move || board.serve());
            started.map_err(|e| Error::Worker(format!("could not start a thread: {e}")))?;
        }
        *state = State::Asked(Request { side, reader, most: self.most });
        board.changed.notify_all();
        drop(state);
        let answered = wait(|state| !matches!(state, State::Answered(_)));
        let (answer, result) = match answered {
            Ok(mut state) => (std::mem::replace(&mut *state, State::Idle), Ok(())),
            Err(error) => (board.end(), Err(error)),
        };
        match (answer, result) {
            (State::Answered(answer), Ok(())) => Ok(answer),
            (_, result) => Err(result.err().unwrap_or(Error::Cancelled)),
        }
    }
}

impl Drop for ReadingThread {
    fn drop(&mut self) {
        let last = self.board.end();
        let state = lock(&self.board.state);
        if matches!(last, State::Unstarted | State::Idle | State::Ended)
            || matches!(*state, State::Unstarted)
        {
            return;
        }
        let ended = |state: &mut State| !matches!(state, State::Ended);
        drop(self.board.changed.wait_timeout_while(state, PARTING, ended));
    }
}

impl Board {
    /// Tells the thread to end. Returns the state before, which may own a reader and batches.
    fn end(&self) -> State {
        let mut state = lock(&self.state);
        match *state {
            State::Unstarted | State::Ended => State::Unstarted,
            _ => {
                self.changed.notify_all();
                std::mem::replace(&mut *state, State::Over)
            }
        }
    }

    /// What the thread does.
    fn serve(&self) {
        loop {
            let mut state = lock(&self.state);
            while !matches!(*state, State::Asked(_) | State::Over) {
                state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner());
            }
            let State::Asked(request) = std::mem::replace(&mut *state, State::Reading) else {
                *state = State::Ended;
                self.changed.notify_all();
                return;
            };
            drop(state);
            let answer = request.read();
            let mut state = lock(&self.state);
            if matches!(*state, State::Reading) {
                *state = State::Answered(answer);
                self.changed.notify_all();
            } else {
                // The join is over, and nobody waits for the answer.
                drop(state);
                drop_guarded(answer);
            }
        }
    }
}

impl Request {
    fn read(mut self) -> Answer {
        let start = Instant::now();
        let mut batches = VecDeque::new();
        let doing = format!("reading the {} table", self.side.name());
        let failure = loop {
            match catch_unwind(AssertUnwindSafe(|| self.reader.next())) {
                Ok(Some(Ok(batch))) => {
                    batches.push_back(batch);
                    if batches.len() >= self.most || start.elapsed() >= ANSWER_AFTER {
                        return Answer { reader: Some(self.reader), batches, failure: None };
                    }
                }
                Ok(Some(Err(error))) => break Some(Error::arrow(doing)(error)),
                Ok(None) => break None,
                Err(panic) => {
                    let message = said(&panic);
                    break Some(Error::Worker(format!("{doing}: the reader panicked: {message}")));
                }
            }
        };
        drop_guarded(self.reader);
        Answer { reader: None, batches, failure }
    }
}

/// Drops what is the caller's own, whose `drop` may panic.
fn drop_guarded(own: impl Sized) {
    let dropped = guarded(|| {
        drop(own);
        Ok(())
    });
    if let Err(error) = dropped {
        log::warn!("dropping a reader: {error}");
    }
}

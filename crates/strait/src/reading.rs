//! Calls the readers of a join on a separate thread, so that a reader that blocks does not delay the end of
//! the join.
//!
//! ```text
//!  conductor or worker                    reading thread
//!  ask(reader) ───────── reader ────────► reader.next()
//!       ▲                                     │
//!       └──────── reader and batches ◄────────┘
//! ```
//!
//! The thread owns a reader only while it calls or drops it. Both may block, because readers are the caller's
//! code. The join never waits for long:
//!
//! - If the join is cancelled during a call, the caller of `ask` stops waiting. The thread drops the reader
//!   as soon as `next` returns, and ends. Until then it holds nothing of the join except that reader.
//! - Readers that have ended or failed, or that the join no longer needs, are dropped on the thread. The join
//!   waits for at most [`PARTING`], so that the resources of a typical reader are free before the join
//!   continues. After that, the thread is left alone with the reader, and the next request starts another
//!   thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;

use crate::error::{CallerCode, Error, Result};
use crate::input::Reader;
use crate::options::Side;
use crate::schedule::{catch_panic, lock, wait_while};

/// The thread collects batches for this long before it answers (at least one batch, and at most `most` batches). An
/// answer costs two thread switches. A reader of a table in memory delivers many batches in this time, and they share
/// this cost.
const ANSWER_AFTER: Duration = Duration::from_micros(100);
/// How long a join waits for a reader that is being dropped, and how long the end of a join waits for a
/// reader that is being called. Most readers return within this time.
const PARTING: Duration = Duration::from_millis(20);

/// A thread that calls readers. It starts at the first request.
pub(crate) struct ReadingThread {
    /// The state that is shared with the current thread. The lock is held during a request, so there is one
    /// request at a time.
    board: Mutex<Arc<Board>>,
    cancelled: Arc<AtomicBool>,
    /// The largest number of batches per answer.
    most: usize,
}

/// The thread's answer to a request.
pub(crate) struct Answer {
    /// The reader. `None` if it has ended or failed; then the thread drops it.
    pub(crate) reader: Option<Reader>,
    pub(crate) batches: VecDeque<RecordBatch>,
    /// The error that the reader returned after these batches.
    pub(crate) failure: Option<Error>,
}

#[derive(Default)]
struct Board {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
enum State {
    /// The thread has not started.
    #[default]
    Unstarted,
    Idle,
    Asked(Request),
    /// A reader that the thread has to drop.
    Retired(Reader),
    Reading,
    /// The thread is dropping a reader. Holds the answer to the request that led to this, if any.
    Dropping(Option<Answer>),
    Answered(Answer),
    /// There will be no more requests. Holds a reader that the thread still has to drop, if any.
    Over(Option<Reader>),
    /// The thread holds no reader, and has ended or is about to end.
    Ended,
}

struct Request {
    side: Side,
    reader: Reader,
    most: usize,
}

impl ReadingThread {
    /// Creates a thread whose answers have at most `most` batches. It starts at the first request.
    pub(crate) fn new(most: usize, cancelled: &Arc<AtomicBool>) -> Arc<ReadingThread> {
        let cancelled = Arc::clone(cancelled);
        Arc::new(ReadingThread { board: Mutex::default(), cancelled, most })
    }

    /// Reads the next batches of `reader`. Returns [`Error::Cancelled`] when the join is cancelled, even
    /// while the reader blocks. In that case the reader is lost.
    pub(crate) fn ask(&self, side: Side, reader: Reader) -> Result<Answer> {
        let mut current = lock(&self.board);
        let request = State::Asked(Request { side, reader, most: self.most });
        current.post(request)?;
        let board = Arc::clone(&current);
        let waited = wait_while(&self.cancelled, &board.changed, lock(&board.state), |state| {
            matches!(state, State::Asked(_) | State::Reading)
        });
        let Ok(mut state) = waited else {
            std::mem::take(&mut *current).part();
            return Err(Error::Cancelled);
        };
        let since = Instant::now();
        while let State::Dropping(answer) = &mut *state {
            let left = PARTING.saturating_sub(since.elapsed());
            if left.is_zero() || self.cancelled.load(Ordering::Relaxed) {
                let answer = answer.take();
                drop(state);
                *current = Arc::default();
                board.end();
                return answer.ok_or(Error::Cancelled);
            }
            state = board.wait(state, left);
        }
        match std::mem::replace(&mut *state, State::Idle) {
            State::Answered(answer) => Ok(answer),
            other => {
                *state = other;
                Err(Error::Cancelled)
            }
        }
    }

    /// Drops a reader that the join no longer needs, on the thread. Returns when the reader is dropped, or
    /// after [`PARTING`].
    pub(crate) fn retire(&self, reader: Reader) {
        let mut current = lock(&self.board);
        if let Err(error) = current.post(State::Retired(reader)) {
            log::warn!("dropping a reader: {error}");
            return;
        }
        let board = Arc::clone(&current);
        let busy = |state: &mut State| !matches!(state, State::Idle);
        let state = lock(&board.state);
        let waited = board.changed.wait_timeout_while(state, PARTING, busy);
        if waited.unwrap_or_else(|e| e.into_inner()).1.timed_out() {
            *current = Arc::default();
            board.end();
        }
    }
}

impl Drop for ReadingThread {
    fn drop(&mut self) {
        lock(&self.board).part();
    }
}

impl Board {
    /// Gives the thread a task, and starts the thread if there is none. The thread must be idle or not
    /// started.
    fn post(self: &Arc<Self>, task: State) -> Result<()> {
        let mut state = lock(&self.state);
        if matches!(*state, State::Unstarted) {
            let board = Arc::clone(self);
            let thread = std::thread::Builder::new().name("strait-reader".to_string());
            let started = thread.spawn(move || board.serve());
            started.map_err(Error::thread)?;
        }
        *state = task;
        self.changed.notify_all();
        Ok(())
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, most: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, most).unwrap_or_else(|e| e.into_inner()).0
    }

    /// Tells the thread to end. Returns whether the thread may hold a reader at this point.
    fn end(&self) -> bool {
        let mut state = lock(&self.state);
        let reader = match std::mem::replace(&mut *state, State::Ended) {
            State::Unstarted | State::Ended => return false,
            State::Idle => {
                *state = State::Over(None);
                self.changed.notify_all();
                return false;
            }
            State::Asked(request) => Some(request.reader),
            State::Retired(reader) => Some(reader),
            State::Answered(answer) => answer.reader,
            State::Over(reader) => reader,
            State::Reading | State::Dropping(_) => None,
        };
        *state = State::Over(reader);
        self.changed.notify_all();
        true
    }

    /// Tells the thread to end, and waits up to [`PARTING`] for a reader that it may hold.
    fn part(&self) {
        if self.end() {
            let ended = |state: &mut State| !matches!(state, State::Ended);
            drop(self.changed.wait_timeout_while(lock(&self.state), PARTING, ended));
        }
    }

    /// The loop of the thread.
    fn serve(&self) {
        loop {
            let mut state = lock(&self.state);
            while !matches!(*state, State::Asked(_) | State::Retired(_) | State::Over(_)) {
                state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner());
            }
            match std::mem::replace(&mut *state, State::Reading) {
                State::Asked(request) => {
                    drop(state);
                    let (answer, ended) = request.read();
                    self.answer(answer, ended);
                }
                State::Retired(reader) => {
                    *state = State::Dropping(None);
                    drop(state);
                    drop_guarded(reader);
                    let mut state = lock(&self.state);
                    if matches!(*state, State::Dropping(_)) {
                        *state = State::Idle;
                        self.changed.notify_all();
                    }
                }
                State::Over(reader) => {
                    *state = State::Over(None);
                    drop(state);
                    drop_guarded(reader);
                    *lock(&self.state) = State::Ended;
                    self.changed.notify_all();
                    return;
                }
                // The loop above waits for one of these three states.
                other => *state = other,
            }
        }
    }

    /// Answers a request. A reader that has ended is dropped first.
    fn answer(&self, answer: Answer, ended: Option<Reader>) {
        let mut state = lock(&self.state);
        if !matches!(*state, State::Reading) {
            // The join is over, and nobody waits for the answer.
            drop(state);
            drop_guarded((answer, ended));
            return;
        }
        let Some(ended) = ended else {
            *state = State::Answered(answer);
            self.changed.notify_all();
            return;
        };
        *state = State::Dropping(Some(answer));
        drop(state);
        drop_guarded(ended);
        let mut state = lock(&self.state);
        if let State::Dropping(answer) = &mut *state
            && let Some(answer) = answer.take()
        {
            *state = State::Answered(answer);
            self.changed.notify_all();
        }
    }
}

impl Request {
    /// Reads some batches. If the reader has ended or failed, it is returned beside the answer.
    fn read(mut self) -> (Answer, Option<Reader>) {
        let start = Instant::now();
        let mut batches = VecDeque::new();
        let doing = format!("reading the {} table", self.side.name());
        let failure = loop {
            match catch_panic(|| self.reader.next()) {
                Ok(Some(Ok(batch))) => {
                    batches.push_back(batch);
                    if batches.len() >= self.most || start.elapsed() >= ANSWER_AFTER {
                        let reader = Some(self.reader);
                        return (Answer { reader, batches, failure: None }, None);
                    }
                }
                Ok(Some(Err(error))) => break Some(Error::arrow(doing)(error)),
                Ok(None) => break None,
                Err(message) => {
                    let code = match self.side {
                        Side::Left => CallerCode::LeftReader,
                        Side::Right => CallerCode::RightReader,
                    };
                    break Some(Error::CallerPanicked { code, message });
                }
            }
        };
        (Answer { reader: None, batches, failure }, Some(self.reader))
    }
}

/// Drops a value of the caller, whose `drop` may panic.
fn drop_guarded(own: impl Sized) {
    if let Err(message) = catch_panic(|| drop(own)) {
        log::warn!("a reader panicked when it was dropped: {message}");
    }
}

//! In which order does enqueued work run? In any order that streams and events allow, and as late as
//! possible.
//!
//! Nothing runs when it is enqueued. To synchronise a stream, the device picks operations at random from the
//! heads of all streams, until that stream is empty. To wait for an event, it does the same until the event
//! has happened. The other streams stay where they are until somebody waits again:
//!
//! ```text
//!   stream 0   copy a, stage b, record x ─┐          synchronize(1) may run   a b x d e
//!   stream 1   wait x ◀───────────────────┘, copy d, stage e      or   c a b x d e, or …
//!   stream 2   copy c, stage f            never f before c, nor d before x; perhaps neither c nor f
//! ```
//!
//! A failure affects the whole device, as on a GPU: queued work is dropped, and every later synchronisation
//! reports the failure.

use std::collections::VecDeque;
use std::sync::Arc;

use fastrand::Rng;

use super::memory::Space;
use super::stages::{self, Machine};
use crate::device::{DeviceId, DeviceStage, EVENTS, Event, HostView, Pinned, Stream, View};
use crate::error::{Error, Result};
use crate::word::Width;

/// An operation in a stream.
pub(super) enum Operation {
    CopyIn {
        from: Arc<Pinned>,
        at: usize,
        to: View,
    },
    CopyOut {
        from: View,
        to: Arc<Pinned>,
        at: usize,
    },
    /// The caller that enqueues it keeps the host memory.
    CopyFrom {
        from: HostView,
        to: View,
    },
    CopyBetween {
        from: View,
        to: View,
    },
    Prefetch(View),
    Fill {
        to: View,
        byte: u8,
    },
    Run {
        word: Width,
        stage: DeviceStage,
    },
    Record(usize),
    Wait(usize),
}

#[derive(Default)]
struct Queue {
    operations: VecDeque<Operation>,
}

/// A point in a stream's work.
struct Mark {
    happened: bool,
}

/// Streams, events, and the machine on which their operations work.
pub(super) struct Schedule {
    pub(super) machine: Machine,
    queues: Vec<Queue>,
    marks: Vec<Mark>,
    random: Rng,
    failure: Option<Error>,
    device: DeviceId,
    /// Whether a test requested the failure.
    asked_for: bool,
}

impl Schedule {
    pub(super) fn new(machine: Machine, device: DeviceId, random: Rng) -> Schedule {
        let (queues, marks) = (Vec::new(), Vec::new());
        Schedule { machine, queues, marks, random, failure: None, device, asked_for: false }
    }

    /// Drops all queued work. Everything that uses the device fails from now on. For failures that a test
    /// requests.
    pub(super) fn die(&mut self, error: &Error) {
        self.queues.iter_mut().for_each(|queue| queue.operations.clear());
        self.asked_for = self.failure.is_none();
        self.failure.get_or_insert_with(|| error.clone());
    }

    /// Returns an error if work is still queued, or if an operation failed. A failure that a test requested
    /// does not count.
    pub(super) fn check_idle(&self) -> Result<()> {
        if let Some(failure) = self.failure.as_ref().filter(|_| !self.asked_for) {
            return Err(failure.clone());
        }
        match self.queues.iter().map(|queue| queue.operations.len()).sum::<usize>() {
            0 => Ok(()),
            left => Err(failed(format!("a join left {left} operations queued"))),
        }
    }

    /// Returns an error once the device has failed, as on a GPU.
    fn alive(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    pub(super) fn stream(&mut self, index: usize) -> Stream {
        if self.queues.len() <= index {
            self.queues.resize_with(index + 1, Queue::default);
        }
        Stream(index)
    }

    pub(super) fn enqueue(&mut self, stream: Stream, operation: Operation) -> Result<()> {
        self.alive()?;
        self.queue(stream)?.operations.push_back(operation);
        Ok(())
    }

    pub(super) fn record(&mut self, stream: Stream) -> Result<Event> {
        self.alive()?;
        let event = self.marks.len();
        let queue = self.queue(stream)?;
        queue.operations.push_back(Operation::Record(event));
        self.marks.push(Mark { happened: false });
        Ok(Event { device: self.device, number: event })
    }

    pub(super) fn wait(&mut self, stream: Stream, event: Event) -> Result<()> {
        self.happened(event)?;
        self.enqueue(stream, Operation::Wait(event.number))
    }

    /// Returns whether an event has happened, or an error if it is unknown or of another device.
    pub(super) fn happened(&self, event: Event) -> Result<bool> {
        self.device.check(event.device, "an event")?;
        match self.marks.get(event.number) {
            Some(mark) => Ok(mark.happened),
            None => Err(failed(format!("event {} was never recorded", event.number))),
        }
    }

    /// Checks that the time of an event is still known. Returns an error if too many events have come since.
    pub(super) fn remembered(&self, event: Event) -> Result<()> {
        match self.marks.len() > event.number + EVENTS {
            true => Err(failed(format!("event {} is forgotten", event.number))),
            false => Ok(()),
        }
    }

    /// Runs operations until the stream has none left.
    pub(super) fn synchronize(&mut self, stream: Stream) -> Result<()> {
        self.queue(stream)?;
        self.run_until(|schedule| schedule.queues[stream.0].operations.is_empty())
    }

    /// Runs operations until the event has happened.
    pub(super) fn wait_for(&mut self, event: Event) -> Result<()> {
        self.happened(event)?;
        self.run_until(|schedule| schedule.marks[event.number].happened)
    }

    fn run_until(&mut self, done: impl Fn(&Schedule) -> bool) -> Result<()> {
        // If all streams progressed at the same pace, a missing wait could stay hidden. So some streams run
        // ahead, and some stand still for as long as there is other work.
        let pace: Vec<u64> =
            self.queues.iter().map(|_| [0, 1, 1, 8][self.random.u64(..4) as usize]).collect();
        while self.failure.is_none() && !done(self) {
            if let Err(error) = self.step(&pace) {
                self.queues.iter_mut().for_each(|queue| queue.operations.clear());
                self.failure = Some(error);
            }
        }
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.forget();
        Ok(())
    }

    /// Forgets freed memory that no queued operation can use.
    pub(super) fn forget(&mut self) {
        if self.queues.iter().all(|queue| queue.operations.is_empty()) {
            self.machine.space.forget_oldest();
        }
    }

    fn queue(&mut self, stream: Stream) -> Result<&mut Queue> {
        let unknown = || failed(format!("stream {} was never made", stream.0));
        self.queues.get_mut(stream.0).ok_or_else(unknown)
    }

    /// Runs the head of a random stream that is ready.
    fn step(&mut self, pace: &[u64]) -> Result<()> {
        let ready = |queue: &Queue| match queue.operations.front() {
            Some(Operation::Wait(event)) => self.marks[*event].happened,
            Some(_) => true,
            None => false,
        };
        let heads: Vec<usize> =
            (0..self.queues.len()).filter(|&at| ready(&self.queues[at])).collect();
        let total: u64 = heads.iter().map(|&at| pace[at]).sum();
        let chosen = if total > 0 {
            let mut left = self.random.u64(..total);
            heads.into_iter().find(|&at| {
                let here = left < pace[at];
                left = left.saturating_sub(pace[at]);
                here
            })
        } else if heads.is_empty() {
            None
        } else {
            Some(heads[self.random.u64(..heads.len() as u64) as usize])
        };
        let Some(operation) = chosen.and_then(|at| self.queues[at].operations.pop_front()) else {
            return Err(failed("every stream waits for an event that never comes".to_string()));
        };
        self.perform(&operation)
    }

    fn perform(&mut self, operation: &Operation) -> Result<()> {
        let space: &mut Space = &mut self.machine.space;
        match operation {
            Operation::CopyIn { from, at, to } => {
                let bytes = space.bytes_mut(*to, "copy in").map_err(in_stage("copy"))?;
                // SAFETY: the range was checked against the pinned memory when this was enqueued.
                unsafe {
                    let from = from.start.add(*at);
                    std::ptr::copy(from, bytes.as_mut_ptr(), bytes.len());
                }
            }
            Operation::CopyOut { from, to, at } => {
                let bytes = space.bytes_mut(*from, "copy out").map_err(in_stage("copy"))?;
                // SAFETY: as above.
                unsafe {
                    let to = to.start.add(*at);
                    std::ptr::copy(bytes.as_ptr(), to, bytes.len());
                }
            }
            Operation::CopyFrom { from, to } => {
                let bytes = space.bytes_mut(*to, "copy from").map_err(in_stage("copy"))?;
                // SAFETY: as long as the view, which was checked when this was enqueued. The caller keeps
                // the memory until the operation has run.
                unsafe { std::ptr::copy(from.start, bytes.as_mut_ptr(), bytes.len()) };
            }
            Operation::CopyBetween { from, to } => {
                space.copy(*from, *to).map_err(in_stage("copy"))?;
            }
            // Nothing moves here, but the memory must exist.
            Operation::Prefetch(view) => {
                let found = space.check::<u8>(view.address, view.bytes, "managed memory");
                found.map_err(in_stage("prefetch"))?;
            }
            Operation::Fill { to, byte } => {
                space.bytes_mut(*to, "fill").map_err(in_stage("fill"))?.fill(*byte);
            }
            Operation::Run { word, stage } => {
                let done = stages::run(&mut self.machine, *word, stage);
                done.map_err(in_stage(stage.name()))?;
            }
            Operation::Record(event) => self.marks[*event].happened = true,
            Operation::Wait(_) => {}
        }
        Ok(())
    }
}

fn failed(why: String) -> Error {
    Error::internal(format!("simulated device: {why}"))
}

/// Adds the name of the failed operation to an error.
fn in_stage(name: &'static str) -> impl FnOnce(Error) -> Error {
    move |error| match error {
        Error::Internal { what } => failed(format!("{name}: {what}")),
        error => failed(format!("{name}: {error}")),
    }
}

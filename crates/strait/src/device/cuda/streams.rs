//! Streams and events of a device: made when first asked for, used again, destroyed with it.
//!
//! A copy reads or writes host memory after its call has returned, so a stream holds on to that
//! memory until it has been synchronised, or an event that was recorded after the copy has been
//! waited for:
//!
//! ```text
//!   enqueued   copy a   copy b   record x   copy c   record y
//!   copies       1        2                   3
//!   x knows 2: once it has been waited for, a and b are let go; c is held
//! ```
//!
//! The handle of an event that has happened serves another once [`EVENTS`] more have been recorded. Events
//! are numbered anew all the same, so that one whose handle is gone is known to have happened.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::sys::{self, CUresult};

use super::error::{check, failure};
use crate::device::{EVENTS, Event, Pinned, Stream};
use crate::error::{Error, Result};
use crate::schedule::lock;

#[derive(Default)]
pub(super) struct Streams {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lanes: Vec<Option<Lane>>,
    /// Events that are not forgotten, by number.
    events: BTreeMap<usize, Arc<Mark>>,
    /// How many events have been recorded.
    count: usize,
    /// Handles of forgotten events.
    unused: Vec<sys::CUevent>,
}

/// A stream and what depends on it.
struct Lane {
    raw: sys::CUstream,
    /// How many copies have been enqueued.
    copies: u64,
    /// Memory that copies under way read or write, and the last of them that does.
    held: VecDeque<(u64, Arc<Pinned>)>,
}

/// An event that has been recorded. Whoever waits for it shares it, so that its handle does not
/// serve another meanwhile.
struct Mark {
    raw: sys::CUevent,
    stream: Stream,
    /// The copies that were enqueued on its stream before.
    copies: u64,
}

// SAFETY: the driver's handles may be used from any thread that has bound the context.
unsafe impl Send for State {}
// SAFETY: as above.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

/// All calls want the context bound to the calling thread.
impl Streams {
    /// The stream of that number.
    pub(super) fn open(&self, index: usize) -> Result<Stream> {
        let mut state = self.state();
        if state.lanes.len() <= index {
            state.lanes.resize_with(index + 1, || None);
        }
        if state.lanes[index].is_none() {
            let mut raw = std::ptr::null_mut();
            let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: the context is bound; writes a handle.
            check(unsafe { sys::cuStreamCreate(&mut raw, flags) }, "making a stream")?;
            state.lanes[index] = Some(Lane { raw, copies: 0, held: VecDeque::new() });
        }
        Ok(Stream(index))
    }

    /// The driver's handle of a stream.
    pub(super) fn raw(&self, stream: Stream) -> Result<sys::CUstream> {
        self.state().lane(stream).map(|lane| lane.raw)
    }

    /// Enqueues a copy and holds on to its host memory, even when it fails: of several pieces some may
    /// be under way.
    pub(super) fn copy(
        &self,
        stream: Stream,
        host: &Arc<Pinned>,
        doing: &str,
        enqueue: impl FnOnce(sys::CUstream) -> CUresult,
    ) -> Result<()> {
        let mut state = self.state();
        let lane = state.lane(stream)?;
        lane.copies += 1;
        match lane.held.back_mut() {
            Some((copy, last)) if Arc::ptr_eq(last, host) => *copy = lane.copies,
            _ => lane.held.push_back((lane.copies, Arc::clone(host))),
        }
        check(enqueue(lane.raw), doing)
    }

    pub(super) fn record(&self, stream: Stream) -> Result<Event> {
        let mut state = self.state();
        let &mut Lane { raw, copies, .. } = state.lane(stream)?;
        let event = state.event()?;
        // SAFETY: handles of this context.
        let code = unsafe { sys::cuEventRecord(event, raw) };
        if code != CUresult::CUDA_SUCCESS {
            state.unused.push(event);
            return Err(failure(code, "recording an event"));
        }
        let number = state.count;
        state.count += 1;
        state.events.insert(number, Arc::new(Mark { raw: event, stream, copies }));
        state.forget();
        Ok(Event(number))
    }

    pub(super) fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        let mut state = self.state();
        let raw = state.lane(stream)?.raw;
        let Some(mark) = state.mark(event)? else { return Ok(()) };
        // SAFETY: handles of this context.
        let code = unsafe { sys::cuStreamWaitEvent(raw, mark.raw, 0) };
        check(code, "waiting for an event")
    }

    /// Waits until an event has happened, and lets go what its stream copied before. Others may
    /// enqueue and record meanwhile, since the lock is not held.
    pub(super) fn wait_for(&self, event: Event) -> Result<()> {
        let Some(mark) = self.state().mark(event)?.map(Arc::clone) else { return Ok(()) };
        // SAFETY: a handle of this context, which serves no other event while `mark` is shared.
        let code = unsafe { sys::cuEventSynchronize(mark.raw) };
        let mut state = self.state();
        let lane = state.lane(mark.stream)?;
        let mut done = Vec::new();
        if code == CUresult::CUDA_SUCCESS {
            let count = lane.held.partition_point(|(copy, _)| *copy <= mark.copies);
            done.extend(lane.held.drain(..count));
        }
        state.retire(mark);
        drop(state);
        // After the lock: unpinning takes its time.
        drop(done);
        check(code, "running kernels and copies")
    }

    pub(super) fn seconds(&self, from: Event, to: Event) -> Result<f64> {
        type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> CUresult;
        let state = self.state();
        let kept = (state.events.get(&from.0), state.events.get(&to.0));
        let (Some(from), Some(to)) = kept else {
            return Err(Error::Worker("an event's time was asked for too late".to_string()));
        };
        // The bindings only know the function's second version, which older drivers do not have.
        // SAFETY: the type is that of cuda.h.
        let elapsed = unsafe { sys::culib().get::<Elapsed>("cuEventElapsedTime".as_bytes()) }
            .map_err(|error| Error::NoGpu { why: format!("the driver is too old: {error}") })?;
        let mut milliseconds = 0.0;
        // SAFETY: events of this context; writes a number.
        let code = unsafe { elapsed(&mut milliseconds, from.raw, to.raw) };
        check(code, "reading the time of events")?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    /// Waits for all that is enqueued. Others may enqueue meanwhile, since the lock is not held:
    /// what is theirs is not touched.
    pub(super) fn synchronize(&self, stream: Stream) -> Result<()> {
        let (raw, mut held) = {
            let mut state = self.state();
            let lane = state.lane(stream)?;
            (lane.raw, std::mem::take(&mut lane.held))
        };
        // SAFETY: a handle of this context; streams live as long as the device.
        let code = unsafe { sys::cuStreamSynchronize(raw) };
        let mut state = self.state();
        let lane = state.lane(stream)?;
        if code != CUresult::CUDA_SUCCESS {
            // Nobody knows what still runs.
            held.append(&mut lane.held);
            lane.held = held;
            return Err(failure(code, "running kernels and copies"));
        }
        drop(state);
        drop(held);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Waits for everything and destroys all handles, as far as the driver lets us.
    pub(super) fn close(&self) {
        let mut state = self.state();
        for lane in std::mem::take(&mut state.lanes).into_iter().flatten() {
            // SAFETY: a handle of this context, destroyed once, and not used after.
            let done = unsafe { sys::cuStreamSynchronize(lane.raw) } == CUresult::CUDA_SUCCESS;
            // SAFETY: as above.
            unsafe { sys::cuStreamDestroy_v2(lane.raw) };
            if !done {
                // Memory that a copy may still use is never used again.
                std::mem::forget(lane.held);
            }
        }
        let (events, unused) =
            (std::mem::take(&mut state.events), std::mem::take(&mut state.unused));
        for event in events.into_values().map(|mark| mark.raw).chain(unused) {
            // SAFETY: as above.
            unsafe { sys::cuEventDestroy_v2(event) };
        }
    }
}

impl State {
    fn lane(&mut self, stream: Stream) -> Result<&mut Lane> {
        let lane = self.lanes.get_mut(stream.0).and_then(Option::as_mut);
        lane.ok_or_else(|| Error::Worker(format!("stream {} has not been made", stream.0)))
    }

    /// An event that may have to be waited for; None if it has happened and is forgotten.
    fn mark(&self, event: Event) -> Result<Option<&Arc<Mark>>> {
        if event.0 >= self.count {
            return Err(Error::Worker(format!("event {} was never recorded", event.0)));
        }
        Ok(self.events.get(&event.0))
    }

    /// Forgets the oldest events, where more are kept than have to be. One that has not happened yet is
    /// kept, and with it those after it: going on without it would be a race.
    fn forget(&mut self) {
        while let Some(oldest) = self.events.first_entry()
            && oldest.key() + EVENTS < self.count
        {
            // SAFETY: a handle of this context.
            if unsafe { sys::cuEventQuery(oldest.get().raw) } != CUresult::CUDA_SUCCESS {
                return;
            }
            let mark = oldest.remove();
            self.retire(mark);
        }
    }

    /// Lets the handle of a forgotten event serve another, unless somebody still waits for it: then
    /// that one will.
    fn retire(&mut self, mark: Arc<Mark>) {
        self.unused.extend(Arc::into_inner(mark).map(|mark| mark.raw));
    }

    /// A handle that is not in use.
    fn event(&mut self) -> Result<sys::CUevent> {
        if let Some(event) = self.unused.pop() {
            return Ok(event);
        }
        let mut event = std::ptr::null_mut();
        let flags = sys::CUevent_flags_enum::CU_EVENT_DEFAULT as u32;
        // SAFETY: the context is bound; writes a handle.
        check(unsafe { sys::cuEventCreate(&mut event, flags) }, "making an event")?;
        Ok(event)
    }
}

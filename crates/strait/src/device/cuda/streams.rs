//! Streams and events of a device: created when first needed, reused, and destroyed with the device.
//!
//! A copy reads or writes host memory after its call has returned. So a stream holds that memory until the
//! stream has been synchronised, or until somebody has waited for an event that was recorded after the copy:
//!
//! ```text
//!   enqueued   copy a   copy b   record x   copy c   record y
//!   copies       1        2                   3
//!   x knows 2: once it has been waited for, a and b are released; c is held
//! ```
//!
//! Once [`EVENTS`] more events have been recorded, the handle of an event that has happened is reused.
//! Events always get new numbers. So an event whose handle is gone is known to have happened.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::sys::{self, CUresult};

use super::error::{check, failure};
use crate::device::{EVENTS, Pinned, Stream};
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
    /// The number of events recorded so far.
    count: usize,
    /// Handles of forgotten events.
    unused: Vec<sys::CUevent>,
}

/// A stream and its state.
struct Lane {
    raw: sys::CUstream,
    /// The number of copies enqueued so far.
    copies: u64,
    /// Memory that copies in progress read or write, each with the number of its last copy.
    held: VecDeque<(u64, Arc<Pinned>)>,
}

/// A recorded event. Each waiter shares it, so that its handle is not reused meanwhile.
struct Mark {
    raw: sys::CUevent,
    stream: Stream,
    /// The number of copies that were enqueued on its stream before.
    copies: u64,
}

// SAFETY: the driver's handles may be used from any thread that has bound the context.
unsafe impl Send for State {}
// SAFETY: as above.
unsafe impl Send for Mark {}
// SAFETY: as above.
unsafe impl Sync for Mark {}

/// For all calls, the context must be bound to the calling thread.
impl Streams {
    /// Returns the stream with this number.
    pub(super) fn open(&self, index: usize) -> Result<Stream> {
        let mut state = self.state();
        if state.lanes.len() <= index {
            state.lanes.resize_with(index + 1, || None);
        }
        if state.lanes[index].is_none() {
            let mut raw = std::ptr::null_mut();
            let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
            // SAFETY: the context is bound; the call writes a handle.
            check(unsafe { sys::cuStreamCreate(&mut raw, flags) }, "making a stream")?;
            state.lanes[index] = Some(Lane { raw, copies: 0, held: VecDeque::new() });
        }
        Ok(Stream(index))
    }

    /// Returns the driver's handle of a stream.
    pub(super) fn raw(&self, stream: Stream) -> Result<sys::CUstream> {
        self.state().lane(stream).map(|lane| lane.raw)
    }

    /// Enqueues a copy and holds its host memory, even if it fails, because some of its pieces may be in
    /// progress.
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

    /// Returns the number of the event.
    pub(super) fn record(&self, stream: Stream) -> Result<usize> {
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
        Ok(number)
    }

    pub(super) fn wait(&self, stream: Stream, event: usize) -> Result<()> {
        let mut state = self.state();
        let raw = state.lane(stream)?.raw;
        let Some(mark) = state.mark(event)? else { return Ok(()) };
        // SAFETY: handles of this context.
        let code = unsafe { sys::cuStreamWaitEvent(raw, mark.raw, 0) };
        check(code, "waiting for an event")
    }

    /// Waits until an event has happened, and releases the memory that its stream copied before. The lock is
    /// not held meanwhile, so others may enqueue and record.
    pub(super) fn wait_for(&self, event: usize) -> Result<()> {
        let Some(mark) = self.state().mark(event)?.map(Arc::clone) else { return Ok(()) };
        // SAFETY: a handle of this context, which is not reused while `mark` is shared.
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
        // After the lock, because unpinning takes time.
        drop(done);
        check(code, "running kernels and copies")
    }

    pub(super) fn seconds(&self, from: usize, to: usize) -> Result<f64> {
        type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> CUresult;
        let state = self.state();
        let kept = (state.events.get(&from), state.events.get(&to));
        let (Some(from), Some(to)) = kept else {
            return Err(Error::internal("an event's time was asked for too late"));
        };
        // The bindings have only the function's second version, which older drivers do not have.
        // SAFETY: the type is the one in cuda.h.
        let elapsed = unsafe { sys::culib().get::<Elapsed>("cuEventElapsedTime".as_bytes()) }
            .map_err(|error| Error::NoGpu { why: format!("the driver is too old: {error}") })?;
        let mut milliseconds = 0.0;
        // SAFETY: events of this context; the call writes a number.
        let code = unsafe { elapsed(&mut milliseconds, from.raw, to.raw) };
        check(code, "reading the time of events")?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    /// Waits for all enqueued work. The lock is not held meanwhile, so others may enqueue; their memory
    /// stays held.
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
            // It is unknown which copies still run, so their memory stays held.
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

    /// Waits for all work and destroys all handles, as far as the driver allows.
    pub(super) fn close(&self) {
        let mut state = self.state();
        for lane in std::mem::take(&mut state.lanes).into_iter().flatten() {
            // SAFETY: a handle of this context, destroyed once, and not used afterwards.
            let done = unsafe { sys::cuStreamSynchronize(lane.raw) } == CUresult::CUDA_SUCCESS;
            // SAFETY: as above.
            unsafe { sys::cuStreamDestroy_v2(lane.raw) };
            if !done {
                // Memory that a copy may still use must never be reused.
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
        lane.ok_or_else(|| Error::internal(format!("stream {} has not been made", stream.0)))
    }

    /// Returns an event that may have to be waited for, or `None` if it has happened and is forgotten.
    fn mark(&self, event: usize) -> Result<Option<&Arc<Mark>>> {
        if event >= self.count {
            return Err(Error::internal(format!("event {event} was never recorded")));
        }
        Ok(self.events.get(&event))
    }

    /// Forgets the oldest events, if more are kept than necessary. An event that has not happened yet is
    /// kept, and so are all later ones: to continue without it would be a race.
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

    /// Makes the handle of a forgotten event available again. If somebody still waits for the event, the
    /// last waiter does this.
    fn retire(&mut self, mark: Arc<Mark>) {
        self.unused.extend(Arc::into_inner(mark).map(|mark| mark.raw));
    }

    /// Returns a handle that is not in use.
    fn event(&mut self) -> Result<sys::CUevent> {
        if let Some(event) = self.unused.pop() {
            return Ok(event);
        }
        let mut event = std::ptr::null_mut();
        let flags = sys::CUevent_flags_enum::CU_EVENT_DEFAULT as u32;
        // SAFETY: the context is bound; the call writes a handle.
        check(unsafe { sys::cuEventCreate(&mut event, flags) }, "making an event")?;
        Ok(event)
    }
}

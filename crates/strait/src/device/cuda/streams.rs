//! Streams and events of a device: made when first asked for, used again, destroyed with it.
//!
//! A copy reads or writes host memory after its call has returned, so a stream holds on to that
//! memory until it has been synchronised. The handle of an event serves another once [`EVENTS`] more
//! have been recorded; events are numbered anew all the same, so that a forgotten one is known.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::sys::{self, CUresult};

use super::error::{check, failure};
use crate::device::{EVENTS, Event, Pinned, Stream};
use crate::error::{Error, Result};

#[derive(Default)]
pub(super) struct Streams {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    lanes: Vec<Option<Lane>>,
    /// Events that are not forgotten, by number.
    events: HashMap<usize, sys::CUevent>,
    /// How many events have been recorded.
    count: usize,
    /// Handles of forgotten events.
    unused: Vec<sys::CUevent>,
}

/// A stream and what depends on it.
struct Lane {
    raw: sys::CUstream,
    /// Memory that copies under way read or write.
    held: Vec<Arc<Pinned>>,
}

// SAFETY: the driver's handles may be used from any thread that has bound the context.
unsafe impl Send for State {}

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
            let held = Vec::new();
            state.lanes[index] = Some(Lane { raw, held });
        }
        Ok(Stream(index))
    }

    /// The driver's handle of a stream.
    pub(super) fn raw(&self, stream: Stream) -> Result<sys::CUstream> {
        self.state().lane(stream).map(|lane| lane.raw)
    }

    /// Enqueues a copy and holds on to its host memory.
    pub(super) fn copy(
        &self,
        stream: Stream,
        host: &Arc<Pinned>,
        doing: &str,
        enqueue: impl FnOnce(sys::CUstream) -> CUresult,
    ) -> Result<()> {
        let mut state = self.state();
        let lane = state.lane(stream)?;
        check(enqueue(lane.raw), doing)?;
        if lane.held.last().is_none_or(|last| !Arc::ptr_eq(last, host)) {
            lane.held.push(host.clone());
        }
        Ok(())
    }

    pub(super) fn record(&self, stream: Stream) -> Result<Event> {
        let mut state = self.state();
        let raw = state.lane(stream)?.raw;
        let event = state.event()?;
        // SAFETY: handles of this context.
        let code = unsafe { sys::cuEventRecord(event, raw) };
        if code != CUresult::CUDA_SUCCESS {
            state.unused.push(event);
            return Err(failure(code, "recording an event"));
        }
        let number = state.count;
        state.count += 1;
        state.events.insert(number, event);
        if let Some(event) = number.checked_sub(EVENTS).and_then(|old| state.events.remove(&old)) {
            state.unused.push(event);
        }
        Ok(Event(number))
    }

    pub(super) fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        let mut state = self.state();
        let raw = state.lane(stream)?.raw;
        match state.events.get(&event.0) {
            Some(&event) => {
                // SAFETY: handles of this context.
                let code = unsafe { sys::cuStreamWaitEvent(raw, event, 0) };
                check(code, "waiting for an event")
            }
            // It may not have happened yet: going on without it would be a race.
            None => {
                Err(Error::Worker(format!("event {} is forgotten, or another device's", event.0)))
            }
        }
    }

    pub(super) fn seconds(&self, from: Event, to: Event) -> Result<f64> {
        type Elapsed = unsafe extern "C" fn(*mut f32, sys::CUevent, sys::CUevent) -> CUresult;
        let state = self.state();
        let kept = (state.events.get(&from.0), state.events.get(&to.0));
        let (Some(&from), Some(&to)) = kept else {
            return Err(Error::Worker("an event's time was asked for too late".to_string()));
        };
        // The bindings only know the function's second version, which older drivers do not have.
        // SAFETY: the type is that of cuda.h.
        let elapsed = unsafe { sys::culib().get::<Elapsed>("cuEventElapsedTime".as_bytes()) }
            .map_err(|error| Error::NoGpu { why: format!("the driver is too old: {error}") })?;
        let mut milliseconds = 0.0;
        // SAFETY: events of this context; writes a number.
        check(unsafe { elapsed(&mut milliseconds, from, to) }, "reading the time of events")?;
        Ok(f64::from(milliseconds) / 1e3)
    }

    /// Waits for all that is enqueued. Others may enqueue meanwhile, since the lock is not held:
    /// what is theirs is not touched.
    pub(super) fn synchronize(&self, stream: Stream) -> Result<()> {
        let (raw, held) = {
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
            lane.held.extend(held);
            return Err(failure(code, "running kernels and copies"));
        }
        drop(state);
        drop(held);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
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
        for event in events.into_values().chain(unused) {
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

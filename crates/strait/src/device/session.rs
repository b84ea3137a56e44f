//! The memory, stages, read-backs and times of one join on a device.
//!
//! A session owns its memory, and synchronises before it releases any. So after an error, no work still uses
//! memory that another join may get.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::device::{
    Device, DeviceStage, EVENTS, Event, Managed, Memory, Pinned, Stream, View, abi,
};
use crate::error::{Error, Result};
use crate::memory::{Budget, Flow, Plain, Refused, Reservation};
use crate::stopwatch::{GpuWork, Timed};
use crate::word::Width;
use crate::word::{KeyWord, Mixer, Mixers};

/// The maximum number of marks before the older half is added up.
const MARKS: usize = 256;
/// Stands for a stage whose name is not known yet.
const UNDER_WAY: &str = "";
/// The maximum bytes of one read-back or write: see [`Session::read`].
const SMALL: usize = 256 << 10;
/// The session's own buffer may take 1/64 of the memory that a limit leaves.
const SHARE: u64 = 64;

/// One join on a device.
pub(crate) struct Session<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) word: Width,
    /// What keys are mixed with.
    mixers: Mixers,
    /// The stream of stages.
    pub(crate) compute: Stream,
    /// The stream of large copies to the device.
    pub(crate) copies: Stream,
    /// The stream of large copies from the device.
    pub(crate) back: Stream,
    /// The budget in which host memory is reserved.
    budget: Arc<Budget>,
    /// If set, a session that is refused host memory waits for this flow, until the flag cancels the wait.
    patience: Option<(&'a Flow, &'a AtomicBool)>,
    small: Arc<Pinned>,
    /// The session's memory, each with its number, in ascending order.
    kept: RefCell<Vec<(u64, Memory)>>,
    /// The next number.
    count: Cell<u64>,
    marks: RefCell<Vec<(&'static str, Event, u64)>>,
    /// The times of stages whose marks were already added up.
    booked: RefCell<Vec<Timed>>,
    /// The seconds and bytes of the current stage, as far as its marks were already added up.
    under_way: Cell<(f64, u64)>,
    /// Bytes that stages since the last mark move.
    moved: Cell<u64>,
    /// Bytes that crossed the link, to the device and back.
    crossed: [Cell<u64>; 2],
    /// What the conductors did.
    work: RefCell<GpuWork>,
    /// The thread's preparation by [`Device::enter`]. Dropped last.
    _entered: Box<dyn Any>,
}

impl<'a> Session<'a> {
    /// A session for tests: its seed is always the same, and its host memory has no limit.
    #[cfg(test)]
    pub(crate) fn new(device: &'a dyn Device, word: Width) -> Result<Self> {
        Session::within(device, word, &Mixers::new(1, 2), &Budget::new(None))
    }

    /// Creates a session that mixes keys with the seed of a join, and reserves its host memory in a budget.
    pub(crate) fn within(
        device: &'a dyn Device,
        word: Width,
        mixers: &Mixers,
        budget: &Arc<Budget>,
    ) -> Result<Self> {
        let small = portion(budget, SHARE, [LEAST_PINNED, SMALL]);
        let entered = device.enter()?;
        let session = Session {
            device,
            word,
            mixers: *mixers,
            compute: device.stream(0)?,
            copies: device.stream(1)?,
            back: device.stream(2)?,
            budget: Arc::clone(budget),
            patience: None,
            small: pinned(device, budget, small, "read-backs")?,
            kept: RefCell::default(),
            count: Cell::new(0),
            marks: RefCell::default(),
            booked: RefCell::default(),
            under_way: Cell::default(),
            moved: Cell::new(0),
            crossed: Default::default(),
            work: RefCell::default(),
            _entered: entered,
        };
        session.mark("start")?;
        Ok(session)
    }

    /// Makes the session wait if host memory is refused while output is queued, like the workers of this
    /// flow. No worker may be active while the session is used.
    pub(crate) fn waiting_with(self, flow: &'a Flow, cancelled: &'a AtomicBool) -> Self {
        let mut session = self;
        session.patience = Some((flow, cancelled)).filter(|_| !session.budget.unlimited());
        session
    }

    /// Runs `attempt`. Repeats it while it is refused host memory that may still come free.
    fn patiently<T>(&self, attempt: impl FnMut() -> Result<T>) -> Result<T> {
        let Some((flow, cancelled)) = self.patience else {
            let mut attempt = attempt;
            return attempt();
        };
        let _active = flow.active(&self.budget);
        flow.patiently((&self.budget, Refused::Fails), cancelled, attempt)
    }

    /// Returns the mixer that the host uses for keys of the session's width.
    pub(crate) fn mixer<K: KeyWord>(&self) -> Mixer<K> {
        self.mixers.of()
    }

    /// Returns the multipliers with which stages mix keys.
    pub(crate) fn mixing(&self) -> abi::Mixing {
        match self.word {
            Width::W32 => abi::Mixing::of(self.mixers.of::<u32>()),
            Width::W64 => abi::Mixing::of(self.mixers.of::<u64>()),
        }
    }

    /// Returns the multipliers with which stages unmix keys.
    pub(crate) fn unmixing(&self) -> abi::Mixing {
        match self.word {
            Width::W32 => abi::Mixing::of(self.mixers.of::<u32>().inverse()),
            Width::W64 => abi::Mixing::of(self.mixers.of::<u64>().inverse()),
        }
    }

    /// Allocates memory for the rest of the session, or until it is [released](Session::release).
    pub(crate) fn allocate(&self, bytes: u64, what: &str) -> Result<View> {
        let memory = self.device.allocate(bytes.max(1), what)?;
        Ok(self.keep(memory).part(0, bytes.max(1)))
    }

    /// Keeps memory for the rest of the session, or until it is [released](Session::release).
    pub(crate) fn keep(&self, memory: Memory) -> View {
        let view = memory.view;
        let number = self.count.replace(self.count.get() + 1);
        self.kept.borrow_mut().push((number, memory));
        view
    }

    /// Allocates pinned host memory, which stays reserved in the budget for as long as it is held.
    pub(crate) fn pinned(&self, bytes: usize, what: &str) -> Result<Arc<Pinned>> {
        self.patiently(|| pinned(self.device, &self.budget, bytes, what))
    }

    /// Reserves host memory.
    pub(crate) fn reserve(&self, bytes: u64, what: &str) -> Result<Reservation> {
        self.patiently(|| self.budget.reserve(bytes, what))
    }

    /// Returns the bytes for a pinned buffer: `most`, or 1/`parts` of the memory that a limit leaves if that
    /// is less, but at least a page.
    pub(crate) fn portion(&self, parts: u64, most: usize) -> Result<usize> {
        let bytes = portion(&self.budget, parts, [LEAST_PINNED, most]);
        match self.patience {
            Some((flow, cancelled)) if bytes < most => {
                // More memory is free once the queued output has been taken.
                flow.drained(&self.budget, cancelled)?;
                Ok(portion(&self.budget, parts, [LEAST_PINNED, most]))
            }
            _ => Ok(bytes),
        }
    }

    /// Allocates managed memory, also reserved in the budget: it lies in host memory until a stage reads it.
    pub(crate) fn managed(&self, bytes: u64, what: &str) -> Result<Arc<Managed>> {
        let reserved = self.reserve(bytes, what)?;
        let mut managed = self.device.managed(bytes, what)?;
        if let Some(managed) = Arc::get_mut(&mut managed) {
            let owner = std::mem::replace(&mut managed._owner, Box::new(()));
            managed._owner = Box::new((owner, reserved));
        }
        Ok(managed)
    }

    /// Allocates a [range](crate::device::HostAccess::range) over both memories, for the rest of the session
    /// or until it is released. The part in host memory is reserved in the budget.
    pub(crate) fn range(&self, bytes: u64, on_device: u64, what: &str) -> Result<View> {
        let reserved = self.reserve(bytes.saturating_sub(on_device), what)?;
        let Memory { view, _owner } = self.device.range(bytes, on_device, what)?;
        Ok(self.keep(Memory { view, _owner: Box::new((_owner, reserved)) }))
    }

    /// Hands memory that was allocated here over to the caller.
    pub(crate) fn take(&self, view: View) -> Option<Memory> {
        let mut kept = self.kept.borrow_mut();
        let at = kept.iter().position(|(_, memory)| memory.address() == view.address)?;
        Some(kept.remove(at).1)
    }

    /// Returns a point in the order of allocations, for [`release_since`](Session::release_since).
    pub(crate) fn point(&self) -> u64 {
        self.count.get()
    }

    /// Releases all memory that was allocated since a point, after all enqueued stages are done.
    pub(crate) fn release_since(&self, point: u64) -> Result<()> {
        self.device.synchronize(self.compute)?;
        self.kept.borrow_mut().retain(|(number, _)| *number < point);
        Ok(())
    }

    /// Allocates memory filled with zeros.
    pub(crate) fn zeroed(&self, bytes: u64, what: &str) -> Result<View> {
        let view = self.allocate(bytes, what)?;
        self.device.fill(self.compute, view, 0)?;
        Ok(view)
    }

    /// Releases memory, after all enqueued stages are done.
    pub(crate) fn release(&self, views: &[View]) -> Result<()> {
        self.device.synchronize(self.compute)?;
        let gone = |memory: &Memory| views.iter().any(|view| view.address == memory.address());
        self.kept.borrow_mut().retain(|(_, memory)| !gone(memory));
        Ok(())
    }

    /// Enqueues a stage.
    pub(crate) fn run(&self, stage: DeviceStage) -> Result<()> {
        self.moved(stage.bytes(self.word));
        // SAFETY: conductors pass views of this session's memory, or of sides that outlive it, as long as the
        // stage's structure requires. (The simulated device checks all of them.)
        unsafe { self.device.run(self.compute, self.word, &stage) }
    }

    /// Reads a few values back, after all stages so far are done.
    pub(crate) fn read<T: Plain + Default>(&self, from: View, count: usize) -> Result<Vec<T>> {
        let mut values = vec![T::default(); count];
        let mut at = 0;
        for some in values.chunks_mut(self.at_once::<T>()) {
            let bytes = size_of_val(some);
            let view = within(from, at, bytes)?;
            at += bytes;
            self.device.copy_out(self.compute, view, &self.small, 0)?;
            self.device.synchronize(self.compute)?;
            // SAFETY: the copy is done, nobody else has this buffer, and the values are plain.
            unsafe {
                let from = self.small.bytes().as_ptr();
                std::ptr::copy_nonoverlapping(from, some.as_mut_ptr().cast::<u8>(), bytes);
            }
        }
        Ok(values)
    }

    /// Writes a few values, before all stages that follow.
    pub(crate) fn write<T: Plain>(&self, values: &[T], to: View) -> Result<()> {
        let mut at = 0;
        for some in values.chunks(self.at_once::<T>()) {
            let bytes = size_of_val(some);
            let view = within(to, at, bytes)?;
            at += bytes;
            // SAFETY: no copy from or to the buffer is in progress, because each one is waited for.
            unsafe {
                let to = self.small.bytes_mut().as_mut_ptr();
                std::ptr::copy_nonoverlapping(some.as_ptr().cast::<u8>(), to, bytes);
            }
            self.device.copy_in(self.compute, &self.small, 0, view)?;
            self.device.synchronize(self.compute)?;
        }
        Ok(())
    }

    /// Returns how many values fit the staging buffer of [`read`](Session::read) and
    /// [`write`](Session::write).
    fn at_once<T>(&self) -> usize {
        (self.small.len / size_of::<T>().max(1)).max(1)
    }

    /// Marks the end of a stage. Its time and bytes count from the last mark.
    pub(crate) fn mark(&self, stage: &'static str) -> Result<()> {
        let event = self.device.record(self.compute)?;
        self.note(stage, event);
        Ok(())
    }

    /// Records an event inside the current stage, whose name is known only at its end. So a stage with many
    /// events is timed in parts, before the device forgets the first of them.
    pub(crate) fn passed(&self, event: Event) {
        let last = self.marks.borrow().last().map_or(0, |(_, last, _)| last.number);
        if event.number.saturating_sub(last) > EVENTS / 8 {
            self.note(UNDER_WAY, event);
        }
    }

    fn note(&self, stage: &'static str, event: Event) {
        let mut marks = self.marks.borrow_mut();
        marks.push((stage, event, self.moved.take()));
        let long_ago = event.number.saturating_sub(marks[0].1.number) > EVENTS / 2;
        if marks.len() > MARKS || (marks.len() > 2 && long_ago) {
            // This must happen before the device forgets the first events. All but the last few have
            // happened.
            let half = marks.len().div_ceil(2);
            let old: Vec<_> = marks.drain(..half).collect();
            marks.insert(0, old[old.len() - 1]);
            self.book(&old);
        }
    }

    /// Adds bytes that were read and written, if the stage's arguments do not tell.
    pub(crate) fn moved(&self, bytes: u64) {
        self.moved.set(self.moved.get() + bytes);
    }

    /// Copies to the device, on the stream of large copies.
    pub(crate) fn copy_in(&self, from: &Arc<Pinned>, at: usize, to: View) -> Result<()> {
        self.crosses_in(to.bytes);
        self.device.copy_in(self.copies, from, at, to)
    }

    /// Copies from the device, on the stream of large copies back.
    pub(crate) fn copy_out(&self, from: View, to: &Arc<Pinned>, at: usize) -> Result<()> {
        self.crosses_back(from.bytes);
        self.device.copy_out(self.back, from, to, at)
    }

    /// Counts bytes that cross the link to the device. [`copy_in`](Session::copy_in) calls it; other ways to
    /// the device must call it themselves.
    pub(crate) fn crosses_in(&self, bytes: u64) {
        self.crossed[0].set(self.crossed[0].get() + bytes);
    }

    /// Counts bytes that cross the link from the device. [`copy_out`](Session::copy_out) calls it; other ways
    /// from the device must call it themselves.
    pub(crate) fn crosses_back(&self, bytes: u64) {
        self.crossed[1].set(self.crossed[1].get() + bytes);
    }

    /// Returns the bytes that crossed the link: to the device, and back.
    pub(crate) fn crossed(&self) -> [u64; 2] {
        [self.crossed[0].get(), self.crossed[1].get()]
    }

    /// Records what a conductor does.
    pub(crate) fn record_work(&self, change: impl FnOnce(&mut GpuWork)) {
        change(&mut self.work.borrow_mut());
    }

    /// Returns what the conductors did.
    pub(crate) fn work(&self) -> GpuWork {
        self.work.borrow().clone()
    }

    /// Returns the seconds and bytes of each stage, added up if a stage ran several times.
    pub(crate) fn times(&self) -> Result<Vec<Timed>> {
        self.device.synchronize(self.compute)?;
        let last = self.marks.borrow().last().copied();
        let marks = self.marks.replace(last.into_iter().collect());
        self.book(&marks);
        Ok(self.booked.borrow().clone())
    }

    /// Adds up the stages between some marks.
    fn book(&self, marks: &[(&'static str, Event, u64)]) {
        let mut times = self.booked.borrow_mut();
        for pair in marks.windows(2) {
            // Other joins on this device may have pushed events out. That is no reason to fail.
            let Ok(seconds) = self.device.seconds(pair[0].1, pair[1].1) else { continue };
            let (stage, _, bytes) = pair[1];
            let before = self.under_way.take();
            let (seconds, bytes) = (before.0 + seconds, before.1 + bytes);
            if stage == UNDER_WAY {
                self.under_way.set((seconds, bytes));
                continue;
            }
            match times.iter_mut().find(|time| time.stage == stage) {
                Some(time) => {
                    (time.seconds, time.bytes) = (time.seconds + seconds, time.bytes + bytes)
                }
                None => times.push(Timed { stage, seconds, bytes }),
            }
        }
    }

    /// Waits until all work on some streams is done. Every owner of memory that stages or copies use must call
    /// this in its `drop`, because no work may still use the memory when it is given back. A failed device is
    /// no error here: nobody could handle it, and the join has failed before.
    pub(crate) fn finish_before_drop(&self, streams: impl IntoIterator<Item = Stream>) {
        for stream in streams {
            if let Err(error) = self.device.synchronize(stream) {
                let id = self.device.id().number();
                log::debug!("device {id} did not finish its work: {error}");
            }
        }
    }

    /// Returns the bytes that the budget has left.
    pub(crate) fn left(&self) -> u64 {
        let memory = self.device.memory();
        memory.budget.saturating_sub(memory.used)
    }

    /// Returns a fresh control, whose first task has number `first`.
    pub(crate) fn control(&self, first: u32) -> abi::Control {
        abi::Control { next: first, ..abi::Control::default() }
    }
}

/// The minimum bytes of pinned memory that are worth having.
const LEAST_PINNED: usize = 4 << 10;

/// Returns 1/`parts` of what a budget has left, between two bounds, or the upper bound if there is no limit.
fn portion(budget: &Budget, parts: u64, [least, most]: [usize; 2]) -> usize {
    if budget.unlimited() {
        return most;
    }
    usize::try_from(budget.left() / parts).unwrap_or(most).clamp(least.min(most), most)
}

/// Allocates pinned memory. It stays reserved in the budget for as long as anybody has it, including copies
/// in progress. Under a limit, it is not kept for later joins.
fn pinned(
    device: &dyn Device,
    budget: &Arc<Budget>,
    bytes: usize,
    what: &str,
) -> Result<Arc<Pinned>> {
    let reserved = budget.reserve(device.pinned_size(bytes), what)?;
    let mut pinned = match budget.unlimited() {
        true => device.pinned(bytes, what)?,
        false => device.pinned_once(bytes, what)?,
    };
    if let Some(pinned) = Arc::get_mut(&mut pinned) {
        let owner = std::mem::replace(&mut pinned._owner, Box::new(()));
        pinned._owner = Box::new((owner, reserved));
    }
    Ok(pinned)
}

/// Returns `bytes` bytes of a view, starting at byte `at`, or an error if the view is too short.
fn within(view: View, at: usize, bytes: usize) -> Result<View> {
    let part = view.part(at as u64, bytes as u64);
    if part.bytes != bytes as u64 {
        return Err(Error::internal("values pass the end of their memory on the device"));
    }
    Ok(part)
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        self.finish_before_drop([self.compute, self.copies, self.back]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::simulated::{Settings, Simulated, TINY};

    /// Host memory is reserved for as long as it is held, and buffers are shorter under a limit.
    #[test]
    fn host_memory_is_reserved() {
        let device = Simulated::new(Settings { shape: TINY, ..Settings::default() });
        for (limit, small) in [(None, SMALL), (Some(1 << 20), 16 << 10), (Some(9 << 10), 4 << 10)] {
            let budget = Budget::new(limit);
            let session =
                Session::within(&device, Width::W64, &Mixers::new(1, 2), &budget).unwrap();
            assert_eq!(budget.used(), small as u64);
            let pinned = session.pinned(1000, "a test").unwrap();
            let memory = session.allocate(1000, "a test").unwrap();
            // A copy in progress holds the memory, and with it the reservation.
            session.copy_in(&pinned, 0, memory).unwrap();
            drop(pinned);
            assert_eq!(budget.used(), small as u64 + 1000);
            session.device.synchronize(session.copies).unwrap();
            assert_eq!(budget.used(), small as u64);
            session.range(3000, 1000, "a test").unwrap();
            assert_eq!(budget.used(), small as u64 + 2000);
            drop(session.managed(500, "a test").unwrap());
            assert_eq!(budget.used(), small as u64 + 2000);
            if limit.is_some() {
                let refused = session.pinned(1 << 20, "a test").map(|_| ());
                assert!(matches!(refused, Err(Error::MemoryLimit { .. })), "{refused:?}");
            }
            drop(session);
            assert_eq!(budget.used(), 0);
        }
        let refused =
            Session::within(&device, Width::W64, &Mixers::new(1, 2), &Budget::new(Some(100)))
                .map(|_| ());
        assert!(matches!(refused, Err(Error::MemoryLimit { .. })), "{refused:?}");
        device.check_released().unwrap();
    }

    /// The session waits for host memory that queued output holds. It is refused only if nobody will release
    /// it.
    #[test]
    fn host_memory_is_waited_for_while_output_is_queued() {
        let device = Simulated::new(Settings { shape: TINY, ..Settings::default() });
        let (flow, cancelled) = (Arc::new(Flow::default()), AtomicBool::new(false));
        let budget = Budget::new(Some(100 << 10));
        let session = Session::within(&device, Width::W64, &Mixers::new(1, 2), &budget).unwrap();
        let session = session.waiting_with(&flow, &cancelled);
        let all = session.portion(2, 1 << 20).unwrap();
        for kind in 0..5 {
            let queued = budget.reserve(80 << 10, "a batch").unwrap();
            let sent = flow.sending();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(std::time::Duration::from_millis(30));
                    flow.received();
                    drop(sent);
                    drop(queued);
                    flow.awaiting(&budget);
                });
                let bytes = 50 << 10;
                match kind {
                    0 => drop(session.pinned(bytes, "a test").unwrap()),
                    1 => drop(session.reserve(bytes as u64, "a test").unwrap()),
                    2 => drop(session.managed(bytes as u64, "a test").unwrap()),
                    3 => {
                        let view = session.range(bytes as u64, 0, "a test").unwrap();
                        session.release(&[view]).unwrap();
                    }
                    _ => assert_eq!(session.portion(2, 1 << 20).unwrap(), all),
                }
            });
            let refused = session.reserve(99 << 10, "a test").map(drop);
            assert!(matches!(refused, Err(Error::MemoryLimit { .. })), "{refused:?}");
        }
    }

    /// Values whose size does not divide the staging buffer are split into pieces: each piece continues
    /// where the previous one ended.
    #[test]
    fn values_of_any_size_are_read_and_written_in_pieces() {
        let device = Simulated::new(Settings { shape: TINY, ..Settings::default() });
        let session = Session::new(&device, Width::W64).unwrap();
        let size = size_of::<abi::Task>();
        assert_ne!(SMALL % size, 0, "otherwise this tests nothing");
        for bytes in [1, SMALL - 1, SMALL + 1, (1 << 20) + 123, (3 << 20) + 7] {
            let count = bytes.div_ceil(size);
            let task = |i| abi::Task { build: i, probe: !i, build_rows: i as u32, probe_rows: 7 };
            let tasks: Vec<abi::Task> = (0..count as u64).map(task).collect();
            let view = session.allocate((count * size) as u64, "a test").unwrap();
            session.write(&tasks, view).unwrap();
            let back: Vec<abi::Task> = session.read(view, count).unwrap();
            assert!(back == tasks, "{count} values");
            let octets: Vec<u8> = (0..bytes).map(|i| (i * 7) as u8).collect();
            session.write(&octets, view).unwrap();
            let back: Vec<u8> = session.read(view, bytes).unwrap();
            assert!(back == octets, "{bytes} bytes");
            let beyond = session.read::<abi::Task>(view, count + 1);
            assert!(beyond.is_err(), "a value past the end is not read");
            assert!(session.write(&vec![task(0); count + 1], view).is_err(), "nor written");
        }
    }

    /// The device forgets events, but the times of stages with many events are not lost.
    #[test]
    fn stages_of_many_events_are_timed() {
        let device = Simulated::new(Settings { shape: TINY, ..Settings::default() });
        let session = Session::new(&device, Width::W64).unwrap();
        for stage in ["first", "second"] {
            for i in 0..3 * EVENTS {
                session.moved(1);
                session.passed(device.record(session.compute).unwrap());
                // Like a caller that has only a few buffers.
                if i % 100 == 0 {
                    device.synchronize(session.compute).unwrap();
                }
            }
            session.mark(stage).unwrap();
        }
        let times = session.times().unwrap();
        let told: Vec<_> = times.iter().map(|time| (time.stage, time.bytes)).collect();
        assert_eq!(told, [("first", 3 * EVENTS as u64), ("second", 3 * EVENTS as u64)]);
    }
}

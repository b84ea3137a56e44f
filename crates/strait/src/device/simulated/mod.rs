//! A device without a GPU. Stages run on the CPU, late, in a random order that streams and events allow.
//! Fresh and freed memory is poisoned.
//!
//! So every conductor can be tested thoroughly on any machine. A missing wait, a buffer that is freed or
//! overwritten too early, or a size that is too small becomes an error or a wrong answer for some seed. The
//! same seed gives the same order again.
//!
//! | file | what it holds |
//! | --- | --- |
//! | [`memory`] | addresses, poison, the capacity |
//! | [`host`] | pinned and managed memory |
//! | [`schedule`] | streams, events, and what runs when |
//! | [`fault`] | failures that tests ask for |
//! | [`stages`] | a twin on the CPU for each kernel |

mod fault;
mod host;
mod memory;
mod random;
mod schedule;
mod stages;
mod word;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use fastrand::Rng;

use self::fault::Faults;
use self::host::{HostMemory, Pin};
use self::memory::Space;
use self::schedule::{Operation, Schedule};
use self::stages::Machine;
use super::{
    Device, DeviceId, DeviceStage, Event, HostAccess, HostView, Managed, Memory, MemoryUse, Pinned,
    Scatterer, Shape, Stream, View,
};
use crate::error::{Error, Result};
use crate::overrides::{Fault, FaultKind};
use crate::schedule::lock;
use crate::word::Width;

/// Tiny pieces of work, so that tests with a few dozen rows have several of each.
pub(crate) const TINY: Shape = Shape {
    tile: 8,
    build_rows: 4,
    probe_rows: 3,
    probe_tile: 5,
    merge_tile: 5,
    most_rows: 16,
    l2: 1 << 10,
};

/// The properties of a simulated device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// The memory, in bytes.
    pub(crate) memory: u64,
    /// How much work each task takes, for both word widths.
    pub(crate) shape: Shape,
    /// The seed of all its random choices.
    pub(crate) seed: u64,
    /// Whether it can read and write host memory that is not pinned.
    pub(crate) coherent: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { memory: 64 << 20, shape: TINY, seed: 0, coherent: true }
    }
}

/// See the [module](self).
pub(crate) struct Simulated {
    id: DeviceId,
    shape: Shape,
    schedule: Arc<Mutex<Schedule>>,
    /// Chooses the poison of host memory.
    random: Mutex<Rng>,
    coherent: bool,
    /// The number of pins of others' memory.
    pins: Arc<AtomicUsize>,
    /// The number of pieces of its own pinned memory.
    pinned: Arc<AtomicUsize>,
    faults: Faults,
    /// The number of calls of `synchronize`, and of allocations of pinned memory.
    waits: AtomicUsize,
    pinnings: AtomicUsize,
}

impl Simulated {
    pub(crate) fn new(settings: Settings) -> Simulated {
        Simulated::failing(settings, [None; 2])
    }

    /// Creates a device on which the operations of `faults` fail, if given. With a fault, freed memory is
    /// gone at once instead of poisoned. Late operations on it are then errors, which
    /// [`check_released`](Device::check_released) reports.
    pub(crate) fn failing(settings: Settings, faults: [Option<Fault>; 2]) -> Simulated {
        let faults = Faults::new(faults);
        let Settings { memory, shape, seed, coherent } = settings;
        let mut seeds = Rng::with_seed(seed);
        let mut random = || Rng::with_seed(seeds.u64(..));
        let id = DeviceId::unique();
        let mut space = Space::new(memory, id, random());
        space.strict = faults.any();
        let machine = Machine { space, random: random(), shape };
        let schedule = Arc::new(Mutex::new(Schedule::new(machine, id, random())));
        let (random, pins, pinned) = (Mutex::new(random()), Arc::default(), Arc::default());
        let (waits, pinnings) = Default::default();
        Simulated { id, shape, schedule, random, coherent, pins, pinned, faults, waits, pinnings }
    }

    /// Opens a device. This itself may be the operation that must fail.
    pub(crate) fn open(settings: Settings, faults: [Option<Fault>; 2]) -> Result<Simulated> {
        let device = Simulated::failing(settings, faults);
        device.faults.check(FaultKind::Open)?;
        Ok(device)
    }

    /// Enqueues a copy or a fill. All its views must belong to this device.
    fn enqueue(&self, stream: Stream, views: &[View], operation: Operation) -> Result<()> {
        views.iter().try_for_each(|view| self.id.check(view.device, "memory"))?;
        self.faults.check(FaultKind::Copy)?;
        self.schedule().enqueue(stream, operation)
    }

    /// Fails if waiting is the operation that must fail. The device is dead from then on.
    fn survives(&self, schedule: &mut Schedule) -> Result<()> {
        self.faults.check(FaultKind::Synchronize).inspect_err(|error| schedule.die(error))
    }

    /// Returns how often the host has waited for all work of a stream, for example to read a value back.
    #[cfg(test)]
    pub(crate) fn waits(&self) -> usize {
        self.waits.load(Ordering::Relaxed)
    }

    /// Returns how often pinned memory was allocated.
    #[cfg(test)]
    pub(crate) fn pinnings(&self) -> usize {
        self.pinnings.load(Ordering::Relaxed)
    }

    /// Returns the number of pins of others' memory.
    #[cfg(test)]
    pub(crate) fn pins(&self) -> usize {
        self.pins.load(Ordering::Relaxed)
    }

    /// Allocates fresh host memory.
    fn host_memory(&self, bytes: usize, what: &str) -> Result<HostMemory> {
        HostMemory::new(bytes, memory::fresh(&mut lock(&self.random)), what)
    }

    /// Returns an owner that gives the memory at an address back when dropped.
    fn owner(&self, view: View) -> Owner {
        Owner { schedule: Arc::clone(&self.schedule), address: view.address }
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        lock(&self.schedule)
    }
}

impl Device for Simulated {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn name(&self) -> &str {
        "simulated"
    }

    fn shape(&self, _word: Width) -> Shape {
        self.shape
    }

    fn scatter_bytes(&self, word: Width, how: Scatterer, partitions: u32) -> u64 {
        stages::buffer_bytes(word, how, partitions)
    }

    fn memory(&self) -> MemoryUse {
        self.schedule().machine.space.usage()
    }

    fn allocate(&self, bytes: u64, what: &str) -> Result<Memory> {
        self.faults.check(FaultKind::Allocate)?;
        let view = self.schedule().machine.space.allocate(bytes, what)?;
        Ok(Memory { view, _owner: Box::new(self.owner(view)) })
    }

    fn stream(&self, index: usize) -> Result<Stream> {
        Ok(self.schedule().stream(index))
    }

    fn copy_in(&self, stream: Stream, from: &Arc<Pinned>, at: usize, to: View) -> Result<()> {
        within(from, at, to.bytes)?;
        let from = Arc::clone(from);
        self.enqueue(stream, &[to], Operation::CopyIn { from, at, to })
    }

    fn copy_out(&self, stream: Stream, from: View, to: &Arc<Pinned>, at: usize) -> Result<()> {
        within(to, at, from.bytes)?;
        let to = Arc::clone(to);
        self.enqueue(stream, &[from], Operation::CopyOut { from, to, at })
    }

    fn fill(&self, stream: Stream, to: View, byte: u8) -> Result<()> {
        self.enqueue(stream, &[to], Operation::Fill { to, byte })
    }

    unsafe fn run(&self, stream: Stream, word: Width, stage: &DeviceStage) -> Result<()> {
        self.faults.check(FaultKind::Compile)?;
        self.faults.check(FaultKind::Launch)?;
        self.schedule().enqueue(stream, Operation::Run { word, stage: *stage })
    }

    fn record(&self, stream: Stream) -> Result<Event> {
        self.faults.check(FaultKind::Record)?;
        self.schedule().record(stream)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        self.faults.check(FaultKind::Record)?;
        self.schedule().wait(stream, event)
    }

    /// Returns zero, because no time passes here. But the events must have happened.
    fn seconds(&self, from: Event, to: Event) -> Result<f64> {
        let schedule = self.schedule();
        for event in [from, to] {
            let happened = schedule.happened(event)?;
            schedule.remembered(event)?;
            if !happened {
                let why = format!("simulated device: event {} has not happened yet", event.number);
                return Err(Error::internal(why));
            }
        }
        Ok(0.0)
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let mut schedule = self.schedule();
        self.survives(&mut schedule)?;
        schedule.synchronize(stream)
    }

    fn wait_for(&self, event: Event) -> Result<()> {
        let mut schedule = self.schedule();
        self.survives(&mut schedule)?;
        schedule.wait_for(event)
    }

    fn copy_between(&self, stream: Stream, from: View, to: View) -> Result<()> {
        alike(from.bytes, to.bytes)?;
        let before = |a: View, b: View| a.address < b.address.saturating_add(b.bytes);
        if before(from, to) && before(to, from) {
            let (a, b, bytes) = (from.address, to.address, from.bytes);
            let why = format!("copy: {bytes} bytes at {a:#x} and at {b:#x} overlap");
            return Err(Error::internal(format!("simulated device: {why}")));
        }
        self.enqueue(stream, &[from, to], Operation::CopyBetween { from, to })
    }

    fn check_released(&self) -> Result<()> {
        let schedule = self.schedule();
        schedule.check_idle()?;
        let used = schedule.machine.space.usage().used;
        let [pinned, pins] = [&self.pinned, &self.pins].map(|n| n.load(Ordering::Relaxed));
        if (used, pinned, pins) == (0, 0, 0) {
            return Ok(());
        }
        Err(Error::internal(format!(
            "simulated device: a join left {used} bytes allocated, {pinned} pinned buffers and {pins} pins"
        )))
    }
}

impl HostAccess for Simulated {
    fn pinned(&self, bytes: usize, what: &str) -> Result<Arc<Pinned>> {
        self.pinnings.fetch_add(1, Ordering::Relaxed);
        self.faults.check(FaultKind::Pin)?;
        let memory = self.host_memory(bytes, what)?;
        let start = memory.start();
        let owner = (memory, Pin::new(&self.pinned));
        Ok(Arc::new(Pinned { start, len: bytes, _owner: Box::new(owner) }))
    }

    unsafe fn copy_from(&self, stream: Stream, from: HostView, to: View) -> Result<()> {
        alike(from.bytes, to.bytes)?;
        self.enqueue(stream, &[to], Operation::CopyFrom { from, to })
    }

    unsafe fn pin(&self, memory: HostView) -> Result<Arc<Pinned>> {
        self.faults.check(FaultKind::Pin)?;
        let (start, len) = (memory.start.cast_mut(), memory.bytes as usize);
        Ok(Arc::new(Pinned { start, len, _owner: Box::new(Pin::new(&self.pins)) }))
    }

    fn mapped(&self, pinned: &Arc<Pinned>) -> Result<Memory> {
        self.faults.check(FaultKind::Pin)?;
        let memory = HostView { start: pinned.start, bytes: pinned.len as u64 };
        // SAFETY: when the returned value is dropped, it gives the address back before the memory.
        let view = unsafe { self.schedule().machine.space.lend(memory, 0) };
        Ok(Memory { view, _owner: Box::new((self.owner(view), Arc::clone(pinned))) })
    }

    unsafe fn coherent(&self, memory: HostView) -> Result<Memory> {
        if !self.coherent {
            let why = "this device cannot read host memory that is not pinned";
            return Err(Error::unsupported(why, "use the transfer method staged-copy"));
        }
        // SAFETY: the caller keeps the memory until the returned value gives the address back.
        let view = unsafe { self.schedule().machine.space.lend(memory, 0) };
        Ok(Memory { view, _owner: Box::new(self.owner(view)) })
    }

    fn managed(&self, bytes: u64, what: &str) -> Result<Arc<Managed>> {
        self.faults.check(FaultKind::Allocate)?;
        let charged = memory::charge(bytes);
        let mut schedule = self.schedule();
        schedule.machine.space.room(charged, bytes, what)?;
        let memory = self.host_memory(bytes as usize, what)?;
        let start = memory.start();
        // SAFETY: when the returned value is dropped, it gives the address back before the memory.
        let view = unsafe { schedule.machine.space.lend(HostView { start, bytes }, charged) };
        let owner = (self.owner(view), memory);
        Ok(Arc::new(Managed { start, view, _owner: Box::new(owner) }))
    }

    fn prefetch(&self, stream: Stream, managed: &Arc<Managed>) -> Result<()> {
        self.enqueue(stream, &[managed.view], Operation::Prefetch(managed.view))
    }

    fn range(&self, bytes: u64, on_device: u64, what: &str) -> Result<Memory> {
        self.faults.check(FaultKind::Allocate)?;
        let pages = on_device.min(bytes).div_ceil(memory::PAGE);
        let charged = pages.saturating_mul(memory::PAGE);
        let view = self.schedule().machine.space.allocate_charged(bytes, charged, what)?;
        Ok(Memory { view, _owner: Box::new(self.owner(view)) })
    }
}

/// Gives device memory back when dropped.
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

/// Checks that both ends of a copy have the same length.
fn alike(from: u64, to: u64) -> Result<()> {
    if from == to {
        return Ok(());
    }
    Err(Error::internal(format!("simulated device: copy: {from} bytes to {to} bytes")))
}

/// Checks that a copy of `bytes` bytes stays inside pinned memory.
fn within(pinned: &Pinned, at: usize, bytes: u64) -> Result<()> {
    let end = (at as u64).checked_add(bytes);
    if end.is_some_and(|end| end <= pinned.len as u64) {
        return Ok(());
    }
    let len = pinned.len;
    Err(Error::internal(format!(
        "simulated device: copy: {bytes} bytes from {at} on are outside pinned memory of {len}"
    )))
}

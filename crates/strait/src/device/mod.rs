//! What can a join do on a GPU? This module is the contract between GPU conductors and devices.
//!
//! A [`Device`] has memory of a given size, streams, copies in both directions, and [`DeviceStage`]s. Its
//! second half, [`HostAccess`], allocates, pins and maps host memory. All work is enqueued on a stream and
//! runs in that stream's order. Work on two streams runs in any order, unless one stream waits for an
//! [`Event`] of the other. Enqueueing never waits for the work itself.
//!
//! | implementation | where stages run |
//! | --- | --- |
//! | [`cuda`] | on a GPU, as kernels |
//! | [`simulated`] | on the CPU, late, in a random order that streams and events allow |
//!
//! The caller must keep memory alive: a [`Memory`] may be dropped only after the streams that use it have
//! been [synchronised](Device::synchronize). The simulated device overwrites dropped memory and runs work
//! late, so a conductor that breaks this rule gives wrong answers in tests.

pub(crate) mod abi;
mod bytes;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "without_cuda.rs"]
pub(crate) mod cuda;
mod gpu;
mod host_access;
mod id;
pub(crate) mod l2;
mod session;
mod side;
pub(crate) mod simulated;
mod stage;

pub(crate) use host_access::{HostAccess, HostView, Managed, Pinned};
pub(crate) use id::DeviceId;
pub(crate) use session::Session;
pub(crate) use side::DeviceSide;
pub(crate) use stage::{DeviceStage, Flavour, MODULES};

use std::any::Any;
use std::sync::{Arc, OnceLock};

use crate::error::Result;
pub(crate) use crate::gpu_options::Scatterer;
use crate::overrides::Fault;
use crate::word::Width;

/// How much work each task of a kernel takes. The numbers depend on the device's shared memory and caches.
/// The simulated device has tiny ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Tuples per look-back tile.
    pub(crate) tile: u32,
    /// Build tuples that a table in shared memory holds.
    pub(crate) build_rows: u32,
    /// Probe tuples per task of a co-partition.
    pub(crate) probe_rows: u32,
    /// Probe rows per lookup task, which is several tiles.
    pub(crate) probe_tile: u32,
    /// Probe rows per tile of a merge.
    pub(crate) merge_tile: u32,
    /// Rows that a task may write before it is cut.
    pub(crate) most_rows: u64,
    /// The size of the L2 cache in bytes. See [`l2`] for its shares.
    pub(crate) l2: u64,
}

/// A range of addresses in a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct View {
    /// The device that the addresses belong to.
    pub(crate) device: DeviceId,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

impl View {
    pub(crate) fn new(device: DeviceId, address: u64, bytes: u64) -> View {
        View { device, address, bytes }
    }

    /// Returns `bytes` bytes starting at byte `at`, or fewer if the view ends before.
    pub(crate) fn part(self, at: u64, bytes: u64) -> View {
        let at = at.min(self.bytes);
        View { address: self.address + at, bytes: bytes.min(self.bytes - at), ..self }
    }
}

/// Device memory. It returns to its pool when dropped.
pub(crate) struct Memory {
    pub(crate) view: View,
    /// Gives the memory back when dropped.
    pub(crate) _owner: Box<dyn Any + Send + Sync>,
}

impl Memory {
    pub(crate) fn address(&self) -> u64 {
        self.view.address
    }
}

/// A queue of work on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stream(pub(crate) usize);

/// The minimum number of events whose times a device remembers.
pub(crate) const EVENTS: usize = 16 * 1024;

/// A point in the work of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event {
    /// The device of the stream. Only streams of this device can wait for the event.
    pub(crate) device: DeviceId,
    /// How many events the device recorded before.
    pub(crate) number: usize,
}

/// How much of a device's memory is in use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MemoryUse {
    pub(crate) budget: u64,
    pub(crate) used: u64,
    pub(crate) peak: u64,
}

/// Memory, streams, copies and stages: see the [module](self). What reaches host memory is in
/// [`HostAccess`].
pub(crate) trait Device: HostAccess {
    /// Returns the id that the device's views and events carry. Views and events of other devices are refused.
    fn id(&self) -> DeviceId;
    /// Returns the product name of the device.
    fn name(&self) -> &str;
    /// How large its pieces of work are for words of this width.
    fn shape(&self, word: Width) -> Shape;
    /// Bytes of buffers that a [`DeviceStage::Scatter`] to so many partitions needs; may be zero.
    fn scatter_bytes(&self, word: Width, how: Scatterer, partitions: u32) -> u64;
    /// How much memory joins may hold, do hold, and did hold at most.
    fn memory(&self) -> MemoryUse;
    /// Returns how much of the budget joins can have now. It is less than the budget if others use the
    /// device.
    fn available(&self) -> Result<u64> {
        Ok(self.memory().budget)
    }
    /// Allocates memory with any content, aligned to 256 bytes. Fails with
    /// [`Error::DeviceMemory`](crate::Error::DeviceMemory) if there is not enough.
    fn allocate(&self, bytes: u64, what: &str) -> Result<Memory>;
    /// Prepares the calling thread for many calls, until the returned value is dropped on the same thread.
    fn enter(&self) -> Result<Box<dyn Any>> {
        Ok(Box::new(()))
    }
    /// Returns a stream. Streams live as long as the device, and are reused.
    fn stream(&self, index: usize) -> Result<Stream>;
    /// Copies from the host, starting at byte `at`, to the device.
    fn copy_in(&self, stream: Stream, from: &Arc<Pinned>, at: usize, to: View) -> Result<()>;
    /// Copies from the device to the host, starting at byte `at`.
    fn copy_out(&self, stream: Stream, from: View, to: &Arc<Pinned>, at: usize) -> Result<()>;
    /// Copies between two addresses of the device: device memory, [mapped](HostAccess::mapped) memory or
    /// [ranges](HostAccess::range). They must not overlap.
    fn copy_between(&self, stream: Stream, from: View, to: View) -> Result<()>;
    /// Sets every byte to `byte`.
    fn fill(&self, stream: Stream, to: View, byte: u8) -> Result<()>;
    /// Enqueues a stage. The addresses in it must belong to this device, and the memory there must be as the
    /// stage's structure describes.
    ///
    /// # Safety
    /// The views behind the addresses are as long as the stage needs and live until the stream has
    /// been synchronised.
    unsafe fn run(&self, stream: Stream, word: Width, stage: &DeviceStage) -> Result<()>;
    /// Marks what is enqueued up to here. The device may forget an event that has happened, once [`EVENTS`]
    /// more events have been recorded. Waiting for a forgotten event returns at once, and its time is lost.
    fn record(&self, stream: Stream) -> Result<Event>;
    /// Makes all work that is enqueued from now on wait for an event.
    fn wait(&self, stream: Stream, event: Event) -> Result<()>;
    /// Returns the seconds between two events that have happened.
    fn seconds(&self, from: Event, to: Event) -> Result<f64>;
    /// Waits until everything enqueued on the stream is done.
    fn synchronize(&self, stream: Stream) -> Result<()>;
    /// Waits until an event has happened. Host memory that its stream copied before may then be reused.
    fn wait_for(&self, event: Event) -> Result<()>;

    /// Returns an error if a finished join left memory, pins or work behind, or used memory after giving it
    /// back. Only the simulated device checks this, because no two joins share it.
    fn check_released(&self) -> Result<()> {
        Ok(())
    }
}

/// A device that a join may run on, with the facts that are known before it is opened. Opening a GPU creates
/// a context, which takes a tenth of a second and some GPU memory.
#[derive(Clone, Copy)]
pub(crate) enum Prospect {
    Gpu(&'static cuda::Gpu),
    /// A simulated device with this seed.
    Simulated(u64),
}

impl Prospect {
    pub(crate) fn name(&self) -> &str {
        match self {
            Prospect::Gpu(gpu) => &gpu.name,
            Prospect::Simulated(_) => "simulated",
        }
    }

    /// Returns whether the device is open, so that a join need not wait for that.
    pub(crate) fn is_open(&self) -> bool {
        match self {
            Prospect::Gpu(gpu) => cuda::is_open(gpu),
            Prospect::Simulated(_) => true,
        }
    }

    /// Returns the device memory that the join may hold, if nobody else uses the device.
    pub(crate) fn budget(&self, gpu_memory: Option<u64>) -> u64 {
        match (gpu_memory, self) {
            (Some(asked), _) => asked,
            (None, Prospect::Gpu(gpu)) => gpu.default_budget(),
            (None, Prospect::Simulated(_)) => SIMULATED_MEMORY,
        }
    }

    /// Returns an error if no join can run on the device, as far as that is known without opening it.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            // Even with cached kernels, the compiler is needed: its version is a part of the cache key.
            Prospect::Gpu(_) => cuda::Nvrtc::find().map(|_| ()),
            Prospect::Simulated(_) => Ok(()),
        }
    }

    pub(crate) fn open(
        &self,
        gpu_memory: Option<u64>,
        faults: [Option<Fault>; 2],
    ) -> Result<Arc<dyn Device>> {
        self.check()?;
        match *self {
            Prospect::Gpu(gpu) => Ok(cuda::shared(gpu, gpu_memory)?),
            Prospect::Simulated(seed) => {
                let memory = self.budget(gpu_memory);
                let shape = simulated::TINY;
                let settings = simulated::Settings { memory, shape, seed, coherent: true };
                Ok(Arc::new(simulated::Simulated::open(settings, faults)?))
            }
        }
    }
}

static DETECTED: OnceLock<Result<Vec<cuda::Gpu>>> = OnceLock::new();

/// Returns the GPUs of this machine. They are looked for only once: initialising the driver takes longer than a
/// join of small tables.
pub(crate) fn detected() -> &'static Result<Vec<cuda::Gpu>> {
    DETECTED.get_or_init(cuda::Gpu::detect)
}

/// Returns whether [`detected`] takes no time, because this process has looked for GPUs before. Does not
/// initialise the driver.
pub(crate) fn detection_is_free() -> bool {
    DETECTED.get().is_some() || cuda::is_initialised()
}

/// The default memory of a simulated device.
pub(crate) const SIMULATED_MEMORY: u64 = 64 << 20;

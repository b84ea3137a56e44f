//! What can a join do on a GPU? The contract that GPU conductors speak to, and who fulfils it.
//!
//! A [`Device`] is memory of a given size, streams, copies in and out, and [`Stage`]s. All work is
//! enqueued on a stream and runs in that stream's order; work of two streams runs in any order,
//! unless one waits for an [`Event`] of the other. Nothing waits for the host.
//!
//! | who | where stages run |
//! | --- | --- |
//! | [`cuda`] | on a GPU, as kernels |
//! | [`simulated`] | on the CPU, late, in a random order that streams and events allow |
//!
//! Memory is the caller's to keep: a [`Memory`] is dropped only after the streams that use it have
//! been [synchronised](Device::synchronize). The simulated device overwrites what is dropped, and
//! runs late what was enqueued, so a conductor that breaks this rule gives wrong answers in tests.

pub(crate) mod abi;
mod bytes;
pub(crate) mod cuda;
mod session;
mod side;
pub(crate) mod simulated;

pub(crate) use session::Session;
pub(crate) use side::Side;

use std::any::Any;
use std::sync::{Arc, OnceLock};

use crate::error::Result;
use crate::memory::Plain;
use crate::overrides::Fault;
use crate::word::Width;

/// What a joining stage does with the matches it finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Flavour {
    /// Writes them.
    Pairs,
    /// Writes them, and flags the rows of both sides.
    PairsFlagged,
    /// Flags the rows, and writes nothing.
    Exists,
    /// Counts them and adds up their values.
    Aggregate,
}

/// A step of a join on a device. Each has a kernel and a twin on the CPU.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stage {
    /// See [`abi::Survey`]; likewise below.
    Survey(abi::Survey),
    Histogram(abi::Histogram),
    Offsets(abi::Offsets),
    LookBack(abi::LookBack),
    /// Counts chunks' digits; [scans](Stage::SharedScan) the counts; writes the tuples.
    SharedCount(abi::SharedHistogram),
    SharedScan(abi::SharedHistogram),
    SharedScatter(abi::SharedHistogram),
    CutChains(abi::CutChains),
    BucketPool(abi::BucketPool),
    Compact(abi::Compact),
    Bounds(abi::Bounds),
    ListTasks(abi::ListTasks),
    JoinShared(Flavour, abi::JoinShared),
    ClearTable(abi::ClearTable),
    Insert(abi::Insert),
    PlaceGroups(abi::PlaceGroups),
    FillGroups(abi::FillGroups),
    Probe(Flavour, abi::Probe),
    MergeJoin(Flavour, abi::MergeJoin),
    Gather(abi::Gather),
    /// Counts the tuples of partitions, of which there may be more than a radix pass makes.
    Tally(abi::Tally),
    /// Makes words of keys that crossed the link in fewer bytes.
    Unpack(abi::Unpack),
    /// Writes tuples to partitions that may lie in host memory, over the link.
    Scatter(Scatterer, abi::Scatter),
}

/// How a [`Stage::Scatter`] gathers tuples before it writes them (000 §4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Scatterer {
    /// Not at all: every tuple is written by itself.
    Standard,
    /// Orders a tile by partition in shared memory, and writes the runs.
    Linear,
    /// Keeps a buffer a partition in shared memory, and writes full ones, aligned to 128 bytes.
    Shared,
    /// Keeps a second, longer buffer a partition in the device's memory, behind the first.
    Hierarchical,
}

/// How large the pieces of work are that a device's kernels take. They follow from its shared
/// memory and its caches; the simulated device has tiny ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Tuples of a look-back tile.
    pub(crate) tile: u32,
    /// Build tuples that a table in shared memory holds.
    pub(crate) build_rows: u32,
    /// Probe tuples of a co-partition's task.
    pub(crate) probe_rows: u32,
    /// Probe rows of a task of a look-up: several tiles.
    pub(crate) probe_tile: u32,
    /// Probe rows of a tile of a merge.
    pub(crate) merge_tile: u32,
    /// Rows one task may write before it is cut.
    pub(crate) most_rows: u64,
    /// The second-level cache, in bytes.
    pub(crate) l2: u64,
}

/// A range of addresses in a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct View {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

impl View {
    /// `bytes` from `at` on; less where the view ends before.
    pub(crate) fn part(self, at: u64, bytes: u64) -> View {
        let at = at.min(self.bytes);
        View { address: self.address + at, bytes: bytes.min(self.bytes - at) }
    }
}

/// Device memory: returned to its pool when dropped.
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

/// Host memory that copies run at full speed from and to; kept for the next join when dropped.
pub(crate) struct Pinned {
    pub(crate) start: *mut u8,
    pub(crate) len: usize,
    /// Gives the memory back when dropped.
    pub(crate) _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: it owns its memory; who reads or writes promises that nobody else writes meanwhile.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Its bytes.
    ///
    /// # Safety
    /// Nothing writes to them while the slice lives: no copy from the device is under way.
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: memory of that length; the caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// Its bytes, to be written.
    ///
    /// # Safety
    /// Nothing else reads or writes them while the slice lives: no copy is under way.
    #[expect(clippy::mut_from_ref, reason = "copies share the buffer; the caller keeps them apart")]
    pub(crate) unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: memory of that length; the caller promises the rest.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// Some bytes of host memory, pinned or not, that somebody keeps for as long as they are used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostView {
    pub(crate) start: *const u8,
    pub(crate) bytes: u64,
}

// SAFETY: who reads the bytes promises that nobody writes them meanwhile.
unsafe impl Send for HostView {}
// SAFETY: as above.
unsafe impl Sync for HostView {}

impl HostView {
    /// The bytes of some values.
    pub(crate) fn of<T: Plain>(values: &[T]) -> HostView {
        HostView { start: values.as_ptr().cast(), bytes: size_of_val(values) as u64 }
    }

    /// `bytes` from `at` on; less where the view ends before.
    pub(crate) fn part(self, at: u64, bytes: u64) -> HostView {
        let at = at.min(self.bytes);
        HostView { start: self.start.wrapping_add(at as usize), bytes: bytes.min(self.bytes - at) }
    }
}

/// Memory that host and device both reach at the same address, page by page where it is used:
/// given back when dropped.
pub(crate) struct Managed {
    /// The host's side of it; copies do not run from here.
    pub(crate) start: *mut u8,
    pub(crate) view: View,
    /// Gives the memory back when dropped.
    pub(crate) _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: it owns its memory; who reads or writes promises that nobody else writes meanwhile.
unsafe impl Send for Managed {}
// SAFETY: as above.
unsafe impl Sync for Managed {}

/// A queue of work on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stream(pub(crate) usize);

/// Events whose times a device remembers, at least.
pub(crate) const EVENTS: usize = 16 * 1024;

/// A point in a stream's work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event(pub(crate) usize);

/// What a device's memory is used for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MemoryUse {
    pub(crate) budget: u64,
    pub(crate) used: u64,
    pub(crate) peak: u64,
}

/// Memory, streams, copies and stages: see the [module](self).
pub(crate) trait Device: Send + Sync {
    /// A name people know it by.
    fn name(&self) -> &str;
    /// How large its pieces of work are for words of this width.
    fn shape(&self, word: Width) -> Shape;
    /// Bytes of buffers that a [`Stage::Scatter`] to so many partitions needs; may be zero.
    fn scatter_bytes(&self, word: Width, how: Scatterer, partitions: u32) -> u64;
    /// How much memory joins may hold, do hold, and did hold at most.
    fn memory(&self) -> MemoryUse;
    /// How much of its budget joins can have now: less than all of it where others use the device.
    fn available(&self) -> Result<u64> {
        Ok(self.memory().budget)
    }
    /// Memory with any content, aligned to 256 bytes. Running out is
    /// [`Error::DeviceMemory`].
    fn allocate(&self, bytes: u64, what: &str) -> Result<Memory>;
    /// Host memory with any content.
    fn pinned(&self, bytes: usize, what: &str) -> Result<Arc<Pinned>>;
    /// The same, given back to the system when dropped instead of being kept: for joins with a memory
    /// limit.
    fn pinned_once(&self, bytes: usize, what: &str) -> Result<Arc<Pinned>> {
        self.pinned(bytes, what)
    }
    /// The host memory that [pinned](Device::pinned) memory of so many bytes takes.
    fn pinned_size(&self, bytes: usize) -> u64 {
        bytes as u64
    }
    /// Prepares the calling thread for many calls, until what is returned is dropped, on that thread.
    fn enter(&self) -> Result<Box<dyn Any>> {
        Ok(Box::new(()))
    }
    /// A stream. Streams live as long as the device, and are used again.
    fn stream(&self, index: usize) -> Result<Stream>;
    /// Copies `bytes` from byte `at` of the host to the device.
    fn copy_in(&self, stream: Stream, from: &Arc<Pinned>, at: usize, to: View) -> Result<()>;
    /// Copies from the device to byte `at` of the host.
    fn copy_out(&self, stream: Stream, from: View, to: &Arc<Pinned>, at: usize) -> Result<()>;
    /// Sets every byte.
    fn fill(&self, stream: Stream, to: View, byte: u8) -> Result<()>;
    /// Enqueues a stage. Addresses in it have to be this device's, and what lies there has to be
    /// as the stage's structure says.
    ///
    /// # Safety
    /// The views behind the addresses are as long as the stage needs and live until the stream has
    /// been synchronised.
    unsafe fn run(&self, stream: Stream, word: Width, stage: &Stage) -> Result<()>;
    /// Marks what is enqueued up to here. Once [`EVENTS`] more have been recorded, an event that has
    /// happened may be forgotten: waiting for it is no wait, but its time cannot be asked for.
    fn record(&self, stream: Stream) -> Result<Event>;
    /// Lets what is enqueued from here on wait for an event.
    fn wait(&self, stream: Stream, event: Event) -> Result<()>;
    /// Seconds between two events that have happened.
    fn seconds(&self, from: Event, to: Event) -> Result<f64>;
    /// Waits until everything enqueued on the stream is done.
    fn synchronize(&self, stream: Stream) -> Result<()>;
    /// Waits until an event has happened: what its stream copied before may be used again.
    fn wait_for(&self, event: Event) -> Result<()>;

    /// Copies from host memory that need not be pinned. Where it is not, the call may take as long
    /// as the copy.
    ///
    /// # Safety
    /// The memory is kept, and not written to, until the stream has been synchronised or an event
    /// recorded after this has been waited for.
    unsafe fn copy_from(&self, stream: Stream, from: HostView, to: View) -> Result<()>;
    /// Copies between two addresses of the device: its memory, [mapped](Device::mapped) memory or
    /// [ranges](Device::range), which do not overlap.
    fn copy_between(&self, stream: Stream, from: View, to: View) -> Result<()>;
    /// Pins memory that is somebody else's, until what is returned is dropped; the pages it touches
    /// are pinned as a whole.
    ///
    /// # Safety
    /// The memory is kept for as long as it is pinned.
    unsafe fn pin(&self, memory: HostView) -> Result<Arc<Pinned>>;
    /// Addresses at which stages reach pinned memory, over the link. Not charged to the budget.
    fn mapped(&self, pinned: &Arc<Pinned>) -> Result<Memory>;
    /// Addresses at which stages reach memory that is not pinned: [`Error::Setting`] where the
    /// device cannot.
    ///
    /// # Safety
    /// The memory is kept, and not written to by others, until what is returned is dropped.
    unsafe fn coherent(&self, memory: HostView) -> Result<Memory>;
    /// Managed memory with any content. Charged to the budget, since the device may come to hold
    /// all of it; never more than it has free.
    fn managed(&self, bytes: u64, what: &str) -> Result<Arc<Managed>>;
    /// Moves managed memory to the device, ahead of stages that use it.
    fn prefetch(&self, stream: Stream, managed: &Arc<Managed>) -> Result<()>;
    /// One range of addresses over the memories of device and host: with any content, aligned as
    /// memory is. The first `on_device` bytes, rounded up to whole pages, lie in the device's memory
    /// and are charged to the budget.
    fn range(&self, bytes: u64, on_device: u64, what: &str) -> Result<Memory>;

    /// An error where a join that has ended left memory, pins or work behind, or used memory after it
    /// gave it back. Only the simulated device knows, which no two joins share.
    fn check_released(&self) -> Result<()> {
        Ok(())
    }
}

/// A device that a join may run on, as far as it is known before it is opened: opening a GPU makes a
/// context, which takes a tenth of a second and some of its memory.
#[derive(Clone, Copy)]
pub(crate) enum Prospect {
    Gpu(&'static cuda::Gpu),
    /// A simulated device of that seed.
    Simulated(u64),
}

impl Prospect {
    pub(crate) fn name(&self) -> &str {
        match self {
            Prospect::Gpu(gpu) => &gpu.name,
            Prospect::Simulated(_) => "simulated",
        }
    }

    /// The device memory that the join may hold, if nobody else uses the device.
    pub(crate) fn budget(&self, gpu_memory: Option<u64>) -> u64 {
        match (gpu_memory, self) {
            (Some(asked), _) => asked,
            (None, Prospect::Gpu(gpu)) => gpu.memory / 10 * 9,
            (None, Prospect::Simulated(_)) => SIMULATED_MEMORY,
        }
    }

    /// An error where it is known, without opening the device, that no join can run on it.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            // Kernels are compiled, and kept by the version of the compiler.
            Prospect::Gpu(_) => cuda::Nvrtc::find().map(|_| ()),
            Prospect::Simulated(_) => Ok(()),
        }
    }

    pub(crate) fn open(
        &self,
        gpu_memory: Option<u64>,
        fault: Option<Fault>,
    ) -> Result<Arc<dyn Device>> {
        self.check()?;
        match *self {
            Prospect::Gpu(gpu) => Ok(cuda::shared(gpu, gpu_memory)?),
            Prospect::Simulated(seed) => {
                let memory = self.budget(gpu_memory);
                let shape = simulated::TINY;
                let settings = simulated::Settings { memory, shape, seed, coherent: true };
                Ok(Arc::new(simulated::Simulated::open(settings, fault)?))
            }
        }
    }
}

/// The GPUs of this machine, looked for once: where there is none, looking takes longer than joining
/// small tables does.
pub(crate) fn detected() -> &'static Result<Vec<cuda::Gpu>> {
    static DETECTED: OnceLock<Result<Vec<cuda::Gpu>>> = OnceLock::new();
    DETECTED.get_or_init(cuda::Gpu::detect)
}

/// The memory of a simulated device, where a join does not say.
pub(crate) const SIMULATED_MEMORY: u64 = 64 << 20;

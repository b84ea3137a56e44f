//! An NVIDIA GPU as a [`Device`].
//!
//! | question | file |
//! | --- | --- |
//! | Is there a GPU, and what are its properties? | [`detect`], [`link`] |
//! | What does the driver keep for the process? | [`context`] |
//! | Where does memory come from? | [`pool`] on the GPU, [`pinned`] on the host |
//! | How is memory of other owners pinned? | [`pages`] |
//! | How does a kernel reach host memory? | [`mapped`] in place, [`managed`] page by page |
//! | How does one range of addresses span both memories? | [`range`] |
//! | In which order does work run? | [`streams`] |
//! | When must one copy become several? | [`pieces`] |
//! | What stays for the next join? | [`shared`](mod@shared) |
//! | How do kernels get onto the GPU? | [`compile`] with [`nvrtc`], kept in the [`cache`] |
//! | Which kernels does a stage launch, and how large? | [`launch`], [`policy`] |
//!
//! The libraries of the driver and the compiler are looked for at run time. A call into a missing library
//! would panic. So nothing is called before [`Gpu::detect`] has found the driver, and everything else in
//! this module is created from a [`Gpu`].

mod cache;
mod compile;
mod context;
mod detect;
mod error;
mod host_pieces;
mod launch;
mod library;
mod link;
mod managed;
mod mapped;
mod nvrtc;
mod pages;
mod pieces;
mod pinned;
pub(crate) mod policy;
mod pool;
mod range;
mod shared;
mod streams;
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::ffi::c_void;
use std::sync::{Arc, Once};

use cudarc::driver::sys::{self, CUresult};

use crate::device::{
    Device, DeviceId, DeviceStage, Event, HostAccess, HostView, Managed, Memory, MemoryUse, Pinned,
    Scatterer, Shape, Stream, View,
};
use crate::error::{Error, Result};
use crate::memory::on_release;
use crate::word::Width;
use context::Context;
use error::{check, failure};
use pieces::Pieces;
use policy::Policy;
use pool::{Pool, Refusal, Source};
use range::Ranges;
use streams::Streams;

pub use crate::device::gpu::{Architecture, Gpu, Link};
pub use compile::{CompiledKernel, compile_kernels, kernel_cache};
pub(crate) use detect::is_initialised;
pub use nvrtc::Nvrtc;
pub(crate) use shared::{is_open, open, shared};

/// Shared memory that a block may use without asking for more.
const UNASKED_SHARED: u32 = 48 << 10;

/// Makes [`release_memory`](crate::release_memory) also release the host memory that is kept for joins on
/// GPUs.
fn register_release() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        on_release(pinned::release);
        on_release(host_pieces::release);
    });
}

/// A GPU that joins run on.
pub(crate) struct CudaDevice {
    id: DeviceId,
    gpu: Gpu,
    context: Arc<Context>,
    pool: Arc<Pool<Driver>>,
    ranges: Arc<Ranges>,
    streams: Streams,
}

impl CudaDevice {
    /// Prepares a GPU for joins that hold at most `gpu_memory` bytes of its memory. The default is nine
    /// tenths of the memory that is free now.
    pub(crate) fn new(gpu: &Gpu, gpu_memory: Option<u64>) -> Result<CudaDevice> {
        register_release();
        let context = Context::of(gpu)?;
        let budget = pool::budget(gpu_memory, gpu.free_memory()?)?;
        let pool = Pool::new(Driver(context.clone()), budget);
        let (ranges, streams) = (Arc::default(), Streams::default());
        Ok(CudaDevice { id: DeviceId::unique(), gpu: gpu.clone(), context, pool, ranges, streams })
    }

    /// Returns the number of multiprocessors.
    pub(super) fn multiprocessors(&self) -> u32 {
        self.gpu.processors
    }

    /// Returns the tuning values with which the device's kernels were compiled.
    pub(super) fn policy(&self, word: Width) -> Policy {
        policy::policy(policy::shared_bytes_of(self.gpu.architecture.capability()), word)
    }

    /// Returns an entry of a kernel module. The module is compiled and loaded on first use.
    pub(super) fn function(
        &self,
        module: &'static str,
        word: Width,
        entry: &str,
    ) -> Result<sys::CUfunction> {
        self.context.function(module, word, entry)
    }

    /// Enqueues a kernel that takes one structure. The tuple is the number of blocks, the threads per block,
    /// and the bytes of shared memory per block.
    ///
    /// # Safety
    /// `argument` must point to the structure that the kernel takes. The addresses in it must fulfil the
    /// contract of [`Device::run`].
    pub(super) unsafe fn launch_kernel(
        &self,
        function: sys::CUfunction,
        (blocks, threads, shared): (u32, u32, u32),
        stream: Stream,
        argument: *mut c_void,
    ) -> Result<()> {
        let _bound = self.context.bind()?;
        let raw = self.streams.raw(stream)?;
        if shared > UNASKED_SHARED {
            let which =
                sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function belongs to a module that is never unloaded.
            let code = unsafe { sys::cuFuncSetAttribute(function, which, shared as i32) };
            check(code, &format!("asking for {shared} bytes of shared memory"))?;
        }
        let mut arguments = [argument];
        // SAFETY: the driver copies the argument before it returns; the caller guarantees the rest.
        let code = unsafe {
            sys::cuLaunchKernel(
                function,
                blocks,
                1,
                1,
                threads,
                1,
                1,
                shared,
                raw,
                arguments.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        };
        check(code, "starting a kernel")
    }

    /// Returns the pieces of a copy between the GPU and pinned memory, starting at byte `at`.
    fn pieces(&self, host: &Pinned, at: usize, device: View) -> Pieces {
        Pieces::of(device.bytes).cut(pages::cuts(host, at)).cut(self.ranges.cuts(device))
    }

    /// Checks that `bytes` bytes, starting at byte `at`, lie inside the pinned memory.
    fn inside(host: &Pinned, at: usize, bytes: u64) -> Result<()> {
        let end = (at as u64).checked_add(bytes);
        if end.is_none_or(|end| end > host.len as u64) {
            let message = format!("a copy of {bytes} bytes at {at} leaves {} bytes", host.len);
            return Err(Error::internal(message));
        }
        Ok(())
    }

    /// Returns the number of an event, or an error if another device recorded it.
    fn own(&self, event: Event) -> Result<usize> {
        self.id.check(event.device, "an event")?;
        Ok(event.number)
    }

    /// Checks that memory belongs to this device.
    fn check_owner(&self, view: View) -> Result<()> {
        self.id.check(view.device, "memory")
    }

    /// Checks that both ends of a copy have the same length.
    fn alike(from: u64, to: u64) -> Result<()> {
        if from != to {
            return Err(Error::internal(format!("a copy of {from} bytes to {to} bytes")));
        }
        Ok(())
    }
}

impl Device for CudaDevice {
    fn id(&self) -> DeviceId {
        self.id
    }

    fn name(&self) -> &str {
        &self.gpu.name
    }

    fn shape(&self, word: Width) -> Shape {
        self.policy(word).shape(self.gpu.l2)
    }

    fn scatter_bytes(&self, word: Width, how: Scatterer, partitions: u32) -> u64 {
        self.policy(word).scatter_bytes(word, how, partitions, self.multiprocessors())
    }

    fn memory(&self) -> MemoryUse {
        self.pool.memory()
    }

    fn available(&self) -> Result<u64> {
        Ok(self.pool.available(self.gpu.free_memory()?))
    }

    fn allocate(&self, bytes: u64, what: &str) -> Result<Memory> {
        let mut memory = self.pool.allocate(bytes, what)?;
        memory.view.device = self.id;
        Ok(memory)
    }

    fn enter(&self) -> Result<Box<dyn Any>> {
        Ok(Box::new(self.context.bind()?))
    }

    fn stream(&self, index: usize) -> Result<Stream> {
        let _bound = self.context.bind()?;
        self.streams.open(index)
    }

    fn copy_in(&self, stream: Stream, from: &Arc<Pinned>, at: usize, to: View) -> Result<()> {
        self.check_owner(to)?;
        Self::inside(from, at, to.bytes)?;
        if to.bytes == 0 {
            return Ok(());
        }
        let _bound = self.context.bind()?;
        let pieces = self.pieces(from, at, to);
        self.streams.copy(stream, from, "copying to the GPU", |raw| {
            // SAFETY: the copy is inside both memories. The stream holds the host memory until it is
            // synchronised, and the caller keeps the device memory.
            pieces.copy(|piece, bytes| unsafe {
                let source = from.start.add(at + piece as usize).cast();
                sys::cuMemcpyHtoDAsync_v2(to.address + piece, source, bytes as usize, raw)
            })
        })
    }

    fn copy_out(&self, stream: Stream, from: View, to: &Arc<Pinned>, at: usize) -> Result<()> {
        self.check_owner(from)?;
        Self::inside(to, at, from.bytes)?;
        if from.bytes == 0 {
            return Ok(());
        }
        let _bound = self.context.bind()?;
        let pieces = self.pieces(to, at, from);
        self.streams.copy(stream, to, "copying from the GPU", |raw| {
            // SAFETY: as in `copy_in`.
            pieces.copy(|piece, bytes| unsafe {
                let target = to.start.add(at + piece as usize).cast();
                sys::cuMemcpyDtoHAsync_v2(target, from.address + piece, bytes as usize, raw)
            })
        })
    }

    fn fill(&self, stream: Stream, to: View, byte: u8) -> Result<()> {
        self.check_owner(to)?;
        if to.bytes == 0 {
            return Ok(());
        }
        let _bound = self.context.bind()?;
        let raw = self.streams.raw(stream)?;
        // SAFETY: device memory of this length, which the caller keeps.
        let code = Pieces::of(to.bytes).cut(self.ranges.cuts(to)).copy(|at, bytes| unsafe {
            sys::cuMemsetD8Async(to.address + at, byte, bytes as usize, raw)
        });
        check(code, "filling memory")
    }

    unsafe fn run(&self, stream: Stream, word: Width, stage: &DeviceStage) -> Result<()> {
        // SAFETY: the caller promises the same.
        unsafe { launch::launch(self, stream, word, stage) }
    }

    fn record(&self, stream: Stream) -> Result<Event> {
        let _bound = self.context.bind()?;
        Ok(Event { device: self.id, number: self.streams.record(stream)? })
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        let number = self.own(event)?;
        let _bound = self.context.bind()?;
        self.streams.wait(stream, number)
    }

    fn seconds(&self, from: Event, to: Event) -> Result<f64> {
        let (from, to) = (self.own(from)?, self.own(to)?);
        let _bound = self.context.bind()?;
        self.streams.seconds(from, to)
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        let _bound = self.context.bind()?;
        self.streams.synchronize(stream)
    }

    fn wait_for(&self, event: Event) -> Result<()> {
        let number = self.own(event)?;
        let _bound = self.context.bind()?;
        self.streams.wait_for(number)
    }

    fn copy_between(&self, stream: Stream, from: View, to: View) -> Result<()> {
        self.check_owner(from)?;
        self.check_owner(to)?;
        Self::alike(from.bytes, to.bytes)?;
        let _bound = self.context.bind()?;
        let raw = self.streams.raw(stream)?;
        // Mapped memory has the same addresses as on the host.
        let mapped = |view: View| pages::cuts_at(view.address as usize, view.bytes);
        let pieces = Pieces::of(to.bytes)
            .cut(mapped(from))
            .cut(mapped(to))
            .cut(self.ranges.cuts(from))
            .cut(self.ranges.cuts(to));
        // SAFETY: both addresses belong to the GPU and have this many bytes, which the caller keeps.
        let code = pieces.copy(|at, bytes| unsafe {
            sys::cuMemcpyAsync(to.address + at, from.address + at, bytes as usize, raw)
        });
        check(code, "copying on the GPU")
    }
}

impl HostAccess for CudaDevice {
    fn pinned(&self, bytes: usize, what: &str) -> Result<Arc<Pinned>> {
        pinned::take(bytes, what, &self.context)
    }

    fn pinned_once(&self, bytes: usize, what: &str) -> Result<Arc<Pinned>> {
        pinned::take_once(bytes, what, &self.context)
    }

    fn pinned_size(&self, bytes: usize) -> u64 {
        pinned::region_size(bytes).map_or(u64::MAX, |size| size as u64)
    }

    unsafe fn copy_from(&self, stream: Stream, from: HostView, to: View) -> Result<()> {
        self.check_owner(to)?;
        Self::alike(from.bytes, to.bytes)?;
        let _bound = self.context.bind()?;
        let raw = self.streams.raw(stream)?;
        let pieces = Pieces::of(to.bytes)
            .cut(pages::cuts_at(from.start as usize, from.bytes))
            .cut(self.ranges.cuts(to));
        // SAFETY: memory of this length on both sides, which the caller keeps.
        let code = pieces.copy(|at, bytes| unsafe {
            let source = from.start.add(at as usize).cast();
            sys::cuMemcpyHtoDAsync_v2(to.address + at, source, bytes as usize, raw)
        });
        check(code, "copying to the GPU")
    }

    unsafe fn pin(&self, memory: HostView) -> Result<Arc<Pinned>> {
        // SAFETY: the caller guarantees the same.
        unsafe { pages::pin(&self.context, memory) }
    }

    fn mapped(&self, pinned: &Arc<Pinned>) -> Result<Memory> {
        mapped::pinned(self, pinned)
    }

    unsafe fn coherent(&self, memory: HostView) -> Result<Memory> {
        mapped::coherent(self, memory)
    }

    fn managed(&self, bytes: u64, what: &str) -> Result<Arc<Managed>> {
        managed::allocate(self, bytes, what)
    }

    fn prefetch(&self, stream: Stream, managed: &Arc<Managed>) -> Result<()> {
        self.check_owner(managed.view)?;
        managed::prefetch(self, stream, managed.view)
    }

    fn range(&self, bytes: u64, on_device: u64, what: &str) -> Result<Memory> {
        range::allocate(self, bytes, on_device, what)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        if let Ok(_bound) = self.context.bind() {
            self.streams.close();
        }
    }
}

/// The driver as a source of memory.
struct Driver(Arc<Context>);

impl Source for Driver {
    fn allocate(&self, bytes: u64) -> Result<u64, Refusal> {
        let _bound = self.0.bind().map_err(Refusal::Failed)?;
        let mut address = 0;
        // SAFETY: the context is bound; the call writes an address.
        match unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) } {
            CUresult::CUDA_SUCCESS => Ok(address),
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Refusal::OutOfMemory),
            code => Err(Refusal::Failed(failure(code, "allocating memory"))),
        }
    }

    fn free(&self, address: u64) {
        // Freeing waits for the GPU, so work that still uses the memory finishes first.
        let freed = self.0.bind().and_then(|_bound| {
            // SAFETY: an address from `allocate`, freed once.
            check(unsafe { sys::cuMemFree_v2(address) }, "freeing memory")
        });
        if let Err(error) = freed {
            log::debug!("{error}");
        }
    }
}

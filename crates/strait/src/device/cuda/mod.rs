//! A GPU of NVIDIA's as a [`Device`].
//!
//! | question | file |
//! | --- | --- |
//! | Is there a GPU, and what is it like? | [`detect`], [`link`] |
//! | What does the driver keep for the process? | [`context`] |
//! | Where does memory come from? | [`pool`] on the GPU, [`pinned`] on the host |
//! | In what order does work run? | [`streams`] |
//! | What stays for the next join? | [`shared`](mod@shared) |
//! | How do kernels get onto the GPU? | [`compile`], by [`nvrtc`], kept in the [`cache`] |
//! | Which kernel is a stage, and how large? | [`launch`], [`policy`] |
//!
//! The driver's and the compiler's libraries are looked for at run time; the calls of a missing
//! library would panic, so nothing is called before [`Gpu::detect`] has said that it is there, and
//! everything else here is made from a [`Gpu`].

mod cache;
mod compile;
mod context;
mod detect;
mod error;
mod launch;
mod library;
mod link;
mod nvrtc;
pub(crate) mod pinned;
pub(crate) mod policy;
mod pool;
mod shared;
mod streams;
#[doc(hidden)]
pub mod testing;
#[cfg(test)]
mod tests;

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};

use crate::device::{Device, Event, Memory, MemoryUse, Pinned, Shape, Stage, Stream, View, Word};
use crate::error::{Error, Result};
use context::Context;
use error::{check, failure};
use policy::Policy;
use pool::{Pool, Refusal, Source};
use streams::Streams;

pub use compile::{CompiledKernel, compile_kernels, kernel_cache};
pub use detect::{Architecture, Gpu, Link};
pub use nvrtc::Nvrtc;
pub(crate) use shared::shared;

/// Shared memory a block has without asking.
const UNASKED_SHARED: u32 = 48 << 10;

/// A GPU that joins run on.
pub(crate) struct CudaDevice {
    gpu: Gpu,
    context: Arc<Context>,
    pool: Arc<Pool<Driver>>,
    streams: Streams,
}

impl CudaDevice {
    /// Prepares a GPU for joins that hold at most `gpu_memory` bytes of its memory, or nine tenths
    /// of what is free now.
    pub(crate) fn new(gpu: &Gpu, gpu_memory: Option<u64>) -> Result<CudaDevice> {
        let context = Context::of(gpu)?;
        let budget = pool::budget(gpu_memory, gpu.free_memory()?)?;
        let pool = Pool::new(Driver(context.clone()), budget);
        Ok(CudaDevice { gpu: gpu.clone(), context, pool, streams: Streams::default() })
    }

    /// How many multiprocessors it has.
    pub(super) fn multiprocessors(&self) -> u32 {
        self.gpu.processors
    }

    /// How its kernels are shaped: as they were compiled.
    pub(super) fn policy(&self, word: Word) -> Policy {
        policy::policy(policy::shared_bytes_of(self.gpu.architecture.capability()), word)
    }

    /// An entry of a kernel's module, compiled and loaded on first use.
    pub(super) fn function(
        &self,
        module: &'static str,
        word: Word,
        entry: &str,
    ) -> Result<sys::CUfunction> {
        self.context.function(module, word, entry)
    }

    /// Enqueues a kernel that takes one structure: so many blocks, threads of each, and bytes of
    /// shared memory.
    ///
    /// # Safety
    /// The kernel takes what is at `argument`, and the addresses in there are as
    /// [`Device::run`] wants them.
    pub(super) unsafe fn launch_kernel(
        &self,
        function: sys::CUfunction,
        (blocks, threads, shared): (u32, u32, u32),
        stream: Stream,
        argument: *mut c_void,
    ) -> Result<()> {
        self.context.bind()?;
        let raw = self.streams.raw(stream)?;
        if shared > UNASKED_SHARED {
            let which =
                sys::CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: a function of a module that is never unloaded.
            let code = unsafe { sys::cuFuncSetAttribute(function, which, shared as i32) };
            check(code, &format!("asking for {shared} bytes of shared memory"))?;
        }
        let mut arguments = [argument];
        // SAFETY: the driver copies the argument before it returns; the caller vouches for the
        // rest.
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

    /// Whether `bytes` from `at` on lie in the host's memory.
    fn inside(host: &Pinned, at: usize, bytes: u64) -> Result<()> {
        let end = (at as u64).checked_add(bytes);
        if end.is_none_or(|end| end > host.len as u64) {
            let message = format!("a copy of {bytes} bytes at {at} leaves {} bytes", host.len);
            return Err(Error::Worker(message));
        }
        Ok(())
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        &self.gpu.name
    }

    fn shape(&self, word: Word) -> Shape {
        self.policy(word).shape(self.gpu.l2)
    }

    fn memory(&self) -> MemoryUse {
        self.pool.memory()
    }

    fn allocate(&self, bytes: u64, what: &str) -> Result<Memory> {
        self.pool.allocate(bytes, what)
    }

    fn pinned(&self, bytes: usize, what: &str) -> Result<Arc<Pinned>> {
        pinned::take(bytes, what, &self.context)
    }

    fn stream(&self, index: usize) -> Result<Stream> {
        self.context.bind()?;
        self.streams.open(index)
    }

    fn copy_in(&self, stream: Stream, from: &Arc<Pinned>, at: usize, to: View) -> Result<()> {
        Self::inside(from, at, to.bytes)?;
        if to.bytes == 0 {
            return Ok(());
        }
        self.context.bind()?;
        self.streams.copy(stream, from, "copying to the GPU", |raw| {
            // SAFETY: inside both memories; the host's is held until the stream is synchronised,
            // the device's by the caller.
            unsafe {
                let source = from.start.add(at).cast();
                sys::cuMemcpyHtoDAsync_v2(to.address, source, to.bytes as usize, raw)
            }
        })
    }

    fn copy_out(&self, stream: Stream, from: View, to: &Arc<Pinned>, at: usize) -> Result<()> {
        Self::inside(to, at, from.bytes)?;
        if from.bytes == 0 {
            return Ok(());
        }
        self.context.bind()?;
        self.streams.copy(stream, to, "copying from the GPU", |raw| {
            // SAFETY: as in `copy_in`.
            unsafe {
                let target = to.start.add(at).cast();
                sys::cuMemcpyDtoHAsync_v2(target, from.address, from.bytes as usize, raw)
            }
        })
    }

    fn fill(&self, stream: Stream, to: View, byte: u8) -> Result<()> {
        if to.bytes == 0 {
            return Ok(());
        }
        self.context.bind()?;
        let raw = self.streams.raw(stream)?;
        // SAFETY: device memory of that length, kept by the caller.
        let code = unsafe { sys::cuMemsetD8Async(to.address, byte, to.bytes as usize, raw) };
        check(code, "filling memory")
    }

    unsafe fn run(&self, stream: Stream, word: Word, stage: &Stage) -> Result<()> {
        // SAFETY: the caller promises the same.
        unsafe { launch::launch(self, stream, word, stage) }
    }

    fn record(&self, stream: Stream) -> Result<Event> {
        self.context.bind()?;
        self.streams.record(stream)
    }

    fn wait(&self, stream: Stream, event: Event) -> Result<()> {
        self.context.bind()?;
        self.streams.wait(stream, event)
    }

    fn seconds(&self, from: Event, to: Event) -> Result<f64> {
        self.context.bind()?;
        self.streams.seconds(from, to)
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        self.context.bind()?;
        self.streams.synchronize(stream)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            self.streams.close();
        }
    }
}

/// The driver as a source of memory.
struct Driver(Arc<Context>);

impl Source for Driver {
    fn allocate(&self, bytes: u64) -> Result<u64, Refusal> {
        self.0.bind().map_err(Refusal::Failed)?;
        let mut address = 0;
        // SAFETY: the context is bound; writes an address.
        match unsafe { sys::cuMemAlloc_v2(&mut address, bytes as usize) } {
            CUresult::CUDA_SUCCESS => Ok(address),
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Refusal::OutOfMemory),
            code => Err(Refusal::Failed(failure(code, "allocating memory"))),
        }
    }

    fn free(&self, address: u64) {
        // Freeing waits for the GPU, so work that still used the memory would be done first.
        let freed = self.0.bind().and_then(|()| {
            // SAFETY: an address of `allocate`, freed once.
            check(unsafe { sys::cuMemFree_v2(address) }, "freeing memory")
        });
        if let Err(error) = freed {
            log::debug!("{error}");
        }
    }
}

//! Managed memory: host and GPU reach it at the same addresses, and its pages move to where they are used.
//!
//! The driver gets no advice about the location of pages. The host writes them and the GPU reads them, and
//! without advice a page lies where it was used last. The GPU may come to hold all of it. So all of it
//! counts against the budget, and it is never more than the free GPU memory: a GPU that must evict managed
//! pages to make room for others may nearly stop.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUresult};

use super::context::Context;
use super::error::{check, failure};
use super::pool::{self, Refusal};
use super::range::location_of;
use super::{CudaDevice, Driver};
use crate::device::{Managed, Stream, View};
use crate::error::{Error, Result};

/// Managed memory from the driver, freed when dropped.
struct ManagedMemory {
    context: Arc<Context>,
    address: u64,
}

/// A block and its charge to the budget. The order matters: the block is freed before it is no longer
/// counted.
struct Owner {
    _block: ManagedMemory,
    _charge: pool::Charge<Driver>,
}

/// Allocates `bytes` bytes of managed memory.
pub(super) fn allocate(device: &CudaDevice, bytes: u64, what: &str) -> Result<Arc<Managed>> {
    if !device.gpu.managed_access {
        return Err(Error::unsupported(
            format!("{} and the host cannot use managed memory at the same time", device.gpu.name),
            "use the transfer method staged-copy",
        ));
    }
    // A size that overflows exceeds every budget.
    let size = pool::block_size(bytes).unwrap_or(u64::MAX);
    let (block, charge) = device.pool.charged(size, what, || {
        if device.gpu.free_memory().map_err(Refusal::Failed)? < size {
            return Err(Refusal::OutOfMemory);
        }
        ManagedMemory::allocate(&device.context, size)
    })?;
    let start = block.address as *mut u8;
    let view = View::new(device.id, block.address, bytes);
    Ok(Arc::new(Managed {
        start,
        view,
        _owner: Box::new(Owner { _block: block, _charge: charge }),
    }))
}

type Prefetch = unsafe extern "C" fn(
    sys::CUdeviceptr,
    usize,
    sys::CUmemLocation,
    libc::c_uint,
    sys::CUstream,
) -> CUresult;
type OldPrefetch =
    unsafe extern "C" fn(sys::CUdeviceptr, usize, sys::CUdevice, sys::CUstream) -> CUresult;

/// Moves pages to the GPU, in stream order.
pub(super) fn prefetch(device: &CudaDevice, stream: Stream, view: View) -> Result<()> {
    if view.bytes == 0 {
        return Ok(());
    }
    let _bound = device.context.bind()?;
    let raw = device.streams.raw(stream)?;
    let (address, bytes) = (view.address, view.bytes as usize);
    // CUDA 12.2 introduced the second version. It is not documented how long drivers keep the first.
    // SAFETY: the types are the ones in cuda.h.
    let (new, old) = unsafe {
        let driver = sys::culib();
        let old = driver.get::<OldPrefetch>("cuMemPrefetchAsync".as_bytes());
        (driver.get::<Prefetch>("cuMemPrefetchAsync_v2".as_bytes()), old)
    };
    let code = match (new, old) {
        // SAFETY: managed memory of this length, and a stream of this context.
        (Ok(prefetch), _) => unsafe { prefetch(address, bytes, location_of(&device.gpu), 0, raw) },
        // SAFETY: as above.
        (_, Ok(prefetch)) => unsafe { prefetch(address, bytes, device.gpu.device, raw) },
        (_, Err(error)) => {
            return Err(Error::NoGpu { why: format!("the driver is too old: {error}") });
        }
    };
    check(code, "moving managed memory to the GPU")
}

impl ManagedMemory {
    fn allocate(context: &Arc<Context>, size: u64) -> Result<ManagedMemory, Refusal> {
        let _bound = context.bind().map_err(Refusal::Failed)?;
        let mut address = 0;
        let flags = sys::CUmemAttach_flags_enum::CU_MEM_ATTACH_GLOBAL as u32;
        // SAFETY: the context is bound; the call writes an address.
        match unsafe { sys::cuMemAllocManaged(&mut address, size as usize, flags) } {
            CUresult::CUDA_SUCCESS => Ok(ManagedMemory { context: Arc::clone(context), address }),
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => Err(Refusal::OutOfMemory),
            code => Err(Refusal::Failed(failure(code, "allocating managed memory"))),
        }
    }
}

impl Drop for ManagedMemory {
    fn drop(&mut self) {
        // Freeing waits for the GPU, so work that still uses the memory finishes first.
        let freed = self.context.bind().and_then(|_bound| {
            // SAFETY: an address from `allocate`, freed once.
            check(unsafe { sys::cuMemFree_v2(self.address) }, "freeing managed memory")
        });
        if let Err(error) = freed {
            log::debug!("{error}");
        }
    }
}

//! One range of addresses over two memories: some pages lie on the GPU, the others in the host's
//! memory, and kernels need not know which (000 figure 12, 001 figure 8).
//!
//! ```text
//!   First(n)         │ GPU   GPU   GPU │ host  host  host  host  host │    two allocations
//!   Interleaved(n)   │ host  host │ GPU │ host │ GPU │ host  host │ GPU │  one a run of pages
//! ```
//!
//! A page is 2 MiB. The driver maps an allocation as a whole, so neighbouring pages in one memory are
//! one allocation. Copies are [cut](super::pieces) where the range goes from one to the next.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::sys::{self, CUresult};

use super::CudaDevice;
use super::context::Context;
use super::detect::Gpu;
use super::error::{check, failure};
use super::pool::Refusal;
use crate::device::{Memory, Spread, View};
use crate::error::{Error, Result};

/// The GPU's page. Ranges have no smaller ones, though a driver may want larger ones.
const PAGE: u64 = 2 << 20;

/// The ranges of a device: where each begins, and where its allocations end.
#[derive(Default)]
pub(super) struct Ranges(Mutex<BTreeMap<u64, Vec<u64>>>);

impl Ranges {
    /// Where some memory goes from one allocation to the next: offsets from its start.
    pub(super) fn cuts(&self, view: View) -> Vec<u64> {
        let ranges = self.locked();
        let Some((_, ends)) = ranges.range(..=view.address).next_back() else { return Vec::new() };
        let first = ends.partition_point(|&end| end <= view.address);
        let last = view.address.saturating_add(view.bytes);
        ends[first..].iter().take_while(|&&end| end < last).map(|end| end - view.address).collect()
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<u64>>> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// Neighbouring pages in one memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    on_gpu: bool,
    pages: u64,
}

/// How many of `pages` lie on the GPU.
fn on_gpu(pages: u64, spread: Spread, page: u64) -> u64 {
    let (Spread::First(bytes) | Spread::Interleaved(bytes)) = spread;
    bytes.div_ceil(page).min(pages)
}

/// The runs of a range of `pages`, in order.
fn runs(pages: u64, spread: Spread, page: u64) -> impl Iterator<Item = Run> {
    let count = on_gpu(pages, spread, page);
    // Whether a page is the one with which another one of `count` is due.
    let due = move |at: u64| u128::from(at) * u128::from(count) / u128::from(pages.max(1));
    let kind = move |at: u64| match spread {
        Spread::First(_) => at < count,
        Spread::Interleaved(_) => due(at + 1) > due(at),
    };
    let mut begin = 0;
    std::iter::from_fn(move || {
        if begin >= pages {
            return None;
        }
        let on_gpu = kind(begin);
        let end = match spread {
            Spread::First(_) if on_gpu => count,
            Spread::First(_) => pages,
            Spread::Interleaved(_) => {
                (begin + 1..pages).find(|&at| kind(at) != on_gpu).unwrap_or(pages)
            }
        };
        let run = Run { on_gpu, pages: end - begin };
        begin = end;
        Some(run)
    })
}

/// Memory of `bytes`, spread over both memories.
pub(super) fn allocate(
    device: &CudaDevice,
    bytes: u64,
    spread: Spread,
    what: &str,
) -> Result<Memory> {
    device.context.bind()?;
    let page = page(&device.gpu)?;
    let pages = bytes.max(1).div_ceil(page);
    let in_gpu = on_gpu(pages, spread, page) * page;
    let too_much = || Error::OutOfMemory { what: what.to_string(), needed: bytes };
    let total = pages.checked_mul(page).ok_or_else(too_much)?;
    let in_host = total - in_gpu;
    let (range, charge) = device.pool.charged(in_gpu, what, || {
        let mut range = Range::reserve(device, total, page).map_err(Refusal::Failed)?;
        for run in runs(pages, spread, page) {
            let mapped = range.map(run.pages * page, &properties(&device.gpu, run.on_gpu));
            mapped.map_err(|code| match (code, run.on_gpu) {
                (CUresult::CUDA_ERROR_OUT_OF_MEMORY, true) => Refusal::OutOfMemory,
                (CUresult::CUDA_ERROR_OUT_OF_MEMORY, false) => {
                    let what = format!("the part in host memory of {what}");
                    Refusal::Failed(Error::OutOfMemory { what, needed: in_host })
                }
                (
                    CUresult::CUDA_ERROR_NOT_SUPPORTED
                    | CUresult::CUDA_ERROR_NOT_PERMITTED
                    | CUresult::CUDA_ERROR_INVALID_DEVICE
                    | CUresult::CUDA_ERROR_INVALID_VALUE,
                    false,
                ) => Refusal::Failed(unsupported(&device.gpu)),
                (code, _) => Refusal::Failed(failure(code, "mapping a range of memory")),
            })?;
        }
        range.publish(&device.gpu).map_err(Refusal::Failed)?;
        Ok(range)
    })?;
    let view = View { address: range.address, bytes };
    // In this order: the range is given back first, and then no longer counted.
    Ok(Memory { view, _owner: Box::new((range, charge)) })
}

fn unsupported(gpu: &Gpu) -> Error {
    let (major, minor) = gpu.driver;
    Error::Setting(format!(
        "{} with a driver for CUDA {major}.{minor} cannot map its own memory and the host's into one range; a driver for CUDA 12.2 or later may, or choose an algorithm that needs no such range, as with --algorithm cpu-partitioned",
        gpu.name
    ))
}

/// The bytes of a page of a range, for both memories.
fn page(gpu: &Gpu) -> Result<u64> {
    if !gpu.virtual_memory || !gpu.host_virtual_memory {
        return Err(unsupported(gpu));
    }
    let least = sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let mut page = PAGE;
    for on_gpu in [true, false] {
        let mut bytes = 0;
        // SAFETY: the context is bound; reads the properties and writes a number.
        let code = unsafe {
            sys::cuMemGetAllocationGranularity(&mut bytes, &properties(gpu, on_gpu), least)
        };
        match code {
            CUresult::CUDA_SUCCESS => page = page.max(bytes as u64),
            _ if !on_gpu => return Err(unsupported(gpu)),
            code => return Err(failure(code, "asking for the size of pages")),
        }
    }
    Ok(page)
}

/// What the driver has to know of an allocation: where it is to lie.
fn properties(gpu: &Gpu, on_gpu: bool) -> sys::CUmemAllocationProp {
    let location = if on_gpu {
        location_of(gpu)
    } else {
        let type_ = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_HOST_NUMA;
        sys::CUmemLocation { type_, id: gpu.host_node }
    };
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType_enum(0),
        location,
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// The GPU's own memory.
pub(super) fn location_of(gpu: &Gpu) -> sys::CUmemLocation {
    let type_ = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    sys::CUmemLocation { type_, id: gpu.device }
}

/// Reserved addresses, of which the first are mapped.
struct Range {
    context: Arc<Context>,
    home: Arc<Ranges>,
    address: u64,
    bytes: u64,
    /// Where the mapped allocations end.
    ends: Vec<u64>,
}

impl Range {
    fn reserve(device: &CudaDevice, bytes: u64, alignment: u64) -> Result<Range> {
        device.context.bind()?;
        let mut address = 0;
        // SAFETY: addresses of the driver's choice; writes the first.
        let code = unsafe {
            sys::cuMemAddressReserve(&mut address, bytes as usize, alignment as usize, 0, 0)
        };
        check(code, "reserving a range of addresses")?;
        let (context, home) = (Arc::clone(&device.context), Arc::clone(&device.ranges));
        Ok(Range { context, home, address, bytes, ends: Vec::new() })
    }

    /// Maps a new allocation behind those that are mapped.
    fn map(&mut self, bytes: u64, properties: &sys::CUmemAllocationProp) -> Result<(), CUresult> {
        let succeeded = |code| match code {
            CUresult::CUDA_SUCCESS => Ok(()),
            code => Err(code),
        };
        let address = self.ends.last().copied().unwrap_or(self.address);
        let mut handle = 0;
        // SAFETY: whole pages; reads the properties and writes a handle.
        succeeded(unsafe { sys::cuMemCreate(&mut handle, bytes as usize, properties, 0) })?;
        // SAFETY: addresses that are reserved and not mapped, as many as the allocation has.
        let mapped = unsafe { sys::cuMemMap(address, bytes as usize, 0, handle, 0) };
        // SAFETY: a handle from above, not used any more; the mapping keeps the memory.
        let released = unsafe { sys::cuMemRelease(handle) };
        succeeded(mapped)?;
        self.ends.push(address + bytes);
        succeeded(released)
    }

    /// Lets the GPU read and write all of it, and copies know where it is cut.
    fn publish(&self, gpu: &Gpu) -> Result<()> {
        let flags = sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = sys::CUmemAccessDesc { location: location_of(gpu), flags };
        // SAFETY: all of the range is mapped; reads one description.
        let code = unsafe { sys::cuMemSetAccess(self.address, self.bytes as usize, &access, 1) };
        check(code, "opening a range of memory to the GPU")?;
        self.home.locked().insert(self.address, self.ends.clone());
        Ok(())
    }

    /// Undoes all, as far as the driver lets us.
    fn undo(&self) -> Result<()> {
        self.context.bind()?;
        // Unmapping does not wait for the GPU, as freeing does: work that still uses the range would
        // fail, and the process could not use the GPU any more.
        // SAFETY: the context is bound.
        let waited = check(unsafe { sys::cuCtxSynchronize() }, "waiting for the GPU");
        let mut begin = self.address;
        for &end in &self.ends {
            // SAFETY: exactly what was mapped, and nobody uses it any more.
            let code = unsafe { sys::cuMemUnmap(begin, (end - begin) as usize) };
            check(code, "unmapping a range of memory")?;
            begin = end;
        }
        // SAFETY: reserved with this extent, and nothing is mapped there any more.
        let code = unsafe { sys::cuMemAddressFree(self.address, self.bytes as usize) };
        check(code, "giving a range of addresses back")?;
        waited
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        self.home.locked().remove(&self.address);
        if let Err(error) = self.undo() {
            log::debug!("{error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pages of a range, one a character.
    fn shown(pages: u64, spread: Spread) -> String {
        runs(pages, spread, 10)
            .flat_map(|run| vec![if run.on_gpu { 'g' } else { 'h' }; run.pages as usize])
            .collect()
    }

    #[test]
    fn the_first_pages_are_the_gpus() {
        assert_eq!(shown(5, Spread::First(0)), "hhhhh");
        assert_eq!(shown(5, Spread::First(21)), "ggghh");
        assert_eq!(shown(5, Spread::First(u64::MAX)), "ggggg");
        assert_eq!(runs(1 << 40, Spread::First(10), 10).count(), 2);
    }

    #[test]
    fn interleaved_pages_are_spread_evenly() {
        assert_eq!(shown(6, Spread::Interleaved(30)), "hghghg");
        assert_eq!(shown(6, Spread::Interleaved(15)), "hhghhg");
        assert_eq!(shown(6, Spread::Interleaved(0)), "hhhhhh");
        assert_eq!(shown(6, Spread::Interleaved(1000)), "gggggg");
        for pages in 1..40u64 {
            for count in 0..=pages {
                let text = shown(pages, Spread::Interleaved(10 * count));
                assert_eq!(text.matches('g').count() as u64, count);
                // No part of the range has more than its share, but for a page.
                for end in 1..=pages {
                    let here = text[..end as usize].matches('g').count() as u64;
                    assert!(here * pages <= end * count && (here + 1) * pages > end * count);
                }
            }
        }
        let run = |on_gpu, pages| Run { on_gpu, pages };
        let found: Vec<Run> = runs(6, Spread::Interleaved(40), 10).collect();
        assert_eq!(found, [run(false, 1), run(true, 2), run(false, 1), run(true, 2)]);
    }

    #[test]
    fn copies_are_cut_where_the_memory_changes() {
        let ranges = Ranges::default();
        ranges.locked().insert(1000, vec![1010, 1040, 1100]);
        ranges.locked().insert(2000, vec![2010]);
        let cuts = |address, bytes| ranges.cuts(View { address, bytes });
        assert_eq!(cuts(1000, 100), [10, 40]);
        assert_eq!(cuts(1005, 30), [5]);
        assert_eq!(cuts(1010, 30), []);
        assert_eq!(cuts(1039, 2), [1]);
        assert_eq!(cuts(500, 100), []);
        assert_eq!(cuts(1500, 100), []);
        assert_eq!(cuts(2000, u64::MAX), [10]);
    }
}

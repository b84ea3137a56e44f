//! One range of addresses over two memories: some pages lie on the GPU, the others in host memory, and
//! kernels need not know which (000 figure 12, 001 figure 8).
//!
//! ```text
//!   │ GPU             │ host │ host │ host │ host │
//! ```
//!
//! The driver maps an allocation only as a whole. So the host part consists of pieces of equal size: 2 MiB
//! in short ranges, more in long ones. Pieces of one range can be used by the [next](host_pieces), and there
//! are never thousands of pieces to map or to copy. Copies are [cut](super::pieces) at the boundaries of
//! pieces.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::sys::{self, CUresult};

use super::CudaDevice;
use super::context::Context;
use super::error::{check, failure};
use super::host_pieces::{self, HostPiece};
use super::pool::Refusal;
use crate::device::gpu::Gpu;
use crate::device::{Memory, View};
use crate::error::{Error, Result};
use crate::schedule::lock;

/// The GPU's page size. Ranges have no smaller pages, but a driver may require larger ones.
const PAGE: u64 = 2 << 20;

/// The ranges of a device: the start of each, and the ends of its allocations.
#[derive(Default)]
pub(super) struct Ranges(Mutex<BTreeMap<u64, Vec<u64>>>);

impl Ranges {
    /// Returns the boundaries of allocations inside some memory, as offsets from its start.
    pub(super) fn cuts(&self, view: View) -> Vec<u64> {
        let ranges = self.locked();
        let Some((_, ends)) = ranges.range(..=view.address).next_back() else { return Vec::new() };
        let first = ends.partition_point(|&end| end <= view.address);
        let last = view.address.saturating_add(view.bytes);
        ends[first..].iter().take_while(|&&end| end < last).map(|end| end - view.address).collect()
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<u64>>> {
        lock(&self.0)
    }
}

/// A range with more than this number of pieces gets longer pieces, up to [`LONGEST`].
const MANY: u64 = 256;
const LONGEST: u64 = 64 << 20;

/// Returns the bytes per piece of a range.
fn piece(bytes: u64, page: u64) -> u64 {
    let mut piece = page;
    while 2 * piece <= LONGEST && bytes / piece > MANY {
        piece *= 2;
    }
    piece
}

/// One allocation of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    on_gpu: bool,
    bytes: u64,
}

/// The parts of a range: some bytes on the GPU, and pieces in host memory.
struct Layout {
    on_gpu: u64,
    piece: u64,
    pieces: u64,
}

impl Layout {
    fn new(bytes: u64, on_gpu: u64, page: u64) -> Layout {
        let piece = piece(bytes, page);
        let on_gpu = on_gpu.min(bytes).div_ceil(page).saturating_mul(page);
        let pieces = bytes.max(1).saturating_sub(on_gpu).div_ceil(piece);
        Layout { on_gpu, piece, pieces }
    }

    /// Returns the bytes in host memory, or `None` if the total overflows.
    fn in_host(&self) -> Option<u64> {
        let in_host = self.pieces.checked_mul(self.piece)?;
        in_host.checked_add(self.on_gpu).map(|_| in_host)
    }

    /// Returns the parts, in order.
    fn parts(&self) -> impl Iterator<Item = Part> {
        let &Layout { on_gpu, piece, pieces } = self;
        let first = (on_gpu > 0).then_some(Part { on_gpu: true, bytes: on_gpu });
        first.into_iter().chain((0..pieces).map(move |_| Part { on_gpu: false, bytes: piece }))
    }
}

/// Allocates `bytes` bytes, of which the first `on_gpu` lie on the GPU.
pub(super) fn allocate(device: &CudaDevice, bytes: u64, on_gpu: u64, what: &str) -> Result<Memory> {
    let _bound = device.context.bind()?;
    let page = page(&device.gpu)?;
    let too_much = || Error::OutOfMemory { what: what.to_string(), needed: bytes };
    let layout = Layout::new(bytes, on_gpu, page);
    let in_host = layout.in_host().ok_or_else(too_much)?;
    let (range, charge) = device.pool.charged(layout.on_gpu, what, || {
        let all = layout.on_gpu + in_host;
        let mut range = Range::reserve(device, all, page).map_err(Refusal::Failed)?;
        for run in layout.parts() {
            let mapped = range.map(run, &properties(&device.gpu, run.on_gpu));
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
    let view = View::new(device.id, range.address, bytes);
    // The order matters: the range is released before its charge.
    Ok(Memory { view, _owner: Box::new((range, charge)) })
}

fn unsupported(gpu: &Gpu) -> Error {
    let (major, minor) = gpu.driver;
    Error::unsupported(
        format!(
            "{} with a driver for CUDA {major}.{minor} cannot map its own memory and the host's into one range",
            gpu.name
        ),
        "use a driver for CUDA 12.2 or later, another algorithm (such as cpu-partitioned), or the CPU (device cpu)",
    )
}

/// Returns the page size of a range, which suits both memories.
fn page(gpu: &Gpu) -> Result<u64> {
    if !gpu.virtual_memory || !gpu.host_virtual_memory {
        return Err(unsupported(gpu));
    }
    let least = sys::CUmemAllocationGranularity_flags_enum::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let mut page = PAGE;
    for on_gpu in [true, false] {
        let mut bytes = 0;
        // SAFETY: the context is bound; the call reads the properties and writes a number.
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

/// Returns the properties of an allocation for the driver: where it must lie.
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

/// Returns the location of the GPU's own memory.
pub(super) fn location_of(gpu: &Gpu) -> sys::CUmemLocation {
    let type_ = sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    sys::CUmemLocation { type_, id: gpu.device }
}

/// Reserved addresses. They are mapped from the start on.
struct Range {
    context: Arc<Context>,
    home: Arc<Ranges>,
    address: u64,
    bytes: u64,
    /// The ends of the mapped allocations.
    ends: Vec<u64>,
    /// The host pieces among them.
    pieces: Vec<HostPiece>,
}

impl Range {
    fn reserve(device: &CudaDevice, bytes: u64, alignment: u64) -> Result<Range> {
        let _bound = device.context.bind()?;
        let mut address = 0;
        // SAFETY: the driver chooses the addresses; the call writes the first.
        let code = unsafe {
            sys::cuMemAddressReserve(&mut address, bytes as usize, alignment as usize, 0, 0)
        };
        check(code, "reserving a range of addresses")?;
        let (context, home) = (Arc::clone(&device.context), Arc::clone(&device.ranges));
        Ok(Range { context, home, address, bytes, ends: Vec::new(), pieces: Vec::new() })
    }

    /// Maps an allocation after those that are already mapped.
    fn map(&mut self, part: Part, properties: &sys::CUmemAllocationProp) -> Result<(), CUresult> {
        let address = self.ends.last().copied().unwrap_or(self.address);
        let map = |handle| {
            // SAFETY: these addresses are reserved and not mapped, and as many as the allocation has.
            succeeded(unsafe { sys::cuMemMap(address, part.bytes as usize, 0, handle, 0) })
        };
        if part.on_gpu {
            let mut handle = 0;
            // SAFETY: whole pages; the call reads the properties and writes a handle.
            succeeded(unsafe {
                sys::cuMemCreate(&mut handle, part.bytes as usize, properties, 0)
            })?;
            let mapped = map(handle);
            // SAFETY: a handle from above, no longer used; the mapping keeps the memory.
            let released = succeeded(unsafe { sys::cuMemRelease(handle) });
            mapped.and(released)?;
        } else {
            let piece = host_pieces::take(&self.context, part.bytes, properties)?;
            map(piece.handle)?;
            self.pieces.push(piece);
        }
        self.ends.push(address + part.bytes);
        Ok(())
    }

    /// Lets the GPU read and write the whole range, and records its boundaries for copies.
    fn publish(&self, gpu: &Gpu) -> Result<()> {
        let flags = sys::CUmemAccess_flags_enum::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        let access = sys::CUmemAccessDesc { location: location_of(gpu), flags };
        // SAFETY: the whole range is mapped; the call reads one description.
        let code = unsafe { sys::cuMemSetAccess(self.address, self.bytes as usize, &access, 1) };
        check(code, "opening a range of memory to the GPU")?;
        self.home.locked().insert(self.address, self.ends.clone());
        Ok(())
    }

    /// Undoes everything, as far as the driver allows.
    fn undo(&self) -> Result<()> {
        let _bound = self.context.bind()?;
        // Unmapping does not wait for the GPU, unlike freeing. Work that still used the range would fail,
        // and the process could no longer use the GPU.
        // SAFETY: the context is bound.
        let waited = check(unsafe { sys::cuCtxSynchronize() }, "waiting for the GPU");
        let mut begin = self.address;
        for &end in &self.ends {
            // SAFETY: exactly one mapped allocation, which nobody uses any more.
            let code = unsafe { sys::cuMemUnmap(begin, (end - begin) as usize) };
            check(code, "unmapping a range of memory")?;
            begin = end;
        }
        // SAFETY: reserved with this length, and nothing is mapped there any more.
        let code = unsafe { sys::cuMemAddressFree(self.address, self.bytes as usize) };
        check(code, "giving a range of addresses back")?;
        waited
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        self.home.locked().remove(&self.address);
        let pieces = std::mem::take(&mut self.pieces);
        match self.undo() {
            Ok(()) => host_pieces::give_back(pieces),
            Err(error) => log::debug!("{error}"),
        }
    }
}

fn succeeded(code: CUresult) -> Result<(), CUresult> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceId;

    /// Shows the pages of a range, one character per page.
    fn shown(bytes: u64, on_gpu: u64) -> String {
        let shown =
            |part: Part| vec![if part.on_gpu { 'g' } else { 'h' }; part.bytes as usize / 10];
        Layout::new(bytes, on_gpu, 10).parts().flat_map(shown).collect()
    }

    #[test]
    fn the_first_pages_are_the_gpus() {
        assert_eq!(shown(50, 0), "hhhhh");
        assert_eq!(shown(41, 21), "ggghh");
        assert_eq!(shown(41, u64::MAX), "ggggg");
        let long = Layout::new(1 << 40, 15, 10);
        assert_eq!(long.parts().next(), Some(Part { on_gpu: true, bytes: 20 }));
        assert_eq!(Layout::new(u64::MAX, 15, 10).in_host(), None);
    }

    #[test]
    fn long_ranges_have_long_pieces() {
        assert_eq!(piece(1, PAGE), PAGE);
        assert_eq!(piece(MANY * PAGE, PAGE), PAGE);
        assert_eq!(piece(MANY * PAGE + PAGE, PAGE), 2 * PAGE);
        assert_eq!(piece(u64::MAX / 2, PAGE), LONGEST);
        for bytes in [1, PAGE, 5 << 30, (5 << 30) + 1] {
            let layout = Layout::new(bytes, 3 << 30, PAGE);
            let of = |gpu| layout.parts().filter(move |p| p.on_gpu == gpu).map(|p| p.bytes);
            let [on_gpu, in_host] = [true, false].map(|gpu| of(gpu).sum::<u64>());
            assert_eq!((layout.on_gpu, layout.in_host()), (on_gpu, Some(in_host)));
            let all = on_gpu + in_host;
            assert!(all >= bytes && all < bytes + layout.piece, "{bytes}");
        }
    }

    #[test]
    fn copies_are_cut_where_the_memory_changes() {
        let ranges = Ranges::default();
        ranges.locked().insert(1000, vec![1010, 1040, 1100]);
        ranges.locked().insert(2000, vec![2010]);
        let cuts = |address, bytes| ranges.cuts(View::new(DeviceId::ANY, address, bytes));
        assert_eq!(cuts(1000, 100), [10, 40]);
        assert_eq!(cuts(1005, 30), [5]);
        assert!(cuts(1010, 30).is_empty());
        assert_eq!(cuts(1039, 2), [1]);
        assert!(cuts(500, 100).is_empty());
        assert!(cuts(1500, 100).is_empty());
        assert_eq!(cuts(2000, u64::MAX), [10]);
    }
}

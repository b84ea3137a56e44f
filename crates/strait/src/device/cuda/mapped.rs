//! Host memory that kernels read and write in place, over the link.

use std::sync::Arc;

use cudarc::driver::sys;

use super::error::check;
use super::pieces::Pieces;
use super::{CudaDevice, pages};
use crate::device::{HostView, Memory, Pinned, View};
use crate::error::{Error, Result};

/// Returns the GPU's address of pinned memory.
pub(super) fn pinned(device: &CudaDevice, pinned: &Arc<Pinned>) -> Result<Memory> {
    let _bound = device.context.bind()?;
    let bytes = pinned.len as u64;
    let mut address = None;
    for (at, _) in Pieces::of(bytes).cut(pages::cuts(pinned, 0)).list() {
        let mut seen = 0;
        let host = pinned.start.wrapping_add(at as usize);
        // SAFETY: inside memory that is registered for mapping; the call writes an address.
        let code = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut seen, host.cast(), 0) };
        check(code, "mapping pinned memory")?;
        if *address.get_or_insert(seen) + at != seen {
            return Err(Error::unsupported(
                format!(
                    "{} cannot map this pinned memory as one range of addresses",
                    device.gpu.name
                ),
                "use the transfer method staged-copy",
            ));
        }
    }
    let address = address.unwrap_or(pinned.start as u64);
    Ok(Memory { view: View::new(device.id, address, bytes), _owner: Box::new(Arc::clone(pinned)) })
}

/// Returns memory that is not pinned, at its own address.
pub(super) fn coherent(device: &CudaDevice, memory: HostView) -> Result<Memory> {
    if !device.gpu.pageable_access {
        return Err(Error::unsupported(
            format!("{} cannot read host memory that is not pinned", device.gpu.name),
            "use the transfer method staged-copy",
        ));
    }
    let view = View::new(device.id, memory.start as u64, memory.bytes);
    Ok(Memory { view, _owner: Box::new(()) })
}

//! Host memory that ranges map, kept for the next range.
//!
//! The driver must allocate such memory itself. This takes a quarter of a second per GiB, because the driver
//! clears it. So pieces have only a few sizes, and a range's pieces are kept for the next range. At most a
//! quarter of the machine's memory is kept, the same limit as for pinned memory.

use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::sys::{self, CUresult};

use super::context::Context;
use super::pinned::{self, most_idle};
use crate::schedule::lock;

/// Host memory that can be mapped.
pub(super) struct HostPiece {
    context: Arc<Context>,
    pub(super) handle: sys::CUmemGenericAllocationHandle,
    bytes: u64,
    /// The NUMA node of the memory.
    node: i32,
}

/// Pieces that no range uses, the oldest first.
static IDLE: Mutex<Vec<HostPiece>> = Mutex::new(Vec::new());

/// Returns a piece of exactly `bytes` bytes, with any content. `properties` say where it must lie.
pub(super) fn take(
    context: &Arc<Context>,
    bytes: u64,
    properties: &sys::CUmemAllocationProp,
) -> Result<HostPiece, CUresult> {
    let node = properties.location.id;
    let mut idle = locked();
    let fits = |piece: &HostPiece| piece.bytes == bytes && piece.node == node;
    if let Some(at) = idle.iter().rposition(fits) {
        return Ok(idle.swap_remove(at));
    }
    drop(idle);
    let mut handle = 0;
    // SAFETY: whole pages; the call reads the properties and writes a handle.
    let mut create = || unsafe { sys::cuMemCreate(&mut handle, bytes as usize, properties, 0) };
    let created = match create() {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            // The memory that is kept for later is needed now.
            release();
            pinned::release();
            create()
        }
        code => code,
    };
    match created {
        CUresult::CUDA_SUCCESS => {
            Ok(HostPiece { context: Arc::clone(context), handle, bytes, node })
        }
        code => Err(code),
    }
}

/// Keeps pieces that are no longer mapped.
pub(super) fn give_back(pieces: Vec<HostPiece>) {
    let mut idle = locked();
    idle.extend(pieces);
    let mut surplus = idle.iter().map(|piece| piece.bytes).sum::<u64>();
    let most = most_idle() as u64;
    let gone = idle
        .iter()
        .take_while(|piece| {
            let over = surplus > most;
            surplus -= if over { piece.bytes } else { 0 };
            over
        })
        .count();
    let gone: Vec<HostPiece> = idle.drain(..gone).collect();
    // They are dropped after the lock, because releasing memory takes time.
    drop(idle);
    drop(gone);
}

/// Releases all idle pieces to the system.
pub(crate) fn release() {
    let idle = std::mem::take(&mut *locked());
    drop(idle);
}

fn locked() -> MutexGuard<'static, Vec<HostPiece>> {
    lock(&IDLE)
}

impl Drop for HostPiece {
    fn drop(&mut self) {
        let _bound = match self.context.bind() {
            Ok(bound) => bound,
            Err(error) => {
                log::debug!("{error}");
                return;
            }
        };
        // SAFETY: a handle from above, no longer mapped.
        let code = unsafe { sys::cuMemRelease(self.handle) };
        if code != CUresult::CUDA_SUCCESS {
            log::debug!("giving host memory back: {code:?}");
        }
    }
}

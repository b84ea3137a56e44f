//! Host memory that ranges map, kept for the next one.
//!
//! The driver makes such memory itself, and takes a quarter of a second a GiB for it, since it clears
//! it first. So pieces have few sizes, and those that a range no longer needs wait for the next: at most
//! as much as of pinned memory, a quarter of the machine's.

use std::sync::{Arc, Mutex, MutexGuard};

use cudarc::driver::sys::{self, CUresult};

use super::context::Context;
use super::pinned::{self, most_idle};
use crate::schedule::lock;

/// Memory of the host that can be mapped.
pub(super) struct HostPiece {
    context: Arc<Context>,
    pub(super) handle: sys::CUmemGenericAllocationHandle,
    bytes: u64,
    /// The host's memory it lies in, where there are several.
    node: i32,
}

/// Those that no range has, the oldest first.
static IDLE: Mutex<Vec<HostPiece>> = Mutex::new(Vec::new());

/// A piece of exactly `bytes`, with any content; `properties` say where it is to lie.
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
    // SAFETY: whole pages; reads the properties and writes a handle.
    let mut create = || unsafe { sys::cuMemCreate(&mut handle, bytes as usize, properties, 0) };
    let created = match create() {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            // What is kept for later is needed now.
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

/// Keeps pieces that are mapped nowhere any more.
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
    // They are dropped after the lock: giving memory back takes its time.
    drop(idle);
    drop(gone);
}

/// Gives all that are idle back to the system.
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
        // SAFETY: a handle from above, mapped nowhere any more.
        let code = unsafe { sys::cuMemRelease(self.handle) };
        if code != CUresult::CUDA_SUCCESS {
            log::debug!("giving host memory back: {code:?}");
        }
    }
}

//! One device per GPU and process, so that its pools stay warm from join to join.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::context::Context;
use super::{CudaDevice, Gpu};
use crate::device::Device;
use crate::error::Result;

/// A device, with its GPU's number and the budget with which it was opened.
type Opened = (u32, Option<u64>, Arc<CudaDevice>);

fn opened() -> &'static Mutex<Vec<Opened>> {
    static OPENED: OnceLock<Mutex<Vec<Opened>>> = OnceLock::new();
    OPENED.get_or_init(Mutex::default)
}

/// Returns whether a join of this process has used the GPU before.
pub(crate) fn is_open(gpu: &Gpu) -> bool {
    Context::is_open(gpu)
}

/// Opens a GPU as a device that nobody shares.
pub(crate) fn open(gpu: &Gpu, gpu_memory: Option<u64>) -> Result<Arc<dyn Device>> {
    Ok(Arc::new(CudaDevice::new(gpu, gpu_memory)?))
}

/// Returns the GPU as a device with this budget. Another budget creates another device; the previous one is
/// dropped when the last join that uses it ends.
pub(crate) fn shared(gpu: &Gpu, gpu_memory: Option<u64>) -> Result<Arc<CudaDevice>> {
    let mut opened = opened().lock().unwrap_or_else(PoisonError::into_inner);
    let same = |o: &&Opened| o.0 == gpu.ordinal && o.1 == gpu_memory;
    if let Some((_, _, device)) = opened.iter().find(same) {
        return Ok(Arc::clone(device));
    }
    opened.retain(|o| o.0 != gpu.ordinal);
    let device = Arc::new(CudaDevice::new(gpu, gpu_memory)?);
    opened.push((gpu.ordinal, gpu_memory, Arc::clone(&device)));
    Ok(device)
}

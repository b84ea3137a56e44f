//! Converts the CUDA driver's result codes to errors that say what was done and what to try.

use std::ffi::CStr;

use cudarc::driver::sys::{self, CUresult};

use crate::error::{Error, Result};

/// Returns an error unless the code is success. `doing` says what the call was for.
pub(super) fn check(code: CUresult, doing: &str) -> Result<()> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(failure(code, doing)),
    }
}

/// Returns the error for a code that is not success.
pub(super) fn failure(code: CUresult, doing: &str) -> Error {
    Error::Cuda {
        doing: doing.to_string(),
        name: text(code, sys::cuGetErrorName).unwrap_or_else(|| format!("{code:?}")),
        detail: text(code, sys::cuGetErrorString).unwrap_or_else(|| "no description".into()),
        hint: hint(code).to_string(),
    }
}

/// Returns the driver's name or description of a code.
fn text(
    code: CUresult,
    ask: unsafe fn(CUresult, *mut *const libc::c_char) -> CUresult,
) -> Option<String> {
    let mut text = std::ptr::null();
    // SAFETY: a code can only come from a loaded driver. The call writes the address of a driver's string.
    let told = unsafe { ask(code, &mut text) };
    if told != CUresult::CUDA_SUCCESS || text.is_null() {
        return None;
    }
    // SAFETY: the driver's strings end with a zero byte and are never freed.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

fn hint(code: CUresult) -> &'static str {
    match code {
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | CUresult::CUDA_ERROR_LAUNCH_FAILED
        | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUresult::CUDA_ERROR_ASSERT => {
            "; this is a bug in Strait; please report it; this process can no longer use the GPU; use the CPU (device cpu)"
        }
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
        | CUresult::CUDA_ERROR_INVALID_IMAGE => {
            "; use a newer driver, or set STRAIT_NVRTC to an NVRTC of the driver's version"
        }
        CUresult::CUDA_ERROR_LAUNCH_TIMEOUT => {
            "; a display's watchdog ended the kernel: use a GPU that drives no display"
        }
        CUresult::CUDA_ERROR_ECC_UNCORRECTABLE | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR => {
            "; the GPU reports a hardware fault: see nvidia-smi"
        }
        CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE => {
            "; another process uses this GPU exclusively: see nvidia-smi"
        }
        CUresult::CUDA_ERROR_SYSTEM_NOT_READY | CUresult::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH => {
            "; the driver was changed or is still starting: restart the machine or its services"
        }
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
            "; other processes may use GPU memory (nvidia-smi lists them); end them, or lower the limit of GPU memory"
        }
        _ => "",
    }
}

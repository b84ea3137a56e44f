//! Which GPUs are there, and if there is none, why? Holding a [`Gpu`] proves that driver and device exist.

use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};

use super::context::Context;
use super::error::{check, failure};
use super::link;
use crate::device::gpu::{Architecture, Gpu, LEAST_CAPABILITY};
use crate::error::{Error, Result};

/// Every driver function that this crate calls. All are looked up first, because a call of a function that the driver
/// does not have would panic.
const FUNCTIONS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceGetPCIBusId",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuMemGetInfo_v2",
    "cuMemAlloc_v2",
    "cuMemAllocManaged",
    "cuMemFree_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemHostGetDevicePointer_v2",
    "cuMemGetAllocationGranularity",
    "cuMemAddressReserve",
    "cuMemAddressFree",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemcpyAsync",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuEventElapsedTime",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuFuncSetAttribute",
    "cuLaunchKernel",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
];

impl Gpu {
    /// Returns the GPUs of this machine: at least one, or an error that says why there is none.
    pub fn detect() -> Result<Vec<Gpu>> {
        driver()?;
        let mut count = 0;
        // SAFETY: the driver is initialised; the call writes a number.
        check(unsafe { sys::cuDeviceGetCount(&mut count) }, "counting GPUs")?;
        let mut found = Vec::new();
        let mut unfit = String::new();
        for ordinal in 0..count {
            let gpu = describe(ordinal)?;
            if gpu.architecture.capability() < LEAST_CAPABILITY {
                let (major, minor) = LEAST_CAPABILITY;
                let (name, has) = (&gpu.name, gpu.architecture);
                unfit = format!("{name} is {has}, and sm_{major}{minor} is the oldest supported");
                log::warn!("{unfit}");
                continue;
            }
            found.push(gpu);
        }
        match found.is_empty() {
            true if !unfit.is_empty() => Err(Error::NoGpu { why: unfit }),
            true => Err(none()),
            false => Ok(found),
        }
    }

    /// Returns how much of its memory is free now, in bytes. The first call creates a context, which takes
    /// time.
    pub fn free_memory(&self) -> Result<u64> {
        let context = Context::of(self)?;
        let _bound = context.bind()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: a context is bound; the call writes two numbers.
        check(unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) }, "asking for free memory")?;
        Ok(free as u64)
    }
}

/// Whether this process has initialised the driver.
static INITIALISED: AtomicBool = AtomicBool::new(false);

/// Returns whether this process has initialised the driver, so that it takes little time to look for GPUs.
pub(crate) fn is_initialised() -> bool {
    INITIALISED.load(Ordering::Relaxed)
}

/// Loads and initialises the driver.
fn driver() -> Result<()> {
    // SAFETY: loads the driver's library, which may be loaded into any process.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoGpu {
            why: "no NVIDIA driver was found (looked for libcuda.so and libcuda.so.1); install the driver; in a container, give the container access to the GPUs (docker run --gpus all)".to_string(),
        });
    }
    for name in FUNCTIONS {
        // SAFETY: the library is loaded; the address is not used.
        let found = unsafe { sys::culib().get::<*const ()>(name.as_bytes()) }.is_ok();
        if !found {
            return Err(Error::NoGpu {
                why: format!("the NVIDIA driver is too old: it has no {name}; update it"),
            });
        }
    }
    // SAFETY: the library and its function exist.
    match unsafe { sys::cuInit(0) } {
        CUresult::CUDA_SUCCESS => {
            INITIALISED.store(true, Ordering::Relaxed);
            Ok(())
        }
        CUresult::CUDA_ERROR_NO_DEVICE => Err(none()),
        CUresult::CUDA_ERROR_STUB_LIBRARY => Err(Error::NoGpu {
            why: "libcuda.so is a stub of the CUDA toolkit, not a driver; install the NVIDIA driver, or remove the folder of the stubs from LD_LIBRARY_PATH".to_string(),
        }),
        code => Err(failure(code, "starting the driver")),
    }
}

fn none() -> Error {
    let visible = match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(set) => format!("CUDA_VISIBLE_DEVICES is \"{set}\", which hides all other GPUs; "),
        Err(_) => String::new(),
    };
    Error::NoGpu {
        why: format!(
            "an NVIDIA driver was found, but it has no GPU; {visible}nvidia-smi -L lists the GPUs that it knows"
        ),
    }
}

fn describe(ordinal: i32) -> Result<Gpu> {
    let doing = "asking a GPU for its properties";
    let mut device = 0;
    // SAFETY: the ordinal is below the number of devices; the call writes a handle.
    check(unsafe { sys::cuDeviceGet(&mut device, ordinal) }, doing)?;
    let attribute = |which: Attribute| {
        let mut value = 0;
        // SAFETY: a device of the driver; the call writes a number.
        check(unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) }, doing)?;
        Ok::<u32, Error>(value.max(0) as u32)
    };
    // Attributes that an older driver may not know.
    let newer = |which: Attribute| attribute(which).ok();
    let can = |which: Attribute| newer(which) == Some(1);
    let mut memory = 0;
    // SAFETY: as above.
    check(unsafe { sys::cuDeviceTotalMem_v2(&mut memory, device) }, doing)?;
    let mut version = 0;
    // SAFETY: as above.
    check(unsafe { sys::cuDriverGetVersion(&mut version) }, doing)?;
    let name = text(|buffer, length| {
        // SAFETY: writes at most `length` bytes.
        unsafe { sys::cuDeviceGetName(buffer, length, device) }
    })?;
    let bus = text(|buffer, length| {
        // SAFETY: as above.
        unsafe { sys::cuDeviceGetPCIBusId(buffer, length, device) }
    })?
    .to_lowercase();
    let driver = (version as u32 / 1000, version as u32 % 1000 / 10);
    let virtual_memory = can(Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED);
    let of_host = Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED;
    Ok(Gpu {
        ordinal: ordinal as u32,
        name,
        architecture: Architecture {
            major: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        },
        memory: memory as u64,
        processors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        l2: u64::from(attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?),
        shared_memory: u64::from(attribute(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?),
        link: link::of(&bus),
        bus,
        driver,
        driver_release: link::read("/sys/module/nvidia/version"),
        pageable_access: can(Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS),
        managed_access: can(Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS),
        virtual_memory,
        // Drivers support this since CUDA 12.2, but the first of them do not know the attribute.
        host_virtual_memory: virtual_memory
            && newer(of_host).map_or(driver >= (12, 2), |answer| answer == 1),
        device,
        // A system without NUMA has one memory, number zero.
        host_node: newer(Attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID).unwrap_or(0) as i32,
    })
}

/// Returns the text that a driver function writes into a buffer.
fn text(write: impl FnOnce(*mut libc::c_char, libc::c_int) -> CUresult) -> Result<String> {
    let mut buffer = [0u8; 256];
    let code = write(buffer.as_mut_ptr().cast(), buffer.len() as libc::c_int);
    check(code, "asking a GPU for its name")?;
    let end = buffer.iter().position(|&byte| byte == 0).unwrap_or(buffer.len());
    Ok(String::from_utf8_lossy(&buffer[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function that is called but not listed would panic with a driver that does not have it.
    #[test]
    fn every_function_that_is_called_is_looked_for() {
        let sources = [
            include_str!("context.rs"),
            include_str!("detect.rs"),
            include_str!("error.rs"),
            include_str!("launch.rs"),
            include_str!("managed.rs"),
            include_str!("mapped.rs"),
            include_str!("mod.rs"),
            include_str!("pages.rs"),
            include_str!("pinned.rs"),
            include_str!("pool.rs"),
            include_str!("range.rs"),
            include_str!("streams.rs"),
        ];
        let mut called = 0;
        for part in sources.iter().flat_map(|source| source.split("sys::cu").skip(1)) {
            let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let name = format!("cu{}", &part[..end.unwrap_or(part.len())]);
            // The library itself, and the name fragments in this test.
            if name != "culib" && name != "cu" {
                assert!(FUNCTIONS.contains(&name.as_str()), "{name} is not listed");
                called += 1;
            }
        }
        assert!(called > 25);
    }

    /// Passes with and without a GPU. It only checks that nothing panics.
    #[test]
    fn looking_for_gpus_gives_some_or_a_reason() {
        match Gpu::detect() {
            Ok(gpus) => assert!(!gpus.is_empty()),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

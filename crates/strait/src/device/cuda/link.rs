//! How fast is a GPU's link? NVIDIA's management library knows; without it, the system's files do.

use std::ffi::{CString, OsStr, c_char, c_int, c_uint, c_void};

use super::library::Library;
use crate::device::gpu::Link;

/// Returns the link of the GPU at this bus address.
pub(super) fn of(bus: &str) -> Option<Link> {
    of_management(bus).or_else(|| of_system(bus))
}

/// Returns the trimmed text of a file, or `None` if there is no file.
pub(super) fn read(path: &str) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_string())
}

type Handle = *mut c_void;

fn of_management(bus: &str) -> Option<Link> {
    // SAFETY: NVIDIA's management library may be loaded into any process.
    let library = unsafe { Library::open(OsStr::new("libnvidia-ml.so.1")) }.ok()?;
    type Start = unsafe extern "C" fn() -> c_int;
    type Find = unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int;
    type Ask = unsafe extern "C" fn(Handle, *mut c_uint) -> c_int;
    // SAFETY: the types are the ones in nvml.h.
    let (start, stop, find, generation, lanes) = unsafe {
        (
            library.function::<Start>(c"nvmlInit_v2")?,
            library.function::<Start>(c"nvmlShutdown")?,
            library.function::<Find>(c"nvmlDeviceGetHandleByPciBusId_v2")?,
            library.function::<Ask>(c"nvmlDeviceGetMaxPcieLinkGeneration")?,
            library.function::<Ask>(c"nvmlDeviceGetMaxPcieLinkWidth")?,
        )
    };
    let bus = CString::new(bus).ok()?;
    // SAFETY: starts are counted; the matching stop is below.
    if unsafe { start() } != 0 {
        return None;
    }
    let mut handle = std::ptr::null_mut();
    let ask = |function: Ask, handle: Handle| {
        let mut value = 0;
        // SAFETY: the handle of a device that was found; the call writes a number.
        (unsafe { function(handle, &mut value) } == 0).then_some(value)
    };
    // SAFETY: a string that ends with a zero byte; the call writes a handle.
    let found = unsafe { find(bus.as_ptr(), &mut handle) } == 0;
    let link = found
        .then(|| Some(Link { generation: ask(generation, handle)?, lanes: ask(lanes, handle)? }));
    // SAFETY: started above; the handle is no longer used.
    unsafe { stop() };
    link.flatten()
}

fn of_system(bus: &str) -> Option<Link> {
    let file = |name: &str| read(&format!("/sys/bus/pci/devices/{bus}/{name}"));
    Some(Link {
        generation: generation(&file("max_link_speed")?)?,
        lanes: file("current_link_width")?.parse().ok().filter(|&lanes| lanes > 0)?,
    })
}

/// Returns the PCIe generation of a speed such as `32.0 GT/s PCIe`. Each generation is twice as fast as the
/// one before, except the third.
fn generation(speed: &str) -> Option<u32> {
    let rate: f64 = speed.split_whitespace().next()?.parse().ok()?;
    let rates = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0];
    rates.iter().position(|&known| known == rate).map(|at| at as u32 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_tell_generations() {
        assert_eq!(generation("2.5 GT/s PCIe"), Some(1));
        assert_eq!(generation("32.0 GT/s PCIe"), Some(5));
        assert_eq!(generation("Unknown"), None);
        assert_eq!(of("no such place"), None);
    }
}

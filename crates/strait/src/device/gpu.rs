//! The properties of a GPU. This file does not call the driver, so it is also compiled without CUDA.

use std::ffi::c_int;
use std::fmt;
use std::str::FromStr;

/// The minimum compute capability that kernels need: Turing, the successor of Volta.
pub(super) const LEAST_CAPABILITY: (u32, u32) = (7, 5);

/// A GPU of this machine.
///
/// ```
/// use strait::gpu::Gpu;
///
/// match Gpu::detect() {
///     Ok(gpus) => {
///         for gpu in gpus {
///             println!("gpu:{} is {} with {} GiB", gpu.ordinal, gpu.name, gpu.memory >> 30);
///         }
///     }
///     Err(why) => println!("no GPU: {why}"),
/// }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Gpu {
    /// The number among the GPUs that this process may use.
    pub ordinal: u32,
    /// The product name, as in `NVIDIA H200`.
    pub name: String,
    /// The architecture for which kernels are compiled.
    pub architecture: Architecture,
    /// The memory, in bytes.
    pub memory: u64,
    /// The number of streaming multiprocessors.
    pub processors: u32,
    /// The size of the L2 cache, in bytes.
    pub l2: u64,
    /// The shared memory that a block may ask for, in bytes.
    pub shared_memory: u64,
    /// The address on the bus, as in `0000:3b:00.0`.
    pub bus: String,
    /// The link to the host, if known.
    pub link: Option<Link>,
    /// The CUDA version of the driver, as in 13.0.
    pub driver: (u32, u32),
    /// The driver's own version, as in `580.95.05`, if known.
    pub driver_release: Option<String>,
    /// Whether kernels can read and write host memory that is not pinned.
    pub pageable_access: bool,
    /// Whether host and GPU may use managed memory at the same time.
    pub managed_access: bool,
    /// Whether its memory can be mapped page by page.
    pub virtual_memory: bool,
    /// Whether host memory and GPU memory can be mapped into one range, page by page.
    pub host_virtual_memory: bool,
    /// The driver's handle.
    pub(super) device: c_int,
    /// The NUMA node of the nearest host memory.
    pub(super) host_node: i32,
}

impl Gpu {
    /// Returns the most memory of this GPU that a join holds, in bytes, if no limit is set and all of the memory is
    /// free. The rest is for the driver and for kernels.
    pub fn default_budget(&self) -> u64 {
        default_budget(self.memory)
    }
}

/// Returns the most memory that a join holds if no limit is set: nine tenths of the free memory.
pub(super) fn default_budget(free: u64) -> u64 {
    free / 10 * 9
}

/// A PCIe link at its full speed. Idle links run slower.
///
/// ```
/// for gpu in strait::gpu::Gpu::detect().unwrap_or_default() {
///     let link = gpu.link.map_or("an unknown link".to_string(), |link| link.to_string());
///     println!("{}: {link}", gpu.name);
/// }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// The generation, as in 5.
    pub generation: u32,
    /// The number of lanes.
    pub lanes: u32,
}

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PCIe {}.0 x{}", self.generation, self.lanes)
    }
}

/// A GPU's compute capability, as in `sm_90`.
///
/// ```
/// use strait::gpu::Architecture;
///
/// let hopper: Architecture = "sm_90".parse()?;
/// assert_eq!(hopper.capability(), (9, 0));
/// # Ok::<(), String>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Architecture {
    pub(super) major: u32,
    pub(super) minor: u32,
}

impl Architecture {
    /// Returns the major and the minor number.
    pub fn capability(self) -> (u32, u32) {
        (self.major, self.minor)
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

impl FromStr for Architecture {
    type Err = String;

    /// Parses `sm_90`, and `9.0` as in NVIDIA's tables.
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let parts = match text.strip_prefix("sm_") {
            Some(number) if digits(number) && (2..=3).contains(&number.len()) => {
                Some(number.split_at(number.len() - 1))
            }
            Some(_) => None,
            None => text.split_once('.').filter(|(a, b)| digits(a) && digits(b) && b.len() == 1),
        };
        let read = |(a, b): (&str, &str)| Some((a.parse().ok()?, b.parse().ok()?));
        let Some((major, minor)) = parts.and_then(read) else {
            return Err(format!("\"{text}\" is not an architecture; write for example sm_90"));
        };
        if (major, minor) < LEAST_CAPABILITY {
            let (major, minor) = LEAST_CAPABILITY;
            return Err(format!("{text} is too old; sm_{major}{minor} is the oldest supported"));
        }
        Ok(Architecture { major, minor })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn architectures_are_read_and_shown() {
        for (text, shown) in
            [("sm_90", "sm_90"), ("9.0", "sm_90"), ("sm_100", "sm_100"), ("12.1", "sm_121")]
        {
            assert_eq!(text.parse::<Architecture>().unwrap().to_string(), shown);
        }
        assert_eq!("sm_75".parse::<Architecture>().unwrap().capability(), (7, 5));
        for text in ["", "sm_", "sm_9", "90", "sm_9x", "sm_70", "6.1", "sm_90000", "9.", ".0"] {
            assert!(text.parse::<Architecture>().is_err(), "{text}");
        }
    }
}

//! The simulated device's memory: where does an address lead, and what lies there?
//!
//! Addresses are made up, and lead to host memory through a map: every access is looked up, so a
//! wrong address or length is an error that names it, never a crash, and a late write to freed
//! memory harms nobody.
//!
//! ```text
//!   address   …00  ┌──────────────┐
//!                  │ allocation   │   fresh: one of A0..BF in every byte
//!             …+n  └──────────────┘
//!                    nothing           at least a page, so that running over the end is an error
//!                  ┌──────────────┐
//!                  │ freed        │   one of D0..DF in every byte; leads somewhere for a while
//!                  └──────────────┘
//! ```

use std::collections::{BTreeMap, VecDeque};

use super::random::Random;
use super::word::{DeviceWord, Tuple};
use crate::device::{MemoryUse, View};
use crate::error::{Error, Result};
use crate::memory::Plain;

/// What allocations are aligned to.
const ALIGNMENT: u64 = 256;
/// Freed bytes that are kept.
const QUARANTINE: u64 = 16 << 20;
/// The first address is near this.
const START: u64 = 0x7000_0000_0000;
/// What lies between allocations, at least.
const PAGE: u64 = 4096;

/// Allocations by address, live and freed.
pub(super) struct Space {
    blocks: BTreeMap<u64, Vec<u8>>,
    /// Freed allocations, the oldest first.
    freed: VecDeque<u64>,
    /// Their bytes.
    quarantined: u64,
    next: u64,
    usage: MemoryUse,
    random: Random,
}

impl Space {
    pub(super) fn new(capacity: u64, mut random: Random) -> Space {
        Space {
            blocks: BTreeMap::new(),
            freed: VecDeque::new(),
            quarantined: 0,
            next: START + ALIGNMENT * random.below(1 << 20),
            usage: MemoryUse { budget: capacity, used: 0, peak: 0 },
            random,
        }
    }

    pub(super) fn usage(&self) -> MemoryUse {
        self.usage
    }

    /// Poisoned memory; none beyond the capacity.
    pub(super) fn allocate(&mut self, bytes: u64, what: &str) -> Result<View> {
        let MemoryUse { budget, used, peak } = self.usage;
        let needed = charge(bytes);
        if needed > budget - used {
            return Err(Error::DeviceMemory {
                what: what.to_string(),
                needed: bytes,
                used,
                budget,
                hint: "give the simulated device more".to_string(),
            });
        }
        let address = self.next;
        let block = poisoned(bytes as usize, fresh(&mut self.random), what)?;
        self.blocks.insert(address, block);
        let gap = PAGE + self.random.below(PAGE);
        self.next = (address + needed + gap).next_multiple_of(ALIGNMENT);
        self.usage = MemoryUse { budget, used: used + needed, peak: peak.max(used + needed) };
        Ok(View { address, bytes })
    }

    /// Overwrites an allocation and takes it off the books, but keeps it for late operations.
    pub(super) fn free(&mut self, address: u64) {
        let byte = 0xd0 | self.random.below(16) as u8;
        if let Some(block) = self.blocks.get_mut(&address) {
            block.fill(byte);
            self.usage.used -= charge(block.len() as u64);
            self.quarantined += block.len() as u64;
            self.freed.push_back(address);
        }
    }

    /// Gives up the oldest freed allocations where there are many. No operation may be queued.
    pub(super) fn forget_oldest(&mut self) {
        while self.quarantined > QUARANTINE {
            let Some(oldest) = self.freed.pop_front() else { return };
            self.quarantined -= self.blocks.remove(&oldest).map_or(0, |block| block.len() as u64);
        }
    }

    /// Where `count` values at `address` lie: the start of the block, and the bytes in it.
    fn locate<T>(
        &self,
        address: u64,
        count: u64,
        what: &str,
    ) -> Result<(u64, std::ops::Range<usize>)> {
        aligned(address, align_of::<T>() as u64, what)?;
        let found = self.blocks.range(..=address).next_back().and_then(|(&start, block)| {
            let from = address - start;
            let to = from.checked_add(count.checked_mul(size_of::<T>() as u64)?)?;
            (to <= block.len() as u64).then_some((start, from as usize..to as usize))
        });
        found.ok_or_else(|| {
            let size = size_of::<T>();
            Error::Worker(format!(
                "{what}: {count} x {size} bytes at {address:#x} are outside the device's memory"
            ))
        })
    }

    /// Whether `count` values at `address` are memory of this device, suitably aligned.
    pub(super) fn check<T>(&self, address: u64, count: u64, what: &str) -> Result<()> {
        if count == 0 { Ok(()) } else { self.locate::<T>(address, count, what).map(|_| ()) }
    }

    pub(super) fn read<T: Plain>(&self, address: u64, count: u64, what: &str) -> Result<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let (start, range) = self.locate::<T>(address, count, what)?;
        let bytes = &self.blocks[&start][range];
        let mut values = Vec::<T>::with_capacity(count as usize);
        // SAFETY: `bytes` are as many as `count` values have, there is room for them, and any bytes
        // are plain values.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), values.as_mut_ptr().cast(), bytes.len());
            values.set_len(count as usize);
        }
        Ok(values)
    }

    pub(super) fn write<T: Plain>(&mut self, address: u64, values: &[T], what: &str) -> Result<()> {
        if values.is_empty() {
            return Ok(());
        }
        let (start, range) = self.locate::<T>(address, values.len() as u64, what)?;
        let Some(block) = self.blocks.get_mut(&start) else { return Ok(()) };
        // SAFETY: plain values have no padding where they are written to a device.
        let bytes = unsafe {
            std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values))
        };
        block[range].copy_from_slice(bytes);
        Ok(())
    }

    /// One value.
    pub(super) fn get<T: Plain>(&self, address: u64, what: &str) -> Result<T> {
        Ok(self.read::<T>(address, 1, what)?[0])
    }

    /// Writes value `index` of those at `address`.
    pub(super) fn set<T: Plain>(
        &mut self,
        address: u64,
        index: u64,
        value: T,
        what: &str,
    ) -> Result<()> {
        self.write(nth::<T>(address, index), &[value], what)
    }

    /// Tuples, each of which is one aligned load.
    pub(super) fn tuples<W: DeviceWord>(
        &self,
        address: u64,
        rows: u64,
        what: &str,
    ) -> Result<Vec<Tuple<W>>> {
        if rows > 0 {
            aligned(address, size_of::<Tuple<W>>() as u64, what)?;
        }
        self.read(address, rows, what)
    }

    /// All bytes of a view, to be written.
    pub(super) fn bytes_mut(&mut self, view: View, what: &str) -> Result<&mut [u8]> {
        if view.bytes == 0 {
            return Ok(&mut []);
        }
        let (start, range) = self.locate::<u8>(view.address, view.bytes, what)?;
        let Some(block) = self.blocks.get_mut(&start) else { return Ok(&mut []) };
        Ok(&mut block[range])
    }
}

/// The address of value `index` of those at `address`; one that leads nowhere where there is none.
pub(super) fn nth<T>(address: u64, index: u64) -> u64 {
    address.saturating_add(index.saturating_mul(size_of::<T>() as u64))
}

/// Whether an address is a multiple of `to`.
pub(super) fn aligned(address: u64, to: u64, what: &str) -> Result<()> {
    if address.is_multiple_of(to) {
        return Ok(());
    }
    Err(Error::Worker(format!("{what}: address {address:#x} is not a multiple of {to}")))
}

/// What an allocation takes of the capacity.
fn charge(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX)
}

/// The byte that fresh memory is filled with.
pub(super) fn fresh(random: &mut Random) -> u8 {
    0xa0 | random.below(32) as u8
}

fn poisoned(len: usize, byte: u8, what: &str) -> Result<Vec<u8>> {
    let mut block = Vec::new();
    block
        .try_reserve_exact(len)
        .map_err(|_| Error::OutOfMemory { what: what.to_string(), needed: len as u64 })?;
    block.resize(len, byte);
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_freed_memory_is_given_up_and_new_addresses_are_new() {
        let mut space = Space::new(64 << 20, Random::new(3));
        let mut seen = Vec::new();
        for _ in 0..40 {
            let view = space.allocate(1 << 20, "a test").unwrap();
            seen.push(view.address);
            space.free(view.address);
        }
        assert!(seen.windows(2).all(|pair| pair[0] + (1 << 20) + PAGE <= pair[1]));
        assert!(seen.iter().all(|&address| space.check::<u8>(address, 1 << 20, "freed").is_ok()));
        space.forget_oldest();
        let kept = seen.iter().filter(|&&at| space.check::<u8>(at, 1, "freed").is_ok());
        assert_eq!(kept.copied().collect::<Vec<_>>(), seen[24..]);
        assert_eq!(space.usage().used, 0);
        assert_eq!(space.usage().peak, 1 << 20);
    }
}

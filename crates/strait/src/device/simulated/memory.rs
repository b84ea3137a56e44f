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
//!                  ┌──────────────┐
//!                  │ lent         │   leads to host memory, while it is lent; freed as others are
//!                  └──────────────┘
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use super::random::Random;
use super::word::{DeviceWord, Tuple};
use crate::device::{HostView, MemoryUse, View};
use crate::error::{Error, Result};
use crate::memory::Plain;

/// What allocations are aligned to.
pub(super) const ALIGNMENT: u64 = 256;
/// Freed bytes that are kept.
const QUARANTINE: u64 = 16 << 20;
/// The first address is near this.
const START: u64 = 0x7000_0000_0000;
/// What lies between allocations, at least; and the page of ranges.
pub(super) const PAGE: u64 = 4096;

/// What an address leads to.
struct Block {
    bytes: Bytes,
    /// What it takes of the capacity.
    charged: u64,
}

enum Bytes {
    /// The device's own.
    Own(Vec<u8>),
    /// The host's, kept by whoever lent it until the block is freed.
    Lent { start: *mut u8, len: usize },
}

// SAFETY: who lends memory lends it to any thread.
unsafe impl Send for Bytes {}

impl Block {
    fn len(&self) -> u64 {
        match &self.bytes {
            Bytes::Own(bytes) => bytes.len() as u64,
            Bytes::Lent { len, .. } => *len as u64,
        }
    }

    /// Some of its bytes: the range is inside.
    fn get(&self, range: Range<usize>) -> &[u8] {
        match &self.bytes {
            Bytes::Own(bytes) => &bytes[range],
            // SAFETY: inside memory that is kept while it is lent; who lent it keeps writers away
            // from what operations read.
            Bytes::Lent { start, .. } => unsafe {
                std::slice::from_raw_parts(start.add(range.start), range.len())
            },
        }
    }

    /// Likewise, to be written.
    fn get_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        match &mut self.bytes {
            Bytes::Own(bytes) => &mut bytes[range],
            // SAFETY: as in `get`; and nobody reads what operations write.
            Bytes::Lent { start, .. } => unsafe {
                std::slice::from_raw_parts_mut(start.add(range.start), range.len())
            },
        }
    }
}

/// Allocations by address, live and freed.
pub(super) struct Space {
    blocks: BTreeMap<u64, Block>,
    /// Freed allocations, the oldest first.
    freed: VecDeque<u64>,
    /// Their bytes.
    quarantined: u64,
    next: u64,
    usage: MemoryUse,
    random: Random,
    /// Whether freed memory is gone at once, so that late operations on it are errors.
    pub(super) strict: bool,
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
            strict: false,
        }
    }

    pub(super) fn usage(&self) -> MemoryUse {
        self.usage
    }

    /// Poisoned memory; none beyond the capacity.
    pub(super) fn allocate(&mut self, bytes: u64, what: &str) -> Result<View> {
        self.allocate_charged(bytes, charge(bytes), what)
    }

    /// Poisoned memory that takes `charged` bytes of the capacity, however long it is.
    pub(super) fn allocate_charged(
        &mut self,
        bytes: u64,
        charged: u64,
        what: &str,
    ) -> Result<View> {
        self.room(charged, bytes, what)?;
        let block = poisoned(bytes as usize, fresh(&mut self.random), what)?;
        Ok(self.place(Block { bytes: Bytes::Own(block), charged }, 0))
    }

    /// Addresses that lead to host memory until they are freed, and take `charged` bytes of the
    /// capacity meanwhile: as much as there is [room](Space::room) for.
    ///
    /// # Safety
    /// The memory is kept for as long. Nobody writes to it while an operation reads it, and nobody
    /// reads it while one writes.
    pub(super) unsafe fn lend(&mut self, memory: HostView, charged: u64) -> View {
        let (start, len) = (memory.start.cast_mut(), memory.bytes as usize);
        // An address that is aligned as the memory is.
        let past = start as u64 % ALIGNMENT;
        self.place(Block { bytes: Bytes::Lent { start, len }, charged }, past)
    }

    /// An error where the capacity does not have so much left, for memory of so many bytes.
    pub(super) fn room(&self, charged: u64, bytes: u64, what: &str) -> Result<()> {
        let MemoryUse { budget, used, .. } = self.usage;
        if charged <= budget - used {
            return Ok(());
        }
        Err(Error::DeviceMemory {
            what: what.to_string(),
            needed: bytes,
            used,
            budget,
            hint: "give the simulated device more".to_string(),
        })
    }

    /// Gives a block an address, `past` a multiple of the alignment.
    fn place(&mut self, block: Block, past: u64) -> View {
        let (address, bytes) = (self.next + past, block.len());
        let gap = PAGE + self.random.below(PAGE);
        self.next = (address + bytes + gap).next_multiple_of(ALIGNMENT);
        self.usage.used += block.charged;
        self.usage.peak = self.usage.peak.max(self.usage.used);
        self.blocks.insert(address, block);
        View { address, bytes }
    }

    /// Overwrites an allocation and takes it off the books, but keeps it for late operations. Host
    /// memory is left as it is: from here on its address leads to as many bytes of poison.
    pub(super) fn free(&mut self, address: u64) {
        let byte = 0xd0 | self.random.below(16) as u8;
        let Some(Block { bytes, charged }) = self.blocks.remove(&address) else { return };
        self.usage.used -= charged;
        if self.strict {
            return;
        }
        let poison = match bytes {
            Bytes::Own(mut bytes) => {
                bytes.fill(byte);
                Ok(bytes)
            }
            Bytes::Lent { len, .. } => poisoned(len, byte, "freed memory"),
        };
        // Without memory for poison, the address leads nowhere at once.
        if let Ok(poison) = poison {
            self.quarantined += poison.len() as u64;
            self.freed.push_back(address);
            self.blocks.insert(address, Block { bytes: Bytes::Own(poison), charged: 0 });
        }
    }

    /// Gives up the oldest freed allocations where there are many. No operation may be queued.
    pub(super) fn forget_oldest(&mut self) {
        while self.quarantined > QUARANTINE {
            let Some(oldest) = self.freed.pop_front() else { return };
            self.quarantined -= self.blocks.remove(&oldest).map_or(0, |block| block.len());
        }
    }

    /// Where `count` values at `address` lie: the start of the block, and the bytes in it.
    fn locate<T>(&self, address: u64, count: u64, what: &str) -> Result<(u64, Range<usize>)> {
        aligned(address, align_of::<T>() as u64, what)?;
        let found = self.blocks.range(..=address).next_back().and_then(|(&start, block)| {
            let from = address - start;
            let to = from.checked_add(count.checked_mul(size_of::<T>() as u64)?)?;
            (to <= block.len()).then_some((start, from as usize..to as usize))
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
        let bytes = self.blocks[&start].get(range);
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
        block.get_mut(range).copy_from_slice(bytes);
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
        Ok(block.get_mut(range))
    }

    /// Copies between two views of one length.
    pub(super) fn copy(&mut self, from: View, to: View) -> Result<()> {
        // By way of a third place: two addresses may lead to the same host memory.
        let bytes = self.read::<u8>(from.address, from.bytes, "copied from")?;
        self.write(to.address, &bytes, "copied to")
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
pub(super) fn charge(bytes: u64) -> u64 {
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

//! The memory of the simulated device: where does an address lead, and what lies there?
//!
//! Addresses are artificial, and a map leads from them to host memory. Every access is looked up. So a wrong
//! address or length is an error that names it, never a crash, and a late write to freed memory does no
//! harm.
//!
//! ```text
//!   address   …00  ┌──────────────┐
//!                  │ allocation   │   fresh: every byte is the same, one of A0..BF
//!             …+n  └──────────────┘
//!                    nothing           at least a page, so that an overrun is an error
//!                  ┌──────────────┐
//!                  │ freed        │   every byte is the same, one of D0..DF; valid for a while
//!                  └──────────────┘
//!                  ┌──────────────┐
//!                  │ lent         │   leads to host memory while it is lent; freed like the others
//!                  └──────────────┘
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use fastrand::Rng;

use super::word::{DeviceWord, Tuple};
use crate::device::{DeviceId, HostView, MemoryUse, View};
use crate::error::{Error, Result};
use crate::memory::Plain;

/// The alignment of allocations.
pub(super) const ALIGNMENT: u64 = 256;
/// The maximum number of freed bytes that are kept.
const QUARANTINE: u64 = 16 << 20;
/// The first address of the first region.
const START: u64 = 0x7000_0000_0000;
/// The addresses of a device. Two devices have different regions, so an address of one leads nowhere on the
/// other.
const REGION: u64 = 1 << 40;
/// The number of regions. If there are more devices, they share regions.
const REGIONS: u64 = 1 << 12;
/// The minimum gap between allocations, and the page size of ranges.
pub(super) const PAGE: u64 = 4096;

/// The memory behind an address.
struct Allocation {
    bytes: Bytes,
    /// How much of the capacity it takes.
    charged: u64,
}

enum Bytes {
    /// The device's own memory.
    Own(Poisoned),
    /// Host memory. The lender keeps it until the block is freed.
    Lent { start: *mut u8, len: usize },
}

// SAFETY: memory is lent to any thread.
unsafe impl Send for Bytes {}

impl Allocation {
    fn len(&self) -> u64 {
        match &self.bytes {
            Bytes::Own(bytes) => bytes.len as u64,
            Bytes::Lent { len, .. } => *len as u64,
        }
    }

    /// Copies some of its bytes to `to`. The range must be inside.
    ///
    /// # Safety
    /// `to` must have room for the bytes.
    unsafe fn copy_to(&self, range: Range<usize>, to: *mut u8) {
        match &self.bytes {
            // SAFETY: by contract of this function.
            Bytes::Own(bytes) => unsafe { bytes.copy_to(range, to) },
            // SAFETY: inside memory that stays allocated while it is lent. The lender prevents writes to
            // memory that operations read. `to` has room for the bytes.
            Bytes::Lent { start, .. } => unsafe {
                std::ptr::copy_nonoverlapping(start.add(range.start), to, range.len());
            },
        }
    }

    /// Returns some of its bytes, for writing. The range must be inside.
    fn get_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        match &mut self.bytes {
            Bytes::Own(bytes) => bytes.get_mut(range),
            // SAFETY: as in `get`; and nobody reads memory that operations write.
            Bytes::Lent { start, .. } => unsafe {
                std::slice::from_raw_parts_mut(start.add(range.start), range.len())
            },
        }
    }
}

/// Memory in which every byte that nobody wrote has the same value. Most joins of tests use the first few bytes
/// of large buffers, and filling whole buffers took a third of the tests' time. So only the bytes up to the last
/// written one exist.
struct Poisoned {
    /// Its first bytes, with capacity for all of them.
    written: Vec<u8>,
    len: usize,
    /// The value of the other bytes.
    byte: u8,
}

impl Poisoned {
    fn new(len: usize, byte: u8, what: &str) -> Result<Poisoned> {
        let mut written = Vec::new();
        written
            .try_reserve_exact(len)
            .map_err(|_| Error::OutOfMemory { what: what.to_string(), needed: len as u64 })?;
        Ok(Poisoned { written, len, byte })
    }

    /// Gives all bytes the same value.
    fn poison(&mut self, byte: u8) {
        self.written.clear();
        self.byte = byte;
    }

    /// Copies a range, which must be inside.
    ///
    /// # Safety
    /// `to` must have room for the bytes.
    unsafe fn copy_to(&self, range: Range<usize>, to: *mut u8) {
        assert!(range.end <= self.len, "a range outside of its memory");
        let end = range.end.min(self.written.len());
        let written = self.written.get(range.start..end).unwrap_or_default();
        // SAFETY: both parts together are as long as the range, for which there is room.
        unsafe {
            std::ptr::copy_nonoverlapping(written.as_ptr(), to, written.len());
            to.add(written.len()).write_bytes(self.byte, range.len() - written.len());
        }
    }

    /// Returns a range for writing. It must be inside.
    fn get_mut(&mut self, range: Range<usize>) -> &mut [u8] {
        assert!(range.end <= self.len, "a range outside of its memory");
        if self.written.len() < range.end {
            self.written.resize(range.end, self.byte);
        }
        &mut self.written[range]
    }
}

/// Allocations by address, live and freed.
pub(super) struct Space {
    blocks: BTreeMap<u64, Allocation>,
    /// Freed allocations, the oldest first.
    freed: VecDeque<u64>,
    /// The bytes of the freed allocations.
    quarantined: u64,
    next: u64,
    usage: MemoryUse,
    random: Rng,
    device: DeviceId,
    /// Whether freed memory is gone at once, so that late operations on it are errors.
    pub(super) strict: bool,
}

impl Space {
    pub(super) fn new(capacity: u64, device: DeviceId, mut random: Rng) -> Space {
        let region = u64::from(device.number()) % REGIONS * REGION;
        Space {
            blocks: BTreeMap::new(),
            freed: VecDeque::new(),
            quarantined: 0,
            next: START + region + ALIGNMENT * random.u64(..1 << 20),
            usage: MemoryUse { budget: capacity, used: 0, peak: 0 },
            random,
            device,
            strict: false,
        }
    }

    pub(super) fn usage(&self) -> MemoryUse {
        self.usage
    }

    /// Allocates poisoned memory. Fails if it exceeds the capacity.
    pub(super) fn allocate(&mut self, bytes: u64, what: &str) -> Result<View> {
        self.allocate_charged(bytes, charge(bytes), what)
    }

    /// Allocates poisoned memory that takes `charged` bytes of the capacity, whatever its length.
    pub(super) fn allocate_charged(
        &mut self,
        bytes: u64,
        charged: u64,
        what: &str,
    ) -> Result<View> {
        self.room(charged, bytes, what)?;
        let block = Poisoned::new(bytes as usize, fresh(&mut self.random), what)?;
        Ok(self.place(Allocation { bytes: Bytes::Own(block), charged }, 0))
    }

    /// Returns addresses that lead to host memory until they are freed. Meanwhile they take `charged` bytes
    /// of the capacity, for which the caller has checked the [room](Space::room).
    ///
    /// # Safety
    /// The memory must stay allocated for as long. Nobody may write to it while an operation reads it, or
    /// read it while an operation writes it.
    pub(super) unsafe fn lend(&mut self, memory: HostView, charged: u64) -> View {
        let (start, len) = (memory.start.cast_mut(), memory.bytes as usize);
        // The address has the same alignment as the memory.
        let past = start as u64 % ALIGNMENT;
        self.place(Allocation { bytes: Bytes::Lent { start, len }, charged }, past)
    }

    /// Returns an error if the capacity has fewer than `charged` bytes left, for memory of `bytes` bytes.
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

    /// Assigns an address to a block: a multiple of the alignment, plus `past`.
    fn place(&mut self, block: Allocation, past: u64) -> View {
        let (address, bytes) = (self.next + past, block.len());
        let gap = PAGE + self.random.u64(..PAGE);
        self.next = (address + bytes + gap).next_multiple_of(ALIGNMENT);
        self.usage.used += block.charged;
        self.usage.peak = self.usage.peak.max(self.usage.used);
        self.blocks.insert(address, block);
        View::new(self.device, address, bytes)
    }

    /// Poisons an allocation and returns its charge, but keeps it for late operations. Host memory is not
    /// changed: its address now leads to the same number of poisoned bytes.
    pub(super) fn free(&mut self, address: u64) {
        let byte = 0xd0 | self.random.u64(..16) as u8;
        let Some(Allocation { bytes, charged }) = self.blocks.remove(&address) else { return };
        self.usage.used -= charged;
        if self.strict {
            return;
        }
        let poison = match bytes {
            Bytes::Own(mut bytes) => {
                bytes.poison(byte);
                Ok(bytes)
            }
            Bytes::Lent { len, .. } => Poisoned::new(len, byte, "freed memory"),
        };
        // If there is no memory for the poison, the address becomes invalid at once.
        if let Ok(poison) = poison {
            self.quarantined += poison.len as u64;
            self.freed.push_back(address);
            self.blocks.insert(address, Allocation { bytes: Bytes::Own(poison), charged: 0 });
        }
    }

    /// Forgets the oldest freed allocations, if there are many. No operation may be queued.
    pub(super) fn forget_oldest(&mut self) {
        while self.quarantined > QUARANTINE {
            let Some(oldest) = self.freed.pop_front() else { return };
            self.quarantined -= self.blocks.remove(&oldest).map_or(0, |block| block.len());
        }
    }

    /// Finds `count` values at `address`: returns the start of their block, and their bytes in it.
    fn locate<T>(&self, address: u64, count: u64, what: &str) -> Result<(u64, Range<usize>)> {
        aligned(address, align_of::<T>() as u64, what)?;
        let found = self.blocks.range(..=address).next_back().and_then(|(&start, block)| {
            let from = address - start;
            let to = from.checked_add(count.checked_mul(size_of::<T>() as u64)?)?;
            (to <= block.len()).then_some((start, from as usize..to as usize))
        });
        found.ok_or_else(|| {
            let size = size_of::<T>();
            Error::internal(format!(
                "{what}: {count} x {size} bytes at {address:#x} are outside the device's memory"
            ))
        })
    }

    /// Checks that `count` values at `address` are memory of this device, and aligned.
    pub(super) fn check<T>(&self, address: u64, count: u64, what: &str) -> Result<()> {
        if count == 0 { Ok(()) } else { self.locate::<T>(address, count, what).map(|_| ()) }
    }

    pub(super) fn read<T: Plain>(&self, address: u64, count: u64, what: &str) -> Result<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        let (start, range) = self.locate::<T>(address, count, what)?;
        let mut values = Vec::<T>::with_capacity(count as usize);
        // SAFETY: the range has as many bytes as `count` values, there is room for them, and every bit
        // pattern is a plain value.
        unsafe {
            self.blocks[&start].copy_to(range, values.as_mut_ptr().cast());
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
        // SAFETY: plain values that are written to a device have no padding.
        let bytes = unsafe {
            std::slice::from_raw_parts(values.as_ptr().cast::<u8>(), size_of_val(values))
        };
        block.get_mut(range).copy_from_slice(bytes);
        Ok(())
    }

    /// Reads one value.
    pub(super) fn get<T: Plain>(&self, address: u64, what: &str) -> Result<T> {
        Ok(self.read::<T>(address, 1, what)?[0])
    }

    /// Writes value number `index` of the values at `address`.
    pub(super) fn set<T: Plain>(
        &mut self,
        address: u64,
        index: u64,
        value: T,
        what: &str,
    ) -> Result<()> {
        self.write(nth::<T>(address, index), &[value], what)
    }

    /// Reads tuples. Each tuple is one aligned load.
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

    /// Returns all bytes of a view, for writing.
    pub(super) fn bytes_mut(&mut self, view: View, what: &str) -> Result<&mut [u8]> {
        if view.bytes == 0 {
            return Ok(&mut []);
        }
        let (start, range) = self.locate::<u8>(view.address, view.bytes, what)?;
        let Some(block) = self.blocks.get_mut(&start) else { return Ok(&mut []) };
        Ok(block.get_mut(range))
    }

    /// Copies between two views of the same length.
    pub(super) fn copy(&mut self, from: View, to: View) -> Result<()> {
        // Through a temporary buffer, because two addresses may lead to the same host memory.
        let bytes = self.read::<u8>(from.address, from.bytes, "copied from")?;
        self.write(to.address, &bytes, "copied to")
    }
}

/// Returns the address of value number `index` of the values at `address`, or an invalid address on overflow.
pub(super) fn nth<T>(address: u64, index: u64) -> u64 {
    address.saturating_add(index.saturating_mul(size_of::<T>() as u64))
}

/// Checks that an address is a multiple of `to`.
pub(super) fn aligned(address: u64, to: u64, what: &str) -> Result<()> {
    if address.is_multiple_of(to) {
        return Ok(());
    }
    Err(Error::internal(format!("{what}: address {address:#x} is not a multiple of {to}")))
}

/// Returns how much of the capacity an allocation takes.
pub(super) fn charge(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(ALIGNMENT).unwrap_or(u64::MAX)
}

/// Returns the byte that fills fresh memory.
pub(super) fn fresh(random: &mut Rng) -> u8 {
    0xa0 | random.u64(..32) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_that_nobody_wrote_are_poison_wherever_they_are() {
        let mut space = Space::new(1 << 20, DeviceId::unique(), Rng::with_seed(3));
        let view = space.allocate(100, "a test").unwrap();
        let poison = space.get::<u8>(view.address, "a test").unwrap();
        space.write::<u8>(view.address + 40, &[1, 2], "a test").unwrap();
        let mut expected = [poison; 100];
        expected[40..42].copy_from_slice(&[1, 2]);
        for (from, to) in [(0, 100), (0, 30), (30, 41), (41, 42), (41, 100), (42, 100), (99, 100)] {
            let read = space.read::<u8>(view.address + from, to - from, "a test").unwrap();
            assert_eq!(read, expected[from as usize..to as usize], "{from}..{to}");
        }
        space.free(view.address);
        let freed = space.read::<u8>(view.address, 100, "a test").unwrap();
        assert!(freed.iter().all(|&byte| byte == freed[0] && byte != poison), "{freed:?}");
    }

    #[test]
    fn old_freed_memory_is_given_up_and_new_addresses_are_new() {
        let mut space = Space::new(64 << 20, DeviceId::unique(), Rng::with_seed(3));
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

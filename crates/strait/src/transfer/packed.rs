//! Keys that cross in as many bytes as they need: ours, and the one way past the link's bandwidth.
//!
//! ```text
//!  keys ─► pieces: the least one, and the bytes of the others less that ─► pinned ─► device ─► words
//! ```
//!
//! A piece stays in a core's cache between finding its range and packing it, so that the host's memory
//! is read once and written less than once. Pieces of a segment lie one after the other, and a segment
//! is one copy. A chunk that cannot be packed crosses as it is.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::staged_copy::Target;
use super::{Carry, Filling, HostColumn, SLOTS};
use crate::algorithm::gpu::Session;
use crate::device::{HostView, Memory, Pinned, Stage, View, Word, abi};
use crate::error::{Error, Result};

/// Keys that share a frame: they fit a core's cache.
const PIECE_ROWS: usize = 16 << 10;
/// Pieces of a segment, which one worker packs.
const PIECES: usize = 32;
/// What pieces are aligned to where they are packed.
const ALIGNMENT: usize = 16;

pub(super) struct Packed {
    column: HostColumn,
    word: Word,
    slots: Vec<Slot>,
    /// Where the words of the chunk are made that is in use.
    keys: Memory,
}

struct Slot {
    pinned: Arc<Pinned>,
    packs: Arc<Pinned>,
    landed: Memory,
    landed_packs: Memory,
    /// Twice the bytes of each segment, and one more where it crosses as it is.
    segments: Vec<AtomicU64>,
    rows: usize,
    /// Whether the chunk crossed as it is.
    raw: bool,
}

impl Packed {
    pub(super) fn new(session: &Session<'_>, column: &HostColumn, chunk_rows: u64) -> Result<Self> {
        let device = session.device;
        let word = session.word;
        let rows = usize::try_from(chunk_rows).map_err(|_| too_long())?;
        let (pieces, segments) = (rows.div_ceil(PIECE_ROWS), rows.div_ceil(PIECE_ROWS * PIECES));
        let bytes = chunk_rows * word.bytes();
        let pack_bytes = (pieces.max(1) * size_of::<abi::Pack>()) as u64;
        let slot = |_| {
            Ok(Slot {
                pinned: device.pinned(bytes.max(1) as usize, "staging")?,
                packs: device.pinned(pack_bytes as usize, "staging")?,
                landed: device.allocate(bytes.max(1), "a ring of chunks")?,
                landed_packs: device.allocate(pack_bytes, "a ring of chunks")?,
                segments: (0..segments).map(|_| AtomicU64::new(0)).collect(),
                rows: 0,
                raw: false,
            })
        };
        let slots = (0..SLOTS).map(slot).collect::<Result<_>>()?;
        let keys = device.allocate(bytes.max(1), "unpacked keys")?;
        Ok(Packed { column: column.clone(), word, slots, keys })
    }
}

fn too_long() -> Error {
    Error::Worker("a chunk has more rows than this machine has addresses".to_string())
}

impl Carry for Packed {
    fn fill(&mut self, slot: usize, bytes: Range<u64>) -> Result<Option<Filling<'_>>> {
        let word = self.word;
        let from = self.column.part(&bytes);
        let slot = &mut self.slots[slot];
        slot.rows = (from.bytes / word.bytes()) as usize;
        let (pinned, packs) = (Target(slot.pinned.start), Target(slot.packs.start));
        let (rows, segments) = (slot.rows, &slot.segments);
        let work = move |segment: usize| {
            // Whole, so that what may be shared is what is captured.
            let (pinned, packs) = (&pinned, &packs);
            // SAFETY: the copies out of the buffers have been waited for; segments have places of
            // their own, as long as their rows.
            let (used, raw) =
                unsafe { pack_segment(from, word, [pinned.0, packs.0], segment, rows) };
            segments[segment].store(2 * used as u64 + u64::from(raw), Ordering::Relaxed);
            Ok(())
        };
        let tasks = slot.rows.div_ceil(PIECE_ROWS * PIECES);
        Ok(Some(Filling { tasks, work: Box::new(work) }))
    }

    fn send(&mut self, session: &Session<'_>, slot: usize, bytes: Range<u64>) -> Result<()> {
        let segment_bytes = (PIECE_ROWS * PIECES) as u64 * self.word.bytes();
        let slot = &mut self.slots[slot];
        let whole = bytes.end - bytes.start;
        let used: Vec<u64> =
            slot.segments.iter().map(|used| used.load(Ordering::Relaxed)).collect();
        let used = &used[..slot.rows.div_ceil(PIECE_ROWS * PIECES)];
        slot.raw = used.iter().all(|used| used % 2 == 1);
        if slot.raw {
            let to = slot.landed.view.part(0, whole);
            return session.copy_in(&slot.pinned, 0, to);
        }
        for (segment, &used) in used.iter().enumerate() {
            let at = segment as u64 * segment_bytes;
            let to = slot.landed.view.part(at, used / 2);
            session.copy_in(&slot.pinned, at as usize, to)?;
        }
        let pieces = slot.rows.div_ceil(PIECE_ROWS);
        let to = slot.landed_packs.view.part(0, (pieces * size_of::<abi::Pack>()) as u64);
        session.copy_in(&slot.packs, 0, to)
    }

    fn arrive(&mut self, session: &Session<'_>, slot: usize) -> Result<View> {
        let slot = &self.slots[slot];
        let bytes = slot.rows as u64 * self.word.bytes();
        if slot.raw {
            return Ok(slot.landed.view.part(0, bytes));
        }
        session.run(Stage::Unpack(abi::Unpack {
            packed: slot.landed.address(),
            packs: slot.landed_packs.address(),
            keys: self.keys.address(),
            count: slot.rows.div_ceil(PIECE_ROWS) as u32,
            unused: 0,
        }))?;
        Ok(self.keys.view.part(0, bytes))
    }
}

/// Packs a segment of a chunk of `rows`, and says how many bytes it takes, and whether it is as it
/// was, since nothing is gained.
///
/// # Safety
/// `from` are the chunk's words. The first target has room for them, the second for a
/// [`Pack`](abi::Pack) a piece, and nobody else uses the segment's part of either.
unsafe fn pack_segment(
    from: HostView,
    word: Word,
    [to, packs]: [*mut u8; 2],
    segment: usize,
    rows: usize,
) -> (usize, bool) {
    let size = word.bytes() as usize;
    let first = segment * PIECE_ROWS * PIECES;
    let last = (first + PIECE_ROWS * PIECES).min(rows);
    let begin = first * size;
    let (mut at, mut raw) = (begin, true);
    for piece in first / PIECE_ROWS..last.div_ceil(PIECE_ROWS) {
        let row = piece * PIECE_ROWS;
        let count = PIECE_ROWS.min(rows - row);
        let source = from.part((row * size) as u64, (count * size) as u64).start;
        // SAFETY: words of the chunk and places of the segment: no piece takes more bytes than its
        // words have, and each is padded only where it took fewer.
        unsafe {
            let (base, bytes) = match word {
                Word::W4 => pack::<u32>(source.cast(), count, to.add(at)),
                Word::W8 => pack::<u64>(source.cast(), count, to.add(at)),
            };
            let pack = abi::Pack {
                at: at as u64,
                base,
                first: row as u64,
                rows: count as u32,
                bytes: bytes as u32,
            };
            packs.cast::<abi::Pack>().add(piece).write(pack);
            raw &= bytes == size;
            at += count * bytes;
            // The last piece of a chunk may have an odd length, but nothing comes after it.
            at = at.next_multiple_of(ALIGNMENT).min(begin + (row + count - first) * size);
        }
    }
    (at - begin, raw)
}

/// A word that is packed.
trait Narrow: Copy + Ord {
    const BYTES: usize;
    fn to_u64(self) -> u64;
}

impl Narrow for u32 {
    const BYTES: usize = 4;
    fn to_u64(self) -> u64 {
        u64::from(self)
    }
}

impl Narrow for u64 {
    const BYTES: usize = 8;
    fn to_u64(self) -> u64 {
        self
    }
}

/// Packs some keys: their base, and the bytes that each takes.
///
/// # Safety
/// `from` are so many keys, and there is as much room at `to`.
unsafe fn pack<W: Narrow>(from: *const W, count: usize, to: *mut u8) -> (u64, usize) {
    // SAFETY: promised by the caller; keys are read at their own alignment.
    let keys = unsafe { std::slice::from_raw_parts(from, count) };
    let Some(&first) = keys.first() else { return (0, 0) };
    let (mut min, mut max) = (first, first);
    for &key in keys {
        (min, max) = (min.min(key), max.max(key));
    }
    let (min, max) = (min.to_u64(), max.to_u64());
    let bytes = (64 - (max - min).leading_zeros()).div_ceil(8) as usize;
    if bytes >= W::BYTES {
        // SAFETY: as many bytes as the keys have.
        unsafe { std::ptr::copy_nonoverlapping(from.cast::<u8>(), to, count * W::BYTES) };
        return (0, W::BYTES);
    }
    let less = |key: W| key.to_u64() - min;
    // SAFETY: `count` values of `bytes` bytes, fewer than the keys have; those of odd widths write
    // eight bytes at a time, the last ones just theirs.
    unsafe {
        match bytes {
            0 => {}
            1 => keys.iter().enumerate().for_each(|(i, &k)| to.add(i).write(less(k) as u8)),
            2 => {
                let to = to.cast::<u16>();
                keys.iter()
                    .enumerate()
                    .for_each(|(i, &k)| to.add(i).write_unaligned(less(k) as u16));
            }
            4 => {
                let to = to.cast::<u32>();
                keys.iter()
                    .enumerate()
                    .for_each(|(i, &k)| to.add(i).write_unaligned(less(k) as u32));
            }
            _ => {
                let last = 8usize.div_ceil(bytes).min(count);
                let (most, rest) = keys.split_at(count - last);
                for (i, &key) in most.iter().enumerate() {
                    to.add(i * bytes).cast::<u64>().write_unaligned(less(key));
                }
                for (i, &key) in rest.iter().enumerate() {
                    let value = less(key).to_le_bytes();
                    let to = to.add((most.len() + i) * bytes);
                    std::ptr::copy_nonoverlapping(value.as_ptr(), to, bytes);
                }
            }
        }
    }
    (min, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a kernel makes of packed keys.
    fn unpack(packed: &[u8], base: u64, bytes: usize, count: usize) -> Vec<u64> {
        let key = |i: usize| {
            let mut all = [0; 8];
            all[..bytes].copy_from_slice(&packed[i * bytes..(i + 1) * bytes]);
            base.wrapping_add(u64::from_le_bytes(all))
        };
        (0..count).map(key).collect()
    }

    #[test]
    fn keys_take_as_many_bytes_as_their_range() {
        for (bits, wanted) in [(0, 0), (1, 1), (8, 1), (9, 2), (24, 3), (33, 5), (56, 7), (57, 8)] {
            for count in [1usize, 2, 3, 7, 8, 9, 1000] {
                let base: u64 = if bits > 56 { 0 } else { 0x1234_5678_9abc };
                let most = if bits == 0 { 0 } else { u64::MAX >> (64 - bits) };
                let step = (most / 999).max(1);
                let mut keys: Vec<u64> =
                    (0..count as u64).map(|i| base + (i * step).min(most)).collect();
                keys[count / 2] = base + most;
                keys[0] = base;
                let mut to = vec![0u8; count * 8];
                // SAFETY: as many keys, and as much room.
                let (found, bytes) = unsafe { pack(keys.as_ptr(), count, to.as_mut_ptr()) };
                if count > 1 {
                    assert_eq!(bytes, wanted, "{bits} bits, {count} keys");
                }
                assert_eq!(unpack(&to, found, bytes, count), keys, "{bits} bits, {count} keys");
            }
        }
    }

    #[test]
    fn narrow_words_are_packed_too() {
        let keys: Vec<u32> = (0..100).map(|i| u32::MAX - 7 * i).collect();
        let mut to = vec![0u8; 400];
        // SAFETY: as many keys, and as much room.
        let (base, bytes) = unsafe { pack(keys.as_ptr(), 100, to.as_mut_ptr()) };
        assert_eq!(bytes, 2);
        let made: Vec<u32> = unpack(&to, base, bytes, 100).iter().map(|&k| k as u32).collect();
        assert_eq!(made, keys);
    }

    #[test]
    fn segments_lie_in_their_own_place() {
        let rows = PIECE_ROWS * PIECES + 5;
        let keys: Vec<u64> = (0..rows as u64).map(|i| 1000 + i * 3).collect();
        let mut to = vec![0u8; rows * 8];
        let mut packs = vec![abi::Pack::default(); rows.div_ceil(PIECE_ROWS)];
        let targets = [to.as_mut_ptr(), packs.as_mut_ptr().cast()];
        for segment in 0..2 {
            let from = HostView::of(&keys);
            // SAFETY: as long as the keys, and as many packs as pieces.
            let (used, raw) = unsafe { pack_segment(from, Word::W8, targets, segment, rows) };
            assert!(!raw);
            let most = [PIECE_ROWS * PIECES, 5][segment] * 8;
            assert!(used < most, "{used} of {most}");
        }
        for pack in &packs {
            let (at, count) = (pack.at as usize, pack.rows as usize);
            let made = unpack(&to[at..], pack.base, pack.bytes as usize, count);
            let first = pack.first as usize;
            assert_eq!(made, keys[first..first + count]);
        }
        assert_eq!(packs.iter().map(|pack| pack.rows as usize).sum::<usize>(), rows);
    }
}

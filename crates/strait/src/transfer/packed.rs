//! Packs keys into as few bytes as their range needs. (Our design; the only way to transfer keys faster than
//! the link's bandwidth allows.)
//!
//! ```text
//!  keys ─► pieces: the smallest key, and each key's difference to it ─► staging ─► device ─► words
//! ```
//!
//! A piece stays in a core's cache between finding its range and packing it, so host memory is read only
//! once. Most pieces fit the frame (base and width) of the previous piece. For them, the range is not
//! computed. The pieces of a segment lie one after the other in a [staging](super::staging) buffer, and each
//! segment is one copy. A chunk that cannot be packed crosses unchanged.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::staging::StagingPool;
use super::{ColumnTransfer, Filling, HostColumn, SLOTS, Target};
use crate::device::Session;
use crate::device::{DeviceStage, Memory, Pinned, View, abi};
use crate::error::{Error, Result};
use crate::memory::Reservation;
use crate::processor::on_newest_processor;
use crate::word::Width;

/// Keys per piece, which share one frame. They fit a core's cache.
const PIECE_ROWS: usize = 16 << 10;
/// The alignment of packed pieces, in bytes.
const ALIGNMENT: usize = 16;

/// The bytes of a piece, which a staging buffer has to hold.
pub(super) fn unit(word: Width) -> u64 {
    PIECE_ROWS as u64 * word.bytes()
}

pub(super) struct Packed<'a> {
    staging: Arc<StagingPool<'a>>,
    column: HostColumn,
    word: Width,
    slots: Vec<Slot>,
    /// Where the words of the chunk in use are unpacked.
    keys: Memory,
    /// Reserves the workers' scratch memory, for pieces that lie in several batches.
    _scratch: Option<Reservation>,
}

struct Slot {
    packs: Arc<Pinned>,
    landed: Memory,
    landed_packs: Memory,
    segments: Vec<Segment>,
    rows: usize,
    /// Whether the chunk crossed unpacked.
    raw: bool,
}

/// The rows that one worker packs into one staging buffer. The buffer is long enough even without packing.
struct Segment {
    rows: Range<usize>,
    /// Twice the bytes it takes, plus one if it is not packed.
    used: AtomicU64,
}

impl<'a> Packed<'a> {
    pub(super) fn new(
        session: &Session<'_>,
        staging: Arc<StagingPool<'a>>,
        column: &HostColumn,
        chunk_rows: u64,
        threads: u64,
    ) -> Result<Self> {
        let mut packed = Packed::of_chunks(session, staging, chunk_rows, threads)?;
        if column.in_one_piece() {
            packed._scratch = None;
        }
        packed.load(column.clone());
        Ok(packed)
    }

    /// Prepares to pack chunks whose words lie in different columns. [`load`](Packed::load) names the column
    /// of each chunk.
    pub(super) fn of_chunks(
        session: &Session<'_>,
        staging: Arc<StagingPool<'a>>,
        chunk_rows: u64,
        threads: u64,
    ) -> Result<Self> {
        let device = session.device;
        let word = session.word;
        let rows = usize::try_from(chunk_rows).map_err(|_| too_long())?;
        let pieces = rows.div_ceil(PIECE_ROWS);
        let bytes = chunk_rows * word.bytes();
        let pack_bytes = (pieces.max(1) * size_of::<abi::Pack>()) as u64;
        let scratch = threads * unit(word).min(bytes);
        let scratch = Some(session.reserve(scratch, "words of several batches")?);
        let slot = |_| {
            Ok(Slot {
                packs: session.pinned(pack_bytes as usize, "staging buffers")?,
                landed: device.allocate(bytes.max(1), "a ring of chunks")?,
                landed_packs: device.allocate(pack_bytes, "a ring of chunks")?,
                segments: Vec::new(),
                rows: 0,
                raw: false,
            })
        };
        let slots = (0..SLOTS).map(slot).collect::<Result<_>>()?;
        let keys = device.allocate(bytes.max(1), "unpacked keys")?;
        let column = HostColumn::empty();
        Ok(Packed { staging, column, word, slots, keys, _scratch: scratch })
    }

    /// Takes the words of the chunks that are filled from now on from this column.
    pub(super) fn load(&mut self, column: HostColumn) {
        self.column = column;
    }
}

fn too_long() -> Error {
    Error::internal("a chunk has more rows than this machine has addresses")
}

impl ColumnTransfer for Packed<'_> {
    fn fill(&mut self, slot: usize, bytes: Range<u64>) -> Result<Option<Filling<'_>>> {
        let word = self.word;
        let slot = &mut self.slots[slot];
        let size = word.bytes();
        slot.rows = ((bytes.end - bytes.start) / size) as usize;
        let segment = |bytes: Range<u64>| Segment {
            rows: (bytes.start / size) as usize..(bytes.end / size) as usize,
            used: AtomicU64::new(0),
        };
        slot.segments = self
            .staging
            .cut(bytes.end - bytes.start, unit(word))
            .into_iter()
            .map(segment)
            .collect();
        let (segments, landed) = (&slot.segments, slot.landed.view);
        let (packs, staging) = (Target(slot.packs.start), &self.staging);
        let from = ChunkWords { column: &self.column, first: bytes.start / size, word };
        let work = move |task: usize| {
            // Borrowed as a whole: the struct is `Sync`, but the pointer inside is not.
            let packs = &packs;
            let Segment { rows, used } = &segments[task];
            let at = rows.start as u64 * size;
            staging.send(landed.part(at, rows.len() as u64 * size), |buffer| {
                // SAFETY: the buffer is as long as the segment, and nobody else uses it now. The last copy
                // out of the packs is done, and each segment has its own part of them.
                let (bytes, raw) = unsafe { pack_segment(&from, [buffer, packs.0], rows.clone()) }?;
                used.store(2 * bytes as u64 + u64::from(raw), Ordering::Relaxed);
                Ok(bytes)
            })
        };
        let tasks = segments.len();
        Ok(Some(Filling { tasks, work: Box::new(work) }))
    }

    fn send(&mut self, session: &Session<'_>, slot: usize, _bytes: Range<u64>) -> Result<()> {
        let slot = &mut self.slots[slot];
        let used = || slot.segments.iter().map(|segment| segment.used.load(Ordering::Relaxed));
        session.crosses_in(used().map(|used| used / 2).sum());
        slot.raw = used().all(|used| used % 2 == 1);
        if slot.raw {
            return Ok(());
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
        session.run(DeviceStage::Unpack(abi::Unpack {
            packed: slot.landed.address(),
            packs: slot.landed_packs.address(),
            keys: self.keys.address(),
            count: slot.rows.div_ceil(PIECE_ROWS) as u32,
            unused: 0,
        }))?;
        Ok(self.keys.view.part(0, bytes))
    }
}

/// The words of a chunk: the words of a column, starting at row `first`.
struct ChunkWords<'a> {
    column: &'a HostColumn,
    first: u64,
    word: Width,
}

/// Packs a segment of a chunk. Returns the bytes it takes, and whether all of it is unpacked because packing
/// would save nothing.
///
/// # Safety
/// The contract of the column's constructor must still hold. The first target must have room for the unpacked
/// words of the segment. The second must have room for one [`Pack`](abi::Pack) per piece of the chunk, and
/// nobody else may use the segment's part of it.
unsafe fn pack_segment(
    from: &ChunkWords<'_>,
    [to, packs]: [*mut u8; 2],
    rows: Range<usize>,
) -> Result<(usize, bool)> {
    let size = from.word.bytes() as usize;
    let plus = from.column.plus();
    let (mut narrow, mut wide) = (Vec::<u32>::new(), Vec::<u64>::new());
    let Range { start: first, end: last } = rows;
    let (mut at, mut raw) = (0, true);
    let mut frame = Frame::default();
    for piece in first / PIECE_ROWS..last.div_ceil(PIECE_ROWS) {
        let row = piece * PIECE_ROWS;
        let count = PIECE_ROWS.min(last - row);
        let of_column = from.first + row as u64..from.first + (row + count) as u64;
        // SAFETY: reads words of the chunk and writes to the segment's own parts. No piece takes more bytes
        // than its words, and padding follows only pieces that take fewer.
        unsafe {
            let room = std::slice::from_raw_parts_mut(to.add(at), count * size);
            let (base, bytes) = match from.word {
                Width::W32 => {
                    let keys = from.column.words_or(of_column, &mut narrow)?;
                    pack(keys, plus as u32, room, &mut frame)
                }
                Width::W64 => {
                    let keys = from.column.words_or(of_column, &mut wide)?;
                    pack(keys, plus, room, &mut frame)
                }
            };
            let pack = abi::Pack {
                at: (first * size + at) as u64,
                base,
                first: row as u64,
                rows: count as u32,
                bytes: bytes as u32,
            };
            packs.cast::<abi::Pack>().add(piece).write(pack);
            raw &= bytes == size;
            at += count * bytes;
            // The last piece of a chunk may have any length, because nothing follows it.
            at = at.next_multiple_of(ALIGNMENT).min((row + count - first) * size);
        }
    }
    Ok((at, raw))
}

/// A word that can be packed.
trait Narrow: Copy + Ord {
    const BYTES: usize;
    fn to_u64(self) -> u64;
    /// Returns the sum, modulo the word's width.
    fn plus(self, other: Self) -> Self;
}

impl Narrow for u32 {
    const BYTES: usize = 4;
    fn to_u64(self) -> u64 {
        u64::from(self)
    }
    fn plus(self, other: u32) -> u32 {
        self.wrapping_add(other)
    }
}

impl Narrow for u64 {
    const BYTES: usize = 8;
    fn to_u64(self) -> u64 {
        self
    }
    fn plus(self, other: u64) -> u64 {
        self.wrapping_add(other)
    }
}

/// How the keys of a piece are packed: as their difference to a base, in `bytes` bytes per key.
#[derive(Clone, Copy, Default)]
struct Frame {
    base: u64,
    bytes: usize,
}

/// Packs some keys, after adding the bias `plus` to each. Returns their base and the bytes per key. `to` has
/// room for the unpacked keys. The previous frame is used again if the keys fit it and would not fit fewer
/// bytes.
fn pack<W: Narrow>(keys: &[W], plus: W, to: &mut [u8], frame: &mut Frame) -> (u64, usize) {
    let Some(&first) = keys.first() else { return (0, 0) };
    let last = *frame;
    if last.bytes > 0 {
        let used = on_newest_processor!(narrow(keys, plus, last, to) where
            [W: Narrow](keys: &[W], plus: W, frame: Frame, to: &mut [u8]) -> u64);
        if (64 - used.leading_zeros()).div_ceil(8) as usize == last.bytes {
            return (last.base, last.bytes);
        }
    }
    let (min, max) = on_newest_processor!(range(keys, plus, first) where
        [W: Narrow](keys: &[W], plus: W, first: W) -> (W, W));
    let (min, max) = (min.to_u64(), max.to_u64());
    let bytes = (64 - (max - min).leading_zeros()).div_ceil(8) as usize;
    if bytes >= W::BYTES {
        *frame = Frame::default();
        on_newest_processor!(as_they_are(keys, plus, to) where
            [W: Narrow](keys: &[W], plus: W, to: &mut [u8]) -> ());
        return (0, W::BYTES);
    }
    *frame = Frame { base: min, bytes };
    let frame = *frame;
    on_newest_processor!(narrow(keys, plus, frame, to) where
        [W: Narrow](keys: &[W], plus: W, frame: Frame, to: &mut [u8]) -> u64);
    (min, bytes)
}

/// Writes keys unpacked.
#[inline(always)]
fn as_they_are<W: Narrow>(keys: &[W], plus: W, to: &mut [u8]) {
    if plus.to_u64() == 0 {
        // SAFETY: every integer can be read as bytes.
        let all = unsafe { std::slice::from_raw_parts(keys.as_ptr().cast(), size_of_val(keys)) };
        to[..all.len()].copy_from_slice(all);
        return;
    }
    for (to, &key) in to.chunks_exact_mut(W::BYTES).zip(keys) {
        to.copy_from_slice(&key.plus(plus).to_u64().to_le_bytes()[..W::BYTES]);
    }
}

/// Returns the smallest and the largest key. `first` is one of the keys.
#[inline(always)]
fn range<W: Narrow>(keys: &[W], plus: W, first: W) -> (W, W) {
    let first = first.plus(plus);
    let keys = keys.iter().map(|key| key.plus(plus));
    keys.fold((first, first), |(min, max), key| (min.min(key), max.max(key)))
}

/// Writes each key's difference to the base, in the frame's number of bytes, which is less than a key has.
/// Returns the bits that are set in any of the differences.
#[inline(always)]
fn narrow<W: Narrow>(keys: &[W], plus: W, frame: Frame, to: &mut [u8]) -> u64 {
    let Frame { base, bytes } = frame;
    let mut used = 0;
    let mut less = |key: W| {
        let less = key.plus(plus).to_u64().wrapping_sub(base);
        used |= less;
        less
    };
    match bytes {
        0 => {}
        1 => to.iter_mut().zip(keys).for_each(|(to, &key)| *to = less(key) as u8),
        2 => {
            let to = to.as_chunks_mut().0.iter_mut();
            to.zip(keys).for_each(|(to, &key)| *to = (less(key) as u16).to_le_bytes());
        }
        4 => {
            let to = to.as_chunks_mut().0.iter_mut();
            to.zip(keys).for_each(|(to, &key)| *to = (less(key) as u32).to_le_bytes());
        }
        _ => {
            // Writes eight bytes per key. The next key overwrites the surplus. The last keys write only their
            // own bytes.
            let last = 8usize.div_ceil(bytes).min(keys.len());
            let (most, rest) = keys.split_at(keys.len() - last);
            for (i, &key) in most.iter().enumerate() {
                to[i * bytes..][..8].copy_from_slice(&less(key).to_le_bytes());
            }
            for (i, &key) in rest.iter().enumerate() {
                let at = (most.len() + i) * bytes;
                to[at..at + bytes].copy_from_slice(&less(key).to_le_bytes()[..bytes]);
            }
        }
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::HostView;

    /// Does what the kernel does with packed keys.
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
                let (found, bytes) = pack(&keys, 0, &mut to, &mut Frame::default());
                if count > 1 {
                    assert_eq!(bytes, wanted, "{bits} bits, {count} keys");
                }
                assert_eq!(unpack(&to, found, bytes, count), keys, "{bits} bits, {count} keys");
            }
        }
    }

    #[test]
    fn a_frame_lasts_while_keys_fit_it() {
        let mut frame = Frame::default();
        let mut to = vec![0u8; 8000];
        let mut packed = |first: u64, step: u64| {
            let keys: Vec<u64> = (0..1000).map(|i| first + i * step).collect();
            let (base, bytes) = pack(&keys, 0, &mut to, &mut frame);
            assert_eq!(unpack(&to, base, bytes, 1000), keys);
            (base, bytes)
        };
        assert_eq!(packed(5000, 20), (5000, 2));
        // Above the base; too far above it; below it; with fewer bytes than the frame has.
        assert_eq!(packed(30000, 20), (5000, 2));
        assert_eq!(packed(60000, 20), (60000, 2));
        assert_eq!(packed(59999, 20), (59999, 2));
        assert_eq!(packed(60000, 0), (60000, 0));
        assert_eq!(packed(60000, 1 << 40), (60000, 7));
        assert_eq!(packed(1, 1 << 54), (0, 8));
        assert_eq!(packed(60000, 20), (60000, 2));
    }

    #[test]
    fn narrow_words_are_packed_too() {
        let keys: Vec<u32> = (0..100).map(|i| u32::MAX - 7 * i).collect();
        let mut to = vec![0u8; 400];
        let (base, bytes) = pack(&keys, 0, &mut to, &mut Frame::default());
        assert_eq!(bytes, 2);
        let made: Vec<u32> = unpack(&to, base, bytes, 100).iter().map(|&k| k as u32).collect();
        assert_eq!(made, keys);
    }

    /// Signed values, whose words have the highest bit flipped, take as few bytes as unsigned ones.
    #[test]
    fn signed_values_are_packed_as_their_words() {
        let values: Vec<i32> = (-100..100).collect();
        let keys: Vec<u32> = values.iter().map(|&value| value as u32).collect();
        let words: Vec<u64> = keys.iter().map(|key| u64::from(key ^ 1 << 31)).collect();
        let mut to = vec![0u8; 800];
        let (base, bytes) = pack(&keys, 1 << 31, &mut to, &mut Frame::default());
        assert_eq!((base, bytes), ((1 << 31) - 100, 1));
        assert_eq!(unpack(&to, base, bytes, 200), words);
        let keys = [i64::MIN, -1, 0, 1, i64::MAX].map(|value| value as u64);
        let words = keys.map(|key| key ^ 1 << 63);
        let (base, bytes) = pack(&keys, 1 << 63, &mut to, &mut Frame::default());
        assert_eq!((base, bytes), (0, 8));
        assert_eq!(unpack(&to, base, bytes, 5), words);
    }

    #[test]
    fn segments_lie_in_their_own_place() {
        let segment_rows = 3 * PIECE_ROWS;
        let rows = segment_rows + 5;
        let keys: Vec<u64> = (0..rows as u64).map(|i| 1000 + i * 3).collect();
        let mut to = vec![0u8; rows * 8];
        let mut packs = vec![abi::Pack::default(); rows.div_ceil(PIECE_ROWS)];
        for segment in 0..2 {
            // SAFETY: the keys outlive the column.
            let column = unsafe { HostColumn::pageable(HostView::of(&keys)) };
            let from = ChunkWords { column: &column, first: 0, word: Width::W64 };
            let first = segment * segment_rows;
            let buffer = to[first * 8..].as_mut_ptr();
            let targets = [buffer, packs.as_mut_ptr().cast()];
            // SAFETY: the buffer is as long as the keys, and there is one pack per piece.
            let (used, raw) =
                unsafe { pack_segment(&from, targets, first..rows.min(first + segment_rows)) }
                    .unwrap();
            assert!(!raw);
            let most = [segment_rows, 5][segment] * 8;
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

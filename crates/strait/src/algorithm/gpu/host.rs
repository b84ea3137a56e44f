//! A join of Arrow tables on a device: key words go in, pairs of row numbers come out.
//!
//! ```text
//!  build: words ─► staged in pinned memory ─► device ─┐           ┌─► pairs ─► pinned ─► matches ─► rows
//!                                                     ├─► join ───┼─► flags ─────────► sweep ───► rows
//!  probe: words ─► staged in pinned memory ─► device ─┘           └─► a count
//! ```
//!
//! Only words cross to the device, and only row numbers come back: the columns stay where they are
//! and are gathered there. Where every row may match, not even row numbers go in: a row's number is
//! its position. Workers settle a block's pairs while the device fills the next.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::super::{Context, Job, pair_cap, reserve_scratch, sweep_all};
use super::{Block, Found, Method, Receiver, Session, Side, Wanted, join};
use crate::device::{Device, Flavour, Pinned, View, Word};
use crate::error::{Error, Result};
use crate::input::Relation;
use crate::key::{KeyWord, Width};
use crate::matches::{Flags, Matcher, Unit};
use crate::output::{Emitter, Sink};
use crate::partition::{Words, key_words};
use crate::progress::Stage;
use crate::table::{Pairs, Want};

/// Bytes of a staging buffer: long enough for the link, short enough to overlap.
const STAGE: usize = 16 << 20;
/// Staging buffers: one is filled while another is copied.
const STAGES: usize = 2;

/// Joins on `device`.
pub(crate) fn run(cx: &Context<'_>, mut job: Job<'_>, device: &dyn Device) -> Result<()> {
    let probe = cx.watch.time("read probe side", || job.hold_probe(cx))?;
    match job.keys.width() {
        Width::W32 => conduct::<u32>(cx, job, &probe, device),
        Width::W64 => conduct::<u64>(cx, job, &probe, device),
    }
}

fn conduct<K: KeyWord>(
    cx: &Context<'_>,
    job: Job<'_>,
    probe: &Relation,
    device: &dyn Device,
) -> Result<()> {
    let rows = job.build.rows().max(probe.rows());
    let narrow = K::BITS == 32 && rows <= u64::from(u32::MAX) && !cx.force.wide_rows;
    let word = if narrow { Word::W4 } else { Word::W8 };
    let session = Session::new(device, word)?;

    cx.counters.enter(Stage::Partition, job.build.rows() + probe.rows());
    let side = |side, relation: &Relation| -> Result<Side> {
        let words = cx.watch.time("key words", || key_words::<K>(cx, job.keys, side, relation))?;
        cx.watch.time("copy to device", || send(cx, &session, &words))
    };
    let build_side = side(job.build_side, &job.build)?;
    let probe_side = side(job.build_side.other(), probe)?;

    let matcher = job.matcher(cx, job.keys.exact());
    let [build_unit, probe_unit] = job.held_units(cx, &matcher, probe)?;
    let mut units = [build_unit, probe_unit];
    let (wanted, flags) = wanted(cx, &session, &matcher, &mut units)?;
    let [build_unit, probe_unit] = &units;
    let cap = pair_cap(cx, job.sink);
    let _scratch = reserve_scratch::<u64>(cx, 0, cap)?;
    cx.counters.enter(Stage::Probe, 0);
    let mut pairs = Settling {
        cx,
        matcher: &matcher,
        build: build_unit,
        probe: probe_unit,
        sink: job.sink,
        cap,
        staged: None,
    };
    let method = Method { algorithm: job.plan.algorithm, partitioner: cx.partitioner };
    let found = cx.watch.time("join on device", || {
        join(&session, method, [&build_side, &probe_side], &wanted, &mut pairs)
    })?;
    if wanted.flavour == Flavour::Aggregate {
        count(&job, &found)?;
    }
    let views = [wanted.build_flags, wanted.probe_flags];
    for ((unit, flags), view) in units.iter_mut().zip(flags).zip(views) {
        if let (Some(flags), Some(view)) = (flags, view) {
            fetch_flags(&session, view, &flags, unit.rows)?;
            unit.flags = Some(flags);
        }
    }
    cx.watch.add_device(session.times()?);
    drop(session);

    cx.counters.enter(Stage::Unmatched, job.build.rows() + probe.rows());
    cx.watch.time("unmatched rows", || {
        let [build_unit, probe_unit] = &units;
        sweep_all(cx, &matcher, probe_unit, job.roles.probe, job.sink)?;
        sweep_all(cx, &matcher, build_unit, job.roles.build, job.sink)
    })
}

/// What the device has to find: less than all pairs where every candidate is a match and the join
/// type asks only whether there is one, or how many. Where it flags rows itself, their flags are
/// taken from the units until they can be fetched.
fn wanted(
    cx: &Context<'_>,
    session: &Session<'_>,
    matcher: &Matcher<'_>,
    units: &mut [Unit; 2],
) -> Result<(Wanted, [Option<Flags>; 2])> {
    let all_match = matcher.exact && matcher.filter.is_none();
    let flagged = units.iter().any(|unit| unit.flags.is_some());
    let flavour = match matcher.want(&units[0]) {
        Want::All if all_match && flagged => Flavour::PairsFlagged,
        Want::All => Flavour::Pairs,
        Want::Count => Flavour::Aggregate,
        Want::First | Want::Flag(_) => Flavour::Exists,
    };
    let expected_rows = if cx.force.tiny_chunks { 0 } else { units[1].rows as u64 };
    let mut taken = [None, None];
    let mut views = [None, None];
    if matches!(flavour, Flavour::PairsFlagged | Flavour::Exists) {
        for (i, unit) in units.iter_mut().enumerate() {
            taken[i] = unit.flags.take();
            if taken[i].is_some() {
                views[i] = Some(session.zeroed(unit.rows as u64, "flags of matched rows")?);
            }
        }
    }
    let [build_flags, probe_flags] = views;
    let wanted =
        Wanted { flavour, keys: false, signed: false, build_flags, probe_flags, expected_rows };
    Ok((wanted, taken))
}

/// Adds a count of matches to the output.
fn count(job: &Job<'_>, found: &Found) -> Result<()> {
    job.candidates.fetch_add(found.rows, Ordering::Relaxed);
    let mut emitter = Emitter::new(job.sink);
    emitter.count(found.rows);
    emitter.finish()
}

/// Copies the words of rows that may match to the device, and, where that is not all rows, their
/// numbers.
fn send<K: KeyWord>(cx: &Context<'_>, session: &Session<'_>, words: &Words<K>) -> Result<Side> {
    let rows = words.matchable;
    let bytes = rows as u64 * session.word.bytes();
    let keys = session.allocate(bytes, "the keys")?;
    let whole = rows == words.words.len();
    let values = match whole {
        true => None,
        false => Some(session.allocate(bytes, "the row numbers")?),
    };
    // Where each piece's rows go.
    let mut starts = Vec::with_capacity(words.pieces.len() + 1);
    starts.push(0usize);
    for piece in 0..words.pieces.len() {
        starts.push(starts[piece] + words.matchable_of(piece));
    }
    stage(cx, session, words, &starts, keys, |_, word| word.to_u64())?;
    if let Some(values) = values {
        stage(cx, session, words, &starts, values, |row, _| row as u64)?;
    }
    Ok(Side { keys, values, rows: rows as u64 })
}

/// Writes one word a row that may match, through pinned buffers, a few pieces at a time.
fn stage<K: KeyWord>(
    cx: &Context<'_>,
    session: &Session<'_>,
    words: &Words<K>,
    starts: &[usize],
    to: View,
    value: impl Fn(usize, K) -> u64 + Sync,
) -> Result<()> {
    let size = session.word.bytes() as usize;
    let longest = (0..words.pieces.len()).map(|p| words.matchable_of(p)).max().unwrap_or(0);
    let bytes = STAGE.min(starts.last().map_or(0, |rows| rows * size)).max(longest * size).max(1);
    let pinned = || session.device.pinned(bytes, "staging");
    let buffers: Vec<Arc<Pinned>> = (0..STAGES).map(|_| pinned()).collect::<Result<_>>()?;
    let mut first = 0;
    let mut turn = 0;
    while first < words.pieces.len() {
        let room = |&last: &usize| (starts[last] - starts[first]) * size <= bytes;
        let last = (first + 1..=words.pieces.len()).take_while(room).last().unwrap_or(first + 1);
        if turn == 0 {
            // Both buffers are under way.
            session.device.synchronize(session.copies)?;
        }
        let buffer = &buffers[turn];
        // SAFETY: the copy out of this buffer is done, and pieces have places of their own in it.
        let target = SharedBytes(unsafe { buffer.bytes_mut() }.as_mut_ptr());
        cx.workers.each(last - first, |task, _| {
            let piece = first + task;
            let (words_of, valid) = words.of_piece(piece);
            let row = words.pieces[piece].0.first_row;
            let at = starts[piece] - starts[first];
            let some = words_of.iter().enumerate();
            let kept = some.filter(|(i, _)| valid.is_none_or(|valid| valid.is_valid(*i)));
            for (n, (i, &word)) in kept.enumerate() {
                // SAFETY: row `at + n` of this stage is this piece's, and inside the buffer.
                unsafe { target.put(at + n, size, value(row + i, word)) };
            }
            Ok(())
        })?;
        let bytes = ((starts[last] - starts[first]) * size) as u64;
        if bytes > 0 {
            let view = to.part((starts[first] * size) as u64, bytes);
            session.device.copy_in(session.copies, buffer, 0, view)?;
        }
        first = last;
        turn = (turn + 1) % STAGES;
    }
    // Stages wait for the copies; the host need not.
    let copied = session.device.record(session.copies)?;
    session.device.wait(session.compute, copied)
}

/// A buffer that workers write at places of their own.
struct SharedBytes(*mut u8);

// SAFETY: workers write to places of their own.
unsafe impl Sync for SharedBytes {}

impl SharedBytes {
    /// Writes the low `size` bytes of `value` as number `at`.
    ///
    /// # Safety
    /// The place is inside the buffer, and nobody else's; `size` is 4 or 8.
    #[inline(always)]
    unsafe fn put(&self, at: usize, size: usize, value: u64) {
        // SAFETY: promised by the caller; pinned memory is aligned to its widest use.
        unsafe {
            match size {
                4 => self.0.add(at * 4).cast::<u32>().write(value as u32),
                _ => self.0.add(at * 8).cast::<u64>().write(value),
            }
        }
    }
}

/// Settles pairs as they come.
struct Settling<'a> {
    cx: &'a Context<'a>,
    matcher: &'a Matcher<'a>,
    build: &'a Unit,
    probe: &'a Unit,
    sink: &'a Sink<'a>,
    cap: usize,
    /// Build and probe values of a block, kept from one to the next.
    staged: Option<[Arc<Pinned>; 2]>,
}

impl Receiver for Settling<'_> {
    fn block(&mut self, session: &Session<'_>, block: Block) -> Result<()> {
        let size = session.word.bytes() as usize;
        let rows_at_once = STAGE / size;
        let mut first = 0;
        while first < block.rows {
            self.cx.workers.check()?;
            let rows = (block.rows - first).min(rows_at_once as u64);
            self.some(session, block, first, rows as usize)?;
            first += rows;
        }
        Ok(())
    }
}

impl Settling<'_> {
    /// Fetches and settles some rows of a block.
    fn some(&mut self, session: &Session<'_>, block: Block, first: u64, rows: usize) -> Result<()> {
        let size = session.word.bytes() as usize;
        if self.staged.as_ref().is_none_or(|staged| staged[0].len < rows * size) {
            let pinned = || session.device.pinned(rows * size, "pairs");
            self.staged = Some([pinned()?, pinned()?]);
        }
        let Some(staged) = &self.staged else {
            return Err(Error::Worker("no memory to fetch pairs into".to_string()));
        };
        for (view, to) in [block.build, block.probe].iter().zip(staged) {
            let part = view.part(first * size as u64, (rows * size) as u64);
            session.device.copy_out(session.copies, part, to, 0)?;
        }
        session.device.synchronize(session.copies)?;
        // SAFETY: the copies are done, and none follows before this returns.
        let [build, probe] = unsafe { [staged[0].bytes(), staged[1].bytes()] };
        let tasks = rows.div_ceil(self.cap);
        self.cx.workers.for_rows(rows).each(tasks, |task, _| {
            let range = task * self.cap..((task + 1) * self.cap).min(rows);
            let mut pairs = Pairs::default();
            let take = |from: &[u8], to: &mut Vec<u64>| {
                let bytes = &from[range.start * size..range.end * size];
                match size {
                    4 => {
                        to.extend(bytes.chunks_exact(4).map(|b| u64::from(word_of::<4>(b) as u32)))
                    }
                    _ => to.extend(bytes.chunks_exact(8).map(word_of::<8>)),
                }
            };
            take(build, &mut pairs.build);
            take(probe, &mut pairs.probe);
            let mut emitter = Emitter::new(self.sink);
            self.matcher.settle(self.build, self.probe, &mut pairs, &mut emitter)?;
            emitter.finish()
        })?;
        self.cx.counters.done.fetch_add(rows as u64, Ordering::Relaxed);
        Ok(())
    }
}

/// A number of `N` bytes.
fn word_of<const N: usize>(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..N].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

/// Fetches a side's flags from the device.
fn fetch_flags(session: &Session<'_>, from: View, flags: &Flags, rows: usize) -> Result<()> {
    let pinned = session.device.pinned(rows.clamp(1, STAGE), "flags of matched rows")?;
    for first in (0..rows).step_by(STAGE) {
        let some = STAGE.min(rows - first);
        let part = from.part(first as u64, some as u64);
        session.device.copy_out(session.compute, part, &pinned, 0)?;
        session.device.synchronize(session.compute)?;
        // SAFETY: the copy is done, and the next comes after this.
        let bytes = unsafe { &pinned.bytes()[..some] };
        let set = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
        set.for_each(|(row, _)| flags.set((first + row) as u64));
    }
    Ok(())
}

//! Joins Arrow tables on a device: key words go in, pairs of positions come out.
//!
//! ```text
//!  build: words in host memory ─┐                          ┌─► pairs ─► pinned ─► matches ─► rows
//!  (and inlined columns)        ├─► join, by any conductor ┼─► flags ─────────► emit_unmatched ───► rows
//!  probe: words in host memory ─┘                          └─► a count
//! ```
//!
//! If a key is one integer column without nulls, and is as wide as a word, then its values plus a bias are
//! the words. Such a column is staged directly from its batches. For all other keys, the words are computed
//! first.
//!
//! Words cross to the device, and positions come back. The columns stay in host memory and are
//! gathered there. The device computes the positions. A position is the row number, unless some rows have a
//! null key and therefore cannot match. Those rows do not cross, and the host translates positions to row
//! numbers. Workers resolve the pairs of one block while the device fills the next.
//!
//! Build rows come back in any order, and fetching each of them from host memory costs more than everything
//! else. So if the wanted build columns together are no wider than a word, they are inlined: they cross with
//! the keys and come back in place of positions. Probe rows come back nearly in order, so their columns
//! never cross.

use std::any::Any;
use std::sync::atomic::Ordering;

use arrow::buffer::{NullBuffer, ScalarBuffer};
use arrow::datatypes::ArrowNativeType;

use super::super::{Context, Job, emit_all_unmatched, pair_cap, workers_with_scratch};
use super::{
    Block, Escalated, FromHost, HostJoinResult, JoinResult, Receiver, Session, Wanted, Which,
    join_from_host,
};
use crate::device::{Device, Event, Flavour, HostView};
use crate::error::{Error, Result};
use crate::input::{Piece, Relation};
use crate::key::KeyPlan;
use crate::matches::{Asked, Matcher, Unit};
use crate::materialise::Columns;
use crate::memory::{Buffer, Plain};
use crate::options::Side;
use crate::output::{Emitter, Sink};
use crate::partition::{PIECE, RowId, Words, key_words};
use crate::plan::gpu_memory::reads_words;
use crate::progress::Stage;
use crate::table::Flags;
use crate::table::Pairs;
use crate::transfer::{Drain, HostColumn, HostSide, TransferContext};
use crate::word::KeyWord;
use crate::word::Width;

/// Inlined columns may take this fraction (1/8) of the memory that a limit leaves.
const FOR_INLINED: u64 = 8;
/// Rows per chunk if a test forces several chunks.
const TINY_CHUNK: u64 = 7;
/// If a test forces several parts: the minimum number of rows per part, and the number of parts.
const TINY_PART: u64 = 11;
const TINY_PARTS: u64 = 6;

/// Joins on `device`. `probe` is the probe side, completely read; the job's own probe source is not used.
pub(crate) fn run(
    cx: &Context<'_>,
    job: &Job<'_>,
    probe: &Relation,
    device: &dyn Device,
) -> Result<Option<Escalated>> {
    match job.keys.width() {
        Width::W32 => conduct::<u32>(cx, job, probe, device),
        Width::W64 => conduct::<u64>(cx, job, probe, device),
    }
}

fn conduct<K: KeyWord + RowId + Plain + ArrowNativeType>(
    cx: &Context<'_>,
    job: &Job<'_>,
    probe: &Relation,
    device: &dyn Device,
) -> Result<Option<Escalated>> {
    let rows = job.build.rows().max(probe.rows());
    let narrow = K::BITS == 32 && rows <= u64::from(u32::MAX) && !cx.overrides.wide_rows;
    let word = if narrow { Width::W32 } else { Width::W64 };
    let session = Session::within(device, word, job.keys.seed().mixers(), &cx.budget)?;
    let session = session.waiting_with(job.sink.flow, job.sink.cancelled);

    cx.counters.enter(Stage::Partition, job.build.rows() + probe.rows());
    let matcher = job.matcher(cx, job.keys.exact());
    let fits = |columns: &Columns| {
        let bytes = job.build.rows() * word.bytes();
        // Under a limit, inlined columns must leave memory for everything else.
        let room = bytes <= cx.budget.left() / FOR_INLINED;
        columns.inlined_bytes() <= Some(word.bytes() as usize) && room
    };
    let inlining = job.inlining(cx, &matcher).filter(fits);
    let inlined = inlining.is_some();
    let staged = cx.gpu_options.transfer.stages() && !reads_words(job.plan.algorithm);
    let in_place = staged && word.bits() == K::BITS;
    let keys = |side, relation: &Relation, inlining: Option<&Columns>| -> Result<Keys> {
        cx.watch.time("key words", || {
            if in_place
                && let Some(keys) = Keys::in_place::<K>(cx, job.keys, side, relation, inlining)?
            {
                return Ok(keys);
            }
            let words = key_words::<K>(cx, job.keys, side, relation)?;
            Keys::of(cx, words, word, inlining)
        })
    };
    let build_keys = keys(job.build_side, job.build, inlining.as_ref())?;
    let probe_keys = keys(job.build_side.other(), probe, None)?;

    let mut units = job.held_units(cx, &matcher, probe, inlining)?;
    let (wanted, flags) = wanted(cx, &matcher, &mut units);
    let cap = pair_cap(cx, job.sink);
    // Under a limit, fewer workers hold fewer pairs.
    let (workers, _scratch) = workers_with_scratch::<u64>(cx, None, 0, cap)?;
    let cx = &Context { workers, ..cx.clone() };
    cx.counters.enter(Stage::Probe, 0);
    let size = word.bytes();
    let mut receiver = PairReceiver {
        resolver: Resolver {
            cx,
            matcher: &matcher,
            units: [&units[0], &units[1]],
            row_of: [build_keys.row_of.as_ref(), probe_keys.row_of.as_ref()],
            flags: [flags[0].as_ref(), flags[1].as_ref()],
            sink: job.sink,
            cap,
            size: size as usize,
            inlined,
        },
        drain: Drain::new(vec![size, size]),
    };
    let crossing = TransferContext {
        session: &session,
        workers: &cx.workers,
        transfer: cx.gpu_options.transfer,
        most_rows: cx.overrides.tiny_chunks.then_some(TINY_CHUNK),
    };
    let sides = [build_keys.side(), probe_keys.side()];
    let tiny = (sides[0].rows / TINY_PARTS).max(TINY_PART);
    let how = FromHost {
        algorithm: job.plan.algorithm,
        gpu_options: cx.gpu_options,
        escalation: job.plan.escalation,
        part_rows: cx.overrides.tiny_partitions.then_some(tiny),
    };
    let HostJoinResult { found, escalated } = cx.watch.time("join on device", || {
        let sides = [&sides[0], &sides[1]];
        let found = join_from_host(&crossing, &how, sides, &wanted, &mut receiver)?;
        receiver.finish(&session)?;
        Ok::<HostJoinResult, Error>(found)
    })?;
    if wanted.flavour == Flavour::Aggregate {
        count(job, &found)?;
    }
    cx.watch.add_device(session.times()?, session.crossed());
    drop(session);
    for (unit, flags) in units.iter_mut().zip(flags) {
        if flags.is_some() {
            unit.flags = flags;
        }
    }

    cx.counters.enter(Stage::Unmatched, job.build.rows() + probe.rows());
    cx.watch.time("unmatched rows", || {
        let [build_unit, probe_unit] = &units;
        let with = (&cx.workers, cap);
        emit_all_unmatched(with, &matcher, probe_unit, job.roles.probe, job.sink)?;
        emit_all_unmatched(with, &matcher, build_unit, job.roles.build, job.sink)
    })?;
    Ok(escalated)
}

/// The key words of the rows of one side that may match, in the device's word width.
struct Keys {
    words: Made,
    /// The inlined columns of each row, in the same width.
    values: Option<Made>,
    rows: u64,
    /// The row number for each position. `None` if all rows may match.
    row_of: Option<Buffer<u64>>,
}

/// One word per row, and the memory that holds the words.
struct Made {
    column: HostColumn,
    _memory: Box<dyn Any>,
}

impl Made {
    fn in_buffer<D: Plain>(made: Buffer<D>) -> Made {
        // SAFETY: the memory lives as long as this value, which outlives the join.
        let column = unsafe { HostColumn::pageable(HostView::of(&made)) };
        Made { column, _memory: Box::new(made) }
    }

    /// Words in batches. The device's words are these values plus `bias`.
    fn in_batches<D: Plain + ArrowNativeType>(batches: Vec<ScalarBuffer<D>>, bias: u64) -> Made {
        let views = batches.iter().map(|batch| HostView::of(batch)).collect();
        // SAFETY: as above.
        let column = unsafe { HostColumn::in_batches(views, bias) };
        Made { column, _memory: Box::new(batches) }
    }
}

impl Keys {
    /// Returns the words of a plain column without copying them, or `None` if words have to be computed.
    fn in_place<K: KeyWord + RowId + Plain + ArrowNativeType>(
        cx: &Context<'_>,
        keys: &KeyPlan,
        side: Side,
        relation: &Relation,
        inlining: Option<&Columns>,
    ) -> Result<Option<Keys>> {
        let Some((words, bias)) = keys.unbiased_values::<K>(side, relation.batches())? else {
            return Ok(None);
        };
        let values = match inlining {
            None => None,
            Some(columns) => match columns.inlined_in_place::<K>() {
                Some(batches) => Some(Made::in_batches(batches, 0)),
                None => {
                    let pieces = relation.pieces(PIECE).into_iter().map(|piece| (piece, None));
                    Some(inlined::<K>(cx, &pieces.collect::<Vec<_>>(), columns)?)
                }
            },
        };
        let words = Made::in_batches(words, bias);
        Ok(Some(Keys { words, values, rows: relation.rows(), row_of: None }))
    }

    fn of<K: KeyWord + Plain>(
        cx: &Context<'_>,
        words: Words<'_, K>,
        word: Width,
        inlining: Option<&Columns>,
    ) -> Result<Keys> {
        let (rows, whole) = (words.matchable as u64, words.matchable == words.rows);
        let values = match (inlining, word) {
            (None, _) => None,
            (Some(columns), Width::W32) => Some(inlined::<u32>(cx, &words.pieces, columns)?),
            (Some(columns), Width::W64) => Some(inlined::<u64>(cx, &words.pieces, columns)?),
        };
        let row_of = match whole || inlining.is_some() {
            true => None,
            false => Some(chosen(cx, &words, "the numbers of rows", |row, _| row as u64)?),
        };
        let as_they_are = whole && word.bytes() as usize == size_of::<K>();
        let made = if as_they_are { words.into_made() } else { Err(words) };
        let words = match (made, word) {
            (Ok(made), _) => Made::in_buffer(made),
            (Err(words), Width::W32) => {
                let narrow = |_, word: K| word.to_u64() as u32;
                Made::in_buffer(chosen(cx, &words, "the key words", narrow)?)
            }
            (Err(words), Width::W64) => {
                let wide = |_, word: K| word.to_u64();
                Made::in_buffer(chosen(cx, &words, "the key words", wide)?)
            }
        };
        Ok(Keys { words, values, rows, row_of })
    }

    fn side(&self) -> HostSide {
        let values = self.values.as_ref().map(|values| values.column.clone());
        HostSide { keys: self.words.column.clone(), values, rows: self.rows }
    }
}

/// Builds the inlined values of the rows that may match.
fn inlined<I: RowId>(cx: &Context<'_>, pieces: &Pieces, columns: &Columns) -> Result<Made> {
    let made = by_pieces(cx, pieces, "the columns that travel with keys", |piece, valid, to| {
        let mut scratch = Vec::new();
        let all = columns.inlined::<I>(&pieces[piece].0, &mut scratch);
        match valid {
            None => to.copy_from_slice(all),
            Some(valid) => {
                to.iter_mut().zip(valid.valid_indices()).for_each(|(to, i)| *to = all[i])
            }
        }
        Ok(())
    })?;
    Ok(Made::in_buffer(made))
}

/// Builds a column with one value for each row that may match.
fn chosen<K: KeyWord, D: Plain>(
    cx: &Context<'_>,
    words: &Words<'_, K>,
    what: &str,
    value: impl Fn(usize, K) -> D + Sync,
) -> Result<Buffer<D>> {
    by_pieces(cx, &words.pieces, what, |piece, valid, to| {
        let mut scratch = Vec::new();
        let (of_piece, _) = words.of_piece(piece, &mut scratch)?;
        let row = words.pieces[piece].0.first_row;
        match valid {
            // Without a branch inside, the compiler vectorises this loop.
            None => to.iter_mut().zip(of_piece).enumerate().for_each(|(i, (to, &word))| {
                *to = value(row + i, word);
            }),
            Some(valid) => to.iter_mut().zip(valid.valid_indices()).for_each(|(to, i)| {
                *to = value(row + i, of_piece[i]);
            }),
        }
        Ok(())
    })
}

/// The pieces of a side, each with the rows that may match. `None` means that all its rows may.
type Pieces = [(Piece, Option<NullBuffer>)];

/// Builds a column over the rows that may match, piece by piece, on all workers. `fill` gets the index of a
/// piece, its rows that may match (`None` for all), and the part of the column to write.
fn by_pieces<D: Plain>(
    cx: &Context<'_>,
    pieces: &Pieces,
    what: &str,
    fill: impl Fn(usize, Option<&NullBuffer>, &mut [D]) -> Result<()> + Sync,
) -> Result<Buffer<D>> {
    let mut starts = vec![0usize];
    for (piece, valid) in pieces {
        let nulls = valid.as_ref().map_or(0, NullBuffer::null_count);
        starts.push(starts[starts.len() - 1] + piece.len - nulls);
    }
    let matchable = starts[pieces.len()];
    let mut made = Buffer::<D>::uninit(matchable, &cx.budget, what)?;
    let out = made.shared();
    cx.workers.for_rows(matchable).each(pieces.len(), |piece, _| {
        // SAFETY: pieces do not overlap, and each piece belongs to one task.
        let to = unsafe { out.range(starts[piece]..starts[piece + 1]) };
        fill(piece, pieces[piece].1.as_ref(), to)
    })?;
    Ok(made)
}

/// Returns what the device has to produce. If the device sets the flags itself, this takes the flags out of
/// the units until the join is done.
fn wanted(
    cx: &Context<'_>,
    matcher: &Matcher<'_>,
    units: &mut [Unit; 2],
) -> (Wanted, [Option<Flags>; 2]) {
    let flagged = units.iter().any(|unit| unit.flags.is_some());
    let flavour = match matcher.asked() {
        Asked::Pairs if matcher.all_match() && flagged => Flavour::PairsFlagged,
        Asked::Pairs => Flavour::Pairs,
        Asked::Count => Flavour::Aggregate,
        Asked::Whether => Flavour::Exists,
    };
    let expected_rows = if cx.overrides.tiny_chunks { 0 } else { units[1].rows as u64 };
    let flags = match flavour {
        Flavour::PairsFlagged | Flavour::Exists => [units[0].flags.take(), units[1].flags.take()],
        Flavour::Pairs | Flavour::Aggregate => [None, None],
    };
    let wanted = Wanted {
        flavour,
        keys: false,
        signed: false,
        flag_build: flags[0].is_some(),
        flag_probe: flags[1].is_some(),
        build_flags: None,
        probe_flags: None,
        expected_rows,
    };
    (wanted, flags)
}

/// Adds the number of matches to the output.
fn count(job: &Job<'_>, found: &JoinResult) -> Result<()> {
    job.candidates.fetch_add(found.rows, Ordering::Relaxed);
    let mut emitter = Emitter::new(job.sink);
    emitter.count(found.rows);
    emitter.finish()
}

/// Receives pairs and flags from the device.
struct PairReceiver<'a> {
    resolver: Resolver<'a>,
    drain: Drain,
}

impl PairReceiver<'_> {
    /// Resolves the pairs that are still being copied.
    fn finish(&mut self, session: &Session<'_>) -> Result<()> {
        let resolver = &self.resolver;
        self.drain.take_arrived(session, &mut |rows, columns| resolver.resolve(rows, columns))
    }
}

impl Receiver for PairReceiver<'_> {
    fn block(&mut self, session: &Session<'_>, block: Block) -> Result<Option<Event>> {
        let resolver = &self.resolver;
        self.drain.send(session, &[block.build, block.probe], block.rows, &mut |rows, columns| {
            resolver.resolve(rows, columns)
        })
    }

    fn flags(&mut self, which: Which, first: u64, flags: &[u8]) -> Result<()> {
        let side = which as usize;
        let Some(to) = self.resolver.flags[side] else { return Ok(()) };
        let row_of = self.resolver.row_of[side];
        let set = flags.iter().enumerate().filter(|(_, byte)| **byte != 0);
        set.for_each(|(i, _)| {
            let at = first + i as u64;
            to.set(row_of.map_or(at, |row_of| row_of[at as usize]));
        });
        Ok(())
    }

    fn meanwhile(&mut self, session: &Session<'_>) -> Result<()> {
        self.finish(session)
    }
}

/// Resolves pairs.
struct Resolver<'a> {
    cx: &'a Context<'a>,
    matcher: &'a Matcher<'a>,
    units: [&'a Unit; 2],
    row_of: [Option<&'a Buffer<u64>>; 2],
    flags: [Option<&'a Flags>; 2],
    sink: &'a Sink<'a>,
    cap: usize,
    /// Bytes per position, or per inlined value.
    size: usize,
    /// Whether inlined values stand in place of the positions of build rows.
    inlined: bool,
}

impl Resolver<'_> {
    /// Resolves pairs. The columns are the positions or inlined values of the build rows, and the positions
    /// of the probe rows.
    fn resolve(&self, rows: usize, columns: &[&[u8]]) -> Result<()> {
        let &[build, probe] = columns else {
            return Err(Error::Worker("pairs have two columns".to_string()));
        };
        self.cx.workers.check()?;
        let tasks = rows.div_ceil(self.cap);
        self.cx.workers.for_rows(rows).each(tasks, |task, _| {
            let range = task * self.cap..((task + 1) * self.cap).min(rows);
            let mut pairs = Pairs::default();
            self.take(&build[range.start * self.size..range.end * self.size], 0, &mut pairs.build);
            self.take(&probe[range.start * self.size..range.end * self.size], 1, &mut pairs.probe);
            let mut emitter = Emitter::new(self.sink);
            let [build, probe] = self.units;
            match self.inlined {
                true => self.matcher.resolve_inlined(build, probe, &mut pairs, &mut emitter)?,
                false => self.matcher.resolve(build, probe, &mut pairs, &mut emitter)?,
            }
            emitter.finish()
        })?;
        self.cx.counters.done.fetch_add(rows as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Appends the row numbers for some positions of a side.
    fn take(&self, bytes: &[u8], side: usize, to: &mut Vec<u64>) {
        match self.size {
            4 => to.extend(bytes.chunks_exact(4).map(word_of::<4>)),
            _ => to.extend(bytes.chunks_exact(8).map(word_of::<8>)),
        }
        if let Some(row_of) = self.row_of[side] {
            to.iter_mut().for_each(|at| *at = row_of[*at as usize]);
        }
    }
}

/// Reads a little-endian number of `N` bytes.
fn word_of<const N: usize>(bytes: &[u8]) -> u64 {
    let mut all = [0; 8];
    all[..N].copy_from_slice(bytes);
    u64::from_le_bytes(all)
}

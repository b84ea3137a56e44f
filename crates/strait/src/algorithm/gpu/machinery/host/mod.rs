//! Joins Arrow tables on a device: key words go in, matches come out.
//!
//! ```text
//!  build: key words in host memory ─┐                          ┌─► matches ─► pinned ─► rows
//!  (and inlined columns)            ├─► join, by any conductor ┼─► flags ──► emit_unmatched ──► rows
//!  probe: key words, chunk by chunk ┘                          └─► a count
//! ```
//!
//! | file | what it does |
//! | --- | --- |
//! | [`keys`] | the key words of a side, or of a chunk of it |
//! | [`chunk`] | reads the probe side while it is joined |
//! | [`receive`] | turns the matches that come back into rows |
//!
//! Key words cross to the device, and positions come back. The columns stay in host memory and are gathered
//! there. A position is a row number, unless some rows have a null key and therefore cannot match. Those rows
//! do not cross, and the host translates positions to row numbers.
//!
//! Build rows come back in any order, and fetching each of them from host memory costs more than everything
//! else. So if the wanted build columns together are no wider than a word, they are inlined: they cross with
//! the keys and come back in place of positions. The columns of the probe side never cross. If each probe row
//! has at most one match, the matches come back in the order of the probe rows, and the probe columns of the
//! output are slices of the input.

mod chunk;
mod keys;
mod receive;

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow::datatypes::ArrowNativeType;

use super::wanted::{JoinResult, Wanted};
use crate::algorithm::gpu::join_from_host;
use crate::algorithm::{Job, emit_all_unmatched, pair_cap, spare_bytes, workers_with_scratch};
use crate::context::Context;
use crate::device::{Device, Flavour, Session};
use crate::error::{Error, Result};
use crate::input::BufferedSource;
use crate::matches::{Keep, Matcher, Unit};
use crate::memory::Plain;
use crate::output::Emitter;
use crate::partition::{RowId, key_words};
use crate::plan::{KeySource, Plan, ProbeSide};
use crate::progress::Stage;
use crate::transfer::{Drain, Incoming, TransferContext};
use crate::word::KeyWord;
use crate::word::Width;
use chunk::{Probe, ProbeReader};
use keys::Keys;
use receive::{PairReceiver, Resolver};

/// Rows per chunk if a test forces several chunks.
const TINY_CHUNK: u64 = 7;

/// The outcome of an attempt to join on a device.
pub(crate) struct Attempt {
    /// The plan that was carried out.
    pub(crate) joined: Result<Plan>,
    /// The probe side, with the rows that were not joined.
    pub(crate) probe: BufferedSource,
    /// Whether another plan can still join: no row of the probe side is gone.
    pub(crate) repeatable: bool,
}

/// Joins on `device`. If the whole probe side has to be held, `needed` bytes of memory must stay free.
pub(crate) fn run(
    cx: &Context<'_>,
    job: &Job<'_>,
    probe: BufferedSource,
    needed: u64,
    device: &dyn Device,
) -> Attempt {
    let probe = Probe::new(probe);
    let joined = match job.keys.width() {
        Width::W32 => join_words::<u32>(cx, job, &probe, needed, device),
        Width::W64 => join_words::<u64>(cx, job, &probe, needed, device),
    };
    let (probe, repeatable) = probe.end();
    Attempt { joined, probe, repeatable }
}

fn join_words<K: KeyWord + RowId + Plain + ArrowNativeType>(
    cx: &Context<'_>,
    job: &Job<'_>,
    probe: &Probe,
    needed: u64,
    device: &dyn Device,
) -> Result<Plan> {
    let mut plan = job.plan.clone();
    let details = &job.plan.details;
    let word = details.word();
    let session = Session::within(device, word, job.keys.seed().mixers(), &cx.budget)?;
    let session = session.waiting_with(job.sink.flow, job.sink.cancelled);

    cx.counters.enter(Stage::Partition, job.build.rows());
    let matcher = job.matcher(cx, job.keys.exact());
    let inlining = job.inlined_columns()?;
    let inlined = inlining.is_some();
    let build_keys = cx.watch.time("key words", || {
        let (side, build, inlining) = (job.build_side, job.build, inlining.as_ref());
        let in_place = details.build_keys == KeySource::Column;
        if in_place && let Some(keys) = Keys::in_place::<K>(cx, job.keys, side, build, inlining)? {
            return Ok(keys);
        }
        Keys::of(cx, key_words::<K>(cx, job.keys, side, build)?, word, inlining)
    })?;
    let mut build = job.build_unit(cx, &matcher, inlining)?;
    let mut wanted = wanted(&matcher, &build);
    // The device sets the flags of build rows. They return to the unit after the join.
    let flags = if wanted.flag_build { build.flags.take() } else { None };

    let cap = pair_cap(cx, job.sink);
    // Under a limit, fewer workers hold fewer pairs.
    let (workers, _scratch) = workers_with_scratch::<u64>(cx, None, 0, cap)?;
    let cx = &Context { workers, ..cx.clone() };
    let reader = ProbeReader::<K> {
        cx,
        keys: job.keys,
        matcher: &matcher,
        sink: job.sink,
        side: job.build_side.other(),
        probe,
        word,
        // Whether a column has nulls is learned chunk by chunk.
        in_place: details.probe_keys != KeySource::Computed,
        needed,
        spare: spare_bytes(cx),
        alive: Arc::new(()),
        key_word: PhantomData,
    };
    let incoming = Incoming::streamed(&reader);
    if details.probe_side != ProbeSide::Streamed {
        wanted.expected_rows = incoming.held()?.rows;
    }
    if cx.overrides.tiny_chunks {
        wanted.expected_rows = 0;
    }
    cx.counters.enter(Stage::Probe, 0);
    let size = word.bytes() as usize;
    let mut receiver = PairReceiver {
        resolver: Resolver {
            cx,
            matcher: &matcher,
            build: &build,
            build_row_of: build_keys.row_of.as_ref(),
            build_flags: flags.as_ref(),
            sink: job.sink,
            cap,
            size,
            inlined,
            matched: AtomicU64::new(0),
        },
        probe,
        drain: Drain::new(),
        order_pays: Cell::new(true),
    };
    let link = TransferContext {
        session: &session,
        workers: &cx.workers,
        transfer: plan.transfer()?,
        most_rows: cx.overrides.tiny_chunks.then_some(TINY_CHUNK),
    };
    let build_side = build_keys.side();
    let found = cx.watch.time("join on device", || {
        let (build, to) = (&build_side, &mut receiver);
        let found = join_from_host(&link, &mut plan, build, &incoming, &wanted, to)?;
        receiver.finish(&session)?;
        Ok::<JoinResult, Error>(found)
    })?;
    if wanted.flavour == Flavour::Aggregate {
        count(job, &found)?;
    }
    cx.watch.add_device(session.times()?, session.crossed(), session.work());
    let PairReceiver { resolver, drain, .. } = receiver;
    drop(drain);
    cx.counters.enter(Stage::Unmatched, job.build.rows());
    cx.watch.time("unmatched rows", || match probe.whole() {
        Some(whole) => resolver.end(&whole),
        None => Ok(()),
    })?;
    drop(session);
    if flags.is_some() {
        build.flags = flags;
    }
    cx.watch.time("unmatched rows", || {
        let with = (&cx.workers, cap);
        emit_all_unmatched(with, &matcher, &build, job.roles.build, job.sink)
    })?;
    Ok(plan)
}

/// Returns what the device has to produce. The host flags the probe rows of pairs, because it knows when all
/// pairs of a chunk have come back.
fn wanted(matcher: &Matcher<'_>, build: &Unit) -> Wanted {
    let flag_build = build.flags.is_some();
    let flavour = Flavour::of(matcher.yields, matcher.all_match() && flag_build);
    let flagged = matches!(flavour, Flavour::PairsFlagged | Flavour::Exists);
    Wanted {
        flavour,
        keys: false,
        signed: false,
        flag_build: flagged && flag_build,
        flag_probe: flavour == Flavour::Exists && matcher.roles.probe != Keep::Nothing,
        build_flags: None,
        probe_flags: None,
        // As many as the rows of a chunk.
        expected_rows: u64::MAX,
    }
}

/// Adds the number of matches to the output.
fn count(job: &Job<'_>, found: &JoinResult) -> Result<()> {
    job.candidates.fetch_add(found.rows, Ordering::Relaxed);
    let mut emitter = Emitter::new(job.sink, 0);
    emitter.count(found.rows);
    emitter.finish()
}

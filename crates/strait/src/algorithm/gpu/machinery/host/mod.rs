//! Joins Arrow tables on a device: key words go in, matches come out.
//!
//! ```text
//!  build: key words in host memory ─┐                          ┌─► matches ─► pinned ─► rows
//!  (and inlined columns)            ├─► join, by any conductor ┼─► flags ──► emit_by_flag ────► rows
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
//! Build rows come back in any order, and fetching them one by one from host memory would be the most
//! expensive step. So if the wanted build columns together are no wider than a word, they are inlined: they
//! cross with the keys and come back in place of positions. The columns of the probe side never cross. If
//! each probe row has at most one match, the matches come back in the order of the probe rows, and the probe
//! columns of the output are slices of the input.

mod chunk;
mod keys;
mod receive;

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use arrow::datatypes::ArrowNativeType;

use super::wanted::{JoinResult, Wanted, Which};
use crate::algorithm::gpu::join_from_host;
use crate::algorithm::{Job, emit_all_by_flag, pair_cap, spare_bytes, workers_with_scratch};
use crate::context::Context;
use crate::device::{Device, Flavour, Session};
use crate::error::{Error, Result};
use crate::input::BufferedSource;
use crate::matches::{FoundBy, Matcher, Unit};
use crate::memory::Plain;
use crate::partition::{RowId, key_words};
use crate::plan::{KeySource, Learned, Plan, ProbeSide};
use crate::progress::Stage;
use crate::transfer::{Drain, Incoming, TransferContext};
use crate::word::KeyWord;
use crate::word::Width;
use chunk::{Probe, ProbeReader};
pub(crate) use chunk::{Rest, Written};
use keys::Keys;
use receive::{Resolver, ResultReceiver};

/// The outcome of an attempt to join on a device.
pub(crate) struct Attempt {
    pub(crate) joined: Result<()>,
    /// The plan that was carried out, or that failed. It lists the plans that were abandoned before it.
    pub(crate) plan: Plan,
    /// The probe side, with the rows that were not joined.
    pub(crate) probe: BufferedSource,
    /// Which rows these are, if the attempt failed.
    pub(crate) rest: Rest,
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
    let mut plan = job.plan.clone();
    let joined = match job.keys.width() {
        Width::W32 => join_words::<u32>(cx, job, &mut plan, &probe, needed, device),
        Width::W64 => join_words::<u64>(cx, job, &mut plan, &probe, needed, device),
    };
    let (probe, rest) = probe.end();
    Attempt { joined, plan, probe, rest }
}

/// The build side, ready to be joined.
struct Build<'a> {
    /// The plan. An escalation changes it.
    plan: &'a mut Plan,
    matcher: &'a Matcher<'a>,
    unit: &'a Unit,
    keys: &'a Keys,
    inlined: bool,
    /// What the device has to produce.
    wanted: Wanted,
    /// The maximum number of pairs that a worker resolves at once.
    cap: usize,
}

fn join_words<K: KeyWord + RowId + Plain + ArrowNativeType>(
    cx: &Context<'_>,
    job: &Job<'_>,
    plan: &mut Plan,
    probe: &Probe,
    needed: u64,
    device: &dyn Device,
) -> Result<()> {
    let (word, build_keys) = (plan.details.word(), plan.details.build_keys);
    let session = Session::within(device, word, job.keys.seed().mixers(), &cx.budget)?;
    let session = session.waiting_with(job.sink.flow, job.sink.cancelled);

    cx.counters.enter(Stage::Partition, job.build.rows());
    // If the plan learns later that the results can come back in order, `stream_past` changes who flags the rows.
    let matcher = job.matcher(cx, job.keys.exact(), FoundBy::GpuUnordered);
    let inlining = job.inlined_columns()?;
    let inlined = inlining.is_some();
    let build_keys = cx.watch.time("key words", || {
        let (side, build, inlining) = (job.build_side, job.build, inlining.as_ref());
        match build_keys {
            KeySource::Column => {
                let is_one_word = plan.details.inlining.is_one_word(word);
                let inlining = inlining.map(|columns| (columns, is_one_word));
                Keys::in_place::<K>(cx, job.keys, side, build, inlining)
            }
            KeySource::Computed => {
                Keys::of(cx, key_words::<K>(cx, job.keys, side, build)?, word, inlining)
            }
            // The build side has been read, so its nulls are known.
            KeySource::ColumnIfNoNulls => {
                Err(Error::internal("the plan left open where the build side's key words are"))
            }
        }
    })?;
    let mut unit = job.build_unit(cx, &matcher, inlining)?;
    let wanted = wanted(&matcher);

    let cap = pair_cap(cx, job.sink);
    // Under a limit, fewer workers hold fewer pairs.
    let (workers, _scratch) = workers_with_scratch::<u64>(cx, None, 0, cap)?;
    let cx = &Context { workers, ..cx.clone() };
    let build =
        Build { plan, matcher: &matcher, unit: &unit, keys: &build_keys, inlined, wanted, cap };
    let joined = join::<K>(cx, job, &session, build, probe, needed);
    let joined = joined.and_then(|()| session.times());
    let times = match &joined {
        Ok(times) => Some(times.clone()),
        // If the CPU continues in the middle, the report tells what the device has done.
        Err(_) => probe.some_written().then(|| session.times().unwrap_or_default()),
    };
    if let Some(times) = times {
        cx.watch.add_device(times, session.crossed(), session.work());
    }
    drop(session);
    let emit_by_flag = || {
        let with = (&cx.workers, cap);
        emit_all_by_flag(with, &matcher, &unit, job.roles.build, job.sink)
    };
    let joined = joined.and_then(|_| cx.watch.time("unmatched rows", emit_by_flag));
    joined.inspect_err(|_| probe.keep_flags(unit.flags.take(), wanted.kernels_flag(Which::Build)))
}

/// Joins the probe side, and writes all rows except the build rows that are returned by their flag.
fn join<K: KeyWord + RowId + Plain + ArrowNativeType>(
    cx: &Context<'_>,
    job: &Job<'_>,
    session: &Session<'_>,
    build: Build<'_>,
    probe: &Probe,
    needed: u64,
) -> Result<()> {
    // The memory for chunks is measured once. Otherwise chunks would become very short while other chunks occupy
    // memory.
    let left_for_chunks = cx.budget.limit().map(|_| cx.budget.left());
    build.plan.refine(Learned { left_for_chunks, ..Learned::default() });
    let details = &build.plan.details;
    let (word, probe_side) = (details.word(), details.probe_side);
    let chunk_bytes = build.plan.chunk_rows()?.probe_bytes;
    let reader = ProbeReader::<K> {
        cx,
        keys: job.keys,
        matcher: build.matcher,
        sink: job.sink,
        side: job.build_side.other(),
        probe,
        word,
        key_source: details.probe_keys,
        chunk_bytes: chunk_bytes.unwrap_or(u64::MAX),
        needed,
        spare: spare_bytes(cx),
        alive: Arc::new(()),
        key_word: PhantomData,
    };
    let incoming = Incoming::on_demand(&reader);
    let mut wanted = build.wanted;
    if probe_side != ProbeSide::Streamed {
        wanted.expected_rows = incoming.held()?.rows;
    }
    if cx.overrides.tiny_chunks {
        wanted.expected_rows = 0;
    }
    cx.counters.enter(Stage::Probe, 0);
    probe.flags_returned(build.keys.rows == 0);
    let size = word.bytes() as usize;
    let mut receiver = ResultReceiver {
        resolver: Resolver {
            cx,
            matcher: build.matcher,
            build: build.unit,
            build_row_of: build.keys.row_of.as_ref(),
            build_keys: build.keys.rows,
            sink: job.sink,
            cap: build.cap,
            size,
            inlined: build.inlined,
            matched: AtomicU64::new(0),
        },
        probe,
        drain: Drain::new(),
        order_pays: Cell::new(true),
    };
    let link = TransferContext {
        session,
        workers: &cx.workers,
        transfer: build.plan.transfer()?,
        most_rows: build.plan.chunk_rows()?.build,
    };
    let build_side = build.keys.side();
    let found = cx.watch.time("join on device", || {
        let (plan, build, to) = (build.plan, &build_side, &mut receiver);
        let found = join_from_host(&link, plan, build, &incoming, &wanted, to)?;
        receiver.finish(session)?;
        Ok::<JoinResult, Error>(found)
    })?;
    cx.counters.enter(Stage::Unmatched, job.build.rows());
    let ResultReceiver { resolver, drain, .. } = receiver;
    drop(drain);
    if let Some(whole) = probe.whole() {
        // The rows of a streamed side were counted and written chunk by chunk.
        if wanted.flavour == Flavour::Aggregate {
            resolver.count(found.rows)?;
        }
        cx.watch.time("unmatched rows", || resolver.end(&whole))?;
    }
    Ok(())
}

/// Returns what the device has to produce.
fn wanted(matcher: &Matcher<'_>) -> Wanted {
    Wanted {
        flavour: Flavour::of(matcher.yields, matcher.flags().by_search()),
        keys: false,
        signed: false,
        flags: matcher.flags(),
        build_flags: None,
        probe_flags: None,
        // No estimate: the stream limits it to the rows of a chunk.
        expected_rows: u64::MAX,
    }
}

//! Builds one table over the build side in device memory; the probe side looks up in it (001 §5, 003).
//!
//! ```text
//!  build ─► clear, insert ─► a key twice? ── no ──► slots with values ──┐
//!                                │ yes                                  ├─► look up ─► rows
//!                                └─► count, place, fill groups ─────────┘
//! ```
//!
//! If the keys nearly fill their range, they address the slots directly. Otherwise the table is hashed, with
//! a load factor of at most one half. In both cases, the first attempt assumes that each key occurs once: the
//! slot then holds the value itself, and a lookup is one access. If a key occurs twice, the values of each
//! key are grouped instead. The time for grouping does not depend on how often a key occurs.

use super::output_loop::{Cut, OutputLoop, Work};
use super::{JoinResult, Receiver, Session, Side, Wanted};
use crate::device::{Stage, View, abi, l2};
use crate::error::Result;
use crate::gpu_options::TablePlace;
use crate::options::Algorithm;
use crate::plan::InGpuMemory;

/// The maximum number of slots per build row in a directly addressed table. These slots are half as wide as
/// hashed slots, and a hashed table has at least two slots per row.
const SPARSEST: u64 = 4;
/// The maximum number of slots per build row in a hashed table. More than two slots are used only if the
/// table stays in the L2 cache ([`l2::for_roomy_table`]) and takes at most 1/16 ([`SPARE`]) of the free
/// memory. Eight slots instead of two made 2^16 ⋈ 2^29 rows 7 % faster (benchmarks/notes.md).
const ROOMIEST: u64 = 8;
const SPARE: u64 = 16;
/// The maximum number of bytes per slot of a hashed table.
const SLOT: u64 = 16;
/// The minimum number of bits of a hashed table: the table must never be full.
const LEAST_BITS: u32 = 4;

/// Joins two sides.
pub(super) fn join(
    session: &Session<'_>,
    build: &Side,
    probe: &Side,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let table = table(session, build, TablePlace::Gpu)?;
    look_up(session, table, Rows::of(probe), wanted, to)
}

/// Surveys the build keys and asks the plan which algorithm is best for them. If it is this one, joins by a
/// directly addressed array. Returns `None` if the plan chooses another algorithm, or if a build key occurs
/// twice.
pub(super) fn join_surveyed(
    session: &Session<'_>,
    [build, probe]: [&Side; 2],
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<Option<JoinResult>> {
    let word = session.word;
    let facts = InGpuMemory { build_rows: build.rows, word, l2: session.device.shape(word).l2 };
    let range = direct(session, build)?;
    let chosen = facts.after_survey(range.map(|range| range.slot_count));
    let Some(range) = range.filter(|_| chosen == Algorithm::NoPartition) else {
        return Ok(None);
    };
    let table = array(session, Rows::of(build), range, TablePlace::Gpu)?;
    session.mark("build table")?;
    let Some(table) = table else { return Ok(None) };
    look_up(session, table, Rows::of(probe), wanted, to).map(Some)
}

/// Builds the kind of table that suits the keys of a side.
pub(super) fn table(session: &Session<'_>, build: &Side, place: TablePlace) -> Result<abi::Table> {
    let range = direct(session, build)?;
    let once = match range {
        Some(range) => array(session, Rows::of(build), range, place)?,
        None => single(session, Rows::of(build), place)?,
    };
    let table = match once {
        Some(table) => table,
        None => grouped(session, build, range, place)?,
    };
    session.mark("build table")?;
    Ok(table)
}

/// Builds a table if it is already known that a key occurs twice.
pub(super) fn table_of_groups(
    session: &Session<'_>,
    build: &Side,
    place: TablePlace,
) -> Result<abi::Table> {
    let range = direct(session, build)?;
    let table = grouped(session, build, range, place)?;
    session.mark("build table")?;
    Ok(table)
}

/// The rows to insert or to look up: columns, or tuples made from them.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    pub(super) columns: abi::Columns,
    pub(super) tuples: u64,
    pub(super) rows: u64,
}

impl Rows {
    pub(super) fn of(side: &Side) -> Rows {
        Rows { columns: side.columns(), tuples: side.tuples_at(), rows: side.rows }
    }
}

/// Looks rows up in a table.
pub(super) fn look_up(
    session: &Session<'_>,
    table: abi::Table,
    probe: Rows,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let mut output_loop = OutputLoop::new(session, wanted, look_ups(session, probe.rows))?;
    let found = look_up_in(&mut output_loop, (session, table), probe, wanted, to)?;
    session.mark("look up")?;
    Ok(found)
}

/// Returns the number of tasks for looking up `rows` rows.
pub(super) fn look_ups(session: &Session<'_>, rows: u64) -> u32 {
    rows.div_ceil(u64::from(session.device.shape(session.word).probe_tile)) as u32
}

/// Looks rows up in a table, with an output loop that the caller may use again.
pub(super) fn look_up_in(
    output_loop: &mut OutputLoop<'_>,
    (session, table): (&Session<'_>, abi::Table),
    probe: Rows,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let tile = session.device.shape(session.word).probe_tile;
    let count = look_ups(session, probe.rows);
    let work = Work { tasks: None, count, cut: Cut::Run, mixed: true };
    let stage = |tasks: u64, count: u32, output: abi::Output| {
        let Rows { columns, tuples, rows } = probe;
        let look_up = abi::Probe { table, columns, tuples, rows, tasks, count, tile, output };
        Stage::Probe(wanted.flavour, look_up)
    };
    output_loop.run(wanted, work, stage, to)
}

/// Returns the shape of a hashed table: at least two slots per row. If the table stays in the cache, it has
/// up to [`ROOMIEST`] slots per row, so most keys are found at their home slot.
pub(super) fn hashed(session: &Session<'_>, rows: u64) -> abi::Table {
    let cached = l2::for_roomy_table(session.device.shape(session.word).l2);
    let cheap = cached.min(session.left() / SPARE) / SLOT;
    let roomy = (ROOMIEST * rows).max(1).ilog2().min(cheap.max(1).ilog2());
    let bits = (2 * rows).next_power_of_two().ilog2().max(roomy).max(LEAST_BITS);
    let mixing = session.mixing();
    abi::Table { slot_count: 1 << bits, bits, mixing, ..abi::Table::default() }
}

/// Returns a table with any number of slots.
pub(super) fn compact(session: &Session<'_>, slots: View, slot_count: u64) -> abi::Table {
    let (slots, mixing) = (slots.address, session.mixing());
    abi::Table { slots, slot_count, mixing, ..abi::Table::default() }
}

/// Returns the shape of a directly addressed table, or `None` if the build keys are too sparse.
fn direct(session: &Session<'_>, build: &Side) -> Result<Option<abi::Table>> {
    let found = session.zeroed(4 * 8, "the range of the keys")?;
    let survey = abi::Survey { keys: build.keys.address, rows: build.rows, found: found.address };
    session.run(Stage::Survey(survey))?;
    let seen: Vec<u64> = session.read(found, 4)?;
    session.mark("survey")?;
    let all_ones = u64::MAX >> (64 - session.word.bits());
    let (max, min) = (seen[0], !seen[1] & all_ones);
    let range = max - min;
    if range / SPARSEST >= build.rows.max(1024) || range >= u64::from(u32::MAX) {
        return Ok(None);
    }
    Ok(Some(abi::Table { slot_count: range + 1, min, direct: 1, ..abi::Table::default() }))
}

/// Allocates a table's slots: in device memory, in host memory, or in device memory as far as it goes and the
/// rest in host memory (001 §5.2).
pub(super) fn slots(session: &Session<'_>, bytes: u64, place: TablePlace) -> Result<View> {
    const WHAT: &str = "the hash table";
    let on_device = match place {
        TablePlace::Gpu => return session.allocate(bytes, WHAT),
        TablePlace::Host => 0,
        // Some memory must stay free for the probe rows.
        TablePlace::Hybrid => bytes.min(session.left() / 8 * 5),
    };
    session.range(bytes, on_device, WHAT)
}

/// Builds a hashed table whose slots hold values. Returns `None` if a key occurs twice.
pub(super) fn single(
    session: &Session<'_>,
    build: Rows,
    place: TablePlace,
) -> Result<Option<abi::Table>> {
    let mut table = hashed(session, build.rows);
    let slots = slots(session, table.slot_count * session.word.tuple(), place)?;
    table.slots = slots.address;
    if insert(session, table, build)? {
        return Ok(Some(table));
    }
    session.release(&[slots])?;
    Ok(None)
}

/// Builds an array of values that the keys address. Returns `None` if a key occurs twice.
fn array(
    session: &Session<'_>,
    build: Rows,
    range: abi::Table,
    place: TablePlace,
) -> Result<Option<abi::Table>> {
    let slots = slots(session, range.slot_count * session.word.bytes(), place)?;
    let taken = session.allocate(range.slot_count.div_ceil(32) * 4, "the table's bits")?;
    let table = abi::Table { slots: slots.address, taken: taken.address, ..range };
    if !insert(session, table, build)? {
        session.release(&[slots, taken])?;
        return Ok(None);
    }
    // There are as many distinct keys as slots, so all slots are taken and the bitmap is not needed.
    if build.rows == table.slot_count {
        session.release(&[taken])?;
        return Ok(Some(abi::Table { taken: 0, ..table }));
    }
    Ok(Some(table))
}

/// Inserts rows into a table whose slots hold values. Returns whether every key occurred once.
fn insert(session: &Session<'_>, table: abi::Table, build: Rows) -> Result<bool> {
    let control = session.zeroed(size_of::<abi::Control>() as u64, "the table's counts")?;
    session.run(Stage::ClearTable(abi::ClearTable { table }))?;
    session.run(Stage::Insert(abi::Insert {
        table,
        columns: build.columns,
        tuples: build.tuples,
        rows: build.rows,
        control: control.address,
        ..abi::Insert::default()
    }))?;
    let seen: abi::Control = session.read(control, 1)?.pop().unwrap_or_default();
    Ok(seen.duplicates == 0)
}

/// Builds a table whose slots refer to groups of values. It is directly addressed if `range` is given.
fn grouped(
    session: &Session<'_>,
    build: &Side,
    range: Option<abi::Table>,
    place: TablePlace,
) -> Result<abi::Table> {
    let mut table = range.unwrap_or_else(|| hashed(session, build.rows));
    let slot_bytes = if table.direct != 0 { 8 } else { SLOT };
    table.slots = slots(session, table.slot_count * slot_bytes, place)?.address;
    table.groups =
        session.allocate(build.rows * session.word.bytes(), "the table's values")?.address;
    let per_row = |what: &str| -> Result<View> { session.allocate(build.rows * 4, what) };
    let (slot_of, rank) = (per_row("the rows' slots")?, per_row("the rows' ranks")?);
    let cursor = session.zeroed(8, "the table's counts")?;
    let control = session.zeroed(size_of::<abi::Control>() as u64, "the table's counts")?;
    let (columns, rows) = (build.columns(), build.rows);
    session.run(Stage::ClearTable(abi::ClearTable { table }))?;
    session.run(Stage::Insert(abi::Insert {
        table,
        columns,
        tuples: 0,
        rows,
        slot_of: slot_of.address,
        rank: rank.address,
        control: control.address,
    }))?;
    session.run(Stage::PlaceGroups(abi::PlaceGroups { table, cursor: cursor.address }))?;
    let (slot_of_at, rank_at) = (slot_of.address, rank.address);
    session.run(Stage::FillGroups(abi::FillGroups {
        table,
        columns,
        tuples: 0,
        rows,
        slot_of: slot_of_at,
        rank: rank_at,
    }))?;
    session.release(&[slot_of, rank])?;
    Ok(table)
}

//! Builds tables over a build side, or over a part of one (001 §5, 003).
//!
//! ```text
//!  build ─► clear, insert ─► a key more than once? ── no ──► slots with values
//!                                      │ yes
//!                                      └─► count, place, fill groups
//! ```
//!
//! If the keys nearly fill their range, they address the slots directly. Otherwise the table is hashed, with
//! a load factor of at most one half. In both cases, the first attempt assumes that each key occurs once: the
//! slot then holds the value itself, and a lookup is one access. If a key occurs more than once, the values
//! of each key are grouped instead. The time for grouping does not depend on how often a key occurs.

use crate::device::{DeviceSide, DeviceStage, Session, View, abi};
use crate::error::Result;
use crate::plan::gpu_shape::{SLOT, hash_table_bits};
use crate::plan::{Learned, LearnedWords, Plan, TableKind};
use crate::transfer::{HostSide, Pipeline, TransferContext};

/// Where the slots of a table lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Device,
    /// At most `most_on_device` bytes in device memory, and the rest in host memory.
    Both {
        most_on_device: u64,
    },
}

impl Place {
    /// Measures the free memory, and returns the place that the plan then chooses.
    pub(crate) fn by_free_memory(session: &Session<'_>, plan: &mut Plan) -> Place {
        plan.refine(Learned { free: Some(session.left()), ..Learned::default() });
        match plan.details.table_in_gpu_memory {
            None => Place::Device,
            Some(most_on_device) => Place::Both { most_on_device },
        }
    }
}

/// Surveys the keys of a side, and builds the kind of table that the plan then chooses.
pub(crate) fn build(
    session: &Session<'_>,
    plan: &mut Plan,
    build: &DeviceSide,
    place: Place,
) -> Result<abi::DeviceTable> {
    let range = surveyed(session, plan, build)?;
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

/// Builds a table if it is already known that a key occurs more than once.
pub(crate) fn build_groups(
    session: &Session<'_>,
    plan: &mut Plan,
    build: &DeviceSide,
    place: Place,
) -> Result<abi::DeviceTable> {
    let range = surveyed(session, plan, build)?;
    let table = grouped(session, build, range, place)?;
    session.mark("build table")?;
    Ok(table)
}

/// The rows to insert or to look up: columns, or tuples made from them.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    pub(crate) columns: abi::Columns,
    pub(crate) tuples: u64,
    pub(crate) rows: u64,
}

impl Rows {
    pub(crate) fn of(side: &DeviceSide) -> Rows {
        Rows { columns: side.columns(), tuples: side.tuples_at(), rows: side.rows }
    }
}

/// Returns the shape of a hashed table over `rows` rows.
fn hashed(session: &Session<'_>, rows: u64) -> abi::DeviceTable {
    let bits = hash_table_bits(rows, session.device.shape(session.word).l2, session.left());
    let mixing = session.mixing();
    abi::DeviceTable { slot_count: 1 << bits, bits, mixing, ..abi::DeviceTable::default() }
}

/// Returns a table with any number of slots.
pub(crate) fn compact(session: &Session<'_>, slots: View, slot_count: u64) -> abi::DeviceTable {
    let (slots, mixing) = (slots.address, session.mixing());
    abi::DeviceTable { slots, slot_count, mixing, ..abi::DeviceTable::default() }
}

/// Surveys the build keys. Returns the shape of the array that the plan then chooses, or `None` if it chooses a
/// hash table.
fn surveyed(
    session: &Session<'_>,
    plan: &mut Plan,
    build: &DeviceSide,
) -> Result<Option<abi::DeviceTable>> {
    let words = LearnedWords { matchable: build.rows, range: Some(survey(session, build)?) };
    plan.refine(Learned { words: Some(words), ..Learned::default() });
    match plan.details.table {
        Some(TableKind::Array { min, max }) => Ok(Some(direct(min, max))),
        _ => Ok(None),
    }
}

/// Returns the smallest and the largest build key.
pub(crate) fn survey(session: &Session<'_>, build: &DeviceSide) -> Result<(u64, u64)> {
    let found = session.zeroed(4 * 8, "the range of the keys")?;
    let survey = abi::Survey { keys: build.keys.address, rows: build.rows, found: found.address };
    session.run(DeviceStage::Survey(survey))?;
    let seen: Vec<u64> = session.read(found, 4)?;
    session.mark("survey")?;
    let all_ones = u64::MAX >> (64 - session.word.bits());
    Ok((!seen[1] & all_ones, seen[0]))
}

/// Returns the shape of an array that the keys from `min` to `max` address.
pub(crate) fn direct(min: u64, max: u64) -> abi::DeviceTable {
    abi::DeviceTable { slot_count: max - min + 1, min, direct: 1, ..abi::DeviceTable::default() }
}

/// Allocates a table's slots: in device memory, or in device memory and host memory (001 §5.2, §5.3).
pub(crate) fn slots(session: &Session<'_>, bytes: u64, place: Place) -> Result<View> {
    const WHAT: &str = "the hash table";
    match place {
        Place::Device => session.allocate(bytes, WHAT),
        Place::Both { most_on_device } => {
            let on_device = bytes.min(most_on_device);
            session.record_work(|work| work.table_in_gpu_memory = Some(on_device));
            session.range(bytes, on_device, WHAT)
        }
    }
}

/// Builds a hashed table whose slots hold values. Returns `None` if a key occurs more than once.
pub(crate) fn single(
    session: &Session<'_>,
    build: Rows,
    place: Place,
) -> Result<Option<abi::DeviceTable>> {
    let mut table = hashed(session, build.rows);
    let slots = slots(session, table.slot_count * session.word.tuple(), place)?;
    table.slots = slots.address;
    if insert(session, table, build)? {
        return Ok(Some(table));
    }
    session.release(&[slots])?;
    Ok(None)
}

/// Builds an array of values that the keys address. Returns `None` if a key occurs more than once.
pub(crate) fn array(
    session: &Session<'_>,
    build: Rows,
    range: abi::DeviceTable,
    place: Place,
) -> Result<Option<abi::DeviceTable>> {
    let slots = slots(session, range.slot_count * session.word.bytes(), place)?;
    let taken = session.allocate(range.slot_count.div_ceil(32) * 4, "the table's bits")?;
    let table = abi::DeviceTable { slots: slots.address, taken: taken.address, ..range };
    if !insert(session, table, build)? {
        session.release(&[slots, taken])?;
        return Ok(None);
    }
    // There are as many distinct keys as slots, so all slots are taken and the bitmap is not needed.
    if build.rows == table.slot_count {
        session.release(&[taken])?;
        return Ok(Some(abi::DeviceTable { taken: 0, ..table }));
    }
    Ok(Some(table))
}

/// Inserts rows into a table whose slots hold values. Returns whether every key occurred once.
fn insert(session: &Session<'_>, table: abi::DeviceTable, build: Rows) -> Result<bool> {
    let control = session.zeroed(size_of::<abi::Control>() as u64, "the table's counts")?;
    session.run(DeviceStage::ClearTable(abi::ClearTable { table }))?;
    session.run(DeviceStage::Insert(abi::Insert {
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
    build: &DeviceSide,
    range: Option<abi::DeviceTable>,
    place: Place,
) -> Result<abi::DeviceTable> {
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
    session.run(DeviceStage::ClearTable(abi::ClearTable { table }))?;
    session.run(DeviceStage::Insert(abi::Insert {
        table,
        columns,
        tuples: 0,
        rows,
        slot_of: slot_of.address,
        rank: rank.address,
        control: control.address,
    }))?;
    session.run(DeviceStage::PlaceGroups(abi::PlaceGroups { table, cursor: cursor.address }))?;
    let (slot_of_at, rank_at) = (slot_of.address, rank.address);
    session.run(DeviceStage::FillGroups(abi::FillGroups {
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

/// Inserts rows into a table with one value per key, chunk by chunk. `first` is the first row number.
/// Returns whether every key occurred once.
pub(crate) fn fill(
    link: &TransferContext<'_>,
    part: &HostSide,
    first: u64,
    table: abi::DeviceTable,
) -> Result<bool> {
    let session = link.session;
    let control = session.zeroed(size_of::<abi::Control>() as u64, "the table's counts")?;
    session.run(DeviceStage::ClearTable(abi::ClearTable { table }))?;
    let chunk_rows = link.chunk_rows(part, 0, session.left() / 2);
    let mut pipeline = Pipeline::new(link, part, chunk_rows)?;
    while let Some(chunk) = pipeline.next()? {
        let mut columns = chunk.side.columns();
        columns.first += first;
        session.run(DeviceStage::Insert(abi::Insert {
            table,
            columns,
            rows: chunk.side.rows,
            control: control.address,
            ..abi::Insert::default()
        }))?;
        pipeline.done(chunk)?;
        pipeline.ahead()?;
    }
    let seen: abi::Control = session.read(control, 1)?.pop().unwrap_or_default();
    Ok(seen.duplicates == 0)
}

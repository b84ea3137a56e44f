//! Finds matches: in co-partitions, in a table, and in a sorted side.

use super::super::memory::nth;
use super::super::word::{DeviceWord, Source, Tuple};
use super::output::{Row, Tasks, drive};
use super::table::Slots;
use super::{Machine, require};
use crate::device::Flavour;
use crate::device::abi::{Control, JoinShared, MergeJoin, Output, Probe, Task};
use crate::error::Result;

/// The maximum number of rounds per task of co-partitions.
const MAX_ROUNDS: u64 = 8;

pub(super) fn shared<W: DeviceWord>(
    machine: &mut Machine,
    flavour: Flavour,
    stage: &JoinShared,
) -> Result<()> {
    let most = machine.shape.build_rows;
    let rounds = 1 + machine.random.u64(..MAX_ROUNDS) as u32;
    let round = machine.shape.probe_rows.div_ceil(rounds);
    let tasks = Tasks { list: stage.tasks, count: stage.count, tile: 0, rows: 0, round };
    require(stage.tasks != 0 || stage.count == 0, "co-partitions are joined by tasks")?;
    drive::<W>(machine, flavour, &stage.output, tasks, |space, task| {
        require(task.build_rows <= most, "a task's build side exceeds shared memory")?;
        let side = |address: u64, from: u64, rows: u32, what: &str| {
            space.tuples::<W>(nth::<Tuple<W>>(address, from), rows.into(), what)
        };
        let build = side(stage.build, task.build, task.build_rows, "build tuples")?;
        let probe = side(stage.probe, task.probe, task.probe_rows, "probe tuples")?;
        let mut rows = Vec::new();
        for probe in &probe {
            for build in build.iter().filter(|build| build.key == probe.key) {
                let key = written(&stage.output, probe.key);
                rows.push(Row { key, build: build.value, probe: probe.value });
            }
        }
        Ok(rows)
    })
}

pub(super) fn probe<W: DeviceWord>(
    machine: &mut Machine,
    flavour: Flavour,
    stage: &Probe,
) -> Result<()> {
    let table = &stage.table;
    require(table.direct == 0 || stage.tuples == 0, "a direct table is asked for raw keys")?;
    let slots = Slots::<W>::load(&machine.space, table, table.groups != 0)?;
    let source = Source { columns: stage.columns, tuples: stage.tuples };
    let raw = stage.tuples == 0;
    let keys = stage.output.keys != 0;
    require(raw || !keys || stage.output.mixed != 0, "keys of tuples in a table are mixed")?;
    let tasks = Tasks {
        list: stage.tasks,
        count: stage.count,
        tile: stage.tile,
        rows: stage.rows,
        round: u32::MAX,
    };
    let most = machine.shape.probe_tile;
    drive::<W>(machine, flavour, &stage.output, tasks, |space, task| {
        check_task(task, stage.rows, most)?;
        require(task.build_rows == 0 || table.groups != 0, "a run is cut where keys come once")?;
        let mut rows = Vec::new();
        for tuple in source.read::<W>(space, task.probe, task.probe_rows.into())? {
            let mixing = raw && table.direct == 0;
            let sought = if mixing { tuple.key.mixed_by(table.mixing) } else { tuple.key };
            let key = if raw { tuple.key } else { written(&stage.output, tuple.key) };
            let values = slots.values(space, sought)?;
            let probe = tuple.value;
            rows.extend(piece(task, &values).iter().map(|&build| Row { key, build, probe }));
        }
        Ok(rows)
    })
}

pub(super) fn probe_in_order<W: DeviceWord>(machine: &mut Machine, stage: &Probe) -> Result<()> {
    let Probe { table, columns, rows, output, .. } = stage;
    require(stage.tuples == 0 && stage.tasks == 0, "rows in order are those of columns")?;
    require(table.groups == 0 || output.build == 0, "several matches have no single value")?;
    require(table.groups == 0 || output.build_flags == 0, "groups are not flagged in order")?;
    let tiles = u64::from(stage.count) * u64::from(stage.tile);
    require(tiles >= *rows, "the tiles do not cover the rows")?;
    let control = machine.space.get::<Control>(output.control, "control")?;
    require(control.next == 0 && control.full == 0, "the control is not clear")?;
    let slots = Slots::<W>::load(&machine.space, table, table.groups != 0)?;
    let source = Source { columns: *columns, tuples: 0 }.read::<W>(&machine.space, 0, *rows)?;
    let mut bits = vec![0u32; rows.div_ceil(32) as usize];
    let space = &mut machine.space;
    for (row, tuple) in (0u64..).zip(source) {
        let mixing = table.direct == 0;
        let sought = if mixing { tuple.key.mixed_by(table.mixing) } else { tuple.key };
        let Some(&value) = slots.values(space, sought)?.first() else { continue };
        bits[row as usize / 32] |= 1 << (row % 32);
        if output.build != 0 {
            space.set(output.build, row, value, "output build")?;
        }
        if output.build_flags != 0 {
            space.set(output.build_flags, value.to_u64(), 1u8, "build_flags")?;
        }
    }
    space.write(output.probe, &bits, "output bits")?;
    let next = stage.count.saturating_add(machine.random.u64(..4) as u32);
    machine.space.set(output.control, 0, Control { next, ..control }, "control")
}

pub(super) fn merge<W: DeviceWord>(
    machine: &mut Machine,
    flavour: Flavour,
    stage: &MergeJoin,
) -> Result<()> {
    let build = machine.space.tuples::<W>(stage.build, stage.build_rows, "build tuples")?;
    let tasks = Tasks {
        list: stage.tasks,
        count: stage.count,
        tile: stage.tile,
        rows: stage.probe_rows,
        round: u32::MAX,
    };
    let most = machine.shape.probe_tile;
    if stage.tasks == 0 {
        // This memory is for the kernels' own use, so it gets random content.
        let splits: Vec<u64> =
            (0..2 * u64::from(stage.count)).map(|_| machine.random.u64(..)).collect();
        machine.space.write(stage.splits, &splits, "splits")?;
    }
    drive::<W>(machine, flavour, &stage.output, tasks, |space, task| {
        check_task(task, stage.probe_rows, most)?;
        let from = nth::<Tuple<W>>(stage.probe, task.probe);
        let mut rows = Vec::new();
        for tuple in space.tuples::<W>(from, task.probe_rows.into(), "probe tuples")? {
            let from = build.partition_point(|row| row.key < tuple.key);
            let run = build[from..].iter().take_while(|row| row.key == tuple.key);
            let values: Vec<W> = run.map(|row| row.value).collect();
            let (key, probe) = (written(&stage.output, tuple.key), tuple.value);
            rows.extend(piece(task, &values).iter().map(|&build| Row { key, build, probe }));
        }
        Ok(rows)
    })
}

/// Returns the unmixed key of a row.
fn written<W: DeviceWord>(output: &Output, key: W) -> W {
    if output.mixed != 0 { key.mixed_by(output.unmixing) } else { key }
}

/// Checks a task of a kernel that finds runs itself: it must lie inside the probe side, and only the run of
/// a single row may be cut.
fn check_task(task: &Task, rows: u64, most: u32) -> Result<()> {
    require(task.probe_rows <= most, "a task is larger than a tile")?;
    let end = task.probe.checked_add(task.probe_rows.into());
    require(end.is_some_and(|end| end <= rows), "a task is outside the probe side")?;
    require(task.build_rows == 0 || task.probe_rows == 1, "a run is cut of several probe rows")
}

/// Returns the part of a run of build rows that a task takes.
fn piece<'a, W>(task: &Task, run: &'a [W]) -> &'a [W] {
    if task.build_rows == 0 {
        return run;
    }
    let from = task.build.min(run.len() as u64) as usize;
    &run[from..run.len().min(from + task.build_rows as usize)]
}

//! The sort-merge join on a device (004 §3.3): sorts both sides by the bits that vary, then merges them.
//!
//! ```text
//!  build ─► which bits vary? ─► passes ─► sorted tuples ─┐
//!                 │ (the same on both sides)             ├─► every tile of probe tuples searches
//!  probe ─────────┘ ──────────► passes ─► sorted tuples ─┘   its range of build tuples
//! ```

use super::machinery::output_loop::{self, Cut, Work};
use super::{DeviceSide, JoinResult, Receiver, Session, Wanted};
use crate::device::{DeviceStage, abi};
use crate::error::Result;
use crate::partition::gpu::{Digits, ordered};

/// Joins two sides.
pub(super) fn join(
    session: &Session<'_>,
    build: &DeviceSide,
    probe: &DeviceSide,
    wanted: &Wanted,
    to: &mut dyn Receiver,
) -> Result<JoinResult> {
    let digits = Digits::varying(varying_bits(session, &[build, probe])?);
    session.mark("survey")?;
    let mut spare = None;
    let build_tuples = ordered(session, build, &digits, &mut spare, "the sorted build side")?;
    session.mark("sort build side")?;
    let probe_tuples = ordered(session, probe, &digits, &mut spare, "the sorted probe side")?;
    session.mark("sort probe side")?;
    if let Some(spare) = spare {
        session.release(&[spare])?;
    }

    let tile = session.device.shape(session.word).merge_tile;
    let tiles = probe.rows.div_ceil(u64::from(tile));
    let splits = session.allocate(tiles * 16, "merge splits")?;
    let work = Work { tasks: None, count: tiles as u32, cut: Cut::Run, mixed: false };
    let stage = |tasks: u64, count: u32, output: abi::Output| {
        let merge = abi::MergeJoin {
            build: build_tuples.address,
            build_rows: build.rows,
            probe: probe_tuples.address,
            probe_rows: probe.rows,
            tasks,
            splits: splits.address,
            count,
            tile,
            output,
        };
        DeviceStage::MergeJoin(wanted.flavour, merge)
    };
    let found = output_loop::run(session, wanted, work, stage, to)?;
    session.mark("merge")?;
    Ok(found)
}

/// Returns the bits in which the keys of all sides differ from one another.
pub(crate) fn varying_bits(session: &Session<'_>, sides: &[&DeviceSide]) -> Result<u64> {
    let found = session.zeroed(4 * 8, "the keys' bits")?;
    for side in sides {
        let survey = abi::Survey { keys: side.keys.address, rows: side.rows, found: found.address };
        session.run(DeviceStage::Survey(survey))?;
    }
    let seen: Vec<u64> = session.read(found, 4)?;
    Ok(seen[2] & seen[3])
}

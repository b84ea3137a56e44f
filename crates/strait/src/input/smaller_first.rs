//! Reads the build side. If the build side is not known yet, reads both sides until `build_side.rs` names it.

use super::buffered::repeat;
use super::{BufferedSource, Relation};
use crate::build_side::{BuildSide, ReadSoFar, Step};
use crate::error::Result;
use crate::options::Side;
use crate::schedule::Workers;

/// Reads the sides in the order that the `rule` says, until the rule names the build side. Returns the whole build
/// side, and the other side with the batches that were read so far. These may be one batch more than the rule asked
/// for, or one batch more per worker if a source is concurrent and memory is not limited. Under a limit, one worker
/// reads both sides in turns. With several workers, the bytes that are held would depend on which worker comes first,
/// and so would the success of the join.
pub(crate) fn read_smaller_first(
    left: BufferedSource,
    right: BufferedSource,
    rule: BuildSide,
    workers: &Workers,
) -> Result<(Relation, BufferedSource)> {
    let source = |side: Side| if side == Side::Left { &left } else { &right };
    let step = || {
        let bytes = [left.read_bytes(), right.read_bytes()];
        let batches = [left.read_batches(), right.read_batches()];
        rule.step(ReadSoFar { bytes, batches, ended: [left.ended(), right.ended()] })
    };
    // Many workers may read the one side that the rule starts with, also under a limit.
    if let Some(side) = rule.side() {
        let source = source(side);
        repeat(source.concurrent().then_some(workers), || {
            workers.check()?;
            Ok(step() == Step::Read(side) && source.advance(0)?)
        })?;
    }
    let unlimited = left.feed.budget.unlimited();
    let concurrent = unlimited && (left.concurrent() || right.concurrent());
    repeat(concurrent.then_some(workers), || {
        workers.check()?;
        let now = step();
        let Step::Read(side) = now else { return Ok(false) };
        source(side).advance_if(0, || step() == now)
    })?;
    // The loop ends when a side has ended, so the rule now names the build side.
    let (Step::Build(side) | Step::Read(side)) = step();
    let (build, probe) = if side == Side::Left { (left, right) } else { (right, left) };
    Ok((build.collect(workers, || workers.check())?, probe))
}

//! Reads the build side. If the build side is not known yet, reads both sides until `build_side.rs` names it.

use super::buffered::repeat;
use super::{BufferedSource, Relation};
use crate::build_side::{BuildSide, ReadSoFar, Step};
use crate::error::Result;
use crate::options::Side;
use crate::schedule::Workers;

/// Reads the sides in the order that the `rule` says, until the rule names the build side. Returns the build side
/// and all its rows, which also stay in its source. The other source has the batches that were read so far. These may
/// be one batch more than the rule asked for, or one batch more per worker if a source is concurrent and memory is not limited. Under a limit, one worker
/// reads both sides in turns. With several workers, the bytes that are held would depend on which worker comes first,
/// and so would the success of the join. Each batch must leave `spare` bytes of memory free. If memory is refused, the
/// batches that were read stay in the sources, which can be read on.
pub(crate) fn read_smaller_first(
    sources: &[BufferedSource; 2],
    rule: BuildSide,
    workers: &Workers,
    spare: u64,
) -> Result<(Side, Relation)> {
    let source = |side: Side| &sources[side as usize];
    let step = || next_step(sources, rule);
    // Many workers may read the one side that the rule starts with, also under a limit.
    if let Some(side) = rule.side() {
        let source = source(side);
        repeat(source.concurrent().then_some(workers), || {
            workers.check()?;
            Ok(step() == Step::Read(side) && source.advance(spare)?)
        })?;
    }
    let unlimited = sources[0].feed.budget.unlimited();
    let concurrent = unlimited && sources.iter().any(BufferedSource::concurrent);
    repeat(concurrent.then_some(workers), || {
        workers.check()?;
        let now = step();
        let Step::Read(side) = now else { return Ok(false) };
        source(side).advance_if(spare, || step() == now)
    })?;
    // The loop ends when a side has ended, so the rule now names the build side.
    let (Step::Build(side) | Step::Read(side)) = step();
    let build = source(side);
    build.fill(workers, spare, || workers.check())?;
    Ok((side, build.waiting()))
}

/// Returns which side is read next, or which side builds.
pub(crate) fn next_step(sources: &[BufferedSource; 2], rule: BuildSide) -> Step {
    let of = |count: fn(&BufferedSource) -> u64| [count(&sources[0]), count(&sources[1])];
    let ended = [sources[0].ended(), sources[1].ended()];
    let bytes = of(BufferedSource::read_bytes);
    rule.step(ReadSoFar { bytes, batches: of(BufferedSource::read_batches), ended })
}

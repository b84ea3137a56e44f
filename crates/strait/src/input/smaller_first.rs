//! Reads the build side. If the build side is not known yet, reads both sides until `build_side.rs` names it.

use super::buffered::repeat;
use super::{BufferedSource, Relation};
use crate::build_side::{BuildSide, ReadSoFar, Step};
use crate::error::Result;
use crate::options::Side;
use crate::schedule::Workers;

/// Reads the sides in the order of the `rule`, until the rule names the build side and this side is complete. Returns
/// the build side and its rows. The rows also stay in its source. The other source has the batches that were read so
/// far. These may be one batch more than the rule asked for. If a source is concurrent and memory is not limited, they
/// may be one batch more per worker. Under a limit, one worker reads both sides in turns. With several workers, the
/// bytes that are held would depend on which worker comes first, and so would the success of the join. After each
/// batch, some memory must be left: [`reading_bytes`](BufferedSource::reading_bytes) computes it from `spare`. If
/// `spare` is 0, no memory needs to be left. If memory is refused, the sources keep their batches and can be read
/// further.
pub(crate) fn read_smaller_first(
    sources: &[BufferedSource; 2],
    rule: BuildSide,
    workers: &Workers,
    spare: u64,
) -> Result<(Side, Relation)> {
    let source = |side: Side| &sources[side as usize];
    let step = || next_step(sources, rule);
    let spare_for =
        |source: &BufferedSource| if spare > 0 { source.reading_bytes(spare) } else { 0 };
    // Many workers may read the one side that the rule starts with, also under a limit.
    if let Some(side) = rule.side() {
        let source = source(side);
        repeat(source.concurrent().then_some(workers), || {
            workers.check()?;
            Ok(step() == Step::Read(side) && source.advance(spare_for(source))?)
        })?;
    }
    let unlimited = sources[0].feed.budget.unlimited();
    let concurrent = unlimited && sources.iter().any(BufferedSource::concurrent);
    repeat(concurrent.then_some(workers), || {
        workers.check()?;
        let now = step();
        let Step::Read(side) = now else { return Ok(false) };
        source(side).advance_if(spare_for(source(side)), || step() == now)
    })?;
    // The loop ends when a side has ended, so the rule now names the build side.
    let (Step::Build(side) | Step::Read(side)) = step();
    let build = source(side);
    build.fill(workers, spare_for(build), || workers.check())?;
    Ok((side, build.waiting()))
}

/// Returns which side is read next, or which side builds.
pub(crate) fn next_step(sources: &[BufferedSource; 2], rule: BuildSide) -> Step {
    let of = |count: fn(&BufferedSource) -> u64| [count(&sources[0]), count(&sources[1])];
    let ended = [sources[0].ended(), sources[1].ended()];
    let bytes = of(BufferedSource::read_bytes);
    rule.step(ReadSoFar { bytes, batches: of(BufferedSource::read_batches), ended })
}

//! Reads the build side, and finds out which side it is.

use super::buffered::repeat;
use super::{BufferedSource, Relation};
use crate::error::Result;
use crate::options::Side;
use crate::schedule::Workers;

/// Which side is read first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum First {
    /// The side that the user asked for. It is read to its end.
    Asked(Side),
    /// The side that statistics call the smaller one, but at most so many bytes of it. Then both sides are
    /// read in turns.
    Expected(Side, u64),
    /// Both sides, in turns.
    Unknown,
}

/// Reads the build side to its end. If it is not known, reads both sides, always the one with fewer bytes so
/// far, until one ends: that one is the smaller. At that point, no more bytes of the other side are held than
/// of this one, apart from one batch, or one batch per worker if a source is concurrent and memory is not
/// limited. Under a limit, one worker reads both sides in turns: otherwise the bytes that are held, and so
/// whether the limit suffices, would depend on which worker comes first.
pub(crate) fn read_smaller_first(
    left: BufferedSource,
    right: BufferedSource,
    first: First,
    workers: &Workers,
) -> Result<(Relation, BufferedSource)> {
    if let First::Asked(side) | First::Expected(side, _) = first {
        let source = if side == Side::Left { &left } else { &right };
        let most = if let First::Expected(_, most) = first { most } else { u64::MAX };
        repeat(source.concurrent().then_some(workers), || {
            workers.check()?;
            Ok(source.read_bytes() <= most && source.advance(0)?)
        })?;
    }
    let unlimited = left.feed.budget.unlimited();
    let concurrent = unlimited && (left.concurrent() || right.concurrent());
    let left_is_next = || left.read_bytes() <= right.read_bytes();
    repeat(concurrent.then_some(workers), || {
        workers.check()?;
        if left.ended() || right.ended() {
            return Ok(false);
        }
        let left_next = left_is_next();
        let next = if left_next { &left } else { &right };
        next.advance_if(0, || left_is_next() == left_next)
    })?;
    let left_builds = match first {
        First::Asked(side) => side == Side::Left,
        // Both sides ended. The one with fewer bytes builds, even if it has more rows.
        _ if left.ended() && right.ended() => left.read_bytes() <= right.read_bytes(),
        _ => left.ended(),
    };
    let (build, probe) = if left_builds { (left, right) } else { (right, left) };
    Ok((build.collect(workers, || workers.check())?, probe))
}

//! Reads the build side, and finds out which side it is.

use super::{BufferedSource, Relation};
use crate::error::Result;
use crate::options::Side;

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
/// far, until one ends: that one is the smaller. This holds at most as much of the other side.
pub(crate) fn read_smaller_first(
    mut left: BufferedSource,
    mut right: BufferedSource,
    first: First,
    check: impl Fn() -> Result<()>,
) -> Result<(Relation, BufferedSource)> {
    if let First::Asked(side) | First::Expected(side, _) = first {
        let source = if side == Side::Left { &mut left } else { &mut right };
        let most = if let First::Expected(_, most) = first { most } else { u64::MAX };
        while source.waiting_bytes() <= most && source.advance(0, None)? {
            check()?;
        }
    }
    while !left.ended() && !right.ended() {
        check()?;
        let next =
            if left.waiting_bytes() <= right.waiting_bytes() { &mut left } else { &mut right };
        next.advance(0, None)?;
    }
    let left_builds = match first {
        First::Asked(side) => side == Side::Left,
        // Both may have ended at once, or one that is long in rows but thin in bytes.
        _ if left.ended() && right.ended() => left.waiting_bytes() <= right.waiting_bytes(),
        _ => left.ended(),
    };
    let (build, probe) = if left_builds { (left, right) } else { (right, left) };
    Ok((build.collect(check)?, probe))
}

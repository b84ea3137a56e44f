//! The choice of the build side. This is the only place that decides it. For a pair of spilled partitions, whose sizes
//! are known, [`of_pair`] decides.
//!
//! [`BuildSide::choose`] applies the first of these rules that says something, before any row is read:
//!
//! 1. The build side is the side that the caller asked for.
//! 2. If rows are wanted promptly and one side is a stream, the other side builds, provided that it is not too
//!    large. Reading both sides in turns could wait for the stream.
//! 3. The build side is expected to be the side with fewer bytes, or with fewer rows if the bytes of a side are
//!    unknown.
//! 4. The choice is open.
//!
//! [`BuildSide::step`] says what to do while the sides are read: which side to read next, or which side builds.
//! The statistics of rules 2 and 3 may be wrong. So they only decide which side is read first, and for how long. If
//! the choice is open, the join always reads the side with fewer bytes so far, until one side ends. That side
//! builds. So the join holds no more bytes of the other side than of the build side, apart from the last
//! batches.

use crate::options::Side;
use crate::statistics::Statistics;

/// Each batch counts as this many bytes more than its rows have. Otherwise, a side with only empty batches would
/// always be the side with fewer bytes, and the other side would never be read.
const BYTES_PER_BATCH: u64 = 512;
/// The bytes of a row, if only the number of rows is known.
const BYTES_PER_ROW: u64 = 16;
/// Bytes of a side that are read in any case, if statistics say that it is the smaller one.
const LEAST_EXPECTED: u64 = 1 << 20;
/// The most bytes of a side that builds because the other side is a stream.
const MAX_BESIDE_STREAM: u64 = 1 << 30;
/// Such a side may take this fraction (1/4) of the memory limit.
const OF_LIMIT: u64 = 4;

/// What is known about the build side before the sides are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BuildSide {
    /// This side builds. The other side is not read before this one has ended.
    Fixed(Side),
    /// This side builds if it ends before more than `at_most` bytes of it were read. Otherwise the statistics
    /// are probably wrong, and the choice is open.
    Expected { side: Side, at_most: u64 },
    /// The side that ends first builds.
    Open,
}

/// Returns the build side of a pair of spilled partitions: of the sides that suit, the one with fewer bytes.
pub(crate) fn of_pair(bytes: [u64; 2], suits: impl Fn(Side) -> bool) -> Option<Side> {
    smaller_first(bytes).into_iter().find(|&side| suits(side))
}

/// Returns both sides, the one with fewer bytes first.
pub(crate) fn smaller_first([left, right]: [u64; 2]) -> [Side; 2] {
    match left <= right {
        true => [Side::Left, Side::Right],
        false => [Side::Right, Side::Left],
    }
}

/// What was asked for, besides the statistics.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Wishes {
    /// The side that the caller named.
    pub(crate) asked: Option<Side>,
    /// Whether rows are wanted promptly.
    pub(crate) prompt: bool,
    /// The memory limit of the join.
    pub(crate) memory_limit: Option<u64>,
}

/// How far the left and the right side were read.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReadSoFar {
    pub(crate) bytes: [u64; 2],
    /// The numbers of batches, including empty ones.
    pub(crate) batches: [u64; 2],
    pub(crate) ended: [bool; 2],
}

impl ReadSoFar {
    /// Returns the bytes of each side, with [`BYTES_PER_BATCH`] more per batch. They decide which side is read next.
    fn counted(self) -> [u64; 2] {
        let of = |side: usize| {
            self.bytes[side].saturating_add(self.batches[side].saturating_mul(BYTES_PER_BATCH))
        };
        [of(0), of(1)]
    }
}

/// What happens next while the sides are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Reads a batch of this side.
    Read(Side),
    /// This side builds.
    Build(Side),
}

impl BuildSide {
    /// Returns the build side that a plan is made for. As long as it is not known, this is the left side.
    pub(crate) fn or_assumed(known: Option<Side>) -> Side {
        known.unwrap_or(Side::Left)
    }

    /// Chooses the build side by the statistics of the left and the right side, as far as they tell.
    pub(crate) fn choose(wishes: Wishes, statistics: &[Statistics; 2]) -> BuildSide {
        if let Some(side) = wishes.asked {
            return BuildSide::Fixed(side);
        }
        if let Some((side, at_most)) = beside_stream(wishes, statistics) {
            return BuildSide::Expected { side, at_most };
        }
        let Some(side) = smaller(statistics) else { return BuildSide::Open };
        let other = &statistics[side.other() as usize];
        let stated = other.bytes.unwrap_or(other.rows.unwrap_or(0).saturating_mul(BYTES_PER_ROW));
        BuildSide::Expected { side, at_most: stated.saturating_mul(2).max(LEAST_EXPECTED) }
    }

    /// Returns the build side that the plan assumes before the sides are read; `None` if the choice is open.
    pub(crate) fn side(self) -> Option<Side> {
        match self {
            BuildSide::Fixed(side) | BuildSide::Expected { side, .. } => Some(side),
            BuildSide::Open => None,
        }
    }

    /// Returns which side is read next, or which side builds.
    pub(crate) fn step(self, read: ReadSoFar) -> Step {
        let ended = |side: Side| read.ended[side as usize];
        let fewer = |[left, right]: [u64; 2]| if left <= right { Side::Left } else { Side::Right };
        let fewer_bytes = fewer(read.bytes);
        match self {
            BuildSide::Fixed(side) if ended(side) => Step::Build(side),
            BuildSide::Fixed(side) => Step::Read(side),
            // Both sides ended. The one with fewer bytes builds, even if it has more rows.
            _ if ended(Side::Left) && ended(Side::Right) => Step::Build(fewer_bytes),
            _ if ended(Side::Left) => Step::Build(Side::Left),
            _ if ended(Side::Right) => Step::Build(Side::Right),
            BuildSide::Expected { side, at_most } if read.counted()[side as usize] <= at_most => {
                Step::Read(side)
            }
            BuildSide::Expected { .. } | BuildSide::Open => Step::Read(fewer(read.counted())),
        }
    }
}

/// Returns the side that is not a stream, if rows are wanted promptly, the other side is a stream, and this
/// side is known to be small enough to be read first. Also returns how many bytes of it are read at most before
/// the statistics count as wrong.
fn beside_stream(wishes: Wishes, statistics: &[Statistics; 2]) -> Option<(Side, u64)> {
    let [left, right] = statistics;
    let side = match (left.stream, right.stream) {
        (false, true) => Side::Left,
        (true, false) => Side::Right,
        _ => return None,
    };
    let of_limit = wishes.memory_limit.map_or(u64::MAX, |limit| limit / OF_LIMIT);
    let most = MAX_BESIDE_STREAM.min(of_limit);
    let small = statistics[side as usize].bytes? <= most;
    // The size of a file may be much smaller than the size of its rows.
    (wishes.prompt && small).then_some((side, 2 * most))
}

/// Returns the side with fewer bytes, or with fewer rows if the bytes of a side are unknown.
fn smaller([left, right]: &[Statistics; 2]) -> Option<Side> {
    let (left, right) = match (left.bytes, right.bytes) {
        (Some(left), Some(right)) => (left, right),
        _ => (left.rows?, right.rows?),
    };
    Some(if left <= right { Side::Left } else { Side::Right })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn of(rows: Option<u64>, bytes: Option<u64>) -> Statistics {
        Statistics { rows, bytes, ..Statistics::unknown() }
    }

    fn by_statistics(left: Statistics, right: Statistics) -> BuildSide {
        BuildSide::choose(Wishes::default(), &[left, right])
    }

    #[test]
    fn the_caller_decides() {
        let wishes = Wishes { asked: Some(Side::Right), prompt: true, memory_limit: None };
        let statistics = [Statistics::rows(1).with_bytes(1), Statistics::rows(9).with_stream(true)];
        let chosen = BuildSide::choose(wishes, &statistics);
        assert_eq!(chosen, BuildSide::Fixed(Side::Right));
        assert_eq!(chosen.side(), Some(Side::Right));
    }

    #[test]
    fn statistics_name_the_smaller_side_and_how_far_they_are_trusted() {
        let expected = |side, at_most| BuildSide::Expected { side, at_most };
        // Bytes count more than rows.
        let chosen = by_statistics(of(Some(9), Some(MIB)), of(Some(1), Some(9 * MIB)));
        assert_eq!(chosen, expected(Side::Left, 18 * MIB));
        assert_eq!(chosen.side(), Some(Side::Left));
        // The bytes of one side alone do not tell, but the rows of both sides do.
        let chosen = by_statistics(of(Some(9 * MIB), None), of(Some(1), Some(9)));
        assert_eq!(chosen, expected(Side::Right, 2 * 9 * MIB * BYTES_PER_ROW));
        let chosen = by_statistics(of(Some(9), None), of(Some(1), None));
        assert_eq!(chosen, expected(Side::Right, LEAST_EXPECTED));
        // Equal sizes.
        let chosen = by_statistics(of(None, Some(5)), of(None, Some(5)));
        assert_eq!(chosen, expected(Side::Left, LEAST_EXPECTED));
        let chosen = by_statistics(of(None, Some(5)), of(None, Some(u64::MAX)));
        assert_eq!(chosen, expected(Side::Left, u64::MAX));
        for one in [of(Some(9), Some(9)), of(Some(9), None), of(None, Some(9))] {
            assert_eq!(by_statistics(one, Statistics::unknown()), BuildSide::Open);
            assert_eq!(by_statistics(Statistics::unknown(), one), BuildSide::Open);
        }
        assert_eq!(BuildSide::Open.side(), None);
    }

    #[test]
    fn a_small_side_beside_a_stream_builds_if_rows_are_wanted_promptly() {
        let prompt = Wishes { prompt: true, ..Wishes::default() };
        let stream = Statistics::unknown().with_stream(true);
        let table = |bytes| of(None, Some(bytes));
        let chosen = |wishes, left, right| BuildSide::choose(wishes, &[left, right]);
        let open = BuildSide::Open;
        // The statistics of the table may be wrong, so they are not trusted for ever.
        let beside = |side| BuildSide::Expected { side, at_most: 2 * MAX_BESIDE_STREAM };
        assert_eq!(chosen(prompt, stream, table(5)), beside(Side::Right));
        assert_eq!(chosen(prompt, table(5), stream), beside(Side::Left));
        assert_eq!(chosen(Wishes::default(), table(5), stream), open);
        assert_eq!(chosen(prompt, stream, stream), open);
        assert_eq!(chosen(prompt, table(5), Statistics::unknown()), open);
        assert_eq!(chosen(prompt, Statistics::rows(5), stream), open);
        assert_eq!(chosen(prompt, table(MAX_BESIDE_STREAM), stream), beside(Side::Left));
        assert_eq!(chosen(prompt, table(MAX_BESIDE_STREAM + 1), stream), open);
        let limited = Wishes { memory_limit: Some(4 * MIB), ..prompt };
        let expected = BuildSide::Expected { side: Side::Left, at_most: 2 * MIB };
        assert_eq!(chosen(limited, table(MIB), stream), expected);
        assert_eq!(chosen(limited, table(MIB + 1), stream), open);
        // A stream may have a known size, too. Then the size decides if the other side is too large.
        let known = table(9).with_stream(true);
        assert_eq!(chosen(prompt, table(5 * MIB), known), beside(Side::Left));
        let expected = BuildSide::Expected { side: Side::Right, at_most: 10 * MIB };
        assert_eq!(chosen(limited, table(5 * MIB), known), expected);
    }

    #[test]
    fn a_fixed_side_is_read_to_its_end() {
        let fixed = BuildSide::Fixed(Side::Right);
        let step = |bytes, ended| fixed.step(ReadSoFar { bytes, ended, ..ReadSoFar::default() });
        assert_eq!(step([0, 0], [false, false]), Step::Read(Side::Right));
        assert_eq!(step([0, u64::MAX], [true, false]), Step::Read(Side::Right));
        assert_eq!(step([0, 9], [false, true]), Step::Build(Side::Right));
        assert_eq!(step([0, 9], [true, true]), Step::Build(Side::Right));
    }

    #[test]
    fn an_expected_side_is_read_until_the_statistics_prove_wrong() {
        let expected = BuildSide::Expected { side: Side::Right, at_most: 10 };
        let step = |bytes, ended| expected.step(ReadSoFar { bytes, ended, ..ReadSoFar::default() });
        assert_eq!(step([0, 10], [false, false]), Step::Read(Side::Right));
        assert_eq!(step([0, 11], [false, false]), Step::Read(Side::Left));
        assert_eq!(step([12, 11], [false, false]), Step::Read(Side::Right));
        assert_eq!(step([0, 10], [false, true]), Step::Build(Side::Right));
        assert_eq!(step([11, 11], [true, false]), Step::Build(Side::Left));
        assert_eq!(step([9, 11], [true, true]), Step::Build(Side::Left));
    }

    #[test]
    fn an_open_choice_follows_the_bytes_until_a_side_ends() {
        let step =
            |bytes, ended| BuildSide::Open.step(ReadSoFar { bytes, ended, ..ReadSoFar::default() });
        assert_eq!(step([0, 0], [false, false]), Step::Read(Side::Left));
        assert_eq!(step([3, 2], [false, false]), Step::Read(Side::Right));
        assert_eq!(step([3, 4], [false, false]), Step::Read(Side::Left));
        // The side that ended builds, even if the other side has fewer bytes so far.
        assert_eq!(step([3, 2], [true, false]), Step::Build(Side::Left));
        assert_eq!(step([3, 4], [false, true]), Step::Build(Side::Right));
        assert_eq!(step([3, 2], [true, true]), Step::Build(Side::Right));
        assert_eq!(step([2, 2], [true, true]), Step::Build(Side::Left));
    }

    /// A side that delivers only empty batches has no bytes, but does not keep the other side from being read.
    #[test]
    fn empty_batches_count() {
        let step =
            |bytes, batches| BuildSide::Open.step(ReadSoFar { bytes, batches, ended: [false; 2] });
        assert_eq!(step([0, 1000], [1, 1]), Step::Read(Side::Left));
        assert_eq!(step([0, 1000], [3, 1]), Step::Read(Side::Right));
        let expected = BuildSide::Expected { side: Side::Left, at_most: 1 << 20 };
        let read = |batches| ReadSoFar { bytes: [0, 9], batches, ended: [false; 2] };
        assert_eq!(expected.step(read([2048, 1])), Step::Read(Side::Left));
        assert_eq!(expected.step(read([2049, 1])), Step::Read(Side::Right));
        // Only bytes decide which of two sides builds.
        let both = ReadSoFar { bytes: [0, 9], batches: [100, 1], ended: [true; 2] };
        assert_eq!(BuildSide::Open.step(both), Step::Build(Side::Left));
    }
}

//! Which rows are flagged, and by whom?
//!
//! A flag of a row says that the row has a match. A side has flags if the join type returns some of its rows
//! because they have a match or because they have none ([`Keep`]). This file also decides which code sets the
//! flags. All other code asks it.
//!
//! | candidates are found by | what is found | build rows are flagged by | probe rows are flagged by |
//! | --- | --- | --- | --- |
//! | any code | [`Yields::Count`] | (no flags) | (no flags) |
//! | [`FoundBy::CpuLookup`] | pairs | matcher | matcher |
//! | | only which rows have a match | search | matcher |
//! | [`FoundBy::CpuMerge`] | pairs | matcher | matcher |
//! | | only which rows have a match | search | search |
//! | [`FoundBy::GpuUnordered`] | pairs, some may be no match | matcher | matcher |
//! | | pairs, all are matches | search | matcher |
//! | | only which rows have a match | search | search |
//! | [`FoundBy::GpuInOrder`] | pairs | as for `GpuUnordered` | as for `GpuUnordered` |
//! | | only which rows have a match | search | bits |
//!
//! If candidates have to be verified, pairs are found ([`Roles::yields`]), because only the matcher can tell
//! which of them are matches.
//!
//! On the CPU, a lookup stops at the first match of a probe row. It reports the match as a pair, and the matcher
//! flags the probe row. On a GPU, the flags of build rows stay in GPU memory until the last pair is found. The
//! flags of probe rows are needed earlier, when all pairs of their chunk have arrived. So the matcher sets them
//! if pairs come back.

use super::{Keep, Roles};
use crate::options::Yields;

/// The code that finds candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FoundBy {
    /// The CPU looks probe rows up in a table.
    CpuLookup,
    /// The CPU merges two sorted sides.
    CpuMerge,
    /// A GPU, which returns its results in any order.
    GpuUnordered,
    /// A GPU, which returns its results in the order of the probe rows: one bit per probe row, and one value
    /// per probe row if pairs are wanted.
    GpuInOrder,
}

/// The code that flags the rows of a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FlaggedBy {
    /// The code that finds the candidates. A GPU has one byte per row, and the bytes come back.
    Search,
    /// The host, from the bits of results in order.
    Bits,
    /// The [`Matcher`](super::Matcher), when it resolves pairs.
    Matcher,
}

/// The code that flags each side. `None` if the side has no flags.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FlagPlan {
    pub(crate) build: Option<FlaggedBy>,
    pub(crate) probe: Option<FlaggedBy>,
}

impl FlagPlan {
    /// Decides who flags the rows of each side. `all_match` says whether every candidate is a match. See the
    /// [module](self).
    pub(crate) fn of(roles: Roles, yields: Yields, all_match: bool, found: FoundBy) -> FlagPlan {
        use FlaggedBy::{Matcher, Search};
        let [build, probe] = match (found, yields) {
            // Only a count is found, and this happens only if the join type returns no rows by their flag.
            (_, Yields::Count) => return FlagPlan::default(),
            (FoundBy::CpuLookup, Yields::Exists) => [Search, Matcher],
            (FoundBy::CpuLookup | FoundBy::CpuMerge, Yields::Pairs) => [Matcher, Matcher],
            (FoundBy::CpuMerge, Yields::Exists) => [Search, Search],
            (FoundBy::GpuUnordered | FoundBy::GpuInOrder, Yields::Pairs) => match all_match {
                true => [Search, Matcher],
                false => [Matcher, Matcher],
            },
            (FoundBy::GpuUnordered | FoundBy::GpuInOrder, Yields::Exists) => [Search, Search],
        };
        let flagged = |keep: Keep, by: FlaggedBy| (keep != Keep::Nothing).then_some(by);
        let plan =
            FlagPlan { build: flagged(roles.build, build), probe: flagged(roles.probe, probe) };
        if found == FoundBy::GpuInOrder { plan.in_order() } else { plan }
    }

    /// Returns the plan for the same join if a GPU returns its results in order. Their bits take the place of
    /// the bytes of probe rows.
    pub(crate) fn in_order(self) -> FlagPlan {
        let probe = self.probe.map(|by| match by {
            FlaggedBy::Search => FlaggedBy::Bits,
            FlaggedBy::Bits | FlaggedBy::Matcher => by,
        });
        FlagPlan { probe, ..self }
    }

    /// Returns whether the code that finds the candidates flags rows of a side.
    pub(crate) fn by_search(self) -> bool {
        [self.build, self.probe].contains(&Some(FlaggedBy::Search))
    }

    /// Returns whether the bits of results in order are the only flags.
    pub(crate) fn only_bits(self) -> bool {
        self == FlagPlan { build: None, probe: Some(FlaggedBy::Bits) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{JoinType, Side};

    const FOUND_BY: [FoundBy; 4] =
        [FoundBy::CpuLookup, FoundBy::CpuMerge, FoundBy::GpuUnordered, FoundBy::GpuInOrder];

    /// Calls `check` for all join types, build sides and things to find.
    fn each(check: impl Fn(Roles, Yields, bool, &str)) {
        for join_type in JoinType::ALL {
            for build_side in [Side::Left, Side::Right] {
                let roles = Roles::of(join_type, build_side);
                for (all_match, count_only) in
                    [(false, false), (false, true), (true, false), (true, true)]
                {
                    let yields = roles.yields(all_match, count_only);
                    let what = format!(
                        "{join_type:?}, build side {build_side:?}, {yields:?}, all match: {all_match}"
                    );
                    check(roles, yields, all_match, &what);
                }
            }
        }
    }

    /// Every row that a join type returns by its flag is flagged by exactly one place. Other rows have no flag.
    #[test]
    fn exactly_the_kept_sides_have_flags() {
        each(|roles, yields, all_match, what| {
            for found in FOUND_BY {
                let plan = FlagPlan::of(roles, yields, all_match, found);
                assert_eq!(plan.build.is_some(), roles.build != Keep::Nothing, "{what}, {found:?}");
                assert_eq!(plan.probe.is_some(), roles.probe != Keep::Nothing, "{what}, {found:?}");
            }
        });
    }

    /// The table of the module, row by row.
    #[test]
    fn the_table_holds_for_every_join_type() {
        use FlaggedBy::{Bits, Matcher, Search};
        each(|roles, yields, all_match, what| {
            for found in FOUND_BY {
                let expected = match (found, yields, all_match) {
                    (_, Yields::Count, _) => [None, None],
                    (_, Yields::Exists, false) => panic!("{what}: candidates must be verified"),
                    (FoundBy::CpuLookup, Yields::Exists, true) => [Some(Search), Some(Matcher)],
                    (FoundBy::CpuMerge, Yields::Exists, true) => [Some(Search), Some(Search)],
                    (FoundBy::GpuUnordered, Yields::Exists, true) => [Some(Search), Some(Search)],
                    (FoundBy::GpuInOrder, Yields::Exists, true) => [Some(Search), Some(Bits)],
                    (FoundBy::GpuUnordered | FoundBy::GpuInOrder, Yields::Pairs, true) => {
                        [Some(Search), Some(Matcher)]
                    }
                    (_, Yields::Pairs, _) => [Some(Matcher), Some(Matcher)],
                };
                let kept = [roles.build, roles.probe].map(|keep| keep != Keep::Nothing);
                let plan = FlagPlan::of(roles, yields, all_match, found);
                let expected = [expected[0].filter(|_| kept[0]), expected[1].filter(|_| kept[1])];
                assert_eq!([plan.build, plan.probe], expected, "{what}, {found:?}");
            }
        });
    }

    /// A plan that a GPU has made for any order becomes the plan for results in order.
    #[test]
    fn results_in_order_replace_only_the_bytes_of_probe_rows() {
        each(|roles, yields, all_match, what| {
            let unordered = FlagPlan::of(roles, yields, all_match, FoundBy::GpuUnordered);
            let in_order = FlagPlan::of(roles, yields, all_match, FoundBy::GpuInOrder);
            assert_eq!(unordered.in_order(), in_order, "{what}");
            assert_eq!(in_order.in_order(), in_order, "{what}");
            let semi_or_alike = yields == Yields::Exists && roles.probe != Keep::Nothing;
            assert_eq!(in_order.only_bits(), semi_or_alike, "{what}");
            assert_eq!(in_order != unordered, semi_or_alike, "{what}");
        });
    }

    /// The examples of the documentation.
    #[test]
    fn examples() {
        let plan = |join_type, found| {
            let roles = Roles::of(join_type, Side::Right);
            FlagPlan::of(roles, roles.yields(true, false), true, found)
        };
        let none = FlagPlan::default();
        assert_eq!(plan(JoinType::Inner, FoundBy::CpuLookup), none);
        let left = FlagPlan { probe: Some(FlaggedBy::Matcher), ..none };
        assert_eq!(plan(JoinType::Left, FoundBy::GpuInOrder), left);
        let semi = FlagPlan { probe: Some(FlaggedBy::Bits), ..none };
        assert_eq!(plan(JoinType::LeftSemi, FoundBy::GpuInOrder), semi);
        let anti = FlagPlan { build: Some(FlaggedBy::Search), ..none };
        assert_eq!(plan(JoinType::RightAnti, FoundBy::CpuLookup), anti);
        let full = FlagPlan { build: Some(FlaggedBy::Search), ..left };
        assert_eq!(plan(JoinType::Full, FoundBy::GpuUnordered), full);
    }
}

//! Chooses the kind of table and the number of partitions, from the rows and the cache sizes.

use crate::machine::Machine;
use crate::overrides::TestOverrides;
use crate::partition::Passes;
use crate::table::table_bytes;

/// The kind of table, and the radix bits of the partitions that it is built from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TableShape {
    /// A hash table.
    Hash {
        /// The radix bits of the build side.
        passes: Passes,
    },
    /// An array with one cell per possible key.
    Dense {
        /// The smallest key word.
        min: u64,
        /// The largest key word.
        max: u64,
        /// The radix bits of the build side.
        passes: Passes,
    },
}

/// The most cells per row of a dense table. Up to this, it is smaller than a hash table.
pub(super) const CELLS_PER_ROW: u64 = 4;
/// Up to this number of cells, the ratio does not matter.
const FEW_CELLS: u64 = 4096;
/// The most radix bits per pass. Two cache lines per partition must fit the second-level cache with room to
/// spare.
const BITS_PER_PASS: u32 = 12;

/// Returns the shape of the table over `rows` build rows. `range` is the range of the key words; `None` if
/// the words are not integers of a range. Key words have `word_bytes` bytes, values `value_bytes`.
pub(super) fn table_shape(
    rows: usize,
    range: Option<(u64, u64)>,
    word_bytes: usize,
    value_bytes: usize,
    machine: &Machine,
    overrides: TestOverrides,
) -> TableShape {
    let dense = range.filter(|(min, max)| {
        (max - min).checked_add(1).is_some_and(|cells| is_dense(cells, rows as u64))
    });
    match dense {
        Some((min, max)) => {
            let range_bits = 64 - (max - min).leading_zeros();
            // If there are more rows than cells, keys repeat, and the groups of their values must fit too.
            let bytes = (max - min + 1).max(rows as u64) * value_bytes as u64;
            // The cells of a region must be a multiple of 64, because bitmaps have words of 64 bits.
            let bits = region_bits(bytes, machine, overrides).min(range_bits.saturating_sub(6));
            TableShape::Dense { min, max, passes: in_passes(bits, overrides) }
        }
        None => {
            let bytes = table_bytes(rows, word_bytes, value_bytes);
            // A key of another region marks an empty slot, so there must be at least two regions.
            let bits = region_bits(bytes, machine, overrides).max(1);
            TableShape::Hash { passes: in_passes(bits, overrides) }
        }
    }
}

/// Returns whether an array of `cells` cells is used for `rows` rows, addressed by the key.
pub(super) fn is_dense(cells: u64, rows: u64) -> bool {
    cells <= rows.saturating_mul(CELLS_PER_ROW).max(FEW_CELLS)
}

/// Returns the radix bits for a build side of `rows` tuples, so that the table of each partition fits the
/// cache.
pub(super) fn radix_passes(
    rows: usize,
    word_bytes: usize,
    value_bytes: usize,
    machine: &Machine,
    overrides: TestOverrides,
) -> Passes {
    let bytes = table_bytes(rows, word_bytes, value_bytes);
    // With no partitions at all, this would be another algorithm. A few partitions cost nothing.
    let bits = region_bits(bytes, machine, overrides).max(3);
    in_passes(bits, overrides)
}

/// Returns the radix bits for a table of `bytes`. A region should fit a quarter of the second-level cache,
/// because its tuples pass through the cache as well. It may fill the whole cache if that saves a pass.
fn region_bits(bytes: u64, machine: &Machine, overrides: TestOverrides) -> u32 {
    if overrides.tiny_partitions {
        return 6;
    }
    let bits = |region: u64| bytes.div_ceil(region.max(1)).max(1).next_power_of_two().ilog2();
    let (best, least) = (bits(machine.l2 / 4), bits(machine.l2));
    if least <= BITS_PER_PASS { best.min(BITS_PER_PASS) } else { best.min(2 * BITS_PER_PASS) }
}

fn in_passes(bits: u32, overrides: TestOverrides) -> Passes {
    let most = if overrides.tiny_partitions { 4 } else { BITS_PER_PASS };
    let passes = bits.div_ceil(most);
    // Passes have nearly equal bits: 13 bits become 6 and 7, not 12 and 1.
    Passes((0..passes).map(|i| bits * (i + 1) / passes - bits * i / passes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine { cores: 2, l2: 2 << 20, last_level: 64 << 20, memory: 0 }
    }

    #[test]
    fn small_tables_are_not_partitioned_and_large_ones_fit_the_cache() {
        let shape = |rows| table_shape(rows, None, 8, 8, &machine(), TestOverrides::default());
        assert_eq!(shape(1000), TableShape::Hash { passes: Passes(vec![1]) });
        assert_eq!(shape(1 << 24), TableShape::Hash { passes: Passes(vec![10]) });
        // Larger regions are better than one more pass. One more pass is better than regions that exceed the
        // cache.
        assert_eq!(shape(1 << 28), TableShape::Hash { passes: Passes(vec![12]) });
        assert_eq!(shape(1 << 30), TableShape::Hash { passes: Passes(vec![8, 8]) });
    }

    #[test]
    fn dense_ranges_are_addressed_directly() {
        let shape = |rows, range| {
            table_shape(rows, Some(range), 8, 4, &machine(), TestOverrides::default())
        };
        assert!(matches!(shape(1 << 20, (5, 1 << 20)), TableShape::Dense { .. }));
        assert!(matches!(shape(1 << 20, (0, 1 << 40)), TableShape::Hash { .. }));
        assert!(matches!(shape(1, (0, u64::MAX)), TableShape::Hash { .. }));
        assert!(matches!(shape(1, (7, 7)), TableShape::Dense { .. }));
    }
}

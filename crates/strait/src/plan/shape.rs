//! How many partitions, and hash slots or cells? From rows and cache sizes.

use crate::machine::Machine;
use crate::overrides::TestOverrides;
use crate::partition::Passes;
use crate::table::table_bytes;

/// What kind of table, built from how many partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TableShape {
    /// Linear probing.
    Hash {
        /// Radix bits of the build side.
        passes: Passes,
    },
    /// A cell a possible key.
    Dense {
        /// The smallest key word.
        min: u64,
        /// The largest.
        max: u64,
        /// Radix bits of the build side.
        passes: Passes,
    },
}

/// A dense table has at most so many cells a row: then it is smaller than a hash table.
const CELLS_PER_ROW: u64 = 4;
/// Below this many cells the ratio does not matter.
const FEW_CELLS: u64 = 4096;
/// Radix bits of one pass: two lines a partition have to fit the second-level cache with room to spare.
const BITS_PER_PASS: u32 = 12;

/// The table over a build side of `rows` rows with words in `range` (None where the words are not
/// integers of a range), with words and values of so many bytes.
pub(crate) fn table_shape(
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
            // Rows beyond the cells are of keys that come again: their groups have to fit too.
            let bytes = (max - min + 1).max(rows as u64) * value_bytes as u64;
            // Regions are whole words of bits.
            let bits = region_bits(bytes, machine, overrides).min(range_bits.saturating_sub(6));
            TableShape::Dense { min, max, passes: in_passes(bits, overrides) }
        }
        None => {
            let bytes = table_bytes(rows, word_bytes, value_bytes);
            // A key of another region stands for emptiness, so there are two at least.
            let bits = region_bits(bytes, machine, overrides).max(1);
            TableShape::Hash { passes: in_passes(bits, overrides) }
        }
    }
}

/// Whether keys are addressed directly, by an array of so many cells.
pub(super) fn is_dense(cells: u64, rows: u64) -> bool {
    cells <= rows.saturating_mul(CELLS_PER_ROW).max(FEW_CELLS)
}

/// The radix bits for a build side of `rows` tuples: until a partition's table fits the cache.
pub(crate) fn radix_passes(
    rows: usize,
    word_bytes: usize,
    value_bytes: usize,
    machine: &Machine,
    overrides: TestOverrides,
) -> Passes {
    let bytes = table_bytes(rows, word_bytes, value_bytes);
    // Without any partition this would be another algorithm; a few cost nothing.
    let bits = region_bits(bytes, machine, overrides).max(3);
    in_passes(bits, overrides)
}

/// The bits that make regions of `bytes` fit a quarter of the second-level cache, which their tuples
/// pass through as well; all of it, if that spares a pass.
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
    // Nearly equal: 13 bits are 7 and 6, not 11 and 2.
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
        // Larger regions rather than one more pass, and one more rather than too large regions.
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

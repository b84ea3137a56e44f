//! The partitions of a side in host memory (some may lie on the device), and how they are packed into working
//! sets.

use std::sync::Arc;

use crate::device::Pinned;
use crate::error::Result;
use crate::transfer::{Run, TransferContext};

/// The purpose of the host memory, for error messages.
const WHAT: &str = "partitions in host memory";
/// The approximate number of partitions per working set.
const PARTITIONS_PER_SET: u64 = 4;

/// Returns the number of radix bits, so that a few partitions of `rows` rows fill `fit` rows together.
pub(crate) fn bits(rows: u64, fit: u64, most: u32) -> u32 {
    let partitions = (rows.saturating_mul(PARTITIONS_PER_SET)).div_ceil(fit.max(1));
    partitions.next_power_of_two().ilog2().clamp(1, most)
}

/// The partitions of a side. Each is a list of runs of tuples. The session owns runs that lie on the device.
pub(crate) struct HostPartitions {
    /// The number of top bits of the mixed key that choose a partition.
    pub(crate) bits: u32,
    pub(crate) runs: Vec<Vec<Run>>,
    pub(crate) rows: Vec<u64>,
}

impl HostPartitions {
    pub(crate) fn new(bits: u32) -> HostPartitions {
        let partitions = 1usize << bits;
        let runs = (0..partitions).map(|_| Vec::new()).collect();
        HostPartitions { bits, runs, rows: vec![0; partitions] }
    }

    /// Allocates pinned memory of at least `bytes` bytes. Sizes are rounded up, so that later requests find
    /// memory that is already pinned.
    pub(crate) fn pin(&self, link: &TransferContext<'_>, bytes: u64) -> Result<Arc<Pinned>> {
        let bytes = bytes.next_multiple_of((16 << 20).min(bytes.next_power_of_two()));
        link.session.pinned(bytes as usize, WHAT)
    }

    /// Adds a run to a partition.
    pub(crate) fn add(&mut self, partition: usize, run: Run) {
        if run.rows > 0 {
            self.rows[partition] += run.rows;
            self.runs[partition].push(run);
        }
    }

    /// Returns the runs of some partitions.
    pub(crate) fn of(&self, partitions: &[usize]) -> Vec<Run> {
        partitions.iter().flat_map(|&partition| self.runs[partition].iter().cloned()).collect()
    }
}

/// The resolution of the knapsack: weights are multiples of `fit` / 1024.
const STEPS: usize = 1024;

/// Packs partitions with the given numbers of build rows into sets of at most `fit` rows (003 §IV-D). The
/// first set is as full as possible, because it is joined while the probe side is still being partitioned.
/// The others are packed greedily; each has at most one partition with more than half of `fit`. A partition
/// that does not fit is a set of its own, and is joined in blocks. Empty partitions are in no set.
pub(crate) fn pack(rows: &[u64], fit: u64) -> Vec<Vec<usize>> {
    let mut left: Vec<usize> = (0..rows.len()).filter(|&p| rows[p] > 0 && rows[p] <= fit).collect();
    let mut sets = Vec::new();
    let first = knapsack(rows, &left, fit);
    left.retain(|partition| !first.contains(partition));
    if !first.is_empty() {
        sets.push(first);
    }
    left.sort_by_key(|&partition| std::cmp::Reverse(rows[partition]));
    let mut open: Vec<(u64, bool, Vec<usize>)> = Vec::new();
    for partition in left {
        let (size, large) = (rows[partition], rows[partition] > fit / 2);
        let room = |set: &&mut (u64, bool, Vec<usize>)| set.0 + size <= fit && !(large && set.1);
        match open.iter_mut().find(room) {
            Some((total, has_large, set)) => {
                *total += size;
                *has_large |= large;
                set.push(partition);
            }
            None => open.push((size, large, vec![partition])),
        }
    }
    sets.extend(open.into_iter().map(|(_, _, set)| set));
    let alone = (0..rows.len()).filter(|&partition| rows[partition] > fit);
    sets.extend(alone.map(|partition| vec![partition]));
    sets
}

/// Returns the partitions that fill `fit` rows best, in steps of 1/1024 of `fit`.
fn knapsack(rows: &[u64], partitions: &[usize], fit: u64) -> Vec<usize> {
    // Rounded up, so that the chosen partitions fit.
    let weight = |partition: usize| {
        (u128::from(rows[partition]) * STEPS as u128).div_ceil(u128::from(fit.max(1))) as usize
    };
    // For each weight: the largest number of rows of any choice with that weight, and its last partition.
    let mut best: Vec<Option<(u64, usize)>> = vec![None; STEPS + 1];
    let mut chosen: Vec<Vec<bool>> = Vec::with_capacity(partitions.len());
    best[0] = Some((0, usize::MAX));
    for &partition in partitions {
        let mut taken = vec![false; STEPS + 1];
        let weight = weight(partition);
        for at in (weight..=STEPS).rev() {
            let Some((total, _)) = best[at - weight] else { continue };
            let total = total + rows[partition];
            if best[at].is_none_or(|(had, _)| had < total) {
                best[at] = Some((total, partition));
                taken[at] = true;
            }
        }
        chosen.push(taken);
    }
    let most = (0..=STEPS).max_by_key(|&at| best[at].map_or(0, |(total, _)| total));
    let Some(mut at) = most else { return Vec::new() };
    let mut set = Vec::new();
    for (&partition, taken) in partitions.iter().zip(&chosen).rev() {
        if taken[at] {
            set.push(partition);
            at -= weight(partition);
        }
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rows: &[u64], fit: u64) -> Vec<Vec<usize>> {
        let sets = pack(rows, fit);
        let mut all: Vec<usize> = sets.iter().flatten().copied().collect();
        all.sort_unstable();
        let wanted: Vec<usize> = (0..rows.len()).filter(|&p| rows[p] > 0).collect();
        assert_eq!(all, wanted, "every partition with rows once");
        for set in &sets {
            let total: u64 = set.iter().map(|&p| rows[p]).sum();
            assert!(total <= fit || set.len() == 1, "{set:?} of {rows:?}");
        }
        sets
    }

    #[test]
    fn the_first_set_is_as_full_as_can_be() {
        let sets = check(&[60, 50, 50, 30], 100);
        let total: u64 = sets[0].iter().map(|&p| [60, 50, 50, 30][p]).sum();
        assert_eq!(total, 100);
    }

    #[test]
    fn what_does_not_fit_is_alone() {
        let sets = check(&[5, 1000, 0, 7, 2000], 10);
        assert!(sets.contains(&vec![1]) && sets.contains(&vec![4]));
        assert!(check(&[0, 0], 10).is_empty());
        assert_eq!(check(&[3], 3).len(), 1);
        assert_eq!(check(&[3, 3], 1).len(), 2);
    }

    #[test]
    fn many_sizes_are_packed() {
        let mut random = fastrand::Rng::with_seed(1);
        for fit in [1u64, 7, 100, 5000, 1 << 40] {
            let rows: Vec<u64> = (0..200).map(|_| random.u64(..300)).collect();
            check(&rows, fit);
        }
    }
}

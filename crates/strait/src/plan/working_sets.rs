//! Packs partitions into working sets that fit GPU memory.

/// The resolution of the knapsack: weights are multiples of `fit` / 1024.
const STEPS: usize = 1024;

/// Packs partitions with the given numbers of build rows into sets of at most `fit` rows (003 §IV-D). The
/// first set is as full as possible, because it is joined while the probe side is still being partitioned.
/// The others are packed greedily; each set has at most one large partition (more than half of `fit`). A
/// partition that does not fit is a set of its own, and is joined in blocks. Empty partitions are in no set.
pub(super) fn pack(rows: &[u64], fit: u64) -> Vec<Vec<usize>> {
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

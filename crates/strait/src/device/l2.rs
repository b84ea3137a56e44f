//! Shares of a device's L2 cache. Each function says how many bytes one structure may have, in a cache of `l2`
//! bytes.

/// Returns the size up to which one hash table over the whole build side is preferred to partitions. The
/// table then leaves half of the cache to the rows that stream past it.
pub(crate) fn for_table(l2: u64) -> u64 {
    l2 / 2
}

/// Returns the size up to which an array that keys address directly is preferred to partitions: all of the
/// cache.
pub(crate) fn for_array(l2: u64) -> u64 {
    l2
}

/// Returns the maximum size of a hash table that has more slots than it needs. The additional slots pay only
/// if the table stays in the cache.
pub(crate) fn for_roomy_table(l2: u64) -> u64 {
    l2 / 6
}

/// Returns the size of the part of a table that is in use at a time, if rows come in partition order. Tuples
/// and output rows need cache, too.
pub(crate) fn for_part_of_table(l2: u64) -> u64 {
    (l2 / 8).max(1)
}

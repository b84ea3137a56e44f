//! Compares the sort with the standard library's.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use fastrand::Rng;

use super::radix::{CACHED, PLAIN, is_sorted};
use super::sort;
use super::testing::tuples;
use crate::memory::{Budget, Buffer};
use crate::partition::{RowId, Tuple};
use crate::schedule::Workers;
use crate::word::KeyWord;

fn workers(threads: usize) -> Workers {
    Workers::new(threads, Arc::default())
}

fn check<K: KeyWord, I: RowId>(keys: &[u64], bits: u32, threads: usize, what: &str) {
    let make =
        |(row, &key): (usize, &u64)| Tuple { key: K::from_u64(key), row: I::from_usize(row) };
    let mut expected: Vec<Tuple<K, I>> = keys.iter().enumerate().map(make).collect();
    let budget = Budget::new(None);
    let mut buffer = Buffer::zeroed(keys.len(), &budget, "a test").expect("fits");
    buffer.copy_from_slice(&expected);
    expected.sort_by_key(|t| t.key);
    let was = is_sorted(&buffer, &workers(threads)).expect("not cancelled");
    assert_eq!(was, buffer.is_sorted_by_key(|t| t.key), "{what}");
    let used = budget.peak();
    let sorted = sort(buffer, bits, &workers(threads), &budget).expect("fits");
    assert!(sorted[..] == expected[..], "{what}: {} keys, {threads} threads", keys.len());
    if was || keys.len() <= PLAIN {
        assert_eq!(budget.peak(), used, "no scratch is needed");
    }
    drop(sorted);
    assert_eq!(budget.left(), u64::MAX);
}

/// Inputs that sorts tend to get wrong: `len` keys below 2^`bits`.
fn patterns(random: &mut Rng, len: usize, bits: u32) -> Vec<(&'static str, Vec<u64>)> {
    let most = u64::MAX >> (64 - bits);
    let n = len as u64;
    let mut any = |f: &mut dyn FnMut(&mut Rng, u64) -> u64| -> Vec<u64> {
        (0..n).map(|x| f(random, x) & most).collect()
    };
    let mut all = vec![
        ("random", any(&mut |r, _| r.u64(..))),
        ("equal", any(&mut |_, _| 42)),
        ("sorted", any(&mut |_, x| x.min(most))),
        ("reversed", any(&mut |_, x| (n - x).min(most))),
        ("two keys", any(&mut |r, _| if r.u64(..2) == 0 { 0 } else { u64::MAX })),
        ("one digit", any(&mut |r, _| r.u64(..256) << (bits / 2))),
        ("dense", any(&mut |r, _| r.u64(..n))),
        ("hot key", any(&mut |r, _| if r.u64(..10) > 0 { 7 } else { r.u64(..) })),
        ("close", any(&mut |r, _| (most / 2).wrapping_add(r.u64(..20)))),
        ("many sizes", any(&mut |r, _| r.u64(..) >> r.u64(..64))),
        (
            "low ones and strays",
            any(&mut |r, x| match x % 1021 {
                1 => r.u64(..) | most >> 1,
                _ => r.u64(..n),
            }),
        ),
        // Keys at positions that an evenly spaced sample skips.
        (
            "hidden",
            any(&mut |r, x| match x as usize % (len / 1024).max(1) {
                0 => 1000 + r.u64(..3),
                _ => r.u64(..),
            }),
        ),
    ];
    let mut late = all[2].1.clone();
    if let Some(last) = late.last_mut() {
        *last = 0;
    }
    all.push(("last out of order", late));
    all
}

#[test]
fn sorts_as_the_standard_library_does() {
    let mut random = Rng::with_seed(0xabcdef);
    for len in [0, 1, 2, 3, 255, 256, 257, 1000, 5000, CACHED, CACHED + 1, 100_003, 300_000] {
        for bits in [1, 8, 13, 24, 32, 63, 64] {
            for (what, keys) in patterns(&mut random, len, bits) {
                let threads = 1 + random.u64(..5) as usize;
                let what = format!("{what}, {bits} bits");
                match random.u64(..2) {
                    _ if bits <= 32 => check::<u32, u32>(&keys, bits, threads, &what),
                    0 => check::<u64, u32>(&keys, bits, threads, &what),
                    _ => check::<u64, u64>(&keys, bits, threads, &what),
                }
            }
        }
    }
}

#[test]
fn small_sizes_of_every_kind() {
    let mut random = Rng::with_seed(99);
    for case in 0..2000 {
        let (len, bits) = (random.u64(..3000) as usize, 1 + random.u64(..64) as u32);
        let keys: Vec<u64> = (0..len).map(|_| random.u64(..) >> (64 - bits)).collect();
        check::<u64, u32>(&keys, bits, 2, &format!("case {case}, {bits} bits"));
    }
}

#[test]
fn cancellation_and_budget_end_it() {
    let keys: Vec<u64> = (0..50_000).rev().collect();
    let make = |budget| {
        let mut buffer = Buffer::zeroed(keys.len(), budget, "a test").expect("fits");
        buffer.copy_from_slice(&tuples(&keys));
        buffer
    };
    let budget = Budget::new(Some(1_500_000));
    assert!(sort(make(&budget), 64, &workers(2), &budget).is_err(), "no room for scratch");
    assert_eq!(budget.left(), 1_500_000);
    // Memory for the scratch buffer, and nothing else.
    let budget = Budget::new(Some(1_600_000));
    let sorted = sort(make(&budget), 64, &workers(2), &budget).expect("fits");
    assert!(sorted.is_sorted_by_key(|t| t.key));
    let budget = Budget::new(None);
    let cancelled = Workers::new(2, Arc::new(AtomicBool::new(true)));
    assert!(sort(make(&budget), 64, &cancelled, &budget).is_err());
}

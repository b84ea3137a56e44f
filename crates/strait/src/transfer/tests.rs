//! Every method transfers every row, in order, for any order in which the device runs its work.

use std::sync::Arc;

use super::*;
use crate::device::simulated::{Settings, Simulated, TINY};
use crate::device::{HostAccess, HostView};
use crate::word::Width;

/// Where the columns of a side lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    Pageable,
    Pinned,
    /// In batches, whose keys need this bias; values need none.
    Batches(u64),
}

/// Returns the words, less a bias, in batches of `size` words. Some batches are empty.
fn batches(words: &[u64], size: usize, short: u64) -> Vec<Vec<u64>> {
    let less = |batch: &[u64]| batch.iter().map(|word| word.wrapping_sub(short)).collect();
    let mut batches: Vec<Vec<u64>> = words.chunks(size).map(less).collect();
    batches.insert(batches.len() / 2, Vec::new());
    batches.insert(0, Vec::new());
    batches.push(Vec::new());
    batches
}

/// Returns a column of batches.
///
/// # Safety
/// The batches must outlive the column.
unsafe fn in_batches(batches: &[Vec<u64>], short: u64) -> HostColumn {
    let views = batches.iter().map(|batch| HostView::of(batch)).collect();
    // SAFETY: guaranteed by the caller.
    unsafe { HostColumn::in_batches(views, short) }
}

/// Loads a side with a method, and checks its rows on the device.
fn loaded(seed: u64, transfer: Transfer, lie: Lie, keys: &[u64], values: Option<&[u64]>) {
    let settings = Settings { memory: 1 << 20, shape: TINY, seed, ..Settings::default() };
    let device = Simulated::new(settings);
    let session = Session::new(&device, Width::W64).unwrap();
    let workers = Workers::new(2, Arc::default());
    let short = if let Lie::Batches(short) = lie { short } else { 0 };
    let size = 1 + seed as usize % 30;
    let key_batches = batches(keys, size, short);
    let value_batches = batches(values.unwrap_or(&[]), size + 3, 0);
    let column = |values: &[u64], batches: &[Vec<u64>], short: u64| {
        match lie {
            // SAFETY: the slice outlives the device's work, which is synchronised below.
            Lie::Pageable => return unsafe { HostColumn::pageable(HostView::of(values)) },
            // SAFETY: the batches outlive the device's work, too.
            Lie::Batches(_) => return unsafe { in_batches(batches, short) },
            Lie::Pinned => {}
        }
        // Not at the start of the memory, to test offsets.
        let memory = device.pinned(values.len() * 8 + 24, "a test").unwrap();
        // SAFETY: nobody else has this memory.
        unsafe {
            let to = memory.bytes_mut()[24..].as_mut_ptr();
            std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), to, values.len() * 8);
        }
        HostColumn::pinned(&memory, 24, values.len() as u64 * 8)
    };
    let side = HostSide {
        keys: column(keys, &key_batches, short),
        values: values.map(|values| column(values, &value_batches, 0)),
        rows: keys.len() as u64,
    };
    let link = TransferContext { session: &session, workers: &workers, transfer, most_rows: 13 };
    let loaded = load(&link, &side);
    if lie == Lie::Batches(short) && !matches!(transfer, Transfer::Auto | Transfer::StagedCopy) {
        let refused = loaded.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(refused.contains("only be staged"), "{transfer}: {refused}");
        return;
    }
    let loaded = loaded.unwrap();
    let found: Vec<u64> = session.read(loaded.keys, keys.len()).unwrap();
    assert_eq!(found, keys, "{transfer}, seed {seed}");
    if let (Some(view), Some(values)) = (loaded.values, values) {
        let found: Vec<u64> = session.read(view, values.len()).unwrap();
        assert_eq!(found, values, "{transfer}, seed {seed}");
    }
}

#[test]
fn every_method_brings_every_row() {
    let keys: Vec<u64> = (0..100).map(|i| 1000 + (i * 37) % 91).collect();
    let sparse: Vec<u64> = keys.iter().map(|k| k.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
    for seed in 0..40 {
        for transfer in Transfer::ALL {
            // A bias of two, and the bias of signed words.
            for lie in [Lie::Pageable, Lie::Pinned, Lie::Batches(2), Lie::Batches(1 << 63)] {
                loaded(seed, transfer, lie, &keys, None);
                loaded(seed, transfer, lie, &sparse, Some(&keys));
                loaded(seed, transfer, lie, &keys[..1], Some(&sparse[..1]));
            }
        }
    }
}

#[test]
fn nothing_comes_of_nothing() {
    for transfer in Transfer::ALL {
        if transfer != Transfer::Coherence {
            loaded(1, transfer, Lie::Pinned, &[], None);
        }
    }
}

/// A part of a column in batches has the words of its rows, within one batch and across several.
#[test]
fn batches_are_cut_anywhere() {
    let words: Vec<u64> = (0..60).map(|i| i * 1_000_003).collect();
    for size in [1, 2, 7, 60, 100] {
        let batches = batches(&words, size, 0);
        // SAFETY: the batches outlive the column.
        let keys = unsafe { in_batches(&batches, 0) };
        let side = HostSide { keys, values: None, rows: 60 };
        let mut scratch = Vec::new();
        for start in 0..60 {
            for end in start + 1..=60 {
                let part = side.part(Width::W64, start..end);
                let rows = start as usize..end as usize;
                // SAFETY: as above.
                let found = unsafe { part.keys.words_or::<u64>(0..part.rows, &mut scratch) };
                assert_eq!(found.unwrap(), &words[rows.clone()], "{rows:?} of batches of {size}");
                // SAFETY: as above.
                let beyond = unsafe { part.keys.words_or::<u64>(0..part.rows + 1, &mut scratch) };
                assert!(beyond.is_err(), "{rows:?} of batches of {size}");
            }
        }
    }
}

/// Runs are cut at the ends of chunks, in any memory, and chunks at the ends of lists.
#[test]
fn runs_become_chunks() {
    for seed in 0..40 {
        let settings = Settings { memory: 1 << 20, shape: TINY, seed, ..Settings::default() };
        let device = Simulated::new(settings);
        let session = Session::new(&device, Width::W32).unwrap();
        let workers = Workers::new(1, Arc::default());
        let link = TransferContext {
            session: &session,
            workers: &workers,
            transfer: Transfer::Auto,
            most_rows: 1000,
        };
        let tuples: Vec<u32> = (0..2 * 60).collect();
        let pinned = device.pinned(60 * 8, "a test").unwrap();
        // SAFETY: nobody else has this memory.
        unsafe {
            let to = pinned.bytes_mut().as_mut_ptr();
            std::ptr::copy_nonoverlapping(tuples.as_ptr().cast::<u8>(), to, 60 * 8);
        }
        let there = session.allocate(20 * 8, "a test").unwrap();
        session.write(&tuples[2 * 40..], there).unwrap();
        let host =
            |from: usize, rows: u64| Run { place: Place::Host(pinned.clone(), from * 8), rows };
        let on_device = Run { place: Place::Device(there), rows: 20 };
        let lists = [
            vec![host(0, 1), host(1, 30), host(31, 0)],
            Vec::new(),
            vec![host(31, 0)],
            vec![host(31, 9), on_device],
        ];
        let mut lists = lists.into_iter();
        let produce: Produce<'_> = Box::new(|| Ok(lists.next()));
        let mut pipeline = Pipeline::of_runs(&link, produce, 7).unwrap();
        let mut found: Vec<u32> = Vec::new();
        let mut chunks = 0;
        while let Some(chunk) = pipeline.next().unwrap() {
            let view = chunk.side.tuples.unwrap();
            found.extend(session.read::<u32>(view, 2 * chunk.side.rows as usize).unwrap());
            pipeline.done(chunk).unwrap();
            pipeline.ahead().unwrap();
            chunks += 1;
        }
        assert_eq!(found, tuples, "seed {seed}");
        assert_eq!(chunks, 31u64.div_ceil(7) + 29u64.div_ceil(7));
    }
}

/// The pipeline lends one chunk at a time.
#[test]
fn a_second_chunk_is_refused() {
    let settings = Settings { memory: 1 << 20, shape: TINY, seed: 1, ..Settings::default() };
    let device = Simulated::new(settings);
    let session = Session::new(&device, Width::W64).unwrap();
    let workers = Workers::new(1, Arc::default());
    let link = TransferContext {
        session: &session,
        workers: &workers,
        transfer: Transfer::Auto,
        most_rows: 1000,
    };
    let keys = [1u64, 2, 3];
    // SAFETY: the slice outlives the pipeline.
    let column = unsafe { HostColumn::pageable(HostView::of(&keys)) };
    let side = HostSide { keys: column, values: None, rows: 3 };
    let mut pipeline = Pipeline::new(&link, &side, 1).unwrap();
    let first = pipeline.next().unwrap();
    assert!(first.is_some());
    assert!(pipeline.next().is_err());
}

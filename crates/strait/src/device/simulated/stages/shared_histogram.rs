//! Radix passes that count first: the digits per chunk, the starts of each chunk's runs, and the tuples.

use super::super::memory::nth;
use super::super::random::random_order;
use super::super::word::{DeviceWord, Source, Tuple};
use super::partition::{check_apart, check_digit, digit_of};
use super::{Machine, require};
use crate::device::abi::{BINS, LookBack, SharedHistogram};
use crate::error::Result;

pub(super) fn count<W: DeviceWord>(machine: &mut Machine, stage: &SharedHistogram) -> Result<()> {
    check_digit::<W>(&stage.digit)?;
    for (chunk, first, rows) in chunks(machine, stage)? {
        let mut counts = [0u32; BINS];
        for key in keys::<W>(machine, stage, first, rows)? {
            counts[digit_of(key, &stage.digit)] += 1;
        }
        for (digit, count) in (0u64..).zip(counts) {
            let at = digit * u64::from(stage.chunks) + chunk;
            machine.space.set(stage.counts, at, count, "counts")?;
        }
    }
    Ok(())
}

pub(super) fn scan(machine: &mut Machine, stage: &SharedHistogram) -> Result<()> {
    let chunks = u64::from(stage.chunks);
    for digit in 0..BINS as u64 {
        let row = nth::<u32>(stage.counts, digit * chunks);
        let mut counts = machine.space.read::<u32>(row, chunks, "counts")?;
        let mut before = 0u32;
        for count in &mut counts {
            (*count, before) = (before, before.wrapping_add(*count));
        }
        machine.space.write(row, &counts, "counts")?;
        machine.space.set(stage.bins, digit, u64::from(before), "bins")?;
    }
    Ok(())
}

pub(super) fn scatter<W: DeviceWord>(machine: &mut Machine, stage: &SharedHistogram) -> Result<()> {
    check_digit::<W>(&stage.digit)?;
    let (bins, chunk_count) = (BINS as u64, u64::from(stage.chunks));
    let begins = machine.space.read::<u64>(stage.bins, bins, "bins")?;
    let before = machine.space.read::<u32>(stage.counts, bins * chunk_count, "counts")?;
    let source = Source { columns: stage.columns, tuples: stage.tuples };
    let mut placed: Vec<(u64, Tuple<W>)> = Vec::new();
    for (chunk, first, rows) in chunks(machine, stage)? {
        let mut tuples = source.read::<W>(&machine.space, first, rows)?;
        if stage.tuples == 0 {
            tuples.iter_mut().for_each(|tuple| tuple.key = tuple.key.mixed_by(stage.mixing));
            machine.random.shuffle(&mut tuples);
        }
        let mut next: Vec<u64> = (0..BINS)
            .map(|d| {
                begins[d].wrapping_add(before[d * chunk_count as usize + chunk as usize].into())
            })
            .collect();
        for tuple in tuples {
            let next = &mut next[digit_of(tuple.key, &stage.digit)];
            placed.push((*next, tuple));
            *next = next.wrapping_add(1);
        }
    }
    let places: Vec<u64> = placed.iter().map(|&(place, _)| place).collect();
    let (columns, tuples, to_tuples) = (stage.columns, stage.tuples, stage.to_tuples);
    let as_sweep = LookBack { columns, tuples, to_tuples, rows: stage.rows, ..LookBack::default() };
    check_apart::<W>(&as_sweep, &places)?;
    for (place, tuple) in placed {
        machine.space.set(stage.to_tuples, place, tuple, "target tuples")?;
    }
    Ok(())
}

/// Returns the number, first row and rows of every chunk, in random order.
fn chunks(machine: &mut Machine, stage: &SharedHistogram) -> Result<Vec<(u64, u64, u64)>> {
    let covered = stage.chunk.checked_mul(u64::from(stage.chunks));
    require(covered.is_some_and(|rows| rows >= stage.rows), "rows outside all chunks")?;
    let tiles = stage.chunk.is_multiple_of(u64::from(machine.shape.tile));
    require(tiles, "a chunk that is not whole tiles")?;
    let order = random_order(&mut machine.random, stage.chunks as usize);
    let chunk = |chunk: usize| {
        let first = (chunk as u64 * stage.chunk).min(stage.rows);
        (chunk as u64, first, stage.chunk.min(stage.rows - first))
    };
    Ok(order.into_iter().map(chunk).collect())
}

/// Returns the mixed keys of some rows.
fn keys<W: DeviceWord>(
    machine: &Machine,
    stage: &SharedHistogram,
    first: u64,
    rows: u64,
) -> Result<Vec<W>> {
    if stage.tuples != 0 {
        let tuples = nth::<Tuple<W>>(stage.tuples, first);
        let tuples = machine.space.tuples::<W>(tuples, rows, "source tuples")?;
        return Ok(tuples.iter().map(|tuple| tuple.key).collect());
    }
    let keys = nth::<W>(stage.columns.keys, first);
    let keys = machine.space.read::<W>(keys, rows, "source keys")?;
    Ok(keys.into_iter().map(|key| key.mixed_by(stage.mixing)).collect())
}

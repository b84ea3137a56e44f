//! Scattering to partitions anywhere: counts the tuples per partition, and writes the tuples.

use super::super::memory::{aligned, nth};
use super::super::word::{DeviceWord, Source, Tuple};
use super::partition::digit_of;
use super::{Machine, require};
use crate::device::Scatterer;
use crate::device::abi::{Digit, MAX_PARTITIONS, Scatter, Tally};
use crate::error::Result;
use crate::word::Width;

pub(super) fn tally<W: DeviceWord>(machine: &mut Machine, stage: &Tally) -> Result<()> {
    check_digit::<W>(&stage.digit)?;
    let partitions = u64::from(stage.digit.mask) + 1;
    let mut counts = machine.space.read::<u64>(stage.counts, partitions, "counts")?;
    for key in strided::<W>(machine, stage.keys, stage.rows, stage.stride)? {
        let key = if stage.mix != 0 { key.mixed_by(stage.mixing) } else { key };
        let count = &mut counts[digit_of(key, &stage.digit)];
        *count = count.wrapping_add(1);
    }
    machine.space.write(stage.counts, &counts, "counts")
}

/// Reads the keys of a column, or of tuples.
pub(super) fn strided<W: DeviceWord>(
    machine: &Machine,
    keys: u64,
    rows: u64,
    stride: u32,
) -> Result<Vec<W>> {
    match stride {
        1 => machine.space.read::<W>(keys, rows, "keys"),
        2 => {
            let tuples = machine.space.tuples::<W>(keys, rows, "tuples")?;
            Ok(tuples.iter().map(|tuple| tuple.key).collect())
        }
        _ => require(false, "keys are one or two words apart").map(|()| Vec::new()),
    }
}

/// Bytes of buffers that a scatterer needs.
pub(in super::super) fn buffer_bytes(word: Width, how: Scatterer, partitions: u32) -> u64 {
    match how {
        Scatterer::Hierarchical => (u64::from(partitions) + 1) * word.tuple(),
        Scatterer::Standard | Scatterer::Linear | Scatterer::Shared => 0,
    }
}

pub(super) fn scatter<W: DeviceWord>(
    machine: &mut Machine,
    how: Scatterer,
    stage: &Scatter,
) -> Result<()> {
    check_digit::<W>(&stage.digit)?;
    aligned(stage.to_tuples, size_of::<Tuple<W>>() as u64, "target tuples")?;
    let partitions = stage.digit.mask + 1;
    scribble::<W>(machine, how, stage, partitions)?;
    let source = Source { columns: stage.columns, tuples: stage.tuples };
    let mut tuples = source.read::<W>(&machine.space, 0, stage.rows)?;
    if stage.tuples == 0 {
        tuples.iter_mut().for_each(|tuple| tuple.key = tuple.key.mixed_by(stage.mixing));
    }
    machine.random.shuffle(&mut tuples);

    let begins = machine.space.read::<u64>(stage.cursors, partitions.into(), "cursors")?;
    let mut next = begins.clone();
    let mut places = Vec::with_capacity(tuples.len());
    for tuple in &tuples {
        let next = &mut next[digit_of(tuple.key, &stage.digit)];
        places.push(*next);
        *next = next.wrapping_add(1);
    }
    check_runs::<W>(stage, &begins, &next)?;
    machine.space.write(stage.cursors, &next, "cursors")?;
    for (place, tuple) in places.into_iter().zip(tuples) {
        machine.space.set(stage.to_tuples, place, tuple, "target tuples")?;
    }
    Ok(())
}

/// Fills the scatterer's own memory with garbage.
fn scribble<W: DeviceWord>(
    machine: &mut Machine,
    how: Scatterer,
    stage: &Scatter,
    partitions: u32,
) -> Result<()> {
    let word = if W::BITS == 32 { Width::W32 } else { Width::W64 };
    let words = buffer_bytes(word, how, partitions) / 8;
    aligned(stage.buffers, if words > 0 { size_of::<Tuple<W>>() as u64 } else { 1 }, "buffers")?;
    let garbage: Vec<u64> = (0..words).map(|_| machine.random.u64(..)).collect();
    machine.space.write(stage.buffers, &garbage, "buffers")
}

/// Thread blocks read while others write, so no partition's run may overlap the source or another run.
fn check_runs<W: DeviceWord>(stage: &Scatter, begins: &[u64], ends: &[u64]) -> Result<()> {
    let (word, tuple) = (size_of::<W>() as u64, size_of::<Tuple<W>>() as u64);
    let span = |address: u64, size: u64| (address, address.saturating_add(stage.rows * size));
    let sources = match (stage.tuples, stage.columns.values) {
        (0, 0) => vec![span(stage.columns.keys, word)],
        (0, values) => vec![span(stage.columns.keys, word), span(values, word)],
        (tuples, _) => vec![span(tuples, tuple)],
    };
    let at = |place: u64| nth::<Tuple<W>>(stage.to_tuples, place);
    let runs = begins.iter().zip(ends).map(|(&begin, &end)| (at(begin), at(end)));
    let mut runs: Vec<(u64, u64)> = runs.filter(|run| run.0 < run.1).collect();
    let meets = |run: &(u64, u64)| sources.iter().any(|from| from.0 < run.1 && run.0 < from.1);
    require(!runs.iter().any(meets), "the target overlaps the source")?;
    runs.sort_unstable();
    let apart = runs.windows(2).all(|pair| pair[0].1 <= pair[1].0);
    require(apart, "partitions overlap one another")
}

fn check_digit<W: DeviceWord>(digit: &Digit) -> Result<()> {
    let inside = digit.shift < W::BITS && digit.mask < MAX_PARTITIONS;
    require(inside && (digit.mask + 1).is_power_of_two(), "a digit outside the key")
}

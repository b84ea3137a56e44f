//! Partitioning and sorting: finds the bits of keys, counts digits, and runs the passes.

use super::super::memory::aligned;
use super::super::word::{DeviceWord, Source, Tuple};
use super::scatter::strided;
use super::{Machine, require};
use crate::device::abi::{BINS, Digit, Histogram, LookBack, MAX_PASSES, Offsets, Survey};
use crate::error::Result;

pub(super) fn survey<W: DeviceWord>(machine: &mut Machine, stage: &Survey) -> Result<()> {
    let keys = machine.space.read::<W>(stage.keys, stage.rows, "keys")?;
    let mut found = machine.space.read::<u64>(stage.found, 4, "found")?;
    for key in keys {
        let (key, not) = (key.to_u64(), W::from_u64(!key.to_u64()).to_u64());
        found[0] = found[0].max(key);
        found[1] = found[1].max(not);
        found[2] |= key;
        found[3] |= not;
    }
    machine.space.write(stage.found, &found, "found")
}

pub(super) fn histogram<W: DeviceWord>(machine: &mut Machine, stage: &Histogram) -> Result<()> {
    let passes = stage.passes as usize;
    require(passes <= MAX_PASSES, "more passes than there are digits")?;
    let keys = strided::<W>(machine, stage.keys, stage.rows, stage.stride)?;
    let mut bins = machine.space.read::<u64>(stage.bins, (passes * BINS) as u64, "bins")?;
    for digit in &stage.digits[..passes] {
        check_digit::<W>(digit)?;
    }
    for key in keys {
        let key = if stage.mix != 0 { key.mixed_by(stage.mixing) } else { key };
        for (digit, bins) in stage.digits.iter().zip(bins.chunks_exact_mut(BINS)) {
            let bin = &mut bins[digit_of(key, digit)];
            *bin = bin.wrapping_add(1);
        }
    }
    machine.space.write(stage.bins, &bins, "bins")
}

pub(super) fn offsets(machine: &mut Machine, stage: &Offsets) -> Result<()> {
    let count = u64::from(stage.passes) * BINS as u64;
    let mut bins = machine.space.read::<u64>(stage.bins, count, "bins")?;
    for row in bins.chunks_exact_mut(BINS) {
        let mut before = 0u64;
        for bin in row {
            (*bin, before) = (before, before.wrapping_add(*bin));
        }
    }
    machine.space.write(stage.bins, &bins, "bins")
}

pub(super) fn look_back<W: DeviceWord>(machine: &mut Machine, stage: &LookBack) -> Result<()> {
    if stage.rows == 0 {
        // No tile would write `next_base`.
        return Ok(());
    }
    check_digit::<W>(&stage.digit)?;
    use_status(machine, stage)?;
    let bins = BINS as u64;
    let source = Source { columns: stage.columns, tuples: stage.tuples };
    let mut tuples = source.read::<W>(&machine.space, 0, stage.rows)?;
    if stage.tuples == 0 && stage.mix != 0 {
        tuples.iter_mut().for_each(|tuple| tuple.key = tuple.key.mixed_by(stage.mixing));
    }
    if stage.stable == 0 {
        machine.random.shuffle(&mut tuples);
    }

    let mut next = machine.space.read::<u64>(stage.base, bins, "base")?;
    let places: Vec<u64> = tuples
        .iter()
        .map(|tuple| {
            let next = &mut next[digit_of(tuple.key, &stage.digit)];
            let place = *next;
            *next = next.wrapping_add(1);
            place
        })
        .collect();
    // One tile may read the starts of digits after another has written the next ones.
    require(stage.next_base != stage.base, "next_base is base")?;
    machine.space.write(stage.next_base, &next, "next_base")?;
    check_apart::<W>(stage, &places)?;
    for (&place, tuple) in places.iter().zip(&tuples) {
        if stage.to_tuples != 0 {
            machine.space.set(stage.to_tuples, place, *tuple, "target tuples")?;
        } else {
            machine.space.set(stage.to_keys, place, tuple.key, "target keys")?;
            machine.space.set(stage.to_values, place, tuple.value, "target values")?;
        }
    }
    Ok(())
}

/// Checks that the look-back's own memory is zero at the start, and fills it with garbage as a kernel would.
fn use_status(machine: &mut Machine, stage: &LookBack) -> Result<()> {
    let words = stage.rows.div_ceil(u64::from(machine.shape.tile)) * BINS as u64;
    let status = machine.space.read::<u32>(stage.status, words, "status")?;
    let ticket = machine.space.get::<u32>(stage.ticket, "ticket")?;
    require(status.iter().all(|&word| word == 0), "status was not zero at first")?;
    require(ticket == 0, "ticket was not zero at first")?;
    let garbage: Vec<u32> = status.iter().map(|_| machine.random.u64(..) as u32 | 1).collect();
    machine.space.write(stage.status, &garbage, "status")?;
    machine.space.set(stage.ticket, 0, words as u32, "ticket")
}

/// Tiles read while others write, so no target place may lie in the source.
pub(super) fn check_apart<W: DeviceWord>(stage: &LookBack, places: &[u64]) -> Result<()> {
    let (Some(&low), Some(&high)) = (places.iter().min(), places.iter().max()) else {
        return Ok(());
    };
    let (word, tuple) = (size_of::<W>() as u64, size_of::<Tuple<W>>() as u64);
    let span = |address: u64, from: u64, to: u64, size: u64| {
        let at = |index: u64| address.saturating_add(index.saturating_mul(size));
        if address == 0 { 0..0 } else { at(from)..at(to) }
    };
    let sources = if stage.tuples != 0 {
        vec![span(stage.tuples, 0, stage.rows, tuple)]
    } else {
        let columns = [stage.columns.keys, stage.columns.values];
        columns.map(|column| span(column, 0, stage.rows, word)).to_vec()
    };
    let end = high.saturating_add(1);
    let targets = if stage.to_tuples != 0 {
        aligned(stage.to_tuples, tuple, "target tuples")?;
        vec![span(stage.to_tuples, low, end, tuple)]
    } else {
        [stage.to_keys, stage.to_values].map(|column| span(column, low, end, word)).to_vec()
    };
    let meets = targets.iter().any(|target| {
        sources.iter().any(|source| source.start < target.end && target.start < source.end)
    });
    require(!meets, "the target overlaps the source")
}

pub(super) fn check_digit<W: DeviceWord>(digit: &Digit) -> Result<()> {
    require(digit.shift < W::BITS && (digit.mask as usize) < BINS, "a digit outside the key")
}

pub(super) fn digit_of<W: DeviceWord>(key: W, digit: &Digit) -> usize {
    (key.to_u64() >> digit.shift) as usize & digit.mask as usize
}

//! Radix passes into chains of buckets: cuts chains into pieces, splits them, and copies them together.

use super::super::memory::nth;
use super::super::word::{DeviceWord, Source, Tuple};
use super::partition::{check_digit, digit_of};
use super::{Machine, require};
use crate::device::abi::{BucketPool, Chains, Compact, CutChains, DIGIT_BITS};
use crate::error::Result;

pub(super) fn cut_chains(machine: &mut Machine, stage: &CutChains) -> Result<()> {
    require(stage.piece > 0, "pieces without tuples")?;
    let chains = u64::from(stage.chains);
    let counts = match stage.counts {
        0 => vec![stage.rows as u32; stage.chains as usize],
        counts => machine.space.read::<u32>(counts, chains, "counts")?,
    };
    let mut before = 0u32;
    for (chain, count) in (0u64..).zip(counts) {
        machine.space.set(stage.starts, chain, before, "starts")?;
        before = before.wrapping_add(count.div_ceil(stage.piece));
    }
    machine.space.set(stage.starts, chains, before, "starts")
}

pub(super) fn partition<W: DeviceWord>(machine: &mut Machine, stage: &BucketPool) -> Result<()> {
    check_digit::<W>(&stage.digit)?;
    check_piece(machine, stage.piece)?;
    let (to, columns) = (&stage.to, stage.from.tuples == 0);
    require(to.digit_bits <= DIGIT_BITS && to.bucket_bits < 32, "chains of too many bits")?;
    require(stage.digit.mask < 1 << to.digit_bits, "a digit has no chain")?;
    // The pool must have all of its buckets, even if this order of tuples does not use all of them.
    let room = u64::from(stage.buckets) << to.bucket_bits;
    machine.space.check::<Tuple<W>>(to.tuples, room, "the pool")?;
    require(to.tuples != stage.from.tuples, "the target overlaps the source")?;
    require(!columns || stage.parents == 1, "columns have one parent")?;
    let cursor = machine.space.get::<u32>(stage.cursor, "cursor")?;
    require(cursor == 0, "cursor was not zero at first")?;
    let chains = u64::from(stage.parents) << to.digit_bits;
    let counts = machine.space.read::<u32>(to.counts, chains, "counts")?;
    require(counts.iter().all(|&count| count == 0), "counts were not zero at first")?;

    // The tuples of all pieces take their places in random order.
    let mut tuples: Vec<(u64, Tuple<W>)> = Vec::new();
    if columns {
        let source = Source { columns: stage.columns, tuples: 0 };
        let read = source.read::<W>(&machine.space, 0, stage.rows)?;
        let mixed = |t: &Tuple<W>| Tuple { key: t.key.mixed_by(stage.mixing), ..*t };
        tuples.extend(read.iter().map(|t| (0, mixed(t))));
    } else {
        let pieces = Pieces { starts: stage.pieces, chains: stage.parents, piece: stage.piece };
        for (parent, place) in pieces.places(machine, &stage.from)? {
            let at = nth::<Tuple<W>>(stage.from.tuples, place);
            tuples.push((parent, machine.space.tuples(at, 1, "source tuples")?[0]));
        }
        require(tuples.len() as u64 == stage.rows, "chains do not have all rows")?;
    }
    machine.random.shuffle(&mut tuples);
    for (parent, tuple) in tuples {
        let chain = (parent << to.digit_bits) + digit_of(tuple.key, &stage.digit) as u64;
        let n = machine.space.get::<u32>(nth::<u32>(to.counts, chain), "counts")?;
        machine.space.set(to.counts, chain, n + 1, "counts")?;
        if n.is_multiple_of(1 << to.bucket_bits) {
            let bucket = machine.space.get::<u32>(stage.cursor, "cursor")?;
            require(bucket < stage.buckets, "the pool is empty")?;
            machine.space.set(stage.cursor, 0, bucket + 1, "cursor")?;
            let entry = entry(machine, to, chain, n)?;
            let old = machine.space.get::<u32>(entry, "directory")?;
            require(old == 0, "directory was not zero at first")?;
            machine.space.set(entry, 0, bucket + 1, "directory")?;
        }
        let place = place(machine, to, chain, n)?;
        machine.space.set(to.tuples, place, tuple, "target tuples")?;
    }
    Ok(())
}

pub(super) fn compact<W: DeviceWord>(machine: &mut Machine, stage: &Compact) -> Result<()> {
    check_piece(machine, stage.piece)?;
    require(stage.to_tuples != stage.from.tuples, "the target overlaps the source")?;
    let pieces = Pieces { starts: stage.pieces, chains: stage.chains, piece: stage.piece };
    let places = pieces.places(machine, &stage.from)?;
    require(places.len() as u64 == stage.rows, "chains do not have all rows")?;
    let starts = u64::from(stage.chains) + 1;
    let mut next = machine.space.read::<u32>(stage.starts, starts, "starts")?;
    for (chain, place) in places {
        let at = nth::<Tuple<W>>(stage.from.tuples, place);
        let tuple = machine.space.tuples::<W>(at, 1, "source tuples")?[0];
        let to = &mut next[chain as usize];
        machine.space.set(stage.to_tuples, u64::from(*to), tuple, "target tuples")?;
        *to = to.wrapping_add(1);
    }
    Ok(())
}

/// The pieces of chains. Each thread block takes one.
struct Pieces {
    /// The first piece of each chain.
    starts: u64,
    chains: u32,
    piece: u32,
}

impl Pieces {
    /// Returns the chain, and the place in the pool, of every tuple of every piece, chain by chain.
    fn places(&self, machine: &Machine, from: &Chains) -> Result<Vec<(u64, u64)>> {
        let chains = u64::from(self.chains);
        let starts = machine.space.read::<u32>(self.starts, chains + 1, "pieces")?;
        let counts = machine.space.read::<u32>(from.counts, chains, "counts")?;
        let mut places = Vec::new();
        for (chain, &count) in (0u64..).zip(&counts) {
            let pieces = starts[chain as usize + 1].wrapping_sub(starts[chain as usize]);
            require(pieces == count.div_ceil(self.piece), "pieces that are not the chains'")?;
            for n in 0..count {
                places.push((chain, place(machine, from, chain, n)?));
            }
        }
        Ok(places)
    }
}

/// Returns the directory entry for the bucket of tuple `n` of a chain.
fn entry(machine: &Machine, chains: &Chains, chain: u64, n: u32) -> Result<u64> {
    let parent = nth::<u32>(chains.slots, chain >> chains.digit_bits);
    let slots = machine.space.read::<u32>(parent, 2, "slots")?;
    let (first, each) = (u64::from(slots[0]), u64::from(slots[1].wrapping_sub(slots[0])));
    let bucket = u64::from(n >> chains.bucket_bits);
    require(bucket < each, "a chain longer than its parent")?;
    let digit = chain & ((1 << chains.digit_bits) - 1);
    Ok(nth::<u32>(chains.directory, (first << chains.digit_bits) + digit * each + bucket))
}

/// Returns the place of tuple `n` of a chain in the pool.
fn place(machine: &Machine, chains: &Chains, chain: u64, n: u32) -> Result<u64> {
    let entry = entry(machine, chains, chain, n)?;
    let bucket = machine.space.get::<u32>(entry, "directory")?;
    require(bucket > 0, "a bucket that nobody took")?;
    let inside = n & ((1 << chains.bucket_bits) - 1);
    Ok((u64::from(bucket - 1) << chains.bucket_bits) + u64::from(inside))
}

/// Checks the size of a piece, which a thread block holds at once.
fn check_piece(machine: &Machine, piece: u32) -> Result<()> {
    require((1..=machine.shape.tile).contains(&piece), "a piece that is not within a tile")
}

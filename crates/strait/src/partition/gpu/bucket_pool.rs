//! Radix passes into chains of buckets, as in 003 §III-A: nothing is counted before.
//!
//! ```text
//!  columns ─► pass by the top digit ─► chains ─► pass by the next ─► chains ─► copied together
//!                      │                 pool ──────────┘  │           pool
//!                      └─ buckets taken from the pool as they fill
//! ```
//!
//! How many buckets chains take shows only as they are filled, and the host does not ask: pools and
//! directories have the size of the worst case. For `n` chains that is a bucket each on top of those
//! that are full, and with a directory of four bytes a bucket and digit, at 1024 tuples a bucket and
//! 256 digits, a byte a tuple more. That holds for any skew.
//!
//! 003 joins from the chains. Here they are copied together at the end, so that one set of kernels
//! joins what any partitioner has made: one more read and write of every tuple.

use super::{Digits, spare_of};
use crate::device::Session;
use crate::device::Side;
use crate::device::{Stage, View, abi};
use crate::error::Result;

/// The chains of one pass.
struct Level {
    chains: abi::Chains,
    /// How many there are; one, without a pool, before the first pass: the columns.
    count: u64,
}

/// What is the same for all passes over a side.
struct Passes<'a> {
    session: &'a Session<'a>,
    side: &'a Side,
    /// Tuples of a tile.
    tile: u32,
    /// A bucket has `1 << bucket_bits` tuples.
    bucket_bits: u32,
    /// Memory that only the passes need.
    scratch: Vec<View>,
}

/// Orders a side's tuples by the top bits of their mixed keys. The spare memory is made on the first
/// call and used again.
pub(crate) fn chained(
    session: &Session<'_>,
    side: &Side,
    digits: &Digits,
    spare: &mut Option<View>,
    what: &str,
) -> Result<View> {
    let tile = session.device.shape(session.word).tile;
    // A quarter of a tile, down to a power of two: 1024 tuples on most cards.
    let bucket_bits = (tile / 4).max(1).ilog2();
    let mut passes = Passes { session, side, tile, bucket_bits, scratch: Vec::new() };

    // Pools take turns so that the last one is the spare, and the tuples end in the target, which
    // is a pool before where there are several passes.
    let (mut pools, mut chains) = ([side.rows * session.word.tuple(), 0], 1);
    let which = |pass: usize| (digits.passes() - pass) % 2;
    for (pass, digit) in digits.digits.iter().rev().enumerate() {
        chains <<= digit.mask.count_ones();
        let tuples = passes.most_buckets(chains) << bucket_bits;
        let pool = &mut pools[which(pass)];
        *pool = (tuples * session.word.tuple()).max(*pool);
    }
    let target = session.allocate(pools[0], what)?;
    let pools = [target, spare_of(session, spare, pools[1])?];

    let mut level = Level { chains: abi::Chains::default(), count: 1 };
    for (pass, &digit) in digits.digits.iter().rev().enumerate() {
        level = passes.divide(&level, digit, pools[which(pass)])?;
    }
    passes.compact(&level, target)?;
    session.release(&passes.scratch)?;
    Ok(target)
}

impl Passes<'_> {
    /// The buckets that so many chains can take: each may end in one that is not full.
    fn most_buckets(&self, chains: u64) -> u64 {
        (self.side.rows >> self.bucket_bits) + self.side.rows.min(chains)
    }

    /// Tuples of a piece of chains: whole buckets, no more than a tile.
    fn piece(&self) -> u32 {
        self.tile >> self.bucket_bits << self.bucket_bits
    }

    /// Memory until the passes are done.
    fn scratch(&mut self, bytes: u64) -> Result<View> {
        let view = self.session.allocate(bytes, "bucket directories")?;
        self.scratch.push(view);
        Ok(view)
    }

    /// Likewise, of zeros.
    fn zeroed(&mut self, bytes: u64) -> Result<View> {
        let view = self.scratch(bytes)?;
        self.session.device.fill(self.session.compute, view, 0)?;
        Ok(view)
    }

    /// How many pieces of so many tuples the chains before each have.
    fn cut(&mut self, level: &Level, piece: u32) -> Result<u64> {
        let starts = self.scratch((level.count + 1) * 4)?.address;
        self.session.run(Stage::CutChains(abi::CutChains {
            counts: level.chains.counts,
            rows: self.side.rows,
            starts,
            chains: level.count as u32,
            piece,
        }))?;
        Ok(starts)
    }

    /// One pass: each chain into as many as the digit has values.
    fn divide(&mut self, from: &Level, digit: abi::Digit, pool: View) -> Result<Level> {
        let digit_bits = digit.mask.count_ones();
        let count = from.count << digit_bits;
        let entries = self.most_buckets(from.count) << digit_bits;
        let chains = abi::Chains {
            tuples: pool.address,
            directory: self.zeroed(entries * 4)?.address,
            slots: self.cut(from, 1 << self.bucket_bits)?,
            counts: self.zeroed(count * 4)?.address,
            digit_bits,
            bucket_bits: self.bucket_bits,
        };
        // Columns are cut by position; only chains have to be looked for.
        let columns = from.chains.tuples == 0;
        let piece = if columns { self.tile } else { self.piece() };
        self.session.run(Stage::BucketPool(abi::BucketPool {
            columns: self.side.columns(),
            from: from.chains,
            to: chains,
            pieces: if columns { 0 } else { self.cut(from, piece)? },
            rows: self.side.rows,
            cursor: self.zeroed(4)?.address,
            digit,
            parents: from.count as u32,
            piece,
            buckets: self.most_buckets(count) as u32,
            unused: 0,
            mixing: self.session.mixing(),
        }))?;
        Ok(Level { chains, count })
    }

    /// Copies chains together.
    fn compact(&mut self, from: &Level, to: View) -> Result<()> {
        self.session.run(Stage::Compact(abi::Compact {
            from: from.chains,
            pieces: self.cut(from, self.piece())?,
            starts: self.cut(from, 1)?,
            to_tuples: to.address,
            rows: self.side.rows,
            chains: from.count as u32,
            piece: self.piece(),
        }))
    }
}

//! Radix passes into chains of buckets, as in 003 §III-A. No pass counts tuples first.
//!
//! ```text
//!  columns ─► pass by the top digit ─► chains ─► pass by the next ─► chains ─► copied together
//!                      │                 pool ──────────┘  │           pool
//!                      └─ buckets taken from the pool as they fill
//! ```
//!
//! The number of buckets is known only while chains are filled, and the host does not wait for it. So pools
//! and directories have the size of the worst case, for any skew. For `n` chains, that is `n` buckets more
//! than the full ones. A directory has four bytes per bucket and digit: with 1024 tuples per bucket and 256
//! digits, that is one more byte per tuple.
//!
//! 003 joins directly from the chains. Here the chains are copied together at the end, so that the same
//! kernels join the output of any partitioner. That costs one more read and write of every tuple.

use super::{Digits, spare_of};
use crate::device::DeviceSide;
use crate::device::Session;
use crate::device::{DeviceStage, View, abi};
use crate::error::Result;

/// The chains of one pass.
struct Level {
    chains: abi::Chains,
    /// The number of chains. Before the first pass, there is one chain without a pool: the columns.
    count: u64,
}

/// Values that are the same for all passes over a side.
struct Passes<'a> {
    session: &'a Session<'a>,
    side: &'a DeviceSide,
    /// Tuples per tile.
    tile: u32,
    /// A bucket has `1 << bucket_bits` tuples.
    bucket_bits: u32,
    /// Memory that is needed only during the passes.
    scratch: Vec<View>,
}

/// Orders a side's tuples by the top bits of their mixed keys. The first call allocates the spare memory, and
/// later calls reuse it.
pub(crate) fn chained(
    session: &Session<'_>,
    side: &DeviceSide,
    digits: &Digits,
    spare: &mut Option<View>,
    what: &str,
) -> Result<View> {
    let tile = session.device.shape(session.word).tile;
    // A quarter of a tile, rounded down to a power of two: 1024 tuples on most cards.
    let bucket_bits = (tile / 4).max(1).ilog2();
    let mut passes = Passes { session, side, tile, bucket_bits, scratch: Vec::new() };

    // The pools alternate. The last pass writes to the spare memory, and the tuples are then copied to the
    // target. If there are several passes, the target also serves as a pool.
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
        level = passes.run_pass(&level, digit, pools[which(pass)])?;
    }
    passes.compact(&level, target)?;
    session.release(&passes.scratch)?;
    Ok(target)
}

impl Passes<'_> {
    /// Returns the maximum number of buckets of `chains` chains: each may end with a bucket that is not full.
    fn most_buckets(&self, chains: u64) -> u64 {
        (self.side.rows >> self.bucket_bits) + self.side.rows.min(chains)
    }

    /// Returns the tuples per piece of a chain: whole buckets, at most one tile.
    fn piece(&self) -> u32 {
        self.tile >> self.bucket_bits << self.bucket_bits
    }

    /// Allocates memory that is released after the passes.
    fn scratch(&mut self, bytes: u64) -> Result<View> {
        let view = self.session.allocate(bytes, "bucket directories")?;
        self.scratch.push(view);
        Ok(view)
    }

    /// The same, filled with zeros.
    fn zeroed(&mut self, bytes: u64) -> Result<View> {
        let view = self.scratch(bytes)?;
        self.session.device.fill(self.session.compute, view, 0)?;
        Ok(view)
    }

    /// Cuts each chain into pieces of `piece` tuples. Returns the address of the number of pieces before each
    /// chain.
    fn cut(&mut self, level: &Level, piece: u32) -> Result<u64> {
        let starts = self.scratch((level.count + 1) * 4)?.address;
        self.session.run(DeviceStage::CutChains(abi::CutChains {
            counts: level.chains.counts,
            rows: self.side.rows,
            starts,
            chains: level.count as u32,
            piece,
        }))?;
        Ok(starts)
    }

    /// Runs one pass: splits each chain into one chain per value of the digit.
    fn run_pass(&mut self, from: &Level, digit: abi::Digit, pool: View) -> Result<Level> {
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
        // Columns are cut by position. Only chains need the list of pieces.
        let columns = from.chains.tuples == 0;
        let piece = if columns { self.tile } else { self.piece() };
        self.session.run(DeviceStage::BucketPool(abi::BucketPool {
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

    /// Copies the chains together.
    fn compact(&mut self, from: &Level, to: View) -> Result<()> {
        self.session.run(DeviceStage::Compact(abi::Compact {
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

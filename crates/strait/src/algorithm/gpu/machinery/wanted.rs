//! What a join on a device must produce, and who receives the output.

use crate::device::{Event, Flavour, Session, View, abi};
use crate::error::{Error, Result};
use crate::matches::{FlagPlan, FlaggedBy};

/// What the join must produce for its matches.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) flavour: Flavour,
    /// Whether the keys of the output rows are written too.
    pub(crate) keys: bool,
    /// Whether 32-bit values are summed as signed numbers.
    pub(crate) signed: bool,
    /// Who flags the rows of each side. Only some flavours set flags.
    pub(crate) flags: FlagPlan,
    /// One flag byte per value of each side. The conductors set these views for each side, or for each part
    /// of a side.
    pub(crate) build_flags: Option<View>,
    pub(crate) probe_flags: Option<View>,
    /// The estimated number of output rows.
    pub(crate) expected_rows: u64,
}

impl Wanted {
    /// Returns whether the kernels flag the rows of a side.
    pub(crate) fn kernels_flag(&self, which: Which) -> bool {
        let by = match which {
            Which::Build => self.flags.build,
            Which::Probe => self.flags.probe,
        };
        by == Some(FlaggedBy::Search)
    }
}

/// The result of a join.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct JoinResult {
    pub(crate) rows: u64,
    /// The sums of the values over all rows, modulo 2^64, if the flavour computes sums.
    pub(crate) build_sum: u64,
    pub(crate) probe_sum: u64,
}

impl JoinResult {
    /// Adds the result of one launch.
    pub(crate) fn add(&mut self, rows: u64, seen: &abi::Control) {
        self.rows += rows;
        self.build_sum = self.build_sum.wrapping_add(seen.build_sum);
        self.probe_sum = self.probe_sum.wrapping_add(seen.probe_sum);
    }

    /// Adds the result of another join.
    pub(crate) fn and(self, other: JoinResult) -> JoinResult {
        JoinResult {
            rows: self.rows + other.rows,
            build_sum: self.build_sum.wrapping_add(other.build_sum),
            probe_sum: self.probe_sum.wrapping_add(other.probe_sum),
        }
    }
}

/// Output rows in GPU memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OutputBlock {
    pub(crate) rows: u64,
    pub(crate) keys: View,
    pub(crate) build: View,
    pub(crate) probe: View,
}

/// The results of consecutive probe rows, in their order, in GPU memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InOrderBlock {
    /// The number of probe rows, and the position of the first.
    pub(crate) rows: u64,
    pub(crate) first: u64,
    /// The build value of each probe row that has a match. `None` if only the bits are wanted.
    pub(crate) build: Option<View>,
    /// One bit per probe row: whether it has a match.
    pub(crate) found: View,
}

/// Receives the output, one block at a time.
///
/// No method has a default. If a method had one, a receiver that forwards to another could forget the method.
/// The code would compile, and the calls would be lost. A receiver that takes only pairs, and does not forward
/// to another `Receiver`, implements [`PairsOnly`] instead.
pub(crate) trait Receiver {
    /// Receives a block. The caller reuses the block's memory after the returned event, or immediately if
    /// there is no event.
    fn block(&mut self, session: &Session<'_>, block: OutputBlock) -> Result<Option<Event>>;

    /// Receives the flags of a side's rows, starting at row number `first`: one byte per row, nonzero if the
    /// row has a match. The same rows may come several times.
    fn flags(&mut self, which: Which, first: u64, flags: &[u8]) -> Result<()>;

    /// Receives results in the order of the probe rows, like [`block`](Receiver::block).
    fn in_order(&mut self, session: &Session<'_>, block: InOrderBlock) -> Result<Option<Event>>;

    /// Receives the number of rows that an aggregate has counted so far, as a `u64` in GPU memory. The caller
    /// changes it after the returned event, or immediately if there is no event.
    fn counted(&mut self, session: &Session<'_>, rows: View) -> Result<Option<Event>>;

    /// Returns whether at least half of the probe rows in the last result had a match. A result belongs to one chunk or
    /// one block. If so, results [in order](Receiver::in_order) take fewer bytes than pairs.
    fn most_rows_match(&self) -> bool;

    /// Records that all results of a chunk of the probe side were handed over. Called only if that side is
    /// read while it is joined. The positions of the next chunk start at zero again.
    fn end_chunk(&mut self) -> Result<()>;

    /// Does pending work on the host while the device is busy.
    fn meanwhile(&mut self, session: &Session<'_>) -> Result<()>;

    /// Returns whether more chunks or working sets may follow. If so, new blocks may arrive while older
    /// blocks are still being copied.
    fn more_follows(&self) -> bool;
}

/// A [`Receiver`] of joins whose results are pairs, or only a count. Its probe side is held, or its caller does
/// not need to know where a chunk ends. Never implement this for a receiver that forwards to another
/// [`Receiver`]: the calls that are missing here would be lost.
pub(crate) trait PairsOnly {
    /// Receives a block, like [`Receiver::block`].
    fn block(&mut self, session: &Session<'_>, block: OutputBlock) -> Result<Option<Event>>;

    /// Receives flags, like [`Receiver::flags`]. By default, the join must not produce flags.
    fn flags(&mut self, _: Which, _: u64, _: &[u8]) -> Result<()> {
        Err(Error::internal("flags were not asked for"))
    }

    /// Does pending work, like [`Receiver::meanwhile`]. By default, there is none.
    fn meanwhile(&mut self, _: &Session<'_>) -> Result<()> {
        Ok(())
    }
}

impl<R: PairsOnly> Receiver for R {
    fn block(&mut self, session: &Session<'_>, block: OutputBlock) -> Result<Option<Event>> {
        PairsOnly::block(self, session, block)
    }

    fn flags(&mut self, which: Which, first: u64, flags: &[u8]) -> Result<()> {
        PairsOnly::flags(self, which, first, flags)
    }

    fn in_order(&mut self, _: &Session<'_>, _: InOrderBlock) -> Result<Option<Event>> {
        Err(Error::internal("results in order were not asked for"))
    }

    fn counted(&mut self, _: &Session<'_>, _: View) -> Result<Option<Event>> {
        // The conductor returns the count at the end of the join.
        Ok(None)
    }

    fn most_rows_match(&self) -> bool {
        false
    }

    fn end_chunk(&mut self) -> Result<()> {
        Ok(())
    }

    fn meanwhile(&mut self, session: &Session<'_>) -> Result<()> {
        PairsOnly::meanwhile(self, session)
    }

    fn more_follows(&self) -> bool {
        false
    }
}

/// One of the two sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    Build,
    Probe,
}

/// A receiver that counts the blocks it passes on.
pub(crate) struct Watched<'r> {
    pub(crate) to: &'r mut dyn Receiver,
    pub(crate) blocks: u64,
}

impl Receiver for Watched<'_> {
    fn block(&mut self, session: &Session<'_>, block: OutputBlock) -> Result<Option<Event>> {
        self.blocks += 1;
        self.to.block(session, block)
    }

    fn flags(&mut self, which: Which, first: u64, flags: &[u8]) -> Result<()> {
        self.to.flags(which, first, flags)
    }

    fn in_order(&mut self, session: &Session<'_>, block: InOrderBlock) -> Result<Option<Event>> {
        self.blocks += 1;
        self.to.in_order(session, block)
    }

    fn counted(&mut self, session: &Session<'_>, rows: View) -> Result<Option<Event>> {
        self.blocks += 1;
        self.to.counted(session, rows)
    }

    fn most_rows_match(&self) -> bool {
        self.to.most_rows_match()
    }

    fn end_chunk(&mut self) -> Result<()> {
        // The rows of this chunk cannot be read again.
        self.blocks += 1;
        self.to.end_chunk()
    }

    fn meanwhile(&mut self, session: &Session<'_>) -> Result<()> {
        self.to.meanwhile(session)
    }

    fn more_follows(&self) -> bool {
        self.to.more_follows()
    }
}

//! The partitions of both sides: in memory as encoded blocks, or on disk.
//!
//! ```text
//!  a chunk of a side ──► row ids per partition ──► gathered ──► encoded block ──┬──► stays in memory
//!                        (top bits of the mixed key word)                       └──► appended to a file
//! ```
//!
//! The keys of the build side also go into a [filter](BuildKeys). After the build side has ended, a probe row without a
//! match is not written to disk: it is dropped, or goes to the join in memory if the join type returns it.
//!
//! A block in memory has the same form as on disk. So a partition moves to disk without being encoded again, and its
//! reservation is exactly as large as its blocks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use super::build_keys::BuildKeys;
use super::encoded::{PARTITIONING, encode_rows, gather_rows};
use crate::error::Result;
use crate::input::{Chunk, Relation};
use crate::key::KeyPlan;
use crate::materialise::Columns;
use crate::memory::{Budget, Hold, Ledger, Reservation};
use crate::options::Side;
use crate::plan::{ASSIGNED_BYTES_PER_ROW, SpillRules, SpilledSize};
use crate::schedule::lock;
use crate::spill::{Block, SpillTarget, SpilledRows};
use crate::word::{KeyWord, Width};

/// What a join has spilled, over all levels.
#[derive(Debug, Default)]
pub(crate) struct SpillTotals {
    /// The bytes and rows that were written.
    pub(crate) bytes: AtomicU64,
    pub(crate) rows: AtomicU64,
    /// The bytes of the same rows without compression.
    pub(crate) uncompressed_bytes: AtomicU64,
    pub(crate) files: AtomicU64,
    /// The pairs of partitions that were joined from disk, and how many of them were joined in blocks.
    pub(crate) pairs: AtomicU64,
    pub(crate) pairs_in_blocks: AtomicU64,
    /// The levels of partitioning: 1 if no pair was partitioned again. For sorted runs, 1 if no runs were merged.
    pub(crate) levels: AtomicU64,
    /// The key ranges of sorted runs that were joined in memory.
    pub(crate) ranges: AtomicU64,
    /// The probe rows that were not written because no build row has their key.
    pub(crate) unmatched: AtomicU64,
}

impl SpillTotals {
    /// Counts a block for which `written` bytes were written.
    pub(crate) fn count(&self, block: &Block, written: u64) {
        self.bytes.fetch_add(written, Ordering::Relaxed);
        self.rows.fetch_add(block.rows(), Ordering::Relaxed);
        self.uncompressed_bytes.fetch_add(block.bytes().len() as u64, Ordering::Relaxed);
    }
}

/// The partitions of both sides.
pub(super) struct Partitions {
    pub(super) keys: KeyPlan,
    pub(super) bits: u32,
    /// For each side, whether rows that cannot match because of a null in their key are dropped. They are dropped if
    /// the join type does not return unmatched rows of the side.
    pub(super) drops_unmatchable: [bool; 2],
    pub(super) schemas: [SchemaRef; 2],
    pub(super) target: Arc<SpillTarget>,
    pub(super) totals: Arc<SpillTotals>,
    pub(super) rules: SpillRules,
    sides: [Mutex<Vec<Partition>>; 2],
    /// The keys of the rows of each side. Until the build side has ended, they are being filled: for the build side if
    /// it is known, otherwise for both sides. After that, those of the build side are complete, and there are no others.
    keys_of: [Mutex<Option<Arc<BuildKeys>>>; 2],
    /// Whether probe rows without a match go to the join in memory, if the join type returns them.
    joins_unmatched: AtomicBool,
    /// The probe rows that were not written because they have no match.
    unwritten: AtomicU64,
    /// The bytes of all blocks in memory.
    resident: AtomicU64,
    /// The number of rows that were assigned to partitions. The partition of a row that cannot match follows from it.
    spread: AtomicU64,
    /// Locked while the largest partition is moved to disk.
    moving: Mutex<()>,
    /// How many partitions were moved to disk.
    moved: AtomicU64,
    /// Whether the whole probe side was read.
    pub(super) probe_ended: AtomicBool,
}

/// One partition of one side.
#[derive(Default)]
struct Partition {
    /// Blocks in memory; empty if there is a file.
    blocks: Vec<(Block, Arc<Reservation>)>,
    size: SpilledSize,
    file: Option<Arc<SpilledRows>>,
}

/// A chunk of a side that is being partitioned.
pub(super) struct Work {
    pub(super) side: Side,
    rows: Relation,
    /// The number of the first row in its table, if the rows were read from the table.
    first_row: u64,
    /// The rows that are not in a block yet; `None` until the rows have been assigned to partitions.
    left: Option<Assigned>,
}

/// Where the rows of a chunk go.
#[derive(Clone, Copy)]
pub(super) enum Phase<'a> {
    /// The build side has not ended. All rows go to their partitions.
    Building,
    /// The build side has ended, and the rows are of the probe side.
    Probing {
        /// For each partition, whether its build partition is on disk. If it is in memory, its rows are *kept* for the
        /// join in memory.
        on_disk: &'a [bool],
        /// Whether the rows are looked at for the first time in this phase, so that they are counted.
        counts: bool,
    },
}

/// Where one row goes.
enum Destination {
    Partition(usize),
    /// To the join in memory.
    Kept,
    /// The row has no match, and the join type does not return it.
    Nowhere,
}

/// Says where the rows of one chunk go.
struct Destinations<'a> {
    phase: Phase<'a>,
    /// The keys of the build side, or the keys to which the rows of this chunk are added.
    keys: Option<Arc<BuildKeys>>,
    drops: bool,
    joins_unmatched: bool,
    partitions: u64,
    /// The partition of the next row that cannot match follows from it.
    spread: u64,
    /// The rows that were looked up, and those whose key was not found.
    asked: u64,
    rejected: u64,
    /// The rows that are not written because they have no match.
    unwritten: u64,
}

impl Destinations<'_> {
    /// Returns where a row goes. `mixed` is its mixed key word, from which its partition `at` follows.
    #[inline]
    fn of_key(&mut self, mixed: u64, at: usize) -> Destination {
        let to = Destination::Partition(at);
        let Some(keys) = &self.keys else { return to };
        match self.phase {
            Phase::Building => {
                keys.insert(mixed);
                to
            }
            // The join in memory finds out by itself whether a row has a match.
            Phase::Probing { on_disk, .. } if !self.drops && !on_disk[at] => to,
            Phase::Probing { on_disk, .. } => {
                self.asked += 1;
                if keys.may_have(mixed) {
                    return to;
                }
                self.rejected += 1;
                self.without_match(to, on_disk[at])
            }
        }
    }

    /// Returns where a row goes that cannot match because of a null in its key.
    fn of_unmatchable(&mut self) -> Destination {
        // Such rows may be in any partition. They are spread evenly, so that no partition grows too large.
        self.spread = self.spread.wrapping_add(1);
        let to = Destination::Partition((self.spread % self.partitions) as usize);
        match self.phase {
            Phase::Building if self.drops => Destination::Nowhere,
            Phase::Building => to,
            Phase::Probing { .. } => self.without_match(to, true),
        }
    }

    /// Returns where a probe row without a match goes. If it were written, it would go to the partition `written`.
    fn without_match(&mut self, written: Destination, is_on_disk: bool) -> Destination {
        let to = match (self.drops, self.joins_unmatched) {
            (true, _) => Destination::Nowhere,
            (false, true) => Destination::Kept,
            (false, false) => return written,
        };
        self.unwritten += u64::from(is_on_disk);
        to
    }
}

/// The rows of a chunk, by their partitions.
struct Assigned {
    /// The rows that go to the join in memory instead of a block.
    kept: Vec<u64>,
    /// The other partitions and their rows.
    rows: Vec<(usize, Vec<u64>)>,
    _reserved: Reservation,
}

impl Work {
    pub(super) fn new(side: Side, Chunk { rows, first_row }: Chunk) -> Work {
        Work { side, rows, first_row, left: None }
    }
}

impl Partitions {
    pub(super) fn new(
        (keys, bits): (KeyPlan, u32),
        keys_of: [Option<BuildKeys>; 2],
        drops_unmatchable: [bool; 2],
        schemas: [SchemaRef; 2],
        target: &Arc<SpillTarget>,
        (totals, rules): (&Arc<SpillTotals>, SpillRules),
    ) -> Partitions {
        let side = || Mutex::new((0..1usize << bits).map(|_| Partition::default()).collect());
        Partitions {
            keys,
            bits,
            drops_unmatchable,
            schemas,
            target: Arc::clone(target),
            totals: Arc::clone(totals),
            rules,
            sides: [side(), side()],
            keys_of: keys_of.map(|keys| Mutex::new(keys.map(Arc::new))),
            joins_unmatched: AtomicBool::new(true),
            unwritten: AtomicU64::new(0),
            resident: AtomicU64::new(0),
            spread: AtomicU64::new(0),
            moving: Mutex::new(()),
            moved: AtomicU64::new(0),
            probe_ended: AtomicBool::new(false),
        }
    }

    /// Returns the number of partitions per side.
    pub(super) fn count(&self) -> usize {
        1 << self.bits
    }

    /// Encodes the rows of a chunk as blocks of their partitions. Rows that are kept for the join in memory stay in
    /// `work` for [`take_kept`](Partitions::take_kept). Memory is reserved in `budget`. If it is refused, the remaining
    /// rows stay in `work`, and the caller may call this again.
    pub(super) fn divide(
        &self,
        work: &mut Work,
        budget: &Arc<Budget>,
        phase: Phase<'_>,
    ) -> Result<()> {
        if work.left.is_none() {
            let reserved =
                budget.reserve(work.rows.rows() * ASSIGNED_BYTES_PER_ROW, PARTITIONING)?;
            work.left = Some(self.assign(work.side, &work.rows, reserved, phase)?);
        }
        let Some(left) = &mut work.left else { return Ok(()) };
        let columns = Columns::of_chunk(&work.rows, work.first_row);
        let schema = &self.schemas[work.side as usize];
        while let Some((partition, mut rows)) = left.rows.pop() {
            match encode_rows(&columns, (schema, &rows), budget) {
                Ok((block, reserved)) => self.add(work.side, partition, block, reserved)?,
                // Encoding fewer rows takes less memory, and their offsets are smaller.
                Err(error) if rows.len() > 1 && error.fewer_rows_may_help() => {
                    let half = rows.split_off(rows.len() / 2);
                    left.rows.push((partition, half));
                    left.rows.push((partition, rows));
                }
                Err(error) => {
                    left.rows.push((partition, rows));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Takes kept rows of a divided chunk as a batch. Returns `None` if no kept rows are left. If memory is scarce, the
    /// batch has only some of the rows. So the caller must call this until it returns `None`.
    pub(super) fn take_kept(
        &self,
        work: &mut Work,
        budget: &Arc<Budget>,
    ) -> Result<Option<RecordBatch>> {
        let Some(left) = work.left.as_mut().filter(|left| !left.kept.is_empty()) else {
            return Ok(None);
        };
        let columns = Columns::of_chunk(&work.rows, work.first_row);
        let schema = &self.schemas[work.side as usize];
        let mut len = left.kept.len();
        loop {
            let rows = &left.kept[left.kept.len() - len..];
            match gather_rows(&columns, (schema, rows), budget) {
                Ok((batch, _reserved)) => {
                    left.kept.truncate(left.kept.len() - len);
                    return Ok(Some(batch));
                }
                Err(error) if len > 1 && error.fewer_rows_may_help() => len /= 2,
                Err(error) => return Err(error),
            }
        }
    }

    /// Assigns the rows of a chunk to partitions. Leaves out rows that are dropped.
    fn assign(
        &self,
        side: Side,
        rows: &Relation,
        reserved: Reservation,
        phase: Phase<'_>,
    ) -> Result<Assigned> {
        let mut assigned: Vec<Vec<u64>> = vec![Vec::new(); self.count()];
        let mut kept = Vec::new();
        let mut put = |row: u64, to: Destination| match to {
            Destination::Partition(at) => assigned[at].push(row),
            Destination::Kept => kept.push(row),
            Destination::Nowhere => {}
        };
        match self.keys.width() {
            Width::W32 => self.assign_by::<u32>(side, rows, phase, &mut put)?,
            Width::W64 => self.assign_by::<u64>(side, rows, phase, &mut put)?,
        }
        let mut others = Vec::new();
        for (partition, mut rows) in assigned.into_iter().enumerate() {
            match phase {
                Phase::Probing { on_disk, .. } if !on_disk[partition] => kept.append(&mut rows),
                _ if rows.is_empty() => {}
                _ => others.push((partition, rows)),
            }
        }
        // The kept rows get the order of the input, so that rows are read from front to back.
        kept.sort_unstable();
        Ok(Assigned { kept, rows: others, _reserved: reserved })
    }

    /// Calls `put` with each row and its destination.
    fn assign_by<K: KeyWord>(
        &self,
        side: Side,
        rows: &Relation,
        phase: Phase<'_>,
        put: &mut impl FnMut(u64, Destination),
    ) -> Result<()> {
        let (mixer, mut words) = (self.keys.mixer::<K>(), Vec::<K>::new());
        let shift = K::BITS - self.bits;
        let mut rule = self.destinations(side, rows.rows(), phase);
        let mut row = 0u64;
        for batch in rows.batches() {
            let valid = self.keys.words::<K>(side, batch, &mut words)?;
            for (at, word) in words.iter().enumerate() {
                let to = match valid.as_ref().is_none_or(|valid| valid.is_valid(at)) {
                    true => {
                        let mixed = word.mix(mixer).to_u64();
                        rule.of_key(mixed, (mixed >> shift) as usize)
                    }
                    false => rule.of_unmatchable(),
                };
                put(row, to);
                row += 1;
            }
        }
        if let Phase::Probing { counts: true, .. } = phase {
            self.unwritten.fetch_add(rule.unwritten, Ordering::Relaxed);
            let pays = |keys: &BuildKeys| keys.pays(rule.asked, rule.rejected, &self.rules);
            if rule.keys.as_deref().is_some_and(|keys| !pays(keys)) {
                log::debug!(
                    "most probe rows have a match, so the keys of the build side are dropped"
                );
                self.drop_keys();
            }
        }
        Ok(())
    }

    /// Returns the rule for the rows of a chunk.
    fn destinations<'a>(&self, side: Side, rows: u64, phase: Phase<'a>) -> Destinations<'a> {
        let of = match phase {
            Phase::Building => side,
            Phase::Probing { .. } => side.other(),
        };
        Destinations {
            phase,
            keys: lock(&self.keys_of[of as usize]).clone(),
            drops: self.drops_unmatchable[side as usize],
            joins_unmatched: self.joins_unmatched.load(Ordering::Relaxed),
            partitions: self.count() as u64,
            spread: self.spread.fetch_add(rows, Ordering::Relaxed),
            asked: 0,
            rejected: 0,
            unwritten: 0,
        }
    }

    /// Completes the keys of the build side. From now on, probe rows are looked up in them.
    pub(super) fn end_build(&self, side: Side) {
        lock(&self.keys_of[side.other() as usize]).take();
        let keys = &mut *lock(&self.keys_of[side as usize]);
        // No worker has a chunk, so there is no other reference.
        *keys = keys
            .take()
            .and_then(Arc::into_inner)
            .and_then(|keys| keys.finish(&self.rules))
            .map(Arc::new);
    }

    /// Drops the keys of the build side, which frees their memory. Returns whether there were any.
    pub(super) fn drop_keys(&self) -> bool {
        let dropped = self.keys_of.iter().filter_map(|keys| lock(keys).take());
        dropped.count() > 0
    }

    /// From now on, sends rows of the probe side `side` without a match to their partitions, and not to the join in
    /// memory. Returns false if that join gets no such rows anyway.
    pub(super) fn stop_joining_unmatched(&self, side: Side) -> bool {
        let stops = !self.drops_unmatchable[side as usize]
            && self.joins_unmatched.swap(false, Ordering::Relaxed);
        if stops {
            // The rows that the join in memory got so far come again.
            self.unwritten.store(0, Ordering::Relaxed);
        }
        stops
    }

    /// Drops the keys of the build side after the end of the probe side. Adds the rows that were not written to the
    /// totals.
    pub(super) fn end_probe(&self) {
        self.drop_keys();
        let unwritten = self.unwritten.swap(0, Ordering::Relaxed);
        self.totals.unmatched.fetch_add(unwritten, Ordering::Relaxed);
    }

    /// Adds a block to a partition: to its file if it has one, otherwise to memory. If the partitions in memory then
    /// take too many bytes, the largest ones are moved to disk.
    fn add(&self, side: Side, at: usize, block: Block, reserved: Reservation) -> Result<()> {
        let size = SpilledSize { rows: block.rows(), bytes: block.memory() };
        let file = {
            let partition = &mut lock(&self.sides[side as usize])[at];
            partition.size = partition.size.plus(size);
            match &partition.file {
                Some(file) => Some((Arc::clone(file), block)),
                None => {
                    partition.blocks.push((block, Arc::new(reserved)));
                    self.resident.fetch_add(size.bytes, Ordering::Relaxed);
                    None
                }
            }
        };
        match file {
            Some((file, block)) => self.write(&file, &block),
            None => self.keep_at_most(self.rules.resident_bytes()),
        }
    }

    fn write(&self, file: &SpilledRows, block: &Block) -> Result<()> {
        let written = file.append(block)?;
        self.totals.count(block, written);
        Ok(())
    }

    fn keep_at_most(&self, most: u64) -> Result<()> {
        while self.resident.load(Ordering::Relaxed) > most && self.spill_largest(None)? {}
        Ok(())
    }

    /// Moves the largest partition in memory to disk: of one side, or of both sides if `side` is `None`. If another
    /// worker is moving a partition, waits for that worker instead, because it also frees memory. Returns false if no
    /// partition in memory has rows.
    pub(super) fn spill_largest(&self, side: Option<Side>) -> Result<bool> {
        let before = self.moved.load(Ordering::SeqCst);
        let _moving = lock(&self.moving);
        if self.moved.load(Ordering::SeqCst) != before {
            return Ok(true);
        }
        let of_side = |side: Side| {
            let partitions = lock(&self.sides[side as usize]);
            let bytes = partitions.iter().map(|p| if p.file.is_none() { p.size.bytes } else { 0 });
            let largest = bytes.enumerate().max_by_key(|&(_, bytes)| bytes);
            largest.filter(|&(_, bytes)| bytes > 0).map(|(at, bytes)| (bytes, side, at))
        };
        let sides = [Side::Left, Side::Right].into_iter().filter(|&s| side.is_none_or(|o| o == s));
        match sides.filter_map(of_side).max_by_key(|&(bytes, ..)| bytes) {
            Some((_, side, at)) => self.spill(side, at).map(|()| true),
            None => Ok(false),
        }
    }

    /// Moves a partition to disk, unless it is there already.
    fn spill(&self, side: Side, at: usize) -> Result<()> {
        if lock(&self.sides[side as usize])[at].file.is_some() {
            return Ok(());
        }
        let file = SpilledRows::create(&self.target).map(Arc::new)?;
        let blocks = {
            let partition = &mut lock(&self.sides[side as usize])[at];
            if partition.file.is_some() {
                // Another worker was faster.
                return Ok(());
            }
            partition.file = Some(Arc::clone(&file));
            std::mem::take(&mut partition.blocks)
        };
        self.totals.files.fetch_add(1, Ordering::Relaxed);
        for (block, reserved) in blocks {
            self.write(&file, &block)?;
            self.resident.fetch_sub(block.memory(), Ordering::Relaxed);
            drop((block, reserved));
        }
        self.moved.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    /// Moves partitions to disk until `bytes` are free, or until no partition in memory has rows.
    pub(super) fn free(&self, budget: &Budget, bytes: u64) -> Result<()> {
        while budget.left() < bytes && self.spill_largest(None)? {}
        Ok(())
    }

    /// Moves all non-empty partitions of a side to disk.
    pub(super) fn spill_side(&self, side: Side) -> Result<()> {
        while self.spill_largest(Some(side))? {}
        Ok(())
    }

    /// Returns the size of the partitions of a side that are in memory.
    pub(super) fn in_memory(&self, side: Side) -> SpilledSize {
        let partitions = lock(&self.sides[side as usize]);
        let resident = partitions.iter().filter(|p| p.file.is_none()).map(|p| p.size);
        resident.fold(SpilledSize::default(), SpilledSize::plus)
    }

    /// Returns the size of all partitions of a side.
    pub(super) fn size(&self, side: Side) -> SpilledSize {
        let partitions = lock(&self.sides[side as usize]);
        partitions.iter().map(|p| p.size).fold(SpilledSize::default(), SpilledSize::plus)
    }

    /// Returns for each partition of a side whether it is on disk.
    pub(super) fn on_disk(&self, side: Side) -> Vec<bool> {
        lock(&self.sides[side as usize]).iter().map(|p| p.file.is_some()).collect()
    }

    /// Takes the file of a partition; `None` if it has none.
    pub(super) fn take_file(&self, side: Side, at: usize) -> Option<Arc<SpilledRows>> {
        lock(&self.sides[side as usize])[at].file.take()
    }

    /// Moves the partitions of a side to disk for which `on_disk` is true. All later rows of a partition go to its
    /// file.
    pub(super) fn open_files(&self, side: Side, on_disk: &[bool]) -> Result<()> {
        for (at, _) in on_disk.iter().enumerate().filter(|(_, on_disk)| **on_disk) {
            self.spill(side, at)?;
        }
        Ok(())
    }

    /// Returns the rows of a side's partitions in memory. The partitions also keep their blocks.
    pub(super) fn resident(&self, side: Side, ledger: Option<&Ledger>) -> Result<Relation> {
        let schema = &self.schemas[side as usize];
        let partitions = lock(&self.sides[side as usize]);
        let (mut held, mut bytes) = (Vec::new(), 0);
        for (block, reserved) in partitions.iter().flat_map(|partition| &partition.blocks) {
            let batch = block.decode(schema)?;
            bytes += block.memory();
            let hold: Hold = vec![Arc::clone(reserved)];
            if let Some(ledger) = ledger {
                ledger.adopt(batch.columns(), reserved);
            }
            held.push((batch, Arc::new(hold)));
        }
        Ok(Relation::of_batches(Arc::clone(schema), held, bytes))
    }
}

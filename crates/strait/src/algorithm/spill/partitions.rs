//! The partitions of both sides: in memory as encoded blocks, or on disk.
//!
//! ```text
//!  a chunk of a side ──► row ids per partition ──► gathered ──► encoded block ──┬──► stays in memory
//!                        (top bits of the mixed key word)                       └──► appended to a file
//! ```
//!
//! A block in memory has the same form as on disk. So a partition moves to disk without being encoded again, and its
//! reservation is exactly as large as its blocks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow::array::{RecordBatch, RecordBatchOptions};
use arrow::datatypes::SchemaRef;

use super::encoded::encode_reserved;
use crate::error::{Error, Result};
use crate::input::Relation;
use crate::key::KeyPlan;
use crate::materialise::{Chosen, Columns};
use crate::memory::{Budget, Hold, Ledger, Reservation};
use crate::options::Side;
use crate::plan::{ASSIGNED_BYTES_PER_ROW, SpillRules, SpilledSize};
use crate::schedule::lock;
use crate::spill::{Block, SpillTarget, SpilledRows};
use crate::word::{KeyWord, Width};

/// The purpose of the memory that partitioning takes.
const PARTITIONING: &str = "partitioning rows for the disk";

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
    /// The rows that are not in a block yet; `None` until the rows have been assigned to partitions.
    left: Option<Assigned>,
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
    pub(super) fn new(side: Side, rows: Relation) -> Work {
        Work { side, rows, left: None }
    }
}

impl Partitions {
    pub(super) fn new(
        (keys, bits): (KeyPlan, u32),
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

    /// Encodes the rows of a chunk as blocks of their partitions. If `keeps` is true for a partition, its rows stay in
    /// `work` for [`take_kept`](Partitions::take_kept). Memory is reserved in `budget`. If it is refused, the remaining
    /// rows stay in `work`, and the caller may call this again.
    pub(super) fn divide(
        &self,
        work: &mut Work,
        budget: &Arc<Budget>,
        keeps: impl Fn(usize) -> bool,
    ) -> Result<()> {
        if work.left.is_none() {
            let reserved =
                budget.reserve(work.rows.rows() * ASSIGNED_BYTES_PER_ROW, PARTITIONING)?;
            work.left = Some(self.assign(work.side, &work.rows, reserved, keeps)?);
        }
        let Some(left) = &mut work.left else { return Ok(()) };
        let columns = Columns::of_chunk(&work.rows, 0);
        while let Some((partition, mut rows)) = left.rows.pop() {
            match self.encode(work.side, &columns, &rows, budget) {
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
        let columns = Columns::of_chunk(&work.rows, 0);
        let mut len = left.kept.len();
        loop {
            let rows = &left.kept[left.kept.len() - len..];
            match self.gather(work.side, &columns, rows, budget) {
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
        keeps: impl Fn(usize) -> bool,
    ) -> Result<Assigned> {
        let mut assigned: Vec<Vec<u64>> = vec![Vec::new(); self.count()];
        match self.keys.width() {
            Width::W32 => self.assign_by::<u32>(side, rows, &mut assigned)?,
            Width::W64 => self.assign_by::<u64>(side, rows, &mut assigned)?,
        }
        let (mut kept, mut others) = (Vec::new(), Vec::new());
        for (partition, mut rows) in assigned.into_iter().enumerate() {
            match keeps(partition) {
                true => kept.append(&mut rows),
                false if rows.is_empty() => {}
                false => others.push((partition, rows)),
            }
        }
        // The kept rows get the order of the input, so that rows are read from front to back.
        kept.sort_unstable();
        Ok(Assigned { kept, rows: others, _reserved: reserved })
    }

    fn assign_by<K: KeyWord>(
        &self,
        side: Side,
        rows: &Relation,
        assigned: &mut [Vec<u64>],
    ) -> Result<()> {
        let (mixer, mut words) = (self.keys.mixer::<K>(), Vec::<K>::new());
        let shift = K::BITS - self.bits;
        let (mut row, spread) = (0u64, self.spread.fetch_add(rows.rows(), Ordering::Relaxed));
        for batch in rows.batches() {
            let valid = self.keys.words::<K>(side, batch, &mut words)?;
            for (at, word) in words.iter().enumerate() {
                // Rows that cannot match may be in any partition. They are spread evenly, so that no partition grows
                // too large.
                let partition = match valid.as_ref().is_none_or(|valid| valid.is_valid(at)) {
                    true => Some((word.mix(mixer).to_u64() >> shift) as usize),
                    false if self.drops_unmatchable[side as usize] => None,
                    false => Some((spread.wrapping_add(row) % self.count() as u64) as usize),
                };
                if let Some(partition) = partition {
                    assigned[partition].push(row);
                }
                row += 1;
            }
        }
        Ok(())
    }

    /// Gathers rows into a batch. Returns it with the reservation of its memory.
    fn gather(
        &self,
        side: Side,
        columns: &Columns,
        rows: &[u64],
        budget: &Arc<Budget>,
    ) -> Result<(RecordBatch, Reservation)> {
        let schema = &self.schemas[side as usize];
        let picked = columns.pick(Chosen::Ids(rows.to_vec()), false);
        let all = 0..schema.fields().len();
        let bytes = all.clone().map(|column| columns.bytes(column, &picked)).sum::<u64>();
        let reserved = budget.reserve(bytes, PARTITIONING)?;
        let arrays = all.map(|column| columns.gather(column, &picked));
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        let batch = arrays.collect::<Result<Vec<_>, _>>().and_then(|arrays| {
            RecordBatch::try_new_with_options(Arc::clone(schema), arrays, &options)
        });
        let batch = batch.map_err(Error::arrow("gathering the rows of a partition"))?;
        Ok((batch, reserved))
    }

    /// Gathers and encodes rows. Returns the block with the reservation of its memory.
    fn encode(
        &self,
        side: Side,
        columns: &Columns,
        rows: &[u64],
        budget: &Arc<Budget>,
    ) -> Result<(Block, Reservation)> {
        let (batch, reserved) = self.gather(side, columns, rows, budget)?;
        encode_reserved(batch, reserved, PARTITIONING)
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

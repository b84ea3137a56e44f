//! A table in parts: what `no-partition` does if the build rows fit the memory limit, but the table does not.
//!
//! ```text
//!  build rows, in memory ──► words of part 0 ──► table ◄── probe side, streamed ──┐
//!                            words of part 1 ──► table ◄── probe rows on disk ◄───┤ rows of later parts
//!                            words of part 2 ──► table ◄── probe rows on disk ◄───┘
//! ```
//!
//! A *part* has the keys whose mixed words begin with certain bits. Only one part has a table at a time. The first
//! part is as large as memory allows. So if the limit is a little too small, few probe rows go to disk, and no build
//! row does. The hybrid hash join ([`spill`](crate::algorithm::spill)) moves whole partitions of both sides. It takes
//! over if the build rows themselves do not fit, or if there would be too many parts ([`part_of_buckets`]).
//!
//! [`part_of_buckets`]: crate::plan::part_of_buckets

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;

use crate::algorithm::spill::{Joins, SpillTotals, encode_rows};
use crate::context::Context;
use crate::error::Result;
use crate::input::{BufferedSource, Input};
use crate::key::KeyPlan;
use crate::materialise::Columns;
use crate::memory::{Budget, Refused, Reservation};
use crate::options::Side;
use crate::output::{Emitter, fewer};
use crate::partition::Words;
use crate::plan::PART_BUCKETS;
use crate::schedule::lock;
use crate::spill::{SpillTarget, SpilledRows};
use crate::word::{KeyWord, Mixer};

/// Where a join in memory may write probe rows.
#[derive(Clone, Copy)]
pub(crate) struct Overflow<'a> {
    pub(crate) target: &'a Arc<SpillTarget>,
    pub(crate) totals: &'a Arc<SpillTotals>,
    pub(crate) joins: &'a dyn Joins,
}

/// The memory per probe row while rows are assigned to parts: the key word, and two row ids in vectors that grow.
const BYTES_PER_ROW: u64 = 40;

/// Divides keys into buckets.
pub(super) struct Division<K> {
    /// A mixer that differs from the one of the table. So the keys of a part are spread evenly over the table.
    mixer: Mixer<K>,
}

impl<K: KeyWord> Division<K> {
    pub(super) fn new(keys: &KeyPlan) -> Division<K> {
        Division { mixer: Mixer::new(keys.seed().number() ^ 0x7a27_5eed) }
    }

    /// Returns the number of build rows per bucket.
    pub(super) fn histogram(&self, cx: &Context<'_>, words: &Words<'_, K>) -> Result<Vec<u64>> {
        let count = || words.histogram(cx, PART_BUCKETS, |word| bucket(word, self.mixer));
        cx.watch.time("divide build side", count)
    }

    /// Returns whether a word is in one of these buckets.
    pub(super) fn selects(&self, buckets: &Range<usize>, word: K) -> bool {
        buckets.contains(&bucket(word, self.mixer))
    }
}

/// Returns the bucket of a word, by the top bits of the mixed word.
#[inline(always)]
fn bucket<K: KeyWord>(word: K, mixer: Mixer<K>) -> usize {
    (word.mix(mixer).to_u64() >> (K::BITS - PART_BUCKETS.ilog2())) as usize
}

/// The probe rows of one later part. The file exists once a row was written.
pub(super) struct Later {
    buckets: Range<usize>,
    file: Mutex<Option<Arc<SpilledRows>>>,
}

impl Later {
    pub(super) fn new(buckets: Range<usize>) -> Later {
        Later { buckets, file: Mutex::default() }
    }

    /// Returns the part with its probe rows; `None` if it has none. Then none of its build rows has a match.
    pub(super) fn part(&self) -> Option<LaterPart> {
        let rows = lock(&self.file).take()?;
        Some(LaterPart { buckets: self.buckets.clone(), rows, mixed: false })
    }
}

/// A later part that has probe rows on disk.
pub(super) struct LaterPart {
    pub(super) buckets: Range<usize>,
    pub(super) rows: Arc<SpilledRows>,
    /// Whether the file also has rows of other buckets.
    pub(super) mixed: bool,
}

impl LaterPart {
    /// Returns both halves of the buckets. Each half reads all rows of the file.
    pub(super) fn halves(self) -> [LaterPart; 2] {
        let LaterPart { buckets, rows, .. } = self;
        let middle = buckets.start + buckets.len() / 2;
        let half = |buckets| LaterPart { buckets, rows: Arc::clone(&rows), mixed: true };
        [half(buckets.start..middle), half(middle..buckets.end)]
    }
}

impl Overflow<'_> {
    /// Returns a source of the rows in a file.
    pub(super) fn source(
        &self,
        side: Side,
        rows: &Arc<SpilledRows>,
        schema: &SchemaRef,
    ) -> BufferedSource {
        self.joins.source(side, Input::source(rows.source(Arc::clone(schema))))
    }

    /// Returns the file of a later part. Creates it first if there is none.
    fn file(&self, later: &Later) -> Result<Arc<SpilledRows>> {
        let file = &mut *lock(&later.file);
        if let Some(file) = file {
            return Ok(Arc::clone(file));
        }
        let new = Arc::new(SpilledRows::create(self.target)?);
        self.totals.files.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::clone(file.insert(new)))
    }
}

/// One pass over probe rows: those of one part are joined.
pub(super) struct Pass<'a, K> {
    pub(super) division: &'a Division<K>,
    /// The buckets whose keys the table has.
    pub(super) buckets: Range<usize>,
    /// In the first pass, the later parts.
    pub(super) later: &'a [Later],
    /// Whether this is the first pass. It keeps the rows that cannot match because of a null in their key.
    pub(super) first: bool,
    /// Whether the probe rows of this pass may be of other buckets.
    pub(super) mixed: bool,
    /// Whether the join returns probe rows because they have no match, or marks them. Then rows of other parts must
    /// not be probed, because they would seem to have no match.
    pub(super) returns_unmatched: bool,
    pub(super) overflow: Overflow<'a>,
    pub(super) budget: &'a Arc<Budget>,
}

/// The rows of a morsel that a pass joins.
pub(super) enum Taken {
    /// All rows. Rows of other parts may be among them, because they find no match.
    All,
    /// These rows. Rows of other parts find no match either, but must not be returned because of that. The reservation
    /// is the one of the row ids.
    Only(Vec<u64>, Reservation),
}

impl<K: KeyWord> Pass<'_, K> {
    /// Takes the rows of a morsel that belong to this pass. In the first pass, writes the rows of later parts to disk.
    pub(super) fn take(
        &self,
        keys: &KeyPlan,
        side: Side,
        batch: &RecordBatch,
        emitter: &mut Emitter<'_>,
    ) -> Result<Taken> {
        if !self.mixed || !self.first && !self.returns_unmatched {
            return Ok(Taken::All);
        }
        let bytes = batch.num_rows() as u64 * BYTES_PER_ROW;
        let (kept, later, reserved) = emitter.patiently(Refused::Fails, || {
            let reserved = self.budget.reserve(bytes, "the rows of a part of the probe side")?;
            let (kept, later) = self.assign(keys, side, batch)?;
            Ok((kept, later, reserved))
        })?;
        let columns = Columns::of_batch(batch, 0);
        for (later, rows) in self.later.iter().zip(later) {
            if !rows.is_empty() {
                self.write(later, &columns, (batch.schema_ref(), rows), emitter)?;
            }
        }
        match kept.len() == batch.num_rows() || !self.returns_unmatched {
            true => Ok(Taken::All),
            false => Ok(Taken::Only(kept, reserved)),
        }
    }

    /// Returns the rows of this pass, and the rows of each later part.
    fn assign(
        &self,
        keys: &KeyPlan,
        side: Side,
        batch: &RecordBatch,
    ) -> Result<(Vec<u64>, Vec<Vec<u64>>)> {
        let mut words = Vec::new();
        let valid = keys.words::<K>(side, batch, &mut words)?;
        let mut part_of = [usize::MAX; PART_BUCKETS];
        for (number, later) in self.later.iter().enumerate() {
            part_of[later.buckets.clone()].fill(number);
        }
        let (mut kept, mut later) = (Vec::new(), vec![Vec::new(); self.later.len()]);
        for (row, &word) in words.iter().enumerate() {
            if valid.as_ref().is_some_and(|valid| valid.is_null(row)) {
                if self.first {
                    kept.push(row as u64);
                }
                continue;
            }
            let bucket = bucket(word, self.division.mixer);
            if self.buckets.contains(&bucket) {
                kept.push(row as u64);
            } else if let Some(later) = later.get_mut(part_of[bucket]) {
                later.push(row as u64);
            }
        }
        Ok((kept, later))
    }

    /// Writes rows to the file of a later part. If memory is scarce, writes them in several blocks.
    fn write(
        &self,
        later: &Later,
        columns: &Columns,
        (schema, rows): (&SchemaRef, Vec<u64>),
        emitter: &mut Emitter<'_>,
    ) -> Result<()> {
        let totals = self.overflow.totals;
        let file = self.overflow.file(later)?;
        let mut waiting = vec![rows];
        while let Some(mut rows) = waiting.pop() {
            let encoded = emitter.patiently(fewer(rows.len()), || {
                encode_rows(columns, (schema, &rows), self.budget)
            });
            match encoded {
                Ok((block, _reserved)) => {
                    let written = file.append(&block)?;
                    totals.count(&block, written);
                }
                Err(error) if rows.len() > 1 && error.fewer_rows_may_help() => {
                    let half = rows.split_off(rows.len() / 2);
                    waiting.extend([half, rows]);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

//! Encodes an output on the threads that make it.
//!
//! A file is a sequence of blocks, such as row groups. Each thread fills a block of its own in a *lane*, and
//! the thread that completes a block appends it to the file:
//!
//! ```text
//!  worker 0 ── rows ──► lane 0 ── block ──┐
//!  worker 1 ── rows ──► lane 1 ── block ──┴──► file (one at a time)
//! ```
//!
//! If the output is ordered, its rows are cut into blocks in the order in which they come. Any thread encodes
//! a block, and the blocks are appended in their order.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::Builder;

use anyhow::Context;
use arrow::array::RecordBatch;

use super::encode::slice_bytes;
use crate::busy::Step;
use crate::panics::caught;

/// Encodes rows into blocks. One thread uses it at a time.
pub(super) trait Lane: Send {
    /// A block that is encoded completely.
    type Block: Send;

    /// Encodes the rows of a batch. Passes each block to `done` as soon as it is full.
    fn write(
        &mut self,
        batch: &RecordBatch,
        done: &mut dyn FnMut(Self::Block) -> anyhow::Result<()>,
    ) -> anyhow::Result<()>;

    /// Ends the current block. Returns it if it has rows.
    fn close(&mut self) -> anyhow::Result<Option<Self::Block>>;
}

/// The file, or another destination of blocks.
pub(super) trait Tail: Send {
    type Block: Send;

    fn append(&mut self, block: Self::Block) -> anyhow::Result<()>;

    /// Writes the end of the format, and flushes all buffers.
    fn finish(self) -> anyhow::Result<()>;
}

/// An output that several threads write.
pub(super) trait Output: Send + Sync {
    /// Writes rows that may come in any order. Threads may call it at the same time.
    fn write(&self, batch: &RecordBatch) -> anyhow::Result<()>;

    /// Writes rows after all rows that were written before. One thread may call it at a time.
    fn write_in_order(&self, batch: RecordBatch) -> anyhow::Result<()>;

    /// Encodes rows that [`write_in_order`](Output::write_in_order) has put aside.
    fn encode_ordered(&self) -> anyhow::Result<()>;

    /// Writes the rows of a part. The parts of an output are numbered from 0. Threads may write parts at the
    /// same time. They appear in the order of their numbers.
    fn write_part(&self, part: u64, rows: &[RecordBatch]) -> anyhow::Result<()>;

    /// Completes the output. Threads end the blocks of the lanes, and add their time to `encoding`.
    fn finish(self: Box<Self>, encoding: &Step) -> anyhow::Result<()>;
}

/// The lanes of an output, and its file.
pub(super) struct Blocks<L, T: Tail> {
    lanes: Vec<Mutex<L>>,
    /// The lane that the next thread waits for if no lane is free.
    next: AtomicUsize,
    file: Mutex<File<T>>,
    ordered: Mutex<Ordered>,
    /// The rows that ordered output puts aside for a block; none if memory is limited.
    aside_rows: Option<usize>,
}

/// The file, and blocks that wait until the blocks before them are appended.
struct File<T: Tail> {
    tail: T,
    /// The number of the next part.
    next: u64,
    waiting: BTreeMap<u64, Vec<T::Block>>,
}

/// If the rows that are put aside have more bytes than this, a worker encodes a part before it passes its turn.
const ASIDE_BYTES: u64 = 256 << 20;

/// Ordered rows that are not encoded yet.
#[derive(Default)]
struct Ordered {
    /// The rows of the next part.
    rows: Vec<RecordBatch>,
    count: usize,
    /// The number of the next part.
    next: u64,
    /// Parts that no thread has begun to encode.
    parts: VecDeque<(u64, Vec<RecordBatch>)>,
    /// The bytes of all these rows.
    bytes: u64,
}

impl<L: Lane, T: Tail<Block = L::Block>> Blocks<L, T> {
    /// Without a memory limit, ordered rows are put aside until there are `aside_rows`. There must be at
    /// least one lane.
    pub(super) fn new(lanes: Vec<L>, tail: T, aside_rows: Option<usize>) -> Self {
        Blocks {
            lanes: lanes.into_iter().map(Mutex::new).collect(),
            next: AtomicUsize::new(0),
            file: Mutex::new(File { tail, next: 0, waiting: BTreeMap::new() }),
            ordered: Mutex::default(),
            aside_rows,
        }
    }

    /// Returns the first lane that is free. So a small output uses one lane, and has one block.
    fn free_lane(&self) -> anyhow::Result<MutexGuard<'_, L>> {
        for lane in &self.lanes {
            match lane.try_lock() {
                Ok(lane) => return Ok(lane),
                Err(TryLockError::Poisoned(lane)) => return Ok(lane.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.lanes.len().max(1);
        self.lanes.get(next).map(lock).context("the output has no lane")
    }

    fn append(&self, block: L::Block) -> anyhow::Result<()> {
        lock(&self.file).tail.append(block)
    }

    /// Appends the blocks of a part, and parts that waited for it.
    fn append_part(&self, part: u64, blocks: Vec<L::Block>) -> anyhow::Result<()> {
        let file = &mut *lock(&self.file);
        file.waiting.insert(part, blocks);
        while let Some(blocks) = file.waiting.remove(&file.next) {
            file.next += 1;
            blocks.into_iter().try_for_each(|block| file.tail.append(block))?;
        }
        Ok(())
    }

    /// Encodes one part that is put aside. Returns false if there is none.
    fn encode_one(&self) -> anyhow::Result<bool> {
        let part = {
            let mut ordered = lock(&self.ordered);
            let part = ordered.parts.pop_front();
            let bytes = part.iter().flat_map(|(_, rows)| rows).map(slice_bytes).sum();
            ordered.bytes = ordered.bytes.saturating_sub(bytes);
            part
        };
        let Some((number, rows)) = part else { return Ok(false) };
        self.write_part(number, &rows)?;
        Ok(true)
    }
}

impl<L: Lane, T: Tail<Block = L::Block>> Output for Blocks<L, T> {
    fn write(&self, batch: &RecordBatch) -> anyhow::Result<()> {
        self.free_lane()?.write(batch, &mut |block| self.append(block))
    }

    fn write_in_order(&self, batch: RecordBatch) -> anyhow::Result<()> {
        let Some(aside_rows) = self.aside_rows else {
            // No other thread writes, so this is always the same lane.
            return self.write(&batch);
        };
        let (parts, bytes) = {
            let mut ordered = lock(&self.ordered);
            ordered.add(&batch, aside_rows);
            (ordered.parts.len(), ordered.bytes)
        };
        // Each worker can encode one part after it has passed its turn. More parts would only take memory.
        match parts > self.lanes.len() || bytes > ASIDE_BYTES {
            true => self.encode_one().map(drop),
            false => Ok(()),
        }
    }

    fn encode_ordered(&self) -> anyhow::Result<()> {
        while self.encode_one()? {}
        Ok(())
    }

    fn write_part(&self, part: u64, rows: &[RecordBatch]) -> anyhow::Result<()> {
        let mut blocks = Vec::new();
        {
            let mut lane = self.free_lane()?;
            let mut keep = |block| {
                blocks.push(block);
                Ok(())
            };
            rows.iter().try_for_each(|batch| lane.write(batch, &mut keep))?;
            lane.close()?.map_or(Ok(()), keep)?;
        }
        self.append_part(part, blocks)
    }

    fn finish(self: Box<Self>, encoding: &Step) -> anyhow::Result<()> {
        lock(&self.ordered).end_part();
        self.encode_ordered()?;
        let Blocks { lanes, file, .. } = *self;
        let File { mut tail, .. } = file.into_inner().unwrap_or_else(PoisonError::into_inner);
        close_all(&lanes, encoding, |block| tail.append(block))?;
        tail.finish()
    }
}

/// Ends the blocks of all lanes at the same time. Passes them to `append`, in the order of the lanes.
fn close_all<L: Lane>(
    lanes: &[Mutex<L>],
    encoding: &Step,
    mut append: impl FnMut(L::Block) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let Some((first, others)) = lanes.split_first() else { return Ok(()) };
    let close = |lane: &Mutex<L>| lock(lane).close();
    std::thread::scope(|scope| {
        // The workers of the join have nothing to do now. So no more threads run than before.
        let thread = |lane| {
            let close = move || encoding.time(|| caught(|| close(lane)));
            (lane, Builder::new().spawn_scoped(scope, close))
        };
        let threads: Vec<_> = others.iter().map(thread).collect();
        close(first)?.map_or(Ok(()), &mut append)?;
        for (lane, thread) in threads {
            let closed = match thread {
                Ok(thread) => {
                    let closed = thread.join().unwrap_or_else(|_| Err("a thread failed".into()));
                    closed.map_err(anyhow::Error::msg)??
                }
                // The system has no more threads.
                Err(_) => close(lane)?,
            };
            closed.map_or(Ok(()), &mut append)?;
        }
        Ok(())
    })
}

impl Ordered {
    /// Adds rows. A part ends when it has `most` rows.
    fn add(&mut self, batch: &RecordBatch, most: usize) {
        let mut start = 0;
        while start < batch.num_rows() {
            let rows = (batch.num_rows() - start).min(most.max(1) - self.count);
            let some = batch.slice(start, rows);
            self.bytes += slice_bytes(&some);
            self.rows.push(some);
            self.count += rows;
            start += rows;
            if self.count >= most {
                self.end_part();
            }
        }
    }

    fn end_part(&mut self) {
        if !self.rows.is_empty() {
            self.parts.push_back((self.next, std::mem::take(&mut self.rows)));
            self.next += 1;
            self.count = 0;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{AsArray, Int64Array};
    use arrow::datatypes::Int64Type;
    use std::sync::Arc;

    /// Makes blocks of four rows.
    #[derive(Default)]
    struct Four(Vec<i64>);

    impl Lane for Four {
        type Block = Vec<i64>;

        fn write(
            &mut self,
            batch: &RecordBatch,
            done: &mut dyn FnMut(Vec<i64>) -> anyhow::Result<()>,
        ) -> anyhow::Result<()> {
            for &value in batch.column(0).as_primitive::<Int64Type>().values() {
                self.0.push(value);
                if self.0.len() == 4 {
                    done(std::mem::take(&mut self.0))?;
                }
            }
            Ok(())
        }

        fn close(&mut self) -> anyhow::Result<Option<Vec<i64>>> {
            Ok(Some(std::mem::take(&mut self.0)).filter(|block| !block.is_empty()))
        }
    }

    #[derive(Clone, Default)]
    struct Collected(Arc<Mutex<Vec<Vec<i64>>>>);

    impl Tail for Collected {
        type Block = Vec<i64>;

        fn append(&mut self, block: Vec<i64>) -> anyhow::Result<()> {
            lock(&self.0).push(block);
            Ok(())
        }

        fn finish(self) -> anyhow::Result<()> {
            Ok(())
        }
    }

    fn batch(values: std::ops::Range<i64>) -> RecordBatch {
        let column = Int64Array::from_iter_values(values);
        RecordBatch::try_from_iter([("v", Arc::new(column) as _)]).unwrap()
    }

    fn output(lanes: usize, aside: Option<usize>) -> (Box<Blocks<Four, Collected>>, Collected) {
        let tail = Collected::default();
        let lanes = (0..lanes).map(|_| Four::default()).collect();
        (Box::new(Blocks::new(lanes, tail.clone(), aside)), tail)
    }

    #[test]
    fn one_writer_fills_one_block_after_the_other() {
        let (output, tail) = output(3, None);
        (0..5).try_for_each(|i| output.write(&batch(i * 3..i * 3 + 3))).unwrap();
        output.finish(&Step::default()).unwrap();
        let lengths: Vec<usize> = lock(&tail.0).iter().map(Vec::len).collect();
        assert_eq!(lengths, [4, 4, 4, 3]);
    }

    #[test]
    fn many_writers_lose_nothing() {
        for lanes in [1, 2, 8] {
            let (output, tail) = output(lanes, None);
            std::thread::scope(|scope| {
                for thread in 0..8_i64 {
                    let output = &output;
                    scope.spawn(move || {
                        for i in 0..100 {
                            let start = (thread * 100 + i) * 7;
                            output.write(&batch(start..start + 7)).unwrap();
                        }
                    });
                }
            });
            output.finish(&Step::default()).unwrap();
            let mut rows: Vec<i64> = lock(&tail.0).concat();
            rows.sort_unstable();
            assert_eq!(rows, (0..5600).collect::<Vec<_>>());
        }
    }

    #[test]
    fn ordered_rows_and_parts_stay_in_order() {
        for aside in [None, Some(1), Some(10)] {
            let (output, tail) = output(2, aside);
            std::thread::scope(|scope| {
                // Another thread encodes what was put aside.
                let helper = scope.spawn(|| {
                    (0..200).try_for_each(|_| {
                        std::thread::yield_now();
                        output.encode_ordered()
                    })
                });
                (0..300).try_for_each(|i| output.write_in_order(batch(i * 3..i * 3 + 3))).unwrap();
                helper.join().unwrap().unwrap();
            });
            output.finish(&Step::default()).unwrap();
            assert_eq!(lock(&tail.0).concat(), (0..900).collect::<Vec<_>>());
        }
        let (output, tail) = output(2, None);
        for part in [2, 0, 3, 1] {
            let start = part * 10;
            output
                .write_part(part as u64, &[batch(start..start + 6), batch(start + 6..start + 10)])
                .unwrap();
        }
        output.finish(&Step::default()).unwrap();
        assert_eq!(lock(&tail.0).concat(), (0..40).collect::<Vec<_>>());
    }
}

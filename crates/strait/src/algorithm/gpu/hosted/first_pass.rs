//! Runs only the first pass of the Triton join: it partitions a table from host memory into host memory, and
//! joins nothing (000, figure 18). `bench beyond --study fanout` measures it.
//!
//! After the clock has stopped, every written tuple is checked.

use std::sync::Mutex;
use std::time::Instant;

use super::super::host_partitions::HostPartitions;
use super::super::{Session, triton};
use super::Hosted;
use crate::device::abi::MAX_PARTITIONS;
use crate::error::{Error, Result};
use crate::gpu_options::{Partitioner, Transfer};
use crate::partition::{RowId, Tuple, top_bits};
use crate::schedule::{Workers, lock};
use crate::transfer::{HostColumn, HostSide, Place, Run};
use crate::word::Width;
use crate::word::{KeyWord, Mixer};

/// Rows that a worker checks at a time.
const PIECE: usize = 1 << 20;

/// How a table is partitioned.
#[derive(Debug, Clone, Copy)]
pub struct FirstPass {
    /// Who writes to host memory; must be a [partitioner that can](Partitioner::to_host).
    pub partitioner: Partitioner,
    /// There are `1 << bits` partitions.
    pub bits: u32,
    /// Whether the CPU first counts the tuples of each partition (not timed). If so, kernels read pinned
    /// columns over the link, and each partition lies in one piece. If not, each chunk is copied to the GPU,
    /// counted there, and partitioned separately.
    pub counted: bool,
}

/// The measurements of one run.
#[derive(Debug, Clone, Copy)]
pub struct Divided {
    /// The time from columns in host memory to the last tuple in host memory.
    pub seconds: f64,
    /// The bytes of all tuples.
    pub bytes: u64,
    /// Bytes that crossed the link: to the GPU, and back.
    pub crossed: [u64; 2],
}

impl Hosted {
    /// Partitions the probe table once, keys and payload. Returns an error if a tuple is lost, changed or in
    /// the wrong partition.
    pub fn partition(&self, how: FirstPass) -> Result<Divided> {
        let FirstPass { partitioner, bits, counted } = how;
        if !partitioner.to_host() {
            let what = "does not write to host memory; give standard, linear, shared, hierarchical";
            return Err(Error::Setting(format!("{} {what} or dma", partitioner.name())));
        }
        if !(1..=MAX_PARTITIONS.ilog2()).contains(&bits) {
            let what = format!("there are 2 to {MAX_PARTITIONS} partitions");
            return Err(Error::Setting(format!("{what}, not two to the power of {bits}")));
        }
        let [_, probe] = &self.tables;
        let side = probe.side(true)?;
        let session = Session::new(&*self.device, self.word)?;
        let crossing = self.crossing(&session, Transfer::Auto);
        let partition_side = triton::partition_side(&crossing, &side, partitioner, bits, counted)?;
        let started = Instant::now();
        let partitioned = partition_side()?;
        for stream in [session.compute, session.copies, session.back] {
            session.device.synchronize(stream)?;
        }
        let seconds = started.elapsed().as_secs_f64();
        match self.word {
            Width::W32 => check::<u32>(&session, &self.workers, &side, &partitioned)?,
            Width::W64 => check::<u64>(&session, &self.workers, &side, &partitioned)?,
        }
        let bytes = probe.rows * self.word.tuple();
        Ok(Divided { seconds, bytes, crossed: session.crossed() })
    }
}

/// A checksum over rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Sum {
    rows: u64,
    /// The sums of mixed keys, of values, and of a product of both, modulo 2^64.
    keys: u64,
    values: u64,
    pairs: u64,
    /// The number of rows in a wrong partition.
    misplaced: u64,
}

impl Sum {
    fn add(&mut self, key: u64, value: u64, misplaced: bool) {
        let (pairs, misplaced) = (key.wrapping_mul(value | 1), u64::from(misplaced));
        self.and(Sum { rows: 1, keys: key, values: value, pairs, misplaced });
    }

    fn and(&mut self, other: Sum) {
        self.rows += other.rows;
        self.keys = self.keys.wrapping_add(other.keys);
        self.values = self.values.wrapping_add(other.values);
        self.pairs = self.pairs.wrapping_add(other.pairs);
        self.misplaced += other.misplaced;
    }
}

/// Compares partitions with the original columns. All writes to the partitions must be finished.
fn check<K: KeyWord + RowId>(
    session: &Session<'_>,
    workers: &Workers,
    side: &HostSide,
    partitioned: &HostPartitions,
) -> Result<()> {
    let wanted = of_columns::<K>(workers, side, session.mixer())?;
    let found = of_partitions::<K>(workers, partitioned)?;
    if wanted != found {
        let what = "the partitions are wrong";
        return Err(Error::Worker(format!("{what}: they come to {found:?}, not {wanted:?}")));
    }
    Ok(())
}

fn of_columns<K: KeyWord + RowId>(
    workers: &Workers,
    side: &HostSide,
    mixer: Mixer<K>,
) -> Result<Sum> {
    // SAFETY: the creator of the columns keeps their memory alive.
    let keys: &[K] = unsafe { side.keys.words(0..side.rows)? };
    let values: &[K] = match &side.values {
        // SAFETY: as above.
        Some(values) => unsafe { values.words(0..side.rows)? },
        None => return Err(Error::Worker("a side to be checked has no values".to_string())),
    };
    let pieces: Vec<_> = keys.chunks(PIECE).zip(values.chunks(PIECE)).collect();
    total(workers, &pieces, |(keys, values)| {
        let mut sum = Sum::default();
        for (key, &value) in keys.iter().zip(*values) {
            sum.add(KeyWord::to_u64(key.mix(mixer)), RowId::to_u64(value), false);
        }
        sum
    })
}

fn of_partitions<K: KeyWord + RowId>(
    workers: &Workers,
    partitioned: &HostPartitions,
) -> Result<Sum> {
    let mut pieces = Vec::new();
    for (partition, runs) in partitioned.runs.iter().enumerate() {
        for run in runs {
            let tuples = tuples::<K>(run)?.chunks(PIECE);
            pieces.extend(tuples.map(|tuples| (partition, tuples)));
        }
    }
    total(workers, &pieces, |&(partition, tuples)| {
        let mut sum = Sum::default();
        for tuple in tuples {
            let misplaced = top_bits(tuple.key, partitioned.bits) != partition;
            sum.add(KeyWord::to_u64(tuple.key), RowId::to_u64(tuple.row), misplaced);
        }
        sum
    })
}

/// Returns the tuples of a run in host memory.
fn tuples<K: KeyWord + RowId>(run: &Run) -> Result<&[Tuple<K, K>]> {
    let Place::Host(pinned, at) = &run.place else {
        return Err(Error::Worker("a partition does not lie in host memory".to_string()));
    };
    let bytes = run.rows * size_of::<Tuple<K, K>>() as u64;
    let column = HostColumn::pinned(pinned, *at, bytes);
    // SAFETY: the run keeps the memory alive, and `check` requires that all writes are finished.
    unsafe { column.words(0..run.rows) }
}

/// Adds up the sums of all pieces.
fn total<T: Sync>(workers: &Workers, pieces: &[T], of: impl Fn(&T) -> Sum + Sync) -> Result<Sum> {
    let sum = Mutex::new(Sum::default());
    workers.each(pieces.len(), |piece, _| {
        let part = of(&pieces[piece]);
        lock(&sum).and(part);
        Ok(())
    })?;
    Ok(sum.into_inner().unwrap_or_else(|e| e.into_inner()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};

    use super::*;
    use crate::algorithm::gpu::hosted::HostPlacement;

    const ROWS: i32 = 3000;

    fn table(width: u8) -> RecordBatch {
        let keys = (0..ROWS).map(|i| i.wrapping_mul(0x9e37_79b9u32 as i32));
        let columns: [ArrayRef; 2] = match width {
            4 => [
                Arc::new(Int32Array::from_iter_values(keys)),
                Arc::new(Int32Array::from_iter_values(0..ROWS)),
            ],
            _ => [
                Arc::new(Int64Array::from_iter_values(keys.map(i64::from))),
                Arc::new(Int64Array::from_iter_values((0..ROWS).map(i64::from))),
            ],
        };
        let [keys, values] = columns;
        RecordBatch::try_from_iter([("key", keys), ("value", values)]).unwrap()
    }

    fn hosted(seed: u64, width: u8, placement: HostPlacement) -> Hosted {
        let table = table(width);
        let batches = std::slice::from_ref(&table);
        Hosted::simulate(seed, 256 << 10, placement, [batches, batches]).unwrap()
    }

    #[test]
    fn every_partitioner_keeps_all_tuples() {
        for (width, placement) in [(8, HostPlacement::Pinned), (4, HostPlacement::Pageable)] {
            let hosted = hosted(7, width, placement);
            for partitioner in Partitioner::ALL.into_iter().filter(|p| p.to_host()) {
                for (bits, counted) in [(1, true), (1, false), (4, true), (8, false), (11, true)] {
                    if counted && partitioner == Partitioner::Dma {
                        continue;
                    }
                    let how = FirstPass { partitioner, bits, counted };
                    let partitioned =
                        hosted.partition(how).unwrap_or_else(|e| panic!("{how:?}: {e}"));
                    let bytes = ROWS as u64 * 2 * u64::from(width);
                    assert_eq!(partitioned.bytes, bytes, "{how:?}");
                    assert_eq!(partitioned.crossed[1], bytes, "{how:?}");
                    assert!(partitioned.crossed[0] > 0, "{how:?}");
                }
            }
        }
    }

    #[test]
    fn what_cannot_be_is_said() {
        let hosted = hosted(1, 8, HostPlacement::Pinned);
        let refused = |partitioner, bits, counted| {
            hosted.partition(FirstPass { partitioner, bits, counted }).unwrap_err().to_string()
        };
        assert!(refused(Partitioner::LookBack, 4, false).contains("does not write to host"));
        assert!(refused(Partitioner::Shared, 12, false).contains("2 to 2048"));
        assert!(refused(Partitioner::Shared, 0, false).contains("2 to 2048"));
        assert!(refused(Partitioner::Dma, 4, true).contains("needs no histogram"));
    }

    #[test]
    fn wrong_partitions_are_noticed() {
        let hosted = hosted(2, 8, HostPlacement::Pinned);
        let side = hosted.tables[1].side(true).unwrap();
        let session = Session::new(&*hosted.device, hosted.word).unwrap();
        let crossing = hosted.crossing(&session, Transfer::Auto);
        let spoilt = |spoil: &dyn Fn(&mut HostPartitions)| {
            let how = Partitioner::Hierarchical;
            let mut partitioned =
                triton::partition_side(&crossing, &side, how, 3, false).unwrap()().unwrap();
            session.device.synchronize(session.compute).unwrap();
            spoil(&mut partitioned);
            check::<u64>(&session, &hosted.workers, &side, &partitioned)
        };
        assert!(spoilt(&|_| ()).is_ok());
        assert!(spoilt(&|partitioned| partitioned.runs.swap(1, 2)).is_err());
        assert!(spoilt(&|partitioned| partitioned.runs[3].truncate(0)).is_err());
        assert!(spoilt(&|partitioned| partitioned.runs[4][0].rows -= 1).is_err());
        let first = |partitioned: &HostPartitions, at: usize| {
            let Place::Host(pinned, start) = &partitioned.runs[0][0].place else {
                panic!("a device")
            };
            // SAFETY: the device has finished, and nobody else reads the memory now.
            let bytes = unsafe { pinned.bytes_mut() };
            bytes[start + at] ^= 1;
        };
        for at in [0, 8] {
            assert!(spoilt(&|partitioned| first(partitioned, at)).is_err(), "byte {at}");
        }
    }
}

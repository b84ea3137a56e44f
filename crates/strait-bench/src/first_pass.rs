//! Checks every tuple that the first pass of the Triton join wrote. `bench beyond --study fanout` measures
//! this pass.

use strait::internal::{HostTable, PartitionedTable, WordSize};
use strait::{Error, Result};

use crate::check::{PIECE, cores, in_parallel, words};

/// The measurements of one partitioning pass.
#[derive(Debug, Clone, Copy)]
pub struct MeasuredPass {
    /// The time from columns in host memory to the last tuple in host memory.
    pub seconds: f64,
    /// The bytes of all tuples.
    pub bytes: u64,
    /// Bytes that crossed the link: to the GPU, and back.
    pub crossed: [u64; 2],
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
        *self = self.and(Sum { rows: 1, keys: key, values: value, pairs, misplaced });
    }

    fn and(self, other: Sum) -> Sum {
        Sum {
            rows: self.rows + other.rows,
            keys: self.keys.wrapping_add(other.keys),
            values: self.values.wrapping_add(other.values),
            pairs: self.pairs.wrapping_add(other.pairs),
            misplaced: self.misplaced + other.misplaced,
        }
    }
}

/// Compares partitions with the table that was partitioned by `bits` bits.
pub(crate) fn check(table: &HostTable, partitioned: &PartitionedTable, bits: u32) -> Result<()> {
    let wanted = of_table(table, partitioned)?;
    compare(wanted, &partitioned.runs()?, table.word(), bits)
}

/// Compares runs of tuples, each with the number of its partition, with the checksum of the table.
fn compare(wanted: Sum, runs: &[(usize, &[u8])], word: WordSize, bits: u32) -> Result<()> {
    let cut = |&(partition, tuples)| <[u8]>::chunks(tuples, PIECE).map(move |t| (partition, t));
    let pieces: Vec<(usize, &[u8])> = runs.iter().flat_map(cut).collect();
    let sums = in_parallel(&pieces, cores(), |&(partition, tuples)| match word {
        WordSize::Four => of_tuples::<4>(tuples, partition, bits),
        WordSize::Eight => of_tuples::<8>(tuples, partition, bits),
    })?;
    let found = sums.into_iter().fold(Sum::default(), Sum::and);
    if wanted != found {
        let what = "the partitions are wrong";
        return Err(Error::Internal {
            what: format!("{what}: they come to {found:?}, not {wanted:?}"),
        });
    }
    Ok(())
}

/// Returns the checksum of tuples of words of `N` bytes, which should belong to a partition.
fn of_tuples<const N: usize>(tuples: &[u8], partition: usize, bits: u32) -> Sum {
    let mut sum = Sum::default();
    let mut all = words::<N>(tuples);
    while let (Some(key), Some(value)) = (all.next(), all.next()) {
        let misplaced = key >> (8 * N as u32 - bits) != partition as u64;
        sum.add(key, value, misplaced);
    }
    sum
}

/// Returns the checksum of a table, with its keys mixed as in the partitions.
fn of_table(table: &HostTable, partitioned: &PartitionedTable) -> Result<Sum> {
    let (keys, values) = (table.key_bytes()?.chunks(PIECE), table.payload_bytes()?.chunks(PIECE));
    let pieces: Vec<(&[u8], &[u8])> = keys.zip(values).collect();
    let sums = in_parallel(&pieces, cores(), |&(keys, values)| match table.word() {
        WordSize::Four => of_columns(words::<4>(keys).zip(words::<4>(values)), partitioned),
        WordSize::Eight => of_columns(words::<8>(keys).zip(words::<8>(values)), partitioned),
    })?;
    Ok(sums.into_iter().fold(Sum::default(), Sum::and))
}

fn of_columns(rows: impl Iterator<Item = (u64, u64)>, partitioned: &PartitionedTable) -> Sum {
    let mut sum = Sum::default();
    rows.for_each(|(key, value)| sum.add(partitioned.mixed(key), value, false));
    sum
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch};
    use strait::Partitioner;
    use strait::internal::{FirstPass, HostPlacement, OpenGpu, partition};

    use super::*;
    use crate::HostTables;

    const ROWS: i32 = 3000;
    const GPU_MEMORY: u64 = 256 << 10;

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

    fn tables(seed: u64, width: u8, placement: HostPlacement) -> HostTables {
        let table = table(width);
        let batches = std::slice::from_ref(&table);
        HostTables::simulate(seed, GPU_MEMORY, placement, [batches, batches]).unwrap()
    }

    #[test]
    fn every_partitioner_keeps_all_tuples() {
        for (width, placement) in [(8, HostPlacement::Pinned), (4, HostPlacement::Pageable)] {
            let tables = tables(7, width, placement);
            for partitioner in Partitioner::ALL.into_iter().filter(|p| p.to_host()) {
                for (bits, counted) in [(1, true), (1, false), (4, true), (8, false), (11, true)] {
                    if counted && partitioner == Partitioner::Dma {
                        continue;
                    }
                    let how = FirstPass { partitioner, bits, counted };
                    let measured = tables.partition(how).unwrap_or_else(|e| panic!("{how:?}: {e}"));
                    let bytes = ROWS as u64 * 2 * u64::from(width);
                    assert_eq!(measured.bytes, bytes, "{how:?}");
                    assert_eq!(measured.crossed[1], bytes, "{how:?}");
                    assert!(measured.crossed[0] > 0, "{how:?}");
                }
            }
        }
    }

    #[test]
    fn an_impossible_pass_is_refused() {
        let tables = tables(1, 8, HostPlacement::Pinned);
        let refused = |partitioner, bits, counted| {
            tables.partition(FirstPass { partitioner, bits, counted }).unwrap_err().to_string()
        };
        assert!(refused(Partitioner::LookBack, 4, false).contains("does not write to host"));
        assert!(refused(Partitioner::Shared, 12, false).contains("2 to 2048"));
        assert!(refused(Partitioner::Shared, 0, false).contains("2 to 2048"));
        assert!(refused(Partitioner::Dma, 4, true).contains("needs no histogram"));
    }

    #[test]
    fn wrong_partitions_are_noticed() {
        for (width, word) in [(8, WordSize::Eight), (4, WordSize::Four)] {
            let batch = table(width);
            let gpu = OpenGpu::simulated(2, GPU_MEMORY);
            let placement = HostPlacement::Pinned;
            let table =
                HostTable::load(&gpu, placement, word, std::slice::from_ref(&batch)).unwrap();
            let how = FirstPass { partitioner: Partitioner::Hierarchical, bits: 3, counted: false };
            let partitioned = partition(&table, how).unwrap();
            check(&table, &partitioned, 3).unwrap();
            let wanted = of_table(&table, &partitioned).unwrap();
            type Runs = Vec<(usize, Vec<u8>)>;
            let spoilt = |spoil: &dyn Fn(&mut Runs)| {
                let runs = partitioned.runs().unwrap();
                let mut runs: Runs = runs.iter().map(|(p, t)| (*p, t.to_vec())).collect();
                spoil(&mut runs);
                let runs: Vec<(usize, &[u8])> = runs.iter().map(|(p, t)| (*p, &**t)).collect();
                compare(wanted, &runs, word, 3)
            };
            assert!(spoilt(&|_| ()).is_ok());
            let swap = |runs: &mut Runs| {
                runs.iter_mut().filter(|(p, _)| *p == 1).for_each(|(p, _)| *p = 2);
            };
            assert!(spoilt(&swap).is_err(), "tuples in another partition");
            assert!(spoilt(&|runs| runs.retain(|(p, _)| *p != 3)).is_err(), "a lost partition");
            let shorten = |runs: &mut Runs| {
                let tuples = &mut runs[0].1;
                tuples.truncate(tuples.len() - 2 * usize::from(width));
            };
            assert!(spoilt(&shorten).is_err(), "a lost tuple");
            for at in [0, usize::from(width)] {
                assert!(spoilt(&|runs| runs[0].1[at] ^= 1).is_err(), "byte {at}");
            }
        }
    }
}

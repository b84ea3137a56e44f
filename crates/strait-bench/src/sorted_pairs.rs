//! Sorts of pairs in GPU memory. `bench gpu` measures them beside the joins.

use arrow::array::RecordBatch;
use strait::gpu::Gpu;
use strait::internal::{Block, BlockReceiver, GpuTable, OpenGpu, Values, WordSize, sort};
use strait::{Error, Result};

use crate::MeasuredRun;
use crate::check::words;
use crate::gpu_tables::SIMULATED_MEMORY;

/// Pairs of 64-bit keys and values in GPU memory, to be sorted by key.
pub struct SortedPairs {
    pairs: GpuTable,
}

impl SortedPairs {
    /// Copies pairs to a GPU.
    pub fn load(gpu: &Gpu, gpu_memory: Option<u64>, pairs: &RecordBatch) -> Result<SortedPairs> {
        SortedPairs::on(&OpenGpu::open(gpu, gpu_memory, 1)?, pairs)
    }

    /// Copies pairs to a simulated GPU. The seed determines the order in which its work runs.
    pub fn simulate(seed: u64, pairs: &RecordBatch) -> Result<SortedPairs> {
        SortedPairs::on(&OpenGpu::simulated(seed, SIMULATED_MEMORY), pairs)
    }

    fn on(gpu: &OpenGpu, pairs: &RecordBatch) -> Result<SortedPairs> {
        let batches = std::slice::from_ref(pairs);
        let pairs = GpuTable::load(gpu, WordSize::of(&[batches])?, batches)?;
        Ok(SortedPairs { pairs })
    }

    /// Sorts the pairs once, as unsigned numbers, from columns into columns, by all bits in which the keys
    /// differ. With `check`, returns an error unless the output has the same pairs as the input, in order.
    pub fn run(&self, check: bool) -> Result<MeasuredRun> {
        let mut fetched = Fetched { check, ..Fetched::default() };
        let usage = sort(&self.pairs, &mut fetched)?;
        if check {
            let mut before = Fetched::default();
            self.pairs.read_keys(&mut |values| keep(&mut before.keys, values))?;
            self.pairs.read_payload(0, &mut |values| keep(&mut before.values, values))?;
            if !fetched.keys.is_sorted() || fetched.sum() != before.sum() {
                return Err(Error::Internal {
                    what: "wrong answer: the pairs are not sorted".to_string(),
                });
            }
        }
        Ok(MeasuredRun {
            rows: self.pairs.rows(),
            seconds: usage.seconds,
            stages: usage.stages,
            peak_memory: usage.peak_memory,
            ..MeasuredRun::default()
        })
    }
}

/// Pairs in host memory.
#[derive(Default)]
struct Fetched {
    check: bool,
    keys: Vec<u64>,
    values: Vec<u64>,
}

impl Fetched {
    /// Returns the number of pairs, and a sum over hashes of the pairs. The order of the pairs does not matter.
    fn sum(&self) -> (usize, u64) {
        let hash = |x: u64| {
            let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            x ^ (x >> 31)
        };
        let hashed = self.keys.iter().zip(&self.values).map(|(k, v)| hash(k ^ hash(!v)));
        (self.keys.len(), hashed.fold(0, u64::wrapping_add))
    }
}

impl BlockReceiver for Fetched {
    fn block(&mut self, block: &Block<'_>) -> Result<()> {
        if !self.check {
            return Ok(());
        }
        block.read_keys(&mut |values| keep(&mut self.keys, values))?;
        block.read_column(0, &mut |values| keep(&mut self.values, values))
    }
}

fn keep(to: &mut Vec<u64>, values: Values<'_>) -> Result<()> {
    to.extend(words::<8>(values.bytes));
    Ok(())
}

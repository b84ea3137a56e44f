//! Runs only the first pass of the Triton join: it partitions a table from host memory into host memory, and
//! joins nothing (000, figure 18).

use std::time::Instant;

use super::{HostPlacement, HostTable, OpenGpu, WordSize, mixers};
use crate::algorithm::gpu::{HostPartitions, partition_side};
use crate::device::abi::MAX_PARTITIONS;
use crate::error::{Error, Result};
use crate::gpu_options::{Partitioner, Transfer};
use crate::plan::first_pass_transfer;
use crate::plan::gpu_shape::{chunk_of_columns, unit_rows};
use crate::transfer::{HostColumn, Place, Run};
use crate::word::{KeyWord, Mixers};

/// How a table is partitioned.
#[derive(Debug, Clone, Copy)]
pub struct FirstPass {
    /// The partitioner. It must [write to host memory](Partitioner::to_host).
    pub partitioner: Partitioner,
    /// There are `1 << bits` partitions.
    pub bits: u32,
    /// Whether the CPU first counts the tuples of each partition (not timed). If so, kernels read pinned
    /// columns over the link, and each partition lies in one piece. If not, each chunk is copied to the GPU,
    /// counted there, and partitioned separately.
    pub counted: bool,
}

/// A table in partitions, in host memory. The partition of a tuple is given by the top bits of its mixed key.
pub struct PartitionedTable {
    partitions: HostPartitions,
    word: WordSize,
    mixers: Mixers,
    /// The time from columns in host memory to the last tuple in host memory.
    pub seconds: f64,
    /// Bytes that crossed the link: to the GPU, and back.
    pub crossed: [u64; 2],
    /// Dropped after the memory.
    _gpu: OpenGpu,
}

/// Partitions a table once, keys and payload.
pub fn partition(table: &HostTable, how: FirstPass) -> Result<PartitionedTable> {
    let FirstPass { partitioner, bits, counted } = how;
    if !partitioner.to_host() {
        let what = format!("{} does not write to host memory", partitioner.name());
        let advice = "give standard, linear, shared, hierarchical or dma";
        return Err(Error::invalid_option("partitioner", what, advice));
    }
    if !(1..=MAX_PARTITIONS.ilog2()).contains(&bits) {
        let what = format!("2^{bits} partitions are not possible");
        let advice = format!("there are 2 to {MAX_PARTITIONS} partitions");
        return Err(Error::invalid_option("bits", what, advice));
    }
    let side = table.side(true)?;
    let session = table.gpu.session(table.word.width(), None)?;
    let pinned = table.placement == HostPlacement::Pinned;
    let transfer = first_pass_transfer(Transfer::Auto, pinned, partitioner.for_triton()?, counted);
    let most_rows = match transfer.reads_in_place() {
        true => unit_rows(0, table.word.width()),
        false => chunk_of_columns(transfer, table.word.width(), 2),
    };
    let link = table.gpu.transfer_context(&session, transfer, most_rows);
    let pass = partition_side(&link, &side, partitioner, bits, counted)?;
    let started = Instant::now();
    let partitions = pass()?;
    for stream in [session.compute, session.copies, session.back] {
        session.device.synchronize(stream)?;
    }
    let seconds = started.elapsed().as_secs_f64();
    Ok(PartitionedTable {
        partitions,
        word: table.word,
        mixers: mixers(None),
        seconds,
        crossed: session.crossed(),
        _gpu: table.gpu.clone(),
    })
}

impl PartitionedTable {
    /// Returns all runs of tuples, each with the number of its partition. A tuple is a mixed key and a
    /// payload, both words of the table's size in the byte order of the machine.
    pub fn runs(&self) -> Result<Vec<(usize, &[u8])>> {
        let mut all = Vec::new();
        for (partition, runs) in self.partitions.runs.iter().enumerate() {
            for run in runs {
                all.push((partition, self.bytes(run)?));
            }
        }
        Ok(all)
    }

    fn bytes<'a>(&'a self, run: &'a Run) -> Result<&'a [u8]> {
        let Place::Host(pinned, at) = &run.place else {
            return Err(Error::internal("a partition does not lie in host memory"));
        };
        let bytes = run.rows * 2 * self.word.bytes();
        // SAFETY: the run keeps the memory alive, and `partition` has waited for all writes.
        unsafe { HostColumn::pinned(pinned, *at, bytes).words(0..bytes) }
    }

    /// Returns the mixed key for a key word.
    pub fn mixed(&self, key: u64) -> u64 {
        match self.word {
            WordSize::Four => u64::from((key as u32).mix(self.mixers.of())),
            WordSize::Eight => key.mix(self.mixers.of()),
        }
    }
}

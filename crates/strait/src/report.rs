//! The report: what a join did, in rows, seconds and bytes.

use std::fmt;
use std::time::Duration;

use crate::error::bytes;
use crate::plan::Plan;

/// What a join did. Complete once its reader is exhausted.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// What was planned, and why.
    pub plan: Plan,
    /// Wall time per stage, in the order the stages began.
    pub stages: Vec<(&'static str, Duration)>,
    /// From the start of the join to its last batch.
    pub elapsed: Duration,
    /// Rows read of the left table.
    pub left_rows: u64,
    /// Rows read of the right table.
    pub right_rows: u64,
    /// Rows of output.
    pub output_rows: u64,
    /// Pairs with equal key words, before verification and filter.
    pub candidates: u64,
    /// The most memory the join held at once, in bytes: collected inputs, tables, output under way.
    pub peak_memory: u64,
    /// Bytes that crossed the link to a GPU, and back.
    pub crossed: [u64; 2],
    /// The number that hashes and places of keys followed from: each join draws its own.
    pub seed: u64,
    /// How many seeds were tried: more than one where many keys met under the first.
    pub seeds_tried: u32,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.plan)?;
        writeln!(f, "what happened:")?;
        for (stage, time) in &self.stages {
            writeln!(f, "  {stage:<22} {:>10.3} s", time.as_secs_f64())?;
        }
        let seconds = self.elapsed.as_secs_f64();
        writeln!(f, "  {:<22} {seconds:>10.3} s", "total")?;
        writeln!(f, "  {:<22} {:>12}", "left rows", self.left_rows)?;
        writeln!(f, "  {:<22} {:>12}", "right rows", self.right_rows)?;
        writeln!(f, "  {:<22} {:>12}", "candidate pairs", self.candidates)?;
        writeln!(f, "  {:<22} {:>12}", "output rows", self.output_rows)?;
        writeln!(f, "  {:<22} {:>12}", "peak memory", bytes(self.peak_memory))?;
        if self.crossed != [0; 2] {
            let [to, from] = self.crossed.map(bytes);
            writeln!(f, "  {:<22} {to:>12} to the GPU, {from} back", "over the link")?;
        }
        write!(f, "  {:<22} {:>#18x}", "seed", self.seed)?;
        match self.seeds_tried {
            ..=1 => writeln!(f)?,
            tried => writeln!(f, ", and {} after it", tried - 1)?,
        }
        let rate = (self.left_rows + self.right_rows) as f64 / seconds.max(1e-9) / 1e6;
        write!(f, "  {:<22} {rate:>12.1} M tuples/s", "throughput")
    }
}

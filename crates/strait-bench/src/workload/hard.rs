//! Tables with keys that are hard to join: bit patterns, and frequent keys. The
//! expected result follows from the way in which a table is generated, as for the other tables.

use std::sync::Arc;

use anyhow::Context;
use arrow::array::{ArrayRef, Int64Array, RecordBatch};

use super::{Answer, Table, Tables};

/// The tables that are hard to join.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hard {
    /// Every key is the same, on both sides.
    AllEqual,
    /// Keys differ only in their upper halves.
    EqualLow,
    /// Keys differ only in their lower halves.
    EqualHigh,
    /// Keys are multiples of 2^20.
    Multiples,
    /// Keys count up from zero and down from all ones.
    Ends,
    /// Half of the build rows have one key.
    HalfBuild,
    /// Half of the probe rows have one key.
    HalfProbe,
}

impl Hard {
    /// All hard tables: name, kind, and rows as a power of two.
    pub const ALL: [(&'static str, Hard, u32); 7] = [
        ("all-equal", Hard::AllEqual, 16),
        ("equal-low-32", Hard::EqualLow, 26),
        ("equal-high-32", Hard::EqualHigh, 26),
        ("multiples-of-2^20", Hard::Multiples, 26),
        ("ends-of-range", Hard::Ends, 26),
        ("half-build-one-key", Hard::HalfBuild, 26),
        ("half-probe-one-key", Hard::HalfProbe, 26),
    ];

    /// Returns the key with this number.
    fn key(self, number: u64) -> u64 {
        match self {
            Hard::AllEqual => 42,
            Hard::EqualLow => number << 32 | 7,
            Hard::EqualHigh => 0x5eed_5eed << 32 | number,
            Hard::Multiples => number << 20,
            Hard::Ends if number.is_multiple_of(2) => number / 2,
            Hard::Ends => u64::MAX - number / 2,
            Hard::HalfBuild | Hard::HalfProbe => number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1,
        }
    }

    /// Makes two tables of `1 << bits` rows. Every number occurs once, in scattered order, unless half of the
    /// rows have the first one.
    pub fn tables(self, bits: u32) -> anyhow::Result<Tables> {
        let rows = 1u64 << bits;
        let scattered =
            |row: u64, odd: u64| (row.wrapping_mul(odd).wrapping_add(12_345)) & (rows - 1);
        let half = |side: Hard, row: u64, odd: u64| match self == side && row.is_multiple_of(2) {
            true => 0,
            false => scattered(row, odd),
        };
        let build: Vec<u64> =
            (0..rows).map(|row| half(Hard::HalfBuild, row, 0x9e37_79b1)).collect();
        let probe: Vec<u64> =
            (0..rows).map(|row| half(Hard::HalfProbe, row, 0x85eb_ca6b)).collect();
        // For each number, how often it occurs on the build side, and the sum of its payloads there.
        let mut met = vec![(0u64, 0u64); rows as usize];
        let same = |number: u64| if self == Hard::AllEqual { 0 } else { number as usize };
        for (row, &number) in build.iter().enumerate() {
            let met = &mut met[same(number)];
            *met = (met.0 + 1, met.1 + payload(row as u64));
        }
        let mut answer = Answer { rows: 0, sums: vec![0; 2] };
        for (row, &number) in probe.iter().enumerate() {
            let (count, sum) = met[same(number)];
            answer.rows += count;
            answer.sums[0] += i128::from(sum);
            answer.sums[1] += i128::from(payload(row as u64)) * i128::from(count);
        }
        let table = |name: &str, numbers: Vec<u64>| -> anyhow::Result<Table> {
            let keys: Int64Array = numbers.iter().map(|&n| self.key(n) as i64).collect();
            let payloads: Int64Array = (0..rows).map(|row| payload(row) as i64).collect();
            let columns: [(&str, ArrayRef); 2] =
                [("key", Arc::new(keys)), (name, Arc::new(payloads))];
            let batch = RecordBatch::try_from_iter(columns).context("a table of two columns")?;
            Ok(Table { schema: batch.schema(), batches: vec![batch] })
        };
        Ok(Tables {
            build: table("build_1", build)?,
            probe: table("probe_1", probe)?,
            expected: answer,
        })
    }
}

fn payload(row: u64) -> u64 {
    row.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40
}

#[cfg(test)]
mod tests {
    use super::*;
    use strait::{Join, Processor, Side};

    #[test]
    fn answers_are_those_of_a_join() {
        for (name, hard, _) in Hard::ALL {
            let tables = hard.tables(8).expect("tables");
            let sums = [(Side::Left, "build_1"), (Side::Right, "probe_1")];
            let join = Join::inner().on("key").device(Processor::Cpu);
            let joined = join.aggregate(&sums, tables.build.reader(), tables.probe.reader());
            let (found, _) = joined.expect("a join");
            let found = Answer { rows: found.rows, sums: found.sums };
            assert_eq!(found, tables.expected, "{name}");
        }
    }
}

//! Two tables whose keys are as asked for: how many, how they lie, how often they are met.

use std::sync::Arc;

use anyhow::bail;
use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};

use super::random::{Random, Shuffle, Zipf, mix, mix_u32};
use super::{Parts, prepare, write_parts};
use crate::arguments::{KeyType, Keys, Skew, WorkloadArguments};
use crate::digits::counted;

/// Rows of a part. The rows depend on it: another value generates other tables.
const PART_ROWS: u64 = 1 << 18;

/// Rows of a batch.
const BATCH_ROWS: u64 = 1 << 14;

/// The streams of random numbers, which must not meet.
const BUILD_PAYLOAD: u64 = 1;
const PROBE_KEY: u64 = 2;
const PROBE_PAYLOAD: u64 = 3;

/// Runs the command.
pub(super) fn run(arguments: &WorkloadArguments) -> anyhow::Result<()> {
    let workload = Workload::new(arguments)?;
    let names = ["build.parquet".to_string(), "probe.parquet".to_string()];
    let paths = prepare(&arguments.out, &names, arguments.overwrite)?;
    for (path, side) in paths.iter().zip([Side::Build, Side::Probe]) {
        let rows = workload.rows(side);
        let make = |part: usize, send: &dyn Fn(RecordBatch) -> bool| {
            let mut rng = workload.random(side, part as u64);
            let first = part as u64 * PART_ROWS;
            let mut start = first;
            while start < rows.min(first + PART_ROWS) {
                let end = (start + BATCH_ROWS).min(rows);
                if !send(workload.batch(side, start..end, &mut rng)?) {
                    break;
                }
                start = end;
            }
            Ok(())
        };
        let count = rows.div_ceil(PART_ROWS) as usize;
        let parts = Parts { schema: workload.schema(side), count, make };
        let rows = write_parts(path, parts, arguments.overwrite, arguments.threads)?;
        eprintln!("{}: {}", path.display(), counted(rows, "row"));
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Build,
    Probe,
}

/// Keys are numbered: those below `distinct` are in the build table, those from there to twice that
/// are in none of its rows. [`Workload::keys`] turns numbers to values.
struct Workload<'a> {
    arguments: &'a WorkloadArguments,
    distinct: u64,
    order: Shuffle,
    popularity: Shuffle,
    zipf: Option<Zipf>,
}

impl<'a> Workload<'a> {
    fn new(arguments: &'a WorkloadArguments) -> anyhow::Result<Self> {
        let distinct = arguments.build.div_ceil(arguments.duplicates);
        if arguments.key_type == KeyType::Int32 && distinct > 1 << 30 {
            bail!(
                "an int32 key has too few values for {distinct} of them and as many others; use --key-type int64"
            );
        }
        if arguments.build == 0 && arguments.probe > 0 && arguments.selectivity > 0.0 {
            bail!("no probe row finds a match in an empty build table; add --selectivity 0");
        }
        let zipf = match arguments.skew {
            Skew::Zipf(theta) if distinct > 0 => Some(Zipf::new(distinct, theta)),
            _ => None,
        };
        let seed = arguments.seed;
        Ok(Workload {
            arguments,
            distinct,
            order: Shuffle::new(arguments.build, mix(seed)),
            popularity: Shuffle::new(distinct, mix(!seed)),
            zipf,
        })
    }

    fn rows(&self, side: Side) -> u64 {
        match side {
            Side::Build => self.arguments.build,
            Side::Probe => self.arguments.probe,
        }
    }

    /// The generators of a part: of its keys, and of its payload.
    fn random(&self, side: Side, part: u64) -> (Random, Random) {
        let seed = self.arguments.seed;
        let payload = if side == Side::Build { BUILD_PAYLOAD } else { PROBE_PAYLOAD };
        (Random::new(seed, PROBE_KEY, part), Random::new(seed, payload, part))
    }

    fn schema(&self, side: Side) -> SchemaRef {
        let key = match self.arguments.key_type {
            KeyType::Int64 => DataType::Int64,
            KeyType::Int32 => DataType::Int32,
            KeyType::String => DataType::Utf8,
        };
        let prefix = if side == Side::Build { "build" } else { "probe" };
        let mut fields = vec![Field::new("key", key, false)];
        fields.extend(
            (1..=self.arguments.payload_columns)
                .map(|i| Field::new(format!("{prefix}_{i}"), DataType::Int64, false)),
        );
        Arc::new(Schema::new(fields))
    }

    fn batch(
        &self,
        side: Side,
        rows: std::ops::Range<u64>,
        (keys, payload): &mut (Random, Random),
    ) -> anyhow::Result<RecordBatch> {
        let count = rows.end - rows.start;
        let numbers: Vec<u64> = match side {
            Side::Build => rows.map(|row| self.order.at(row) % self.distinct).collect(),
            Side::Probe => rows.map(|_| self.probe_number(keys)).collect(),
        };
        let mut columns = vec![self.keys(&numbers)];
        for _ in 0..self.arguments.payload_columns {
            let values = (0..count).map(|_| payload.next() as i64);
            columns.push(Arc::new(Int64Array::from_iter_values(values)));
        }
        Ok(RecordBatch::try_new(self.schema(side), columns)?)
    }

    /// The number of a probe row's key.
    fn probe_number(&self, random: &mut Random) -> u64 {
        if random.unit() >= self.arguments.selectivity {
            return self.distinct + random.below(self.distinct.max(1));
        }
        match &self.zipf {
            // Popular keys are anywhere among the keys, not the smallest ones.
            Some(zipf) => self.popularity.at(zipf.sample(random)),
            None => random.below(self.distinct),
        }
    }

    /// The values of numbered keys: the numbers themselves, or scattered over the type.
    fn keys(&self, numbers: &[u64]) -> ArrayRef {
        let sparse = self.arguments.keys == Keys::Sparse;
        let numbers = numbers.iter().copied();
        match self.arguments.key_type {
            KeyType::Int64 => Arc::new(Int64Array::from_iter_values(
                numbers.map(|n| if sparse { mix(n) as i64 } else { n as i64 }),
            )),
            KeyType::Int32 => Arc::new(Int32Array::from_iter_values(
                numbers.map(|n| if sparse { mix_u32(n as u32) as i32 } else { n as i32 }),
            )),
            KeyType::String => Arc::new(StringArray::from_iter_values(numbers.map(|n| {
                if sparse { format!("key-{:016x}", mix(n)) } else { format!("key-{n:012}") }
            }))),
        }
    }
}

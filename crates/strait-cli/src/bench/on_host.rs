//! Measures joins on a GPU of tables in host memory, pinned or not. Columns cross to the GPU, are joined, and
//! rows come back into buffers that are reused.

use anyhow::{Context, bail};
use arrow::datatypes::DataType;
use strait::gpu::Gpu;
use strait_bench::{HostPlacement, HostTables, JoinRequest};

use super::measure::{Measured, Task};
use super::on_gpu::{Often, Runs, measured, named, repeated, request};
use super::workload::{Answer, Tables};
use crate::failure;

/// Copies tables to their placement. The given tables are not needed after this.
pub(super) fn load(
    gpu: &Gpu,
    memory: Option<u64>,
    placement: HostPlacement,
    threads: usize,
    tables: &Tables,
) -> anyhow::Result<HostTables> {
    joinable(tables)?;
    let batches = [tables.build.batches.as_slice(), tables.probe.batches.as_slice()];
    HostTables::load(gpu, memory, placement, threads, batches).map_err(failure::of_join)
}

/// Fails if these tables cannot be measured. The error says which tables can.
pub(super) fn joinable(tables: &Tables) -> anyhow::Result<()> {
    for (name, table) in [("build", &tables.build), ("probe", &tables.probe)] {
        let fields = table.schema.fields();
        let odd =
            fields.iter().find(|f| !matches!(f.data_type(), DataType::Int32 | DataType::Int64));
        if let Some(field) = odd {
            bail!(
                "column \"{}\" of the {name} table is {}: with --placement pinned or pageable \
                 columns are integers of 4 or 8 bytes; leave out --placement to measure others",
                field.name(),
                field.data_type()
            );
        }
        if fields.len() > 2 {
            bail!(
                "the {name} table has {} payload columns: with --placement pinned or pageable one \
                 travels with the key; give --payload-columns 1, or leave out --placement",
                fields.len() - 1
            );
        }
        if table.batches.is_empty() {
            bail!("the {name} table is empty: with --placement both tables have rows");
        }
    }
    Ok(())
}

/// Runs the join several times.
pub(super) fn runs(
    hosted: &HostTables,
    expected: &Answer,
    request: &JoinRequest,
    often: Often,
) -> anyhow::Result<Runs> {
    repeated(expected, often, |check| hosted.run(request, check)).with_context(|| named(request))
}

/// Measures for `bench join --placement pinned` and `pageable`.
pub(super) fn on_host(
    gpu: &Gpu,
    hosted: &HostTables,
    tables: &Tables,
    task: &Task,
) -> anyhow::Result<Measured> {
    let runs = runs(hosted, &tables.expected, &request(task), Often::times(task.repeat))?;
    measured(gpu, tables, task, &runs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::{KeyType, Keys, Skew};
    use crate::generate::Shape;
    use strait::{Algorithm, GpuOptions, Histogram, Partitioner, TablePlace, Transfer};
    use strait_bench::ResultKind;

    fn tables(rows: [u64; 2], keys: Keys, width: u8) -> Tables {
        let shape = Shape {
            build: rows[0],
            probe: rows[1],
            key_type: if width == 4 { KeyType::Int32 } else { KeyType::Int64 },
            keys,
            skew: Skew::None,
            selectivity: 0.8,
            duplicates: 2,
            payload_bytes: width,
            payload_columns: 1,
            seed: 5,
        };
        Tables::generate(shape, 500, 2).expect("tables")
    }

    /// Tables on a simulated device.
    fn hosted(seed: u64, placement: HostPlacement, tables: &Tables) -> HostTables {
        let batches = [tables.build.batches.as_slice(), tables.probe.batches.as_slice()];
        HostTables::simulate(seed, 4 << 20, placement, batches).expect("a simulated device")
    }

    fn join(algorithm: Algorithm, gpu_options: GpuOptions, result: ResultKind) -> JoinRequest {
        JoinRequest { algorithm: Some(algorithm), gpu_options, result }
    }

    const RESULTS: [ResultKind; 4] =
        [ResultKind::Count, ResultKind::Aggregate, ResultKind::Pairs, ResultKind::Materialise];

    #[test]
    fn every_algorithm_answers_as_known_in_advance() {
        let algorithms = [
            Algorithm::NoPartition,
            Algorithm::Radix,
            Algorithm::SortMerge,
            Algorithm::StreamedProbe,
            Algorithm::MultiPass,
            Algorithm::CpuPartitioned,
            Algorithm::Triton,
        ];
        for (keys, width) in [(Keys::Sparse, 8), (Keys::Dense, 8), (Keys::Sparse, 4)] {
            let tables = tables([700, 3000], keys, width);
            for placement in [HostPlacement::Pinned, HostPlacement::Pageable] {
                let hosted = hosted(3, placement, &tables);
                for algorithm in algorithms {
                    for result in RESULTS {
                        let how = join(algorithm, GpuOptions::default(), result);
                        let runs = runs(&hosted, &tables.expected, &how, Often::times(1))
                            .unwrap_or_else(|e| panic!("{keys:?} {width} {placement:?}: {e:#}"));
                        let middle = runs.middle().unwrap();
                        assert!(middle.crossed[0] > 0, "{algorithm}: nothing crossed");
                    }
                }
            }
        }
    }

    #[test]
    fn every_way_of_going_about_it_answers_so() {
        let tables = tables([900, 2000], Keys::Sparse, 8);
        let hosted = hosted(4, HostPlacement::Pageable, &tables);
        let mut ways = Vec::new();
        for transfer in Transfer::ALL {
            ways.push((Algorithm::NoPartition, GpuOptions::new().transfer(transfer)));
        }
        for table in TablePlace::ALL {
            ways.push((Algorithm::NoPartition, GpuOptions::new().table(table)));
        }
        for partitioner in Partitioner::ALL.into_iter().filter(|p| p.to_host()) {
            for histogram in Histogram::ALL {
                let on_gpu = GpuOptions::new().partitioner(partitioner).histogram(histogram);
                if partitioner != Partitioner::Dma || histogram == Histogram::None {
                    ways.push((Algorithm::Triton, on_gpu));
                }
            }
        }
        for (algorithm, on_gpu) in ways {
            let how = join(algorithm, on_gpu, ResultKind::Aggregate);
            runs(&hosted, &tables.expected, &how, Often::times(1))
                .unwrap_or_else(|e| panic!("{on_gpu:?}: {e:#}"));
        }
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        let mut tables = tables([100, 100], Keys::Sparse, 8);
        tables.expected.sums[1] += 1;
        let hosted = hosted(5, HostPlacement::Pinned, &tables);
        for result in [ResultKind::Aggregate, ResultKind::Materialise] {
            let how = join(Algorithm::StreamedProbe, GpuOptions::default(), result);
            let wrong = runs(&hosted, &tables.expected, &how, Often::times(1)).err().unwrap();
            assert!(format!("{wrong:#}").contains("payload column 2"), "{wrong:#}");
        }
        tables.expected.rows += 1;
        let how = join(Algorithm::Triton, GpuOptions::default(), ResultKind::Count);
        let wrong = runs(&hosted, &tables.expected, &how, Often::times(1)).err().unwrap();
        assert!(format!("{wrong:#}").contains("wrong answer"), "{wrong:#}");
    }

    #[test]
    fn a_slow_run_is_the_only_one() {
        let tables = tables([100, 100], Keys::Sparse, 8);
        let hosted = hosted(6, HostPlacement::Pinned, &tables);
        let how = join(Algorithm::NoPartition, GpuOptions::default(), ResultKind::Count);
        let often = Often { repeat: 5, patience: 0.0 };
        assert_eq!(runs(&hosted, &tables.expected, &how, often).unwrap().timed.len(), 1);
    }

    #[test]
    fn what_cannot_be_measured_is_said() {
        let shape = |key_type, payload_columns| Shape {
            build: 10,
            probe: 10,
            key_type,
            keys: Keys::Sparse,
            skew: Skew::None,
            selectivity: 1.0,
            duplicates: 1,
            payload_bytes: 8,
            payload_columns,
            seed: 1,
        };
        let refused = |key_type, columns| {
            let tables = Tables::generate(shape(key_type, columns), 500, 1).expect("tables");
            joinable(&tables).expect_err("refused").to_string()
        };
        assert!(refused(KeyType::String, 1).contains("\"key\" of the build table is Utf8"));
        assert!(refused(KeyType::Int64, 3).contains("3 payload columns"));
    }
}

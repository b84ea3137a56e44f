//! Runs a join on a GPU several times, and checks every answer.

use anyhow::Context;
use strait::Result;

use crate::measure::algorithm_name;
use crate::workload::Answer;
use crate::{GpuTables, HostTables, JoinRequest, MeasuredRun};

/// How often a join is run.
#[derive(Debug, Clone, Copy)]
pub struct Often {
    /// The number of timed runs, after one that is not timed.
    pub repeat: u32,
    /// If the first run takes more seconds than this, it counts as timed, and there are no more runs.
    pub patience: f64,
}

impl Often {
    /// So many timed runs, however long they take.
    pub fn times(repeat: u32) -> Often {
        Often { repeat, patience: f64::INFINITY }
    }

    /// Calls `run(true)` once to warm up, and then `run(false)` for each timed run. Returns the seconds of
    /// the first run, and the timed runs, fastest first.
    pub fn runs<T>(
        self,
        seconds: impl Fn(&T) -> f64,
        mut run: impl FnMut(bool) -> anyhow::Result<T>,
    ) -> anyhow::Result<(f64, Vec<T>)> {
        let warm = run(true)?;
        let first = seconds(&warm);
        let mut timed = match first > self.patience {
            true => vec![warm],
            false => (0..self.repeat).map(|_| run(false)).collect::<anyhow::Result<_>>()?,
        };
        timed.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        Ok((first, timed))
    }
}

/// The runs of a join.
pub struct Runs {
    /// The seconds of the first run.
    pub first: f64,
    /// The timed runs, fastest first.
    pub timed: Vec<MeasuredRun>,
}

impl Runs {
    /// The seconds of all timed runs, ascending.
    pub fn seconds(&self) -> Vec<f64> {
        self.timed.iter().map(|run| run.seconds).collect()
    }

    /// The median run.
    pub fn middle(&self) -> anyhow::Result<&MeasuredRun> {
        self.timed.get(self.timed.len() / 2).context("no run was timed")
    }

    /// The most GPU memory that any run held, in bytes.
    pub fn peak_memory(&self) -> u64 {
        self.timed.iter().map(|run| run.peak_memory).max().unwrap_or(0)
    }

    /// Runs once to warm up, with `true`, and then the timed runs. The rows of the first run are checked. Of
    /// the timed runs, counts and sums are checked.
    fn checked(
        expected: &Answer,
        request: &JoinRequest,
        often: Often,
        run: impl Fn(&JoinRequest, bool) -> Result<MeasuredRun>,
    ) -> anyhow::Result<Runs> {
        let once = |first: bool| -> anyhow::Result<MeasuredRun> {
            let measured = run(request, first)?;
            check(expected, measured.rows, &measured.sums)?;
            Ok(measured)
        };
        let (first, timed) =
            often.runs(|run: &MeasuredRun| run.seconds, once).with_context(|| {
                format!("{:?} by {}", request.result, algorithm_name(request.algorithm))
            })?;
        Ok(Runs { first, timed })
    }
}

impl GpuTables {
    /// Joins the tables several times. A wrong answer is an error.
    pub fn runs(
        &self,
        expected: &Answer,
        request: &JoinRequest,
        often: Often,
    ) -> anyhow::Result<Runs> {
        Runs::checked(expected, request, often, |request, check| self.run(request, check))
    }
}

impl HostTables {
    /// Joins the tables several times. A wrong answer is an error.
    pub fn runs(
        &self,
        expected: &Answer,
        request: &JoinRequest,
        often: Often,
    ) -> anyhow::Result<Runs> {
        Runs::checked(expected, request, often, |request, check| self.run(request, check))
    }
}

/// Checks the answer of a GPU, whose sums are modulo 2^64.
fn check(expected: &Answer, rows: u64, sums: &[u64]) -> anyhow::Result<()> {
    let wrapped = expected.sums.iter().map(|&sum| i128::from(sum as u64)).collect();
    let expected = Answer { rows: expected.rows, sums: wrapped };
    expected.check(&Answer { rows, sums: sums.iter().map(|&sum| i128::from(sum)).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{KeyType, Keys, Shape, Skew, Tables};
    use crate::{HostPlacement, ResultKind};
    use strait::{Algorithm, GpuOptions, Histogram, Partitioner, TablePlace, Transfer};

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
        JoinRequest { algorithm: Some(algorithm), gpu_options, result, hash_seed: None }
    }

    const RESULTS: [ResultKind; 4] =
        [ResultKind::Count, ResultKind::Aggregate, ResultKind::Pairs, ResultKind::Materialise];

    #[test]
    fn every_algorithm_answers_as_known_in_advance() {
        for (keys, width) in [(Keys::Sparse, 8), (Keys::Dense, 8), (Keys::Sparse, 4)] {
            let tables = tables([700, 3000], keys, width);
            for placement in [HostPlacement::Pinned, HostPlacement::Pageable] {
                let hosted = hosted(3, placement, &tables);
                for algorithm in Algorithm::ON_GPU {
                    for result in RESULTS {
                        let how = join(algorithm, GpuOptions::default(), result);
                        let runs = hosted
                            .runs(&tables.expected, &how, Often::times(1))
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
            hosted
                .runs(&tables.expected, &how, Often::times(1))
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
            let wrong = hosted.runs(&tables.expected, &how, Often::times(1)).err().unwrap();
            assert!(format!("{wrong:#}").contains("payload column 2"), "{wrong:#}");
        }
        tables.expected.rows += 1;
        let how = join(Algorithm::Triton, GpuOptions::default(), ResultKind::Count);
        let wrong = hosted.runs(&tables.expected, &how, Often::times(1)).err().unwrap();
        assert!(format!("{wrong:#}").contains("wrong answer"), "{wrong:#}");
    }

    #[test]
    fn a_slow_run_is_the_only_one() {
        let tables = tables([100, 100], Keys::Sparse, 8);
        let hosted = hosted(6, HostPlacement::Pinned, &tables);
        let how = join(Algorithm::NoPartition, GpuOptions::default(), ResultKind::Count);
        let often = Often { repeat: 5, patience: 0.0 };
        assert_eq!(hosted.runs(&tables.expected, &how, often).unwrap().timed.len(), 1);
    }
}

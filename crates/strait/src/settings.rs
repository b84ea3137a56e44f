//! Checks for settings that contradict each other. They are refused when a join is bound, before any input is
//! read.

use crate::error::{Error, Result};
use crate::gpu_options::{GpuOptions, Histogram, Partitioner, Processor, TablePlace, unsuitable};
use crate::join::Join;
use crate::options::{Algorithm, names};

/// Checks the settings that can be checked without schemas and without a device.
pub(crate) fn check(join: &Join) -> Result<()> {
    if join.threads == 0 {
        return Err(zero("threads", "the number of threads is zero"));
    }
    if join.batch_size == 0 {
        return Err(zero("batch_size", "the batch size is zero"));
    }
    if let Some(algorithm) = join.algorithm
        && algorithm.needs_gpu()
        && join.processor == Processor::Cpu
        && join.overrides.simulated.is_none()
    {
        let anywhere = Algorithm::names_anywhere();
        return Err(Error::invalid_option(
            "algorithm",
            format!("{algorithm} runs on a GPU only, and the join is to run on the CPU"),
            format!("{anywhere} run on the CPU and on a GPU"),
        ));
    }
    if join.algorithm == Some(Algorithm::Spill) && join.spill.is_none() {
        return Err(Error::invalid_option(
            "algorithm",
            "spill needs a place for its files",
            "name one with Join::spill",
        ));
    }
    let algorithm = join.algorithm_in_memory();
    check_effect(algorithm, &join.gpu_options)?;
    check_partitioning(algorithm, &join.gpu_options)
}

/// Checks that the algorithm, if the caller chose one, uses the partitioner, table, histogram and cache options that
/// differ from their defaults.
fn check_effect(algorithm: Option<Algorithm>, options: &GpuOptions) -> Result<()> {
    let Some(algorithm) = algorithm else { return Ok(()) };
    let partitions = [Algorithm::Radix, Algorithm::Triton];
    let options: [(&str, bool, &[Algorithm]); 4] = [
        ("partitioner", options.partitioner.is_some(), &partitions),
        ("table", options.table != TablePlace::default(), &[Algorithm::NoPartition]),
        ("histogram", options.histogram != Histogram::default(), &[Algorithm::Triton]),
        ("cache", options.cache.is_some(), &[Algorithm::Triton]),
    ];
    let is_unused =
        |(_, is_set, users): &(_, bool, &[Algorithm])| *is_set && !users.contains(&algorithm);
    match options.into_iter().find(is_unused) {
        None => Ok(()),
        Some((name, _, users)) => {
            let users = names(users.iter().map(|user| user.name()));
            Err(Error::invalid_option(
                name,
                format!("{algorithm} does not use this option"),
                format!("leave it out, or choose an algorithm that uses it: {users}"),
            ))
        }
    }
}

/// Returns the error of an option that is zero.
fn zero(name: &'static str, problem: &str) -> Error {
    Error::invalid_option(name, problem, "it has to be at least 1")
}

/// Checks that the partitioner suits the algorithm, and that the histogram suits the partitioner.
fn check_partitioning(algorithm: Option<Algorithm>, options: &GpuOptions) -> Result<()> {
    check_partitioner(algorithm, options.partitioner)?;
    if algorithm == Some(Algorithm::Triton) {
        options.triton_partitioner()?.check_histogram(options.histogram)?;
    }
    Ok(())
}

/// Checks that the partitioner suits the algorithm.
pub(crate) fn check_partitioner(
    algorithm: Option<Algorithm>,
    partitioner: Option<Partitioner>,
) -> Result<()> {
    let Some(partitioner) = partitioner else { return Ok(()) };
    let of_triton = algorithm == Some(Algorithm::Triton);
    if partitioner.to_host() == of_triton {
        return Ok(());
    }
    let Some(algorithm) = algorithm else {
        let name = partitioner.name();
        return Err(Error::invalid_option(
            "partitioner",
            format!("only triton partitions by {name}"),
            "choose that algorithm, or no partitioner",
        ));
    };
    Err(unsuitable(algorithm, partitioner))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::spill::TempFolders;

    fn refused(join: Join) -> String {
        check(&join).expect_err("is refused").to_string()
    }

    fn by(partitioner: Partitioner) -> GpuOptions {
        GpuOptions::new().partitioner(partitioner)
    }

    #[test]
    fn contradictions_are_refused() {
        let on_cpu = Join::inner().algorithm(Algorithm::Triton).device(Processor::Cpu);
        assert!(
            refused(on_cpu).contains("no-partition, radix, sort-merge run on the CPU and on a GPU")
        );
        let radix = Join::inner().algorithm(Algorithm::Radix);
        let other = refused(radix.clone().gpu_options(by(Partitioner::Linear)));
        assert!(other.contains("it takes look-back, bucket-pool, shared-histogram"), "{other}");
        let triton = Join::inner().algorithm(Algorithm::Triton);
        let other = refused(triton.clone().gpu_options(by(Partitioner::LookBack)));
        assert!(other.contains("triton does not") && other.contains("dma"), "{other}");
        let unnamed = refused(Join::inner().gpu_options(by(Partitioner::Linear)));
        assert!(unnamed.contains("only triton partitions by linear"), "{unnamed}");
        let counted = by(Partitioner::Dma).histogram(Histogram::Cpu);
        assert!(refused(triton.clone().gpu_options(counted)).contains("needs no histogram"));
        let counted = GpuOptions::new().histogram(Histogram::Gpu);
        assert!(refused(triton.clone().gpu_options(counted)).contains("needs no histogram"));
        let counted = by(Partitioner::Shared).histogram(Histogram::Gpu);
        assert!(check(&triton.gpu_options(counted)).is_ok());
        assert!(refused(Join::inner().threads(0)).contains("threads is zero"));
        assert!(check(&radix.gpu_options(by(Partitioner::BucketPool))).is_ok());
        assert!(check(&Join::inner().gpu_options(by(Partitioner::LookBack))).is_ok());
    }

    /// An option that the algorithm does not use is refused. Without an algorithm, the planner may choose one that
    /// uses the option.
    #[test]
    fn options_without_effect_are_refused() {
        let options: [(&str, GpuOptions, &[Algorithm]); 4] = [
            ("partitioner", by(Partitioner::BucketPool), &[Algorithm::Radix, Algorithm::Triton]),
            ("table", GpuOptions::new().table(TablePlace::Host), &[Algorithm::NoPartition]),
            ("histogram", GpuOptions::new().histogram(Histogram::Cpu), &[Algorithm::Triton]),
            ("cache", GpuOptions::new().cache(0), &[Algorithm::Triton]),
        ];
        for (name, options, users) in options {
            assert!(check(&Join::inner().gpu_options(options)).is_ok(), "{name}");
            for algorithm in Algorithm::ALL {
                let store = Arc::new(TempFolders::new(vec![]));
                let join = Join::inner().algorithm(algorithm).gpu_options(options).spill(store);
                let unused = check(&join).is_err_and(|error| {
                    let text = error.to_string();
                    text.contains(name) && text.contains("does not use this option")
                });
                // The planner chooses an algorithm for each pair of spilled partitions.
                let spills = algorithm == Algorithm::Spill;
                assert_eq!(unused, !users.contains(&algorithm) && !spills, "{algorithm} {name}");
                assert!(!spills || check(&join).is_ok(), "{algorithm} {name}");
            }
        }
    }

    /// Every partitioner has exactly one of the two algorithms that partition.
    #[test]
    fn partitioners_of_other_algorithms_are_refused() {
        for partitioner in Partitioner::ALL {
            let to_host = partitioner.to_host();
            assert_eq!(partitioner.for_radix().is_ok(), !to_host, "{partitioner:?}");
            assert_eq!(partitioner.for_triton().is_ok(), to_host, "{partitioner:?}");
            for algorithm in [Algorithm::Radix, Algorithm::Triton] {
                let join = Join::inner().algorithm(algorithm).gpu_options(by(partitioner));
                let suits = to_host == (algorithm == Algorithm::Triton);
                assert_eq!(check(&join).is_ok(), suits, "{algorithm} {partitioner:?}");
                if !suits {
                    let named = format!("{algorithm} does not partition by {}", partitioner.name());
                    assert!(refused(join).contains(&named));
                }
            }
        }
    }
}

//! The arguments of `strait bench transfer` and `strait bench beyond`, which join tables in host memory on a
//! GPU.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use strait::{Processor, Transfer};

use super::device::{processor, transfer};
use super::generate::rows;
use super::join::threads;
use super::size;

/// Measures how fast each transfer method moves tables to a GPU
///
/// For every transfer method, shows the bandwidth at which a column of keys crosses the link and is read,
/// compared with the theoretical bandwidth of the link. Also shows the throughput of a no-partition join
/// whose tables cross with this method. If this machine does not support a method, says why. Every answer is
/// checked. Writes a dated record.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait bench transfer
  strait bench transfer --methods pinned-copy,zero-copy --placement pinned --repeat 9
  strait bench transfer --rows 2^24 --placement pageable --threads 4")]
pub(crate) struct TransferArguments {
    /// Rows of the probe table; its keys and payloads have 8 bytes each
    #[arg(long, value_name = "N", default_value = "2^28", value_parser = rows)]
    pub(crate) rows: u64,

    /// Rows of the build table
    #[arg(long, value_name = "N", default_value = "2^20", value_parser = rows)]
    pub(crate) build: u64,

    /// Which methods, separated by commas [default: all eight]
    #[arg(long, value_name = "METHODS", value_delimiter = ',', value_parser = transfer())]
    pub(crate) methods: Vec<Transfer>,

    /// The kind of host memory that holds the tables
    #[arg(long, value_enum, value_name = "WHERE", default_value = "both")]
    pub(crate) placement: Placements,

    /// The GPU: gpu, or gpu:N
    #[arg(long, value_name = "DEVICE", default_value = "gpu", value_parser = processor)]
    pub(crate) device: Processor,

    /// The most GPU memory, as in 512MiB or 8GiB [default: 90 % of the free memory]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) gpu_memory: Option<u64>,

    /// How many threads stage rows [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,

    /// How many runs are timed, after one run that is not timed
    #[arg(long, value_name = "R", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,

    /// The folder for the record; it is created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "benchmarks/record")]
    pub(crate) out: PathBuf,
}

/// The kind of host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Placements {
    /// Memory that the GPU reads at full speed
    Pinned,
    /// Ordinary memory
    Pageable,
    /// First pinned memory, then ordinary memory
    Both,
}

/// Measures joins of tables that are too large for the GPU's memory
///
/// Runs the joins of the project's performance goals on tables in host memory. Shows the bytes that cross the
/// link each way, the share of the link's theoretical bandwidth, and the time of each stage. Also shows the
/// CPU's join of the same tables. Every answer is checked. If a join fails, says so and continues with the
/// others. Writes a dated record. The largest workload needs 70 GiB of memory.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait bench beyond
  strait bench beyond --workloads '2^30 x 2^30'
  strait bench beyond --workloads '2^30 x 2^30, triton dma' --workloads '2^30 x 2^30, cpu radix'
  strait bench beyond --scale-down 64 --gpu-memory 256MiB --repeat 1
  strait bench beyond --study size --out benchmarks/scaling
  strait bench beyond --study fanout --lines hierarchical --lines dma")]
pub(crate) struct BeyondArguments {
    /// Which workloads, one per flag: a name, or the beginning of several names, as in '2^30 x 2^30' [default: all]
    #[arg(long, value_name = "WORKLOAD", value_parser = beyond_workload, conflicts_with = "study")]
    pub(crate) workloads: Vec<String>,

    /// Varies one quantity instead, and writes a plot in addition to the record
    #[arg(long, value_enum, value_name = "STUDY")]
    pub(crate) study: Option<BeyondStudy>,

    /// Which lines of the study, one per flag [default: all]
    #[arg(long, value_name = "LINE", value_parser = beyond_line(), requires = "study")]
    pub(crate) lines: Vec<String>,

    /// The GPU: gpu, or gpu:N
    #[arg(long, value_name = "DEVICE", default_value = "gpu", value_parser = processor)]
    pub(crate) device: Processor,

    /// The most GPU memory a join may hold [default: 16GiB, and 8GiB in a study]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) gpu_memory: Option<u64>,

    /// How many threads the host uses, for GPU joins and for the CPU join [default: one per core]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub(crate) threads: Option<usize>,

    /// How many runs are timed, after one run that is not timed; a join that takes more than ten seconds runs
    /// only once
    #[arg(long, value_name = "R", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) repeat: u32,

    /// Divides the rows of every table; not for the study of size, whose tables depend on --gpu-memory
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) scale_down: u64,

    /// The folder for the record; it is created if it does not exist
    #[arg(long, value_name = "DIR", default_value = "benchmarks/record")]
    pub(crate) out: PathBuf,
}

impl BeyondArguments {
    /// Checks rules that involve several arguments.
    pub(super) fn check(&self) -> Result<(), String> {
        let Some(study) = self.study else { return Ok(()) };
        if study == BeyondStudy::Size && self.scale_down != 1 {
            let why = "--study size takes no --scale-down";
            return Err(format!("{why}, because --gpu-memory decides the size of its tables"));
        }
        let names = crate::bench::beyond_line_names(study);
        match self.lines.iter().find(|asked| !names.contains(&asked.as_str())) {
            Some(asked) => Err(format!(
                "\"{asked}\" is a line of another study; this one has:\n  {}",
                names.join("\n  ")
            )),
            None => Ok(()),
        }
    }

    /// Whether the user asked for this workload, by its name or by the beginning of its name. A full name of
    /// another workload does not count as a beginning.
    pub(crate) fn wants(&self, name: &str) -> bool {
        let whole = |asked: &str| crate::bench::beyond_workload_names().any(|name| name == asked);
        let meant = |asked: &str| name == asked || (name.starts_with(asked) && !whole(asked));
        self.workloads.is_empty() || self.workloads.iter().any(|asked| meant(asked))
    }

    /// Whether the user asked for this line of a study.
    pub(crate) fn wants_line(&self, name: &str) -> bool {
        self.lines.is_empty() || self.lines.iter().any(|asked| asked == name)
    }
}

/// The quantity that a study varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BeyondStudy {
    /// The size of both tables, from a quarter to four times what fits the GPU's memory, in steps of √2, with
    /// every algorithm
    Size,
    /// The number of partitions that the first pass of triton writes, from 2 to 2048, from host memory to
    /// host memory, with every partitioner; nothing is joined
    Fanout,
}

fn beyond_workload(text: &str) -> Result<String, String> {
    let names: Vec<_> = crate::bench::beyond_workload_names().collect();
    match !text.is_empty() && names.iter().any(|name| name.starts_with(text)) {
        true => Ok(text.to_string()),
        false => {
            let names = names.join("\n  ");
            Err(format!("no workload name begins with this text; there are:\n  {names}"))
        }
    }
}

fn beyond_line() -> clap::builder::PossibleValuesParser {
    let studies = BeyondStudy::value_variants().iter();
    let names = studies.flat_map(|&study| crate::bench::beyond_line_names(study));
    clap::builder::PossibleValuesParser::new(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        beyond: BeyondArguments,
    }

    #[test]
    fn workloads_are_asked_for_by_name_or_by_how_they_begin() {
        let wanted = |asked: &[&str]| -> usize {
            let flags = asked.iter().flat_map(|asked| ["--workloads", asked]);
            let line = Line::try_parse_from(["line"].into_iter().chain(flags)).expect("flags");
            crate::bench::beyond_workload_names().filter(|name| line.beyond.wants(name)).count()
        };
        assert_eq!(wanted(&[]), crate::bench::beyond_workload_names().count());
        assert_eq!(wanted(&["2^30 x 2^30, triton hierarchical"]), 1);
        assert_eq!(wanted(&["2^30 x 2^30, triton h"]), 3);
        assert_eq!(wanted(&["2^28 x 2^28", "2^30 x 2^30, multi-pass"]), 3);
    }

    #[test]
    fn lines_belong_to_one_study() {
        let checked = |flags: &str, line: &str| {
            let flags = flags.split_whitespace().chain(["--lines", line]);
            Line::try_parse_from(["line"].into_iter().chain(flags)).expect("flags").beyond.check()
        };
        assert_eq!(checked("--study size", "triton"), Ok(()));
        assert_eq!(checked("--study fanout --scale-down 2", "shared, chunked"), Ok(()));
        assert!(checked("--study fanout", "triton").is_err_and(|why| why.contains("hierarchical")));
        assert!(checked("--study size", "dma").is_err_and(|why| why.contains("cpu radix")));
        let scaled = checked("--study size --scale-down 2", "triton");
        assert!(scaled.is_err_and(|why| why.contains("--gpu-memory")));
        let mut names: Vec<_> = BeyondStudy::value_variants()
            .iter()
            .flat_map(|&study| crate::bench::beyond_line_names(study))
            .collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all, "a name is a line of one study alone");
    }
}

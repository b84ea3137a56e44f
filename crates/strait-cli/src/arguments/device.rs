//! The flags that choose where and how a join runs. All commands that join have them.

use std::fmt;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use strait::{
    Algorithm, GpuOptions, Histogram, Join, Partitioner, Processor, TablePlace, Transfer,
};

use super::size;

/// The processor of a join, and the GPU options.
#[derive(Debug, Clone, Args)]
pub(crate) struct DeviceArguments {
    /// The processor: auto, cpu, gpu or gpu:N. auto uses a GPU if the job is predicted to be faster there, including
    /// all copies. If a GPU that auto chose fails, the CPU continues if it can. If gpu or gpu:N fails, the join fails
    #[arg(long, value_name = "DEVICE", default_value = "auto", value_parser = processor)]
    pub(crate) device: Processor,

    /// The most GPU memory the join may hold, as in 512MiB or 8GiB [default: 90 % of the free memory]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) gpu_memory: Option<u64>,

    /// The method by which a GPU partitions. For radix (in GPU memory): look-back,
    /// bucket-pool, shared-histogram. For triton (into host memory): dma, hierarchical, shared, linear,
    /// standard
    #[arg(long, value_name = "P", value_parser = partitioner())]
    pub(crate) partitioner: Option<Partitioner>,

    /// How rows get to a GPU. By default, the copy engine copies rows that are in pinned memory. Other rows are first
    /// copied into pinned buffers by all threads
    #[arg(long, value_name = "METHOD", value_parser = transfer())]
    pub(crate) transfer: Option<Transfer>,

    /// Where the hash table of a no-partition join on a GPU is [default: gpu]. Use host or hybrid for hash tables that
    /// are too large for GPU memory
    #[arg(long, value_name = "WHERE", value_parser = table())]
    pub(crate) table: Option<TablePlace>,

    /// Which processor counts the rows of each partition before a triton join writes them [default: none]. With none,
    /// the GPU counts each chunk after it has arrived, if the partitioner needs counts. With cpu or gpu, the GPU can
    /// read rows in pinned memory directly. With gpu, keys cross the link a second time
    #[arg(long, value_name = "WHO", value_parser = histogram())]
    pub(crate) histogram: Option<Histogram>,

    /// The GPU memory in which a triton join keeps partitions, as in 4GiB [default: 9/16 of the free GPU
    /// memory]. It is never more than 3/4 of the free GPU memory. The other partitions go to host memory. With
    /// 0, all partitions go to host memory
    #[arg(long, value_name = "SIZE", value_parser = size::parse_or_zero)]
    pub(crate) cache: Option<u64>,
}

impl DeviceArguments {
    /// Returns the GPU options: the user's choices, and defaults for the rest.
    pub(crate) fn gpu_options(&self) -> GpuOptions {
        GpuOptions::new()
            .partitioner(self.partitioner)
            .transfer(self.transfer.unwrap_or_default())
            .table(self.table.unwrap_or_default())
            .histogram(self.histogram.unwrap_or_default())
            .cache(self.cache)
    }

    /// Returns the join with these settings.
    pub(crate) fn apply(&self, join: Join) -> Join {
        let join = join.device(self.device).gpu_options(self.gpu_options());
        match self.gpu_memory {
            Some(bytes) => join.gpu_memory(bytes),
            None => join,
        }
    }
}

pub(super) fn processor(text: &str) -> Result<Processor, String> {
    text.parse().map_err(|error: strait::Error| error.to_string())
}

/// The value of `--algorithm`: an algorithm, or `auto`, with which the planner chooses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice(pub(crate) Option<Algorithm>);

impl Choice {
    /// The planner chooses.
    pub(crate) const AUTO: Choice = Choice(None);

    /// The name on the command line.
    pub(crate) fn name(self) -> &'static str {
        self.0.map_or("auto", Algorithm::name)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

pub(super) fn algorithm() -> impl TypedValueParser<Value = Choice> {
    choice(Algorithm::ALL.to_vec())
}

/// Parses the algorithms of benchmarks: all except `spill`, because these benchmarks write no temporary files.
pub(super) fn algorithm_in_memory() -> impl TypedValueParser<Value = Choice> {
    choice(Algorithm::ALL.into_iter().filter(|a| *a != Algorithm::Spill).collect())
}

fn choice(algorithms: Vec<Algorithm>) -> impl TypedValueParser<Value = Choice> {
    let auto = PossibleValue::new(Choice::AUTO.name())
        .help("The fastest by prediction; --explain says which and why");
    let named = algorithms.into_iter().map(|a| PossibleValue::new(a.name()).help(about(a)));
    PossibleValuesParser::new([auto].into_iter().chain(named)).try_map(|name| {
        match name == Choice::AUTO.name() {
            true => Ok(Choice::AUTO),
            false => name.parse().map(|algorithm| Choice(Some(algorithm))),
        }
    })
}

/// Describes an algorithm in one line of help.
fn about(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::NoPartition => {
            "Builds a hash table over the smaller table and streams the other table past it"
        }
        Algorithm::Radix => "Partitions both tables until pairs of partitions fit a cache",
        Algorithm::SortMerge => {
            "Sorts both tables and merges them. On the CPU, the output is sorted by key. With --device gpu, it is not sorted. --device auto always takes the CPU"
        }
        Algorithm::StreamedProbe => {
            "On a GPU: partitions the smaller table in GPU memory and streams the other table past it"
        }
        Algorithm::MultiPass => {
            "On a GPU: splits the smaller table into parts that fit, and streams the other table past each"
        }
        Algorithm::CpuPartitioned => {
            "On a GPU: the CPU partitions both tables, and the GPU joins the partitions"
        }
        Algorithm::Triton => {
            "On a GPU: partitions both tables; partitions that do not fit GPU memory go to host memory"
        }
        Algorithm::Spill => {
            "Partitions both tables to temporary files, and joins the partitions pair by pair, on the CPU or on a GPU"
        }
        _ => "",
    }
}

pub(super) fn partitioner() -> impl TypedValueParser<Value = Partitioner> {
    named(Partitioner::ALL.to_vec(), Partitioner::name)
}

/// Parses the partitioners that work in the GPU's own memory.
pub(super) fn partitioner_on_gpu() -> impl TypedValueParser<Value = Partitioner> {
    let within = Partitioner::ALL.into_iter().filter(|p| !p.to_host());
    named(within.collect(), Partitioner::name)
}

pub(super) fn transfer() -> impl TypedValueParser<Value = Transfer> {
    named(Transfer::ALL.to_vec(), Transfer::name)
}

fn table() -> impl TypedValueParser<Value = TablePlace> {
    named(TablePlace::ALL.to_vec(), TablePlace::name)
}

fn histogram() -> impl TypedValueParser<Value = Histogram> {
    named(Histogram::ALL.to_vec(), Histogram::name)
}

/// Parses one of several names.
pub(super) fn named<T>(all: Vec<T>, name: fn(T) -> &'static str) -> impl TypedValueParser<Value = T>
where
    T: Copy + std::str::FromStr<Err = strait::Error> + Send + Sync + 'static,
{
    let values = all.into_iter().map(|one| PossibleValue::new(name(one)));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<T>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        device: DeviceArguments,
    }

    fn read(flags: &str) -> Result<DeviceArguments, String> {
        let words = std::iter::once("line").chain(flags.split_whitespace());
        Line::try_parse_from(words).map(|line| line.device).map_err(|error| error.to_string())
    }

    #[test]
    fn what_is_not_said_is_left_to_the_join() {
        assert_eq!(read("").unwrap().gpu_options(), GpuOptions::default());
        assert_eq!(read("--device gpu").unwrap().gpu_options(), GpuOptions::default());
    }

    #[test]
    fn every_flag_is_heard() {
        let flags = "--partitioner hierarchical --transfer zero-copy --table hybrid \
                     --histogram gpu --cache 3GiB";
        let expected = GpuOptions::new()
            .partitioner(Partitioner::Hierarchical)
            .transfer(Transfer::ZeroCopy)
            .table(TablePlace::Hybrid)
            .histogram(Histogram::Gpu)
            .cache(3 << 30);
        assert_eq!(read(flags).unwrap().gpu_options(), expected);
    }

    #[test]
    fn names_that_nobody_has_are_refused_with_those_there_are() {
        let refused = |flags: &str| read(flags).unwrap_err();
        assert!(refused("--transfer post").contains("dynamic-pinning"));
        assert!(refused("--table disk").contains("hybrid"));
        assert!(refused("--histogram yes").contains("none"));
        assert!(refused("--partitioner none").contains("hierarchical"));
        assert!(refused("--cache all").contains("512MiB"));
        assert!(refused("--gpu-memory 0").contains("more than zero"));
    }

    #[test]
    fn a_cache_of_zero_is_not_the_default() {
        assert_eq!(read("--cache 0").unwrap().gpu_options(), GpuOptions::new().cache(0));
        assert_ne!(read("--cache 0").unwrap().gpu_options(), GpuOptions::default());
    }
}

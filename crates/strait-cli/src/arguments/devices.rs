//! The arguments of `strait devices`.

use clap::{Args, ValueEnum};
use strait::gpu::Architecture;

/// Lists the GPUs that can run joins, and compiles their kernels before the first join
///
/// NVRTC compiles the kernels when a join first needs them. The compiled code stays in the user's cache
/// folder. STRAIT_NVRTC names the libnvrtc.so to use.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait devices
  strait devices --format json
  strait devices --compile
  strait devices --compile --arch sm_80,sm_90")]
pub(crate) struct DevicesArguments {
    /// Compiles every kernel for the GPUs of this machine, and keeps the code
    #[arg(long, conflicts_with = "format")]
    pub(crate) compile: bool,

    /// Compiles for these architectures instead, for example when an image is built on a machine without a
    /// GPU
    #[arg(long, value_name = "sm_XX", value_delimiter = ',', requires = "compile")]
    pub(crate) arch: Vec<Architecture>,

    /// The format of the list
    #[arg(long, value_enum, default_value = "table")]
    pub(crate) format: ListFormat,
}

/// The format of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    /// Aligned columns, for people
    Table,
    /// One object
    Json,
}

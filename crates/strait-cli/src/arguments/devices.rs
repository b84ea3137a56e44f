//! The arguments of `strait devices`.

use clap::{Args, ValueEnum};
use strait::gpu::Architecture;

/// Lists the GPUs that joins can run on, and compiles their kernels ahead of the first join
///
/// Kernels are compiled by NVRTC when a join first needs them, and kept in the user's cache folder.
/// STRAIT_NVRTC names the libnvrtc.so to use.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  strait devices
  strait devices --format json
  strait devices --compile
  strait devices --compile --arch sm_80,sm_90")]
pub(crate) struct DevicesArguments {
    /// Compiles every kernel for the GPUs there are, and keeps the code
    #[arg(long, conflicts_with = "format")]
    pub(crate) compile: bool,

    /// Compiles for these architectures instead, as when an image is built on a machine without a
    /// GPU
    #[arg(long, value_name = "sm_XX", value_delimiter = ',', requires = "compile")]
    pub(crate) arch: Vec<Architecture>,

    /// How the list is shown
    #[arg(long, value_enum, default_value = "table")]
    pub(crate) format: ListFormat,
}

/// How a list is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ListFormat {
    /// Aligned, for people
    Table,
    /// One object
    Json,
}

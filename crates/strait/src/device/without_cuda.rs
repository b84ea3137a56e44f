//! Stands in for [`cuda`](super::cuda) if the crate is built without the cargo feature `cuda`. It finds no GPU, and
//! says why.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::device::Device;
pub use crate::device::gpu::{Architecture, Gpu, Link};
use crate::error::{Error, Result};

fn absent() -> Error {
    let why = "this build of Strait has no CUDA; build it with the cargo feature `cuda`";
    Error::NoGpu { why: why.to_string() }
}

impl Gpu {
    /// Fails: this build has no CUDA.
    pub fn detect() -> Result<Vec<Gpu>> {
        Err(absent())
    }

    /// Fails: this build has no CUDA.
    pub fn free_memory(&self) -> Result<u64> {
        Err(absent())
    }
}

/// The compiler of the GPU kernels. This build has none.
#[derive(Debug, Clone)]
pub struct Nvrtc(Infallible);

impl Nvrtc {
    /// Fails: this build has no CUDA.
    pub fn find() -> Result<Nvrtc> {
        Err(absent())
    }

    /// Returns its version.
    pub fn version(&self) -> (u32, u32) {
        match self.0 {}
    }

    /// Returns the path of its library.
    pub fn path(&self) -> Option<&Path> {
        match self.0 {}
    }
}

/// A module of kernels that is ready to be loaded. This build has none.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CompiledKernel {
    /// The name, as in `partition/look_back`.
    pub module: &'static str,
    /// The width of its words, in bytes.
    pub word_bytes: u64,
    /// The size of the code, in bytes.
    pub bytes: u64,
    /// Whether it had been compiled before.
    pub kept: bool,
    /// The time it took.
    pub elapsed: Duration,
}

/// Fails: this build has no CUDA.
pub fn compile_kernels(
    _architecture: Architecture,
    _each: &mut dyn FnMut(&CompiledKernel),
) -> Result<()> {
    Err(absent())
}

/// Returns the folder of compiled kernels. This build has none.
pub fn kernel_cache() -> Option<PathBuf> {
    None
}

/// Returns true: there is no driver, so it takes no time to look for GPUs.
pub(crate) fn is_initialised() -> bool {
    true
}

/// Returns whether a join of this process has used the GPU before: there is none.
pub(crate) fn is_open(_gpu: &Gpu) -> bool {
    false
}

/// Fails: this build has no CUDA.
pub(crate) fn open(_gpu: &Gpu, _gpu_memory: Option<u64>) -> Result<Arc<dyn Device>> {
    Err(absent())
}

/// Fails: this build has no CUDA.
pub(crate) fn shared(gpu: &Gpu, gpu_memory: Option<u64>) -> Result<Arc<dyn Device>> {
    open(gpu, gpu_memory)
}

#[cfg(test)]
mod tests {
    use crate::{Join, Output, Processor};

    #[test]
    fn a_gpu_is_refused_when_the_join_is_bound() {
        let schema = arrow::datatypes::Schema::new(vec![arrow::datatypes::Field::new(
            "k",
            arrow::datatypes::DataType::Int64,
            false,
        )]);
        let bind = |join: Join| join.bind(Output::Count, &schema, &schema).map(|_| ());
        let on_gpu = Join::inner().on("k").device(Processor::Gpu(0));
        let refused = bind(on_gpu).expect_err("there is no CUDA").to_string();
        assert!(refused.contains("cargo feature `cuda`"), "{refused}");
        bind(Join::inner().on("k")).expect("auto uses the CPU");
    }
}

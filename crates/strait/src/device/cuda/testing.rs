//! Functions for the tests of kernels only. They are not part of the crate's public interface.

use super::cache::Cache;
use super::compile;
use super::nvrtc::{Nvrtc, Source};
use super::policy;
use crate::device::abi;
use crate::device::gpu::Architecture;
use crate::error::{Error, Result};
use crate::word::Width;

/// Compiles every module for every width, without a cache. Returns the number of modules.
pub fn compile_all(architecture: &str) -> Result<usize> {
    let mut count = 0;
    compile::compile_all(parse(architecture)?, &Cache::none(), &mut |_| count += 1)?;
    Ok(count)
}

/// Compiles a source that may include the kernels' headers. Returns the size of the code.
pub fn compile_source(name: &str, text: &str, architecture: &str) -> Result<usize> {
    let architecture = parse(architecture)?;
    let source = Source { name, text, headers: policy::HEADERS };
    let options = compile::options(architecture, Width::W64);
    compile::compile(&Nvrtc::find()?, &source, architecture, &options).map(|code| code.len())
}

/// Returns C++ code that asserts that every structure of the ABI has the same layout as in Rust.
pub fn layout_assertions() -> String {
    // NVRTC has neither `offsetof` nor the usual builtin behind it, but it has this one.
    let mut text = String::from(
        "#include \"abi.cuh\"\n#define OFFSET(type, field) __INTADDR__(&(((type*)0)->field))\n",
    );
    for (name, size, fields) in abi::LAYOUTS {
        text += &format!("static_assert(sizeof({name}) == {size}, \"size of {name}\");\n");
        for (field, offset, bytes) in *fields {
            text += &format!(
                "static_assert(OFFSET({name}, {field}) == {offset}, \"offset of {name}.{field}\");\n\
                 static_assert(sizeof((({name}*)0)->{field}) == {bytes}, \"size of {name}.{field}\");\n"
            );
        }
    }
    text + "extern \"C\" __global__ void nothing() {}\n"
}

fn parse(architecture: &str) -> Result<Architecture> {
    architecture.parse().map_err(|what: String| Error::internal(what))
}

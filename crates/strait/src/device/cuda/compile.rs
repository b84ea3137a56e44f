//! From a kernel's source to machine code for one architecture: from the cache, or compiled and then cached.

use std::sync::Mutex;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::cache::{Cache, fingerprint};
use super::nvrtc::{Nvrtc, Source};
use super::policy;
use crate::device::MODULES;
use crate::device::gpu::Architecture;
use crate::error::{Error, Result};
use crate::schedule::lock;
use crate::word::Width;

/// The widths that every module is compiled for.
const WORDS: [Width; 2] = [Width::W32, Width::W64];

/// The machine code of a module.
pub(super) struct Cubin {
    pub(super) code: Vec<u8>,
    /// Whether it came from the cache.
    kept: bool,
    elapsed: Duration,
}

/// A module of kernels that is ready to be loaded.
///
/// ```no_run
/// use strait::gpu::{CompiledKernel, compile_kernels};
///
/// let mut bytes = 0;
/// compile_kernels("sm_90".parse()?, &mut |kernel: &CompiledKernel| {
///     println!("{} for words of {} bytes", kernel.module, kernel.word_bytes);
///     bytes += kernel.bytes;
/// })?;
/// println!("{bytes} bytes of machine code");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

/// Compiles every module that joins may need on GPUs of an architecture, and stores the code for later
/// processes. Calls `each` for every module when it is ready. Needs no GPU.
pub fn compile_kernels(
    architecture: Architecture,
    each: &mut dyn FnMut(&CompiledKernel),
) -> Result<()> {
    compile_all(architecture, &Cache::of_user(), each)
}

/// Returns the folder of compiled kernels, if there is one.
pub fn kernel_cache() -> Option<std::path::PathBuf> {
    Cache::of_user().folder().map(std::path::Path::to_path_buf)
}

/// Compiles on all cores: one module takes up to several seconds, and modules are independent.
pub(super) fn compile_all(
    architecture: Architecture,
    cache: &Cache,
    each: &mut dyn FnMut(&CompiledKernel),
) -> Result<()> {
    let all = MODULES.iter().flat_map(|&(module, _)| WORDS.map(|word| (module, word)));
    let todo = Mutex::new(all.rev().collect::<Vec<_>>());
    let next = || lock(&todo).pop();
    let work = |results: Sender<Result<CompiledKernel>>| {
        while let Some((module, word)) = next() {
            let ready = ready(module, architecture, word, cache).map(|cubin| {
                let Cubin { code, kept, elapsed } = cubin;
                let (word_bytes, bytes) = (word.bytes(), code.len() as u64);
                CompiledKernel { module, word_bytes, bytes, kept, elapsed }
            });
            // The receiver is gone once a module has failed.
            if results.send(ready).is_err() {
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        let (sender, results) = std::sync::mpsc::channel();
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let mut helpers = 0;
        for _ in 0..cores {
            let (work, sender) = (&work, sender.clone());
            let spawned = std::thread::Builder::new().spawn_scoped(scope, move || work(sender));
            helpers += usize::from(spawned.is_ok());
        }
        if helpers == 0 {
            work(sender);
        } else {
            drop(sender);
        }
        results.into_iter().try_for_each(|kernel| kernel.map(|kernel| each(&kernel)))
    })
}

/// A module's code, from the user's cache where it has it.
pub(super) fn cubin(module: &str, architecture: Architecture, word: Width) -> Result<Cubin> {
    let cubin = ready(module, architecture, word, &Cache::of_user())?;
    log::debug!(
        "kernel {module} for {} bytes and {architecture}: {} in {:.3} s",
        word.bytes(),
        if cubin.kept { "loaded" } else { "compiled" },
        cubin.elapsed.as_secs_f64()
    );
    Ok(cubin)
}

fn ready(module: &str, architecture: Architecture, word: Width, cache: &Cache) -> Result<Cubin> {
    let started = Instant::now();
    let compiler = Nvrtc::find()?;
    let Some(&(_, text)) = MODULES.iter().find(|(name, _)| *name == module) else {
        return Err(Error::internal(format!("there is no kernel \"{module}\"")));
    };
    let source = Source { name: module, text, headers: policy::HEADERS };
    let options = options(architecture, word);
    let key = key(&source, &options, compiler.version());
    let name = format!("{module}-w{}-{architecture}", word.bytes());
    let found = cache.load(&name, key);
    let kept = found.is_some();
    let code = match found {
        Some(code) => code,
        None => {
            let code = compile(&compiler, &source, architecture, &options)?;
            cache.store(&name, key, &code);
            code
        }
    };
    Ok(Cubin { code, kept, elapsed: started.elapsed() })
}

/// Compiles any source with our headers.
pub(super) fn compile(
    compiler: &Nvrtc,
    source: &Source<'_>,
    architecture: Architecture,
    options: &[String],
) -> Result<Vec<u8>> {
    compiler.compile(source, options).map_err(|log| {
        let (major, minor) = compiler.version();
        Error::KernelCompile {
            module: source.name.to_string(),
            architecture: architecture.to_string(),
            version: format!("{major}.{minor}"),
            log,
        }
    })
}

pub(super) fn options(architecture: Architecture, word: Width) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={architecture}"),
        "-std=c++17".to_string(),
        format!("-DWORD_BYTES={}", word.bytes()),
    ];
    options.extend(policy::options(architecture.capability(), word));
    options
}

/// Returns a fingerprint of everything that determines the code.
fn key(source: &Source<'_>, options: &[String], version: (u32, u32)) -> u128 {
    let version = format!("{}.{}", version.0, version.1);
    let mut parts = vec![
        env!("CARGO_PKG_VERSION").as_bytes(),
        version.as_bytes(),
        source.name.as_bytes(),
        source.text.as_bytes(),
    ];
    parts.extend(source.headers.iter().flat_map(|(name, text)| [name.as_bytes(), text.as_bytes()]));
    parts.extend(options.iter().map(String::as_bytes));
    fingerprint(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_follows_from_everything() {
        let hopper: Architecture = "sm_90".parse().unwrap();
        let ampere: Architecture = "sm_80".parse().unwrap();
        let source = |text| Source { name: "a", text, headers: &[("h", "x")] };
        let of = |architecture, word, version, text| {
            key(&source(text), &options(architecture, word), version)
        };
        let base = of(hopper, Width::W64, (13, 0), "code");
        assert_eq!(base, of(hopper, Width::W64, (13, 0), "code"));
        assert_ne!(base, of(ampere, Width::W64, (13, 0), "code"));
        assert_ne!(base, of(hopper, Width::W32, (13, 0), "code"));
        assert_ne!(base, of(hopper, Width::W64, (12, 9), "code"));
        assert_ne!(base, of(hopper, Width::W64, (13, 0), "other"));
        let other = Source { name: "a", text: "code", headers: &[("h", "y")] };
        assert_ne!(base, key(&other, &options(hopper, Width::W64), (13, 0)));
    }
}

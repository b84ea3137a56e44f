//! The Python environment of the other engines. The first run creates it from a list of exact versions. It is
//! kept in the user's cache folder, under a name that depends on the list.

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, bail};

use crate::arguments::PythonArguments;
use crate::failure::say;
use crate::interrupt;

/// The exact versions of the engines.
const REQUIREMENTS: &str = include_str!("../../../../benchmarks/requirements.txt");

/// The environment variable that names the interpreter if no argument does.
const PYTHON: &str = "STRAIT_PYTHON";

/// Returns the Python interpreter that has the engines. Installs them if necessary, unless the user has named an
/// interpreter.
pub(super) fn python(chosen: &PythonArguments) -> anyhow::Result<PathBuf> {
    let variable = || std::env::var_os(PYTHON).filter(|path| !path.is_empty()).map(PathBuf::from);
    match chosen.python.clone().or_else(variable) {
        Some(python) => Ok(python),
        None => installed(),
    }
}

/// Returns the interpreter of the environment in the cache folder.
fn installed() -> anyhow::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    REQUIREMENTS.hash(&mut hasher);
    let cache = cache()?;
    let place = cache.join(format!("engines-{:016x}", hasher.finish()));
    let python = place.join("bin").join("python");
    if python.exists() {
        return Ok(python);
    }
    std::fs::create_dir_all(&cache)
        .with_context(|| format!("cannot make folder {}", cache.display()))?;
    let aside = cache.join(format!(".engines-{}", std::process::id()));
    interrupt::make(|| Ok(aside.clone()), PathBuf::as_path)
        .context("cannot install the engines")?;
    let installed = install(&aside);
    // The environment gets its final name only when it is complete. Another process may have been faster.
    interrupt::forget_after(&aside, || {
        let placed = installed.and_then(|()| match std::fs::rename(&aside, &place) {
            Err(error) if !python.exists() => Err(error).context("cannot name the environment"),
            _ => Ok(()),
        });
        let _ = std::fs::remove_dir_all(&aside);
        placed
    })?;
    Ok(python)
}

fn cache() -> anyhow::Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")))
        .context("neither HOME nor XDG_CACHE_HOME says where to install the engines")?;
    Ok(base.join("strait"))
}

fn install(folder: &Path) -> anyhow::Result<()> {
    say(format_args!("installing the engines, once: {}", versions().join(", ")));
    run(OsStr::new("python3"), &[OsStr::new("-m"), OsStr::new("venv"), folder.as_os_str()])
        .context("cannot make a Python environment; python3 with its venv module is needed")?;
    let list = folder.join("requirements.txt");
    std::fs::write(&list, REQUIREMENTS)
        .with_context(|| format!("cannot write {}", list.display()))?;
    let python = folder.join("bin").join("python");
    let arguments = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
    let arguments: Vec<&OsStr> =
        arguments.iter().map(OsStr::new).chain([list.as_os_str()]).collect();
    run(python.as_os_str(), &arguments)
        .context("cannot install the engines; a connection to a package index is needed once")?;
    Ok(())
}

fn versions() -> Vec<&'static str> {
    REQUIREMENTS.lines().filter(|line| line.contains("==")).collect()
}

fn run(program: &OsStr, arguments: &[&OsStr]) -> anyhow::Result<()> {
    let output = Command::new(program).args(arguments).output()?;
    succeeded(&output)
}

/// Fails with the last output of a process that failed.
pub(super) fn succeeded(output: &Output) -> anyhow::Result<()> {
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty());
    bail!("{} ({})", last.unwrap_or("it said nothing").trim(), output.status)
}

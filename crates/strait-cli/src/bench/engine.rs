//! Measures one engine in its own process: another engine through its Python package, or Strait through this
//! command itself.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use serde::Deserialize;
use strait_bench::measure::median;
use strait_bench::workload::{Answer, EXPECTED};

use super::environment::succeeded;
use super::figures::{Figures, Resident, Seconds};
use crate::arguments::{ComparedMode, Engine};

/// The work that every engine gets.
pub(super) struct Work<'a> {
    /// The folder with the tables and the answer.
    pub(super) tables: &'a Path,
    pub(super) mode: ComparedMode,
    pub(super) repeat: u32,
    pub(super) threads: usize,
}

/// The result of one engine.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub(super) engine: &'static str,
    pub(super) variant: String,
    pub(super) version: String,
    pub(super) seconds: Seconds,
    pub(super) resident: Resident,
}

impl ComparedMode {
    pub(super) fn name(self) -> &'static str {
        match self {
            ComparedMode::Aggregate => "aggregate",
            ComparedMode::Materialise => "materialise",
        }
    }
}

impl Engine {
    pub(super) fn name(self) -> &'static str {
        match self {
            Engine::DuckDb => "duckdb",
            Engine::Polars => "polars",
            Engine::DataFusion => "datafusion",
            Engine::PyArrow => "pyarrow",
        }
    }

    /// The configurations of the engine in a mode. The fastest counts.
    pub(super) fn variants(self, mode: ComparedMode) -> &'static [&'static str] {
        match (self, mode) {
            (Engine::DuckDb, ComparedMode::Aggregate) => &["arrow", "native"],
            (Engine::DuckDb, ComparedMode::Materialise) => &["arrow", "native", "table"],
            (Engine::Polars, _) => &["streaming"],
            (Engine::DataFusion, _) => &["memory"],
            (Engine::PyArrow, _) => &["acero"],
        }
    }

    fn source(self) -> &'static str {
        match self {
            Engine::DuckDb => include_str!("../../../../benchmarks/engines/duckdb.py"),
            Engine::Polars => include_str!("../../../../benchmarks/engines/polars.py"),
            Engine::DataFusion => include_str!("../../../../benchmarks/engines/datafusion.py"),
            Engine::PyArrow => include_str!("../../../../benchmarks/engines/pyarrow.py"),
        }
    }
}

/// The scripts that measure engines, in a folder, and the Python interpreter that runs them.
pub(super) struct Drivers {
    python: PathBuf,
    drive: PathBuf,
    folder: PathBuf,
}

impl Drivers {
    pub(super) fn write(
        python: PathBuf,
        folder: &Path,
        engines: &[Engine],
    ) -> anyhow::Result<Drivers> {
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            std::fs::write(&path, text)
                .with_context(|| format!("cannot write {}", path.display()))
                .map(|()| path)
        };
        let drive = write("drive.py", include_str!("../../../../benchmarks/drive.py"))?;
        for engine in engines {
            write(&format!("{}.py", engine.name()), engine.source())?;
        }
        Ok(Drivers { python, drive, folder: folder.to_path_buf() })
    }

    /// Returns the command that runs an engine. The mode and its arguments are missing.
    pub(super) fn command(&self, engine: Engine, variant: &str) -> Command {
        let mut command = Command::new(&self.python);
        // Isolated mode: ignores the scripts' folder and the user's packages.
        command.arg("-I").arg("-B").arg(&self.drive);
        command.arg(self.folder.join(format!("{}.py", engine.name()))).arg(variant);
        command
    }

    /// Measures an engine and checks all its answers.
    pub(super) fn measure(
        &self,
        engine: Engine,
        variant: &str,
        work: &Work,
    ) -> anyhow::Result<Outcome> {
        let mut command = self.command(engine, variant);
        command.arg(work.mode.name()).arg(work.tables);
        command.args([work.repeat.to_string(), work.threads.to_string()]);
        let said: Said = answered(&mut command)?;
        let expected: Answer = {
            let text =
                std::fs::read(work.tables.join(EXPECTED)).context("cannot read the answer")?;
            serde_json::from_slice(&text).context("cannot read the answer")?
        };
        said.answers.iter().try_for_each(|answer| expected.check_all(answer))?;
        let mut seconds = said.seconds;
        seconds.sort_by(f64::total_cmp);
        let min = seconds.first().copied().context("it timed no run")?;
        Ok(Outcome {
            engine: engine.name(),
            variant: variant.to_string(),
            version: said.version,
            seconds: Seconds { median: median(&seconds), min },
            resident: said.resident,
        })
    }
}

/// The output of `drive.py`.
#[derive(Deserialize)]
struct Said {
    version: String,
    seconds: Vec<f64>,
    answers: Vec<Answer>,
    resident: Resident,
}

/// Measures Strait, which checks its answers itself.
pub(super) fn measure_strait(work: &Work) -> anyhow::Result<Outcome> {
    let program = std::env::current_exe().context("cannot find this command's own file")?;
    let mut command = Command::new(program);
    command.args(["bench", "join", "--format", "json", "--mode", work.mode.name()]);
    command.arg("--workload-dir").arg(work.tables);
    command.args(["--repeat", &work.repeat.to_string()]);
    command.args(["--threads", &work.threads.to_string()]);
    let figures: Figures = answered(&mut command)?;
    Ok(Outcome {
        engine: "strait",
        variant: figures.ran,
        version: env!("CARGO_PKG_VERSION").to_string(),
        seconds: figures.seconds,
        resident: figures.resident,
    })
}

/// Runs a process that prints one JSON object.
fn answered<T: for<'de> Deserialize<'de>>(command: &mut Command) -> anyhow::Result<T> {
    let output = command.stdin(Stdio::null()).output().context("cannot start it")?;
    succeeded(&output)?;
    serde_json::from_slice(&output.stdout).context("it printed something else than figures")
}

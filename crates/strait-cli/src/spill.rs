//! Decides whether a join may write rows to disk, and checks its folders before any input is read.

use std::path::Path;
use std::sync::Arc;

use anyhow::bail;
use strait::{Algorithm, SpillStore, TempFolders};

use crate::arguments::JoinArguments;

/// Whether a join may write rows to disk.
#[derive(Debug)]
pub(crate) enum Spilling {
    /// Memory is not limited, so nothing has to go to disk.
    Unlimited,
    /// The user gave `--no-spill`.
    Forbidden,
    /// Rows that do not fit the memory limit go to disk.
    IfNeeded(Arc<TempFolders>),
    /// The user asked for the algorithm that partitions both tables to disk.
    Always(Arc<TempFolders>),
}

impl Spilling {
    /// Decides from the arguments whether the join may spill, and where to. Fails if a folder that the user named
    /// cannot be used. With `--algorithm spill`, the system's folder is checked, too.
    pub(crate) fn of(arguments: &JoinArguments) -> anyhow::Result<Spilling> {
        let flags = &arguments.spill;
        for folder in &flags.temp_dirs {
            check(folder, &format!("--temp-dir {}", folder.display()), "name another folder")?;
        }
        let folders = || Arc::new(TempFolders::new(flags.temp_dirs.clone()).with_limit(flags.disk));
        Ok(match arguments.algorithm.0 {
            Some(Algorithm::Spill) => {
                if flags.temp_dirs.is_empty() {
                    let folder = std::env::temp_dir();
                    let name =
                        format!("the system's folder for temporary files, {},", folder.display());
                    check(&folder, &name, "name another folder with --temp-dir")?;
                }
                Spilling::Always(folders())
            }
            _ if arguments.memory.is_none() => Spilling::Unlimited,
            _ if flags.no_spill => Spilling::Forbidden,
            // The system's folder is checked when it is needed: most joins fit memory.
            _ => Spilling::IfNeeded(folders()),
        })
    }

    /// Returns the place for temporary files, if the join may write some.
    pub(crate) fn store(&self) -> Option<Arc<dyn SpillStore>> {
        match self {
            Spilling::IfNeeded(folders) | Spilling::Always(folders) => {
                Some(Arc::clone(folders) as _)
            }
            _ => None,
        }
    }

    /// Returns what else the user can do if the memory limit is too small, as the end of a sentence.
    pub(crate) fn advice(&self) -> &'static str {
        match self {
            Spilling::Forbidden => {
                ", or leave out --no-spill, so that rows that do not fit go to disk"
            }
            Spilling::IfNeeded(_) => ", or try --algorithm spill, which holds fewer rows in memory",
            Spilling::Unlimited | Spilling::Always(_) => "",
        }
    }

    /// Returns a line for `--explain`.
    pub(crate) fn explained(&self, arguments: &JoinArguments) -> String {
        let limit = strait::bytes(arguments.memory.unwrap_or(u64::MAX));
        let most = arguments.spill.disk.map(strait::bytes);
        let most = most.map_or(String::new(), |most| format!(", at most {most} at once"));
        match self {
            Spilling::Unlimited => String::new(),
            Spilling::Forbidden => {
                format!(
                    "spilling: none, because of --no-spill; the join fails if it does not fit {limit}\n"
                )
            }
            Spilling::IfNeeded(folders) => format!(
                "spilling: if the join does not fit {limit}, it writes rows to temporary files in {}{most}\n",
                folders.place()
            ),
            Spilling::Always(folders) => {
                format!(
                    "spilling: both tables go to temporary files in {}{most}\n",
                    folders.place()
                )
            }
        }
    }
}

/// Checks that files can be created in a folder. Messages call the folder `name`.
pub(crate) fn check(folder: &Path, name: &str, instead: &str) -> anyhow::Result<()> {
    match folder.metadata() {
        Ok(found) if !found.is_dir() => bail!("{name} is not a folder; {instead}"),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("{name} does not exist; create the folder, or {instead}")
        }
        Err(error) => bail!("{name} cannot be used: {error}; {instead}"),
    }
    // The file has no name, and is gone when it is dropped.
    match TempFolders::new(vec![folder.to_path_buf()]).create() {
        Ok(_) => Ok(()),
        Err(error) => {
            // The cause, without the folder.
            let inner = error.get_ref().and_then(|inner| inner.source());
            let cause = inner.map_or_else(|| error.to_string(), |cause| cause.to_string());
            bail!(
                "no file can be created in {name}: {cause}; make the folder writable, or {instead}"
            )
        }
    }
}

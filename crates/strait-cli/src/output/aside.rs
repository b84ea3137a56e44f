//! A file that is written aside: a temporary file in the target's folder, which gets the target's name at the
//! end. Until then, the target is unchanged. If writing does not finish, the temporary file is removed.

use std::fs::{self, File, Permissions};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use tempfile::NamedTempFile;

use crate::interrupt;

/// A file that is being written aside.
pub(crate) struct Aside {
    temporary: Option<NamedTempFile>,
    target: PathBuf,
    overwrite: bool,
}

impl Aside {
    /// Checks that `target` may be written, without changing anything.
    pub(crate) fn check(target: &Path, overwrite: bool) -> anyhow::Result<()> {
        let shown = target.display();
        match fs::metadata(target) {
            Ok(found) if found.is_dir() => {
                bail!("{shown} is a folder; name a file in it, as in {shown}/joined.parquet")
            }
            Ok(found) if !found.is_file() => {
                bail!("{shown} is not a regular file; write to - and redirect it there")
            }
            Ok(_) if !overwrite => {
                bail!("{shown} exists already; add --overwrite to replace it, or write elsewhere")
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot write {shown}")),
        }
        let folder = folder_of(target);
        if !folder.is_dir() {
            bail!("cannot write {shown}: there is no folder {}; make it first", folder.display());
        }
        Ok(())
    }

    /// Creates the temporary file next to `target`.
    pub(crate) fn begin(target: &Path, overwrite: bool) -> anyhow::Result<Aside> {
        Aside::check(target, overwrite)?;
        // A link stays a link: the file that it points to is replaced.
        let target = fs::canonicalize(target).unwrap_or_else(|_| target.to_path_buf());
        let folder = folder_of(&target).to_path_buf();
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let prefix = format!(".{name}.");
        // The new file keeps the permissions of the file that it replaces.
        let permissions = fs::metadata(&target).ok().map(|found| found.permissions());
        let make = || {
            let mut builder = tempfile::Builder::new();
            builder.prefix(&prefix).suffix(".tmp");
            if let Some(permissions) = permissions.or_else(ordinary) {
                builder.permissions(permissions);
            }
            builder.tempfile_in(&folder)
        };
        let temporary = interrupt::make(make, NamedTempFile::path)
            .with_context(|| format!("cannot write to folder {}", folder.display()))?;
        log::debug!("writing {} aside as {}", target.display(), temporary.path().display());
        Ok(Aside { temporary: Some(temporary), target, overwrite })
    }

    /// Returns a handle for writing.
    pub(crate) fn file(&self) -> anyhow::Result<File> {
        let temporary = self.temporary.as_ref().context("the file is in its place already")?;
        temporary.as_file().try_clone().context("cannot open the temporary file again")
    }

    /// Syncs the bytes to disk, and gives the file its name.
    pub(crate) fn persist(mut self) -> io::Result<()> {
        let Some(temporary) = self.temporary.take() else { return Ok(()) };
        let path = temporary.path().to_path_buf();
        let synced = temporary.as_file().sync_all();
        interrupt::forget_after(&path, || {
            synced?;
            // Another process may have created the target since `begin`.
            let renamed = if self.overwrite {
                temporary.persist(&self.target)
            } else {
                temporary.persist_noclobber(&self.target)
            };
            renamed.map_err(|error| error.error).map(drop)
        })?;
        // Not every file system can sync a folder. The file is complete either way.
        let _ = File::open(folder_of(&self.target)).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            let path = temporary.path().to_path_buf();
            interrupt::forget_after(&path, || drop(temporary));
        }
    }
}

/// Returns the final path of a file that is not written yet: the folder without links, and the file's own
/// name.
pub(crate) fn resolved(path: &Path) -> anyhow::Result<PathBuf> {
    if let Ok(path) = fs::canonicalize(path) {
        return Ok(path);
    }
    let name = path.file_name().ok_or_else(|| anyhow!("{} names no file", path.display()))?;
    let folder = folder_of(path);
    Ok(fs::canonicalize(folder).unwrap_or_else(|_| folder.to_path_buf()).join(name))
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// The permissions of new files, before the process's umask applies.
fn ordinary() -> Option<Permissions> {
    #[cfg(unix)]
    return Some(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    #[cfg(not(unix))]
    None
}

//! A file that is written aside: a temporary file in the target's folder, which gets the target's name at the
//! end. Until then, the target is unchanged. If writing does not finish, the temporary file is removed.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::temporary::{Temporary, folder_of};
use anyhow::{Context, anyhow, bail};

/// A file that is being written aside.
pub(crate) struct Aside {
    temporary: Option<Temporary>,
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
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if target.is_symlink() {
                    bail!("{shown} is a link to a file that does not exist; name the file itself")
                }
            }
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
        // The new file keeps the permissions of the file that it replaces.
        let permissions = fs::metadata(&target).ok().map(|found| found.permissions());
        let temporary = Temporary::new(&target, permissions)
            .with_context(|| format!("cannot write to folder {}", folder_of(&target).display()))?;
        Ok(Aside { temporary: Some(temporary), target, overwrite })
    }

    /// Returns a handle for writing.
    pub(crate) fn file(&self) -> anyhow::Result<File> {
        let temporary = self.temporary.as_ref().context("the file is in its place already")?;
        temporary.file().try_clone().context("cannot open the temporary file again")
    }

    /// Syncs the bytes to disk, and gives the file its name.
    pub(crate) fn persist(mut self) -> io::Result<()> {
        let Some(temporary) = self.temporary.take() else { return Ok(()) };
        if let Err(error) = temporary.file().sync_all() {
            temporary.remove();
            return Err(error);
        }
        // Another process may have created the target since `begin`.
        temporary.persist(&self.target, self.overwrite)?;
        // Not every file system can sync a folder. The file is complete either way.
        let _ = File::open(folder_of(&self.target)).and_then(|folder| folder.sync_all());
        Ok(())
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if let Some(temporary) = self.temporary.take() {
            temporary.remove();
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

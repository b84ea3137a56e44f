//! The file that keeps the history of the prompt. Only its user may read it, because statements may have secrets.

use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Returns the file of the history, and creates it if it does not exist. `None` if there is no place for it.
pub(super) fn file() -> Option<PathBuf> {
    let path = place(std::env::var_os("XDG_STATE_HOME"), std::env::var_os("HOME"))?;
    match create(&path) {
        Ok(()) => Some(path),
        Err(error) => {
            log::warn!("the history cannot be kept in {}: {error}", path.display());
            None
        }
    }
}

/// Returns the path of the history, in the folder where the user's programs keep their state.
fn place(states: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|p| p.is_absolute());
    let states = absolute(states).or_else(|| Some(absolute(home)?.join(".local/state")))?;
    Some(states.join("strait/sql-history"))
}

fn create(path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(path).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_folder_for_states_comes_first() {
        let place = |states: Option<&str>, home: Option<&str>| {
            place(states.map(OsString::from), home.map(OsString::from))
        };
        let at = |path: &str| Some(PathBuf::from(path));
        assert_eq!(place(Some("/s"), Some("/h")), at("/s/strait/sql-history"));
        assert_eq!(place(None, Some("/h")), at("/h/.local/state/strait/sql-history"));
        assert_eq!(place(Some("relative"), Some("/h")), at("/h/.local/state/strait/sql-history"));
        assert_eq!(place(None, None), None);
    }

    #[test]
    fn only_the_user_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/history");
        create(&path).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
        create(&path).unwrap();
    }
}

//! Compiled kernels on disk, so that only the first join after an installation compiles.
//!
//! A cached file is code that runs on the GPU with the rights of this process. So it is used only if the file
//! and its folder belong to the current user, and nobody else may write to them. A file has this layout:
//!
//! | bytes | content |
//! | --- | --- |
//! | 16 | [`MAGIC`] |
//! | 16 | the key: a fingerprint of everything that determines the code |
//! | 8 | the length of the code |
//! | 16 | the fingerprint of the code |
//! | … | the code |
//!
//! If anything is wrong with a file, the kernel is compiled again. If the cache cannot be written, the next
//! process compiles again. Neither stops a join.

use std::fs::{DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

const MAGIC: &[u8; 16] = b"strait cubin  1\n";
const HEAD: usize = 16 + 16 + 8 + 16;

/// A folder of compiled kernels. Without a folder, the cache is always empty.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// Returns the user's cache: `$XDG_CACHE_HOME/strait/kernels`, or below `~/.cache`.
    pub(super) fn of_user() -> Cache {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let base = set("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")));
        if base.is_none() {
            unkept("neither HOME nor XDG_CACHE_HOME says where");
        }
        Cache { folder: base.map(|base| base.join("strait").join("kernels")) }
    }

    /// Returns a cache that keeps nothing.
    pub(super) fn none() -> Cache {
        Cache { folder: None }
    }

    /// Returns its folder.
    pub(super) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Returns the code that was stored under this name and key, if the file passes all checks.
    pub(super) fn load(&self, name: &str, key: u128) -> Option<Vec<u8>> {
        let folder = self.folder.as_deref()?;
        let path = folder.join(file_name(name, key));
        match read(folder, &path, key) {
            Ok(code) => Some(code),
            Err(Unfit::Absent) => None,
            Err(Unfit::Odd(why)) => {
                log::warn!("{} is not used: {why}; the kernel is compiled again", path.display());
                None
            }
        }
    }

    /// Stores code under a name and a key, if possible.
    pub(super) fn store(&self, name: &str, key: u128, code: &[u8]) {
        let Some(folder) = self.folder.as_deref() else { return };
        if let Err(error) = write(folder, &file_name(name, key), key, code) {
            unkept(&format!(
                "cannot write to {}: {error}; XDG_CACHE_HOME names another place",
                folder.display()
            ));
        }
    }
}

/// Warns once, because all files share the same folder and therefore the same problem.
fn unkept(why: &str) {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| log::warn!("compiled kernels are not kept: {why}"));
}

/// Why a file is not used.
enum Unfit {
    Absent,
    Odd(String),
}

impl From<io::Error> for Unfit {
    fn from(error: io::Error) -> Unfit {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Unfit::Absent,
            _ => Unfit::Odd(error.to_string()),
        }
    }
}

fn file_name(name: &str, key: u128) -> String {
    format!("{}-{key:032x}.cubin", name.replace('/', "-"))
}

fn read(folder: &Path, path: &Path, key: u128) -> Result<Vec<u8>, Unfit> {
    // Checks and reads use the same open file, and links are not followed. So the checked file is the one
    // read.
    let open = |path: &Path, flags| {
        OpenOptions::new().read(true).custom_flags(flags | libc::O_NOFOLLOW).open(path)
    };
    ours(&open(folder, libc::O_DIRECTORY)?.metadata()?, "its folder")?;
    let mut file = open(path, libc::O_NONBLOCK)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(Unfit::Odd("it is not a file".to_string()));
    }
    ours(&metadata, "it")?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    unpack(&bytes, key).map(<[u8]>::to_vec).map_err(|why| Unfit::Odd(why.to_string()))
}

/// Checks that nobody else can have written it.
fn ours(metadata: &Metadata, what: &str) -> Result<(), Unfit> {
    // SAFETY: only returns the user id; cannot fail.
    let us = unsafe { libc::geteuid() };
    if metadata.uid() != us {
        return Err(Unfit::Odd(format!("{what} belongs to another user")));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(Unfit::Odd(format!(
            "other users may write to {what}; forbid this with `chmod go-w`"
        )));
    }
    Ok(())
}

fn unpack(bytes: &[u8], key: u128) -> Result<&[u8], &'static str> {
    let (head, code) = bytes.split_at_checked(HEAD).ok_or("it is too short")?;
    let length = (code.len() as u64).to_le_bytes();
    let right: [(&[u8], &'static str); 4] = [
        (MAGIC, "it is of another format"),
        (&key.to_le_bytes(), "it is for other kernels"),
        (&length, "its length is wrong"),
        (&fingerprint([code]).to_le_bytes(), "it is damaged"),
    ];
    let mut rest = head;
    for (expected, why) in right {
        rest = rest.strip_prefix(expected).ok_or(why)?;
    }
    Ok(code)
}

fn write(folder: &Path, name: &str, key: u128, code: &[u8]) -> io::Result<()> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    // Written to a temporary file and renamed, so that other processes see a complete file or none.
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let aside = folder.join(format!(".{name}.{}.{count}", std::process::id()));
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&aside)
        .and_then(|file| fill(file, key, code))
        .and_then(|()| std::fs::rename(&aside, folder.join(name)));
    if written.is_err() {
        let _ = std::fs::remove_file(&aside);
    }
    written
}

fn fill(mut file: File, key: u128, code: &[u8]) -> io::Result<()> {
    file.write_all(MAGIC)?;
    file.write_all(&key.to_le_bytes())?;
    file.write_all(&(code.len() as u64).to_le_bytes())?;
    file.write_all(&fingerprint([code]).to_le_bytes())?;
    file.write_all(code)
}

/// The 128-bit FNV-1a hash over all parts and their lengths. Unlike the hashers of maps, it is the same in
/// every process and version. It protects against accidents, not against attackers: [`ours`] keeps
/// attackers out.
pub(super) fn fingerprint<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u128 {
    const START: u128 = 0x6c62272e07bb014262b821756295c58d;
    const PRIME: u128 = 0x0000000001000000000000000000013b;
    let step = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
    parts.into_iter().fold(START, |hash, part| {
        let hash = (part.len() as u64).to_le_bytes().iter().fold(hash, step);
        part.iter().fold(hash, step)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    /// A separate folder per test, removed at its end.
    struct Place(PathBuf);

    impl Place {
        fn new(name: &str) -> Place {
            let path =
                std::env::temp_dir().join(format!("strait-cache-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&path);
            Place(path)
        }

        fn cache(&self) -> Cache {
            Cache { folder: Some(self.0.join("kernels")) }
        }

        fn file(&self) -> PathBuf {
            self.0.join("kernels").join(file_name(NAME, KEY))
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = std::fs::set_permissions(self.0.join("kernels"), Permissions::from_mode(0o700));
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const NAME: &str = "partition/look_back-w8-sm_90";
    const KEY: u128 = 0x1234_5678_9abc_def0_0fed_cba9_8765_4321;
    const CODE: &[u8] = b"not really code";

    fn filled(name: &str) -> (Place, Cache) {
        let place = Place::new(name);
        let cache = place.cache();
        assert_eq!(cache.load(NAME, KEY), None);
        cache.store(NAME, KEY, CODE);
        assert_eq!(cache.load(NAME, KEY).as_deref(), Some(CODE));
        (place, cache)
    }

    #[test]
    fn what_was_kept_is_found() {
        let (place, cache) = filled("hit");
        assert_eq!(cache.load(NAME, KEY + 1), None);
        assert_eq!(cache.load("table/probe-w8-sm_90", KEY), None);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(&place.file()), 0o600);
        assert_eq!(mode(place.file().parent().unwrap()), 0o700);
        let entries = std::fs::read_dir(place.file().parent().unwrap()).unwrap();
        assert_eq!(entries.count(), 1, "nothing is left aside");
        cache.store(NAME, KEY, b"newer");
        assert_eq!(cache.load(NAME, KEY).as_deref(), Some(&b"newer"[..]));
    }

    #[test]
    fn a_damaged_file_is_not_used() {
        let (place, cache) = filled("damage");
        let whole = std::fs::read(place.file()).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(place.file(), bytes).unwrap();
            assert_eq!(cache.load(NAME, KEY), None, "byte {at}");
        }
        for length in 0..whole.len() {
            std::fs::write(place.file(), &whole[..length]).unwrap();
            assert_eq!(cache.load(NAME, KEY), None, "cut to {length}");
        }
        std::fs::write(place.file(), [&whole[..], b"x"].concat()).unwrap();
        assert_eq!(cache.load(NAME, KEY), None, "one byte too many");
        cache.store(NAME, KEY, CODE);
        assert_eq!(cache.load(NAME, KEY).as_deref(), Some(CODE), "mended");
    }

    #[test]
    fn a_file_under_another_key_is_not_used() {
        let (place, cache) = filled("moved");
        let other = place.file().with_file_name(file_name(NAME, KEY + 1));
        std::fs::rename(place.file(), other).unwrap();
        assert_eq!(cache.load(NAME, KEY + 1), None);
    }

    #[test]
    fn what_others_can_write_is_not_used() {
        let (place, cache) = filled("rights");
        for mode in [0o620, 0o602] {
            std::fs::set_permissions(place.file(), Permissions::from_mode(mode)).unwrap();
            assert_eq!(cache.load(NAME, KEY), None, "{mode:o}");
        }
        std::fs::set_permissions(place.file(), Permissions::from_mode(0o644)).unwrap();
        assert_eq!(cache.load(NAME, KEY).as_deref(), Some(CODE));
        let folder = place.file().parent().unwrap().to_path_buf();
        std::fs::set_permissions(&folder, Permissions::from_mode(0o770)).unwrap();
        assert_eq!(cache.load(NAME, KEY), None, "folder");
    }

    #[test]
    fn a_link_is_not_followed() {
        let (place, cache) = filled("link");
        let elsewhere = place.0.join("elsewhere");
        std::fs::rename(place.file(), &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, place.file()).unwrap();
        assert_eq!(cache.load(NAME, KEY), None);
    }

    #[test]
    fn a_folder_that_cannot_be_made_stops_nothing() {
        let place = Place::new("unwritable");
        std::fs::create_dir_all(&place.0).unwrap();
        // A file where the folder should be: even the superuser cannot write there.
        std::fs::write(place.0.join("kernels"), b"").unwrap();
        let cache = place.cache();
        cache.store(NAME, KEY, CODE);
        assert_eq!(cache.load(NAME, KEY), None);
        Cache::none().store(NAME, KEY, CODE);
        assert_eq!(Cache::none().load(NAME, KEY), None);
    }

    #[test]
    fn fingerprints_tell_where_parts_end() {
        assert_eq!(fingerprint([]), 0x6c62272e07bb014262b821756295c58d);
        assert_ne!(fingerprint([b"ab".as_slice(), b"c"]), fingerprint([b"a".as_slice(), b"bc"]));
    }
}

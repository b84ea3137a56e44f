//! The folder for the files of jobs: in memory if there is room.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::bench::temporary::Temporary;

/// The file system in memory that every Linux system has.
const IN_MEMORY: &str = "/dev/shm";

/// A temporary folder, and where it is.
pub(super) struct Place {
    pub(super) folder: Temporary,
    pub(super) in_memory: bool,
}

impl Place {
    /// Makes a folder with room for `bytes`, in memory if possible.
    pub(super) fn choose(bytes: u64) -> anyhow::Result<Place> {
        let shared = Path::new(IN_MEMORY);
        if let Some(room) = room_in_memory(shared)
            && bytes <= room
            && let Ok(folder) = Temporary::within(shared)
        {
            return Ok(Place { folder, in_memory: true });
        }
        let folder = Temporary::new()?;
        let in_memory = file_system(folder.path()).is_some_and(|system| system.in_memory);
        Ok(Place { folder, in_memory })
    }

    /// `in memory, /dev/shm/strait-bench-x`.
    pub(super) fn described(&self) -> String {
        let kind = if self.in_memory { "in memory" } else { "on disk" };
        format!("{kind}, {}", self.folder.path().display())
    }

    /// `memory` or `disk`, for the record.
    pub(super) fn kind(&self) -> &'static str {
        if self.in_memory { "memory" } else { "disk" }
    }
}

/// Returns the bytes that files in this folder may take, if it lies in memory. Files take at most half of the
/// memory that is available. The engines need the other half.
fn room_in_memory(folder: &Path) -> Option<u64> {
    let system = file_system(folder).filter(|system| system.in_memory)?;
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    Some(system.free.min(available(&text)? / 2))
}

/// Returns the available memory in the system's description of its memory.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// A file system.
struct FileSystem {
    in_memory: bool,
    /// Bytes that this process may write.
    free: u64,
}

/// Returns the file system of a folder, if the system tells it.
fn file_system(folder: &Path) -> Option<FileSystem> {
    let path = CString::new(folder.as_os_str().as_bytes()).ok()?;
    // SAFETY: `statfs` consists of integers, so that all zeros are a valid value.
    let mut facts: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero byte, and `facts` is a live variable of the type that the system writes.
    if unsafe { libc::statfs(path.as_ptr(), &mut facts) } != 0 {
        return None;
    }
    let free = (facts.f_bavail as u64).saturating_mul(facts.f_bsize as u64);
    Some(FileSystem { in_memory: facts.f_type == libc::TMPFS_MAGIC, free })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_the_systems_text() {
        let text = "MemTotal:  100 kB\nMemFree:  10 kB\nMemAvailable:   42 kB\n";
        assert_eq!(available(text), Some(42 << 10));
        assert_eq!(available("MemTotal: 100 kB"), None);
    }

    #[test]
    fn files_that_do_not_fit_go_elsewhere() {
        let place = Place::choose(u64::MAX).unwrap();
        let parent = place.folder.path().parent().unwrap().to_path_buf();
        assert_eq!(parent, std::env::temp_dir());
        assert!(place.described().contains("strait-bench-"));
        let path = place.folder.path().to_path_buf();
        drop(place);
        assert!(!path.exists());
    }
}

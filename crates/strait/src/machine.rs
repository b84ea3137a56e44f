//! The cores, caches and memory of the machine.

use std::sync::OnceLock;

/// The cores, caches and memory that a plan can use.
///
/// ```
/// let machine = strait::Machine::detect();
/// assert!(machine.cores >= 1);
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Machine {
    /// The number of cores that this process may use.
    pub cores: usize,
    /// The size of one core's second-level cache, in bytes. The CPU algorithms size their partitions by it.
    pub l2: u64,
    /// The size of the last-level cache, in bytes.
    pub last_level: u64,
    /// The memory that this process may use, in bytes: the memory of the machine, or the limit of its control
    /// group if that is lower. Zero if unknown.
    pub memory: u64,
}

impl Machine {
    /// Asks the operating system. For facts that the system does not tell, it assumes a small machine. It asks
    /// once per process, because small joins would spend most of their time on that.
    pub fn detect() -> Machine {
        static MACHINE: OnceLock<Machine> = OnceLock::new();
        let detected = MACHINE.get_or_init(|| Machine {
            cores: std::thread::available_parallelism().map_or(1, |n| n.get()),
            l2: cache(2).unwrap_or(1 << 20),
            last_level: cache(3).or_else(|| cache(2)).unwrap_or(8 << 20),
            memory: available_memory().unwrap_or(0),
        });
        detected.clone()
    }

    /// Returns the memory that this process can still get, in bytes: the free memory of the machine, or what
    /// its control groups have left if that is less. `None` if the system does not tell.
    pub fn free_memory() -> Option<u64> {
        let free = own_groups().into_iter().filter_map(|folder| {
            let (limit, used) = (read_group(&folder, LIMITS)?, read_group(&folder, USED)?);
            let stat = std::fs::read_to_string(format!("{folder}/memory.stat"));
            free_in_group(&limit, &used, &stat.unwrap_or_default())
        });
        let machine = in_meminfo(&meminfo(), "MemAvailable:");
        machine.into_iter().chain(available_memory()).chain(free).min()
    }
}

/// Returns the size of core 0's data or unified cache of a level.
fn cache(level: u32) -> Option<u64> {
    (0..8).find_map(|index| {
        let read = |file: &str| {
            let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{file}");
            std::fs::read_to_string(path).ok().map(|text| text.trim().to_string())
        };
        let holds_data = read("type")? != "Instruction";
        let here = holds_data && read("level")?.parse() == Ok(level);
        if here { parse_size(&read("size")?) } else { None }
    })
}

/// Parses a size such as `2048K` into bytes.
fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "" => 1,
        _ => return None,
    };
    digits.parse::<u64>().ok().map(|n| n * unit)
}

/// Returns the machine's memory, or the limit of the process's control group if that is lower.
fn available_memory() -> Option<u64> {
    let limits = own_groups().into_iter().filter_map(|folder| limit(&read_group(&folder, LIMITS)?));
    in_meminfo(&meminfo(), "MemTotal:").into_iter().chain(limits).min()
}

/// The names of the file with a control group's limit, in version 2 and in version 1.
const LIMITS: [&str; 2] = ["memory.max", "memory.limit_in_bytes"];
/// The names of the file with the memory that a control group uses.
const USED: [&str; 2] = ["memory.current", "memory.usage_in_bytes"];

/// Returns the folders of the control groups that may limit the memory of this process.
fn own_groups() -> Vec<String> {
    group_folders(&std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default())
}

/// Returns the folders of the control groups in `/proc/self/cgroup` that may limit memory, and of all their
/// parent groups, whose limits apply too.
fn group_folders(groups: &str) -> Vec<String> {
    let mut folders = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let root = match controllers {
            "" => "/sys/fs/cgroup",
            list if list.split(',').any(|name| name == "memory") => "/sys/fs/cgroup/memory",
            _ => continue,
        };
        let path = path.trim_end_matches('/');
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        folders.extend(ends.map(|end| format!("{root}{}", &path[..end])));
    }
    folders
}

/// Reads the first of these files that a control group has.
fn read_group(folder: &str, files: [&str; 2]) -> Option<String> {
    files.iter().find_map(|file| std::fs::read_to_string(format!("{folder}/{file}")).ok())
}

/// Parses a limit. In version 2, "max" means no limit.
fn limit(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Returns the memory that a control group has left, in bytes. None if the group has no limit. Cached files do
/// not count as used, because the system drops them when memory is needed.
fn free_in_group(limit: &str, used: &str, stat: &str) -> Option<u64> {
    let (limit, used) = (self::limit(limit)?, used.trim().parse::<u64>().ok()?);
    let figure = |name: &str| {
        let value = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.and_then(|value| value.trim().parse::<u64>().ok())
    };
    // In version 1, the figures of the groups inside are only in the totals.
    let cached =
        |name: &str| figure(&format!("total_{name}")).or_else(|| figure(name)).unwrap_or(0);
    let cached = cached("inactive_file").saturating_add(cached("active_file"));
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

fn meminfo() -> String {
    std::fs::read_to_string("/proc/meminfo").unwrap_or_default()
}

/// Returns the bytes in a line of `/proc/meminfo`.
fn in_meminfo(text: &str, line: &str) -> Option<u64> {
    let line = text.lines().find_map(|text| text.strip_prefix(line))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_their_units() {
        assert_eq!(parse_size("2048K"), Some(2 << 20));
        assert_eq!(parse_size("32M"), Some(32 << 20));
        assert_eq!(parse_size("odd"), None);
    }

    #[test]
    fn all_groups_around_a_process_are_found() {
        let folders = group_folders("12:cpu:/a\n4:cpu,memory:/b/c\n0::/d\n");
        let expected = [
            "/sys/fs/cgroup/memory",
            "/sys/fs/cgroup/memory/b",
            "/sys/fs/cgroup/memory/b/c",
            "/sys/fs/cgroup",
            "/sys/fs/cgroup/d",
        ];
        assert_eq!(folders, expected);
        assert_eq!(group_folders("0::/\n"), ["/sys/fs/cgroup"]);
        assert!(group_folders("nonsense").is_empty());
    }

    #[test]
    fn sizes_in_meminfo_are_kibibytes() {
        let text = "MemTotal: 9 kB\nMemAvailable:    12 kB\n";
        assert_eq!(in_meminfo(text, "MemTotal:"), Some(9 * 1024));
        assert_eq!(in_meminfo(text, "MemAvailable:"), Some(12 * 1024));
        assert_eq!(in_meminfo(text, "MemFree:"), None);
    }

    #[test]
    fn a_control_group_has_left_what_it_does_not_use() {
        let stat = "anon 50\ninactive_file 20\nactive_file 10\n";
        assert_eq!(free_in_group("100\n", "80\n", stat), Some(50));
        assert_eq!(free_in_group("100\n", "80\n", ""), Some(20));
        assert_eq!(free_in_group("100\n", "180\n", ""), Some(0));
        assert_eq!(free_in_group("max\n", "80\n", stat), None);
        let totals = "inactive_file 1\ntotal_inactive_file 30\n";
        assert_eq!(free_in_group("100\n", "80\n", totals), Some(50));
    }

    #[test]
    fn no_more_memory_is_free_than_the_process_may_use() {
        if let Some(free) = Machine::free_memory() {
            assert!(free <= Machine::detect().memory);
        }
    }

    #[test]
    fn a_machine_has_cores_and_caches() {
        let machine = Machine::detect();
        assert!(machine.cores >= 1 && machine.l2 > 0 && machine.last_level > 0);
    }
}

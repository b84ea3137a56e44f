//! The cores, caches and memory of the machine.

/// The cores, caches and memory that a plan can use.
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
    /// Asks the operating system. For facts that the system does not tell, it assumes a small machine.
    pub fn detect() -> Machine {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        Machine {
            cores,
            l2: cache(2).unwrap_or(1 << 20),
            last_level: cache(3).or_else(|| cache(2)).unwrap_or(8 << 20),
            memory: available_memory().unwrap_or(0),
        }
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
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&groups).into_iter().filter_map(|file| {
        // In version 2, "max" means no limit. It does not parse as a number, so it is skipped.
        std::fs::read_to_string(file).ok()?.trim().parse::<u64>().ok()
    });
    total_memory().into_iter().chain(limits).min()
}

/// Returns the files that hold the memory limits of the control groups in `/proc/self/cgroup`, and of all
/// their parent groups, whose limits apply too.
fn limit_files(groups: &str) -> Vec<String> {
    let mut files = Vec::new();
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (root, file) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            list if list.split(',').any(|controller| controller == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let mut path = path.trim_end_matches('/');
        loop {
            files.push(format!("{root}{path}/{file}"));
            match path.rfind('/') {
                Some(end) => path = &path[..end],
                None => break,
            }
        }
    }
    files
}

fn total_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
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
    fn limits_of_all_groups_around_a_process_are_read() {
        let files = limit_files("12:cpu:/a\n4:memory:/b/c\n0::/d\n");
        let expected = [
            "/sys/fs/cgroup/memory/b/c/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/b/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/d/memory.max",
            "/sys/fs/cgroup/memory.max",
        ];
        assert_eq!(files, expected);
        assert_eq!(limit_files("0::/\n"), ["/sys/fs/cgroup/memory.max"]);
        assert!(limit_files("nonsense").is_empty());
    }

    #[test]
    fn a_machine_has_cores_and_caches() {
        let machine = Machine::detect();
        assert!(machine.cores >= 1 && machine.l2 > 0 && machine.last_level > 0);
    }
}

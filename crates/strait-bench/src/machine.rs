//! The machine that produced the figures, and the memory of this process.

use serde::{Deserialize, Serialize};

/// The facts about a machine that are needed to judge its figures.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// The cores that this process may use.
    pub cores: usize,
    /// The data and unified caches of core 0, starting with the nearest.
    pub caches: Vec<Cache>,
    /// In bytes.
    pub memory: u64,
}

/// A cache of a core.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cache {
    /// 1 for the nearest.
    pub level: u32,
    /// As the system formats it: `2048K`.
    pub size: String,
}

impl Machine {
    /// Reads the facts from the system.
    pub fn detect() -> Machine {
        let known = strait::Machine::detect();
        let cpu = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_string());
        let caches = (0..8).filter_map(cache).collect();
        Machine { cpu, cores: known.cores, caches, memory: known.memory }
    }

    /// `l1 48K, l2 2048K, l3 260M`.
    pub fn caches(&self) -> String {
        let caches = self.caches.iter().map(|cache| format!("l{} {}", cache.level, cache.size));
        caches.collect::<Vec<_>>().join(", ")
    }

    /// The machine as part of a file name: `intel-xeon-processor-2-cores`.
    pub fn slug(&self) -> String {
        let words = self.cpu.replace("(R)", "").replace("(TM)", "").to_lowercase();
        let words = words.split(|c: char| !c.is_ascii_alphanumeric()).filter(|w| !w.is_empty());
        format!("{}-{}-cores", words.collect::<Vec<_>>().join("-"), self.cores)
    }
}

fn cache(index: u32) -> Option<Cache> {
    let read = |file: &str| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{file}");
        std::fs::read_to_string(path).ok().map(|text| text.trim().to_string())
    };
    let holds_data = read("type")? != "Instruction";
    holds_data.then(|| Some(Cache { level: read("level")?.parse().ok()?, size: read("size")? }))?
}

/// The memory of this process: resident now, and its peak so far. Zero if the system does not tell.
pub fn resident() -> (u64, u64) {
    let bytes = |name: &str| {
        let text = field("/proc/self/status", name)?;
        text.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
    };
    (bytes("VmRSS").unwrap_or(0), bytes("VmHWM").unwrap_or(0))
}

/// Sets the peak of this process to its memory now, if the system allows it.
pub fn forget_peak() {
    if let Err(error) = std::fs::write("/proc/self/clear_refs", "5") {
        log::warn!("the peak memory includes the time before: {error}");
    }
}

/// Returns the text after `name:` in a system file.
fn field(path: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.split(':').next().map(str::trim) == Some(name))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

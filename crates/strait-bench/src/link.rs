//! A GPU's name, and the theoretical rate of its link in one direction: the generation's rate per lane, times
//! the lanes. Packet headers take a part: about seven eighths are usable.

use strait::gpu::{Gpu, Link};

/// A GPU and its link.
#[derive(Debug, Clone)]
pub struct Card {
    /// The product name.
    pub name: String,
    /// For example `PCIe 5.0 x16`; empty if unknown.
    pub link: String,
    /// The theoretical rate of the link, in bytes per second in one direction.
    peak: Option<f64>,
}

impl Card {
    /// Describes a GPU.
    pub fn of(gpu: &Gpu) -> Card {
        let link = gpu.link.map_or(String::new(), |link| link.to_string());
        Card { name: gpu.name.clone(), link, peak: gpu.link.and_then(peak) }
    }

    /// A simulated GPU, whose link has a fixed rate.
    pub fn simulated() -> Card {
        Card { name: "simulated".to_string(), link: String::new(), peak: Some(1e9) }
    }

    /// The GPU's name, and the theoretical rate of its link.
    pub fn named(&self) -> String {
        let rate = match self.peak {
            Some(peak) => format!("{:.1} GB/s in theory", peak / 1e9),
            None => "of unknown rate".to_string(),
        };
        let link = if self.link.is_empty() { "a link" } else { &self.link };
        format!("{}, {link}, {rate}", self.name)
    }

    /// The theoretical rate in bytes per second, for a record.
    pub fn peak(&self) -> String {
        self.peak.map_or(String::new(), |peak| format!("{peak:.0}"))
    }

    /// The share of the theoretical rate that `rate` is, for a record.
    pub fn share(&self, rate: f64) -> String {
        self.peak.map_or(String::new(), |peak| format!("{:.3}", rate / peak))
    }

    /// The same as a percentage, for people.
    pub fn percent(&self, rate: f64) -> String {
        self.peak.map_or(String::new(), |peak| format!("{:.0} %", rate / peak * 100.0))
    }
}

/// Bytes per second in one direction.
fn peak(link: Link) -> Option<f64> {
    a_lane(link.generation).map(|rate| rate * f64::from(link.lanes))
}

/// Bytes per second of one lane.
fn a_lane(generation: u32) -> Option<f64> {
    let bits = match generation {
        // 8b/10b encoding: ten bits carry eight.
        1 => 2.5e9 * 0.8,
        2 => 5e9 * 0.8,
        // 128b/130b encoding: 130 bits carry 128.
        3 => 8e9 * 128.0 / 130.0,
        4 => 16e9 * 128.0 / 130.0,
        5 => 32e9 * 128.0 / 130.0,
        // FLITs: 256 bytes carry 242.
        6 => 64e9 * 242.0 / 256.0,
        _ => return None,
    };
    Some(bits / 8.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_lanes_of_the_fifth_generation_carry_63_gigabytes_a_second() {
        let rate = a_lane(5).map(|rate| (rate * 16.0 / 1e8).round() / 10.0);
        assert_eq!(rate, Some(63.0));
        assert_eq!(a_lane(9), None);
    }

    #[test]
    fn shares_are_of_what_the_link_could_carry() {
        let card = Card::simulated();
        assert_eq!((card.percent(5e8).as_str(), card.share(5e8).as_str()), ("50 %", "0.500"));
        let unknown = Card { peak: None, ..card };
        assert_eq!((unknown.percent(5e8).as_str(), unknown.peak().as_str()), ("", ""));
        assert!(unknown.named().contains("a link, of unknown rate"), "{}", unknown.named());
    }
}

//! The workloads of the comparison with other engines.

use strait_bench::workload::{KeyType, Keys, Shape, Skew};

/// A named workload.
pub(super) struct Named {
    pub(super) name: &'static str,
    /// What the workload represents.
    pub(super) about: &'static str,
    build: u64,
    probe: u64,
    key_type: KeyType,
    keys: Keys,
    skew: Skew,
    duplicates: u64,
    payload_bytes: u8,
}

/// Unique dense keys of eight bytes, all equally frequent on the probe side. Most workloads are variants of
/// this one.
const PLAIN: Named = Named {
    name: "",
    about: "",
    build: 0,
    probe: 0,
    key_type: KeyType::Int64,
    keys: Keys::Dense,
    skew: Skew::None,
    duplicates: 1,
    payload_bytes: 8,
};

pub(super) const SUITE: [Named; 10] = [
    Named { name: "W1", about: "2^22 ⋈ 2^22, dense", build: 1 << 22, probe: 1 << 22, ..PLAIN },
    Named { name: "W2", about: "2^24 ⋈ 2^24, dense", build: 1 << 24, probe: 1 << 24, ..PLAIN },
    Named {
        name: "W2s",
        about: "2^24 ⋈ 2^24, sparse",
        build: 1 << 24,
        probe: 1 << 24,
        keys: Keys::Sparse,
        ..PLAIN
    },
    Named { name: "W3", about: "2^24 ⋈ 2^26, dense", build: 1 << 24, probe: 1 << 26, ..PLAIN },
    Named {
        name: "W4",
        about: "2^25 ⋈ 2^25, dense, 4-byte key and payload",
        build: 1 << 25,
        probe: 1 << 25,
        key_type: KeyType::Int32,
        payload_bytes: 4,
        ..PLAIN
    },
    Named { name: "W5", about: "2^16 ⋈ 2^26, dense", build: 1 << 16, probe: 1 << 26, ..PLAIN },
    Named {
        name: "W5s",
        about: "2^16 ⋈ 2^26, sparse",
        build: 1 << 16,
        probe: 1 << 26,
        keys: Keys::Sparse,
        ..PLAIN
    },
    Named {
        name: "W6",
        about: "2^22 ⋈ 2^24, dense, probe Zipf 1.0",
        build: 1 << 22,
        probe: 1 << 24,
        skew: Skew::Zipf(1.0),
        ..PLAIN
    },
    Named {
        name: "W7",
        about: "2^22 ⋈ 2^22, dense, 2^20 distinct keys on both sides",
        build: 1 << 22,
        probe: 1 << 22,
        duplicates: 4,
        ..PLAIN
    },
    Named {
        name: "W8",
        about: "2^20 ⋈ 2^22, keys are strings of 17 bytes",
        build: 1 << 20,
        probe: 1 << 22,
        key_type: KeyType::String,
        keys: Keys::Sparse,
        ..PLAIN
    },
];

/// The names of all workloads.
pub(crate) fn names() -> Vec<&'static str> {
    SUITE.iter().map(|workload| workload.name).collect()
}

impl Named {
    /// Returns the shape, with every table `divisor` times smaller.
    pub(super) fn shape(&self, divisor: u64) -> Shape {
        Shape {
            build: (self.build / divisor).max(self.duplicates),
            probe: (self.probe / divisor).max(1),
            key_type: self.key_type,
            keys: self.keys,
            skew: self.skew,
            selectivity: 1.0,
            duplicates: self.duplicates,
            payload_bytes: self.payload_bytes,
            payload_columns: 1,
            seed: 42,
        }
    }
}

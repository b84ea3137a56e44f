//! The time of a join's stages.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::schedule::lock;

/// The time and bytes of one stage of a join on a device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timed {
    /// Its name.
    pub stage: &'static str,
    /// By the device's clock.
    pub seconds: f64,
    /// Bytes of tables and rows read and written. Bytes that stay in caches are not counted, nor are
    /// counts, bounds and tasks.
    pub bytes: u64,
}

/// Adds up the time of stages as they follow one another.
pub(crate) struct Stopwatch {
    started: Instant,
    stages: Mutex<Vec<(&'static str, Duration)>>,
    crossed: Mutex<[u64; 2]>,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Stopwatch { started: Instant::now(), stages: Mutex::default(), crossed: Mutex::default() }
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Runs `work` and books its wall time under `name`.
    pub(crate) fn time<T>(&self, name: &'static str, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let result = work();
        let spent = begun.elapsed();
        let mut stages = lock(&self.stages);
        match stages.iter_mut().find(|(n, _)| *n == name) {
            Some((_, total)) => *total += spent,
            None => stages.push((name, spent)),
        }
        result
    }

    /// Books the times of stages on a device, which ran inside of others, and the bytes that crossed
    /// to it and back.
    pub(crate) fn add_device(&self, times: Vec<Timed>, crossed: [u64; 2]) {
        *lock(&self.crossed) = crossed;
        let mut stages = lock(&self.stages);
        let device = times.iter().map(|t| (t.stage, Duration::from_secs_f64(t.seconds.max(0.0))));
        stages.extend(device);
    }

    /// Bytes that crossed to a device, and back.
    pub(crate) fn crossed(&self) -> [u64; 2] {
        *lock(&self.crossed)
    }

    pub(crate) fn stages(&self) -> Vec<(&'static str, Duration)> {
        lock(&self.stages).clone()
    }
}

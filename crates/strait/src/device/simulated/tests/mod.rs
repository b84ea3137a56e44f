//! Tests of the simulated device: its order, its memory, and each stage against a naive answer.

mod host_memory;
mod ids;
mod joins;
mod ordering;
mod partition;
mod partitioners;
mod scatter;
mod tables;

use super::word::DeviceWord;
use super::*;
use crate::device::abi::{Control, Mixing};
use crate::memory::Plain;
use crate::word::Mixer;

/// A word and its width.
trait TestWord: DeviceWord {
    const WORD: Width;
}

impl TestWord for u32 {
    const WORD: Width = Width::W32;
}

impl TestWord for u64 {
    const WORD: Width = Width::W64;
}

/// The mixer of these tests.
fn mixer<W: DeviceWord>() -> Mixer<W> {
    Mixer::new(7)
}

fn unmixer<W: DeviceWord>() -> Mixer<W> {
    mixer().inverse()
}

/// The same, as arguments of stages.
fn mixing<W: DeviceWord>() -> Mixing {
    Mixing::of(mixer::<W>())
}

fn unmixing<W: DeviceWord>() -> Mixing {
    Mixing::of(unmixer::<W>())
}

/// A device with one stream, and the memory that a test keeps on it.
struct Bench {
    device: Simulated,
    stream: Stream,
    random: Rng,
    kept: Vec<Memory>,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let device =
            Simulated::new(Settings { memory: 16 << 20, shape: TINY, seed, coherent: true });
        let stream = device.stream(0).unwrap();
        Bench { device, stream, random: Rng::with_seed(!seed), kept: Vec::new() }
    }

    /// Allocates poisoned memory for `count` values.
    fn room<T>(&mut self, count: usize) -> u64 {
        let memory = self.device.allocate((count * size_of::<T>()) as u64, "a test").unwrap();
        self.kept.push(memory);
        self.kept[self.kept.len() - 1].address()
    }

    fn put<T: Plain>(&mut self, values: &[T]) -> u64 {
        let address = self.room::<T>(values.len());
        self.write(address, values);
        address
    }

    fn zeros<T>(&mut self, count: usize) -> u64 {
        self.put(&vec![0u8; count * size_of::<T>()])
    }

    fn write<T: Plain>(&self, address: u64, values: &[T]) {
        let bytes = size_of_val(values);
        let pinned = self.device.pinned(bytes, "a test").unwrap();
        // SAFETY: the memory has this many bytes; no copy is in progress.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr().cast(), pinned.start, bytes) };
        let view = View::new(self.device.id(), address, bytes as u64);
        self.device.copy_in(self.stream, &pinned, 0, view).unwrap();
        self.device.synchronize(self.stream).unwrap();
    }

    fn get<T: Plain>(&self, address: u64, count: usize) -> Vec<T> {
        let bytes = count * size_of::<T>();
        let pinned = self.device.pinned(bytes, "a test").unwrap();
        let view = View::new(self.device.id(), address, bytes as u64);
        self.device.copy_out(self.stream, view, &pinned, 0).unwrap();
        self.device.synchronize(self.stream).unwrap();
        // SAFETY: this many plain, aligned values lie there, and the copy is done.
        unsafe { std::slice::from_raw_parts(pinned.start.cast::<T>(), count).to_vec() }
    }

    fn control(&self, address: u64) -> Control {
        self.get(address, 1)[0]
    }

    fn try_run<W: TestWord>(&self, stage: DeviceStage) -> Result<()> {
        // SAFETY: the simulated device checks every address.
        unsafe { self.device.run(self.stream, W::WORD, &stage)? };
        self.device.synchronize(self.stream)
    }

    fn run<W: TestWord>(&self, stage: DeviceStage) {
        self.try_run::<W>(stage).unwrap();
    }

    /// Returns random words below `end`.
    fn words<W: TestWord>(&mut self, count: usize, end: u64) -> Vec<W> {
        (0..count).map(|_| W::from_u64(self.random.u64(..end))).collect()
    }
}

/// Returns the device's message when it fails.
fn message<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

//! Order and memory: work runs late and in any allowed order; fresh and freed memory is poisoned; accesses
//! outside of memory are errors.

use super::*;
use crate::device::EVENTS;
use crate::device::abi::Offsets;

/// A device with two streams, one buffer on it, and two on the host.
struct Pair {
    device: Simulated,
    first: Stream,
    second: Stream,
    memory: Memory,
    from: Arc<Pinned>,
    to: Arc<Pinned>,
}

fn pair(seed: u64) -> Pair {
    let device = Simulated::new(Settings { memory: 1 << 20, shape: TINY, seed, coherent: true });
    let (first, second) = (device.stream(0).unwrap(), device.stream(1).unwrap());
    let memory = device.allocate(64, "a test").unwrap();
    let (from, to) = (device.pinned(64, "from").unwrap(), device.pinned(64, "to").unwrap());
    // SAFETY: no copy is in progress.
    unsafe { from.bytes_mut() }.fill(7);
    Pair { device, first, second, memory, from, to }
}

fn read(pinned: &Pinned) -> Vec<u8> {
    // SAFETY: callers have synchronised the stream that writes here.
    unsafe { pinned.bytes() }.to_vec()
}

/// Returns what one stream reads of another stream's writes, with or without waiting for them.
fn handed_over(seed: u64, wait: bool) -> Vec<u8> {
    let p = pair(seed);
    p.device.copy_in(p.first, &p.from, 0, p.memory.view).unwrap();
    let event = p.device.record(p.first).unwrap();
    if wait {
        p.device.wait(p.second, event).unwrap();
    }
    p.device.copy_out(p.second, p.memory.view, &p.to, 0).unwrap();
    p.device.synchronize(p.second).unwrap();
    read(&p.to)
}

#[test]
fn a_missing_wait_shows_for_some_seed() {
    let wrong = (0..100).filter(|&seed| handed_over(seed, false) != [7; 64]).count();
    assert!((10..95).contains(&wrong), "{wrong} of 100 seeds");
    assert!((0..300).all(|seed| handed_over(seed, true) == [7; 64]));
}

#[test]
fn other_streams_progress_by_any_amount() {
    let done: std::collections::BTreeSet<usize> = (0..100)
        .map(|seed| {
            let p = pair(seed);
            let events: Vec<Event> = (0..4).map(|_| p.device.record(p.second).unwrap()).collect();
            for _ in 0..4 {
                p.device.fill(p.first, p.memory.view, 1).unwrap();
            }
            p.device.synchronize(p.first).unwrap();
            events.iter().filter(|&&event| p.device.seconds(event, event).is_ok()).count()
        })
        .collect();
    assert_eq!(done.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
}

#[test]
fn the_same_seed_gives_the_same_order() {
    assert!((0..50).all(|seed| handed_over(seed, false) == handed_over(seed, false)));
}

#[test]
fn copies_read_the_host_when_they_run() {
    let p = pair(1);
    p.device.copy_in(p.first, &p.from, 0, p.memory.view).unwrap();
    // SAFETY: copies run only when a stream is synchronised.
    unsafe { p.from.bytes_mut() }.fill(9);
    p.device.copy_out(p.first, p.memory.view, &p.to, 0).unwrap();
    p.device.synchronize(p.first).unwrap();
    assert_eq!(read(&p.to), [9; 64]);
}

#[test]
fn fresh_memory_is_poison() {
    let p = pair(2);
    assert!(read(&p.to).iter().all(|byte| (0xa0..=0xbf).contains(byte)));
    p.device.copy_out(p.first, p.memory.view, &p.to, 0).unwrap();
    p.device.synchronize(p.first).unwrap();
    assert!(read(&p.to).iter().all(|byte| (0xa0..=0xbf).contains(byte)));
}

#[test]
fn freed_memory_is_poison_and_takes_late_writes() {
    let Pair { device, first, memory, from, to, .. } = pair(3);
    let view = memory.view;
    device.copy_in(first, &from, 0, view).unwrap();
    device.synchronize(first).unwrap();
    device.copy_out(first, view, &to, 0).unwrap();
    device.copy_in(first, &from, 0, view).unwrap();
    drop(memory);
    assert_eq!(device.memory().used, 0);
    device.synchronize(first).unwrap();
    assert!(read(&to).iter().all(|byte| (0xd0..=0xdf).contains(byte)));
}

#[test]
fn memory_outlives_the_device() {
    let Pair { device, memory, .. } = pair(4);
    drop(device);
    drop(memory);
}

#[test]
fn the_capacity_is_hard() {
    let device = Simulated::new(Settings { memory: 1024, shape: TINY, seed: 5, coherent: true });
    let most = device.allocate(700, "a table").unwrap();
    assert_eq!(most.address() % 256, 0);
    assert_eq!(device.memory(), MemoryUse { budget: 1024, used: 768, peak: 768 });
    for bytes in [257, u64::MAX] {
        let refused = device.allocate(bytes, "a list");
        let Err(Error::DeviceMemory { what, needed, used, budget, .. }) = refused else {
            panic!("{bytes} bytes were given");
        };
        assert_eq!((what.as_str(), needed, used, budget), ("a list", bytes, 768, 1024));
    }
    drop(device.allocate(256, "a list").unwrap());
    drop(most);
    assert_eq!(device.memory(), MemoryUse { budget: 1024, used: 0, peak: 1024 });
    device.allocate(1024, "all").unwrap();
}

#[test]
fn what_is_outside_is_an_error() {
    let offsets = |bins: u64| DeviceStage::Offsets(Offsets { bins, passes: 1, unused: 0 });
    let run = |shift: u64, count: usize| {
        let mut bench = Bench::new(6);
        let bins = bench.zeros::<u64>(count);
        let first = bench.try_run::<u32>(offsets(bins + shift));
        let second = bench.device.synchronize(bench.stream);
        assert_eq!(message(first), message(second.clone()), "failures stay");
        message(second)
    };
    assert_eq!(run(0, 256), "");
    assert!(run(8, 256).contains("Offsets: bins: 256 x 8 bytes"), "{}", run(8, 256));
    assert!(run(8, 256).contains("outside"));
    assert!(run(0, 255).contains("outside"));
    assert!(run(4, 300).contains("not a multiple of 8"));
    assert!(message(Bench::new(7).try_run::<u32>(offsets(0))).contains("outside"));
    assert!(message(Bench::new(7).try_run::<u32>(offsets(u64::MAX - 7))).contains("outside"));
}

#[test]
fn copies_outside_are_errors() {
    let p = pair(8);
    assert!(message(p.device.copy_in(p.first, &p.from, 1, p.memory.view)).contains("outside"));
    assert!(message(p.device.copy_out(p.first, p.memory.view, &p.to, 64)).contains("outside"));
    let long = View { bytes: 65, ..p.memory.view };
    p.device.fill(p.first, long, 0).unwrap();
    assert!(message(p.device.synchronize(p.first)).contains("outside"));
}

#[test]
fn events_happen_and_are_forgotten() {
    let p = pair(9);
    let event = p.device.record(p.first).unwrap();
    assert!(message(p.device.seconds(event, event)).contains("not happened"));
    p.device.synchronize(p.first).unwrap();
    assert_eq!(p.device.seconds(event, event).unwrap(), 0.0);
    p.device.wait(p.second, event).unwrap();
    for _ in 0..EVENTS {
        p.device.record(p.first).unwrap();
    }
    assert!(message(p.device.seconds(event, event)).contains("forgotten"));
    p.device.wait(p.second, event).unwrap();
    p.device.synchronize(p.second).unwrap();
    assert!(
        message(p.device.wait(p.second, Event { device: p.device.id(), number: 9 * EVENTS }))
            .contains("never recorded")
    );
    assert!(message(p.device.synchronize(Stream(99))).contains("never made"));
}

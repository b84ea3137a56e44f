//! Host memory that a device reaches: copied late, mapped or shared in place, or next to device memory in a
//! range.

use super::*;
use crate::device::EVENTS;
use crate::device::abi::Survey;

const BYTES: usize = 64;

/// A device with two streams, one buffer on it, and one on the host.
struct TwoStreams {
    device: Simulated,
    first: Stream,
    second: Stream,
    memory: Memory,
    to: Arc<Pinned>,
}

fn two_streams(seed: u64) -> TwoStreams {
    let device = Simulated::new(Settings { memory: 1 << 20, shape: TINY, seed, coherent: true });
    let (first, second) = (device.stream(0).unwrap(), device.stream(1).unwrap());
    let memory = device.allocate(BYTES as u64, "a test").unwrap();
    let to = device.pinned(BYTES, "to").unwrap();
    TwoStreams { device, first, second, memory, to }
}

impl TwoStreams {
    /// Returns the content of a view once the first stream has reached this read.
    fn read(&self, view: View) -> Vec<u8> {
        self.device.copy_out(self.first, view, &self.to, 0).unwrap();
        self.device.synchronize(self.first).unwrap();
        // SAFETY: the stream that writes here was synchronised.
        let bytes = unsafe { self.to.bytes() };
        bytes[..view.bytes as usize].to_vec()
    }

    /// Returns the largest of `rows` keys at an address, as found by a stage.
    fn largest(&self, address: u64, rows: u64) -> u64 {
        let found = self.device.allocate(32, "what was found").unwrap();
        self.device.fill(self.first, found.view, 0).unwrap();
        let survey = Survey { keys: address, rows, found: found.address() };
        // SAFETY: the simulated device checks every address.
        unsafe { self.device.run(self.first, Width::W64, &DeviceStage::Survey(survey)) }.unwrap();
        let bytes = self.read(found.view);
        u64::from_ne_bytes(bytes[..8].try_into().unwrap())
    }
}

/// Overwrites bytes that an operation may still have to read, like a wrong conductor.
fn overwrite(start: *mut u8, byte: u8) {
    // SAFETY: callers have this many bytes there, and nothing runs while no stream is waited for.
    unsafe { start.write_bytes(byte, BYTES) };
}

fn poisoned(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| (0xd0..=0xdf).contains(byte))
}

/// Returns the copy of a buffer that is overwritten after the other stream was synchronised, with or without
/// waiting for the copy.
fn overwritten(seed: u64, wait: bool) -> Vec<u8> {
    let d = two_streams(seed);
    let mut from = vec![7u8; BYTES];
    let start = from.as_mut_ptr();
    let view = HostView { start, bytes: BYTES as u64 };
    // SAFETY: lives to the end of this function, when all copies are done.
    unsafe { d.device.copy_from(d.first, view, d.memory.view) }.unwrap();
    let copied = d.device.record(d.first).unwrap();
    let other = d.device.allocate(8, "something else").unwrap();
    d.device.fill(d.second, other.view, 0).unwrap();
    d.device.synchronize(d.second).unwrap();
    if wait {
        d.device.wait_for(copied).unwrap();
    }
    overwrite(start, 9);
    d.read(d.memory.view)
}

#[test]
fn a_buffer_overwritten_too_early_shows_for_some_seed() {
    let wrong = (0..100).filter(|&seed| overwritten(seed, false) == [9; BYTES]).count();
    assert!((10..95).contains(&wrong), "{wrong} of 100 seeds");
    assert!((0..300).all(|seed| overwritten(seed, true) == [7; BYTES]));
}

#[test]
fn waiting_for_an_event_runs_what_comes_before_it() {
    let mut later = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let d = two_streams(seed);
        let event = d.device.record(d.second).unwrap();
        d.device.wait(d.first, event).unwrap();
        d.device.fill(d.first, d.memory.view, 3).unwrap();
        let filled = d.device.record(d.first).unwrap();
        let rest: Vec<Event> = (0..3).map(|_| d.device.record(d.second).unwrap()).collect();
        d.device.wait_for(filled).unwrap();
        for happened in [event, filled] {
            d.device.seconds(happened, happened).unwrap();
        }
        later.insert(rest.iter().filter(|&&event| d.device.seconds(event, event).is_ok()).count());
        // A second wait does nothing.
        d.device.wait_for(filled).unwrap();
    }
    assert_eq!(later.into_iter().collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn waiting_for_what_never_comes_is_an_error() {
    let d = two_streams(1);
    assert!(
        message(d.device.wait_for(Event { device: d.device.id(), number: 3 }))
            .contains("never recorded")
    );
    let old = d.device.record(d.first).unwrap();
    for _ in 0..EVENTS {
        d.device.record(d.first).unwrap();
    }
    d.device.wait_for(old).unwrap();
    d.device.fill(d.first, View::new(d.device.id(), 8, 8), 0).unwrap();
    let failed = d.device.record(d.first).unwrap();
    assert!(message(d.device.wait_for(failed)).contains("outside"));
    assert!(message(d.device.wait_for(failed)).contains("outside"), "failures stay");
}

/// Returns what one stream copies of another stream's writes, with or without waiting for them.
fn copied_between(seed: u64, wait: bool) -> Vec<u8> {
    let d = two_streams(seed);
    let other = d.device.allocate(BYTES as u64, "from").unwrap();
    d.device.fill(d.second, other.view, 5).unwrap();
    let filled = d.device.record(d.second).unwrap();
    if wait {
        d.device.wait(d.first, filled).unwrap();
    }
    d.device.copy_between(d.first, other.view, d.memory.view).unwrap();
    d.read(d.memory.view)
}

#[test]
fn a_missing_wait_between_addresses_shows_for_some_seed() {
    let wrong = (0..100).filter(|&seed| copied_between(seed, false) != [5; BYTES]).count();
    assert!((10..95).contains(&wrong), "{wrong} of 100 seeds");
    assert!((0..100).all(|seed| copied_between(seed, true) == [5; BYTES]));
}

#[test]
fn copies_that_do_not_fit_are_errors() {
    let d = two_streams(2);
    let from = [0u8; 10];
    // SAFETY: lives to the end, and the copy is refused anyway.
    let refused = unsafe { d.device.copy_from(d.first, HostView::of(&from), d.memory.view) };
    assert!(message(refused).contains("10 bytes to 64"));
    let part = |at, bytes| d.memory.view.part(at, bytes);
    assert!(
        message(d.device.copy_between(d.first, part(0, 8), part(8, 9))).contains("8 bytes to 9")
    );
    assert!(message(d.device.copy_between(d.first, part(0, 9), part(8, 9))).contains("overlap"));
    d.device.copy_between(d.first, part(0, 8), part(8, 8)).unwrap();
    d.device.synchronize(d.first).unwrap();
    let long = View { bytes: 65, ..d.memory.view };
    d.device.copy_between(d.first, long, View::new(d.device.id(), 0, 65)).unwrap();
    assert!(message(d.device.synchronize(d.first)).contains("copied from: 65 x 1 bytes"));
}

#[test]
fn pins_last_until_their_copies_have_run() {
    for seed in 0..50 {
        let d = two_streams(seed);
        let column: Vec<u64> = (0..8).collect();
        let whole = HostView::of(&column);
        // Neighbours that share a page.
        let parts = [whole.part(0, 24), whole.part(24, 40)];
        let copied = parts.map(|part| {
            // SAFETY: the column lives to the end, when all copies are done.
            let pinned = unsafe { d.device.pin(part) }.unwrap();
            let at = part.start as u64 - whole.start as u64;
            let to = d.memory.view.part(at, part.bytes);
            d.device.copy_in(d.first, &pinned, 0, to).unwrap();
            d.device.record(d.first).unwrap()
        });
        assert_eq!(d.device.pins(), 2, "copies keep what they read");
        d.device.wait_for(copied[0]).unwrap();
        assert!(d.device.pins() <= 1);
        d.device.wait_for(copied[1]).unwrap();
        assert_eq!(d.device.pins(), 0);
        // SAFETY: plain values.
        assert_eq!(d.read(d.memory.view), unsafe {
            std::slice::from_raw_parts(whole.start, whole.bytes as usize)
        });
    }
}

#[test]
fn stages_reach_mapped_memory_where_it_lies() {
    let d = two_streams(4);
    let used = d.device.memory().used;
    let pinned = d.device.pinned(BYTES, "keys").unwrap();
    let mapped = d.device.mapped(&pinned).unwrap();
    assert_eq!((mapped.view.bytes, mapped.address() % 256), (BYTES as u64, 0));
    assert_eq!(d.device.memory().used, used, "not charged");
    overwrite(pinned.start, 0);
    // SAFETY: no operation is in progress.
    unsafe { pinned.start.cast::<u64>().add(5).write(77) };
    assert_eq!(d.largest(mapped.address(), 8), 77);
    // In the other direction.
    d.device.fill(d.first, d.memory.view, 6).unwrap();
    d.device.copy_between(d.first, d.memory.view.part(0, 16), mapped.view.part(8, 16)).unwrap();
    d.device.fill(d.first, mapped.view.part(0, 1), 1).unwrap();
    d.device.synchronize(d.first).unwrap();
    // SAFETY: the stream was synchronised.
    let bytes = unsafe { pinned.bytes() };
    assert_eq!((bytes[0], &bytes[7..25]), (1, &[&[0][..], &[6; 16], &[0]].concat()[..]));
    // The view ends where the memory ends.
    d.device.fill(d.first, View { bytes: BYTES as u64 + 1, ..mapped.view }, 0).unwrap();
    assert!(message(d.device.synchronize(d.first)).contains("outside"));
}

#[test]
fn mapped_memory_is_left_alone_once_it_is_given_back() {
    let d = two_streams(5);
    let pinned = d.device.pinned(BYTES, "keys").unwrap();
    overwrite(pinned.start, 7);
    let mapped = d.device.mapped(&pinned).unwrap();
    let view = mapped.view;
    d.device.copy_between(d.first, view, d.memory.view).unwrap();
    d.device.fill(d.first, view, 1).unwrap();
    drop(mapped);
    assert!(poisoned(&d.read(d.memory.view)), "a late read finds poison");
    // SAFETY: the stream was synchronised.
    assert_eq!(unsafe { pinned.bytes() }, [7; BYTES], "a late write goes nowhere");
}

#[test]
fn a_mapping_keeps_its_memory() {
    let d = two_streams(6);
    let pinned = d.device.pinned(BYTES, "keys").unwrap();
    overwrite(pinned.start, 2);
    let weak = Arc::downgrade(&pinned);
    let mapped = d.device.mapped(&pinned).unwrap();
    drop(pinned);
    assert_eq!(d.read(mapped.view), [2; BYTES]);
    drop(mapped);
    assert!(weak.upgrade().is_none());
}

#[test]
fn a_coherent_device_reads_any_memory() {
    let d = two_streams(7);
    let column: Vec<u64> = (0..40).map(|n| n * 3).collect();
    let part = HostView::of(&column).part(8, 300);
    // SAFETY: the column lives to the end, and is not changed.
    let memory = unsafe { d.device.coherent(part) }.unwrap();
    // Aligned like the memory, so that a stage that needs a larger alignment fails here too.
    assert_eq!(memory.address() % 256, part.start as u64 % 256);
    assert_eq!(d.largest(memory.address(), 37), 37 * 3);
    let odd = View { address: memory.address() + 4, bytes: 8, ..memory.view };
    d.device.copy_between(d.first, odd, d.memory.view.part(0, 8)).unwrap();
    d.device.synchronize(d.first).unwrap();
    let settings = Settings { memory: 1 << 20, shape: TINY, seed: 7, coherent: false };
    // SAFETY: as above.
    let refused = unsafe { Simulated::new(settings).coherent(part) };
    assert!(
        matches!(&refused, Err(Error::Unsupported { advice, .. }) if advice.contains("staged-copy"))
    );
}

#[test]
fn managed_memory_is_reached_from_both_sides() {
    let d = two_streams(8);
    let used = d.device.memory().used;
    let managed = d.device.managed(BYTES as u64, "a chunk").unwrap();
    assert_eq!(d.device.memory().used, used + 256);
    // SAFETY: fresh memory that nothing uses yet.
    let fresh = unsafe { std::slice::from_raw_parts(managed.start, BYTES) };
    assert!(fresh.iter().all(|byte| (0xa0..=0xbf).contains(byte)));
    overwrite(managed.start, 0);
    // SAFETY: no operation is in progress.
    unsafe { managed.start.cast::<u64>().add(7).write(99) };
    d.device.prefetch(d.second, &managed).unwrap();
    let moved = d.device.record(d.second).unwrap();
    assert!(message(d.device.seconds(moved, moved)).contains("not happened"), "in the stream");
    d.device.wait(d.first, moved).unwrap();
    assert_eq!(d.largest(managed.view.address, 8), 99);
    // Stages read it when they run.
    d.device.copy_between(d.first, managed.view, d.memory.view).unwrap();
    overwrite(managed.start, 4);
    assert_eq!(d.read(d.memory.view), [4; BYTES]);
    let view = managed.view;
    drop(managed);
    assert_eq!(d.device.memory().used, used);
    assert!(poisoned(&d.read(view)));
}

#[test]
fn managed_memory_has_to_fit() {
    let d = two_streams(9);
    for bytes in [1 << 20, u64::MAX] {
        let refused = d.device.managed(bytes, "a chunk").map(|_| ());
        let Err(Error::DeviceMemory { what, needed, .. }) = refused else {
            panic!("{bytes} bytes were given");
        };
        assert_eq!((what.as_str(), needed), ("a chunk", bytes));
    }
    d.device.managed((1 << 20) - 256, "all").unwrap();
}

#[test]
fn ranges_charge_what_lies_on_the_device() {
    let d = two_streams(10);
    let used = d.device.memory().used;
    for (bytes, on_device, charged) in [
        (20000, 0, 0),
        (20000, 1, 4096),
        (20000, 5000, 8192),
        (5000, u64::MAX, 8192),
        (8 << 20, 65536, 65536),
    ] {
        let range = d.device.range(bytes, on_device, "a table").unwrap();
        assert_eq!(d.device.memory().used, used + charged, "{on_device}");
        assert_eq!((range.view.bytes, range.address() % 256), (bytes, 0));
        // One piece from end to end.
        d.device.fill(d.first, range.view, 8).unwrap();
        assert_eq!(d.read(range.view.part(bytes - 60, 60)), [8; 60]);
        drop(range);
        assert_eq!(d.device.memory().used, used);
    }
    let refused = d.device.range(4 << 20, 2 << 20, "a table").map(|_| ());
    assert!(matches!(refused, Err(Error::DeviceMemory { .. })));
    assert!(d.device.range(u64::MAX, 0, "a table").is_err());
}

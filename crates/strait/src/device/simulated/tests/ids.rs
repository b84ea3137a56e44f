//! Two devices in one process: each refuses the memory and the events of the other.

use super::*;
use crate::device::abi::Survey;

/// A device with a stream, some memory, some managed memory, and an event that has happened.
struct Party {
    device: Simulated,
    stream: Stream,
    memory: Memory,
    managed: Arc<Managed>,
    event: Event,
}

const BYTES: u64 = 64;

fn party(seed: u64) -> Party {
    let device = Simulated::new(Settings { memory: 1 << 20, shape: TINY, seed, coherent: true });
    let stream = device.stream(0).unwrap();
    let memory = device.allocate(BYTES, "a test").unwrap();
    let managed = device.managed(BYTES, "a test").unwrap();
    device.fill(stream, memory.view, 7).unwrap();
    let event = device.record(stream).unwrap();
    device.synchronize(stream).unwrap();
    Party { device, stream, memory, managed, event }
}

/// Asserts that a device refused something of the other.
fn refused<T>(result: Result<T>, what: &str, owner: &Party, user: &Party) {
    let [owner, user] = [owner, user].map(|party| party.device.id().number());
    let expected = format!("{what} of device {owner} was used on device {user}");
    let message = message(result);
    assert!(message.contains(&expected), "{message}, not {expected}");
}

#[test]
fn views_carry_the_id_of_their_device() {
    let (a, b) = (party(1), party(1));
    assert_ne!(a.device.id(), b.device.id());
    let pinned = a.device.pinned(BYTES as usize, "a test").unwrap();
    let host = HostView { start: pinned.start, bytes: BYTES };
    // SAFETY: the memory outlives the addresses.
    let coherent = unsafe { a.device.coherent(host) }.unwrap();
    let views = [
        a.memory.view,
        a.memory.view.part(8, 16),
        a.managed.view,
        a.device.mapped(&pinned).unwrap().view,
        a.device.range(BYTES, 8, "a test").unwrap().view,
        coherent.view,
    ];
    assert!(views.iter().all(|view| view.device == a.device.id()), "{views:?}");
    assert_eq!(a.event.device, a.device.id());
}

#[test]
fn memory_of_another_device_is_refused() {
    let (a, b) = (party(1), party(1));
    let pinned = b.device.pinned(BYTES as usize, "a test").unwrap();
    let host = HostView { start: pinned.start, bytes: BYTES };
    let (view, own) = (a.memory.view, b.memory.view);
    refused(b.device.fill(b.stream, view, 0), "memory", &a, &b);
    refused(b.device.copy_in(b.stream, &pinned, 0, view), "memory", &a, &b);
    refused(b.device.copy_out(b.stream, view, &pinned, 0), "memory", &a, &b);
    refused(b.device.copy_between(b.stream, view, own), "memory", &a, &b);
    refused(b.device.copy_between(b.stream, own, view), "memory", &a, &b);
    refused(b.device.prefetch(b.stream, &a.managed), "memory", &a, &b);
    // SAFETY: the memory outlives the device's work, which is not even enqueued.
    refused(unsafe { b.device.copy_from(b.stream, host, view) }, "memory", &a, &b);
    // Both devices go on as if nothing had happened.
    b.device.copy_out(b.stream, own, &pinned, 0).unwrap();
    b.device.synchronize(b.stream).unwrap();
    // SAFETY: the copy is done.
    assert_eq!(unsafe { pinned.bytes() }, [7; BYTES as usize]);
    a.device.fill(a.stream, view, 0).unwrap();
    a.device.synchronize(a.stream).unwrap();
}

/// The arguments of stages are addresses without an id. But devices with equal seeds have different addresses.
#[test]
fn a_stage_does_not_reach_the_memory_of_another_device() {
    let (a, b) = (party(1), party(1));
    let survey = Survey { keys: a.memory.address(), rows: 1, found: b.memory.address() };
    // SAFETY: the simulated device checks every address.
    unsafe { b.device.run(b.stream, Width::W64, &DeviceStage::Survey(survey)) }.unwrap();
    assert!(message(b.device.synchronize(b.stream)).contains("outside"));
    a.device.synchronize(a.stream).unwrap();
}

#[test]
fn events_of_another_device_are_refused() {
    let (a, b) = (party(1), party(1));
    refused(b.device.wait(b.stream, a.event), "an event", &a, &b);
    refused(b.device.wait_for(a.event), "an event", &a, &b);
    refused(b.device.seconds(a.event, b.event), "an event", &a, &b);
    refused(b.device.seconds(b.event, a.event), "an event", &a, &b);
    b.device.wait(b.stream, b.event).unwrap();
    b.device.synchronize(b.stream).unwrap();
    assert_eq!(b.device.seconds(b.event, b.event).unwrap(), 0.0);
}

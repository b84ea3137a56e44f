//! Tests of the device itself on a GPU: memory, copies, streams, events, kernels. They are skipped without a
//! GPU, unless `STRAIT_REQUIRE_GPU` is set.

use super::*;
use crate::device::abi;

const WORDS: usize = 1 << 20;

fn device(gpu_memory: Option<u64>) -> Option<CudaDevice> {
    match Gpu::detect().and_then(|gpus| CudaDevice::new(&gpus[0], gpu_memory)) {
        Ok(device) => Some(device),
        Err(error) => {
            assert!(std::env::var_os("STRAIT_REQUIRE_GPU").is_none(), "{error}");
            println!("left out: {error}");
            None
        }
    }
}

/// Returns pinned memory with these words.
fn words(device: &CudaDevice, values: impl Iterator<Item = u64>) -> Arc<Pinned> {
    let bytes: Vec<u8> = values.flat_map(u64::to_ne_bytes).collect();
    let host = device.pinned(bytes.len(), "a test").unwrap();
    // SAFETY: no copy is in progress.
    unsafe { host.bytes_mut() }.copy_from_slice(&bytes);
    host
}

fn read(host: &Pinned) -> Vec<u64> {
    // SAFETY: the stream was synchronised.
    let bytes = unsafe { host.bytes() };
    bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn copies_and_fills_run_in_order() {
    let Some(device) = device(None) else { return };
    let bytes = 8 * WORDS as u64;
    let memory = device.allocate(bytes, "a test").unwrap();
    let host = words(&device, 0..WORDS as u64);
    let back = device.pinned(8 * WORDS, "a test").unwrap();
    let (first, second) = (device.stream(0).unwrap(), device.stream(5).unwrap());
    let start = device.record(first).unwrap();
    device.copy_in(first, &host, 0, memory.view).unwrap();
    device.fill(first, memory.view.part(0, 16), 0xff).unwrap();
    let copied = device.record(first).unwrap();
    device.wait(second, copied).unwrap();
    // The stream keeps the memory until the copy is done.
    drop(host);
    device.copy_out(second, memory.view, &back, 0).unwrap();
    device.synchronize(second).unwrap();
    let seen = read(&back);
    assert_eq!(seen[..4], [u64::MAX, u64::MAX, 2, 3]);
    assert_eq!(seen[WORDS - 1], WORDS as u64 - 1);
    device.synchronize(first).unwrap();
    let seconds = device.seconds(start, copied).unwrap();
    assert!(seconds > 0.0 && seconds < 10.0, "{seconds}");
    assert!(device.copy_out(second, memory.view, &back, 8).is_err(), "too long");
    assert!(device.record(Stream(3)).is_err(), "no such stream");
    for _ in 0..1000 {
        device.record(first).unwrap();
        device.synchronize(first).unwrap();
    }
}

/// Returns the current context of this thread.
fn current() -> sys::CUcontext {
    let mut current = std::ptr::null_mut();
    // SAFETY: the call writes a handle.
    let code = unsafe { sys::cuCtxGetCurrent(&mut current) };
    assert_eq!(code, CUresult::CUDA_SUCCESS);
    current
}

/// Calls on the user's thread leave its current context unchanged, whether it has one or not.
#[test]
fn the_callers_context_stays_current() {
    let Some(device) = device(None) else { return };
    let mut own = std::ptr::null_mut();
    // The bindings have only a later version of the function, which older drivers do not have.
    type Create =
        unsafe extern "C" fn(*mut sys::CUcontext, libc::c_uint, sys::CUdevice) -> CUresult;
    // SAFETY: the type is the one in cuda.h.
    let create = unsafe { sys::culib().get::<Create>("cuCtxCreate_v2".as_bytes()) }.unwrap();
    // SAFETY: a device of the driver; the call writes a handle and makes it current.
    let code = unsafe { create(&mut own, 0, device.gpu.device) };
    assert_eq!(code, CUresult::CUDA_SUCCESS);
    for before in [std::ptr::null_mut(), own] {
        // SAFETY: a context of this test, or none.
        assert_eq!(unsafe { sys::cuCtxSetCurrent(before) }, CUresult::CUDA_SUCCESS);
        let unchanged = |what: &str| assert_eq!(current(), before, "{what}");
        Gpu::detect().unwrap();
        unchanged("detecting");
        device.gpu.free_memory().unwrap();
        unchanged("asking for free memory");
        device.available().unwrap();
        unchanged("asking for what is available");
        let other = CudaDevice::new(&device.gpu, Some(64 << 20)).unwrap();
        unchanged("opening");
        let stream = other.stream(0).unwrap();
        unchanged("making a stream");
        let keys = other.allocate(8 * WORDS as u64, "keys").unwrap();
        unchanged("allocating");
        let host = words(&other, 0..WORDS as u64);
        unchanged("pinning");
        other.copy_in(stream, &host, 0, keys.view).unwrap();
        assert_eq!(largest(&other, stream, keys.address(), WORDS), WORDS as u64 - 1);
        unchanged("running a kernel");
        let event = other.record(stream).unwrap();
        other.wait_for(event).unwrap();
        unchanged("waiting");
        let once = other.pinned_once(1 << 20, "a test").unwrap();
        drop((keys, host, once));
        unchanged("giving memory back");
        crate::release_memory();
        unchanged("releasing memory");
        drop(other);
        unchanged("closing");
    }
    // SAFETY: created above, and no longer used.
    unsafe { sys::cuCtxDestroy_v2(own) };
}

#[test]
fn a_kernel_runs_for_both_widths() {
    let Some(device) = device(None) else { return };
    let stream = device.stream(0).unwrap();
    let keys = device.allocate(8 * WORDS as u64, "keys").unwrap();
    let found = device.allocate(32, "what was found").unwrap();
    let back = device.pinned(32, "what was found").unwrap();
    let host = words(&device, (0..WORDS as u64).map(|n| n << 32 | (n + 7)));
    for (word, rows, most) in [
        (Width::W64, WORDS, (WORDS as u64 - 1) << 32 | (WORDS as u64 + 6)),
        (Width::W32, 2 * WORDS, WORDS as u64 + 6),
    ] {
        device.copy_in(stream, &host, 0, keys.view).unwrap();
        device.fill(stream, found.view, 0).unwrap();
        let survey =
            abi::Survey { keys: keys.address(), rows: rows as u64, found: found.address() };
        // SAFETY: memory of these lengths, kept until the stream is synchronised.
        unsafe { device.run(stream, word, &DeviceStage::Survey(survey)) }.unwrap();
        device.copy_out(stream, found.view, &back, 0).unwrap();
        device.synchronize(stream).unwrap();
        assert_eq!(read(&back)[0], most, "{word:?}");
    }
}

#[test]
fn memory_beyond_the_budget_is_an_error_value() {
    if let Ok(gpus) = Gpu::detect() {
        let refused = CudaDevice::new(&gpus[0], Some(1)).map(|_| ()).unwrap_err();
        assert!(matches!(refused, Error::InvalidOption { .. }), "{refused}");
    }
    let Some(device) = device(Some(64 << 20)) else { return };
    let held = device.allocate(60 << 20, "most").unwrap();
    let refused = device.allocate(8 << 20, "more").map(|_| ()).unwrap_err();
    assert!(matches!(refused, Error::DeviceMemory { .. }), "{refused}");
    drop(held);
    assert!(device.allocate(8 << 20, "more").is_ok());
    assert_eq!(device.memory().peak, 60 << 20);
}

#[test]
fn memory_the_driver_does_not_have_is_an_error_value() {
    let Some(device) = device(Some(1 << 50)) else { return };
    let refused = device.allocate(1 << 49, "half a petabyte").map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("nvidia-smi"), "{refused}");
    assert!(device.allocate(1 << 20, "little").is_ok());
}

#[test]
fn threads_share_a_device() {
    let Some(device) = device(None) else { return };
    std::thread::scope(|scope| {
        for index in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                let stream = device.stream(index as usize).unwrap();
                for round in 0..20 {
                    let host = words(device, (0..5000).map(|n| n * index + round));
                    let memory = device.allocate(8 * 5000, "a test").unwrap();
                    let back = device.pinned(8 * 5000, "a test").unwrap();
                    device.copy_in(stream, &host, 0, memory.view).unwrap();
                    device.copy_out(stream, memory.view, &back, 0).unwrap();
                    device.synchronize(stream).unwrap();
                    assert_eq!(read(&back)[4999], 4999 * index + round);
                }
            });
        }
    });
}

/// Returns the largest word that a stage finds at an address.
fn largest(device: &CudaDevice, stream: Stream, keys: u64, rows: usize) -> u64 {
    let found = device.allocate(32, "what was found").unwrap();
    let back = device.pinned(32, "what was found").unwrap();
    device.fill(stream, found.view, 0).unwrap();
    let survey = abi::Survey { keys, rows: rows as u64, found: found.address() };
    // SAFETY: memory of these lengths, kept until the stream is synchronised.
    unsafe { device.run(stream, Width::W64, &DeviceStage::Survey(survey)) }.unwrap();
    device.copy_out(stream, found.view, &back, 0).unwrap();
    device.synchronize(stream).unwrap();
    read(&back)[0]
}

#[test]
fn chunks_that_share_a_page_are_pinned_at_the_same_time() {
    let Some(device) = device(None) else { return };
    let stream = device.stream(0).unwrap();
    let column: Vec<u64> = (0..WORDS as u64).map(|n| n * 7).collect();
    let whole = HostView::of(&column);
    let memory = device.allocate(whole.bytes, "a test").unwrap();
    let back = device.pinned(8 * WORDS, "a test").unwrap();
    // Cut in the middle of pages. Twice, so that unpinned pages are pinned again.
    let ends = [0, 24, 5000, 100_008, 100_016, 3 << 20, whole.bytes];
    for _ in 0..2 {
        device.fill(stream, memory.view, 0xff).unwrap();
        let mut before = None;
        for part in ends.windows(2) {
            let chunk = whole.part(part[0], part[1] - part[0]);
            // SAFETY: the column lives to the end, when all copies are done.
            let pinned = unsafe { device.pin(chunk) }.unwrap();
            let to = memory.view.part(part[0], chunk.bytes);
            device.copy_in(stream, &pinned, 0, to).unwrap();
            let copied = device.record(stream).unwrap();
            // The previous chunk is unpinned while this one is being copied.
            if let Some(event) = before.replace(copied) {
                device.wait_for(event).unwrap();
            }
        }
        device.copy_out(stream, memory.view, &back, 0).unwrap();
        device.synchronize(stream).unwrap();
        assert!(read(&back) == column);
    }
    // SAFETY: as above.
    let (first, again) = unsafe { (device.pin(whole), device.pin(whole.part(8, 9000))) };
    drop(first.unwrap());
    device.copy_in(stream, &again.unwrap(), 0, memory.view.part(0, 9000)).unwrap();
    device.copy_out(stream, memory.view, &back, 0).unwrap();
    device.synchronize(stream).unwrap();
    assert_eq!(read(&back)[..3], [7, 14, 21]);
}

#[test]
fn copies_run_from_memory_that_is_not_pinned_or_only_in_part() {
    let Some(device) = device(None) else { return };
    let stream = device.stream(0).unwrap();
    let column: Vec<u64> = (0..WORDS as u64).map(|n| n ^ 5).collect();
    let whole = HostView::of(&column);
    let memory = device.allocate(whole.bytes, "a test").unwrap();
    let back = device.pinned(8 * WORDS, "a test").unwrap();
    for pinned in [false, true] {
        // SAFETY: the column lives to the end, when all copies are done.
        let pin = pinned.then(|| unsafe { device.pin(whole.part(20_000, 70_000)) }.unwrap());
        device.fill(stream, memory.view, 0).unwrap();
        // SAFETY: as above.
        unsafe { device.copy_from(stream, whole, memory.view) }.unwrap();
        device.copy_out(stream, memory.view, &back, 0).unwrap();
        device.synchronize(stream).unwrap();
        assert!(read(&back) == column);
        drop(pin);
    }
    // SAFETY: as above.
    assert!(unsafe { device.copy_from(stream, whole.part(0, 8), memory.view) }.is_err());
}

#[test]
fn a_stage_reads_and_copies_write_mapped_memory() {
    let Some(device) = device(None) else { return };
    let stream = device.stream(0).unwrap();
    let host = words(&device, 0..WORDS as u64);
    let used = device.memory().used;
    let mapped = device.mapped(&host).unwrap();
    assert_eq!(device.memory().used, used, "not charged");
    assert_eq!(largest(&device, stream, mapped.address(), WORDS), WORDS as u64 - 1);
    let memory = device.allocate(64, "a test").unwrap();
    device.fill(stream, memory.view, 0x11).unwrap();
    device.copy_between(stream, memory.view, mapped.view.part(8, 64)).unwrap();
    device.synchronize(stream).unwrap();
    let seen = read(&host);
    assert_eq!((seen[0], seen[1], seen[8], seen[9]), (0, 0x1111_1111_1111_1111, seen[1], 9));
    // Memory of another owner, whose first and last pages are registered separately.
    let column: Vec<u64> = (0..WORDS as u64).map(|n| n + 3).collect();
    // SAFETY: the column lives to the end, when all stages are done.
    let pinned =
        unsafe { device.pin(HostView::of(&column).part(8, 8 * WORDS as u64 - 8)) }.unwrap();
    let mapped = device.mapped(&pinned).unwrap();
    drop(pinned);
    assert_eq!(largest(&device, stream, mapped.address(), WORDS - 1), WORDS as u64 + 2);
    let back = device.allocate(8 * WORDS as u64 - 8, "a test").unwrap();
    device.copy_between(stream, mapped.view, back.view).unwrap();
    assert_eq!(largest(&device, stream, back.address(), WORDS - 1), WORDS as u64 + 2);
}

#[test]
fn a_coherent_gpu_reads_any_memory_and_others_say_so() {
    let Some(device) = device(None) else { return };
    let stream = device.stream(0).unwrap();
    let column: Vec<u64> = (0..WORDS as u64).collect();
    // SAFETY: the column lives to the end, and is not changed.
    match unsafe { device.coherent(HostView::of(&column)) } {
        Ok(memory) => {
            assert!(device.gpu.pageable_access);
            assert_eq!(largest(&device, stream, memory.address(), WORDS), WORDS as u64 - 1);
        }
        Err(error) => {
            assert!(!device.gpu.pageable_access && error.to_string().contains("staged-copy"));
        }
    }
}

#[test]
fn managed_memory_moves_to_who_uses_it() {
    let Some(device) = device(Some(64 << 20)) else { return };
    if !device.gpu.managed_access {
        assert!(matches!(device.managed(8, "a test"), Err(Error::Unsupported { .. })));
        return;
    }
    let stream = device.stream(0).unwrap();
    let managed = device.managed(8 * WORDS as u64, "a test").unwrap();
    assert_eq!(device.memory().used, 8 * WORDS as u64);
    for (round, prefetch) in [(1, true), (2, false), (3, true)] {
        // SAFETY: the memory has this many words, and no stage uses it now.
        let words = unsafe { std::slice::from_raw_parts_mut(managed.start.cast::<u64>(), WORDS) };
        words.iter_mut().zip(0..).for_each(|(word, n)| *word = n * round);
        if prefetch {
            device.prefetch(stream, &managed).unwrap();
        }
        let most = largest(&device, stream, managed.view.address, WORDS);
        assert_eq!(most, (WORDS as u64 - 1) * round);
    }
    let refused = device.managed(60 << 20, "more").map(|_| ()).unwrap_err();
    assert!(matches!(refused, Error::DeviceMemory { .. }), "{refused}");
    drop(managed);
    assert_eq!(device.memory().used, 0);
}

#[test]
fn ranges_lie_in_both_memories() {
    let Some(device) = device(Some(64 << 20)) else { return };
    if !device.gpu.host_virtual_memory {
        let refused = device.range(8, 0, "a test").map(|_| ()).unwrap_err();
        assert!(matches!(refused, Error::Unsupported { .. }), "{refused}");
        return;
    }
    let stream = device.stream(0).unwrap();
    let host = words(&device, (0..WORDS as u64).map(|n| n * 5));
    let (page, bytes) = (2u64 << 20, 8 * WORDS as u64);
    for (on_device, pages) in [(0, 0), (page + 1, 2), (3 * page, 3), (u64::MAX, 4)] {
        let range = device.range(bytes, on_device, "a test").unwrap();
        assert_eq!(device.memory().used, pages * page, "{on_device}");
        let back = device.pinned(8 * WORDS, "a test").unwrap();
        // As a whole and in the middle of pages, by copies that span both memories.
        device.copy_in(stream, &host, 0, range.view).unwrap();
        device.copy_out(stream, range.view, &back, 0).unwrap();
        device.synchronize(stream).unwrap();
        assert!(read(&back) == read(&host), "{on_device}");
        assert_eq!(largest(&device, stream, range.address(), WORDS), 5 * (WORDS as u64 - 1));
        let other = device.allocate(bytes, "a test").unwrap();
        device.fill(stream, other.view, 0x22).unwrap();
        let middle = range.view.part(1 << 20, 5 << 20);
        device.copy_between(stream, other.view.part(0, 5 << 20), middle).unwrap();
        device.fill(stream, middle.part(1 << 20, 3 << 20), 0x33).unwrap();
        device.copy_between(stream, range.view, other.view).unwrap();
        device.copy_out(stream, other.view, &back, 0).unwrap();
        device.synchronize(stream).unwrap();
        let seen = read(&back);
        let at = |mib: usize| seen[mib << 17];
        let (twos, threes) = (0x2222_2222_2222_2222, 0x3333_3333_3333_3333);
        assert_eq!([0, 1, 2, 4, 5].map(at), [0, twos, threes, threes, twos], "{on_device}");
        assert_eq!(at(6), 5 * (6 << 17), "{on_device}");
        drop((range, other));
        assert_eq!(device.memory().used, 0);
    }
    let refused = device.range(1 << 30, 100 << 20, "more").map(|_| ()).unwrap_err();
    assert!(matches!(refused, Error::DeviceMemory { .. }), "{refused}");
    assert!(device.range(u64::MAX, 0, "all").is_err());
    assert!(device.range(1 << 60, page, "much").is_err());
    assert_eq!(device.memory().used, 0, "failures leave nothing behind");
}

#[test]
fn waiting_for_an_event_lets_go_what_was_copied_before() {
    let Some(device) = device(None) else { return };
    let stream = device.stream(0).unwrap();
    let memory = device.allocate(8 * WORDS as u64, "a test").unwrap();
    let copy = || {
        let host = words(&device, 0..WORDS as u64);
        device.copy_in(stream, &host, 0, memory.view).unwrap();
        Arc::downgrade(&host)
    };
    let (first, second) = (copy(), copy());
    let event = device.record(stream).unwrap();
    let third = copy();
    device.wait_for(event).unwrap();
    assert!(first.upgrade().is_none() && second.upgrade().is_none());
    assert!(third.upgrade().is_some(), "nobody has waited for it");
    device.synchronize(stream).unwrap();
    assert!(third.upgrade().is_none());
    for _ in 0..=crate::device::EVENTS {
        device.record(stream).unwrap();
    }
    device.synchronize(stream).unwrap();
    device.record(stream).unwrap();
    // It has happened; only its time is lost.
    device.wait_for(event).unwrap();
    device.wait(stream, event).unwrap();
    assert!(device.seconds(event, event).is_err());
    let unknown = crate::device::Event { number: usize::MAX, ..event };
    assert!(device.wait_for(unknown).unwrap_err().to_string().contains("never recorded"));
}

/// An event that has not happened is waited for, however many events are recorded meanwhile.
#[test]
fn what_is_under_way_is_not_forgotten() {
    let Some(device) = device(None) else { return };
    let (slow, other) = (device.stream(0).unwrap(), device.stream(1).unwrap());
    let bytes = 256 << 20;
    let memory = device.allocate(bytes, "a test").unwrap();
    let last = memory.view.part(bytes - 8, 8);
    let back = device.pinned(8, "a test").unwrap();
    for value in 1..=3u8 {
        // This work takes longer than recording that many events.
        for _ in 0..512 {
            device.fill(slow, memory.view, 0).unwrap();
        }
        device.fill(slow, last, value).unwrap();
        let event = device.record(slow).unwrap();
        for _ in 0..crate::device::EVENTS + 100 {
            device.record(other).unwrap();
        }
        device.wait(other, event).unwrap();
        device.copy_out(other, last, &back, 0).unwrap();
        device.synchronize(other).unwrap();
        // SAFETY: the copy is done.
        assert_eq!(unsafe { back.bytes() }[..8], [value; 8]);
    }
}

#[test]
fn threads_wait_for_events_while_others_record_many() {
    let Some(device) = device(None) else { return };
    std::thread::scope(|scope| {
        for index in 0..4 {
            let device = &device;
            scope.spawn(move || {
                let stream = device.stream(index).unwrap();
                for _ in 0..1000 {
                    // By then, others may have recorded so many events that this one is forgotten.
                    let event = device.record(stream).unwrap();
                    device.wait_for(event).unwrap();
                }
            });
        }
    });
}

//! The device itself, on a GPU: memory, copies, streams, events, kernels. Left out where there is
//! none, unless `STRAIT_REQUIRE_GPU` is set.

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

/// Pinned memory with these words.
fn words(device: &CudaDevice, values: impl Iterator<Item = u64>) -> Arc<Pinned> {
    let bytes: Vec<u8> = values.flat_map(u64::to_ne_bytes).collect();
    let host = device.pinned(bytes.len(), "a test").unwrap();
    // SAFETY: no copy is under way.
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
    // The stream keeps the memory until it is done with it.
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

#[test]
fn a_kernel_runs_for_both_widths() {
    let Some(device) = device(None) else { return };
    let stream = device.stream(0).unwrap();
    let keys = device.allocate(8 * WORDS as u64, "keys").unwrap();
    let found = device.allocate(32, "what was found").unwrap();
    let back = device.pinned(32, "what was found").unwrap();
    let host = words(&device, (0..WORDS as u64).map(|n| n << 32 | (n + 7)));
    for (word, rows, most) in [
        (Word::W8, WORDS, (WORDS as u64 - 1) << 32 | (WORDS as u64 + 6)),
        (Word::W4, 2 * WORDS, WORDS as u64 + 6),
    ] {
        device.copy_in(stream, &host, 0, keys.view).unwrap();
        device.fill(stream, found.view, 0).unwrap();
        let survey =
            abi::Survey { keys: keys.address(), rows: rows as u64, found: found.address() };
        // SAFETY: memory of these lengths, kept until the stream is synchronised.
        unsafe { device.run(stream, word, &Stage::Survey(survey)) }.unwrap();
        device.copy_out(stream, found.view, &back, 0).unwrap();
        device.synchronize(stream).unwrap();
        assert_eq!(read(&back)[0], most, "{word:?}");
    }
}

#[test]
fn memory_beyond_the_budget_is_an_error_value() {
    if let Ok(gpus) = Gpu::detect() {
        let refused = CudaDevice::new(&gpus[0], Some(1)).map(|_| ()).unwrap_err();
        assert!(matches!(refused, Error::Setting(_)), "{refused}");
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

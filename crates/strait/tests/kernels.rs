//! Every kernel compiles for every word width and GPU generation, and host and kernels agree on the layout of
//! the structs that they share. These tests need NVRTC, but no GPU.
//!
//! `make test` installs NVRTC and requires it. Without `STRAIT_REQUIRE_NVRTC`, these tests are skipped if
//! there is no NVRTC.

use strait::gpu::Nvrtc;
use strait::testing::device as device_testing;

const ARCHITECTURES: [&str; 4] = ["sm_75", "sm_80", "sm_90", "sm_100"];

/// Whether NVRTC is available.
fn has_nvrtc() -> bool {
    let found = Nvrtc::find();
    if let Err(error) = &found {
        let required = std::env::var_os("STRAIT_REQUIRE_NVRTC").is_some_and(|set| set == "1");
        assert!(!required, "{error}");
        println!("left out: {error}");
    }
    found.is_ok()
}

#[test]
fn every_kernel_compiles_for_every_architecture() {
    if !has_nvrtc() {
        return;
    }
    for architecture in ARCHITECTURES {
        match device_testing::compile_all(architecture) {
            Ok(count) => assert!(count > 0),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn host_and_kernels_agree_on_layouts() {
    if !has_nvrtc() {
        return;
    }
    let text = device_testing::layout_assertions();
    assert!(text.matches("static_assert").count() > 100, "{text}");
    if let Err(error) = device_testing::compile_source("layouts", &text, "sm_90") {
        panic!("{error}");
    }
}

#[test]
fn what_does_not_compile_is_an_error_with_the_compilers_words() {
    if !has_nvrtc() {
        return;
    }
    let wrong = "extern \"C\" __global__ void f() { nonsense(); }";
    let error = device_testing::compile_source("wrong", wrong, "sm_90").map(|_| ());
    let message = error.map_or_else(|error| error.to_string(), |()| "it compiled".to_string());
    for part in ["\"wrong\"", "sm_90", "nonsense", "undefined"] {
        assert!(message.contains(part), "no {part} in: {message}");
    }
    let unknown = device_testing::compile_source("old", "", "sm_999").map(|_| ());
    assert!(unknown.is_err_and(|error| error.to_string().contains("sm_999")));
}

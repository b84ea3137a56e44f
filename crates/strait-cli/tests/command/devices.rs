//! `strait devices` with and without a GPU.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::sandbox::{Outcome, Sandbox, outcome};

/// Runs the command with a kernel cache in the sandbox, and without a visible GPU.
fn devices(sandbox: &Sandbox, arguments: &[&str], nvrtc: Option<&str>) -> Outcome {
    let mut command = sandbox.command();
    command.arg("devices").args(arguments);
    command.env("XDG_CACHE_HOME", sandbox.path("cache")).env("CUDA_VISIBLE_DEVICES", "");
    if let Some(nvrtc) = nvrtc {
        command.env("STRAIT_NVRTC", nvrtc);
    }
    outcome(&mut command)
}

/// Whether NVRTC is available for the test.
fn has_nvrtc() -> bool {
    let found = strait::gpu::Nvrtc::find();
    if let Err(error) = &found {
        println!("left out: {error}");
        assert!(std::env::var_os("STRAIT_REQUIRE_NVRTC").is_none(), "{error}");
    }
    found.is_ok()
}

#[test]
fn without_a_gpu_it_says_why() {
    let sandbox = Sandbox::new();
    let text = devices(&sandbox, &[], Some("/no/such/libnvrtc.so")).ok();
    assert!(text.starts_with("GPU      none: "), "{text}");
    assert!(text.contains("without a GPU, joins run on the CPU"), "{text}");
    let nvrtc = text.lines().find(|line| line.starts_with("NVRTC")).unwrap();
    for part in ["/no/such/libnvrtc.so", "STRAIT_NVRTC", "pip install"] {
        assert!(nvrtc.contains(part), "no {part} in {nvrtc}");
    }
    let kernels = sandbox.path("cache/strait/kernels");
    assert!(text.contains(&format!("kernels  {}", kernels.display())), "{text}");
}

#[test]
fn as_json() {
    let sandbox = Sandbox::new();
    let text = devices(&sandbox, &["--format", "json"], Some("/no/such/libnvrtc.so")).ok();
    let list: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(list["gpus"], serde_json::json!([]));
    assert!(list["no_gpu"].as_str().unwrap().contains("no GPU"), "{text}");
    assert!(list["nvrtc"]["missing"].as_str().unwrap().contains("NVRTC"), "{text}");
}

#[test]
fn compiling_wants_a_gpu_or_a_name_and_a_compiler() {
    let sandbox = Sandbox::new();
    devices(&sandbox, &["--compile"], None).fails(&["no GPU", "--arch sm_90"]);
    let missing = devices(&sandbox, &["--compile", "--arch", "sm_90"], Some("/no/libnvrtc.so"));
    missing.fails(&["NVRTC", "/no/libnvrtc.so", "nvidia-cuda-nvrtc"]);
    sandbox.strait("devices --compile --arch sm_30").refused(&["too old", "sm_75"]);
    sandbox.strait("devices --compile --arch hopper").refused(&["sm_90"]);
    sandbox.strait("devices --arch sm_90").refused(&["--compile"]);
    sandbox.write("libnvrtc.so", "not a library");
    let odd = sandbox.path("libnvrtc.so").display().to_string();
    devices(&sandbox, &["--compile", "--arch", "sm_90"], Some(&odd)).fails(&[&odd, "STRAIT_NVRTC"]);
}

#[test]
fn compiled_kernels_are_kept_and_mended() {
    if !has_nvrtc() {
        return;
    }
    let sandbox = Sandbox::new();
    let compile = || devices(&sandbox, &["--compile", "--arch", "sm_90"], None);
    let first = compile().ok();
    let modules = first.lines().count() - 1;
    assert!(modules > 0 && !first.contains("compiled before"), "{first}");
    assert_eq!(compile().ok().matches("compiled before").count(), modules);

    let folder = sandbox.path("cache/strait/kernels");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), modules);
    let mut damaged = std::fs::read(&files[0]).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&files[0], damaged).unwrap();
    std::fs::set_permissions(&files[1], std::fs::Permissions::from_mode(0o666)).unwrap();
    let mended = compile();
    assert_eq!(mended.ok().matches("compiled before").count(), modules - 2);
    assert!(mended.stderr.contains("it is damaged"), "{}", mended.stderr);
    assert!(mended.stderr.contains("other users may write to"), "{}", mended.stderr);
    assert_eq!(compile().ok().matches("compiled before").count(), modules);
}

//! Decides which inner loops are compiled: `cfg(vectors)` is set where the x86-64 ones are.
//!
//! The feature `portable` leaves them out on x86-64 too. The library is then the one that other
//! processors get, so `make check` can check it where no other target is installed.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(vectors)");
    let set = |name: &str| std::env::var_os(name).is_some();
    let x86_64 = std::env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64");
    if x86_64 && !set("CARGO_FEATURE_PORTABLE") && !set("CARGO_CFG_MIRI") {
        println!("cargo::rustc-cfg=vectors");
    }
}

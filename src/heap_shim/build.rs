//! Build script of stackprof: compiles the heap shim, a separate library, for the same target and with the same
//! compiler and linker. Sets `cfg(heap_shim)` and writes the library to `OUT_DIR/heap_shim`; if that fails,
//! `STACKPROF_NO_HEAP_SHIM` has the reason and the build continues.
#![allow(clippy::print_stdout)]

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/heap_shim");
    println!("cargo::rustc-check-cfg=cfg(heap_shim)");
    match compile() {
        Ok(()) => println!("cargo::rustc-cfg=heap_shim"),
        Err(reason) => {
            let reason = reason.replace('\n', " ");
            if is_supported() {
                println!("cargo::warning=`stackprof heap` will not work: {reason}");
            }
            println!("cargo::rustc-env=STACKPROF_NO_HEAP_SHIM={reason}");
        }
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default()
}

fn is_supported() -> bool {
    let system = variable("CARGO_CFG_TARGET_OS");
    let processor = variable("CARGO_CFG_TARGET_ARCH");
    let width = variable("CARGO_CFG_TARGET_POINTER_WIDTH");
    matches!(system.as_str(), "linux" | "macos")
        && matches!(processor.as_str(), "x86_64" | "aarch64")
        && width == "64"
}

fn compile() -> Result<(), String> {
    let target = variable("TARGET");
    if !is_supported() {
        return Err(format!("there is no heap shim for {target}"));
    }
    let is_linux = variable("CARGO_CFG_TARGET_OS") == "linux";
    let output = PathBuf::from(variable("OUT_DIR")).join("heap_shim");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--crate-name=heap_shim", "--crate-type=cdylib", "--edition=2024", "--target", &target]);
    rustc.args(["-Cpanic=abort", "-Copt-level=3", "-Ccodegen-units=1", "-Cforce-frame-pointers=yes"]);
    rustc.args(["-Cdebuginfo=0", "--cap-lints=warn"]);
    if is_linux {
        // Here the linker strips; elsewhere that needs a tool that may be missing.
        rustc.arg("-Cstrip=symbols");
    }
    if variable("CARGO_CFG_TARGET_OS") == "macos" {
        // What an older SDK lacks, dyld looks up: functions that are imported weakly.
        rustc.args(["-Clink-arg=-undefined", "-Clink-arg=dynamic_lookup"]);
        // Without it, up to macOS 11, the first call of a function inside malloc could wait for dyld's lock.
        rustc.arg("-Clink-arg=-bind_at_load");
    }
    if variable("CARGO_CFG_TARGET_ENV") == "musl" {
        // If programs are linked statically by default, there would be no library.
        rustc.arg("-Ctarget-feature=-crt-static");
    }
    if let Ok(linker) = env::var("RUSTC_LINKER") {
        rustc.arg(format!("-Clinker={linker}"));
    }
    rustc.args(linker_flags(&variable("CARGO_ENCODED_RUSTFLAGS")));
    rustc.arg("-o").arg(&output).arg("src/heap_shim/lib.rs");
    let result = rustc.output().map_err(|error| format!("rustc did not start: {error}"))?;
    if !result.status.success() {
        println!("cargo::warning={rustc:?} failed");
        let messages = String::from_utf8_lossy(&result.stderr);
        return Err(format!("the heap shim could not be compiled for {target}: {}", first_error(&messages)));
    }
    Ok(())
}

/// The flags that affect linking. The others are for stackprof itself: coverage or a sanitizer has no place in
/// a library that other programs load.
fn linker_flags(encoded: &str) -> Vec<String> {
    let mut flags = Vec::new();
    let mut given = encoded.split('\x1f');
    while let Some(flag) = given.next() {
        let option = match flag {
            "-C" | "--codegen" => given.next().unwrap_or_default(),
            _ => flag.strip_prefix("-C").or_else(|| flag.strip_prefix("--codegen=")).unwrap_or_default(),
        };
        let name = option.split('=').next().unwrap_or_default();
        if matches!(name, "linker" | "linker-flavor" | "link-arg" | "link-args" | "link-self-contained") {
            flags.push(format!("-C{option}"));
        }
    }
    flags
}

/// The most informative line of the compiler's messages.
fn first_error(messages: &str) -> &str {
    let mut lines = messages.lines();
    lines.find(|line| line.starts_with("error")).unwrap_or("it said nothing")
}

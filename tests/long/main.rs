//! What takes long: programs that are stepped by the instruction.
#![allow(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used)]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod exactness;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
#[path = "../support/skip.rs"]
mod skip;

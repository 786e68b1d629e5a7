//! What takes long, beside each other: programs that are stepped by the instruction use the CPUs, while who
//! visits a stub that does not answer waits.
#![allow(clippy::print_stderr, clippy::print_stdout, clippy::unwrap_used)]

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod exactness;
#[cfg(unix)]
mod stub;

//! macOS: the Mach calls that a backend makes, and the kernel that answers them.
//!
//! `kernel.rs` is the written interface, compiled and tested on every platform;
//! `xnu.rs` is the real kernel, on Apple systems only.

pub mod kernel;

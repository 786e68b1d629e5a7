//! macOS: the Mach calls that a backend makes, and the kernel that answers them.
//!
//! `kernel.rs` is the written interface and `layout.rs` the structures that the kernel
//! fills, both compiled and tested on every platform; `xnu.rs` is the real kernel, on
//! Apple systems only.

pub mod kernel;
pub mod layout;
#[cfg(target_vendor = "apple")]
pub mod xnu;

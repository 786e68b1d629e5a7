//! The images of processes over time, and JIT code. Input: mappings and bytes. Output: image and Svma of an
//! address, rows and functions.
//!
//! `history.rs`: the image of an address at a time, and how many libraries were loaded and unloaded (`space.rs`:
//! one address space, `image.rs`: one image); `code.rs`: the current images of one process, as the walker asks
//! them; `jit.rs`: JIT code; `gdb_jit.rs`: JIT code that its compiler registered.
//!
//! Pure: no OS calls, no clock. Not for: names (see `symbol`).

mod code;
mod gdb_jit;
mod history;
mod image;
mod jit;
mod space;

pub use code::ImageView;
pub use gdb_jit::GdbJit;
pub use history::{IMAGES_MAX, Images, LibraryCounts, Loader, Location, REGIONS_MAX, SPACES_MAX};
pub use image::{Image, ImageError};
pub use jit::{CodeMemory, JitCode, RECHECK_INTERVAL_NS, Read, TargetCode};

#[cfg(test)]
mod macho_tests;
#[cfg(all(test, target_os = "linux"))] // the test executable must be ELF
mod tests;

//! Walks the stacks of stopped threads.
//!
#![doc = include_str!("../README.md")]
//!
//! ```text
//! addr     addresses, with a type for each address space
//! arch     processors and their registers
//! binary   contents of the files of images: ELF, Mach-O, PE; unwind tables
//! walk     registers + stack bytes -> frames + reason why the walk ended
//! images   address -> image + address in it
//! ```

pub mod addr;
pub mod arch;
pub mod binary;
pub mod images;
pub mod leb128;
pub mod walk;

#[cfg(test)]
#[path = "../../../tests/support/cpu_time.rs"]
mod cpu_time;
#[cfg(test)]
#[path = "../../profile/src/rng.rs"]
#[allow(dead_code, unreachable_pub, reason = "tests use a part of it")]
mod rng;
#[cfg(test)]
#[path = "../../../tests/support/skip.rs"]
mod skip;

//! Real files: what compilers, linkers and packers make is read, damaged, and compared with what
//! LLVM's and binutils' programs say of it. A tool that is not there is told by SKIP;
//! `STACKPROF_NO_SKIP=1` makes that a failure.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

#[cfg(target_os = "linux")]
#[path = "../support/seeds.rs"]
mod seeds;

mod debug_files;
mod debug_map;
mod dwz;
mod go_table;
mod hostile;
mod hostile_unwind;
mod macho_frames;
mod macho_symbols;
mod real_macho;

//! Real files: output of compilers, linkers and packers is read, damaged, and compared with the output of
//! LLVM's and binutils' programs. A missing tool is reported by SKIP; `STACKPROF_NO_SKIP=1` makes that a
//! failure.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

#[cfg(target_os = "linux")]
#[path = "../support/seeds.rs"]
mod seeds;
#[path = "../support/skip.rs"]
mod skip;
#[cfg(target_os = "linux")]
#[path = "../support/hostile.rs"]
mod targets;

mod debug_files;
mod debug_map;
mod dwz;
mod go_table;
mod hostile;
mod hostile_unwind;
mod macho_frames;
mod macho_symbols;
mod real_macho;

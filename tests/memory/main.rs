//! How much memory and CPU time damaged and malicious files can cost, and a recording that goes on and
//! on. The allocator counts for the whole process, so one test runs at a time.
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

#[path = "../support/memory.rs"]
mod memory;
#[path = "../support/seeds.rs"]
mod seeds;
#[path = "../support/skip.rs"]
mod skip;

mod hostile_debug;
mod hostile_macho_unwind;
mod hostile_work;
mod steady;

//! The heap shim in real programs: each allocation that a program logs has its record, and programs print the same
//! as without it, whatever happens to the reader. Programs are compiled from `tests/fixtures/heap_*.c`.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

#[path = "../../src/heap_shim/shared_memory.rs"]
#[allow(dead_code, unreachable_pub)] // the tests use a part
mod shared_memory;

mod program;
mod reader_death;
mod records;
mod ring;
mod same_output;

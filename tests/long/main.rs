//! Targets behind a stub of the gdb remote protocol: a stub of ours with seeded faults. Real stubs with
//! real programs are in `tests/live_linux`.
#![cfg(unix)]
#![allow(clippy::print_stderr, clippy::unwrap_used)]

#[path = "../support/seeds.rs"]
mod support;

mod debugserver;
mod fake;
mod faults;
mod two_stacks;

pub(crate) use support::Random;
pub(crate) use support::rounds::rounds;

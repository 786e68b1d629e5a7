//! Tests without ptrace, compiler and clock: the sampler and the macOS backend on simulated processes and
//! kernels, simulated gdb stubs, profile formats, golden files. `cargo fast` runs it with the unit tests; `STACKPROF_ROUNDS` and
//! `STACKPROF_SEED` control repetition and random input (`support/rounds.rs`).
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs, unreachable_pub)]

#[path = "../support/folded.rs"]
mod folded;
#[path = "../support/pass_on.rs"]
mod pass_on;
#[path = "../support/seeds.rs"]
mod seeds;
#[path = "../support/sim_kernel/mod.rs"]
mod sim_kernel;

mod firefox;
mod golden;
mod hostile_profiles;
mod jit_code;
mod mach_kernel;
mod sampler;
mod saved;
#[cfg(unix)]
mod stub;
mod times;

//! What needs no ptrace, no compiler and no clock: the engine and the macOS backend over simulated
//! processes and kernels, the forms of profiles, golden files. `cargo fast` runs it with the unit
//! tests; `STACKPROF_ROUNDS` and `STACKPROF_SEED` say how often and with what (`support/rounds.rs`).
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs, unreachable_pub)]

#[path = "../support/folded.rs"]
mod folded;
#[path = "../support/seeds.rs"]
mod seeds;
#[path = "../support/sim_kernel/mod.rs"]
mod sim_kernel;

mod engine;
mod firefox;
mod golden;
mod hostile_profiles;
mod mach_kernel;
mod made_code;
mod saved;
mod times;

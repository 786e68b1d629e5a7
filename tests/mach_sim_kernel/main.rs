//! The simulated kernel itself: each rule that it is strict about is seen to refuse.
#![allow(clippy::unwrap_used, missing_docs, unreachable_pub)]

#[path = "../support/sim_kernel/mod.rs"]
mod sim_kernel;

mod client;
mod memory;
mod process;
mod rights;

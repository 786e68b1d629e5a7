//! Waits, from the context switch that takes a thread off its CPU to the one that gives it a CPU again.

mod context_switches;
pub(super) mod recorder;
pub(super) mod sleeping_thread;
pub(super) mod wait;

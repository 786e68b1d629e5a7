//! Waits: from a context switch that takes a thread off its CPU to the one that gives it a CPU again.

pub(super) mod context_switches;
pub(super) mod sleeping_thread;
pub(super) mod wait;

//! A simulated kernel for the pipeline: CPUs, threads, a scheduler, clocks and bounded rings. It writes the same
//! bytes as a real kernel and knows the truth: who ran when. Faults are seeded.
//!
//! Input: a seed; output: bytes of rings, and the state of clocks and /proc.

mod kernel;
mod records;
mod system;
mod tests;

//! A simulated kernel for the pipeline: CPUs, threads, a scheduler, clocks and rings of bounded size. It writes the bytes
//! that the kernel would and knows the truth: who ran when. Faults come by seed.
//!
//! Input: a seed; output: bytes of rings, and what clocks and /proc would show.

mod kernel;
mod records;
mod system;
mod tests;

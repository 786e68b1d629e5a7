//! CPU time: the weight of each sample, and losses.
//!
//! Input: samples with their processes, CPU clocks, numbers of lost records; output: weights and losses, which add
//! up to the CPU clock of each process.

pub(super) mod accounting;
mod process_clock;
mod tick_schedule;
pub(super) mod wakeup;

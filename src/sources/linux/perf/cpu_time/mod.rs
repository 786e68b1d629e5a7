//! CPU time: the weight of each sample, and losses.
//!
//! Input: samples with their processes, CPU clocks, numbers of lost records; output: weights and losses, which add
//! up to the CPU clock of each process.

pub(super) mod accounting;
mod batch_ticks;
mod clock_baseline;
mod losses;
mod process_clock;
mod share;
mod tick_schedule;
mod wakeup_charge;
pub(super) mod wakeup_latency;

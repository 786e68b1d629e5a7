//! CPU time: what each sample weighs, and what is lost.
//!
//! Input: samples with their processes, CPU clocks, numbers of lost records; output: weights and losses, which add up to
//! what the CPU clock of each process counted.

pub(super) mod clock_baseline;
pub(super) mod share;
pub(super) mod tick_schedule;
pub(super) mod wakeup_charge;
pub(super) mod wakeup_latency;

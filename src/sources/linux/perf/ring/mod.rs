//! Rings, one per CPU.
//!
//! Input: bytes as the kernel writes them. Output: [`record::PerfRecord`] with CPU and time.

pub(super) mod pressure;
pub(super) mod record;
pub(super) mod registers;
pub(super) mod sys;

//! The rings: one for each CPU, bytes in, records out.
//!
//! Input: bytes as the kernel writes them; output: [`record::PerfRecord`] with CPU and time.

pub(super) mod pressure;
pub(super) mod record;
pub(super) mod registers;
pub(super) mod sys;

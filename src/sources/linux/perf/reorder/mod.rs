//! Time order of the records of all CPUs: each ring is in order, but the rings among each other are not.

pub(super) mod event;
pub(super) mod event_queue;
pub(super) mod exited_threads;
pub(super) mod queue;

//! Records of all CPUs in the order of their times: each ring is in order, the rings are not.

pub(super) mod event;
pub(super) mod event_queue;
pub(super) mod exited_threads;
pub(super) mod queue;

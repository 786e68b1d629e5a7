//! Records of all CPUs in the order of their times: each ring is in order, the rings are not.

pub(super) mod exited_threads;

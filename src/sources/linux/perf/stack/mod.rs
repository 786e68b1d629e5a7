//! Stacks: how many bytes the kernel copies, and what completes a copy that is too short.

pub(super) mod backlog;
pub(super) mod missing_pages;
pub(super) mod prefetch;
pub(super) mod red_zone;
pub(super) mod stack_size;
pub(super) mod stack_tail;

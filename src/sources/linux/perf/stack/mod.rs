//! Stacks: how many bytes the kernel copies, and how short copies are completed.

pub(super) mod backlog;
pub(super) mod memory;
mod missing_pages;
mod prefetch;
pub(super) mod read_ahead;
mod red_zone;
pub(super) mod stack_size;
mod stack_tail;
pub(super) mod stacks;

#[cfg(test)]
pub(crate) use prefetch::sim_kernel::SimKernel;

//! Stacks: how many bytes the kernel copies, and how short copies are completed.

mod prefetch;
pub(super) mod stack_size;
mod stack_tail;
pub(super) mod stacks;

#[cfg(test)]
pub(crate) use prefetch::sim_kernel::SimKernel;

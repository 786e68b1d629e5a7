//! Programs for the kernel (BPF): which samples are dropped at once, what is copied beside a record, names of kernel code.

pub(super) mod bpf_sys;
pub(super) mod btf;
pub(super) mod filter_program;
pub(super) mod instructions;
pub(in crate::sources::linux) mod kernel_names;
pub(super) mod memory_copies;
pub(super) mod sample_filter;

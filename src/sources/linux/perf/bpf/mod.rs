//! BPF programs: they drop samples, copy stack bytes next to records, and name kernel functions.

pub(super) mod bpf_sys;
pub(super) mod instructions;
pub(crate) mod kernel_names;
pub(super) mod memory_copies;
pub(super) mod sample_filter;

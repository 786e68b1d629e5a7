//! The runtime of Go: goroutines (`x86_64.rs`, `aarch64.rs`) and its vDSO calls (`vdso_call.rs`).

pub(in crate::walk) mod aarch64;
pub(in crate::walk) mod vdso_call;
pub(in crate::walk) mod x86_64;

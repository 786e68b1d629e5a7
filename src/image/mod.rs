//! The images of a process over time: which image a code address belongs to, and where in it.
pub mod elf;

/// The images of a process over time.
#[derive(Debug, Default)]
pub struct Images {}

//! The support library of GCC: registers that it replaces while it installs a landing pad (`landing_pad.rs`), and split
//! stacks (`morestack.rs`).

pub(in crate::walk) mod landing_pad;
pub(in crate::walk) mod morestack;

//! The support library of GCC: registers replaced during the installation of a landing pad (`landing_pad.rs`), and
//! split stacks (`morestack.rs`).

pub(in crate::walk) mod landing_pad;
pub(in crate::walk) mod morestack;

//! The support library of GCC: registers replaced during the installation of a landing pad (`landing_pad.rs`).

pub(in crate::walk) mod landing_pad;

//! Files of images (ELF, Mach-O, PE): headers, unwind information, compressed sections, and how files are opened
//! and mapped.
//!
//! Input: hostile bytes, of files and of a target's memory. Output: plain types. Process addresses occur only in
//! [`Mapping`].

pub mod cfi;
pub mod elf;
mod error;
pub mod exidx;
pub mod files;
pub mod frame_rule;
pub mod gopclntab;
pub mod macho;
pub mod map;
pub mod mapping;
pub mod object;
pub mod pe;
pub mod unpack;

pub use error::{FormatError, OpenError, UnpackError, io_text};
pub use files::{FileUser, Files, NoFiles};
pub use mapping::{ImageBytes, Linkedit, Mapping, MappingKind, ProgramPath};

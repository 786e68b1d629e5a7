//! Bytes of files: images (ELF, Mach-O, PE), their unwind information, what is packed in them, and
//! how such bytes are got.
//!
//! Input: hostile bytes, of files and of a target's memory. Output: what they say, in plain types.
//! No address of a process is known here, but where a mapping of it lies ([`Mapping`]).

mod b_key;
pub mod cfi;
pub mod elf;
mod error;
pub mod exidx;
pub(crate) mod files;
pub mod frame_rule;
pub mod gopclntab;
pub mod macho;
pub(crate) mod map;
mod mapping;
pub mod object;
pub mod pe;
pub mod unpack;
pub mod v8;

pub use error::{FormatError, OpenError, UnpackError};
pub use files::{Files, NoFiles};
pub use mapping::{ImageBytes, Linkedit, Mapping, MappingKind, ProgramPath};

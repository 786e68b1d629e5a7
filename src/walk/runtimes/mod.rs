//! Conventions of language runtimes and C libraries that neither unwind information nor an ABI describes: one file
//! each. Recognized by instructions, or by words on stacks. Input: frames, addresses, code; output: rows, callers,
//! or whether the code is recognized. Each file names its processor.

pub(super) mod cpython;
pub(super) mod go;
pub(super) mod hotspot;
pub(super) mod libgcc;
pub(super) mod musl;
pub(super) mod v8;

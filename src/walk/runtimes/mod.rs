//! What language runtimes and C libraries do that neither unwind information nor an ABI says: one file each. Known by
//! their instructions, or by what they write on stacks. Input: frames, addresses, code; output: rows, callers, or
//! whether it is such code. Each file says which processor it is of.

pub(super) mod cpython;
pub(super) mod go;
pub(super) mod hotspot;
pub(super) mod libgcc;
pub(super) mod musl;
pub(super) mod v8;

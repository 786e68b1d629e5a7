//! What a call of an allocator function asks for, by its arguments.

use super::shared_memory::Function;

/// What an allocation asks for.
pub struct Request {
    /// Address of the block to resize, or 0.
    pub old_block: u64,
    /// Bytes; `u64::MAX` if more than there are addresses.
    pub size: u64,
}

impl Request {
    /// Arguments that a function does not have are ignored.
    pub fn new(function: Function, a: usize, b: usize, c: usize) -> Self {
        let [a, b, c] = [a as u64, b as u64, c as u64];
        let (old_block, size) = match function {
            Function::Malloc | Function::Valloc | Function::Pvalloc => (0, a),
            Function::Calloc => (0, a.saturating_mul(b)),
            Function::Realloc => (a, b),
            Function::Reallocarray => (a, b.saturating_mul(c)),
            Function::AlignedAlloc | Function::Memalign | Function::ZoneMalloc | Function::ZoneValloc => {
                (0, b)
            }
            Function::PosixMemalign | Function::ZoneMemalign => (0, c),
            Function::ZoneCalloc => (0, b.saturating_mul(c)),
            Function::ZoneRealloc => (b, c),
            Function::New
            | Function::NewArray
            | Function::NewAligned
            | Function::NewArrayAligned
            | Function::NewNothrow
            | Function::NewArrayNothrow
            | Function::NewAlignedNothrow
            | Function::NewArrayAlignedNothrow
            | Function::Mallocx => (0, a),
            Function::Rallocx => (a, b),
            Function::Mmap | Function::Mremap => (0, 0),
        };
        Self { old_block, size }
    }
}

/// Whether a function throws where it cannot allocate.
pub fn throws(function: Function) -> bool {
    matches!(function, Function::New | Function::NewArray | Function::NewAligned | Function::NewArrayAligned)
}

/// The function with the number that an entry point passes.
pub fn function(number: u32) -> Function {
    match number {
        1 => Function::Malloc,
        2 => Function::Calloc,
        3 => Function::Realloc,
        4 => Function::Reallocarray,
        5 => Function::PosixMemalign,
        6 => Function::AlignedAlloc,
        7 => Function::Memalign,
        8 => Function::Valloc,
        10 => Function::ZoneMalloc,
        11 => Function::ZoneCalloc,
        12 => Function::ZoneRealloc,
        13 => Function::ZoneMemalign,
        14 => Function::ZoneValloc,
        17 => Function::New,
        18 => Function::NewArray,
        19 => Function::NewAligned,
        20 => Function::NewArrayAligned,
        21 => Function::NewNothrow,
        22 => Function::NewArrayNothrow,
        23 => Function::NewAlignedNothrow,
        24 => Function::NewArrayAlignedNothrow,
        25 => Function::Mallocx,
        26 => Function::Rallocx,
        _ => Function::Pvalloc,
    }
}

//! Entry points: the functions that programs call instead of the allocator's, on arm64 with Mach-O. dyld interposes
//! those in the table in `__DATA,__interpose`. Each call subtracts its size from the thread's counter, and jumps to
//! the allocator if the rest is larger. Argument registers, x30 and the stack are unchanged.
#![allow(unsafe_code)]

use super::block_set::{FILTER_BITS, FILTER_SHIFT};
use super::process::FILTER;
use super::real::REAL;
use super::sample;
use super::shared_memory::{AARCH64, Function, aarch64_register};
use super::system::LEFT_OFFSET;
use core::arch::naked_asm;

/// Processor of these registers, for the ring.
pub const PROCESSOR: u32 = AARCH64;

/// Number of registers that an entry point stores.
pub const REGISTER_COUNT: usize = aarch64_register::PC + 1;

/// Index of the stack pointer among them.
pub const SP: usize = aarch64_register::SP;

/// Stores the caller's registers and calls `sample::allocate` with three arguments, the registers and the number
/// in w16.
///
/// # Safety
/// Jumped to by an entry point, so that x30 is the return address of its caller.
#[unsafe(naked)]
unsafe extern "C" fn allocate_slowly() {
    naked_asm!(
        ".cfi_startproc",
        "sub sp, sp, #144",
        ".cfi_def_cfa_offset 144",
        "stp x29, x30, [sp, #128]",
        ".cfi_offset w29, -16",
        ".cfi_offset w30, -8",
        "stp x19, x20, [sp]",
        "stp x21, x22, [sp, #16]",
        "stp x23, x24, [sp, #32]",
        "stp x25, x26, [sp, #48]",
        "stp x27, x28, [sp, #64]",
        "stp x29, x30, [sp, #80]",
        // The stack pointer after the return, and the return address.
        "add x9, sp, #144",
        "stp x9, x30, [sp, #96]",
        "add x29, sp, #128",
        "mov x3, sp",
        "mov w4, w16",
        "bl {allocate}",
        "ldp x29, x30, [sp, #128]",
        "add sp, sp, #144",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore w29",
        ".cfi_restore w30",
        "ret",
        ".cfi_endproc",
        allocate = sym sample::allocate,
    )
}

/// Defines a function with this name and number; its size is computed into x9.
macro_rules! allocation {
    ($name:ident, $function:ident, $($size:literal),+) => {
        /// # Safety
        /// Called in place of the function of this name.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                $($size,)+
                "adrp x11, {left}@PAGE",
                "ldr x11, [x11, {left}@PAGEOFF]",
                // The process has no thread-specific words yet.
                "cbz x11, 2f",
                "mrs x10, tpidrro_el0",
                "and x10, x10, #0xfffffffffffffff8",
                "ldr x12, [x10, x11]",
                "subs x12, x12, x9",
                "str x12, [x10, x11]",
                // Signed: the size is at least the rest, or a signal handler went below it.
                "b.le 2f",
                "adrp x16, {real}@PAGE",
                "add x16, x16, {real}@PAGEOFF",
                "ldr x16, [x16, #8 * {function}]",
                "br x16",
                "2: mov w16, #{function}",
                "b {slow}",
                ".cfi_endproc",
                left = sym LEFT_OFFSET,
                real = sym REAL,
                function = const Function::$function as usize,
                slow = sym allocate_slowly,
            )
        }
    };
}

/// Defines a function that frees the block in x0, and continues in the allocator or, if the block may be
/// sampled, in `sample`.
macro_rules! filtered {
    ($name:ident, $real:literal, $slow:path) => {
        /// # Safety
        /// Called in place of the function of this name.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "ubfx x13, x0, #{shift}, #{bits}",
                "adrp x14, {filter}@PAGE",
                "add x14, x14, {filter}@PAGEOFF",
                "ldrb w13, [x14, x13]",
                "cbnz w13, 2f",
                "adrp x16, {real}@PAGE",
                "add x16, x16, {real}@PAGEOFF",
                concat!("ldr x16, [x16, #8 * ", $real, "]"),
                "br x16",
                "2: b {slow}",
                ".cfi_endproc",
                real = sym REAL,
                filter = sym FILTER,
                shift = const FILTER_SHIFT,
                bits = const FILTER_BITS,
                slow = sym $slow,
            )
        }
    };
}

/// `realloc` of a block that may be sampled.
///
/// # Safety
/// Jumped to by `realloc` and `realloc_counted`, so that x30 is the return address of its caller.
#[unsafe(naked)]
unsafe extern "C" fn reallocate_slowly() {
    naked_asm!(
        "mov w16, #{function}",
        "b {slow}",
        function = const Function::Realloc as usize,
        slow = sym allocate_slowly,
    )
}

/// # Safety
/// Called in place of `realloc`.
#[unsafe(naked)]
pub unsafe extern "C" fn realloc() {
    naked_asm!(
        ".cfi_startproc",
        "adrp x11, {left}@PAGE",
        "ldr x11, [x11, {left}@PAGEOFF]",
        "cbz x11, 2f",
        "mrs x10, tpidrro_el0",
        "and x10, x10, #0xfffffffffffffff8",
        "ldr x12, [x10, x11]",
        "subs x12, x12, x1",
        "str x12, [x10, x11]",
        "b.le 2f",
        "b {counted}",
        "2: b {slow}",
        ".cfi_endproc",
        left = sym LEFT_OFFSET,
        slow = sym reallocate_slowly,
        counted = sym realloc_counted,
    )
}

allocation!(malloc, Malloc, "mov x9, x0");
// A product that overflows counts as the largest size.
allocation!(calloc, Calloc, "mul x9, x0, x1", "umulh x10, x0, x1", "cmp x10, #0", "csinv x9, x9, xzr, eq");
allocation!(posix_memalign, PosixMemalign, "mov x9, x2");
allocation!(aligned_alloc, AlignedAlloc, "mov x9, x1");
allocation!(valloc, Valloc, "mov x9, x0");
filtered!(realloc_counted, "3", reallocate_slowly);
filtered!(free, "0", sample::free);

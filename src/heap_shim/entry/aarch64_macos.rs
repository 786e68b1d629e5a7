//! Entry points: the functions that programs call instead of the allocator's, on arm64 with Mach-O. dyld interposes
//! those in the table in `__DATA,__interpose`. Each call subtracts its size from the thread's counter, and jumps to
//! the allocator if the rest is larger. Argument registers, x30 and the stack are unchanged.
#![allow(unsafe_code)]

use super::block_set::{FILTER_BITS, FILTER_SHIFT};
use super::process::FILTER;
use super::real::{REAL, index};
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

/// Stores six arguments and the caller's registers, and calls `sample::allocate_wide` with these and the number in w16.
///
/// # Safety
/// Jumped to by an entry point, so that x30 is the return address of its caller.
#[unsafe(naked)]
unsafe extern "C" fn allocate_wide_slowly() {
    naked_asm!(
        ".cfi_startproc",
        "sub sp, sp, #192",
        ".cfi_def_cfa_offset 192",
        "stp x29, x30, [sp, #176]",
        ".cfi_offset w29, -16",
        ".cfi_offset w30, -8",
        "stp x0, x1, [sp]",
        "stp x2, x3, [sp, #16]",
        "stp x4, x5, [sp, #32]",
        "stp x19, x20, [sp, #48]",
        "stp x21, x22, [sp, #64]",
        "stp x23, x24, [sp, #80]",
        "stp x25, x26, [sp, #96]",
        "stp x27, x28, [sp, #112]",
        "stp x29, x30, [sp, #128]",
        // The stack pointer after the return, and the return address.
        "add x9, sp, #192",
        "stp x9, x30, [sp, #144]",
        "add x29, sp, #176",
        "mov x0, sp",
        "add x1, sp, #48",
        "mov w2, w16",
        "bl {allocate}",
        "ldp x29, x30, [sp, #176]",
        "add sp, sp, #192",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore w29",
        ".cfi_restore w30",
        "ret",
        ".cfi_endproc",
        allocate = sym sample::allocate_wide,
    )
}

/// Defines a function with more than three arguments: the index of the function that it stands for, and the register with
/// its size. Without a size each call takes the slow path.
macro_rules! wide {
    ($name:ident, $real:expr) => {
        /// # Safety
        /// Called in place of the function of this name.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!("mov w16, #{index}", "b {slow}", index = const $real, slow = sym allocate_wide_slowly)
        }
    };
    ($name:ident, $real:expr, $size:literal) => {
        /// # Safety
        /// Called in place of the function of this name.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "adrp x11, {left}@PAGE",
                "ldr x11, [x11, {left}@PAGEOFF]",
                "cbz x11, 2f",
                "mrs x10, tpidrro_el0",
                "and x10, x10, #0xfffffffffffffff8",
                "ldr x12, [x10, x11]",
                concat!("subs x12, x12, ", $size),
                "str x12, [x10, x11]",
                "b.le 2f",
                "adrp x16, {real}@PAGE",
                "add x16, x16, {real}@PAGEOFF",
                "ldr x16, [x16, #8 * {index}]",
                "br x16",
                "2: mov w16, #{index}",
                "b {slow}",
                ".cfi_endproc",
                left = sym LEFT_OFFSET,
                real = sym REAL,
                index = const $real,
                slow = sym allocate_wide_slowly,
            )
        }
    };
}

/// Defines a function with this name: the slow path of a `Function`, the index of the function that it stands for, and
/// its size, which is computed into x9.
macro_rules! allocation {
    ($name:ident, $function:ident, $real:expr, $($size:literal),+) => {
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
                "ldr x16, [x16, #8 * {index}]",
                "br x16",
                "2: mov w16, #{function}",
                "b {slow}",
                ".cfi_endproc",
                left = sym LEFT_OFFSET,
                real = sym REAL,
                index = const $real,
                function = const Function::$function as usize,
                slow = sym allocate_slowly,
            )
        }
    };
}

/// Defines a function that frees or resizes the block in this register, and continues in the allocator or, if the block
/// may be sampled, in a slow path.
macro_rules! filtered {
    ($name:ident, $block:literal, $real:expr, $slow:path) => {
        /// # Safety
        /// Called in place of the function of this name.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                concat!("ubfx x13, ", $block, ", #{shift}, #{bits}"),
                "adrp x14, {filter}@PAGE",
                "add x14, x14, {filter}@PAGEOFF",
                "ldrb w13, [x14, x13]",
                "cbnz w13, 2f",
                "adrp x16, {real}@PAGE",
                "add x16, x16, {real}@PAGEOFF",
                "ldr x16, [x16, #8 * {index}]",
                "br x16",
                "2: b {slow}",
                ".cfi_endproc",
                real = sym REAL,
                index = const $real,
                filter = sym FILTER,
                shift = const FILTER_SHIFT,
                bits = const FILTER_BITS,
                slow = sym $slow,
            )
        }
    };
}

/// Defines a function that resizes a block to the size in this register.
macro_rules! resizing {
    ($name:ident, $size:literal, $slow:path, $counted:path) => {
        /// # Safety
        /// Called in place of the function of this name.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "adrp x11, {left}@PAGE",
                "ldr x11, [x11, {left}@PAGEOFF]",
                "cbz x11, 2f",
                "mrs x10, tpidrro_el0",
                "and x10, x10, #0xfffffffffffffff8",
                "ldr x12, [x10, x11]",
                concat!("subs x12, x12, ", $size),
                "str x12, [x10, x11]",
                "b.le 2f",
                "b {counted}",
                "2: b {slow}",
                ".cfi_endproc",
                left = sym LEFT_OFFSET,
                slow = sym $slow,
                counted = sym $counted,
            )
        }
    };
}

/// `realloc` of a block that may be sampled.
///
/// # Safety
/// Jumped to by an entry point, so that x30 is the return address of its caller.
#[unsafe(naked)]
unsafe extern "C" fn reallocate_slowly() {
    naked_asm!(
        "mov w16, #{function}",
        "b {slow}",
        function = const Function::Realloc as usize,
        slow = sym allocate_slowly,
    )
}

/// `malloc_zone_realloc` of a block that may be sampled.
///
/// # Safety
/// Jumped to by an entry point, so that x30 is the return address of its caller.
#[unsafe(naked)]
unsafe extern "C" fn reallocate_in_zone_slowly() {
    naked_asm!(
        "mov w16, #{function}",
        "b {slow}",
        function = const Function::ZoneRealloc as usize,
        slow = sym allocate_slowly,
    )
}

const fn number(function: Function) -> usize {
    function as usize
}

// A product that overflows counts as the largest size.
allocation!(malloc, Malloc, number(Function::Malloc), "mov x9, x0");
allocation!(
    calloc,
    Calloc,
    number(Function::Calloc),
    "mul x9, x0, x1",
    "umulh x10, x0, x1",
    "cmp x10, #0",
    "csinv x9, x9, xzr, eq"
);
allocation!(posix_memalign, PosixMemalign, number(Function::PosixMemalign), "mov x9, x2");
allocation!(aligned_alloc, AlignedAlloc, number(Function::AlignedAlloc), "mov x9, x1");
allocation!(valloc, Valloc, number(Function::Valloc), "mov x9, x0");
resizing!(realloc, "x1", reallocate_slowly, realloc_counted);
filtered!(realloc_counted, "x0", number(Function::Realloc), reallocate_slowly);
filtered!(free, "x0", index::FREE, sample::free);

allocation!(malloc_zone_malloc, ZoneMalloc, number(Function::ZoneMalloc), "mov x9, x1");
allocation!(
    malloc_zone_calloc,
    ZoneCalloc,
    number(Function::ZoneCalloc),
    "mul x9, x1, x2",
    "umulh x10, x1, x2",
    "cmp x10, #0",
    "csinv x9, x9, xzr, eq"
);
allocation!(malloc_zone_memalign, ZoneMemalign, number(Function::ZoneMemalign), "mov x9, x2");
allocation!(malloc_zone_valloc, ZoneValloc, number(Function::ZoneValloc), "mov x9, x1");
resizing!(malloc_zone_realloc, "x2", reallocate_in_zone_slowly, malloc_zone_realloc_counted);
filtered!(malloc_zone_realloc_counted, "x1", number(Function::ZoneRealloc), reallocate_in_zone_slowly);
filtered!(malloc_zone_free, "x1", index::ZONE_FREE, sample::free_in_zone);

allocation!(malloc_type_malloc, Malloc, index::TYPE_MALLOC, "mov x9, x0");
allocation!(
    malloc_type_calloc,
    Calloc,
    index::TYPE_CALLOC,
    "mul x9, x0, x1",
    "umulh x10, x0, x1",
    "cmp x10, #0",
    "csinv x9, x9, xzr, eq"
);
allocation!(malloc_type_posix_memalign, PosixMemalign, index::TYPE_POSIX_MEMALIGN, "mov x9, x2");
allocation!(malloc_type_aligned_alloc, AlignedAlloc, index::TYPE_ALIGNED_ALLOC, "mov x9, x1");
allocation!(malloc_type_valloc, Valloc, index::TYPE_VALLOC, "mov x9, x0");
resizing!(malloc_type_realloc, "x1", reallocate_slowly, malloc_type_realloc_counted);
filtered!(malloc_type_realloc_counted, "x0", index::TYPE_REALLOC, reallocate_slowly);
filtered!(malloc_type_free, "x0", index::TYPE_FREE, sample::free);

allocation!(malloc_type_zone_malloc, ZoneMalloc, index::TYPE_ZONE_MALLOC, "mov x9, x1");
allocation!(
    malloc_type_zone_calloc,
    ZoneCalloc,
    index::TYPE_ZONE_CALLOC,
    "mul x9, x1, x2",
    "umulh x10, x1, x2",
    "cmp x10, #0",
    "csinv x9, x9, xzr, eq"
);
allocation!(malloc_type_zone_memalign, ZoneMemalign, index::TYPE_ZONE_MEMALIGN, "mov x9, x2");
allocation!(malloc_type_zone_valloc, ZoneValloc, index::TYPE_ZONE_VALLOC, "mov x9, x1");
resizing!(malloc_type_zone_realloc, "x2", reallocate_in_zone_slowly, malloc_type_zone_realloc_counted);
filtered!(malloc_type_zone_realloc_counted, "x1", index::TYPE_ZONE_REALLOC, reallocate_in_zone_slowly);
filtered!(malloc_type_zone_free, "x1", index::TYPE_ZONE_FREE, sample::free_in_zone);

wide!(malloc_zone_malloc_with_options, index::ZONE_WITH_OPTIONS, "x2");
wide!(malloc_type_zone_malloc_with_options, index::TYPE_ZONE_WITH_OPTIONS, "x2");
wide!(malloc_zone_batch_malloc, index::ZONE_BATCH_MALLOC);
filtered!(malloc_zone_free_definite_size, "x1", index::ZONE_FREE_DEFINITE_SIZE, sample::free_in_zone);
pub use sample::free_batch as malloc_zone_batch_free;

//! Entry points: the functions that programs call instead of the allocator's, on x86_64 with Mach-O. dyld interposes
//! those in the table in `__DATA,__interpose`. Each call subtracts its size from the thread's counter, and jumps to
//! the allocator if the rest is larger. Argument registers and the stack are unchanged.
#![allow(unsafe_code)]

use super::block_set::{FILTER_SHIFT, FILTER_SIZE};
use super::process::FILTER;
use super::real::{REAL, index};
use super::sample;
use super::shared_memory::{Function, X86_64, x86_64_register};
use super::system::LEFT_OFFSET;
use core::arch::naked_asm;

/// Processor of these registers, for the ring.
pub const PROCESSOR: u32 = X86_64;

/// Number of registers that an entry point stores.
pub const REGISTER_COUNT: usize = x86_64_register::PC + 1;

/// Index of the stack pointer among them.
pub const SP: usize = x86_64_register::SP;

/// Stores the caller's registers and calls `sample::allocate` with three arguments, the registers and the number
/// in eax.
///
/// # Safety
/// Jumped to by an entry point, so that the return address of its caller is on the top of the stack.
#[unsafe(naked)]
unsafe extern "C" fn allocate_slowly() {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 72",
        ".cfi_def_cfa_offset 80",
        "mov qword ptr [rsp], rbx",
        "mov qword ptr [rsp + 8], rbp",
        "mov qword ptr [rsp + 16], r12",
        "mov qword ptr [rsp + 24], r13",
        "mov qword ptr [rsp + 32], r14",
        "mov qword ptr [rsp + 40], r15",
        // After the return.
        "lea rcx, [rsp + 80]",
        "mov qword ptr [rsp + 48], rcx",
        "mov rcx, qword ptr [rsp + 72]",
        "mov qword ptr [rsp + 56], rcx",
        "mov rcx, rsp",
        "mov r8d, eax",
        "call {allocate}",
        "add rsp, 72",
        ".cfi_def_cfa_offset 8",
        "ret",
        ".cfi_endproc",
        allocate = sym sample::allocate,
    )
}

/// Stores six arguments and the caller's registers, and calls `sample::allocate_wide` with these and the number in eax.
///
/// # Safety
/// Jumped to by an entry point, so that the return address of its caller is on the top of the stack.
#[unsafe(naked)]
unsafe extern "C" fn allocate_wide_slowly() {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 120",
        ".cfi_def_cfa_offset 128",
        "mov qword ptr [rsp], rdi",
        "mov qword ptr [rsp + 8], rsi",
        "mov qword ptr [rsp + 16], rdx",
        "mov qword ptr [rsp + 24], rcx",
        "mov qword ptr [rsp + 32], r8",
        "mov qword ptr [rsp + 40], r9",
        "mov qword ptr [rsp + 48], rbx",
        "mov qword ptr [rsp + 56], rbp",
        "mov qword ptr [rsp + 64], r12",
        "mov qword ptr [rsp + 72], r13",
        "mov qword ptr [rsp + 80], r14",
        "mov qword ptr [rsp + 88], r15",
        // After the return.
        "lea rcx, [rsp + 128]",
        "mov qword ptr [rsp + 96], rcx",
        "mov rcx, qword ptr [rsp + 120]",
        "mov qword ptr [rsp + 104], rcx",
        "mov rdi, rsp",
        "lea rsi, [rsp + 48]",
        "mov edx, eax",
        "call {allocate}",
        "add rsp, 120",
        ".cfi_def_cfa_offset 8",
        "ret",
        ".cfi_endproc",
        allocate = sym sample::allocate_wide,
    )
}

/// Defines a function with more than three arguments: the index of the function that it stands for, and its size, which
/// is computed into rax. Without a size each call takes the slow path.
macro_rules! wide {
    ($name:ident, $real:expr) => {
        /// # Safety
        /// Called in place of the function of this name.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!("mov eax, {index}", "jmp {slow}", index = const $real, slow = sym allocate_wide_slowly)
        }
    };
    ($name:ident, $real:expr, $size:literal) => {
        /// # Safety
        /// Called in place of the function of this name.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                $size,
                "mov r11, qword ptr [rip + {left}]",
                "test r11, r11",
                "je 2f",
                "sub qword ptr gs:[r11], rax",
                "jle 2f",
                "jmp qword ptr [rip + {real} + 8 * {index}]",
                "2: mov eax, {index}",
                "jmp {slow}",
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
/// its size, which is computed into rax.
macro_rules! allocation {
    ($name:ident, $function:ident, $real:expr, $($size:literal),+) => {
        /// # Safety
        /// Called in place of the function of this name.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                $($size,)+
                "mov r11, qword ptr [rip + {left}]",
                // The process has no thread-specific words yet.
                "test r11, r11",
                "je 2f",
                "sub qword ptr gs:[r11], rax",
                // Signed: the size is at least the rest, or a signal handler went below it.
                "jle 2f",
                "jmp qword ptr [rip + {real} + 8 * {index}]",
                "2: mov eax, {function}",
                "jmp {slow}",
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
                concat!("mov eax, ", $block),
                "shr eax, {shift}",
                "and eax, {mask}",
                "lea r11, [rip + {filter}]",
                "cmp byte ptr [r11 + rax], 0",
                "jne 2f",
                "jmp qword ptr [rip + {real} + 8 * {index}]",
                "2: jmp {slow}",
                ".cfi_endproc",
                real = sym REAL,
                index = const $real,
                filter = sym FILTER,
                shift = const FILTER_SHIFT,
                mask = const FILTER_SIZE - 1,
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
                "mov r11, qword ptr [rip + {left}]",
                "test r11, r11",
                "je {slow}",
                concat!("sub qword ptr gs:[r11], ", $size),
                "jle {slow}",
                "jmp {counted}",
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
/// Jumped to by an entry point, so that the return address of its caller is on the top of the stack.
#[unsafe(naked)]
unsafe extern "C" fn reallocate_slowly() {
    naked_asm!(
        "mov eax, {function}",
        "jmp {slow}",
        function = const Function::Realloc as usize,
        slow = sym allocate_slowly,
    )
}

/// `malloc_zone_realloc` of a block that may be sampled.
///
/// # Safety
/// Jumped to by an entry point, so that the return address of its caller is on the top of the stack.
#[unsafe(naked)]
unsafe extern "C" fn reallocate_in_zone_slowly() {
    naked_asm!(
        "mov eax, {function}",
        "jmp {slow}",
        function = const Function::ZoneRealloc as usize,
        slow = sym allocate_slowly,
    )
}

const fn number(function: Function) -> usize {
    function as usize
}

// A product that overflows counts as the largest size; rdx is an argument of the functions of zones, and of typed
// ones.
allocation!(malloc, Malloc, number(Function::Malloc), "mov rax, rdi");
allocation!(
    calloc,
    Calloc,
    number(Function::Calloc),
    "mov r11, rdx",
    "mov rax, rdi",
    "mul rsi",
    "mov rdx, -1",
    "cmovo rax, rdx",
    "mov rdx, r11"
);
allocation!(posix_memalign, PosixMemalign, number(Function::PosixMemalign), "mov rax, rdx");
allocation!(aligned_alloc, AlignedAlloc, number(Function::AlignedAlloc), "mov rax, rsi");
allocation!(valloc, Valloc, number(Function::Valloc), "mov rax, rdi");
resizing!(realloc, "rsi", reallocate_slowly, realloc_counted);
filtered!(realloc_counted, "edi", number(Function::Realloc), reallocate_slowly);
filtered!(free, "edi", index::FREE, sample::free);

allocation!(malloc_zone_malloc, ZoneMalloc, number(Function::ZoneMalloc), "mov rax, rsi");
allocation!(
    malloc_zone_calloc,
    ZoneCalloc,
    number(Function::ZoneCalloc),
    "mov r11, rdx",
    "mov rax, rsi",
    "mul rdx",
    "mov rdx, -1",
    "cmovo rax, rdx",
    "mov rdx, r11"
);
allocation!(malloc_zone_memalign, ZoneMemalign, number(Function::ZoneMemalign), "mov rax, rdx");
allocation!(malloc_zone_valloc, ZoneValloc, number(Function::ZoneValloc), "mov rax, rsi");
resizing!(malloc_zone_realloc, "rdx", reallocate_in_zone_slowly, malloc_zone_realloc_counted);
filtered!(malloc_zone_realloc_counted, "esi", number(Function::ZoneRealloc), reallocate_in_zone_slowly);
filtered!(malloc_zone_free, "esi", index::ZONE_FREE, sample::free_in_zone);

allocation!(malloc_type_malloc, Malloc, index::TYPE_MALLOC, "mov rax, rdi");
allocation!(
    malloc_type_calloc,
    Calloc,
    index::TYPE_CALLOC,
    "mov r11, rdx",
    "mov rax, rdi",
    "mul rsi",
    "mov rdx, -1",
    "cmovo rax, rdx",
    "mov rdx, r11"
);
allocation!(malloc_type_posix_memalign, PosixMemalign, index::TYPE_POSIX_MEMALIGN, "mov rax, rdx");
allocation!(malloc_type_aligned_alloc, AlignedAlloc, index::TYPE_ALIGNED_ALLOC, "mov rax, rsi");
allocation!(malloc_type_valloc, Valloc, index::TYPE_VALLOC, "mov rax, rdi");
resizing!(malloc_type_realloc, "rsi", reallocate_slowly, malloc_type_realloc_counted);
filtered!(malloc_type_realloc_counted, "edi", index::TYPE_REALLOC, reallocate_slowly);
filtered!(malloc_type_free, "edi", index::TYPE_FREE, sample::free);

allocation!(malloc_type_zone_malloc, ZoneMalloc, index::TYPE_ZONE_MALLOC, "mov rax, rsi");
allocation!(
    malloc_type_zone_calloc,
    ZoneCalloc,
    index::TYPE_ZONE_CALLOC,
    "mov r11, rdx",
    "mov rax, rsi",
    "mul rdx",
    "mov rdx, -1",
    "cmovo rax, rdx",
    "mov rdx, r11"
);
allocation!(malloc_type_zone_memalign, ZoneMemalign, index::TYPE_ZONE_MEMALIGN, "mov rax, rdx");
allocation!(malloc_type_zone_valloc, ZoneValloc, index::TYPE_ZONE_VALLOC, "mov rax, rsi");
resizing!(malloc_type_zone_realloc, "rdx", reallocate_in_zone_slowly, malloc_type_zone_realloc_counted);
filtered!(malloc_type_zone_realloc_counted, "esi", index::TYPE_ZONE_REALLOC, reallocate_in_zone_slowly);
filtered!(malloc_type_zone_free, "esi", index::TYPE_ZONE_FREE, sample::free_in_zone);

wide!(malloc_zone_malloc_with_options, index::ZONE_WITH_OPTIONS, "mov rax, rdx");
wide!(malloc_type_zone_malloc_with_options, index::TYPE_ZONE_WITH_OPTIONS, "mov rax, rdx");
wide!(malloc_zone_batch_malloc, index::ZONE_BATCH_MALLOC);
filtered!(malloc_zone_free_definite_size, "esi", index::ZONE_FREE_DEFINITE_SIZE, sample::free_in_zone);
pub use sample::free_batch as malloc_zone_batch_free;

//! Entry points: the functions that programs call instead of the allocator's, on x86_64 with Mach-O. dyld interposes
//! those in the table in `__DATA,__interpose`. Each call subtracts its size from the thread's counter, and jumps to
//! the allocator if the rest is larger. Argument registers and the stack are unchanged.
#![allow(unsafe_code)]

use super::block_set::{FILTER_SHIFT, FILTER_SIZE};
use super::process::FILTER;
use super::real::REAL;
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

/// Defines a function with this name and number; its size is computed into rax.
macro_rules! allocation {
    ($name:ident, $function:ident, $($size:literal),+) => {
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
                "jmp qword ptr [rip + {real} + 8 * {function}]",
                "2: mov eax, {function}",
                "jmp {slow}",
                ".cfi_endproc",
                left = sym LEFT_OFFSET,
                real = sym REAL,
                function = const Function::$function as usize,
                slow = sym allocate_slowly,
            )
        }
    };
}

/// Defines a function that frees the block in rdi, and continues in the allocator or, if the block may be
/// sampled, in `sample`.
macro_rules! filtered {
    ($name:ident, $real:literal, $slow:path) => {
        /// # Safety
        /// Called in place of the function of this name.
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "mov eax, edi",
                "shr eax, {shift}",
                "and eax, {mask}",
                "lea rcx, [rip + {filter}]",
                "cmp byte ptr [rcx + rax], 0",
                "jne 2f",
                concat!("jmp qword ptr [rip + {real} + 8 * ", $real, "]"),
                "2: jmp {slow}",
                ".cfi_endproc",
                real = sym REAL,
                filter = sym FILTER,
                shift = const FILTER_SHIFT,
                mask = const FILTER_SIZE - 1,
                slow = sym $slow,
            )
        }
    };
}

/// `realloc` of a block that may be sampled.
///
/// # Safety
/// Jumped to by `realloc_counted`, so that the return address of its caller is on the top of the stack.
#[unsafe(naked)]
unsafe extern "C" fn reallocate_slowly() {
    naked_asm!(
        "mov eax, {function}",
        "jmp {slow}",
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
        "mov r11, qword ptr [rip + {left}]",
        "test r11, r11",
        "je {slow}",
        "sub qword ptr gs:[r11], rsi",
        "jle {slow}",
        "jmp {counted}",
        ".cfi_endproc",
        left = sym LEFT_OFFSET,
        slow = sym reallocate_slowly,
        counted = sym realloc_counted,
    )
}

allocation!(malloc, Malloc, "mov rax, rdi");
// A product that overflows counts as the largest size.
allocation!(calloc, Calloc, "mov rax, rdi", "mul rsi", "mov rcx, -1", "cmovo rax, rcx");
allocation!(posix_memalign, PosixMemalign, "mov rax, rdx");
allocation!(aligned_alloc, AlignedAlloc, "mov rax, rsi");
allocation!(valloc, Valloc, "mov rax, rdi");
filtered!(realloc_counted, "3", reallocate_slowly);
filtered!(free, "0", sample::free);

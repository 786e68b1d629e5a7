//! Entry points: the functions that programs call instead of the allocator's, on aarch64 with ELF. Each call
//! subtracts its size from the thread's counter, and jumps to the allocator if the rest is larger. Argument
//! registers, x30 and the stack are unchanged, so that the allocator sees the program as its caller.
#![allow(unsafe_code)]

use super::block_set::{FILTER_BITS, FILTER_SHIFT};
use super::mmap_calls;
use super::process::{self, FILTER, MAPPINGS};
use super::real::{self, FREES, LIBC_FUNCTIONS, NEW, REAL, libc_function};
use super::sample;
use super::shared_memory::{AARCH64, Function, aarch64_register};
use super::system;
use core::arch::{global_asm, naked_asm};

/// Processor of these registers, for the ring.
pub const PROCESSOR: u32 = AARCH64;

/// Number of registers that an entry point stores.
pub const REGISTER_COUNT: usize = aarch64_register::PC + 1;

/// Index of the stack pointer among them.
pub const SP: usize = aarch64_register::SP;

/// Index of the return address among them.
pub const PC: usize = aarch64_register::PC;

// `system::ThreadWords` of each thread. Initial-exec: a library loaded at startup has room in the static TLS
// block, and no call is needed to find it.
global_asm!(
    ".pushsection .tbss, \"awT\", @nobits",
    ".p2align 4",
    ".globl stackprof_heap_thread",
    ".hidden stackprof_heap_thread",
    ".type stackprof_heap_thread, @object",
    ".size stackprof_heap_thread, 48",
    "stackprof_heap_thread: .zero 48",
    ".popsection",
);

// An address sanitizer in the program would check what the library's own copies read of a stack.
global_asm!(
    ".globl memcpy, memset",
    ".hidden memcpy, memset",
    ".type memcpy, @function",
    ".type memset, @function",
    "memcpy: mov x3, x0",
    "1: cmp x2, #16",
    "b.lo 2f",
    "ldp x4, x5, [x1], #16",
    "stp x4, x5, [x3], #16",
    "sub x2, x2, #16",
    "b 1b",
    "2: cbz x2, 3f",
    "ldrb w4, [x1], #1",
    "strb w4, [x3], #1",
    "sub x2, x2, #1",
    "b 2b",
    "3: ret",
    "memset: mov x3, x0",
    "1: cbz x2, 2f",
    "strb w1, [x3], #1",
    "sub x2, x2, #1",
    "b 1b",
    "2: ret",
);

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

/// As `allocate_slowly`, for an operator new: if it returns null, the operator throws.
///
/// # Safety
/// Jumped to by an entry point, so that x30 is the return address of its caller.
#[unsafe(naked)]
unsafe extern "C" fn new_slowly() {
    naked_asm!(
        ".cfi_startproc",
        "sub sp, sp, #176",
        ".cfi_def_cfa_offset 176",
        "stp x29, x30, [sp, #160]",
        ".cfi_offset w29, -16",
        ".cfi_offset w30, -8",
        "stp x19, x20, [sp]",
        "stp x21, x22, [sp, #16]",
        "stp x23, x24, [sp, #32]",
        "stp x25, x26, [sp, #48]",
        "stp x27, x28, [sp, #64]",
        "stp x29, x30, [sp, #80]",
        // The stack pointer after the return, and the return address.
        "add x9, sp, #176",
        "stp x9, x30, [sp, #96]",
        "stp x0, x1, [sp, #128]",
        "str x16, [sp, #144]",
        "add x29, sp, #160",
        "mov x3, sp",
        "mov w4, w16",
        "bl {allocate}",
        "mov x9, x0",
        "ldp x0, x1, [sp, #128]",
        "ldr x16, [sp, #144]",
        "ldp x29, x30, [sp, #160]",
        "add sp, sp, #176",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore w29",
        ".cfi_restore w30",
        "cbz x9, 2f",
        "mov x0, x9",
        "ret",
        "2: adrp x17, {real}",
        "add x17, x17, :lo12:{real}",
        "ldr x16, [x17, x16, lsl #3]",
        "br x16",
        ".cfi_endproc",
        allocate = sym sample::allocate,
        real = sym REAL,
    )
}

/// Defines a function with this name and number; its size is computed into x9.
macro_rules! allocation {
    ($name:ident, $function:ident, $($size:literal),+) => {
        allocation!($name, $function, allocate_slowly; $($size),+);
    };
    ($name:ident, $function:ident, $slow:path; $($size:literal),+) => {
        // SAFETY: replaces the function of this name, keeps the ABI, and changes only what a call may change.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                $($size,)+
                "mrs x10, tpidr_el0",
                "adrp x11, :gottprel:stackprof_heap_thread",
                "ldr x11, [x11, :gottprel_lo12:stackprof_heap_thread]",
                "ldr x12, [x10, x11]",
                "subs x12, x12, x9",
                "str x12, [x10, x11]",
                // Signed: the size is at least the rest, or a signal handler went below it.
                "b.le 2f",
                "adrp x16, {real} + 8 * {function}",
                "ldr x16, [x16, :lo12:{real} + 8 * {function}]",
                "br x16",
                "2: mov w16, #{function}",
                "b {slow}",
                ".cfi_endproc",
                real = sym REAL,
                function = const Function::$function as usize,
                slow = sym $slow,
            )
        }
    };
}

/// Defines a function that may free the block in x0: also checks the filter.
macro_rules! reallocation {
    ($name:ident, $function:ident, $($size:literal),+) => {
        // SAFETY: replaces the function of this name, keeps the ABI, and changes only what a call may change.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                $($size,)+
                "mrs x10, tpidr_el0",
                "adrp x11, :gottprel:stackprof_heap_thread",
                "ldr x11, [x11, :gottprel_lo12:stackprof_heap_thread]",
                "ldr x12, [x10, x11]",
                "subs x12, x12, x9",
                "str x12, [x10, x11]",
                "b.le 2f",
                "ubfx x13, x0, #{shift}, #{bits}",
                "adrp x14, {filter}",
                "add x14, x14, :lo12:{filter}",
                "ldrb w13, [x14, x13]",
                "cbnz w13, 2f",
                "adrp x16, {real} + 8 * {function}",
                "ldr x16, [x16, :lo12:{real} + 8 * {function}]",
                "br x16",
                "2: mov w16, #{function}",
                "b {slow}",
                ".cfi_endproc",
                real = sym REAL,
                filter = sym FILTER,
                shift = const FILTER_SHIFT,
                bits = const FILTER_BITS,
                function = const Function::$function as usize,
                slow = sym allocate_slowly,
            )
        }
    };
}

/// Defines a function that frees the block in x0.
macro_rules! free {
    ($name:ident) => {
        // SAFETY: replaces the function of this name, keeps the ABI, and changes only what a call may change.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "ubfx x13, x0, #{shift}, #{bits}",
                "adrp x14, {filter}",
                "add x14, x14, :lo12:{filter}",
                "ldrb w13, [x14, x13]",
                "cbnz w13, 2f",
                "adrp x16, {real}",
                "ldr x16, [x16, :lo12:{real}]",
                "br x16",
                "2: b {slow}",
                ".cfi_endproc",
                real = sym REAL,
                filter = sym FILTER,
                shift = const FILTER_SHIFT,
                bits = const FILTER_BITS,
                slow = sym sample::free,
            )
        }
    };
}

allocation!(malloc, Malloc, "mov x9, x0");
// A product that overflows counts as the largest size.
allocation!(calloc, Calloc, "mul x9, x0, x1", "umulh x10, x0, x1", "cmp x10, #0", "csinv x9, x9, xzr, eq");
reallocation!(realloc, Realloc, "mov x9, x1");
reallocation!(
    reallocarray,
    Reallocarray,
    "mul x9, x1, x2",
    "umulh x10, x1, x2",
    "cmp x10, #0",
    "csinv x9, x9, xzr, eq"
);
allocation!(posix_memalign, PosixMemalign, "mov x9, x2");
allocation!(aligned_alloc, AlignedAlloc, "mov x9, x1");
allocation!(memalign, Memalign, "mov x9, x1");
allocation!(valloc, Valloc, "mov x9, x0");
allocation!(pvalloc, Pvalloc, "mov x9, x0");
allocation!(mallocx, Mallocx, "mov x9, x0");
reallocation!(rallocx, Rallocx, "mov x9, x1");
free!(free);
free!(cfree);
free!(free_sized);
free!(free_aligned_sized);

/// Defines a wrapper that calls a function with the caller's arguments, and preserves them.
/// It returns to x17.
macro_rules! keeping_arguments {
    ($name:ident, $called:path) => {
        /// # Safety
        /// Jumped to by an entry point.
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "sub sp, sp, #96",
                ".cfi_def_cfa_offset 96",
                "stp x29, x30, [sp, #80]",
                ".cfi_offset w29, -16",
                ".cfi_offset w30, -8",
                "stp x0, x1, [sp]",
                "stp x2, x3, [sp, #16]",
                "stp x4, x5, [sp, #32]",
                "stp x6, x7, [sp, #48]",
                "str x17, [sp, #64]",
                "add x29, sp, #80",
                "bl {called}",
                "ldr x17, [sp, #64]",
                "ldp x6, x7, [sp, #48]",
                "ldp x4, x5, [sp, #32]",
                "ldp x2, x3, [sp, #16]",
                "ldp x0, x1, [sp]",
                "ldp x29, x30, [sp, #80]",
                "add sp, sp, #96",
                ".cfi_def_cfa_offset 0",
                ".cfi_restore w29",
                ".cfi_restore w30",
                "br x17",
                ".cfi_endproc",
                called = sym $called,
            )
        }
    };
}

keeping_arguments!(enter_seccomp, process::enter_seccomp);
keeping_arguments!(set_action, system::set_action);
keeping_arguments!(set_handler, system::set_handler);
keeping_arguments!(observe_syscall, system::observe_syscall);

/// Defines a function that calls another one, 1, if its arguments are of interest, and continues in that of libc.
macro_rules! observed {
    ($name:ident, $index:expr, $observer:path, $($code:literal),*) => {
        const _: () = {
        keeping_arguments!(look_up, real::look_up_libc_function::<{ $index }>);

        // SAFETY: replaces the function of this name, keeps the ABI, and changes only what a call may change. The
        // constructor of another library may call it before the shim is loaded.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                $($code,)*
                "1: adr x17, 2f",
                "b {observer}",
                "2: adrp x16, {others} + 8 * {index}",
                "ldr x16, [x16, :lo12:{others} + 8 * {index}]",
                "cbz x16, 3f",
                "br x16",
                "3: adr x17, 4f",
                "b {look_up}",
                "4: adrp x16, {others} + 8 * {index}",
                "ldr x16, [x16, :lo12:{others} + 8 * {index}]",
                "cbz x16, 5f",
                "br x16",
                "5: mov x0, #-1",
                "ret",
                ".cfi_endproc",
                observer = sym $observer,
                look_up = sym look_up,
                others = sym LIBC_FUNCTIONS,
                index = const $index,
            )
        }
        };
    };
}

// PR_SET_SECCOMP, and PR_SET_NO_NEW_PRIVS, which a filter needs: it may be set by a system call of the program's own.
observed!(
    prctl,
    libc_function::PRCTL,
    enter_seccomp,
    "cmp w0, #22",
    "b.eq 1f",
    "cmp w0, #38",
    "b.ne 2f"
);
observed!(
    syscall,
    libc_function::SYSCALL,
    observe_syscall,
    // rt_sigaction, seccomp, and prctl with PR_SET_SECCOMP or PR_SET_NO_NEW_PRIVS
    "cmp w0, #134",
    "b.eq 1f",
    "cmp w0, #277",
    "b.eq 1f",
    "cmp w0, #167",
    "b.ne 2f",
    "cmp w1, #22",
    "b.eq 1f",
    "cmp w1, #38",
    "b.ne 2f"
);
observed!(sigaction, libc_function::SIGACTION, set_action,);
observed!(signal, libc_function::SIGNAL, set_handler,);
observed!(bsd_signal, libc_function::BSD_SIGNAL, set_handler,);
observed!(sysv_signal, libc_function::SYSV_SIGNAL, set_handler,);
observed!(__sysv_signal, libc_function::UNDERSCORE_SYSV_SIGNAL, set_handler,);
observed!(ssignal, libc_function::SSIGNAL, set_handler,);
observed!(sigset, libc_function::SIGSET, set_handler,);

// RTLD_DEEPBIND; LM_ID_BASE.
observed!(dlopen, libc_function::DLOPEN, count_unseen_library, "tbz w1, #3, 2f");
observed!(dlmopen, libc_function::DLMOPEN, count_unseen_library, "cbz x0, 2f");

keeping_arguments!(count_unseen_library, process::count_unseen_library);
keeping_arguments!(look_up_operators, real::look_up_operators);
keeping_arguments!(forget, sample::forget_block);

/// Defines an operator new, which continues where `real` says.
macro_rules! operator_new {
    ($name:ident, $function:ident) => {
        // SAFETY: replaces the function of this name, keeps the ABI, and changes only what a call may change.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "2: adrp x16, {new} + 8 * {index}",
                "ldr x16, [x16, :lo12:{new} + 8 * {index}]",
                "cbz x16, 3f",
                "br x16",
                "3: adr x17, 2b",
                "b {look_up}",
                ".cfi_endproc",
                new = sym NEW,
                look_up = sym look_up_operators,
                index = const Function::$function as usize - Function::New as usize,
            )
        }
    };
}

operator_new!(_Znwm, New);
operator_new!(_Znam, NewArray);
operator_new!(_ZnwmSt11align_val_t, NewAligned);
operator_new!(_ZnamSt11align_val_t, NewArrayAligned);
operator_new!(_ZnwmRKSt9nothrow_t, NewNothrow);
operator_new!(_ZnamRKSt9nothrow_t, NewArrayNothrow);
operator_new!(_ZnwmSt11align_val_tRKSt9nothrow_t, NewAlignedNothrow);
operator_new!(_ZnamSt11align_val_tRKSt9nothrow_t, NewArrayAlignedNothrow);

allocation!(stackprof_heap_new, New, new_slowly; "mov x9, x0");
allocation!(stackprof_heap_new_array, NewArray, new_slowly; "mov x9, x0");
allocation!(stackprof_heap_new_aligned, NewAligned, new_slowly; "mov x9, x0");
allocation!(stackprof_heap_new_array_aligned, NewArrayAligned, new_slowly; "mov x9, x0");
allocation!(stackprof_heap_new_nothrow, NewNothrow, "mov x9, x0");
allocation!(stackprof_heap_new_array_nothrow, NewArrayNothrow, "mov x9, x0");
allocation!(stackprof_heap_new_aligned_nothrow, NewAlignedNothrow, "mov x9, x0");
allocation!(stackprof_heap_new_array_aligned_nothrow, NewArrayAlignedNothrow, "mov x9, x0");

/// Where an operator new of the allocator continues, in the order of their numbers.
// SAFETY: entry points; only their addresses are taken.
pub const COUNTED_NEW: [unsafe extern "C" fn(); 8] = [
    stackprof_heap_new,
    stackprof_heap_new_array,
    stackprof_heap_new_aligned,
    stackprof_heap_new_array_aligned,
    stackprof_heap_new_nothrow,
    stackprof_heap_new_array_nothrow,
    stackprof_heap_new_aligned_nothrow,
    stackprof_heap_new_array_aligned_nothrow,
];

/// An operator new with alignment where no library has one.
///
/// # Safety
/// Jumped to with a size and an alignment.
#[unsafe(naked)]
pub unsafe extern "C" fn new_aligned() {
    naked_asm!("mov x9, x0", "mov x0, x1", "mov x1, x9", "b {aligned_alloc}", aligned_alloc = sym aligned_alloc)
}

/// Defines a function that frees the block in x0, and continues where `real` says.
macro_rules! operator_free {
    ($name:ident, $index:literal) => {
        // SAFETY: replaces the function of this name, keeps the ABI, and changes only what a call may change.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "ubfx x13, x0, #{shift}, #{bits}",
                "adrp x14, {filter}",
                "add x14, x14, :lo12:{filter}",
                "ldrb w13, [x14, x13]",
                "cbnz w13, 4f",
                "2: adrp x16, {frees} + 8 * {index}",
                "ldr x16, [x16, :lo12:{frees} + 8 * {index}]",
                "cbz x16, 3f",
                "br x16",
                "3: adr x17, 2b",
                "b {look_up}",
                "4: adr x17, 2b",
                "b {forget}",
                ".cfi_endproc",
                frees = sym FREES,
                filter = sym FILTER,
                shift = const FILTER_SHIFT,
                bits = const FILTER_BITS,
                look_up = sym look_up_operators,
                forget = sym forget,
                index = const $index,
            )
        }
    };
}

operator_free!(_ZdlPv, 0);
operator_free!(_ZdaPv, 1);
operator_free!(_ZdlPvm, 2);
operator_free!(_ZdaPvm, 3);
operator_free!(_ZdlPvSt11align_val_t, 4);
operator_free!(_ZdaPvSt11align_val_t, 5);
operator_free!(_ZdlPvmSt11align_val_t, 6);
operator_free!(_ZdaPvmSt11align_val_t, 7);
operator_free!(_ZdlPvRKSt9nothrow_t, 8);
operator_free!(_ZdaPvRKSt9nothrow_t, 9);
operator_free!(_ZdlPvSt11align_val_tRKSt9nothrow_t, 10);
operator_free!(_ZdaPvSt11align_val_tRKSt9nothrow_t, 11);
operator_free!(dallocx, 12);
operator_free!(sdallocx, 13);

/// Stores six arguments and the caller's registers, and calls `mmap_calls::handle` with these and the number in w16.
///
/// # Safety
/// Jumped to by an entry point, so that x30 is the return address of its caller.
#[unsafe(naked)]
unsafe extern "C" fn map_slowly() {
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
        "bl {map}",
        "ldp x29, x30, [sp, #176]",
        "add sp, sp, #192",
        ".cfi_def_cfa_offset 0",
        ".cfi_restore w29",
        ".cfi_restore w30",
        "ret",
        ".cfi_endproc",
        map = sym mmap_calls::handle,
    )
}

/// Defines a function that maps or unmaps memory: that of libc, unless mappings are recorded.
macro_rules! mapping {
    ($name:ident, $index:expr) => {
        // SAFETY: replaces the function of this name, keeps the ABI, and changes only what a call may change. The
        // constructor of another library may call it before the shim is loaded.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "adrp x16, {mappings}",
                "ldr x16, [x16, :lo12:{mappings}]",
                "cbnz x16, 2f",
                "adrp x16, {others} + 8 * {index}",
                "ldr x16, [x16, :lo12:{others} + 8 * {index}]",
                "cbz x16, 2f",
                "br x16",
                "2: mov w16, #{index}",
                "b {slow}",
                ".cfi_endproc",
                mappings = sym MAPPINGS,
                others = sym LIBC_FUNCTIONS,
                index = const $index,
                slow = sym map_slowly,
            )
        }
    };
}

mapping!(mmap, libc_function::MMAP);
mapping!(mmap64, libc_function::MMAP64);
mapping!(munmap, libc_function::MUNMAP);
mapping!(mremap, libc_function::MREMAP);

//! Entry points: the functions that programs call instead of the allocator's, on x86_64 with ELF. Each call
//! subtracts its size from the thread's counter, and jumps to the allocator if the rest is larger. Argument
//! registers and the stack are unchanged, so that the allocator sees the program as its caller.
#![allow(unsafe_code)]

use super::block_set::{FILTER_SHIFT, FILTER_SIZE};
use super::mmap_calls;
use super::process::{self, FILTER, MAPPINGS};
use super::real::{self, FREES, LIBC_FUNCTIONS, NEW, REAL, libc_function};
use super::sample;
use super::shared_memory::{Function, X86_64, x86_64_register};
use super::system;
use core::arch::{global_asm, naked_asm};

/// Processor of these registers, for the ring.
pub const PROCESSOR: u32 = X86_64;

/// Number of registers that an entry point stores.
pub const REGISTER_COUNT: usize = x86_64_register::PC + 1;

/// Index of the stack pointer among them.
pub const SP: usize = x86_64_register::SP;

/// Index of the return address among them.
pub const PC: usize = x86_64_register::PC;

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
    "memcpy: mov rax, rdi",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    "memset: mov r8, rdi",
    "mov eax, esi",
    "mov rcx, rdx",
    "rep stosb",
    "mov rax, r8",
    "ret",
);

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

/// As `allocate_slowly`, for an operator new: if it returns null, the operator throws.
///
/// # Safety
/// Jumped to by an entry point, so that the return address of its caller is on the top of the stack.
#[unsafe(naked)]
unsafe extern "C" fn new_slowly() {
    naked_asm!(
        ".cfi_startproc",
        "sub rsp, 104",
        ".cfi_def_cfa_offset 112",
        "mov qword ptr [rsp], rbx",
        "mov qword ptr [rsp + 8], rbp",
        "mov qword ptr [rsp + 16], r12",
        "mov qword ptr [rsp + 24], r13",
        "mov qword ptr [rsp + 32], r14",
        "mov qword ptr [rsp + 40], r15",
        // After the return.
        "lea rcx, [rsp + 112]",
        "mov qword ptr [rsp + 48], rcx",
        "mov rcx, qword ptr [rsp + 104]",
        "mov qword ptr [rsp + 56], rcx",
        "mov qword ptr [rsp + 72], rdi",
        "mov qword ptr [rsp + 80], rsi",
        "mov qword ptr [rsp + 88], rax",
        "mov rcx, rsp",
        "mov r8d, eax",
        "call {allocate}",
        "mov rdi, qword ptr [rsp + 72]",
        "mov rsi, qword ptr [rsp + 80]",
        "mov rcx, qword ptr [rsp + 88]",
        "add rsp, 104",
        ".cfi_def_cfa_offset 8",
        "test rax, rax",
        "je 2f",
        "ret",
        "2: lea rax, [rip + {real}]",
        "jmp qword ptr [rax + 8 * rcx]",
        ".cfi_endproc",
        allocate = sym sample::allocate,
        real = sym REAL,
    )
}

/// Defines a function with this name and number; its size is computed into rax.
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
                "mov r11, qword ptr [rip + stackprof_heap_thread@GOTTPOFF]",
                "sub qword ptr fs:[r11], rax",
                // Signed: the size is at least the rest, or a signal handler went below it.
                "jle 2f",
                "jmp qword ptr [rip + {real} + 8 * {function}]",
                "2: mov eax, {function}",
                "jmp {slow}",
                ".cfi_endproc",
                real = sym REAL,
                function = const Function::$function as usize,
                slow = sym $slow,
            )
        }
    };
}

/// Defines a function that may free the block in rdi: also checks the filter.
macro_rules! reallocation {
    ($name:ident, $function:ident, $($size:literal),+) => {
        // SAFETY: replaces the function of this name, keeps the ABI, and changes only what a call may change.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                $($size,)+
                "mov r11, qword ptr [rip + stackprof_heap_thread@GOTTPOFF]",
                "sub qword ptr fs:[r11], rax",
                "jle 2f",
                "mov eax, edi",
                "shr eax, {shift}",
                "and eax, {mask}",
                "lea rcx, [rip + {filter}]",
                "cmp byte ptr [rcx + rax], 0",
                "jne 2f",
                "jmp qword ptr [rip + {real} + 8 * {function}]",
                "2: mov eax, {function}",
                "jmp {slow}",
                ".cfi_endproc",
                real = sym REAL,
                filter = sym FILTER,
                shift = const FILTER_SHIFT,
                mask = const FILTER_SIZE - 1,
                function = const Function::$function as usize,
                slow = sym allocate_slowly,
            )
        }
    };
}

/// Defines a function that frees the block in rdi.
macro_rules! free {
    ($name:ident) => {
        // SAFETY: replaces the function of this name, keeps the ABI, and changes only what a call may change.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "mov eax, edi",
                "shr eax, {shift}",
                "and eax, {mask}",
                "lea rcx, [rip + {filter}]",
                "cmp byte ptr [rcx + rax], 0",
                "jne {slow}",
                "jmp qword ptr [rip + {real}]",
                ".cfi_endproc",
                real = sym REAL,
                filter = sym FILTER,
                shift = const FILTER_SHIFT,
                mask = const FILTER_SIZE - 1,
                slow = sym sample::free,
            )
        }
    };
}

allocation!(malloc, Malloc, "mov rax, rdi");
// A product that overflows counts as the largest size.
allocation!(calloc, Calloc, "mov rax, rdi", "mul rsi", "mov rcx, -1", "cmovo rax, rcx");
reallocation!(realloc, Realloc, "mov rax, rsi");
reallocation!(
    reallocarray,
    Reallocarray,
    "mov r8, rdx",
    "mov rax, rsi",
    "mul rdx",
    "mov rdx, r8",
    "mov rcx, -1",
    "cmovo rax, rcx"
);
allocation!(posix_memalign, PosixMemalign, "mov rax, rdx");
allocation!(aligned_alloc, AlignedAlloc, "mov rax, rsi");
allocation!(memalign, Memalign, "mov rax, rsi");
allocation!(valloc, Valloc, "mov rax, rdi");
allocation!(pvalloc, Pvalloc, "mov rax, rdi");
allocation!(mallocx, Mallocx, "mov rax, rdi");
reallocation!(rallocx, Rallocx, "mov rax, rsi");
free!(free);
free!(cfree);
free!(free_sized);
free!(free_aligned_sized);

/// Defines a wrapper that calls a function with the caller's arguments, and preserves them.
macro_rules! keeping_arguments {
    ($name:ident, $called:path) => {
        /// # Safety
        /// Called by an entry point with its own return address on the top of the stack.
        #[unsafe(naked)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                // Two return addresses and six words: a multiple of 16, as at any call.
                ".cfi_def_cfa_offset 56",
                "call {called}",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                ".cfi_def_cfa_offset 8",
                "ret",
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
                "1: call {observer}",
                "2: mov r11, qword ptr [rip + {others} + 8 * {index}]",
                "test r11, r11",
                "je 3f",
                "jmp r11",
                "3: call {look_up}",
                "mov r11, qword ptr [rip + {others} + 8 * {index}]",
                "test r11, r11",
                "je 4f",
                "jmp r11",
                "4: mov rax, -1",
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
observed!(prctl, libc_function::PRCTL, enter_seccomp, "cmp edi, 22", "je 1f", "cmp edi, 38", "jne 2f");
observed!(
    syscall,
    libc_function::SYSCALL,
    observe_syscall,
    // rt_sigaction, seccomp, and prctl with PR_SET_SECCOMP or PR_SET_NO_NEW_PRIVS
    "cmp edi, 13",
    "je 1f",
    "cmp edi, 317",
    "je 1f",
    "cmp edi, 157",
    "jne 2f",
    "cmp esi, 22",
    "je 1f",
    "cmp esi, 38",
    "jne 2f"
);
observed!(sigaction, libc_function::SIGACTION, set_action,);
observed!(signal, libc_function::SIGNAL, set_handler,);
observed!(bsd_signal, libc_function::BSD_SIGNAL, set_handler,);
observed!(sysv_signal, libc_function::SYSV_SIGNAL, set_handler,);
observed!(__sysv_signal, libc_function::UNDERSCORE_SYSV_SIGNAL, set_handler,);
observed!(ssignal, libc_function::SSIGNAL, set_handler,);
observed!(sigset, libc_function::SIGSET, set_handler,);

// RTLD_DEEPBIND; LM_ID_BASE.
observed!(dlopen, libc_function::DLOPEN, count_unseen_library, "test esi, 8", "je 2f");
observed!(dlmopen, libc_function::DLMOPEN, count_unseen_library, "test rdi, rdi", "je 2f");

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
                "2: mov r11, qword ptr [rip + {new} + 8 * {index}]",
                "test r11, r11",
                "je 3f",
                "jmp r11",
                "3: call {look_up}",
                "jmp 2b",
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

allocation!(stackprof_heap_new, New, new_slowly; "mov rax, rdi");
allocation!(stackprof_heap_new_array, NewArray, new_slowly; "mov rax, rdi");
allocation!(stackprof_heap_new_aligned, NewAligned, new_slowly; "mov rax, rdi");
allocation!(stackprof_heap_new_array_aligned, NewArrayAligned, new_slowly; "mov rax, rdi");
allocation!(stackprof_heap_new_nothrow, NewNothrow, "mov rax, rdi");
allocation!(stackprof_heap_new_array_nothrow, NewArrayNothrow, "mov rax, rdi");
allocation!(stackprof_heap_new_aligned_nothrow, NewAlignedNothrow, "mov rax, rdi");
allocation!(stackprof_heap_new_array_aligned_nothrow, NewArrayAlignedNothrow, "mov rax, rdi");

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
    naked_asm!("xchg rdi, rsi", "jmp {aligned_alloc}", aligned_alloc = sym aligned_alloc)
}

/// Defines a function that frees the block in rdi, and continues where `real` says.
macro_rules! operator_free {
    ($name:ident, $index:literal) => {
        // SAFETY: replaces the function of this name, keeps the ABI, and changes only what a call may change.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "mov eax, edi",
                "shr eax, {shift}",
                "and eax, {mask}",
                "lea rcx, [rip + {filter}]",
                "cmp byte ptr [rcx + rax], 0",
                "jne 4f",
                "2: mov r11, qword ptr [rip + {frees} + 8 * {index}]",
                "test r11, r11",
                "je 3f",
                "jmp r11",
                "3: call {look_up}",
                "jmp 2b",
                "4: call {forget}",
                "jmp 2b",
                ".cfi_endproc",
                frees = sym FREES,
                filter = sym FILTER,
                shift = const FILTER_SHIFT,
                mask = const FILTER_SIZE - 1,
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

/// Stores six arguments and the caller's registers, and calls `mmap_calls::handle` with these and the number in eax.
///
/// # Safety
/// Jumped to by an entry point, so that the return address of its caller is on the top of the stack.
#[unsafe(naked)]
unsafe extern "C" fn map_slowly() {
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
        "call {map}",
        "add rsp, 120",
        ".cfi_def_cfa_offset 8",
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
                "cmp qword ptr [rip + {mappings}], 0",
                "jne 2f",
                "mov r11, qword ptr [rip + {others} + 8 * {index}]",
                "test r11, r11",
                "je 2f",
                "jmp r11",
                "2: mov eax, {index}",
                "jmp {slow}",
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

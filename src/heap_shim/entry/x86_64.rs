//! The instructions of the entry points on x86_64. A product is computed into rax, and the number for the slow path is in
//! eax. r11 is free in all functions; rcx and r8 are arguments of some on macOS.

use crate::sample;
pub use crate::shared_memory::{X86_64 as PROCESSOR, x86_64_register as register};
use core::arch::naked_asm;

/// The register with a product.
macro_rules! product_register {
    () => { "rax" };
}

/// The register with an argument.
macro_rules! argument {
    (0) => { "rdi" };
    (1) => { "rsi" };
    (2) => { "rdx" };
}

/// A size that is the product of two arguments. If it overflows, it counts as the largest size.
#[cfg(not(target_vendor = "apple"))]
macro_rules! product {
    (0, 1) => {
        "mov rax, rdi
         mul rsi
         mov rcx, -1
         cmovo rax, rcx"
    };
    (1, 2) => {
        "mov r8, rdx
         mov rax, rsi
         mul rdx
         mov rdx, r8
         mov rcx, -1
         cmovo rax, rcx"
    };
}
// rdx is an argument of the functions of zones, and of typed ones.
#[cfg(target_vendor = "apple")]
macro_rules! product {
    ($a:tt, $b:tt) => {
        concat!("mov r11, rdx
                 mov rax, ", argument!($a), "
                 mul ", argument!($b), "
                 mov rdx, -1
                 cmovo rax, rdx
                 mov rdx, r11")
    };
}

/// Subtracts the size in a register from the thread's counter; goes to a label if a sample is due. Signed: the size is at
/// least the rest, or a signal handler went below it. A size with a sign, which no allocator has, takes the slow path
/// too: subtracted, it would hide later allocations.
#[cfg(not(target_vendor = "apple"))]
macro_rules! count {
    ($size:expr, $due:expr) => {
        concat!("mov r11, qword ptr [rip + {counter}@GOTTPOFF]
                 sub qword ptr fs:[r11], ", $size, "
                 jle ", $due, "
                 test ", $size, ", ", $size, "
                 js ", $due)
    };
}
// An offset of 0: the process has no thread-specific words yet.
#[cfg(target_vendor = "apple")]
macro_rules! count {
    ($size:expr, $due:expr) => {
        concat!("mov r11, qword ptr [rip + {counter}]
                 test r11, r11
                 je ", $due, "
                 sub qword ptr gs:[r11], ", $size, "
                 jle ", $due, "
                 test ", $size, ", ", $size, "
                 js ", $due)
    };
}

/// Goes to a label if the block in an argument may be sampled: if its counter, `block_set::filter_index`, is not 0.
macro_rules! filter {
    (0, $sampled:expr) => { filter!("edi", $sampled) };
    (1, $sampled:expr) => { filter!("esi", $sampled) };
    ($block:expr, $sampled:expr) => {
        concat!("mov eax, ", $block, "
                 shr eax, {shift}
                 and eax, (1 << {bits}) - 1
                 lea ", filter_register!(), ", [rip + {filter}]
                 cmp byte ptr [", filter_register!(), " + rax], 0
                 jne ", $sampled)
    };
}
macro_rules! filter_register {
    () => { if_apple!("r11", "rcx") };
}

/// Goes on in the function of a table.
macro_rules! jump {
    ($table:literal) => { concat!("jmp qword ptr [rip + {", $table, "} + 8 * {index}]") };
}

/// Goes on in the function of a table, or at a label if that is null.
#[cfg(not(target_vendor = "apple"))]
macro_rules! jump_or {
    ($table:literal, $null:literal) => {
        concat!("mov r11, qword ptr [rip + {", $table, "} + 8 * {index}]
                 test r11, r11
                 je ", $null, "
                 jmp r11")
    };
}

/// Goes to a label if a word is not 0.
#[cfg(not(target_vendor = "apple"))]
macro_rules! if_set {
    ($word:literal, $label:literal) => {
        concat!("cmp qword ptr [rip + {", $word, "}], 0
                 jne ", $label)
    };
}

/// Label 2: goes on in the slow path, with a number.
macro_rules! slowly {
    ($number:literal) => {
        concat!("2: mov eax, {", $number, "}
                 jmp {slow}")
    };
}

/// Where a branch finds `slow`, and what has to stand there.
#[cfg(target_vendor = "apple")]
macro_rules! slow_label {
    () => { "{slow}" };
}
#[cfg(target_vendor = "apple")]
macro_rules! at_slow_label {
    () => { "" };
}
/// Where a branch of a function that frees finds `slow`, and what has to stand there.
macro_rules! slow_free_label {
    () => { if_apple!("2f", "{slow}") };
}
macro_rules! at_slow_free_label {
    () => { if_apple!("2: jmp {slow}", "") };
}

/// Goes on in another function.
#[cfg(target_vendor = "apple")]
macro_rules! go {
    ($function:literal) => { concat!("jmp {", $function, "}") };
}

/// Calls a function that is defined by `keeping_arguments`. The next label is the one below.
#[cfg(not(target_vendor = "apple"))]
macro_rules! call {
    ($function:literal, $next:literal) => { concat!("call {", $function, "}") };
}

/// Calls a function that is defined by `keeping_arguments`, and goes back to a label.
#[cfg(not(target_vendor = "apple"))]
macro_rules! call_then {
    ($function:literal, $label:literal) => {
        concat!("call {", $function, "}
                 jmp ", $label)
    };
}

/// Returns -1.
#[cfg(not(target_vendor = "apple"))]
macro_rules! fail {
    () => {
        "mov rax, -1
         ret"
    };
}

/// Whether to observe a call of this function: goes to label 1 if so, to label 2 if not, or on to label 1.
#[cfg(not(target_vendor = "apple"))]
macro_rules! condition {
    // PR_SET_SECCOMP, and PR_SET_NO_NEW_PRIVS, which a filter needs: it may be set by a system call of the program's own.
    (prctl) => {
        "cmp edi, 22
         je 1f
         cmp edi, 38
         jne 2f"
    };
    // rt_sigaction, seccomp, and prctl with PR_SET_SECCOMP or PR_SET_NO_NEW_PRIVS
    (syscall) => {
        "cmp edi, 13
         je 1f
         cmp edi, 317
         je 1f
         cmp edi, 157
         jne 2f
         cmp esi, 22
         je 1f
         cmp esi, 38
         jne 2f"
    };
    // RTLD_DEEPBIND
    (dlopen) => {
        "test esi, 8
         je 2f"
    };
    // LM_ID_BASE
    (dlmopen) => {
        "test rdi, rdi
         je 2f"
    };
    ($always:ident) => { "" };
}

/// Stores the caller's registers in the order of `x86_64_register`, at {at} in a frame of {frame} bytes.
macro_rules! store_registers {
    () => {
        "mov qword ptr [rsp + {at}], rbx
         mov qword ptr [rsp + {at} + 8], rbp
         mov qword ptr [rsp + {at} + 16], r12
         mov qword ptr [rsp + {at} + 24], r13
         mov qword ptr [rsp + {at} + 32], r14
         mov qword ptr [rsp + {at} + 40], r15
         // After the return.
         lea rcx, [rsp + {frame} + 8]
         mov qword ptr [rsp + {at} + 48], rcx
         mov rcx, qword ptr [rsp + {frame}]
         mov qword ptr [rsp + {at} + 56], rcx"
    };
}
macro_rules! begin_frame {
    () => {
        "sub rsp, {frame}
         .cfi_def_cfa_offset {frame} + 8"
    };
}
macro_rules! end_frame {
    () => {
        "add rsp, {frame}
         .cfi_def_cfa_offset 8"
    };
}

// Stores the caller's registers and calls `sample::allocate` with three arguments, the registers and the number in eax.
function!(allocate_slowly, [
    begin_frame!(),
    store_registers!(),
    "mov rcx, rsp
     mov r8d, eax
     call {allocate}",
    end_frame!(),
    "ret"
] allocate = sym sample::allocate, frame = const 72, at = const 0);

// As `allocate_slowly`, for an operator new: if it returns null, the operator throws.
#[cfg(not(target_vendor = "apple"))]
function!(new_slowly, [
    begin_frame!(),
    store_registers!(),
    "mov qword ptr [rsp + 72], rdi
     mov qword ptr [rsp + 80], rsi
     mov qword ptr [rsp + 88], rax
     mov rcx, rsp
     mov r8d, eax
     call {allocate}
     mov rdi, qword ptr [rsp + 72]
     mov rsi, qword ptr [rsp + 80]
     mov rcx, qword ptr [rsp + 88]",
    end_frame!(),
    "test rax, rax
     je 2f
     ret
     2: lea rax, [rip + {real}]
     jmp qword ptr [rax + 8 * rcx]"
] allocate = sym sample::allocate, real = sym crate::real::REAL, frame = const 104, at = const 0);

// Stores six arguments and the caller's registers, and calls a function with these and the number in eax.
function!(call_slowly, [
    begin_frame!(),
    "mov qword ptr [rsp], rdi
     mov qword ptr [rsp + 8], rsi
     mov qword ptr [rsp + 16], rdx
     mov qword ptr [rsp + 24], rcx
     mov qword ptr [rsp + 32], r8
     mov qword ptr [rsp + 40], r9",
    store_registers!(),
    "mov rdi, rsp
     lea rsi, [rsp + {at}]
     mov edx, eax
     call {called}",
    end_frame!(),
    "ret"
] called = sym super::functions::handle, frame = const 120, at = const 48);

/// Defines a function that calls another one with the caller's arguments, and preserves them.
#[cfg(not(target_vendor = "apple"))]
macro_rules! keeping_arguments {
    ($name:ident, $called:path) => {
        function!($name, [
            "push rdi
             push rsi
             push rdx
             push rcx
             push r8
             push r9
             // Two return addresses and six words: a multiple of 16, as at any call.
             .cfi_def_cfa_offset 56
             call {called}
             pop r9
             pop r8
             pop rcx
             pop rdx
             pop rsi
             pop rdi
             .cfi_def_cfa_offset 8
             ret"
        ] called = sym $called);
    };
}

// An operator new with alignment where no library has one: has a size and an alignment.
#[cfg(not(target_vendor = "apple"))]
function!(new_aligned, [
    "xchg rdi, rsi
     jmp {aligned_alloc}"
] aligned_alloc = sym super::functions::aligned_alloc);

/// `memcpy` and `memset`.
#[cfg(not(target_vendor = "apple"))]
macro_rules! copies {
    () => {
        "memcpy: mov rax, rdi
         mov rcx, rdx
         rep movsb
         ret
         memset: mov r8, rdi
         mov eax, esi
         mov rcx, rdx
         rep stosb
         mov rax, r8
         ret"
    };
}

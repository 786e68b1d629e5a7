//! The instructions of the entry points on aarch64. A product is computed into x9, and the number for the slow path is in
//! w16. x9 to x17 are free in all functions.

use crate::sample;
pub use crate::shared_memory::{AARCH64 as PROCESSOR, aarch64_register as register};
use core::arch::naked_asm;

/// The register with a product.
macro_rules! product_register {
    () => { "x9" };
}

/// The register with an argument.
macro_rules! argument {
    (0) => { "x0" };
    (1) => { "x1" };
    (2) => { "x2" };
}

/// A size that is the product of two arguments. If it overflows, it counts as the largest size.
macro_rules! product {
    ($a:tt, $b:tt) => {
        concat!("mul x9, ", argument!($a), ", ", argument!($b), "
                 umulh x10, ", argument!($a), ", ", argument!($b), "
                 cmp x10, #0
                 csinv x9, x9, xzr, eq")
    };
}

/// Subtracts the size in a register from the thread's counter; goes to a label if a sample is due. Signed: the size is at
/// least the rest, or a signal handler went below it. A size with a sign, which no allocator has, takes the slow path
/// too: subtracted, it would hide later allocations.
#[cfg(not(target_vendor = "apple"))]
macro_rules! count {
    ($size:expr, $due:expr) => {
        concat!("mrs x10, tpidr_el0
                 adrp x11, :gottprel:{counter}
                 ldr x11, [x11, :gottprel_lo12:{counter}]
                 ldr x12, [x10, x11]
                 subs x12, x12, ", $size, "
                 str x12, [x10, x11]
                 b.le ", $due, "
                 tbnz ", $size, ", #63, ", $due)
    };
}
// An offset of 0: the process has no thread-specific words yet.
#[cfg(target_vendor = "apple")]
macro_rules! count {
    ($size:expr, $due:expr) => {
        concat!("adrp x11, {counter}@PAGE
                 ldr x11, [x11, {counter}@PAGEOFF]
                 cbz x11, ", $due, "
                 mrs x10, tpidrro_el0
                 and x10, x10, #0xfffffffffffffff8
                 ldr x12, [x10, x11]
                 subs x12, x12, ", $size, "
                 str x12, [x10, x11]
                 b.le ", $due, "
                 tbnz ", $size, ", #63, ", $due)
    };
}

/// The address of a variable.
macro_rules! address {
    ($register:literal, $variable:literal) => {
        concat!("adrp ", $register, ", {", $variable, if_apple!("}@PAGE\n", "}\n"),
                "add ", $register, ", ", $register, if_apple!(", {", ", :lo12:{"), $variable, if_apple!("}@PAGEOFF", "}"))
    };
}

/// Goes to a label if the block in an argument may be sampled: if its counter, `block_set::filter_index`, is not 0.
macro_rules! filter {
    ($block:tt, $sampled:expr) => {
        concat!("ubfx x13, ", argument!($block), ", #{shift}, #{bits}
                 ", address!("x14", "filter"), "
                 ldrb w13, [x14, x13]
                 cbnz w13, ", $sampled)
    };
}

/// Loads the function of a table into x16.
#[cfg(not(target_vendor = "apple"))]
macro_rules! load {
    ($table:literal) => {
        concat!("adrp x16, {", $table, "} + 8 * {index}
                 ldr x16, [x16, :lo12:{", $table, "} + 8 * {index}]")
    };
}
#[cfg(target_vendor = "apple")]
macro_rules! load {
    ($table:literal) => {
        concat!(address!("x16", $table), "
                 ldr x16, [x16, #8 * {index}]")
    };
}

/// Goes on in the function of a table.
macro_rules! jump {
    ($table:literal) => {
        concat!(load!($table), "
                 br x16")
    };
}

/// Goes on in the function of a table, or at a label if that is null.
#[cfg(not(target_vendor = "apple"))]
macro_rules! jump_or {
    ($table:literal, $null:literal) => {
        concat!(load!($table), "
                 cbz x16, ", $null, "
                 br x16")
    };
}

/// Goes to a label if a word is not 0.
#[cfg(not(target_vendor = "apple"))]
macro_rules! if_set {
    ($word:literal, $label:literal) => {
        concat!("adrp x16, {", $word, "}
                 ldr x16, [x16, :lo12:{", $word, "}]
                 cbnz x16, ", $label)
    };
}

/// Label 2: goes on in the slow path, with a number.
macro_rules! slowly {
    ($number:literal) => {
        concat!("2: mov w16, #{", $number, "}
                 b {slow}")
    };
}

/// Where a branch finds `slow`, and what has to stand there: a conditional branch does not reach other functions.
macro_rules! slow_label {
    () => { "2f" };
}
macro_rules! at_slow_label {
    () => { "2: b {slow}" };
}
macro_rules! slow_free_label {
    () => { slow_label!() };
}
macro_rules! at_slow_free_label {
    () => { at_slow_label!() };
}

/// Goes on in another function.
#[cfg(target_vendor = "apple")]
macro_rules! go {
    ($function:literal) => { concat!("b {", $function, "}") };
}

/// Calls a function that is defined by `keeping_arguments`, and goes on at a label. `call`: the label is the next one.
#[cfg(not(target_vendor = "apple"))]
macro_rules! call_then {
    ($function:literal, $label:literal) => {
        concat!("adr x17, ", $label, "
                 b {", $function, "}")
    };
}
#[cfg(not(target_vendor = "apple"))]
macro_rules! call {
    ($function:literal, $next:literal) => { call_then!($function, $next) };
}

/// Returns -1.
#[cfg(not(target_vendor = "apple"))]
macro_rules! fail {
    () => {
        "mov x0, #-1
         ret"
    };
}

/// Whether to observe a call of this function: goes to label 1 if so, to label 2 if not, or on to label 1.
#[cfg(not(target_vendor = "apple"))]
macro_rules! condition {
    // PR_SET_SECCOMP, and PR_SET_NO_NEW_PRIVS, which a filter needs: it may be set by a system call of the program's own.
    (prctl) => {
        "cmp w0, #22
         b.eq 1f
         cmp w0, #38
         b.ne 2f"
    };
    // rt_sigaction, seccomp, and prctl with PR_SET_SECCOMP or PR_SET_NO_NEW_PRIVS
    (syscall) => {
        "cmp w0, #134
         b.eq 1f
         cmp w0, #277
         b.eq 1f
         cmp w0, #167
         b.ne 2f
         cmp w1, #22
         b.eq 1f
         cmp w1, #38
         b.ne 2f"
    };
    // RTLD_DEEPBIND
    (dlopen) => { "tbz w1, #3, 2f" };
    // LM_ID_BASE
    (dlmopen) => { "cbz x0, 2f" };
    ($always:ident) => { "" };
}

/// Begins a frame of {frame} bytes; at its end are x29 and x30.
macro_rules! begin_frame {
    () => {
        "sub sp, sp, #{frame}
         .cfi_def_cfa_offset {frame}
         stp x29, x30, [sp, #{frame} - 16]
         .cfi_offset w29, -16
         .cfi_offset w30, -8"
    };
}
macro_rules! end_frame {
    () => {
        "ldp x29, x30, [sp, #{frame} - 16]
         add sp, sp, #{frame}
         .cfi_def_cfa_offset 0
         .cfi_restore w29
         .cfi_restore w30"
    };
}

/// Stores the caller's registers in the order of `aarch64_register`, at {at} in the frame. The last ones are the stack
/// pointer after the return, and the return address.
macro_rules! store_registers {
    () => {
        "stp x19, x20, [sp, #{at}]
         stp x21, x22, [sp, #{at} + 16]
         stp x23, x24, [sp, #{at} + 32]
         stp x25, x26, [sp, #{at} + 48]
         stp x27, x28, [sp, #{at} + 64]
         stp x29, x30, [sp, #{at} + 80]
         add x9, sp, #{frame}
         stp x9, x30, [sp, #{at} + 96]"
    };
}

// Stores the caller's registers and calls `sample::allocate` with three arguments, the registers and the number in w16.
function!(allocate_slowly, [
    begin_frame!(),
    store_registers!(),
    "add x29, sp, #{frame} - 16
     mov x3, sp
     mov w4, w16
     bl {allocate}",
    end_frame!(),
    "ret"
] allocate = sym sample::allocate, frame = const 144, at = const 0);

// As `allocate_slowly`, for an operator new: if it returns null, the operator throws.
#[cfg(not(target_vendor = "apple"))]
function!(new_slowly, [
    begin_frame!(),
    store_registers!(),
    "stp x0, x1, [sp, #128]
     str x16, [sp, #144]
     add x29, sp, #{frame} - 16
     mov x3, sp
     mov w4, w16
     bl {allocate}
     mov x9, x0
     ldp x0, x1, [sp, #128]
     ldr x16, [sp, #144]",
    end_frame!(),
    "cbz x9, 2f
     mov x0, x9
     ret
     2:",
    address!("x17", "real"),
    "ldr x16, [x17, x16, lsl #3]
     br x16"
] allocate = sym sample::allocate, real = sym crate::real::REAL, frame = const 176, at = const 0);

// Stores six arguments and the caller's registers, and calls a function with these and the number in w16.
function!(call_slowly, [
    begin_frame!(),
    "stp x0, x1, [sp]
     stp x2, x3, [sp, #16]
     stp x4, x5, [sp, #32]",
    store_registers!(),
    "add x29, sp, #{frame} - 16
     mov x0, sp
     add x1, sp, #{at}
     mov w2, w16
     bl {called}",
    end_frame!(),
    "ret"
] called = sym super::functions::handle, frame = const 192, at = const 48);

/// Defines a function that calls another one with the caller's arguments, and preserves them. It returns to x17.
#[cfg(not(target_vendor = "apple"))]
macro_rules! keeping_arguments {
    ($name:ident, $called:path) => {
        function!($name, [
            begin_frame!(),
            "stp x0, x1, [sp]
             stp x2, x3, [sp, #16]
             stp x4, x5, [sp, #32]
             stp x6, x7, [sp, #48]
             str x17, [sp, #64]
             add x29, sp, #{frame} - 16
             bl {called}
             ldr x17, [sp, #64]
             ldp x6, x7, [sp, #48]
             ldp x4, x5, [sp, #32]
             ldp x2, x3, [sp, #16]
             ldp x0, x1, [sp]",
            end_frame!(),
            "br x17"
        ] called = sym $called, frame = const 96);
    };
}

// An operator new with alignment where no library has one: has a size and an alignment.
#[cfg(not(target_vendor = "apple"))]
function!(new_aligned, [
    "mov x9, x0
     mov x0, x1
     mov x1, x9
     b {aligned_alloc}"
] aligned_alloc = sym super::functions::aligned_alloc);

/// `memcpy` and `memset`.
#[cfg(not(target_vendor = "apple"))]
macro_rules! copies {
    () => {
        "memcpy: mov x3, x0
         1: cmp x2, #16
         b.lo 2f
         ldp x4, x5, [x1], #16
         stp x4, x5, [x3], #16
         sub x2, x2, #16
         b 1b
         2: cbz x2, 3f
         ldrb w4, [x1], #1
         strb w4, [x3], #1
         sub x2, x2, #1
         b 2b
         3: ret
         memset: mov x3, x0
         1: cbz x2, 2f
         strb w1, [x3], #1
         sub x2, x2, #1
         b 1b
         2: ret"
    };
}

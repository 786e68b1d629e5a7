//! Where stacks begin and change on x86_64, recognized by instructions, never by the place where a walk happened to
//! end: outermost frames of fibers, the functions that contexts, fibers and goroutines return to without having
//! been called (`StackBase`); functions that call on another stack (`lowest_word`); whether a function has loaded
//! the stack pointer (`loads_stack_pointer_before`); start and exit code of threads and signal handlers (`is_start_code`).

use crate::addr::{Avma, CodeAddress};
use crate::arch::{UNKNOWN_REGISTER, X86_64};
use crate::binary::frame_rule::{Cfa, Column, Row};
use crate::walk::frames::Frame;
use crate::walk::input::is_on_other_stack;
use crate::walk::intel::instructions;
use crate::walk::processor::row;
use crate::walk::runtimes::go::x86_64 as go;
use crate::walk::stack_switch::is_outside_copy;
use crate::walk::{Code, Input};

/// Properties of an address in the first function of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StackBase {
    /// A return address without a call: the program put it there when it created the stack.
    pub not_called: bool,
    /// The stack belongs to a fiber: a thread switches to it and back, and its caller is on another stack.
    pub fiber: bool,
}

/// The stack base whose first function contains an address.
pub(super) fn at(address: CodeAddress, code: &dyn Code) -> Option<StackBase> {
    let at = address.at();
    let returned = matches!(address, CodeAddress::Return(_));
    let of =
        |into: u64, returned_at: u64, fiber| StackBase { not_called: returned && into == returned_at, fiber };
    start_of_context(at, code)
        .map(|into| of(into, 0, true))
        .or_else(|| Some(of(go::into_goexit(at, code)?, 1, false)))
        .or_else(|| Some(of(into_fcontext(at, code)?, FCONTEXT_FINISH, true)))
        .or_else(|| {
            let into = into_start_of_libdyld(at, code)?;
            // A return address at its start belongs to another function's call.
            (!returned || into > 0).then(|| of(into, 1, false))
        })
}

/// Whether a glance at an address looks like code that first functions or signal handlers return to without a
/// call. If not, and no call precedes the address, it is no return address.
pub(super) fn may_be_returned_to(at: Avma, code: &dyn Code) -> bool {
    let here = code.glance(at);
    let here = here.bytes();
    let is_behind_nop = || code.glance(Avma(at.0.wrapping_sub(1))).bytes().first() == Some(&0x90);
    here.starts_with(&START_OF_CONTEXT)
        || here.starts_with(&FCONTEXT[FCONTEXT_FINISH as usize..])
        || here.first() == Some(&0xe8) && is_behind_nop()
        || is_sigreturn(here)
}

/// The offset of an address in an instruction sequence of `bytes` bytes that begins with `start`.
fn into(at: Avma, start: &[u8], bytes: u64, code: &dyn Code) -> Option<(u64, Avma)> {
    // The start of the mapping may be nearer.
    let (from, known) = (0..bytes).rev().find_map(|back| {
        let from = Avma(at.0.checked_sub(back)?);
        Some((from, code.code(from)?))
    })?;
    let searched = known.get(..known.len().min(bytes as usize - 1 + start.len()))?;
    let found = searched.windows(start.len()).position(|bytes| bytes == start)?;
    let begin = from + found as u64;
    at.0.checked_sub(begin.0).filter(|into| *into < bytes).map(|into| (into, begin))
}

/// mov %rbx,%rsp; mov (%rsp),%rdi; test %rdi,%rdi; je; call setcontext
const START_OF_CONTEXT: [u8; 13] =
    [0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24, 0x48, 0x85, 0xff, 0x74, 0x08, 0xe8];

/// The offset of an address in `__start_context`, the return address of a `makecontext` stack's first function. It
/// was not called, although its rows say so.
/// Source: glibc sysdeps/unix/sysv/linux/x86_64/__start_context.S.
fn start_of_context(at: Avma, code: &dyn Code) -> Option<u64> {
    into(at, &START_OF_CONTEXT, 26, code).map(|(into, _)| into)
}

/// push %rbp; jmp *%rbx; finish: xor %rdi,%rdi; call _exit
const FCONTEXT: [u8; 7] = [0x55, 0xff, 0xe3, 0x48, 0x31, 0xff, 0xe8];
/// Offset of `finish` in the trampoline of `make_fcontext`.
const FCONTEXT_FINISH: u64 = 3;

/// The offset of an address in the trampoline of a Boost.Context fiber, or in `finish` after it, which the
/// trampoline pushes as the return address of the fiber's function.
/// Source: Boost, libs/context/src/asm/make_x86_64_sysv_elf_gas.S.
fn into_fcontext(at: Avma, code: &dyn Code) -> Option<u64> {
    let (into, begin) = into(at, &FCONTEXT, 12, code)?;
    // hlt. After the push of the return address and before the call of `finish`, that is the caller.
    let is_fcontext = code.code(begin + 11)?.first() == Some(&0xf4);
    (is_fcontext && into != 1).then_some(into)
}

/// The offset of an address in `start` of libdyld.dylib. Before macOS 12, dyld sets its second byte as the return
/// address of `main`, and above it, as the outermost frame record, a null frame pointer and argc.
/// Source: dyld 852, src/dyldStartup.s and src/start_glue.s.
fn into_start_of_libdyld(at: Avma, code: &dyn Code) -> Option<u64> {
    // nop; mov %eax,%edi; call exit; hlt
    const START: [u8; 4] = [0x90, 0x89, 0xc7, 0xe8];
    const HLT_AT: u64 = 8;
    let (into, begin) = into(at, &START, HLT_AT + 1, code)?;
    let is_start =
        code.begins_threads(begin) == Some(true) && code.code(begin + HLT_AT)?.first() == Some(&0xf4);
    is_start.then_some(into)
}

// ---- Functions that call on another stack. Some keep the caller's in rbp, which their rows are relative to:
// libgcc's `__morestack`, which calls a function with split stacks on a new segment, and `rust_psm_on_stack` (the
// crates `psm` and `stacker`). Others keep it in another register, or in memory, which the expressions of their
// rows read: OCaml 5 runs its own functions on stacks of fibers and those in C on that of the thread
// (`caml_c_call`, `caml_call_gc`, `caml_start_program`, `caml_runstack`; calls that allocate nothing are inline and
// keep it in rbx).
//
// Source: libgcc/config/i386/morestack.S; psm, src/arch/x86_64.s; OCaml, runtime/amd64.S.

/// Limit on bytes of a function examined before an address. In a larger one only the code just before it is.
const BYTES_MAX: u64 = 512;
const NEAR_BYTES: usize = 32;
/// mov %rax,%fs:0x70: the limit of a split stack's segment.
const SETS_SEGMENT: [u8; 9] = [0x64, 0x48, 0x89, 0x04, 0x25, 0x70, 0, 0, 0];

/// The lowest word on the caller's stack that the row of a frame reads, if rbp points there; `None` if all words
/// were copied. `cfa_offset`: from rbp, by unwind information.
pub(super) fn lowest_word(frame: &Frame<X86_64>, cfa_offset: i64, input: &Input<'_>) -> Option<Avma> {
    let base = frame.registers[X86_64::RBP];
    if base == UNKNOWN_REGISTER || !base.is_multiple_of(8) {
        return None;
    }
    let cfa = base.wrapping_add_signed(cfa_offset);
    let last = Avma(cfa.checked_sub(8)?);
    if last >= frame.sp() && !is_outside_copy(last, input) {
        return None;
    }
    match stack_of_callee(frame.address, input.code)? {
        Callee::OnSegment => {}
        // A function with variable-length arrays also loads its stack pointer: its frame is above.
        Callee::OnStack if last < frame.sp() || is_on_other_stack(last, input) => {}
        Callee::OnStack => return None,
    }
    lowest_of_row(&row::<X86_64>(input.code, frame.address.lookup().at())?, cfa)
}

/// The CFA on the caller's stack by a row with the caller's stack pointer in memory or any register, and the lowest
/// word that the row reads there; `is_switched`: the frame is on another stack than the copied one.
pub(super) fn of_row(
    frame: &Frame<X86_64>,
    row: &Row,
    is_switched: bool,
    input: &Input<'_>,
) -> Option<(u64, Avma)> {
    let by_sp = matches!(row.cfa, Cfa::Register(register, _) if usize::from(register) == X86_64::RSP);
    if row.signal || by_sp {
        return None;
    }
    let cfa = frame.cfa(row, input).ok()?;
    // From another stack even what is not far above may be the first one.
    let is_uncopied = is_switched && is_outside_copy(Avma(cfa.saturating_sub(8)), input);
    if Avma(cfa) > frame.sp() && !is_on_other_stack(Avma(cfa), input) && !is_uncopied {
        return None;
    }
    stack_of_callee(frame.address, input.code)?;
    Some((cfa, lowest_of_row(row, cfa)?))
}

/// The lowest word that a row with this CFA reads.
fn lowest_of_row(row: &Row, cfa: u64) -> Option<Avma> {
    let offsets = row.columns.iter().filter_map(|column| match column {
        Column::At(offset) => Some(*offset),
        _ => None,
    });
    Some(Avma(cfa.wrapping_add_signed(offsets.min()?)))
}

/// The stack that a function called on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Callee {
    /// A segment of a split stack.
    OnSegment,
    /// A stack with a stack pointer that the function loaded.
    OnStack,
}

/// The stack that a function has switched to before an address, by loading its stack pointer from a register other
/// than rbp, or from memory; `None` if it has not.
fn stack_of_callee(address: CodeAddress, code: &dyn Code) -> Option<Callee> {
    let at = address.at();
    let function = code.described_function(address.lookup().at())?;
    let bytes = at.0.checked_sub(function.start.0)?;
    if bytes <= BYTES_MAX {
        return callee_after(code.code(function.start)?.get(..bytes as usize)?);
    }
    // Right after a load the instructions before are irrelevant.
    let before = code.code(Avma(at.0 - NEAR_BYTES as u64))?.get(..NEAR_BYTES)?;
    (0..NEAR_BYTES).find_map(|from| {
        let loads = matches!(before.get(from..from + 2), Some([0x48..=0x4f, 0x89 | 0x8b]));
        if loads { callee_after(&before[from..]) } else { None }
    })
}

/// The stack that code has loaded at its end.
fn callee_after(before: &[u8]) -> Option<Callee> {
    let (mut from, mut callee) = (0, None);
    while from < before.len() {
        let rest = &before[from..];
        let instruction = instructions::decode::<true>(rest)?;
        if callee.is_some() && rest.starts_with(&SETS_SEGMENT) {
            return Some(Callee::OnSegment);
        }
        if let (0, 0x89 | 0x8b, Some((mode, register, operand))) =
            (instruction.map, instruction.opcode, instruction.operands())
        {
            let register = usize::from(register | (instruction.rex & 4) << 1);
            let operand = usize::from(operand | (instruction.rex & 1) << 3);
            // Instruction numbers, not DWARF: 4 is rsp, 5 rbp.
            let loads = match instruction.opcode {
                0x89 => mode == 3 && operand == 4 && register != 5,
                _ => register == 4 && (mode < 3 || operand != 5),
            };
            if loads && instruction.wide {
                callee = Some(Callee::OnStack);
            }
        }
        from += instruction.length;
    }
    callee.filter(|_| from == before.len())
}

// ---- Whether a function has loaded the stack pointer from elsewhere before an address, so that rows relative to it
// may lead to any word: assembly that switches stacks does not always describe it in its tables (Wine's thread
// start). Input: an address, code; output: yes or no. A constant that looks like this instruction counts as one.

/// Limit on bytes of a function examined.
const LOAD_BYTES_MAX: u64 = 4096;

/// Whether an instruction before an address, in its function, loads the stack pointer; false if the function's
/// entry is unknown.
pub(super) fn loads_stack_pointer_before(address: CodeAddress, code: &dyn Code) -> bool {
    let Some(function) = code.described_function(address.lookup().at()) else { return false };
    let length = address.at().0.saturating_sub(function.start.0).min(LOAD_BYTES_MAX);
    let bytes = code.code(function.start).unwrap_or_default();
    let bytes = &bytes[..bytes.len().min(length as usize)];
    bytes.windows(3).any(|instruction| match *instruction {
        // mov %reg,%rsp: from a register other than rbp, which removes a frame.
        [0x48, 0x89, operands] => operands & 0xc7 == 0xc4 && operands >> 3 & 7 != 5,
        [0x4c, 0x89, operands] => operands & 0xc7 == 0xc4,
        // mov of a register or of memory to %rsp
        [0x48 | 0x49, 0x8b, operands] => operands & 0x38 == 0x20,
        _ => false,
    })
}

// ---- Start and exit code of threads and signal handlers on x86_64, recognized by the instructions that compilers
// generate from C library sources. Input: bytes; output: yes or no.

/// Whether code follows the call of `main` or of a thread's function: the result is passed to `exit`, or stored
/// for `pthread_join`.
///
/// Sources: glibc sysdeps/nptl/libc_start_call_main.h and nptl/pthread_create.c (start_thread), musl
/// src/env/__libc_start_main.c and src/thread/pthread_create.c, as compiled by gcc.
pub(super) fn is_start_code(code: &[u8]) -> bool {
    const FORMS: [&[u8]; 5] = [
        // mov %eax,%edi; call exit
        &[0x89, 0xc7, 0xe8],
        // musl: mov %rax,%rdi; call pthread_exit
        &[0x48, 0x89, 0xc7, 0xe8],
        // glibc: mov %rax,%fs:result
        &[0x64, 0x48, 0x89, 0x04, 0x25],
        // hlt, in _start after __libc_start_main
        &[0xf4],
        // a thread created by clone directly
        &[0x48, 0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05],
    ];
    FORMS.iter().any(|form| code.starts_with(form))
}

/// Whether code makes the `exit` system call that follows a thread's first function, mostly with its result.
///
/// Sources: glibc sysdeps/unix/sysv/linux/x86_64/clone.S and clone3.S, musl
/// src/thread/x86_64/clone.s.
pub(super) fn ends_thread(code: &[u8]) -> bool {
    const FORMS: [&[u8]; 5] = [
        // glibc: mov %rax,%rdi; mov $60,%eax; syscall
        &[0x48, 0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05],
        // mov %eax,%edi; mov $60,%eax; syscall
        &[0x89, 0xc7, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05],
        // musl: mov %eax,%edi; xor %eax,%eax; mov $60,%al; syscall
        &[0x89, 0xc7, 0x31, 0xc0, 0xb0, 0x3c, 0x0f, 0x05],
        // the same with a 64-bit move
        &[0x48, 0x89, 0xc7, 0x31, 0xc0, 0xb0, 0x3c, 0x0f, 0x05],
        // Go (runtime.clone, sys_linux_amd64.s): mov $111,%edi; mov $60,%eax; syscall
        &[0xbf, 0x6f, 0, 0, 0, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05],
    ];
    // Called for each instruction on a path, hardly any of which begins like this.
    let may_be = matches!(code, [0x48, 0x89, 0xc7, ..] | [0x89, 0xc7, ..] | [0xbf, 0x6f, ..]);
    may_be && FORMS.iter().any(|form| code.starts_with(form))
}

/// Whether an address is at the `syscall` instruction of a signal trampoline, which never returns.
pub(super) fn is_in_sigreturn(at: Avma, code: &dyn Code) -> bool {
    let begins_at = |bytes: u64| at.0.checked_sub(bytes).and_then(|begin| code.code(Avma(begin)));
    let is_here = |bytes: u64| begins_at(bytes).is_some_and(is_sigreturn);
    // After mov $15,%rax, or after mov $15,%eax.
    is_here(7) || is_here(5)
}

/// Whether code is a signal trampoline: `rt_sigreturn` (15) with the saved context at the stack pointer.
pub(super) fn is_sigreturn(code: &[u8]) -> bool {
    // glibc: mov $15,%rax; musl: mov $15,%eax
    code.starts_with(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05])
        || code.starts_with(&[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::text::Text;

    const TEXT: u64 = 0x40_1000;

    #[test]
    fn a_fiber_begins_at_its_trampoline_and_returns_after_it() {
        let make: &[u8] = &[
            0x48, 0x89, 0x48, 0x30, // +00 mov %rcx,0x30(%rax)
            0xc3, //                   +04 ret
            0x55, //                   +05 push %rbp
            0xff, 0xe3, //             +06 jmp *%rbx
            0x48, 0x31, 0xff, //       +08 finish: xor %rdi,%rdi
            0xe8, 0x49, 0xfe, 0xff, 0xff, // +0b call _exit
            0xf4, //                   +10 hlt
            0x90,
        ];
        let text = Text::new(TEXT, make.to_vec());
        let at = |offset: u64| Avma(TEXT + offset);
        let first = |not_called| Some(StackBase { not_called, fiber: true });
        assert_eq!(super::at(CodeAddress::Return(at(8)), &text), first(true));
        for pc in [5, 8, 0xb, 0x10] {
            assert_eq!(super::at(CodeAddress::Pc(at(pc)), &text), first(false), "{pc:#x}");
        }
        assert_eq!(super::at(CodeAddress::Return(at(0x10)), &text), first(false));
        assert_eq!(super::at(CodeAddress::Pc(at(4)), &text), None);
        // The return address has been pushed.
        assert_eq!(super::at(CodeAddress::Pc(at(6)), &text), None);
        assert_eq!(super::at(CodeAddress::Return(at(0x11)), &text), None);
        // Another function that leaves through a register.
        let mut other = make.to_vec();
        other[0x10] = 0x90;
        assert_eq!(super::at(CodeAddress::Return(at(8)), &Text::new(TEXT, other)), None);
    }

    #[test]
    fn main_returns_to_the_second_byte_of_start_in_libdyld() {
        let start: &[u8] = &[
            0xe8, 0, 0, 0, 0,    // -05 the end of another function
            0x90, //             +00 nop
            0x89, 0xc7, //       +01 mov %eax,%edi
            0xe8, 0, 0, 0, 0,    // +03 call exit
            0xf4, //             +08 hlt
            0x90,
        ];
        let at = |address, begins: bool, bytes: &[u8]| {
            super::at(address, &Text::new(TEXT - 5, bytes).with_threads(begins))
        };
        let (pc, returned) =
            (|at| CodeAddress::Pc(Avma(TEXT + at)), |at| CodeAddress::Return(Avma(TEXT + at)));
        let first = |not_called| Some(StackBase { not_called, fiber: false });
        assert_eq!(at(returned(1), true, start), first(true));
        assert_eq!(at(returned(8), true, start), first(false), "exit runs");
        for into in [0, 1, 3, 8] {
            assert_eq!(at(pc(into), true, start), first(false), "{into}");
        }
        assert_eq!(at(returned(0), true, start), None, "of the function in front of it");
        assert_eq!(at(returned(9), true, start), None);
        assert_eq!(at(returned(1), false, start), None, "an image in which no thread begins");
        let mut other = start.to_vec();
        other[13] = 0x90;
        assert_eq!(at(returned(1), true, &other), None, "what goes on behind the call");
    }

    #[test]
    fn hostile_addresses_are_no_first_functions() {
        for at in [0, 1, TEXT - 1, TEXT + 1, u64::MAX] {
            let text = Text::new(TEXT, vec![0x64, 0x48, 0x89]);
            for address in [CodeAddress::Pc(Avma(at)), CodeAddress::Return(Avma(at))] {
                assert_eq!(super::at(address, &text), None);
            }
        }
    }
}

#[cfg(test)]
mod callee_stack_tests {
    use super::*;
    use crate::walk::text::Text;

    const TEXT: u64 = 0x40_1000;

    fn callee(code: &[&[u8]], instructions: usize) -> Option<Callee> {
        let text = Text::new(TEXT, code.concat()).described();
        let bytes: usize = code[..instructions].iter().map(|code| code.len()).sum();
        stack_of_callee(CodeAddress::Return(Avma(TEXT + bytes as u64)), &text)
    }

    const PUSH: &[u8] = &[0x55]; //                          push %rbp
    const RECORD: &[u8] = &[0x48, 0x89, 0xe5]; //            mov %rsp,%rbp
    const CALL: &[u8] = &[0x41, 0xff, 0xd2]; //              call *%r10
    const BACK: &[u8] = &[0x48, 0x89, 0xec, 0x5d, 0xc3]; //  mov %rbp,%rsp; pop %rbp; ret

    #[test]
    fn a_function_that_loads_its_stack_pointer_calls_on_another_stack() {
        for load in
            [&[0x48, 0x89, 0xcc][..], &[0x4c, 0x89, 0xdc], &[0x48, 0x8b, 0x62, 0x38], &[0x48, 0x8b, 0xe1]]
        {
            let code = [PUSH, RECORD, load, CALL, BACK];
            assert_eq!(callee(&code, 4), Some(Callee::OnStack), "{load:x?}");
            assert_eq!(callee(&code, 2), None, "not yet");
        }
        // From rbp, and a 32-bit move.
        for load in [&[0x48, 0x89, 0xec][..], &[0x48, 0x8b, 0xe5], &[0x89, 0xcc], &[0x48, 0x83, 0xec, 0x10]] {
            assert_eq!(callee(&[PUSH, RECORD, load, CALL, BACK], 4), None, "{load:x?}");
        }
    }

    #[test]
    fn morestack_sets_the_limit_of_its_segment() {
        let load: &[u8] = &[0x48, 0x89, 0xc4];
        assert_eq!(callee(&[PUSH, RECORD, load, &SETS_SEGMENT, CALL, BACK], 5), Some(Callee::OnSegment));
        assert_eq!(callee(&[PUSH, RECORD, &SETS_SEGMENT, CALL, BACK], 4), None, "it stays where it is");
    }
}

#[cfg(test)]
mod stack_load_tests {
    use super::*;
    use crate::addr::Avma;
    use crate::walk::text::Text;

    #[test]
    fn a_switch_to_another_stack_is_seen_after_the_instruction() {
        let check = |load: &[u8]| {
            let code = [&[0x48, 0x83, 0xec, 0x38][..], load, &[0xe8, 0, 0, 0, 0, 0x90]].concat();
            let code = Text::new(0x1000, code).described();
            let at = |into: u64| loads_stack_pointer_before(CodeAddress::Return(Avma(0x1000 + into)), &code);
            assert!(!at(4), "in front of it");
            at(4 + load.len() as u64 + 5)
        };
        // mov %rax,%rsp; mov %r8,%rsp; mov 8(%rax),%rsp; mov %r12,%rsp
        assert!(check(&[0x48, 0x89, 0xc4]) && check(&[0x4c, 0x89, 0xc4]));
        assert!(check(&[0x48, 0x8b, 0x60, 8]) && check(&[0x49, 0x8b, 0xe4]));
        // mov %rbp,%rsp; mov %rsp,%rbp; mov %rax,8(%rsp); mov %rax,%r12
        assert!(!check(&[0x48, 0x89, 0xec]) && !check(&[0x48, 0x89, 0xe5]));
        assert!(!check(&[0x48, 0x89, 0x44, 0x24, 8]) && !check(&[0x49, 0x89, 0xc4]));
        assert!(!loads_stack_pointer_before(
            CodeAddress::Pc(Avma(0x9000)),
            &Text::new(0x1000, [0x90]).described()
        ));
    }
}

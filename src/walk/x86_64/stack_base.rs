//! The outermost frames of fibers on x86_64, independent of unwind tables: the functions that contexts, fibers and
//! goroutines return to, without having been called. Recognized by their instructions, never by the place where a
//! walk happened to end. Input: an address, code; output: [`StackBase`].

use super::start;
use crate::addr::{Avma, CodeAddress};
use crate::walk::Code;
use crate::walk::runtimes::go::x86_64 as go;

/// Properties of an address in the first function of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StackBase {
    /// A return address without a call: the program put it there when it created the stack.
    pub not_called: bool,
    /// The stack belongs to a fiber: a thread switches to it and back, and its caller is on another stack.
    pub fiber: bool,
}

/// Whether an address is in the first function of a stack.
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
        || start::is_sigreturn(here)
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

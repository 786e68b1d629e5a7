//! Where a stack of its own begins on x86_64, whatever the tables say of it: the functions that
//! contexts, fibers and goroutines return to, which nothing called, and the calls that Go's
//! runtime makes on another goroutine's stack. Known by their instructions, never by where a
//! walk happened to end. Input: an address, code; output: [`First`].

use super::start;
use crate::addr::{Avma, CodeAddress};
use crate::walk::Code;
use crate::walk::intel::length::{self, Instruction};

/// What the first function of a stack is to an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct First {
    /// The address is a return address that no call left: the maker of the stack put it there.
    pub not_called: bool,
    /// The stack is one that a thread goes to and comes back from; its caller is elsewhere.
    pub fiber: bool,
}

/// Whether an address is in the first function of a stack.
pub(super) fn at(address: CodeAddress, code: &dyn Code) -> Option<First> {
    let at = address.at();
    let returned = matches!(address, CodeAddress::Return(_));
    let of =
        |into: u64, returned_at: u64, fiber| First { not_called: returned && into == returned_at, fiber };
    start_of_context(at, code)
        .map(|into| of(into, 0, true))
        .or_else(|| Some(of(into_goexit(at, code)?, 1, false)))
        .or_else(|| Some(of(into_fcontext(at, code)?, FCONTEXT_FINISH, true)))
        .or_else(|| {
            let into = into_start_of_libdyld(at, code)?;
            // Where a call in front of it returns to belongs to another function.
            (!returned || into > 0).then(|| of(into, 1, false))
        })
}

/// Whether an address may be one that first functions or handlers of signals return to, which nothing called, by a glance
/// at it: where it is not, and no call is in front of it, it is no return address.
pub(super) fn may_be_returned_to(at: Avma, code: &dyn Code) -> bool {
    let here = code.glance(at);
    let here = here.bytes();
    let is_behind_nop = || code.glance(Avma(at.0.wrapping_sub(1))).bytes().first() == Some(&0x90);
    here.starts_with(&START_OF_CONTEXT)
        || here.starts_with(&FCONTEXT[FCONTEXT_FINISH as usize..])
        || here.first() == Some(&0xe8) && is_behind_nop()
        || start::is_sigreturn(here)
}

/// How far into a sequence of instructions that begins with `start` and has `bytes` an address is.
fn into(at: Avma, start: &[u8], bytes: u64, code: &dyn Code) -> Option<(u64, Avma)> {
    // The start of the mapping may be nearer.
    let (from, known) = (0..bytes).rev().find_map(|back| {
        let from = Avma(at.0.checked_sub(back)?);
        Some((from, code.code(from)?))
    })?;
    let window = known.get(..known.len().min(bytes as usize - 1 + start.len()))?;
    let found = window.windows(start.len()).position(|bytes| bytes == start)?;
    let begin = from + found as u64;
    at.0.checked_sub(begin.0).filter(|into| *into < bytes).map(|into| (into, begin))
}

/// mov %rbx,%rsp; mov (%rsp),%rdi; test %rdi,%rdi; je; call setcontext
const START_OF_CONTEXT: [u8; 13] =
    [0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24, 0x48, 0x85, 0xff, 0x74, 0x08, 0xe8];

/// How far into `__start_context` an address is. The first function of a `makecontext`
/// stack returns there; nothing called it, although its rows say so.
/// Source: glibc sysdeps/unix/sysv/linux/x86_64/__start_context.S.
fn start_of_context(at: Avma, code: &dyn Code) -> Option<u64> {
    into(at, &START_OF_CONTEXT, 26, code).map(|(into, _)| into)
}

/// push %rbp; jmp *%rbx; finish: xor %rdi,%rdi; call _exit
const FCONTEXT: [u8; 7] = [0x55, 0xff, 0xe3, 0x48, 0x31, 0xff, 0xe8];
/// Where `finish` is behind the trampoline of `make_fcontext`.
const FCONTEXT_FINISH: u64 = 3;

/// How far into the trampoline of a fiber of Boost.Context an address is, or into `finish` behind
/// it, which the trampoline pushes as the return address of the fiber's function.
/// Source: Boost, libs/context/src/asm/make_x86_64_sysv_elf_gas.S.
fn into_fcontext(at: Avma, code: &dyn Code) -> Option<u64> {
    let (into, begin) = into(at, &FCONTEXT, 12, code)?;
    // hlt. Where the return address is pushed and `finish` not yet called, that is the caller.
    let is_fcontext = code.code(begin + 11)?.first() == Some(&0xf4);
    (is_fcontext && into != 1).then_some(into)
}

/// How far into `runtime.goexit` of Go an address is. The first function of a goroutine returns
/// to its second byte; nothing called it. A one-byte nop, a call that does not return, a nop,
/// and what Go fills up with to the next multiple of 16 bytes.
/// Source: Go, src/runtime/asm_amd64.s.
fn into_goexit(at: Avma, code: &dyn Code) -> Option<u64> {
    const BYTES: u64 = 7;
    let start = at.0 & !15;
    let into = (at.0 - start < BYTES).then_some(at.0 - start)?;
    let code = code.code(Avma(start))?.get(..16)?;
    let is_goexit = code.starts_with(&[0x90, 0xe8])
        && code.get(6) == Some(&0x90)
        && code.iter().skip(BYTES as usize).all(|byte| *byte == 0xcc);
    is_goexit.then_some(into)
}

/// How far into `start` of libdyld.dylib an address is. Before macOS 12, dyld leaves the address of
/// its second byte as the return address of `main`, and above it, as the outermost frame record, a
/// null frame pointer and the number of arguments.
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

/// Most bytes of code in front of an address in which the change of goroutines is looked for.
const BEHIND_BYTES: u64 = 96;
/// `sched.sp` in Go's `g`, behind `stack`, `stackguard0`, `stackguard1`, `_panic`, `_defer` and
/// `m` (src/runtime/runtime2.go).
const SCHED_SP: i32 = 0x38;

/// Whether an address is in code of Go's runtime that runs on the stack of another goroutine
/// (mostly `g0`, the thread's own) than its caller, up to where it leaves that again:
/// `mcall`, `systemstack`, `morestack` and `asmcgocall` make that goroutine the current one,
/// load its stack pointer and call. Their rows do not say so.
/// Source: Go, src/runtime/asm_amd64.s.
pub(super) fn on_other_goroutine(address: CodeAddress, code: &dyn Code) -> bool {
    let at = address.at();
    // The start of the mapping may be nearer.
    let behind = (1..=BEHIND_BYTES).rev().find_map(|from| {
        let start = Avma(at.0.checked_sub(from)?);
        Some((start, code.code(start)?.get(..from as usize)?))
    });
    let Some((start, before)) = behind else { return false };
    // mov %register,%fs:...
    let makes_current = |bytes: &[u8]| matches!(bytes, [0x64, 0x48 | 0x4c, 0x89, ..]);
    (0..before.len()).filter(|offset| makes_current(&before[*offset..])).any(|offset| {
        let from = start + offset as u64;
        runs_on_loaded_stack(from, address, code)
    })
}

/// Whether straight code from `from` on loads the stack pointer from a `g` and then calls, and
/// `address` is between that and where the stack pointer is loaded anew.
fn runs_on_loaded_stack(from: Avma, address: CodeAddress, code: &dyn Code) -> bool {
    let target = address.at();
    let (mut at, mut loaded, mut calls, mut reached) = (from, false, 0, false);
    // The register that holds a loaded stack pointer.
    let mut holds = None;
    for _ in 0..BEHIND_BYTES {
        // The call itself is made from there, too.
        reached |= loaded && at == target && (calls == 1 || matches!(address, CodeAddress::Pc(_)));
        if reached && calls == 1 {
            return true;
        }
        if at > target && !reached {
            return false;
        }
        let Some(instruction) = code.code(at).and_then(length::decode::<true>) else { return false };
        at = at + instruction.length as u64;
        match (instruction.map, instruction.opcode) {
            (0, 0xe8) => calls += 1,
            (0, 0xff) if matches!(instruction.operands(), Some((_, 2, _))) => calls += 1,
            (0, 0x70..=0x7f | 0xc2 | 0xc3 | 0xcc | 0xe0..=0xe3 | 0xe9 | 0xeb | 0xf4)
            | (1, 0x0b | 0x80..=0x8f) => return false,
            (0, 0xff) if matches!(instruction.operands(), Some((_, 3..=5, _))) => return false,
            _ => match moved(&instruction) {
                Some((RSP, Source::Sched)) if loaded => return false,
                Some((RSP, Source::Sched)) => loaded = true,
                Some((RSP, Source::Register(from))) if holds == Some(from) && !loaded => loaded = true,
                Some((RSP, _)) => return false,
                Some((to, Source::Sched)) => holds = Some(to),
                Some((to, _)) if holds == Some(to) => holds = None,
                _ => {}
            },
        }
        if !loaded && calls > 0 || calls > 1 {
            return false;
        }
    }
    false
}

/// Number of rsp in instructions.
const RSP: u8 = 4;

/// What `mov` moves into a register.
enum Source {
    /// `sched.sp` of a `g`.
    Sched,
    Register(u8),
    Other,
}

/// Which register `mov` writes, and from where.
fn moved(instruction: &Instruction) -> Option<(u8, Source)> {
    let (mode, register, operand) = instruction.operands()?;
    let register = register | (instruction.rex & 4) << 1;
    let operand = operand | (instruction.rex & 1) << 3;
    let wide = instruction.rex & 8 != 0;
    match (instruction.map, instruction.opcode, mode) {
        (0, 0x89, 3) if wide => Some((operand, Source::Register(register))),
        (0, 0x8b, 3) if wide => Some((register, Source::Register(operand))),
        (0, 0x8b, 1 | 2) if wide && operand & 7 != RSP && instruction.displacement == SCHED_SP => {
            Some((register, Source::Sched))
        }
        (0, 0x8b, 0..=2) => Some((register, Source::Other)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::text::Text;

    const TEXT: u64 = 0x40_1000;

    /// The instructions of `code`, by number, before which a thread is on another goroutine's
    /// stack, and those that a call in front of them returns to it.
    fn on_other(code: &[&[u8]]) -> (Vec<usize>, Vec<usize>) {
        let text = Text(TEXT, code.concat());
        let mut at = Avma(TEXT);
        let (mut stopped, mut returned) = (Vec::new(), Vec::new());
        for (number, instruction) in code.iter().enumerate() {
            if on_other_goroutine(CodeAddress::Pc(at), &text) {
                stopped.push(number);
            }
            if on_other_goroutine(CodeAddress::Return(at), &text) {
                returned.push(number);
            }
            at = at + instruction.len() as u64;
        }
        (stopped, returned)
    }

    #[test]
    fn mcall_calls_on_the_stack_of_g0() {
        let mcall: [&[u8]; 9] = [
            &[0x48, 0x89, 0xf1, 0x49, 0x89, 0xf6],                   // mov %rsi,%r14
            &[0x64, 0x4c, 0x89, 0x34, 0x25, 0xf8, 0xff, 0xff, 0xff], // mov %r14,%fs:-8
            &[0x49, 0x8b, 0x66, 0x38],                               // mov 0x38(%r14),%rsp
            &[0x50],                                                 // push %rax
            &[0x4c, 0x8b, 0x22],                                     // mov (%rdx),%r12
            &[0x41, 0xff, 0xd4],                                     // call *%r12
            &[0x58],                                                 // pop %rax
            &[0xe9, 0, 0, 0, 0],                                     // jmp badmcall2
            &[0xc3],                                                 // ret
        ];
        assert_eq!(on_other(&mcall), (vec![3, 4, 5, 6, 7], vec![6, 7]));
        let mut other = mcall;
        // Not the stack pointer of a g.
        other[2] = &[0x49, 0x8b, 0x66, 0x40];
        assert_eq!(on_other(&other), (vec![], vec![]));
        // No goroutine became the current one.
        other = mcall;
        other[1] = &[0x90];
        assert_eq!(on_other(&other), (vec![], vec![]));
    }

    #[test]
    fn systemstack_comes_back_to_the_stack_of_its_caller() {
        let systemstack: [&[u8]; 11] = [
            &[0x64, 0x48, 0x89, 0x14, 0x25, 0xf8, 0xff, 0xff, 0xff], // mov %rdx,%fs:-8
            &[0x48, 0x8b, 0x5a, 0x38],                               // mov 0x38(%rdx),%rbx
            &[0x48, 0x89, 0xdc],                                     // mov %rbx,%rsp
            &[0x48, 0x8b, 0x3f],                                     // mov (%rdi),%rdi
            &[0xff, 0xd7],                                           // call *%rdi
            &[0x64, 0x48, 0x8b, 0x04, 0x25, 0xf8, 0xff, 0xff, 0xff], // mov %fs:-8,%rax
            &[0x64, 0x48, 0x89, 0x04, 0x25, 0xf8, 0xff, 0xff, 0xff], // mov %rax,%fs:-8
            &[0x48, 0x8b, 0x60, 0x38],                               // mov 0x38(%rax),%rsp
            &[0x48, 0xc7, 0x40, 0x38, 0, 0, 0, 0],                   // movq $0,0x38(%rax)
            &[0xc3],                                                 // ret
            &[0x90],                                                 // the next function
        ];
        // From the load on, and with its stack pointer at the load that ends it.
        assert_eq!(on_other(&systemstack), (vec![3, 4, 5, 6, 7], vec![5, 6, 7]));
        // gogo goes on there without a call.
        let mut gogo = systemstack;
        gogo[4] = &[0xff, 0xe7];
        assert_eq!(on_other(&gogo), (vec![], vec![]));
    }

    #[test]
    fn a_fiber_begins_at_its_trampoline_and_returns_behind_it() {
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
        let text = Text(TEXT, make.to_vec());
        let at = |offset: u64| Avma(TEXT + offset);
        let first = |not_called| Some(First { not_called, fiber: true });
        assert_eq!(super::at(CodeAddress::Return(at(8)), &text), first(true));
        for pc in [5, 8, 0xb, 0x10] {
            assert_eq!(super::at(CodeAddress::Pc(at(pc)), &text), first(false), "{pc:#x}");
        }
        assert_eq!(super::at(CodeAddress::Return(at(0x10)), &text), first(false));
        assert_eq!(super::at(CodeAddress::Pc(at(4)), &text), None);
        // The return address is there.
        assert_eq!(super::at(CodeAddress::Pc(at(6)), &text), None);
        assert_eq!(super::at(CodeAddress::Return(at(0x11)), &text), None);
        // Another function that leaves by a register.
        let mut other = make.to_vec();
        other[0x10] = 0x90;
        assert_eq!(super::at(CodeAddress::Return(at(8)), &Text(TEXT, other)), None);
    }

    /// Code of an image in which threads begin, or not.
    struct Image(Text, bool);
    impl Code for Image {
        fn is_code(&self, at: Avma) -> bool {
            self.0.is_code(at)
        }
        fn code(&self, at: Avma) -> Option<&[u8]> {
            self.0.code(at)
        }
        fn begins_threads(&self, _: Avma) -> Option<bool> {
            Some(self.1)
        }
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
            super::at(address, &Image(Text(TEXT - 5, bytes.to_vec()), begins))
        };
        let (pc, returned) =
            (|at| CodeAddress::Pc(Avma(TEXT + at)), |at| CodeAddress::Return(Avma(TEXT + at)));
        let first = |not_called| Some(First { not_called, fiber: false });
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
            let text = Text(TEXT, vec![0x64, 0x48, 0x89]);
            for address in [CodeAddress::Pc(Avma(at)), CodeAddress::Return(Avma(at))] {
                assert_eq!(super::at(address, &text), None);
                assert!(!on_other_goroutine(address, &text));
            }
        }
    }
}

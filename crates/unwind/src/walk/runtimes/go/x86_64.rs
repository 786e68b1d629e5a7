//! Goroutines of Go on x86_64: their outermost frames, and the runtime's calls on another goroutine's stack.
//! Recognized by their instructions. Input: an address, code; output: the offset in this code, or yes or no.

use crate::addr::{Avma, CodeAddress};
use crate::walk::Code;
use crate::walk::intel::instructions::{self, Instruction};

/// The offset of an address in Go's `runtime.goexit`. Its second byte is the return address of a goroutine's first
/// function, set without a call. The function is a one-byte nop, a noreturn call, a nop, and Go's padding to the
/// next multiple of 16 bytes.
/// Source: Go, src/runtime/asm_amd64.s.
pub(crate) fn into_goexit(at: Avma, code: &dyn Code) -> Option<u64> {
    const BYTES: u64 = 7;
    let start = at.0 & !15;
    let into = (at.0 - start < BYTES).then_some(at.0 - start)?;
    let code = code.code(Avma(start))?.get(..16)?;
    let is_goexit = code.starts_with(&[0x90, 0xe8])
        && code.get(6) == Some(&0x90)
        && code.iter().skip(BYTES as usize).all(|byte| *byte == 0xcc);
    is_goexit.then_some(into)
}

/// Limit on bytes before an address that are searched for the switch of goroutines.
const BEHIND_BYTES: u64 = 96;
/// Offset of `sched.sp` in Go's `g`, after `stack`, `stackguard0`, `stackguard1`, `_panic`, `_defer` and `m`
/// (src/runtime/runtime2.go).
const SCHED_SP: i32 = 0x38;

/// Whether an address is in code of Go's runtime that runs on the stack of another goroutine (mostly `g0`, the
/// thread's own), until it switches back: `mcall`, `systemstack`, `morestack` and `asmcgocall` make that goroutine
/// the current one, load its stack pointer and call. Their rows do not describe this.
/// Source: Go, src/runtime/asm_amd64.s.
pub(crate) fn on_other_goroutine(address: CodeAddress, code: &dyn Code) -> bool {
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

/// Whether straight code from `from` loads the stack pointer from a `g` and then calls, and `address` is between
/// that load and the next one.
fn runs_on_loaded_stack(from: Avma, address: CodeAddress, code: &dyn Code) -> bool {
    let target = address.at();
    let (mut at, mut loaded, mut calls, mut reached) = (from, false, 0, false);
    // The register that holds a loaded stack pointer.
    let mut holds = None;
    for _ in 0..BEHIND_BYTES {
        // The call itself also runs on that stack.
        reached |= loaded && at == target && (calls == 1 || matches!(address, CodeAddress::Pc(_)));
        if reached && calls == 1 {
            return true;
        }
        if at > target && !reached {
            return false;
        }
        let Some(instruction) = code.code(at).and_then(instructions::decode::<true>) else { return false };
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

/// The source of a `mov` to a register.
enum Source {
    /// `sched.sp` of a `g`.
    Sched,
    Register(u8),
    Other,
}

/// The destination register and source of a `mov`.
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

    /// The instructions of `code`, by number, before which a thread is on another goroutine's stack, and those
    /// that are return addresses on it.
    fn on_other(code: &[&[u8]]) -> (Vec<usize>, Vec<usize>) {
        let text = Text::new(TEXT, code.concat());
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
        // No goroutine became current.
        other = mcall;
        other[1] = &[0x90];
        assert_eq!(on_other(&other), (vec![], vec![]));
    }

    #[test]
    fn systemstack_returns_to_the_stack_of_its_caller() {
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
        // gogo jumps there instead of calling.
        let mut gogo = systemstack;
        gogo[4] = &[0xff, 0xe7];
        assert_eq!(on_other(&gogo), (vec![], vec![]));
    }

    #[test]
    fn hostile_addresses_are_of_no_goroutine() {
        for at in [0, 1, TEXT - 1, TEXT + 1, u64::MAX] {
            let text = Text::new(TEXT, vec![0x64, 0x48, 0x89]);
            for address in [CodeAddress::Pc(Avma(at)), CodeAddress::Return(Avma(at))] {
                assert!(!on_other_goroutine(address, &text));
            }
        }
    }
}

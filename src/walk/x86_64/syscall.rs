//! The leaf of a thread in a system call that ends its function: the program counter follows the `syscall`
//! instruction, so it is in the next function or in none. Input: registers, code; output: the address for walking
//! from the leaf. Not for: system calls in the middle of a function, where both lead to the same caller.
//!
//! The instruction stores its end in rcx (Intel SDM volume 2, SYSCALL), and the kernel reports that during the
//! call. A thread that reaches the next function by a call has another value there.

use super::start;
use crate::addr::{Avma, CodeAddress};
use crate::arch::{UNKNOWN_REGISTER, X86_64};
use crate::walk::processor::row;
use crate::walk::{Code, flow};

const SYSCALL: &[u8] = &[0x0f, 0x05];
const RCX: usize = 2;

/// The address for walking from the leaf: the program counter, or the current system call if it ends a function.
#[inline]
pub(super) fn leaf(registers: &X86_64, code: &dyn Code) -> CodeAddress {
    let pc = Avma(registers.rip);
    let rcx = registers.gpr[RCX];
    // rcx of a sleeping thread is unknown.
    if rcx != pc.0 && rcx != UNKNOWN_REGISTER {
        return CodeAddress::Pc(pc);
    }
    CodeAddress::Pc(last_instruction(pc, code).unwrap_or(pc))
}

/// The `syscall` instruction before an address, if it is the last one of its function.
fn last_instruction(pc: Avma, code: &dyn Code) -> Option<Avma> {
    let at = Avma(pc.0.checked_sub(SYSCALL.len() as u64)?);
    let is_syscall = code.glance(at).bytes().starts_with(SYSCALL);
    (is_syscall && ends_function(at, pc, code)).then_some(at)
}

fn ends_function(at: Avma, pc: Avma, code: &dyn Code) -> bool {
    if start::is_in_sigreturn(at, code) {
        return true;
    }
    match flow::function_around(at, code).or_else(|| code.described_function(at)) {
        Some(function) => !function.contains(&pc),
        None => !code.is_code(pc) || row::<X86_64>(code, at).is_some() && row::<X86_64>(code, pc).is_none(),
    }
}

/// The address at which the leaf's code is shown: inside the instruction, one byte before the program counter.
pub(super) fn shown(leaf: CodeAddress, registers: &X86_64) -> CodeAddress {
    match leaf.at().0 == registers.rip {
        true => leaf,
        false => CodeAddress::Return(Avma(registers.rip)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::text::Text;

    const TEXT: u64 = 0x40_1000;

    /// mov $15,%eax; syscall, and the next function; like musl's, without unwind information. Then mov $39,%eax;
    /// syscall; ret.
    const CODE: &[u8] = &[
        0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05, // +00
        0x55, 0xb8, 0x3c, 0, 0, 0, 0x0f, 0x05, // +07
        0xb8, 0x27, 0, 0, 0, 0x0f, 0x05, 0xc3, // +0f
    ];
    fn text() -> Text {
        Text::new(TEXT, CODE).with_functions(&[0, 7, 15])
    }

    fn found(pc: u64, rcx: u64) -> (u64, u64) {
        let mut registers = X86_64 { rip: TEXT + pc, ..X86_64::default() };
        registers.gpr[RCX] = rcx;
        let leaf = leaf(&registers, &text());
        (leaf.at().0 - TEXT, shown(leaf, &registers).lookup().0 - TEXT)
    }

    #[test]
    fn a_system_call_that_ends_a_function_is_not_in_the_next_one() {
        // In rt_sigreturn, and in exit.
        assert_eq!(found(7, TEXT + 7), (5, 6));
        assert_eq!(found(15, TEXT + 15), (13, 14));
        assert_eq!(found(15, UNKNOWN_REGISTER), (13, 14));
        // The first instruction of the next function: reached by a call with another rcx.
        assert_eq!(found(7, 0), (7, 7));
        assert_eq!(found(15, TEXT), (15, 15));
        // Inside a function, and without a system call.
        assert_eq!(found(22, TEXT + 22), (22, 22));
        assert_eq!(found(8, TEXT + 8), (8, 8));
    }

    #[test]
    fn addresses_at_the_ends_of_memory_are_unchanged() {
        for at in [0, 1, TEXT, u64::MAX] {
            let mut registers = X86_64 { rip: at, ..X86_64::default() };
            registers.gpr[RCX] = at;
            assert_eq!(leaf(&registers, &text()), CodeAddress::Pc(Avma(at)));
        }
    }
}

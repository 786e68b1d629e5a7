//! Whether a function has loaded the stack pointer from elsewhere before an address, so that rows relative to it
//! may lead to any word: assembly that switches stacks does not always describe it in its tables (Wine's thread
//! start). Input: an address, code; output: yes or no. A constant that looks like this instruction counts as one.

use crate::addr::CodeAddress;
use crate::walk::Code;

/// Limit on bytes of a function examined.
const BYTES_MAX: u64 = 4096;

/// Whether an instruction before an address, in its function, loads the stack pointer; false if the function's
/// entry is unknown.
pub(super) fn is_in_front(address: CodeAddress, code: &dyn Code) -> bool {
    let Some(function) = code.described_function(address.lookup().at()) else { return false };
    let length = address.at().0.saturating_sub(function.start.0).min(BYTES_MAX);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Avma;
    use crate::walk::text::Text;

    #[test]
    fn a_switch_to_another_stack_is_seen_after_the_instruction() {
        let check = |load: &[u8]| {
            let code = [&[0x48, 0x83, 0xec, 0x38][..], load, &[0xe8, 0, 0, 0, 0, 0x90]].concat();
            let code = Text::new(0x1000, code).described();
            let at = |into: u64| is_in_front(CodeAddress::Return(Avma(0x1000 + into)), &code);
            assert!(!at(4), "in front of it");
            at(4 + load.len() as u64 + 5)
        };
        // mov %rax,%rsp; mov %r8,%rsp; mov 8(%rax),%rsp; mov %r12,%rsp
        assert!(check(&[0x48, 0x89, 0xc4]) && check(&[0x4c, 0x89, 0xc4]));
        assert!(check(&[0x48, 0x8b, 0x60, 8]) && check(&[0x49, 0x8b, 0xe4]));
        // mov %rbp,%rsp; mov %rsp,%rbp; mov %rax,8(%rsp); mov %rax,%r12
        assert!(!check(&[0x48, 0x89, 0xec]) && !check(&[0x48, 0x89, 0xe5]));
        assert!(!check(&[0x48, 0x89, 0x44, 0x24, 8]) && !check(&[0x49, 0x89, 0xc4]));
        assert!(!is_in_front(CodeAddress::Pc(Avma(0x9000)), &Text::new(0x1000, [0x90]).described()));
    }
}

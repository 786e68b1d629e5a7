//! Whether a function has loaded the stack pointer from elsewhere in front of an address, so that rows which count
//! from it may lead to any word: assembly that switches to another stack does not always say so in its tables (Wine's
//! start of a thread). Input: an address, code; output: yes or no. A constant that looks like such an instruction
//! counts as one.

use crate::addr::CodeAddress;
use crate::walk::Code;

/// Most bytes of a function that are examined.
const BYTES_MAX: u64 = 4096;

/// Whether an instruction in front of an address, in its function, loads the stack pointer; no where the entry of that
/// is not known.
pub(super) fn is_in_front(address: CodeAddress, code: &dyn Code) -> bool {
    let Some(function) = code.described_function(address.lookup().at()) else { return false };
    let length = address.at().0.saturating_sub(function.start.0).min(BYTES_MAX);
    let bytes = code.code(function.start).unwrap_or_default();
    let bytes = &bytes[..bytes.len().min(length as usize)];
    bytes.windows(3).any(|instruction| match *instruction {
        // mov %reg,%rsp: of another than rbp, which is how a frame is taken off.
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
    fn a_function_that_goes_to_another_stack_is_seen_behind_the_instruction() {
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

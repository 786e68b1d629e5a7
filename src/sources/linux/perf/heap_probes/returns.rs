//! The instructions by which a function returns, for functions whose return address must stay: a C++ exception does not
//! pass the trampoline of a return probe, and ends the program.
//!
//! Input: the bytes of an ELF file, hostile, and an entry. Output: the stated addresses of all returns that its paths
//! lead to, through jumps to other functions, too; `None` where a path cannot be followed. x86_64 only.

use std::collections::BTreeSet;

use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind};

/// Most instructions on all paths.
const INSTRUCTIONS_MAX: usize = 4096;
/// Most returns: each has a probe.
const RETURNS_MAX: usize = 48;
/// Bytes of the longest instruction.
const INSTRUCTION_BYTES_MAX: usize = 15;

/// Finds the returns of the function at an address. `code`: the bytes of the file at an address, up to as many.
/// `is_probed`: whether the return of the function there is seen by other means.
pub(super) fn find<'a>(
    entry: u64,
    code: impl Fn(u64, usize) -> Option<&'a [u8]>,
    is_probed: impl Fn(u64) -> bool,
) -> Option<BTreeSet<u64>> {
    if cfg!(not(target_arch = "x86_64")) {
        return None;
    }
    let (mut waiting, mut seen, mut returns) = (vec![entry], BTreeSet::new(), BTreeSet::new());
    while let Some(mut at) = waiting.pop() {
        while seen.insert(at) {
            if seen.len() > INSTRUCTIONS_MAX || returns.len() > RETURNS_MAX {
                return None;
            }
            let bytes = code(at, INSTRUCTION_BYTES_MAX)?;
            let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
            let is_direct = instruction.op0_kind() == OpKind::NearBranch64;
            let target = instruction.near_branch64();
            match instruction.mnemonic() {
                Mnemonic::Ret => {
                    returns.insert(at);
                    break;
                }
                // What follows a call that does not return may be anything.
                Mnemonic::INVALID | Mnemonic::Ud2 | Mnemonic::Hlt | Mnemonic::Int3 => break,
                Mnemonic::Jmp if !is_direct => return None,
                Mnemonic::Jmp => {
                    if target != entry && is_probed(target) {
                        break;
                    }
                    at = target;
                    continue;
                }
                Mnemonic::Call => {}
                // Conditional branches.
                _ if is_direct => waiting.push(target),
                _ => {}
            }
            at = instruction.next_ip();
        }
    }
    Some(returns)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    fn returns(code: &[u8]) -> Option<Vec<u64>> {
        let read = |at: u64, len: usize| {
            let rest = code.get(at.checked_sub(0x1000)? as usize..)?;
            rest.get(..len.min(rest.len())).filter(|bytes| !bytes.is_empty())
        };
        let found = find(0x1000, read, |at| at == 0x1020)?;
        Some(found.into_iter().collect())
    }

    #[test]
    fn all_returns_on_its_paths_are_found() {
        // test rdi, rdi; je 0x1009; mov rax, rdi; ret; 0x1009: jmp 0x1010; ...; 0x1010: ret.
        let mut code = vec![0x48, 0x85, 0xff, 0x74, 0x04, 0x48, 0x89, 0xf8, 0xc3, 0xeb, 0x05];
        code.extend([0xcc; 5]);
        code.push(0xc3);
        assert_eq!(returns(&code), Some(vec![0x1008, 0x1010]));
        // A call to what does not return may be its last instruction.
        let call = [0xe8, 0, 0, 0, 0, 0x0f, 0x0b];
        assert_eq!(returns(&call), Some(vec![]));
        // A jump to a function that is probed.
        assert_eq!(returns(&[0xeb, 0x1e]), Some(vec![]));
        // A jump through a register, or beyond the code.
        assert_eq!(returns(&[0xff, 0xe0]), None);
        assert_eq!(returns(&[0xeb, 0x70]), None);
        assert_eq!(returns(&[]), None);
        // It goes round.
        assert_eq!(returns(&[0xeb, 0xfe]), Some(vec![]));
    }

    #[test]
    fn hostile_code_ends_the_search() {
        let mut random = crate::rng::Rng::new(5);
        for _ in 0..2000 {
            let code: Vec<u8> = (0..200).map(|_| random.below(256) as u8).collect();
            assert!(returns(&code).is_none_or(|found| found.len() <= RETURNS_MAX + 1));
        }
        // A slide of no-ops longer than the limit.
        assert_eq!(returns(&[0x90; 5000]), None);
    }
}

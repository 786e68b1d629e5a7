//! Walking on i386: the mirror of `aarch64/`, with what `intel/` shares with x86_64. `unwinder.rs` walks
//! by unwind information and code, `leaf.rs` finds the leaf's caller for walks by frame pointers;
//! `rule.rs` packs what leads from a frame to its caller, `cache.rs` keeps it by address, `frame.rs`
//! makes the step; `start.rs` and `record.rs` know start code and prologues.
//!
//! What differs from x86_64: words of four bytes, no red zone, arguments on the stack (a function may
//! take them off when it returns), and calls of the next instruction, which ask for their own address.
//! There is no search of the stack.

mod cache;
mod frame;
mod leaf;
mod record;
mod rule;
mod start;
mod unwinder;

pub(super) use unwinder::Unwinder;

use super::Code;
use super::flow::state::{Effect, State};
use super::intel::{Intel, call, instructions};
use super::processor::Processor;
use crate::addr::Avma;
use crate::arch::{Arch, X86};
use crate::binary::frame_rule::{RowX86, X86_COLUMNS, X86_RETURN_ADDRESS};

const EBP: usize = X86::EBP;
const ESP: usize = X86::ESP;
/// Bytes of an address.
const POINTER: u64 = Arch::X86.pointer_bytes();

impl Processor<X86_COLUMNS> for X86 {
    type Word = u32;
    const RED_ZONE_BYTES: u64 = Arch::X86.red_zone_bytes();
    const STACK_POINTER: u8 = ESP as u8;
    const FRAME_POINTER: u8 = EBP as u8;
    const LINK: Option<u8> = None;
    const RETURN_COLUMN: usize = X86_RETURN_ADDRESS;
    const SAVED: &'static [u8] = &[3, EBP as u8, 6, 7];

    fn columns(&self, _mask: u64) -> [u64; X86_COLUMNS] {
        let mut all = [0; X86_COLUMNS];
        all[..X86_RETURN_ADDRESS].copy_from_slice(&self.gpr);
        all[X86_RETURN_ADDRESS] = self.eip;
        all
    }

    fn step(at: Avma, bytes: &[u8], state: &mut State) -> Option<(Effect, u64)> {
        instructions::step::<X86, X86_COLUMNS>(at, bytes, state)
    }

    fn returns(address: Avma, code: &dyn Code) -> bool {
        call::returns::<X86, X86_COLUMNS>(address, code)
    }

    fn is_sigreturn(code: &[u8]) -> bool {
        start::context_at(code).is_some()
    }

    fn is_start_code(code: &[u8]) -> bool {
        start::is_start_code(code)
    }

    fn ends_thread(code: &[u8]) -> bool {
        start::ends_thread(code)
    }
}

impl Intel<X86_COLUMNS> for X86 {
    const IS_LONG: bool = false;
    // The numbers in instructions, of which there are eight.
    const DWARF: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7];
    // add $16,%esp; mov %eax,%edi
    const KEEPS_ENTRY: &'static [u8] = &[0x83, 0xc4, 0x10, 0x89, 0xc7];

    fn row(code: &dyn Code, lookup: Avma) -> Option<RowX86> {
        code.row_x86(lookup)
    }
}

const _: () = assert!(ESP < EBP && EBP < X86_RETURN_ADDRESS);

/// Code of tests.
#[cfg(test)]
mod text {
    use super::*;

    /// Code from 0x1000 on.
    pub(super) struct Text(pub(super) &'static [u8]);

    impl Code for Text {
        fn is_code(&self, at: Avma) -> bool {
            self.code(at).is_some()
        }
        fn code(&self, at: Avma) -> Option<&[u8]> {
            self.0.get(usize::try_from(at.0.checked_sub(0x1000)?).ok()?..).filter(|code| !code.is_empty())
        }
    }
}

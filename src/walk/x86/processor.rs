//! The walker's view of i386: registers by DWARF number, and properties of its code.

use super::start;
use crate::addr::Avma;
use crate::arch::{Arch, X86};
use crate::binary::frame_rule::{Column, X86_COLUMNS, X86_RETURN_ADDRESS};
use crate::walk::Code;
use crate::walk::flow::state::{Effect, FlowState};
use crate::walk::intel::{Intel, call, instructions};
use crate::walk::processor::Processor;

pub(super) const EAX: usize = 0;
pub(super) const EBP: usize = X86::EBP;
pub(super) const ESP: usize = X86::ESP;
/// Bytes of an address.
pub(super) const POINTER: u64 = Arch::X86.pointer_bytes();

impl Processor for X86 {
    type Columns = [Column; X86_COLUMNS];
    type Word = u32;
    const RED_ZONE_BYTES: u64 = Arch::X86.red_zone_bytes_max();
    const STACK_POINTER: u8 = ESP as u8;
    const FRAME_POINTER: u8 = EBP as u8;
    const FRAME_RECORD_AT: i64 = 0;
    const LINK: Option<u8> = None;
    const RETURN_COLUMN: usize = X86_RETURN_ADDRESS;
    const SAVED: &'static [u8] = &[3, EBP as u8, 6, 7];

    fn values(&self, _mask: u64) -> [u64; X86_COLUMNS] {
        let mut all = [0; X86_COLUMNS];
        all[..X86_RETURN_ADDRESS].copy_from_slice(&self.gpr);
        all[X86_RETURN_ADDRESS] = self.eip;
        all
    }

    fn step(at: Avma, bytes: &[u8], state: &mut FlowState) -> Option<(Effect, u64)> {
        instructions::step::<X86>(at, bytes, state)
    }

    fn returns(address: Avma, code: &dyn Code) -> bool {
        call::returns::<X86>(address, code)
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

impl Intel for X86 {
    const IS_LONG: bool = false;
    // The register numbers in instructions, of which there are eight.
    const DWARF: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7];
    // add $16,%esp; mov %eax,%edi
    const KEEPS_ENTRY: &'static [u8] = &[0x83, 0xc4, 0x10, 0x89, 0xc7];
}

const _: () = assert!(ESP < EBP && EBP < X86_RETURN_ADDRESS);

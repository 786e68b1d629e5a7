//! Walking on x86_64. `unwinder.rs` walks by unwind information and code, makes the step and scans the stack;
//! `cache.rs` packs rules for callers and stores them by address; `leaf.rs` and `record.rs` find the leaf's caller
//! and frame records for walks by frame pointers; `stack_base.rs` recognizes start code, fibers and code that
//! switches stacks. `intel/` has the code shared with i386: instructions, calls, code without unwind information.
//! This file implements `Processor`.

mod cache;
mod leaf;
mod record;
mod stack_base;
mod unwinder;

use super::Code;
use super::flow::paths::{Effect, FlowState};
use super::intel::{Intel, call, instructions};
use super::processor::{Processor, SignalFrame};
use crate::addr::Avma;
use crate::arch::{Arch, X86_64};
use crate::binary::frame_rule::{COLUMNS, Column, RETURN_ADDRESS};

#[cfg(test)]
pub(super) use self::cache::RuleKind;
#[cfg(test)]
pub(super) use cache::Cache;

pub(super) use cache::Shared;
pub(super) use unwinder::Unwinder;

// ---- The walker's view of x86_64: registers by DWARF number, and properties of its code.

const RBP: usize = X86_64::RBP;
const RSP: usize = X86_64::RSP;

impl Processor for X86_64 {
    type Columns = [Column; COLUMNS];
    type Word = u64;
    const RED_ZONE_BYTES: u64 = Arch::X86_64.red_zone_bytes_max();
    const STACK_POINTER: u8 = RSP as u8;
    const FRAME_POINTER: u8 = RBP as u8;
    const FRAME_RECORD_AT: i64 = 0;
    const LINK: Option<u8> = None;
    const RETURN_COLUMN: usize = RETURN_ADDRESS;
    // arch/x86/include/asm/sigframe.h, `rt_sigframe`: after its first word, which the handler's return popped,
    // `uc_flags`, `uc_link`, `uc_stack`, 256 bytes of `sigcontext`, `uc_sigmask`.
    const SIGNAL_FRAME: Option<SignalFrame> =
        Some(SignalFrame { stack: 16, stack_bytes: 32, blocked: 40 + 256 });
    const SYSTEM_CALL: &'static [u8] = &[0x0f, 0x05];
    const SAVED: &'static [u8] = &[3, RBP as u8, 12, 13, 14, 15];
    // Assembly that aligns its stack pointer keeps the former one in a register of its choice (OpenBLAS).
    const BASES: &'static [&'static [u8]] = &[&[RBP as u8, RSP as u8], &[3, 12, 13, 14, 15]];

    /// Code pointers have no signature here, and a frame pointer keeps Swift's mark until it is used as an
    /// address.
    fn values(&self, _mask: u64) -> [u64; COLUMNS] {
        let mut all = [0; COLUMNS];
        all[..RETURN_ADDRESS].copy_from_slice(&self.gpr);
        all[RETURN_ADDRESS] = self.rip;
        all
    }

    fn step(at: Avma, bytes: &[u8], state: &mut FlowState) -> Option<(Effect, u64)> {
        instructions::step::<X86_64>(at, bytes, state)
    }

    fn returns(address: Avma, code: &dyn Code) -> bool {
        call::returns::<X86_64>(address, code)
    }

    fn is_sigreturn(code: &[u8]) -> bool {
        stack_base::is_sigreturn(code)
    }

    fn is_start_code(code: &[u8]) -> bool {
        stack_base::is_start_code(code)
    }

    fn ends_thread(code: &[u8]) -> bool {
        stack_base::ends_thread(code)
    }
}

impl Intel for X86_64 {
    const IS_LONG: bool = true;
    const DWARF: [u8; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];
    // mov %rax,%r12
    const KEEPS_ENTRY: &'static [u8] = &[0x49, 0x89, 0xc4];
}

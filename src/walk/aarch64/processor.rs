//! The walker's view of aarch64: registers by DWARF number, and properties of its code.

use super::{call, instructions, start};
use crate::addr::Avma;
use crate::arch::{Aarch64, Arch};
use crate::binary::frame_rule::{AARCH64_COLUMNS, AARCH64_PC, Column};
use crate::walk::Code;
use crate::walk::flow::state::{Effect, FlowState};
use crate::walk::processor::{Processor, SignalFrame};

pub(super) const FP: usize = Aarch64::FP;
pub(super) const LR: usize = Aarch64::LR;
pub(super) const SP: usize = 31;

impl Processor for Aarch64 {
    type Columns = [Column; AARCH64_COLUMNS];
    type Word = u64;
    const RED_ZONE_BYTES: u64 = Arch::Aarch64.red_zone_bytes_max();
    const STACK_POINTER: u8 = SP as u8;
    const FRAME_POINTER: u8 = FP as u8;
    // Procedure Call Standard for the Arm 64-bit Architecture, 6.4.6.
    const FRAME_RECORD_AT: i64 = 0;
    const LINK: Option<u8> = Some(LR as u8);
    const RETURN_COLUMN: usize = LR;
    // arch/arm64/kernel/signal.c, `rt_sigframe`: 128 bytes of `siginfo`, `uc_flags`, `uc_link`, `uc_stack`,
    // `uc_sigmask`.
    const SIGNAL_FRAME: Option<SignalFrame> =
        Some(SignalFrame { stack: 128 + 16, stack_bytes: 128 + 32, blocked: 128 + 40 });
    // svc #0
    const SYSTEM_CALL: &'static [u8] = &[0x01, 0x00, 0x00, 0xd4];
    const SAVED: &'static [u8] = &[19, 20, 21, 22, 23, 24, 25, 26, 27, 28, FP as u8, LR as u8];

    fn values(&self, mask: u64) -> [u64; AARCH64_COLUMNS] {
        let mut all = [0; AARCH64_COLUMNS];
        all[..SP].copy_from_slice(&self.x);
        all[FP] &= mask;
        all[LR] &= mask;
        all[SP] = self.sp;
        all[AARCH64_PC] = self.pc & mask;
        all
    }

    fn address_bits(pointer: u64, mask: u64) -> u64 {
        pointer & mask
    }

    fn step(at: Avma, bytes: &[u8], state: &mut FlowState) -> Option<(Effect, u64)> {
        instructions::step(at, bytes, state)
    }

    fn returns(address: Avma, code: &dyn Code) -> bool {
        call::returns(address, code)
    }

    fn is_sigreturn(code: &[u8]) -> bool {
        start::is_sigreturn(code)
    }

    fn is_start_code(code: &[u8]) -> bool {
        start::is_start_code(code)
    }

    fn ends_thread(code: &[u8]) -> bool {
        start::ends_thread(code)
    }
}

const _: () = assert!(FP < LR && LR < SP && SP < AARCH64_PC);

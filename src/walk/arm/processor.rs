//! The walker's view of 32-bit Arm: registers by DWARF number, and properties of its code.

use super::registers::{LR, SP, T32};
use super::{call, instructions, start};
use crate::addr::Avma;
use crate::arch::{Arch, Arm};
use crate::binary::frame_rule::{ARM_COLUMNS, Column};
use crate::walk::Code;
use crate::walk::flow::state::{Effect, FlowState};
use crate::walk::processor::Processor;

impl Processor for Arm {
    type Columns = [Column; ARM_COLUMNS];
    type Word = u32;
    const RED_ZONE_BYTES: u64 = Arch::Arm.red_zone_bytes_max();
    const STACK_POINTER: u8 = SP;
    const FRAME_POINTER: u8 = 11;
    // Differs between compilers: `record.rs` finds each function's layout.
    const FRAME_RECORD_AT: i64 = 0;
    const LINK: Option<u8> = Some(LR);
    const RETURN_COLUMN: usize = LR as usize;
    const SAVED: &'static [u8] = &[4, 5, 6, 7, 8, 9, 10, 11, LR];
    // r7 and r11 are the frame pointers of compilers, r6 is LLVM's base pointer.
    const BASES: &'static [&'static [u8]] = &[&[SP], &[7], &[11], &[6]];
    const JUMPS_KEEP_LINK: bool = false;
    const EVERY_PATH: bool = true;

    fn begin(at: Avma) -> (Avma, FlowState) {
        let mut state = FlowState::new();
        state.mode.t32 = at.0 & T32 != 0;
        (Avma(at.0 & !T32), state)
    }

    fn values(&self, _mask: u64) -> [u64; ARM_COLUMNS] {
        let mut all = self.r;
        all[Arm::PC] &= !T32;
        all
    }

    fn step(at: Avma, bytes: &[u8], state: &mut FlowState) -> Option<(Effect, u64)> {
        instructions::step(at, bytes, state)
    }

    fn returns(address: Avma, code: &dyn Code) -> bool {
        call::before(address, code).is_some()
    }

    fn is_sigreturn(code: &[u8]) -> bool {
        start::sigreturn(code).is_some()
    }

    fn is_start_code(code: &[u8]) -> bool {
        start::is_start_code(code)
    }

    fn ends_thread(code: &[u8]) -> bool {
        start::ends_thread(code)
    }
}

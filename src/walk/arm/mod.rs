//! Walking on 32-bit Arm: A32, T32, and the exceptions of M-profile cores. Like `aarch64/`, file for
//! file where that is possible: `unwinder.rs` is the loop, `cache.rs` finds what leads from an address
//! to its caller, `frame.rs` makes the step; `instructions.rs` executes instructions (`a32.rs`, `t32.rs`
//! and `t32_wide.rs` know the encodings); `call.rs` and `start.rs` know calls and start code, `record.rs`
//! where a function keeps its frame record.
//!
//! What differs: which instruction set an address is of stands in its lowest bit, which is taken off
//! where code is looked up; there is no one frame pointer, and no one layout of frame records; code
//! without unwind tables is usual, so that `entry.rs` searches for where a function begins; exceptions
//! of M-profile cores return to addresses that are none (`exception.rs`); and there is a search of the
//! stack (`scan.rs`).

mod a32;
mod cache;
mod call;
mod entry;
mod exception;
mod frame;
mod instructions;
mod record;
mod scan;
mod start;
mod t32;
mod t32_wide;
mod unwinder;

#[cfg(test)]
mod tests;

pub(super) use unwinder::Unwinder;

use super::Code;
use super::flow::state::{Effect, State};
use super::processor::Processor;
use crate::addr::Avma;
use crate::arch::{Arch, Arm};
use crate::binary::frame_rule::ARM_COLUMNS;

const SP: u8 = Arm::SP as u8;
const LR: u8 = Arm::LR as u8;
const PC: u8 = Arm::PC as u8;
/// The bit of a code address that says that it is of T32.
const T32: u64 = 1;

impl Processor<ARM_COLUMNS> for Arm {
    type Word = u32;
    const RED_ZONE_BYTES: u64 = Arch::Arm.red_zone_bytes();
    const STACK_POINTER: u8 = SP;
    const FRAME_POINTER: u8 = 11;
    const LINK: Option<u8> = Some(LR);
    const RETURN_COLUMN: usize = LR as usize;
    const SAVED: &'static [u8] = &[4, 5, 6, 7, 8, 9, 10, 11, LR];
    // r7 and r11 are the frame pointers of compilers, r6 is LLVM's base pointer.
    const BASES: &'static [&'static [u8]] = &[&[SP], &[7], &[11], &[6]];
    const JUMPS_KEEP_LINK: bool = false;
    const EVERY_WAY: bool = true;

    fn begin(at: Avma) -> (Avma, State) {
        let mut state = State::new();
        state.mode.t32 = at.0 & T32 != 0;
        (Avma(at.0 & !T32), state)
    }

    fn columns(&self, _mask: u64) -> [u64; ARM_COLUMNS] {
        let mut all = self.r;
        all[Arm::PC] &= !T32;
        all
    }

    fn step(at: Avma, bytes: &[u8], state: &mut State) -> Option<(Effect, u64)> {
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

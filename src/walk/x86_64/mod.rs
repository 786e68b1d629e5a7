//! Walking on x86_64. `unwinder.rs` walks by unwind information and code, `leaf.rs` finds the
//! leaf's caller for walks by frame pointers; `rule.rs` packs what leads from a frame to its caller,
//! `cache.rs` keeps it by address, `frame.rs` makes the step; `instructions.rs` executes
//! instructions, of which `length.rs` finds the parts; `call.rs`, `start.rs` and `record.rs` know
//! calls, start code and prologues. What else stands here answers questions that only this
//! processor's code and its programs pose.

mod cache;
mod call;
mod confirm;
mod doubts;
mod first;
mod forward;
mod frame;
mod installing;
mod instructions;
mod last;
mod leaf;
mod length;
mod prologue;
mod record;
mod records;
mod rule;
mod scan;
mod start;
mod switching;
mod unwinder;

pub(super) use unwinder::Unwinder;

use super::Code;
use super::flow::state::{Effect, State};
use super::processor::Processor;
use crate::addr::Avma;
use crate::arch::{Arch, X86_64};
use crate::binary::frame_rule::{COLUMNS, RETURN_ADDRESS};

const RBP: usize = X86_64::RBP;
const RSP: usize = X86_64::RSP;

impl Processor<COLUMNS> for X86_64 {
    type Word = u64;
    const RED_ZONE_BYTES: u64 = Arch::X86_64.red_zone_bytes();
    const STACK_POINTER: u8 = RSP as u8;
    const FRAME_POINTER: u8 = RBP as u8;
    const LINK: Option<u8> = None;
    const RETURN_COLUMN: usize = RETURN_ADDRESS;
    const SAVED: &'static [u8] = &[3, RBP as u8, 12, 13, 14, 15];

    /// Code pointers carry no signature here, and a frame pointer keeps Swift's mark until it is
    /// used as an address.
    fn columns(&self, _mask: u64) -> [u64; COLUMNS] {
        let mut all = [0; COLUMNS];
        all[..RETURN_ADDRESS].copy_from_slice(&self.gpr);
        all[RETURN_ADDRESS] = self.rip;
        all
    }

    fn step(at: Avma, bytes: &[u8], state: &mut State) -> Option<(Effect, u64)> {
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

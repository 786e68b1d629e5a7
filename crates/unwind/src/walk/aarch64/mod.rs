//! Walking on aarch64. This file implements `Processor` and `Unwind` for the engine and recognizes calls
//! (`is_call`); `record.rs` walks by frame pointers and recognizes functions that keep a frame record;
//! `instructions.rs` executes instructions; `start.rs` recognizes start code and threads that have run nothing.
//!
//! Differences: the return address is in the link register until a function saves it, so the row of a leaf may
//! refer to the link register; rows of other frames cannot. Return addresses may carry a signature above the bits
//! of [`Input::address_mask`](super::Input::address_mask), and frame pointers Swift's async mark; both are stripped. The
//! stack is not scanned.

mod instructions;
mod record;
mod start;

use super::engine::{CallerRule, Unwind};
use super::flow::paths::{Effect, FlowState};
use super::frames::{Frame, Method};
use super::input::StepError;
use super::processor::{self, Processor, SignalFrame, row};
use super::runtimes::go::aarch64 as go;
use super::{Code, Input, flow};
use crate::addr::{Avma, CodeAddress};
use crate::arch::{Aarch64, Arch};
use crate::binary::frame_rule::{AARCH64_COLUMNS, AARCH64_PC, AnyRow, Cfa, Column, RowAarch64};

// ---- The methods of aarch64 for the engine: rules by unwind information, start code and instructions. Input:
// addresses, code; output: rows and other rules.

impl Unwind for Aarch64 {
    type Callees = ();
    const REPORTS_UNDESCRIBED: bool = false;
    const RECORD_BESIDE_UNUSUAL: bool = false;

    fn find(address: CodeAddress, code: &dyn Code, (): &mut ()) -> (CallerRule<Aarch64>, bool) {
        let (at, is_return) = (address.at(), address.is_return());
        let is_root = is_return && (go::is_in_goexit(at, code) || start::is_in_start_of_libdyld(at, code));
        // A signal handler returns to the trampoline, which did not call it.
        let returns = is_return
            && (Aarch64::returns(at, code)
                || Aarch64::is_sigreturn(code.code(at).unwrap_or_default())
                || is_root);
        let found = if is_root {
            CallerRule::Root
        } else if is_return && !returns {
            CallerRule::Nothing
        } else if go::on_other_goroutine(address, code) {
            CallerRule::Fiber { not_called: false }
        } else {
            in_code(address, code)
        };
        (found, returns)
    }

    fn is_outermost(row: &RowAarch64) -> bool {
        row.columns[LR] == Column::Undefined && row.columns[AARCH64_PC] == Column::Same
    }

    fn without_record(frame: &Frame<Aarch64>, input: &Input<'_>) -> Result<Option<(u64, u64)>, StepError> {
        let CodeAddress::Pc(pc) = frame.address else { return Ok(None) };
        let (link, record) = (frame.registers[LR], frame.registers[Aarch64::FP]);
        let is_caller = record::link_is_caller(pc, link, record, input);
        Ok(is_caller.then_some((frame.registers[SP], link)))
    }

    /// The record is followed only if the instructions lead nowhere, so the function may not keep one. Even if the
    /// ABI requires records, a function may lack one in an image that describes its other functions; and in a leaf
    /// with unknown instructions (JIT code) the link register may be stale.
    fn is_record_certain(from: &Frame<Aarch64>, next: &Frame<Aarch64>, input: &Input<'_>) -> bool {
        let is_link = next.sp() == from.sp();
        let is_unknown = || matches!(from.address, CodeAddress::Pc(pc) if input.code.code(pc).is_none());
        let may_keep_none = || input.code.describes_frames(from.address.lookup().at());
        input.fp_always && !may_keep_none() && !(is_link && is_unknown())
    }

    fn new_thread_entry(&self, code: &dyn Code) -> Option<Avma> {
        start::entry(self, code)
    }
}

/// The rule at an address by unwind information and instructions.
fn in_code(address: CodeAddress, code: &dyn Code) -> CallerRule<Aarch64> {
    let at = address.at();
    let lookup = address.lookup().at();
    let here = code.code(at).unwrap_or_default();
    // Before the rows: those of the vDSO's trampoline lead to the caller of the interrupted code.
    if Aarch64::is_sigreturn(here) {
        return CallerRule::certain(signal_frame(), Method::Code);
    }
    if let Some(row) = row::<Aarch64>(code, lookup) {
        return CallerRule::certain(row, Method::Cfi);
    }
    let said = match code.body(lookup) {
        Some(said) => match said.row {
            AnyRow::Aarch64(row) if row.signal => {
                return CallerRule::certain(*row, processor::method(said.compact));
            }
            AnyRow::Aarch64(row) => Some((*row, processor::method(said.compact))),
            _ => None,
        },
        None => None,
    };
    if said.is_none() && code.entry(at).is_some_and(|entry| start::is_start(entry, address, code)) {
        return CallerRule::Root;
    }
    if said.is_none() && Aarch64::ends_thread(here) && flow::is_behind_own_call(address, code) {
        return CallerRule::Root;
    }
    match processor::body_row::<Aarch64>(address, said, code) {
        Some((row, method)) => CallerRule::certain(row, method),
        None => CallerRule::Nothing,
    }
}

/// The row of the signal trampoline. The stack pointer is at `struct rt_sigframe`: 128 bytes of siginfo, then the
/// context with the registers at offset 184.
/// Source: Linux arch/arm64/kernel/signal.c and include/uapi/asm/{ucontext,sigcontext}.h.
fn signal_frame() -> RowAarch64 {
    const REGISTERS_AT: i64 = 128 + 184;
    let mut row = RowAarch64::new(Cfa::Register(SP as u8, 0));
    for (number, column) in (0..).zip(&mut row.columns) {
        *column = Column::At(REGISTERS_AT + 8 * number);
    }
    row.signal = true;
    row
}

// ---- The walker's view of aarch64: registers by DWARF number, and properties of its code.

const FP: usize = Aarch64::FP;
const LR: usize = Aarch64::LR;
const SP: usize = 31;

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
        returns(address, code)
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

// ---- Whether an address is a return address of an aarch64 call: decided by the instruction before it.
//
// Encodings: Arm Architecture Reference Manual for A-profile, C6.2, BL, BLR.

/// Whether code before `address` is `bl`, `blr` or an authenticated `blr`.
#[must_use]
fn returns(address: Avma, code: &dyn Code) -> bool {
    let Some(call) = address.0.checked_sub(4).filter(|call| call.is_multiple_of(4)).map(Avma) else {
        return false;
    };
    if !code.is_code(call) {
        return false;
    }
    let word = code.code(call).and_then(|code| code.first_chunk::<4>());
    word.is_none_or(|word| is_call(u32::from_le_bytes(*word)))
}

/// Whether an instruction is `bl`, `blr` or an authenticated `blr`.
pub(crate) fn is_call(word: u32) -> bool {
    // bl; blr; blraa, blrab; blraaz, blrabz
    word >> 26 == 0b10_0101
        || word & 0xffff_fc1f == 0xd63f_0000
        || word & 0xffff_f800 == 0xd73f_0800
        || word & 0xffff_f81f == 0xd63f_081f
}

#[cfg(test)]
mod call_tests {
    use super::super::text::Text;
    use super::*;

    #[test]
    fn aarch64_calls_are_one_word() {
        // bl, blr x8, blraa x8,x9, blraaz x8; br x8, b, ret
        let words =
            &[0x9400_0010, 0xd63f_0100, 0xd73f_0909, 0xd63f_091f, 0xd61f_0100, 0x1400_0010, 0xd65f_03c0];
        let text = Text::of_words(0x1000, words);
        for index in 0..words.len() {
            let after = Avma(0x1000 + 4 * (index as u64 + 1));
            assert_eq!(returns(after, &text), index < 4, "{index}");
            assert!(!returns(after + 2, &text));
        }
        assert!(!returns(Avma(0x1000), &text));
    }
}

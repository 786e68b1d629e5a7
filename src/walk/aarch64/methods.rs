//! The methods of aarch64 for the engine: rules by unwind information, start code and instructions. Input:
//! addresses, code; output: rows and other rules.

use super::{LR, SP, leaf, new_thread, start};
use crate::addr::{Avma, CodeAddress};
use crate::arch::Aarch64;
use crate::binary::frame_rule::{AARCH64_PC, AnyRow, Cfa, Column, RowAarch64};
use crate::walk::bounds::Failure;
use crate::walk::engine::{CallerRule, Unwind};
use crate::walk::frame::Frame;
use crate::walk::frames::Method;
use crate::walk::processor::{Processor, row};
use crate::walk::runtimes::go::aarch64 as go;
use crate::walk::{Code, Input, body, flow};

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
        let found = match () {
            () if is_root => CallerRule::Root,
            () if is_return && !returns => CallerRule::Nothing,
            () if go::on_other_goroutine(address, code) => CallerRule::Fiber { not_called: false },
            () => in_code(address, code),
        };
        (found, returns)
    }

    fn is_outermost(row: &RowAarch64) -> bool {
        row.columns[LR] == Column::Undefined && row.columns[AARCH64_PC] == Column::Same
    }

    fn without_record(frame: &Frame<Aarch64>, input: &Input<'_>) -> Result<Option<(u64, u64)>, Failure> {
        let CodeAddress::Pc(pc) = frame.address else { return Ok(None) };
        let (link, record) = (frame.registers[LR], frame.registers[Aarch64::FP]);
        let is_caller = leaf::link_is_caller(pc, link, record, input);
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
        new_thread::entry(self, code)
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
                return CallerRule::certain(*row, body::method(said.compact));
            }
            AnyRow::Aarch64(row) => Some((*row, body::method(said.compact))),
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
    match body::row::<Aarch64>(address, said, code) {
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

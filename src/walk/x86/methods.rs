//! The methods of i386 for the engine: rules by unwind information, start code and instructions. Input: addresses,
//! code; output: rows and other rules.

use std::ops::Range;

use super::record::unframed_return_slot;
use super::{EAX, ESP, POINTER, start};
use crate::addr::{Avma, CodeAddress};
use crate::arch::X86;
use crate::binary::frame_rule::{Cfa, Column, RowX86, X86_RETURN_ADDRESS};
use crate::walk::bounds::Failure;
use crate::walk::engine::{CallRows, CallerRule, FrameSwitch, Proof, Unwind};
use crate::walk::frame::Frame;
use crate::walk::frames::Method;
use crate::walk::intel::forward::{self, Callees, CodeEnd};
use crate::walk::intel::{call_check, new_thread, prologue, switch_instructions};
use crate::walk::processor::{Processor, row};
use crate::walk::{Code, Input, flow};

impl Unwind for X86 {
    type Callees = Callees;
    const REPORTS_UNDESCRIBED: bool = true;
    const RECORD_BESIDE_UNUSUAL: bool = true;

    fn find(address: CodeAddress, code: &dyn Code, callees: &mut Callees) -> (CallerRule<X86>, bool) {
        find(address, code, callees)
    }

    fn is_outermost(row: &RowX86) -> bool {
        row.columns[X86_RETURN_ADDRESS] == Column::Undefined
    }

    fn switch(address: CodeAddress, row: &RowX86, code: &dyn Code) -> FrameSwitch {
        switch_instructions::at::<X86>(address, row, code)
    }

    /// By the paths to a return, if they are certain, or by all paths from the function's entry. Unwind
    /// information of glibc's assembly is not always right (the CFA after a return in the middle of `memcpy`).
    fn row_by_code(pc: Avma, code: &dyn Code, callees: &mut Callees) -> Option<Box<RowX86>> {
        let since_entry = || {
            let function = code.described_function(pc)?;
            flow::since_entry_on_all_paths::<X86>(function.start, pc, false, code).map(Box::new)
        };
        match forward::follow::<X86>(pc, false, code, callees) {
            Some(CodeEnd::Returns(row, Proof::Certain)) => Some(row),
            _ => since_entry(),
        }
    }

    fn without_record(leaf: &Frame<X86>, input: &Input<'_>) -> Result<Option<(u64, u64)>, Failure> {
        let CodeAddress::Pc(pc) = leaf.address else { return Ok(None) };
        let Some(slot) = unframed_return_slot(pc, leaf.sp(), input.code) else { return Ok(None) };
        Ok(Some((slot.0.wrapping_add(POINTER), leaf.word(slot, input)?)))
    }

    fn is_record_certain(_: &Frame<X86>, _: &Frame<X86>, _: &Input<'_>) -> bool {
        false
    }

    fn is_called(
        proof: Proof,
        from: &Frame<X86>,
        next: &Frame<X86>,
        rows: &mut CallRows<X86>,
        input: &Input<'_>,
    ) -> bool {
        match proof {
            Proof::NeedsCall => call_check::is_called_from(from, next, rows, input),
            _ => call_check::is_caller(from, next, rows, input),
        }
    }

    fn new_thread_entry(&self, code: &dyn Code) -> Option<Avma> {
        new_thread::entry::<X86>(Avma(self.eip), self.gpr[EAX], code)
    }
}

/// The rule at an address, and for a return address whether a call precedes it.
fn find(address: CodeAddress, code: &dyn Code, callees: &mut Callees) -> (CallerRule<X86>, bool) {
    let (at, is_return) = (address.at(), address.is_return());
    let follows_call = is_return && X86::returns(at, code);
    if let Some(into) = start::into_context(at, code) {
        let not_called = is_return && into == 0;
        return (CallerRule::Fiber { not_called }, follows_call || not_called);
    }
    if !is_return && start::is_pc_thunk(at, code) {
        return (CallerRule::certain(bare(), Method::Code), false);
    }
    let here = code.code(at).unwrap_or_default();
    let row = row::<X86>(code, address.lookup().at());
    if let Some(context) = start::context_at(here)
        && row.as_ref().is_none_or(|row| !row.signal)
    {
        return (CallerRule::certain(signal_frame(context), Method::Code), is_return);
    }
    if let Some(row) = row {
        // If nothing was pushed before the call, and the code continues to the end of the thread, this is the
        // thread's first function.
        let below = is_below_stack_pointer(&row);
        if (row == bare() || below) && (follows_call || !is_return) {
            // glibc's assembly pushes without describing it in its rows, or with the wrong sign: string functions,
            // contexts (sysdeps/i386/strchr.S, setcontext.S of glibc 2.36).
            match in_bare_code(address, code, callees) {
                CallerRule::Root if is_return => return (CallerRule::Root, true),
                CallerRule::Row(by_code, method, proof)
                    if by_code.cfa != row.cfa && (below || proof == Proof::Certain) =>
                {
                    return (CallerRule::Row(by_code, method, proof), follows_call);
                }
                _ => {}
            }
        }
        // A handler returns to the vDSO's trampoline, with a row that begins one byte before it for unwinders that
        // look up return addresses minus one (vdso32/sigreturn.S).
        let returns = follows_call || (is_return && row.signal && code.is_code(at));
        return (CallerRule::certain(row, Method::Cfi), returns);
    }
    if is_return && !follows_call {
        return (CallerRule::Nothing, false);
    }
    if code.entry(at).is_some_and(|entry| forward::is_start::<X86>(entry, address, code)) {
        return (CallerRule::Root, follows_call);
    }
    (in_bare_code(address, code, callees), follows_call)
}

/// Whether the return address according to a row is below the stack pointer, where nothing is stored.
fn is_below_stack_pointer(row: &RowX86) -> bool {
    let (Cfa::Register(register, cfa), Column::At(at)) = (&row.cfa, &row.columns[X86_RETURN_ADDRESS]) else {
        return false;
    };
    !row.signal && usize::from(*register) == ESP && cfa.saturating_add(*at) < 0
}

/// The row of a function that has pushed nothing.
fn bare() -> RowX86 {
    let mut row = RowX86::new(Cfa::Register(ESP as u8, POINTER.cast_signed()));
    row.columns[X86_RETURN_ADDRESS] = Column::At(-POINTER.cast_signed());
    row
}

/// The rule by instructions, for code without unwind information.
fn in_bare_code(address: CodeAddress, code: &dyn Code, callees: &mut Callees) -> CallerRule<X86> {
    let (at, is_return) = (address.at(), address.is_return());
    let next_function = is_return && code.code(at).is_some_and(begins_function);
    let leads = match next_function {
        true => None,
        false => forward::follow::<X86>(at, is_return, code, callees),
    };
    let unproved = match leads {
        Some(CodeEnd::Returns(row, Proof::Certain)) => {
            return CallerRule::Row(row, Method::Code, Proof::Certain);
        }
        Some(CodeEnd::ExitsThread) => return CallerRule::Root,
        Some(CodeEnd::Returns(row, _)) => Some(row),
        None => None,
    };
    let since_entry =
        |function: Range<Avma>| flow::since_entry_on_all_paths::<X86>(function.start, at, is_return, code);
    let by_entry = match code.function(address.lookup().at()) {
        Some(function) => since_entry(function),
        None => {
            let row = prologue::row_with::<X86>(unproved, at, is_return, code);
            return row.map_or(CallerRule::Nothing, |(row, proof)| CallerRule::Row(row, Method::Code, proof));
        }
    };
    match (by_entry, unproved) {
        (Some(row), _) => CallerRule::Row(Box::new(row), Method::Code, Proof::Certain),
        (None, Some(row)) => CallerRule::Row(row, Method::Code, Proof::NeedsConfirmation),
        (None, None) => CallerRule::Nothing,
    }
}

/// Whether code after a call is the next function or the padding before it: then the callee does not return.
fn begins_function(code: &[u8]) -> bool {
    // endbr32; push %ebp; lea 0(%esi,%eiz,1),%esi and nops, which pad; int3
    const STARTS: [&[u8]; 8] = [
        &[0xf3, 0x0f, 0x1e, 0xfb],
        &[0x55],
        &[0x8d, 0xb4, 0x26],
        &[0x8d, 0x74, 0x26],
        &[0x66, 0x90],
        &[0x0f, 0x1f],
        &[0x90],
        &[0xcc],
    ];
    STARTS.iter().any(|start| code.starts_with(start))
}

/// The row of a trampoline that restores the registers `context` bytes above the stack pointer. Source: Linux
/// arch/x86/include/uapi/asm/sigcontext.h (`struct sigcontext_32`).
fn signal_frame(context: i64) -> RowX86 {
    // edi esi ebp esp ebx edx ecx eax by DWARF number, from byte 16 on; eip is at 56.
    const SAVED: [usize; 8] = [7, 6, 5, 4, 3, 2, 1, 0];
    let mut row = RowX86::new(Cfa::Register(ESP as u8, 0));
    row.signal = true;
    for (index, column) in SAVED.into_iter().enumerate() {
        row.columns[column] = Column::At(context + 16 + 4 * index as i64);
    }
    row.columns[X86_RETURN_ADDRESS] = Column::At(context + 56);
    row
}

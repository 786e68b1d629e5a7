//! Unwinding on 32-bit Arm, with all registers: from each frame to its caller by the row at its address. Input:
//! registers, copied stack, `Code`; output: [`Frames`] and the [`StackEnd`].
//!
//! `Unwinder` has the loop, `Frame` the step; below are exceptions of M-profile cores (`interrupted`), the layout
//! of frame records (`row`), and the stack scan (`caller`).

use super::cache::{self, Cache, Call, RuleKind, call_before, calls};
use super::{LR, PC, SP, T32};
use crate::addr::{Avma, CodeAddress, LookupAvma};
use crate::arch::{Arm, UNKNOWN_REGISTER};
use crate::binary::frame_rule::{ARM_COLUMNS, Column, RowArm};
use crate::walk::engine::Completeness;
use crate::walk::flow::paths::Effect;
use crate::walk::frames::{Frames, Method, UnwindMethod};
use crate::walk::input::{StepError, is_on_other_stack};
use crate::walk::processor::Processor;
use crate::walk::{Code, Input, OtherStack, StackEnd, WalkResult, arm, flow};

/// The link register at reset, before any call (DDI 0403, B1.4.1).
const AT_RESET: u64 = 0xffff_ffff;

/// State kept between walks; see [`walk::Unwinder`](crate::walk::Unwinder).
#[derive(Clone, Debug, Default)]
pub(crate) struct Unwinder {
    cache: Cache,
    /// The frames of [`Unwinder::confirms`].
    confirmed: Frames,
    /// The frames of a second walk in the other instruction set, if the leaf's is unknown.
    others: Frames,
}

/// The result of a step.
enum Step {
    To(Caller, Method),
    Ends(StackEnd),
}

impl Unwinder {
    pub(crate) fn images_changed(&mut self) {
        self.cache.clear();
    }

    pub(crate) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.cache.forget(is_gone);
    }

    /// Walks from the registers of a stopped thread; see [`unwind_with_other_stack`](crate::walk::unwind_with_other_stack).
    ///
    /// Linux samples have no status register (it is not among the user registers of
    /// arch/arm64/kernel/perf_regs.c), so the instruction set of the leaf is unknown, unless a symbol states it.
    /// Then the stack is followed in both, and is complete only if exactly one of them leads to an end, or if both
    /// lead to one end.
    pub(crate) fn unwind<'a>(
        &mut self,
        unwind_method: UnwindMethod,
        registers: &Arm,
        input: &Input<'a>,
        other: Option<OtherStack<'a>>,
        out: &mut Frames,
    ) -> WalkResult {
        let by_symbol = || input.code.is_t32(Avma(registers.r[usize::from(PC)] & !T32));
        let is_t32 = Frame::status_is_t32(registers).or_else(by_symbol);
        // Most functions are called by code in the same instruction set.
        let of_link = registers.r[usize::from(LR)] & T32 != 0;
        let leaf = Frame::new(registers, is_t32.unwrap_or(of_link));
        let walked = self.unwind_from(unwind_method, &leaf, input, other, out);
        if is_t32.is_some() || input.code.is_interrupted() {
            return walked;
        }
        let mut others = std::mem::take(&mut self.others);
        others.clear();
        let in_other =
            self.unwind_from(unwind_method, &Frame::new(registers, !of_link), input, other, &mut others);
        let chosen = match (walked.ended.is_complete(), in_other.ended.is_complete()) {
            (true, true) if out.addresses != others.addresses => {
                WalkResult { ended: StackEnd::UnverifiedFrameRecord, ..walked }
            }
            (false, true) => {
                std::mem::swap(out, &mut others);
                in_other
            }
            _ => walked,
        };
        self.others = others;
        chosen
    }

    fn unwind_from<'a>(
        &mut self,
        unwind_method: UnwindMethod,
        leaf: &Frame,
        input: &Input<'a>,
        other: Option<OtherStack<'a>>,
        out: &mut Frames,
    ) -> WalkResult {
        let walked = self.walk(unwind_method, leaf, input, other, out);
        // Frame records alone prove nothing: instructions and tables must lead to the same frames.
        let claims = unwind_method == UnwindMethod::FramePointer && walked.ended.is_complete();
        let unproved = claims && !self.confirms(&out.addresses, leaf, input, other);
        WalkResult { ended: if unproved { StackEnd::UnverifiedFrameRecord } else { walked.ended }, ..walked }
    }

    fn confirms<'a>(
        &mut self,
        addresses: &[LookupAvma],
        leaf: &Frame,
        input: &Input<'a>,
        other: Option<OtherStack<'a>>,
    ) -> bool {
        let mut confirmed = std::mem::take(&mut self.confirmed);
        confirmed.clear();
        let walked = self.walk(UnwindMethod::Auto, leaf, input, other, &mut confirmed);
        let same = walked.ended.is_complete() && confirmed.addresses == addresses;
        self.confirmed = confirmed;
        same
    }

    fn walk<'a>(
        &mut self,
        unwind_method: UnwindMethod,
        leaf: &Frame,
        input: &Input<'a>,
        mut other: Option<OtherStack<'a>>,
        out: &mut Frames,
    ) -> WalkResult {
        let mut input = *input;
        let mut frame = *leaf;
        out.push(frame.address, Method::Context);
        let start = frame.sp();
        // The needed size counts from the stack pointer of each stack.
        let (mut base, mut reached) = (start, start);
        let mut completeness = Completeness::default();
        if unwind_method == UnwindMethod::Scan {
            completeness.note_scanned();
        }
        loop {
            let (next, method) = match self.step(unwind_method, &frame, &mut completeness, &input) {
                Step::To(caller, method) => (caller, method),
                Step::Ends(first @ (StackEnd::Root | StackEnd::Fiber)) => {
                    let ended = completeness.at_outermost::<Arm>(first, reached, &input);
                    return WalkResult { ended, reached };
                }
                Step::Ends(ended) => return WalkResult { ended, reached },
            };
            if out.len() >= input.max_depth {
                return WalkResult { ended: StackEnd::DepthLimit, reached };
            }
            // Every bit of EXC_RETURN has a meaning, including the lowest.
            let returns_to = next.raw;
            let (mut next, mut found_by) = (next.frame, method);
            if is_return(returns_to) && next.is_m_profile {
                // The handler is shown in between.
                let number = number(frame.status);
                out.push(CodeAddress::Pc(Avma::exception(number)), Method::Exception);
                if out.len() >= input.max_depth {
                    return WalkResult { ended: StackEnd::DepthLimit, reached };
                }
                match change_stack(&mut next, returns_to, &mut input, &mut other) {
                    Ok(true) => base = next.sp(),
                    Ok(false) => {}
                    Err(ended) => return WalkResult { ended, reached },
                }
                match interrupted(&next, returns_to, &input) {
                    Ok(interrupted) => (next, found_by) = (interrupted, Method::Exception),
                    Err(ended) => return WalkResult { ended, reached },
                }
            }
            if !is_on_other_stack(next.sp(), &input) {
                reached = reached.max(start + next.sp().0.saturating_sub(base.0));
            }
            frame = next;
            out.push(frame.address, found_by);
        }
    }

    /// Whether the instructions at a program counter lead to the same caller.
    fn instructions_agree(&mut self, frame: &Frame, caller: &Caller, input: &Input<'_>) -> bool {
        let RuleKind::Row(index) = self.cache.rule(UnwindMethod::Code, frame, input.code).kind else {
            return false;
        };
        let Some(found) = self.cache.row(index) else { return false };
        let other = frame.by_row(&found.row, input);
        other.is_ok_and(|other| other.raw == caller.raw && other.frame.sp() == caller.frame.sp())
    }

    /// Whether the link register of a leaf was set by a call to an address between the (assumed) entry of its
    /// function and its program counter: then another function starts there, or a subroutine, which may be
    /// running. If the entry is unknown, the paths from the call's target decide. `is_saved`: the row has the
    /// caller on the stack.
    fn is_in_another(
        &mut self,
        frame: &Frame,
        assumes: Option<Avma>,
        is_saved: bool,
        input: &Input<'_>,
    ) -> bool {
        let at = frame.address.at();
        let called = || call_before(Avma(frame.registers[usize::from(LR)]), input.code);
        let Some(cache::Call::To(target)) = (!frame.address.is_return()).then(called).flatten() else {
            return false;
        };
        let start = input.code.function(at).map(|function| function.start);
        let in_front = Avma(target.0 & !T32) <= at;
        match assumes.or(start) {
            Some(start) => in_front && Avma(target.0 & !T32) > Avma(start.0 & !T32),
            None => is_saved && in_front && self.cache.leads_to(target, frame.code_address(), input.code),
        }
    }

    /// The caller of a frame, checked.
    fn step(
        &mut self,
        unwind_method: UnwindMethod,
        frame: &Frame,
        completeness: &mut Completeness,
        input: &Input<'_>,
    ) -> Step {
        let rule = self.cache.rule(unwind_method, frame, input.code);
        let found = match rule.kind {
            RuleKind::Root => return Step::Ends(StackEnd::Root),
            RuleKind::Row(index) => self.cache.row(index),
            RuleKind::Unknown => None,
        };
        let Some(found) = found else {
            let by_scan = match unwind_method {
                UnwindMethod::Auto => caller(frame, true, input),
                UnwindMethod::Scan => caller(frame, false, input),
                _ => None,
            };
            let Some(caller) = by_scan else { return Step::Ends(StackEnd::NoUnwindInfo) };
            completeness.note_scanned();
            return Step::To(caller, Method::Scan);
        };
        let (method, assumes, is_signal) = (found.method, found.assumes, found.row.signal);
        let columns = &found.row.columns;
        let is_saved = matches!(columns[usize::from(LR)], Column::At(_));
        let pc_offset = match (&columns[usize::from(SP)], &columns[usize::from(PC)]) {
            // The stack pointer is the CFA.
            (Column::Same, Column::At(offset)) => Some(*offset),
            _ => None,
        };
        let caller = match frame.by_row(&found.row, input) {
            Ok(caller) => caller,
            Err(StepError::NotACaller) if is_on_other_stack(frame.sp(), input) => {
                return Step::Ends(StackEnd::OtherStack);
            }
            Err(failure) => return Step::Ends(failure.ended()),
        };
        let next = &caller.frame;
        if is_signal {
            let right = next.sp() != frame.sp() && input.code.is_code(next.address.at());
            let saved = pc_offset.and_then(|offset| state_of_interrupt(&caller, offset, input));
            let with_state = match saved {
                Some(is_t32) => Frame { is_t32, ..caller.frame },
                None => with_state_of_signal(&caller, frame, input),
            };
            let caller = Caller { frame: with_state, ..caller };
            return if right { Step::To(caller, method) } else { Step::Ends(StackEnd::BrokenFrameChain) };
        }
        let rises = next.sp() > frame.sp() || !frame.address.is_return() && next.sp() == frame.sp();
        if !rises || !next.sp().0.is_multiple_of(4) {
            return Step::Ends(StackEnd::BrokenFrameChain);
        }
        // Frame records prove nothing, and tables describe function bodies only.
        completeness.note_unproved(method == Method::FramePointer && unwind_method == UnwindMethod::Auto);
        let is_of_bodies = matches!(method, Method::Cfi | Method::Exidx) && !frame.address.is_return();
        completeness.note_unproved(is_of_bodies && !self.instructions_agree(frame, &caller, input));
        completeness.note_unproved(self.is_in_another(frame, assumes, is_saved, input));
        // Start code leaves one of these values in place of a caller.
        if caller.raw == 0 || caller.raw == AT_RESET {
            // If instructions were misread, a null word proves nothing: stacks are full of them.
            let is_doubtful = assumes.is_some() || caller.raw == 0 && method == Method::Code;
            return Step::Ends(if is_doubtful { StackEnd::UnverifiedFrameRecord } else { StackEnd::Root });
        }
        if frame.is_m_profile && is_return(caller.raw) {
            completeness.note_unproved(assumes.is_some());
            return Step::To(caller, method);
        }
        if !self.cache.rule(unwind_method, next, input.code).returns {
            return Step::Ends(if is_made_up(next, input) {
                StackEnd::Fiber
            } else {
                StackEnd::BrokenFrameChain
            });
        }
        completeness.note_unproved(!self.cache.may_have_called(next, frame, input.code));
        if let Some(entry) = assumes {
            // A thread's first function is called through a register; this return address occurs once on its
            // stack.
            let begins_thread = || arm::ends_thread(input.code.code(next.address.at()).unwrap_or_default());
            completeness.note_unproved(!calls(next.code_address(), entry, input.code) && !begins_thread());
        }
        Step::To(caller, method)
    }
}

/// Whether a return address is the first instruction of a function, so no call returns to it: schedulers set it
/// for tasks with noreturn functions (FreeRTOS: `portTASK_RETURN_ADDRESS`).
fn is_made_up(next: &Frame, input: &Input<'_>) -> bool {
    let at = next.address.at();
    input.code.function(at).is_some_and(|function| function.start == at)
}

/// The bit of a status register that is set in T32 code.
const T32_STATE: u64 = 1 << 5;

/// Whether code interrupted on an A-profile core is T32. These cores store the status register above the program
/// counter (`SRS` and `RFE`: DDI 0406, B9.3.16 and B9.3.13). `None` if there is none.
fn state_of_interrupt(caller: &Caller, pc_offset: i64, input: &Input<'_>) -> Option<bool> {
    /// Modes with bit 4 clear belonged to processors with 26-bit addresses.
    const MODE: u64 = 0x1f;
    const MODES: std::ops::RangeInclusive<u64> = 0x10..=0x1f;
    let at = caller.frame.sp().0.wrapping_add_signed(pc_offset).wrapping_add(4);
    // Must be below the interrupted code's stack pointer, where the frame of the interrupt ends.
    let status = caller.frame.inner().word(Avma(at), input).ok().filter(|_| at < caller.frame.sp().0)?;
    MODES.contains(&(status & MODE)).then_some(status & T32_STATE != 0)
}

/// The code interrupted by a signal, in the instruction set of its status register, which follows the program
/// counter in the context.
fn with_state_of_signal(caller: &Caller, frame: &Frame, input: &Input<'_>) -> Frame {
    const STATUS_BYTES: [u64; 2] = [32 + 64, 128 + 32 + 64];
    let is_rt = |bytes: &u64| {
        let pc_at = Avma(frame.registers[usize::from(SP)].wrapping_add(*bytes - 4));
        frame.inner().word(pc_at, input).is_ok_and(|pc| pc == caller.raw)
    };
    let status = STATUS_BYTES.iter().find(|bytes| is_rt(bytes)).and_then(|bytes| {
        frame.inner().word(Avma(frame.registers[usize::from(SP)].wrapping_add(*bytes)), input).ok()
    });
    Frame { is_t32: status.is_some_and(|status| status & T32_STATE != 0), ..caller.frame }
}

const _: () = assert!(LR > SP);

// ---- The step from a frame to its caller by a row, and the state of a 32-bit Arm frame besides its registers. Input:
// a frame, a row; output: the caller's frame, not yet checked.

/// T32 bit of the program status register.
const STATUS_T32: u32 = 1 << 5;

/// A frame: its registers as they are while it is the leaf, or while its callee runs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    /// Without the T32 bit.
    pub address: CodeAddress,
    pub registers: [u64; ARM_COLUMNS],
    pub is_t32: bool,
    /// xPSR of this code, on an M-profile core: the exception that it handles.
    pub status: u32,
    pub is_m_profile: bool,
}

/// The result of a step.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub frame: Frame,
    /// The return address as found, including its lowest bit.
    pub raw: u64,
}

impl Frame {
    /// The leaf's instruction set by the status register, if known.
    pub(super) fn status_is_t32(registers: &Arm) -> Option<bool> {
        let by_status = registers.cpsr.map(|status| status & STATUS_T32 != 0);
        if registers.m_profile { Some(true) } else { by_status }
    }

    /// The leaf, in this instruction set.
    pub(super) fn new(registers: &Arm, is_t32: bool) -> Frame {
        let mut all = registers.r;
        let pc = all[usize::from(PC)] & !T32;
        all[usize::from(PC)] = pc;
        Frame {
            address: CodeAddress::Pc(Avma(pc)),
            registers: all,
            is_t32,
            status: registers.cpsr.filter(|_| registers.m_profile).unwrap_or(0),
            is_m_profile: registers.m_profile,
        }
    }

    pub(super) fn sp(&self) -> Avma {
        Avma(self.registers[usize::from(SP)])
    }

    /// Its address with the T32 bit.
    pub(super) fn code_address(&self) -> Avma {
        Avma(self.address.at().0 | u64::from(self.is_t32))
    }

    /// The frame in the form shared by all processors.
    pub(super) fn inner(&self) -> crate::walk::frames::Frame<Arm> {
        crate::walk::frames::Frame::of(self.address, self.registers)
    }

    /// The caller by a row.
    pub(super) fn by_row(&self, row: &RowArm, input: &Input<'_>) -> Result<Caller, StepError> {
        let mut next = {
            let inner = self.inner();
            inner.by_row(row, inner.cfa(row, input)?, input)?
        };
        for (register, column) in next.registers.iter_mut().zip(&row.columns) {
            if *column == Column::Undefined {
                *register = UNKNOWN_REGISTER;
            }
        }
        if row.signal {
            let pc = next.registers[usize::from(PC)];
            let mut frame = Frame { registers: next.registers, ..*self };
            frame.registers[usize::from(PC)] = pc & !T32;
            frame.address = CodeAddress::Pc(Avma(pc & !T32));
            return Ok(Caller { frame, raw: pc });
        }
        let raw = match (&row.columns[usize::from(LR)], self.address) {
            (Column::Same | Column::Undefined, CodeAddress::Pc(_)) => self.registers[usize::from(LR)],
            // A call has overwritten it.
            (Column::Same | Column::Undefined, CodeAddress::Return(_)) => return Err(StepError::NotACaller),
            _ => next.registers[usize::from(LR)],
        };
        Ok(self.called_from(raw, next.registers))
    }

    /// The caller at a return address, with these registers.
    pub(super) fn called_from(&self, raw: u64, mut registers: [u64; ARM_COLUMNS]) -> Caller {
        let at = raw & !T32;
        registers[usize::from(LR)] = UNKNOWN_REGISTER;
        registers[usize::from(PC)] = at;
        let is_t32 = self.is_m_profile || raw & T32 != 0;
        let frame = Frame { address: CodeAddress::Return(Avma(at)), registers, is_t32, ..*self };
        Caller { frame, raw }
    }
}

// ---- Exceptions of M-profile cores: handlers return to special values (EXC_RETURN), and the interrupted registers
// are on the stack.
//
// Source: Armv7-M Architecture Reference Manual (DDI 0403), B1.5.6 to B1.5.8; Armv8-M (DDI 0553), B3.18.

/// Size of the basic frame: r0 to r3, r12, lr, the return address, xPSR.
const BASIC_BYTES: u64 = 32;
/// Additional size of the extended frame: s0 to s15, FPSCR, and a reserved word.
const VFP_BYTES: u64 = 72;
/// Registers of the basic frame by number, except xPSR.
const BASIC: [usize; 7] = [0, 1, 2, 3, 12, Arm::LR, Arm::PC];
/// Fields of xPSR: exception number, T32 bit, and whether a word was skipped for alignment.
const NUMBER: u32 = 0x1ff;
const IS_T32: u32 = 1 << 24;
const IS_ALIGNED: u32 = 1 << 9;

/// Bits of EXC_RETURN: the interrupted code used the process stack, it was in thread mode, the frame has no
/// floating-point registers, the stacking was the default.
const ON_PROCESS_STACK: u64 = 1 << 2;
const TO_THREAD: u64 = 1 << 3;
const BASIC_FRAME: u64 = 1 << 4;
const USUAL_STACKING: u64 = 1 << 5;
/// On cores with the security extension: the stack is secure (S), and the handler is secure (ES). Both are one on
/// Armv7-M, and zero on Armv8-M without the extension (DDI 0553, D1.2.95).
const SECURE_STACK_SHIFT: u32 = 6;
const SECURE_HANDLER: u64 = 1;

/// Whether a return address is an EXC_RETURN value.
pub(super) fn is_return(address: u64) -> bool {
    // Bit 1 is 0 in all of them; the link register is all ones at reset.
    address >> 32 == 0 && address & 0xffff_ff82 == 0xffff_ff80
}

/// The number of the exception that a frame's code handles, from its status register; 0: none.
pub(super) fn number(status: u32) -> u32 {
    status & NUMBER
}

/// Switches `at_entry` and `input` to the stack of the interrupted code. Returns whether that is the `other` one,
/// which is then consumed: a thread returns to no other stack.
///
/// # Errors
/// [`StackEnd::OtherStack`] if that stack was not copied.
pub(super) fn change_stack<'a>(
    at_entry: &mut Frame,
    address: u64,
    input: &mut Input<'a>,
    other: &mut Option<OtherStack<'a>>,
) -> Result<bool, StackEnd> {
    // Each security state has both stacks.
    if (address >> SECURE_STACK_SHIFT ^ address) & SECURE_HANDLER != 0 {
        return Err(StackEnd::OtherStack);
    }
    if address & ON_PROCESS_STACK == 0 {
        return Ok(false);
    }
    let process = other.take().ok_or(StackEnd::OtherStack)?;
    at_entry.registers[usize::from(SP)] = process.stack.base.0;
    input.stack = process.stack;
    (input.stack_top, input.stack_limit) = (None, process.limit);
    Ok(true)
}

/// The interrupted frame. `at_entry` has the known registers at the handler's entry, with the stack pointer of the
/// interrupted code; `address` is the handler's EXC_RETURN.
///
/// # Errors
/// The words cannot be read, or are no valid frame.
pub(super) fn interrupted(at_entry: &Frame, address: u64, input: &Input<'_>) -> Result<Frame, StackEnd> {
    // Secure code stacked additional registers.
    if address & USUAL_STACKING == 0 {
        return Err(StackEnd::BrokenFrameChain);
    }
    let sp = at_entry.registers[usize::from(SP)];
    let word = |index: u64| {
        let at = Avma(sp.wrapping_add(4 * index));
        at_entry.inner().word(at, input).map_err(StepError::ended)
    };
    let mut next = *at_entry;
    for (index, register) in (0..).zip(BASIC) {
        next.registers[register] = word(index)?;
    }
    let status = word(BASIC.len() as u64)? as u32;
    let mut bytes = BASIC_BYTES;
    if address & BASIC_FRAME == 0 {
        bytes += VFP_BYTES;
    }
    if status & IS_ALIGNED != 0 {
        bytes += 4;
    }
    next.registers[usize::from(SP)] = sp.wrapping_add(bytes);
    let pc = next.registers[usize::from(PC)] & !T32;
    // A thread handles no exception, and the processor faults on other combinations (DDI 0403, B1.5.8). T32 is the
    // only instruction set.
    let is_thread = number(status) == 0;
    if is_thread != (address & TO_THREAD != 0) || status & IS_T32 == 0 || !input.code.is_code(Avma(pc)) {
        return Err(StackEnd::BrokenFrameChain);
    }
    next.registers[usize::from(PC)] = pc;
    next.address = CodeAddress::Pc(Avma(pc));
    next.is_t32 = true;
    next.status = status;
    Ok(next)
}

// ---- The frame record of a function: the target of its frame pointer and the layout there, which differ between
// compilers (APCS: fp, ip, lr, pc below an old stack pointer in ip; gcc: r11 at the saved link register, or r7 at
// the bottom of the frame; LLVM: r11 or r7 at the saved frame pointer). So both are derived from the function's
// first instructions.

/// Limit on instructions of a prologue.
const STEPS_MAX: u32 = 24;
/// Frame pointers, in A32 and in T32.
const FRAME_POINTERS: [u8; 2] = [11, 7];

/// The row in the body of the function at `entry`, relative to the frame pointer that its prologue sets. `None` if
/// its first instructions create no record.
pub(super) fn row(entry: Avma, code: &dyn Code) -> Option<RowArm> {
    let (mut at, mut state) = Arm::begin(entry);
    for _ in 0..STEPS_MAX {
        let (effect, length) = Arm::step(at, code.code(at)?, &mut state)?;
        // An early return may precede the frame setup.
        if !matches!(effect, Effect::Plain | Effect::MayJump(_) | Effect::MayReturn) {
            return None;
        }
        at = at + length;
        for frame_pointer in FRAME_POINTERS {
            let Some(mut row) = flow::row_in_function::<Arm>(&state, &[frame_pointer]) else { continue };
            let is_saved = |register: u8| matches!(row.columns[usize::from(register)], Column::At(_));
            if is_saved(LR) && is_saved(frame_pointer) {
                // Other registers may be saved later.
                for (number, column) in row.columns.iter_mut().enumerate() {
                    let number = number as u8;
                    if !FRAME_POINTERS.contains(&number) && ![SP, LR, PC].contains(&number) {
                        *column = Column::Undefined;
                    }
                }
                return Some(row);
            }
        }
    }
    None
}

// ---- The last resort: a word on the stack that is a return address. Input: the frame where the walk is stuck;
// output: the frame that the word leads to. Stale words look like live ones, so a scanned stack is never
// complete.

/// Distance above the stack pointer that is searched for a return address.
const BYTES_MAX: u64 = 4096;

/// The nearest word above the stack pointer that is a return address. `confirmed`: its call must lead to the
/// function of `stuck`; otherwise it must not be known to lead elsewhere.
pub(super) fn caller(stuck: &Frame, confirmed: bool, input: &Input<'_>) -> Option<Caller> {
    let mut slot = Avma(stuck.sp().0.checked_next_multiple_of(4)?);
    let end = slot.checked_add(BYTES_MAX)?;
    // A leaf may not have saved its link register yet.
    if !stuck.address.is_return() {
        let link = stuck.registers[usize::from(super::LR)];
        if is_caller(link, stuck, true, input.code) {
            return Some(found(stuck, link, stuck.sp()));
        }
    }
    while slot < end {
        let word = stuck.inner().word(slot, input).ok()?;
        slot = slot + 4;
        if is_caller(word, stuck, confirmed, input.code) {
            return Some(found(stuck, word, slot));
        }
    }
    None
}

fn found(stuck: &Frame, raw: u64, sp: Avma) -> Caller {
    let mut registers = [UNKNOWN_REGISTER; 16];
    registers[usize::from(SP)] = sp.0;
    stuck.called_from(raw, registers)
}

/// Whether a word is the return address of a call that leads, or may lead, to the function of `stuck`.
fn is_caller(word: u64, stuck: &Frame, confirmed: bool, code: &dyn Code) -> bool {
    if stuck.is_m_profile && word & T32 == 0 || !code.is_code(Avma((word & !T32).wrapping_sub(1))) {
        return false;
    }
    let function = code.function(stuck.address.lookup().at());
    match (call_before(Avma(word), code), function) {
        (None, _) => false,
        (Some(Call::To(target)), Some(function)) => target.0 & !T32 == function.start.0,
        (Some(_), _) => !confirmed,
    }
}

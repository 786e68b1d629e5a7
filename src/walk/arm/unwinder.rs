//! Unwinding on 32-bit Arm, with all registers: from each frame to its caller by the row at its address. Input:
//! registers, copied stack, `Code`; output: [`Frames`] and the [`StackEnd`].

use super::cache::{Cache, RuleKind, calls};
use super::frame::{Caller, Frame};
use super::{LR, PC, SP, T32, call, exception, scan, start};
use crate::addr::{Avma, CodeAddress, LookupAvma};
use crate::arch::Arm;
use crate::binary::frame_rule::Column;
use crate::walk::bounds::{Failure, is_on_other_stack};
use crate::walk::engine::Completeness;
use crate::walk::frames::{Frames, Method, UnwindMethod};
use crate::walk::{Input, OtherStack, StackEnd, WalkResult};

/// The link register at reset, before any call (DDI 0403, B1.4.1).
const AT_RESET: u64 = 0xffff_ffff;

/// State kept between walks; see [`walk::Unwinder`](crate::walk::Unwinder).
#[derive(Clone, Debug, Default)]
pub(in crate::walk) struct Unwinder {
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
    pub(in crate::walk) fn images_changed(&mut self) {
        self.cache.clear();
    }

    pub(in crate::walk) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.cache.forget(is_gone);
    }

    /// Walks from the registers of a stopped thread; see [`unwind_on_two`](crate::walk::unwind_on_two).
    ///
    /// Linux samples have no status register (it is not among the user registers of
    /// arch/arm64/kernel/perf_regs.c), so the instruction set of the leaf is unknown, unless a symbol states it.
    /// Then the stack is followed in both, and is complete only if exactly one of them leads to an end, or if both
    /// lead to one end.
    pub(in crate::walk) fn unwind<'a>(
        &mut self,
        how: UnwindMethod,
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
        let walked = self.unwind_from(how, &leaf, input, other, out);
        if is_t32.is_some() || input.code.is_interrupted() {
            return walked;
        }
        let mut others = std::mem::take(&mut self.others);
        others.clear();
        let in_other = self.unwind_from(how, &Frame::new(registers, !of_link), input, other, &mut others);
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
        how: UnwindMethod,
        leaf: &Frame,
        input: &Input<'a>,
        other: Option<OtherStack<'a>>,
        out: &mut Frames,
    ) -> WalkResult {
        let walked = self.walk(how, leaf, input, other, out);
        // Frame records alone prove nothing: instructions and tables must lead to the same frames.
        let claims = how == UnwindMethod::FramePointer && walked.ended.is_complete();
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
        how: UnwindMethod,
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
        if how == UnwindMethod::Scan {
            completeness.note_scanned();
        }
        loop {
            let (next, method) = match self.step(how, &frame, &mut completeness, &input) {
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
            if exception::is_return(returns_to) && next.is_m_profile {
                // The handler is shown in between.
                let number = exception::number(frame.status);
                out.push(CodeAddress::Pc(Avma::exception(number)), Method::Exception);
                if out.len() >= input.max_depth {
                    return WalkResult { ended: StackEnd::DepthLimit, reached };
                }
                match exception::change_stack(&mut next, returns_to, &mut input, &mut other) {
                    Ok(true) => base = next.sp(),
                    Ok(false) => {}
                    Err(ended) => return WalkResult { ended, reached },
                }
                match exception::interrupted(&next, returns_to, &input) {
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
        let called = || call::before(Avma(frame.registers[usize::from(LR)]), input.code);
        let Some(call::Call::To(target)) = (!frame.address.is_return()).then(called).flatten() else {
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
        how: UnwindMethod,
        frame: &Frame,
        completeness: &mut Completeness,
        input: &Input<'_>,
    ) -> Step {
        let rule = self.cache.rule(how, frame, input.code);
        let found = match rule.kind {
            RuleKind::Root => return Step::Ends(StackEnd::Root),
            RuleKind::Row(index) => self.cache.row(index),
            RuleKind::Unknown => None,
        };
        let Some(found) = found else {
            let by_scan = match how {
                UnwindMethod::Auto => scan::caller(frame, true, input),
                UnwindMethod::Scan => scan::caller(frame, false, input),
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
            Err(Failure::Refused) if is_on_other_stack(frame.sp(), input) => {
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
        completeness.note_unproved(method == Method::FramePointer && how == UnwindMethod::Auto);
        let is_of_bodies = matches!(method, Method::Cfi | Method::Exidx) && !frame.address.is_return();
        completeness.note_unproved(is_of_bodies && !self.instructions_agree(frame, &caller, input));
        completeness.note_unproved(self.is_in_another(frame, assumes, is_saved, input));
        // Start code leaves one of these values in place of a caller.
        if caller.raw == 0 || caller.raw == AT_RESET {
            // If instructions were misread, a null word proves nothing: stacks are full of them.
            let is_doubtful = assumes.is_some() || caller.raw == 0 && method == Method::Code;
            return Step::Ends(if is_doubtful { StackEnd::UnverifiedFrameRecord } else { StackEnd::Root });
        }
        if frame.is_m_profile && exception::is_return(caller.raw) {
            completeness.note_unproved(assumes.is_some());
            return Step::To(caller, method);
        }
        if !self.cache.rule(how, next, input.code).returns {
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
            let begins_thread = || start::ends_thread(input.code.code(next.address.at()).unwrap_or_default());
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

/// Whether code interrupted on an A-profile core is T32. These cores store the status register above the program
/// counter (`SRS` and `RFE`: DDI 0406, B9.3.16 and B9.3.13). `None` if there is none.
fn state_of_interrupt(caller: &Caller, pc_offset: i64, input: &Input<'_>) -> Option<bool> {
    const T32_STATE: u64 = 1 << 5;
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
    const T32_STATE: u64 = 1 << 5;
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

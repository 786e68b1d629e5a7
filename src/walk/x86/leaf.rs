//! i386: the caller of the leaf frame, for walks by frame pointers. In a leaf function without a frame record, on
//! entry, between the two instructions of the prologue and at `ret` ebp belongs to the caller: following it alone
//! would lose the caller. The rule at the leaf's address decides.

use super::{EBP, ESP};
use crate::addr::{Avma, CodeAddress, LookupAvma};
use crate::arch::X86;
use crate::walk::bounds::Failure;
use crate::walk::engine::{Cache, RuleKind};
use crate::walk::fp::{self, Facts};
use crate::walk::frame::Frame;
use crate::walk::{Input, StackEnd, WalkResult};

/// Walks from the registers of a stopped thread; see [`unwind`](crate::walk::unwind).
pub(super) fn walk(
    registers: &X86,
    input: &Input<'_>,
    cache: &mut Cache<X86>,
    facts: &mut Facts,
    out: &mut Vec<LookupAvma>,
) -> WalkResult {
    let frame = Frame::new(registers, input.address_mask);
    let sp = frame.sp();
    out.push(frame.address.lookup());
    let rule = cache.rule(frame.address, input.code);
    let step = match rule.kind {
        RuleKind::Root | RuleKind::Fiber { .. } => return WalkResult { ended: StackEnd::Root, reached: sp },
        RuleKind::OrdinaryRow(row, _) => frame.ordinary(&row, input),
        RuleKind::Unusual(index) => match cache.unusual(index) {
            // A signal frame is no record, and ebp is still that of the interrupted code.
            Some(unusual) if !unusual.row.signal => frame.caller_by_row(&unusual.row, input),
            _ => Err(Failure::Refused),
        },
        RuleKind::Unknown => frame.by_record(input),
    };
    match step {
        Ok(next) if next.sp() > sp => {
            let CodeAddress::Return(address) = next.address else {
                return from_record(&frame, input, facts, out);
            };
            let Some(lookup) = facts.lookup::<X86>(address, input.code) else {
                return from_record(&frame, input, facts, out);
            };
            if out.len() >= input.max_depth {
                return WalkResult { ended: StackEnd::DepthLimit, reached: sp };
            }
            out.push(lookup);
            let (at, above) = (next.registers[EBP], Avma(next.registers[ESP]));
            fp::follow::<X86>(at, above, Some(address), input, facts, out)
        }
        Err(Failure::OutsideCopy) => WalkResult { ended: StackEnd::DeeperThanCopied, reached: sp },
        _ => from_record(&frame, input, facts, out),
    }
}

/// From the record that ebp points to, if the leaf's own caller is unknown.
fn from_record(
    frame: &Frame<X86>,
    input: &Input<'_>,
    facts: &mut Facts,
    out: &mut Vec<LookupAvma>,
) -> WalkResult {
    fp::follow::<X86>(frame.registers[EBP], frame.sp(), None, input, facts, out)
}

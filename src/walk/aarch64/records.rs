//! aarch64 by frame pointers. A chain of records looks complete without a function that keeps none, so it must not
//! contradict unwind information. Input: registers, copied stack; output: [`Frames`] and the [`StackEnd`].

use super::leaf;
use crate::addr::LookupAvma;
use crate::arch::Aarch64;
use crate::walk::engine::Engine;
use crate::walk::fp::{self, Facts};
use crate::walk::frames::{Frames, UnwindMethod};
use crate::walk::{Input, StackEnd, WalkResult};

impl Engine<Aarch64> {
    /// Walks from the registers of a stopped thread; see [`unwind`](crate::walk::unwind).
    pub(in crate::walk) fn unwind(
        &mut self,
        how: UnwindMethod,
        registers: &Aarch64,
        input: &Input<'_>,
        facts: &mut Facts,
        out: &mut Frames,
    ) -> WalkResult {
        if how != UnwindMethod::FramePointer {
            return self.walk(how, registers, input, out);
        }
        let walked = fp::by_records(out, |out| leaf::walk(registers, input, facts, out));
        let claims = walked.ended == StackEnd::Root;
        let unproved = claims && !self.confirms(&out.addresses, registers, input);
        WalkResult { ended: if unproved { StackEnd::UnverifiedFrameRecord } else { walked.ended }, ..walked }
    }

    /// Whether unwind information does not contradict a walk by frame pointers that found these look-up addresses
    /// and claims to be complete: if there is any, it must lead to the same addresses. A chain of records looks
    /// complete without a function that keeps none. If the ABI requires records, unwind information may end
    /// earlier, but may not lead to another frame: code may violate the ABI (`-fomit-frame-pointer`), and an image
    /// may lack unwind information.
    fn confirms(&mut self, addresses: &[LookupAvma], registers: &Aarch64, input: &Input<'_>) -> bool {
        if !fp::can_be_checked(addresses, input.code) {
            return true;
        }
        let mut confirmed = std::mem::take(&mut self.confirmed);
        confirmed.clear();
        let walked = self.walk(UnwindMethod::Cfi, registers, input, &mut confirmed);
        let same = match walked.ended {
            StackEnd::Root => confirmed.addresses == addresses,
            _ => input.fp_always && addresses.starts_with(&confirmed.addresses),
        };
        self.confirmed = confirmed;
        same
    }
}

#[cfg(test)]
mod tests;

//! i386 by frame pointers. A chain of records is complete only if unwind information leads to the same frames, and
//! then through start code, which keeps no records. Without it, the end of the chain decides. Input: registers,
//! copied stack; output: [`Frames`] and the [`StackEnd`].

use super::leaf;
use crate::arch::X86;
use crate::walk::engine::Engine;
use crate::walk::fp::{self, Facts};
use crate::walk::frames::{Frames, UnwindMethod};
use crate::walk::{Input, StackEnd, WalkResult};

/// Limit on frames of start code, which keeps no records, between the outermost record and a thread's first
/// function: `__libc_start_call_main`, `__libc_start_main` and `_start`; or `start_thread` and `clone`.
const START_FRAMES_MAX: usize = 4;

impl Engine<X86> {
    /// Walks from the registers of a stopped thread; see [`unwind`](crate::walk::unwind).
    pub(in crate::walk) fn unwind(
        &mut self,
        how: UnwindMethod,
        registers: &X86,
        input: &Input<'_>,
        facts: &mut Facts,
        out: &mut Frames,
    ) -> WalkResult {
        match how {
            UnwindMethod::FramePointer => self.by_records(registers, input, facts, out),
            _ => self.walk(how, registers, input, out),
        }
    }

    fn by_records(
        &mut self,
        registers: &X86,
        input: &Input<'_>,
        facts: &mut Facts,
        out: &mut Frames,
    ) -> WalkResult {
        let cache = &mut self.cache;
        let walked = fp::by_records(out, |out| leaf::walk(registers, input, cache, facts, out));
        if walked.ended == StackEnd::Root && !fp::can_be_checked(&out.addresses, input.code) {
            return walked;
        }
        let mut confirmed = std::mem::take(&mut self.confirmed);
        confirmed.clear();
        let proved = self.walk(UnwindMethod::Cfi, registers, input, &mut confirmed);
        let more = confirmed.addresses.strip_prefix(out.addresses.as_slice()).unwrap_or_default();
        let is_whole = proved.ended.is_complete()
            && confirmed.addresses.starts_with(&out.addresses)
            && more.len() <= START_FRAMES_MAX;
        let ended = match walked.ended {
            _ if is_whole => {
                let found = out.len();
                out.addresses.extend_from_slice(more);
                out.methods.extend_from_slice(&confirmed.methods[found..]);
                proved.ended
            }
            StackEnd::Root => StackEnd::UnverifiedFrameRecord,
            other => other,
        };
        self.confirmed = confirmed;
        WalkResult { ended, ..walked }
    }
}

#[cfg(test)]
mod tests;

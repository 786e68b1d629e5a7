//! The last resort: if neither unwind information nor code nor a frame record leads to a caller, a word on the
//! stack that is a return address may be it. Input: the frame where the walk is stuck; output: more frames, or
//! none.
//!
//! Stale words look like live ones. So a word counts only if its call leads to the address where the walk is stuck
//! (`call_check.rs`), and if the walk continues from it to the thread's first function without a second scan; and
//! the stack is still reported separately ([`StackEnd::StackScan`]).

use super::RSP;
use super::frame::Frame;
use super::unwinder::Unwinder;
use crate::addr::{Avma, CodeAddress};
use crate::arch::X86_64;
use crate::binary::frame_rule::RETURN_ADDRESS;
use crate::walk::frames::{Frames, Method, UnwindMethod};
use crate::walk::intel::call_check;
use crate::walk::{Code, Input, StackEnd, WalkResult};

/// Distance above the stack pointer that is searched for a return address.
const BYTES_MAX: u64 = 4096;
/// Limit on return addresses tried.
const TRIES_MAX: u32 = 16;
/// Limit on the size of a JIT function.
const FUNCTION_BYTES_MAX: u64 = 64 << 10;
/// Limit on calls followed to the address where the walk is stuck; none if that rarely succeeds (SBCL's code,
/// which has no tables, would be followed from as many calls at each new program counter).
const FOLLOWED_MAX: u32 = 16;

/// Whether the call before a return address is worth following to `stuck`: JIT functions continue after their
/// entries, and there are many calls on their stacks.
fn may_lead_to(address: CodeAddress, stuck: &Frame, code: &dyn Code) -> bool {
    let at = stuck.address.lookup().at();
    let is_near = |entry: Avma| at.0.checked_sub(entry.0).is_some_and(|bytes| bytes < FUNCTION_BYTES_MAX);
    !code.traits(at).is_jit || call_check::calls::<X86_64>(address, code).is_some_and(is_near)
}

impl Unwinder {
    /// Scans from the stack pointer of `stuck`, the last frame of `out`, upward.
    pub(super) fn reconnect(
        &mut self,
        stuck: &Frame,
        walked: WalkResult,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> WalkResult {
        let found = out.len();
        let slots = stuck.sp().0.checked_next_multiple_of(8).map(Avma);
        let slots = slots.and_then(|first| Some((first, first.checked_add(BYTES_MAX)?)));
        let Some((mut slot, end)) = slots else { return walked };
        let mut tries = 0;
        let follows = !self.cache.searches.is_short();
        let (mut followed, mut is_found) = (0, false);
        let mut is_deeper = false;
        while slot < end && tries < TRIES_MAX && found < input.max_depth {
            let Some(word) = input.stack.word(slot) else { break };
            let below = slot;
            slot = slot + 8;
            let address = Avma(word);
            if !input.code.is_code(CodeAddress::Return(address).lookup().at())
                || !self.cache.is_return(address, input.code)
            {
                continue;
            }
            let mut frame = *stuck;
            frame.address = CodeAddress::Return(address);
            frame.registers[RSP] = below.0 + 8;
            frame.registers[RETURN_ADDRESS] = word;
            let mut is_called = call_check::calls_function_of(frame.address, stuck, input.code);
            if !is_called
                && follows
                && followed < FOLLOWED_MAX
                && may_lead_to(frame.address, stuck, input.code)
            {
                followed += 1;
                is_called = call_check::is_called_from(stuck, &frame, &mut self.cache.by_calls, input);
                is_found |= is_called;
            }
            if !is_called {
                continue;
            }
            tries += 1;
            out.push(frame.address, Method::Scan);
            let further = self.go_on(UnwindMethod::Auto, &mut frame, input, out);
            match further.ended {
                StackEnd::Root | StackEnd::Fiber => {
                    self.note_search(followed, is_found);
                    return WalkResult { ended: StackEnd::StackScan, ..further };
                }
                StackEnd::DeeperThanCopied => is_deeper = true,
                _ => {}
            }
            out.truncate(found);
        }
        self.note_search(followed, is_found);
        // With more bytes the scan may succeed.
        if is_deeper { WalkResult { ended: StackEnd::DeeperThanCopied, ..walked } } else { walked }
    }
}

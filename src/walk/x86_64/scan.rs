//! The last resort: where neither unwind information nor code nor a frame record leads to
//! a caller, a word on the stack that is a return address may be it. Input: the frame that
//! the walk is stuck at; output: more frames, or none.
//!
//! A stale word looks the same as a live one. So what is found counts only if the call that it
//! returns to leads to where the walk is stuck (`call_check.rs`), and if the walk
//! goes on from it, without a second search, to the thread's first function; and the
//! stack is still reported apart from complete ones ([`StackEnd::Scanned`]).

use super::RSP;
use super::frame::Frame;
use super::unwinder::Unwinder;
use crate::addr::{Avma, CodeAddress};
use crate::arch::X86_64;
use crate::binary::frame_rule::RETURN_ADDRESS;
use crate::walk::frames::{Frames, Method, UnwindMethod};
use crate::walk::intel::call_check;
use crate::walk::{Code, Input, StackEnd, Walked};

/// How far above the stack pointer a return address is searched for.
const BYTES_MAX: u64 = 4096;
/// Most return addresses that are tried.
const TRIES_MAX: u32 = 16;
/// Most bytes of a function of JIT code.
const FUNCTION_BYTES_MAX: u64 = 64 << 10;
/// Most calls that are followed to where the walk is stuck; none where that seldom leads there (SBCL's code, which has
/// no tables, is followed from as many calls at each new program counter).
const FOLLOWED_MAX: u32 = 16;

/// Whether the call in front of a return address is worth following to `stuck`: functions that compilers make at run
/// time go on behind their entries, and there are many calls on their stacks.
fn may_lead_to(address: CodeAddress, stuck: &Frame, code: &dyn Code) -> bool {
    let at = stuck.address.lookup().at();
    let is_near = |entry: Avma| at.0.checked_sub(entry.0).is_some_and(|bytes| bytes < FUNCTION_BYTES_MAX);
    !code.traits(at).is_jit || call_check::calls::<X86_64>(address, code).is_some_and(is_near)
}

impl Unwinder {
    /// Searches from the stack pointer of `stuck` up, which is the last frame of `out`.
    pub(super) fn reconnect(
        &mut self,
        stuck: &Frame,
        walked: Walked,
        input: &Input<'_>,
        out: &mut Frames,
    ) -> Walked {
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
                    return Walked { ended: StackEnd::Scanned, ..further };
                }
                StackEnd::DeeperThanCopied => is_deeper = true,
                _ => {}
            }
            out.truncate(found);
        }
        self.note_search(followed, is_found);
        // With more bytes the search may succeed.
        if is_deeper { Walked { ended: StackEnd::DeeperThanCopied, ..walked } } else { walked }
    }
}

//! The heap of a target behind a stub, as events: each allocation and free.
//!
//! Input: a heap traced by breakpoints. Output: allocations with the registers and the stack of the caller,
//! and frees, in order.

use std::sync::Arc;

use super::{GdbHeap, HeapEvent};
use crate::addr::Avma;
use crate::arch::{Aarch64, Arm, Registers, X86, X86_64};
use crate::binary::{Files, ImageBytes, Mapping, OpenError};
use crate::clock::{Clock, RealClock};
use crate::sources::pushed::{
    PushedSource, SampledAllocation, SampledFree, SourceEvent, StackUse, TimedEvent,
};
use crate::sources::{Capture, ExitStatus, Fault, Observed, Process, ThreadId};

/// Longest batch, nanoseconds.
const BATCH_NS: u64 = 50_000_000;
/// Most events of a batch.
const BATCH_EVENTS: usize = 256;

/// The heap of a target behind a stub, as events.
pub struct GdbHeapSource {
    heap: GdbHeap,
    process: Process,
    clock: RealClock,
    last_ns: u64,
    ended: bool,
    finished: bool,
    #[allow(clippy::vec_box, reason = "samples are handed on in their boxes")]
    spare: Vec<Box<Capture>>,
}

impl GdbHeapSource {
    /// Returns the source for a running target.
    #[must_use]
    pub fn new(mut heap: GdbHeap, clock: RealClock) -> GdbHeapSource {
        let why = "breakpoints at the allocator: every block, and the target is stopped for each".to_owned();
        let process = Process { backend_why: why, ..heap.target().process().clone() };
        GdbHeapSource { heap, process, clock, last_ns: 0, ended: false, finished: false, spare: Vec::new() }
    }

    fn push(&mut self, thread: ThreadId, event: SourceEvent, into: &mut Vec<TimedEvent>) {
        let at_ns = self.clock.now_ns().max(self.last_ns + 1);
        self.last_ns = at_ns;
        into.push(TimedEvent { at_ns, process: self.process.pid, thread, event });
    }
}

/// Unwinds a capture at a function's entry to its caller, at the return address.
fn leave(capture: &mut Capture) {
    let word = |bytes: usize| {
        // The copy may begin below the stack pointer.
        let sp = capture.registers.sp().0;
        let from = sp.checked_sub(capture.stack_base.0).and_then(|from| usize::try_from(from).ok());
        let at = from.and_then(|from| capture.stack.get(from..from + bytes));
        at.map_or(0, |word| word.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    };
    capture.registers = match capture.registers {
        Registers::X86_64(mut x86_64) => {
            x86_64.rip = word(8);
            x86_64.gpr[X86_64::RSP] = x86_64.gpr[X86_64::RSP].wrapping_add(8);
            Registers::X86_64(x86_64)
        }
        Registers::X86(mut x86) => {
            x86.eip = word(4);
            x86.gpr[X86::ESP] = x86.gpr[X86::ESP].wrapping_add(4);
            Registers::X86(x86)
        }
        Registers::Aarch64(mut aarch64) => {
            aarch64.pc = aarch64.x[Aarch64::LR];
            Registers::Aarch64(aarch64)
        }
        Registers::Arm(mut arm) => {
            /// T bit of a CPSR (Armv8-A ARM, G1.9); the M profile has only T32.
            const CPSR_T: u32 = 1 << 5;
            let at = arm.r[Arm::LR];
            arm.r[Arm::PC] = at & !1;
            if let (false, Some(cpsr)) = (arm.m_profile, &mut arm.cpsr) {
                *cpsr = if at & 1 == 1 { *cpsr | CPSR_T } else { *cpsr & !CPSR_T };
            }
            Registers::Arm(arm)
        }
    };
}

impl Observed for GdbHeapSource {
    fn process(&self) -> &Process {
        &self.process
    }

    fn files(&mut self) -> Arc<dyn Files> {
        self.heap.target().files()
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        self.heap.target().thread_name(thread)
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.heap.target().mappings(out)
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.heap.target().image_bytes(mapping)
    }

    fn read_memory(&mut self, _from: Avma, _into: &mut [u8]) -> Result<usize, Fault> {
        // All code of firmware is in its file, and each read would stop the target.
        Err(Fault::Transient("memory is not read while a heap is followed"))
    }
}

impl PushedSource for GdbHeapSource {
    fn observed(&mut self, process: u32) -> Option<&mut dyn Observed> {
        (process == self.process.pid).then_some(self.heap.target() as &mut dyn Observed)
    }

    fn next_batch(&mut self, until_ns: u64, into: &mut Vec<TimedEvent>) -> Result<Option<u64>, Fault> {
        if self.finished {
            return Ok(None);
        }
        let end_ns = until_ns.min(self.clock.now_ns().saturating_add(BATCH_NS));
        while !self.ended && into.len() < BATCH_EVENTS {
            let mut capture = self.spare.pop().unwrap_or_else(|| Box::new(Capture::with_capacity(0)));
            match self.heap.next(end_ns, &mut capture) {
                Ok(HeapEvent::Allocated { thread, block, bytes, moved_from }) => {
                    if let Some(pointer) = moved_from {
                        let free = SampledFree { block: pointer, may_be_inherited: false };
                        self.push(thread, SourceEvent::Free(free), into);
                    }
                    leave(&mut capture);
                    let allocation = SampledAllocation { block, bytes, untracked: false };
                    self.push(thread, SourceEvent::Allocation(allocation, capture), into);
                }
                Ok(HeapEvent::Freed { block: pointer }) => {
                    let free = SampledFree { block: pointer, may_be_inherited: false };
                    self.push(ThreadId(0), SourceEvent::Free(free), into);
                }
                Ok(HeapEvent::Timeout) => break,
                // A board closes the connection when its program ends.
                Err(Fault::Gone | Fault::Lost(_)) => {
                    self.push(ThreadId(0), SourceEvent::Exited(ExitStatus::Unknown), into);
                    self.finished = true;
                    return Ok(None);
                }
                Err(fault) => return Err(fault),
            }
        }
        self.finished = self.ended;
        Ok((!self.finished).then(|| self.last_ns + 1))
    }

    fn set_time(&mut self, _at_ns: u64) {}

    fn end(&mut self) {
        self.ended = true;
    }

    fn walked(&mut self, _thread: ThreadId, capture: Box<Capture>, _needed: StackUse) {
        if self.spare.len() < BATCH_EVENTS {
            self.spare.push(capture);
        }
    }

    fn allocation_rate(&self) -> Option<u64> {
        Some(1)
    }
}

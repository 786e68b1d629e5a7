//! Allocations and frees behind a stub: breakpoints at allocator functions and at their return addresses.
//!
//! Input: a stopped or running target behind a stub in all-stop mode, a board or an emulator. Output: each
//! block with the registers and the stack of the call that allocated it, and each freed block; nothing is
//! sampled. The target is stopped twice per allocation and once per free. Dropping it clears the breakpoints
//! and resumes the target. If the connection ends otherwise, a stub may keep them: QEMU's does.

mod allocator;
mod breakpoints;
mod source;

use std::collections::VecDeque;
use std::time::Duration;

use allocator::AllocatorFunction;
pub use allocator::AllocatorNames;
use breakpoints::{Breakpoints, CodePlace};
pub use source::GdbHeapSource;

use super::connection_error::ConnectionError;
use super::memory::Range;
use super::run::STOP;
use super::stop_reply::Tid;
use super::target::GdbTarget;
use super::waits::System;
use crate::arch::{Aarch64, Arm, Registers};
use crate::error::{Error, ErrorKind, Result};
use crate::sources::allocator::AllocatorRole;
use crate::sources::{Capture, Fault, StopOutcome, ThreadId};

/// Most allocator calls that have not returned.
const CALLS_MAX: usize = 1024;

/// An event of the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeapEvent {
    /// A block was allocated; the capture is that of the call.
    Allocated {
        /// The calling thread.
        thread: ThreadId,
        /// Address of the block.
        block: u64,
        /// Requested bytes.
        bytes: u64,
        /// The former block, if the call moved it: that one is free.
        moved_from: Option<u64>,
    },
    /// A block was freed.
    Freed {
        /// Address of the block.
        block: u64,
    },
    /// No event until the deadline.
    Timeout,
}

/// An allocator call that has not returned.
struct Call {
    thread: ThreadId,
    /// The stack pointer at its entry, and after its return.
    sp: u64,
    returned_sp: u64,
    return_at: u64,
    bytes: u64,
    moved_from: Option<u64>,
    capture: Capture,
}

/// The heap of a target behind a stub.
pub struct GdbHeap {
    target: GdbTarget,
    /// Addresses and roles of the allocator functions.
    functions: Vec<(u64, AllocatorRole)>,
    breakpoints: Breakpoints,
    calls: Vec<Call>,
    events: VecDeque<(HeapEvent, Option<Capture>)>,
    stack_bytes: usize,
    stood_ns: u64,
}

impl GdbHeap {
    /// Sets breakpoints in the allocator of the program that `--exec` names. Copies `stack_bytes` of each
    /// stack.
    ///
    /// # Errors
    /// [`ErrorKind::Attach`]: no allocator was found, or the stub sets no breakpoints.
    pub fn new(target: GdbTarget, names: &AllocatorNames, stack_bytes: usize) -> Result<GdbHeap> {
        let failed = |why: String| Error::new(ErrorKind::Attach, format!("cannot follow the heap: {why}"));
        if target.system != System::Bare || target.stub.run.non_stop {
            let why = "the stub serves a process; follow it with --pid, without a stub".to_owned();
            return Err(failed(why));
        }
        let Some((exec, bias)) = target.images.exec() else {
            return Err(failed(
                "which program it runs is not known; name its file with --exec FILE".to_owned(),
            ));
        };
        let functions = allocator::find(exec, names).map_err(failed)?;
        let arch = target.process.arch;
        let place = |function: &AllocatorFunction| CodePlace::of(arch, function.entry.0.wrapping_add(bias));
        let places: Vec<(CodePlace, AllocatorRole)> =
            functions.iter().map(|function| (place(function), function.role)).collect();
        let mut heap = GdbHeap {
            target,
            functions: places.iter().map(|(place, role)| (place.at, *role)).collect(),
            breakpoints: Breakpoints::default(),
            calls: Vec::new(),
            events: VecDeque::new(),
            stack_bytes,
            stood_ns: 0,
        };
        let set = heap.target.asking(|target| {
            places.iter().try_for_each(|(place, _)| heap.breakpoints.set(&mut target.stub, *place))?;
            // A target stopped since its start has missed no block.
            target.stub.go()
        });
        set.map_err(|fault| failed(fault.to_string()))?;
        Ok(heap)
    }

    /// The target, for its images and names.
    pub fn target(&mut self) -> &mut GdbTarget {
        &mut self.target
    }

    /// Total time that the target was stopped, nanoseconds.
    #[must_use]
    pub fn stood_ns(&self) -> u64 {
        self.stood_ns
    }

    /// Waits for the next event until `until_ns` of the target's clock; for [`HeapEvent::Allocated`] the
    /// call's registers and stack are in `capture`.
    ///
    /// # Errors
    /// [`Fault::Gone`], [`Fault::Lost`].
    fn next(&mut self, until_ns: u64, capture: &mut Capture) -> std::result::Result<HeapEvent, Fault> {
        loop {
            if let Some((event, captured)) = self.events.pop_front() {
                if let Some(captured) = captured {
                    *capture = captured;
                }
                return Ok(event);
            }
            let left_ns = until_ns.saturating_sub(self.target.clock.now_ns());
            if left_ns == 0 {
                return Ok(HeapEvent::Timeout);
            }
            self.target.check_link()?;
            let taken = self.take_stop(Duration::from_nanos(left_ns));
            taken.map_err(|broken| self.target.lose(&broken))?;
            if self.target.stub.run.ended {
                return Err(Fault::Gone);
            }
        }
    }

    /// Waits for a stop, records its heap event, and resumes the target.
    fn take_stop(&mut self, at_most: Duration) -> std::result::Result<(), ConnectionError> {
        let Some(stopped) = self.target.stub.await_stop(at_most)? else { return Ok(()) };
        let begun_ns = self.target.clock.now_ns();
        self.target.stub.within(STOP, "a breakpoint");
        self.target.update_threads(begun_ns)?;
        let tid = stopped.or_else(|| self.target.stub.run.threads.first().copied());
        if let Some(tid) = tid
            && let Some(registers) = self.registers(tid)?
        {
            let at = registers.pc().0 & self.target.process.address_mask;
            if self.breakpoints.is_at(at) {
                let thread = self.target.current_thread(tid);
                self.take_breakpoint(thread, &registers, at)?;
                self.breakpoints.step_over(&mut self.target.stub, tid, at)?;
            }
        }
        self.target.stub.go()?;
        self.target.stub.without_limit();
        self.stood_ns += self.target.clock.now_ns().saturating_sub(begun_ns);
        Ok(())
    }

    fn registers(&mut self, tid: Tid) -> std::result::Result<Option<Registers>, ConnectionError> {
        let known = self.target.stub.registers(&[tid], &self.target.layout)?.pop().flatten();
        Ok(known.map(|known| known.registers))
    }

    fn take_breakpoint(
        &mut self,
        thread: ThreadId,
        registers: &Registers,
        at: u64,
    ) -> std::result::Result<(), ConnectionError> {
        let sp = registers.sp().0;
        if let Some(index) = self.calls.iter().position(|call| (call.return_at, call.returned_sp) == (at, sp))
        {
            let call = self.calls.swap_remove(index);
            self.breakpoints.release(&mut self.target.stub, at)?;
            self.take_result(call, allocator::result(registers));
        }
        match self.functions.iter().find(|(entry, _)| *entry == at) {
            Some((_, role)) => self.take_call(thread, *role, registers),
            None => Ok(()),
        }
    }

    fn take_result(&mut self, call: Call, block: u64) {
        let Call { thread, bytes, moved_from, capture, .. } = call;
        if block != 0 {
            let event = HeapEvent::Allocated { thread, block, bytes, moved_from };
            self.events.push_back((event, Some(capture)));
        } else if let (Some(block), 0) = (moved_from, bytes) {
            self.events.push_back((HeapEvent::Freed { block }, None));
        }
    }

    fn take_call(
        &mut self,
        thread: ThreadId,
        role: AllocatorRole,
        registers: &Registers,
    ) -> std::result::Result<(), ConnectionError> {
        let sp = registers.sp().0;
        self.forget_left(thread, sp)?;
        // An allocator function called by another one belongs to the same call.
        if self.calls.iter().any(|call| call.thread == thread) || self.calls.len() == CALLS_MAX {
            return Ok(());
        }
        let (bytes, moved_from) = match role {
            AllocatorRole::Free { block } => {
                let block = self.argument(registers, block)?;
                if block != 0 {
                    self.events.push_back((HeapEvent::Freed { block }, None));
                }
                return Ok(());
            }
            AllocatorRole::Allocate { bytes } => (self.argument(registers, bytes)?, None),
            AllocatorRole::AllocateItems { count, bytes } => {
                let (count, bytes) = (self.argument(registers, count)?, self.argument(registers, bytes)?);
                (count.saturating_mul(bytes), None)
            }
            AllocatorRole::Reallocate { block, bytes } => {
                let (block, bytes) = (self.argument(registers, block)?, self.argument(registers, bytes)?);
                (bytes, Some(block).filter(|block| *block != 0))
            }
        };
        let arch = self.target.process.arch;
        let (return_address, returned_sp) = match registers {
            Registers::Arm(arm) => (arm.r[Arm::LR], sp),
            Registers::Aarch64(aarch64) => (aarch64.x[Aarch64::LR] & self.target.process.address_mask, sp),
            Registers::X86(_) => (self.word(sp, 4)?, sp.wrapping_add(4)),
            Registers::X86_64(_) => (self.word(sp, 8)?, sp.wrapping_add(8)),
        };
        let place = CodePlace::of(arch, return_address);
        let (outcome, capture) = self.target.capture_stopped(thread, self.stack_bytes)?;
        if outcome != StopOutcome::Captured {
            return Ok(());
        }
        self.breakpoints.set(&mut self.target.stub, place)?;
        self.calls.push(Call { thread, sp, returned_sp, return_at: place.at, bytes, moved_from, capture });
        Ok(())
    }

    /// Drops calls of a thread that were left without a return, as by `longjmp`: the stack pointer is above
    /// them.
    fn forget_left(&mut self, thread: ThreadId, sp: u64) -> std::result::Result<(), ConnectionError> {
        while let Some(index) = self.calls.iter().position(|call| call.thread == thread && call.sp < sp) {
            let call = self.calls.swap_remove(index);
            self.breakpoints.release(&mut self.target.stub, call.return_at)?;
        }
        Ok(())
    }

    fn argument(
        &mut self,
        registers: &Registers,
        number: usize,
    ) -> std::result::Result<u64, ConnectionError> {
        match allocator::stack_offset(registers, number) {
            Some(offset) => self.word(registers.sp().0.wrapping_add(offset), 4),
            None => Ok(allocator::argument(registers, number).unwrap_or(0)),
        }
    }

    /// A word of memory; 0 if unreadable.
    fn word(&mut self, at: u64, bytes: usize) -> std::result::Result<u64, ConnectionError> {
        let read = self.target.stub.read_ranges(&[Range { at, bytes }])?.pop().unwrap_or_default();
        Ok(read.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }
}

impl Drop for GdbHeap {
    fn drop(&mut self) {
        if self.target.check_link().is_err() || self.target.stub.run.ended {
            return;
        }
        self.target.stub.within(STOP, "clearing its breakpoints");
        if let Ok(true) = self.target.stub.stop() {
            self.breakpoints.clear(&mut self.target.stub);
        }
        self.target.stub.without_limit();
    }
}

//! Allocations and frees behind a stub: breakpoints at allocator functions and at their return addresses.
//!
//! `GdbHeap` traces the target, `AllocatorNames` finds its allocator, `Breakpoints` sets and clears,
//! `GdbHeapSource` is what the sampler calls.
//!
//! Input: a stopped or running target behind a stub in all-stop mode, a board or an emulator. Output: each
//! block with the registers and the stack of the call that allocated it, and each freed block; nothing is
//! sampled. The target is stopped twice per allocation and once per free. Dropping it clears the breakpoints
//! and resumes the target. If the connection ends otherwise, a stub may keep them: QEMU's does.

use std::collections::VecDeque;
use std::time::Duration;

use super::memory::Range;
use super::run::{STOP, StopReply, Tid, unexpected};
use super::session::{ANSWER, Stub};
use super::target::GdbTarget;
use super::threads::System;
use super::transport::ConnectionError;
use crate::addr::{Avma, Svma};
use crate::arch::{Aarch64, Arch, Arm, Registers};
use crate::binary::elf::functions;
use crate::clock::{Clock, RealClock};
use crate::error::{self, Error, ErrorKind};
use crate::sources::pushed::{
    PushedSource, SampledAllocation, SampledFree, SourceEvent, StackUse, TimedEvent,
};
use crate::sources::signals::Hold;
use crate::sources::{AllocatorRole, Capture, ExitStatus, Fault, Observed, Process, StopOutcome, ThreadId};

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
    pub fn new(target: GdbTarget, names: &AllocatorNames, stack_bytes: usize) -> error::Result<GdbHeap> {
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
        let functions = find(exec, names).map_err(failed)?;
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
            self.take_result(call, result(registers));
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
        match stack_offset(registers, number) {
            Some(offset) => self.word(registers.sp().0.wrapping_add(offset), 4),
            None => Ok(argument(registers, number).unwrap_or(0)),
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

// ---- The allocator functions of a program: their entries, their roles, and how calls pass their arguments.
//
// Sources of facts: newlib's `reent.h` (`_malloc_r` and others take the thread's structure first), FreeRTOS's
// `portable.h` (`pvPortMalloc`, `vPortFree`); calls by AAPCS32 6.1, AAPCS64 6.8 and the System V ABI 3.2.3.

/// An allocator function of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AllocatorFunction {
    /// Its entry as the file states it; on 32-bit Arm the last bit marks T32.
    entry: Svma,
    role: AllocatorRole,
}

/// Functions with well-known names.
const KNOWN: [(&str, AllocatorRole); 12] = [
    ("malloc", AllocatorRole::Allocate { bytes: 0 }),
    ("calloc", AllocatorRole::AllocateItems { count: 0, bytes: 1 }),
    ("realloc", AllocatorRole::Reallocate { block: 0, bytes: 1 }),
    ("free", AllocatorRole::Free { block: 0 }),
    ("_malloc_r", AllocatorRole::Allocate { bytes: 1 }),
    ("_calloc_r", AllocatorRole::AllocateItems { count: 1, bytes: 2 }),
    ("_realloc_r", AllocatorRole::Reallocate { block: 1, bytes: 2 }),
    ("_free_r", AllocatorRole::Free { block: 1 }),
    ("pvPortMalloc", AllocatorRole::Allocate { bytes: 0 }),
    ("pvPortCalloc", AllocatorRole::AllocateItems { count: 0, bytes: 1 }),
    ("pvPortRealloc", AllocatorRole::Reallocate { block: 0, bytes: 1 }),
    ("vPortFree", AllocatorRole::Free { block: 0 }),
];

/// Names of a custom allocator's functions, from options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocatorNames {
    /// Functions that return a block of the size in their first argument.
    pub allocate: Vec<String>,
    /// Functions that free the block in their first argument.
    pub free: Vec<String>,
}

/// Finds the allocator functions of a program: the named ones, otherwise the well-known ones.
///
/// # Errors
/// One line: the program lacks a name, or has no function that allocates or none that frees.
fn find(file: &[u8], names: &AllocatorNames) -> Result<Vec<AllocatorFunction>, String> {
    let named = names.allocate.iter().map(|name| (name.as_str(), AllocatorRole::Allocate { bytes: 0 }));
    let named = named.chain(names.free.iter().map(|name| (name.as_str(), AllocatorRole::Free { block: 0 })));
    let named: Vec<(&str, AllocatorRole)> = named.collect();
    let is_known = named.is_empty();
    let wanted = if is_known { KNOWN.to_vec() } else { named };
    let entries = functions::find_entries(file, &wanted.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    let mut functions: Vec<AllocatorFunction> = Vec::new();
    for ((name, role), entry) in wanted.into_iter().zip(entries) {
        match entry {
            // Of several names for one function, the first counts.
            Some(entry) if functions.iter().all(|known| known.entry != entry.svma) => {
                functions.push(AllocatorFunction { entry: entry.svma, role });
            }
            Some(_) => {}
            None if is_known => {}
            None => return Err(format!("it has no function `{name}`; check the name with nm")),
        }
    }
    let frees = |function: &AllocatorFunction| matches!(function.role, AllocatorRole::Free { .. });
    let next = "name its functions with --alloc NAME and --free NAME";
    if !functions.iter().any(|function| !frees(function)) {
        return Err(format!("no allocator was found in it; {next}"));
    }
    if !functions.iter().any(frees) {
        return Err(format!("no function was found in it that frees blocks; {next}"));
    }
    Ok(functions)
}

/// Offset in bytes from the stack pointer at the function's entry to an argument; `None` if it is in a
/// register.
fn stack_offset(registers: &Registers, argument: usize) -> Option<u64> {
    match registers {
        Registers::X86(_) => Some(4 * (argument as u64 + 1)),
        _ => None,
    }
}

/// An argument that is in a register at the function's entry. Allocator functions have at most four.
fn argument(registers: &Registers, number: usize) -> Option<u64> {
    /// rdi, rsi, rdx and rcx by DWARF number.
    const X86_64_ARGUMENTS: [usize; 4] = [5, 4, 1, 2];
    match registers {
        Registers::X86_64(x86_64) => Some(x86_64.gpr[*X86_64_ARGUMENTS.get(number)?]),
        Registers::Aarch64(aarch64) => aarch64.x.get(number).copied(),
        Registers::Arm(arm) => arm.r.get(number).copied(),
        Registers::X86(_) => None,
    }
}

/// Return value of a function that has just returned.
fn result(registers: &Registers) -> u64 {
    match registers {
        Registers::X86_64(x86_64) => x86_64.gpr[0],
        Registers::X86(x86) => x86.gpr[0],
        Registers::Aarch64(aarch64) => aarch64.x[0],
        Registers::Arm(arm) => arm.r[0],
    }
}

// ---- Breakpoints at functions and at their return addresses: set, stepped over, and cleared.
//
// Packets: "Debugging with GDB", E.2 (`Z1` is a hardware breakpoint, `Z0` one in memory; `vCont;s` a step).
// Hardware breakpoints are tried first: they write no memory, and the code of boards is in flash.

/// Most breakpoints at a time: calls that have not returned, in as many threads.
const BREAKPOINTS_MAX: usize = 4096;

/// A code address as breakpoint packets encode it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CodePlace {
    /// Address of the instruction.
    at: u64,
    /// The protocol's "kind": bytes of the instruction, or of the breakpoint that replaces it.
    kind: u8,
}

impl CodePlace {
    /// The place of an entry or a return address. On 32-bit Arm the last bit marks T32.
    fn of(arch: Arch, address: u64) -> CodePlace {
        match arch {
            Arch::Arm if address & 1 == 1 => CodePlace { at: address & !1, kind: 2 },
            Arch::Arm | Arch::Aarch64 => CodePlace { at: address, kind: 4 },
            Arch::X86 | Arch::X86_64 => CodePlace { at: address, kind: 1 },
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Breakpoint {
    place: CodePlace,
    /// `0` or `1`: the type of the packet that set it.
    packet: char,
    /// Number of users.
    users: u32,
}

/// The breakpoints set in a target.
#[derive(Debug, Default)]
struct Breakpoints(Vec<Breakpoint>);

impl Breakpoints {
    /// Whether a breakpoint is set at an address.
    fn is_at(&self, at: u64) -> bool {
        self.0.iter().any(|breakpoint| breakpoint.place.at == at)
    }

    /// Sets a breakpoint, or shares an existing one. The target is stopped.
    ///
    /// # Errors
    /// The stub has none left, or cannot be reached.
    fn set(&mut self, stub: &mut Stub, place: CodePlace) -> Result<(), ConnectionError> {
        if let Some(known) = self.0.iter_mut().find(|breakpoint| breakpoint.place.at == place.at) {
            known.users += 1;
            return Ok(());
        }
        if self.0.len() == BREAKPOINTS_MAX {
            return Err(ConnectionError::Nonsense(format!(
                "calls that never return, {BREAKPOINTS_MAX} of them"
            )));
        }
        let mut refused = Vec::new();
        for packet in ['1', '0'] {
            refused = stub.call(format!("Z{packet},{:x},{}", place.at, place.kind).as_bytes())?;
            if refused == b"OK" {
                self.0.push(Breakpoint { place, packet, users: 1 });
                return Ok(());
            }
        }
        Err(unexpected("Z0", &refused))
    }

    /// Drops one user; clears the breakpoint after the last one. The target is stopped.
    ///
    /// # Errors
    /// The stub cannot be reached.
    fn release(&mut self, stub: &mut Stub, at: u64) -> Result<(), ConnectionError> {
        let Some(index) = self.0.iter().position(|breakpoint| breakpoint.place.at == at) else {
            return Ok(());
        };
        self.0[index].users -= 1;
        if self.0[index].users == 0 {
            let breakpoint = self.0.swap_remove(index);
            order(stub, 'z', breakpoint)?;
        }
        Ok(())
    }

    /// Steps a thread over the breakpoint that it is stopped at, if any. The target is stopped.
    ///
    /// # Errors
    /// The stub cannot be reached, or the step does not end.
    fn step_over(&mut self, stub: &mut Stub, tid: Tid, at: u64) -> Result<(), ConnectionError> {
        let Some(breakpoint) = self.0.iter().find(|breakpoint| breakpoint.place.at == at).copied() else {
            return Ok(());
        };
        order(stub, 'z', breakpoint)?;
        let stepped = stub.step(tid);
        if !stub.run.ended {
            order(stub, 'Z', breakpoint)?;
        }
        stepped
    }

    /// Clears all breakpoints, ignoring errors. The target is stopped.
    fn clear(&mut self, stub: &mut Stub) {
        for breakpoint in self.0.drain(..) {
            let _ = order(stub, 'z', breakpoint);
        }
    }
}

fn order(stub: &mut Stub, letter: char, breakpoint: Breakpoint) -> Result<(), ConnectionError> {
    let Breakpoint { place, packet, .. } = breakpoint;
    let question = format!("{letter}{packet},{:x},{}", place.at, place.kind);
    let answer = stub.call(question.as_bytes())?;
    if answer == b"OK" { Ok(()) } else { Err(unexpected(&question[..2], &answer)) }
}

impl Stub {
    /// Waits up to `at_most` for the running target to stop by itself; returns the thread if the stub reports
    /// it. `None`: it still runs. All-stop mode only.
    ///
    /// # Errors
    /// The stub cannot be reached.
    fn await_stop(&mut self, at_most: Duration) -> Result<Option<Option<Tid>>, ConnectionError> {
        if !self.link.wait(at_most)? {
            return Ok(None);
        }
        let reply = self.answer(b"vCont;c", ANSWER)?;
        let thread = match StopReply::parse(&reply) {
            Some(StopReply::Stopped { thread, .. }) => thread,
            _ => None,
        };
        self.stopped_all(&reply)?;
        if self.run.running {
            return Ok(None);
        }
        self.run.hold.get_or_insert_with(Hold::of_stopped_target);
        Ok(Some(thread))
    }

    /// Runs one instruction of a thread; the others stay stopped.
    fn step(&mut self, tid: Tid) -> Result<(), ConnectionError> {
        let question = match (self.offers.continues, self.run.has_one_thread) {
            (true, false) => format!("vCont;s:{tid}"),
            (true, true) => "vCont;s".to_owned(),
            (false, _) => "s".to_owned(),
        };
        self.run.running = true;
        self.link.send_order(question.as_bytes())?;
        while self.run.running {
            let reply = self.answer(b"vCont;s", STOP)?;
            self.stopped_all(&reply)?;
        }
        Ok(())
    }
}

// ---- The heap of a target behind a stub, as events: each allocation and free.

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

impl Observed for GdbHeapSource {
    fn process(&self) -> &Process {
        &self.process
    }

    fn inner(&mut self) -> Option<&mut dyn Observed> {
        Some(self.heap.target())
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
                    capture.registers = capture.after_return();
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

#[cfg(test)]
mod allocator_tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::arch::{Arm, X86_64};

    #[test]
    fn arguments_are_found_by_calling_convention() {
        let mut gpr = [0; 16];
        (gpr[5], gpr[4], gpr[0]) = (24, 3, 0x5000);
        let x86_64 = Registers::X86_64(X86_64 { gpr, rip: 0, fs_base: 0 });
        assert_eq!(
            (argument(&x86_64, 0), argument(&x86_64, 1), result(&x86_64)),
            (Some(24), Some(3), 0x5000)
        );
        let mut arm = Arm::default();
        (arm.r[0], arm.r[1]) = (7, 8);
        let arm = Registers::Arm(arm);
        assert_eq!((argument(&arm, 0), argument(&arm, 1), result(&arm)), (Some(7), Some(8), 7));
        assert_eq!(argument(&Registers::X86(Default::default()), 0), None);
        assert_eq!(stack_offset(&Registers::X86(Default::default()), 1), Some(8));
    }

    #[test]
    fn a_program_without_an_allocator_gets_the_next_step() {
        let refused = |names: &AllocatorNames| find(b"\x7fELF", names).unwrap_err();
        assert!(refused(&AllocatorNames::default()).ends_with("--alloc NAME and --free NAME"));
        let names = AllocatorNames { allocate: vec!["take".to_owned()], free: Vec::new() };
        assert!(refused(&names).contains("no function `take`"));
    }
}

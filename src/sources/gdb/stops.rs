//! Stops of the whole target to copy registers and stacks of its threads, in the fewest round trips: the stop
//! itself, all registers, all stacks. `Stops` has the requests and their outcomes. Waiting threads are recognized
//! by their program counter (`threads.rs`), which no stub reports before a stop.

use std::collections::VecDeque;

use hashbrown::HashMap;

use super::description::ThreadRegisters;
use super::memory::Range;
use super::run::{STOP, Tid};
use super::target::GdbTarget;
use super::threads::{self, AROUND_BYTES, ThreadState};
use super::transport::ConnectionError;
use crate::addr::Avma;
use crate::arch::Registers;
use crate::sources::{Activity, Capture, OtherStack, StopOutcome, TargetEvent, ThreadId, ThreadStatus};

/// Most code addresses with a known answer to whether threads wait there.
const PLACES_MAX: usize = 4096;
/// A stack that ends further above the stack pointer is a different one.
const STACK_BYTES_MAX: u64 = 64 << 20;
/// Least interval of reading the mappings, if only a stop shows them, nanoseconds.
const MAPS_NS: u64 = 250_000_000;

/// A thread in a stop.
struct Copy {
    request: StopRequest,
    answer: Option<ThreadRegisters>,
    /// The second stack pointer, if there is one.
    other_sp: Option<u64>,
    waits: Option<bool>,
    capture: Capture,
    outcome: StopOutcome,
}

impl GdbTarget {
    /// Stops the target, copies the requested threads, and continues it.
    ///
    /// # Errors
    /// The stub cannot be reached.
    pub(super) fn capture_asked(&mut self) -> Result<(), ConnectionError> {
        let count = self.stops.requests.len().min(self.stops.at_once());
        let requests: Vec<StopRequest> = self.stops.requests.drain(..count).collect();
        let begun_ns = self.clock.now_ns();
        self.stub.within(STOP, "a stop");
        if !self.stub.stop()? {
            requests
                .iter()
                .for_each(|request| self.stops.failed(request.thread, "process ended before it was stopped"));
            self.take_news();
            return Ok(());
        }
        let stands_ns = self.clock.now_ns();
        let ran_ns = match self.stops.ran_since_ns {
            0 => 0,
            since_ns => stands_ns.saturating_sub(since_ns),
        };
        self.stops.count += 1;
        self.update_threads(begun_ns)?;
        let mut copies: Vec<Copy> = requests.into_iter().map(|request| self.begin_copy(request)).collect();
        self.copy_registers(&mut copies)?;
        self.copy_stacks(&mut copies)?;
        self.look_at_maps(&copies, begun_ns)?;
        self.stub.go()?;
        self.stub.without_limit();
        let now_ns = self.clock.now_ns();
        self.stops.ran_since_ns = now_ns;
        self.stops.copy_ns = now_ns.saturating_sub(stands_ns) / copies.len().max(1) as u64;
        let pause_ns = now_ns.saturating_sub(begun_ns);
        let mut stopped_ns = pause_ns.saturating_add(std::mem::take(&mut self.stops.stopped_ns));
        for mut copy in copies {
            copy.capture.pause_ns = pause_ns;
            copy.capture.stopped_ns = std::mem::take(&mut stopped_ns);
            self.account(&mut copy, ran_ns);
            let Copy { request, capture, outcome, .. } = copy;
            self.stops.made.push_back(StopResult { thread: request.thread, outcome, capture });
        }
        self.take_news();
        Ok(())
    }

    /// Copies a thread of a stopped target.
    ///
    /// # Errors
    /// The stub cannot be reached.
    pub(super) fn capture_stopped(
        &mut self,
        thread: ThreadId,
        stack_bytes: usize,
    ) -> Result<(StopOutcome, Capture), ConnectionError> {
        let request = StopRequest { thread, stack_bytes, keep_waiting: true };
        let mut copies = [self.begin_copy(request)];
        self.copy_registers(&mut copies)?;
        self.copy_stacks(&mut copies)?;
        let [copy] = copies;
        Ok((copy.outcome, copy.capture))
    }

    fn begin_copy(&mut self, request: StopRequest) -> Copy {
        let outcome = StopOutcome::Unreadable("registers could not be read");
        Copy { request, answer: None, other_sp: None, waits: None, capture: self.stops.buffer(), outcome }
    }

    /// Copies all registers in one round trip, and recognises waiting threads.
    fn copy_registers(&mut self, copies: &mut [Copy]) -> Result<(), ConnectionError> {
        let threads: Vec<Option<Tid>> = copies.iter().map(|copy| self.tid(copy.request.thread)).collect();
        let known: Vec<Tid> = threads.iter().flatten().copied().collect();
        let mut answers = self.stub.registers(&known, &self.layout)?.into_iter();
        for (copy, thread) in copies.iter_mut().zip(&threads) {
            if thread.is_none() {
                if self.is_switched_out(copy.request.thread) {
                    copy.waits = Some(true);
                } else {
                    copy.outcome = StopOutcome::Unreadable("thread ended before it was stopped");
                }
                continue;
            }
            copy.answer = answers.next().flatten();
            let Some(answer) = &copy.answer else { continue };
            copy.capture.registers = answer.registers;
            copy.waits = match threads::by_registers(answer, self.system) {
                ThreadState::Waits => Some(true),
                ThreadState::Runs => Some(false),
                ThreadState::CodeDecides => self.stops.places.get(&answer.registers.pc().0).copied(),
            };
        }
        self.find_other_stacks(copies, &threads)?;
        self.copy_saved_registers(copies)
    }

    /// Reads the second stack pointer of threads in exception handlers: one more round trip, for these only.
    fn find_other_stacks(
        &mut self,
        copies: &mut [Copy],
        threads: &[Option<Tid>],
    ) -> Result<(), ConnectionError> {
        let handlers = copies.iter_mut().zip(threads).filter_map(|(copy, thread)| {
            let number = self.layout.other_sp(&copy.answer.as_ref()?.registers)?;
            Some((copy, ((*thread)?, number)))
        });
        let (handlers, wanted): (Vec<&mut Copy>, Vec<(Tid, u32)>) = handlers.unzip();
        for (copy, sp) in handlers.into_iter().zip(self.stub.words(&wanted)?) {
            // During a task switch it is still the previous task's.
            let is_its_own = |sp: &u64| {
                let tasks = self.tasks.as_ref().filter(|tasks| tasks.current().is_some());
                tasks.is_none_or(|tasks| tasks.is_on_stack_of(copy.request.thread.0, *sp))
            };
            copy.other_sp = sp.filter(is_its_own);
        }
        Ok(())
    }

    /// Reads the requested registers of suspended tasks from where they were saved.
    fn copy_saved_registers(&mut self, copies: &mut [Copy]) -> Result<(), ConnectionError> {
        let Some(tasks) = &self.tasks else { return Ok(()) };
        let is_wanted =
            |copy: &&mut Copy| copy.request.keep_waiting && copy.answer.is_none() && copy.waits == Some(true);
        let m_profile = self.layout.is_m_profile();
        let mut wanted: Vec<&mut Copy> = copies.iter_mut().filter(is_wanted).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let tcbs: Vec<u64> = wanted.iter().map(|copy| copy.request.thread.0).collect();
        let (stub, images) = (&mut self.stub, &self.images);
        let is_code = |at: u64| images.contains(at);
        let saved =
            tasks.saved(&tcbs, m_profile, &is_code, &mut |ranges: &[Range]| stub.read_ranges(ranges))?;
        for (copy, registers) in wanted.iter_mut().zip(saved) {
            copy.outcome = StopOutcome::Unreadable("its saved registers are of a form that is not known");
            let Some(registers) = registers else { continue };
            let registers = Registers::Arm(registers);
            copy.capture.registers = registers;
            copy.answer = Some(ThreadRegisters { registers, call: None });
        }
        Ok(())
    }

    /// Copies all requested stacks in one batch, with the code that shows which threads wait.
    fn copy_stacks(&mut self, copies: &mut [Copy]) -> Result<(), ConnectionError> {
        let mut ranges = Vec::new();
        for copy in copies.iter() {
            let Some(answer) = &copy.answer else { continue };
            let pc = answer.registers.pc().0 & self.process.address_mask;
            if copy.waits.is_none() {
                ranges.push(Range { at: pc.wrapping_sub(AROUND_BYTES as u64), bytes: 2 * AROUND_BYTES });
            }
            if copy.waits != Some(true) || copy.request.keep_waiting {
                ranges.push(self.stack_range(copy.request, answer.registers.sp().0));
                ranges.extend(copy.other_sp.map(|sp| self.stack_range(copy.request, sp)));
            }
        }
        let mut read = self.stub.read_ranges(&ranges)?.into_iter().zip(&ranges);
        let mut again = Vec::new();
        for (index, copy) in copies.iter_mut().enumerate() {
            let Some(answer) = &copy.answer else { continue };
            let wanted = copy.waits != Some(true) || copy.request.keep_waiting;
            if copy.waits.is_none() {
                let code = read.next().map(|(code, _)| code).unwrap_or_default();
                let waits = match code.as_slice() {
                    &[a, b, c, d, e, f, g, h] => {
                        threads::by_code(answer, [a, b, c, d], [e, f, g, h], self.system)
                    }
                    _ => false,
                };
                if self.decided_by_place(answer) && self.stops.places.len() < PLACES_MAX {
                    self.stops.places.insert(answer.registers.pc().0, waits);
                }
                copy.waits = Some(waits);
            }
            if !wanted {
                copy.outcome = StopOutcome::BeganToWait;
                continue;
            }
            let Some((bytes, range)) = read.next() else { continue };
            let sp = answer.registers.sp().0;
            if bytes.is_empty() && range.at < sp {
                // The page below the stack pointer is not part of the stack.
                again.push((index, Range { at: sp, bytes: copy.request.stack_bytes }));
            } else {
                self.take_stack(copy, *range, bytes);
            }
            if copy.other_sp.is_some()
                && let Some((bytes, range)) = read.next()
            {
                self.learn_limit(copy.request.thread, *range, bytes.len());
                let (base, limit) =
                    (Avma(range.at), self.stack_limit(copy.request.thread, range.at).map(Avma));
                copy.capture.other_stack = Some(Box::new(OtherStack { base, bytes, limit }));
            }
        }
        let ranges: Vec<Range> = again.iter().map(|(_, range)| *range).collect();
        if !ranges.is_empty() {
            for ((index, range), bytes) in again.into_iter().zip(self.stub.read_ranges(&ranges)?) {
                self.take_stack(&mut copies[index], range, bytes);
            }
        }
        Ok(())
    }

    /// Whether the code address alone decides if threads wait there, for all threads and times: on Arm's
    /// Linux a result register decides, too.
    fn decided_by_place(&self, answer: &ThreadRegisters) -> bool {
        use super::threads::System;
        !matches!(
            (self.system, &answer.registers),
            (System::Linux, Registers::Aarch64(_) | Registers::Arm(_))
        )
    }

    /// The bytes to copy: from the red zone below the stack pointer to the end of the stack size or of the
    /// stack.
    fn stack_range(&self, request: StopRequest, sp: u64) -> Range {
        let below = sp.min(self.layout.arch.red_zone_bytes_max());
        let end = sp.saturating_add(request.stack_bytes as u64);
        let limit = self.stack_limit(request.thread, sp);
        let end = limit.map_or(end, |limit| end.min(limit));
        // Memory ends at 4 GiB on 32-bit targets.
        let end = if self.layout.arch.pointer_bytes() == 4 { end.min(1 << 32).max(sp) } else { end };
        Range { at: sp - below, bytes: usize::try_from(end - (sp - below)).unwrap_or(0) }
    }

    /// The end of a thread's stack, if it is known and above the stack pointer.
    fn stack_limit(&self, thread: ThreadId, sp: u64) -> Option<u64> {
        let limit = self.threads.get(&thread)?.stack_limit?;
        (sp < limit && limit - sp <= STACK_BYTES_MAX).then_some(limit)
    }

    fn take_stack(&mut self, copy: &mut Copy, range: Range, bytes: Vec<u8>) {
        let sp = copy.capture.registers.sp().0;
        let end = range.at.saturating_add(bytes.len() as u64);
        if bytes.is_empty() || end <= sp {
            copy.outcome = StopOutcome::Unreadable("stack could not be read");
            return;
        }
        self.learn_limit(copy.request.thread, range, bytes.len());
        copy.capture.stack_limit = self.stack_limit(copy.request.thread, sp).map(Avma);
        copy.capture.stack_base = Avma(range.at);
        copy.capture.stack = bytes;
        copy.outcome = StopOutcome::Captured;
    }

    /// Derives the end of a stack from how many bytes were readable.
    fn learn_limit(&mut self, thread: ThreadId, range: Range, read_bytes: usize) {
        let end = range.at.saturating_add(read_bytes as u64);
        // Memory ends at page boundaries; any other end is a limit of the stub.
        if read_bytes > 0
            && read_bytes < range.bytes
            && end.is_multiple_of(self.stub.memory_ends_at)
            && let Some(thread) = self.threads.get_mut(&thread)
        {
            thread.stack_limit = Some(end);
        }
    }

    /// Charges a thread that was found running with the time since the previous stop.
    fn account(&mut self, copy: &mut Copy, ran_ns: u64) {
        let waits = copy.waits == Some(true);
        let has_answer = copy.answer.is_some() || waits;
        let Some(thread) = self.threads.get_mut(&copy.request.thread).filter(|_| has_answer) else { return };
        if !waits {
            thread.ran_ns = thread.ran_ns.saturating_add(ran_ns);
        }
        let activity = if waits { Activity::Waiting } else { Activity::Running };
        copy.capture.status =
            Some(ThreadStatus { cpu_ns: thread.ran_ns, switches: self.stops.count, activity });
        if waits && !copy.request.keep_waiting {
            copy.outcome = StopOutcome::BeganToWait;
        }
    }

    /// If only a stop shows the mappings: reads them when a thread is in unknown code, or on request.
    fn look_at_maps(&mut self, copies: &[Copy], now_ns: u64) -> Result<(), ConnectionError> {
        let known = |answer: &ThreadRegisters| {
            self.images.contains(answer.registers.pc().0 & self.process.address_mask)
        };
        let unknown = copies.iter().filter_map(|copy| copy.answer.as_ref()).any(|answer| !known(answer));
        if unknown && self.stub.run.non_stop {
            self.events.push_back(TargetEvent::ImagesChanged);
            return Ok(());
        }
        let due = now_ns.saturating_sub(self.stops.maps_ns) >= MAPS_NS;
        if self.stub.run.non_stop || !due || !(unknown || self.stops.maps_wanted) {
            return Ok(());
        }
        (self.stops.maps_ns, self.stops.maps_wanted) = (now_ns, false);
        if self.images.learn(&mut self.stub, None)? {
            self.stops.forget_places();
            self.events.push_back(TargetEvent::ImagesChanged);
        }
        Ok(())
    }
}

// ---- Requested stops and their outcomes, and the number of threads to copy in one stop.

/// Most threads copied in one stop.
const AT_ONCE: usize = 1024;

/// Target for the length of a stop, nanoseconds: fewer threads are copied in one if copies take long.
const STAND_NS: u64 = 50_000_000;

/// A requested stop.
#[derive(Clone, Copy, Debug)]
pub(super) struct StopRequest {
    pub(super) thread: ThreadId,
    pub(super) stack_bytes: usize,
    pub(super) keep_waiting: bool,
}

/// Its result.
pub(super) struct StopResult {
    pub(super) thread: ThreadId,
    pub(super) outcome: StopOutcome,
    pub(super) capture: Capture,
}

/// Requested and completed stops of a target.
#[derive(Default)]
pub(super) struct Stops {
    pub(super) requests: VecDeque<StopRequest>,
    pub(super) made: VecDeque<StopResult>,
    pub(super) spare: Vec<Capture>,
    /// Number of stops so far, which distinguishes the polls of a thread.
    pub(super) count: u64,
    /// Time per thread in the last stop, nanoseconds.
    pub(super) copy_ns: u64,
    /// Whether threads wait at a code address.
    pub(super) places: HashMap<u64, bool>,
    /// When the target was last continued; 0 before.
    pub(super) ran_since_ns: u64,
    /// Time stopped for other purposes, not yet reported, nanoseconds.
    pub(super) stopped_ns: u64,
    /// Time of the last request for mappings, and whether a new one is due.
    pub(super) maps_ns: u64,
    pub(super) maps_wanted: bool,
}

impl Stops {
    /// Number of threads to copy in one stop.
    pub(super) fn at_once(&self) -> usize {
        let fit = STAND_NS.checked_div(self.copy_ns).unwrap_or(u64::MAX);
        usize::try_from(fit).unwrap_or(AT_ONCE).clamp(1, AT_ONCE)
    }

    /// Forgets waiting places, because the code changed.
    pub(super) fn forget_places(&mut self) {
        self.places.clear();
    }

    pub(super) fn buffer(&mut self) -> Capture {
        let mut capture = self.spare.pop().unwrap_or_else(|| Capture::with_capacity(0));
        capture.reset();
        capture
    }

    /// Records a stop without a capture.
    pub(super) fn failed(&mut self, thread: ThreadId, why: &'static str) {
        let capture = self.buffer();
        self.made.push_back(StopResult { thread, outcome: StopOutcome::Unreadable(why), capture });
    }
}

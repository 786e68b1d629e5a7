//! The threads of a task: which exist, and the activity of each since its last poll.
//!
//! `Threads` lists them, `Thread` is one; below are the labels of dispatch queues (`LabelOffset`), the conversion
//! of registers, and the clock of `mach_absolute_time` (`MachClock`).
//!
//! A list is an array in our memory and a reference to a port for each thread: the array is freed at once,
//! and so is every reference except one for each known thread. While that one is kept its name means this
//! thread; once freed it may mean another one. So a thread is identified by its `thread_id`. Reading it takes
//! a call per thread, so a list is read in pieces (see `target.rs`).

use hashbrown::HashMap;

use super::kernel::{Kern, KernReturn, MachKernel, StateFlavor, TaskPort, ThreadPort};
use super::memory::{Memory, Stack};
use crate::addr::Avma;
use crate::arch::{Aarch64, Arch, Registers, X86_64};
use crate::clock::Clock;
use crate::sources::{Activity, Capture, Fault, Process, StopOutcome, ThreadId, ThreadStatus};

/// Counts of the flavors, in words (see `layout.rs`).
const BASIC_COUNT: u32 = 10;
const IDENTIFIER_COUNT: u32 = 6;
const EXTENDED_COUNT: u32 = 28;

/// TH_STATE_* (osfmk/mach/thread_info.h).
const RUNNING: i32 = 1;
const STOPPED: i32 = 2;

/// If no thread has used any CPU time for this long, the system is assumed not to report CPU times,
/// nanoseconds.
const SILENT_NS: u64 = 10_000_000;

/// Whether a failure means that the task or thread has ended: its port is dead (as a message's destination,
/// or converted to nothing) or it is being terminated.
pub(super) fn is_gone(failed: KernReturn) -> bool {
    matches!(failed, KernReturn::InvalidArgument | KernReturn::Terminated | KernReturn::SendInvalidDest)
}

/// The system's report on a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadReport {
    pub(super) user_ns: u64,
    pub(super) system_ns: u64,
    run_state: i32,
}

impl ThreadReport {
    #[cfg(test)]
    pub(super) fn new(user_ns: u64, system_ns: u64, is_runnable: bool) -> ThreadReport {
        ThreadReport { user_ns, system_ns, run_state: if is_runnable { RUNNING } else { STOPPED } }
    }

    /// CPU time: exact for a thread on no CPU, as all are while their task is held.
    pub(super) fn cpu_ns(&self) -> u64 {
        self.user_ns.saturating_add(self.system_ns)
    }

    /// Whether it is on a CPU or ready for one.
    pub(super) fn is_runnable(&self) -> bool {
        self.run_state == RUNNING
    }
}

fn thread_report(kernel: &dyn MachKernel, port: ThreadPort, polls_are_answered: bool) -> Kern<ThreadReport> {
    let basic = kernel.thread_basic_info(port, BASIC_COUNT).map(|info| ThreadReport {
        user_ns: info.user_ns,
        system_ns: info.system_ns,
        // A thread suspended by another debugger is reported as waiting.
        run_state: if info.suspend_count > 0 && info.run_state != RUNNING { STOPPED } else { info.run_state },
    });
    basic.or_else(|failed| match failed {
        KernReturn::Terminated | KernReturn::SendInvalidDest => Err(failed),
        KernReturn::InvalidArgument if polls_are_answered => Err(failed),
        // The same facts from another call, in case a system refuses the first.
        _ => kernel.thread_extended_info(port, EXTENDED_COUNT).map(|info| ThreadReport {
            user_ns: info.user_ns,
            system_ns: info.system_ns,
            run_state: info.run_state,
        }),
    })
}

/// A known thread.
#[derive(Debug)]
pub(super) struct MachThread {
    port: ThreadPort,
    /// TSD base, 0 if the thread has no pthread or it is not reported.
    handle: u64,
    /// Address of the pointer to its dispatch queue.
    dispatch_qaddr: u64,
    stack: Stack,
    /// Its port was reported dead; the next list drops it.
    has_gone: bool,
    /// Number of the last list that contained it.
    listed: u64,
    polled_ns: u64,
    /// Time in which polls found it running.
    seen_running_ns: u64,
}

impl MachThread {
    /// Address of the pointer to its dispatch queue, if libdispatch has set one.
    pub(super) fn dispatch_queue(&self) -> Option<u64> {
        // The handle itself: libdispatch has not set the queue yet.
        Some(self.dispatch_qaddr).filter(|at| *at != 0 && *at != self.handle)
    }

    /// Finds its stack, once, before it is copied.
    pub(super) fn prepare(&mut self, memory: &Memory<'_>) {
        self.stack.read_bounds(memory, self.handle);
    }

    /// Copies registers and stack while its task is held.
    pub(super) fn copy(
        &mut self,
        memory: &Memory<'_>,
        process: &Process,
        capture: &mut Capture,
    ) -> StopOutcome {
        if self.has_gone {
            return StopOutcome::Unreadable("thread ended before it was stopped");
        }
        let StateFlavor { flavor, count: wanted } = flavor(process.arch);
        let (mut words, mut count) = ([0; StateFlavor::COUNT_MAX], wanted);
        match memory.kernel.thread_get_state(self.port, flavor, &mut words, &mut count) {
            Ok(()) if count >= wanted => {}
            Err(failed) if is_gone(failed) => {
                self.has_gone = true;
                return StopOutcome::Unreadable("thread ended before it was stopped");
            }
            _ => return StopOutcome::Unreadable("registers could not be read"),
        }
        capture.registers = registers(process.arch, &words, process.address_mask);
        let sp = capture.registers.sp().0;
        let stack_bytes = capture.stack.len();
        let from = self.stack.red_zone(sp);
        let mut copy = |from: u64| {
            capture.stack_base = Avma(from);
            capture.stack.resize(stack_bytes.saturating_add((sp - from) as usize), 0);
            self.stack.copy(memory, from, &mut capture.stack)
        };
        match copy(from).or_else(|failed| if from < sp { copy(sp) } else { Err(failed) }) {
            Ok(()) => StopOutcome::Captured,
            Err(_) => StopOutcome::Unreadable("stack could not be read"),
        }
    }

    /// The end of the stack that `sp` is on; the thread may run.
    pub(super) fn learn_stack(&mut self, memory: &Memory<'_>, sp: u64) -> Option<Avma> {
        self.stack.learn(memory, sp);
        self.stack.limit(sp).map(Avma)
    }
}

/// Changes found by a list, in the order of creation and of numbers.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) started: Vec<ThreadId>,
    /// Reported once the list is complete.
    pub(super) ended: Vec<ThreadId>,
    /// Whether the whole list was read.
    pub(super) done: bool,
}

/// The threads of a task.
#[derive(Default)]
pub(super) struct Threads {
    by_id: HashMap<ThreadId, MachThread>,
    by_port: HashMap<ThreadPort, ThreadId>,
    /// The task's initial thread, if it existed when the task was first listed.
    first: Option<ThreadId>,
    lists: u64,
    /// The current list: each port from `next` on is a reference to be released.
    ports: Vec<ThreadPort>,
    next: usize,
    listing: bool,
    /// Whether any thread ever had a number.
    ids_are_told: bool,
    /// Whether any thread was ever reported to have used CPU time.
    times_are_told: bool,
    first_poll_ns: Option<u64>,
    /// Whether a poll ever succeeded: then a refusal means that the thread has exited.
    polls_are_answered: bool,
}

impl Threads {
    /// Lists the threads, or continues the current list, until `pause` returns true; reads at least one
    /// thread. Changes nothing on a failure.
    pub(super) fn list(
        &mut self,
        kernel: &dyn MachKernel,
        task: TaskPort,
        now_ns: u64,
        mut pause: impl FnMut() -> bool,
    ) -> Kern<Changes> {
        if !self.listing {
            self.ports.clear();
            let array = kernel.task_threads(task, &mut self.ports)?;
            if array.address != 0 && array.size != 0 {
                // There is no remedy for a failure, here and below.
                let _ = kernel.vm_deallocate(array);
            }
            self.ports.retain(|port| port.0 != 0);
            (self.lists, self.next, self.listing) = (self.lists + 1, 0, true);
        }
        let mut changes = Changes::default();
        while let Some(port) = self.ports.get(self.next).copied() {
            self.next += 1;
            changes.started.extend(self.listed(kernel, port, now_ns));
            if self.next < self.ports.len() && pause() {
                return Ok(changes);
            }
        }
        (self.listing, changes.done) = (false, true);
        let last = self.lists;
        let gone = self.by_id.iter().filter(|(_, thread)| thread.listed != last).map(|(id, _)| *id);
        changes.ended.extend(gone);
        // The table is unordered.
        changes.ended.sort_unstable();
        changes.ended.iter().for_each(|id| self.forget(kernel, *id));
        Ok(changes)
    }

    /// Takes one reference to a listed thread's port; returns its number if it is new.
    fn listed(&mut self, kernel: &dyn MachKernel, port: ThreadPort, now_ns: u64) -> Option<ThreadId> {
        if let Some(thread) = self.by_port.get(&port).and_then(|id| self.by_id.get_mut(id)) {
            thread.listed = self.lists;
            thread.has_gone = false;
            let _ = kernel.port_deallocate(port.0);
            return None;
        }
        let (id, handle, dispatch_qaddr) = match kernel.thread_identifier_info(port, IDENTIFIER_COUNT) {
            Ok(info) if info.thread_id != 0 => (info.thread_id, info.thread_handle, info.dispatch_qaddr),
            Err(failed) if self.ids_are_told || is_gone(failed) && failed != KernReturn::InvalidArgument => {
                let _ = kernel.port_deallocate(port.0);
                return None;
            }
            // Unknown: while its reference is kept, the port name identifies it as well.
            _ => (port.0.into(), 0, 0),
        };
        self.ids_are_told |= id != u64::from(port.0) || handle != 0;
        let id = ThreadId(id);
        if let Some(thread) = self.by_id.get_mut(&id) {
            thread.listed = self.lists;
            let _ = kernel.port_deallocate(port.0);
            return None;
        }
        let (listed, stack) = (self.lists, Stack::default());
        let thread = MachThread {
            port,
            handle,
            dispatch_qaddr,
            stack,
            has_gone: false,
            listed,
            polled_ns: now_ns,
            seen_running_ns: 0,
        };
        self.by_id.insert(id, thread);
        self.by_port.insert(port, id);
        if self.lists == 1 && self.first.is_none() {
            self.first = Some(id);
        }
        Some(id)
    }

    fn forget(&mut self, kernel: &dyn MachKernel, id: ThreadId) {
        if let Some(thread) = self.by_id.remove(&id) {
            self.by_port.remove(&thread.port);
            // The same for a dead name as for a right.
            let _ = kernel.port_deallocate(thread.port.0);
        }
    }

    /// Releases all references.
    pub(super) fn clear(&mut self, kernel: &dyn MachKernel) {
        let mut ids: Vec<ThreadId> = self.by_id.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.forget(kernel, id));
        if self.listing {
            for port in self.ports.drain(self.next..) {
                let _ = kernel.port_deallocate(port.0);
            }
        }
        *self = Threads::default();
    }

    pub(super) fn get_mut(&mut self, id: ThreadId) -> Option<&mut MachThread> {
        self.by_id.get_mut(&id)
    }

    pub(super) fn is_first(&self, id: ThreadId) -> bool {
        self.first == Some(id)
    }

    /// All known threads, by number.
    pub(super) fn ids(&self) -> Vec<ThreadId> {
        let mut ids: Vec<ThreadId> = self.by_id.keys().copied().collect();
        ids.sort_unstable();
        ids
    }

    /// Activity of a thread, and its CPU time. We must not have suspended it: that hides whether it waits.
    pub(super) fn poll(
        &mut self,
        kernel: &dyn MachKernel,
        id: ThreadId,
        now_ns: u64,
    ) -> Result<ThreadStatus, Fault> {
        let thread = self.by_id.get_mut(&id).filter(|thread| !thread.has_gone).ok_or(Fault::ThreadGone)?;
        let info = thread_report(kernel, thread.port, self.polls_are_answered);
        let (told_ns, run_state) = match info {
            Ok(thread_report) => (thread_report.cpu_ns(), thread_report.run_state),
            Err(failed)
                if is_gone(failed) && (self.polls_are_answered || failed != KernReturn::InvalidArgument) =>
            {
                thread.has_gone = true;
                return Err(Fault::ThreadGone);
            }
            Err(_) if self.polls_are_answered => {
                return Err(Fault::Transient("not thread_report what a thread does"));
            }
            // A system without reports on threads: all of them may run.
            Err(_) => (0, RUNNING),
        };
        self.polls_are_answered |= info.is_ok();
        self.times_are_told |= told_ns > 0;
        let first_poll_ns = *self.first_poll_ns.get_or_insert(now_ns);
        if run_state == RUNNING {
            thread.seen_running_ns += now_ns.saturating_sub(thread.polled_ns);
        }
        thread.polled_ns = now_ns;
        // If CPU times are always zero, the state alone decides.
        let silent = !self.times_are_told && now_ns.saturating_sub(first_poll_ns) >= SILENT_NS;
        Ok(ThreadStatus {
            cpu_ns: if silent { thread.seen_running_ns } else { told_ns },
            switches: 0,
            activity: match run_state {
                RUNNING => Activity::Runnable,
                STOPPED => Activity::Stopped,
                _ => Activity::Waiting,
            },
        })
    }

    /// The reports on a thread around a stop; `None` if they are unreliable: missing, or with CPU times that
    /// are always zero.
    pub(super) fn report_around_stop(
        &mut self,
        kernel: &dyn MachKernel,
        id: ThreadId,
    ) -> Option<ThreadReport> {
        let (is_told, are_answered) = (self.times_are_told, self.polls_are_answered);
        let thread = self.by_id.get_mut(&id).filter(|thread| is_told && !thread.has_gone)?;
        let thread_report = thread_report(kernel, thread.port, are_answered);
        thread.has_gone = thread_report.is_err_and(is_gone);
        thread_report.ok()
    }

    /// A thread's own name, if it has one.
    pub(super) fn name(&self, kernel: &dyn MachKernel, id: ThreadId) -> Option<String> {
        let thread = self.by_id.get(&id).filter(|thread| !thread.has_gone)?;
        let info = kernel.thread_extended_info(thread.port, EXTENDED_COUNT).ok()?;
        Some(info.name).filter(|name| !name.is_empty())
    }
}

// ---- The label of the dispatch queue that a thread works for.

/// Name of the array in the exports of libdispatch.
pub(super) const OFFSETS_SYMBOL: &[u8] = b"_dispatch_queue_offsets";
/// File name of libdispatch.
pub(super) const LIBRARY: &str = "/libdispatch.dylib";

/// First version with a pointer to the label's text.
const FIRST_VERSION: u16 = 4;
const POINTER_BYTES: u16 = 8;
const LABEL_BYTES_MAX: usize = 256;

/// Offset of the label in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LabelOffset(u16);

/// Reads the offset of labels from the array at `offsets_avma`.
pub(super) fn label_offset(memory: &Memory<'_>, offsets_avma: u64) -> Option<LabelOffset> {
    // version, label, label_size
    let bytes: [u8; 6] = memory.array(offsets_avma).ok()?;
    let number = |index: usize| u16::from_le_bytes([bytes[2 * index], bytes[2 * index + 1]]);
    (number(0) >= FIRST_VERSION && number(2) == POINTER_BYTES).then_some(LabelOffset(number(1)))
}

/// The label of the queue that a thread currently works for.
pub(super) fn label(memory: &Memory<'_>, thread: &MachThread, offset: LabelOffset) -> Option<String> {
    let queue = memory.word(thread.dispatch_queue()?).ok().filter(|queue| *queue != 0)?;
    let text = memory.word(queue.checked_add(offset.0.into())?).ok().filter(|text| *text != 0)?;
    memory.text(text, LABEL_BYTES_MAX).ok().filter(|label| !label.is_empty())
}

// ---- Converts the words of a thread state to registers.
//
// x86_THREAD_STATE64 and ARM_THREAD_STATE64 (osfmk/mach/i386/_structs.h, osfmk/mach/arm/_structs.h): 64-bit
// little-endian fields in pairs of words. If this program and the target are both built for arm64e, the
// kernel signs pc, lr, fp and sp (osfmk/arm64/status.c): sp is stripped here, since stacks are read by it,
// the others by the walker, which finds signed ones on stacks, too.

/// The state flavor of an architecture's general registers. Supported kernels are 64-bit, and 32-bit programs
/// are refused.
pub(super) fn flavor(arch: Arch) -> StateFlavor {
    match arch {
        Arch::X86_64 | Arch::X86 => StateFlavor::X86_64,
        Arch::Aarch64 | Arch::Arm => StateFlavor::ARM64,
    }
}

/// The registers in a state of [`flavor`]; `address_mask` has the bits of an address.
pub(super) fn registers(arch: Arch, state: &[u32; StateFlavor::COUNT_MAX], address_mask: u64) -> Registers {
    let word = |index: usize| u64::from(state[2 * index]) | u64::from(state[2 * index + 1]) << 32;
    match arch {
        // rax rbx rcx rdx rdi rsi rbp rsp r8..r15 rip rflags cs fs gs, here by DWARF number.
        Arch::X86_64 | Arch::X86 => Registers::X86_64(X86_64 {
            gpr: [
                word(0),
                word(3),
                word(2),
                word(1),
                word(5),
                word(4),
                word(6),
                word(7),
                word(8),
                word(9),
                word(10),
                word(11),
                word(12),
                word(13),
                word(14),
                word(15),
            ],
            rip: word(16),
            // Thread-local storage is addressed through gs, and the state lacks its base.
            fs_base: 0,
        }),
        // x0..x28, fp, lr, sp, pc.
        Arch::Aarch64 | Arch::Arm => {
            let sp = word(31) & address_mask;
            Registers::Aarch64(Aarch64 { x: std::array::from_fn(word), sp, pc: word(32) })
        }
    }
}

// ---- Time in ticks of `mach_absolute_time`, as nanoseconds.
//
// A tick is 125/3 ns on Apple silicon and 1 ns on Intel (`mach_timebase_info`, read once). The sampler and the
// waits between ticks use this clock.

/// A clock over the kernel's ticks, with an origin shared by all instances.
#[derive(Clone, Copy)]
pub struct MachClock<'k> {
    kernel: &'k dyn MachKernel,
    numer: u64,
    denom: u64,
}

impl<'k> MachClock<'k> {
    /// The clock of a kernel.
    #[must_use]
    pub fn new(kernel: &'k dyn MachKernel) -> MachClock<'k> {
        let (numer, denom) = match kernel.timebase() {
            (0, _) | (_, 0) => (1, 1),
            known => known,
        };
        MachClock { kernel, numer: numer.into(), denom: denom.into() }
    }

    /// Waits until `at_ns` of this clock. Returns at once if the system refuses to wait.
    pub(super) fn wait_until_ns(&self, at_ns: u64) {
        // Rounded up: a deadline must not come early.
        let ticks = (u128::from(at_ns) * u128::from(self.denom)).div_ceil(u128::from(self.numer));
        let deadline = u64::try_from(ticks).unwrap_or(u64::MAX);
        while self.kernel.wait_until(deadline) == Err(KernReturn::Aborted) && self.now_ns() < at_ns {}
    }
}

impl Clock for MachClock<'_> {
    fn now_ns(&self) -> u64 {
        let ticks = self.kernel.absolute_time();
        // Multiplied first: 125/3 is no whole number.
        u64::try_from(u128::from(ticks) * u128::from(self.numer) / u128::from(self.denom)).unwrap_or(u64::MAX)
    }
}

/// Waits for ticks, and how late the waits ended.
pub(super) struct TickTimer<'k> {
    clock: MachClock<'k>,
    /// Total time by which waits ended after the tick.
    overslept_ns: u64,
    qos_requested: bool,
}

impl<'k> TickTimer<'k> {
    pub(super) fn new(kernel: &'k dyn MachKernel) -> TickTimer<'k> {
        TickTimer { clock: MachClock::new(kernel), overslept_ns: 0, qos_requested: false }
    }

    pub(super) fn clock(&self) -> MachClock<'k> {
        self.clock
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    pub(super) fn overslept_ns(&self) -> u64 {
        self.overslept_ns
    }

    /// Requests to be woken in time, once, for the sampling thread. A thread of background QoS is woken up to
    /// 100 ms late. A refusal is harmless: ticks then arrive late.
    pub(super) fn request_qos(&mut self) {
        if !std::mem::replace(&mut self.qos_requested, true) {
            let _ = self.clock.kernel.request_interactive_qos();
        }
    }

    /// Waits until `due_ns`, which is not after the tick at `tick_ns`.
    pub(super) fn wait_until_ns(&mut self, due_ns: u64, tick_ns: u64) {
        self.clock.wait_until_ns(due_ns);
        let late_ns = self.now_ns().saturating_sub(tick_ns);
        self.overslept_ns = self.overslept_ns.saturating_add(late_ns);
    }
}

#[cfg(test)]
mod state_tests {
    use super::*;

    /// A state with each word set to its index.
    fn numbered() -> [u32; StateFlavor::COUNT_MAX] {
        std::array::from_fn(|index| index as u32)
    }

    fn at(offset: usize) -> u64 {
        let word = offset as u64 / 4;
        word | (word + 1) << 32
    }

    #[test]
    fn register_offsets_match_the_headers() {
        let Registers::X86_64(x86) = registers(Arch::X86_64, &numbered(), u64::MAX) else {
            panic!("another processor")
        };
        assert_eq!(x86.rip, at(128));
        let dwarf =
            [(0, 0), (1, 24), (2, 16), (3, 8), (4, 40), (5, 32), (X86_64::RBP, 48), (X86_64::RSP, 56)];
        for (number, offset) in dwarf.into_iter().chain((8..16).map(|number| (number, number * 8))) {
            assert_eq!(x86.gpr[number], at(offset), "register {number}");
        }
        let Registers::Aarch64(arm) = registers(Arch::Aarch64, &numbered(), u64::MAX) else {
            panic!("another processor")
        };
        assert_eq!((arm.x[0], arm.x[28]), (at(0), at(224)));
        assert_eq!(
            (arm.x[Aarch64::FP], arm.x[Aarch64::LR], arm.sp, arm.pc),
            (at(232), at(240), at(248), at(256))
        );
    }

    #[test]
    fn only_an_arm64_stack_pointer_may_be_signed() {
        const MASK: u64 = (1 << 47) - 1;
        let arm = registers(Arch::Aarch64, &[u32::MAX; StateFlavor::COUNT_MAX], MASK);
        assert_eq!((arm.sp().0, arm.pc().0), (MASK, u64::MAX));
        let x86 = registers(Arch::X86_64, &[u32::MAX; StateFlavor::COUNT_MAX], MASK);
        assert_eq!(x86.sp().0, u64::MAX);
    }
}

//! The threads of a task: which exist, and the activity of each since its last poll.
//!
//! A list is an array in our memory and a reference to a port for each thread: the array is freed at once,
//! and so is every reference except one for each known thread. While that one is kept its name means this
//! thread; once freed it may mean another one. So a thread is identified by its `thread_id`. Reading it takes
//! a call per thread, so a list is read in pieces (see `polls.rs`).

use hashbrown::HashMap;

use super::kernel::{Kern, KernReturn, MachKernel, StateFlavor, TaskPort, ThreadPort};
use super::memory::Memory;
use super::stack::Stack;
use super::state;
use crate::addr::Avma;
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

fn told(kernel: &dyn MachKernel, port: ThreadPort, polls_are_answered: bool) -> Kern<ThreadReport> {
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
pub(super) struct Thread {
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

impl Thread {
    /// Address of the pointer to its dispatch queue, if libdispatch has set one.
    pub(super) fn dispatch_queue(&self) -> Option<u64> {
        // The handle itself: libdispatch has not set the queue yet.
        Some(self.dispatch_qaddr).filter(|at| *at != 0 && *at != self.handle)
    }

    /// Finds its stack, once, before it is copied.
    pub(super) fn prepare(&mut self, memory: &Memory<'_>) {
        self.stack.ask(memory, self.handle);
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
        let StateFlavor { flavor, count: wanted } = state::flavor(process.arch);
        let (mut words, mut count) = ([0; StateFlavor::COUNT_MAX], wanted);
        match memory.kernel.thread_get_state(self.port, flavor, &mut words, &mut count) {
            Ok(()) if count >= wanted => {}
            Err(failed) if is_gone(failed) => {
                self.has_gone = true;
                return StopOutcome::Unreadable("thread ended before it was stopped");
            }
            _ => return StopOutcome::Unreadable("registers could not be read"),
        }
        capture.registers = state::registers(process.arch, &words, process.address_mask);
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
    by_id: HashMap<ThreadId, Thread>,
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
        let thread = Thread {
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

    pub(super) fn get_mut(&mut self, id: ThreadId) -> Option<&mut Thread> {
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
        let info = told(kernel, thread.port, self.polls_are_answered);
        let (told_ns, run_state) = match info {
            Ok(told) => (told.cpu_ns(), told.run_state),
            Err(failed)
                if is_gone(failed) && (self.polls_are_answered || failed != KernReturn::InvalidArgument) =>
            {
                thread.has_gone = true;
                return Err(Fault::ThreadGone);
            }
            Err(_) if self.polls_are_answered => return Err(Fault::Transient("not told what a thread does")),
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
    pub(super) fn told_around_stop(&mut self, kernel: &dyn MachKernel, id: ThreadId) -> Option<ThreadReport> {
        let (is_told, are_answered) = (self.times_are_told, self.polls_are_answered);
        let thread = self.by_id.get_mut(&id).filter(|thread| is_told && !thread.has_gone)?;
        let told = told(kernel, thread.port, are_answered);
        thread.has_gone = told.is_err_and(is_gone);
        told.ok()
    }

    /// A thread's own name, if it has one.
    pub(super) fn name(&self, kernel: &dyn MachKernel, id: ThreadId) -> Option<String> {
        let thread = self.by_id.get(&id).filter(|thread| !thread.has_gone)?;
        let info = kernel.thread_extended_info(thread.port, EXTENDED_COUNT).ok()?;
        Some(info.name).filter(|name| !name.is_empty())
    }
}

//! The tracing loop: stops are collected, threads followed, the target's signals passed on.
//!
//! While a thread stands: read registers, copy stack bytes. Everything else happens
//! before it is asked to stop or after it runs again.

use std::collections::VecDeque;
use std::fs;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;
use libc::{c_int, pid_t};

use super::files::TargetFiles;
use super::images::Maps;
use super::on_cpu::{Lateness, Stint, Times, was_on_cpu};
use super::sys::{self, RawRegisters, Waited};
use super::threads::{Pending, Thread, Wchan};
use super::{proc, registers, threads};
use crate::addr::Avma;
use crate::arch::RED_ZONE_BYTES;
use crate::binary::{Files, ImageBytes, Mapping};
use crate::clock::{Clock, RealClock};
use crate::sources::{
    Activity, Capture, Event, ExitStatus, Fault, Look, Observed, Outcome, Process, Target, ThreadId,
};

/// Signals that the tracer thread waits for; blocked in every thread of the profiler.
pub(super) const SIGNALS: [c_int; 3] = [libc::SIGCHLD, libc::SIGTERM, libc::SIGHUP];

/// How long to poll for a thread asked to stop on another CPU before sleeping: it takes a
/// few microseconds, less than a sleep and a wake-up. One that was on this CPU gets to its
/// stop only when we sleep.
const POLL_NS: u64 = 30_000;

/// A stack window is never larger: the default stack limit.
const MAX_WINDOW_BYTES: usize = 8 << 20;

/// Start code may pop its arguments before it calls: then the first return address lies above
/// the stack pointer that the thread was born with (musl src/thread/x86_64/clone.s).
const ABOVE_TOP_BYTES: usize = 64;

/// A process traced through ptrace. Belongs to the thread that made it.
#[derive(Debug)]
pub struct LinuxTarget {
    pid: pid_t,
    /// The thread through which /proc shows the memory: the first, until it has left.
    memory_of: pid_t,
    process: Process,
    clock: RealClock,
    threads: HashMap<pid_t, Thread>,
    maps: Maps,
    queue: VecDeque<Event>,
    raw: RawRegisters,
    /// Threads asked to stop and not collected.
    outstanding: usize,
    /// Until when to poll for them.
    poll_until_ns: u64,
    /// When the last sleep ended.
    slept_until_ns: u64,
    own: Own,
    wchan: Wchan,
    launched: bool,
    /// `Command::spawn` has not returned: where its `exec` fails it waits for the process.
    spawning: bool,
    ended: bool,
    not_send: PhantomData<*const ()>,
}

/// What the tracer knows of its own time on CPUs.
#[derive(Debug)]
struct Own {
    /// `/proc/thread-self/schedstat`.
    schedstat: Option<fs::File>,
    /// Its CPU time up to the last sleep, nanoseconds.
    cpu_ns: u64,
    lateness: Lateness,
    /// The last wake came unusually late.
    woke_late: bool,
    /// From the wake before the last sleep to that sleep.
    stint: Option<Stint>,
}

impl Own {
    fn new() -> Own {
        let schedstat = fs::File::open("/proc/thread-self/schedstat").ok();
        Own { schedstat, cpu_ns: 0, lateness: Lateness::default(), woke_late: false, stint: None }
    }

    /// A sleep has ended: `late_ns` after the time asked for, or by a signal.
    fn woke(&mut self, late_ns: Option<u64>) {
        // Of itself too the kernel shows what was used up to the last time it left its CPU.
        let cpu_ns = self.schedstat.as_ref().and_then(threads::sched).map(|sched| sched.cpu_ns);
        self.stint =
            cpu_ns.map(|cpu_ns| Stint { kept_ns: cpu_ns.saturating_sub(self.cpu_ns), late: self.woke_late });
        self.cpu_ns = cpu_ns.unwrap_or(0);
        self.woke_late = late_ns.is_some_and(|late_ns| self.lateness.is_unusual(late_ns));
    }
}

/// A thread that stands in a ptrace stop; it runs again when this is dropped, with the
/// signal that was on its way to it, or 0.
struct Standing {
    tid: pid_t,
    signal: c_int,
}

impl Standing {
    fn new(tid: pid_t) -> Standing {
        Standing { tid, signal: 0 }
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        // Fails only for a thread that was killed meanwhile, which needs nothing.
        let _ = sys::cont(self.tid, self.signal);
    }
}

fn thread_id(tid: pid_t) -> ThreadId {
    ThreadId(tid.unsigned_abs().into())
}

fn tid_of(thread: ThreadId) -> pid_t {
    pid_t::try_from(thread.0).unwrap_or(0)
}

impl LinuxTarget {
    pub(super) fn new(pid: pid_t, process: Process, clock: RealClock) -> LinuxTarget {
        LinuxTarget {
            pid,
            memory_of: pid,
            process,
            clock,
            threads: HashMap::new(),
            maps: Maps::default(),
            queue: VecDeque::new(),
            raw: sys::no_registers(),
            outstanding: 0,
            poll_until_ns: 0,
            slept_until_ns: 0,
            own: Own::new(),
            wchan: Wchan::default(),
            launched: false,
            spawning: false,
            ended: false,
            not_send: PhantomData,
        }
    }

    /// Says why the process is traced rather than sampled by the kernel.
    pub(super) fn chosen_because(&mut self, why: String) {
        self.process.backend_why = why;
    }

    pub(super) fn knows(&self, tid: pid_t) -> bool {
        self.threads.contains_key(&tid)
    }

    pub(super) fn set_launched(&mut self) {
        self.launched = true;
        self.spawning = true;
    }

    /// The launched command runs, as `process`.
    pub(super) fn set_spawned(&mut self, process: Process) {
        self.process = process;
        self.spawning = false;
    }

    /// Takes a seized thread in. False if it is no thread of this process.
    pub(super) fn adopt(&mut self, tid: pid_t, stack_top: Option<Avma>) -> bool {
        let Ok(mut thread) = Thread::open(self.pid, tid, stack_top) else { return false };
        if tid == self.pid && stack_top.is_none() {
            thread.stack_top = thread.start_stack();
        }
        self.threads.insert(tid, thread);
        true
    }

    fn no_longer_pending(&mut self, tid: pid_t) -> Option<Pending> {
        let pending = self.threads.get_mut(&tid)?.pending.take();
        self.outstanding -= usize::from(pending.is_some());
        pending
    }

    /// Acts on a stop; an event if the engine has to know.
    fn stopped(&mut self, tid: pid_t, signal: c_int, event: c_int, capture: &mut Capture) -> Option<Event> {
        match event {
            // A signal of the target's own, on its way to it.
            0 => self.collect_if_pending(Standing { tid, signal }, capture),
            libc::PTRACE_EVENT_STOP if signal == libc::SIGTRAP => {
                let standing = Standing::new(tid);
                if !self.knows(tid) {
                    return self.new_thread(standing);
                }
                self.collect_if_pending(standing, capture)
            }
            // SIGSTOP and its kind took effect: the thread stays stopped until SIGCONT.
            libc::PTRACE_EVENT_STOP => {
                let pending = self.no_longer_pending(tid);
                let outcome = pending.map(|pending| self.read_stopped(tid, pending, capture));
                let _ = sys::listen(tid);
                Some(Event::Stopped { thread: thread_id(tid), outcome: outcome? })
            }
            libc::PTRACE_EVENT_EXEC => {
                let _ = sys::take_stop(tid);
                Some(self.exec(Standing::new(tid)))
            }
            // PTRACE_EVENT_CLONE: the new thread reports itself.
            _ => self.collect_if_pending(Standing::new(tid), capture),
        }
    }

    /// Captures a thread that was asked to stop, whatever made it stop: any stop clears
    /// the one that was asked for (kernel/signal.c, ptrace_stop). Lets any other go on.
    fn collect_if_pending(&mut self, standing: Standing, capture: &mut Capture) -> Option<Event> {
        let thread = thread_id(standing.tid);
        let Some(pending) = self.no_longer_pending(standing.tid) else {
            self.pass_on(standing);
            return None;
        };
        let outcome = self.collect(standing, pending, capture);
        Some(Event::Stopped { thread, outcome })
    }

    /// Lets a signal through. A traced thread is woken even by a signal that its process
    /// ignores, so a call that fails with EINTR then is repaired as after our own stops.
    fn pass_on(&mut self, standing: Standing) {
        let Standing { tid, signal } = standing;
        if signal != 0 && sys::registers(tid, &mut self.raw).is_ok() {
            self.repair(tid, signal);
        }
    }

    /// Repairs the call that this stop interrupted, of the thread whose registers were read.
    fn repair(&mut self, tid: pid_t, signal: c_int) {
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let is_handled = || signal != 0 && !ignores(self.pid, signal);
        if registers::repair_interrupted_call(&mut self.raw, &mut thread.calls, is_handled) {
            let _ = sys::set_registers(tid, &mut self.raw);
        }
    }

    /// A thread that the kernel attached for us, before its first instruction.
    fn new_thread(&mut self, standing: Standing) -> Option<Event> {
        let tid = standing.tid;
        let read = sys::registers(tid, &mut self.raw).is_ok();
        let stack_top = read.then(|| registers::convert(&self.raw).sp());
        if self.adopt(tid, stack_top) {
            return Some(Event::ThreadStarted { thread: thread_id(tid), stack_top });
        }
        // A process made by clone() with another exit signal than SIGCHLD: not ours.
        if fs::metadata(format!("/proc/{}/task/{tid}", self.pid)).is_err() {
            let _ = sys::detach(tid);
        }
        None
    }

    /// Whatever thread called `exec` goes on under the process's number; the others are gone.
    fn exec(&mut self, standing: Standing) -> Event {
        self.threads.clear();
        self.outstanding = 0;
        self.memory_of = self.pid;
        self.adopt(standing.tid, None);
        let stack_top = self.threads.get(&standing.tid).and_then(|thread| thread.stack_top);
        Event::Exec { thread: thread_id(standing.tid), stack_top }
    }

    /// Registers and stack bytes of a thread that stands; it runs again on return.
    fn collect(&mut self, standing: Standing, pending: Pending, capture: &mut Capture) -> Outcome {
        let tid = standing.tid;
        let seen_ns = self.clock.now_ns();
        let outcome = self.read_standing(tid, pending, seen_ns, capture);
        if !matches!(outcome, Outcome::Unreadable(_)) {
            self.repair(tid, standing.signal);
        }
        drop(standing);
        let end_ns = self.clock.now_ns();
        // A thread that stopped while we slept had waited for a CPU: it stands since the
        // end of that sleep or a little longer.
        capture.pause_ns = end_ns - self.slept_until_ns.max(pending.asked_ns);
        capture.stood_ns = end_ns - seen_ns;
        if outcome == Outcome::BeganToWait
            && let Some(thread) = self.threads.get_mut(&tid)
        {
            thread.doubt();
        }
        outcome
    }

    /// The same of a thread that job control has stopped: it can be read as it stands, and
    /// nothing is changed in it, since its interrupted call is not of our making.
    fn read_stopped(&mut self, tid: pid_t, pending: Pending, capture: &mut Capture) -> Outcome {
        (capture.pause_ns, capture.stood_ns, capture.look) = (0, 0, None);
        if !pending.keep_waiting {
            return Outcome::Unreadable("stopped by job control");
        }
        let seen_ns = self.clock.now_ns();
        self.read_standing(tid, pending, seen_ns, capture)
    }

    fn read_standing(
        &mut self,
        tid: pid_t,
        pending: Pending,
        seen_ns: u64,
        capture: &mut Capture,
    ) -> Outcome {
        match sys::registers(tid, &mut self.raw) {
            Ok(len) if len == size_of::<RawRegisters>() => {}
            Ok(_) => return Outcome::Unreadable("32-bit code"),
            Err(_) => return Outcome::Unreadable("killed while stopped"),
        }
        let in_call = registers::interrupted_call(&self.raw);
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Outcome::Unreadable("killed while stopped");
        };
        // Reading the registers has waited until the thread was off its CPU: exact.
        let stopped = thread.sched();
        capture.look = stopped.map(|sched| Look {
            cpu_ns: sched.cpu_ns,
            switches: sched.switches,
            activity: Activity::Runnable,
        });
        let stopped = stopped.unwrap_or(pending.before);
        thread.stands(stopped);
        let times = Times { looked_ns: pending.looked_ns, asked_ns: pending.asked_ns, seen_ns };
        let kept_cpu = stopped.switches == pending.before.switches;
        let outcome = match () {
            () if pending.keep_waiting => Outcome::Captured,
            // In a call that was about to wait, it did not yet.
            () if in_call && !kept_cpu => Outcome::BeganToWait,
            () if was_on_cpu(pending.before, stopped, times, self.own.stint) => Outcome::Captured,
            () => Outcome::NotOnCpu,
        };
        if outcome == Outcome::Captured {
            capture.registers = registers::convert(&self.raw);
            let sp = capture.registers.sp();
            let below_top = thread
                .stack_top
                .map(|top| top.0.wrapping_sub(sp.0) as usize)
                .filter(|len| *len <= MAX_WINDOW_BYTES)
                .map(|len| len + ABOVE_TOP_BYTES);
            let len = pending.window_bytes.min(MAX_WINDOW_BYTES).min(below_top.unwrap_or(MAX_WINDOW_BYTES));
            copy_stack(tid, sp, len, capture);
        }
        outcome
    }

    /// Acts on the end of a thread: its last figures are read before it is let go.
    fn ended(&mut self, how: Waited) {
        let Some(status) = how.exit_status() else { return };
        let tid = how.tid();
        let cpu_ns = self.threads.get(&tid).and_then(Thread::sched).map(|sched| sched.cpu_ns);
        self.no_longer_pending(tid);
        self.threads.remove(&tid);
        // A launched process is our child, too: reaped, it counts among our children's CPU
        // times (getrusage(2)). Where its `exec` failed, `Command::spawn` waits for it and
        // panics if it is gone.
        if tid != self.pid || !self.spawning {
            let _ = sys::reap(tid);
        }
        self.queue.push_back(Event::ThreadExited { thread: thread_id(tid), cpu_ns });
        if tid == self.pid {
            self.process_ended(status);
        }
    }

    fn process_ended(&mut self, status: ExitStatus) {
        self.ended = true;
        self.threads.clear();
        self.outstanding = 0;
        self.queue.push_back(Event::Exited(status));
    }

    /// Sleeps until something may have happened; an event if it concerns the profiler.
    fn sleep(&mut self, at_most_ns: u64) -> Option<Event> {
        let due_ns = self.clock.now_ns().saturating_add(at_most_ns);
        let signal = sys::sleep_for_signal(&SIGNALS, Duration::from_nanos(at_most_ns));
        self.slept_until_ns = self.clock.now_ns();
        self.own.woke(signal.is_none().then(|| self.slept_until_ns.saturating_sub(due_ns)));
        let signal = signal?;
        if signal == libc::SIGCHLD {
            return None;
        }
        if self.launched {
            // The command decides what it does; the recording ends when it ends.
            let _ = sys::kill(self.pid, signal);
            return None;
        }
        Some(Event::Terminate)
    }
}

/// Whether a signal that reaches a process runs no handler of it, and does nothing else either.
fn ignores(pid: pid_t, signal: c_int) -> bool {
    let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let bit = |key| {
        let set = proc::status_value(&status, key).and_then(|hex| u64::from_str_radix(hex, 16).ok());
        set.is_some_and(|set| set >> (signal - 1) & 1 == 1)
    };
    let ignored_by_default = matches!(signal, libc::SIGCHLD | libc::SIGURG | libc::SIGWINCH | libc::SIGCONT);
    bit("SigIgn") || ignored_by_default && !bit("SigCgt")
}

/// Copies `len` bytes from the stack pointer up, and what code may keep below it.
fn copy_stack(tid: pid_t, sp: Avma, len: usize, capture: &mut Capture) {
    let below = if cfg!(target_arch = "x86_64") { RED_ZONE_BYTES.min(sp.0) } else { 0 };
    // Below there may be no memory, and on top of a stack nothing above.
    for below in [below, 0] {
        capture.stack_base = Avma(sp.0 - below);
        // By the thread's own number: the first thread may have left, and its memory with it.
        let read = sys::read_memory_into(tid, capture.stack_base.0, len + below as usize, &mut capture.stack);
        if read.is_ok_and(|read| read as u64 > below) {
            return;
        }
    }
    capture.stack.clear();
}

impl Observed for LinuxTarget {
    fn process(&self) -> &Process {
        &self.process
    }

    fn files(&mut self) -> Arc<dyn Files> {
        Arc::new(TargetFiles::of(self.pid))
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        threads::name(self.pid, tid_of(thread))
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.maps.read_through(&mut self.memory_of, self.threads.keys().copied(), out)
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, String> {
        self.maps.bytes(self.memory_of, mapping)
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        sys::read_memory(self.memory_of, from.0, into).map_err(|_| Fault::Transient("memory not mapped"))
    }
}

impl Target for LinuxTarget {
    fn threads(&mut self, out: &mut Vec<(ThreadId, Option<Avma>)>) {
        out.clear();
        out.extend(self.threads.iter().map(|(tid, thread)| (thread_id(*tid), thread.stack_top)));
        out.sort_unstable();
    }

    fn look(&mut self, thread: ThreadId) -> Result<Look, Fault> {
        let now_ns = self.clock.now_ns();
        self.threads.get_mut(&tid_of(thread)).ok_or(Fault::ThreadGone)?.look(now_ns, &mut self.wchan)
    }

    fn interrupt(&mut self, thread: ThreadId, window_bytes: usize, keep_waiting: bool) -> Result<(), Fault> {
        let tid = tid_of(thread);
        let entry = self.threads.get_mut(&tid).ok_or(Fault::ThreadGone)?;
        if entry.pending.is_some() {
            return Ok(());
        }
        if keep_waiting {
            entry.calls.before_stop(tid);
        }
        let asked_ns = self.clock.now_ns();
        if sys::interrupt(tid).is_err() {
            entry.doubt();
            return Err(Fault::ThreadGone);
        }
        let (looked_ns, before) = entry.looked();
        entry.pending = Some(Pending { window_bytes, keep_waiting, asked_ns, looked_ns, before });
        self.outstanding += 1;
        // Read only now: what passes between the look and the stop is time in which the thread
        // may leave its CPU.
        if entry.cpu() != sys::current_cpu() {
            self.poll_until_ns = self.clock.now_ns() + POLL_NS;
        }
        Ok(())
    }

    fn next(&mut self, until_ns: u64, capture: &mut Capture) -> Result<Event, Fault> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Ok(event);
            }
            if self.ended {
                return Err(Fault::Gone);
            }
            let before_ns = self.clock.now_ns();
            match sys::look_for_stopped() {
                Ok(Some(Waited::Stopped { tid, signal, event })) => {
                    if let Some(event) = self.stopped(tid, signal, event, capture) {
                        return Ok(event);
                    }
                    // A target that lives on signals must not keep the engine from its ticks.
                    if before_ns >= until_ns {
                        return Ok(Event::Timeout);
                    }
                    continue;
                }
                Ok(_) if self.outstanding > 0 && before_ns < self.poll_until_ns => {
                    std::hint::spin_loop();
                    continue;
                }
                // An error says that nothing is left that could stop, only what has ended.
                Ok(_) | Err(_) => {}
            }
            match sys::peek_exited() {
                Ok(Some(how)) => {
                    self.ended(how);
                    continue;
                }
                Ok(_) => {}
                // Nothing is traced any more.
                Err(_) => {
                    self.process_ended(ExitStatus::Unknown);
                    continue;
                }
            }
            if before_ns >= until_ns {
                return Ok(Event::Timeout);
            }
            if let Some(event) = self.sleep(until_ns - before_ns) {
                return Ok(event);
            }
        }
    }

    fn waits_at(&mut self, thread: ThreadId) -> Option<(Avma, Avma)> {
        proc::waits_at(&fs::read(format!("/proc/{}/task/{}/syscall", self.pid, thread.0)).ok()?)
    }
}

impl Drop for LinuxTarget {
    /// Threads asked to stop are collected for a moment and let run; what stops later, or
    /// stands for another reason, the kernel lets go when this thread ends.
    fn drop(&mut self) {
        let mut capture = Capture::with_capacity(0);
        let until_ns = self.clock.now_ns() + 2_000_000;
        while self.outstanding > 0 && self.clock.now_ns() < until_ns {
            if self.next(until_ns, &mut capture).is_err() {
                return;
            }
        }
    }
}

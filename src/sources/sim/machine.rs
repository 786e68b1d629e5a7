//! The simulated machine: threads that share CPUs in virtual time, from event to event.
//!
//! `Machine`: the machine; `Thread`: a thread with its script; `StackImage`: the memory of its stack.
//!
//! Input: programs, times and stop requests. Output: events in order, with every nanosecond accounted in the
//! ledger. It is independent of the profiler's buffers, of faults and of the fake clock (see `mod.rs`).

use std::collections::VecDeque;
use std::ops::Range;
use std::rc::Rc;

use super::config::{FunctionId, STACK_BYTES, SimActivity, SimPhase};
use super::images::Code;
use super::ledger::SimLedger;
use crate::addr::Avma;
use crate::arch::{Aarch64, Arch, RED_ZONE_BYTES, Registers, X86_64};
use crate::rng;
use crate::sources::{Activity, ExitStatus, TargetEvent, ThreadId, ThreadStatus};

/// An event at a planned time. At equal times, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum MachineEvent {
    Start(usize),
    Leave(usize),
    Exec,
    Terminate,
    Exit,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cpu {
    runs: Option<usize>,
    /// A stopped thread that gets this CPU back, since its slice is not over.
    lent_by: Option<usize>,
}

/// Output of the machine.
#[derive(Debug)]
pub(super) enum MachineOutput {
    Event(TargetEvent),
    /// This thread is stopped and can be collected.
    Ready(usize),
}

/// The exec of a machine's process.
#[derive(Debug)]
pub(super) struct Exec {
    /// The next program, until it runs.
    program: Option<Program>,
    /// The exec waits for the release of a stopped thread.
    is_due: bool,
    /// The process has replaced its program.
    pub(super) is_done: bool,
}

#[derive(Debug)]
pub(super) struct Machine {
    pub(super) now_ns: u64,
    pub(super) threads: Vec<MachineThread>,
    pub(super) out: VecDeque<MachineOutput>,
    /// The process has ended.
    pub(super) ended: bool,
    pub(super) exec: Exec,
    pub(super) ledger: Rc<SimLedger>,
    cpus: Vec<Cpu>,
    queue: VecDeque<usize>,
    turns: u64,
    /// Sorted; past events are removed from the front.
    timeline: VecDeque<(u64, MachineEvent)>,
    /// Id of the process and its first thread.
    leader: ThreadId,
    exit: ExitStatus,
    slice_ns: u64,
    accounting_tick_ns: u64,
    stop_latency_ns: u64,
}

/// Parameters of a machine.
pub(super) struct Setup {
    pub(super) now_ns: u64,
    pub(super) threads: Vec<MachineThread>,
    pub(super) timeline: Vec<(u64, MachineEvent)>,
    pub(super) exec_program: Option<Program>,
    pub(super) leader: ThreadId,
    pub(super) exit: ExitStatus,
    pub(super) cpus: usize,
    pub(super) slice_ns: u64,
    pub(super) accounting_tick_ns: u64,
    pub(super) stop_latency_ns: u64,
    pub(super) ledger: Rc<SimLedger>,
}

impl Machine {
    /// Threads with a start time up to now exist from the outset, without an event.
    pub(super) fn new(setup: Setup) -> Machine {
        let mut timeline = setup.timeline;
        timeline.sort_unstable();
        let mut machine = Machine {
            now_ns: setup.now_ns,
            threads: setup.threads,
            out: VecDeque::new(),
            ended: false,
            exec: Exec { program: setup.exec_program, is_due: false, is_done: false },
            ledger: setup.ledger,
            cpus: vec![Cpu::default(); setup.cpus],
            queue: VecDeque::new(),
            turns: 0,
            timeline: timeline.into(),
            leader: setup.leader,
            exit: setup.exit,
            slice_ns: setup.slice_ns,
            accounting_tick_ns: setup.accounting_tick_ns,
            stop_latency_ns: setup.stop_latency_ns,
        };
        machine.happen();
        machine.out.retain(|out| matches!(out, MachineOutput::Event(TargetEvent::Exited(_))));
        machine
    }

    pub(super) fn alive(&self, thread: ThreadId) -> Option<usize> {
        self.threads.iter().position(|known| known.id == thread && known.alive())
    }

    /// The state of a thread visible to the system: its CPU time as of the last accounting tick while it runs,
    /// exact otherwise.
    pub(super) fn poll(&self, index: usize) -> ThreadStatus {
        let thread = &self.threads[index];
        let lag_ns = match thread.state {
            ThreadState::Cpu(_) => {
                let tick_ns = self.now_ns - self.now_ns % self.accounting_tick_ns;
                self.now_ns - tick_ns.max(thread.on_cpu_since_ns)
            }
            _ => 0,
        };
        let activity = match thread.phase().activity {
            SimActivity::Run => Activity::Runnable,
            SimActivity::Wait => Activity::Waiting,
            SimActivity::Stopped => Activity::Stopped,
        };
        ThreadStatus { cpu_ns: thread.cpu_ns - lag_ns, switches: thread.switches, activity }
    }

    /// Requests a stop: a thread stops as soon as it is on a CPU; immediately if it does not need one.
    pub(super) fn ask(&mut self, index: usize, stack_bytes: usize, keep_waiting: bool) {
        let thread = &mut self.threads[index];
        thread.pending = Some(Pending {
            stack_bytes,
            keep_waiting,
            asked_ns: self.now_ns,
            running_since_asked: matches!(thread.state, ThreadState::Cpu(_)),
            due_ns: self.now_ns.saturating_add(self.stop_latency_ns),
        });
        if thread.state == ThreadState::Off {
            match thread.phase().activity {
                SimActivity::Stopped => self.ledger.interrupted_a_stopped_thread(),
                _ => self.ledger.interrupted_a_waiting_thread(),
            }
            self.stop_thread(index);
        }
    }

    /// An upper bound of a thread's stop time, from the profiler's point of view.
    pub(super) fn pause_ns(&self, index: usize) -> u64 {
        let thread = &self.threads[index];
        let since_ns = match (thread.state, thread.pending) {
            (_, Some(pending)) if pending.running_since_asked => pending.asked_ns,
            (ThreadState::Stopped { since_ns }, _) => since_ns,
            _ => self.now_ns,
        };
        self.now_ns - since_ns
    }

    /// Releases a stopped thread, which runs, waits or ends. A second call has no effect.
    pub(super) fn release(&mut self, index: usize) {
        let thread = &mut self.threads[index];
        let ThreadState::Stopped { since_ns } = thread.state else { return };
        self.ledger.record_release(thread.id, self.now_ns - since_ns, false);
        thread.pending = None;
        thread.state = ThreadState::Off;
        if thread.exits {
            self.die(index);
        } else if thread.phase().activity == SimActivity::Run {
            self.threads[index].state = ThreadState::Runnable;
            if let Some(cpu) = self.cpus.iter().position(|cpu| cpu.lent_by == Some(index)) {
                if let Some(other) = self.cpus[cpu].runs {
                    self.leave_cpu(other);
                    self.threads[other].state = ThreadState::Runnable;
                    self.queue.push_front(other);
                }
                self.put_on(cpu, index);
            } else if self.threads[index].slice_ns > 0 {
                self.queue.push_front(index);
            } else {
                self.queue.push_back(index);
            }
        }
        if std::mem::take(&mut self.exec.is_due) {
            self.exec();
        }
        self.fill_cpus();
    }

    /// Advances to the next event, if there is one up to `limit_ns`. Otherwise advances to `limit_ns`, and returns
    /// false.
    pub(super) fn step(&mut self, limit_ns: u64) -> bool {
        let next_ns = self.next_instant().filter(|at| *at <= limit_ns);
        self.advance(next_ns.unwrap_or(limit_ns));
        if next_ns.is_some() {
            self.happen();
            self.settle();
        }
        next_ns.is_some()
    }

    /// Runs to `limit_ns`; events on the way are in `out`.
    pub(super) fn run_to(&mut self, limit_ns: u64) {
        while self.step(limit_ns) {}
    }

    /// Time of the next event, without interference.
    pub(super) fn next_instant(&self) -> Option<u64> {
        if self.ended {
            return None;
        }
        let mut next = self.timeline.front().map_or(u64::MAX, |(at, _)| *at);
        for thread in &self.threads {
            match thread.state {
                ThreadState::Cpu(_) => {
                    next = next.min(self.now_ns.saturating_add(thread.left_ns));
                    if !self.queue.is_empty() {
                        next = next.min(self.now_ns.saturating_add(thread.slice_ns));
                    }
                    next = next.min(thread.pending.map_or(u64::MAX, |pending| pending.due_ns));
                }
                ThreadState::Off => next = next.min(thread.until_ns),
                ThreadState::NotStarted
                | ThreadState::Runnable
                | ThreadState::Stopped { .. }
                | ThreadState::Dead => {}
            }
        }
        (next < u64::MAX).then_some(next.max(self.now_ns))
    }

    /// Advances time without events, and accounts for it.
    fn advance(&mut self, to_ns: u64) {
        let ns = to_ns.saturating_sub(self.now_ns);
        if ns == 0 {
            return;
        }
        self.now_ns = to_ns;
        if self.ended {
            return;
        }
        for thread in &mut self.threads {
            if let ThreadState::Cpu(_) = thread.state {
                thread.cpu_ns += ns;
                thread.left_ns = thread.left_ns.saturating_sub(ns);
                thread.slice_ns = thread.slice_ns.saturating_sub(ns);
                self.ledger.ran(thread.program.phases[thread.phase].slot, ns);
            } else if thread.alive() && thread.phase().activity == SimActivity::Wait {
                self.ledger.waited(thread.program.phases[thread.phase].slot, ns);
            }
        }
        self.ledger.cpus_idle(self.cpus.iter().filter(|cpu| cpu.runs.is_none()).count() as u64 * ns);
    }

    /// Executes the timeline's events that are due.
    fn happen(&mut self) {
        while let Some(&(at_ns, what)) = self.timeline.front() {
            if self.ended || at_ns > self.now_ns {
                return;
            }
            self.timeline.pop_front();
            match what {
                MachineEvent::Start(index) if self.threads[index].state == ThreadState::NotStarted => {
                    let MachineThread { id, .. } = self.threads[index];
                    let stack_top = self.threads[index].stack_top();
                    self.out.push_back(MachineOutput::Event(TargetEvent::ThreadStarted {
                        thread: id,
                        stack_top,
                    }));
                    self.enter_phase(index);
                }
                MachineEvent::Start(_) => {}
                MachineEvent::Leave(index) => match self.threads[index].state {
                    ThreadState::NotStarted => self.threads[index].state = ThreadState::Dead,
                    ThreadState::Dead => {}
                    ThreadState::Stopped { .. } => self.threads[index].exits = true,
                    _ => self.die(index),
                },
                MachineEvent::Exec => self.exec(),
                MachineEvent::Terminate => self.out.push_back(MachineOutput::Event(TargetEvent::Terminate)),
                MachineEvent::Exit => self.end_process(),
            }
        }
    }

    /// Executes the actions that are due for each thread.
    fn settle(&mut self) {
        for index in 0..self.threads.len() {
            let thread = &self.threads[index];
            match thread.state {
                ThreadState::Cpu(_) => {
                    if thread.pending.is_some_and(|pending| pending.due_ns <= self.now_ns) {
                        self.stop_thread(index);
                    } else if thread.left_ns == 0 {
                        self.next_phase(index);
                    }
                }
                ThreadState::Off if thread.until_ns <= self.now_ns => self.next_phase(index),
                _ => {}
            }
        }
        // Slices that end at the same time end in the order of their start; otherwise the first threads would
        // always be first in the queue.
        while !self.queue.is_empty()
            && let Some((cpu, index)) = self.expired()
        {
            self.leave_cpu(index);
            self.cpus[cpu].lent_by = None;
            self.threads[index].state = ThreadState::Runnable;
            self.queue.push_back(index);
            self.fill_cpus();
        }
        self.fill_cpus();
    }

    /// The CPU and thread with the longest expired slice.
    fn expired(&self) -> Option<(usize, usize)> {
        let running = self.cpus.iter().enumerate().filter_map(|(cpu, state)| Some((cpu, state.runs?)));
        let expired = running.filter(|(_, index)| self.threads[*index].slice_ns == 0);
        expired.min_by_key(|(_, index)| self.threads[*index].turn)
    }

    fn next_phase(&mut self, index: usize) {
        let thread = &mut self.threads[index];
        thread.phase += 1;
        if thread.phase == thread.program.phases.len() {
            if !thread.program.looping {
                // Account for its end in its last phase.
                thread.phase -= 1;
                self.die(index);
                return;
            }
            thread.phase = 0;
        }
        self.enter_phase(index);
    }

    fn enter_phase(&mut self, index: usize) {
        let thread = &mut self.threads[index];
        let Phase { activity, duration_ns, .. } = thread.program.phases[thread.phase];
        if activity == SimActivity::Run {
            thread.left_ns = duration_ns;
            if !matches!(thread.state, ThreadState::Cpu(_)) {
                thread.state = ThreadState::Runnable;
                thread.slice_ns = self.slice_ns;
                self.queue.push_back(index);
            }
        } else {
            thread.until_ns = self.now_ns.saturating_add(duration_ns);
            self.leave_cpu(index);
            self.threads[index].state = ThreadState::Off;
            if self.threads[index].pending.is_some() {
                // A thread with a pending stop does not start to sleep.
                self.stop_thread(index);
            }
        }
        self.fill_cpus();
    }

    fn stop_thread(&mut self, index: usize) {
        if let ThreadState::Cpu(cpu) = self.threads[index].state {
            let (lender, pending) = (self.cpus[cpu].lent_by, self.threads[index].pending);
            self.leave_cpu(index);
            self.cpus[cpu].lent_by = lender.or(Some(index));
            self.threads[index].pending = pending;
        }
        self.threads[index].state = ThreadState::Stopped { since_ns: self.now_ns };
        self.ledger.record_stop(self.threads[index].id);
        self.out.push_back(MachineOutput::Ready(index));
        self.fill_cpus();
    }

    fn leave_cpu(&mut self, index: usize) {
        let ThreadState::Cpu(cpu) = self.threads[index].state else { return };
        self.cpus[cpu].runs = None;
        self.threads[index].state = ThreadState::Off;
        if let Some(pending) = &mut self.threads[index].pending {
            pending.running_since_asked = false;
        }
    }

    fn put_on(&mut self, cpu: usize, index: usize) {
        self.cpus[cpu].runs = Some(index);
        if self.cpus[cpu].lent_by == Some(index) {
            self.cpus[cpu].lent_by = None;
        }
        self.turns += 1;
        let thread = &mut self.threads[index];
        thread.state = ThreadState::Cpu(cpu);
        thread.switches += 1;
        thread.turn = self.turns;
        thread.on_cpu_since_ns = self.now_ns;
        if thread.slice_ns == 0 {
            thread.slice_ns = self.slice_ns;
        }
        if let Some(pending) = &mut thread.pending {
            // A stop is delivered before the thread returns to user mode.
            pending.due_ns = self.now_ns;
        }
    }

    fn fill_cpus(&mut self) {
        if self.ended {
            return;
        }
        for cpu in 0..self.cpus.len() {
            if self.cpus[cpu].runs.is_none()
                && let Some(index) = self.queue.pop_front()
            {
                self.put_on(cpu, index);
            }
        }
    }

    /// Ends a thread in any state.
    pub(super) fn die(&mut self, index: usize) {
        self.leave_cpu(index);
        self.queue.retain(|queued| *queued != index);
        self.out.retain(|out| !matches!(out, MachineOutput::Ready(ready) if *ready == index));
        for cpu in &mut self.cpus {
            cpu.lent_by = cpu.lent_by.filter(|lender| *lender != index);
        }
        let thread = &mut self.threads[index];
        if let ThreadState::Stopped { since_ns } = thread.state {
            self.ledger.record_release(thread.id, self.now_ns - since_ns, true);
        }
        thread.pending = None;
        thread.state = ThreadState::Dead;
        let event = TargetEvent::ThreadExited { thread: thread.id, cpu_ns: Some(thread.cpu_ns) };
        self.out.push_back(MachineOutput::Event(event));
        self.fill_cpus();
        if !self.ended && !self.threads.iter().any(MachineThread::alive) {
            self.end_process();
        }
    }

    /// Ends the process: reports the end of each thread, then its own.
    pub(super) fn end_process(&mut self) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        for index in 0..self.threads.len() {
            if self.threads[index].alive() {
                self.die(index);
            }
        }
        self.out.push_back(MachineOutput::Event(TargetEvent::Exited(self.exit)));
    }

    /// Replaces the program: the leader (or a remaining thread) continues, the other threads end. A stopped thread
    /// cannot execute anything, so it does this when it is released.
    pub(super) fn exec(&mut self) {
        let Some(leader) = self.threads.iter().position(MachineThread::alive) else { return };
        if let ThreadState::Stopped { .. } = self.threads[leader].state {
            self.exec.is_due = true;
            return;
        }
        let Some(program) = self.exec.program.take() else { return };
        for index in 0..self.threads.len() {
            match self.threads[index].state {
                ThreadState::NotStarted => self.threads[index].state = ThreadState::Dead,
                ThreadState::Dead => {}
                _ if index == leader => {}
                _ => self.die(index),
            }
        }
        self.exec.is_done = true;
        self.leave_cpu(leader);
        self.queue.clear();
        let thread = &mut self.threads[leader];
        // The thread that calls exec continues under the process id.
        thread.id = self.leader;
        thread.program = program;
        thread.phase = 0;
        thread.state = ThreadState::Off;
        let event = TargetEvent::Exec { thread: thread.id, stack_top: thread.stack_top() };
        self.out.push_back(MachineOutput::Event(event));
        self.enter_phase(leader);
    }
}

// ---- A simulated thread: its script, its position in it, and its times.
//
// Plain state; `machine.rs` advances it.

/// One phase of a program, ready to run.
#[derive(Debug)]
pub(super) struct Phase {
    pub(super) activity: SimActivity,
    pub(super) duration_ns: u64,
    /// The ledger slot of its times.
    pub(super) slot: usize,
    pub(super) stack: StackImage,
}

/// The program of a thread.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) phases: Vec<Phase>,
    pub(super) looping: bool,
    pub(super) stack_top: Option<Avma>,
}

/// A stop request that has not been collected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) stack_bytes: usize,
    pub(super) keep_waiting: bool,
    pub(super) asked_ns: u64,
    /// The thread has been on a CPU since the request.
    pub(super) running_since_asked: bool,
    /// Time of the stop for a thread on a CPU.
    pub(super) due_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ThreadState {
    NotStarted,
    Cpu(usize),
    /// Needs a CPU.
    Runnable,
    /// Waits or is under job control.
    Off,
    /// Stopped for the profiler.
    Stopped {
        since_ns: u64,
    },
    Dead,
}

#[derive(Debug)]
pub(super) struct MachineThread {
    pub(super) id: ThreadId,
    pub(super) name: Option<String>,
    pub(super) program: Program,
    pub(super) phase: usize,
    pub(super) state: ThreadState,
    /// CPU time until a running phase ends.
    pub(super) left_ns: u64,
    /// End of a waiting phase.
    pub(super) until_ns: u64,
    /// Rest of its slice.
    pub(super) slice_ns: u64,
    pub(super) cpu_ns: u64,
    pub(super) on_cpu_since_ns: u64,
    pub(super) switches: u64,
    /// When it was last scheduled, in order over all threads.
    pub(super) turn: u64,
    pub(super) pending: Option<Pending>,
    /// Ends as soon as it is no longer stopped.
    pub(super) exits: bool,
}

impl MachineThread {
    pub(super) fn new(id: ThreadId, name: Option<String>, program: Program) -> MachineThread {
        MachineThread {
            id,
            name,
            program,
            phase: 0,
            state: ThreadState::NotStarted,
            left_ns: 0,
            until_ns: 0,
            slice_ns: 0,
            cpu_ns: 0,
            on_cpu_since_ns: 0,
            switches: 0,
            turn: 0,
            pending: None,
            exits: false,
        }
    }

    pub(super) fn phase(&self) -> &Phase {
        &self.program.phases[self.phase]
    }

    pub(super) fn stack_top(&self) -> Option<Avma> {
        self.program.stack_top
    }

    pub(super) fn alive(&self) -> bool {
        !matches!(self.state, ThreadState::NotStarted | ThreadState::Dead)
    }
}

// ---- The memory of a simulated thread's stack: frame records, return addresses, locals.
//
// Input: a phase's frames. Output: bytes from the stack pointer up and registers that a frame pointer walk maps
// back to exactly these frames.
//
// ```text
// x86_64                              aarch64
//   stack_top   (argc, environment)     stack_top
//   locals of the root                  locals of the root     x29 = 0: no record
//   return address in the root          locals of frame 1
//   saved rbp = 0      <- rbp of 1      lr: return address in the root
//   locals of frame 1                   saved x29 = 0          <- x29 of 1
//   return address in frame 1           locals of frame 2
//   saved rbp          <- rbp of 2      lr, saved x29          <- x29 of 2
// ```
// The root is like `_start`: it has no record, and its callee's record ends the chain.

/// Bits of a code pointer outside the signature.
pub(super) const ADDRESS_MASK: u64 = (1 << 48) - 1;
const PAGE_BYTES: u64 = 4096;

/// The location of a thread's stack.
#[derive(Clone, Debug)]
pub(super) struct StackPlace {
    /// Mapped memory.
    pub(super) mapped: Range<Avma>,
    /// Stack pointer at the thread's first instruction; there are no frames above it.
    pub(super) top: Avma,
}

impl StackPlace {
    /// The location of stack number `index`.
    pub(super) fn new(seed: u64, index: u64) -> StackPlace {
        let end = Avma(0x7ffc_0000_0000 - index * 2 * STACK_BYTES);
        let above = rng::hash(&[seed, index, 0x746f_7000]) % (PAGE_BYTES / 16) * 16;
        StackPlace { mapped: Avma(end.0 - STACK_BYTES)..end, top: Avma(end.0 - above) }
    }
}

/// The stack of a thread in one phase.
#[derive(Debug)]
pub(super) struct StackImage {
    place: StackPlace,
    sp: Avma,
    fp: u64,
    /// aarch64: the link register.
    lr: u64,
    leaf: FunctionId,
    frameless_leaf: bool,
    /// Bytes from the stack pointer to the end of the mapping.
    bytes: Vec<u8>,
    /// Return addresses from the leaf outward, without signatures.
    pub(super) returns: Vec<Avma>,
}

impl StackImage {
    /// Lays out the stack of `phase`. `sign` adds signatures to the return addresses in memory.
    pub(super) fn new(
        code: &Code,
        phase: &SimPhase,
        place: &StackPlace,
        seed: u64,
        sign: bool,
    ) -> StackImage {
        let mut sp = place.top.0;
        let mut fp = 0;
        let mut lr = 0;
        let mut words = Vec::new();
        let mut returns = Vec::new();
        let depth = phase.stack.len();
        let locals = |index: usize| phase.stack[index].local_bytes.next_multiple_of(16);
        sp -= locals(0);
        for callee in 1..depth {
            let address = code.return_address(phase.stack[callee - 1].function, phase.stack[callee].function);
            returns.push(address);
            let signature = if sign { rng::hash(&[seed, address.0, sp]) & !ADDRESS_MASK } else { 0 };
            let saved = address.0 | signature;
            let frameless = phase.frameless_leaf && callee == depth - 1;
            match code.arch {
                Arch::X86_64 | Arch::X86 => {
                    sp -= 8;
                    words.push((sp, saved));
                    if frameless {
                        break;
                    }
                    sp -= 8;
                    words.push((sp, fp));
                    fp = sp;
                    sp -= locals(callee);
                }
                Arch::Aarch64 | Arch::Arm => {
                    if frameless {
                        // A leaf that saves nothing also signs nothing.
                        lr = address.0;
                        sp -= locals(callee);
                        break;
                    }
                    sp -= locals(callee) + 16;
                    words.extend([(sp, fp), (sp + 8, saved)]);
                    fp = sp;
                    // The value that is still in lr before the function calls.
                    lr = saved;
                }
            }
        }
        returns.reverse();
        let leaf = phase.stack[depth - 1].function;
        let frameless_leaf = phase.frameless_leaf && depth > 1;
        if !frameless_leaf && rng::hash(&[seed, sp, fp]).is_multiple_of(2) {
            // The value left in lr after a call: an address in the function itself.
            lr = code.pc(leaf, false, rng::hash(&[seed, fp])).0;
        }
        let base = sp - RED_ZONE_BYTES;
        let mut bytes = Vec::with_capacity(usize::try_from(place.mapped.end.0 - base).unwrap_or(0));
        let mut at = base;
        while at < place.mapped.end.0 {
            bytes.extend_from_slice(&filler(code, place, rng::hash(&[seed, at, fp])).to_le_bytes());
            at += 8;
        }
        for (at, word) in words {
            let offset = usize::try_from(at - base).unwrap_or(usize::MAX);
            bytes[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
        }
        StackImage { place: place.clone(), sp: Avma(sp), fp, lr, leaf, frameless_leaf, bytes, returns }
    }

    /// The program counter at the time `random`.
    pub(super) fn pc(&self, code: &Code, random: u64) -> Avma {
        code.pc(self.leaf, self.frameless_leaf, random)
    }

    /// The registers with this program counter; unused ones contain filler.
    pub(super) fn registers(&self, code: &Code, pc: Avma) -> Registers {
        let word = |number: u64| filler(code, &self.place, rng::hash(&[pc.0, number]));
        match code.arch {
            Arch::X86_64 | Arch::X86 => {
                let mut registers =
                    X86_64 { rip: pc.0, fs_base: self.place.mapped.start.0, ..X86_64::default() };
                (0..).zip(&mut registers.gpr).for_each(|(number, register)| *register = word(number));
                registers.gpr[X86_64::RBP] = self.fp;
                registers.gpr[X86_64::RSP] = self.sp.0;
                Registers::X86_64(registers)
            }
            Arch::Aarch64 | Arch::Arm => {
                let mut registers = Aarch64 { pc: pc.0, sp: self.sp.0, ..Aarch64::default() };
                (0..).zip(&mut registers.x).for_each(|(number, register)| *register = word(number));
                registers.x[Aarch64::FP] = self.fp;
                registers.x[Aarch64::LR] = self.lr;
                Registers::Aarch64(registers)
            }
        }
    }

    /// Start address of the bytes, below the stack pointer.
    pub(super) fn base(&self) -> Avma {
        Avma(self.sp.0 - RED_ZONE_BYTES)
    }

    /// Copies the bytes below the stack pointer and up to `stack_bytes` above it, at most to the stack's top.
    pub(super) fn copy_stack(&self, stack_bytes: usize, into: &mut Vec<u8>) {
        let used = usize::try_from(self.place.top - self.sp).unwrap_or(usize::MAX);
        let length = stack_bytes.min(used).saturating_add(RED_ZONE_BYTES as usize);
        into.clear();
        into.extend_from_slice(&self.bytes[..length.min(self.bytes.len())]);
    }

    /// Reads the stack's memory. Returns the number of bytes read.
    pub(super) fn read(&self, from: Avma, into: &mut [u8]) -> Option<usize> {
        if !self.place.mapped.contains(&from) {
            return None;
        }
        let count = usize::try_from(self.place.mapped.end - from).unwrap_or(usize::MAX).min(into.len());
        let below = usize::try_from(self.base().0.saturating_sub(from.0)).unwrap_or(usize::MAX).min(count);
        into[..below].fill(0);
        if below < count {
            let first = usize::try_from(from.0.saturating_sub(self.base().0)).ok()?;
            into[below..count].copy_from_slice(self.bytes.get(first..first + count - below)?);
        }
        Some(count)
    }
}

/// A typical word of locals: zero, small, on the stack, in the code, or anything.
fn filler(code: &Code, place: &StackPlace, random: u64) -> u64 {
    let value = random >> 8;
    match random % 8 {
        0 | 1 => 0,
        2 | 3 => value % 1000,
        4 => place.top.0 - value % 8192 / 8 * 8,
        5 | 6 => code.anywhere(value).0,
        _ => rng::mix(random),
    }
}

//! The simulated machine: threads that share CPUs in virtual time, from event to event.
//!
//! Input: programs, times and stop requests. Output: events in order, with every nanosecond accounted in the
//! ledger. It is independent of the profiler's buffers, of faults and of the fake clock (see `mod.rs`).

use std::collections::VecDeque;
use std::rc::Rc;

use crate::sources::{Activity, ExitStatus, TargetEvent, ThreadId, ThreadStatus};

use super::config::SimActivity;
use super::ledger::SimLedger;
use super::thread::{Pending, Phase, Program, Thread, ThreadState};

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
    pub(super) threads: Vec<Thread>,
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
    pub(super) threads: Vec<Thread>,
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
                _ => {}
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
                    let Thread { id, .. } = self.threads[index];
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
        if !self.ended && !self.threads.iter().any(Thread::alive) {
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
        let Some(leader) = self.threads.iter().position(Thread::alive) else { return };
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

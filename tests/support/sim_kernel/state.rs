//! State of the simulated kernel: processes, tasks, names, memory given to the client, the time; and how time
//! advances.

use std::collections::BTreeMap;
use std::sync::Arc;

use stackprof::arch::Arch;
use stackprof::live::Live;

use super::cost::Costs;
use super::faults::{FaultPlan, Happening, Method};
use super::images::Plan;
use super::ports::{Names, Right};
use super::spec::{SimProcess, SimProgram};
use super::task::Task;
use stackprof::rng::{Rng, hash};

/// A process.
#[derive(Clone, Debug)]
pub struct Proc {
    pub spec: SimProcess,
    pub task: Option<usize>,
    pub program: SimProgram,
    pub execs: Vec<(u64, SimProgram)>,
    /// Until then task_for_pid fails.
    pub busy_until_ns: u64,
    /// SSTOP.
    pub stopped: bool,
    /// Wait status of an exited process that was not reaped.
    pub ended: Option<i32>,
    /// Started by the client.
    pub is_child: bool,
    /// Signals received, by number.
    pub signals: BTreeMap<i32, u64>,
    /// A port obtained before the exec of a spawn was complete goes dead at that time.
    pub respawn_at_ns: Option<u64>,
}

/// A rule violation, with the call at which a correct client could have known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    pub call: u64,
    pub what: String,
}

/// The client's own shared cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnCache {
    Absent,
    /// Equal to the target's, at the same address.
    Same,
    /// Another build of the system.
    OtherUuid,
    /// Equal, at another address.
    OtherSlide,
}

/// The state.
#[derive(Debug)]
pub struct State {
    pub arch: Arch,
    pub plan: Plan,
    pub seed: u64,
    pub now_ns: u64,
    pub rng: Rng,
    pub calls: Vec<Method>,
    pub by_method: BTreeMap<Method, u64>,
    pub faults: FaultPlan,
    pub names: Names,
    /// Memory placed in the client: address and size.
    pub placed: BTreeMap<u64, u64>,
    pub placed_next: u64,
    pub placed_peak: usize,
    pub tokens_made: u64,
    pub procs: BTreeMap<i32, Proc>,
    pub tasks: Vec<Task>,
    pub violations: Vec<Violation>,
    /// Calls on names known to the client as dead: useless, and harmless as long as it keeps its reference.
    pub repeats: Vec<Violation>,
    pub launchable: Option<SimProcess>,
    pub next_thread_id: u64,
    pub next_pid: i32,
    pub euid: u32,
    pub pid: i32,
    /// The client may debug programs that it otherwise may not: com.apple.security.cs.debugger, or an answer
    /// to the dialog. Root needs none.
    pub entitled: bool,
    pub translated: bool,
    pub ncpu: i32,
    pub own_cache: OwnCache,
    /// A wait may overshoot by up to this.
    pub overshoot_ns: u64,
    /// The client's thread starts with background QoS.
    pub begins_in_background: bool,
    /// It requested user-interactive QoS.
    pub is_interactive: bool,
    /// Reads that the kernel did not copy through a buffer: each makes pages of the target
    /// copy-on-write.
    pub virtual_copies: u64,
    /// One wait in this many is interrupted; 0: none.
    pub interrupt_waits: u64,
    pub costs: Costs,
    /// When the client lost its CPU, and for how long.
    pub delays: Vec<(u64, u64)>,
    /// A client that has not ended by then never will.
    pub patience_until_ns: u64,
    /// When Ctrl-C is pressed.
    pub interrupted: Option<(u64, Arc<Live>)>,
    pub killed: bool,
    /// Current dyld changes that are paused until this call.
    pub torn_until: BTreeMap<usize, u64>,
    /// When the current suspension began, and the longest one.
    pub held_since_ns: Option<u64>,
    pub longest_hold_ns: u64,
    pub held_ns: u64,
    pub holds: u64,
    pub captured: BTreeMap<(u64, Vec<String>), u64>,
}

impl State {
    pub fn call(&self) -> u64 {
        self.calls.len() as u64
    }

    /// Duration of the call that begins now, without the part that depends on its result.
    pub fn cost(&mut self, method: Method) -> u64 {
        let mut cost_ns = self.costs.base(method);
        if method == Method::AbsoluteTime {
            return cost_ns;
        }
        if self.costs.varied {
            cost_ns = cost_ns / 2 + self.rng.within(0, cost_ns);
        }
        if let Some(delays) = self.costs.delays
            && self.rng.chance(1, delays.one_in)
        {
            let delay_ns = self.rng.within(0, delays.at_most_ns);
            self.delays.push((self.now_ns, delay_ns));
            cost_ns += delay_ns;
        }
        cost_ns
    }

    pub fn violation(&mut self, what: impl Into<String>) {
        let call = self.call();
        self.violations.push(Violation { call, what: what.into() });
    }

    /// mach_absolute_time at a time.
    pub fn ticks(&self, ns: u64) -> u64 {
        let (numer, denom) = timebase(self.arch);
        (u128::from(ns) * u128::from(denom) / u128::from(numer)) as u64
    }

    /// The first nanosecond at which the clock shows this many ticks.
    pub fn ns_of(&self, ticks: u64) -> u64 {
        let (numer, denom) = timebase(self.arch);
        let ns = (u128::from(ticks) * u128::from(numer)).div_ceil(u128::from(denom));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Starts a program in a new task of a process.
    pub fn start(&mut self, spec: &SimProcess, program: &SimProgram) -> usize {
        let index = self.tasks.len();
        let seed = hash(&[self.seed, spec.pid as u64, index as u64]);
        let ticks = self.ticks(self.now_ns).max(1);
        let task = Task::new(self.plan, seed, self.seed, spec, program, self.next_thread_id, ticks);
        self.next_thread_id += task.threads.len() as u64 + 1;
        self.tasks.push(task);
        index
    }

    /// Adds a running process.
    pub fn add_process(&mut self, spec: SimProcess, is_child: bool, stopped: bool) {
        let task = (!spec.zombie && !spec.without_task).then(|| self.start(&spec, &spec.program));
        let proc = Proc {
            task,
            program: spec.program.clone(),
            execs: spec.execs.clone(),
            busy_until_ns: 0,
            stopped: stopped || spec.job_stopped,
            ended: spec.zombie.then_some(0),
            is_child,
            signals: BTreeMap::new(),
            respawn_at_ns: None,
            spec,
        };
        self.procs.insert(proc.spec.pid, proc);
    }

    /// Ends a task: its names become dead names.
    pub fn end_task(&mut self, index: usize) {
        let now_ns = self.now_ns;
        let task = &mut self.tasks[index];
        if task.alive {
            task.alive = false;
            task.died_ns = now_ns;
            self.torn_until.remove(&index);
            self.note_holds();
        }
    }

    pub fn exit(&mut self, pid: i32, wait_status: i32) {
        let Some(proc) = self.procs.get_mut(&pid) else { return };
        let task = proc.task.take();
        proc.ended = Some(wait_status);
        // Other parents reap at once, unless the process is meant to stay a zombie.
        let gone = !proc.is_child && proc.spec.ppid != ZOMBIE_PARENT;
        if gone {
            self.procs.remove(&pid);
        }
        if let Some(task) = task {
            self.end_task(task);
        }
    }

    pub fn exec(&mut self, pid: i32) {
        let Some(proc) = self.procs.get(&pid) else { return };
        let (Some(old), Some((_, program))) = (proc.task, proc.execs.first().cloned()) else { return };
        let spec = SimProcess { program: program.clone(), ..proc.spec.clone() };
        self.end_task(old);
        let task = self.start(&spec, &program);
        let busy_until_ns = self.now_ns + spec.exec_gap_ns;
        if let Some(proc) = self.procs.get_mut(&pid) {
            proc.execs.remove(0);
            proc.task = Some(task);
            proc.program = program;
            proc.busy_until_ns = busy_until_ns;
        }
    }

    /// Whether a task is stopped: held by the client, or by job control.
    pub fn stands(&self, task: usize) -> bool {
        let task = &self.tasks[task];
        task.is_held() || self.procs.get(&task.pid).is_none_or(|proc| proc.stopped)
    }

    /// Lets time pass: running tasks advance, and due events happen.
    pub fn pass(&mut self, ns: u64) {
        let (begin_ns, end_ns) = (self.now_ns, self.now_ns + ns);
        let pids: Vec<i32> = self.procs.keys().copied().collect();
        for pid in pids {
            self.now_ns = begin_ns;
            while let Some(proc) = self.procs.get(&pid) {
                if let Some(due_ns) = proc.respawn_at_ns.filter(|due_ns| *due_ns <= end_ns) {
                    self.respawn(pid, due_ns);
                    continue;
                }
                let Some(index) = proc.task.filter(|task| !self.stands(*task)) else { break };
                let ran_ns = self.tasks[index].ran_ns;
                let mut due_ns = ran_ns + (end_ns - self.now_ns);
                let exit = proc.spec.end.filter(|end| end.at_ns <= due_ns);
                let exec = proc.execs.first().map(|(at, _)| *at).filter(|at| *at <= due_ns);
                if let Some(end) = exit {
                    due_ns = end.at_ns.max(ran_ns);
                }
                if let Some(at) = exec {
                    due_ns = due_ns.min(at.max(ran_ns));
                }
                self.run_dyld(index, due_ns);
                self.tasks[index].ran_ns = due_ns;
                self.now_ns += due_ns - ran_ns;
                if exec.is_some_and(|at| at.max(ran_ns) == due_ns) {
                    self.exec(pid);
                } else if let Some(end) = exit {
                    self.exit(pid, end.wait_status);
                } else {
                    break;
                }
            }
        }
        self.now_ns = end_ns;
    }

    /// Completes the exec within a spawn: earlier ports are dead.
    fn respawn(&mut self, pid: i32, due_ns: u64) {
        let Some(proc) = self.procs.get_mut(&pid) else { return };
        proc.respawn_at_ns = None;
        let (spec, program) = (proc.spec.clone(), proc.program.clone());
        let old = proc.task;
        if let Some(old) = old.filter(|old| self.names.all().any(|(_, e)| e.right == Right::Task(*old))) {
            self.end_task(old);
            let task = self.start(&spec, &program);
            if let Some(proc) = self.procs.get_mut(&pid) {
                proc.task = Some(task);
                proc.busy_until_ns = due_ns;
            }
        }
    }

    /// dyld performs changes due until a time of the task's clock, unless it is paused.
    fn run_dyld(&mut self, index: usize, until_ran_ns: u64) {
        if self.torn_until.contains_key(&index) {
            return;
        }
        let world_ns = self.now_ns;
        loop {
            let task = &self.tasks[index];
            let Some(at) = task.dyld.pending.front().map(|(at, _)| *at).filter(|at| *at <= until_ran_ns)
            else {
                return;
            };
            let ticks = self.ticks(world_ns + at.saturating_sub(task.ran_ns)).max(1);
            let Task { dyld, memory, images, .. } = &mut self.tasks[index];
            dyld.begin();
            dyld.finish(memory, images, ticks);
        }
    }

    /// The planned event right before the call that begins now.
    pub fn before_call(&mut self) -> Option<Happening> {
        let call = self.call();
        let over: Vec<usize> =
            self.torn_until.iter().filter(|(_, at)| **at <= call).map(|(t, _)| *t).collect();
        for index in over.into_iter().filter(|index| !self.stands(*index)).collect::<Vec<_>>() {
            self.torn_until.remove(&index);
            let ticks = self.ticks(self.now_ns).max(1);
            let Task { dyld, memory, images, .. } = &mut self.tasks[index];
            dyld.finish(memory, images, ticks);
        }
        let due: Vec<Happening> = self
            .faults
            .happenings
            .iter()
            .filter(|(at, _)| *at == call)
            .map(|(_, what)| what.clone())
            .collect();
        let mut kill = None;
        for what in due {
            match what {
                Happening::KillProfiler => kill = Some(what),
                what => self.happen(what),
            }
        }
        kill
    }

    /// Makes an event happen in the first process now.
    pub fn happen(&mut self, what: Happening) {
        let Some(pid) = self.procs.keys().next().copied() else { return };
        let task = self.procs.get(&pid).and_then(|proc| proc.task);
        match what {
            Happening::Exit(wait_status) => self.exit(pid, wait_status),
            Happening::Exec => self.exec(pid),
            Happening::Stop => {
                if let Some(proc) = self.procs.get_mut(&pid) {
                    proc.stopped = true;
                }
            }
            Happening::ThreadEnds(place) => {
                let Some(task) = task.map(|index| &mut self.tasks[index]) else { return };
                let found = task.living().nth(place).map(|(index, _)| index);
                if let Some(index) = found {
                    task.threads[index].end_ns = task.ran_ns;
                }
            }
            Happening::Change(op) => {
                if let Some(task) = task.map(|index| &mut self.tasks[index]) {
                    task.dyld.pending.push_front((0, op));
                }
            }
            Happening::Tear { steps, hold } => {
                let Some(index) = task.filter(|index| !self.stands(*index)) else { return };
                let call = self.call();
                let ticks = self.ticks(self.now_ns).max(1);
                let Task { dyld, memory, images, .. } = &mut self.tasks[index];
                if dyld.begin() {
                    for _ in 0..steps {
                        dyld.step(memory, images, ticks);
                    }
                    self.torn_until.insert(index, call + hold);
                }
            }
            Happening::KillProfiler => {}
        }
    }

    /// Updates the times of suspensions.
    pub fn note_holds(&mut self) {
        let held = self.tasks.iter().any(|task| task.alive && task.is_held());
        match (held, self.held_since_ns) {
            (true, None) => {
                self.held_since_ns = Some(self.now_ns);
                self.holds += 1;
            }
            (false, Some(since_ns)) => {
                self.longest_hold_ns = self.longest_hold_ns.max(self.now_ns - since_ns);
                self.held_ns += self.now_ns - since_ns;
                self.held_since_ns = None;
            }
            _ => {}
        }
    }

    /// SIGKILL of the client: its port space disappears, and with it its suspensions.
    pub fn kill_client(&mut self) {
        self.killed = true;
        self.names.clear();
        self.placed.clear();
        for task in &mut self.tasks {
            task.tokens.clear();
        }
        self.note_holds();
    }
}

/// A parent that does not reap: its children stay zombies.
pub const ZOMBIE_PARENT: i32 = 77;

/// mach_timebase_info.
pub fn timebase(arch: Arch) -> (u32, u32) {
    match arch {
        Arch::Aarch64 | Arch::Arm => (125, 3),
        Arch::X86_64 | Arch::X86 => (1, 1),
    }
}

//! A simulated process as a target: `--target sim:SEED`, and the basis of the sampler's tests.
//!
//! `SimTarget` is one process, `SimTree` several of them.
//!
//! Input: a [`SimConfig`] (from a seed, or stated in a test) and a fake clock. Output: the [`Target`] trait,
//! deterministic to the nanosecond, with injected faults, and a [`SimLedger`] of the ground truth. No OS calls: it
//! exists on every platform. Not a model of any CPU: no instructions execute, only stacks and times are real.

mod config;
mod images;
mod ledger;
mod machine;
// Its tests contain the kernel's part, which is Linux's.
#[cfg(all(test, target_os = "linux"))]
pub(crate) mod stepped;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

use super::{
    Capture, Fault, Observed, PREFETCH_RANGE_BYTES, Process, StopOutcome, Target, TargetEvent, ThreadId,
    ThreadStatus,
};
use crate::addr::Avma;
use crate::binary::{ImageBytes, Mapping, MappingKind, OpenError};
use crate::clock::{Clock, FakeClock};
use crate::rng;
use config::Faults;
use images::{Code, Module};
use machine::{
    ADDRESS_MASK, Machine, MachineEvent, MachineOutput, MachineThread, Phase, Program, Setup, StackImage,
    StackPlace, ThreadState,
};

pub use config::{
    FaultKind, FunctionId, SimActivity, SimConfig, SimExec, SimFault, SimFrame, SimFunction, SimImage,
    SimPhase, SimThread,
};
pub use ledger::{SimLedger, TrueStack, Truth};

/// A simulated process.
#[derive(Debug)]
pub struct SimTarget {
    process: Process,
    clock: FakeClock,
    config: SimConfig,
    code: Code,
    machine: Machine,
    faults: Faults,
    /// [`TargetEvent::Exited`] was returned.
    exit_told: bool,
    /// Stack ranges captured for each thread.
    ranges: BTreeMap<ThreadId, Vec<u64>>,
}

/// The program counter of a thread: constant while it waits, anywhere while it runs.
fn pc(code: &Code, seed: u64, thread: &MachineThread, now_ns: u64) -> Avma {
    let phase = thread.phase();
    let instant = if phase.activity == SimActivity::Run { now_ns } else { 0 };
    phase.stack.pc(code, rng::hash(&[seed, thread.id.0, phase.slot as u64, instant]))
}

/// A stopped thread; dropping this resumes it, even in a panic.
struct StoppedThread<'a> {
    machine: &'a mut Machine,
    index: usize,
}

impl Drop for StoppedThread<'_> {
    fn drop(&mut self) {
        self.machine.release(self.index);
    }
}

impl SimTarget {
    /// A process in the time of `clock`; planned events before the clock's time are skipped.
    ///
    /// # Panics
    /// If `config` is inconsistent; the message names the violation.
    #[must_use]
    pub fn new(config: SimConfig, clock: FakeClock) -> SimTarget {
        if let Err(wrong) = config.check() {
            panic!("simulated process with seed {}: {wrong}", config.seed);
        }
        let code = Code::new(&config);
        let ledger = Rc::new(SimLedger::default());
        let builder = Builder { config: &config, code: &code, ledger: &ledger };
        let mut timeline = vec![(config.exit_ns, MachineEvent::Exit)];
        timeline.extend(config.terminate_ns.map(|at| (at, MachineEvent::Terminate)));
        timeline.extend(config.exec.as_ref().map(|exec| (exec.at_ns, MachineEvent::Exec)));
        let mut threads = Vec::with_capacity(config.threads.len());
        for (index, thread) in config.threads.iter().enumerate() {
            let id = ThreadId(u64::from(config.pid) + index as u64);
            let mut program = builder.program(id, index, &thread.script, thread.looping);
            program.stack_top = program.stack_top.filter(|_| thread.stack_top_known);
            threads.push(MachineThread::new(id, thread.name.clone(), program));
            timeline.push((thread.start_ns, MachineEvent::Start(index)));
            timeline.extend(thread.exit_ns.map(|at| (at, MachineEvent::Leave(index))));
        }
        let leader = ThreadId(config.pid.into());
        let exec_program = config
            .exec
            .as_ref()
            .map(|exec| builder.program(leader, config.threads.len(), &exec.script, true));
        let signed = config.signed_returns && config.simulated_arch() == crate::arch::Arch::Aarch64;
        let process = Process {
            pid: config.pid,
            name: config.name.clone(),
            command: format!("/sim/{} --seed {}", config.name, config.seed),
            arch: config.simulated_arch(),
            backend: "sim",
            backend_why: String::new(),
            cpus: config.cpus,
            address_mask: if signed { ADDRESS_MASK } else { u64::MAX },
            // Its code keeps frame records, which are the only indication of where its threads begin.
            fp_always: true,
            // Its aarch64 code has records, but neither unwind information nor calls before the return addresses.
            cfi: config.simulated_arch() == crate::arch::Arch::X86_64,
            stops_interrupt_syscalls: true,
            stops_hold_all: false,
        };
        let machine = Machine::new(Setup {
            now_ns: clock.now_ns(),
            threads,
            timeline,
            exec_program,
            leader,
            exit: config.exit,
            cpus: config.cpus,
            slice_ns: config.slice_ns.max(SimPhase::MIN_NS),
            accounting_tick_ns: config.accounting_tick_ns,
            stop_latency_ns: config.stop_latency_ns,
            ledger: Rc::clone(&ledger),
        });
        let faults = Faults::new(config.faults.clone(), config.seed, ledger);
        SimTarget { process, clock, config, code, machine, faults, exit_told: false, ranges: BTreeMap::new() }
    }

    /// The ground truth, readable also after this target was dropped.
    #[must_use]
    pub fn ledger(&self) -> Rc<SimLedger> {
        Rc::clone(&self.machine.ledger)
    }

    /// CPU time actually used so far, by thread and stack, nanoseconds.
    #[must_use]
    pub fn truth(&self) -> Truth {
        self.machine.ledger.truth()
    }

    /// Catches up with the clock, which others may have advanced.
    fn catch_up(&mut self) -> Result<(), Fault> {
        self.machine.run_to(self.clock.now_ns());
        if self.machine.ended { Err(Fault::Gone) } else { Ok(()) }
    }

    fn find(&mut self, thread: ThreadId) -> Result<usize, Fault> {
        self.catch_up()?;
        self.machine.alive(thread).ok_or(Fault::ThreadGone)
    }

    /// Advances time until there is an event or `until_ns` is reached.
    fn await_event(&mut self, until_ns: u64, capture: &mut Capture) -> Result<TargetEvent, Fault> {
        loop {
            match self.machine.out.pop_front() {
                Some(MachineOutput::Event(TargetEvent::Exited(status))) => {
                    self.exit_told = true;
                    return Ok(TargetEvent::Exited(status));
                }
                Some(MachineOutput::Event(event)) => return Ok(event),
                Some(MachineOutput::Ready(index)) => {
                    if let Some(event) = self.collect(index, capture) {
                        return Ok(event);
                    }
                }
                None if self.exit_told => return Err(Fault::Gone),
                None => {
                    let more = self.machine.step(until_ns.max(self.machine.now_ns));
                    self.clock.advance_to(self.machine.now_ns);
                    if !more {
                        return Ok(TargetEvent::Timeout);
                    }
                }
            }
        }
    }

    /// Captures a stopped thread and releases it; `None` if it died meanwhile.
    fn collect(&mut self, index: usize, capture: &mut Capture) -> Option<TargetEvent> {
        let now_ns = self.machine.now_ns;
        let thread = self.machine.threads[index].id;
        let pending = self.machine.threads[index].pending?;
        if self.faults.happens(FaultKind::DieBeforeCollect, Some(thread), now_ns) {
            self.machine.die(index);
            return None;
        }
        let stopped = StoppedThread { machine: &mut self.machine, index };
        if self.faults.happens(FaultKind::Panic, Some(thread), now_ns) {
            panic!("injected while thread {} stands (seed {})", thread.0, self.config.seed);
        }
        capture.reset();
        let phase = stopped.machine.threads[index].phase();
        let mut cost_ns = self.config.pause_ns;
        let outcome = if phase.activity != SimActivity::Run && !pending.keep_waiting {
            cost_ns = self.config.stop_latency_ns;
            StopOutcome::BeganToWait
        } else if self.faults.happens(FaultKind::Unreadable, Some(thread), now_ns) {
            StopOutcome::Unreadable("stack is not mapped")
        } else {
            let pc = pc(&self.code, self.config.seed, &stopped.machine.threads[index], now_ns);
            capture.registers = phase.stack.registers(&self.code, pc);
            let short = self.faults.take(Some(thread), now_ns, |kind| match kind {
                FaultKind::ShortStack { bytes } => Some(bytes),
                _ => None,
            });
            let stack_bytes = pending.stack_bytes.min(short.unwrap_or(usize::MAX));
            capture.stack_base = phase.stack.base();
            phase.stack.copy_stack(stack_bytes, &mut capture.stack);
            for start in self.ranges.get(&thread).into_iter().flatten() {
                let mut bytes = [0; PREFETCH_RANGE_BYTES];
                let read = phase.stack.read(Avma(*start), &mut bytes).unwrap_or(0);
                if read == PREFETCH_RANGE_BYTES {
                    capture.prefetched.push(*start, &bytes);
                }
            }
            stopped.machine.ledger.captured(phase.slot, pc);
            StopOutcome::Captured
        };
        let long_ns = self.faults.take(Some(thread), now_ns, |kind| match kind {
            FaultKind::LongStop { pause_ns } => Some(pause_ns),
            _ => None,
        });
        stopped.machine.run_to(now_ns.saturating_add(long_ns.unwrap_or(cost_ns)));
        capture.pause_ns = stopped.machine.pause_ns(index);
        capture.stopped_ns = capture.pause_ns;
        drop(stopped);
        self.clock.advance_to(self.machine.now_ns);
        Some(TargetEvent::Stopped { thread, outcome })
    }

    fn is_mapped(&self, image: &SimImage) -> bool {
        let now_ns = self.machine.now_ns;
        image.after_exec == self.machine.exec.is_done
            && image.load_ns <= now_ns
            && image.unload_ns.is_none_or(|unload_ns| now_ns < unload_ns)
    }

    fn mapped(&self) -> impl Iterator<Item = (&SimImage, &Module)> {
        self.config.images.iter().zip(&self.code.modules).filter(|(image, _)| self.is_mapped(image))
    }
}

impl Observed for SimTarget {
    fn process(&self) -> &Process {
        &self.process
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        let index = self.find(thread).ok()?;
        if self.faults.happens(FaultKind::NoName, Some(thread), self.machine.now_ns) {
            return None;
        }
        self.machine.threads[index].name.clone()
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        out.clear();
        self.clock.advance(self.config.list_ns);
        self.catch_up()?;
        let now_ns = self.machine.now_ns;
        if self.faults.happens(FaultKind::MappingsDenied, None, now_ns) {
            return Err(Fault::Denied("the simulation refuses to list mappings".to_owned()));
        }
        if self.faults.happens(FaultKind::MappingsTransient, None, now_ns) {
            return Err(Fault::Transient("the list of mappings is in motion"));
        }
        out.extend(self.mapped().map(|(image, module)| Mapping {
            avma: module.text.clone(),
            file_offset: image.text_offset,
            path: image.path.clone(),
            kind: MappingKind::File,
            identity: module.identity,
        }));
        out.sort_by_key(|mapping| mapping.avma.start);
        Ok(())
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        if self.faults.happens(FaultKind::ImageDeleted, None, self.clock.now_ns()) {
            return Err(OpenError::Source("deleted from disk"));
        }
        // An unmapped image is still on the simulated disk.
        let module = self.code.modules.iter().find(|module| module.identity == mapping.identity);
        module.map(|module| ImageBytes::new(module.file.clone())).ok_or(OpenError::Source("not on disk"))
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        self.catch_up()?;
        let unmapped = Fault::Transient("memory is not mapped");
        if self.faults.happens(FaultKind::MemoryUnmapped, None, self.machine.now_ns) {
            return Err(unmapped);
        }
        let mut stacks = self.machine.threads.iter().filter(|thread| thread.alive());
        if let Some(count) = stacks.find_map(|thread| thread.phase().stack.read(from, into)) {
            return Ok(count);
        }
        self.mapped().find_map(|(_, module)| module.read(from, into)).ok_or(unmapped)
    }
}

impl Target for SimTarget {
    fn threads(&mut self, out: &mut Vec<(ThreadId, Option<Avma>)>) {
        out.clear();
        if self.catch_up().is_ok() {
            let alive = self.machine.threads.iter().filter(|thread| thread.alive());
            out.extend(alive.map(|thread| (thread.id, thread.stack_top())));
        }
    }

    fn poll(&mut self, thread: ThreadId) -> Result<ThreadStatus, Fault> {
        let index = self.find(thread)?;
        Ok(self.machine.poll(index))
    }

    fn prefetches(&self) -> bool {
        self.config.prefetches
    }

    fn prefetch(&mut self, thread: ThreadId, ranges: &[u64]) {
        self.ranges.insert(thread, ranges.to_vec());
    }

    fn interrupt(&mut self, thread: ThreadId, stack_bytes: usize, keep_waiting: bool) -> Result<(), Fault> {
        let mut index = self.find(thread)?;
        if self.machine.threads[index].pending.is_some() {
            return Ok(());
        }
        let now_ns = self.machine.now_ns;
        if self.faults.happens(FaultKind::Exit, Some(thread), now_ns) {
            self.machine.end_process();
            return Err(Fault::Gone);
        }
        if self.faults.happens(FaultKind::DieBeforeInterrupt, Some(thread), now_ns) {
            self.machine.die(index);
            return Err(Fault::ThreadGone);
        }
        if self.config.exec.is_some() && self.faults.happens(FaultKind::Exec, Some(thread), now_ns) {
            self.machine.exec();
            index = self.find(thread)?;
        }
        self.machine.ask(index, stack_bytes, keep_waiting);
        Ok(())
    }

    fn next(&mut self, until_ns: u64, capture: &mut Capture) -> Result<TargetEvent, Fault> {
        self.machine.run_to(self.clock.now_ns());
        let event = self.await_event(until_ns, capture)?;
        let jump_ns = self.faults.take(None, self.machine.now_ns, |kind| match kind {
            FaultKind::ClockJump { by_ns } => Some(by_ns),
            _ => None,
        });
        self.clock.advance(jump_ns.unwrap_or(0));
        Ok(event)
    }

    fn waits_at(&mut self, thread: ThreadId) -> Option<(Avma, Avma)> {
        let index = self.find(thread).ok()?;
        let thread = &self.machine.threads[index];
        let waits = thread.state == ThreadState::Off && thread.phase().activity == SimActivity::Wait;
        let pc = pc(&self.code, self.config.seed, thread, self.machine.now_ns);
        waits.then(|| (thread.phase().stack.registers(&self.code, pc).sp(), pc))
    }
}

impl Drop for SimTarget {
    /// Resumes all stopped threads.
    fn drop(&mut self) {
        for index in 0..self.machine.threads.len() {
            self.machine.release(index);
        }
    }
}

/// The inputs for building programs.
struct Builder<'a> {
    config: &'a SimConfig,
    code: &'a Code,
    ledger: &'a SimLedger,
}

impl Builder<'_> {
    /// A script, with stack memory at place number `place`.
    fn program(&self, thread: ThreadId, place: usize, script: &[SimPhase], looping: bool) -> Program {
        let place = StackPlace::new(self.config.seed, place as u64);
        let name = |frame: &SimFrame| {
            let FunctionId { image, function } = frame.function;
            self.config.images[image].functions[function].name.clone()
        };
        let phases = script
            .iter()
            .map(|phase| {
                let sign =
                    self.config.signed_returns && self.config.simulated_arch() == crate::arch::Arch::Aarch64;
                let stack = StackImage::new(self.code, phase, &place, self.config.seed, sign);
                let names = phase.stack.iter().map(name).collect();
                Phase {
                    activity: phase.activity,
                    duration_ns: phase.duration_ns.max(SimPhase::MIN_NS),
                    slot: self.ledger.add_slot(thread, names, stack.returns.clone()),
                    stack,
                }
            })
            .collect();
        Program { phases, looping, stack_top: Some(place.top) }
    }
}

// ---- Several simulated processes as one target: the first one, and others that start while it runs and end before it
// or with it.
//
// Each has its own CPUs, code, threads and faults; they share the clock. The recording ends with the first one.

/// A process of a [`SimTree`], by its start time.
#[derive(Clone, Debug)]
pub struct SimProcess {
    /// Nanoseconds of the clock; so are times in the configuration.
    pub start_ns: u64,
    /// Its configuration. Thread ids count from its pid, and no other process may use them.
    pub config: SimConfig,
}

/// Simulated processes.
#[derive(Debug)]
pub struct SimTree {
    clock: FakeClock,
    /// In the order of their start, the first process first.
    members: Vec<SimTarget>,
    /// Processes that have not started, the next one last.
    unborn: Vec<SimProcess>,
    queue: VecDeque<TargetEvent>,
    /// Reported to have ended; removed by the next call.
    gone: Option<u32>,
    ledgers: Vec<(u32, Rc<SimLedger>)>,
}

impl SimTree {
    /// A tree of the `first` process, and `others`, in any order.
    ///
    /// # Panics
    /// Like [`SimTarget::new`].
    #[must_use]
    pub fn new(first: SimConfig, others: Vec<SimProcess>, clock: FakeClock) -> SimTree {
        let mut unborn = others;
        unborn.sort_by_key(|process| std::cmp::Reverse((process.start_ns, process.config.pid)));
        let mut tree = SimTree {
            clock: clock.clone(),
            members: Vec::new(),
            unborn,
            queue: VecDeque::new(),
            gone: None,
            ledgers: Vec::new(),
        };
        tree.begin(first);
        tree
    }

    /// The ground truth of each process that has started, by pid.
    #[must_use]
    pub fn ledgers(&self) -> &[(u32, Rc<SimLedger>)] {
        &self.ledgers
    }

    fn begin(&mut self, config: SimConfig) {
        let member = SimTarget::new(config, self.clock.clone());
        self.ledgers.push((member.process.pid, member.ledger()));
        self.members.push(member);
    }

    /// Starts the processes that are due.
    fn begin_due(&mut self) {
        while self.unborn.last().is_some_and(|process| process.start_ns <= self.clock.now_ns()) {
            let Some(process) = self.unborn.pop() else { return };
            self.begin(process.config);
            let mut threads = Vec::new();
            if let Some(new) = self.members.last_mut() {
                new.threads(&mut threads);
            }
            let started = |(thread, stack_top)| TargetEvent::ThreadStarted { thread, stack_top };
            self.queue.extend(threads.into_iter().map(started));
        }
    }

    fn first(&mut self) -> &mut SimTarget {
        &mut self.members[0]
    }

    /// The process with this thread id.
    fn of(&mut self, thread: ThreadId) -> &mut SimTarget {
        let pid = self.process_of(thread);
        let at = self.members.iter().position(|member| member.process.pid == pid).unwrap_or(0);
        &mut self.members[at]
    }

    /// The next event of any of them.
    fn poll(&mut self, capture: &mut Capture) -> Result<Option<TargetEvent>, Fault> {
        let now_ns = self.clock.now_ns();
        for (at, member) in self.members.iter_mut().enumerate() {
            if member.exit_told && at > 0 {
                continue;
            }
            match member.next(now_ns, capture)? {
                TargetEvent::Timeout => {}
                TargetEvent::Exited(_) if at > 0 => {
                    let process = member.process.pid;
                    self.gone = Some(process);
                    return Ok(Some(TargetEvent::ProcessEnded { process }));
                }
                event => return Ok(Some(event)),
            }
        }
        Ok(None)
    }

    /// Time of the next event.
    fn next_instant(&self) -> u64 {
        let of_members = self.members.iter().filter_map(|member| member.machine.next_instant());
        of_members.chain(self.unborn.last().map(|process| process.start_ns)).min().unwrap_or(u64::MAX)
    }
}

impl Observed for SimTree {
    fn process(&self) -> &Process {
        self.members[0].process()
    }

    fn inner(&mut self) -> Option<&mut dyn Observed> {
        Some(self.first())
    }
}

impl Target for SimTree {
    fn process_of(&self, thread: ThreadId) -> u32 {
        let pids = self.members.iter().map(|member| member.process.pid);
        pids.filter(|pid| u64::from(*pid) <= thread.0).max().unwrap_or_default()
    }

    fn other(&mut self, process: u32) -> Option<&mut dyn Observed> {
        let member = self.members.iter_mut().find(|member| member.process.pid == process);
        member.map(|member| member as &mut dyn Observed)
    }

    fn threads(&mut self, out: &mut Vec<(ThreadId, Option<Avma>)>) {
        let mut all = Vec::new();
        for member in &mut self.members {
            member.threads(out);
            all.append(out);
        }
        *out = all;
    }

    fn poll(&mut self, thread: ThreadId) -> Result<ThreadStatus, Fault> {
        self.of(thread).poll(thread)
    }

    fn interrupt(&mut self, thread: ThreadId, stack_bytes: usize, keep_waiting: bool) -> Result<(), Fault> {
        self.of(thread).interrupt(thread, stack_bytes, keep_waiting)
    }

    fn next(&mut self, until_ns: u64, capture: &mut Capture) -> Result<TargetEvent, Fault> {
        if let Some(pid) = self.gone.take() {
            self.members.retain(|member| member.process.pid != pid);
        }
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Ok(event);
            }
            if let Some(event) = self.poll(capture)? {
                return Ok(event);
            }
            let now_ns = self.clock.now_ns();
            if now_ns >= until_ns {
                return Ok(TargetEvent::Timeout);
            }
            self.clock.advance_to(self.next_instant().clamp(now_ns, until_ns));
            self.begin_due();
        }
    }

    fn waits_at(&mut self, thread: ThreadId) -> Option<(Avma, Avma)> {
        self.of(thread).waits_at(thread)
    }
}

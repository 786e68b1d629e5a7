//! The simulated kernel: processes and their threads on CPUs, ticks, records.
//!
//! Time passes in steps. In each, threads on a CPU use CPU time; a due tick samples them; then threads sleep,
//! wake, start others, exec, exit. Faults ([`Faults`]) are injected with per mille probabilities.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use libc::pid_t;

use super::records;
use crate::rng::Rng;
use crate::sources::linux::perf::ring::SampleId;

/// Length of a step, nanoseconds.
const STEP_NS: u64 = 50_000;
/// Delay of a late tick.
const LATE_NS: u64 = 30_000;
/// First pid, above those of real processes (`PID_MAX_LIMIT` is 4,194,304).
const FIRST_PID: pid_t = 5_000_000;
/// Maximum number of threads at a time.
const THREADS_MAX: usize = 40;

/// Probabilities of faults, per mille.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    /// A tick is late.
    pub(super) late_tick: u64,
    /// Throttling begins at a tick.
    pub(super) throttle: u64,
    /// The record of an exit is lost.
    pub(super) exit_lost: u64,
    /// A number is reused at once.
    pub(super) reuse: u64,
    /// A CPU goes offline or comes back, per thousand steps.
    pub(super) offline: u64,
    /// A clock is read late.
    pub(super) slow_clock: u64,
    /// A record of any kind is lost.
    pub(super) record_lost: u64,
}

/// Configuration of the kernel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    pub(super) cpus: usize,
    pub(super) ring_bytes: usize,
    pub(super) period_ns: u64,
    pub(super) switches: bool,
    pub(super) faults: Faults,
}

/// A running process.
#[derive(Debug)]
pub(super) struct Process {
    pub(super) parent: pid_t,
    pub(super) name: String,
    pub(super) threads: BTreeSet<pid_t>,
    cpu_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskState {
    Ready,
    Running,
    Asleep { until_ns: u64 },
}

#[derive(Debug)]
struct ScheduledThread {
    pid: pid_t,
    state: TaskState,
}

#[derive(Debug)]
struct Cpu {
    ring: VecDeque<Vec<u8>>,
    used_bytes: usize,
    /// Records that did not fit since the last one that did.
    lost_records: u64,
    /// Samples that did not fit since the last count.
    lost_samples: u64,
    running: Option<pid_t>,
    slice_ends_ns: u64,
    period_ns: u64,
    next_tick_ns: u64,
    /// Delay of the next tick.
    tick_delay_ns: u64,
    throttled_until_ns: Option<u64>,
    is_online: bool,
}

/// The simulated kernel.
pub(super) struct Kernel {
    pub(super) now_ns: u64,
    pub(super) samples: bool,
    setup: Setup,
    random: Rng,
    cpus: Vec<Cpu>,
    threads: BTreeMap<pid_t, ScheduledThread>,
    processes: BTreeMap<pid_t, Process>,
    excluded: BTreeSet<pid_t>,
    next_number: pid_t,
    free: Vec<pid_t>,
    /// By process and thread: start of its current time off CPU, by its record.
    pub(super) off_since_ns: BTreeMap<(pid_t, pid_t), u64>,
    /// By process and thread: total of its earlier times off CPU.
    pub(super) off_cpu_ns: BTreeMap<(pid_t, pid_t), u64>,
    /// Reused pids.
    pub(super) reused: BTreeSet<pid_t>,
    /// Number of samples, by process.
    pub(super) sampled: BTreeMap<pid_t, u64>,
    /// Number of injected faults.
    pub(super) injected: u64,
}

impl Kernel {
    pub(super) fn new(seed: u64, setup: Setup) -> Kernel {
        let cpu = || Cpu {
            ring: VecDeque::new(),
            used_bytes: 0,
            lost_records: 0,
            lost_samples: 0,
            running: None,
            slice_ends_ns: 0,
            period_ns: setup.period_ns,
            next_tick_ns: setup.period_ns,
            tick_delay_ns: 0,
            throttled_until_ns: None,
            is_online: true,
        };
        Kernel {
            now_ns: 0,
            samples: false,
            setup,
            random: Rng::new(seed),
            cpus: (0..setup.cpus).map(|_| cpu()).collect(),
            threads: BTreeMap::new(),
            processes: BTreeMap::new(),
            excluded: BTreeSet::new(),
            next_number: FIRST_PID,
            free: Vec::new(),
            off_since_ns: BTreeMap::new(),
            off_cpu_ns: BTreeMap::new(),
            reused: BTreeSet::new(),
            sampled: BTreeMap::new(),
            injected: 0,
        }
    }

    fn fault(&mut self, chance: u64) -> bool {
        let injected = self.random.within(0, 999) < chance;
        self.injected += u64::from(injected);
        injected
    }

    pub(super) fn pids(&self) -> Vec<pid_t> {
        self.processes.keys().copied().collect()
    }

    pub(super) fn process(&self, pid: pid_t) -> Option<&Process> {
        self.processes.get(&pid)
    }

    pub(super) fn cpu_ns(&self, pid: pid_t) -> Option<u64> {
        self.processes.get(&pid).map(|process| process.cpu_ns)
    }

    pub(super) fn exclude(&mut self, pid: pid_t, excluded: bool) {
        if excluded {
            self.excluded.insert(pid);
        } else {
            self.excluded.remove(&pid);
        }
    }

    /// Lets time pass while a clock is read, by chance.
    pub(super) fn hold_up_clock(&mut self) {
        let chance = self.setup.faults.slow_clock;
        if self.fault(chance) {
            let ns = self.random.within(1, 6) * STEP_NS;
            self.advance(ns);
        }
    }

    /// Sets new periods, one for each CPU.
    pub(super) fn set_periods(&mut self) -> Vec<(u32, u64)> {
        for cpu in &mut self.cpus {
            cpu.period_ns = self.setup.period_ns * self.random.within(750, 1250) / 1000;
            cpu.next_tick_ns = self.now_ns + cpu.period_ns;
            cpu.tick_delay_ns = 0;
        }
        (0..).zip(&self.cpus).map(|(number, cpu)| (number, cpu.period_ns)).collect()
    }

    /// Takes the contents of a CPU's ring.
    pub(super) fn drain(&mut self, cpu: usize) -> Vec<Vec<u8>> {
        self.cpus[cpu].used_bytes = 0;
        self.cpus[cpu].ring.drain(..).collect()
    }

    /// Samples that did not fit since the last call, by CPU.
    pub(super) fn take_lost_samples(&mut self) -> Vec<(u32, u64)> {
        let lost =
            (0..).zip(&mut self.cpus).map(|(number, cpu)| (number, std::mem::take(&mut cpu.lost_samples)));
        lost.filter(|(_, samples)| *samples > 0).collect()
    }

    fn write(&mut self, id: SampleId, bytes: Vec<u8>, is_sample: bool) {
        if !self.samples {
            return;
        }
        let chance = self.setup.faults.record_lost;
        let is_lost = self.fault(chance);
        let cpu = &mut self.cpus[id.cpu as usize];
        let lost = records::lost(id, cpu.lost_records);
        let needed = bytes.len() + if cpu.lost_records > 0 { lost.len() } else { 0 };
        if is_lost || cpu.used_bytes + needed > self.setup.ring_bytes {
            cpu.lost_records += 1;
            cpu.lost_samples += u64::from(is_sample);
            return;
        }
        cpu.used_bytes += needed;
        if std::mem::take(&mut cpu.lost_records) > 0 {
            cpu.ring.push_back(lost);
        }
        cpu.ring.push_back(bytes);
    }

    fn id(&self, cpu: usize, pid: pid_t, tid: pid_t) -> SampleId {
        SampleId { pid, tid, time_ns: self.now_ns, cpu: cpu as u32 }
    }

    fn new_number(&mut self) -> pid_t {
        let chance = self.setup.faults.reuse;
        if !self.free.is_empty() && self.fault(chance) {
            let number = self.free.remove(0);
            self.reused.insert(number);
            return number;
        }
        self.next_number += 1;
        self.next_number
    }

    /// Starts a process with one thread.
    pub(super) fn start(&mut self, parent: pid_t, name: &str) -> pid_t {
        let pid = self.new_number();
        let threads = BTreeSet::from([pid]);
        self.processes.insert(pid, Process { parent, name: name.to_owned(), threads, cpu_ns: 0 });
        self.threads.insert(pid, ScheduledThread { pid, state: TaskState::Ready });
        pid
    }

    fn start_thread(&mut self, pid: pid_t) -> Option<pid_t> {
        let tid = self.new_number();
        self.processes.get_mut(&pid)?.threads.insert(tid);
        self.threads.insert(tid, ScheduledThread { pid, state: TaskState::Ready });
        Some(tid)
    }

    /// Lets time pass.
    pub(super) fn advance(&mut self, ns: u64) {
        for _ in 0..ns.div_ceil(STEP_NS) {
            self.now_ns += STEP_NS;
            for cpu in 0..self.cpus.len() {
                self.run(cpu);
                self.tick(cpu);
                self.schedule(cpu);
            }
        }
    }

    fn run(&mut self, cpu: usize) {
        let Some(thread) = self.cpus[cpu].running.and_then(|tid| self.threads.get(&tid)) else { return };
        if let Some(process) = self.processes.get_mut(&thread.pid) {
            process.cpu_ns += STEP_NS;
        }
    }

    fn tick(&mut self, number: usize) {
        let cpu = &self.cpus[number];
        let at_ns = cpu.next_tick_ns + cpu.tick_delay_ns;
        if at_ns > self.now_ns {
            return;
        }
        let (running, is_online, delay_ns) = (cpu.running, cpu.is_online, cpu.tick_delay_ns);
        let sampled = running.and_then(|tid| Some((tid, self.threads.get(&tid)?.pid)));
        let sampled = sampled.filter(|(_, pid)| is_online && !self.excluded.contains(pid));
        let Faults { late_tick, throttle, .. } = self.setup.faults;
        if sampled.is_some() && delay_ns == 0 && self.fault(late_tick) {
            self.cpus[number].tick_delay_ns = LATE_NS;
            return self.tick(number);
        }
        let cpu = &mut self.cpus[number];
        let period_ns = cpu.period_ns;
        (cpu.next_tick_ns, cpu.tick_delay_ns) = (cpu.next_tick_ns + period_ns, 0);
        let Some((tid, pid)) = sampled else { return };
        let id = SampleId { time_ns: at_ns, ..self.id(number, pid, tid) };
        if let Some(until_ns) = self.cpus[number].throttled_until_ns {
            if self.now_ns >= until_ns {
                self.cpus[number].throttled_until_ns = None;
                self.write(id, records::throttle(id, false), false);
            }
            return;
        }
        *self.sampled.entry(pid).or_default() += u64::from(self.samples);
        self.write(id, records::sample(id, period_ns.max(10_000), &[tid as u64, pid as u64]), true);
        if self.fault(throttle) {
            self.cpus[number].throttled_until_ns = Some(self.now_ns + 10 * period_ns);
            self.write(id, records::throttle(id, true), false);
        }
    }

    /// Lets the thread on a CPU act, and schedules another one.
    fn schedule(&mut self, cpu: usize) {
        let offline = self.setup.faults.offline;
        if self.random.chance(1, 1000) && self.fault(offline) {
            self.cpus[cpu].is_online ^= true;
        }
        if let Some(tid) = self.cpus[cpu].running {
            self.act(cpu, tid);
        }
        let ends = self.now_ns >= self.cpus[cpu].slice_ends_ns;
        if let Some(tid) = self.cpus[cpu].running.filter(|_| ends) {
            self.leave(cpu, tid, TaskState::Ready);
        }
        if self.cpus[cpu].running.is_none() {
            self.pick(cpu);
        }
    }

    fn act(&mut self, cpu: usize, tid: pid_t) {
        let Some(pid) = self.threads.get(&tid).map(|thread| thread.pid) else { return };
        let id = self.id(cpu, pid, tid);
        match self.random.within(0, 999) {
            0..30 => {
                let until_ns = self.now_ns + self.random.within(1, 60) * STEP_NS;
                self.leave(cpu, tid, TaskState::Asleep { until_ns });
            }
            30..36 if self.threads.len() < THREADS_MAX => {
                let name = self.processes.get(&pid).map(|process| process.name.clone()).unwrap_or_default();
                let child = self.start(pid, &name);
                let of_child = SampleId { pid: child, tid: child, ..id };
                self.write(of_child, records::fork(of_child, pid, tid), false);
            }
            36..42 if self.threads.len() < THREADS_MAX => {
                if let Some(new) = self.start_thread(pid) {
                    let of_new = SampleId { tid: new, ..id };
                    self.write(of_new, records::fork(of_new, pid, tid), false);
                }
            }
            42..46 => self.exec(cpu, pid, tid),
            46..50 => {
                let at = 0x10_0000 + self.random.within(0, 9) * 0x1000;
                self.write(id, records::mmap(id, at), false);
            }
            // The first process and thread never exit.
            50..57 if tid > FIRST_PID + 2 => self.exit(cpu, pid, tid),
            _ => {}
        }
    }

    fn exec(&mut self, cpu: usize, pid: pid_t, tid: pid_t) {
        let alone = self.processes.get(&pid).is_some_and(|process| process.threads.len() == 1);
        if !alone || tid != pid {
            return;
        }
        let name = format!("program{}", self.random.within(0, 9));
        let id = self.id(cpu, pid, tid);
        self.write(id, records::comm(id, &name, true), false);
        self.write(id, records::mmap(id, 0x40_0000), false);
        if let Some(process) = self.processes.get_mut(&pid) {
            process.name = name;
        }
    }

    fn exit(&mut self, cpu: usize, pid: pid_t, tid: pid_t) {
        let id = self.id(cpu, pid, tid);
        let chance = self.setup.faults.exit_lost;
        if self.fault(chance) {
            self.cpus[cpu].lost_records += 1;
        } else {
            self.write(id, records::exit(id), false);
        }
        self.threads.remove(&tid);
        self.cpus[cpu].running = None;
        if self.setup.switches {
            let nobody = SampleId { tid: -1, ..id };
            self.write(nobody, records::switch(nobody, Some(false)), false);
        }
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.threads.remove(&tid);
        if process.threads.is_empty() {
            self.processes.remove(&pid);
            self.free.push(pid);
        }
        if tid != pid {
            self.free.push(tid);
        }
    }

    fn leave(&mut self, cpu: usize, tid: pid_t, state: TaskState) {
        self.cpus[cpu].running = None;
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        thread.state = state;
        let pid = thread.pid;
        if self.setup.switches {
            let id = self.id(cpu, pid, tid);
            self.write(id, records::switch(id, Some(state == TaskState::Ready)), false);
            if self.samples {
                self.off_since_ns.insert((pid, tid), self.now_ns);
            }
        }
    }

    fn pick(&mut self, cpu: usize) {
        let now_ns = self.now_ns;
        let ready: Vec<pid_t> = self
            .threads
            .iter()
            .filter(|(_, thread)| match thread.state {
                TaskState::Ready => true,
                TaskState::Asleep { until_ns } => until_ns <= now_ns,
                TaskState::Running => false,
            })
            .map(|(tid, _)| *tid)
            .collect();
        if ready.is_empty() || !self.cpus[cpu].is_online {
            return;
        }
        let tid = ready[self.random.below(ready.len())];
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        thread.state = TaskState::Running;
        let pid = thread.pid;
        self.cpus[cpu].running = Some(tid);
        self.cpus[cpu].slice_ends_ns = now_ns + self.random.within(2, 80) * STEP_NS;
        if self.setup.switches {
            let id = self.id(cpu, pid, tid);
            self.write(id, records::switch(id, None), false);
            if self.samples
                && let Some(since_ns) = self.off_since_ns.remove(&(pid, tid))
            {
                *self.off_cpu_ns.entry((pid, tid)).or_default() += now_ns - since_ns;
            }
        }
    }
}

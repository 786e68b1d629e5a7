#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use libc::pid_t;

use super::super::cpu_time::accounting::{Balance, BatchOptions, CpuTime};
use super::super::pipeline::Pipeline;
use super::super::process::entry::ProcessEntry;
use super::super::process::filter::ProcessFilter;
use super::super::process::table::ProcessTable;
use super::super::ring;
use super::super::stack::stack_size::EventStackSize;
use super::super::stack::stacks::Stacks;
use super::super::waits::WaitRecorder;
use super::kernel::{Faults, Kernel, Setup};
use super::system::Machine;
use crate::rng::Rng;
use crate::rounds::{as_usual, one_seed, seeds};
use crate::sources::linux::files::TargetFiles;
use crate::sources::linux::refusal;
use crate::sources::pushed::{SourceEvent, TimedEvent};
use crate::sources::{Process, ProcessSelection, ThreadId};

const PERIOD_NS: u64 = 1_000_000;
/// Distance of the watermark from the time at which a batch is flushed.
const READABLE_AFTER_NS: u64 = 1_000_000;

/// Sums over the records of a run.
#[derive(Debug, Default)]
struct Sums {
    /// By process, of samples and missed ones.
    weights_ns: BTreeMap<u32, u64>,
    /// Records not yet due.
    waiting: Vec<TimedEvent>,
    /// Threads that started and have not ended.
    threads: BTreeSet<(u32, ThreadId)>,
    /// By process and thread: CPU time by its last record.
    used_ns: BTreeMap<(u32, ThreadId), u64>,
    /// By process and thread: time waited.
    waits_ns: BTreeMap<(u32, ThreadId), u64>,
    /// Samples dropped by the kernel, and late ticks.
    dropped: u64,
    late: u64,
    /// Samples and missed ones, by process.
    samples: BTreeMap<u32, u64>,
    /// Violations found.
    complaints: Vec<String>,
}

impl Sums {
    /// Processes the records of a batch in the sampler's order: those before the watermark, including newer ones
    /// left from earlier batches. A `reused` number may belong to a process with lost records.
    #[allow(clippy::print_stdout)]
    fn take(&mut self, records: &mut Vec<TimedEvent>, watermark_ns: u64, reused: &BTreeSet<pid_t>) {
        self.waiting.append(records);
        self.waiting.sort_by_key(|record| (record.at_ns, record.process, record.thread));
        let due = self.waiting.partition_point(|record| record.at_ns < watermark_ns);
        let later = self.waiting.split_off(due);
        for TimedEvent { process, thread, event, at_ns } in std::mem::replace(&mut self.waiting, later) {
            let key = (process, thread);
            // A seed run alone prints its records.
            if one_seed().is_some() {
                println!("{process} {} at {at_ns}: {event:.60?}", thread.0);
            }
            let is_reused =
                [process as pid_t, thread.0 as pid_t].iter().any(|number| reused.contains(number));
            let mut expect = |is_right: bool, why: &str| {
                if !is_right && !is_reused {
                    self.complaints.push(format!("{process} {} at {at_ns}: {why}", thread.0));
                }
            };
            match event {
                SourceEvent::ThreadStarted { status, .. } => {
                    expect(status.cpu_ns == 0, "starts with CPU time");
                    // The sampler continues the account of a thread that is reported again.
                    if self.threads.insert(key) {
                        self.used_ns.insert(key, 0);
                    }
                }
                SourceEvent::Sample(capture) => {
                    let used_ns = capture.status.unwrap().cpu_ns;
                    expect(self.threads.contains(&key), "was sampled and not started");
                    expect(capture.stack[..8] == thread.0.to_ne_bytes(), "has another thread's stack");
                    let of_process = capture.stack[8..] == u64::from(process).to_ne_bytes();
                    expect(of_process, "has another process's stack");
                    expect(used_ns >= self.used_ns.get(&key).copied().unwrap_or(0), "gave CPU time back");
                    self.weigh(key, used_ns);
                }
                SourceEvent::Missed(status, _) => {
                    expect(self.threads.contains(&key), "was missed and not started");
                    self.weigh(key, status.cpu_ns);
                }
                SourceEvent::ThreadEnded { cpu_ns: used_ns, .. } => {
                    // A thread that an exec ended and only a wait reports may end twice: the second time with no
                    // CPU time.
                    let (by_samples_ns, used_ns) = (self.used_ns.remove(&key).unwrap_or(0), used_ns.unwrap());
                    let why = format!("ends with {used_ns} ns, its samples weigh {by_samples_ns}");
                    expect(by_samples_ns == used_ns, &why);
                    self.threads.remove(&key);
                }
                // Threads with lost exits end with it.
                SourceEvent::ProcessEnded { .. } => self.threads.retain(|(of, _)| *of != process),
                SourceEvent::Dropped(samples, _) => self.dropped += samples,
                SourceEvent::Late(ticks) => self.late += ticks,
                SourceEvent::Wait { ns, .. } | SourceEvent::WaitLost { ns, .. } => {
                    *self.waits_ns.entry(key).or_default() += ns;
                }
                _ => {}
            }
        }
    }

    fn weigh(&mut self, key: (u32, ThreadId), used_ns: u64) {
        let before_ns = self.used_ns.insert(key, used_ns).unwrap_or(0);
        *self.weights_ns.entry(key.0).or_default() += used_ns.saturating_sub(before_ns);
        *self.samples.entry(key.0).or_default() += 1;
    }
}

/// A kernel and the pipeline that reads its rings.
struct Run {
    random: Rng,
    machine: Machine,
    pipeline: Pipeline,
    /// The process that is always recorded.
    main: pid_t,
    cpus: usize,
    counts_lost: bool,
    sums: Sums,
    balances: BTreeMap<pid_t, Balance>,
    compared: u64,
    ended_ns: u64,
    /// Minimum and maximum of the main process's clock when sampling began, and when it ended.
    main_began_ns: (u64, u64),
    main_ended_ns: (u64, u64),
    /// Maximum time between reading the rings of two CPUs.
    skew_max_ns: u64,
}

impl Run {
    /// The seed determines the kernel, the recorded processes, and the faults.
    fn new(seed: u64, with_faults: bool) -> Run {
        let mut random = Rng::new(seed);
        let faults = Run::faults(&mut random, with_faults);
        let is_small = with_faults && random.chance(1, 2);
        let ring_bytes = if is_small { random.within(600, 6_000) as usize } else { 1 << 20 };
        let skew_max_ns = if with_faults && random.chance(1, 4) { 20_000_000 } else { 300_000 };
        Run { skew_max_ns, ..Run::with(random, faults, ring_bytes) }
    }

    fn faults(random: &mut Rng, with_faults: bool) -> Faults {
        let mut chance =
            |most: u64| if with_faults && random.chance(1, 2) { random.within(0, most) } else { 0 };
        Faults {
            late_tick: chance(300),
            throttle: chance(10),
            exit_lost: chance(500),
            reuse: chance(1000),
            offline: chance(1000),
            slow_clock: chance(200),
            record_lost: chance(30),
        }
    }

    fn with(mut random: Rng, faults: Faults, ring_bytes: usize) -> Run {
        let setup = Setup {
            cpus: 1 + random.below(4),
            ring_bytes,
            period_ns: PERIOD_NS,
            switches: random.chance(1, 2),
            faults,
        };
        let mut kernel = Kernel::new(random.next(), setup);
        let main = kernel.start(1, "main");
        for _ in 0..random.below(5) {
            kernel.start(1, "other");
        }
        kernel.advance(random.within(0, 5_000_000));
        let children = random.chance(1, 2);
        let all = !children && random.chance(1, 2);
        let pids = if all { vec![] } else { vec![main.unsigned_abs()] };
        let filter =
            ProcessFilter::new(ProcessSelection { pids, children, all, ..ProcessSelection::default() });
        let own = refusal::describe(std::process::id().cast_signed());
        let number = if all { 0 } else { main.unsigned_abs() };
        let process = Process { pid: number, name: "main".to_owned(), ..own };
        let entry = ProcessEntry::new(process, Arc::new(TargetFiles::of(main)));
        let number = entry.pid();
        let machine = Machine(Rc::new(RefCell::new(kernel)));
        let mut processes = ProcessTable::new(filter, entry, setup.switches);
        processes.begin(false);
        let pipeline = Pipeline::new(
            machine.system(),
            processes,
            CpuTime::new(number, PERIOD_NS, false),
            Stacks::new(true, EventStackSize::new()),
            setup.switches.then(|| WaitRecorder::new(false, None)),
            0,
        );
        let counts_lost = random.chance(1, 2);
        let (sums, balances) = (Sums::default(), BTreeMap::new());
        Run {
            random,
            machine,
            pipeline,
            main,
            cpus: setup.cpus,
            counts_lost,
            sums,
            balances,
            compared: 0,
            ended_ns: 0,
            main_began_ns: (0, 0),
            main_ended_ns: (0, 0),
            skew_max_ns: 300_000,
        }
    }

    /// CPU time of the main process, which never exits.
    fn main_cpu_ns(&self) -> u64 {
        self.machine.0.borrow().cpu_ns(self.main).unwrap()
    }

    fn begin(&mut self) {
        self.pipeline.select_all();
        self.exclude();
        let least_ns = self.main_cpu_ns();
        self.pipeline.cpu_time.begin(&*self.pipeline.system.clocks);
        self.main_began_ns = (least_ns, self.main_cpu_ns());
        if self.pipeline.processes.filter().is_all() {
            let pids = self.machine.0.borrow().pids();
            self.pipeline.cpu_time.begin_machine(&pids, &*self.pipeline.system.clocks);
        }
        self.machine.0.borrow_mut().samples = true;
    }

    fn exclude(&mut self) {
        for (pid, excluded) in self.pipeline.processes.take_filter_changes() {
            self.machine.0.borrow_mut().exclude(pid, excluded);
        }
    }

    /// Reads the rings, one after another, while the machine runs on.
    fn read(&mut self) {
        for cpu in 0..self.cpus {
            for bytes in self.machine.0.borrow_mut().drain(cpu) {
                let (id, _, record) = ring::read(&bytes).unwrap();
                self.pipeline.push_record(id, record);
            }
            let skew_ns = self.random.within(0, self.skew_max_ns);
            self.machine.0.borrow_mut().advance(skew_ns);
        }
        let lost = self.machine.0.borrow_mut().take_lost_samples();
        self.pipeline.add_lost(self.counts_lost.then_some(lost));
    }

    fn batch(&mut self, last: bool) {
        let begun_ns = self.machine.0.borrow().now_ns;
        self.read();
        let watermark_ns = if last { u64::MAX } else { begun_ns.saturating_sub(READABLE_AFTER_NS) };
        let mut records = Vec::new();
        self.pipeline.flush(BatchOptions { by_clock: true, last }, watermark_ns, &mut records);
        self.exclude();
        if last {
            self.pipeline.end_waits(self.ended_ns, &mut records);
        }
        self.take(&mut records, watermark_ns);
        self.compare();
    }

    fn take(&mut self, records: &mut Vec<TimedEvent>, watermark_ns: u64) {
        self.sums.take(records, watermark_ns, &self.machine.0.borrow().reused);
    }

    /// Checks that weights and losses of each process add up to its clock.
    fn compare(&mut self) {
        let now = self.pipeline.cpu_time.balances();
        for (pid, balance) in &now {
            // A balance of a reused number may belong to either process.
            let is_one = !self.machine.0.borrow().reused.contains(pid);
            let Some(before) = self.balances.get(pid).filter(|_| is_one) else { continue };
            if let (Some(from_ns), Some(to_ns)) = (before.clock_ns, balance.clock_ns) {
                let accounted = |balance: &Balance| balance.weighed_ns + balance.lost_ns;
                let accounted_ns = accounted(balance) - accounted(before);
                if accounted_ns != to_ns.saturating_sub(from_ns) {
                    let complaint =
                        format!("{pid}: {accounted_ns} accounted, clock from {from_ns} to {to_ns}");
                    self.sums.complaints.push(complaint);
                }
                self.compared += u64::from(to_ns > from_ns);
            }
        }
        self.balances.extend(now);
    }

    fn run(mut self, batches: u64) -> Run {
        self.begin();
        for _ in 0..batches {
            let passed_ns = self.random.within(1, 40) * 1_000_000;
            self.machine.0.borrow_mut().advance(passed_ns);
            self.batch(false);
            let now_ns = self.machine.0.borrow().now_ns;
            if self.pipeline.cpu_time.may_set_periods(now_ns) {
                let periods_ns = self.machine.0.borrow_mut().set_periods();
                self.pipeline.cpu_time.set_periods(now_ns, &periods_ns);
            }
        }
        self.machine.0.borrow_mut().samples = false;
        self.ended_ns = self.machine.0.borrow().now_ns;
        let least_ns = self.main_cpu_ns();
        self.pipeline.cpu_time.stop(&*self.pipeline.system.clocks);
        self.main_ended_ns = (least_ns, self.main_cpu_ns());
        self.batch(true);
        self.pipeline.cpu_time.end(&*self.pipeline.system.clocks);
        let mut records = Vec::new();
        self.pipeline.report_rest(self.machine.0.borrow().now_ns, "not sampled again", &mut records);
        self.take(&mut records, u64::MAX);
        self.check_all_is_accounted();
        self.check_weights();
        self.check_main();
        self
    }

    /// Checks that the weights in the records of a process equal the pipeline's balance.
    fn check_weights(&mut self) {
        for (pid, balance) in &self.balances {
            let weights_ns = self.sums.weights_ns.get(&pid.unsigned_abs()).copied().unwrap_or(0);
            if weights_ns != balance.weighed_ns && !self.machine.0.borrow().reused.contains(pid) {
                let complaint = format!("{pid}: records weigh {weights_ns} ns of {}", balance.weighed_ns);
                self.sums.complaints.push(complaint);
            }
        }
    }

    /// Checks that weights and losses of the main process add up to its CPU time in the kernel, when its clock was
    /// last read with its samples.
    fn check_main(&mut self) {
        let Some(balance) = self.balances.get(&self.main) else { return };
        let Some(clock_ns) = balance.clock_ns else { return };
        let weights_ns = self.sums.weights_ns.get(&self.main.unsigned_abs()).copied().unwrap_or(0);
        let accounted_ns = weights_ns + balance.lost_ns;
        let (least_ns, most_ns) = self.main_began_ns;
        let is_all = (clock_ns.saturating_sub(most_ns)..=clock_ns - least_ns).contains(&accounted_ns);
        if (!is_all || clock_ns > self.main_ended_ns.1) && !self.pipeline.processes.filter().is_all() {
            let complaint = format!(
                "main: {accounted_ns} ns of {clock_ns}, from {:?} to {:?}",
                self.main_began_ns, self.main_ended_ns
            );
            self.sums.complaints.push(complaint);
        }
    }

    /// Checks that recorded and lost time add up to CPU time within a period: losses are whole samples.
    fn check_all_is_accounted(&mut self) {
        let weights_ns: u64 = self.sums.weights_ns.values().sum();
        let reported_ns = weights_ns + self.sums.dropped * PERIOD_NS;
        let used_ns = self.pipeline.cpu_time.used_ns();
        // With a reused number, a sample of the first process may be attributed to neither.
        let is_exact = self.machine.0.borrow().reused.is_empty();
        let is_right = reported_ns.abs_diff(used_ns) <= PERIOD_NS;
        if is_exact && !is_right {
            self.sums.complaints.push(format!("{reported_ns} ns reported of {used_ns}"));
        }
    }
}

/// Runs these seeds; returns the number of clocks compared, samples weighed and faults injected.
fn run_all(seeds: std::ops::Range<u64>, with_faults: bool) -> (u64, u64, u64) {
    let (mut compared, mut samples, mut injected) = (0, 0, 0);
    let mut complaints = Vec::new();
    for seed in seeds {
        let run = Run::new(seed, with_faults).run(12);
        compared += run.compared;
        samples += run.sums.samples.values().sum::<u64>();
        injected += run.machine.0.borrow().injected;
        complaints.extend(run.sums.complaints.first().map(|complaint| format!("seed {seed}: {complaint}")));
    }
    assert!(complaints.is_empty(), "{} seeds\n{}", complaints.len(), complaints.join("\n"));
    (compared, samples, injected)
}

#[test]
fn weights_and_losses_add_up_to_the_clock_of_each_process() {
    let (compared, samples, injected) = run_all(seeds(0..100), false);
    let is_enough = compared > 200 && samples > 5_000 || !as_usual();
    assert!(is_enough && injected == 0, "{compared} {samples} {injected}");
}

#[test]
fn with_faults_weights_and_losses_add_up_to_the_clock_of_each_process() {
    let (compared, samples, injected) = run_all(seeds(1_000..1_100), true);
    let is_enough = compared > 300 && samples > 3_000 && injected > 3_000 || !as_usual();
    assert!(is_enough, "{compared} {samples} {injected}");
}

/// Until the first sample on time, the schedule of a CPU is unknown: some late ones count as on time.
#[test]
fn late_ticks_are_reported() {
    let (mut late, mut injected) = (0, 0);
    for seed in 0..10 {
        let faults = Faults { late_tick: 300, ..Faults::default() };
        let run = Run::with(Rng::new(seed), faults, 1 << 20).run(12);
        late += run.sums.late;
        injected += run.machine.0.borrow().injected;
    }
    assert!(late > injected / 3 && late <= injected, "{late} of {injected}");
}

/// Without losses, all samples of selected processes are recorded, and none of others.
#[test]
fn samples_are_those_of_selected_processes() {
    for seed in 0..30 {
        let run = Run::new(seed, false).run(6);
        let excluded: BTreeSet<u32> = {
            let filter = run.pipeline.processes.filter();
            let all = run.sums.weights_ns.keys().copied();
            all.filter(|pid| filter.is_excluded(pid.cast_signed())).collect()
        };
        assert!(excluded.is_empty(), "seed {seed}: {excluded:?}");
        let kernel = run.machine.0.borrow();
        let (taken, recorded) =
            (kernel.sampled.get(&run.main), run.sums.samples.get(&run.main.unsigned_abs()));
        assert_eq!(recorded, taken, "seed {seed}");
        if run.pipeline.processes.filter().is_one() {
            assert!(run.sums.weights_ns.len() <= 1, "seed {seed}");
        }
    }
}

/// Threads that keep waiting have no record of their own: those of every process are listed, not only of one.
#[test]
fn threads_of_all_processes_are_listed() {
    let mut several = 0;
    for seed in 0..40 {
        let mut run = Run::new(seed, false);
        if run.pipeline.waits.is_none() {
            continue;
        }
        run.begin();
        let pids = run.machine.0.borrow().pids();
        run.pipeline.select(&pids);
        let now_ns = run.machine.0.borrow().now_ns;
        run.pipeline.list_threads(now_ns);
        let mut records = Vec::new();
        run.pipeline.flush(BatchOptions { by_clock: true, last: true }, u64::MAX, &mut records);
        run.pipeline.end_waits(now_ns + 1_000_000, &mut records);
        run.take(&mut records, u64::MAX);
        let running = run.pipeline.processes.running();
        // Number 0 stands for all.
        for pid in running.iter().filter(|pid| **pid > 0) {
            for tid in &run.machine.0.borrow().process(*pid).unwrap().threads {
                let key = (pid.unsigned_abs(), ThreadId(*tid as u64));
                assert_eq!(run.sums.waits_ns.get(&key), Some(&1_000_000), "seed {seed}: {key:?}");
            }
        }
        several += u64::from(running.len() > 2);
    }
    assert!(several > 5, "{several}");
}

/// Threads of the main process, known from the beginning: a thread that is not on a CPU waits, for any reason.
#[test]
fn waits_of_a_thread_are_its_time_off_cpus() {
    let mut compared = 0;
    for seed in 0..40 {
        let run = Run::new(seed, false).run(6);
        let kernel = run.machine.0.borrow();
        let mut truth_ns = kernel.off_cpu_ns.clone();
        for (key, since_ns) in &kernel.off_since_ns {
            *truth_ns.entry(*key).or_default() += run.ended_ns.saturating_sub(*since_ns);
        }
        for ((pid, tid), off_cpu_ns) in truth_ns {
            if pid == run.main && !kernel.reused.contains(&tid) {
                let key = (pid.unsigned_abs(), ThreadId(tid as u64));
                let waited_ns = run.sums.waits_ns.get(&key).copied().unwrap_or(0);
                assert_eq!(waited_ns, off_cpu_ns, "seed {seed}: thread {tid}");
                compared += 1;
            }
        }
    }
    assert!(compared > 20, "{compared}");
}

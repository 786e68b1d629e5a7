//! A recording in its steady state allocates nothing for a sample: stacks that are known are walked and
//! counted in the memory that is there. What is pushed comes from a simulated process, whose stacks are
//! captured once; what the source of the test allocates itself is not counted.

use std::collections::BTreeSet;

use stackprof::binary::Mapping;
use stackprof::clock::{Clock, FakeClock};
use stackprof::live::Live;
use stackprof::sampler::{Options, pushed};
use stackprof::sources::pushed::{PushedSource, SourceEvent, StackUse, TimedEvent};
use stackprof::sources::sim::{SimConfig, SimTarget};
use stackprof::sources::{
    Activity, Capture, Fault, Observed, Process, StopOutcome, Target, TargetEvent, ThreadId, ThreadStatus,
};
use stackprof::walk::UnwindMethod;

use crate::memory;

const HZ: u32 = 997;
const PERIOD_NS: u64 = 1_000_000_000 / HZ as u64;
/// Samples before the state is steady: tables have grown, images are read.
const WARM_UP: usize = 4_000;
const SAMPLES: usize = 20_000;
/// What a batch may allocate, however many samples it has: what sorts its records.
const OF_A_BATCH_MAX: u64 = 1;
const STACKS: usize = 12;

/// What the recorder allocated for a batch.
struct Cost {
    samples: usize,
    allocations: u64,
    /// The images were read again: once a second, whatever is sampled.
    read_images: bool,
}

/// Pushes the same captures again and again, of threads that never sleep.
struct Steady {
    target: SimTarget,
    clock: FakeClock,
    captures: Vec<(ThreadId, Capture)>,
    batch_samples: usize,
    samples: usize,
    cpu_ns: u64,
    /// Buffers that were given back, in the boxes that records take them in.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Capture>>,
    allocations_before: u64,
    read_images: bool,
    costs: Vec<Cost>,
}

impl Observed for Steady {
    fn process(&self) -> &Process {
        self.target.process()
    }

    fn inner(&mut self) -> Option<&mut dyn Observed> {
        Some(&mut self.target)
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.read_images = true;
        self.target.mappings(out)
    }

    fn read_memory(&mut self, _from: stackprof::addr::Avma, _into: &mut [u8]) -> Result<usize, Fault> {
        Err(Fault::Transient("not captured"))
    }
}

impl PushedSource for Steady {
    fn observed(&mut self, _process: u32) -> Option<&mut dyn Observed> {
        Some(self)
    }

    fn next_batch(&mut self, _until_ns: u64, into: &mut Vec<TimedEvent>) -> Result<Option<u64>, Fault> {
        if self.samples > 0 {
            let allocations = memory::allocations() - self.allocations_before;
            let read_images = std::mem::take(&mut self.read_images);
            self.costs.push(Cost { samples: self.batch_samples, allocations, read_images });
        }
        if self.samples >= WARM_UP + SAMPLES {
            return Ok(None);
        }
        for _ in 0..self.batch_samples {
            let (thread, captured) = &self.captures[self.samples % self.captures.len()];
            self.cpu_ns += PERIOD_NS;
            let status = |cpu_ns| ThreadStatus { cpu_ns, switches: 0, activity: Activity::Running };
            let at_ns = self.clock.now_ns() + PERIOD_NS;
            self.clock.advance_to(at_ns);
            if self.samples < self.captures.len() {
                let event = SourceEvent::ThreadStarted {
                    stack_top: None,
                    status: status(0),
                    preexisting: true,
                    started_ns: None,
                };
                into.push(TimedEvent { at_ns, process: self.process().pid, thread: *thread, event });
            }
            let mut capture = self.spare.pop().unwrap_or_else(|| Box::new(Capture::with_capacity(0)));
            let (mut stack, mut kernel) =
                (std::mem::take(&mut capture.stack), std::mem::take(&mut capture.kernel));
            stack.clone_from(&captured.stack);
            kernel.clone_from(&captured.kernel);
            *capture = Capture { stack, kernel, status: Some(status(self.cpu_ns)), ..captured.clone() };
            into.push(TimedEvent {
                at_ns,
                process: self.process().pid,
                thread: *thread,
                event: SourceEvent::Sample(capture),
            });
            self.samples += 1;
        }
        self.allocations_before = memory::allocations();
        Ok(Some(u64::MAX))
    }

    fn set_time(&mut self, _at_ns: u64) {}

    fn walked(&mut self, _thread: ThreadId, capture: Box<Capture>, _needed: StackUse) {
        let before = memory::allocations();
        self.spare.push(capture);
        self.allocations_before += memory::allocations() - before;
    }
}

/// Stacks of a simulated process, by the threads that they are of.
fn captures(target: &mut SimTarget, clock: &FakeClock) -> Vec<(ThreadId, Capture)> {
    let mut captures = Vec::new();
    let mut threads = Vec::new();
    let mut taken = BTreeSet::new();
    for _ in 0..400 {
        if captures.len() == STACKS {
            break;
        }
        target.threads(&mut threads);
        for (thread, _) in &threads {
            // One that ends in between has no stack.
            let _ = target.interrupt(*thread, 64 << 10, false);
        }
        let until_ns = clock.now_ns() + 2_000_000;
        loop {
            let mut capture = Capture::with_capacity(0);
            match target.next(until_ns, &mut capture) {
                Ok(TargetEvent::Stopped { thread, outcome: StopOutcome::Captured }) => {
                    let known = !taken.insert((thread.0, capture.registers.pc()));
                    if !known && captures.len() < STACKS {
                        captures.push((thread, capture));
                    }
                }
                Ok(TargetEvent::Timeout | TargetEvent::Exited(_)) | Err(_) => break,
                Ok(_) => {}
            }
        }
    }
    captures
}

/// What a recording in batches of so many samples allocates.
fn costs(batch_samples: usize) -> Vec<Cost> {
    let clock = FakeClock::default();
    let mut config = SimConfig::from_seed(3).without_faults();
    (config.exec, config.terminate_ns) = (None, None);
    let mut target = SimTarget::new(config, clock.clone());
    let captures = captures(&mut target, &clock);
    assert!(captures.len() >= 4, "{} stacks", captures.len());
    let mut source = Steady {
        target,
        clock: clock.clone(),
        captures,
        batch_samples,
        samples: 0,
        cpu_ns: 0,
        spare: Vec::new(),
        allocations_before: 0,
        read_images: false,
        costs: Vec::new(),
    };
    let options = Options {
        timeline_bytes: 0,
        linger_ns: 0,
        hz: HZ,
        duration_ns: None,
        idle: false,
        off_cpu: false,
        threads: true,
        max_depth: 1024,
        unwind: UnwindMethod::Auto,
        seed: 1,
        block_age_min_ns: 0,
        max_stop: 1.0,
    };
    let profile = pushed::record(&mut source, &clock, &options, &Live::default()).unwrap();
    let stats = &profile.stats;
    assert_eq!(stats.samples_pushed as usize, source.samples);
    assert!(stats.samples as usize > source.samples / 2, "{} counts", stats.samples);
    source.costs
}

#[test]
fn a_sample_of_a_known_stack_allocates_nothing() {
    let _alone = memory::alone();
    for batch_samples in [1, 50, 500] {
        let costs = costs(batch_samples);
        let steady = &costs[WARM_UP / batch_samples..];
        let samples: usize = steady.iter().map(|cost| cost.samples).sum();
        let (with, without): (Vec<&Cost>, Vec<&Cost>) = steady.iter().partition(|cost| cost.read_images);
        let most = |costs: &[&Cost]| costs.iter().map(|cost| cost.allocations).max().unwrap_or(0);
        let all: u64 = without.iter().map(|cost| cost.allocations).sum();
        println!(
            "{samples} samples in batches of {batch_samples}: {all} allocations, {} of a batch at most; {} of one \
             that reads the images ({} of them)",
            most(&without),
            most(&with),
            with.len(),
        );
        assert!(samples >= SAMPLES && !without.is_empty());
        assert!(most(&without) <= OF_A_BATCH_MAX, "{} allocations for one batch", most(&without));
    }
}

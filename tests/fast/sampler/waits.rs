//! Waits reported by a source: each counts its duration under the stack at its start, with or without CPU
//! time, at any length.

use stackprof::addr::Avma;
use stackprof::clock::{Clock, FakeClock};
use stackprof::live::Live;
use stackprof::recording::{Frame, Recording};
use stackprof::sampler::{Options, pushed};
use stackprof::sources::pushed::{PushedSource, SourceEvent, StackUse, TimedEvent};
use stackprof::sources::sim::{SimConfig, SimTarget};
use stackprof::sources::{
    Activity, Capture, Fault, Observed, Process, StopOutcome, Target, TargetEvent, ThreadId, ThreadStatus,
};

use super::recording::options;

const HZ: u32 = 997;
const SECOND: u64 = 1_000_000_000;
const THREAD: ThreadId = ThreadId(77);

/// Delivers the records of a test in one batch.
struct Waiting {
    target: SimTarget,
    records: Option<Vec<TimedEvent>>,
    /// Returned buffers, and how many of their stacks were walked.
    given_back: usize,
    walked: usize,
}

impl Observed for Waiting {
    fn process(&self) -> &Process {
        self.target.process()
    }

    fn inner(&mut self) -> Option<&mut dyn Observed> {
        Some(&mut self.target)
    }

    fn thread_name(&mut self, _thread: ThreadId) -> Option<String> {
        None
    }

    fn read_memory(&mut self, _from: Avma, _into: &mut [u8]) -> Result<usize, Fault> {
        Err(Fault::Transient("not captured"))
    }
}

impl PushedSource for Waiting {
    fn observed(&mut self, _process: u32) -> Option<&mut dyn Observed> {
        Some(self)
    }

    fn next_batch(&mut self, _until_ns: u64, into: &mut Vec<TimedEvent>) -> Result<Option<u64>, Fault> {
        into.extend(self.records.take().into_iter().flatten());
        Ok(None)
    }

    fn set_time(&mut self, _at_ns: u64) {}

    fn wait_walked(&mut self, _capture: Box<Capture>, needed: Option<StackUse>) {
        self.given_back += 1;
        self.walked += usize::from(needed.is_some());
    }
}

/// A stack of a simulated process.
fn capture(target: &mut SimTarget, clock: &FakeClock) -> Capture {
    let mut threads = Vec::new();
    for _ in 0..100 {
        target.threads(&mut threads);
        for (thread, _) in &threads {
            // A thread that exits in between has no stack.
            let _ = target.interrupt(*thread, 64 << 10, false);
        }
        let until_ns = clock.now_ns() + 2_000_000;
        loop {
            let mut capture = Capture::with_capacity(0);
            match target.next(until_ns, &mut capture) {
                Ok(TargetEvent::Stopped { outcome: StopOutcome::Captured, .. }) => return capture,
                Ok(TargetEvent::Timeout | TargetEvent::Exited(_)) | Err(_) => break,
                Ok(_) => {}
            }
        }
    }
    panic!("no stack in 100 tries")
}

/// The profile of the events that `tell` derives from a stack, and the state of the source.
fn recorded(
    options: &Options,
    tell: impl FnOnce(&Capture) -> Vec<(u64, SourceEvent)>,
) -> (Recording, Waiting) {
    let clock = FakeClock::default();
    let mut config = SimConfig::from_seed(3).without_faults();
    (config.exec, config.terminate_ns) = (None, None);
    let mut target = SimTarget::new(config, clock.clone());
    let capture = capture(&mut target, &clock);
    let process = target.process().pid;
    let record = |(at_ns, event)| TimedEvent { at_ns, process, thread: THREAD, event };
    let records = tell(&capture).into_iter().map(record).collect();
    let mut source = Waiting { target, records: Some(records), given_back: 0, walked: 0 };
    let profile = pushed::record(&mut source, &clock, options, &Live::default()).unwrap();
    (profile, source)
}

fn idle() -> Options {
    Options { idle: true, ..options(HZ, 1) }
}

fn off_cpu() -> Options {
    Options { off_cpu: true, ..options(HZ, 1) }
}

/// Counts of waiting stacks, and of others.
fn counts(profile: &Recording) -> (u64, u64) {
    let (mut waiting, mut running) = (0, 0);
    profile.trie.for_each_stack(|path, count| match profile.trie.frame(path[0]) {
        Some(Frame::Root(root)) if root.waiting => waiting += count,
        _ => running += count,
    });
    (waiting, running)
}

#[test]
fn a_long_wait_is_walked_once_with_all_of_its_time() {
    let (profile, source) = recorded(&off_cpu(), |capture| {
        vec![
            (SECOND, SourceEvent::WaitStarted(Box::new(capture.clone()))),
            (11 * SECOND, SourceEvent::Wait { ns: 10 * SECOND, stack: None }),
        ]
    });
    let (waiting, running) = counts(&profile);
    assert!(waiting.abs_diff(10 * u64::from(HZ)) <= 1 && running == 0, "{waiting} and {running}");
    assert_eq!((source.given_back, source.walked, profile.stats.threads_seen), (1, 1, 1));
    assert_eq!((profile.stats.waits, profile.stats.samples_pushed), (1, 0));
}

#[test]
fn short_waits_add_up_with_few_walks() {
    const WAITS: u64 = 100_000;
    const NS: u64 = 10_000;
    let (profile, source) = recorded(&off_cpu(), |capture| {
        let wait =
            |at: u64| (at * 20_000, SourceEvent::Wait { ns: NS, stack: Some(Box::new(capture.clone())) });
        (1..=WAITS).map(wait).collect()
    });
    let (waiting, _) = counts(&profile);
    assert!(waiting.abs_diff(WAITS * NS * u64::from(HZ) / SECOND) <= 1, "{waiting}");
    assert_eq!(source.given_back as u64, WAITS);
    assert_eq!(source.walked as u64, waiting, "a walk for each count");
}

#[test]
fn a_sample_of_an_unknown_thread_is_lost() {
    let (profile, _) =
        recorded(&options(HZ, 1), |capture| vec![(SECOND, SourceEvent::Sample(Box::new(capture.clone())))]);
    assert_eq!((counts(&profile), profile.stats.samples_pushed), ((0, 0), 1));
    assert_eq!(profile.stats.samples_lost.into_iter().collect::<Vec<_>>(), [("its thread is not known", 1)]);
}

#[test]
fn waits_do_not_change_cpu_time() {
    let status = |cpu_ns| ThreadStatus { cpu_ns, switches: 0, activity: Activity::Running };
    let (profile, _) = recorded(&idle(), |capture| {
        let mut records = vec![(
            0,
            SourceEvent::ThreadStarted {
                stack_top: None,
                status: status(0),
                preexisting: false,
                started_ns: None,
            },
        )];
        for turn in 1..=1_000 {
            let at_ns = turn * 2_000_000;
            let sample = Capture { status: Some(status(turn * 500_000)), ..capture.clone() };
            records.push((at_ns - 1_500_000, SourceEvent::Sample(Box::new(sample))));
            let stack = Some(Box::new(capture.clone()));
            records.push((at_ns, SourceEvent::Wait { ns: 1_500_000, stack }));
        }
        records
    });
    let (waiting, running) = counts(&profile);
    let exact = |ns: u64| (ns * u64::from(HZ) / SECOND) as f64;
    assert!((waiting + running).abs_diff(2 * u64::from(HZ)) <= 1, "{waiting} and {running}");
    assert!((waiting as f64 / exact(1_500_000_000) - 1.0).abs() < 0.04, "{waiting} waiting");
    assert!((running as f64 / exact(500_000_000) - 1.0).abs() < 0.12, "{running} running");
}

#[test]
fn lost_waits_are_reported_by_cause() {
    let (profile, _) = recorded(&off_cpu(), |_| {
        vec![
            (SECOND, SourceEvent::WaitLost { ns: SECOND / 2, reason: "dropped" }),
            // No start of it was reported.
            (3 * SECOND, SourceEvent::Wait { ns: SECOND, stack: None }),
        ]
    });
    let lost = &profile.stats.samples_lost;
    assert!(lost["dropped"].abs_diff(u64::from(HZ) / 2) <= 1, "{lost:?}");
    assert!(lost["where a wait began could not be kept"].abs_diff(u64::from(HZ)) <= 1, "{lost:?}");
    assert_eq!(counts(&profile), (0, 0));
}

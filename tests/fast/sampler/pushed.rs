//! Equivalence of both drivers: the recording of the stopping driver, delivered again as a kernel would, in
//! batches that are late and out of order between threads, gives the same profile byte for byte.

use std::collections::BTreeMap;

use stackprof::addr::Avma;
use stackprof::binary::{ImageBytes, Mapping, OpenError};
use stackprof::clock::{Clock, FakeClock};
use stackprof::conversion::{self, ConversionOptions};
use stackprof::live::Live;
use stackprof::profile::formats::folded;
use stackprof::profile::{ByName, SavedProfile};
use stackprof::recording::Recording;
use stackprof::rng::Rng;
use stackprof::sampler::pushed;
use stackprof::sources::pushed::{PushedSource, SourceEvent, TimedEvent};
use stackprof::sources::sim::{SimConfig, SimTarget};
use stackprof::sources::{
    Capture, Fault, Observed, Process, StopOutcome, Target, TargetEvent, ThreadId, ThreadStatus,
};
use stackprof::symbol;
use stackprof::trie::FrameId;

use super::recording::{check_times, options, replay_sim};
use super::{seeded, times};
use crate::pass_on::pass_on;
use crate::seeds::rounds::{as_usual, seeds};
use stackprof::sampler;

/// A simulated target that logs its results and requests.
struct Logged {
    target: SimTarget,
    clock: FakeClock,
    records: Vec<TimedEvent>,
    /// Reported stops that are not walked yet: they are once the driver makes the next request.
    stopped: Vec<(ThreadId, SourceEvent)>,
    told_ns: u64,
    /// The list of images at each read.
    lists: BTreeMap<u64, Result<Vec<Mapping>, Fault>>,
    images: Vec<(Mapping, Result<ImageBytes, OpenError>)>,
    names: BTreeMap<ThreadId, Vec<(u64, Option<String>)>>,
    /// Initial threads that were not polled yet, with their start.
    found: BTreeMap<ThreadId, Option<Avma>>,
    /// The last poll of each thread, for threads that have exited since.
    statuses: BTreeMap<ThreadId, ThreadStatus>,
}

impl Logged {
    fn note(&mut self, thread: ThreadId, event: SourceEvent) {
        let process = self.target.process().pid;
        self.records.push(TimedEvent { at_ns: self.clock.now_ns(), process, thread, event });
    }

    fn walk_stopped(&mut self) {
        let process = self.target.process().pid;
        for (thread, event) in self.stopped.drain(..) {
            self.records.push(TimedEvent { at_ns: self.told_ns, process, thread, event });
        }
    }
}

impl Observed for Logged {
    pass_on! { target: process read_memory }

    fn inner(&mut self) -> Option<&mut dyn Observed> {
        Some(&mut self.target)
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        let name = self.target.thread_name(thread);
        self.names.entry(thread).or_default().push((self.clock.now_ns(), name.clone()));
        name
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.walk_stopped();
        let listed = self.target.mappings(out);
        let list = listed.clone().map(|()| out.clone());
        if !self.lists.values().next_back().is_some_and(|last| *last == list) {
            self.lists.insert(self.clock.now_ns(), list);
            self.note(ThreadId(0), SourceEvent::ImagesChanged);
        }
        listed
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        let bytes = self.target.image_bytes(mapping);
        self.images.push((mapping.clone(), bytes.clone()));
        bytes
    }
}

impl Target for Logged {
    pass_on! { target: interrupt waits_at }

    fn threads(&mut self, out: &mut Vec<(ThreadId, Option<Avma>)>) {
        self.target.threads(out);
        self.found.extend(out.iter().copied());
    }

    fn poll(&mut self, thread: ThreadId) -> Result<ThreadStatus, Fault> {
        self.walk_stopped();
        let status = self.target.poll(thread);
        if let Ok(status) = &status {
            self.statuses.insert(thread, *status);
        }
        if let (Some(stack_top), Ok(status)) = (self.found.remove(&thread), status.clone()) {
            self.note(
                thread,
                SourceEvent::ThreadStarted { stack_top, status, preexisting: true, started_ns: None },
            );
        }
        status
    }

    fn next(&mut self, until_ns: u64, capture: &mut Capture) -> Result<TargetEvent, Fault> {
        let event = self.target.next(until_ns, capture);
        self.told_ns = self.clock.now_ns();
        match &event {
            Ok(TargetEvent::Stopped { thread, outcome }) => {
                let status = self.target.poll(*thread).ok();
                capture.status = capture.status.or(status);
                match outcome {
                    StopOutcome::Captured => {
                        let status = capture.status.or(self.statuses.get(thread).copied());
                        let sampled = Capture { status, ..capture.clone() };
                        self.stopped.push((*thread, SourceEvent::Sample(Box::new(sampled))));
                    }
                    StopOutcome::Unreadable(why) => {
                        let event = capture.status.map(|status| SourceEvent::Missed(status, why));
                        let process = self.target.process().pid;
                        self.records.extend(event.map(|event| TimedEvent {
                            process,
                            at_ns: self.told_ns,
                            thread: *thread,
                            event,
                        }));
                    }
                    _ => {}
                }
            }
            Ok(TargetEvent::ThreadStarted { thread, stack_top }) => {
                self.walk_stopped();
                let status = stackprof::sources::ThreadStatus {
                    cpu_ns: 0,
                    switches: 0,
                    activity: stackprof::sources::Activity::Runnable,
                };
                self.note(
                    *thread,
                    SourceEvent::ThreadStarted {
                        stack_top: *stack_top,
                        status,
                        preexisting: false,
                        started_ns: Some(self.clock.now_ns()),
                    },
                );
            }
            Ok(TargetEvent::ThreadExited { thread, cpu_ns }) => {
                self.walk_stopped();
                let reason = "thread ended before its next sample";
                let exited_ns = Some(self.clock.now_ns());
                self.note(*thread, SourceEvent::ThreadEnded { cpu_ns: *cpu_ns, reason, exited_ns });
            }
            _ => {}
        }
        event
    }
}

/// Records, and their watermark.
type Batch = (Option<u64>, Vec<TimedEvent>);

/// The log, pushed in batches.
struct Pushed {
    log: Logged,
    batches: std::vec::IntoIter<Batch>,
    now_ns: u64,
    /// Number of calls to make room, and of processed records.
    kept_up: u64,
    worked: u64,
}

impl Pushed {
    /// Batches of `size` records; each arrives in two parts, by thread, and some records of the second part
    /// are older.
    fn new(mut log: Logged, seed: u64) -> Pushed {
        let mut rng = Rng::new(seed);
        let mut records = std::mem::take(&mut log.records);
        records.sort_by_key(|record| (record.at_ns, record.thread));
        let mut batches: Vec<Batch> = Vec::new();
        let mut late: Vec<TimedEvent> = Vec::new();
        let mut records = records.into_iter().peekable();
        while records.peek().is_some() {
            let many = rng.within(1, 40) as usize;
            let batch: Vec<TimedEvent> = records.by_ref().take(many).collect();
            let is_late = rng.within(0, 3);
            let (now, later): (Vec<_>, Vec<_>) =
                batch.into_iter().partition(|record| record.thread.0 % 4 != is_late);
            // The records of one thread stay in order.
            let mut told = std::mem::take(&mut late);
            told.extend(now);
            late = later;
            // No later record is older than a held-back one or the next one.
            let rest = late.first().into_iter().chain(records.peek()).map(|record| record.at_ns).min();
            batches.push((rest, told));
        }
        if let Some((last, told)) = batches.last_mut() {
            told.append(&mut late);
            *last = None;
        }
        Pushed { log, batches: batches.into_iter(), now_ns: 0, kept_up: 0, worked: 0 }
    }
}

impl Observed for Pushed {
    fn process(&self) -> &Process {
        self.log.target.process()
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        let told = self.log.names.get(&thread)?;
        let at = told.partition_point(|(at_ns, _)| *at_ns <= self.now_ns);
        told.get(at.max(1) - 1)?.1.clone()
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        let Some((_, list)) = self.log.lists.range(..=self.now_ns).next_back() else {
            return Err(Fault::Gone);
        };
        out.clone_from(list.as_ref().map_err(Fault::clone)?);
        Ok(())
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        let known = self.log.images.iter().rev().find(|(known, _)| known == mapping);
        known.map_or(Err(OpenError::Source("never asked for")), |(_, bytes)| bytes.clone())
    }
}

impl PushedSource for Pushed {
    fn observed(&mut self, _process: u32) -> Option<&mut dyn Observed> {
        Some(self)
    }

    fn next_batch(&mut self, _until_ns: u64, into: &mut Vec<TimedEvent>) -> Result<Option<u64>, Fault> {
        let (complete_until_ns, records) = self.batches.next().ok_or(Fault::Gone)?;
        into.extend(records);
        Ok(complete_until_ns)
    }

    fn drain_rings(&mut self) {
        self.kept_up += 1;
    }

    fn set_time(&mut self, at_ns: u64) {
        self.now_ns = at_ns;
        self.worked += 1;
        assert_eq!(self.kept_up, self.worked, "room is made before each record");
    }
}

fn saved(profile: &Recording) -> SavedProfile {
    let frames = profile.trie.frames().enumerate().map(|(index, frame)| (FrameId(index as u32), frame));
    let names = symbol::symbolicate(frames, &profile.images, &symbol::Options::default());
    conversion::saved_profile(profile, &names, ConversionOptions::default()).unwrap()
}

fn folded_text(profile: &Recording) -> String {
    let mut text = Vec::new();
    folded::write(&ByName::of(&saved(profile), false).unwrap(), &mut text).unwrap();
    String::from_utf8(text).unwrap()
}

/// Both recordings of one process, as folded text.
fn both(config: &SimConfig, seed: u64) -> (String, String) {
    let options = options(251, seed);
    let clock = FakeClock::default();
    let mut log = Logged {
        target: SimTarget::new(config.clone(), clock.clone()),
        clock: clock.clone(),
        records: Vec::new(),
        stopped: Vec::new(),
        told_ns: 0,
        lists: BTreeMap::new(),
        images: Vec::new(),
        names: BTreeMap::new(),
        found: BTreeMap::new(),
        statuses: BTreeMap::new(),
    };
    let stopped = sampler::record(&mut log, &clock, &options, &Live::default()).unwrap();
    log.walk_stopped();
    let mut pushed = Pushed::new(log, seed);
    let pushed = pushed::record(&mut pushed, &FakeClock::default(), &options, &Live::default()).unwrap();
    let (told, lost) = (|p: &Recording| p.stats.samples, |p: &Recording| p.stats.samples_lost.clone());
    assert_eq!((told(&stopped), lost(&stopped)), (told(&pushed), lost(&pushed)), "seed {seed}");
    check_times(&stopped);
    check_times(&pushed);
    times::check_saved(&saved(&stopped));
    times::check_saved(&saved(&pushed));
    (folded_text(&stopped), folded_text(&pushed))
}

#[test]
fn the_same_samples_pushed_late_and_out_of_order_give_the_same_profile() {
    let mut stacks = 0;
    for seed in seeds(0..60) {
        let _replay = replay_sim(seed);
        let mut config = seeded(seed);
        // A replaced program is visible in the order of its threads' exits, not in one record.
        config.exec = None;
        let (stopped, pushed) = both(&config, seed);
        assert_eq!(stopped, pushed, "seed {seed}");
        stacks += stopped.lines().count();
    }
    assert!(stacks > 500 || !as_usual(), "{stacks} stacks in all");
}

//! Records simulated processes and reads profiles back as names and counts.
//!
//! Every recording is checked for invariants ([`Recorded::check`]). [`Watched`] lets a test see each tick and
//! act at a given time. A failure prints the seed and how to replay it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::folded;
use crate::pass_on::pass_on;
use stackprof::clock::{Clock, FakeClock};
use stackprof::error::Result;
use stackprof::live::Live;
use stackprof::recording::timeline::DEFAULT_MEMORY_BYTES;
use stackprof::recording::{Frame, Recording};
use stackprof::sampler::{self, Options};
use stackprof::sources::sim::{SimConfig, SimLedger, SimTarget, Truth};
use stackprof::sources::{Capture, Fault, Observed, Target, TargetEvent, ThreadId};
use stackprof::symbol::{self, Names};
use stackprof::trie::FrameId;
use stackprof::walk::UnwindMethod;

/// Prints how to replay if the test fails while this is alive.
pub struct Replay(String);

/// Replay of a process that only this test defines.
pub fn replay(seed: u64) -> Replay {
    Replay(replay_line(seed))
}

fn replay_line(seed: u64) -> String {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    format!("seed {seed}; replay: STACKPROF_SEED={seed} cargo test --test fast {test}")
}

/// Replay of an unchanged process of [`SimConfig::from_seed`].
pub fn replay_sim(seed: u64) -> Replay {
    let line = replay_line(seed);
    Replay(format!("{line}\n  the process alone: stackprof record --target sim:{seed} --seed {seed}"))
}

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

pub fn options(hz: u32, seed: u64) -> Options {
    Options {
        timeline_bytes: DEFAULT_MEMORY_BYTES,
        linger_ns: 0,
        block_age_min_ns: 0,
        max_stop: 1.0,
        hz,
        duration_ns: None,
        idle: false,
        off_cpu: false,
        threads: true,
        max_depth: 8192,
        unwind: UnwindMethod::Auto,
        seed,
    }
}

/// A profile's stacks: thread number, whether complete, function names from the root.
pub type Stacks = BTreeMap<(u64, bool, Vec<String>), u64>;

/// A recording and the actual behavior.
pub struct Recorded {
    pub profile: Recording,
    pub names: Names,
    pub stacks: Stacks,
    /// CPU time by thread and stack at the end of the recording.
    pub truth: Truth,
    pub ledger: Rc<SimLedger>,
    /// The clock at the end of the recording.
    pub now_ns: u64,
    idle: bool,
}

/// Records a simulated process to its end and checks the invariants.
pub fn record(config: &SimConfig, options: &Options) -> Recorded {
    record_with(config, options, |target, clock, live| sampler::record(target, clock, options, live))
        .expect("the recording ends well")
}

/// Like [`record`] with a custom recorder; its error is returned after checking that no thread stays stopped.
pub fn record_with(
    config: &SimConfig,
    options: &Options,
    how: impl FnOnce(&mut SimTarget, &FakeClock, &Live) -> Result<Recording>,
) -> Result<Recorded> {
    let clock = FakeClock::default();
    let mut target = SimTarget::new(config.clone(), clock.clone());
    let result = how(&mut target, &clock, &Live::default());
    let (truth, ledger) = (target.truth(), target.ledger());
    drop(target);
    assert_eq!((ledger.stopped(), ledger.stops()), (0, ledger.resumes()), "nobody is left standing");
    let profile = result?;
    let frames = profile.trie.frames().enumerate().map(|(index, frame)| (FrameId(index as u32), frame));
    let names = symbol::symbolicate(frames, &profile.images, &symbol::Options::default());
    let stacks = stacks(&profile, &names);
    let now_ns = clock.now_ns();
    let recorded = Recorded { profile, names, stacks, truth, ledger, now_ns, idle: options.idle };
    recorded.check();
    Ok(recorded)
}

/// Checks times of samples: they weigh the same as the profile's counts, for each stack of each thread, and
/// in total. They are in order, within the recording, and within the life of their thread.
pub fn check_times(profile: &Recording) {
    /// Unit of times and weights, nanoseconds.
    const UNIT_NS: f64 = 1024.0;
    let Some(timeline) = profile.timeline.as_ref().filter(|timeline| timeline.dropped_ns() == 0) else {
        return;
    };
    let counts = |ns: f64| ns * f64::from(profile.hz) / 1e9;
    let end_ns = profile.stats.duration_ns + profile.stats.suspended_ns + 40_000_000;
    let (mut all_ns, mut by_node) = (0, BTreeMap::new());
    for thread in timeline.threads() {
        let mut before_ns = thread.begun_ns;
        for sample in thread.samples() {
            assert!(sample.at_ns + 1024 >= before_ns, "thread {}: samples are in order", thread.id);
            assert!(sample.at_ns <= thread.ended_ns.unwrap_or(end_ns).max(end_ns), "thread {}", thread.id);
            before_ns = sample.at_ns;
            all_ns += sample.weight_ns;
            let (weight_ns, samples) = by_node.entry(sample.node).or_insert((0, 0u64));
            *weight_ns += sample.weight_ns;
            *samples += 1;
            if !timeline.detail().is_times_only() {
                let mut root = sample.node;
                while let Some(caller) = profile.trie.parent(root).filter(|caller| caller.0 != 0) {
                    root = caller;
                }
                let Some(Frame::Root(root)) = profile.trie.key(root) else {
                    panic!("a stack without a root")
                };
                let of = profile.thread(root).map_or(thread.id, |thread| thread.id);
                assert_eq!(of, thread.id, "a stack of another thread");
            }
        }
    }
    // Rounding remainders are carried over to the thread's next sample.
    let slack = 0.5 + counts(UNIT_NS) * timeline.threads().len() as f64;
    let total = profile.trie.total() as f64;
    assert!(
        (counts(all_ns as f64) - total).abs() <= slack,
        "{} counts by time of {total}",
        counts(all_ns as f64)
    );
    if timeline.detail().is_times_only() {
        return;
    }
    for (node, (weight_ns, samples)) in by_node {
        let (timed, count) = (counts(weight_ns as f64), profile.trie.count(node) as f64);
        let slack = 1.0 + counts(UNIT_NS) * (samples + 1) as f64;
        assert!((timed - count).abs() <= slack, "{node:?}: {timed} counts by time of {count}");
    }
}

fn stacks(profile: &Recording, names: &Names) -> Stacks {
    let mut stacks = Stacks::new();
    profile.trie.for_each_stack(|frames, count| {
        let Some(Frame::Root(root)) = profile.trie.frame(frames[0]) else { panic!("a stack without a root") };
        let id = profile.thread(root).unwrap().id;
        let text = frames[1..].iter().flat_map(|frame| names.get(*frame)).map(|name| name.to_string());
        *stacks.entry((id, root.complete, text.collect())).or_default() += count;
    });
    stacks
}

impl Recorded {
    /// Lost counts, all causes together.
    pub fn lost(&self) -> u64 {
        self.profile.stats.samples_lost.values().sum()
    }

    pub fn lost_by(&self, reason: &str) -> u64 {
        self.profile.stats.samples_lost.get(reason).copied().unwrap_or(0)
    }

    pub fn incomplete(&self) -> u64 {
        self.profile.stats.stacks_incomplete.values().sum()
    }

    pub fn incomplete_by(&self, reason: &str) -> u64 {
        self.profile.stats.stacks_incomplete.get(reason).copied().unwrap_or(0)
    }

    /// Counts of a thread, complete or not.
    pub fn counts_of(&self, thread: ThreadId) -> u64 {
        self.stacks.iter().filter(|((id, ..), _)| *id == thread.0).map(|(_, count)| count).sum()
    }

    /// Counts of a complete stack.
    pub fn count(&self, thread: ThreadId, names: &[String]) -> u64 {
        self.stacks.get(&(thread.0, true, names.to_vec())).copied().unwrap_or(0)
    }

    /// CPU time during the recording, as counts.
    pub fn true_counts(&self) -> f64 {
        self.counts(self.truth.values().sum())
    }

    pub fn true_counts_of(&self, thread: ThreadId) -> f64 {
        self.counts(self.truth.iter().filter(|((id, _), _)| *id == thread).map(|(_, ns)| ns).sum())
    }

    pub fn counts(&self, ns: u64) -> f64 {
        ns as f64 * f64::from(self.profile.hz) / 1e9
    }

    /// Folded text by thread.
    pub fn folded(&self) -> String {
        let stacks = self.stacks.iter().map(|((id, complete, names), count)| {
            let thread = self.profile.threads().find(|thread| thread.id == *id);
            let thread = (thread.map_or("", |thread| thread.name.as_str()), *id);
            folded::Stack { thread, complete: *complete, names, count: *count }
        });
        folded::text("sim", stacks)
    }

    /// Checks the invariants of every recording.
    fn check(&self) {
        let stats = &self.profile.stats;
        assert_eq!(stats.samples, self.profile.trie.total(), "samples are the counts of the trie");
        assert_eq!(stats.samples, self.stacks.values().sum::<u64>());
        assert_eq!(
            stats.samples,
            stats.stacks_complete + self.incomplete(),
            "each sample is complete or not"
        );
        let complete: u64 = self.stacks.iter().filter(|((_, yes, _), _)| *yes).map(|(_, n)| n).sum();
        assert_eq!(stats.stacks_complete, complete, "under the right root");
        assert!(stats.samples_lost.values().chain(stats.stacks_incomplete.values()).all(|n| *n > 0));
        assert_eq!(self.ledger.interrupted_stopped(), 0, "job control is left alone");
        if !self.idle {
            assert_eq!(self.ledger.interrupted_waiting(), 0, "waiting threads are left alone");
            assert_eq!(stats.samples_idle_reused, 0);
        }
        assert_eq!(stats.stops, stats.pause.count(), "each stop has its pause");
        assert!(stats.stops <= self.ledger.stops());
        assert_eq!(stats.threads_seen, self.profile.threads().count() as u64);
        self.check_lookups();
        self.check_stacks();
        check_times(&self.profile);
    }

    /// One look-up per unique address, counted independently.
    fn check_lookups(&self) {
        let mut unique = BTreeSet::new();
        for frame in self.profile.trie.frames() {
            if let Frame::Code { space, address } = frame {
                let at = self.profile.images.locate(space, address.at());
                unique.insert(at.map_or((None, address.0), |at| (Some(at.index), at.svma.0)));
            }
        }
        let names = &self.names;
        assert_eq!(names.addresses_unique, unique.len() as u64, "unique addresses");
        assert_eq!(names.addresses_looked_up, names.addresses_unique, "one look-up each");
        let unnamed: u64 = names.addresses_unnamed.values().sum();
        assert_eq!(names.addresses_named + unnamed, names.addresses_unique, "named or counted by reason");
    }

    /// Complete stacks are stacks of actual captures of the thread; others are the leaf side of one. Only
    /// frames without a name may differ.
    fn check_stacks(&self) {
        let captured = self.ledger.captures_by_stack();
        let same = |shown: &str, real: &str| shown == real || shown.starts_with('[');
        for (id, complete, shown) in self.stacks.keys() {
            let mut real = captured.keys().filter(|(thread, _)| thread.0 == *id).map(|(_, names)| names);
            let fits = real.any(|real| {
                let from_leaf = shown.iter().rev().zip(real.iter().rev());
                let long_enough =
                    if *complete { real.len() == shown.len() } else { real.len() >= shown.len() };
                long_enough && from_leaf.into_iter().all(|(shown, real)| same(shown, real))
            });
            assert!(fits, "thread {id} never had this stack (complete: {complete}): {shown:?}");
        }
    }

    /// Every count of CPU time is in the profile or lost under a cause, exactly: to within one count per
    /// thread, and the CPU time of running threads since the system last updated it.
    pub fn check_balance(&self) {
        let alive = if self.profile.stats.exit_status.is_some() { 0.0 } else { self.counts(4_000_000) };
        let threads = self.profile.threads().count() as f64;
        let told = (self.profile.stats.samples + self.lost()) as f64;
        let real = self.true_counts();
        let slack = threads * (1.0 + alive) + 1.0;
        assert!(
            told <= real + threads && told >= real - slack,
            "{told} counts and losses for {real:.1} counts of CPU time (slack {slack}): {:?}",
            self.profile.stats
        );
    }

    /// Each stack's share is its share of the CPU time, within 5 standard deviations of
    /// `samples` independent samples.
    pub fn check_shares(&self, samples: f64) {
        let total = self.profile.stats.samples as f64;
        let total_ns = self.truth.values().sum::<u64>() as f64;
        for ((thread, names), ns) in &self.truth {
            let real = *ns as f64 / total_ns;
            let shown = self.count(*thread, names) as f64 / total;
            let tolerance = 5.0 * (real * (1.0 - real) / samples).sqrt() + 0.0015;
            assert!(
                (shown - real).abs() <= tolerance,
                "{thread:?} {names:?}: {shown:.4} of the samples, {real:.4} of the CPU time (±{tolerance:.4}) in \
                 {:#?}\n{:#?}",
                self.stacks,
                self.truth,
            );
        }
    }
}

/// A simulated target that records each tick and can act at a given time.
pub struct Watched<'a> {
    pub target: &'a mut SimTarget,
    pub clock: FakeClock,
    /// Times of polls of any thread, each once: the ticks.
    pub ticks_ns: Vec<u64>,
    /// Called with the time before each wait for an event; its result is returned instead, if any.
    pub before_next: Box<dyn FnMut(u64) -> Option<std::result::Result<TargetEvent, Fault>> + 'a>,
}

impl<'a> Watched<'a> {
    pub fn new(
        target: &'a mut SimTarget,
        clock: &FakeClock,
        before_next: impl FnMut(u64) -> Option<std::result::Result<TargetEvent, Fault>> + 'a,
    ) -> Watched<'a> {
        let clock = clock.clone();
        Watched { target, clock, ticks_ns: Vec::new(), before_next: Box::new(before_next) }
    }
}

impl Observed for Watched<'_> {
    pass_on! { target: process }

    fn inner(&mut self) -> Option<&mut dyn Observed> {
        Some(self.target)
    }
}

impl Target for Watched<'_> {
    pass_on! { target: threads poll waits_at }

    fn interrupt(
        &mut self,
        thread: ThreadId,
        stack_bytes: usize,
        keep_waiting: bool,
    ) -> std::result::Result<(), Fault> {
        let now_ns = self.clock.now_ns();
        if self.ticks_ns.last() != Some(&now_ns) {
            self.ticks_ns.push(now_ns);
        }
        self.target.interrupt(thread, stack_bytes, keep_waiting)
    }

    fn next(&mut self, until_ns: u64, capture: &mut Capture) -> std::result::Result<TargetEvent, Fault> {
        match (self.before_next)(self.clock.now_ns()) {
            Some(instead) => instead,
            None => self.target.next(until_ns, capture),
        }
    }
}

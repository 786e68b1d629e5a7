//! Records a process of the simulated kernel and reads the profile back as names.

use std::collections::{BTreeMap, BTreeSet};

use stackprof::error::Result;
use stackprof::live::Live;
use stackprof::recording::{Frame, Recording};
use stackprof::sampler::{self, Options};
use stackprof::sources::mach::{MachClock, MachTarget};
use stackprof::symbol;
use stackprof::trie::FrameId;

use crate::folded;
use crate::sampler::recording;
use crate::sim_kernel::{MS, SimKernel, Truth, World};

pub const HZ: u32 = 1000;

pub fn options(for_ms: u64) -> Options {
    Options { timeline_bytes: 0, max_stop: 0.02, duration_ns: Some(for_ms * MS), ..recording::options(HZ, 1) }
}

pub fn idle(for_ms: u64) -> Options {
    Options { idle: true, ..options(for_ms) }
}

/// Prints the seed when the test fails while this is alive.
pub struct Replay(pub u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let test = std::thread::current().name().unwrap_or_default().to_owned();
            eprintln!("replay: STACKPROF_SEED={} cargo test --test fast {test}", self.0);
        }
    }
}

/// A recording.
pub struct Recorded {
    pub profile: Recording,
    /// Thread number, whether complete, names from the root: counts.
    pub stacks: BTreeMap<(u64, bool, Vec<String>), u64>,
    /// The actual behavior.
    pub truth: Truth,
    pub waits: Truth,
    pub captures: Truth,
}

/// Attaches to process 500, records, and drops the target; checks that nothing is left of it.
pub fn record(kernel: &SimKernel, options: &Options) -> Result<Recorded> {
    let recorded = record_unclean(kernel, options);
    kernel.assert_clean();
    recorded
}

/// Like [`record`], without the check.
pub fn record_unclean(kernel: &SimKernel, options: &Options) -> Result<Recorded> {
    with(kernel, MachTarget::attach(kernel, 500), options)
}

/// Records a target, if there is one.
pub fn with(kernel: &SimKernel, target: Result<MachTarget<'_>>, options: &Options) -> Result<Recorded> {
    let mut target = target?;
    let profile = sampler::record(&mut target, &MachClock::new(kernel), options, &Live::default());
    drop(target);
    let profile = profile?;
    let frames = profile.trie.frames().enumerate().map(|(index, frame)| (FrameId(index as u32), frame));
    let names = symbol::symbolicate(frames, &profile.images, &symbol::Options::default());
    let mut stacks = BTreeMap::new();
    profile.trie.for_each_stack(|frames, count| {
        let Some(Frame::Root(root)) = profile.trie.frame(frames[0]) else { panic!("a stack without a root") };
        let id = profile.thread(root).unwrap().id;
        let text = frames[1..].iter().flat_map(|frame| names.get(*frame)).map(|name| name.to_string());
        *stacks.entry((id, root.complete, text.collect())).or_default() += count;
    });
    let (truth, waits, captures) = (kernel.truth(), kernel.truth_waiting(), kernel.captures());
    Ok(Recorded { profile, stacks, truth, waits, captures })
}

/// Builds and records.
pub fn recorded(world: World, options: &Options) -> (SimKernel, Recorded) {
    let kernel = world.build();
    let recorded = record(&kernel, options).expect("a recording");
    (kernel, recorded)
}

impl Recorded {
    /// Folded text by thread.
    pub fn folded(&self) -> String {
        let stacks = self.stacks.iter().map(|((id, complete, names), count)| {
            let thread = self.profile.threads().find(|thread| thread.id == *id);
            let thread = (thread.map_or("", |thread| thread.name.as_str()), *id);
            folded::Stack { thread, complete: *complete, names, count: *count }
        });
        folded::text(&self.profile.process.name, stacks)
    }

    /// Stacks in the profile, without their counts.
    pub fn shown(&self) -> BTreeSet<(u64, Vec<String>)> {
        self.stacks.keys().map(|(id, _, names)| (*id, names.clone())).collect()
    }

    /// Checks that every stack is complete and equals the thread's stack at its capture.
    pub fn check_exact(&self) {
        for ((id, complete, names), count) in &self.stacks {
            assert!(*complete, "incomplete: {count} of thread {id} in {names:?}\n{:?}", self.profile.stats);
            let real = self.captures.contains_key(&(*id, names.clone()));
            assert!(real, "thread {id} was never captured in {names:?}, only in\n{:#?}", self.captures);
        }
        assert!(!self.stacks.is_empty(), "{:?}", self.profile.stats);
    }

    /// Checks that each stack's share of the samples is its share of the CPU time, within `tolerance`.
    pub fn check_shares(&self, tolerance: f64) {
        let total = self.profile.stats.samples as f64;
        let total_ns = self.truth.values().sum::<u64>() as f64;
        for ((id, names), ns) in &self.truth {
            let shown = self.stacks.get(&(*id, true, names.clone())).copied().unwrap_or(0) as f64 / total;
            let real = *ns as f64 / total_ns;
            assert!(
                (shown - real).abs() < tolerance,
                "{shown:.3} of the samples, {real:.3} of the time: thread {id} {names:?}\n{:#?}",
                self.stacks
            );
        }
    }

    /// Checks that every stack that ran is shown, and hardly any of those that waited: a thread may begin to
    /// wait between the poll and the stop.
    pub fn check_ran(&self, what: &str) {
        let shown = self.shown();
        for stack in self.truth.keys() {
            assert!(shown.contains(stack), "{what}: {stack:?} ran and is not shown");
        }
        let ran = |id: &u64, names: &[String]| self.truth.contains_key(&(*id, names.to_vec()));
        let waited = self.stacks.iter().filter(|((id, _, names), _)| !ran(id, names));
        let waited: u64 = waited.map(|(_, count)| count).sum();
        let total = self.profile.stats.samples;
        assert!(waited * 50 <= total, "{what}: {waited} of {total} samples were of waiting stacks");
    }

    pub fn lost(&self) -> u64 {
        self.profile.stats.samples_lost.values().sum()
    }
}

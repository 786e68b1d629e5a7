//! Queries by tests: remaining resources, rule violations, and the actual behavior; and actions from outside
//! the client.

use std::any::Any;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use stackprof::live::Live;

use super::faults::Method;
use super::images::Placed;
use super::state::{State, Violation};
use super::{ProfilerKilled, SimKernel};

/// Time in nanoseconds by thread and stack: function names from the root to the leaf.
pub type Truth = BTreeMap<(u64, Vec<String>), u64>;

/// Resources left by a client, and its violations.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub seed: u64,
    pub calls: u64,
    /// Remaining names, with their meaning and references.
    pub names: Vec<String>,
    /// Most names at one time.
    pub names_peak: usize,
    /// Arrays in it that were not released: address and size.
    pub arrays: Vec<(u64, u64)>,
    pub arrays_peak: usize,
    /// Processes that stay stopped because of it.
    pub held: Vec<i32>,
    /// Children that it started suspended and never resumed.
    pub never_continued: Vec<i32>,
    pub violations: Vec<Violation>,
    /// Reads that made pages of the target copy-on-write.
    pub virtual_copies: u64,
    /// Calls on names reported to it as dead. They do no harm while it keeps its reference, so they are
    /// reported separately: [`SimKernel::assert_no_repeats`].
    pub repeats: Vec<Violation>,
    pub holds: u64,
    pub longest_hold_ns: u64,
    /// Time in which a task was held.
    pub held_ns: u64,
}

impl Report {
    pub fn is_clean(&self) -> bool {
        self.names.is_empty()
            && self.arrays.is_empty()
            && self.held.is_empty()
            && self.never_continued.is_empty()
            && self.violations.is_empty()
            && self.virtual_copies == 0
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "simulated kernel, seed {}, after {} calls:", self.seed, self.calls)?;
        for name in &self.names {
            writeln!(f, "  not given back: {name}")?;
        }
        for (address, size) in &self.arrays {
            writeln!(f, "  not deallocated: {size} bytes at {address:#x}")?;
        }
        for pid in &self.held {
            writeln!(f, "  still suspended: process {pid}")?;
        }
        for pid in &self.never_continued {
            writeln!(f, "  started and never continued: process {pid}")?;
        }
        if self.virtual_copies > 0 {
            writeln!(f, "  {} reads larger than the kernel's buffer", self.virtual_copies)?;
        }
        for violation in self.violations.iter().chain(&self.repeats) {
            writeln!(f, "  call {}: {}", violation.call, violation.what)?;
        }
        Ok(())
    }
}

impl SimKernel {
    pub(super) fn of(state: State) -> SimKernel {
        SimKernel { state: RefCell::new(state) }
    }

    pub fn report(&self) -> Report {
        let state = self.state.borrow();
        let held = |task: &&super::task::Task| task.alive && task.is_held();
        let names = state
            .names
            .all()
            .map(|(name, entry)| format!("name {name:#x}, {:?}, {} references", entry.right, entry.urefs));
        let waiting = state.procs.values().filter(|proc| {
            proc.is_child
                && proc.ended.is_none()
                && proc.stopped
                && !proc.signals.contains_key(&super::SIGCONT)
        });
        Report {
            seed: state.seed,
            calls: state.call(),
            names: names.collect(),
            names_peak: state.names.peak,
            arrays: state.placed.iter().map(|(address, size)| (*address, *size)).collect(),
            arrays_peak: state.placed_peak,
            held: state.tasks.iter().filter(held).map(|task| task.pid).collect(),
            never_continued: waiting.map(|proc| proc.spec.pid).collect(),
            violations: state.violations.clone(),
            virtual_copies: state.virtual_copies,
            repeats: state.repeats.clone(),
            holds: state.holds,
            longest_hold_ns: state.longest_hold_ns,
            held_ns: state.held_ns,
        }
    }

    /// Asserts that nothing is left of the dropped client, and that it violated no rule.
    #[track_caller]
    pub fn assert_clean(&self) {
        let report = self.report();
        assert!(report.is_clean(), "{report}");
    }

    /// Asserts that it made no calls on names reported as dead.
    #[track_caller]
    pub fn assert_no_repeats(&self) {
        let report = self.report();
        assert!(report.repeats.is_empty(), "{} useless calls: {report}", report.repeats.len());
    }

    /// Calls so far, in order; call k is at index k − 1.
    pub fn calls(&self) -> Vec<Method> {
        self.state.borrow().calls.clone()
    }

    pub fn count(&self, method: Method) -> u64 {
        self.state.borrow().by_method.get(&method).copied().unwrap_or(0)
    }

    pub fn now_ns(&self) -> u64 {
        self.state.borrow().now_ns
    }

    /// Lets time pass without a call.
    pub fn pass(&self, ns: u64) {
        self.state.borrow_mut().pass(ns);
    }

    /// Schedules Ctrl-C after this time; returns its time.
    pub fn interrupt(&self, after_ns: u64, live: &Arc<Live>) -> u64 {
        let mut state = self.state.borrow_mut();
        let at_ns = state.now_ns + after_ns;
        state.interrupted = Some((at_ns, Arc::clone(live)));
        at_ns
    }

    /// Fails a client that still makes calls this much later.
    pub fn lose_patience(&self, after_ns: u64) {
        let mut state = self.state.borrow_mut();
        state.patience_until_ns = state.now_ns + after_ns;
    }

    /// How long the client had no CPU, from a time on.
    pub fn delayed_ns(&self, from_ns: u64) -> u64 {
        let state = self.state.borrow();
        state.delays.iter().filter(|(at_ns, ns)| at_ns + ns > from_ns).map(|(_, ns)| ns).sum()
    }

    /// How often a known process got a signal.
    pub fn signals(&self, pid: i32, signal: i32) -> u64 {
        let state = self.state.borrow();
        state.procs.get(&pid).and_then(|proc| proc.signals.get(&signal)).copied().unwrap_or(0)
    }

    /// Whether a process exists, also as a zombie.
    pub fn exists(&self, pid: i32) -> bool {
        self.state.borrow().procs.contains_key(&pid)
    }

    /// Whether a process is stopped, for any reason.
    pub fn stands(&self, pid: i32) -> bool {
        let state = self.state.borrow();
        let task = state.procs.get(&pid).and_then(|proc| proc.task);
        task.is_some_and(|task| state.stands(task))
    }

    /// Runs a client that a plan kills ([`Happening::KillProfiler`]); `None` if it was killed.
    pub fn run_killed<T>(&self, client: impl FnOnce() -> T) -> Option<T> {
        match catch_unwind(AssertUnwindSafe(client)) {
            Ok(value) => Some(value),
            Err(panic) if panic.downcast_ref::<ProfilerKilled>().is_some() => None,
            Err(panic) => resume_unwind(panic as Box<dyn Any + Send>),
        }
    }

    fn times(&self, of: impl Fn(super::Doing) -> bool) -> Truth {
        let state = self.state.borrow();
        let mut truth = Truth::new();
        for task in &state.tasks {
            for thread in &task.threads {
                for (stretch, ns) in thread.stretches.iter().zip(thread.times(task.ran_ns)) {
                    if of(stretch.doing) && ns > 0 {
                        *truth.entry((thread.thread_id, stretch.names.clone())).or_default() += ns;
                    }
                }
            }
        }
        truth
    }

    /// Actual CPU time so far.
    pub fn truth(&self) -> Truth {
        self.times(|doing| doing == super::Doing::Run)
    }

    /// Actual waiting time so far.
    pub fn truth_waiting(&self) -> Truth {
        self.times(|doing| doing != super::Doing::Run)
    }

    /// Stacks of the register sets returned while the target was held.
    pub fn captures(&self) -> Truth {
        self.state.borrow().captured.clone()
    }

    /// Numbers of all threads ever created, with names, in order of creation.
    pub fn thread_ids(&self) -> Vec<(u64, String)> {
        let state = self.state.borrow();
        let threads = state.tasks.iter().flat_map(|task| &task.threads);
        threads.map(|thread| (thread.thread_id, thread.name.clone())).collect()
    }

    /// Images of the newest task: path, first address, size of `__TEXT`, UUID.
    pub fn images(&self) -> Vec<(String, u64, u64, [u8; 16])> {
        let state = self.state.borrow();
        let placed = state.tasks.last().map(|task| &task.images.placed[..]).unwrap_or_default();
        let told = |placed: &Placed| (placed.image.path.clone(), placed.base, placed.code.size, placed.uuid);
        placed.iter().map(told).collect()
    }

    /// Paths currently listed by dyld.
    pub fn listed(&self) -> Vec<String> {
        let state = self.state.borrow();
        let Some(task) = state.tasks.last() else { return Vec::new() };
        task.dyld.listed.iter().map(|image| task.images.placed[*image].image.path.clone()).collect()
    }

    /// Writes to the memory of the newest task, like the target itself.
    pub fn poke(&self, address: u64, bytes: &[u8]) {
        let mut state = self.state.borrow_mut();
        state.tasks.last_mut().expect("a task").memory.write(address, bytes);
    }

    /// Address of dyld_all_image_infos in the newest task.
    pub fn all_image_infos(&self) -> u64 {
        self.state.borrow().tasks.last().expect("a task").dyld.registered
    }
}

//! The ledger of a simulation: ground truth to compare a profile with.
//!
//! Shared by `Rc`, so that it can be read after the target was dropped, even by a panic. Input: the machine's own
//! accounting. It decides nothing.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use crate::addr::Avma;
use crate::sources::ThreadId;

/// Time in nanoseconds (or a count) by thread and stack: function names from the root to the leaf.
pub type Truth = BTreeMap<(ThreadId, Vec<String>), u64>;

/// The true stack of one capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrueStack {
    /// The captured thread.
    pub thread: ThreadId,
    /// Function names from the root to the leaf.
    pub names: Vec<String>,
    /// The program counter, then return addresses outward; one per name.
    pub addresses: Vec<Avma>,
}

/// One stack of one thread, with the time spent there.
#[derive(Debug)]
struct Slot {
    thread: ThreadId,
    names: Vec<String>,
    returns: Vec<Avma>,
    cpu_ns: u64,
    waited_ns: u64,
    captures: u64,
}

/// Ground truth of a simulated process.
#[derive(Debug, Default)]
pub struct SimLedger {
    stopped: RefCell<BTreeSet<ThreadId>>,
    stops: Cell<u64>,
    resumes: Cell<u64>,
    died_stopped: Cell<u64>,
    interrupted_waiting: Cell<u64>,
    interrupted_stopped: Cell<u64>,
    captures: Cell<u64>,
    stopped_ns: Cell<u64>,
    longest_stop_ns: Cell<u64>,
    idle_cpu_ns: Cell<u64>,
    faults: RefCell<BTreeMap<&'static str, u64>>,
    slots: RefCell<Vec<Slot>>,
    last: Cell<Option<(usize, Avma)>>,
}

fn bump(cell: &Cell<u64>, by: u64) {
    cell.set(cell.get().saturating_add(by));
}

impl SimLedger {
    /// Threads currently stopped for the profiler.
    #[must_use]
    pub fn stopped(&self) -> usize {
        self.stopped.borrow().len()
    }

    /// Number of stops.
    #[must_use]
    pub fn stops(&self) -> u64 {
        self.stops.get()
    }

    /// Number of releases of stopped threads, including deaths.
    #[must_use]
    pub fn resumes(&self) -> u64 {
        self.resumes.get()
    }

    /// Number of threads that died while stopped; included in resumes.
    #[must_use]
    pub fn died_stopped(&self) -> u64 {
        self.died_stopped.get()
    }

    /// Stop requests to a waiting thread, which a CPU profile never needs.
    #[must_use]
    pub fn interrupted_waiting(&self) -> u64 {
        self.interrupted_waiting.get()
    }

    /// Stop requests to a thread under job control, which the profiler must not make.
    #[must_use]
    pub fn interrupted_stopped(&self) -> u64 {
        self.interrupted_stopped.get()
    }

    /// Number of captured stacks.
    #[must_use]
    pub fn captures(&self) -> u64 {
        self.captures.get()
    }

    /// Total stop time of all threads, nanoseconds.
    #[must_use]
    pub fn stopped_ns(&self) -> u64 {
        self.stopped_ns.get()
    }

    /// The longest stop, nanoseconds.
    #[must_use]
    pub fn longest_stop_ns(&self) -> u64 {
        self.longest_stop_ns.get()
    }

    /// Total idle time of all CPUs, nanoseconds.
    #[must_use]
    pub fn idle_cpu_ns(&self) -> u64 {
        self.idle_cpu_ns.get()
    }

    /// Number of injections of each fault, by [`super::FaultKind::name`].
    #[must_use]
    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.faults.borrow().clone()
    }

    /// CPU time actually used, by thread and stack, nanoseconds.
    #[must_use]
    pub fn truth(&self) -> Truth {
        self.by_stack(|slot| slot.cpu_ns)
    }

    /// Time actually spent waiting, by thread and stack, nanoseconds.
    #[must_use]
    pub fn truth_waiting(&self) -> Truth {
        self.by_stack(|slot| slot.waited_ns)
    }

    /// Captured stacks by thread and stack: counts.
    #[must_use]
    pub fn captures_by_stack(&self) -> Truth {
        self.by_stack(|slot| slot.captures)
    }

    /// The true stack of the last capture.
    #[must_use]
    pub fn last_capture(&self) -> Option<TrueStack> {
        let (slot, pc) = self.last.get()?;
        let slots = self.slots.borrow();
        let slot = slots.get(slot)?;
        let addresses = std::iter::once(pc).chain(slot.returns.iter().copied()).collect();
        Some(TrueStack { thread: slot.thread, names: slot.names.clone(), addresses })
    }

    fn by_stack(&self, value: impl Fn(&Slot) -> u64) -> Truth {
        let mut truth = Truth::new();
        for slot in self.slots.borrow().iter().filter(|slot| value(slot) > 0) {
            *truth.entry((slot.thread, slot.names.clone())).or_default() += value(slot);
        }
        truth
    }

    /// Adds a slot for one stack of `thread`; `returns` from the leaf outward.
    pub(super) fn add_slot(&self, thread: ThreadId, names: Vec<String>, returns: Vec<Avma>) -> usize {
        let mut slots = self.slots.borrow_mut();
        slots.push(Slot { thread, names, returns, cpu_ns: 0, waited_ns: 0, captures: 0 });
        slots.len() - 1
    }

    pub(super) fn ran(&self, slot: usize, ns: u64) {
        self.slots.borrow_mut()[slot].cpu_ns += ns;
    }

    pub(super) fn waited(&self, slot: usize, ns: u64) {
        self.slots.borrow_mut()[slot].waited_ns += ns;
    }

    pub(super) fn cpus_idle(&self, ns: u64) {
        bump(&self.idle_cpu_ns, ns);
    }

    pub(super) fn record_stop(&self, thread: ThreadId) {
        if self.stopped.borrow_mut().insert(thread) {
            bump(&self.stops, 1);
        }
    }

    /// Records the release of a thread, after `stopped_ns`. A second call has no effect.
    pub(super) fn record_release(&self, thread: ThreadId, stopped_ns: u64, died: bool) {
        if self.stopped.borrow_mut().remove(&thread) {
            bump(&self.resumes, 1);
            bump(&self.died_stopped, u64::from(died));
            bump(&self.stopped_ns, stopped_ns);
            self.longest_stop_ns.set(self.longest_stop_ns.get().max(stopped_ns));
        }
    }

    pub(super) fn captured(&self, slot: usize, pc: Avma) {
        bump(&self.captures, 1);
        self.slots.borrow_mut()[slot].captures += 1;
        self.last.set(Some((slot, pc)));
    }

    pub(super) fn interrupted_a_waiting_thread(&self) {
        bump(&self.interrupted_waiting, 1);
    }

    pub(super) fn interrupted_a_stopped_thread(&self) {
        bump(&self.interrupted_stopped, 1);
    }

    pub(super) fn fault_happened(&self, name: &'static str) {
        *self.faults.borrow_mut().entry(name).or_default() += 1;
    }
}

//! The ledger of a simulation: what really happened, to compare a profile with.
//!
//! Shared by `Rc`, so that it can be read after the target was dropped, also by a
//! panic. Input: the machine's own accounting. It decides nothing.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use crate::addr::Avma;
use crate::sources::ThreadId;

/// Time in nanoseconds (or a count) by thread and stack: function names from the root to the leaf.
pub type Truth = BTreeMap<(ThreadId, Vec<String>), u64>;

/// What one capture should be walked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrueStack {
    /// The captured thread.
    pub thread: ThreadId,
    /// Function names from the root to the leaf.
    pub names: Vec<String>,
    /// The program counter, then return addresses outward; as many as there are names.
    pub addresses: Vec<Avma>,
}

/// One thread's one stack, with the time spent there.
#[derive(Debug)]
struct Slot {
    thread: ThreadId,
    names: Vec<String>,
    returns: Vec<Avma>,
    cpu_ns: u64,
    waited_ns: u64,
    captures: u64,
}

/// What really happened in a simulated process.
#[derive(Debug, Default)]
pub struct SimLedger {
    stopped: RefCell<BTreeSet<ThreadId>>,
    stops: Cell<u64>,
    resumes: Cell<u64>,
    died_stopped: Cell<u64>,
    interrupted_waiting: Cell<u64>,
    interrupted_stopped: Cell<u64>,
    captures: Cell<u64>,
    stood_ns: Cell<u64>,
    longest_stand_ns: Cell<u64>,
    idle_cpu_ns: Cell<u64>,
    faults: RefCell<BTreeMap<&'static str, u64>>,
    slots: RefCell<Vec<Slot>>,
    last: Cell<Option<(usize, Avma)>>,
}

fn bump(cell: &Cell<u64>, by: u64) {
    cell.set(cell.get().saturating_add(by));
}

impl SimLedger {
    /// Threads that are stopped now for the profiler.
    #[must_use]
    pub fn stopped(&self) -> usize {
        self.stopped.borrow().len()
    }

    /// Times a thread stopped.
    #[must_use]
    pub fn stops(&self) -> u64 {
        self.stops.get()
    }

    /// Times a stopped thread was released, also by its death.
    #[must_use]
    pub fn resumes(&self) -> u64 {
        self.resumes.get()
    }

    /// Of the resumes, threads that died while stopped.
    #[must_use]
    pub fn died_stopped(&self) -> u64 {
        self.died_stopped.get()
    }

    /// Stop requests to a waiting thread; a CPU profile has no reason for them.
    #[must_use]
    pub fn interrupted_waiting(&self) -> u64 {
        self.interrupted_waiting.get()
    }

    /// Stop requests to a thread under job control, which must be left alone.
    #[must_use]
    pub fn interrupted_stopped(&self) -> u64 {
        self.interrupted_stopped.get()
    }

    /// Stacks handed out.
    #[must_use]
    pub fn captures(&self) -> u64 {
        self.captures.get()
    }

    /// Stopped time of all threads, nanoseconds.
    #[must_use]
    pub fn stood_ns(&self) -> u64 {
        self.stood_ns.get()
    }

    /// The longest stop, nanoseconds.
    #[must_use]
    pub fn longest_stand_ns(&self) -> u64 {
        self.longest_stand_ns.get()
    }

    /// Time that CPUs had nothing to run, all CPUs together, nanoseconds.
    #[must_use]
    pub fn idle_cpu_ns(&self) -> u64 {
        self.idle_cpu_ns.get()
    }

    /// How often each fault of the plan happened, by [`super::FaultKind::name`].
    #[must_use]
    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.faults.borrow().clone()
    }

    /// CPU time really used, by thread and stack, nanoseconds.
    #[must_use]
    pub fn truth(&self) -> Truth {
        self.by_stack(|slot| slot.cpu_ns)
    }

    /// Time really spent waiting, by thread and stack, nanoseconds.
    #[must_use]
    pub fn truth_waiting(&self) -> Truth {
        self.by_stack(|slot| slot.waited_ns)
    }

    /// Stacks handed out, by thread and stack: counts.
    #[must_use]
    pub fn captures_by_stack(&self) -> Truth {
        self.by_stack(|slot| slot.captures)
    }

    /// What the last capture should be walked to.
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

    /// A place to account the time of one stack of `thread`; `returns` from the leaf outward.
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

    pub(super) fn stand(&self, thread: ThreadId) {
        if self.stopped.borrow_mut().insert(thread) {
            bump(&self.stops, 1);
        }
    }

    /// The thread is no longer stopped, after `stood_ns`. A second call changes nothing.
    pub(super) fn let_go(&self, thread: ThreadId, stood_ns: u64, died: bool) {
        if self.stopped.borrow_mut().remove(&thread) {
            bump(&self.resumes, 1);
            bump(&self.died_stopped, u64::from(died));
            bump(&self.stood_ns, stood_ns);
            self.longest_stand_ns.set(self.longest_stand_ns.get().max(stood_ns));
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

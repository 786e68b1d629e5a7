//! Waits: from the moment at which a thread leaves its CPU to the moment at which it runs again.
//!
//! Input: context switches of all CPUs in time order, and losses of records. Output: waits with their times in
//! nanoseconds, and the stack at which each began.
//!
//! The time between wakeup and running is part of the wait. A preempted thread is ready: that is wall-clock time,
//! but not a wait.

use hashbrown::{HashMap, HashSet};
use libc::pid_t;

use crate::sources::Capture;
use crate::sources::linux::perf::ring::SampleId;

/// Loss reason for a wait without a stack.
pub(crate) const STACK_DROPPED: &str = "the kernel dropped where a wait began";
/// Loss reason for a wait of unknown length.
pub(crate) const END_DROPPED: &str = "the kernel dropped where a wait ended";
/// Loss reason for a wait that began before the recording, without a stack.
pub(crate) const BEGAN_BEFORE: &str = "waited since before the recording";
/// Loss reason for the wait of a thread that no longer exists.
const ENDED_UNSEEN: &str = "the kernel dropped that a thread ended";

/// The last switch of a thread is recorded after its exit, so its number is kept until this many more have exited.
const EXITED_MAX: usize = 32_768;

/// The stack at which a thread left its CPU.
#[derive(Debug)]
pub(crate) enum SwitchStack {
    /// Copied by the kernel, or read while the thread still waited.
    Copied(Box<Capture>),
    /// Already reported to the sampler.
    Reported,
    /// Missing for this reason.
    Missing(&'static str),
    /// A kernel thread, or unrecorded time.
    NotRecorded,
}

/// An event of a thread.
#[derive(Debug)]
pub(crate) enum ThreadEvent {
    /// It left its CPU: it waits, or was `preempted` and is ready.
    Out { stack: SwitchStack, preempted: bool },
    /// It got a CPU.
    In,
    /// It existed when the recording began.
    Listed,
    /// The stack shown by /proc at this time, while it stayed off its CPU; `None`: it is ready, or on a CPU.
    Polled(Option<SwitchStack>),
    /// It was started: its number no longer belongs to an earlier thread.
    Started,
    /// It exited.
    Exited,
    /// It executed another program, and has the number of the main thread from now on.
    Exec,
    /// Records of its CPU were dropped since this time.
    Dropped { since_ns: u64 },
}

/// A wait of a thread.
#[derive(Debug)]
pub(crate) struct Wait {
    /// The thread.
    pub(crate) pid: pid_t,
    pub(crate) tid: pid_t,
    /// Start and end (monotonic clock), nanoseconds.
    pub(crate) since_ns: u64,
    pub(crate) until_ns: u64,
    pub(crate) outcome: WaitOutcome,
}

/// Outcome of a [`Wait`].
#[derive(Debug)]
pub(crate) enum WaitOutcome {
    /// The thread still waits here; `until_ns` is not known yet.
    Continues(Box<Capture>),
    /// The wait ended, with its stack unless that was reported as [`WaitOutcome::Continues`].
    Ended(Option<Box<Capture>>),
    /// The wait ended, and its time is lost for this reason.
    Lost(&'static str),
}

#[derive(Debug)]
struct OffCpuTime {
    pid: pid_t,
    since_ns: u64,
    /// Whether it waits, as opposed to being ready.
    waits: bool,
    /// Whether a record shows that it left its CPU, or a poll that it waited.
    certain: bool,
    stack: SwitchStack,
    /// Time at which `stack` was read, if later than `since_ns`.
    polled_ns: u64,
}

#[derive(Debug)]
enum ThreadState {
    OnCpu { since_ns: u64, cpu: u32 },
    OffCpu(OffCpuTime),
}

/// Threads, on or off a CPU.
#[derive(Debug, Default)]
pub(crate) struct WaitTracker {
    threads: HashMap<pid_t, ThreadState>,
    /// Also records the time in which threads are ready.
    record_runnable: bool,
    /// By CPU: start of the gap of its last lost records.
    dropped_since_ns: HashMap<u32, u64>,
    /// Exited threads: the recent ones, and the previous ones.
    exited: [HashSet<pid_t>; 2],
    /// Threads that left their CPUs since [`WaitTracker::report_continuing`].
    left: Vec<(pid_t, pid_t)>,
    reported: Vec<Wait>,
    /// Unused buffers.
    #[allow(clippy::vec_box)]
    unused: Vec<Box<Capture>>,
}

impl WaitTracker {
    /// `record_runnable`: also record the time in which threads are ready.
    pub(crate) fn new(record_runnable: bool) -> WaitTracker {
        WaitTracker { record_runnable, ..WaitTracker::default() }
    }

    /// The waits so far, in no particular order.
    pub(super) fn reported(&mut self) -> impl Iterator<Item = Wait> {
        self.reported.drain(..)
    }

    /// Unused buffers.
    pub(crate) fn unused(&mut self) -> impl Iterator<Item = Box<Capture>> {
        self.unused.drain(..)
    }

    /// Applies an event. Times of one thread ascend.
    pub(crate) fn push_switch(&mut self, id: SampleId, switch: ThreadEvent) {
        match switch {
            ThreadEvent::Out { stack, preempted } => self.left_cpu(id, stack, preempted),
            ThreadEvent::In => self.got_cpu(id),
            ThreadEvent::Listed => {
                let off_cpu = OffCpuTime {
                    pid: id.pid,
                    since_ns: id.time_ns,
                    waits: true,
                    certain: false,
                    stack: SwitchStack::Missing(BEGAN_BEFORE),
                    polled_ns: 0,
                };
                self.threads.entry(id.tid).or_insert(ThreadState::OffCpu(off_cpu));
            }
            ThreadEvent::Polled(seen) => self.polled(id, seen),
            ThreadEvent::Started => {
                for exited in &mut self.exited {
                    exited.remove(&id.tid);
                }
                self.threads.remove(&id.tid);
            }
            ThreadEvent::Exited => {
                if let Some(ThreadState::OffCpu(off_cpu)) = self.threads.remove(&id.tid) {
                    self.end_wait(id.tid, off_cpu, id.time_ns);
                }
                if self.exited[0].len() >= EXITED_MAX {
                    self.exited[1] = std::mem::take(&mut self.exited[0]);
                }
                self.exited[0].insert(id.tid);
            }
            ThreadEvent::Exec => {
                for exited in &mut self.exited {
                    exited.remove(&id.tid);
                }
                let on = ThreadState::OnCpu { since_ns: id.time_ns, cpu: id.cpu };
                if let Some(ThreadState::OffCpu(off_cpu)) = self.threads.insert(id.tid, on) {
                    // It runs: the record of that was lost, or has its other number.
                    self.discard(off_cpu.stack);
                }
            }
            ThreadEvent::Dropped { since_ns } => {
                self.dropped_since_ns.insert(id.cpu, since_ns);
            }
        }
    }

    fn has_exited(&self, tid: pid_t) -> bool {
        self.exited.iter().any(|exited| exited.contains(&tid))
    }

    fn discard(&mut self, stack: SwitchStack) {
        if let SwitchStack::Copied(capture) = stack {
            self.unused.push(capture);
        }
    }

    fn left_cpu(&mut self, id: SampleId, stack: SwitchStack, preempted: bool) {
        if self.has_exited(id.tid) {
            return self.discard(stack);
        }
        let wanted = !preempted || self.record_runnable;
        let stack = if wanted {
            stack
        } else {
            self.discard(stack);
            SwitchStack::NotRecorded
        };
        if matches!(stack, SwitchStack::Copied(_) | SwitchStack::Missing(_)) {
            self.left.push((id.pid, id.tid));
        }
        let off_cpu = OffCpuTime {
            pid: id.pid,
            since_ns: id.time_ns,
            waits: !preempted,
            certain: true,
            stack,
            polled_ns: 0,
        };
        // It left twice, so it ran in between. If the first time is uncertain, it ran all along.
        if let Some(ThreadState::OffCpu(before)) = self.threads.insert(id.tid, ThreadState::OffCpu(off_cpu)) {
            let lost = before.certain && !matches!(before.stack, SwitchStack::NotRecorded);
            if lost {
                self.lose(id.tid, &before, id.time_ns, END_DROPPED);
            }
            self.discard(before.stack);
        }
    }

    fn got_cpu(&mut self, id: SampleId) {
        if self.has_exited(id.tid) {
            return;
        }
        match self.threads.insert(id.tid, ThreadState::OnCpu { since_ns: id.time_ns, cpu: id.cpu }) {
            Some(ThreadState::OffCpu(off_cpu)) => self.end_wait(id.tid, off_cpu, id.time_ns),
            // The record of its leaving was lost: it left after it got that CPU, and after the start of the losses
            // there.
            Some(ThreadState::OnCpu { since_ns, cpu }) => {
                let dropped_ns = self.dropped_since_ns.get(&cpu).copied().unwrap_or(0);
                let since_ns = since_ns.max(dropped_ns).min(id.time_ns);
                let outcome = WaitOutcome::Lost(STACK_DROPPED);
                self.reported.push(Wait {
                    pid: id.pid,
                    tid: id.tid,
                    since_ns,
                    until_ns: id.time_ns,
                    outcome,
                });
            }
            // Seen first: a new thread, or a new number of an old one.
            None => {}
        }
    }

    fn polled(&mut self, id: SampleId, seen: Option<SwitchStack>) {
        let state = self.threads.get_mut(&id.tid);
        let lacking = state.and_then(|state| match state {
            ThreadState::OffCpu(off_cpu) if matches!(off_cpu.stack, SwitchStack::Missing(_)) => Some(off_cpu),
            _ => None,
        });
        let (Some(off_cpu), Some(stack)) = (lacking, seen) else { return };
        (off_cpu.waits, off_cpu.certain, off_cpu.polled_ns) = (true, true, id.time_ns);
        let before = std::mem::replace(&mut off_cpu.stack, stack);
        self.discard(before);
        self.left.push((id.pid, id.tid));
    }

    /// Reports a wait that ended at this time, unless it is not recorded.
    fn end_wait(&mut self, tid: pid_t, off_cpu: OffCpuTime, until_ns: u64) {
        if !off_cpu.waits && !self.record_runnable {
            return self.discard(off_cpu.stack);
        }
        // Its stack was read during a later wait.
        let polled_late = off_cpu.polled_ns > until_ns;
        let OffCpuTime { pid, since_ns, .. } = off_cpu;
        let outcome = match off_cpu.stack {
            SwitchStack::NotRecorded => return,
            SwitchStack::Missing(why) => WaitOutcome::Lost(why),
            stack if polled_late => {
                self.discard(stack);
                WaitOutcome::Lost(STACK_DROPPED)
            }
            SwitchStack::Copied(capture) => WaitOutcome::Ended(Some(capture)),
            SwitchStack::Reported => WaitOutcome::Ended(None),
        };
        self.reported.push(Wait { pid, tid, since_ns, until_ns, outcome });
    }

    fn lose(&mut self, tid: pid_t, off_cpu: &OffCpuTime, until_ns: u64, why: &'static str) {
        let (pid, since_ns) = (off_cpu.pid, off_cpu.since_ns);
        self.reported.push(Wait { pid, tid, since_ns, until_ns, outcome: WaitOutcome::Lost(why) });
    }

    /// At the end of a batch, reports open waits, so that their stacks need not be kept. Adds threads with missing
    /// stacks to `lacking`.
    pub(crate) fn report_continuing(&mut self, lacking: &mut impl Extend<(pid_t, pid_t)>) {
        for (pid, tid) in self.left.drain(..) {
            let Some(ThreadState::OffCpu(off_cpu)) = self.threads.get_mut(&tid) else { continue };
            match std::mem::replace(&mut off_cpu.stack, SwitchStack::Reported) {
                SwitchStack::Copied(capture) => {
                    let since_ns = off_cpu.since_ns;
                    let outcome = WaitOutcome::Continues(capture);
                    self.reported.push(Wait { pid, tid, since_ns, until_ns: since_ns, outcome });
                }
                stack => {
                    if off_cpu.waits && matches!(stack, SwitchStack::Missing(STACK_DROPPED)) {
                        lacking.extend([(pid, tid)]);
                    }
                    off_cpu.stack = stack;
                }
            }
        }
    }

    /// Ends open waits at the end of the recording, of threads that still exist.
    pub(crate) fn end(&mut self, until_ns: u64, is_there: impl Fn(pid_t, pid_t) -> bool) {
        for (tid, state) in std::mem::take(&mut self.threads) {
            let ThreadState::OffCpu(off_cpu) = state else { continue };
            // A thread without a switch or a poll may have run.
            if !off_cpu.certain || matches!(off_cpu.stack, SwitchStack::NotRecorded) {
                self.discard(off_cpu.stack);
            } else if is_there(off_cpu.pid, tid) {
                let until_ns = until_ns.max(off_cpu.since_ns);
                self.end_wait(tid, off_cpu, until_ns);
            } else {
                self.lose(tid, &off_cpu, until_ns.max(off_cpu.since_ns), ENDED_UNSEEN);
                self.discard(off_cpu.stack);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const PID: pid_t = 7;

    fn id(tid: pid_t, time_ns: u64, cpu: u32) -> SampleId {
        SampleId { pid: PID, tid, time_ns, cpu }
    }

    fn stack() -> SwitchStack {
        SwitchStack::Copied(Box::new(Capture::with_capacity(0)))
    }

    fn waits() -> ThreadEvent {
        ThreadEvent::Out { stack: stack(), preempted: false }
    }

    fn preempted() -> ThreadEvent {
        ThreadEvent::Out { stack: stack(), preempted: true }
    }

    /// Thread, length and outcome: `ended`, `reported` if its stack was reported before, `continues`, or the loss
    /// reason.
    fn reported(waits: &mut WaitTracker) -> Vec<(pid_t, u64, &'static str)> {
        let words = |outcome| match outcome {
            WaitOutcome::Continues(_) => "continues",
            WaitOutcome::Ended(Some(_)) => "ended",
            WaitOutcome::Ended(None) => "reported",
            WaitOutcome::Lost(why) => why,
        };
        waits.reported().map(|wait| (wait.tid, wait.until_ns - wait.since_ns, words(wait.outcome))).collect()
    }

    /// The waits reported for these events, up to the end of the recording at 1000, with all threads alive.
    fn run(
        record_runnable: bool,
        events: Vec<(pid_t, u64, u32, ThreadEvent)>,
    ) -> Vec<(pid_t, u64, &'static str)> {
        let mut all = WaitTracker::new(record_runnable);
        for (tid, time_ns, cpu, switch) in events {
            all.push_switch(id(tid, time_ns, cpu), switch);
        }
        all.end(1_000, |_, _| true);
        reported(&mut all)
    }

    #[test]
    fn a_wait_lasts_from_leaving_a_cpu_to_running_on_any() {
        let events = vec![(1, 100, 0, waits()), (2, 110, 0, ThreadEvent::In), (1, 350, 1, ThreadEvent::In)];
        assert_eq!(run(false, events), [(1, 250, "ended")]);
    }

    #[test]
    fn preempted_threads_are_ready_and_do_not_wait() {
        let events = || vec![(1, 100, 0, preempted()), (1, 350, 1, ThreadEvent::In)];
        assert_eq!(run(false, events()), []);
        assert_eq!(run(true, events()), [(1, 250, "ended")]);
    }

    #[test]
    fn open_waits_are_reported_once_and_last_to_the_end() {
        let mut all = WaitTracker::new(false);
        all.push_switch(id(1, 100, 0), waits());
        all.push_switch(id(2, 200, 0), waits());
        all.push_switch(id(2, 250, 0), ThreadEvent::In);
        let mut lacking = Vec::new();
        all.report_continuing(&mut lacking);
        assert_eq!(reported(&mut all), [(2, 50, "ended"), (1, 0, "continues")]);
        all.report_continuing(&mut lacking);
        assert_eq!((reported(&mut all), lacking), (vec![], vec![]));
        all.push_switch(id(2, 300, 0), waits());
        all.end(1_000, |_, _| true);
        let mut last = reported(&mut all);
        last.sort_unstable();
        assert_eq!(last, [(1, 900, "reported"), (2, 700, "ended")]);
    }

    #[test]
    fn dropped_stacks_are_polled_for_or_counted_as_lost() {
        let out = || ThreadEvent::Out { stack: SwitchStack::Missing(STACK_DROPPED), preempted: false };
        assert_eq!(
            run(false, vec![(1, 100, 0, out()), (1, 350, 0, ThreadEvent::In)]),
            [(1, 250, STACK_DROPPED)]
        );
        let mut all = WaitTracker::new(false);
        all.push_switch(id(1, 100, 0), out());
        let mut lacking = Vec::new();
        all.report_continuing(&mut lacking);
        assert_eq!(lacking, [(PID, 1)]);
        all.push_switch(id(1, 200, 0), ThreadEvent::Polled(Some(stack())));
        all.report_continuing(&mut lacking);
        all.push_switch(id(1, 350, 0), ThreadEvent::In);
        assert_eq!(reported(&mut all), [(1, 0, "continues"), (1, 250, "reported")]);
    }

    #[test]
    fn a_poll_during_a_later_wait_does_not_count_for_the_previous_one() {
        let out = ThreadEvent::Out { stack: SwitchStack::Missing(STACK_DROPPED), preempted: false };
        let mut all = WaitTracker::new(false);
        all.push_switch(id(1, 100, 0), out);
        // Read at 400, processed before the event at 300.
        all.push_switch(id(1, 400, 0), ThreadEvent::Polled(Some(stack())));
        all.push_switch(id(1, 300, 0), ThreadEvent::In);
        assert_eq!(reported(&mut all), [(1, 200, STACK_DROPPED)]);
    }

    #[test]
    fn waits_with_a_dropped_start_or_end_are_lost_time() {
        let twice = vec![(1, 100, 0, waits()), (1, 300, 0, waits()), (1, 400, 0, ThreadEvent::In)];
        assert_eq!(run(false, twice), [(1, 200, END_DROPPED), (1, 100, "ended")]);
        // On CPU 0 since 100, with records lost from 250 on: it left between 250 and 600.
        let never_left = vec![
            (1, 100, 0, ThreadEvent::In),
            (9, 500, 0, ThreadEvent::Dropped { since_ns: 250 }),
            (1, 600, 1, ThreadEvent::In),
        ];
        assert_eq!(run(false, never_left), [(1, 350, STACK_DROPPED)]);
    }

    #[test]
    fn the_last_switch_of_an_exited_thread_is_no_wait_until_its_number_is_reused() {
        let events = vec![
            (1, 100, 0, ThreadEvent::In),
            (1, 200, 0, ThreadEvent::Exited),
            (1, 210, 0, waits()),
            (1, 220, 0, ThreadEvent::In),
            (1, 230, 0, waits()),
            (1, 400, 0, ThreadEvent::Started),
            (1, 410, 0, ThreadEvent::In),
            (1, 420, 0, waits()),
        ];
        assert_eq!(run(false, events), [(1, 580, "ended")]);
    }

    #[test]
    fn a_thread_that_ends_off_cpu_waited_until_its_end() {
        assert_eq!(
            run(false, vec![(1, 100, 0, waits()), (1, 300, 1, ThreadEvent::Exited)]),
            [(1, 200, "ended")]
        );
    }

    #[test]
    fn after_an_exec_by_another_thread_the_first_number_is_in_use() {
        let events = vec![
            (PID, 100, 0, ThreadEvent::Exited),
            (PID, 110, 0, waits()),
            (PID, 200, 1, ThreadEvent::Exec),
            (PID, 300, 1, waits()),
            (PID, 450, 1, ThreadEvent::In),
        ];
        assert_eq!(run(false, events), [(PID, 150, "ended")]);
    }

    #[test]
    fn preexisting_threads_wait_from_the_beginning_if_polled_waiting() {
        let events = vec![
            // Polled while it waits; never polled, and running; preempted as the recording began.
            (1, 10, 0, ThreadEvent::Listed),
            (2, 10, 0, ThreadEvent::Listed),
            (3, 10, 0, ThreadEvent::Listed),
            (4, 10, 0, ThreadEvent::Listed),
            (1, 20, 0, ThreadEvent::Polled(Some(stack()))),
            (2, 30, 0, ThreadEvent::Polled(None)),
            (2, 500, 0, waits()),
            (2, 600, 0, ThreadEvent::In),
            (3, 60, 0, ThreadEvent::In),
            // Its first switch was recorded before it was polled.
            (3, 70, 0, waits()),
            (3, 65, 0, ThreadEvent::Polled(Some(stack()))),
        ];
        let mut seen = run(false, events);
        seen.sort_unstable();
        assert_eq!(seen, [(1, 990, "ended"), (2, 100, "ended"), (3, 50, BEGAN_BEFORE), (3, 930, "ended")]);
    }

    #[test]
    fn unseen_threads_are_not_counted_as_waiting() {
        let mut all = WaitTracker::new(false);
        all.push_switch(id(1, 100, 0), waits());
        all.end(1_000, |_, _| false);
        assert_eq!(reported(&mut all), [(1, 900, ENDED_UNSEEN)]);
    }

    #[test]
    fn kernel_threads_do_not_wait() {
        let out = || ThreadEvent::Out { stack: SwitchStack::NotRecorded, preempted: false };
        let events = vec![(1, 100, 0, out()), (1, 300, 0, ThreadEvent::In), (1, 400, 0, out())];
        assert_eq!(run(true, events), []);
    }
}

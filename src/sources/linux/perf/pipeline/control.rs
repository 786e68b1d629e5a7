//! How the source controls the stages between batches: clocks, processes, options of events, buffers that come back.
//!
//! Input: what the source sees of its events and of the machine. Output: which options events shall have, and what
//! is known of processes. Records go in by `push_record`, events come out by `flush` (`pipeline.rs`).

use libc::pid_t;

use super::super::cpu_time::wakeup_latency::IntervalAction;
use super::super::events::options::EventOptions;
use super::super::process::entry::ProcessEntry;
use super::super::process::event::ProcessEvent;
use super::super::process::filter::ProcessFilter;
use super::super::ring::pressure::Pressure;
use super::Pipeline;
use crate::sources::Capture;
use crate::sources::pushed::StackUse;

/// Interval between batches while a program that begins loads its libraries, nanoseconds.
const FIRST_BATCHES_NS: u64 = 5_000_000;
/// Interval while processes start, end or map, nanoseconds: what records name is read from /proc while it
/// is still there.
const BATCH_NS: u64 = 50_000_000;
/// Interval while nothing starts, ends or maps: there is less to read, and each wakeup of the reader takes a CPU,
/// which servers' latencies show.
const STEADY_BATCHES_NS: u64 = 120_000_000;
const STEADY_AFTER_NS: u64 = 1_000_000_000;
/// Where large stacks are copied, so that their ring does not fill.
const LARGE_BATCHES_NS: u64 = 15_000_000;
/// Where ranges of stacks are read.
const PREFETCH_BATCHES_NS: u64 = 40_000_000;

/// Processes.
impl Pipeline {
    /// Passes added and removed processes on.
    pub(super) fn update_processes(&mut self) {
        for (id, event) in self.processes.take_events() {
            self.cpu_time.push_change(id.pid, &event);
            if matches!(event, ProcessEvent::Removed) {
                self.stacks.forget_process(id.pid);
            }
        }
    }

    /// Records these processes, too, if they are selected.
    pub(in super::super) fn select(&mut self, pids: &[pid_t]) {
        for pid in pids {
            self.processes.select(*pid, &*self.system.procfs);
        }
        self.update_processes();
    }

    /// Selects among the running processes, before any is sampled.
    pub(in super::super) fn select_all(&mut self) {
        self.processes.select_all(&*self.system.procfs);
        self.update_processes();
    }

    /// Which processes are recorded.
    pub(in super::super) fn filter(&self) -> &ProcessFilter {
        self.processes.filter()
    }

    /// A process that is recorded.
    pub(in super::super) fn process(&self, pid: pid_t) -> Option<&ProcessEntry> {
        self.processes.get(pid)
    }

    /// A process that is recorded.
    pub(in super::super) fn process_mut(&mut self, pid: pid_t) -> Option<&mut ProcessEntry> {
        self.processes.get_mut(pid)
    }

    /// Those of them that run.
    pub(in super::super) fn running(&self) -> Vec<pid_t> {
        self.processes.running()
    }

    /// Processes whose samples the kernel shall drop (true) or take again, since this was asked last.
    pub(in super::super) fn take_filter_changes(&mut self) -> Vec<(pid_t, bool)> {
        self.processes.take_filter_changes()
    }

    /// Processes that were added since this was asked last.
    pub(in super::super) fn take_added(&mut self) -> Vec<pid_t> {
        self.processes.take_added()
    }

    /// When a process exited, if it did (monotonic clock).
    pub(in super::super) fn exited_ns(&self, pid: pid_t) -> Option<u64> {
        self.processes.exited_ns(pid)
    }

    /// The sampler has come to events of this time (monotonic clock).
    pub(in super::super) fn set_time(&mut self, time_ns: u64) {
        self.processes.set_time(time_ns);
    }

    /// Processes that were started by `listed` and their descendants, by records that were not flushed yet.
    pub(in super::super) fn started_by(&self, listed: &[pid_t]) -> Vec<pid_t> {
        self.events.started_by(listed)
    }
}

/// Clocks of CPU time.
impl Pipeline {
    /// Sampling begins: reads the clocks of the processes that are recorded.
    pub(in super::super) fn begin_clocks(&mut self) {
        self.cpu_time.begin(&*self.system.clocks);
    }

    /// Reads those of these processes of the machine, too, which are recorded from their first sample on.
    pub(in super::super) fn begin_machine_clocks(&mut self, pids: &[pid_t]) {
        self.cpu_time.begin_machine(pids, &*self.system.clocks);
    }

    /// Sampling has ended: reads the clocks a last time.
    pub(in super::super) fn stop_clocks(&mut self) {
        self.cpu_time.stop(&*self.system.clocks);
    }

    /// All samples were weighed. `counted_ns`: what events counted that processes inherited.
    pub(in super::super) fn end_clocks(&mut self, counted_ns: Option<u64>) {
        self.cpu_time.end(&*self.system.clocks);
        if let Some(counted_ns) = counted_ns {
            self.cpu_time.add_counted(counted_ns);
        }
    }

    /// CPU time of the processes that are recorded, nanoseconds.
    pub(in super::super) fn used_ns(&self) -> u64 {
        self.cpu_time.used_ns()
    }

    /// What weights and losses of each process add up to, beside its clock.
    #[cfg(test)]
    pub(in super::super) fn balances(
        &self,
    ) -> std::collections::BTreeMap<pid_t, super::super::cpu_time::accounting::Balance> {
        self.cpu_time.balances()
    }

    /// Whether it is time for other periods of ticks.
    pub(in super::super) fn may_set_periods(&self, now_ns: u64) -> bool {
        self.cpu_time.may_set_periods(now_ns)
    }

    /// Each CPU ticks with this period since this time (monotonic clock).
    pub(in super::super) fn set_periods(&mut self, since_ns: u64, periods_ns: &[(u32, u64)]) {
        self.cpu_time.set_periods(since_ns, periods_ns);
    }

    /// Opens or ends an interval in which context switches are recorded, where it is time (monotonic clock).
    /// `record_switches` has the events record them or not; whether all do.
    pub(in super::super) fn apply_interval_action(
        &mut self,
        now_ns: u64,
        record_switches: impl Fn(bool) -> bool,
    ) {
        let action = self.cpu_time.interval_action(now_ns);
        match action {
            IntervalAction::None => {}
            IntervalAction::Open if record_switches(true) => {
                self.cpu_time.apply_interval_action(action, &*self.system.clocks);
            }
            IntervalAction::Open => {
                record_switches(false);
                self.cpu_time.turn_latency_off();
            }
            IntervalAction::Close => {
                self.cpu_time.apply_interval_action(action, &*self.system.clocks);
                record_switches(false);
            }
        }
    }
}

/// Options of events.
impl Pipeline {
    /// How long the next batch may wait, nanoseconds: no longer than an interval of context switches is open, while the
    /// source `samples`. The recording `begins`: programs load their libraries.
    pub(in super::super) fn batch_ns(&self, begins: bool, now_ns: u64, samples: bool) -> u64 {
        let batch_ns = match () {
            () if begins => FIRST_BATCHES_NS,
            () if self.stacks.copies_tails() => LARGE_BATCHES_NS,
            () if self.stacks.prefetches() => PREFETCH_BATCHES_NS,
            () if now_ns < self.events.changed_ns().saturating_add(STEADY_AFTER_NS) => BATCH_NS,
            () => STEADY_BATCHES_NS,
        };
        let ends_ns = self.cpu_time.interval_ends_ns().filter(|_| samples);
        ends_ns.map_or(batch_ns, |ends_ns| batch_ns.min(ends_ns.saturating_sub(now_ns)))
    }

    /// Prepares what copies stacks by these options: the options that can be had ([`Stacks::prepare`]).
    ///
    /// [`Stacks::prepare`]: super::super::stack::stacks::Stacks::prepare
    pub(in super::super) fn prepare(
        &mut self,
        options: EventOptions,
        may_copy: bool,
        load: impl FnMut(&[u64]) -> std::io::Result<()>,
    ) -> EventOptions {
        self.stacks.prepare(options, may_copy, load)
    }

    /// Events could not be reopened: they keep these options.
    pub(in super::super) fn keep_events(&mut self, options: EventOptions) {
        self.cpu_time.abandon_interval();
        self.stacks.keep(options);
    }

    /// Other events sample since this time (monotonic clock), with these periods; those before are read next.
    /// `counted_ns`: what those before counted that processes inherited.
    pub(in super::super) fn replace_events(
        &mut self,
        since_ns: u64,
        counted_ns: u64,
        periods_ns: &[(u32, u64)],
    ) {
        self.cpu_time.abandon_interval();
        self.cpu_time.add_counted(counted_ns);
        self.stacks.reopened(since_ns);
        self.cpu_time.set_periods(since_ns, periods_ns);
        // Both record each context switch for a moment.
        if let Some(waits) = &mut self.waits {
            waits.accept_until(since_ns);
        }
    }

    /// All that the events before those of this time wrote was read; these have these options.
    pub(in super::super) fn end_replaced_events(&mut self, since_ns: u64, options: EventOptions) {
        self.stacks.drained(options);
        if let Some(waits) = &mut self.waits {
            waits.accept_from(since_ns);
        }
    }

    /// How full the rings were, with what was read of them ahead of their batch.
    pub(in super::super) fn pressure(&self, rings: Pressure) -> Pressure {
        self.stacks.pressure(rings)
    }

    /// The options that there is room for in rings that were so full, if events have others.
    pub(in super::super) fn relieve(
        &mut self,
        pressure: Pressure,
        options: EventOptions,
    ) -> Option<EventOptions> {
        self.stacks.relieve(pressure, options)
    }
}

/// Stacks and their buffers.
impl Pipeline {
    /// Whether rings that are so full are read before their batch is due.
    pub(in super::super) fn reads_ahead(&self, fill_per_mille: u32) -> bool {
        self.stacks.reads_ahead(fill_per_mille)
    }

    /// Takes what programs copied of stacks. Returns the bytes that were freed.
    pub(in super::super) fn read_stacks(&mut self) -> usize {
        self.stacks.read()
    }

    /// Takes back the buffers of a sample.
    pub(in super::super) fn give_back(&mut self, capture: Box<Capture>) {
        self.spare.give_back(capture);
    }

    /// Takes back the buffers of a sample, and what its walk needed of the stack. Returns the options for the next
    /// samples, if they changed.
    pub(in super::super) fn take_back(
        &mut self,
        capture: Box<Capture>,
        needed: StackUse,
        options: EventOptions,
        may_copy: bool,
    ) -> Option<EventOptions> {
        let size_number = capture.size_number;
        self.spare.give_back(capture);
        self.stacks.walked(size_number, needed, options, may_copy)
    }

    /// Takes back the buffers of a stack at a context switch, like [`Pipeline::take_back`].
    pub(in super::super) fn take_back_at_switch(
        &mut self,
        capture: Box<Capture>,
        needed: StackUse,
        options: EventOptions,
    ) -> Option<EventOptions> {
        let size_number = capture.size_number;
        self.spare.give_back(capture);
        self.stacks.wait_walked(size_number, needed, options)
    }

    /// Ends a batch of buffers. Returns the bytes that were freed.
    pub(in super::super) fn end_buffers(&mut self) -> usize {
        self.spare.end_batch()
    }

    /// Whether ranges of stacks can be read.
    pub(in super::super) fn may_prefetch(&self) -> bool {
        self.stacks.may_prefetch()
    }

    /// Whether ranges of stacks are read.
    pub(in super::super) fn prefetches(&self) -> bool {
        self.stacks.prefetches()
    }

    /// Events were opened that should read ranges of stacks: whether they do.
    pub(in super::super) fn note_prefetch(&mut self) {
        self.stacks.note_prefetch();
    }

    /// Has the samples of a thread hold these ranges from now on.
    pub(in super::super) fn prefetch(&mut self, tid: pid_t, ranges: &[u64]) {
        self.stacks.prefetch(tid, ranges);
    }

    /// Bytes of rings beside those of events.
    pub(in super::super) fn ring_bytes(&self) -> u64 {
        self.stacks.ring_bytes()
    }
}

/// Waits.
impl Pipeline {
    /// Whether waits are recorded.
    pub(in super::super) fn records_waits(&self) -> bool {
        self.waits.is_some()
    }

    /// A thread existed when the recording began, at this time.
    pub(in super::super) fn list_thread(&mut self, pid: pid_t, tid: pid_t, now_ns: u64) {
        if let Some(waits) = &mut self.waits {
            waits.list(pid, tid, now_ns);
        }
    }

    /// Polls some of the threads whose stacks are unknown.
    pub(in super::super) fn poll_threads(&mut self) {
        if let Some(waits) = &mut self.waits {
            waits.poll(&*self.system.threads, &*self.system.clocks, &mut self.spare);
        }
    }
}

//! Control of the stages between batches: clocks, processes, event options, returned buffers.
//!
//! Input: the source's view of its events and the machine. Output: requested event options, and the known
//! processes. Records enter by `push_record`, events leave by `flush` (`pipeline.rs`).

use std::os::fd::RawFd;

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

/// Batch interval while a starting program loads its libraries, nanoseconds.
pub(in super::super) const FIRST_BATCHES_NS: u64 = 5_000_000;
/// Batch interval while processes start, end or map, nanoseconds: /proc is read while the recorded processes still
/// exist.
const BATCH_NS: u64 = 50_000_000;
/// Batch interval while nothing starts, ends or maps: there is less to read, and each wakeup of the reader takes a
/// CPU, visible in servers' latencies.
const STEADY_BATCHES_NS: u64 = 120_000_000;
const STEADY_AFTER_NS: u64 = 1_000_000_000;
/// Batch interval with large stacks, so that their ring does not fill.
const LARGE_BATCHES_NS: u64 = 15_000_000;
/// Batch interval with prefetched ranges.
const PREFETCH_BATCHES_NS: u64 = 40_000_000;

/// Processes.
impl Pipeline {
    /// Forwards added and removed processes.
    pub(super) fn update_processes(&mut self) {
        for (id, event) in self.processes.take_events() {
            self.cpu_time.push_change(id.pid, &event);
            if matches!(event, ProcessEvent::Removed) {
                self.stacks.forget_process(id.pid);
            }
        }
    }

    /// Also records these processes, if selected.
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

    /// Reads what names need of the processes that run already; their later changes are recorded.
    pub(in super::super) fn read_running(&mut self) {
        self.processes.read_running(&*self.system.procfs);
    }

    /// The selection of processes.
    pub(in super::super) fn filter(&self) -> &ProcessFilter {
        self.processes.filter()
    }

    /// A recorded process.
    pub(in super::super) fn process(&self, pid: pid_t) -> Option<&ProcessEntry> {
        self.processes.get(pid)
    }

    /// A recorded process.
    pub(in super::super) fn process_mut(&mut self, pid: pid_t) -> Option<&mut ProcessEntry> {
        self.processes.get_mut(pid)
    }

    /// Recorded processes that still run.
    pub(in super::super) fn running(&self) -> Vec<pid_t> {
        self.processes.running()
    }

    /// Changes of the kernel's filter since the last call: samples to drop (true) or take again.
    pub(in super::super) fn take_filter_changes(&mut self) -> Vec<(pid_t, bool)> {
        self.processes.take_filter_changes()
    }

    /// Processes added since the last call.
    pub(in super::super) fn take_added(&mut self) -> Vec<pid_t> {
        self.processes.take_added()
    }

    /// Exit time of a process, if it exited (monotonic clock).
    pub(in super::super) fn exited_ns(&self, pid: pid_t) -> Option<u64> {
        self.processes.exited_ns(pid)
    }

    /// Sets the time that the sampler has reached (monotonic clock).
    pub(in super::super) fn set_time(&mut self, time_ns: u64) {
        self.processes.set_time(time_ns);
    }

    /// Processes started by `listed` and their descendants, by records not yet flushed.
    pub(in super::super) fn started_by(&self, listed: &[pid_t]) -> Vec<pid_t> {
        self.events.started_by(listed)
    }
}

/// Clocks of CPU time.
impl Pipeline {
    /// Begins sampling: reads the clocks of recorded processes.
    pub(in super::super) fn begin_clocks(&mut self) {
        self.cpu_time.begin(&*self.system.clocks);
    }

    /// Also reads the clocks of these processes of the machine, to be recorded from their first sample on.
    pub(in super::super) fn begin_machine_clocks(&mut self, pids: &[pid_t]) {
        self.cpu_time.begin_machine(pids, &*self.system.clocks);
    }

    /// Ends sampling: reads the clocks for the last time.
    pub(in super::super) fn stop_clocks(&mut self) {
        self.cpu_time.stop(&*self.system.clocks);
    }

    /// Called after all samples were weighed. `counted_ns`: counts of events inherited by processes.
    pub(in super::super) fn end_clocks(&mut self, counted_ns: Option<u64>) {
        self.cpu_time.end(&*self.system.clocks);
        if let Some(counted_ns) = counted_ns {
            self.cpu_time.add_counted(counted_ns);
        }
    }

    /// CPU time of recorded processes, nanoseconds.
    pub(in super::super) fn used_ns(&self) -> u64 {
        self.cpu_time.used_ns()
    }

    /// The sum of weights and losses of each process, and its clock.
    #[cfg(test)]
    pub(in super::super) fn balances(
        &self,
    ) -> std::collections::BTreeMap<pid_t, super::super::cpu_time::accounting::Balance> {
        self.cpu_time.balances()
    }

    /// Whether the tick periods are due to change.
    pub(in super::super) fn may_set_periods(&self, now_ns: u64) -> bool {
        self.cpu_time.may_set_periods(now_ns)
    }

    /// Sets the tick period of each CPU since this time (monotonic clock).
    pub(in super::super) fn set_periods(&mut self, since_ns: u64, periods_ns: &[(u32, u64)]) {
        self.cpu_time.set_periods(since_ns, periods_ns);
    }

    /// Opens or ends an interval of recorded context switches, if due (monotonic clock). `record_switches` starts
    /// or stops the events and returns whether all do so.
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
    /// Maximum time until the next batch, nanoseconds: at most the rest of an open interval of context switches,
    /// while the source `samples`. `begins`: the recording begins, and programs load their libraries.
    pub(in super::super) fn batch_ns(&self, begins: bool, now_ns: u64, samples: bool) -> u64 {
        let batch_ns = match () {
            () if begins => FIRST_BATCHES_NS,
            () if self.stacks.copies_tails() => LARGE_BATCHES_NS,
            () if self.stacks.has_prefetched() => PREFETCH_BATCHES_NS,
            () if now_ns < self.events.changed_ns().saturating_add(STEADY_AFTER_NS) => BATCH_NS,
            () => STEADY_BATCHES_NS,
        };
        let ends_ns = self.cpu_time.interval_ends_ns().filter(|_| samples);
        ends_ns.map_or(batch_ns, |ends_ns| batch_ns.min(ends_ns.saturating_sub(now_ns)))
    }

    /// Prepares the copying of stacks by these options; returns the options that are possible
    /// ([`Stacks::prepare`]).
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

    /// Notes that events could not be reopened and keep these options.
    pub(in super::super) fn keep_events(&mut self, options: EventOptions) {
        self.cpu_time.abandon_interval();
        self.stacks.keep(options);
    }

    /// Switches to new events that sample since this time (monotonic clock), with these periods; the old ones are
    /// read next. `counted_ns`: counts of old events inherited by processes.
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

    /// Notes that everything written by the events before this time was read.
    pub(in super::super) fn end_replaced_events(&mut self, since_ns: u64) {
        if let Some(waits) = &mut self.waits {
            waits.accept_from(since_ns);
        }
    }

    /// Fill levels of the rings, including records read ahead of their batch.
    pub(in super::super) fn pressure(&self, rings: Pressure) -> Pressure {
        self.stacks.pressure(rings)
    }

    /// The options for rings this full, if different from the current ones.
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
    /// Whether rings this full are read before their batch is due.
    pub(in super::super) fn reads_ahead(&self, fill_per_mille: u32) -> bool {
        self.stacks.reads_ahead(fill_per_mille)
    }

    /// Reads stack bytes copied by programs. Returns the number of freed bytes.
    pub(in super::super) fn read_stacks(&mut self) -> usize {
        self.stacks.read()
    }

    /// Takes back the buffers of a sample.
    pub(in super::super) fn give_back(&mut self, mut capture: Box<Capture>) {
        self.stacks.give_back(&mut capture);
        self.spare.give_back(capture);
    }

    /// Takes back the buffers of a sample, with the stack use of its walk. Returns the options for the next
    /// samples, if they changed.
    pub(in super::super) fn take_back(
        &mut self,
        tid: pid_t,
        capture: Box<Capture>,
        needed: StackUse,
        options: EventOptions,
        may_copy: bool,
    ) -> Option<EventOptions> {
        let (stack_size_index, usual_bytes) = (capture.stack_size_index, capture.usual_bytes());
        let copied_bytes = capture.stack.len() + capture.upper_stack.bytes();
        self.give_back(capture);
        self.stacks.note_tail(tid, usual_bytes, copied_bytes, needed);
        // The tail is left to prefetching.
        let bytes = if needed.truncated { needed.bytes } else { needed.bytes.min(usual_bytes) };
        let needed = StackUse { bytes, ..needed };
        self.stacks.walked(stack_size_index, needed, options, may_copy)
    }

    /// Takes back the buffers of a stack at a context switch, like [`Pipeline::take_back`].
    pub(in super::super) fn take_back_at_switch(
        &mut self,
        capture: Box<Capture>,
        needed: StackUse,
        options: EventOptions,
    ) -> Option<EventOptions> {
        let stack_size_index = capture.stack_size_index;
        self.spare.give_back(capture);
        self.stacks.wait_walked(stack_size_index, needed, options)
    }

    /// Ends a batch of buffers. Returns the number of freed bytes.
    pub(in super::super) fn end_buffers(&mut self) -> usize {
        self.spare.end_batch()
    }

    /// Whether ranges of stacks are prefetched.
    pub(in super::super) fn prefetches(&self) -> bool {
        self.stacks.prefetches()
    }

    /// Sets the ranges to prefetch with a thread's samples.
    pub(in super::super) fn prefetch(&mut self, tid: pid_t, ranges: &[u64]) {
        self.stacks.prefetch(tid, ranges);
    }

    /// A descriptor that is readable while whole stacks of new threads wait: until their samples are walked, each
    /// further one is copied, too.
    pub(in super::super) fn new_stacks(&self) -> Option<RawFd> {
        self.stacks.new_stacks()
    }

    /// Size of rings other than those of events.
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

    /// Adds a thread that existed when the recording began, at this time.
    pub(in super::super) fn list_thread(&mut self, pid: pid_t, tid: pid_t, now_ns: u64) {
        if let Some(waits) = &mut self.waits {
            waits.list(pid, tid, now_ns);
        }
    }

    /// Polls some of the threads with unknown stacks.
    pub(in super::super) fn poll_threads(&mut self) {
        if let Some(waits) = &mut self.waits {
            waits.poll(&*self.system.threads, &*self.system.clocks, &mut self.spare);
        }
    }
}

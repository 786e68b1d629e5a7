//! Reopens the events, with other options, for other CPUs, or for processes started meanwhile: every process keeps
//! events throughout, and none is sampled twice.

use libc::pid_t;

use super::super::clocks::monotonic_ns;
use super::super::events::options::{EventOptions, Scope};
use super::super::events::set::Events;
use super::super::events::thread_events::PASSES_MAX;
use super::{PerfSource, read_rings};

impl PerfSource {
    /// Opens events for already started children, if these inherited none.
    pub(super) fn open_those_already_started(&mut self) -> std::io::Result<()> {
        if !self.follows_by_inheritance() || self.launched {
            return Ok(());
        }
        let mut listed = self.exits.pids();
        for _ in 0..PASSES_MAX {
            let running = self.pipeline.running();
            let started: Vec<pid_t> = running.into_iter().filter(|pid| !listed.contains(pid)).collect();
            if started.is_empty() {
                break;
            }
            self.events.add_processes(&started, &self.filter)?;
            listed.extend(started);
            // A process started before its parent had events is in the next list.
            self.pipeline.select_all();
        }
        Ok(())
    }

    /// Whether children are sampled by inherited events.
    pub(super) fn follows_by_inheritance(&self) -> bool {
        self.events.options().scope == Scope::Threads && self.pipeline.filter().follows_children()
    }

    /// Whether events can have a BPF program that copies more of stacks. Events of CPUs are tried; reopening those
    /// of threads costs more, so it has to be known before.
    pub(super) fn may_copy(&self) -> bool {
        self.events.options().scope == Scope::Cpus || self.filter.is_loaded()
    }

    /// Reopens the events, with other options or for other CPUs.
    pub(super) fn reopen(&mut self, options: EventOptions) {
        let may_copy = self.may_copy();
        let filter = &mut self.filter;
        let options = self.pipeline.prepare(options, may_copy, |program| filter.copy(program));
        let inherited = self.follows_by_inheritance();
        let running = self.pipeline.running();
        let new = Events::open(&running, &self.filter, options);
        let counted_ns = if inherited { self.events.counted_ns() } else { 0 };
        let new = new.and_then(|new| new.enable().map(|()| new));
        let new = new.and_then(|new| if inherited { self.with_started(new, running) } else { Ok(new) });
        let since_ns = monotonic_ns();
        let Ok(new) = new else {
            self.events.sample_until(u64::MAX);
            return self.pipeline.keep_events(self.events.options());
        };
        let periods_ns = new.randomize_periods(&mut self.rates);
        self.pipeline.replace_events(since_ns, counted_ns, &periods_ns);
        self.events.disable();
        let mut old = std::mem::replace(&mut self.events, new);
        read_rings(&mut old, &mut self.scratch, &mut self.pipeline);
        self.pipeline.end_replaced_events(since_ns);
    }

    /// Adds to new, enabled events those of processes started while they were opened, which inherited only the old
    /// ones: the records of these name the processes.
    fn with_started(&mut self, mut new: Events, mut listed: Vec<pid_t>) -> std::io::Result<Events> {
        // From here on, samples of both would count time twice.
        self.events.sample_until(monotonic_ns());
        for _ in 0..PASSES_MAX {
            read_rings(&mut self.events, &mut self.scratch, &mut self.pipeline);
            let started = self.pipeline.started_by(&listed);
            if started.is_empty() {
                break;
            }
            new.add_processes(&started, &self.filter)?;
            new.enable()?;
            listed.extend(started);
        }
        Ok(new)
    }
}

//! Events are opened anew, with other windows or for other CPUs, and for what was started beside them: nobody is
//! without events meanwhile, and nobody is sampled twice.

use libc::pid_t;

use super::super::events::{EventOptions, Events, MAX_PASSES, Scope, SwitchOptions};
use super::super::ring::sys;
use super::super::stack::prefetch::Prefetch;
use super::super::stack::red_zone::RedZone;
use super::super::stack::stack_size;
use super::super::stack::stack_tail::StackTail;
use super::{PerfSource, read_rings};

impl PerfSource {
    /// Opens events for what processes have started already, where these inherit nothing of them.
    pub(super) fn open_those_already_started(&mut self) -> std::io::Result<()> {
        if !self.follows_by_inheritance() || self.launched {
            return Ok(());
        }
        let mut listed: Vec<pid_t> = self.ends.iter().map(|(pid, _)| *pid).collect();
        for _ in 0..MAX_PASSES {
            let running = self.told.running();
            let started: Vec<pid_t> = running.into_iter().filter(|pid| !listed.contains(pid)).collect();
            if started.is_empty() {
                break;
            }
            self.events.add_processes(&started, &self.sieve)?;
            listed.extend(started);
            // One that was started before its parent had events is in the next list.
            self.told.judge_all();
        }
        Ok(())
    }

    /// Whether what processes start is sampled by events that it inherits.
    pub(super) fn follows_by_inheritance(&self) -> bool {
        self.events.how.scope == Scope::Threads && self.told.asks_parents()
    }

    /// Whether events may have a program that copies more of stacks than they do. Those of CPUs find out by trying;
    /// to open those of threads anew costs more, so that these have to know.
    pub(super) fn may_copy(&self) -> bool {
        self.events.how.scope == Scope::Cpus || self.sieve.is_taken()
    }

    /// Prepares to copy what lies beyond records and below stacks, where that is asked for; as much as can be
    /// had.
    pub(super) fn look_further(&mut self, mut how: EventOptions) -> EventOptions {
        let (record_bytes, is_large) = stack_size::of_record(how.window_bytes);
        let may = self.may_copy();
        if is_large && may && self.told.beyond.is_none() {
            self.told.beyond = StackTail::new().ok();
        }
        if how.below && may && self.told.below.is_none() {
            self.told.below = RedZone::new().ok();
        }
        if how.prefetch && may && self.told.prefetch.is_none() {
            self.told.prefetch = Prefetch::new().ok();
        }
        // First what uses the program's argument; last what takes longest, since copies are found by their times.
        let below =
            self.told.below.iter().filter(|_| how.below).flat_map(RedZone::program).collect::<Vec<u64>>();
        let prefetch = self.told.prefetch.iter().flat_map(Prefetch::program).collect::<Vec<u64>>();
        let beyond =
            self.told.beyond.iter().filter(|_| is_large).flat_map(StackTail::program).collect::<Vec<u64>>();
        if self.sieve.copy(&[&below[..], &prefetch, &beyond].concat()).is_err() {
            // An older kernel may take the rest.
            self.told.prefetch = None;
            if prefetch.is_empty() || self.sieve.copy(&[&below[..], &beyond].concat()).is_err() {
                (self.told.beyond, self.told.below) = (None, None);
            }
        }
        how.prefetch = self.told.prefetch.is_some();
        if is_large && self.told.beyond.is_none() {
            self.window.ends_with_records();
            how.window_bytes = record_bytes;
        }
        how
    }

    /// Opens the events anew, with other windows or for other CPUs.
    pub(super) fn reopen(&mut self, how: EventOptions) {
        let how = self.look_further(how);
        let inherited = self.follows_by_inheritance();
        let running = self.told.running();
        let new = Events::open(&running, &self.sieve, how);
        let counted_ns = if inherited { self.events.counted_ns() } else { 0 };
        let new = new.and_then(|new| new.enable().map(|()| new));
        let new = new.and_then(|new| if inherited { self.with_started(new, running) } else { Ok(new) });
        let since_ns = sys::monotonic_ns();
        if let Some(woken) = &mut self.told.woken {
            woken.abandon();
        }
        let Ok(new) = new else {
            self.events.sample_until(u64::MAX);
            self.window.stays(self.events.how.window_bytes);
            self.backlog.stays();
            if let Some(SwitchOptions { window_bytes, .. }) = self.events.how.switches {
                self.switch_window.stays(window_bytes);
            }
            return;
        };
        self.told.counted_ns += counted_ns;
        self.told.window = self.told.window.wrapping_add(1);
        self.told.window_since_ns = since_ns;
        self.told.grid.changed(since_ns, how.period_ns(), &new.vary(&mut self.rates));
        // Both tell of each switch for a moment.
        if let Some(switched) = &mut self.told.switched {
            switched.take_until(since_ns);
        }
        self.events.disable();
        let mut old = std::mem::replace(&mut self.events, new);
        read_rings(&mut old, &mut self.scratch, &mut self.told);
        if !stack_size::of_record(how.window_bytes).1 {
            self.told.beyond = None;
        }
        if let Some(switched) = &mut self.told.switched {
            switched.take_from(since_ns);
        }
    }

    /// New events, which are enabled, with those of processes that were started while they were opened and so
    /// have inherited the old ones only; these tell of them.
    pub(super) fn with_started(
        &mut self,
        mut new: Events,
        mut listed: Vec<pid_t>,
    ) -> std::io::Result<Events> {
        // From here on samples of both would be the same time twice.
        self.events.sample_until(sys::monotonic_ns());
        for _ in 0..MAX_PASSES {
            read_rings(&mut self.events, &mut self.scratch, &mut self.told);
            let started = self.told.started_by(&listed);
            if started.is_empty() {
                break;
            }
            new.add_processes(&started, &self.sieve)?;
            new.enable()?;
            listed.extend(started);
        }
        Ok(new)
    }
}

//! A recording in stretches: between two of them the profiler is suspended, and holds nothing of its target.

use super::pushed::away_ns;
use super::stops::{Stop, StopDriver, Stretch};
use crate::sources::{CallThread, Fault};

/// Why time is lost that the target used meanwhile.
pub(super) const SUSPENDED: &str = "used while stackprof was suspended";

/// So many events of what came and went meanwhile are taken at least before the next tick.
const EVENTS_MIN: usize = 1024;

impl StopDriver<'_> {
    /// Records to the end. What has to be called in one thread of the target's is.
    pub(super) fn record(&mut self) -> Result<(), Fault> {
        let thread = self.target.call_thread();
        let thread = thread.as_deref();
        let ended = self.record_stretches(thread);
        if let (Err(Fault::Lost(_)), Some(thread)) = (&ended, thread) {
            // At once: nothing more is done for what is traced.
            thread.call(&mut || self.target.release());
            thread.let_go();
            thread.begin_anew()?;
        }
        ended
    }

    fn record_stretches(&mut self, thread: Option<&dyn CallThread>) -> Result<(), Fault> {
        let mut stretch = Ok(Stretch::Over);
        call(thread, &mut || {
            self.begin();
            stretch = self.run();
        });
        while stretch? == Stretch::Suspended {
            if let Some(thread) = thread {
                thread.call(&mut || self.target.release());
                thread.let_go();
            }
            let suspended_ns = away_ns(self.clock, self.live);
            if let Some(thread) = thread {
                thread.begin_anew()?;
            }
            stretch = Ok(Stretch::Over);
            call(thread, &mut || stretch = self.go_on(suspended_ns));
        }
        Ok(())
    }

    /// Goes on with the recording after so long, as if that had not passed.
    fn go_on(&mut self, suspended_ns: u64) -> Result<Stretch, Fault> {
        self.target.take_up()?;
        self.start_ns += suspended_ns;
        self.end_ns = self.end_ns.saturating_add(suspended_ns);
        self.ticks.skip(suspended_ns);
        self.earned_until_ns = self.clock.now_ns();
        self.recorder.stats.suspended_ns += suspended_ns;
        // Nobody will tell of stops that were asked for before.
        for stop in self.stops.values_mut() {
            *stop = Stop::new(stop.process);
        }
        // Before the events: what a thread used before it began another program is not the next sample's.
        self.skip_all();
        for _ in 0..EVENTS_MIN.max(2 * self.stops.len()) {
            if !self.one_event(0)? {
                break;
            }
        }
        self.skip_all();
        self.run()
    }

    fn skip_all(&mut self) {
        let ids: Vec<_> = self.stops.keys().copied().collect();
        for id in ids {
            if let Ok(look) = self.target.look(id) {
                self.recorder.skip(id, look.cpu_ns, SUSPENDED);
            }
        }
    }
}

/// Makes a call in the thread that the target tells, or here.
fn call(thread: Option<&dyn CallThread>, body: &mut dyn FnMut()) {
    match thread {
        Some(thread) => thread.call(body),
        None => body(),
    }
}

//! One thread as the recorder sees it: what was accounted, how much stack it needs.

use super::process::ProcessIndex;
use super::ticks::splitmix64;
use super::window::Window;
use crate::addr::Avma;
use crate::sources::{Activity, Look};

const SECOND_NS: u64 = 1_000_000_000;

/// A running thread's CPU time may lag by this, nanoseconds: a scheduler tick at 100 Hz.
const LAG_NS: u64 = 10_000_000;

/// One thread's account.
#[derive(Debug)]
pub(super) struct Account {
    pub(super) process: ProcessIndex,
    /// Index into the profile's branches.
    pub(super) branch: u32,
    pub(super) stack_top: Option<Avma>,
    /// Times that the name of a thread without one may still be asked for.
    pub(super) name_tries_left: u8,
    /// Searches for where the thread was born that may still be made.
    pub(super) birth_searches_left: u8,
    pub(super) window: Window,
    /// CPU time at the thread's first look; what it used before is not ours.
    first_cpu_ns: u64,
    /// CPU time and switches at the last sample.
    sampled: Look,
    sampled_at_ns: u64,
    /// The latest look's CPU time, and switches.
    cpu_ns: u64,
    switches: u64,
    /// CPU time that [`Account::newly_used_ns`] has told.
    told_cpu_ns: u64,
    /// Tick of the latest look that showed that the thread had used a CPU.
    pub(super) used_at_tick: u64,
    /// Time within the current period of this thread's time, in units of 1/hz ns.
    in_period: u64,
    /// Where in the current period its count is due.
    due: u64,
    /// Whether the current period's count was given.
    given: bool,
    /// State of the sequence of `due`s.
    random: u64,
    /// No sample yet.
    fresh: bool,
    /// It already ran when we came: what the system said then may have lagged.
    found: bool,
    /// What others used that its next sample stands for, too, nanoseconds.
    inherited_ns: u64,
}

impl Account {
    /// A thread that is `found` running, or else one seen from its first instruction on.
    /// `seed`, different for each thread, places its counts within their periods.
    pub(super) fn new(
        process: ProcessIndex,
        branch: u32,
        seed: u64,
        stack_top: Option<Avma>,
        look: Look,
        now_ns: u64,
        found: bool,
    ) -> Account {
        Account {
            process,
            branch,
            stack_top,
            name_tries_left: 8,
            birth_searches_left: 8,
            window: Window::new(),
            first_cpu_ns: look.cpu_ns,
            sampled: look,
            sampled_at_ns: now_ns,
            cpu_ns: look.cpu_ns,
            switches: look.switches,
            told_cpu_ns: look.cpu_ns,
            used_at_tick: 0,
            in_period: 0,
            due: splitmix64(seed) % SECOND_NS,
            given: false,
            random: seed,
            fresh: true,
            found,
            inherited_ns: 0,
        }
    }

    /// Takes note of a look.
    pub(super) fn see(&mut self, look: Look, tick: u64) {
        if look.cpu_ns > self.cpu_ns || look.switches != self.switches {
            self.used_at_tick = tick;
            self.switches = look.switches;
        }
        self.cpu_ns = self.cpu_ns.max(look.cpu_ns);
    }

    /// CPU time that became known since this was asked last, nanoseconds.
    pub(super) fn newly_used_ns(&mut self) -> u64 {
        let before_ns = std::mem::replace(&mut self.told_cpu_ns, self.cpu_ns);
        self.cpu_ns - before_ns
    }

    /// Whether the thread was on a CPU since its last sample, as far as a look tells: one that
    /// runs on without being switched may not show.
    pub(super) fn moved(&self, look: Look) -> bool {
        self.fresh || (look.cpu_ns, look.switches) != (self.sampled.cpu_ns, self.sampled.switches)
    }

    /// Whether it has used this many periods of 1/hz since its last sample.
    pub(super) fn carries(&self, periods: u64, hz: u32) -> bool {
        let used_ns = self.cpu_ns.saturating_sub(self.sampled.cpu_ns);
        used_ns.saturating_mul(hz.into()) >= periods.saturating_mul(SECOND_NS)
    }

    /// Counts of a sample by CPU time: periods used since the last one, the remainder
    /// carried. Without a look (the thread has ended) up to the last one.
    pub(super) fn weigh_cpu(&mut self, look: Option<Look>, now_ns: u64, hz: u32) -> u64 {
        // The first figure may have lagged behind what was used before we came.
        let passed_ns = now_ns.saturating_sub(self.sampled_at_ns);
        let most_ns = if self.fresh && self.found { passed_ns } else { u64::MAX };
        let at_ns = if look.is_some() { now_ns } else { self.sampled_at_ns };
        let look = look.unwrap_or(Look { cpu_ns: 0, ..self.sampled });
        let used_ns = self.used_since_sample(look, most_ns);
        self.sampled_now(look, at_ns);
        let inherited_ns = std::mem::take(&mut self.inherited_ns);
        self.count(used_ns.saturating_add(inherited_ns), hz)
    }

    /// What it has used by this look if it began while recorded and was not sampled yet, nanoseconds.
    pub(super) fn used_unsampled_ns(&self, look: Look) -> Option<u64> {
        (self.fresh && !self.found).then(|| look.cpu_ns.saturating_sub(self.first_cpu_ns))
    }

    /// Its next sample stands for this time of others, too, nanoseconds.
    pub(super) fn inherit(&mut self, ns: u64) {
        self.inherited_ns = self.inherited_ns.saturating_add(ns);
    }

    /// Counts of a sample by wall-clock time.
    pub(super) fn weigh_wall(&mut self, look: Look, now_ns: u64, hz: u32) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.sampled_at_ns);
        self.cpu_ns = self.cpu_ns.max(look.cpu_ns);
        self.sampled_now(look, now_ns);
        self.count(passed_ns, hz)
    }

    /// Counts that no sample will take: CPU time used since the last one, up to `cpu_ns`,
    /// or `wall`-clock time.
    pub(super) fn unsampled(&mut self, cpu_ns: Option<u64>, now_ns: u64, hz: u32, wall: bool) -> u64 {
        let ns = self.unsampled_ns(cpu_ns, now_ns, wall);
        self.count(ns, hz)
    }

    /// The same in nanoseconds.
    pub(super) fn unsampled_ns(&mut self, cpu_ns: Option<u64>, now_ns: u64, wall: bool) -> u64 {
        let passed_ns = now_ns.saturating_sub(self.sampled_at_ns);
        // After an exec the figure may be another thread's.
        let most_ns = if self.fresh && self.found { passed_ns } else { passed_ns.saturating_add(LAG_NS) };
        let look = Look { cpu_ns: cpu_ns.unwrap_or(0), ..self.sampled };
        let used_ns = self.used_since_sample(look, most_ns);
        self.sampled_now(look, now_ns);
        let inherited_ns = std::mem::take(&mut self.inherited_ns);
        if wall { passed_ns } else { used_ns.saturating_add(inherited_ns) }
    }

    /// CPU time since the last sample, `most_ns` at most: a thread cannot use more than
    /// passes. What is beyond was not used by it, or before we came.
    fn used_since_sample(&mut self, look: Look, most_ns: u64) -> u64 {
        self.cpu_ns = self.cpu_ns.max(look.cpu_ns);
        let used_ns = self.cpu_ns.saturating_sub(self.sampled.cpu_ns);
        let excess_ns = used_ns.saturating_sub(most_ns);
        self.first_cpu_ns += excess_ns;
        used_ns - excess_ns
    }

    fn sampled_now(&mut self, look: Look, now_ns: u64) {
        // A look at a thread that has ended knows less: what was counted stays counted.
        self.sampled = Look { cpu_ns: self.cpu_ns, ..look };
        self.sampled_at_ns = now_ns;
        self.fresh = false;
    }

    /// CPU time used while recorded, nanoseconds.
    pub(super) fn used_cpu_ns(&self) -> u64 {
        self.cpu_ns.saturating_sub(self.first_cpu_ns)
    }

    /// Time as whole counts: one for each period of 1/hz, given to the sample in whose
    /// time a random moment of that period lies. So each sample gets what it weighs on
    /// average; were it always the end of the period, work in step with the rate would
    /// have all counts in the phase that follows it.
    fn count(&mut self, ns: u64, hz: u32) -> u64 {
        let time = self.in_period.saturating_add(ns.saturating_mul(hz.into()));
        let mut counts = time / SECOND_NS;
        self.in_period = time % SECOND_NS;
        if counts > 0 {
            counts -= u64::from(self.given);
            self.given = false;
            self.random = splitmix64(self.random);
            self.due = self.random % SECOND_NS;
        }
        if !self.given && self.in_period > self.due {
            self.given = true;
            counts += 1;
        }
        counts
    }
}

/// A look at a thread of which nothing is known yet.
pub(super) fn unknown_look() -> Look {
    Look { cpu_ns: 0, switches: 0, activity: Activity::Runnable }
}

#[cfg(test)]
mod tests {
    use super::super::process::FIRST;
    use super::*;

    fn look(cpu_ns: u64) -> Look {
        Look { cpu_ns, switches: 1, activity: Activity::Runnable }
    }

    #[test]
    fn counts_add_up_to_cpu_seconds_times_hz() {
        let mut account = Account::new(FIRST, 0, 0, None, look(7_000), 0, true);
        let (mut cpu_ns, mut counts) = (7_000, 0);
        for step in 0..10_000u64 {
            cpu_ns += 1 + step * 7919 % 2_000_000;
            counts += account.weigh_cpu(Some(look(cpu_ns)), u64::MAX / 2, 997);
        }
        let exact = u128::from(cpu_ns - 7_000) * 997 / u128::from(SECOND_NS);
        assert!(u128::from(counts).abs_diff(exact) <= 1, "{counts} for {exact}");
        assert_eq!(account.used_cpu_ns(), cpu_ns - 7_000);
    }

    #[test]
    fn counts_do_not_depend_on_where_in_a_period_a_sample_ends() {
        let mut account = Account::new(FIRST, 0, 0, None, look(0), 0, false);
        let (mut cpu_ns, mut by_phase) = (0, [(0, 0); 4]);
        for step in 0..100_000u64 {
            let used_ns = 750_000 + splitmix64(step) % 500_000;
            cpu_ns += used_ns;
            let phase = &mut by_phase[(cpu_ns % 1_000_000 / 250_000) as usize];
            *phase = (phase.0 + used_ns, phase.1 + account.weigh_cpu(Some(look(cpu_ns)), u64::MAX / 2, 1000));
        }
        for (phase, (used_ns, counts)) in by_phase.into_iter().enumerate() {
            let exact = used_ns / 1_000_000;
            assert!(exact.abs_diff(counts) < exact / 50, "phase {phase}: {counts} counts for {exact}");
        }
    }

    #[test]
    fn the_first_sample_weighs_at_most_the_time_that_passed() {
        let mut account = Account::new(FIRST, 0, 0, None, look(0), 1_000_000, true);
        // 4 ms of CPU time show up 1 ms after we came.
        assert!(account.weigh_cpu(Some(look(4_000_000)), 2_000_000, 1000) <= 1);
        assert_eq!(account.used_cpu_ns(), 1_000_000);
    }

    #[test]
    fn a_thread_that_was_not_put_on_a_cpu_has_not_run() {
        let mut account = Account::new(FIRST, 0, 0, None, look(0), 0, true);
        assert!(account.moved(look(0)), "nothing is known before the first sample");
        account.weigh_cpu(Some(look(5)), 10, 997);
        assert!(!account.moved(look(5)));
        assert!(account.moved(Look { switches: 2, ..look(5) }));
    }
}

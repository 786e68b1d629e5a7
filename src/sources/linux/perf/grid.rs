//! When the ticks of the events were due: a tick that comes late was due while the machine ran
//! something else than this system (the host of a virtual machine took the CPU), and says nothing
//! of where the CPU time of a thread goes.
//!
//! Input: since when events tick at which distance, and the times of samples; output: which of these
//! are late. Each event keeps to its own grid (kernel/events/core.c, `hrtimer_forward_now`), whose
//! beginning is not known; the least that a sample of a CPU is behind the change of the distance is
//! taken for it. All times are of the monotonic clock, nanoseconds.

use hashbrown::HashMap;

/// Later than this is late: interrupts are held back for some microseconds by the kernel itself, in
/// time that the thread uses.
const LATE_NS: u64 = 25_000;

/// Each change of the distance begins a period anew, which costs half of one.
pub(super) const PERIODS_BETWEEN_CHANGES: u64 = 50;

/// Ticks at one distance.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    since_ns: u64,
    period_ns: u64,
}

/// See the top of this file.
#[derive(Debug, Default)]
pub(super) struct Grid {
    /// The last two: samples may have been taken just before a change.
    stretches: [Option<Stretch>; 2],
    /// By CPU and beginning of a stretch: the least that a sample was behind a tick from there.
    least_ns: HashMap<(u32, u64), u64>,
}

impl Grid {
    /// Events tick at this distance, from this time on.
    pub(super) fn changed(&mut self, since_ns: u64, period_ns: u64) {
        let old = self.stretches[0];
        self.least_ns.retain(|(_, since), _| old.is_some_and(|old| old.since_ns == *since));
        self.stretches = [Some(Stretch { since_ns, period_ns }), old];
    }

    /// How much of a CPU's time a sample of this time stands for: the distance of ticks, and what
    /// changing it costs.
    pub(super) fn period_ns(&self, time_ns: u64) -> Option<u64> {
        let stretch = self.stretches.iter().flatten().find(|stretch| stretch.since_ns <= time_ns)?;
        Some(stretch.period_ns + stretch.period_ns / (2 * PERIODS_BETWEEN_CHANGES))
    }

    /// Whether it is time to change the distance.
    pub(super) fn may_change(&self, now_ns: u64) -> bool {
        self.stretches[0].is_none_or(|stretch| {
            now_ns.saturating_sub(stretch.since_ns) >= PERIODS_BETWEEN_CHANGES * stretch.period_ns
        })
    }

    fn behind(&self, time_ns: u64) -> Option<(u64, u64)> {
        let stretch = self.stretches.iter().flatten().find(|stretch| stretch.since_ns <= time_ns)?;
        Some((stretch.since_ns, (time_ns - stretch.since_ns) % stretch.period_ns.max(1)))
    }

    /// Takes note of a sample.
    pub(super) fn see(&mut self, cpu: u32, time_ns: u64) {
        if let Some((since_ns, behind_ns)) = self.behind(time_ns) {
            let least_ns = self.least_ns.entry((cpu, since_ns)).or_insert(behind_ns);
            *least_ns = behind_ns.min(*least_ns);
        }
    }

    /// Whether a sample, which was seen, is late.
    pub(super) fn is_late(&self, cpu: u32, time_ns: u64) -> bool {
        let Some((since_ns, behind_ns)) = self.behind(time_ns) else { return false };
        let least_ns = self.least_ns.get(&(cpu, since_ns)).copied().unwrap_or(behind_ns);
        behind_ns - least_ns.min(behind_ns) > LATE_NS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_that_was_held_up_is_late_and_the_next_one_is_not() {
        let mut grid = Grid::default();
        grid.changed(1_000_000, 1_000_000);
        // Both CPUs began a little after the change; the third tick of CPU 1 came late.
        let samples = [(0, 2_005_000), (1, 2_040_000), (0, 3_005_500), (1, 4_240_000), (1, 5_040_000)];
        for (cpu, time_ns) in samples {
            grid.see(cpu, time_ns);
        }
        let late: Vec<bool> = samples.iter().map(|(cpu, time_ns)| grid.is_late(*cpu, *time_ns)).collect();
        assert_eq!(late, [false, false, false, true, false]);
    }

    #[test]
    fn samples_from_before_a_change_are_judged_by_the_grid_of_before() {
        let mut grid = Grid::default();
        assert!(!grid.is_late(0, 5), "nothing is known");
        grid.changed(0, 1_000_000);
        grid.see(0, 1_000_000);
        grid.changed(2_500_000, 700_000);
        grid.see(0, 2_300_000);
        grid.see(0, 3_200_000);
        assert!(grid.is_late(0, 2_300_000));
        assert!(!grid.is_late(0, 3_200_000));
    }
}

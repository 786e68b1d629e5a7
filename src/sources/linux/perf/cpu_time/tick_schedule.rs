//! Tick schedules of the events. A tick is late when the machine ran something other than this system at its time
//! (the host of a virtual machine took the CPU): it does not show where a thread uses its CPU time.
//!
//! `TickSchedule` has the schedules, `BatchTicks` the samples of a batch: on time or late.
//!
//! Input: the period of each event and when it was set, and the times of samples. Output: which samples are late.
//! Each event keeps its own schedule (kernel/events/core.c, `hrtimer_forward_now`), with an unknown start: the
//! least delay of any sample of a CPU since the change of its period is taken for it. All times are of the
//! monotonic clock, nanoseconds.

use hashbrown::HashMap;
use libc::pid_t;

use super::process_clock::CpuTimeShare;
use crate::sources::linux::perf::events::attributes::PERIODS_BETWEEN_CHANGES;
use crate::sources::linux::perf::process::table::ProcessEvent;
use crate::sources::linux::perf::ring::SampleId;

/// Delays above this are late: the kernel itself delays interrupts by some microseconds, used by the thread.
const LATE_NS: u64 = 25_000;

/// Ticks of a CPU with one period.
#[derive(Clone, Copy, Debug)]
struct RateInterval {
    since_ns: u64,
    period_ns: u64,
    /// Least delay of a sample relative to a schedule that began then.
    least_ns: Option<u64>,
}

impl RateInterval {
    fn behind_ns(self, time_ns: u64) -> u64 {
        (time_ns - self.since_ns) % self.period_ns.max(1)
    }
}

/// Tick schedules of the events of all CPUs.
#[derive(Debug, Default)]
pub(crate) struct TickSchedule {
    /// The last two intervals of each CPU: samples may have been taken just before a change.
    intervals: HashMap<u32, [Option<RateInterval>; 2]>,
    /// Time of the last change of periods, and how long they apply: equally long for each rate, so that their mean
    /// is the requested rate.
    changed_ns: u64,
    lasts_ns: u64,
}

impl TickSchedule {
    /// Sets the periods of the events on these CPUs, around a mean, from this time on.
    pub(crate) fn set_periods(&mut self, since_ns: u64, mean_ns: u64, periods_ns: &[(u32, u64)]) {
        for (cpu, period_ns) in periods_ns {
            let [last, before] = self.intervals.entry(*cpu).or_default();
            *before = last.replace(RateInterval { since_ns, period_ns: *period_ns, least_ns: None });
        }
        self.changed_ns = since_ns;
        self.lasts_ns = PERIODS_BETWEEN_CHANGES * mean_ns;
    }

    fn interval_mut(&mut self, cpu: u32, time_ns: u64) -> Option<&mut RateInterval> {
        self.intervals.get_mut(&cpu)?.iter_mut().flatten().find(|interval| interval.since_ns <= time_ns)
    }

    fn interval(&self, cpu: u32, time_ns: u64) -> Option<RateInterval> {
        self.intervals.get(&cpu)?.iter().flatten().find(|interval| interval.since_ns <= time_ns).copied()
    }

    /// The CPU time that a sample of this time covers: its period, plus the part lost by changing periods.
    pub(crate) fn period_ns(&self, cpu: u32, time_ns: u64) -> Option<u64> {
        let interval = self.interval(cpu, time_ns)?;
        let periods = (self.lasts_ns / interval.period_ns.max(1)).max(1);
        Some(interval.period_ns + interval.period_ns / (2 * periods))
    }

    /// Whether the periods are due to change.
    pub(crate) fn may_change(&self, now_ns: u64) -> bool {
        now_ns.saturating_sub(self.changed_ns) >= self.lasts_ns
    }

    /// Records the delay of a sample.
    pub(crate) fn observe_sample(&mut self, cpu: u32, time_ns: u64) {
        if let Some(interval) = self.interval_mut(cpu, time_ns) {
            let behind_ns = interval.behind_ns(time_ns);
            interval.least_ns = Some(interval.least_ns.map_or(behind_ns, |least_ns| least_ns.min(behind_ns)));
        }
    }

    /// Whether a sample, already observed, is late.
    pub(crate) fn is_late(&self, cpu: u32, time_ns: u64) -> bool {
        let Some(interval) = self.interval(cpu, time_ns) else { return false };
        let behind_ns = interval.behind_ns(time_ns);
        behind_ns - interval.least_ns.map_or(behind_ns, |least_ns| least_ns.min(behind_ns)) > LATE_NS
    }
}

// ---- The samples of each process in a batch: on time or late.
//
// `accounting.rs` decides the weight of late samples.

/// The samples of a process in a batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ticks {
    /// Late samples.
    pub(super) late: u64,
    /// Nominal periods of the samples on time, and of the late ones.
    pub(super) on_time_ns: u64,
    pub(super) late_ns: u64,
}

/// The samples of all processes in a batch.
pub(super) struct BatchTicks(HashMap<pid_t, Ticks>);

impl BatchTicks {
    /// Counts the samples among `events`. `period_ns` holds for CPUs with an unknown schedule.
    pub(super) fn of(
        events: &[(SampleId, ProcessEvent)],
        schedule: &TickSchedule,
        period_ns: u64,
    ) -> BatchTicks {
        let mut ticks: HashMap<pid_t, Ticks> = HashMap::new();
        for (id, _) in events.iter().filter(|(_, event)| event.is_sample()) {
            let of_process = ticks.entry(id.pid).or_default();
            let period_ns = schedule.period_ns(id.cpu, id.time_ns).unwrap_or(period_ns);
            if schedule.is_late(id.cpu, id.time_ns) {
                of_process.late += 1;
                of_process.late_ns += period_ns;
            } else {
                of_process.on_time_ns += period_ns;
            }
        }
        BatchTicks(ticks)
    }

    /// Sets the nominal periods of each share, those of its dropped samples included.
    pub(super) fn set_nominal_periods(&self, shares: &mut HashMap<pid_t, CpuTimeShare>) {
        for (pid, share) in shares {
            let Ticks { on_time_ns, late_ns, .. } = self.0.get(pid).copied().unwrap_or_default();
            share.due_ns = on_time_ns + late_ns + share.dropped_ns;
        }
    }

    /// All processes, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&pid_t, &Ticks)> {
        self.0.iter()
    }
}

/// Drops late samples for which no CPU time is left.
pub(super) fn drop_unweighted(
    events: &mut Vec<(SampleId, ProcessEvent)>,
    shares: &HashMap<pid_t, CpuTimeShare>,
    schedule: &TickSchedule,
) {
    events.retain(|(id, event)| {
        let none_left = shares.get(&id.pid).is_some_and(|share| share.late > 0 && share.late_ns == 0);
        !(event.is_sample() && none_left && schedule.is_late(id.cpu, id.time_ns))
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delayed_tick_is_late_and_the_next_one_is_not() {
        let mut schedule = TickSchedule::default();
        schedule.set_periods(1_000_000, 1_000_000, &[(0, 1_000_000), (1, 1_000_000)]);
        // Both CPUs began a little after the change; the third tick of CPU 1 came late.
        let samples = [(0, 2_005_000), (1, 2_040_000), (0, 3_005_500), (1, 4_240_000), (1, 5_040_000)];
        for (cpu, time_ns) in samples {
            schedule.observe_sample(cpu, time_ns);
        }
        let late: Vec<bool> = samples.iter().map(|(cpu, time_ns)| schedule.is_late(*cpu, *time_ns)).collect();
        assert_eq!(late, [false, false, false, true, false]);
    }

    #[test]
    fn samples_before_a_change_use_the_previous_schedule() {
        let mut schedule = TickSchedule::default();
        assert!(!schedule.is_late(0, 5), "nothing is known");
        schedule.set_periods(0, 1_000_000, &[(0, 1_000_000)]);
        schedule.observe_sample(0, 1_000_000);
        schedule.set_periods(2_500_000, 1_000_000, &[(0, 700_000)]);
        schedule.observe_sample(0, 2_300_000);
        schedule.observe_sample(0, 3_200_000);
        assert!(schedule.is_late(0, 2_300_000));
        assert!(!schedule.is_late(0, 3_200_000));
    }

    #[test]
    fn each_cpu_has_its_own_period() {
        let mut schedule = TickSchedule::default();
        assert!(schedule.may_change(0));
        schedule.set_periods(1_000_000, 1_000_000, &[(0, 1_000_000), (3, 800_000)]);
        // 50 ticks on one CPU and 62 on the other until the next change, which loses half a tick.
        let stand_for_ns = [0, 3, 1].map(|cpu| schedule.period_ns(cpu, 5_000_000));
        assert_eq!(stand_for_ns, [Some(1_010_000), Some(806_451), None]);
        assert_eq!(schedule.period_ns(0, 999_999), None, "from before anything was known");
        for time_ns in [1_801_000, 2_601_000, 3_450_000] {
            schedule.observe_sample(3, time_ns);
        }
        assert!(!schedule.is_late(3, 2_601_000) && schedule.is_late(3, 3_450_000));
        let over_ns = 1_000_000 + PERIODS_BETWEEN_CHANGES * 1_000_000;
        assert!(!schedule.may_change(over_ns - 1) && schedule.may_change(over_ns));
    }
}

//! The samples of each process in a batch: on time or late.
//!
//! Input: the events of a batch and the tick schedule. Output: nominal periods for the shares of processes.
//! `accounting.rs` decides the weight of late samples.

use hashbrown::HashMap;
use libc::pid_t;

use super::super::process::event::ProcessEvent;
use super::super::ring::record::SampleId;
use super::share::CpuTimeShare;
use super::tick_schedule::TickSchedule;

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

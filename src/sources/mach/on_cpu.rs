//! Which threads were on a CPU when their task was held, by reports before and in the hold.
//!
//! A ready thread is reported as running like one on a CPU (TH_STATE_RUNNING), but is where it lost its CPU,
//! which is not where it uses time. No call distinguishes the two at one moment; the hold itself does. CPU
//! times are exact for threads on no CPU (they are updated when a thread leaves it), as all are in a held
//! task: a thread that was on a CPU has used time between a poll right before the hold and one during it. And
//! it has blocked in its stop, while a ready one is still ready: a hold waits only until no thread is on a
//! CPU (osfmk/kern/task.c, place_task_hold: task_wait_locked without `until_not_runnable`).

use super::threads::ThreadReport;

/// Ready threads get the CPUs that the threads of a held task leave, and run up to their own stop, which is
/// in the kernel: time up to this is no proof of a CPU before.
const DISPATCH_NS: u64 = 3_000;

/// After this many consecutive stops in which no thread had used any time, CPU times are considered too
/// coarse.
const UNMOVED_MAX: u32 = 512;

/// After this many consecutive stops in which a thread that had a CPU up to the hold was reported ready in
/// it, the system is assumed to report that of all.
const READY_MAX: u32 = 64;

/// How far the reports are to be trusted: consecutive stops that contradict them (see [`UNMOVED_MAX`],
/// [`READY_MAX`]).
#[derive(Default)]
pub(super) struct OnCpu {
    unmoved: u32,
    ready: u32,
}

impl OnCpu {
    /// Whether a thread was on a CPU when its task was held, from the reports before and in the hold, with
    /// the least time between the first report and the beginning of the hold.
    pub(super) fn was_on_cpu(&mut self, before: ThreadReport, held: ThreadReport, between_ns: u64) -> bool {
        let used_ns = held.cpu_ns().saturating_sub(before.cpu_ns());
        self.unmoved = if used_ns == 0 { self.unmoved.saturating_add(1) } else { 0 };
        if self.unmoved > UNMOVED_MAX {
            return true;
        }
        if used_ns >= between_ns.max(DISPATCH_NS) {
            self.ready = if held.is_runnable() { self.ready.saturating_add(1) } else { 0 };
        }
        if held.is_runnable() && (self.ready <= READY_MAX || used_ns < between_ns) {
            return false;
        }
        // A thread with a CPU for part of the time has just got it, or just left it and got one again for its
        // stop: half of the time is the threshold, so that as many of the former are excluded as of the
        // latter are included.
        let in_user_mode = held.user_ns > before.user_ns;
        (in_user_mode || used_ns >= DISPATCH_NS) && used_ns >= between_ns / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(user_ns: u64, system_ns: u64, is_runnable: bool) -> ThreadReport {
        ThreadReport::new(user_ns, system_ns, is_runnable)
    }

    #[test]
    fn a_thread_that_used_time_up_to_the_hold_was_on_a_cpu() {
        let before = report(100_000, 50_000, true);
        let was_on_cpu = |user_ns, system_ns, ready| {
            OnCpu::default().was_on_cpu(before, report(user_ns, system_ns, ready), 8_000)
        };
        assert!(was_on_cpu(109_000, 50_000, false), "in user mode");
        assert!(was_on_cpu(100_000, 59_000, false), "in the kernel");
        assert!(!was_on_cpu(100_000, 50_000, true), "ready all the time");
        assert!(!was_on_cpu(100_000, 52_000, false), "ready, and dispatched to stop");
        assert!(!was_on_cpu(109_000, 50_000, true), "lost its CPU while the hold began");
        assert!(!was_on_cpu(103_000, 50_000, false), "had one for less than half of the time");
        assert!(was_on_cpu(105_000, 50_000, false), "for more");
    }

    #[test]
    fn contradictory_reports_are_ignored() {
        let (before, after) = (report(100_000, 0, true), report(120_000, 0, true));
        let mut on_cpu = OnCpu::default();
        let captured = (0..200).filter(|_| on_cpu.was_on_cpu(before, after, 8_000)).count();
        assert!((100..200).contains(&captured), "all are told to be ready while held: {captured}");
        let mut on_cpu = OnCpu::default();
        let captured = (0..1_000).filter(|_| on_cpu.was_on_cpu(before, before, 8_000)).count();
        assert!((400..1_000).contains(&captured), "times do not move: {captured}");
    }
}

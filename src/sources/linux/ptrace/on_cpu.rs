//! Whether a thread is on a CPU: its status by /proc before a stop (`PolledStatus`), and whether it was on one when
//! its stop was requested (`was_on_cpu`), by its scheduler counters before the request and while it is stopped, and
//! by how long the tracer itself kept its CPU (`TracerCpu`).
//!
//! A ready thread stops where it was preempted or woken, as soon as it gets a CPU. That place does not show where
//! CPU time goes: threads that wake each other would all be found in the calls that wake them. No file of /proc
//! shows whether a thread is on a CPU now; the scheduler's counters show it exactly, but only afterwards
//! (kernel/sched/stats.h, `sched_info_arrive` and `sched_info_dequeue`).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use libc::pid_t;

use super::sys;
use crate::clock::{Clock, RealClock};
use crate::sources::linux::proc::{self, Sched, sched};
use crate::sources::{Activity, Fault, ThreadStatus};

/// Activity of a thread that does not wait, from its counters when it was last on no CPU and the current
/// ones. The kernel updates a running thread's CPU time when it leaves its CPU, or at a scheduler tick; until
/// then only the count of switches shows that it runs.
pub(super) fn ready_or_running(off_cpu: Sched, now: Sched) -> Activity {
    match now.switches.wrapping_sub(off_cpu.switches) {
        // A kernel without these counters.
        _ if now.switches == 0 => Activity::Runnable,
        0 => Activity::Ready,
        1 if now.cpu_ns == off_cpu.cpu_ns => Activity::Running,
        _ => Activity::Runnable,
    }
}

/// How long the tracer kept its last CPU, from being put on it to leaving it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stint {
    pub(super) kept_ns: u64,
    /// The tracer was put on it unusually late.
    pub(super) late: bool,
}

/// Interrupt time counts as waiting for the thread below, and as no process's CPU time if the kernel accounts
/// it separately.
const INTERRUPTS_NS: u64 = 1_000;

/// Times of the steps of a stop, nanoseconds of the sampler's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct StopTimes {
    /// The poll of the thread began.
    pub(super) polled_ns: u64,
    /// The stop was requested.
    pub(super) asked_ns: u64,
    /// The stop was noticed.
    pub(super) seen_ns: u64,
}

/// Larger gaps are not compensated for: a poll does not miss threads that are ready for long.
const GAP_MAX_NS: u64 = 2_000;

/// Whether a thread was on a CPU when its stop was requested. `before` was read at the poll, `stopped` while
/// it is stopped.
///
/// - No switch in between: it was on a CPU all the time.
/// - One switch, and more CPU time used since than passed since the request: it was on a CPU before. Or the
///   switch came no longer after the request than the poll was before it: threads that slept at the poll and
///   got a CPU before the request got no request, so as many that got theirs just after count in their place.
/// - One switch, after it had waited exactly as long as the tracer kept its CPU: the tracer displaced it. Not
///   if the tracer came late: then the CPU itself was delayed (asleep, or a virtual one that was not run),
///   and threads that were woken in the meantime began as late as the tracer did.
pub(super) fn was_on_cpu(before: Sched, stopped: Sched, times: StopTimes, stint: Option<Stint>) -> bool {
    match stopped.switches.wrapping_sub(before.switches) {
        0 => true,
        1 => {
            let ran_ns = stopped.cpu_ns.saturating_sub(before.cpu_ns);
            let waited_ns = stopped.delay_ns.saturating_sub(before.delay_ns);
            let displaced = |stint: Stint| {
                !stint.late && waited_ns.checked_sub(stint.kept_ns).is_some_and(|more| more <= INTERRUPTS_NS)
            };
            let gap_ns = times.asked_ns.saturating_sub(times.polled_ns).min(GAP_MAX_NS);
            ran_ns.saturating_add(gap_ns) >= times.seen_ns.saturating_sub(times.asked_ns)
                || stint.is_some_and(displaced)
        }
        _ => false,
    }
}

/// Delay of the tracer's wakeups: a running estimate of the 10th percentile. A CPU that runs a thread takes
/// the timer's interrupt at once; one that sleeps, or a virtual one that is not run, takes it when it is up
/// again, with everything that arrived in the meantime. On an idle machine most wakeups are of the second
/// kind, so the median says nothing.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Lateness {
    quick_ns: u64,
    seen: u32,
}

impl Lateness {
    /// Wakeups used only for learning.
    const LEARNED_AFTER: u32 = 8;

    /// Adds a delay. Returns whether it is much longer than the short ones.
    pub(super) fn is_unusual(&mut self, late_ns: u64) -> bool {
        self.seen = self.seen.saturating_add(1);
        if self.seen <= Self::LEARNED_AFTER {
            // Initially the smallest: what the machine can do.
            self.quick_ns = if self.seen == 1 { late_ns } else { self.quick_ns.min(late_ns) };
            return false;
        }
        let unusual = 2 * late_ns > 3 * self.quick_ns;
        let step_ns = self.quick_ns / 256 + 2;
        self.quick_ns = if late_ns > self.quick_ns {
            self.quick_ns + step_ns
        } else {
            self.quick_ns.saturating_sub(9 * step_ns)
        };
        unusual
    }
}

// ---- The tracer's own time on CPUs: while it runs, no other thread is on its CPU. Input: its sleeps. Output: the
// stint on the current CPU.

/// The tracer's CPU time, and since when it has had its CPU.
#[derive(Debug)]
pub(super) struct TracerCpu {
    /// `/proc/thread-self/schedstat`.
    schedstat: Option<fs::File>,
    /// Its CPU time up to the last sleep, nanoseconds.
    cpu_ns: u64,
    lateness: Lateness,
    /// The last wakeup was unusually late.
    woke_late: bool,
    /// From the wakeup before the last sleep to that sleep.
    stint: Option<Stint>,
    /// When the last sleep ended.
    slept_until_ns: u64,
}

impl TracerCpu {
    pub(super) fn new() -> TracerCpu {
        let schedstat = fs::File::open("/proc/thread-self/schedstat").ok();
        TracerCpu {
            schedstat,
            cpu_ns: 0,
            lateness: Lateness::default(),
            woke_late: false,
            stint: None,
            slept_until_ns: 0,
        }
    }

    pub(super) fn stint(&self) -> Option<Stint> {
        self.stint
    }

    /// When the last sleep ended.
    pub(super) fn slept_until_ns(&self) -> u64 {
        self.slept_until_ns
    }

    /// Sleeps until a traced thread may have stopped or exited.
    pub(super) fn sleep(&mut self, at_most_ns: u64, clock: &RealClock) {
        let due_ns = clock.now_ns().saturating_add(at_most_ns);
        let is_signalled = sys::sleep_for_signal(Duration::from_nanos(at_most_ns));
        self.slept_until_ns = clock.now_ns();
        self.wake((!is_signalled).then(|| self.slept_until_ns.saturating_sub(due_ns)));
    }

    /// Handles the end of a sleep: `late_ns` after the requested time, or by a signal.
    fn wake(&mut self, late_ns: Option<u64>) {
        // For the calling thread too, the kernel shows CPU time up to the last time it left its CPU.
        let cpu_ns = self.schedstat.as_ref().and_then(proc::sched).map(|sched| sched.cpu_ns);
        self.stint =
            cpu_ns.map(|cpu_ns| Stint { kept_ns: cpu_ns.saturating_sub(self.cpu_ns), late: self.woke_late });
        self.cpu_ns = cpu_ns.unwrap_or(0);
        self.woke_late = late_ns.is_some_and(|late_ns| self.lateness.is_unusual(late_ns));
    }
}

// ---- The status of a thread by /proc, polled.
//
// A poll costs one `pread` of an open file for a thread that still sleeps, two for one that runs, three for
// one that has begun to wait.

/// Whether `/proc/PID/task/TID/wchan` is `0` exactly for threads that do not wait. It costs a third of
/// reading the state from `stat`, and in the time between a poll and a stop a thread may stop running; but
/// kernels may hide it and always show `0`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Wchan {
    /// No waiting thread was seen yet.
    #[default]
    Unknown,
    Reliable,
    Hidden,
}

/// The files of a thread in /proc, and what the last poll read from them.
#[derive(Debug)]
pub(super) struct PolledStatus {
    schedstat: File,
    stat: File,
    wchan: Option<File>,
    /// The result of the last poll.
    last: Option<ThreadStatus>,
    polled_ns: u64,
    sched: Sched,
    /// The counters when the thread was last on no CPU: exact.
    off_cpu: Sched,
    /// `wchan` was wrong about this thread: the next poll reads the state itself.
    is_wchan_wrong: bool,
    /// When a poll first showed no change since the previous one.
    still_since_ns: Option<u64>,
}

impl PolledStatus {
    pub(super) fn open(pid: pid_t, tid: pid_t) -> io::Result<PolledStatus> {
        Ok(PolledStatus {
            schedstat: File::open(format!("/proc/{pid}/task/{tid}/schedstat"))?,
            stat: File::open(format!("/proc/{pid}/task/{tid}/stat"))?,
            wchan: File::open(format!("/proc/{pid}/task/{tid}/wchan")).ok(),
            last: None,
            polled_ns: 0,
            sched: Sched::default(),
            off_cpu: Sched::default(),
            is_wchan_wrong: false,
            still_since_ns: None,
        })
    }

    /// The scheduler counters; also of an exited thread before it is reaped.
    pub(super) fn sched(&self) -> Option<Sched> {
        sched(&self.schedstat)
    }

    /// Polls the thread at `now_ns`.
    pub(super) fn poll(&mut self, now_ns: u64, wchan: &mut Wchan) -> Result<ThreadStatus, Fault> {
        self.polled_ns = now_ns;
        let sched = self.sched().ok_or(Fault::ThreadGone)?;
        let moved = std::mem::replace(&mut self.sched, sched) != sched;
        self.still_since_ns = if moved { None } else { self.still_since_ns.or(Some(now_ns)) };
        // A thread that slept and was not put on a CPU since still sleeps, or has not used its wakeup: its
        // state need not be read.
        if let Some(last) = self.last
            && last.activity == Activity::Waiting
            && !moved
        {
            return Ok(last);
        }
        let activity = match self.activity(wchan)? {
            Activity::Runnable => ready_or_running(self.off_cpu, sched),
            other => {
                self.off_cpu = sched;
                other
            }
        };
        let status = ThreadStatus { cpu_ns: sched.cpu_ns, switches: sched.switches, activity };
        self.last = Some(status);
        Ok(status)
    }

    fn activity(&mut self, wchan: &mut Wchan) -> Result<Activity, Fault> {
        if *wchan == Wchan::Reliable
            && !std::mem::take(&mut self.is_wchan_wrong)
            && self.has_no_wchan() == Some(true)
        {
            return Ok(Activity::Runnable);
        }
        let mut buffer = [0; 512];
        let len = self.stat.read_at(&mut buffer, 0).map_err(|_| Fault::ThreadGone)?;
        let state = proc::stat_state(&buffer[..len]).ok_or(Fault::ThreadGone)?;
        if *wchan == Wchan::Unknown && state == b'S' {
            // Zero may also mean that it was woken just now: then the next poll shows it.
            let has_no_wchan = self.has_no_wchan();
            let len = self.stat.read_at(&mut buffer, 0).map_err(|_| Fault::ThreadGone)?;
            *wchan = match (has_no_wchan, proc::stat_state(&buffer[..len])) {
                (Some(false), _) => Wchan::Reliable,
                (_, Some(b'S')) => Wchan::Hidden,
                _ => Wchan::Unknown,
            };
        }
        Ok(proc::activity(state))
    }

    /// Whether the thread waits at no place known to the kernel; `None` if not reported.
    fn has_no_wchan(&self) -> Option<bool> {
        let mut first = [0; 2];
        let len = self.wchan.as_ref()?.read_at(&mut first, 0).ok()?;
        Some(first[..len] == *b"0")
    }

    /// The start time of the last poll, and its counters.
    pub(super) fn last_poll(&self) -> (u64, Sched) {
        (self.polled_ns, self.sched)
    }

    /// Lower bound of the duration of a wait that a stop ended, nanoseconds.
    pub(super) fn waited_ns(&self, now_ns: u64) -> u64 {
        let slept = self.last.is_some_and(|last| last.activity == Activity::Waiting);
        let once = self.sched().is_some_and(|sched| sched.switches == self.sched.switches.wrapping_add(1));
        let since_ns = self.still_since_ns.filter(|_| slept && once);
        since_ns.map_or(0, |since_ns| now_ns.saturating_sub(since_ns))
    }

    /// Records the counters of the stopped thread.
    pub(super) fn set_off_cpu(&mut self, sched: Sched) {
        self.off_cpu = sched;
    }

    /// Records that the thread waited, or had exited, contrary to the last poll.
    pub(super) fn note_wrong_wchan(&mut self) {
        self.is_wchan_wrong = true;
    }

    /// The current or last CPU of the thread.
    pub(super) fn cpu(&self) -> Option<u32> {
        let mut buffer = [0; 512];
        let len = self.stat.read_at(&mut buffer, 0).ok()?;
        proc::stat_cpu(&buffer[..len])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: Sched = Sched { cpu_ns: 1_000_000, delay_ns: 500_000, switches: 70 };

    fn after(ran_ns: u64, waited_ns: u64, switches: u64) -> Sched {
        Sched {
            cpu_ns: BEFORE.cpu_ns + ran_ns,
            delay_ns: BEFORE.delay_ns + waited_ns,
            switches: BEFORE.switches + switches,
        }
    }

    fn on_cpu(stopped: Sched, stint: Option<Stint>) -> bool {
        was_on_cpu(BEFORE, stopped, StopTimes { polled_ns: 8_000, asked_ns: 10_000, seen_ns: 22_000 }, stint)
    }

    #[test]
    fn a_thread_without_a_switch_was_on_its_cpu() {
        assert!(on_cpu(after(12_000, 0, 0), None));
        assert!(on_cpu(after(0, 0, 0), None), "where the kernel counts nothing, nothing speaks against it");
    }

    #[test]
    fn a_thread_switched_in_after_the_request_was_on_no_cpu() {
        assert!(!on_cpu(after(3_000, 9_000, 1), None));
        assert!(on_cpu(after(12_000, 4_000, 1), None), "switched in before the stop request");
        assert!(on_cpu(after(10_500, 4_000, 1), None), "or as long after it as the poll was before it");
        assert!(!on_cpu(after(9_500, 4_000, 1), None));
        assert!(!on_cpu(after(40_000, 4_000, 2), None), "it was off again");
    }

    #[test]
    fn a_thread_displaced_by_the_tracer_was_on_its_cpu() {
        let stint = Some(Stint { kept_ns: 30_000, late: false });
        assert!(on_cpu(after(2_000, 30_000, 1), stint));
        assert!(on_cpu(after(2_000, 30_900, 1), stint), "an interrupt came in between");
        assert!(!on_cpu(after(2_000, 29_000, 1), stint), "it was woken while the tracer ran");
        assert!(!on_cpu(after(2_000, 45_000, 1), stint), "it had waited before the tracer came");
        assert!(!on_cpu(after(2_000, 30_000, 1), Some(Stint { kept_ns: 30_000, late: true })));
    }

    #[test]
    fn unchanged_counters_mean_ready_and_a_switch_alone_running() {
        assert_eq!(ready_or_running(BEFORE, BEFORE), Activity::Ready);
        assert_eq!(ready_or_running(BEFORE, after(0, 700, 1)), Activity::Running);
        assert_eq!(ready_or_running(BEFORE, after(4_000_000, 700, 1)), Activity::Runnable, "or left it");
        assert_eq!(ready_or_running(BEFORE, after(0, 700, 2)), Activity::Runnable);
        assert_eq!(ready_or_running(Sched::default(), Sched::default()), Activity::Runnable);
    }

    #[test]
    fn late_is_half_more_than_the_tenth_percentile() {
        for quick_ns in [3_000, 20_000] {
            let mut lateness = Lateness::default();
            let mut late = 0;
            for step in 0..20_000u64 {
                // A third of them short, the others from a CPU that has to wake up first.
                let late_ns = quick_ns + step * 7919 % 500 + if step % 3 == 0 { 0 } else { quick_ns };
                let is_late = lateness.is_unusual(late_ns);
                assert!(step < 1_000 || step % 3 != 0 || !is_late, "{late_ns} ns for {quick_ns}");
                late += u32::from(is_late);
            }
            assert!(late > 13_000, "{late} of 13,333");
        }
    }

    #[test]
    fn lateness_adapts_to_a_change() {
        let mut lateness = Lateness::default();
        for late_ns in [3_000, 50_000] {
            let late: u32 = (0..4_000).map(|_| u32::from(lateness.is_unusual(late_ns))).sum();
            assert!(!lateness.is_unusual(late_ns), "{late_ns} ns, {late} times late");
        }
    }
}

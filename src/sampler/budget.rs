//! Stop budget: limits the share of time that the target is stopped, and the length of each stop. Input: how long
//! threads were stopped and how much time the target had. Output: how many stack bytes a stop may copy, and
//! whether a tick may stop threads.
//!
//! `Budget` is the stop budget, `JitBudget` the one for following JIT code.
//!
//! Over budget, stack sizes shrink first; then ticks are skipped. A skipped tick loses nothing: each sample weighs
//! the CPU time since the previous one. But all time between two stops is attributed to one stack, so ticks are
//! skipped evenly: a single long stop is paid back over seconds, not by a tenth of a second without samples.
//! Occasional delays caused by the machine (a virtual CPU descheduled for milliseconds) are not a cost of
//! stopping: such a stop is charged as a typical long one. The target is stopped all the same, so the uncharged
//! time is limited to the same share again.

/// Time for copying in one stop, nanoseconds.
const COPY_NS: u64 = 100_000;
/// Minimum stack size, whatever copying costs.
const STACK_MIN_BYTES: usize = 64 << 10;
/// Minimum stack size if it fits into the time of a stop, however little budget is left: the stop itself costs as
/// much, and fewer whole stacks are worth more than truncated ones.
const STACK_LOW_BYTES: usize = 256 << 10;
/// Maximum stack size: the default stack limit.
const STACK_MAX_BYTES: usize = 8 << 20;
/// Stops that copy up to this many bytes measure the fixed cost of a stop.
const SMALL_STACK_BYTES: usize = super::stack_size::FIRST_STACK_BYTES;
/// Initial estimate of the cost of copying, picoseconds per byte: 10 GB/s.
const FIRST_PS_PER_BYTE: u64 = 100;
/// Initial credit, for cold caches, nanoseconds.
const FIRST_CREDIT_NS: i64 = 5_000_000;
/// Debt at which every tick is skipped: the share of this time, nanoseconds. Skipping starts at half as much
/// credit and increases, so that the rate settles at what stops cost.
const FULL_DEBT_NS: i128 = 250_000_000;
/// A stop counts as delayed if it takes this many times the 90th percentile, ...
const DELAYED_TIMES: u64 = 2;
/// ... plus this excess, which cold caches explain; nanoseconds.
const DELAYED_NS: u64 = 50_000;
/// 100 %, in millionths.
const WHOLE_PPM: i128 = 1_000_000;
/// Maximum credit for unused time, nanoseconds.
const CREDIT_MAX_NS: i64 = 2_000_000_000;

/// Credit for stops.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    /// Maximum share of time that the target may be stopped, in millionths; `None`: no limit.
    share_ppm: Option<u64>,
    /// Credit, in millionths of nanoseconds.
    credit: i128,
    /// Credit for the uncharged excess of delayed stops, in millionths of nanoseconds.
    delay_credit: i128,
    /// Time of a stop with a small stack size, nanoseconds: running median.
    floor_ns: u64,
    ps_per_byte: u64,
    /// Time limit of one copy, nanoseconds.
    copy_ns: u64,
    /// 90th percentile of stop times, nanoseconds: running estimate.
    long_ns: u64,
    /// Sum of the allowed shares of ticks since the last tick that could stop threads, in millionths.
    due_ppm: i128,
    /// Whether the current tick may stop threads.
    may_stop: bool,
}

impl Budget {
    /// No limits, for a single snapshot.
    pub(super) fn unlimited() -> Budget {
        Budget { copy_ns: u64::MAX / 1_000, ..Budget::new(1.0) }
    }

    /// Limits stops to `share` of the time (0.02 is 2 %); 1 or more is no limit.
    pub(super) fn new(share: f64) -> Budget {
        let share_ppm = (share < 1.0).then_some((share.max(0.0) * 1e6) as u64);
        Budget {
            share_ppm,
            credit: i128::from(FIRST_CREDIT_NS) * 1_000_000,
            delay_credit: i128::from(FIRST_CREDIT_NS) * 1_000_000,
            floor_ns: 0,
            ps_per_byte: FIRST_PS_PER_BYTE,
            copy_ns: COPY_NS,
            long_ns: 0,
            due_ppm: 0,
            may_stop: true,
        }
    }

    /// Adds time that the target had: CPU time, or wall-clock time if a stop holds all threads.
    pub(super) fn earn(&mut self, time_ns: u64) {
        if let Some(ppm) = self.share_ppm {
            let most = i128::from(CREDIT_MAX_NS) * i128::from(ppm).max(1);
            let most = most.max(i128::from(FIRST_CREDIT_NS) * 1_000_000);
            for credit in [&mut self.credit, &mut self.delay_credit] {
                *credit = (*credit + i128::from(time_ns) * i128::from(ppm)).min(most);
            }
        }
    }

    /// Charges a stop that copied this many bytes. Returns the uncharged part, attributed to a delay by the
    /// machine, nanoseconds.
    pub(super) fn spend(&mut self, stopped_ns: u64, copied_bytes: usize) -> u64 {
        let step_ns = self.long_ns / 256 + 16;
        self.long_ns = match self.long_ns {
            0 => stopped_ns,
            long_ns if stopped_ns > long_ns => long_ns + 9 * step_ns,
            long_ns => long_ns.saturating_sub(step_ns),
        };
        let mut delayed_ns = stopped_ns.saturating_sub(DELAYED_TIMES * self.long_ns + DELAYED_NS);
        if self.share_ppm.is_some() {
            delayed_ns = delayed_ns.min(u64::try_from(self.delay_credit / 1_000_000).unwrap_or(0));
            self.delay_credit -= i128::from(delayed_ns) * 1_000_000;
        }
        self.credit -= i128::from(stopped_ns - delayed_ns) * 1_000_000;
        if copied_bytes <= SMALL_STACK_BYTES {
            let step_ns = self.floor_ns / 32 + 16;
            self.floor_ns = match self.floor_ns {
                0 => stopped_ns,
                floor_ns if stopped_ns > floor_ns => floor_ns + step_ns,
                floor_ns => floor_ns.saturating_sub(step_ns),
            };
            // Small copies do not measure the estimate: let it decay.
            if self.ps_per_byte > FIRST_PS_PER_BYTE {
                self.ps_per_byte -= (self.ps_per_byte / 4096).max(1);
            }
        } else {
            // Running median: one delayed stop changes little.
            let ps = stopped_ns.saturating_sub(self.floor_ns).saturating_mul(1_000) / copied_bytes as u64;
            let step = self.ps_per_byte / 8 + 1;
            self.ps_per_byte = if ps > self.ps_per_byte {
                self.ps_per_byte + step
            } else {
                self.ps_per_byte.saturating_sub(step)
            };
        }
        delayed_ns
    }

    /// Begins a tick. The last tick may always stop threads: otherwise the time used since the previous one is
    /// wasted.
    pub(super) fn begin_tick(&mut self, is_last: bool) {
        self.may_stop = is_last || self.allows_stops();
    }

    /// Whether the current tick may stop threads.
    pub(super) fn may_stop(&self) -> bool {
        self.may_stop
    }

    /// Whether the next tick may stop threads. Ticks are jittered, so the remaining ones still sample periodic
    /// work in every phase.
    fn allows_stops(&mut self) -> bool {
        let Some(ppm) = self.share_ppm else { return true };
        let most_debt = FULL_DEBT_NS * i128::from(ppm.max(1));
        let part_ppm = (self.credit + most_debt) * WHOLE_PPM / (most_debt + most_debt / 2);
        self.due_ppm += part_ppm.clamp(0, WHOLE_PPM);
        let allowed = self.due_ppm >= WHOLE_PPM;
        if allowed {
            self.due_ppm -= WHOLE_PPM;
        }
        allowed
    }

    /// Bytes that a stop may copy: as many as fit into its time, fewer while the budget is low.
    pub(super) fn stack_max_bytes(&self) -> usize {
        let fits = self.copy_ns * 1_000 / self.ps_per_byte.max(1);
        let fits = usize::try_from(fits).unwrap_or(usize::MAX);
        let fits = if self.is_low() { (fits / 4).max(fits.min(STACK_LOW_BYTES)) } else { fits };
        (fits & !0xfff).clamp(STACK_MIN_BYTES, STACK_MAX_BYTES)
    }

    /// Whether the credit is below the share of 10 ms.
    fn is_low(&self) -> bool {
        self.share_ppm.is_some_and(|ppm| self.credit < i128::from(ppm) * 10_000_000)
    }
}

// ---- Budget for following JIT code: an address in code without unwind information costs up to some thousand
// instructions once, and runtimes that move their code, or have stacks that code does not describe, show new ones
// with each sample.
//
// The unit is instructions, not time, so that a recording does not depend on the speed of the machine. All
// processes of a recording share the budget: it bounds the profiler's CPU time.

/// Instructions per second of recording: about 2 % of a CPU.
const PER_SECOND: u64 = 1_000_000;
/// Maximum savings, for starting programs; also the initial budget.
const SAVED_MAX: u64 = 10 * PER_SECOND;
const SECOND_NS: u64 = 1_000_000_000;

/// Instructions of JIT code that may still be examined.
#[derive(Debug)]
pub(super) struct JitBudget {
    left: u64,
    /// Time of the last refill.
    filled_ns: u64,
    has_limit: bool,
}

impl Default for JitBudget {
    fn default() -> JitBudget {
        JitBudget { left: SAVED_MAX, filled_ns: 0, has_limit: true }
    }
}

impl JitBudget {
    /// No limit, for one-off work.
    pub(super) fn unlimited() -> JitBudget {
        JitBudget { has_limit: false, ..JitBudget::default() }
    }

    /// Instructions that may be examined for a sample at this time.
    pub(super) fn left(&mut self, now_ns: u64) -> u64 {
        if !self.has_limit {
            return u64::MAX;
        }
        let passed_ns = now_ns.saturating_sub(self.filled_ns);
        let more = u128::from(passed_ns) * u128::from(PER_SECOND) / u128::from(SECOND_NS);
        if more > 0 {
            self.filled_ns = now_ns;
            self.left =
                u64::try_from(more).map_or(SAVED_MAX, |more| SAVED_MAX.min(self.left.saturating_add(more)));
        }
        self.left
    }

    /// Charges examined instructions.
    pub(super) fn spend(&mut self, instructions: u64) {
        self.left = self.left.saturating_sub(instructions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Simulates 1 ms ticks of a busy thread with stops of `stop_ns`. Returns the share of time stopped and the
    /// number of stops.
    fn share_stopped(limit: f64, stop_ns: u64) -> (f64, u64) {
        let mut budget = Budget::new(limit);
        let (mut stopped_ns, mut stops) = (0, 0);
        for _ in 0..20_000 {
            budget.earn(MS);
            if budget.allows_stops() {
                budget.spend(stop_ns, 1000);
                stopped_ns += stop_ns;
                stops += 1;
            }
        }
        (stopped_ns as f64 / (20_000.0 * MS as f64), stops)
    }

    #[test]
    fn expensive_stops_are_limited_to_the_share_and_cheap_ones_are_not() {
        assert_eq!(share_stopped(0.02, 15_000).1, 20_000);
        let (share, stops) = share_stopped(0.02, 80_000);
        assert!((0.0195..0.0205).contains(&share), "{share} in {stops} stops");
        assert_eq!(share_stopped(1.0, 900_000).1, 20_000, "no limit");
    }

    #[test]
    fn a_single_long_stop_leaves_no_long_gap() {
        for stop_ns in [15_000, 30_000, 50_000] {
            let mut budget = Budget::new(0.02);
            let (mut unseen, mut longest) = (0, 0);
            for tick in 0..20_000 {
                budget.earn(MS);
                unseen += 1;
                if budget.allows_stops() {
                    budget.spend(if tick % 2_000 == 1_999 { 2 * MS } else { stop_ns }, 1000);
                    longest = longest.max(unseen);
                    unseen = 0;
                }
            }
            assert!(longest < 10, "{longest} ticks with stops of {stop_ns} ns");
        }
    }

    #[test]
    fn only_frequent_long_stops_are_charged_in_full() {
        let stops = |of_thousand: u64| {
            let mut budget = Budget::new(0.02);
            let (mut stopped_ns, mut stops) = (0, 0);
            for tick in 0..20_000 {
                budget.earn(MS);
                if budget.allows_stops() {
                    let stop_ns = if tick * 7919 % 1_000 < of_thousand { 3 * MS } else { 15_000 };
                    budget.spend(stop_ns, 1000);
                    stopped_ns += stop_ns;
                    stops += 1;
                }
            }
            (stopped_ns as f64 / (20_000.0 * MS as f64), stops)
        };
        let (share, many) = stops(200);
        assert!(share < 0.025, "{share} in {many} stops");
        let (_, few) = stops(6);
        assert!(few > 19_000, "{few} stops");
        // Delayed stops: at most the share again.
        for of_thousand in [20, 40, 80] {
            let (share, stops) = stops(of_thousand);
            assert!(share < 0.043, "{share} in {stops} stops with {of_thousand} of a thousand delayed");
        }
    }

    #[test]
    fn credit_for_idle_time_is_capped() {
        let mut budget = Budget::new(0.02);
        budget.earn(3_600_000 * MS);
        let mut stops = 0;
        while budget.allows_stops() {
            budget.spend(MS, 1000);
            stops += 1;
        }
        assert!(stops <= 41, "{stops} ms in a row");
    }

    #[test]
    fn stack_sizes_fit_into_the_time_of_a_stop() {
        let mut budget = Budget::new(0.02);
        assert_eq!(budget.stack_max_bytes(), 1_000_000 & !0xfff);
        for _ in 0..64 {
            budget.earn(100 * MS);
            budget.spend(10_000, 32 << 10);
            // 1 GB/s.
            budget.spend(10_000 + (1 << 20), 1 << 20);
        }
        assert!((80_000..=120_000).contains(&budget.stack_max_bytes()), "{}", budget.stack_max_bytes());
        for _ in 0..64 {
            budget.spend(100 * MS, 1 << 20);
        }
        assert_eq!(budget.stack_max_bytes(), STACK_MIN_BYTES);
        for _ in 0..100_000 {
            budget.earn(10 * MS);
            budget.spend(10_000, 16 << 10);
        }
        assert!(budget.stack_max_bytes() > 256 << 10, "{}", budget.stack_max_bytes());
        assert_eq!(Budget::unlimited().stack_max_bytes(), STACK_MAX_BYTES);
    }
}

#[cfg(test)]
mod jit_budget_tests {
    use super::super::processes::FIRST;
    use super::super::recorder::unknown_status;
    use super::super::{Options, Recorder};
    use super::*;
    use crate::addr::Avma;
    use crate::arch::{Arch, Registers, X86_64};
    use crate::binary::{ImageBytes, Mapping, OpenError};
    use crate::clock::FakeClock;
    use crate::sources::{Capture, Fault, Observed, Process, ThreadId};
    use crate::walk::{Frames, StackEnd, UnwindMethod};

    const START: u64 = 0x7000_0000_0000;
    const BYTES: u64 = 1 << 20;
    const THREAD: ThreadId = ThreadId(7);

    /// A process with only JIT code made of one instruction, `nop`.
    struct Nops(Process);

    impl Observed for Nops {
        fn process(&self) -> &Process {
            &self.0
        }
        fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
            out.clear();
            out.push(Mapping::anonymous(Avma(START)..Avma(START + BYTES)));
            Ok(())
        }
        fn image_bytes(&mut self, _: &Mapping) -> Result<ImageBytes, OpenError> {
            Err(OpenError::Anonymous)
        }
        fn read_memory(&mut self, at: Avma, into: &mut [u8]) -> Result<usize, Fault> {
            let end = (at.0 + into.len() as u64).min(START + BYTES);
            let len = end.saturating_sub(at.0) as usize;
            into[..len].fill(0x90);
            Ok(len)
        }
    }

    #[test]
    fn a_walk_over_budget_reports_it_and_later_walks_continue() {
        let clock = FakeClock::default();
        let options = Options {
            hz: 997,
            duration_ns: None,
            idle: false,
            off_cpu: false,
            timeline_bytes: 0,
            block_age_min_ns: 0,
            linger_ns: 0,
            threads: true,
            max_depth: 64,
            unwind: UnwindMethod::Auto,
            seed: 1,
            max_stop: 1.0,
        };
        let mut process = Nops(Process {
            pid: 7,
            name: "nops".to_owned(),
            command: String::new(),
            arch: Arch::X86_64,
            backend: "sim",
            backend_why: String::new(),
            cpus: 1,
            address_mask: u64::MAX,
            fp_always: false,
            cfi: true,
            stops_interrupt_syscalls: false,
            stops_hold_all: false,
        });
        let mut recorder = Recorder::new(&clock, &options, &process.0.clone());
        recorder.add_thread(FIRST, &mut process, THREAD, None, unknown_status(), true);
        recorder.read_images(FIRST, &mut process);
        let mut ended = |recorder: &mut Recorder<'_>, pc: u64| {
            let mut capture = Capture::with_capacity(64);
            let mut gpr = [0; 16];
            gpr[X86_64::RSP] = 0x7fff_0000;
            capture.registers = Registers::X86_64(X86_64 { gpr, rip: START + 0x1000 + pc, fs_base: 0 });
            capture.stack_base = Avma(0x7fff_0000);
            capture.stack.resize(64, 0);
            let frames = &mut Frames::default();
            recorder.walk(&mut process, THREAD, &capture, 1 << 16, frames).expect("known").0
        };
        // Each address costs at least some hundred instructions.
        let first =
            (0..100_000).find(|pc| ended(&mut recorder, *pc) == StackEnd::TooMuchJitCode).expect("an end");
        assert!(first > 100, "{first}");
        assert_eq!(ended(&mut recorder, first + 1), StackEnd::TooMuchJitCode);
        assert_ne!(ended(&mut recorder, 0), StackEnd::TooMuchJitCode, "what is known costs nothing");
        clock.advance(SECOND_NS / 2);
        assert_ne!(ended(&mut recorder, first + 1), StackEnd::TooMuchJitCode);
    }

    #[test]
    fn the_budget_is_the_rate_plus_the_savings() {
        let (mut budget, mut spent) = (JitBudget::default(), 0);
        // 1000 samples a second for a minute, each wanting more than the budget.
        for sample in 0..60_000 {
            let now_ns = sample * SECOND_NS / 1000;
            let wanted = 5_000.min(budget.left(now_ns));
            budget.spend(wanted);
            spent += wanted;
        }
        assert!((69 * PER_SECOND..=70 * PER_SECOND).contains(&spent), "{spent}");
        // Savings build up again.
        assert_eq!(budget.left(60 * SECOND_NS + 30 * SECOND_NS), SAVED_MAX);
        assert_eq!(budget.left(0), SAVED_MAX, "samples of other CPUs may come a little later");
    }

    #[test]
    fn one_off_work_has_no_limit() {
        let mut budget = JitBudget::unlimited();
        budget.spend(u64::MAX);
        assert_eq!(budget.left(1), u64::MAX);
    }
}

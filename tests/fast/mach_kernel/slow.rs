//! Slow calls, and processes with many threads: a recording ends on request, ticks happen, and nothing is
//! left behind, whatever a call costs.
//!
//! `STACKPROF_ROUNDS=40` runs 40 times as many seeds; `-- --nocapture` prints the table.

use std::sync::Arc;

use stackprof::live::Live;
use stackprof::recording::Recording;
use stackprof::sampler::{self, Options};
use stackprof::sources::mach::{MachClock, MachTarget};

use super::recorded::{Replay, options};
use crate::seeds::rounds::seeds;
use crate::sim_kernel::*;

/// Response time to `--duration` and Ctrl-C, in addition to the calls of two stops …
const OBEYS_NS: u64 = 100 * MS;
/// … the current one and the last one: the end of the stack, a poll, a hold, a copy, a release, and the names
/// of the thread and its queue.
const STOP_CALLS: u64 = 40;
/// Time in which a tick polls threads; then the next one continues.
const TICK_NS: u64 = 20 * MS;
/// Durations of a call: a Mac; a traced or virtual one; an extremely slow one.
const CALLS_NS: [u64; 3] = [300, 20 * US, 2 * MS];
/// Initial credit of stopped time, in addition to the 2 %.
const FIRST_CREDIT_NS: u64 = 5 * MS;

/// A process with this many threads: up to `busy` compute, four CPUs between them; the others wait, and some
/// of them wake up occasionally.
fn crowd(pid: i32, threads: u64, busy: u64) -> SimProcess {
    let mut process = canned(pid).with(|process| process.program.threads.truncate(1));
    for number in 1..threads {
        let name = format!("t{number}");
        let thread = match number {
            number if number < busy => {
                let cpu = number % 4;
                let of = (busy + 3 - cpu) / 4;
                SimThread::pthread(&name).run(3 * MS, &["z1", "z0", "w5"]).run(MS, &["z4", "z0", "w5"]).turns(
                    of.max(number / 4 + 1),
                    number / 4,
                    700 * US,
                )
            }
            number if number % 10 == 0 => SimThread::pthread(&name)
                .wait(20 * MS + number * 7 * US, &["__psynch_cvwait", "_pthread_cond_wait", "w7"])
                .run(100 * US, &["z3", "w7"]),
            _ => SimThread::pthread(&name).wait(50 * MS, &["mach_msg2_trap", "mach_msg", "w6"]),
        };
        process = process.thread(thread);
    }
    process
}

/// Result of a recording.
struct Ran {
    profile: Recording,
    kernel: SimKernel,
    /// Time of Ctrl-C, if any, and of the end of the recording.
    interrupted_ns: Option<u64>,
    ended_ns: u64,
    /// Calls until then.
    calls: Vec<Method>,
}

impl Ran {
    /// Ticks, including those without stops due to the limit of stopped time.
    fn ticks(&self) -> u64 {
        self.profile.stats.ticks + self.profile.stats.ticks_skipped
    }
    fn per_second(&self, count: u64) -> f64 {
        count as f64 * 1e9 / self.profile.stats.duration_ns as f64
    }
    fn held(&self) -> f64 {
        self.kernel.report().held_ns as f64 / self.profile.stats.duration_ns as f64
    }
}

/// Records; Ctrl-C comes `interrupt_ns` after attaching.
fn run(kernel: SimKernel, options: &Options, interrupt_ns: Option<u64>) -> Ran {
    // Attaching to many threads takes time, too.
    kernel.lose_patience(120 * SECOND);
    let live = Arc::new(Live::default());
    let mut target = MachTarget::attach(&kernel, 500).expect("attached");
    let interrupted_ns = interrupt_ns.map(|after_ns| kernel.interrupt(after_ns, &live));
    let profile = sampler::record(&mut target, &MachClock::new(&kernel), options, &live).expect("recorded");
    let (ended_ns, calls) = (kernel.now_ns(), kernel.calls());
    drop(target);
    let report = kernel.report();
    assert!(report.is_clean() && !kernel.stands(500), "{report}");
    Ran { profile, kernel, interrupted_ns, ended_ns, calls }
}

#[test]
fn twenty_one_threads_are_sampled_at_the_full_rate() {
    for call_ns in [20 * US, 60 * US, 100 * US] {
        let world = World::x86_64(3).process(crowd(500, 21, 3)).costs(Costs::of_calls(call_ns));
        let ran = run(world.build(), &Options { hz: 100, ..options(1_000) }, None);
        let stats = &ran.profile.stats;
        assert!(stats.duration_ns < 1_100 * MS, "{call_ns} ns a call: {} ns", stats.duration_ns);
        let rate = ran.per_second(ran.ticks());
        assert!(rate > 95.0, "{call_ns} ns a call: {rate} Hz");
    }
}

#[test]
fn recordings_end_in_time_at_any_cost_of_calls() {
    for seed in seeds(0..24) {
        let _replay = Replay(seed);
        let mut rng = Rng::new(seed ^ 0x736c_6f77);
        let call_ns = CALLS_NS[rng.within(0, 2) as usize];
        // Mostly few, up to a thousand.
        let threads =
            [rng.within(1, 30), rng.within(1, 200), rng.within(200, 1_000)][rng.within(0, 2) as usize];
        let busy = 1 + rng.within(0, threads.min(40));
        let delays = rng.chance(1, 2).then_some(Delays { one_in: 300, at_most_ns: 10 * MS });
        let costs = Costs { delays, ..Costs::of_calls(call_ns) };
        let is_interrupted = rng.chance(1, 2);
        let for_ns = rng.within(100, 400) * MS;
        let hz = [100, 1_000][rng.within(0, 1) as usize];
        let mut process = crowd(500, threads, busy);
        if rng.chance(1, 4) {
            process = process.ends(rng.within(50, 3_000) * MS, 0);
        }
        let what = format!("seed {seed}: {threads} threads, {busy} busy, {call_ns} ns a call, {hz} Hz");
        let options = Options {
            hz,
            idle: rng.chance(1, 5),
            seed,
            duration_ns: (!is_interrupted).then_some(for_ns),
            ..options(0)
        };
        let kernel = World::arm64(seed).process(process).costs(costs).build();
        let ran = run(kernel, &options, is_interrupted.then_some(for_ns));
        check(&ran, &what, (threads, busy), &costs, &options);
    }
}

/// Checks the invariants of every recording.
fn check(ran: &Ran, what: &str, (threads, busy): (u64, u64), costs: &Costs, options: &Options) {
    let (stats, kernel) = (&ran.profile.stats, &ran.kernel);
    let allowed_ns = OBEYS_NS + STOP_CALLS * costs.round_trip + costs.longest(threads);
    if let Some(interrupted_ns) = ran.interrupted_ns {
        let late_ns = ran.ended_ns.saturating_sub(interrupted_ns);
        // The images are read in one piece before the first tick.
        let beginning_ns = if ran.ticks() == 0 { 300 * costs.round_trip } else { 0 };
        let allowed_ns = allowed_ns + beginning_ns + kernel.delayed_ns(interrupted_ns);
        let calls = ran.calls.iter().rev().filter(|call| **call != Method::AbsoluteTime);
        let last: Vec<&str> = calls.take(90).map(|call| call.name()).collect();
        assert!(
            late_ns <= allowed_ns,
            "{what}: {} ms after Ctrl-C; the last calls, backwards: {last:?}",
            late_ns / MS
        );
    }
    if let Some(duration_ns) = options.duration_ns {
        let over_ns = stats.duration_ns.saturating_sub(duration_ns);
        let allowed_ns = allowed_ns + kernel.delayed_ns(ran.ended_ns.saturating_sub(over_ns + OBEYS_NS));
        assert!(over_ns <= allowed_ns, "{what}: {} ms too long", over_ns / MS);
    }
    // Before Ctrl-C, listing the threads or a single call may take longer.
    let is_short = options.duration_ns.is_none_or(|ns| ns < OBEYS_NS + 2 * costs.longest(threads));
    let has_ended = stats.exit_status.is_some() || is_short;
    assert!(ran.ticks() > 0 || has_ended, "{what}: no ticks");
    // Per tick and thread a poll and a reference; for running threads a stop; and the work at the beginning
    // and the end.
    let work = ran.calls.iter().filter(|call| **call != Method::AbsoluteTime).count() as u64;
    let most = (ran.ticks() + 8) * (threads * 12 + 60);
    assert!(work <= most, "{what}: {work} calls in {} ticks", ran.ticks());
    // The hold of one tick and the last one may exceed the share.
    let report = kernel.report();
    let share_ns = stats.duration_ns / 50 + FIRST_CREDIT_NS;
    let allowed_ns = share_ns + 2 * (TICK_NS + 3 * report.longest_hold_ns);
    let (held_ms, longest_us) = (report.held_ns / MS, report.longest_hold_ns / US);
    assert!(report.held_ns <= allowed_ns, "{what}: held for {held_ms} ms, once for {longest_us} us");
    // A stop of one thread takes at least five calls.
    let calls_ns = 12 * costs.round_trip + costs.suspend_per_running * busy;
    let allowed_ns = (2 * MS).max(calls_ns) + kernel.delayed_ns(0);
    assert!(report.longest_hold_ns <= allowed_ns, "{what}: held for {longest_us} us at once");
}

#[test]
fn a_sampler_of_background_qos_requests_interactive_qos() {
    let world = World::arm64(3).process(busy(500)).with(|world| world.begins_in_background = true);
    let ran = run(world.build(), &options(1_000), None);
    let rate = ran.per_second(ran.ticks());
    assert!(rate > 950.0, "{rate} Hz");
    assert_eq!(ran.kernel.count(Method::RequestInteractiveQos), 1);
}

#[test]
fn late_ticks_are_reported_by_cause() {
    let late = |world: World, hz: u32| {
        let ran = run(world.process(busy(500)).build(), &Options { hz, ..options(1_000) }, None);
        let stats = &ran.profile.stats;
        (stats.ticks_late, stats.ticks_late_wakeup.unwrap_or(u64::MAX))
    };
    // The request is refused: the system keeps waking it late.
    let refused = (Which::Every(Method::RequestInteractiveQos, 1), Answer::Code(EPERM));
    let world = World::arm64(3).answer(refused.0, refused.1).with(|world| world.begins_in_background = true);
    let (all, wakeup) = late(world, 1_000);
    assert!(all > 500 && wakeup * 100 > all * 95, "{wakeup} of {all}");
    // Calls that take as long as several ticks.
    let (all, wakeup) = late(World::arm64(3).costs(Costs::of_calls(MS)), 1_000);
    assert!(all > 300 && wakeup * 10 < all, "{wakeup} of {all}");
    let (all, wakeup) = late(World::arm64(3), 100);
    assert_eq!((all, wakeup), (0, 0));
}

#[test]
fn prints_rates_and_holds_by_threads_and_cost() {
    eprintln!("threads  a call, us  ticks of 100/s  that stopped  held, %  longest hold, us");
    for call_ns in CALLS_NS {
        for threads in [1, 21, 101, 301, 1_000] {
            let world = World::arm64(1).process(crowd(500, threads, 4)).costs(Costs::of_calls(call_ns));
            let ran = run(world.build(), &Options { hz: 100, ..options(2_000) }, None);
            let longest_us = ran.kernel.report().longest_hold_ns as f64 / 1e3;
            let (rate, held) = (ran.per_second(ran.ticks()), ran.held() * 100.0);
            let stopped = ran.per_second(ran.profile.stats.ticks);
            let us = call_ns as f64 / 1e3;
            eprintln!(
                "{threads:>7}  {us:>10.1}  {rate:>14.1}  {stopped:>12.1}  {held:>7.2}  {longest_us:>16.1}"
            );
            // A poll and a reference for each, and some ten calls for the four that run.
            if call_ns * (2 * threads + 40) <= 8 * MS {
                assert!(rate > 90.0, "{threads} threads, {call_ns} ns a call: {rate} Hz");
            }
            assert!(
                call_ns > 100 * US || held < 3.0,
                "{threads} threads, {call_ns} ns a call: {held} % held"
            );
        }
    }
}

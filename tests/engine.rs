//! The engine end to end: recordings of simulated processes against what they really did.
//!
//! Each recording is also checked for what must hold always (`support/recording.rs`).
//! Times are virtual: nothing here sleeps. `STACKPROF_SEED=N` replays one seed.

#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs, unreachable_pub)]

#[path = "support/processes.rs"]
mod processes;
#[path = "support/recording.rs"]
mod recording;

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

use processes::{
    ARCHES, FUNCTIONS, MS, SECOND, deep, f, image, mixed, mixed_with, names, phase, process, run, thread,
    wait,
};
use recording::{Recorded, Watched, options, record, record_with, replay, replay_sim, seeds};
use stackprof::error::ErrorKind;
use stackprof::profile::Root;
use stackprof::sampler::{self, Options};
use stackprof::target::sim::{
    FaultKind, FunctionId, SimActivity, SimConfig, SimExec, SimFault, SimPhase, SimThread,
};
use stackprof::target::{Activity, Arch, ExitStatus, Fault};
use stackprof::trie::Frame;

/// A seeded process, whose late plugin is used only once its loading was noticed: what
/// replaces an image at its address bears the old names until then (see
/// `an_image_replaced_at_its_address_keeps_its_names`).
fn seeded(seed: u64) -> SimConfig {
    let mut config = SimConfig::from_seed(seed);
    let late = |config: &SimConfig, thread: &SimThread| {
        let images = thread.script.iter().flat_map(|phase| &phase.stack).map(|frame| frame.function.image);
        images.map(|image| config.images[image].load_ns).max().filter(|load_ns| *load_ns > 0)
    };
    for index in 0..config.threads.len() {
        if let Some(load_ns) = late(&config, &config.threads[index]) {
            config.threads[index].start_ns = load_ns + 1_100 * MS;
        }
    }
    config
}

// Shares.

#[test]
fn shares_are_the_phases_shares_of_cpu_time() {
    for (seed, hz) in (1..).zip([100, 997, 1000]) {
        let _replay = replay(seed);
        for arch in ARCHES {
            let script = vec![
                run(5_000, &[0, 1, 2]),
                run(3_000, &[0, 1, 3, 4]),
                run(1_500, &[0, 5]),
                run(500, &[0, 1, 2, 6]),
            ];
            let mut config = process(arch, 2, 20, vec![script.clone(), script]);
            config.seed = seed;
            let recorded = record(&config, &options(hz, seed));
            recorded.check_balance();
            recorded.check_shares(recorded.ledger.captures() as f64 / 5.0);
            check_total(&recorded);
            // Stops take 10 us from it.
            assert!(recorded.profile.stats.samples > 2 * 20 * u64::from(hz) * 98 / 100);
            assert_eq!(recorded.incomplete(), 0);
        }
    }
}

/// Samples are CPU seconds × hz within 1 %.
fn check_total(recorded: &Recorded) {
    let (samples, expected) = (recorded.profile.stats.samples as f64, recorded.true_counts());
    assert!((samples - expected).abs() <= expected / 100.0, "{samples} samples, expected {expected}");
}

#[test]
fn eight_threads_on_two_cpus_share_two_cpus_worth_of_samples() {
    let _replay = replay(3);
    let mut scripts: Vec<Vec<SimPhase>> =
        (0..6).map(|n| vec![run(730, &[0, 1, 10 + n]), run(410, &[0, 2, 20 + n])]).collect();
    scripts.push(vec![run(1_000, &[0, 3]), wait(9_000, &[0, 4])]);
    scripts.push(vec![run(300, &[0, 5]), wait(2_000, &[0, 6])]);
    for accounting_tick_ns in [4 * MS, 1_000] {
        let mut config = process(Arch::X86_64, 2, 20, scripts.clone());
        config.accounting_tick_ns = accounting_tick_ns;
        let recorded = record(&config, &options(997, 3));
        check_total(&recorded);
        assert!(recorded.profile.stats.samples.abs_diff(2 * 20 * 997) <= 20 * 997 / 50, "two CPUs' worth");
        recorded.check_balance();
        for index in 0..8 {
            let (shown, real) =
                (recorded.counts_of(thread(index)) as f64, recorded.true_counts_of(thread(index)));
            assert!(
                (shown - real).abs() <= 3.0 + real * 0.002,
                "thread {index}: {shown} of {real:.1} counts"
            );
        }
        recorded.check_shares(recorded.ledger.captures() as f64 / 4.0);
        // A thread that waits for a CPU since its last sample has nothing to tell.
        let stops = recorded.profile.stats.stops;
        assert!(stops < 2 * 2 * 20 * 997, "{stops} stops");
    }
}

#[test]
fn short_bursts_count_as_the_cpu_time_they_use() {
    let _replay = replay(4);
    let scripts = vec![
        vec![run(100, &[0, 1]), wait(900, &[0, 2])],
        vec![run(100, &[0, 3]), wait(900, &[0, 2]), run(50, &[0, 4]), wait(450, &[0, 2])],
        vec![run(20, &[0, 5]), wait(380, &[0, 6])],
    ];
    for hz in [99, 997, 1000] {
        let recorded = record(&process(Arch::Aarch64, 2, 40, scripts.clone()), &options(hz, 4));
        recorded.check_balance();
        recorded.check_shares(recorded.ledger.captures() as f64 / 4.0);
        check_total(&recorded);
        assert_eq!(recorded.ledger.interrupted_waiting(), 0);
    }
}

/// Work that begins with each period of the rate, as a timer of the same rate makes it:
/// samples in a grid would see some of it never and some of it always.
#[test]
fn work_in_step_with_the_rate_keeps_its_shares() {
    let scripts = [
        vec![run(100, &[0, 1]), run(200, &[0, 2]), run(700, &[0, 3])],
        vec![run(100, &[0, 1]), wait(300, &[0, 4]), run(300, &[0, 2]), wait(300, &[0, 4])],
        vec![run(500, &[0, 1]), run(1_000, &[0, 2]), run(500, &[0, 3])],
        vec![run(450, &[0, 1]), run(100, &[0, 2]), run(450, &[0, 3])],
    ];
    for (seed, script) in (1..).zip(scripts) {
        let _replay = replay(seed);
        let mut config = process(Arch::X86_64, 1, 40, vec![script]);
        // A stop takes no time here, or the work would fall out of step.
        (config.stop_latency_ns, config.pause_ns) = (0, 0);
        let recorded = record(&config, &options(1000, seed));
        recorded.check_balance();
        // Neighbouring ticks see neighbouring phases.
        recorded.check_shares(40_000.0 / 8.0);
    }
}

#[test]
fn seeded_processes_have_each_thread_at_its_cpu_time() {
    for seed in seeds(0..40) {
        let _replay = replay(seed);
        let recorded = record(&seeded(seed).without_faults(), &options(997, seed));
        recorded.check_balance();
        for id in recorded.truth.keys().map(|(id, _)| *id).collect::<BTreeSet<_>>() {
            let (shown, real) = (recorded.counts_of(id) as f64, recorded.true_counts_of(id));
            // What a thread used since its last sample is lost when it ends.
            let slack = 2.0 + real * 0.01 + recorded.lost() as f64;
            assert!((shown - real).abs() <= slack, "{id:?}: {shown} of {real:.1} counts");
        }
        recorded.check_shares(recorded.ledger.captures() as f64 / 8.0);
    }
}

// Which threads are stopped.

#[test]
fn only_threads_that_ran_are_stopped() {
    for seed in seeds(0..200) {
        let _replay = replay(seed);
        // Also checked in each other recording.
        let recorded = record(&seeded(seed), &options(199, seed));
        assert_eq!(recorded.ledger.interrupted_waiting(), 0);
        assert_eq!(recorded.ledger.interrupted_stopped(), 0);
    }
}

fn idle(hz: u32, seed: u64) -> Options {
    Options { idle: true, ..options(hz, seed) }
}

#[test]
fn a_waiting_thread_is_stopped_about_once_per_wait_in_a_wall_clock_profile() {
    let _replay = replay(5);
    let scripts = vec![
        vec![run(2_000, &[0, 1]), wait(98_000, &[0, 2, 3])],
        vec![run(10, &[0, 4]), wait(49_990, &[0, 4, 5])],
        vec![wait(10_000_000, &[0, 6, 7])],
        vec![run(1_000, &[0, 8])],
    ];
    let config = process(Arch::X86_64, 2, 10, scripts);
    let recorded = record(&config, &idle(997, 5));
    // 100 waits, 200 waits and one; about as many stops.
    let stops = recorded.ledger.interrupted_waiting();
    assert!((301..=330).contains(&stops), "{stops} stops of waiting threads");
    check_wall(&recorded, 10 * SECOND);
    let reused = recorded.profile.stats.samples_idle_reused as f64;
    let waited = recorded.counts(recorded.ledger.truth_waiting().values().sum());
    assert!(reused > 0.97 * waited && reused <= waited, "{reused} of {waited} reused");
    for ((id, stack), ns) in recorded.ledger.truth_waiting() {
        let (shown, real) = (recorded.count(id, &stack) as f64, recorded.counts(ns));
        assert!((shown - real).abs() <= 0.02 * real + 2.0, "{id:?} {stack:?}: {shown} of {real}");
    }
}

/// Each thread's counts are its wall-clock time.
fn check_wall(recorded: &Recorded, ns: u64) {
    for thread in &recorded.profile.threads {
        let shown = recorded.counts_of(stackprof::target::ThreadId(thread.id));
        let real = recorded.counts(ns);
        assert!((shown as f64 - real).abs() <= 3.0, "thread {}: {shown} of {real:.1} counts", thread.id);
    }
}

#[test]
fn wall_clock_time_adds_up_also_without_a_cpu_and_under_job_control() {
    let _replay = replay(6);
    let mut scripts: Vec<Vec<SimPhase>> = (0..5).map(|n| vec![run(5_000, &[0, 1, n])]).collect();
    scripts.push(vec![run(50_000, &[0, 9]), phase(SimActivity::Stopped, 300_000, &[0, 9, 10])]);
    let recorded = record(&process(Arch::X86_64, 2, 10, scripts), &idle(997, 6));
    let total = (recorded.profile.stats.samples + recorded.lost()) as f64;
    let real = recorded.counts(6 * 10 * SECOND);
    assert!((total - real).abs() <= 12.0, "{total} of {real} counts");
    // Not in what the thread did next, and not silently gone.
    let stopped = recorded.lost_by("stopped by job control") as f64;
    let ran = recorded.counts_of(thread(5)) as f64;
    assert!((stopped + ran - recorded.counts(10 * SECOND)).abs() <= 3.0, "{stopped} and {ran}");
    assert!(stopped > 5_000.0, "{stopped} counts under job control: {:?}", recorded.profile.stats);
}

/// Two waits at different places with hardly anything between them.
#[test]
fn a_wait_is_not_taken_for_the_one_before() {
    let _replay = replay(7);
    let script = vec![wait(1_700, &[0, 1, 2]), run(2, &[0, 3]), wait(1_300, &[0, 4, 5]), run(2, &[0, 3])];
    let recorded = record(&process(Arch::X86_64, 1, 10, vec![script]), &idle(1000, 7));
    let [first, second] =
        [&[0, 1, 2], &[0, 4, 5]].map(|stack| recorded.count(thread(0), &names(stack)) as f64);
    let share = first / (first + second);
    assert!((share - 0.567).abs() < 0.02, "{first} and {second}");
}

#[test]
fn a_deep_wait_becomes_complete_and_stays_incomplete_when_it_cannot() {
    let _replay = replay(8);
    let script = vec![deep(SimActivity::Wait, 10_000_000, 3_000, 64, 1)];
    let config = process(Arch::X86_64, 1, 10, vec![script]);
    let recorded = record(&config, &idle(997, 8));
    assert!(recorded.incomplete() <= 5, "{:?}", recorded.profile.stats);
    let torn = SimFault::always(FaultKind::ShortStack { bytes: 4096 });
    let recorded = record(&SimConfig { faults: vec![torn], ..config }, &idle(997, 8));
    assert_eq!(recorded.profile.stats.stacks_complete, 0);
    assert!(recorded.ledger.captures() < 10, "asked again and again in vain");
}

// Stacks.

#[test]
fn with_frame_records_every_stack_is_whole_and_true() {
    for seed in seeds(0..200) {
        let _replay = replay(seed);
        for arch in ARCHES {
            let mut config = seeded(seed).without_faults().with_frame_pointers();
            config.arch = arch;
            know_births(&mut config);
            check_exact(&config, seed);
        }
    }
}

#[test]
fn leaves_without_a_frame_record_keep_their_callers() {
    for seed in seeds(0..60) {
        let _replay = replay(seed);
        for arch in ARCHES {
            let mut config = seeded(seed).without_faults();
            config.arch = arch;
            config.signed_returns = seed % 2 == 0;
            for phase in config.threads.iter_mut().flat_map(|thread| &mut thread.script) {
                phase.frameless_leaf = true;
            }
            know_births(&mut config);
            check_exact(&config, seed);
        }
    }
}

/// Without knowing where a thread was born, its first function alone, which has no frame
/// record, cannot be told from a torn stack.
fn know_births(config: &mut SimConfig) {
    config.threads.iter_mut().for_each(|thread| thread.stack_top_known = true);
}

/// That complete stacks are true is checked in every recording; here all are complete,
/// but for a first few that were deeper than the first window.
fn check_exact(config: &SimConfig, seed: u64) {
    let recorded = record(config, &options(99, seed));
    let too_deep = recorded.incomplete_by("window ran out");
    assert_eq!(recorded.incomplete(), too_deep, "{:?}", recorded.profile.stats.stacks_incomplete);
    assert!(too_deep <= 20 * config.threads.len() as u64, "{:?}", recorded.profile.stats);
    assert!(!recorded.profile.trie.frames().any(|frame| frame == Frame::Code { space: 0, address: 0 }));
    assert_eq!(recorded.names.addresses_named, recorded.names.addresses_unique);
}

#[test]
fn the_window_grows_to_the_depth_there_is() {
    for depth in [60, 200, 1_000, 2_500, 5_000] {
        let _replay = replay(depth as u64);
        for arch in ARCHES {
            let scripts = (0..3).map(|n| vec![deep(SimActivity::Run, 5_000, depth, 16 * n, 10)]).collect();
            let recorded = record(&process(arch, 3, 1, scripts), &options(199, 1));
            // 32 KiB, 128, 512: each thread runs out twice at most, for a tick or two.
            assert_eq!(recorded.incomplete(), recorded.incomplete_by("window ran out"));
            let torn = recorded.incomplete();
            assert!(torn <= 3 * 6, "depth {depth}: {torn} torn");
            recorded.check_balance();
        }
    }
}

#[test]
fn a_thread_that_is_deep_now_and_then_is_mostly_whole() {
    let _replay = replay(9);
    let script = vec![run(100_000, &[0, 1]), deep(SimActivity::Run, 3_000, 2_000, 32, 10)];
    let recorded = record(&process(Arch::X86_64, 1, 30, vec![script]), &options(997, 9));
    let deep_counts = recorded.true_counts() * 3.0 / 103.0;
    assert!(
        (recorded.incomplete() as f64) < deep_counts / 5.0,
        "{:?} of {deep_counts}",
        recorded.profile.stats
    );
}

#[test]
fn depth_is_limited_to_the_leafs_side_and_said() {
    let _replay = replay(10);
    for arch in ARCHES {
        let scripts = vec![
            vec![deep(SimActivity::Run, 5_000, 500, 16, 10)],
            vec![deep(SimActivity::Run, 5_000, 128, 16, 11)],
        ];
        let limited = Options { max_depth: 128, ..options(997, 10) };
        let recorded = record(&process(arch, 2, 2, scripts), &limited);
        assert_eq!(recorded.incomplete_by("depth limit"), recorded.counts_of(thread(0)));
        assert!(recorded.incomplete_by("depth limit") > 1_900);
        assert!(recorded.stacks.keys().all(|(.., names)| names.len() == 128));
        assert_eq!(recorded.counts_of(thread(1)), recorded.profile.stats.stacks_complete);
    }
}

#[test]
fn sixty_four_threads_at_depth_200_are_all_there() {
    let _replay = replay(11);
    let scripts: Vec<Vec<SimPhase>> = (0..64)
        .map(|n| {
            let mut busy = deep(SimActivity::Run, 700 + 50 * n, 200, 16, 10 + n as usize % 30);
            busy.stack[5].function = f(n as usize % FUNCTIONS);
            vec![busy, deep(SimActivity::Wait, 1_000 + 400 * n, 150, 16, 9)]
        })
        .collect();
    let recorded = record(&process(Arch::Aarch64, 16, 3, scripts), &options(499, 11));
    recorded.check_balance();
    assert_eq!(recorded.profile.threads.len(), 64);
    for index in 0..64 {
        let (shown, real) =
            (recorded.counts_of(thread(index)) as f64, recorded.true_counts_of(thread(index)));
        assert!(real > 20.0 && (shown - real).abs() <= 3.0, "thread {index}: {shown} of {real:.1} counts");
    }
    assert_eq!(recorded.incomplete(), 0);
}

// Faults.

/// Records [`mixed`] with a fault; whatever happens, the rest of the profile is right.
fn with_fault(fault: SimFault) -> Recorded {
    let recorded = record(&mixed_with(12, fault), &options(997, 12));
    assert!(recorded.ledger.faults().contains_key(fault.kind.name()), "{} did not happen", fault.kind.name());
    assert_eq!(recorded.profile.stats.exit_status, Some(ExitStatus::Code(0)));
    recorded.check_balance();
    recorded
}

#[test]
fn a_thread_that_dies_while_it_is_asked_or_stands_leaves_its_time_counted() {
    for kind in [FaultKind::DieBeforeInterrupt, FaultKind::DieBeforeCollect] {
        for index in 0..4 {
            let _replay = replay(12);
            let recorded = with_fault(SimFault::once(kind).of_thread(thread(index)).from_time(SECOND));
            assert_eq!(recorded.profile.stats.threads_seen, 4);
            assert!(recorded.lost() <= 4 * 2, "{:?}", recorded.profile.stats.samples_lost);
            let shown = recorded.counts_of(thread(index)) as f64;
            assert!((shown - recorded.true_counts_of(thread(index))).abs() <= 4.0);
            recorded.check_shares(1_000.0);
        }
    }
}

/// The look after a capture must not forget what was counted before.
#[test]
fn a_thread_that_ends_between_its_capture_and_its_walk_is_not_counted_twice() {
    for seed in seeds(0..20) {
        let _replay = replay(seed);
        let scripts = vec![vec![run(1_000, &[0, 1])], vec![run(1_000, &[0, 2])]];
        let mut config = process(Arch::X86_64, 2, 3, scripts);
        // The second to be collected stands so long that the first ends meanwhile.
        config.threads[1].exit_ns = Some(2 * SECOND + seed * 40_000);
        let stop = SimFault::always(FaultKind::LongStop { pause_ns: 900_000 }).from_time(1_999 * MS);
        config.faults.push(stop);
        let recorded = record(&config, &options(997, seed));
        recorded.check_balance();
        assert!(recorded.lost() <= 8, "{:?}", recorded.profile.stats.samples_lost);
    }
}

#[test]
fn stacks_cut_short_are_incomplete_and_weigh_the_same() {
    for bytes in [0, 8, 24, 100, 1_000] {
        let _replay = replay(12);
        let fault = SimFault::always(FaultKind::ShortStack { bytes }).of_thread(thread(0)).from_time(SECOND);
        let recorded = with_fault(fault);
        let torn = recorded.stacks.iter().filter(|((id, complete, _), _)| *id == 4242 && !complete);
        let torn: u64 = torn.map(|(_, count)| count).sum();
        // Two thirds of the time; 1000 bytes hold the whole stack.
        let thread_counts = recorded.counts_of(thread(0));
        let expected = if bytes < 100 { thread_counts * 2 / 3 } else { torn };
        assert!(torn.abs_diff(expected) <= thread_counts / 20, "{bytes} bytes: {torn} of {thread_counts}");
        assert!((thread_counts as f64 - recorded.true_counts_of(thread(0))).abs() <= 4.0);
        assert_eq!(recorded.incomplete(), torn, "no other thread's");
    }
}

#[test]
fn an_unreadable_stack_loses_its_time_under_its_cause_once() {
    let _replay = replay(12);
    let fault = SimFault::always(FaultKind::Unreadable).of_thread(thread(0)).from_time(SECOND);
    let recorded = with_fault(fault);
    let lost = recorded.lost_by("stack is not mapped") as f64;
    let missing = recorded.true_counts_of(thread(0)) - recorded.counts_of(thread(0)) as f64;
    assert!(lost > 500.0 && (lost - missing).abs() <= 4.0, "{lost} lost of {missing:.1} missing");
    // Not carried into the next stack that can be read.
    let fault = SimFault { count: 500, ..SimFault::always(FaultKind::Unreadable) };
    let recorded = with_fault(fault.of_thread(thread(0)).from_time(SECOND));
    let shown = recorded.counts_of(thread(0)) as f64;
    let missing = recorded.true_counts_of(thread(0)) - shown;
    assert!((missing - recorded.lost_by("stack is not mapped") as f64).abs() <= 4.0);
}

#[test]
fn long_stops_are_measured_and_ticks_missed_meanwhile_counted() {
    let _replay = replay(12);
    let fault = SimFault { count: 20, ..SimFault::always(FaultKind::LongStop { pause_ns: 5 * MS }) };
    let recorded = with_fault(fault.from_time(SECOND));
    let stats = &recorded.profile.stats;
    assert!(stats.pause.max_ns() >= 5 * MS && stats.pause.max_ns() >= recorded.ledger.longest_stand_ns());
    assert!(stats.pause.total_ns() >= recorded.ledger.stood_ns(), "a pause is an upper bound");
    assert!((40..120).contains(&stats.ticks_late), "{} late", stats.ticks_late);
    recorded.check_shares(600.0);
}

#[test]
fn a_panic_while_threads_stand_lets_them_run() {
    for skip in [0, 1, 7, 500] {
        let _replay = replay(12);
        let config = mixed_with(12, SimFault::once(FaultKind::Panic).after(skip));
        let options = options(997, 12);
        let mut message = None;
        let recorded = record_with(&config, &options, |target, clock, live| {
            let result = catch_unwind(AssertUnwindSafe(|| sampler::record(target, clock, &options, live)));
            let panic = result.expect_err("the injected panic comes through");
            message = panic.downcast_ref::<String>().cloned();
            // The one that was being collected runs already; the target's end frees the others.
            Err(stackprof::error::Error::new(ErrorKind::System, "panicked"))
        });
        assert!(recorded.is_err(), "record_with checked that nobody stands");
        assert!(message.unwrap().starts_with("injected while thread"));
    }
}

#[test]
fn clock_jumps_drop_ticks_and_the_rate_recovers() {
    let _replay = replay(13);
    let fault = SimFault::once(FaultKind::ClockJump { by_ns: 100 * MS }).from_time(SECOND);
    // A thread that computes is asked at each tick.
    let script = vec![run(5_000, &[0, 1]), run(2_000, &[0, 2])];
    let config = SimConfig { faults: vec![fault], ..process(Arch::X86_64, 1, 3, vec![script]) };
    let mut ticks_ns = Vec::new();
    let options = options(997, 13);
    let recorded = record_with(&config, &options, |target, clock, live| {
        let mut watched = Watched::new(target, clock, |_| None);
        let result = sampler::record(&mut watched, clock, &options, live);
        ticks_ns = watched.ticks_ns;
        result
    })
    .unwrap();
    let stats = &recorded.profile.stats;
    assert!((98..=100).contains(&stats.ticks_late), "{} late", stats.ticks_late);
    assert!((stats.ticks + stats.ticks_late).abs_diff(997 * 3) <= 12, "{stats:?}");
    let before_ns = ticks_ns.iter().rposition(|at| *at < 1_001 * MS).unwrap();
    let gap_ns = ticks_ns[before_ns + 1] - ticks_ns[before_ns];
    assert!(gap_ns >= 100 * MS, "{gap_ns}");
    // Not caught up: at most the tick that was due comes at once.
    let after = ticks_ns.iter().filter(|at| (1_102 * MS..1_202 * MS).contains(*at)).count();
    assert!((94..=105).contains(&after), "{after} ticks in the 100 ms after the jump");
    recorded.check_balance();
    recorded.check_shares(600.0);
}

#[test]
fn many_clock_jumps_lose_no_time() {
    let _replay = replay(14);
    let recorded = with_fault(SimFault::rate(FaultKind::ClockJump { by_ns: 30 * MS }, 10_000));
    assert!(recorded.profile.stats.ticks_late > 300, "{:?}", recorded.profile.stats);
    assert!(recorded.profile.stats.ticks + recorded.profile.stats.ticks_late <= 997 * 3 + 12);
    // The samples that are left weigh more, those of a thread born during a jump, too.
    assert!(recorded.lost() <= 45, "{:?}", recorded.profile.stats.samples_lost);
}

/// Its CPU time begins with 0 and needs no doubt, however late its start is heard of.
#[test]
fn a_thread_born_during_a_clock_jump_has_all_its_time() {
    let _replay = replay(14);
    let scripts = vec![vec![run(1_000, &[0, 1])], vec![run(1_000, &[0, 2])]];
    let mut config = process(Arch::X86_64, 2, 2, scripts);
    config.threads[1].start_ns = SECOND;
    config.faults = vec![SimFault::once(FaultKind::ClockJump { by_ns: 50 * MS }).from_time(999 * MS)];
    let recorded = record(&config, &options(997, 14));
    recorded.check_balance();
    assert!((recorded.counts_of(thread(1)) as f64 - recorded.true_counts_of(thread(1))).abs() <= 3.0);
}

#[test]
fn names_of_threads_and_images_may_be_missing() {
    let _replay = replay(12);
    let recorded = with_fault(SimFault::always(FaultKind::NoName).of_thread(thread(1)));
    let named: Vec<&str> = recorded.profile.threads.iter().map(|thread| thread.name.as_str()).collect();
    assert_eq!(named, ["t0", "", "t2", "t3"]);
    recorded.check_shares(1_000.0);

    let recorded = with_fault(SimFault::always(FaultKind::ImageDeleted));
    assert_eq!(recorded.names.addresses_named, 0);
    assert!(recorded.names.addresses_unique > 0);
    let reasons: Vec<String> = recorded.names.addresses_unnamed.keys().map(ToString::to_string).collect();
    assert_eq!(reasons, ["deleted from disk"]);
}

#[test]
fn mappings_may_be_refused_or_in_motion() {
    for arch in ARCHES {
        let _replay = replay(12);
        let mut config = mixed_with(12, SimFault::always(FaultKind::MappingsDenied));
        config.arch = arch;
        let recorded = record(&config, &options(997, 12));
        recorded.check_balance();
        assert_eq!(recorded.names.addresses_named, 0);
        let denied = recorded.ledger.faults()[FaultKind::MappingsDenied.name()];
        assert!((2..=200).contains(&denied), "{denied} tries in 3 s");

        // Nothing of it shows.
        config.faults = vec![SimFault::once(FaultKind::MappingsTransient)];
        let recorded = record(&config, &options(997, 12));
        assert_eq!(recorded.names.addresses_named, recorded.names.addresses_unique);
        recorded.check_shares(1_000.0);
        // Refused for a while: names come later, also for addresses of before.
        config.faults = vec![SimFault { count: 10, ..SimFault::always(FaultKind::MappingsDenied) }];
        let recorded = record(&config, &options(997, 12));
        assert_eq!(recorded.names.addresses_named, recorded.names.addresses_unique);
    }
}

#[test]
fn the_process_may_end_within_a_tick() {
    for skip in [0, 1, 2, 3, 777] {
        let _replay = replay(12);
        let mut config = mixed_with(12, SimFault::once(FaultKind::Exit).after(skip));
        config.exit = ExitStatus::Signal(9);
        let recorded = record(&config, &options(997, 12));
        assert_eq!(recorded.profile.stats.exit_status, Some(ExitStatus::Signal(9)));
        recorded.check_balance();
        if skip == 777 {
            assert!(recorded.profile.stats.samples > 500);
            recorded.check_shares(300.0);
        }
    }
}

#[test]
fn a_failing_system_is_an_error_that_leaves_nobody_standing() {
    let _replay = replay(12);
    let options = options(997, 12);
    let result = record_with(&mixed(12), &options, |target, clock, live| {
        let fail = |now_ns| (now_ns >= SECOND).then(|| Fault::Fatal("waitpid failed".to_owned()));
        sampler::record(&mut Watched::new(target, clock, fail), clock, &options, live)
    });
    let error = result.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::System);
    assert_eq!(error.to_string(), "the recording failed: waitpid failed");
}

// Images and programs that change.

/// A plugin is replaced by another one at the same address. `pause_ms` after it was
/// loaded, the new one is used.
fn plugins(arch: Arch, pause_ms: u64) -> SimConfig {
    let mut config = process(arch, 2, 5, vec![vec![run(1_000, &[0, 1])]]);
    let at = |image| [f(0), FunctionId { image, function: 0 }, FunctionId { image, function: 1 }];
    for (number, prefix) in ["old", "new"].into_iter().enumerate() {
        let path = format!("/sim/lib{prefix}.so");
        config.images.push(image(&path, 0x5600_0000_0000, prefix, 4));
        let script = vec![SimPhase::new(SimActivity::Run, 3 * MS, &at(number + 1))];
        config.threads.push(SimThread::looping(prefix, script));
    }
    config.images[1].unload_ns = Some(2 * SECOND);
    config.threads[1].exit_ns = Some(1_900 * MS);
    config.images[2].load_ns = 2 * SECOND;
    config.threads[2].start_ns = 2 * SECOND + pause_ms * MS;
    config
}

#[test]
fn an_image_replaced_at_its_address_keeps_its_names() {
    for arch in ARCHES {
        let _replay = replay(1);
        let recorded = record(&plugins(arch, 1_100), &options(997, 1));
        recorded.check_shares(1_000.0);
        let stack = |names: [&str; 3]| names.map(str::to_owned).to_vec();
        assert!(recorded.count(thread(1), &stack(["f0", "old0", "old1"])) > 1_800);
        assert!(recorded.count(thread(2), &stack(["f0", "new0", "new1"])) > 1_700);
        assert_eq!(recorded.profile.images.space(), 1, "one new space, not one per look");
    }
}

/// Without an event from the system, an exchange is noticed at the next look at the
/// mappings, at the latest a second later; the new code has the old names until then.
#[test]
fn an_exchange_of_images_is_noticed_within_a_second() {
    let _replay = replay(1);
    let options = options(997, 1);
    let clock = stackprof::clock::FakeClock::default();
    let mut target = stackprof::target::sim::SimTarget::new(plugins(Arch::X86_64, 0), clock.clone());
    let profile = sampler::record(&mut target, &clock, &options, &stackprof::live::Live::default()).unwrap();
    let (mut wrong, mut right) = (0, 0);
    profile.trie.for_each_stack(|frames, count| {
        let Frame::Root(number) = profile.trie.frame(frames[0]) else { return };
        if profile.threads[Root::from_number(number).thread as usize].name == "new" {
            let Frame::Code { space, .. } = profile.trie.frame(frames[1]) else { return };
            *(if space == 0 { &mut wrong } else { &mut right }) += count;
        }
    });
    assert!(wrong <= 1_005 && right >= 1_900, "{wrong} wrong, {right} right");
}

fn with_exec(arch: Arch, at_ns: u64) -> SimConfig {
    let mut config = mixed(15);
    config.arch = arch;
    // At the very addresses of the old program.
    let mut next = image("/sim/next", 0x5500_0100_0000, "g", FUNCTIONS);
    next.after_exec = true;
    config.images.push(next);
    let g = |n| FunctionId { image: 1, function: n };
    let script = vec![
        SimPhase::new(SimActivity::Run, 6 * MS, &[g(0), g(1), g(2)]),
        SimPhase::new(SimActivity::Run, 4 * MS, &[g(0), g(3)]),
    ];
    config.exec = Some(SimExec { at_ns, script });
    config
}

#[test]
fn an_exec_separates_what_was_before_from_what_is_after() {
    for arch in ARCHES {
        let _replay = replay(15);
        let mut injected = with_exec(arch, u64::MAX);
        injected.faults.push(SimFault::once(FaultKind::Exec).from_time(1_500 * MS));
        for config in [with_exec(arch, 1_500 * MS), with_exec(arch, 1_499_999_000), injected] {
            let recorded = record(&config, &options(997, 15));
            recorded.check_balance();
            recorded.check_shares(600.0);
            // The first thread before, the three others, the first one after.
            assert_eq!(recorded.profile.threads.len(), 5);
            assert!(recorded.lost() <= 5, "{:?}", recorded.profile.stats.samples_lost);
            let mut programs: BTreeMap<u32, BTreeSet<char>> = BTreeMap::new();
            recorded.profile.trie.for_each_stack(|frames, _| {
                let Frame::Root(number) = recorded.profile.trie.frame(frames[0]) else { return };
                let names = frames[1..].iter().flat_map(|frame| recorded.names.get(*frame));
                let letters = names.filter_map(|name| name.chars().next());
                programs.entry(Root::from_number(number).thread).or_default().extend(letters);
            });
            let programs: Vec<String> = programs.values().map(|letters| letters.iter().collect()).collect();
            assert_eq!(programs, ["f", "f", "f", "f", "g"]);
        }
    }
}

// The recording as a whole.

#[test]
fn the_wish_to_stop_ends_the_recording() {
    let _replay = replay(16);
    for hz in [1, 99, 997] {
        let options = options(hz, 16);
        let recorded = record_with(&mixed(16), &options, |target, clock, live| {
            let stop = |now_ns| {
                if now_ns >= SECOND {
                    live.ask_to_stop();
                }
                None
            };
            sampler::record(&mut Watched::new(target, clock, stop), clock, &options, live)
        })
        .unwrap();
        // Looked at 20 times a second even at 1 Hz.
        let duration_ns = recorded.profile.stats.duration_ns;
        assert!((SECOND..SECOND + 60 * MS).contains(&duration_ns), "{hz} Hz: {duration_ns}");
        assert_eq!(recorded.profile.stats.exit_status, None);
        recorded.check_balance();
    }
    // The same, asked by a signal to the profiler.
    let config = SimConfig { terminate_ns: Some(SECOND), ..mixed(16) };
    let duration_ns = record(&config, &options(997, 16)).profile.stats.duration_ns;
    assert!((SECOND..SECOND + 3 * MS).contains(&duration_ns), "{duration_ns}");
}

#[test]
fn a_command_that_ends_soon_after_the_wish_tells_how() {
    let _replay = replay(16);
    let mut config = SimConfig { terminate_ns: Some(2_900 * MS), exit: ExitStatus::Code(3), ..mixed(16) };
    let options = Options { linger_ns: 500 * MS, ..options(997, 16) };
    let recorded = record(&config, &options);
    assert_eq!(recorded.profile.stats.exit_status, Some(ExitStatus::Code(3)));
    assert!(recorded.profile.stats.duration_ns < 2_910 * MS, "the recording ended with the wish");
    config.terminate_ns = Some(SECOND);
    let recorded = record(&config, &options);
    assert_eq!(recorded.profile.stats.exit_status, None);
    assert!(recorded.now_ns < 1_550 * MS, "{}", recorded.now_ns);
}

#[test]
fn the_duration_is_kept_within_a_tick_and_has_its_ticks() {
    for (seed, hz) in (0..).zip([1, 10, 99, 997, 1000, 4999]) {
        let _replay = replay(seed);
        let options = Options { duration_ns: Some(2 * SECOND), ..options(hz, seed) };
        let recorded = record(&mixed(seed), &options);
        let stats = &recorded.profile.stats;
        assert!((2 * SECOND..2 * SECOND + MS).contains(&stats.duration_ns), "{}", stats.duration_ns);
        // The jitter may take some periods from the beginning or the end.
        assert!((stats.ticks + stats.ticks_late).abs_diff(2 * u64::from(hz)) <= 10, "{hz} Hz: {stats:?}");
        assert_eq!(stats.exit_status, None);
        recorded.check_balance();
        let end = recorded.counts(2 * SECOND) * 2.0;
        assert!(stats.samples as f64 <= end + 0.005 * end + 2.0, "{} samples", stats.samples);
    }
}

#[test]
fn a_recording_of_no_time_or_of_a_process_that_ends_at_once_is_empty() {
    let _replay = replay(17);
    let recorded = record(&mixed(17), &Options { duration_ns: Some(0), ..options(997, 17) });
    assert!(recorded.profile.stats.samples <= 1 && recorded.now_ns < MS);
    let mut config = mixed(17);
    config.exit_ns = 100_000;
    let recorded = record(&config, &options(997, 17));
    assert_eq!(recorded.profile.stats.samples, 0);
    assert_eq!(recorded.profile.stats.exit_status, Some(ExitStatus::Code(0)));
}

#[test]
fn the_same_seed_and_options_give_the_same_profile() {
    for seed in seeds(0..12) {
        let _replay = replay(seed);
        let mut config = seeded(seed);
        config.faults.push(SimFault::rate(FaultKind::NoName, 300_000));
        for idle in [false, true] {
            let options = Options { idle, ..options(499, seed) };
            let all = |recorded: &Recorded| {
                let trie = &recorded.profile.trie;
                let mut stacks = Vec::new();
                trie.for_each_stack(|frames, count| {
                    stacks.push((frames.iter().map(|frame| trie.frame(*frame)).collect::<Vec<_>>(), count));
                });
                let stats = format!("{:?}", recorded.profile.stats);
                (stacks, stats, recorded.folded(), recorded.profile.threads.clone())
            };
            let (first, second) = (record(&config, &options), record(&config, &options));
            assert!(all(&first) == all(&second), "seed {seed}, idle {idle}");
        }
        let other = record(&config, &options(499, seed + 1_000));
        assert_ne!(other.folded(), record(&config, &options(499, seed)).folded(), "the seed is used");
    }
}

#[test]
fn memory_grows_with_stacks_and_not_with_time() {
    let _replay = replay(18);
    let tables = |seconds| {
        let scripts = vec![
            vec![run(900, &[0, 1, 2]), run(700, &[0, 1, 3]), wait(300, &[0, 4])],
            vec![deep(SimActivity::Run, 500, 40, 16, 10), run(300, &[0, 5, 6])],
        ];
        let recorded = record(&process(Arch::X86_64, 2, seconds, scripts), &options(499, 18));
        let trie = &recorded.profile.trie;
        (trie.node_count(), trie.frame_count(), trie.distinct_stacks(), trie.memory_bytes(), trie.total())
    };
    let (short, long) = (tables(10), tables(100));
    assert!(long.4 > 9 * short.4);
    for (short, long) in [(short.0, long.0), (short.1, long.1), (short.2, long.2)] {
        // Each instruction of a leaf is a node; 10 seconds may not have met them all.
        assert!(long >= short && long - short <= short / 20 + 2, "{short} after 10 s, {long} after 100 s");
    }
    assert!(long.3 <= 2 * short.3, "{} bytes after 10 s, {} after 100 s", short.3, long.3);
}

#[test]
fn a_snapshot_has_every_thread_where_it_is() {
    for arch in ARCHES {
        let _replay = replay(19);
        let scripts = vec![
            vec![run(10_000, &[0, 1, 2])],
            vec![wait(5_000_000, &[0, 3, 4])],
            vec![phase(SimActivity::Stopped, 5_000_000, &[0, 5])],
            vec![deep(SimActivity::Wait, 5_000_000, 5_000, 32, 6)],
            vec![deep(SimActivity::Run, 5_000_000, 2_000, 32, 7)],
        ];
        let clock = stackprof::clock::FakeClock::default();
        let mut target = stackprof::target::sim::SimTarget::new(process(arch, 1, 20, scripts), clock.clone());
        let snapshot = sampler::snapshot(&mut target, &clock, 8192).unwrap();
        let depths: Vec<usize> = snapshot.stacks.iter().map(|stack| stack.addresses.len()).collect();
        // A thread under job control is left alone.
        assert_eq!(depths, [3, 3, 0, 5_000, 2_000]);
        assert_eq!(snapshot.stacks[2].activity, Activity::Stopped);
        assert_eq!(target.ledger().standing(), 0);
        assert_eq!(target.ledger().interrupted_stopped(), 0);
    }
}

// Random processes.

#[test]
fn for_every_seed_the_books_balance() {
    let mut kinds = BTreeSet::new();
    for seed in seeds(0..300) {
        let _replay = replay_sim(seed);
        let recorded = record(&seeded(seed), &options(199, seed));
        recorded.check_balance();
        assert!(recorded.profile.stats.exit_status.is_some());
        kinds.extend(recorded.ledger.faults().into_keys());
    }
    if std::env::var_os("STACKPROF_SEED").is_none() {
        assert!(kinds.len() >= 7, "{kinds:?}");
    }
}

#[test]
fn for_every_seed_wall_clock_time_adds_up() {
    for seed in seeds(0..100) {
        let _replay = replay_sim(seed);
        let recorded = record(&seeded(seed), &idle(199, seed));
        let waited: u64 = recorded.ledger.truth_waiting().values().sum();
        let least = recorded.counts(waited) + recorded.true_counts();
        let told = (recorded.profile.stats.samples + recorded.lost()) as f64;
        // Time under job control and for want of a CPU comes to that.
        let most = recorded.counts(recorded.now_ns) * recorded.profile.threads.len() as f64;
        let threads = recorded.profile.threads.len() as f64;
        assert!(told <= most + threads && told >= least - 6.0 * threads, "{least} <= {told} <= {most}");
    }
}

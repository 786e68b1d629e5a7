//! A whole recording: its end, its length, its memory, its reproducibility.

use super::*;
use stackprof::walk::UnwindMethod;

#[test]
fn a_stop_request_ends_the_recording() {
    let _replay = replay(16);
    for hz in [1, 99, 997] {
        let options = options(hz, 16);
        let recorded = record_with(&mixed(16), &options, |target, clock, live| {
            let stop = |now_ns| {
                if now_ns >= SECOND {
                    live.request_stop();
                }
                None
            };
            sampler::record(&mut Watched::new(target, clock, stop), clock, &options, live)
        })
        .unwrap();
        // Polled 20 times a second even at 1 Hz.
        let duration_ns = recorded.profile.stats.duration_ns;
        assert!((SECOND..SECOND + 60 * MS).contains(&duration_ns), "{hz} Hz: {duration_ns}");
        assert_eq!(recorded.profile.stats.exit_status, None);
        recorded.check_balance();
    }
    // The same, requested by a signal to the profiler.
    let config = SimConfig { terminate_ns: Some(SECOND), ..mixed(16) };
    let duration_ns = record(&config, &options(997, 16)).profile.stats.duration_ns;
    assert!((SECOND..SECOND + 3 * MS).contains(&duration_ns), "{duration_ns}");
}

#[test]
fn a_command_that_exits_after_a_stop_request_has_its_status() {
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
fn the_duration_is_accurate_to_a_tick() {
    for (seed, hz) in (0..).zip([1, 10, 99, 997, 1000, 4999]) {
        let _replay = replay(seed);
        let options = Options { duration_ns: Some(2 * SECOND), ..options(hz, seed) };
        let recorded = record(&mixed(seed), &options);
        let stats = &recorded.profile.stats;
        assert!((2 * SECOND..2 * SECOND + MS).contains(&stats.duration_ns), "{}", stats.duration_ns);
        // The jitter may remove some periods at the beginning or the end.
        assert!((stats.ticks + stats.ticks_late).abs_diff(2 * u64::from(hz)) <= 10, "{hz} Hz: {stats:?}");
        assert_eq!(stats.exit_status, None);
        recorded.check_balance();
        let end = recorded.counts(2 * SECOND) * 2.0;
        assert!(stats.samples as f64 <= end + 0.005 * end + 2.0, "{} samples", stats.samples);
    }
}

#[test]
fn a_recording_of_zero_length_is_empty() {
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
                (stacks, stats, recorded.folded(), recorded.profile.stack_groups.clone())
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
        // Each instruction of a leaf is a node; 10 seconds may not have hit them all.
        assert!(long >= short && long - short <= short / 20 + 2, "{short} after 10 s, {long} after 100 s");
    }
    assert!(long.3 <= 2 * short.3, "{} bytes after 10 s, {} after 100 s", short.3, long.3);
}

#[test]
fn a_snapshot_has_every_thread_at_its_place() {
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
        let mut target =
            stackprof::sources::sim::SimTarget::new(process(arch, 1, 20, scripts), clock.clone());
        let snapshot = sampler::snapshot(&mut target, &clock, 8192, UnwindMethod::Auto).unwrap();
        let depths: Vec<usize> = snapshot.stacks.iter().map(|stack| stack.addresses.len()).collect();
        // A thread under job control is read in its stop.
        assert_eq!(depths, [3, 3, 2, 5_000, 2_000]);
        assert_eq!(snapshot.stacks[2].activity, Activity::Stopped);
        assert_eq!(target.ledger().stopped(), 0);
    }
}

/// JIT code may be discovered in the middle of a snapshot: earlier captures are still in it.
#[test]
fn a_snapshot_keeps_its_stacks_when_images_change() {
    let _replay = replay(21);
    let scripts = (0..9).map(|leaf| vec![run(10_000, &[0, leaf])]).collect();
    let clock = stackprof::clock::FakeClock::default();
    let mut target =
        stackprof::sources::sim::SimTarget::new(process(Arch::X86_64, 1, 21, scripts), clock.clone());
    let mut calls = 0;
    let changing = |_| {
        calls += 1;
        (calls % 2 == 0).then_some(Ok(TargetEvent::ImagesChanged))
    };
    let mut target = Watched::new(&mut target, &clock, changing);
    let snapshot = sampler::snapshot(&mut target, &clock, 8192, UnwindMethod::Auto).unwrap();
    let found: Vec<_> = snapshot.stacks.iter().map(|stack| (stack.ended, stack.addresses.len())).collect();
    assert_eq!(found, [(Ok(StackEnd::Root), 2); 9]);
}

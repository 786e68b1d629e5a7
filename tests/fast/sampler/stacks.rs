//! Stacks: complete and correct if there are frame records, at any depth.

use stackprof::addr::LookupAvma;

use super::*;

#[test]
fn with_frame_records_every_stack_is_complete_and_correct() {
    for seed in seeds(0..80) {
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
    for seed in seeds(0..30) {
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

/// Without a thread's start, its first function alone, which has no frame record, cannot be distinguished
/// from an incomplete stack.
fn know_births(config: &mut SimConfig) {
    config.threads.iter_mut().for_each(|thread| thread.stack_top_known = true);
}

/// Every recording checks that complete stacks are correct; here all are complete, except a first few that
/// are deeper than the initial stack size.
fn check_exact(config: &SimConfig, seed: u64) {
    let recorded = record(config, &options(99, seed));
    let too_deep = recorded.incomplete_by("deeper than copied");
    assert_eq!(recorded.incomplete(), too_deep, "{:?}", recorded.profile.stats.stacks_incomplete);
    assert!(too_deep <= 20 * config.threads.len() as u64, "{:?}", recorded.profile.stats);
    assert!(
        !recorded
            .profile
            .trie
            .frames()
            .any(|frame| frame == Frame::Code { space: 0, address: LookupAvma(0) })
    );
    assert_eq!(recorded.names.addresses_named, recorded.names.addresses_unique);
}

#[test]
fn the_stack_size_grows_with_the_depth() {
    for depth in [60, 200, 1_000, 2_500, 5_000] {
        let _replay = replay(depth as u64);
        for arch in ARCHES {
            let scripts = (0..3).map(|n| vec![deep(SimActivity::Run, 5_000, depth, 16 * n, 10)]).collect();
            let recorded = record(&process(arch, 3, 1, scripts), &options(199, 1));
            // 32 KiB, 128, 512: each thread exceeds the size twice at most, for a tick or two.
            assert_eq!(recorded.incomplete(), recorded.incomplete_by("deeper than copied"));
            let torn = recorded.incomplete();
            assert!(torn <= 3 * 6, "depth {depth}: {torn} torn");
            recorded.check_balance();
        }
    }
}

#[test]
fn occasionally_deep_stacks_are_mostly_complete() {
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
fn stacks_beyond_the_depth_limit_keep_their_leaf_side() {
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
fn sixty_four_threads_at_depth_200_are_complete() {
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
    assert_eq!(recorded.profile.threads().count(), 64);
    for index in 0..64 {
        let (shown, real) =
            (recorded.counts_of(thread(index)) as f64, recorded.true_counts_of(thread(index)));
        assert!(real > 20.0 && (shown - real).abs() <= 3.0, "thread {index}: {shown} of {real:.1} counts");
    }
    assert_eq!(recorded.incomplete(), 0);
}

//! Images and programs that change: each sample has the names that were valid at its time.

use super::*;
use stackprof::clock::FakeClock;
use stackprof::sources::sim::SimTarget;
use stackprof::walk::UnwindMethod;

/// A plugin is replaced by another one at the same address. The new one is used `pause_ms` after it was
/// loaded.
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
        assert_eq!(recorded.profile.images.of(0).space(), 1, "one new space, not one per look");
    }
}

/// As at program startup. The cost of listing libraries prevents a list for each.
#[test]
fn loading_libraries_truncates_no_stacks() {
    for arch in ARCHES {
        let _replay = replay(3);
        let mut config = process(arch, 2, 2, vec![vec![run(100, &[0, 1])]]);
        config.list_ns = MS / 2;
        for number in 0..20 {
            let avma = 0x5600_0000_0000 + 0x100_0000 * number as u64;
            let mut library = image(&format!("/sim/lib{number}.so"), avma, &format!("l{number}_"), 2);
            library.load_ns = (100 + 7 * number as u64) * MS;
            let at = |function| FunctionId { image: 1 + number, function };
            let phase = SimPhase::new(SimActivity::Run, 3 * MS, &[f(0), at(0), at(1)]);
            let mut thread = SimThread::looping(&format!("t{number}"), vec![phase]);
            thread.start_ns = library.load_ns;
            thread.exit_ns = Some(library.load_ns + 200 * MS);
            config.images.push(library);
            config.threads.push(thread);
        }
        let recorded = record(&config, &options(997, 3));
        recorded.check_balance();
        assert!(recorded.profile.stats.stacks_incomplete.is_empty(), "{:?}", recorded.profile.stats);
    }
}

/// Without an event from the system, a replacement is noticed at the next poll of the mappings, at most a
/// second later; until then the new code has the old names.
#[test]
fn a_replaced_image_is_noticed_within_a_second() {
    let _replay = replay(1);
    let options = options(997, 1);
    let clock = stackprof::clock::FakeClock::default();
    let mut target = stackprof::sources::sim::SimTarget::new(plugins(Arch::X86_64, 0), clock.clone());
    let profile = sampler::record(&mut target, &clock, &options, &stackprof::live::Live::default()).unwrap();
    let (mut wrong, mut right) = (0, 0);
    profile.trie.for_each_stack(|frames, count| {
        let Some(Frame::Root(root)) = profile.trie.frame(frames[0]) else { return };
        if profile.thread(root).unwrap().name == "new" {
            let Some(Frame::Code { space, .. }) = profile.trie.frame(frames[1]) else { return };
            *(if space == 0 { &mut wrong } else { &mut right }) += count;
        }
    });
    assert!(wrong <= 1_005 && right >= 1_900, "{wrong} wrong, {right} right");
}

fn with_exec(arch: Arch, at_ns: u64) -> SimConfig {
    let mut config = mixed(15);
    config.arch = arch;
    // At exactly the addresses of the old program.
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
fn time_before_an_exec_is_in_the_first_sample_after_it() {
    let (mut lost, mut lost_at_ends) = (0, 0);
    for at_ns in (1_000..1_040).map(|ms| ms * MS) {
        let mut config = with_exec(Arch::X86_64, at_ns);
        config.threads.truncate(1);
        let recorded = record(&config, &options(97, 15));
        recorded.check_balance();
        lost += recorded.lost();
        config.exec = None;
        config.images.pop();
        lost_at_ends += record(&config, &options(97, 15)).lost();
    }
    // CPU time after the last sample before the exit is lost. The loss before an exec would be as large.
    assert!(lost <= lost_at_ends + 20, "{lost} lost in 40 recordings, {lost_at_ends} without an exec");
}

#[test]
fn an_exec_separates_old_and_new_samples() {
    for arch in ARCHES {
        let _replay = replay(15);
        let mut injected = with_exec(arch, u64::MAX);
        injected.faults.push(SimFault::once(FaultKind::Exec).from_time(1_500 * MS));
        for config in [with_exec(arch, 1_500 * MS), with_exec(arch, 1_499_999_000), injected] {
            let recorded = record(&config, &options(997, 15));
            recorded.check_balance();
            recorded.check_shares(600.0);
            // The first thread before the exec, the three others, the first one after.
            assert_eq!(recorded.profile.threads().count(), 5);
            assert!(recorded.lost() <= 5, "{:?}", recorded.profile.stats.samples_lost);
            let mut programs: BTreeMap<u32, BTreeSet<char>> = BTreeMap::new();
            recorded.profile.trie.for_each_stack(|frames, _| {
                let Some(Frame::Root(root)) = recorded.profile.trie.frame(frames[0]) else { return };
                let names = frames[1..].iter().flat_map(|frame| recorded.names.get(*frame));
                let letters = names.filter_map(|name| name.chars().next());
                programs.entry(root.group).or_default().extend(letters);
            });
            let programs: Vec<String> = programs.values().map(|letters| letters.iter().collect()).collect();
            assert_eq!(programs, ["f", "f", "f", "f", "g"]);
        }
    }
}

/// Captures of the old program are not attributed to the new one, and the thread that continues in it is
/// polled again.
#[test]
fn a_snapshot_during_an_exec_shows_the_new_program() {
    let mut changed = 0;
    for at_ns in (1..300).map(|step| step * 250) {
        let clock = FakeClock::default();
        let config = with_exec(Arch::X86_64, at_ns);
        let mut target = SimTarget::new(config, clock.clone());
        let snapshot = sampler::snapshot(&mut target, &clock, 8192, UnwindMethod::Auto).unwrap();
        for stack in &snapshot.stacks {
            assert_eq!(stack.ended, Ok(StackEnd::Root), "exec at {at_ns} ns: {stack:?}");
        }
        // The others exit with the old program: those that were seen in time are shown.
        assert!(!snapshot.stacks.is_empty(), "exec at {at_ns} ns");
        changed += usize::from(snapshot.stacks.len() == 1);
        assert_eq!(target.ledger().stopped(), 0);
    }
    assert!(changed > 10, "{changed} snapshots met the exec");
}

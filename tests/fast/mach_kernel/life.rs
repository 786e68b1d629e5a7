//! Launch, exec and exit of the process.

use std::collections::BTreeSet;

use stackprof::error::ErrorKind;
use stackprof::sources::ExitStatus;
use stackprof::sources::mach::MachTarget;

use super::recorded::{Replay, options, record, recorded, with};
use crate::seeds::rounds::seeds;
use crate::sim_kernel::*;

fn starting(process: SimProcess) -> SimProcess {
    process.startup(Startup::Stages { listed_ns: 300 * US, moved_ns: 900 * US, initialized_ns: 2 * MS })
}

#[test]
fn a_process_that_exits_ends_the_recording() {
    for (parent, seed) in [(1, 1), (ZOMBIE_PARENT, 2)] {
        let process = canned(500).ends(100 * MS, 0).with(|process| process.ppid = parent);
        let (_, recorded) = recorded(World::arm64(seed).process(process), &options(10_000));
        let stats = &recorded.profile.stats;
        assert_eq!(stats.exit_status, Some(ExitStatus::Unknown), "not a child");
        assert!((90..200).contains(&(stats.duration_ns / MS)) || stats.duration_ns == 0, "{stats:?}");
        assert!(recorded.profile.stats.samples > 50);
        recorded.check_exact();
    }
}

#[test]
fn the_process_may_exit_at_any_time() {
    for at_us in (50_000..54_000).step_by(37) {
        let process = canned(500).ends(at_us * US, 0);
        let (_, recorded) = recorded(World::arm64(at_us).process(process), &options(200));
        assert_eq!(recorded.profile.stats.exit_status, Some(ExitStatus::Unknown), "at {at_us} us");
    }
}

#[test]
fn after_exec_the_new_program_is_recorded() {
    for seed in seeds(0..6) {
        let _replay = Replay(seed);
        let next = SimProgram::new("/opt/sim/next")
            .image(SimImage::main("/opt/sim/next", &["main", "after", "deeper"]))
            .thread(SimThread::main().run(3 * MS, &["deeper", "after", "main"]));
        let process = canned(500).exec(50 * MS + seed * 137 * US, next);
        let (_, recorded) = recorded(World::arm64(seed).process(process), &options(200));
        recorded.check_exact();
        let has = |name: &str| {
            let of = |names: &Vec<String>| names.iter().any(|frame| frame == name);
            recorded.stacks.iter().filter(|((_, _, names), _)| of(names)).map(|(_, count)| count).sum::<u64>()
        };
        assert!(has("w1") > 20 && has("after") > 100, "{:#?}", recorded.stacks);
        assert_eq!(recorded.profile.stats.exit_status, None);
    }
}

#[test]
fn exec_may_happen_before_any_call() {
    let world = |happens: Option<u64>| {
        let next = busy(0).program;
        let world = World::arm64(5).process(canned(500).exec(u64::MAX, next));
        happens.into_iter().fold(world, |world, call| world.happens(call, Happening::Exec)).build()
    };
    let plain = world(None);
    record(&plain, &options(8)).unwrap();
    for call in 1..=plain.calls().len() as u64 {
        let kernel = world(Some(call));
        let recorded = match record(&kernel, &options(60)) {
            Ok(recorded) => recorded,
            Err(error) => panic!("exec before call {call}: {error}"),
        };
        let after = recorded.stacks.keys().any(|(_, _, names)| names.last().unwrap() == "work");
        assert!(after, "exec before call {call}: {:#?}", recorded.stacks);
        recorded.check_exact();
    }
}

#[test]
fn a_launched_command_runs_and_its_status_is_reported() {
    for (status, told) in
        [(0, ExitStatus::Code(0)), (3 << 8, ExitStatus::Code(3)), (9, ExitStatus::Signal(9))]
    {
        let kernel = World::arm64(6).launchable(starting(canned(0)).ends(80 * MS, status)).build();
        let target = MachTarget::launch(&kernel, &["canned".into(), "-v".into()]);
        let pid = 9000;
        assert_eq!(kernel.signals(pid, SIGCONT), 1, "continued once");
        let recorded = with(&kernel, target, &options(10_000)).unwrap();
        kernel.assert_clean();
        assert_eq!(recorded.profile.stats.exit_status, Some(told));
        assert_eq!(recorded.profile.process.command, "canned -v");
        assert!(!kernel.exists(pid), "waited for");
        let names: Vec<&str> = recorded.profile.images.images().iter().map(|i| i.path.as_str()).collect();
        assert!(names.iter().any(|path| path.ends_with("libzip.dylib")), "{names:?}");
        let whole = recorded.profile.stats.stacks_complete;
        assert!(whole > 50, "{:?}\n{:#?}", recorded.profile.stats, recorded.stacks);
        for (id, _, names) in recorded.stacks.keys().filter(|(_, complete, _)| *complete) {
            // The next test checks whether `start` of dyld is named.
            let same = |real: &[String]| real.len() == names.len() && real[1..] == names[1..];
            assert!(recorded.captures.keys().any(|(of, real)| of == id && same(real)), "{names:?}");
        }
    }
}

/// The dyld on disk hands over to the one in the shared cache only if their UUIDs are equal (dyld,
/// dyldMain.cpp, handleDyldInCache): one path and one UUID, but different offsets.
#[test]
fn the_dyld_of_the_shared_cache_is_named() {
    let kernel = World::arm64(6).launchable(starting(canned(0)).ends(80 * MS, 0)).build();
    let target = MachTarget::launch(&kernel, &["canned".into()]);
    let recorded = with(&kernel, target, &options(10_000)).unwrap();
    kernel.assert_clean();
    let of_main = |names: &[String]| names.contains(&"main".to_owned());
    let main = recorded.stacks.keys().filter(|(_, complete, names)| *complete && of_main(names));
    let roots: BTreeSet<&str> = main.map(|(_, _, names)| names[0].as_str()).collect();
    assert_eq!(roots, BTreeSet::from(["start"]));
}

#[test]
fn a_port_from_before_the_exec_is_replaced() {
    let process = starting(canned(0)).with(|process| process.respawns_ns = Some(150 * US));
    let kernel = World::arm64(6).launchable(process).build();
    let target = MachTarget::launch(&kernel, &["canned".into()]);
    let recorded = with(&kernel, target, &options(100)).unwrap();
    kernel.assert_clean();
    assert_eq!(recorded.profile.stats.exit_status, None);
    assert!(recorded.profile.stats.stacks_complete > 50, "{:?}", recorded.profile.stats);
}

#[test]
fn a_refused_launch_leaves_nothing_stopped() {
    for refusal in [PLATFORM, HARDENED] {
        let process = canned(0).with(|process| process.code_signing = refusal);
        let kernel = World::arm64(6).launchable(process).build();
        let error = MachTarget::launch(&kernel, &["canned".into()]).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Attach, "{error}");
        assert!(!kernel.stands(9000), "not left stopped");
        assert!(kernel.signals(9000, SIGCONT) <= 1);
        kernel.assert_clean();
    }
    let kernel = World::arm64(6).build();
    let error = MachTarget::launch(&kernel, &["nothing".into()]).err().unwrap();
    assert!(error.to_string().contains("`nothing`"), "{error}");
    kernel.assert_clean();
}

/// Code signing kills a program before its first instruction.
#[test]
fn an_early_exit_of_a_launched_command_is_reported() {
    let world = || World::arm64(6).launchable(starting(canned(0)));
    let plain = world().build();
    drop(MachTarget::launch(&plain, &["canned".into()]));
    let calls = plain.calls();
    let spawned = calls.iter().position(|method| *method == Method::SpawnSuspended).unwrap() as u64 + 1;
    let continued = calls.iter().rposition(|method| *method == Method::Kill).unwrap() as u64 + 1;
    for (wait_status, told) in [(9, "signal 9"), (6, "signal 6"), (3 << 8, "status 3")] {
        let mut refused = 0;
        for call in spawned + 1..=continued {
            let kernel = world().happens(call, Happening::Exit(wait_status)).build();
            let launched = MachTarget::launch(&kernel, &["canned".into()]);
            let what = format!("status {wait_status} before call {call}");
            let Err(error) = launched.map(drop) else { continue };
            refused += 1;
            let text = error.to_string();
            assert_eq!(error.kind(), ErrorKind::Attach, "{what}: {text}");
            assert!(text.starts_with("cannot profile `canned`: ") && text.contains(told), "{what}: {text}");
            assert_eq!(text.contains("codesign"), wait_status == 9, "{what}: {text}");
            assert!(!text.contains("stackprof --"), "{what}: {text}");
            assert!(!kernel.exists(9000), "{what}: waited for");
            kernel.assert_clean();
        }
        assert!(refused > 5, "{refused}");
    }
}

/// The process of a command that cannot be profiled has ended: its number is useless.
#[test]
fn the_next_step_for_a_launched_command_names_it() {
    for (answer, entitled) in [(None, false), (Some(Answer::Code(46)), true)] {
        let mut world = World::arm64(6).launchable(canned(0)).with(|world| world.entitled = entitled);
        if let Some(answer) = answer {
            world = world.answer(Which::Every(Method::TaskForPid, 1), answer);
        }
        let kernel = world.build();
        let text = MachTarget::launch(&kernel, &["canned".into()]).err().unwrap().to_string();
        assert!(text.contains("sudo stackprof -- COMMAND") && !text.contains("--pid"), "{text}");
        kernel.assert_clean();
    }
}

#[test]
fn a_launched_command_is_resumed_or_killed_on_any_failure() {
    let world = || World::arm64(6).launchable(starting(canned(0)).ends(30 * MS, 0));
    let kernel = world().build();
    drop(MachTarget::launch(&kernel, &["canned".into()]));
    let calls = kernel.calls();
    for (index, method) in calls.iter().enumerate() {
        for code in plausible_codes(*method) {
            let call = index as u64 + 1;
            let kernel = world().answer(Which::Call(call), Answer::Code(*code)).build();
            let launched = MachTarget::launch(&kernel, &["canned".into()]);
            let what = format!("call {call}, {}, code {code}", method.name());
            if launched.is_ok() {
                assert_eq!(kernel.signals(9000, SIGCONT), 1, "{what}");
            } else {
                // A refused signal cannot be sent again.
                assert!(!kernel.stands(9000) || *method == Method::Kill, "{what}: {}", kernel.report());
            }
            drop(launched);
            let report = kernel.report();
            assert!(report.is_clean() || *method == Method::Kill, "{what}: {report}");
        }
    }
}

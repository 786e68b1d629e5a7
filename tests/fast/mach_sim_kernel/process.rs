//! Processes, threads that run, and the clock.

use stackprof::sources::mach::kernel::{Errno, KernReturn, MachKernel, StateFlavor, TaskPort};

use super::client::*;
use crate::sim_kernel::*;

#[test]
fn the_state_of_another_processor_is_garbage_or_refused() {
    for (seed, refused) in [(1, true), (2, false)] {
        let kernel = World::x86_64(seed).process(busy(500)).build();
        let client = Client::new(&kernel);
        let ports = client.threads();
        let (mut words, mut count) = ([0; StateFlavor::MAX_COUNT], StateFlavor::ARM64.count);
        let got = kernel.thread_get_state(ports[0], StateFlavor::ARM64.flavor, &mut words, &mut count);
        assert_eq!(got.is_err(), refused);
        assert!(refused || (count < StateFlavor::ARM64.count && words[0] != 0));
    }
}

#[test]
fn task_for_pid_refuses_as_the_system_does() {
    let other = |change: fn(&mut SimProcess)| busy(500).with(change);
    let world = |process: SimProcess| World::arm64(1).process(process);
    let asked = |world: World| world.build().task_for_pid(500).map_err(KernReturn::code);
    assert!(asked(world(busy(500))).is_ok());
    for process in [
        other(|p| p.zombie = true),
        other(|p| p.uid = 0),
        other(|p| p.code_signing = PLATFORM),
        other(|p| p.code_signing = HARDENED),
    ] {
        assert_eq!(asked(world(process)), Err(5));
    }
    assert!(asked(world(other(|p| p.code_signing = HARDENED | GET_TASK_ALLOW))).is_ok());
    let root = |process| world(process).with(|world| world.euid = 0);
    assert!(asked(root(busy(500))).is_ok());
    assert_eq!(asked(root(other(|p| p.code_signing = PLATFORM))), Err(5), "root neither");
    assert_eq!(asked(world(busy(500)).with(|world| world.entitled = false)), Err(5));
    assert_eq!(asked(world(other(|p| p.without_task = true))), Ok(TaskPort(0)));
    assert_eq!(asked(World::arm64(1)), Err(5), "no such process");
    assert_eq!(World::arm64(1).build().task_for_pid(0).map_err(KernReturn::code), Err(5));
    for (answer, expected) in
        [(Answer::Code(14), Err(14)), (Answer::Code(2), Err(2)), (Answer::PortZero, Ok(TaskPort(0)))]
    {
        assert_eq!(asked(world(busy(500)).answer(Which::Call(1), answer)), expected);
    }
}

#[test]
fn bsd_calls_know_users_zombies_and_strangers() {
    let kernel = World::arm64(1)
        .process(busy(500))
        .process(busy(501).with(|p| p.uid = 0))
        .process(busy(502).with(|p| p.zombie = true))
        .build();
    let path = "/opt/sim/work".to_owned();
    assert_eq!(kernel.proc_pidpath(500), Ok(path.clone()));
    assert_eq!(kernel.proc_pidpath(501), Ok(path), "of any user");
    assert_eq!(kernel.proc_bsdinfo(501).unwrap_err(), Errno(EPERM));
    assert_eq!(kernel.kill(501, 0), Err(Errno(EPERM)));
    assert_eq!(kernel.proc_args(501), Err(Errno(EINVAL)));
    assert_eq!(kernel.proc_bsdinfo(502).unwrap().status, 5);
    assert_eq!(kernel.kill(502, 0), Ok(()), "a zombie answers");
    assert_eq!(kernel.proc_pidpath(502), Err(Errno(ESRCH)));
    assert_eq!(kernel.code_signing_flags(502), Err(Errno(ESRCH)));
    assert_eq!(kernel.proc_bsdinfo(499).unwrap_err(), Errno(ESRCH));
    assert_eq!(kernel.kill(499, 0), Err(Errno(ESRCH)));
    assert_eq!(kernel.wait_ended(500), Err(Errno(ECHILD)));
    assert_eq!(kernel.sysctl_i32("hw.ncpu"), Ok(8));
    assert_eq!(kernel.sysctl_i32("hw.unknown"), Err(Errno(ENOENT)));
    let args = kernel.proc_args(500).unwrap();
    assert!(args.starts_with(b"\x01\0\0\0/opt/sim/work\0") && args.ends_with(b"work\0PATH=/bin\0"));
}

#[test]
fn a_held_task_stands_and_one_that_runs_changes_with_every_call() {
    let kernel = World::arm64(5).process(busy(500)).build();
    let client = Client::new(&kernel);
    let ports = client.threads();
    let first = state(&kernel, ports[0]);
    assert_ne!(first[31], state(&kernel, ports[0])[31], "another stack pointer");
    let token = kernel.task_suspend2(client.task).unwrap();
    let held = state(&kernel, ports[0]);
    kernel.pass(MS);
    assert_eq!(held, state(&kernel, ports[0]));
    let cpu = kernel.truth();
    kernel.pass(MS);
    assert_eq!(cpu, kernel.truth(), "no CPU time is used");
    let back = u64_at(&kernel, client.task, held[29] + 8);
    assert_eq!(back, u64_at(&kernel, client.task, held[29] + 8));
    assert_eq!(kernel.thread_basic_info(ports[0], 10).unwrap().run_state, 3, "waits, whatever it did");
    kernel.task_resume2(token).unwrap();
    assert_ne!(held, state(&kernel, ports[0]));
    assert_ne!(cpu, kernel.truth());
    client.give_back(&ports);
    client.done();
    kernel.assert_clean();
}

#[test]
fn exec_is_a_new_task_and_exit_a_zombie_or_nothing() {
    let next = busy(0).program;
    let kernel = World::arm64(4).process(canned(500).exec(5 * MS, next).ends(9 * MS, 0)).build();
    let client = Client::new(&kernel);
    kernel.pass(5 * MS);
    assert_eq!(kernel.task_for_pid(500).map_err(KernReturn::code), Err(5), "in exec");
    kernel.pass(MS);
    assert_eq!(code(kernel.task_threads(client.task, &mut Vec::new())), INVALID_DEST);
    let again = kernel.task_for_pid(500).unwrap();
    assert_ne!(again, client.task);
    assert_eq!(kernel.proc_pidpath(500).unwrap(), "/opt/sim/work");
    kernel.pass(10 * MS);
    assert!(!kernel.exists(500));
    assert_eq!(kernel.kill(500, 0), Err(Errno(ESRCH)));
    kernel.port_deallocate(again.0).unwrap();
    client.done();
    kernel.assert_clean();
}

#[test]
fn what_is_spawned_stands_until_it_is_continued_once() {
    let kernel = World::arm64(4)
        .launchable(busy(0).ends(3 * MS, 7 << 8).with(|p| p.respawns_ns = Some(100 * US)))
        .build();
    assert_eq!(kernel.spawn_suspended(&["nothing".into()]), Err(Errno(ENOENT)));
    let pid = kernel.spawn_suspended(&["work".into(), "-n".into()]).unwrap();
    let task = kernel.task_for_pid(pid).unwrap();
    kernel.pass(SECOND);
    assert!(kernel.stands(pid) && kernel.proc_bsdinfo(pid).unwrap().status == 4);
    assert_eq!(kernel.report().never_continued, [pid]);
    kernel.kill(pid, SIGCONT).unwrap();
    assert_eq!(kernel.signals(pid, SIGCONT), 1);
    assert_eq!(kernel.wait_ended(pid), Ok(None));
    kernel.pass(MS);
    assert_eq!(code(kernel.task_dyld_info(task, 5)), INVALID_DEST, "the exec made another task");
    assert!(kernel.task_for_pid(pid).is_ok());
    kernel.pass(10 * MS);
    assert_eq!(kernel.wait_ended(pid), Ok(Some(7 << 8)));
    assert_eq!(kernel.wait_ended(pid), Err(Errno(ECHILD)));
}

#[test]
fn cpu_times_are_exact_lag_or_are_not_told() {
    let told = |times: CpuTimes| {
        let thread = SimThread::main().run(SECOND, &["work", "main"]);
        let mut process = busy(500).cpu_times(times);
        process.program.threads = vec![thread];
        let kernel = World::arm64(4).process(process).build();
        let client = Client::new(&kernel);
        let ports = client.threads();
        kernel.pass(25 * MS);
        let cpu = || kernel.thread_basic_info(ports[0], 10).map(|info| (info.user_ns + info.system_ns) / MS);
        let before = cpu().map_err(KernReturn::code);
        let token = kernel.task_suspend2(client.task).unwrap();
        kernel.task_resume2(token).unwrap();
        (before, cpu().map_err(KernReturn::code))
    };
    assert_eq!(told(CpuTimes::Exact), (Ok(25), Ok(25)));
    assert_eq!(told(CpuTimes::Lagging), (Ok(20), Ok(25)));
    assert_eq!(told(CpuTimes::Zero), (Ok(0), Ok(0)));
    assert_eq!(told(CpuTimes::Refused), (Err(46), Err(46)));
}

#[test]
fn the_clock_counts_ticks_and_every_call_costs() {
    let kernel = World::arm64(4).process(busy(500)).with_no_overshoot().build();
    assert_eq!(kernel.timebase(), (125, 3));
    let ticks = kernel.absolute_time();
    kernel.wait_until(ticks + 24_000).unwrap();
    assert_eq!(kernel.absolute_time(), ticks + 24_000, "1 ms");
    let before = kernel.now_ns();
    kernel.wait_until(ticks).unwrap();
    kernel.task_for_pid(500).unwrap();
    assert!(kernel.now_ns() - before >= ROUND_TRIP);
    let kernel = World::arm64(4).with(|world| world.interrupt_waits = 1).build();
    let ticks = kernel.absolute_time();
    assert_eq!(code(kernel.wait_until(ticks + 24_000)), 14);
    assert!(kernel.absolute_time() < ticks + 24_000);
}

#[test]
fn planned_failures_take_nothing_that_they_should_not() {
    let kernel = World::arm64(1).process(busy(500)).build();
    let task = kernel.task_for_pid(500).unwrap();
    kernel.plan(Which::Nth(Method::TaskSuspend2, 1), Answer::Code(6));
    assert_eq!(code(kernel.task_suspend2(task)), 6);
    assert!(!kernel.stands(500));
    let token = kernel.task_suspend2(task).unwrap();
    kernel.plan(Which::Nth(Method::TaskResume2, 1), Answer::Code(5));
    assert_eq!(code(kernel.task_resume2(token)), 5);
    assert!(!kernel.stands(500), "a token is consumed, success or not");
    kernel.plan(Which::Every(Method::PortDeallocate, 1), Answer::Code(15));
    assert_eq!(code(kernel.port_deallocate(task.0)), 15);
    kernel.assert_clean();
    for method in Method::ALL {
        let codes = plausible_codes(*method);
        assert!(!codes.contains(&0), "{} would succeed", method.name());
    }
}

#[test]
fn the_same_world_answers_the_same() {
    let run = || {
        let kernel = World::arm64(9).process(seeded(500, 9, 200)).build();
        let client = Client::new(&kernel);
        let mut seen = Vec::new();
        for _ in 0..100 {
            kernel.pass(2 * MS);
            let ports = client.threads();
            seen.extend(ports.iter().map(|port| state(&kernel, *port)));
            client.give_back(&ports);
        }
        client.done();
        kernel.assert_clean();
        (seen, kernel.truth(), kernel.listed())
    };
    let first = run();
    assert!(first.0.len() > 500 && first.2.iter().any(|path| path.contains("plugin")));
    assert!(first == run());
}

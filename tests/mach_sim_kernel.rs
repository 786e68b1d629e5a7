//! The simulated kernel itself: each rule that it is strict about is seen to refuse.
#![allow(clippy::unwrap_used, missing_docs)]

#[path = "support/sim_kernel/mod.rs"]
mod sim_kernel;

use std::collections::BTreeMap;

use sim_kernel::*;
use stackprof::target::Arch;
use stackprof::target::mach::kernel::{
    Errno, KernReturn, MachKernel, OutOfLine, StateFlavor, SuspensionToken, TaskPort, ThreadPort,
};

fn u64_at(kernel: &dyn MachKernel, task: TaskPort, address: u64) -> u64 {
    let mut bytes = [0; 8];
    kernel.vm_read_overwrite(task, address, &mut bytes).unwrap();
    u64::from_le_bytes(bytes)
}

fn state(kernel: &dyn MachKernel, thread: ThreadPort) -> [u64; 34] {
    let flavor = if kernel.arch() == Arch::Aarch64 { StateFlavor::ARM64 } else { StateFlavor::X86_64 };
    let (mut words, mut count) = ([0; StateFlavor::MAX_COUNT], flavor.count);
    kernel.thread_get_state(thread, flavor.flavor, &mut words, &mut count).unwrap();
    assert_eq!(count, flavor.count);
    let mut out = [0; 34];
    for (out, pair) in out.iter_mut().zip(words.chunks(2)) {
        *out = u64::from(pair[0]) | u64::from(pair[1]) << 32;
    }
    out
}

/// Images as dyld lists them: path and address of the header.
fn images(kernel: &dyn MachKernel, task: TaskPort) -> BTreeMap<u64, String> {
    let info = kernel.task_dyld_info(task, 5).unwrap().all_image_info_addr;
    let array = u64_at(kernel, task, info + 8);
    let count = u64_at(kernel, task, info) >> 32;
    let mut out = BTreeMap::new();
    for index in 0..count {
        let base = u64_at(kernel, task, array + 24 * index);
        let mut path = u64_at(kernel, task, array + 24 * index + 8);
        let mut text = Vec::new();
        loop {
            let mut byte = [0];
            kernel.vm_read_overwrite(task, path, &mut byte).unwrap();
            if byte[0] == 0 {
                break;
            }
            text.push(byte[0]);
            path += 1;
        }
        assert_eq!(u64_at(kernel, task, base) as u32, 0xfeed_facf);
        out.insert(base, String::from_utf8(text).unwrap());
    }
    out
}

#[test]
fn stacks_are_real_frame_chains() {
    for (arch, pac) in [(Arch::Aarch64, false), (Arch::Aarch64, true), (Arch::X86_64, false)] {
        let kernel = World::new(arch, 3).process(canned(500).with(|process| process.pac = pac)).build();
        let task = kernel.task_for_pid(500).unwrap();
        let images = images(&kernel, task);
        assert_eq!(images.len(), 6, "{images:?}");
        let mut ports = Vec::new();
        let array = kernel.task_threads(task, &mut ports).unwrap();
        assert_eq!(ports.len(), 4);
        for round in 0..200 {
            kernel.pass(sim_kernel::MS / 3);
            let token = kernel.task_suspend2(task).unwrap();
            let before = kernel.captures();
            let thread = ports[round % 4];
            let registers = state(&kernel, thread);
            let after = kernel.captures();
            let stack = after.iter().find(|(stack, count)| before.get(*stack) != Some(count)).unwrap().0;
            let strip = |word: u64| word & ((1 << 47) - 1);
            let (mut fp, mut found) = match arch {
                Arch::Aarch64 => (registers[29], vec![registers[32]]),
                Arch::X86_64 => (registers[6], vec![registers[16]]),
            };
            let leafs = ["__psynch_cvwait", "mach_msg2_trap", "__semwait_signal", "strlen_leaf"];
            if leafs.contains(&stack.1.last().unwrap().as_str()) {
                found.push(match arch {
                    Arch::Aarch64 => strip(registers[30]),
                    Arch::X86_64 => u64_at(&kernel, task, registers[7]),
                });
            }
            while fp != 0 {
                assert!(fp.is_multiple_of(16));
                let (next, back) = (u64_at(&kernel, task, fp), u64_at(&kernel, task, fp + 8));
                if strip(back) != 0 {
                    found.push(strip(back));
                }
                assert!(next == 0 || next > fp);
                fp = next;
            }
            kernel.task_resume2(token).unwrap();
            assert_eq!(found.len(), stack.1.len(), "{arch:?} {found:x?} {stack:?}");
            for (index, (address, name)) in found.iter().zip(stack.1.iter().rev()).enumerate() {
                let lookup = address - u64::from(index > 0);
                let start = kernel.address(name);
                assert!((start..start + 1024).contains(&lookup), "{name} {address:x}");
            }
        }
        for port in ports {
            kernel.port_deallocate(port.0).unwrap();
        }
        kernel.vm_deallocate(array).unwrap();
        kernel.port_deallocate(task.0).unwrap();
        kernel.assert_clean();
    }
}

#[test]
fn a_world_is_clean_only_when_everything_was_given_back() {
    let kernel = World::arm64(1).process(busy(500)).build();
    let task = kernel.task_for_pid(500).unwrap();
    assert!(!kernel.report().is_clean());
    kernel.port_deallocate(task.0).unwrap();
    kernel.assert_clean();
}

/// A client that has the task of process 500 and lists its threads.
struct Client<'k> {
    kernel: &'k SimKernel,
    task: TaskPort,
}

impl<'k> Client<'k> {
    fn new(kernel: &'k SimKernel) -> Client<'k> {
        Client { kernel, task: kernel.task_for_pid(500).unwrap() }
    }

    fn threads(&self) -> Vec<ThreadPort> {
        let mut ports = Vec::new();
        let array = self.kernel.task_threads(self.task, &mut ports).unwrap();
        self.kernel.vm_deallocate(array).unwrap();
        ports
    }

    fn give_back(&self, ports: &[ThreadPort]) {
        ports.iter().for_each(|port| self.kernel.port_deallocate(port.0).unwrap());
    }

    fn done(self) {
        self.kernel.port_deallocate(self.task.0).unwrap();
    }
}

fn code<T: std::fmt::Debug>(result: Result<T, KernReturn>) -> i32 {
    result.unwrap_err().code()
}

fn violations(kernel: &SimKernel) -> Vec<String> {
    kernel.report().violations.into_iter().map(|violation| violation.what).collect()
}

#[test]
fn names_are_reused_at_once_and_kept_while_a_reference_is() {
    let process = canned(500).thread(SimThread::pthread("late").during(MS, None).run(MS, &["w5"]));
    let kernel = World::arm64(1).process(process).build();
    let client = Client::new(&kernel);
    let (first, again) = (client.threads(), client.threads());
    assert_eq!(first, again, "the same names for the same threads");
    client.give_back(&first);
    assert_eq!(client.threads(), first, "one reference was left");
    client.give_back(&first);
    client.give_back(&first);
    kernel.pass(2 * MS);
    let after = client.threads();
    let id = |port| kernel.thread_identifier_info(port, 6).unwrap().thread_id;
    let moved = after.iter().filter(|port| first.contains(port)).count();
    assert!(moved >= 4, "names come again");
    let ids: Vec<u64> = after.iter().map(|port| id(*port)).collect();
    assert!(ids.is_sorted(), "creation order: {ids:?}");
    assert_ne!(after[..4], first[..], "for other threads");
    client.give_back(&after);
    client.done();
    kernel.assert_clean();
}

#[test]
fn a_name_that_was_given_back_is_a_violation() {
    let kernel = World::arm64(1).process(busy(500)).build();
    assert_eq!(code(kernel.port_deallocate(0)), 15);
    assert_eq!(code(kernel.port_deallocate(0x903)), 15);
    assert_eq!(code(kernel.task_dyld_info(TaskPort(0x903), 5)), INVALID_DEST);
    assert_eq!(code(kernel.thread_basic_info(ThreadPort(0x903), 10)), INVALID_DEST);
    assert_eq!(violations(&kernel).len(), 4);
    let task = kernel.task_for_pid(500).unwrap();
    assert_eq!(code(kernel.thread_basic_info(ThreadPort(task.0), 10)), 4, "a name of another kind");
    assert_eq!(code(kernel.task_resume2(SuspensionToken(task.0))), INVALID_DEST);
    assert_eq!(violations(&kernel).len(), 6);
    kernel.port_deallocate(task.0).unwrap();
    assert!(!kernel.report().is_clean());
}

#[test]
fn a_dead_name_keeps_its_reference_and_is_a_violation_once_known() {
    let kernel = World::arm64(1).process(canned(500)).build();
    let client = Client::new(&kernel);
    let ports = client.threads();
    kernel.happen(Happening::ThreadEnds(1));
    kernel.pass(MS);
    assert_eq!(code(kernel.thread_basic_info(ports[1], 10)), INVALID_DEST);
    assert_eq!(violations(&kernel), Vec::<String>::new(), "nobody could know");
    assert_eq!(code(kernel.thread_extended_info(ports[1], 28)), INVALID_DEST);
    assert_eq!(violations(&kernel).len(), 1, "now it was known");
    assert_eq!(client.threads().len(), 3);
    client.give_back(&ports);
    assert_eq!(kernel.report().names.len(), 1 + 3, "the second list, and the task");
}

#[test]
fn a_dying_thread_says_37_then_4_then_its_name_is_dead() {
    let mut seen = Vec::new();
    for seed in 0..40 {
        let kernel = World::arm64(seed).process(canned(500)).build();
        let client = Client::new(&kernel);
        let ports = client.threads();
        kernel.happen(Happening::ThreadEnds(0));
        let mut codes: Vec<i32> = (0..40).map(|_| code(kernel.thread_basic_info(ports[0], 10))).collect();
        codes.dedup();
        let place = |code: &i32| [37, 4, INVALID_DEST].iter().position(|known| known == code).unwrap();
        assert!(codes.is_sorted_by_key(place) && codes.last() == Some(&INVALID_DEST), "{seed}: {codes:?}");
        seen.extend(codes);
    }
    assert!([37, 4].iter().all(|code| seen.contains(code)));
}

#[test]
fn references_are_pegged_at_the_most_there_can_be() {
    let kernel = World::arm64(1).process(busy(500)).build();
    let task = kernel.task_for_pid(500).unwrap();
    for _ in 1..UREFS_PEGGED {
        kernel.task_for_pid(500).unwrap();
    }
    for _ in 0..UREFS_PEGGED {
        kernel.port_deallocate(task.0).unwrap();
    }
    assert_eq!(kernel.report().names.len(), 1, "never freed: a leak");
}

#[test]
fn arrays_are_given_back_exactly() {
    let kernel = World::arm64(1).process(canned(500)).build();
    let task = kernel.task_for_pid(500).unwrap();
    let mut ports = Vec::new();
    let array = kernel.task_threads(task, &mut ports).unwrap();
    assert_eq!(array.size, 16);
    let wrong = OutOfLine { address: array.address, size: 8 };
    assert_eq!(code(kernel.vm_deallocate(wrong)), 1);
    let second = kernel.task_threads(task, &mut ports).unwrap();
    assert_ne!(second.address, array.address, "a fresh one each time");
    let (address, size) = (array.address, array.size);
    kernel.vm_deallocate(array).unwrap();
    assert_eq!(code(kernel.vm_deallocate(OutOfLine { address, size })), 1, "twice");
    assert_eq!(kernel.report().arrays, [(second.address, 16)]);
    assert_eq!(violations(&kernel).len(), 2);
    kernel.plan(Which::Nth(Method::TaskThreads, 3), Answer::NoThreads);
    let none = kernel.task_threads(task, &mut Vec::new()).unwrap();
    assert_eq!((none.address, none.size), (0, 0));
}

#[test]
fn counts_that_are_too_small_are_refused() {
    for arch in [Arch::Aarch64, Arch::X86_64] {
        let kernel = World::new(arch, 1).process(canned(500)).build();
        let client = Client::new(&kernel);
        let ports = client.threads();
        assert_eq!(code(kernel.task_dyld_info(client.task, 4)), 4);
        assert_eq!(code(kernel.thread_basic_info(ports[0], 9)), 4);
        assert_eq!(code(kernel.thread_identifier_info(ports[0], 5)), 4);
        assert_eq!(code(kernel.thread_extended_info(ports[0], 27)), 4);
        assert_eq!(code(kernel.vm_region_recurse(client.task, 0, 0, 18)), 4);
        assert!(kernel.thread_basic_info(ports[0], 11).is_ok());
        let mut words = [0; StateFlavor::MAX_COUNT];
        let ours = if arch == Arch::Aarch64 { StateFlavor::ARM64 } else { StateFlavor::X86_64 };
        for (given, expected) in [(ours.count - 1, Err(4)), (ours.count, Ok(())), (999, Ok(()))] {
            let mut count = given;
            let got = kernel.thread_get_state(ports[0], ours.flavor, &mut words, &mut count);
            assert_eq!(got.map_err(KernReturn::code), expected);
            assert_eq!(count, if expected.is_ok() { ours.count } else { given });
        }
        client.give_back(&ports);
        client.done();
        kernel.assert_clean();
    }
}

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
    assert_eq!(kernel.thread_basic_info(ports[0], 10).unwrap().run_state, 2, "stopped, whatever it did");
    kernel.task_resume2(token).unwrap();
    assert_ne!(held, state(&kernel, ports[0]));
    assert_ne!(cpu, kernel.truth());
    client.give_back(&ports);
    client.done();
    kernel.assert_clean();
}

#[test]
fn suspensions_do_not_overlap_and_nothing_else_is_done_in_them() {
    let kernel = World::arm64(1).process(busy(500)).build();
    let client = Client::new(&kernel);
    assert_eq!(code(kernel.task_resume(client.task)), 5, "not suspended");
    assert_eq!(violations(&kernel).len(), 1);
    let token = kernel.task_suspend2(client.task).unwrap();
    kernel.proc_pidpath(500).unwrap();
    kernel.task_suspend(client.task).unwrap();
    assert_eq!(violations(&kernel).len(), 3, "{}", kernel.report());
    kernel.task_resume(client.task).unwrap();
    assert_eq!(kernel.report().held, [500]);
    assert!(kernel.stands(500));
    kernel.task_resume2(token).unwrap();
    assert!(!kernel.stands(500));
    assert_eq!(code(kernel.task_resume(client.task)), 5);
}

#[test]
fn the_death_of_the_client_ends_its_suspensions() {
    for legacy in [true, false] {
        let kernel = World::arm64(1).process(busy(500)).build();
        let client = Client::new(&kernel);
        let _token = if legacy {
            kernel.task_suspend(client.task).map(|()| None).unwrap()
        } else {
            Some(kernel.task_suspend2(client.task).unwrap())
        };
        assert!(kernel.stands(500));
        kernel.kill_profiler();
        assert!(!kernel.stands(500) && kernel.report().is_clean());
        assert!(kernel.task_for_pid(500).is_err(), "the dead call nothing");
    }
    let kernel = World::arm64(1).process(busy(500)).happens(2, Happening::KillProfiler).build();
    let called = std::cell::Cell::new(0);
    let endless = || -> () {
        loop {
            kernel.task_for_pid(500).unwrap();
            called.set(called.get() + 1);
        }
    };
    assert!(kernel.run_killed(endless).is_none());
    assert_eq!(called.get(), 1);
}

#[test]
fn reads_are_all_or_nothing() {
    for (arch, small) in [(Arch::Aarch64, 32 << 10), (Arch::X86_64, 16 << 10)] {
        let kernel = World::new(arch, 4).process(canned(500)).build();
        let client = Client::new(&kernel);
        let ports = client.threads();
        let handle = kernel.thread_identifier_info(ports[1], 6).unwrap().thread_handle;
        let (high, low) =
            (u64_at(&kernel, client.task, handle - 48), u64_at(&kernel, client.task, handle - 40));
        assert!((512 << 10..544 << 10).contains(&(high - low)));
        let read = |at: u64, size: usize| {
            let mut into = vec![0x77; size];
            let got = kernel.vm_read_overwrite(client.task, at, &mut into).map_err(KernReturn::code);
            assert!(got.is_ok() || into.iter().all(|byte| *byte == 0x77), "nothing is written");
            got
        };
        assert_eq!(read(low, small), Ok(()));
        assert_eq!(read(low - 8, 16), Err(1), "the guard, in a small read");
        assert_eq!(read(low - 8, small + 1), Err(2), "and in a large one");
        assert_eq!(read(0x10, 8), Err(1));
        assert_eq!(read(0x10, small + 1), Err(1), "a hole is 1 in both");
        assert_eq!(read(0x10, 0), Ok(()));
        assert_eq!(read(u64::MAX - 3, 8), Err(4));
        client.give_back(&ports);
        client.done();
        kernel.assert_clean();
    }
}

#[test]
fn regions_are_the_next_above_and_submaps_are_shown_at_depth_0() {
    let kernel = World::arm64(4).process(canned(500).with(|p| p.submap = true)).build();
    let client = Client::new(&kernel);
    let region = |at, depth| kernel.vm_region_recurse(client.task, at, depth, 19);
    let first = region(0, 1024).unwrap();
    assert!(first.address > 0 && first.size > 0);
    assert_eq!(code(region(u64::MAX - 1, 1024)), 1);
    let cached = kernel.address("sort");
    let (submap, inside) = (region(cached, 0).unwrap(), region(cached, 1).unwrap());
    assert!(submap.is_submap && !inside.is_submap);
    assert!(submap.size > inside.size && inside.address <= cached && inside.protection == 5);
    // Every region once, in order, the guards of stacks below them.
    let (mut at, mut regions) = (0, Vec::new());
    while let Ok(found) = region(at, 1024) {
        assert!(found.address >= at);
        at = found.address + found.size;
        regions.push(found);
    }
    let stacks: Vec<i32> = regions.iter().filter(|r| r.user_tag == 30).map(|r| r.protection).collect();
    assert_eq!(stacks.iter().filter(|p| **p == 0).count(), 4, "{stacks:?}");
    assert_eq!(stacks.len(), 4 * 2 + 1, "that of the main thread in two");
}

#[test]
fn dyld_changes_its_list_in_steps_that_can_be_held() {
    let image = SimImage::dylib("/opt/sim/late.dylib", &["late"]).during(1_000 * SECOND, None);
    let mut arrays = Vec::new();
    for steps in 0..=6 {
        let kernel = World::arm64(4).process(canned(500).image(image.clone())).build();
        let client = Client::new(&kernel);
        let info = kernel.task_dyld_info(client.task, 5).unwrap().all_image_info_addr;
        let old = u64_at(&kernel, client.task, info + 8);
        kernel.plan_happening(kernel.calls().len() as u64 + 1, Happening::Tear { steps, hold: 4 });
        let array = u64_at(&kernel, client.task, info + 8);
        let count = u64_at(&kernel, client.task, info) >> 32;
        let timestamp = u64_at(&kernel, client.task, info + 184);
        let freed = kernel.vm_read_overwrite(client.task, old, &mut [0; 8]).is_err();
        arrays.push((array == old, array == 0, count, freed));
        assert_eq!(u64_at(&kernel, client.task, info) >> 32, 7, "the rest came to pass");
        assert_eq!(timestamp != u64_at(&kernel, client.task, info + 184), steps < 4);
    }
    // Mapped; NULL; count; timestamp; pointer; the old array freed.
    assert_eq!(arrays[0], (true, false, 6, false));
    assert_eq!(arrays[1], (true, false, 6, false));
    assert_eq!(arrays[2], (false, true, 6, false));
    assert_eq!(arrays[3], (false, true, 7, false));
    assert_eq!(arrays[4], (false, true, 7, false));
    assert_eq!(arrays[5], (false, false, 7, false));
    assert_eq!(arrays[6], (false, false, 7, true));
}

#[test]
fn the_structure_moves_while_a_program_starts() {
    let startup = Startup::Stages { listed_ns: MS, moved_ns: 2 * MS, initialized_ns: 3 * MS };
    let kernel = World::arm64(4).process(canned(500).startup(startup)).build();
    let client = Client::new(&kernel);
    let place = || kernel.task_dyld_info(client.task, 5).unwrap().all_image_info_addr;
    let old = place();
    assert_eq!([u64_at(&kernel, client.task, old + 8), u64_at(&kernel, client.task, old + 184)], [0, 0]);
    kernel.pass(MS);
    assert_eq!(u64_at(&kernel, client.task, old) >> 32, 1, "the program alone");
    kernel.pass(MS);
    let new = place();
    assert_ne!(old, new);
    assert_eq!(u64_at(&kernel, client.task, old) >> 32, 1, "the old one is stale");
    assert_eq!(images(&kernel, client.task).len(), 6);
    assert_eq!(u64_at(&kernel, client.task, new + 24) >> 8 & 0xff, 0);
    kernel.pass(MS);
    assert_eq!(u64_at(&kernel, client.task, new + 24) >> 8 & 0xff, 1);
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
fn the_clients_own_cache_is_what_the_world_says() {
    let build = |own| World::arm64(4).process(canned(500)).own_cache(own).build();
    let same = build(OwnCache::Same);
    let (at, (uuid, start, size)) = (same.address("sort"), same.own_shared_cache_identity().unwrap());
    assert!((start..start + size).contains(&at));
    let client = Client::new(&same);
    let mut theirs = [0; 64];
    same.vm_read_overwrite(client.task, at, &mut theirs).unwrap();
    assert_eq!(same.own_shared_cache(at, 64).unwrap().bytes(), theirs);
    assert!(same.own_shared_cache(start, size as usize).is_none(), "it has holes");
    let other = build(OwnCache::OtherUuid);
    assert_ne!(other.own_shared_cache_identity().unwrap().0, uuid);
    assert_ne!(other.own_shared_cache(at, 64).unwrap().bytes(), theirs, "other code");
    assert_ne!(build(OwnCache::OtherSlide).own_shared_cache_identity().unwrap().1, start);
    let absent = build(OwnCache::Absent);
    assert!(absent.own_shared_cache_identity().is_none() && absent.own_shared_cache(at, 64).is_none());
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

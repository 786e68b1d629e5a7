//! Names, references, arrays, counts and suspensions.

use stackprof::arch::Arch;
use stackprof::sources::mach::kernel::{
    KernReturn, MachKernel, OutOfLine, StateFlavor, SuspensionToken, TaskPort, ThreadPort,
};

use super::client::*;
use crate::seeds::rounds::{as_usual, seeds};
use crate::sim_kernel::*;

#[test]
fn a_world_is_clean_only_when_everything_was_given_back() {
    let kernel = World::arm64(1).process(busy(500)).build();
    let task = kernel.task_for_pid(500).unwrap();
    assert!(!kernel.report().is_clean());
    kernel.port_deallocate(task.0).unwrap();
    kernel.assert_clean();
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
    assert!(kernel.report().repeats.is_empty(), "nobody could know");
    assert_eq!(code(kernel.thread_extended_info(ports[1], 28)), INVALID_DEST);
    assert_eq!(kernel.report().repeats.len(), 1, "now it was known");
    assert_eq!(client.threads().len(), 3);
    client.give_back(&ports);
    assert_eq!(kernel.report().names.len(), 1 + 3, "the second list, and the task");
}

#[test]
fn a_dying_thread_says_37_then_4_then_its_name_is_dead() {
    let mut seen = Vec::new();
    for seed in seeds(0..40) {
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
    assert!(!as_usual() || [37, 4].iter().all(|code| seen.contains(code)));
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

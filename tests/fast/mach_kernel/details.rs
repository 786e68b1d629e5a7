//! Facts that the system refuses: only the corresponding detail is lost.

use std::collections::BTreeSet;

use super::recorded::{Recorded, idle, options, recorded};
use crate::sim_kernel::*;

fn always(method: Method, code: i32) -> Recorded {
    let world = World::arm64(5).process(canned(500));
    recorded(world.answer(Which::Every(method, 1), Answer::Code(code)), &options(300)).1
}

fn name_of(recorded: &Recorded, index: usize) -> &str {
    &recorded.profile.threads().nth(index).unwrap().name
}

#[test]
fn threads_are_named_by_name_queue_or_position() {
    let process = canned(500).thread(SimThread::pthread("").queue("com.example.io").run(MS, &["z5", "w5"]));
    let (_, recorded) = recorded(World::arm64(5).process(process), &options(300));
    let names: Vec<&str> = (0..5).map(|index| name_of(&recorded, index)).collect();
    assert_eq!(names, ["main thread", "burst", "waiter", "deep", "com.example.io"]);
}

#[test]
fn queues_are_named_with_any_shared_cache() {
    for own in [OwnCache::Absent, OwnCache::OtherUuid, OwnCache::OtherSlide, OwnCache::Same] {
        let process =
            canned(500).thread(SimThread::pthread("").queue("com.example.io").run(MS, &["z5", "w5"]));
        let (_, recorded) = recorded(World::arm64(5).process(process).own_cache(own), &options(300));
        assert_eq!(name_of(&recorded, 4), "com.example.io", "{own:?}");
    }
}

/// Stacks shown among those that ran. A thread that begins to wait in the microseconds between the last poll
/// and the stop is occasionally shown where it waits.
fn ran(recorded: &Recorded) -> BTreeSet<(u64, Vec<String>)> {
    recorded.check_ran("");
    recorded.shown().into_iter().filter(|stack| recorded.truth.contains_key(stack)).collect()
}

#[test]
fn without_names_stacks_are_the_same() {
    let (_, plain) = recorded(World::arm64(5).process(canned(500)), &options(300));
    let nameless = always(Method::ThreadExtendedInfo, 46);
    assert_eq!(name_of(&nameless, 2), "com.example.waiter", "its queue");
    assert_eq!(name_of(&nameless, 1), "");
    assert_eq!(ran(&plain), ran(&nameless));
}

#[test]
fn without_identifiers_threads_are_distinguished_by_port_name() {
    let recorded = always(Method::ThreadIdentifierInfo, 46);
    assert_eq!(recorded.profile.threads().count(), 4);
    assert!(recorded.profile.stats.stacks_complete > 100, "{:?}", recorded.profile.stats);
}

#[test]
fn without_regions_paths_arguments_or_flags_stacks_are_the_same() {
    let (_, plain) = recorded(World::arm64(5).process(canned(500)), &options(300));
    for (method, code) in [
        (Method::VmRegionRecurse, 1),
        (Method::ProcPidpath, ENOENT),
        (Method::ProcRegionfilename, EPERM),
        (Method::ProcArgs, EINVAL),
        (Method::CodeSigningFlags, EPERM),
        (Method::SysctlI32, ENOENT),
        (Method::ProcBsdinfo, EPERM),
        (Method::PidForTask, 5),
    ] {
        let refused = always(method, code);
        refused.check_exact();
        assert_eq!(ran(&plain), ran(&refused), "{}", method.name());
    }
    for method in [Method::ProcPidpath, Method::ProcArgs, Method::ThreadExtendedInfo] {
        let world = World::arm64(5).process(canned(500));
        let (_, empty) = recorded(world.answer(Which::Every(method, 1), Answer::Empty), &options(300));
        assert_eq!(ran(&plain), ran(&empty), "{}", method.name());
    }
}

#[test]
fn cpu_times_that_are_always_zero_lose_no_stacks() {
    let process = canned(500).cpu_times(CpuTimes::Zero);
    let (_, recorded) = recorded(World::arm64(5).process(process), &options(2_000));
    recorded.check_exact();
    recorded.check_shares(0.08);
    recorded.check_ran("CPU times are zero");
}

#[test]
fn without_cpu_times_waiting_threads_are_sampled() {
    let process = canned(500).cpu_times(CpuTimes::Refused);
    let (_, recorded) = recorded(World::arm64(5).process(process), &options(500));
    recorded.check_exact();
    for (id, names) in recorded.truth.keys() {
        assert!(recorded.shown().contains(&(*id, names.clone())), "{names:?}");
    }
}

#[test]
fn job_control_pauses_samples_but_not_the_recording() {
    let kernel = World::arm64(5).process(canned(500)).happens(400, Happening::Stop).build();
    let recorded = super::recorded::record(&kernel, &idle(500)).unwrap();
    let stopped = recorded.profile.stats.samples_lost.get("stopped by job control").copied().unwrap_or(0);
    assert!(stopped > 300, "{:?}", recorded.profile.stats);
}

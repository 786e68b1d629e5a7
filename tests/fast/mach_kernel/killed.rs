//! SIGKILL of the profiler at every call: the target continues.

use stackprof::sources::mach::MachTarget;

use super::recorded::{options, record_unclean, with};
use crate::sim_kernel::*;

#[test]
fn a_profiler_that_is_killed_leaves_nothing_suspended() {
    let world = || World::arm64(7).process(canned(500));
    let kernel = world().build();
    record_unclean(&kernel, &options(10)).unwrap();
    kernel.assert_clean();
    let calls = kernel.calls();
    assert!(kernel.count(Method::TaskResume2) > 3);
    let mut killed_in_a_hold = 0;
    for call in 1..=calls.len() as u64 {
        let kernel = world().happens(call, Happening::KillProfiler).build();
        let ended = kernel.run_killed(|| record_unclean(&kernel, &options(10)).is_ok());
        assert_eq!(ended, None, "killed before call {call}");
        assert!(!kernel.stands(500), "before call {call}, {}", calls[call as usize - 1].name());
        let report = kernel.report();
        assert!(report.held.is_empty(), "{report}");
        killed_in_a_hold += u32::from(calls[call as usize - 1] == Method::ThreadGetState);
    }
    assert!(killed_in_a_hold > 3);
}

#[test]
fn a_released_command_survives_the_profiler() {
    let world = || World::arm64(7).launchable(canned(0));
    let kernel = world().build();
    let target = MachTarget::launch(&kernel, &["canned".into()]);
    with(&kernel, target, &options(5)).unwrap();
    let calls = kernel.calls();
    let released_at = calls.iter().position(|method| *method == Method::Kill).unwrap() as u64 + 1;
    for call in released_at + 1..=calls.len() as u64 {
        let kernel = world().happens(call, Happening::KillProfiler).build();
        let run = || with(&kernel, MachTarget::launch(&kernel, &["canned".into()]), &options(5)).is_ok();
        assert_eq!(kernel.run_killed(run), None);
        assert!(!kernel.stands(9000), "before call {call}");
    }
}

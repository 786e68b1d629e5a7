//! Each call of a recording fails with each plausible code: nothing leaks, nothing stays suspended, and the
//! recording continues or ends with a message.

use super::recorded::{options, record_unclean};
use crate::sim_kernel::*;

fn sentence(text: &str, what: &str) {
    assert!(text.chars().next().is_some_and(char::is_lowercase), "{what}: {text}");
    assert!(!text.contains('\n') && !text.contains("os error") && text.len() > 20, "{what}: {text}");
}

fn every_call_fails(world: impl Fn() -> World, for_ms: u64) {
    let kernel = world().build();
    record_unclean(&kernel, &options(for_ms)).unwrap();
    kernel.assert_clean();
    let calls = kernel.calls();
    let mut complaints = Vec::new();
    for (index, method) in calls.iter().enumerate() {
        for code in plausible_codes(*method) {
            let call = index as u64 + 1;
            let what = format!("call {call} ({}) fails with {code}", method.name());
            let kernel = world().answer(Which::Call(call), Answer::Code(*code)).build();
            match record_unclean(&kernel, &options(for_ms)) {
                Ok(recorded) => {
                    let stats = &recorded.profile.stats;
                    if stats.exit_status.is_some() {
                        complaints.push(format!("{what}: taken for the end of the process"));
                    }
                }
                Err(error) => sentence(&error.to_string(), &what),
            }
            let report = kernel.report();
            if !report.is_clean() || kernel.stands(500) {
                complaints.push(format!("{what}: {report}"));
            }
        }
    }
    assert!(complaints.is_empty(), "{} complaints, the first:\n{}", complaints.len(), complaints[0]);
}

#[test]
fn any_one_call_may_fail() {
    every_call_fails(|| World::arm64(8).process(canned(500)), 8);
    every_call_fails(|| World::x86_64(8).process(canned(500)), 5);
}

#[test]
fn every_call_of_a_kind_may_always_fail() {
    for method in Method::ALL {
        for code in plausible_codes(*method).iter().filter(|_| *method != Method::WaitUntil) {
            for from in [1, 2, 20] {
                let what = format!("{} fails with {code} from its call {from} on", method.name());
                let world = World::arm64(8).process(canned(500));
                let kernel = world.answer(Which::Every(*method, from), Answer::Code(*code)).build();
                if let Err(error) = record_unclean(&kernel, &options(50)) {
                    sentence(&error.to_string(), &what);
                }
                let report = kernel.report();
                assert!(report.is_clean() && !kernel.stands(500), "{what}: {report}");
            }
        }
    }
}

#[test]
fn threads_may_end_before_any_call() {
    let world = || World::arm64(9).process(canned(500));
    let kernel = world().build();
    record_unclean(&kernel, &options(8)).unwrap();
    for call in 1..=kernel.calls().len() as u64 {
        for place in [0, 1, 3] {
            let kernel = world().happens(call, Happening::ThreadEnds(place)).build();
            let recorded = record_unclean(&kernel, &options(20));
            let what = format!("thread {place} ends before call {call}");
            let recorded = recorded.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(recorded.profile.stats.exit_status, None, "{what}");
            let report = kernel.report();
            assert!(report.is_clean(), "{what}: {report}");
            recorded.check_exact();
        }
    }
}

#[test]
fn the_process_may_end_before_any_call() {
    let world = || World::arm64(9).process(canned(500));
    let kernel = world().build();
    record_unclean(&kernel, &options(8)).unwrap();
    for call in 1..=kernel.calls().len() as u64 {
        let kernel = world().happens(call, Happening::Exit(0)).build();
        let what = format!("exit before call {call}");
        match record_unclean(&kernel, &options(60)) {
            Ok(recorded) => assert!(recorded.profile.stats.exit_status.is_some(), "{what}"),
            Err(error) => sentence(&error.to_string(), &what),
        }
        let report = kernel.report();
        assert!(report.is_clean(), "{what}: {report}");
    }
}

#[test]
fn a_list_without_threads_is_not_the_end() {
    for nth in [1, 2, 3, 10] {
        let world = World::arm64(9).process(canned(500));
        let kernel = world.answer(Which::Nth(Method::TaskThreads, nth), Answer::NoThreads).build();
        let recorded = record_unclean(&kernel, &options(100));
        assert!(kernel.report().is_clean(), "{}", kernel.report());
        let recorded = recorded.unwrap();
        assert!(recorded.profile.stats.samples > 50, "list {nth}: {:?}", recorded.profile.stats);
    }
}

#[test]
fn interrupted_waits_are_continued() {
    let world = World::arm64(9).process(canned(500)).with(|world| world.interrupt_waits = 2);
    let kernel = world.build();
    let recorded = record_unclean(&kernel, &options(500)).unwrap();
    kernel.assert_clean();
    assert!((480..=502).contains(&recorded.profile.stats.ticks), "{:?}", recorded.profile.stats);
}

/// A read of a stack may fail with any code; what can be read of it is kept.
#[test]
fn no_code_of_a_failed_read_loses_a_whole_stack() {
    for code in plausible_codes(Method::VmReadOverwrite) {
        for read in 1..=60 {
            let world = World::arm64(8).process(canned(500));
            let kernel = world.answer(Which::Nth(Method::VmReadOverwrite, read), Answer::Code(*code)).build();
            // Without the first reads there is no recording.
            let Ok(recorded) = record_unclean(&kernel, &options(20)) else { continue };
            let lost = &recorded.profile.stats.samples_lost;
            assert!(!lost.contains_key("stack could not be read"), "read {read} fails with {code}: {lost:?}");
        }
    }
}

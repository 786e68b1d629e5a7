//! Attaching: each reason for a refusal has its own message with the next step.

use stackprof::arch::Arch;
use stackprof::error::ErrorKind;
use stackprof::sources::Observed;
use stackprof::sources::mach::MachTarget;

use super::recorded::{options, record};
use crate::sim_kernel::*;

/// The message of a refusal; checks that the attempt left nothing behind.
#[track_caller]
fn refused(kernel: &SimKernel) -> String {
    let error = MachTarget::attach(kernel, 500).err().expect("a refusal");
    assert_eq!(error.kind(), ErrorKind::Attach, "{error}");
    kernel.assert_clean();
    assert!(!kernel.stands(500));
    let text = error.to_string();
    assert!(text.starts_with("cannot attach to pid 500") && !text.contains("os error"), "{text}");
    text
}

#[test]
fn each_reason_has_its_message_and_next_step() {
    type Change = fn(&mut World);
    let cases: &[(&str, Change, &[&str])] = &[
        ("no such process", |w| w.processes.clear(), &["no such process", "ps -ax"]),
        ("zombie", |w| w.processes[0].zombie = true, &["zombie", "stackprof -- COMMAND"]),
        ("other user", |w| w.processes[0].uid = 502, &["another user", "501", "sudo stackprof --pid 500"]),
        ("of root", |w| w.processes[0].uid = 0, &["another user", "sudo stackprof"]),
        ("not signed", |w| w.entitled = false, &["sudo stackprof --pid 500", "codesign"]),
        (
            "hardened",
            |w| w.processes[0].code_signing = HARDENED,
            &["hardened runtime", "com.apple.security.get-task-allow"],
        ),
        (
            "hardened, asked by root",
            |w| (w.processes[0].code_signing, w.euid) = (HARDENED, 0),
            &["hardened runtime", "com.apple.security.get-task-allow"],
        ),
        (
            "platform",
            |w| {
                (w.processes[0].code_signing, w.processes[0].program.path) = (PLATFORM, "/usr/bin/yes".into())
            },
            &["System Integrity Protection", "/usr/bin/yes", "root neither"],
        ),
        (
            "platform, asked by root",
            |w| (w.processes[0].code_signing, w.euid) = (PLATFORM, 0),
            &["System Integrity Protection"],
        ),
        ("translated", |w| w.processes[0].flags |= TRANSLATED, &["Rosetta", "arm64 build"]),
        ("translated profiler", |w| w.translated = true, &["Rosetta", "aarch64-apple-darwin"]),
        ("without task", |w| w.processes[0].without_task = true, &["500"]),
        (
            "dead access port",
            |w| w.faults.answers.push((Which::Every(Method::TaskForPid, 1), Answer::Code(2))),
            &["kern_return 2"],
        ),
        (
            "interrupted for ever",
            |w| w.faults.answers.push((Which::Every(Method::TaskForPid, 1), Answer::Code(14))),
            &["interrupted", "try again"],
        ),
        (
            "threads not listed",
            |w| w.faults.answers.push((Which::Every(Method::TaskThreads, 1), Answer::Code(5))),
            &["threads cannot be listed"],
        ),
    ];
    for (name, change, words) in cases {
        let text = refused(&World::arm64(1).process(canned(500)).with(change).build());
        for word in *words {
            assert!(text.contains(word), "{name}: no `{word}` in: {text}");
        }
    }
}

#[test]
fn a_process_in_exec_is_retried() {
    let next = busy(0).program;
    let process = canned(500).exec(MS, next).with(|process| process.exec_gap_ns = 3 * MS);
    let kernel = World::arm64(1).process(process).build();
    kernel.pass(MS);
    let recorded = record(&kernel, &options(50)).unwrap();
    assert!(recorded.stacks.keys().all(|(_, _, names)| names.contains(&"work".to_owned())));
}

#[test]
fn an_interrupted_upcall_is_retried() {
    let kernel = World::arm64(1)
        .process(canned(500))
        .answer(Which::Nth(Method::TaskForPid, 1), Answer::Code(14))
        .answer(Which::Nth(Method::TaskForPid, 2), Answer::Code(14))
        .build();
    record(&kernel, &options(10)).unwrap();
}

#[test]
fn the_profiler_and_the_kernel_are_refused_without_an_attempt() {
    let kernel = World::arm64(1).process(canned(4000)).build();
    let error = MachTarget::attach(&kernel, 4000).err().unwrap();
    assert!(error.to_string().contains("itself"), "{error}");
    let error = MachTarget::attach(&kernel, 0).err().unwrap();
    assert!(error.to_string().contains("kernel"), "{error}");
    let error = MachTarget::attach(&kernel, u32::MAX).err().unwrap();
    assert!(error.to_string().contains("no such process"), "{error}");
    assert_eq!(kernel.count(Method::TaskForPid), 0);
    kernel.assert_clean();
}

#[test]
fn a_permitted_attach_leaves_nothing_suspended() {
    for (name, world) in [
        ("entitled", World::arm64(1).process(canned(500))),
        ("root", World::arm64(1).process(canned(500).with(|p| p.uid = 77)).with(|w| w.euid = 0)),
        (
            "get-task-allow",
            World::arm64(1)
                .process(canned(500).with(|p| p.code_signing = HARDENED | GET_TASK_ALLOW))
                .with(|w| w.entitled = false),
        ),
        ("Intel", World::x86_64(1).process(canned(500))),
    ] {
        let kernel = world.build();
        let target = MachTarget::attach(&kernel, 500).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!kernel.stands(500) && kernel.count(Method::TaskSuspend2) == 0, "{name}");
        let process = target.process();
        assert_eq!((process.pid, process.name.as_str(), process.cpus), (500, "canned", 8));
        assert_eq!(process.command, "canned");
        if process.arch == Arch::Aarch64 {
            assert_eq!(process.address_mask, (1 << ADDRESS_BITS) - 1);
        }
        drop(target);
        kernel.assert_clean();
    }
}

#[test]
fn a_program_stopped_by_job_control_can_be_attached() {
    let kernel = World::arm64(1).process(canned(500).with(|process| process.job_stopped = true)).build();
    let recorded = record(&kernel, &options(100)).unwrap();
    assert_eq!(recorded.profile.stats.samples, 0);
    assert_eq!(kernel.report().holds, 0, "who stands is not stopped again");
}

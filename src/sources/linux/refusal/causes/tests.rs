//! Rows: facts and the line for them.

use super::{TargetFacts, *};

const DOCKER: CapabilitySet = CapabilitySet(0xa804_25fb);
const ALL: CapabilitySet = CapabilitySet((1 << 41) - 1);
const NONE: CapabilitySet = CapabilitySet(0);
const LEAST: Call = Call::Sample(EventScope::OwnCode);
const KERNEL: Call = Call::Sample(EventScope::Kernel);
const MACHINE: Call = Call::Sample(EventScope::Machine);

/// A user without rights on an ordinary machine, to whom the kernel has refused a call for a process of the same user.
fn user(call: Call) -> Facts {
    Facts {
        call,
        errno: libc::EPERM,
        reaches_kernel: true,
        is_filtered: false,
        user: 1000,
        effective: NONE,
        permitted: NONE,
        bounding: ALL,
        gains_nothing: false,
        is_in_user_namespace: false,
        paranoid: Some(2),
        yama: None,
        lockdown: None,
        confined_by: None,
        target: Some(TargetFacts {
            pid: 7,
            is_launched: false,
            user: 1000,
            permitted: NONE,
            is_dumpable: true,
            is_in_own_user_namespace: true,
        }),
    }
}

/// root in a container by default: some capabilities, and a filter that forbids this call.
fn container(call: Call) -> Facts {
    let facts = user(call);
    let target = facts.target.clone().map(|target| TargetFacts { user: 0, permitted: DOCKER, ..target });
    Facts {
        user: 0,
        effective: DOCKER,
        permitted: DOCKER,
        bounding: DOCKER,
        is_filtered: true,
        reaches_kernel: false,
        target,
        ..facts
    }
}

fn with(facts: Facts, change: impl FnOnce(&mut Facts)) -> Facts {
    let mut facts = facts;
    change(&mut facts);
    facts
}

fn of_target(facts: Facts, change: impl FnOnce(&mut TargetFacts)) -> Facts {
    with(facts, |facts| change(facts.target.get_or_insert_default()))
}

#[track_caller]
fn check(facts: &Facts, expected: &str) {
    assert_eq!(cause(facts).to_string(), expected, "{facts:#?}");
}

const FILTER: &str = "a seccomp filter (of a container or service) forbids";

#[test]
fn filters_of_containers_are_passed_with_a_capability() {
    let unprivileged = |call| {
        with(container(call), |facts| {
            (facts.user, facts.effective, facts.permitted) = (1000, NONE, NONE);
        })
    };
    for (facts, expected) in [
        (container(LEAST), "perf_event_open; start the container with --cap-add PERFMON"),
        // Podman's filter answers ENOSYS.
        (
            with(container(LEAST), |facts| facts.errno = libc::ENOSYS),
            "perf_event_open; start the container with --cap-add PERFMON",
        ),
        (container(Call::Trace), "ptrace; start the container with --cap-add SYS_PTRACE"),
        (container(Call::ReadMemory), "process_vm_readv; start the container with --cap-add SYS_PTRACE"),
        (
            unprivileged(LEAST),
            "perf_event_open; start the container with --cap-add PERFMON, and stackprof in it as root (--user 0)",
        ),
        (
            unprivileged(Call::Trace),
            "ptrace; start the container with --cap-add SYS_PTRACE, and stackprof in it as root (--user 0)",
        ),
        (
            with(container(LEAST), |facts| facts.effective = ALL),
            "perf_event_open; start the container with --security-opt seccomp=unconfined, or with a profile that allows \
             it",
        ),
    ] {
        check(&facts, &format!("{FILTER} {expected}"));
    }
}

#[test]
fn calls_that_the_kernel_does_not_have_are_no_refusals() {
    let emulated =
        |call| with(user(call), |facts| (facts.reaches_kernel, facts.errno) = (false, libc::ENOSYS));
    check(&emulated(LEAST), "this kernel has no perf_event; --source ptrace does without");
    check(
        &emulated(Call::Trace),
        "this kernel does not answer ptrace; use a kernel that does (an emulated one, such as gVisor's, may not)",
    );
    check(
        &with(user(LEAST), |facts| facts.errno = libc::ENOENT),
        "this kernel has no such perf_event; --source ptrace does without",
    );
    check(
        &with(user(LEAST), |facts| facts.errno = libc::EMFILE),
        "perf_event_open failed: too many open files; raise `ulimit -n`",
    );
}

#[test]
fn the_level_of_paranoia_is_the_cause_only_for_what_it_forbids() {
    let at = |call, level| with(user(call), |facts| facts.paranoid = Some(level));
    let cannot_gain = |facts| with(facts, |facts: &mut Facts| facts.bounding = DOCKER);
    for (facts, expected) in [
        (
            at(KERNEL, 2),
            "kernel.perf_event_paranoid 2 does not show the kernel to users; sudo stackprof --pid 7, or sudo sysctl \
             kernel.perf_event_paranoid=1",
        ),
        (
            at(LEAST, 4),
            "kernel.perf_event_paranoid 4 forbids it to users; sudo stackprof --pid 7, or sudo sysctl \
             kernel.perf_event_paranoid=1",
        ),
        (
            with(at(MACHINE, 1), |facts| facts.target = None),
            "kernel.perf_event_paranoid 1 does not show the whole machine to users; sudo, or sudo sysctl \
             kernel.perf_event_paranoid=0",
        ),
        (
            of_target(at(LEAST, 3), |target| target.is_launched = true),
            "kernel.perf_event_paranoid 3 forbids it to users; sudo stackprof -- COMMAND, or sudo sysctl \
             kernel.perf_event_paranoid=1",
        ),
        (
            with(cannot_gain(at(LEAST, 3)), |facts| facts.user = 0),
            "kernel.perf_event_paranoid 3 forbids it to users; start the container with --cap-add PERFMON, or on the host: \
             sudo sysctl kernel.perf_event_paranoid=1",
        ),
        (
            with(at(LEAST, 3), |facts| {
                (facts.user, facts.effective, facts.is_in_user_namespace) = (0, ALL, true);
            }),
            "the capabilities of a user namespace do not count for kernel.perf_event_paranoid 3; run stackprof outside of it \
             (not rootless), or on the host: sudo sysctl kernel.perf_event_paranoid=1",
        ),
        // At 2, a user's own code may be sampled: something else refuses.
        (
            at(LEAST, 2),
            "the kernel refused perf_event_open (operation not permitted); sudo stackprof --pid 7",
        ),
        (
            of_target(at(LEAST, 2), |target| target.user = 33),
            "it belongs to user 33 and you are user 1000; run: sudo stackprof --pid 7",
        ),
    ] {
        check(&facts, expected);
    }
}

#[test]
fn a_refused_trace_has_the_cause_of_the_target_or_of_a_setting() {
    let trace = || user(Call::Trace);
    let of_other = |user| of_target(trace(), |target| target.user = user);
    let yama = |level| with(trace(), |facts| facts.yama = Some(level));
    let in_container = || with(container(Call::Trace), |facts| facts.reaches_kernel = true);
    for (facts, expected) in [
        (of_other(0), "it belongs to user 0 and you are user 1000; run: sudo stackprof --pid 7"),
        // sudo gains nothing here.
        (
            with(of_other(0), |facts| facts.gains_nothing = true),
            "it belongs to user 0 and you are user 1000; start the container with --cap-add SYS_PTRACE, and stackprof in it \
             as root (--user 0)",
        ),
        (
            of_target(in_container(), |target| target.user = 999),
            "it belongs to user 999 and you are user 0; start the container with --cap-add SYS_PTRACE",
        ),
        (
            of_target(in_container(), |target| target.permitted = ALL),
            "it holds capabilities that stackprof lacks (CAP_DAC_READ_SEARCH, CAP_LINUX_IMMUTABLE, CAP_NET_BROADCAST, ...); \
             start the container with --cap-add SYS_PTRACE",
        ),
        (
            of_target(trace(), |target| target.permitted = CapabilitySet(1 << 13)),
            "it holds capabilities that stackprof lacks (CAP_NET_RAW); run: sudo stackprof --pid 7",
        ),
        (
            of_target(trace(), |target| target.is_dumpable = false),
            "it has switched users, forbidden core dumps, or runs a program that its user may not read; run: sudo \
             stackprof --pid 7",
        ),
        (
            yama(1),
            "kernel.yama.ptrace_scope is 1: only a program's own children may be traced; run: sudo stackprof --pid 7, or \
             allow it: sudo sysctl kernel.yama.ptrace_scope=0",
        ),
        (yama(2), "kernel.yama.ptrace_scope is 2: only root may trace; run: sudo stackprof --pid 7"),
        // A command may be traced by its parent: another cause.
        (
            of_target(yama(1), |target| target.is_launched = true),
            "the kernel refused ptrace (operation not permitted); sudo stackprof -- COMMAND",
        ),
        (
            of_target(yama(2), |target| target.is_launched = true),
            "kernel.yama.ptrace_scope is 2: only root may trace; run: sudo stackprof -- COMMAND",
        ),
        (
            with(yama(3), |facts| (facts.user, facts.effective) = (0, ALL)),
            "kernel.yama.ptrace_scope is 3: nothing may be traced until the next boot; have the kernel sample: sudo stackprof \
             --source perf",
        ),
    ] {
        check(&facts, expected);
    }
}

#[test]
fn with_the_right_to_trace_a_namespace_or_a_security_module_refuses() {
    let capable = || {
        with(user(Call::Trace), |facts| {
            (facts.user, facts.effective, facts.permitted) = (0, ALL, ALL);
        })
    };
    let confined = |module: &str| with(capable(), |facts| facts.confined_by = Some(module.to_owned()));
    for (facts, expected) in [
        (
            of_target(with(capable(), |facts| facts.is_in_user_namespace = true), |target| {
                target.is_in_own_user_namespace = false;
            }),
            "it is outside of this user namespace, and capabilities count only within; run stackprof outside of the \
             namespace (not rootless)",
        ),
        (
            confined("AppArmor (docker-default (enforce))"),
            "the security module AppArmor (docker-default (enforce)) forbids ptrace; start the container with \
             --security-opt apparmor=unconfined, or allow it in the profile",
        ),
        (
            confined("SELinux (system_u:system_r:container_t:s0)"),
            "the security module SELinux (system_u:system_r:container_t:s0) forbids ptrace; start the container with \
             --security-opt label=disable, or see `ausearch -m avc`",
        ),
        (
            with(capable(), |facts| facts.lockdown = Some("confidentiality".to_owned())),
            "the kernel refused ptrace (operation not permitted, lockdown is in mode confidentiality); a security module may \
             forbid it: see the kernel's log",
        ),
    ] {
        check(&facts, expected);
    }
}

#[test]
fn what_is_read_by_files_depends_on_effective_capabilities() {
    let lowered = |call| {
        with(container(call), |facts| {
            (facts.reaches_kernel, facts.effective) = (true, NONE);
        })
    };
    let lacks = "it holds capabilities that stackprof lacks (CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_FOWNER, ...); start the \
                 container with --cap-add SYS_PTRACE";
    check(&lowered(Call::ReadProc), lacks);
    let other = "the kernel refused process_vm_readv (operation not permitted); a security module may forbid it: see the \
                 kernel's log";
    check(&lowered(Call::ReadMemory), other);
}

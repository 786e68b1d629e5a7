//! The sample filter (`SampleFilter`): BPF programs that drop samples of excluded processes, and the set of these.
//! Input: pids. Output: a program to attach to events.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::{fs, io};

use libc::pid_t;

use super::super::ring::sys;
use super::bpf_sys::{self, ProgramKind};
use super::instructions::{
    ADD, CALL, EXIT, GET_CURRENT_PID_TGID, GET_NS_CURRENT_PID_TGID, JUMP_IF_EQUAL, LOAD_WORD, MAP_LOOKUP,
    MOVE, MOVE_REGISTER, SHIFT_RIGHT, STORE_WORD, load, load_map, op,
};

/// Maximum number of processes excluded in the kernel; samples of further ones are copied and discarded here.
const EXCLUDED_MAX: u32 = 16_384;

/// The program and its data. If the kernel refuses programs, all samples pass.
#[derive(Debug, Default)]
pub(crate) struct SampleFilter {
    /// Which samples pass, and our namespace; `None` if namespaces are unknown.
    rule: Option<(FilterRule, (u64, u64))>,
    program: Option<OwnedFd>,
    excluded: Option<OwnedFd>,
    /// The filter followed by the code that copies memory for passed samples.
    copy_program: Option<OwnedFd>,
}

impl SampleFilter {
    /// Passes the samples of one process.
    pub(crate) fn of_process(pid: pid_t) -> SampleFilter {
        let ours = pid_namespace("self");
        // A process of another container has no number for the program.
        let ours = ours.filter(|ours| {
            numbers_all(*ours) || pid_namespace(&pid.to_string()).is_none_or(|its| its == *ours)
        });
        let rule = ours.map(|ours| (FilterRule::OfProcess(pid), ours));
        SampleFilter { rule, program: rule.and_then(loaded), ..SampleFilter::default() }
    }

    /// Passes the samples of all processes of our namespace that are not excluded.
    pub(crate) fn unless_excluded() -> SampleFilter {
        let made = pid_namespace("self").and_then(|namespace| {
            let excluded = bpf_sys::create_map(EXCLUDED_MAX).ok()?;
            let rule = (FilterRule::UnlessIn(excluded.as_raw_fd()), namespace);
            let program = Some(loaded(rule)?);
            Some(SampleFilter { rule: Some(rule), program, excluded: Some(excluded), copy_program: None })
        });
        made.unwrap_or_default()
    }

    /// Passes all samples.
    pub(crate) fn open() -> SampleFilter {
        // In other namespaces a program would drop threads without a number here.
        let first = pid_namespace("self").filter(|namespace| numbers_all(*namespace));
        SampleFilter { rule: first.map(|first| (FilterRule::All, first)), ..SampleFilter::default() }
    }

    /// Whether a process with a number here has none for the program, since it is in a namespace below ours.
    pub(crate) fn is_outside_namespace(&self, pid: pid_t) -> bool {
        let Some((FilterRule::UnlessIn(_), ours)) = self.rule else { return false };
        !numbers_all(ours) && pid_namespace(&pid.to_string()).is_some_and(|its| its != ours)
    }

    /// Also passes samples of other PID namespaces, in events attached from now on. Costs other processes a few us
    /// per sample, so it is initially off.
    ///
    /// # Errors
    /// Errors of bpf(2); nothing is changed then.
    pub(crate) fn let_unknown_through(&mut self) -> io::Result<()> {
        let Some((FilterRule::UnlessIn(set), ours)) = self.rule else { return Ok(()) };
        let rule = (FilterRule::UnlessInOrUnknown(set), ours);
        let program = bpf_sys::load_program(ProgramKind::Event, &program(rule.0, ours, &[]))?;
        (self.rule, self.program) = (Some(rule), Some(program));
        self.exclude(0, false);
        Ok(())
    }

    /// Adds or removes an excluded process: its number may have been reused.
    pub(crate) fn exclude(&self, pid: pid_t, excluded: bool) {
        if let Some(set) = &self.excluded {
            bpf_sys::change_map(set, pid.cast_unsigned(), excluded.then_some(1));
        }
    }

    /// Sets additional code for passed samples, in events attached from now on; an empty list removes it.
    ///
    /// # Errors
    /// Errors of bpf(2), or an error if there is no program; nothing more is done then.
    pub(crate) fn copy(&mut self, copy_code: &[u64]) -> io::Result<()> {
        self.copy_program = None;
        if !copy_code.is_empty() {
            let (rule, namespace) = self.rule.ok_or(io::ErrorKind::Unsupported)?;
            let program = program(rule, namespace, copy_code);
            self.copy_program = Some(bpf_sys::load_program(ProgramKind::Event, &program)?);
        }
        Ok(())
    }

    /// Attaches the filter to an event.
    pub(crate) fn attach(&self, event: &OwnedFd) {
        if let Some(program) = &self.program {
            // A refusal for one event applies to all.
            let _ = sys::set_filter(event, program);
        }
    }

    /// Attaches the filter to an event, with the additional code of [`SampleFilter::copy`].
    pub(crate) fn attach_with_copy(&self, event: &OwnedFd) {
        match &self.copy_program {
            Some(program) if sys::set_filter(event, program).is_ok() => {}
            _ => self.attach(event),
        }
    }

    /// Whether the kernel accepted the program.
    pub(crate) fn is_loaded(&self) -> bool {
        self.program.is_some()
    }

    /// Attaches the code of [`SampleFilter::copy`] to an event with samples that need no filter.
    pub(crate) fn attach_copy(&self, event: &OwnedFd) {
        if let Some(program) = &self.copy_program {
            // Without it stacks are as deep as the event's copies.
            let _ = sys::set_filter(event, program);
        }
    }
}

fn loaded((rule, namespace): (FilterRule, (u64, u64))) -> Option<OwnedFd> {
    bpf_sys::load_program(ProgramKind::Event, &program(rule, namespace, &[])).ok()
}

/// Device and inode of the PID namespace of a process.
pub(crate) fn pid_namespace(pid: &str) -> Option<(u64, u64)> {
    let meta = fs::metadata(format!("/proc/{pid}/ns/pid")).ok()?;
    Some((meta.dev(), meta.ino()))
}

// ---- BPF programs that pass the samples of some processes: other samples are dropped in the timer interrupt,
// which occurs anyway.
//
// One passes a single process; the other drops the processes in a set, so that a process not yet known is sampled.
//
// In the initial namespace every thread has a number, whatever its own namespace (helper 14,
// `bpf_get_current_pid_tgid`); in others, those of containers, only threads of the same namespace have one (helper
// 120, `bpf_get_ns_current_pid_tgid`).

/// Inode of the initial PID namespace (`PROC_PID_INIT_INO` in include/linux/proc_ns.h).
const FIRST_NAMESPACE: u64 = 0xefff_fffc;

/// Whether threads of all namespaces have a number in this one.
pub(crate) fn numbers_all(namespace: (u64, u64)) -> bool {
    namespace.1 == FIRST_NAMESPACE
}

/// Register with the program's argument, until `yes` reuses it: the registers of the running thread
/// (include/uapi/linux/bpf_perf_event.h, `bpf_perf_event_data`).
pub(crate) const CONTEXT: u8 = 8;

/// Where the number of the running thread is, relative to r10; that of its process follows.
pub(crate) const TID: i16 = -8;
const TGID: i16 = -4;

/// Drops the sample.
const NO: [u64; 2] = [op(MOVE, 0, 0, 0, 0), op(EXIT, 0, 0, 0, 0)];
/// Passes the sample.
const YES: [u64; 2] = [op(MOVE, 0, 0, 0, 1), op(EXIT, 0, 0, 0, 0)];

/// Stores the running thread at [`TID`], its process in r6 and at [`TGID`]. Drops a thread outside of our
/// namespace (device and inode of `/proc/self/ns/pid`), or with `unknown` continues with zeros: the helper clears
/// them (kernel/bpf/helpers.c).
fn process(namespace: (u64, u64), unknown: bool) -> Vec<u64> {
    if numbers_all(namespace) {
        return vec![
            op(CALL, 0, 0, 0, GET_CURRENT_PID_TGID),
            op(STORE_WORD, 10, 0, TID, 0),
            op(MOVE_REGISTER, 6, 0, 0, 0),
            op(SHIFT_RIGHT, 6, 0, 0, 32),
            op(STORE_WORD, 10, 6, TGID, 0),
        ];
    }
    let mut program = Vec::new();
    program.extend(load(1, namespace.0));
    program.extend(load(2, namespace.1));
    program.extend([
        // r3 = &info, 8 bytes: pid (the thread's number), then tgid.
        op(MOVE_REGISTER, 3, 10, 0, 0),
        op(ADD, 3, 0, 0, TID as i32),
        op(MOVE, 4, 0, 0, 8),
        op(CALL, 0, 0, 0, GET_NS_CURRENT_PID_TGID),
    ]);
    if !unknown {
        program.push(op(JUMP_IF_EQUAL, 0, 0, NO.len() as i16, 0));
        program.extend(NO);
    }
    program.push(op(LOAD_WORD, 6, 10, TGID, 0));
    program
}

/// Which threads a program passes, of those with a number in this namespace.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FilterRule {
    /// Threads of a process.
    OfProcess(i32),
    /// Threads of processes not in the set: the descriptor of a map with their pids as keys.
    UnlessIn(i32),
    /// Threads of processes not in the set, and threads of other namespaces, which may be below ours.
    UnlessInOrUnknown(i32),
    /// All threads.
    All,
}

/// A program that drops a sample, or runs `yes` and passes it. `yes` finds the running thread at [`TID`] and the
/// program's argument in [`CONTEXT`].
pub(crate) fn program(rule: FilterRule, namespace: (u64, u64), yes: &[u64]) -> Vec<u64> {
    let mut program = vec![op(MOVE_REGISTER, CONTEXT, 1, 0, 0)];
    program.extend(process(namespace, matches!(rule, FilterRule::UnlessInOrUnknown(_))));
    let skip = NO.len() as i16;
    match rule {
        FilterRule::OfProcess(tgid) => program.push(op(JUMP_IF_EQUAL, 6, 0, skip, tgid)),
        FilterRule::UnlessIn(set) | FilterRule::UnlessInOrUnknown(set) => {
            program.extend(load_map(1, set));
            program.extend([
                op(MOVE_REGISTER, 2, 10, 0, 0),
                op(ADD, 2, 0, 0, TGID as i32),
                op(CALL, 0, 0, 0, MAP_LOOKUP),
                op(JUMP_IF_EQUAL, 0, 0, skip, 0),
            ]);
        }
        FilterRule::All => {}
    }
    if !matches!(rule, FilterRule::All) {
        program.extend(NO);
    }
    program.extend(yes);
    program.extend(YES);
    program
}

/// A program that runs `body` for threads with a number in this namespace, and drops the sample: nothing else is
/// recorded. `body` finds the running thread at [`TID`] and the program's argument in [`CONTEXT`].
pub(crate) fn observer(namespace: (u64, u64), body: &[u64]) -> Vec<u64> {
    let mut program = vec![op(MOVE_REGISTER, CONTEXT, 1, 0, 0)];
    program.extend(process(namespace, false));
    program.extend(body);
    program.extend(NO);
    program
}

#[cfg(test)]
mod filter_program_tests {
    use super::super::instructions::machine::Machine;
    use super::*;

    /// Descriptor of the set.
    const SET: i32 = 33;
    const CONTAINER: (u64, u64) = (4, 0xf000_0000_1234_5678);
    const FIRST: (u64, u64) = (4, FIRST_NAMESPACE);

    /// Result of a program for a thread of process `tgid` in this namespace; the set contains 1 and 2.
    fn run(program: &[u64], tgid: u32, namespace: (u64, u64)) -> u64 {
        let mut machine = Machine::new(77, tgid, namespace);
        machine.maps.push((SET, vec![(1, 1), (2, 1)]));
        machine.run(program)
    }

    #[test]
    fn only_threads_of_the_process_are_sampled() {
        let of_process = |namespace| program(FilterRule::OfProcess(4242), namespace, &[]);
        for namespace in [CONTAINER, FIRST] {
            assert_eq!(run(&of_process(namespace), 4242, namespace), 1);
            assert_eq!(run(&of_process(namespace), 4243, namespace), 0);
        }
        assert_eq!(run(&of_process(CONTAINER), 4242, (4, 5)), 0, "of another namespace");
        assert_eq!(run(&of_process(FIRST), 4242, (4, 5)), 1, "it has a number here");
    }

    #[test]
    fn processes_outside_the_set_are_sampled() {
        let unless_in = |namespace| program(FilterRule::UnlessIn(SET), namespace, &[]);
        for namespace in [CONTAINER, FIRST] {
            assert_eq!(run(&unless_in(namespace), 4242, namespace), 1);
            assert_eq!(run(&unless_in(namespace), 2, namespace), 0);
        }
        assert_eq!(run(&unless_in(CONTAINER), 4242, (4, 5)), 0, "of another namespace");
        assert_eq!(run(&program(FilterRule::All, FIRST, &[]), 2, (4, 5)), 1);
        let or_unknown = program(FilterRule::UnlessInOrUnknown(SET), CONTAINER, &[]);
        assert_eq!(run(&or_unknown, 4242, (4, 5)), 1, "of another namespace");
        assert_eq!(run(&or_unknown, 2, CONTAINER), 0, "of the set");
    }
}

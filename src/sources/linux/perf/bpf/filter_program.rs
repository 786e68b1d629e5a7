//! BPF programs that pass the samples of some processes: other samples are dropped in the timer interrupt, which
//! occurs anyway.
//!
//! One passes a single process; the other drops the processes in a set, so that a process not yet known is
//! sampled.
//!
//! Input: pids in our PID namespace. Output: eBPF instructions
//! (Documentation/bpf/standardization/instruction-set.rst). In the initial namespace every thread has a number,
//! whatever its own namespace (helper 14, `bpf_get_current_pid_tgid`); in others, those of containers, only
//! threads of the same namespace have one (helper 120, `bpf_get_ns_current_pid_tgid`).

use super::instructions::{
    ADD, CALL, EXIT, GET_CURRENT_PID_TGID, GET_NS_CURRENT_PID_TGID, JUMP_IF_EQUAL, LOAD_WORD, MAP_LOOKUP,
    MOVE, MOVE_REGISTER, SHIFT_RIGHT, STORE_WORD, load, load_map, op,
};

/// Inode of the initial PID namespace (`PROC_PID_INIT_INO` in include/linux/proc_ns.h).
const FIRST_NAMESPACE: u64 = 0xefff_fffc;

/// Whether threads of all namespaces have a number in this one.
pub(in crate::sources::linux::perf) fn numbers_all(namespace: (u64, u64)) -> bool {
    namespace.1 == FIRST_NAMESPACE
}

/// Register with the program's argument, until `yes` reuses it: the registers of the running thread
/// (include/uapi/linux/bpf_perf_event.h, `bpf_perf_event_data`).
pub(in crate::sources::linux::perf) const CONTEXT: u8 = 8;

/// Where the number of the running thread is, relative to r10; that of its process follows.
pub(in crate::sources::linux::perf) const TID: i16 = -8;
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
pub(in crate::sources::linux::perf) enum FilterRule {
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
pub(in crate::sources::linux::perf) fn program(
    rule: FilterRule,
    namespace: (u64, u64),
    yes: &[u64],
) -> Vec<u64> {
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
pub(in crate::sources::linux::perf) fn observer(namespace: (u64, u64), body: &[u64]) -> Vec<u64> {
    let mut program = vec![op(MOVE_REGISTER, CONTEXT, 1, 0, 0)];
    program.extend(process(namespace, false));
    program.extend(body);
    program.extend(NO);
    program
}

#[cfg(test)]
mod tests {
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

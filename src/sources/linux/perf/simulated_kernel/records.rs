//! Encodes records in the layout of perf_event_open(2), for the attributes of `events/attributes.rs`.

use libc::pid_t;
use perf_event_open_sys::bindings::{
    PERF_RECORD_COMM, PERF_RECORD_EXIT, PERF_RECORD_FORK, PERF_RECORD_LOST, PERF_RECORD_MISC_COMM_EXEC,
    PERF_RECORD_MISC_SWITCH_OUT, PERF_RECORD_MISC_SWITCH_OUT_PREEMPT, PERF_RECORD_MMAP2, PERF_RECORD_SAMPLE,
    PERF_RECORD_SWITCH, PERF_RECORD_THROTTLE, PERF_RECORD_UNTHROTTLE,
};

use crate::sources::linux::perf::ring;
use crate::sources::linux::perf::ring::SampleId;

/// The event number of all records.
const EVENT: u64 = 7;

fn words(into: &mut Vec<u8>, words: &[u64]) {
    into.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
}

fn numbers(into: &mut Vec<u8>, numbers: &[pid_t]) {
    into.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
}

fn identity(into: &mut Vec<u8>, id: SampleId) {
    numbers(into, &[id.pid, id.tid]);
    words(into, &[id.time_ns, EVENT, u64::from(id.cpu)]);
}

fn record(kind: u32, misc: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_ne_bytes().to_vec();
    bytes.extend((misc as u16).to_ne_bytes());
    bytes.extend((body.len() as u16 + 8).to_ne_bytes());
    bytes.extend(body);
    bytes
}

fn with_identity(kind: u32, misc: u32, mut body: Vec<u8>, id: SampleId) -> Vec<u8> {
    identity(&mut body, id);
    record(kind, misc, &body)
}

/// PERF_RECORD_SAMPLE of the timer, with this period and these stack bytes.
pub(super) fn sample(id: SampleId, period_ns: u64, stack: &[u64]) -> Vec<u8> {
    let mut body = Vec::new();
    identity(&mut body, id);
    // No kernel frames, 64-bit registers.
    words(&mut body, &[period_ns, 0, 2]);
    words(&mut body, &[0x40_0000; ring::COUNT]);
    words(&mut body, &[stack.len() as u64 * 8]);
    words(&mut body, stack);
    words(&mut body, &[stack.len() as u64 * 8]);
    record(PERF_RECORD_SAMPLE, 0, &body)
}

/// PERF_RECORD_FORK or PERF_RECORD_EXIT.
fn task(kind: u32, id: SampleId, parent: pid_t, creator: pid_t) -> Vec<u8> {
    let mut body = Vec::new();
    numbers(&mut body, &[id.pid, parent, id.tid, creator]);
    words(&mut body, &[id.time_ns]);
    with_identity(kind, 0, body, id)
}

/// PERF_RECORD_FORK: started by this thread of this process.
pub(super) fn fork(id: SampleId, parent: pid_t, creator: pid_t) -> Vec<u8> {
    task(PERF_RECORD_FORK, id, parent, creator)
}

/// PERF_RECORD_EXIT.
pub(super) fn exit(id: SampleId) -> Vec<u8> {
    task(PERF_RECORD_EXIT, id, id.pid, id.tid)
}

/// PERF_RECORD_COMM.
pub(super) fn comm(id: SampleId, name: &str, exec: bool) -> Vec<u8> {
    let mut body = Vec::new();
    numbers(&mut body, &[id.pid, id.tid]);
    let mut name = name.as_bytes().to_vec();
    name.resize(16, 0);
    body.extend(name);
    with_identity(PERF_RECORD_COMM, if exec { PERF_RECORD_MISC_COMM_EXEC } else { 0 }, body, id)
}

/// PERF_RECORD_MMAP2 of executable memory.
pub(super) fn mmap(id: SampleId, start: u64) -> Vec<u8> {
    let mut body = Vec::new();
    numbers(&mut body, &[id.pid, id.tid]);
    words(&mut body, &[start, 0x1000, 0, 8 << 32 | 1, 77, 0, 5]);
    body.extend(*b"/lib/simulated\0\0");
    with_identity(PERF_RECORD_MMAP2, 0, body, id)
}

/// PERF_RECORD_SWITCH.
pub(super) fn switch(id: SampleId, out: Option<bool>) -> Vec<u8> {
    let misc = match out {
        None => 0,
        Some(false) => PERF_RECORD_MISC_SWITCH_OUT,
        Some(true) => PERF_RECORD_MISC_SWITCH_OUT | PERF_RECORD_MISC_SWITCH_OUT_PREEMPT,
    };
    with_identity(PERF_RECORD_SWITCH, misc, Vec::new(), id)
}

/// PERF_RECORD_LOST.
pub(super) fn lost(id: SampleId, records: u64) -> Vec<u8> {
    let mut body = Vec::new();
    words(&mut body, &[EVENT, records]);
    with_identity(PERF_RECORD_LOST, 0, body, id)
}

/// PERF_RECORD_THROTTLE and PERF_RECORD_UNTHROTTLE.
pub(super) fn throttle(id: SampleId, begins: bool) -> Vec<u8> {
    let mut body = Vec::new();
    words(&mut body, &[id.time_ns, EVENT, EVENT]);
    with_identity(if begins { PERF_RECORD_THROTTLE } else { PERF_RECORD_UNTHROTTLE }, 0, body, id)
}

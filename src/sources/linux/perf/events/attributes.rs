//! The attributes of events: the sampling clock, the event that records exec and mmap, and the one that records
//! context switches.
//!
//! Input: how to sample, and the bytes of the ring. Output: attributes for perf_event_open(2). All have the same
//! sample fields, so that records are parsed alike.

use perf_event_open_sys::bindings::{
    PERF_COUNT_SW_CONTEXT_SWITCHES, PERF_COUNT_SW_CPU_CLOCK, PERF_COUNT_SW_DUMMY, PERF_FORMAT_LOST,
    PERF_SAMPLE_CALLCHAIN, PERF_SAMPLE_CPU, PERF_SAMPLE_ID, PERF_SAMPLE_PERIOD, PERF_SAMPLE_REGS_USER,
    PERF_SAMPLE_STACK_USER, PERF_SAMPLE_TID, PERF_SAMPLE_TIME, PERF_TYPE_SOFTWARE, perf_event_attr,
};

use super::super::ring::registers;
use super::options::{EventOptions, Scope, SwitchOptions};

/// With switches at intervals, one in this many copies a stack: a prime, to avoid aliasing.
const SWITCHES_PER_STACK: u64 = 13;

/// Attributes of the sampling clock, for a ring of this many bytes.
pub(super) fn attributes(options: EventOptions, ring_bytes: usize) -> perf_event_attr {
    let mut attributes = perf_event_attr {
        type_: PERF_TYPE_SOFTWARE,
        size: size_of::<perf_event_attr>() as u32,
        config: PERF_COUNT_SW_CPU_CLOCK.into(),
        sample_type: (PERF_SAMPLE_TID
            | PERF_SAMPLE_TIME
            | PERF_SAMPLE_ID
            | PERF_SAMPLE_CPU
            | PERF_SAMPLE_PERIOD
            | PERF_SAMPLE_CALLCHAIN
            | PERF_SAMPLE_REGS_USER
            | PERF_SAMPLE_STACK_USER)
            .into(),
        sample_regs_user: registers::MASK,
        sample_stack_user: options.stack_bytes,
        clockid: libc::CLOCK_MONOTONIC,
        ..perf_event_attr::default()
    };
    // An event without a period samples nothing.
    attributes.__bindgen_anon_1.sample_period =
        if options.samples_running() { options.period_ns() } else { 0 };
    // Wakes the reader before half of the ring is full, not for each sample.
    attributes.__bindgen_anon_2.wakeup_watermark = (ring_bytes / 4) as u32;
    attributes.set_watermark(1);
    attributes.set_disabled(1);
    attributes.set_use_clockid(1);
    attributes.set_sample_id_all(1);
    attributes.set_exclude_kernel(u64::from(!options.kernel));
    attributes.set_exclude_hv(1);
    attributes.set_exclude_idle(1);
    // User frames are walked from registers and stack bytes.
    attributes.set_exclude_callchain_user(1);
    match options.scope {
        Scope::Cpus => attributes.read_format = PERF_FORMAT_LOST.into(),
        Scope::Threads => attributes.set_inherit(1),
    }
    attributes
}

/// Makes an event record exec, threads and mmap.
pub(super) fn record_programs(attributes: &mut perf_event_attr) {
    attributes.set_mmap(1);
    attributes.set_mmap2(1);
    attributes.set_comm(1);
    attributes.set_comm_exec(1);
    attributes.set_task(1);
}

/// Attributes of the event of a CPU that records exec, threads and mmap, and samples nothing.
pub(super) fn programs_attributes(options: EventOptions, ring_bytes: usize) -> perf_event_attr {
    let mut attributes = attributes(options, ring_bytes);
    attributes.config = PERF_COUNT_SW_DUMMY.into();
    attributes.__bindgen_anon_1.sample_period = 0;
    record_programs(&mut attributes);
    attributes
}

/// Attributes of the event of a CPU that records mappings of executable memory, and nothing else.
pub(in crate::sources::linux::perf) fn mmap_attributes(ring_bytes: usize) -> perf_event_attr {
    let options = EventOptions {
        scope: Scope::Cpus,
        kernel: false,
        hz: 1,
        stack_bytes: 8,
        red_zone: false,
        prefetch: false,
        switches: None,
    };
    let mut attributes = programs_attributes(options, ring_bytes);
    attributes.set_comm(0);
    attributes.set_comm_exec(0);
    attributes.set_task(0);
    attributes
}

/// Attributes of the event that samples threads leaving their CPUs, and records each context switch. It counts in
/// the thread that leaves, in `schedule()` (kernel/events/core.c, `perf_event_task_sched_out`): in kernel mode, so
/// only events that include the kernel see it.
pub(super) fn switch_attributes(
    options: EventOptions,
    switches: SwitchOptions,
    ring_bytes: usize,
) -> perf_event_attr {
    let mut attributes = attributes(options, ring_bytes);
    attributes.config = PERF_COUNT_SW_CONTEXT_SWITCHES.into();
    // With it, each would be sampled whatever the period (kernel/events/core.c, `perf_swevent_event`).
    attributes.sample_type &= !u64::from(PERF_SAMPLE_PERIOD);
    attributes.__bindgen_anon_1.sample_period =
        if options.switches.is_some() { 1 } else { SWITCHES_PER_STACK };
    attributes.sample_stack_user = switches.stack_bytes;
    attributes.set_context_switch(1);
    attributes.set_exclude_callchain_kernel(u64::from(!switches.kernel_frames));
    attributes
}

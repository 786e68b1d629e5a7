//! The attributes of events: the sampling clock, the event that records exec and mmap, and the one that records
//! context switches.
//!
//! `EventOptions` and `SwitchOptions` are what is requested, `TickRates` the rates of CPUs.
//!
//! Input: how to sample, and the bytes of the ring. Output: attributes for perf_event_open(2). All have the same
//! sample fields, so that records are parsed alike.

use hashbrown::HashMap;
use perf_event_open_sys::bindings::{
    PERF_COUNT_SW_CONTEXT_SWITCHES, PERF_COUNT_SW_CPU_CLOCK, PERF_COUNT_SW_DUMMY, PERF_FORMAT_LOST,
    PERF_SAMPLE_CALLCHAIN, PERF_SAMPLE_CPU, PERF_SAMPLE_ID, PERF_SAMPLE_PERIOD, PERF_SAMPLE_REGS_USER,
    PERF_SAMPLE_STACK_USER, PERF_SAMPLE_TID, PERF_SAMPLE_TIME, PERF_TYPE_SOFTWARE, perf_event_attr,
};

use crate::rng::Rng;
use crate::sources::linux::perf::ring;

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
        sample_regs_user: ring::MASK,
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
pub(crate) fn mmap_attributes(ring_bytes: usize) -> perf_event_attr {
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

// ---- Event options: process scope, rate, stack size.
const SECOND_NS: u64 = 1_000_000_000;

/// Stack sizes in a record: multiples of 8, so that the record stays below 64 KiB.
pub(crate) const STACK_BYTES: [u32; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, STACK_BYTES_MAX];
pub(crate) const STACK_BYTES_MAX: u32 = 60 << 10;

/// Stack sizes at switches, where threads leave their CPUs.
pub(crate) const SWITCH_STACK_BYTES: [u32; 6] =
    [2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, STACK_BYTES_MAX];

/// What events are opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Everything that runs on each CPU, filtered by the kernel.
    Cpus,
    /// The threads of the process.
    Threads,
}

/// Sampling options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EventOptions {
    pub(crate) scope: Scope,
    /// Also samples kernel code, with its frames.
    pub(crate) kernel: bool,
    /// Samples per second of CPU time.
    pub(crate) hz: u32,
    /// Stack size of a sample, copied by the event.
    pub(crate) stack_bytes: u32,
    /// Also copies the red zone.
    pub(crate) red_zone: bool,
    /// Also copies the tails of new threads' stacks, and prefetches ranges of deep ones.
    pub(crate) prefetch: bool,
    /// Sampling of threads that leave their CPUs, if enabled.
    pub(crate) switches: Option<SwitchOptions>,
}

/// Sampling of threads that leave their CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SwitchOptions {
    /// Stack size of a sample.
    pub(crate) stack_bytes: u32,
    /// Samples nothing else.
    pub(crate) alone: bool,
    /// Includes kernel frames, which take the kernel some time.
    pub(crate) kernel_frames: bool,
    /// Samples many processes, with files to be read while they switch.
    pub(crate) many: bool,
}

impl SwitchOptions {
    /// For events that are enabled at intervals.
    pub(super) fn at_intervals(options: EventOptions) -> SwitchOptions {
        SwitchOptions { stack_bytes: options.stack_bytes, alone: false, kernel_frames: true, many: false }
    }
}

impl EventOptions {
    /// Nanoseconds between two samples of a thread that runs all the time.
    pub(crate) fn period_ns(self) -> u64 {
        SECOND_NS / u64::from(self.hz.max(1))
    }

    /// Whether running threads are sampled.
    pub(crate) fn samples_running(self) -> bool {
        !self.switches.is_some_and(|switches| switches.alone)
    }
}

// ---- Tick rates of CPUs: random around the requested one, redrawn repeatedly. Input: a CPU. Output: its next rate.
// Rationale: `docs/decisions/kernel-samples.md`.

/// Periods of the requested rate between two changes. Each change restarts a period, which costs half of one.
pub(crate) const PERIODS_BETWEEN_CHANGES: u64 = 50;

/// Maximum deviation from the requested rate, per mille.
const SPREAD_PER_MILLE: u64 = 250;

/// Draws the rates of CPUs.
#[derive(Debug)]
pub(crate) struct TickRates {
    random: Rng,
    /// The complement of the last draw of each CPU, unless already used.
    pending: HashMap<u32, u64>,
}

impl TickRates {
    pub(crate) fn new(seed: u64) -> TickRates {
        TickRates { random: Rng::new(seed), pending: HashMap::new() }
    }

    /// The next rate of a CPU, per mille of the requested one. Every second draw is the complement of the previous
    /// one, so that their mean is the requested rate.
    pub(crate) fn next_per_mille(&mut self, cpu: u32) -> u64 {
        self.pending.remove(&cpu).unwrap_or_else(|| {
            let above = self.random.next() % (2 * SPREAD_PER_MILLE + 1);
            self.pending.insert(cpu, 1000 + SPREAD_PER_MILLE - above);
            1000 - SPREAD_PER_MILLE + above
        })
    }
}

#[cfg(test)]
mod options_tests {
    use super::*;
    use crate::sources::linux::perf::ring;

    #[test]
    fn stacks_keep_records_below_their_limit() {
        for bytes in STACK_BYTES.into_iter().chain(SWITCH_STACK_BYTES) {
            let rest = 8 + 16 + 8 + 8 + 8 + 8 * 130 + 8 + 8 * ring::COUNT as u32 + 16;
            assert!(bytes % 8 == 0 && bytes + rest < 1 << 16, "{bytes}");
        }
    }
}

#[cfg(test)]
mod tick_rates_tests {
    use super::*;

    #[test]
    fn pairs_of_rates_average_to_the_requested_one_and_cpus_are_independent() {
        let mut rates = TickRates::new(5);
        let pairs: Vec<[u64; 4]> =
            (0..200).map(|_| [0, 1, 0, 1].map(|cpu| rates.next_per_mille(cpu))).collect();
        assert!(pairs.iter().all(|[a, b, c, d]| a + c == 2000 && b + d == 2000), "{pairs:?}");
        assert!(pairs.iter().flatten().all(|rate| (750..=1250).contains(rate)));
        assert!(pairs.iter().filter(|[a, b, ..]| a.abs_diff(*b) < 20).count() < 40, "{pairs:?}");
        let distinct: std::collections::BTreeSet<u64> = pairs.iter().map(|[a, ..]| *a).collect();
        assert!(distinct.len() > 100, "{distinct:?}");
    }
}

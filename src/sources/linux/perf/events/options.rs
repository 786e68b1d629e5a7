//! Event options: process scope, rate, stack size.

const SECOND_NS: u64 = 1_000_000_000;

/// Stack sizes in a record: multiples of 8, so that the record stays below 64 KiB.
pub(in crate::sources::linux::perf) const STACK_BYTES: [u32; 5] =
    [4 << 10, 8 << 10, 16 << 10, 32 << 10, STACK_BYTES_MAX];
pub(in crate::sources::linux::perf) const STACK_BYTES_MAX: u32 = 60 << 10;

/// Stack sizes at switches, where threads leave their CPUs.
pub(in crate::sources::linux::perf) const SWITCH_STACK_BYTES: [u32; 6] =
    [2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, STACK_BYTES_MAX];

/// What events are opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sources::linux::perf) enum Scope {
    /// Everything that runs on each CPU, filtered by the kernel.
    Cpus,
    /// The threads of the process.
    Threads,
}

/// Sampling options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sources::linux::perf) struct EventOptions {
    pub(in crate::sources::linux::perf) scope: Scope,
    /// Also samples kernel code, with its frames.
    pub(in crate::sources::linux::perf) kernel: bool,
    /// Samples per second of CPU time.
    pub(in crate::sources::linux::perf) hz: u32,
    /// Stack size of a sample, copied by the event.
    pub(in crate::sources::linux::perf) stack_bytes: u32,
    /// Also copies the red zone.
    pub(in crate::sources::linux::perf) red_zone: bool,
    /// Also copies the tails of new threads' stacks, and prefetches ranges of deep ones.
    pub(in crate::sources::linux::perf) prefetch: bool,
    /// Sampling of threads that leave their CPUs, if enabled.
    pub(in crate::sources::linux::perf) switches: Option<SwitchOptions>,
}

/// Sampling of threads that leave their CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sources::linux::perf) struct SwitchOptions {
    /// Stack size of a sample.
    pub(in crate::sources::linux::perf) stack_bytes: u32,
    /// Samples nothing else.
    pub(in crate::sources::linux::perf) alone: bool,
    /// Includes kernel frames, which take the kernel some time.
    pub(in crate::sources::linux::perf) kernel_frames: bool,
    /// Samples many processes, with files to be read while they switch.
    pub(in crate::sources::linux::perf) many: bool,
}

impl SwitchOptions {
    /// For events that are enabled at intervals.
    pub(super) fn at_intervals(options: EventOptions) -> SwitchOptions {
        SwitchOptions { stack_bytes: options.stack_bytes, alone: false, kernel_frames: true, many: false }
    }
}

impl EventOptions {
    /// Nanoseconds between two samples of a thread that runs all the time.
    pub(in crate::sources::linux::perf) fn period_ns(self) -> u64 {
        SECOND_NS / u64::from(self.hz.max(1))
    }

    /// Whether running threads are sampled.
    pub(in crate::sources::linux::perf) fn samples_running(self) -> bool {
        !self.switches.is_some_and(|switches| switches.alone)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ring::registers;
    use super::*;

    #[test]
    fn stacks_keep_records_below_their_limit() {
        for bytes in STACK_BYTES.into_iter().chain(SWITCH_STACK_BYTES) {
            let rest = 8 + 16 + 8 + 8 + 8 + 8 * 130 + 8 + 8 * registers::COUNT as u32 + 16;
            assert!(bytes % 8 == 0 && bytes + rest < 1 << 16, "{bytes}");
        }
    }
}

//! Options of events: which processes, which rate, how many bytes of each stack.

const SECOND_NS: u64 = 1_000_000_000;

/// Bytes of a stack that a record holds: multiples of 8, and a record with them has less than 64 KiB.
pub(in crate::sources::linux::perf) const STACK_BYTES: [u32; 5] =
    [4 << 10, 8 << 10, 16 << 10, 32 << 10, STACK_BYTES_MAX];
pub(in crate::sources::linux::perf) const STACK_BYTES_MAX: u32 = 60 << 10;

/// Bytes of the stacks at which threads leave their CPUs.
pub(in crate::sources::linux::perf) const SWITCH_STACK_BYTES: [u32; 6] =
    [2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, STACK_BYTES_MAX];

/// What events are opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sources::linux::perf) enum Scope {
    /// All that runs on each CPU, sifted by the kernel.
    Cpus,
    /// The threads of the process.
    Threads,
}

/// How to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sources::linux::perf) struct EventOptions {
    pub(in crate::sources::linux::perf) scope: Scope,
    /// Samples that fall into the kernel are taken, with the frames there.
    pub(in crate::sources::linux::perf) kernel: bool,
    /// Samples per second of CPU time.
    pub(in crate::sources::linux::perf) hz: u32,
    /// Stack bytes that are copied of each, by the event and, above [`STACK_BYTES_MAX`], by a program.
    pub(in crate::sources::linux::perf) stack_bytes: u32,
    /// The red zone is copied, too.
    pub(in crate::sources::linux::perf) red_zone: bool,
    /// Ranges of deep stacks are read, too.
    pub(in crate::sources::linux::perf) prefetch: bool,
    /// How threads are sampled that leave their CPUs, if they are.
    pub(in crate::sources::linux::perf) switches: Option<SwitchOptions>,
}

/// How threads are sampled that leave their CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sources::linux::perf) struct SwitchOptions {
    /// Stack bytes that are copied of each.
    pub(in crate::sources::linux::perf) stack_bytes: u32,
    /// Nothing else is sampled.
    pub(in crate::sources::linux::perf) alone: bool,
    /// With the frames in the kernel, which it takes some time to find.
    pub(in crate::sources::linux::perf) kernel_frames: bool,
    /// Of many processes, whose files have to be read while they switch.
    pub(in crate::sources::linux::perf) many: bool,
}

impl SwitchOptions {
    /// Of events that are enabled at intervals.
    pub(super) fn at_intervals(options: EventOptions) -> SwitchOptions {
        SwitchOptions {
            stack_bytes: options.record_stack_bytes(),
            alone: false,
            kernel_frames: true,
            many: false,
        }
    }
}

impl EventOptions {
    /// Nanoseconds between two samples of a thread that runs all the time.
    pub(in crate::sources::linux::perf) fn period_ns(self) -> u64 {
        SECOND_NS / u64::from(self.hz.max(1))
    }

    /// Whether threads that run are sampled.
    pub(in crate::sources::linux::perf) fn samples_running(self) -> bool {
        !self.switches.is_some_and(|switches| switches.alone)
    }

    /// Stack bytes that the event copies.
    pub(in crate::sources::linux::perf) fn record_stack_bytes(self) -> u32 {
        self.stack_bytes.min(STACK_BYTES_MAX)
    }

    /// Whether a program copies what lies above the bytes that the event copies.
    pub(in crate::sources::linux::perf) fn needs_stack_tail(self) -> bool {
        self.stack_bytes > STACK_BYTES_MAX
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

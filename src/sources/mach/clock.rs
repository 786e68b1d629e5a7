//! Time in ticks of `mach_absolute_time`, as nanoseconds.
//!
//! Input: ticks. Output: nanoseconds. A tick is 125/3 ns on Apple silicon and 1 ns on Intel
//! (`mach_timebase_info`, read once). The sampler and the waits between ticks use this clock.

use super::kernel::{KernReturn, MachKernel};
use crate::clock::Clock;

/// A clock over the kernel's ticks, with an origin shared by all instances.
#[derive(Clone, Copy)]
pub struct MachClock<'k> {
    kernel: &'k dyn MachKernel,
    numer: u64,
    denom: u64,
}

impl<'k> MachClock<'k> {
    /// The clock of a kernel.
    #[must_use]
    pub fn new(kernel: &'k dyn MachKernel) -> MachClock<'k> {
        let (numer, denom) = match kernel.timebase() {
            (0, _) | (_, 0) => (1, 1),
            known => known,
        };
        MachClock { kernel, numer: numer.into(), denom: denom.into() }
    }

    /// Waits until `at_ns` of this clock. Returns at once if the system refuses to wait.
    pub(super) fn wait_until_ns(&self, at_ns: u64) {
        // Rounded up: a deadline must not come early.
        let ticks = (u128::from(at_ns) * u128::from(self.denom)).div_ceil(u128::from(self.numer));
        let deadline = u64::try_from(ticks).unwrap_or(u64::MAX);
        while self.kernel.wait_until(deadline) == Err(KernReturn::Aborted) && self.now_ns() < at_ns {}
    }
}

impl Clock for MachClock<'_> {
    fn now_ns(&self) -> u64 {
        let ticks = self.kernel.absolute_time();
        // Multiplied first: 125/3 is no whole number.
        u64::try_from(u128::from(ticks) * u128::from(self.numer) / u128::from(self.denom)).unwrap_or(u64::MAX)
    }
}

/// Waits for ticks, and how late the waits ended.
pub(super) struct TickTimer<'k> {
    clock: MachClock<'k>,
    /// Total time by which waits ended after the tick.
    overslept_ns: u64,
    qos_requested: bool,
}

impl<'k> TickTimer<'k> {
    pub(super) fn new(kernel: &'k dyn MachKernel) -> TickTimer<'k> {
        TickTimer { clock: MachClock::new(kernel), overslept_ns: 0, qos_requested: false }
    }

    pub(super) fn clock(&self) -> MachClock<'k> {
        self.clock
    }

    pub(super) fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    pub(super) fn overslept_ns(&self) -> u64 {
        self.overslept_ns
    }

    /// Requests to be woken in time, once, for the sampling thread. A thread of background QoS is woken up to
    /// 100 ms late. A refusal is harmless: ticks then arrive late.
    pub(super) fn request_qos(&mut self) {
        if !std::mem::replace(&mut self.qos_requested, true) {
            let _ = self.clock.kernel.request_interactive_qos();
        }
    }

    /// Waits until `due_ns`, which is not after the tick at `tick_ns`.
    pub(super) fn wait_until_ns(&mut self, due_ns: u64, tick_ns: u64) {
        self.clock.wait_until_ns(due_ns);
        let late_ns = self.now_ns().saturating_sub(tick_ns);
        self.overslept_ns = self.overslept_ns.saturating_add(late_ns);
    }
}

//! Costs of calls, in nanoseconds of the virtual clock.
//!
//! Not measured: orders of magnitude for Apple silicon, so that pauses and lateness depend on the client's
//! calls, as on real machines. [`Costs::of_calls`] are those of another machine: a virtual one, a loaded one,
//! one that traces each call.

use super::faults::Method;

/// A Mach message to the kernel and back.
pub const ROUND_TRIP: u64 = 1_500;

/// Costs of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// A Mach message to the kernel and back.
    pub round_trip: u64,
    /// In addition for `thread_get_state`.
    pub get_state: u64,
    /// In addition for a read of memory, and for each 16 KiB of it.
    pub read: u64,
    pub read_per_block: u64,
    /// In addition for stopping a task, and for each of its threads on a CPU.
    pub suspend: u64,
    pub suspend_per_running: u64,
    /// In addition for listing threads, per thread.
    pub list_per_thread: u64,
    /// A system call.
    pub system_call: u64,
    /// Each call takes between half of this and one and a half times as long.
    pub varied: bool,
    pub delays: Option<Delays>,
}

/// Preemption of the client: one call in `one_in` takes up to `at_most_ns` longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    pub one_in: u64,
    pub at_most_ns: u64,
}

pub const READ_BLOCK_BYTES: u64 = 16 << 10;
/// A read of the clock, without a system call.
pub const CLOCK: u64 = 40;
/// posix_spawn.
pub const SPAWN: u64 = 600_000;
/// A ready thread that gets a CPU while its task is held runs up to its stop: time in the kernel.
pub const DISPATCH: u64 = 1_500;
/// If it gets one, it is within this time.
pub const DISPATCHED_WITHIN: u64 = 40_000;

impl Default for Costs {
    fn default() -> Costs {
        Costs {
            round_trip: ROUND_TRIP,
            get_state: 1_000,
            read: 1_000,
            read_per_block: 1_000,
            suspend: 2_000,
            suspend_per_running: 4_000,
            list_per_thread: 100,
            system_call: 800,
            varied: false,
            delays: None,
        }
    }
}

impl Costs {
    /// Every call takes about `ns`, and more in proportion to listed or copied data.
    pub fn of_calls(ns: u64) -> Costs {
        Costs {
            round_trip: ns,
            system_call: ns,
            read_per_block: 500 + ns / 20,
            list_per_thread: 50 + ns / 20,
            varied: true,
            ..Costs::default()
        }
    }

    /// The longest duration of a call with this many threads, without a delay.
    pub fn longest(&self, threads: u64) -> u64 {
        let call = self.round_trip.max(self.system_call) * 2;
        call + self.suspend + threads * (self.suspend_per_running + self.list_per_thread)
    }

    /// Base cost of every call of a method.
    pub fn base(&self, method: Method) -> u64 {
        match method {
            Method::AbsoluteTime => CLOCK,
            Method::SpawnSuspended => SPAWN,
            Method::WaitUntil | Method::OwnSharedCache => self.system_call,
            Method::ThreadGetState => self.round_trip + self.get_state,
            Method::VmReadOverwrite => self.round_trip + self.read,
            Method::TaskSuspend2 => self.round_trip + self.suspend,
            method if method.is_bsd() => self.system_call,
            _ => self.round_trip,
        }
    }
}

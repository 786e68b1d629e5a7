//! What calls cost, in nanoseconds of the virtual clock.
//!
//! Measured nowhere: orders of magnitude for Apple silicon, so that pauses and lateness
//! depend on what a client does, as they do there.

use super::faults::Method;

/// A Mach message to the kernel and back.
pub const ROUND_TRIP: u64 = 1_500;
/// More for `thread_get_state`.
pub const GET_STATE: u64 = 1_000;
/// More for a read of memory, and for each 16 KiB of it.
pub const READ: u64 = 1_000;
pub const READ_PER_BLOCK: u64 = 1_000;
pub const READ_BLOCK_BYTES: u64 = 16 << 10;
/// More for stopping a task, and for each of its threads that is on a CPU.
pub const SUSPEND: u64 = 2_000;
pub const SUSPEND_PER_RUNNING: u64 = 4_000;
/// More for listing threads, for each.
pub const LIST_PER_THREAD: u64 = 100;
/// A system call.
pub const SYSTEM_CALL: u64 = 800;
/// A read of the clock, without a system call.
pub const CLOCK: u64 = 40;
/// posix_spawn.
pub const SPAWN: u64 = 600_000;

/// What every call of a method costs.
pub fn base(method: Method) -> u64 {
    match method {
        Method::AbsoluteTime => CLOCK,
        Method::SpawnSuspended => SPAWN,
        Method::WaitUntil | Method::OwnSharedCache => SYSTEM_CALL,
        Method::ThreadGetState => ROUND_TRIP + GET_STATE,
        Method::VmReadOverwrite => ROUND_TRIP + READ,
        Method::TaskSuspend | Method::TaskSuspend2 => ROUND_TRIP + SUSPEND,
        method if method.is_bsd() => SYSTEM_CALL,
        _ => ROUND_TRIP,
    }
}

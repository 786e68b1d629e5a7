//! Every Mach, libproc and BSD call that the macOS backend makes, one method each, in plain Rust types. No
//! logic: `xnu.rs` makes the calls, the tests' simulated kernel answers them, `task.rs` and `dyld.rs`
//! interpret the results.
//!
//! A Mach call returns a `kern_return_t` and never errno; BSD calls return errno. Names and numbers are those
//! of xnu's headers (osfmk/mach/*.h, bsd/sys/proc_info.h).

use std::fmt;

use crate::arch::Arch;
use crate::binary::ImageBytes;

/// The name of a send right to a task in this process. 0 is MACH_PORT_NULL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskPort(pub u32);

/// The name of a send right to a thread in this process. Names are reused after they are deallocated: a
/// thread is identified by its `thread_id`, never by its port name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadPort(pub u32);

/// The right that `task_suspend2` returns; passing it to `task_resume2`, or the death of its holder, ends
/// that suspension.
#[derive(Debug, PartialEq, Eq)]
pub struct SuspensionToken(pub u32);

macro_rules! kern_return {
    ($($(#[$doc:meta])* $name:ident = $value:expr),* $(,)?) => {
        /// A failed `kern_return_t`: osfmk/mach/kern_return.h, mig_errors.h and message.h.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum KernReturn {
            $($(#[$doc])* $name,)*
            /// A code without a name here.
            Other(i32),
        }

        impl KernReturn {
            /// The failure of a code; `None` for KERN_SUCCESS.
            #[must_use]
            pub fn from_code(code: i32) -> Option<KernReturn> {
                match code {
                    0 => None,
                    $($value => Some(KernReturn::$name),)*
                    other => Some(KernReturn::Other(other)),
                }
            }

            /// All named codes.
            pub const NAMED: &[KernReturn] = &[$(KernReturn::$name),*];

            /// The number of the code.
            #[must_use]
            pub fn code(self) -> i32 {
                match self {
                    $(KernReturn::$name => $value,)*
                    KernReturn::Other(code) => code,
                }
            }
        }
    };
}

kern_return! {
    /// The address is not mapped (also a guard page under a short read).
    InvalidAddress = 1,
    /// Mapped, but not readable.
    ProtectionFailure = 2,
    /// No room in the address space.
    NoSpace = 3,
    /// An argument was wrong: a count too small, a port too weak or dead.
    InvalidArgument = 4,
    /// Temporarily impossible: refused attach, resumed without being suspended, inactive task.
    Failure = 5,
    /// The kernel ran out of a resource.
    ResourceShortage = 6,
    /// No access.
    NoAccess = 8,
    /// The memory could not be paged in.
    MemoryError = 10,
    /// Interrupted; try again.
    Aborted = 14,
    /// No right has that name.
    InvalidName = 15,
    /// A right of another kind.
    InvalidRight = 17,
    /// The object has been terminated.
    Terminated = 37,
    /// Not supported here.
    NotSupported = 46,
    /// Denied by policy.
    Denied = 53,
    /// MIG_BAD_ARGUMENTS.
    MigBadArguments = -304,
    /// MIG_SERVER_DIED.
    MigServerDied = -308,
    /// MACH_SEND_INVALID_DEST: the port has died.
    SendInvalidDest = 0x1000_0003,
    /// MACH_RCV_TIMED_OUT.
    ReceiveTimedOut = 0x1000_4003,
    /// MACH_RCV_PORT_DIED.
    ReceivePortDied = 0x1000_4009,
}

impl fmt::Display for KernReturn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kern_return {}", self.code())
    }
}

/// Result of a Mach call.
pub type Kern<T> = Result<T, KernReturn>;

/// An errno of a BSD call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

/// An array that a call placed in this process's memory; it must be given to
/// [`MachKernel::vm_deallocate`], and each port in it to [`MachKernel::port_deallocate`].
#[derive(Debug, PartialEq, Eq)]
pub struct OutOfLine {
    /// Address in this process; 0 for an empty array.
    pub address: u64,
    /// Its size in bytes.
    pub size: u64,
}

/// THREAD_BASIC_INFO (flavor 3, count 10), the used part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadBasicInfo {
    /// User CPU time, nanoseconds (the kernel has microseconds).
    pub user_ns: u64,
    /// System CPU time, nanoseconds.
    pub system_ns: u64,
    /// 1 running or runnable, 2 stopped, 3 waiting, 4 uninterruptible, 5 halted. A suspended thread, by its task or
    /// itself, waits in the kernel and has 3; only `thread_stop` gives 2 (osfmk/kern/thread_act.c).
    pub run_state: i32,
    /// Number of suspensions of this thread, without those of the task.
    pub suspend_count: i32,
}

/// THREAD_EXTENDED_INFO (flavor 5, count 28), the used part: times and state as in [`ThreadBasicInfo`], and
/// the name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ThreadExtendedInfo {
    /// User CPU time, nanoseconds.
    pub user_ns: u64,
    /// System CPU time, nanoseconds.
    pub system_ns: u64,
    /// `TH_STATE_…` (osfmk/mach/thread_info.h).
    pub run_state: i32,
    /// Name of the pthread; empty without one, as for most main threads.
    pub name: String,
}

/// THREAD_IDENTIFIER_INFO (flavor 4, count 6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadIdentifierInfo {
    /// System-wide unique number.
    pub thread_id: u64,
    /// TSD base; 0: no pthread.
    pub thread_handle: u64,
    /// Address in the target of the pointer to the current dispatch queue, or 0.
    pub dispatch_qaddr: u64,
}

/// A thread state flavor and its word count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateFlavor {
    /// Number of the flavor.
    pub flavor: i32,
    /// Its size in 32-bit words.
    pub count: u32,
}

impl StateFlavor {
    /// x86_THREAD_STATE64.
    pub const X86_64: StateFlavor = StateFlavor { flavor: 4, count: 42 };
    /// ARM_THREAD_STATE64.
    pub const ARM64: StateFlavor = StateFlavor { flavor: 6, count: 68 };
    /// The larger of the counts.
    pub const COUNT_MAX: usize = 68;
}

/// TASK_DYLD_INFO (flavor 17, count 5, packed to 20 bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskDyldInfo {
    /// Address in the target of dyld_all_image_infos; 0 before dyld runs.
    pub all_image_info_addr: u64,
    /// Its size in bytes.
    pub all_image_info_size: u64,
    /// 0: 32-bit structures, 1: 64-bit.
    pub all_image_info_format: i32,
}

/// A memory region by `mach_vm_region_recurse`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// First address; may be above the requested one.
    pub address: u64,
    /// Bytes.
    pub size: u64,
    /// VM_PROT_READ 1, WRITE 2, EXECUTE 4.
    pub protection: i32,
    /// VM_MEMORY_STACK is 30.
    pub user_tag: u32,
    /// Whether it is a submap (only with a small depth).
    pub is_submap: bool,
}

/// PROC_PIDTBSDINFO (flavor 3, 136 bytes), the used part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BsdInfo {
    /// PROC_FLAG_*: LP64 0x10, INEXIT 4, TRACED 2, translated by Rosetta 0x2000000.
    pub flags: u32,
    /// 1 SIDL, 2 SRUN, 3 SSLEEP, 4 SSTOP, 5 SZOMB.
    pub status: u32,
    /// Parent.
    pub ppid: u32,
    /// Effective user.
    pub uid: u32,
    /// Short name.
    pub name: String,
    /// Start time, microseconds since 1970; kept by exec. Distinguishes a process from a later one with its
    /// number.
    pub start_us: u64,
}

/// The calls. Methods take `&self`: a kernel has no state that Rust could borrow.
///
/// Ports: the caller owns every returned right, and releases each with [`MachKernel::port_deallocate`] as
/// often as it was returned.
pub trait MachKernel {
    /// `task_for_pid(mach_task_self(), pid)`. Success with port 0 is possible.
    fn task_for_pid(&self, pid: i32) -> Kern<TaskPort>;
    /// `pid_for_task`.
    fn pid_for_task(&self, task: TaskPort) -> Kern<i32>;
    /// `mach_port_deallocate(mach_task_self(), name)`: releases one reference.
    fn port_deallocate(&self, name: u32) -> Kern<()>;
    /// `mach_vm_deallocate(mach_task_self(), ...)` of memory that a call placed in this process.
    fn vm_deallocate(&self, memory: OutOfLine) -> Kern<()>;

    /// `task_suspend2`: stops every thread; released by `task_resume2` or our death.
    fn task_suspend2(&self, task: TaskPort) -> Kern<SuspensionToken>;
    /// `task_resume2`: consumes the token, success or not. The token of a task that has died is a dead name,
    /// which the kernel leaves behind with `SendInvalidDest` (mach_types.defs: a send-once right, moved);
    /// this call releases that name, too.
    fn task_resume2(&self, token: SuspensionToken) -> Kern<()>;
    /// `task_threads`: appends the ports to `ports`, in creation order.
    fn task_threads(&self, task: TaskPort, ports: &mut Vec<ThreadPort>) -> Kern<OutOfLine>;
    /// `task_info(TASK_DYLD_INFO)` with the given count (5).
    fn task_dyld_info(&self, task: TaskPort, count: u32) -> Kern<TaskDyldInfo>;

    /// `thread_info(THREAD_BASIC_INFO)` with the given count (10).
    fn thread_basic_info(&self, thread: ThreadPort, count: u32) -> Kern<ThreadBasicInfo>;
    /// `thread_info(THREAD_IDENTIFIER_INFO)` with the given count (6).
    fn thread_identifier_info(&self, thread: ThreadPort, count: u32) -> Kern<ThreadIdentifierInfo>;
    /// `thread_info(THREAD_EXTENDED_INFO)` with the given count (28).
    fn thread_extended_info(&self, thread: ThreadPort, count: u32) -> Kern<ThreadExtendedInfo>;
    /// `thread_get_state`: `count` is the number of words that `state` can hold on entry, and that were
    /// filled on return.
    fn thread_get_state(
        &self,
        thread: ThreadPort,
        flavor: i32,
        state: &mut [u32; StateFlavor::COUNT_MAX],
        count: &mut u32,
    ) -> Kern<()>;

    /// `mach_vm_read_overwrite`: all of `into` or nothing.
    fn vm_read_overwrite(&self, task: TaskPort, address: u64, into: &mut [u8]) -> Kern<()>;
    /// `mach_vm_region_recurse` from `address`, descending `depth` submaps, with the given count (19).
    fn vm_region_recurse(&self, task: TaskPort, address: u64, depth: u32, count: u32) -> Kern<Region>;

    /// `proc_pidinfo(PROC_PIDTBSDINFO, 1)`: the 1 includes zombies, which are ESRCH without it. EPERM: a
    /// process of another user, and this one is not root (bsd/kern/proc_info.c, `proc_pidinfo_internal`).
    fn proc_bsdinfo(&self, pid: i32) -> Result<BsdInfo, Errno>;
    /// `proc_pidpath`, of any user's process; a zombie is ESRCH.
    fn proc_pidpath(&self, pid: i32) -> Result<String, Errno>;
    /// `proc_regionfilename`: the file mapped at an address.
    fn proc_regionfilename(&self, pid: i32, address: u64) -> Result<String, Errno>;
    /// `sysctl KERN_PROCARGS2`: argc, path and arguments as the kernel packs them.
    fn proc_args(&self, pid: i32) -> Result<Vec<u8>, Errno>;
    /// `csops(CS_OPS_STATUS)`: code signing flags (hardened runtime 0x10000,
    /// get-task-allow 4, platform binary 0x4000000).
    fn code_signing_flags(&self, pid: i32) -> Result<u32, Errno>;
    /// `sysctlbyname` of a 32-bit number: `machdep.virtual_address_size`,
    /// `sysctl.proc_translated`, `hw.ncpu`.
    fn sysctl_i32(&self, name: &str) -> Result<i32, Errno>;
    /// `kill`; signal 0 checks that the process exists.
    fn kill(&self, pid: i32, signal: i32) -> Result<(), Errno>;
    /// `geteuid`.
    fn effective_uid(&self) -> u32;
    /// `getpid`.
    fn own_pid(&self) -> i32;

    /// `posix_spawnp` with POSIX_SPAWN_START_SUSPENDED, and with these variables beside those of this process: the pid
    /// of the new process.
    fn spawn_suspended(
        &self,
        command: &[std::ffi::OsString],
        variables: &[(std::ffi::OsString, std::ffi::OsString)],
    ) -> Result<i32, Errno>;
    /// `waitpid(pid, WNOHANG)`: the wait status of a child that has exited.
    fn wait_ended(&self, pid: i32) -> Result<Option<i32>, Errno>;

    /// `mach_absolute_time`, in ticks.
    fn absolute_time(&self) -> u64;
    /// `mach_timebase_info`: nanoseconds = ticks × numer / denom.
    fn timebase(&self) -> (u32, u32);
    /// `mach_wait_until`, in ticks; ends early with [`KernReturn::Aborted`].
    fn wait_until(&self, deadline_ticks: u64) -> Kern<()>;
    /// `pthread_set_qos_class_self_np(QOS_CLASS_USER_INTERACTIVE, 0)`: schedules the calling thread, and
    /// fires its timers, with user-interactive priority.
    fn request_interactive_qos(&self) -> Result<(), Errno>;
    /// `vm_page_size` of this process.
    fn page_size(&self) -> u64;
    /// The instruction set of this program, and so of threads with a readable state.
    fn arch(&self) -> Arch;
    /// Bytes of this process's own shared cache at the same address as in the target (the cache is the same,
    /// see `dyld.rs`): `len` bytes at `address`, or `None` unless all of them are mapped, readable and never
    /// written: the cache's range has holes, and data that changes. Costs one region look-up per piece.
    fn own_shared_cache(&self, address: u64, len: usize) -> Option<ImageBytes>;
    /// `_dyld_get_shared_cache_uuid` and `_dyld_get_shared_cache_range` of this process:
    /// UUID, first address, size in bytes.
    fn own_shared_cache_identity(&self) -> Option<([u8; 16], u64, u64)>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_named_code_converts_to_its_number_and_back() {
        assert_eq!(KernReturn::NAMED.len(), 19);
        for named in KernReturn::NAMED {
            assert!(!matches!(named, KernReturn::Other(_)));
            assert_ne!(named.code(), 0, "{named:?} would be success");
            assert_eq!(KernReturn::from_code(named.code()), Some(*named));
        }
    }

    #[test]
    fn codes_match_the_headers() {
        for (named, code) in [
            (KernReturn::InvalidAddress, 1),
            (KernReturn::InvalidArgument, 4),
            (KernReturn::Failure, 5),
            (KernReturn::Aborted, 14),
            (KernReturn::Terminated, 37),
            (KernReturn::MigServerDied, -308),
            (KernReturn::SendInvalidDest, 0x1000_0003),
            (KernReturn::ReceivePortDied, 0x1000_4009),
        ] {
            assert_eq!(named.code(), code, "{named:?}");
        }
        assert_eq!(KernReturn::from_code(0), None);
        for unnamed in [-307, 7, 9, i32::MIN, i32::MAX] {
            assert_eq!(KernReturn::from_code(unnamed), Some(KernReturn::Other(unnamed)));
            assert_eq!(KernReturn::Other(unnamed).code(), unnamed);
        }
    }
}

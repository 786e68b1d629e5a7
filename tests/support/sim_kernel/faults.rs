//! Faults and the calls where they are injected: codes, odd successes, and events in the target right before
//! a call. Also the codes that a real kernel can return for each call.

use super::dyld::Op;

macro_rules! methods {
    ($($name:ident = $text:literal),* $(,)?) => {
        /// A method of `MachKernel` that is counted as a call.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Method { $($name),* }

        impl Method {
            pub const ALL: &[Method] = &[$(Method::$name),*];

            pub fn name(self) -> &'static str {
                match self { $(Method::$name => $text),* }
            }
        }
    };
}

methods! {
    TaskForPid = "task_for_pid",
    PidForTask = "pid_for_task",
    PortDeallocate = "port_deallocate",
    VmDeallocate = "vm_deallocate",
    TaskSuspend2 = "task_suspend2",
    TaskResume2 = "task_resume2",
    TaskThreads = "task_threads",
    TaskDyldInfo = "task_dyld_info",
    ThreadBasicInfo = "thread_basic_info",
    ThreadIdentifierInfo = "thread_identifier_info",
    ThreadExtendedInfo = "thread_extended_info",
    ThreadGetState = "thread_get_state",
    VmReadOverwrite = "vm_read_overwrite",
    VmRegionRecurse = "vm_region_recurse",
    ProcBsdinfo = "proc_bsdinfo",
    ProcPidpath = "proc_pidpath",
    ProcRegionfilename = "proc_regionfilename",
    ProcArgs = "proc_args",
    CodeSigningFlags = "code_signing_flags",
    SysctlI32 = "sysctl_i32",
    Kill = "kill",
    SpawnSuspended = "spawn_suspended",
    WaitEnded = "wait_ended",
    AbsoluteTime = "absolute_time",
    WaitUntil = "wait_until",
    OwnSharedCache = "own_shared_cache",
    RequestInteractiveQos = "pthread_set_qos_class_self_np",
}

impl Method {
    /// Whether it fails with an errno instead of a `kern_return_t`.
    pub fn is_bsd(self) -> bool {
        use Method::*;
        matches!(
            self,
            ProcBsdinfo
                | ProcPidpath
                | ProcRegionfilename
                | ProcArgs
                | CodeSigningFlags
                | SysctlI32
                | Kill
                | SpawnSuspended
                | WaitEnded
                | RequestInteractiveQos
        )
    }

    /// Whether it may be called while the target is held: pauses must be minimal.
    pub fn is_for_a_pause(self) -> bool {
        use Method::*;
        matches!(
            self,
            ThreadGetState
                | VmReadOverwrite
                | TaskResume2
                | AbsoluteTime
                | ThreadBasicInfo
                | ThreadIdentifierInfo
                | ThreadExtendedInfo
        )
    }
}

pub const EPERM: i32 = 1;
pub const ENOENT: i32 = 2;
pub const ESRCH: i32 = 3;
pub const EIO: i32 = 5;
pub const ECHILD: i32 = 10;
pub const EACCES: i32 = 13;
pub const EINVAL: i32 = 22;
pub const EAGAIN: i32 = 35;

/// MACH_SEND_INVALID_DEST.
pub const INVALID_DEST: i32 = 0x1000_0003;

/// Plausible failures of a real kernel for a call with valid arguments.
pub fn plausible_codes(method: Method) -> &'static [i32] {
    match method {
        Method::TaskForPid => &[2, 5, 14],
        Method::PidForTask => &[5],
        Method::PortDeallocate => &[15, 17],
        Method::VmDeallocate => &[1],
        Method::TaskSuspend2 => &[4, 5, 6, 37, 46, INVALID_DEST],
        Method::TaskResume2 => &[5, INVALID_DEST],
        Method::TaskThreads => &[4, 5, 6, 37, INVALID_DEST],
        Method::TaskDyldInfo => &[4, 5, 37, INVALID_DEST],
        Method::ThreadBasicInfo | Method::ThreadIdentifierInfo | Method::ThreadExtendedInfo => {
            &[4, 37, 46, INVALID_DEST]
        }
        Method::ThreadGetState => &[4, 5, 37, 53, INVALID_DEST],
        Method::VmReadOverwrite => &[1, 2, 4, 6, 10, INVALID_DEST],
        Method::VmRegionRecurse => &[1, 4, INVALID_DEST],
        Method::ProcBsdinfo | Method::Kill => &[EPERM, ESRCH],
        Method::ProcPidpath => &[ENOENT, ESRCH],
        Method::ProcRegionfilename => &[EPERM, ENOENT, ESRCH],
        Method::ProcArgs => &[EPERM, EIO, EINVAL],
        Method::CodeSigningFlags => &[EPERM, ESRCH, EINVAL],
        Method::SysctlI32 => &[EPERM, ENOENT],
        Method::SpawnSuspended => &[ENOENT, EACCES, EAGAIN],
        Method::WaitEnded => &[ECHILD],
        Method::WaitUntil => &[14],
        Method::RequestInteractiveQos => &[EPERM, EINVAL],
        Method::AbsoluteTime | Method::OwnSharedCache => &[],
    }
}

/// Which calls a fault applies to. Calls are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The k-th of all calls.
    Call(u64),
    /// The k-th call of a method.
    Nth(Method, u64),
    /// Every call of a method, from its k-th on.
    Every(Method, u64),
}

/// Injected result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// A `kern_return_t`, or an errno of a BSD call. Calls that release something (a reference, memory, a
    /// suspension) fail because it is already gone: nothing is left to undo.
    Code(i32),
    /// `task_threads`: success with no threads.
    NoThreads,
    /// An empty text: a name or a path.
    Empty,
}

/// An event in the target right before a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Happening {
    /// The thread at this index among the living ones exits.
    ThreadEnds(usize),
    /// The process exits with this wait status.
    Exit(i32),
    /// It executes its next program.
    Exec,
    /// SIGKILL of the profiler: see `SimKernel::run_killed`.
    KillProfiler,
    /// Stopped by job control.
    Stop,
    /// dyld begins its next change, performs this many steps and pauses until `hold` calls later.
    Tear { steps: usize, hold: u64 },
    /// dyld has another change to make now.
    Change(Op),
}

/// All planned faults.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    pub answers: Vec<(Which, Answer)>,
    /// Events before a call (of a process; the first one if there is only one).
    pub happenings: Vec<(u64, Happening)>,
}

impl FaultPlan {
    pub fn answer(&self, call: u64, method: Method, of_method: u64) -> Option<Answer> {
        let hit = |which: &Which| match *which {
            Which::Call(at) => at == call,
            Which::Nth(of, at) => of == method && at == of_method,
            Which::Every(of, from) => of == method && of_method >= from,
        };
        self.answers.iter().find(|(which, _)| hit(which)).map(|(_, answer)| *answer)
    }
}

//! Sources of samples. The only place with OS calls and, besides `binary::map`, with `unsafe`.
//!
//! Sources that stop threads implement [`Target`]: `linux` (ptrace), `mach` (macOS), `gdb` (a stub of the gdb remote
//! protocol), `sim` (seeded, with injected faults). A stop, the copy of registers and stack bytes, and the release
//! are one operation: [`Target::next`] does not return while a captured thread is still stopped, so no caller can
//! forget the release. Sources whose samples the kernel takes implement [`pushed::PushedSource`]: `linux::perf`
//! (perf_event). All but `linux` and the calls of `mach` are compiled everywhere. No source walks, names or
//! aggregates anything.

use std::fmt;
use std::sync::Arc;

use crate::addr::Avma;
use crate::arch::Arch;
use crate::binary::{Files, ImageBytes, Mapping, NoFiles, OpenError, ProgramPath};

mod allocator;
mod capture;
#[cfg(unix)]
pub mod child;
pub mod gdb;
#[cfg(unix)]
pub mod heap;
pub mod heap_shim;
#[cfg(target_os = "linux")]
pub mod linux;
pub mod mach;
pub mod output;
mod prefetched_words;
pub mod process_name;
pub mod pushed;
pub mod signals;
pub mod sim;
#[cfg(unix)]
mod startup;
mod target_file;
mod thread_status;
pub mod viewer;

pub use capture::{Capture, OtherStack};
pub use prefetched_words::{PREFETCH_RANGE_BYTES, PREFETCH_RANGES_MAX, PrefetchedWords};
pub use target_file::LocalFiles;
pub use thread_status::{Activity, ThreadStatus};

/// The readable form of a Swift name (`$s4main3fooyyF`), from the runtime of this system;
/// `None` if it is none, and where there is no Swift runtime to ask.
#[must_use]
pub fn swift_demangle(name: &str) -> Option<String> {
    #[cfg(target_vendor = "apple")]
    return mach::swift::demangle(name);
    #[cfg(not(target_vendor = "apple"))]
    {
        let _ = name;
        None
    }
}

/// Starts a command as this process was started: with the same signals, limits and standard error.
#[cfg(unix)]
fn spawn_as_we_began(command: &mut std::process::Command) -> std::io::Result<std::process::Child> {
    #[cfg(target_os = "linux")]
    return linux::spawn(command);
    #[cfg(not(target_os = "linux"))]
    command.spawn()
}

/// Removes what a recording of allocations has put into the file system: this process ends now.
pub fn remove_heap_directory() {
    #[cfg(unix)]
    heap::directory::remove_current();
}

/// Requests priority for the calling thread when it wakes: a target is stopped meanwhile.
fn prefer_this_thread() {
    #[cfg(target_os = "linux")]
    linux::prefer_this_thread();
}

/// What a thread of the profiler does from now on, which decides what privileges it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The first thread, while another one samples by the kernel; it finds names and writes afterwards.
    Waiting,
    /// The first thread, while another one samples by ptrace; it starts a new one after a suspension.
    Tracing,
    /// The sampler, which reads the kernel's samples and /proc.
    SamplingByKernel,
    /// The sampler, which traces threads and stops them.
    SamplingByPtrace,
    /// The first thread, which samples by a gdb stub or a simulation; it finds names and writes afterwards.
    SamplingByStub,
    /// The first thread and its helpers, which find names or read profiles.
    Naming,
    /// The first thread, which writes outputs.
    Writing,
    /// A thread that answers signals or draws the progress line.
    Watching,
}

/// Which way of sampling is wanted, where a system has several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SamplingMethod {
    /// The best that the system allows.
    #[default]
    Auto,
    /// By the kernel's own samples (perf_event), or not at all.
    Perf,
    /// By stopping threads (ptrace).
    Ptrace,
}

/// What decides how a process is sampled.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// The requested one.
    pub way: SamplingMethod,
    /// Samples per second.
    pub hz: u32,
    /// Threads that wait are wanted, too.
    pub idle: bool,
    /// Nothing but threads that wait is wanted.
    pub off_cpu: bool,
    /// Frames in the kernel are requested; not every source has them.
    pub kernel: bool,
    /// Processes that it starts are wanted, too.
    pub children: bool,
    /// They are wanted in any case: what cannot record them will not do.
    pub children_needed: bool,
}

/// Which processes of a machine are recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessSelection {
    /// These, by process id.
    pub pids: Vec<u32>,
    /// What they start, and what that starts, too.
    pub children: bool,
    /// All, the kernel's threads too.
    pub all: bool,
    /// Those in this control group, and in groups below it: its path as `/proc/PID/cgroup` has it.
    pub cgroup: Option<String>,
    /// Those of this user.
    pub uid: Option<u32>,
}

impl ProcessSelection {
    /// Whether they are given by their numbers, but for what they start.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        !self.all && self.cgroup.is_none() && self.uid.is_none()
    }
}

/// A process to record, by who takes its samples.
pub enum SampleSource<'a> {
    /// The engine does: it stops threads.
    Stopped(&'a mut dyn Target),
    /// The system does, and reports it.
    Pushed(&'a mut dyn pushed::PushedSource),
}

impl SampleSource<'_> {
    /// Facts about the process.
    pub fn observed(&mut self) -> &mut dyn Observed {
        match self {
            SampleSource::Stopped(target) => *target,
            SampleSource::Pushed(source) => *source,
        }
    }
}

/// A thread of a target: the system's own number for it (Linux tid, Mach `thread_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u64);

/// What is known of a target from the moment of attaching.
#[derive(Clone, Debug)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Short name, as `ps` shows it.
    pub name: String,
    /// Command line, arguments joined by spaces; empty when not known.
    pub command: String,
    /// Instruction set.
    pub arch: Arch,
    /// Name of the backend: `ptrace`, `perf_event`, `gdb`, `sim`.
    pub backend: &'static str,
    /// Why it was that one and how it samples, for people; empty where there is no other.
    pub backend_why: String,
    /// CPUs that the target may run on, at least 1.
    pub cpus: usize,
    /// Mask of the bits of a code pointer that hold an address: pointer
    /// authentication (PAC) puts a signature above them. All ones where unused.
    pub code_mask: u64,
    /// Whether the platform keeps the frame pointer valid at all times (Apple's arm64).
    pub fp_always: bool,
    /// Whether the unwind information of its images is understood; otherwise stacks are
    /// walked by frame pointers (Mach-O: macOS keeps them).
    pub cfi: bool,
    /// Whether a stop leaves a system call that waits alone. Where it does not (Linux:
    /// EINTR), waiting threads are not stopped for a profile of CPU time.
    pub stops_waits_unseen: bool,
    /// Whether a stop holds every thread of the target, not just the one (macOS: the task).
    pub stops_hold_all: bool,
}

/// A target fault, by consequence: the sampler acts on this, never on an errno.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process no longer exists.
    Gone,
    /// This thread no longer exists; the process may continue.
    ThreadGone,
    /// The system refused; the text names what and why.
    Denied(String),
    /// Not this time (memory unmapped under the read, list in motion): skip and count it.
    Transient(&'static str),
    /// The recording cannot continue; the text names what failed.
    Fatal(String),
    /// The connection to the target is lost; the recording until then is whole. The text has the reason.
    Lost(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Gone => f.write_str("the process has exited"),
            Fault::ThreadGone => f.write_str("the thread has exited"),
            Fault::Transient(what) => f.write_str(what),
            Fault::Denied(what) | Fault::Fatal(what) | Fault::Lost(what) => f.write_str(what),
        }
    }
}

/// How a stop ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Registers and stack bytes are in the [`Capture`].
    Captured,
    /// The thread had begun to wait between the poll and the stop: it was released at once, its interrupted system
    /// call continues, and nothing was captured.
    BeganToWait,
    /// The thread was ready, but on no CPU when the stop was requested: its place does not show where CPU time goes.
    /// It was released at once, and nothing was captured.
    NotOnCpu,
    /// Stopped, but registers or stack could not be read; it runs again.
    Unreadable(&'static str),
}

/// What a source shows of a thread that waits, without a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepingThread {
    /// Registers and stack bytes are in the [`Capture`], of one moment.
    Captured,
    /// The thread does not wait, or was on a CPU in between.
    Awake,
    /// The source does not show it.
    Hidden,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// `exit(code)`.
    Code(i32),
    /// Ended by a signal.
    Signal(i32),
    /// Ended; how is not ours to see (it is not our child).
    Unknown,
}

/// What [`Target::next`] saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetEvent {
    /// The time given to `next` was reached.
    Timeout,
    /// A thread with a stop request stopped and runs again.
    Stopped {
        /// Which thread.
        thread: ThreadId,
        /// What came of it.
        outcome: Outcome,
    },
    /// A thread of the target that was not known before; it runs.
    ThreadStarted {
        /// Its number.
        thread: ThreadId,
        /// Stack pointer at its first instruction, where the system shows it.
        stack_top: Option<Avma>,
    },
    /// A thread has ended; it is no longer known to the target.
    ThreadExited {
        /// Its number.
        thread: ThreadId,
        /// All of its CPU time, nanoseconds, if the system still reports it.
        cpu_ns: Option<u64>,
    },
    /// The process of this thread replaced its program: its images and stacks of before are void,
    /// and only this thread of it is left.
    Exec {
        /// The thread that continues.
        thread: ThreadId,
        /// Stack pointer at the first instruction of the new program.
        stack_top: Option<Avma>,
    },
    /// Images were loaded or unloaded, if the system reports that at once.
    ImagesChanged,
    /// A process is probably about to exit: it can be read until the next call.
    Leaving {
        /// Its number.
        process: u32,
    },
    /// A process has exited, after its threads; others continue. Until the next call the facts kept of it can be
    /// read.
    ProcessEnded {
        /// Its number.
        process: u32,
    },
    /// The process has ended, or all of those that the recording ends with.
    Exited(ExitStatus),
    /// The recording is to end while the process runs on.
    Terminate,
}

/// A process as it can be observed while it runs, by any source: its description, images, names of threads, memory.
pub trait Observed {
    /// What was learned at attach.
    fn process(&self) -> &Process;

    /// A thread's name, if it has one and still exists.
    fn thread_name(&mut self, thread: ThreadId) -> Option<String>;

    /// The executable ranges now mapped, sorted by address. Replaces the content of `out`.
    ///
    /// # Errors
    /// [`Fault::Gone`] or [`Fault::Denied`].
    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault>;

    /// The path that the program was started by, where that is a link to its file, one of these mappings.
    fn program_path(&mut self, _mappings: &[Mapping]) -> Option<Arc<ProgramPath>> {
        None
    }

    /// Whether each new executable mapping is reported, so that code outside of all is no reason to list them again.
    fn reports_mmaps(&self) -> bool {
        false
    }

    /// The bytes of the file behind a mapping, certain to be the file that is mapped.
    ///
    /// # Errors
    /// Why they cannot be had: [`OpenError::Deleted`], [`OpenError::Replaced`].
    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError>;

    /// The files that debug information may be in, as the target sees them. What is
    /// returned outlives the target.
    fn files(&mut self) -> Arc<dyn Files> {
        Arc::new(NoFiles)
    }

    /// Reads the target's memory without stopping it; returns how many bytes from
    /// the start of `into` were read (a page that is not mapped ends the read).
    ///
    /// # Errors
    /// [`Fault::Transient`] when not even the first byte is mapped.
    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault>;
}

/// The thread that makes the calls of a target, where the system binds them to one.
pub trait CallThread {
    /// Runs `body` in that thread, and waits for it.
    fn call(&self, body: &mut dyn FnMut());

    /// Ends the thread: nothing of the target is held any more, and nothing of it was stopped for that.
    fn let_go(&self);

    /// Starts it again, for [`Target::reattach`].
    ///
    /// # Errors
    /// [`Fault::Lost`] when the system starts none.
    fn begin_anew(&self) -> Result<(), Fault>;
}

/// A process that can be sampled, or several: as [`Observed`] it is the main process, or a placeholder for several.
///
/// Contract: between calls no thread of the target is stopped by this backend, except those with a pending stop
/// request, and the one of the last [`TargetEvent::Leaving`]. Dropping the target lets every thread run and releases the
/// processes without stopping them.
pub trait Target: Observed {
    /// The process of a thread, by its number. That of the last event of [`Target::next`] is known.
    fn process_of(&self, _thread: ThreadId) -> u32 {
        self.process().pid
    }

    /// Another process than the main one, until its exit is reported; `None` for one that is not known.
    fn other(&mut self, _process: u32) -> Option<&mut dyn Observed> {
        None
    }

    /// CPU time of all threads of a process so far, including those that have exited or cannot be sampled,
    /// nanoseconds; for the process whose exit was reported last, all of it. `None` if the source has no such clock.
    fn process_cpu_ns(&mut self, _process: u32) -> Option<u64> {
        None
    }

    /// The threads now known, in no particular order, with the stack pointer at
    /// their first instruction where known. Replaces the content of `out`.
    fn threads(&mut self, out: &mut Vec<(ThreadId, Option<Avma>)>);

    /// Polls a thread from outside: it is not stopped and cannot notice.
    ///
    /// # Errors
    /// [`Fault::ThreadGone`] when it has ended.
    fn poll(&mut self, thread: ThreadId) -> Result<ThreadStatus, Fault>;

    /// Stop requests that should be pending at once, at least 1: enough to hide the latency, few enough that the
    /// first stopped thread does not wait for the last.
    fn stops_at_once(&self) -> usize {
        4
    }

    /// Asks a thread to stop, to be captured by [`Target::next`] with up to
    /// `stack_bytes` of its stack. Asking again before it was collected does nothing.
    /// `keep_waiting` lets a thread that is found in a system call be captured too
    /// (wall-clock profiles); otherwise it gives [`Outcome::BeganToWait`]. One that job
    /// control has stopped is captured then as well, and stays stopped.
    ///
    /// # Errors
    /// [`Fault::ThreadGone`] when it has ended.
    fn interrupt(&mut self, thread: ThreadId, stack_bytes: usize, keep_waiting: bool) -> Result<(), Fault>;

    /// Whether captures can have [`Capture::prefetched`].
    fn prefetches(&self) -> bool {
        false
    }

    /// Has each capture of a thread from now on hold these ranges of its memory, too: the address of the first
    /// byte of each, ascending.
    fn prefetch(&mut self, _thread: ThreadId, _ranges: &[u64]) {}

    /// The next thing that happened, at the latest [`TargetEvent::Timeout`] at `until_ns`
    /// of the engine's clock. Passes the target's own signals on and keeps up with
    /// threads that come and go. For [`Outcome::Captured`] the registers and stack
    /// bytes are in `capture`, and the thread already runs again.
    ///
    /// # Errors
    /// [`Fault::Gone`] after the process has exited, [`Fault::Fatal`] when the system fails.
    fn next(&mut self, until_ns: u64, capture: &mut Capture) -> Result<TargetEvent, Fault>;

    /// How long in all [`Target::next`] has returned late because the system woke this thread late;
    /// `None` where that is not known.
    fn overslept_ns(&self) -> Option<u64> {
        None
    }

    /// Captures a thread that waits without stopping it: stack pointer, program counter and up to
    /// `stack_bytes` of its stack. Its other registers are [unknown](crate::arch::UNKNOWN_REGISTER).
    fn capture_sleeping(
        &mut self,
        _thread: ThreadId,
        _stack_bytes: usize,
        _capture: &mut Capture,
    ) -> SleepingThread {
        SleepingThread::Hidden
    }

    /// Whether a stop may end this thread's wait in another way than without a profiler, so that the
    /// thread must not be stopped in one (Linux: it runs under a seccomp filter).
    fn is_harmed_by_stops(&mut self, _thread: ThreadId) -> bool {
        false
    }

    /// Stack pointer and program counter of a waiting thread, read without stopping it; `None` if the system does not
    /// report them or the thread does not wait.
    fn waits_at(&mut self, _thread: ThreadId) -> Option<(Avma, Avma)> {
        None
    }

    /// The thread that [`Target::interrupt`], [`Target::next`], [`Target::release`] and [`Target::reattach`] have to be called
    /// in; `None` where any will do.
    fn call_thread(&self) -> Option<Arc<dyn CallThread>> {
        None
    }

    /// Releases what the end of the calling thread would harm; called before that thread ends.
    fn release(&mut self) {}

    /// Attaches to the target again after it was released for a while. What came and went meanwhile is among the next
    /// events.
    ///
    /// # Errors
    /// [`Fault::Lost`]: it may not be held any more.
    fn reattach(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}

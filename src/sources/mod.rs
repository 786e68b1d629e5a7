//! Sources of samples: the only modules with OS calls and, besides `binary::map` and the heap shim, with `unsafe`.
//!
//! Sources that stop threads implement [`Target`]: `linux` (ptrace), `mach` (macOS), `gdb` (a stub of the gdb
//! remote protocol), `sim` (seeded, with injected faults). Stop, copy of registers and stack bytes, and
//! release are one operation: [`Target::next`] does not return while a captured thread is stopped, so no
//! caller can forget the release. Sources that deliver samples in batches implement [`pushed::PushedSource`]:
//! `linux::perf` (perf_event), and for allocations `linux::heap` (shim, probes) and `gdb::heap` (breakpoints).
//! Everything except `linux`, the calls of `mach` and what is `cfg(unix)` is compiled on all systems.
//! Sources do not walk stacks, resolve names or aggregate.

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
mod maps_line;
pub mod output;
#[cfg(target_os = "linux")]
mod proc_file;
pub mod process_name;
pub mod pushed;
pub mod signals;
pub mod sim;
#[cfg(unix)]
pub mod startup;
mod target_file;
pub mod user_files;
pub mod viewer;

use std::fmt;
use std::sync::Arc;

use crate::addr::Avma;
use crate::arch::Arch;
use crate::binary::{Files, ImageBytes, Mapping, NoFiles, OpenError, ProgramPath};

pub use capture::{Capture, OtherStack, PREFETCH_RANGE_BYTES, PREFETCH_RANGES_MAX, PrefetchedWords};
pub use target_file::LocalFiles;

/// Demangles a Swift name (`$s4main3fooyyF`) with this system's Swift runtime; `None` if it is not one, or
/// without such a runtime.
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

/// Starts a command with the signals, limits and standard error that this process was started with.
#[cfg(unix)]
fn spawn_as_we_began(command: &mut std::process::Command) -> std::io::Result<std::process::Child> {
    #[cfg(target_os = "linux")]
    return linux::spawn(command);
    #[cfg(not(target_os = "linux"))]
    command.spawn()
}

/// Removes the files of an allocation recording, because this process is about to end.
pub fn remove_heap_directory() {
    #[cfg(unix)]
    heap::directory::remove_current();
}

/// Requests wakeup priority for the calling thread: a target is stopped until it runs.
fn prefer_this_thread() {
    #[cfg(target_os = "linux")]
    linux::prefer_this_thread();
}

/// Role of a profiler thread from now on; decides which privileges it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The main thread, while another one samples with perf_event; it resolves names and writes afterwards.
    Waiting,
    /// The main thread, while another one samples with ptrace; it starts a new one after a suspension.
    Tracing,
    /// The sampler that reads perf_event samples and /proc.
    SamplingByKernel,
    /// The sampler that traces and stops threads.
    SamplingByPtrace,
    /// The main thread, while it samples with a gdb stub or a simulation; it resolves names and writes
    /// afterwards.
    SamplingByStub,
    /// The main thread and its workers, which resolve names or read profiles.
    Symbolizing,
    /// The main thread, which writes outputs.
    Writing,
    /// A thread that handles signals or draws the progress line.
    Watching,
}

/// Requested sampling method, on systems with several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SamplingMethod {
    /// The best method that the system allows.
    #[default]
    Auto,
    /// Kernel samples (perf_event), or an error.
    Perf,
    /// Stopping threads (ptrace).
    Ptrace,
}

/// Options that decide how a process is sampled.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Requested method.
    pub method: SamplingMethod,
    /// Samples per second.
    pub hz: u32,
    /// Also sample waiting threads.
    pub idle: bool,
    /// Sample only waiting threads.
    pub off_cpu: bool,
    /// Include kernel frames; not every source has them.
    pub kernel: bool,
    /// Include child processes.
    pub children: bool,
    /// Child processes are required: a source that cannot record them is refused.
    pub children_needed: bool,
}

/// Selection of the processes of a machine to record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessSelection {
    /// Listed process ids.
    pub pids: Vec<u32>,
    /// Include their descendants.
    pub children: bool,
    /// All processes, including kernel threads.
    pub all: bool,
    /// Processes in this control group and in groups below it: its path as in `/proc/PID/cgroup`.
    pub cgroup: Option<String>,
    /// Processes of this user.
    pub uid: Option<u32>,
}

impl ProcessSelection {
    /// Whether the processes are listed by id, apart from their descendants.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        !self.all && self.cgroup.is_none() && self.uid.is_none()
    }
}

/// Source of samples, by who takes them.
pub enum SampleSource<'a> {
    /// The sampler, which stops threads.
    Stopped(&'a mut dyn Target),
    /// The kernel, which delivers them.
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

/// A thread of a target: the system's number for it (Linux tid, Mach `thread_id`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u64);

/// Facts about a target, known from attach on.
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
    /// Name of the backend: `ptrace`, `perf_event`, `mach`, `gdb`, `sim`, `heap`, `probes`.
    pub backend: &'static str,
    /// Why this backend was chosen and how it samples, for people; empty if there is no alternative.
    pub backend_why: String,
    /// CPUs that the target may run on, at least 1.
    pub cpus: usize,
    /// Mask of the bits of a code pointer that hold an address: pointer
    /// authentication (PAC) puts a signature above them. All ones where unused.
    pub address_mask: u64,
    /// Whether the platform keeps the frame pointer valid at all times (Apple's arm64).
    pub fp_always: bool,
    /// Whether the unwind information of its images is supported; otherwise stacks are walked by frame
    /// pointers (Mach-O: macOS keeps them).
    pub cfi: bool,
    /// Whether a stop interrupts a blocking system call (Linux: EINTR): then waiting threads are not stopped for a
    /// profile of CPU time.
    pub stops_interrupt_syscalls: bool,
    /// Whether a stop holds every thread of the target instead of one (macOS: the task).
    pub stops_hold_all: bool,
}

/// A target fault, by consequence: the sampler acts on this, never on an errno.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The process no longer exists.
    Gone,
    /// This thread no longer exists; the process may continue.
    ThreadGone,
    /// The system refused; the text names the operation and the reason.
    Denied(String),
    /// Temporary failure (memory unmapped during the read, list changing): skip and count it.
    Transient(&'static str),
    /// The recording cannot continue; the text names the failed operation.
    Fatal(String),
    /// The connection to the target is lost; the recording so far is complete. The text has the reason.
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
pub enum StopOutcome {
    /// Registers and stack bytes are in the [`Capture`].
    Captured,
    /// The thread began to wait between the poll and the stop: it was released at once, its interrupted
    /// system call continues, and nothing was captured.
    BeganToWait,
    /// The thread was ready but on no CPU at the stop request, so its place does not show where CPU time
    /// goes. It was released at once, and nothing was captured.
    NotOnCpu,
    /// Stopped, but registers or stack could not be read; it runs again.
    Unreadable(&'static str),
}

/// Result of capturing a waiting thread without a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SleepingThread {
    /// Registers and stack bytes of one moment are in the [`Capture`].
    Captured,
    /// The thread does not wait, or was on a CPU in between.
    Awake,
    /// The source cannot capture it.
    Hidden,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// `exit(code)`.
    Code(i32),
    /// Ended by a signal.
    Signal(i32),
    /// Ended, with unknown status (not our child).
    Unknown,
}

/// Event returned by [`Target::next`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetEvent {
    /// The deadline passed to `next` was reached.
    Timeout,
    /// A thread with a stop request stopped and runs again.
    Stopped {
        /// The stopped thread.
        thread: ThreadId,
        /// The result.
        outcome: StopOutcome,
    },
    /// A new thread of the target; it runs.
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
    /// The process of this thread executed a new program: its former images and stacks are void, and only
    /// this thread is left.
    Exec {
        /// The thread that continues.
        thread: ThreadId,
        /// Stack pointer at the first instruction of the new program.
        stack_top: Option<Avma>,
    },
    /// Images were loaded or unloaded, on systems that report it at once.
    ImagesChanged,
    /// A process is probably about to exit: it can be read until the next call.
    Exiting {
        /// Its number.
        process: u32,
    },
    /// A process has exited, after its threads; others continue. Facts recorded about it can be read until
    /// the next call.
    ProcessEnded {
        /// Its number.
        process: u32,
    },
    /// The process has exited, or all those that the recording ends with.
    Exited(ExitStatus),
    /// The recording is to end while the process continues.
    Terminate,
}

/// A running process as any source observes it: description, images, thread names, memory.
pub trait Observed {
    /// Facts known from attach on.
    fn process(&self) -> &Process;

    /// The process that answers what this one does not answer itself: of a source, its main process.
    fn inner(&mut self) -> Option<&mut dyn Observed> {
        None
    }

    /// A thread's name, if it has one and still exists.
    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        self.inner()?.thread_name(thread)
    }

    /// The executable ranges now mapped, sorted by address. Replaces the content of `out`.
    ///
    /// # Errors
    /// [`Fault::Gone`] or [`Fault::Denied`].
    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.inner().map_or(Err(Fault::Gone), |inner| inner.mappings(out))
    }

    /// The path that the program was started by, if that is a link to the file of one of these mappings.
    fn program_path(&mut self, mappings: &[Mapping]) -> Option<Arc<ProgramPath>> {
        self.inner()?.program_path(mappings)
    }

    /// Whether each new executable mapping is reported, so that an address outside of all mappings is no
    /// reason to list them again.
    fn reports_mmaps(&self) -> bool {
        false
    }

    /// Whether a read of its memory costs little more than a system call, so that each sample may take some.
    fn reads_memory_cheaply(&self) -> bool {
        false
    }

    /// The bytes of the mapped file, verified to be that file.
    ///
    /// # Errors
    /// Why they are unavailable: [`OpenError::Deleted`], [`OpenError::Replaced`].
    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.inner().map_or(Err(OpenError::Unloaded), |inner| inner.image_bytes(mapping))
    }

    /// Access to debug files, as the target sees them. The returned object outlives the target.
    fn files(&mut self) -> Arc<dyn Files> {
        self.inner().map_or_else(|| Arc::new(NoFiles) as Arc<dyn Files>, Observed::files)
    }

    /// Reads the target's memory without stopping it; returns the number of bytes read from the start (an
    /// unmapped page ends the read).
    ///
    /// # Errors
    /// [`Fault::Transient`] if not even the first byte is mapped.
    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        let unreadable = Err(Fault::Transient("memory is not read"));
        self.inner().map_or(unreadable, |inner| inner.read_memory(from, into))
    }
}

/// The thread that makes a target's calls, where the system binds them to one thread.
pub trait CallThread {
    /// Runs `body` in that thread and waits for it.
    fn call(&self, body: &mut dyn FnMut());

    /// Ends the thread: releases the target without stopping it.
    fn shut_down(&self);

    /// Starts it again, for [`Target::reattach`].
    ///
    /// # Errors
    /// [`Fault::Lost`] when the system starts none.
    fn restart(&self) -> Result<(), Fault>;
}

/// A process that can be sampled, or several. As [`Observed`] it is the main process, or a placeholder for
/// several.
///
/// Contract: between calls this backend keeps no thread of the target stopped, except those with a pending
/// stop request and the one of the last [`TargetEvent::Exiting`]. Dropping the target resumes every thread and
/// releases the processes without stopping them.
pub trait Target: Observed {
    /// Returns the process of a thread. That of the last event of [`Target::next`] is known.
    fn process_of(&self, _thread: ThreadId) -> u32 {
        self.process().pid
    }

    /// Returns a process other than the main one, until its exit is reported; `None` if unknown.
    fn other(&mut self, _process: u32) -> Option<&mut dyn Observed> {
        None
    }

    /// CPU time of all threads of a process so far, including those that exited or cannot be sampled,
    /// nanoseconds; for the process reported as exited last, the total. `None` if the source has no such
    /// clock.
    fn process_cpu_ns(&mut self, _process: u32) -> Option<u64> {
        None
    }

    /// The known threads, unordered, with the stack pointer at their first instruction where known. Replaces
    /// the content of `out`.
    fn threads(&mut self, out: &mut Vec<(ThreadId, Option<Avma>)>);

    /// Polls a thread without stopping it or being noticed.
    ///
    /// # Errors
    /// [`Fault::ThreadGone`] if it has exited.
    fn poll(&mut self, thread: ThreadId) -> Result<ThreadStatus, Fault>;

    /// Number of stop requests to keep pending, at least 1: enough to hide the latency, few enough that the
    /// first stopped thread does not wait for the last.
    fn stops_at_once(&self) -> usize {
        4
    }

    /// Requests a stop of a thread, to be captured by [`Target::next`] with up to `stack_bytes` of its stack.
    /// A second request before that does nothing. With `keep_waiting` a thread in a system call is captured
    /// too (wall-clock profiles), as is one stopped by job control, which stays stopped; otherwise the
    /// outcome is [`StopOutcome::BeganToWait`].
    ///
    /// # Errors
    /// [`Fault::ThreadGone`] if it has exited.
    fn interrupt(&mut self, thread: ThreadId, stack_bytes: usize, keep_waiting: bool) -> Result<(), Fault>;

    /// Whether captures can have [`Capture::prefetched`].
    fn prefetches(&self) -> bool {
        false
    }

    /// Adds these ranges of memory to each later capture of a thread: the address of the first byte of each,
    /// ascending.
    fn prefetch(&mut self, _thread: ThreadId, _ranges: &[u64]) {}

    /// Returns the next event, at the latest [`TargetEvent::Timeout`] at `until_ns` of the sampler's clock. Forwards
    /// the target's signals and tracks threads that start and exit. For [`StopOutcome::Captured`] the registers
    /// and stack bytes are in `capture`, and the thread already runs again.
    ///
    /// # Errors
    /// [`Fault::Gone`] after the process has exited, [`Fault::Fatal`] when the system fails.
    fn next(&mut self, until_ns: u64, capture: &mut Capture) -> Result<TargetEvent, Fault>;

    /// Total time by which [`Target::next`] returned late because this thread was woken late; `None` if
    /// unknown.
    fn overslept_ns(&self) -> Option<u64> {
        None
    }

    /// Captures a waiting thread without stopping it: stack pointer, program counter and up to `stack_bytes`
    /// of its stack. Its other registers are [unknown](crate::arch::UNKNOWN_REGISTER).
    fn capture_sleeping(
        &mut self,
        _thread: ThreadId,
        _stack_bytes: usize,
        _capture: &mut Capture,
    ) -> SleepingThread {
        SleepingThread::Hidden
    }

    /// Whether a stop could change how this thread's wait ends, so that it must not be stopped while waiting
    /// (Linux: it runs under a seccomp filter).
    fn is_harmed_by_stops(&mut self, _thread: ThreadId) -> bool {
        false
    }

    /// Stack pointer and program counter of a waiting thread, read without stopping it; `None` if the system
    /// does not report them or the thread does not wait.
    fn waits_at(&mut self, _thread: ThreadId) -> Option<(Avma, Avma)> {
        None
    }

    /// The thread in which [`Target::interrupt`], [`Target::next`], [`Target::release`] and
    /// [`Target::reattach`] must be called; `None` if any will do.
    fn call_thread(&self) -> Option<Arc<dyn CallThread>> {
        None
    }

    /// Releases what the exit of the calling thread would harm; called before that thread exits.
    fn release(&mut self) {}

    /// Attaches to the target again after a release. Changes in between are among the next events.
    ///
    /// # Errors
    /// [`Fault::Lost`]: attaching is no longer permitted.
    fn reattach(&mut self) -> Result<(), Fault> {
        Ok(())
    }
}

// ---- Thread state and CPU time that a source reads without a stop.

/// Activity of a thread, observed without touching it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// On a CPU.
    Running,
    /// On a CPU or ready for one.
    Runnable,
    /// Ready for a CPU, but on none.
    Ready,
    /// Blocked: in a system call, a page fault or a lock.
    Waiting,
    /// Stopped by job control or another tool; must be left alone.
    Stopped,
    /// Only a stop shows it: the [`ThreadStatus`] of the capture has the activity.
    Unknown,
}

impl Activity {
    /// Whether the thread is on a CPU or ready for one.
    #[must_use]
    pub fn wants_cpu(self) -> bool {
        matches!(self, Activity::Running | Activity::Runnable | Activity::Ready)
    }
}

/// Result of polling a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadStatus {
    /// CPU time used so far in nanoseconds. Exact for a thread that is off the CPU; for a running one it may
    /// lag (Linux: up to a scheduler tick).
    pub cpu_ns: u64,
    /// How often the thread was put on a CPU so far; 0 if not reported.
    pub switches: u64,
    /// Its activity.
    pub activity: Activity,
}

/// How allocations are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeapOptions {
    /// Bytes per sample on average; 1 records each allocation.
    pub every_bytes: u64,
    /// Seed of the sampling; 0: derived from the clock.
    pub seed: u64,
    /// Records anonymous mappings, too.
    pub records_mappings: bool,
}

// ---- Roles of allocator functions, for the sources that follow allocator calls.

/// Role of an allocator function. Numbers are argument indices, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AllocatorRole {
    /// Returns a block of this many bytes.
    Allocate { bytes: usize },
    /// Returns a block of this many items of a size.
    AllocateItems { count: usize, bytes: usize },
    /// Moves a block, or frees it where the size is 0.
    Reallocate { block: usize, bytes: usize },
    /// Frees a block.
    Free { block: usize },
}

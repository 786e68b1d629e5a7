//! Processes traced with ptrace, and their threads.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

use hashbrown::HashMap;
use libc::pid_t;

use super::file_pages::FilePages;
use super::registers;
use super::stopped_thread::StoppedThread;
use super::threads::{Thread, Wchan};
use super::traced_process::TracedProcess;
use super::tracer::Tracer;
use super::tracer_cpu::TracerCpu;
use crate::clock::RealClock;
use crate::sources::{TargetEvent, ThreadId};

/// Processes traced with ptrace. Bound to the thread that created it.
#[derive(Debug)]
pub struct LinuxTarget {
    /// The main process, or 0 for several.
    pub(super) main: pid_t,
    pub(super) processes: HashMap<pid_t, TracedProcess>,
    /// Threads of all processes.
    pub(super) threads: HashMap<pid_t, Thread>,
    /// Child processes are traced, too.
    pub(super) children: bool,
    /// The recording ends when these have exited.
    pub(super) ends_with: Vec<pid_t>,
    /// Announced threads and processes that have not stopped yet, with their parent process.
    pub(super) announced: HashMap<pid_t, pid_t>,
    /// Exited processes that the sampler may still query until it requests the next event.
    pub(super) gone: Vec<pid_t>,
    /// A stopped exiting thread, until the sampler requests the next event.
    pub(super) exiting: Option<StoppedThread>,
    pub(super) clock: RealClock,
    pub(super) queue: VecDeque<TargetEvent>,
    pub(super) raw: registers::Block,
    /// Threads with a pending stop request.
    pub(super) outstanding: usize,
    /// Time until which to poll for them.
    pub(super) poll_until_ns: u64,
    /// When the last sleep ended.
    pub(super) slept_until_ns: u64,
    pub(super) own: TracerCpu,
    pub(super) wchan: Wchan,
    /// Why some of the processes are not traced.
    pub(super) not_all: Option<String>,
    pub(super) launched: bool,
    /// `Command::spawn` has not returned: if its `exec` fails, it waits for the process.
    pub(super) spawning: bool,
    pub(super) ended: bool,
    /// Deadlines of repeated waits, and their threads.
    pub(super) deadlines: Vec<(u64, pid_t)>,
    /// Threads are detached at their next stop.
    pub(super) releasing: bool,
    /// Why tracing has to end, until reported.
    pub(super) must_end: Option<String>,
    /// Next check of threads for seccomp filters, and the thread checked last.
    pub(super) filters_due_ns: u64,
    pub(super) filters_asked: pid_t,
    pub(super) file_pages: FilePages,
    /// Next check of resident file pages.
    pub(super) file_pages_due_ns: u64,
    pub(super) tracer: Option<Arc<Tracer>>,
    pub(super) not_send: PhantomData<*const ()>,
}

pub(super) fn thread_id(tid: pid_t) -> ThreadId {
    ThreadId(tid.unsigned_abs().into())
}

pub(super) fn tid_of(thread: ThreadId) -> pid_t {
    pid_t::try_from(thread.0).unwrap_or(0)
}

//! Processes traced through ptrace, and their threads.

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

/// Processes traced through ptrace. Belongs to the thread that made it.
#[derive(Debug)]
pub struct LinuxTarget {
    /// The main process, or 0 for several.
    pub(super) main: pid_t,
    pub(super) processes: HashMap<pid_t, TracedProcess>,
    /// Threads of all processes.
    pub(super) threads: HashMap<pid_t, Thread>,
    /// Processes that the threads start are traced, too.
    pub(super) children: bool,
    /// The recording ends when these have ended.
    pub(super) ends_with: Vec<pid_t>,
    /// Threads and processes that were started and were not seen themselves yet: by which process.
    pub(super) announced: HashMap<pid_t, pid_t>,
    /// Processes that have ended, of which the engine may still ask until it wants the next event.
    pub(super) gone: Vec<pid_t>,
    /// A stopped exiting thread, until the engine requests the next event.
    pub(super) leaving: Option<StoppedThread>,
    pub(super) clock: RealClock,
    pub(super) queue: VecDeque<TargetEvent>,
    pub(super) raw: registers::Block,
    /// Threads with a pending stop request.
    pub(super) outstanding: usize,
    /// Until when to poll for them.
    pub(super) poll_until_ns: u64,
    /// When the last sleep ended.
    pub(super) slept_until_ns: u64,
    pub(super) own: TracerCpu,
    pub(super) wchan: Wchan,
    /// Why some of the processes are not traced.
    pub(super) not_all: Option<String>,
    pub(super) launched: bool,
    /// `Command::spawn` has not returned: where its `exec` fails it waits for the process.
    pub(super) spawning: bool,
    pub(super) ended: bool,
    /// When repeated waits end, and of which threads.
    pub(super) deadlines: Vec<(u64, pid_t)>,
    /// Threads that stop are no longer traced after that.
    pub(super) releasing: bool,
    /// Why tracing has to end, until that was reported.
    pub(super) must_end: Option<String>,
    /// Next check of threads for seccomp filters, and the thread checked last.
    pub(super) filters_due_ns: u64,
    pub(super) filters_asked: pid_t,
    pub(super) file_pages: FilePages,
    /// When they are polled next.
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

//! The traced processes as the sampler calls them.

use std::fs;
use std::sync::Arc;

use libc::pid_t;

use super::super::seccomp::is_filtered;
use super::super::thread::{thread_id, tid_of};
use super::LinuxTarget;
use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, OpenError, ProgramPath};
use crate::clock::Clock;
use crate::sources::linux::{proc, sleeping_thread};
use crate::sources::{
    CallThread, Capture, Fault, Observed, Process, SleepingThread, Target, TargetEvent, ThreadId,
    ThreadStatus,
};

impl Observed for LinuxTarget {
    fn process(&self) -> &Process {
        self.tracees.main().process()
    }

    fn files(&mut self) -> Arc<dyn Files> {
        self.tracees.main_mut().files()
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        self.tracees.main_mut().thread_name(thread)
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.tracees.main_mut().mappings(out)
    }

    fn program_path(&mut self, mappings: &[Mapping]) -> Option<Arc<ProgramPath>> {
        self.tracees.main_mut().program_path(mappings)
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.tracees.main_mut().image_bytes(mapping)
    }

    fn reads_memory_cheaply(&self) -> bool {
        true
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        self.tracees.main_mut().read_memory(from, into)
    }
}

impl Target for LinuxTarget {
    fn threads(&mut self, out: &mut Vec<(ThreadId, Option<Avma>)>) {
        out.clear();
        out.extend(self.tracees.threads().map(|thread| (thread_id(thread.tid()), thread.stack_top())));
        out.sort_unstable();
    }

    fn process_of(&self, thread: ThreadId) -> u32 {
        self.tracees.process_of(tid_of(thread)).unsigned_abs()
    }

    fn process_cpu_ns(&mut self, process: u32) -> Option<u64> {
        let pid = pid_t::try_from(process).ok()?;
        self.tracees.process(pid)?.cpu_ns()
    }

    fn other(&mut self, process: u32) -> Option<&mut dyn Observed> {
        let pid = pid_t::try_from(process).ok()?;
        self.tracees.process_mut(pid).map(|process| process as &mut dyn Observed)
    }

    fn poll(&mut self, thread: ThreadId) -> Result<ThreadStatus, Fault> {
        self.tracees.poll(tid_of(thread), self.clock.now_ns())
    }

    fn prefetches(&self) -> bool {
        true
    }

    fn prefetch(&mut self, thread: ThreadId, ranges: &[u64]) {
        if let Some(thread) = self.tracees.thread_mut(tid_of(thread)) {
            thread.set_prefetch(ranges);
        }
    }

    fn interrupt(&mut self, thread: ThreadId, stack_bytes: usize, keep_waiting: bool) -> Result<(), Fault> {
        let thread = self.tracees.thread_mut(tid_of(thread)).ok_or(Fault::ThreadGone)?;
        self.requests.send(thread, stack_bytes, keep_waiting, &self.clock)
    }

    fn next(&mut self, until_ns: u64, capture: &mut Capture) -> Result<TargetEvent, Fault> {
        self.next_event(until_ns, capture)
    }

    fn capture_sleeping(&mut self, thread: ThreadId, bytes: usize, capture: &mut Capture) -> SleepingThread {
        let tid = tid_of(thread);
        match self.tracees.thread(tid) {
            Some(thread) if !self.requests.contains(tid) => {
                sleeping_thread::capture(thread.pid(), tid, bytes, capture)
            }
            _ => SleepingThread::Awake,
        }
    }

    fn is_harmed_by_stops(&mut self, thread: ThreadId) -> bool {
        is_filtered(tid_of(thread))
    }

    fn waits_at(&mut self, thread: ThreadId) -> Option<(Avma, Avma)> {
        proc::waits_at(&fs::read(format!("/proc/{0}/task/{0}/syscall", thread.0)).ok()?)
    }

    fn call_thread(&self) -> Option<Arc<dyn CallThread>> {
        self.tracer.clone().map(|tracer| tracer as Arc<dyn CallThread>)
    }

    fn release(&mut self) {
        self.await_requested();
        self.release_woken();
    }

    fn reattach(&mut self) -> Result<(), Fault> {
        self.trace_again()
    }
}

impl Drop for LinuxTarget {
    /// Without a tracer thread the tracing thread drops it.
    fn drop(&mut self) {
        if self.tracer.is_none() {
            self.release();
        }
    }
}

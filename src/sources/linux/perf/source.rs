//! A process that the kernel samples: rings are read in batches, images and names are asked of
//! /proc. Nothing of the process is stopped, or changed.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use libc::{c_int, pid_t};

use super::events::{Events, How};
use super::told::Told;
use super::window::Window;
use super::{record, sys};
use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, MappingKind};
use crate::clock::{Clock, RealClock};
use crate::rng::Rng;
use crate::sources::linux::files::TargetFiles;
use crate::sources::linux::images::Maps;
use crate::sources::linux::{proc, sys as linux_sys, threads};
use crate::sources::pushed::{IN_KERNEL, NOT_SAMPLED_AGAIN, Needed, PushedSource, Record, What};
use crate::sources::{Capture, ExitStatus, Fault, Observed, Process, ThreadId};

/// Signals that ask the profiler to end; blocked in all of its threads.
const SIGNALS: [c_int; 2] = [libc::SIGTERM, libc::SIGHUP];
/// Records are read at least this often, nanoseconds: what they tell is asked of /proc while it
/// is still there.
const BATCH_NS: u64 = 50_000_000;
/// At the beginning, when a program loads its libraries, more often.
const FIRST_BATCHES_NS: u64 = 5_000_000;
const BEGINNING_NS: u64 = 300_000_000;
/// The rings are read so often until the clock of the process is that of their end.
const READS_MAX: u32 = 4;
/// Between a record's time and when it can be read, nanoseconds.
const SETTLED_NS: u64 = 1_000_000;

/// See the top of this file.
pub(crate) struct PerfSource {
    pid: pid_t,
    /// The thread through which /proc shows the memory: the first, until it has left.
    memory_of: pid_t,
    process: Process,
    clock: RealClock,
    events: Events,
    told: Told,
    window: Window,
    maps: Maps,
    files: Arc<TargetFiles>,
    /// Readable when the process has ended.
    end: Option<OwnedFd>,
    launched: bool,
    began_ns: u64,
    /// CPU time of the process when it was sampled first, and when it was asked last.
    first_cpu_ns: Option<u64>,
    cpu_ns: Option<u64>,
    /// The same up to which samples have been weighed.
    weighed_cpu_ns: u64,
    disabled: bool,
    over: bool,
    /// Where the rate varies.
    random: Rng,
    scratch: Vec<u8>,
    readable: Vec<bool>,
}

impl PerfSource {
    /// A process whose `events` are open; `kernel_frames` keeps those in the kernel. `launched` is a command that has not been run yet.
    pub(super) fn new(
        pid: pid_t,
        process: Process,
        clock: RealClock,
        events: Events,
        kernel_frames: bool,
        launched: bool,
    ) -> PerfSource {
        let began_ns = clock.now_ns();
        let origin_ns = sys::monotonic_ns().saturating_sub(began_ns);
        PerfSource {
            told: Told::new(pid, origin_ns, events.how.period_ns(), kernel_frames, launched),
            pid,
            memory_of: pid,
            process,
            clock,
            events,
            window: Window::new(),
            maps: Maps::default(),
            files: Arc::new(TargetFiles::of(pid)),
            end: sys::watch_end(pid).ok(),
            launched,
            began_ns,
            first_cpu_ns: None,
            cpu_ns: None,
            weighed_cpu_ns: 0,
            disabled: false,
            over: false,
            random: Rng::new(u64::from(pid.unsigned_abs())),
            scratch: Vec::new(),
            readable: Vec::new(),
        }
    }

    /// Begins to sample.
    pub(super) fn enable(&mut self) -> std::io::Result<()> {
        self.first_cpu_ns = sys::process_cpu_ns(self.pid);
        self.cpu_ns = self.first_cpu_ns;
        self.weighed_cpu_ns = self.first_cpu_ns.unwrap_or(0);
        self.events.enable()
    }

    /// The launched command runs, as `process`. What was used before is not its own.
    pub(super) fn set_spawned(&mut self, process: Process) {
        self.process = process;
        let files = TargetFiles::of(self.pid);
        // One that has ended already has no root any more; what it forked from had the same.
        if files.has_root() {
            self.files = Arc::new(files);
        }
    }

    /// Waits until records are to be read, the process has ended, or it is time.
    fn wait(&mut self, until_ns: u64) {
        let now_ns = self.clock.now_ns();
        let batch_ns = if now_ns - self.began_ns < BEGINNING_NS { FIRST_BATCHES_NS } else { BATCH_NS };
        let at_most_ms = batch_ns.min(until_ns.saturating_sub(now_ns)).div_ceil(1_000_000);
        let end = self.end.iter().map(AsRawFd::as_raw_fd);
        let descriptors: Vec<RawFd> = end.chain(self.events.descriptors()).collect();
        sys::wait_readable(
            &descriptors,
            c_int::try_from(at_most_ms).unwrap_or(c_int::MAX),
            &mut self.readable,
        );
    }

    fn has_ended(&self) -> bool {
        match &self.end {
            Some(_) => self.readable.first() == Some(&true),
            None => linux_sys::kill(self.pid, 0).is_err() || linux_sys::child_end(self.pid).is_some(),
        }
    }

    /// Reads the rings; the time up to which everything was told.
    fn read(&mut self, into: &mut Vec<Record>) -> u64 {
        let told_ns = self.clock.now_ns();
        if self.told.main_stack_top.is_none() {
            self.told.main_stack_top = main_stack_top(self.pid);
        }
        let period_ns = self.events.how.period_ns();
        for _ in 0..READS_MAX {
            let before_ns = sys::process_cpu_ns(self.pid);
            read_rings(&mut self.events, &mut self.scratch, &mut self.told);
            let after_ns = sys::process_cpu_ns(self.pid);
            self.cpu_ns = after_ns.or_else(|| {
                // A process that has ended and was waited for has no clock any more: its last
                // samples tell what it used at its end.
                Some(self.cpu_ns? + (self.told.samples() + self.told.dropped()) * period_ns)
            });
            // Held up between the two, more samples may be there.
            if after_ns.zip(before_ns).is_none_or(|(after_ns, before_ns)| after_ns - before_ns < period_ns) {
                break;
            }
        }
        let used_ns = self.cpu_ns.map(|cpu_ns| cpu_ns.saturating_sub(self.weighed_cpu_ns));
        // Samples in user mode only say nothing of the time in the kernel.
        let used_ns = used_ns.filter(|_| self.events.how.kernel);
        if self.told.samples() + self.told.dropped() > 0 {
            self.weighed_cpu_ns = self.cpu_ns.unwrap_or(0);
        }
        self.told.finish_batch(used_ns, into);
        if !self.disabled {
            let since_ns = sys::monotonic_ns();
            if let Some(period_ns) = self.events.vary(self.random.next()) {
                self.told.grid.changed(since_ns, period_ns);
            }
            if self.events.lack_a_cpu(since_ns) {
                self.change_window(self.events.how.window_bytes);
            }
        }
        if self.over
            && let Some(used_ns) = self.target_cpu_ns()
        {
            let reason = if self.events.how.kernel { NOT_SAMPLED_AGAIN } else { IN_KERNEL };
            self.told.tell_rest(used_ns, self.clock.now_ns(), reason, into);
        }
        told_ns.saturating_sub(SETTLED_NS)
    }

    /// Opens the events anew, with another window or for other CPUs.
    fn change_window(&mut self, window_bytes: u32) {
        let how = How { window_bytes, ..self.events.how };
        let Ok(new) = Events::open(self.pid, how) else { return };
        let since_ns = sys::monotonic_ns();
        if new.enable().is_err() {
            return;
        }
        self.told.grid.changed(since_ns, how.period_ns());
        self.events.disable();
        let mut old = std::mem::replace(&mut self.events, new);
        read_rings(&mut old, &mut self.scratch, &mut self.told);
    }

    fn exit_status(&self) -> ExitStatus {
        let status = self.launched.then(|| linux_sys::child_end(self.pid)).flatten();
        status.unwrap_or(ExitStatus::Unknown)
    }
}

/// Takes in all that rings hold.
fn read_rings(events: &mut Events, scratch: &mut Vec<u8>, told: &mut Told) {
    events.drain(scratch, |bytes| {
        if let Some((id, record)) = record::read(bytes) {
            told.take(id, record);
        }
    });
}

/// The stack pointer that the first thread of a process began with.
fn main_stack_top(pid: pid_t) -> Option<Avma> {
    proc::stat_start_stack(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

impl Observed for PerfSource {
    fn process(&self) -> &Process {
        &self.process
    }

    fn files(&mut self) -> Arc<dyn Files> {
        Arc::clone(&self.files) as Arc<dyn Files>
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        if let Some(name) = self.told.name(thread) {
            return Some(name.clone());
        }
        threads::name(self.pid, pid_t::try_from(thread.0).ok()?)
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        out.clear();
        // After an exec the first thread has the memory again.
        self.memory_of = self.pid;
        let read = self.maps.read_through(&mut self.memory_of, self.told.sampled_threads(), out);
        if read.is_ok() {
            return read;
        }
        // It is ending, or has ended.
        out.extend_from_slice(self.told.mapped.list());
        if out.is_empty() { read } else { Ok(()) }
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, String> {
        self.maps.bytes(self.memory_of, mapping).or_else(|why| match mapping.kind {
            MappingKind::File => self.files.open_same(&mapping.path, mapping.identity).ok_or(why),
            _ => Err(why),
        })
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        linux_sys::read_memory(self.memory_of, from.0, into)
            .map_err(|_| Fault::Transient("memory not mapped"))
    }
}

impl PushedSource for PerfSource {
    fn next_batch(&mut self, until_ns: u64, into: &mut Vec<Record>) -> Result<Option<u64>, Fault> {
        if self.over {
            return Ok(None);
        }
        if self.disabled {
            self.over = true;
            self.read(into);
            return Ok(None);
        }
        self.wait(until_ns);
        if let Some(signal) = linux_sys::sleep_for_signal(&SIGNALS, Duration::ZERO) {
            if self.launched {
                // The command decides what it does; the recording ends when it ends.
                let _ = linux_sys::kill(self.pid, signal);
            } else {
                let what = What::Terminate;
                into.push(Record { at_ns: self.clock.now_ns(), thread: ThreadId(0), what });
            }
        }
        self.over = self.has_ended();
        let told_ns = self.read(into);
        if self.over {
            let what = What::Exited(self.exit_status());
            into.push(Record { at_ns: self.clock.now_ns(), thread: ThreadId(0), what });
            return Ok(None);
        }
        Ok(Some(told_ns))
    }

    fn go_to(&mut self, _at_ns: u64) {}

    fn end(&mut self) {
        if !self.disabled {
            self.events.disable();
            self.disabled = true;
        }
    }

    fn exit_before(&mut self, until_ns: u64) -> Option<ExitStatus> {
        loop {
            let at_most_ms = until_ns.saturating_sub(self.clock.now_ns()).div_ceil(1_000_000);
            let end: Vec<RawFd> = self.end.iter().map(AsRawFd::as_raw_fd).collect();
            let at_most_ms = if end.is_empty() { at_most_ms.min(10) } else { at_most_ms };
            sys::wait_readable(&end, c_int::try_from(at_most_ms).unwrap_or(c_int::MAX), &mut self.readable);
            if self.has_ended() {
                return Some(self.exit_status());
            }
            if self.clock.now_ns() >= until_ns {
                return None;
            }
        }
    }

    fn walked(&mut self, capture: Box<Capture>, needed: Needed) {
        self.told.give_back(capture);
        if !self.disabled
            && let Some(window_bytes) = self.window.walked(needed)
        {
            self.change_window(window_bytes);
        }
    }

    fn target_cpu_ns(&self) -> Option<u64> {
        Some(self.cpu_ns?.saturating_sub(self.first_cpu_ns?))
    }
}

impl Drop for PerfSource {
    fn drop(&mut self) {
        if self.launched {
            linux_sys::reap_child(self.pid);
        }
    }
}

//! Tracing again after the profiler was suspended: a new thread seizes the threads that still exist. Threads
//! and processes that started, exited or called `exec` meanwhile are reported as events.

use hashbrown::HashSet;
use libc::pid_t;

use super::target::{LinuxTarget, thread_id};
use super::{attach, refusal, seccomp, sys, threads};
use crate::error::Error;
use crate::sources::{ExitStatus, Fault, TargetEvent};

/// Most passes over the thread list until one finds nothing new, as when attaching.
const PASSES_MAX: u32 = 16;

impl LinuxTarget {
    /// Seizes everything again; called in a thread that traces nothing yet.
    ///
    /// # Errors
    /// [`Fault::Lost`]: the main process may no longer be traced.
    pub(super) fn trace_again(&mut self) -> Result<(), Fault> {
        self.forget_stops();
        let known: HashSet<pid_t> = self.threads.keys().copied().collect();
        // The placeholder for several processes has pid 0.
        let mut pids: Vec<pid_t> = self.processes.keys().copied().filter(|pid| *pid != 0).collect();
        pids.sort_unstable();
        for pid in pids {
            if !self.lives(pid) {
                self.ended_meanwhile(pid);
                continue;
            }
            self.seize_again(pid)?;
            if self.processes.get(&pid).is_some_and(|process| !process.runs_known_program()) {
                self.began_program_meanwhile(pid);
            }
        }
        if self.children {
            attach::seize_started(self);
        }
        // The tid may have been reused.
        let has_ended = |tid: pid_t| {
            let thread = thread_id(tid);
            self.queue
                .iter()
                .any(|event| matches!(event, TargetEvent::ThreadExited { thread: of, .. } if *of == thread))
        };
        let tids = self.threads.keys().copied();
        let mut new: Vec<pid_t> = tids.filter(|tid| !known.contains(tid) || has_ended(*tid)).collect();
        new.sort_unstable();
        for tid in new {
            let stack_top = self.threads.get(&tid).and_then(|thread| thread.stack_top);
            self.queue.push_back(TargetEvent::ThreadStarted { thread: thread_id(tid), stack_top });
        }
        Ok(())
    }

    /// Whether the traced process still exists and runs. An open file of a thread becomes unreadable if its
    /// tid was reused.
    fn lives(&self, pid: pid_t) -> bool {
        let is_another = self.threads.get(&pid).is_some_and(|first| first.status.sched().is_none());
        !is_another && threads::living(pid).is_some()
    }

    fn seize_again(&mut self, pid: pid_t) -> Result<(), Fault> {
        seccomp::check(pid).map_err(|error| lost(&error))?;
        let threads = self.processes.get(&pid).map(|process| process.threads.clone()).unwrap_or_default();
        for tid in threads {
            if self.threads.get(&tid).is_none_or(|thread| thread.status.sched().is_none()) {
                self.forget_thread(pid, tid);
            }
        }
        let mut seized = HashSet::new();
        for _ in 0..PASSES_MAX {
            let before = seized.len();
            for tid in threads::list(pid).unwrap_or_default() {
                if seized.contains(&tid) {
                    continue;
                }
                match sys::seize(tid, self.children) {
                    Ok(()) => {
                        seized.insert(tid);
                        if !self.knows(tid) {
                            self.adopt_found(pid, tid)
                                .map_err(|error| lost(&refusal::explain(pid, &error)))?;
                        }
                    }
                    // The kernel has attached it meanwhile: it reports itself.
                    Err(_) if refusal::is_traced_by_us(tid) => {}
                    Err(_) if tid != pid || pid != self.main || threads::living(pid) != Some(pid) => {
                        self.forget_thread(pid, tid);
                    }
                    Err(error) => {
                        return Err(lost(&refusal::explain(pid, &error)));
                    }
                }
            }
            if seized.len() == before {
                break;
            }
        }
        Ok(())
    }

    /// Drops a thread that has exited, or may no longer be traced.
    fn forget_thread(&mut self, pid: pid_t, tid: pid_t) {
        if let Some(process) = self.processes.get_mut(&pid) {
            process.threads.remove(&tid);
        }
        if let Some(thread) = self.threads.remove(&tid) {
            let cpu_ns = thread.status.sched().map(|sched| sched.cpu_ns);
            self.queue.push_back(TargetEvent::ThreadExited { thread: thread_id(tid), cpu_ns });
        }
    }

    /// Reports an `exec` without an event of the kernel.
    fn began_program_meanwhile(&mut self, pid: pid_t) {
        let before = self.processes.get(&pid).map(|process| process.threads.clone()).unwrap_or_default();
        for tid in &before {
            self.threads.remove(tid);
        }
        let Some(process) = self.processes.get_mut(&pid) else { return };
        process.replaced();
        let stack_top = process.start_stack();
        // Without descriptors for its files a thread is not recorded, but runs.
        let _ = self.adopt(pid, pid, stack_top);
        self.queue.push_back(TargetEvent::Exec { thread: thread_id(pid), stack_top });
        // Threads that the new program has started since.
        for tid in before.into_iter().filter(|tid| *tid != pid) {
            let _ = self.adopt_found(pid, tid);
        }
    }

    fn ended_meanwhile(&mut self, pid: pid_t) {
        let launched = pid == self.main && self.is_launched();
        let status = launched.then(|| sys::child_end(pid)).flatten();
        self.process_ended(pid, status.unwrap_or(ExitStatus::Unknown));
    }
}

fn lost(why: &Error) -> Fault {
    Fault::Lost(format!("after the suspension: {why}"))
}

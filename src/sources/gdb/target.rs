//! A target behind a stub, as the sampler's `Target`: threads and events; polls that return the state of the
//! last stop; memory and images by requests.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hashbrown::HashMap;

use super::description::Layout;
use super::images::Images;
use super::memory::Range;
use super::run::{STOP, TargetChange, Tid};
use super::session::Stub;
use super::stops::{StopRequest, Stops};
use super::tasks::Tasks;
use super::threads::System;
use super::transport::ConnectionError;
use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, OpenError};
use crate::clock::Clock;
use crate::sources::{
    Activity, Capture, Fault, LocalFiles, Observed, Process, Target, TargetEvent, ThreadId, ThreadStatus,
};

/// State in which [`attach`](super::attach) leaves a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialState {
    /// It runs.
    Running,
    /// It stays stopped where the stub had it until the first capture: for a single snapshot.
    Stopped,
}

/// Interval of thread lists, if a stub lists threads only while the target is stopped, nanoseconds.
const LIST_NS: u64 = 100_000_000;
/// Least interval of requests for thread names, nanoseconds.
const NAMES_NS: u64 = 1_000_000_000;

/// A known thread.
#[derive(Debug, Default)]
pub(super) struct GdbThread {
    /// Time charged for being found running, nanoseconds.
    pub(super) ran_ns: u64,
    /// End of its most recent stack.
    pub(super) stack_limit: Option<u64>,
}

/// A target behind a stub. Dropping it resumes the target and closes the connection.
pub struct GdbTarget {
    pub(super) stub: Stub,
    pub(super) clock: Box<dyn Clock>,
    pub(super) process: Process,
    pub(super) system: System,
    pub(super) layout: Layout,
    pub(super) images: Images,
    /// Tasks unknown to the stub.
    pub(super) tasks: Option<Tasks>,
    pub(super) threads: HashMap<ThreadId, GdbThread>,
    names: HashMap<u64, String>,
    names_ns: Option<u64>,
    listed_ns: u64,
    pub(super) stops: Stops,
    pub(super) events: VecDeque<TargetEvent>,
    /// Address of the stub, for messages.
    place: String,
    /// Why the connection is lost.
    lost: Option<String>,
}

/// Components of a target.
pub(super) struct Parts {
    pub(super) stub: Stub,
    pub(super) process: Process,
    pub(super) system: System,
    pub(super) layout: Layout,
    pub(super) images: Images,
    pub(super) tasks: Option<Tasks>,
    pub(super) place: String,
}

impl GdbTarget {
    /// Builds the target, which is stopped, and leaves it in the state `begin`.
    ///
    /// # Errors
    /// The stub cannot be reached.
    pub(super) fn begin(
        parts: Parts,
        begin: InitialState,
        clock: Box<dyn Clock>,
    ) -> Result<GdbTarget, ConnectionError> {
        let Parts { stub, process, system, layout, images, tasks, place } = parts;
        let mut target = GdbTarget {
            stub,
            clock,
            process,
            system,
            layout,
            images,
            tasks,
            threads: HashMap::new(),
            names: HashMap::new(),
            names_ns: None,
            listed_ns: 0,
            stops: Stops::default(),
            events: VecDeque::new(),
            place,
            lost: None,
        };
        match target.start(begin) {
            Ok(()) => Ok(target),
            Err(broken) => {
                target.lose(&broken);
                Err(broken)
            }
        }
    }

    fn start(&mut self, begin: InitialState) -> Result<(), ConnectionError> {
        self.names = self.stub.thread_names()?;
        self.names_ns = Some(self.clock.now_ns());
        self.look_at_tasks(self.clock.now_ns())?;
        for thread in self.present() {
            self.threads.insert(thread, GdbThread::default());
        }
        if begin == InitialState::Running {
            self.stub.go()?;
            self.stops.ran_since_ns = self.clock.now_ns().max(1);
        }
        self.stub.without_limit();
        Ok(())
    }

    /// The existing threads: those of the stub, or the tasks on its processor.
    fn present(&self) -> Vec<ThreadId> {
        match &self.tasks {
            Some(tasks) if tasks.current().is_some() => {
                tasks.known().iter().map(|task| ThreadId(task.tcb)).collect()
            }
            _ => self.stub.run.threads.iter().map(|tid| ThreadId(tid.tid)).collect(),
        }
    }

    /// Reads the running task and the list of tasks. The target is stopped.
    fn look_at_tasks(&mut self, now_ns: u64) -> Result<(), ConnectionError> {
        let Some(tasks) = &mut self.tasks else { return Ok(()) };
        let stub = &mut self.stub;
        if tasks.update(&mut |ranges: &[Range]| stub.read_ranges(ranges), now_ns)? {
            let named = tasks.known().iter().filter(|task| !task.name.is_empty());
            self.names.extend(named.map(|task| (task.tcb, task.name.clone())));
        }
        Ok(())
    }

    /// Whether a thread is a known task that does not run.
    pub(super) fn is_switched_out(&self, thread: ThreadId) -> bool {
        let Some(tasks) = &self.tasks else { return false };
        tasks.current().is_some_and(|current| current != thread.0) && tasks.contains(thread.0)
    }

    /// The stub's number for a thread with accessible registers.
    pub(super) fn tid(&self, thread: ThreadId) -> Option<Tid> {
        let threads = &self.stub.run.threads;
        if let Some(current) = self.tasks.as_ref().and_then(Tasks::current) {
            return threads.first().copied().filter(|_| current == thread.0);
        }
        let at = threads.binary_search_by_key(&thread.0, |tid| tid.tid).ok()?;
        Some(threads[at])
    }

    /// Marks the connection as lost, with one line for all later requests, and sends a detach request.
    pub(super) fn lose(&mut self, broken: &ConnectionError) -> Fault {
        let why = format!("the stub at {} {broken}", self.place);
        if self.lost.is_none() {
            self.stub.detach(true);
        }
        Fault::Lost(self.lost.get_or_insert(why).clone())
    }

    /// Checks that the connection is not lost.
    pub(super) fn check_link(&self) -> Result<(), Fault> {
        self.lost.as_ref().map_or(Ok(()), |lost| Err(Fault::Lost(lost.clone())))
    }

    /// The running task if the stub knows no tasks, else the stub's thread. The target is stopped.
    pub(super) fn current_thread(&self, tid: Tid) -> ThreadId {
        ThreadId(self.tasks.as_ref().and_then(Tasks::current).unwrap_or(tid.tid))
    }

    /// Reports threads that started or exited since the last stop. The target is stopped.
    pub(super) fn update_threads(&mut self, now_ns: u64) -> Result<(), ConnectionError> {
        // In non-stop mode each stop lists them, as lldb's stubs do.
        let lists = self.stub.run.non_stop || self.stub.offers.lldb;
        if !lists && !self.stub.run.has_one_thread && now_ns.saturating_sub(self.listed_ns) >= LIST_NS {
            self.listed_ns = now_ns;
            self.stub.list_threads()?;
        }
        self.look_at_tasks(now_ns)?;
        let present = self.present();
        let mut new = false;
        for thread in present.iter().copied() {
            if !self.threads.contains_key(&thread) {
                self.threads.insert(thread, GdbThread::default());
                self.events.push_back(TargetEvent::ThreadStarted { thread, stack_top: None });
                new = true;
            }
        }
        let mut ended: Vec<ThreadId> =
            self.threads.keys().copied().filter(|thread| present.binary_search(thread).is_err()).collect();
        ended.sort_unstable();
        for thread in ended {
            self.threads.remove(&thread);
            self.events.push_back(TargetEvent::ThreadExited { thread, cpu_ns: None });
        }
        if new && !self.stub.run.non_stop && self.tasks.is_none() {
            self.ask_names(now_ns)?;
        }
        Ok(())
    }

    /// Requests thread names, at limited frequency.
    fn ask_names(&mut self, now_ns: u64) -> Result<(), ConnectionError> {
        if self.names_ns.is_none_or(|asked_ns| now_ns.saturating_sub(asked_ns) >= NAMES_NS) {
            self.names_ns = Some(now_ns);
            self.names = self.stub.thread_names()?;
        }
        Ok(())
    }

    /// Converts reports of the stub into events.
    pub(super) fn take_news(&mut self) {
        while let Some(news) = self.stub.run.news.pop_front() {
            match news {
                TargetChange::Ended(status) => self.events.push_back(TargetEvent::Exited(status)),
                TargetChange::Exec(path, tid) => {
                    let first = self.stub.run.threads.first().copied();
                    let Some(tid) = tid.or(first) else { continue };
                    self.stub.run.threads = vec![tid];
                    let thread = ThreadId(tid.tid);
                    self.threads.clear();
                    self.threads.insert(thread, GdbThread::default());
                    self.names.clear();
                    self.images.forget();
                    self.stops.forget_places();
                    self.stops.maps_wanted = true;
                    if let Some(name) = path.rsplit('/').next().filter(|name| !name.is_empty()) {
                        name.clone_into(&mut self.process.name);
                    }
                    self.events.push_back(TargetEvent::Exec { thread, stack_top: None });
                }
            }
        }
    }

    /// Runs requests: at once if the stub replies while the target runs, else during a stop.
    pub(super) fn asking<R>(
        &mut self,
        ask: impl FnOnce(&mut GdbTarget) -> Result<R, ConnectionError>,
    ) -> Result<R, Fault> {
        self.check_link()?;
        let stops = !self.stub.can_be_asked();
        let begun_ns = self.clock.now_ns();
        self.stub.within(STOP, "what it was asked");
        let answer = (|| {
            if stops && !self.stub.stop()? {
                return Ok(None);
            }
            self.stub.choose_any_thread()?;
            let answer = ask(self)?;
            if stops {
                self.stub.go()?;
            }
            Ok(Some(answer))
        })();
        self.stub.without_limit();
        if stops {
            self.stops.stopped_ns += self.clock.now_ns().saturating_sub(begun_ns);
        }
        self.take_news();
        match answer {
            Ok(answer) => answer.ok_or(Fault::Gone),
            Err(broken) => Err(self.lose(&broken)),
        }
    }
}

impl Observed for GdbTarget {
    fn process(&self) -> &Process {
        &self.process
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        if !self.names.contains_key(&thread.0) && self.stub.run.non_stop && !self.stub.run.ended {
            let now_ns = self.clock.now_ns();
            self.asking(|target| target.ask_names(now_ns)).ok()?;
        }
        self.names.get(&thread.0).cloned()
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        if self.stub.run.non_stop && !self.stub.run.ended {
            if self.asking(|target| target.images.learn(&mut target.stub, None))? {
                self.stops.forget_places();
            }
        } else {
            // The next stop reads them.
            self.stops.maps_wanted = true;
        }
        out.clear();
        out.extend_from_slice(&self.images.mappings);
        Ok(())
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.images.bytes(mapping)
    }

    fn files(&mut self) -> Arc<dyn Files> {
        Arc::new(LocalFiles)
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        let bytes = self.asking(|target| target.stub.read_memory(from.0, into.len()))?;
        let read = bytes.len().min(into.len());
        into[..read].copy_from_slice(&bytes[..read]);
        if read == 0 { Err(Fault::Transient("memory could not be read")) } else { Ok(read) }
    }
}

impl Target for GdbTarget {
    fn threads(&mut self, out: &mut Vec<(ThreadId, Option<Avma>)>) {
        out.clear();
        out.extend(self.threads.keys().map(|thread| (*thread, None)));
        out.sort_unstable();
    }

    fn poll(&mut self, thread: ThreadId) -> Result<ThreadStatus, Fault> {
        let known = self.threads.get(&thread).ok_or(Fault::ThreadGone)?;
        Ok(ThreadStatus { cpu_ns: known.ran_ns, switches: 0, activity: Activity::Unknown })
    }

    fn stops_at_once(&self) -> usize {
        self.stops.at_once()
    }

    fn interrupt(&mut self, thread: ThreadId, stack_bytes: usize, keep_waiting: bool) -> Result<(), Fault> {
        if !self.threads.contains_key(&thread) {
            return Err(Fault::ThreadGone);
        }
        if !self.stops.requests.iter().any(|request| request.thread == thread) {
            self.stops.requests.push_back(StopRequest { thread, stack_bytes, keep_waiting });
        }
        Ok(())
    }

    fn next(&mut self, until_ns: u64, capture: &mut Capture) -> Result<TargetEvent, Fault> {
        let mut attended = false;
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            if let Some(stopped) = self.stops.made.pop_front() {
                self.stops.spare.push(std::mem::replace(capture, stopped.capture));
                return Ok(TargetEvent::Stopped { thread: stopped.thread, outcome: stopped.outcome });
            }
            if let Some(lost) = &self.lost {
                return Err(Fault::Lost(lost.clone()));
            }
            if self.stub.run.ended {
                return Err(Fault::Gone);
            }
            let done = if self.stops.requests.is_empty() {
                let left_ns = until_ns.saturating_sub(self.clock.now_ns());
                if left_ns == 0 && (attended || until_ns == 0) {
                    return Ok(TargetEvent::Timeout);
                }
                attended = true;
                self.stub.attend(Duration::from_nanos(left_ns))
            } else {
                self.capture_asked()
            };
            if let Err(broken) = done {
                return Err(self.lose(&broken));
            }
            self.take_news();
        }
    }
}

impl Drop for GdbTarget {
    fn drop(&mut self) {
        if self.lost.is_none() {
            self.stub.detach(false);
        }
    }
}

//! Several simulated processes as one target: the first one, and others that start while it runs and end before it
//! or with it.
//!
//! Each has its own CPUs, code, threads and faults; they share the clock. The recording ends with the first one.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, OpenError};
use crate::clock::{Clock, FakeClock};
use crate::sources::{Capture, Fault, Observed, Process, Target, TargetEvent, ThreadId, ThreadStatus};

use super::{SimConfig, SimLedger, SimTarget};

/// A process of a [`SimTree`], by its start time.
#[derive(Clone, Debug)]
pub struct SimProcess {
    /// Nanoseconds of the clock; so are times in the configuration.
    pub start_ns: u64,
    /// Its configuration. Thread ids count from its pid, and no other process may use them.
    pub config: SimConfig,
}

/// Simulated processes.
#[derive(Debug)]
pub struct SimTree {
    clock: FakeClock,
    /// In the order of their start, the first process first.
    members: Vec<SimTarget>,
    /// Processes that have not started, the next one last.
    unborn: Vec<SimProcess>,
    queue: VecDeque<TargetEvent>,
    /// Reported to have ended; removed by the next call.
    gone: Option<u32>,
    ledgers: Vec<(u32, Rc<SimLedger>)>,
}

impl SimTree {
    /// A tree of the `first` process, and `others`, in any order.
    ///
    /// # Panics
    /// Like [`SimTarget::new`].
    #[must_use]
    pub fn new(first: SimConfig, others: Vec<SimProcess>, clock: FakeClock) -> SimTree {
        let mut unborn = others;
        unborn.sort_by_key(|process| std::cmp::Reverse((process.start_ns, process.config.pid)));
        let mut tree = SimTree {
            clock: clock.clone(),
            members: Vec::new(),
            unborn,
            queue: VecDeque::new(),
            gone: None,
            ledgers: Vec::new(),
        };
        tree.begin(first);
        tree
    }

    /// The ground truth of each process that has started, by pid.
    #[must_use]
    pub fn ledgers(&self) -> &[(u32, Rc<SimLedger>)] {
        &self.ledgers
    }

    fn begin(&mut self, config: SimConfig) {
        let member = SimTarget::new(config, self.clock.clone());
        self.ledgers.push((member.process.pid, member.ledger()));
        self.members.push(member);
    }

    /// Starts the processes that are due.
    fn begin_due(&mut self) {
        while self.unborn.last().is_some_and(|process| process.start_ns <= self.clock.now_ns()) {
            let Some(process) = self.unborn.pop() else { return };
            self.begin(process.config);
            let mut threads = Vec::new();
            if let Some(new) = self.members.last_mut() {
                new.threads(&mut threads);
            }
            let started = |(thread, stack_top)| TargetEvent::ThreadStarted { thread, stack_top };
            self.queue.extend(threads.into_iter().map(started));
        }
    }

    fn first(&mut self) -> &mut SimTarget {
        &mut self.members[0]
    }

    /// The process with this thread id.
    fn of(&mut self, thread: ThreadId) -> &mut SimTarget {
        let pid = self.process_of(thread);
        let at = self.members.iter().position(|member| member.process.pid == pid).unwrap_or(0);
        &mut self.members[at]
    }

    /// The next event of any of them.
    fn poll(&mut self, capture: &mut Capture) -> Result<Option<TargetEvent>, Fault> {
        let now_ns = self.clock.now_ns();
        for (at, member) in self.members.iter_mut().enumerate() {
            if member.exit_told && at > 0 {
                continue;
            }
            match member.next(now_ns, capture)? {
                TargetEvent::Timeout => {}
                TargetEvent::Exited(_) if at > 0 => {
                    let process = member.process.pid;
                    self.gone = Some(process);
                    return Ok(Some(TargetEvent::ProcessEnded { process }));
                }
                event => return Ok(Some(event)),
            }
        }
        Ok(None)
    }

    /// Time of the next event.
    fn next_instant(&self) -> u64 {
        let of_members = self.members.iter().filter_map(|member| member.machine.next_instant());
        of_members.chain(self.unborn.last().map(|process| process.start_ns)).min().unwrap_or(u64::MAX)
    }
}

impl Observed for SimTree {
    fn process(&self) -> &Process {
        self.members[0].process()
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        self.first().thread_name(thread)
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.first().mappings(out)
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.first().image_bytes(mapping)
    }

    fn files(&mut self) -> Arc<dyn Files> {
        self.first().files()
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        self.first().read_memory(from, into)
    }
}

impl Target for SimTree {
    fn process_of(&self, thread: ThreadId) -> u32 {
        let pids = self.members.iter().map(|member| member.process.pid);
        pids.filter(|pid| u64::from(*pid) <= thread.0).max().unwrap_or_default()
    }

    fn other(&mut self, process: u32) -> Option<&mut dyn Observed> {
        let member = self.members.iter_mut().find(|member| member.process.pid == process);
        member.map(|member| member as &mut dyn Observed)
    }

    fn threads(&mut self, out: &mut Vec<(ThreadId, Option<Avma>)>) {
        let mut all = Vec::new();
        for member in &mut self.members {
            member.threads(out);
            all.append(out);
        }
        *out = all;
    }

    fn poll(&mut self, thread: ThreadId) -> Result<ThreadStatus, Fault> {
        self.of(thread).poll(thread)
    }

    fn interrupt(&mut self, thread: ThreadId, stack_bytes: usize, keep_waiting: bool) -> Result<(), Fault> {
        self.of(thread).interrupt(thread, stack_bytes, keep_waiting)
    }

    fn next(&mut self, until_ns: u64, capture: &mut Capture) -> Result<TargetEvent, Fault> {
        if let Some(pid) = self.gone.take() {
            self.members.retain(|member| member.process.pid != pid);
        }
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Ok(event);
            }
            if let Some(event) = self.poll(capture)? {
                return Ok(event);
            }
            let now_ns = self.clock.now_ns();
            if now_ns >= until_ns {
                return Ok(TargetEvent::Timeout);
            }
            self.clock.advance_to(self.next_instant().clamp(now_ns, until_ns));
            self.begin_due();
        }
    }

    fn waits_at(&mut self, thread: ThreadId) -> Option<(Avma, Avma)> {
        self.of(thread).waits_at(thread)
    }
}

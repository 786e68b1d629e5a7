//! What the rings tell, in the words of the engine: processes and threads that are seen first,
//! samples with what each weighs, names, images.
//!
//! Input: records of rings, ring after ring; output: [`Record`]s in the order of their times.
//!
//! Weights: the CPU clock of a process tells exactly what all of its threads have used, and its
//! samples in a batch share what was used since the batch before. So counts add up to CPU seconds
//! × hz, the time of threads that ended before a sample included, and each sample has the same
//! chance to be taken at any moment of that time. A process that was not there at the end of the
//! batch before has samples that stand for the distance of ticks each: many short ones then add up
//! rightly, those that were never sampled included.

use std::collections::VecDeque;

use hashbrown::{HashMap, HashSet};
use libc::pid_t;

use super::choice::{self, Choice};
use super::grid::Grid;
use super::mapped;
use super::member::Member;
use super::record::{Id, PerfRecord, Sample};
use crate::addr::{Avma, CodeAddress};
use crate::binary::Mapping;
use crate::sources::pushed::{IN_KERNEL, Record, What};
use crate::sources::{Activity, Capture, Look, ThreadId};

/// Buffers that are kept for samples to come.
const SPARE_MAX: usize = 1024;
/// What is known of a process that has ended is kept for so many batches: records of it may wait.
const BATCHES_AFTER_END: u8 = 3;
/// Most ancestors that are asked for when a process is judged.
const ANCESTORS_MAX: u32 = 64;

/// What a record of a ring says, kept until the batch is whole: rings are read one after the
/// other, so that what they tell comes out of order.
#[derive(Debug)]
enum Happened {
    /// It was started by a thread of this process.
    Forked(pid_t),
    /// The first sample of a process, which has this name.
    Began(String),
    Sampled(Box<Capture>),
    Missed(&'static str),
    Ended,
    /// A thread, or a process that runs another program now, has this name.
    Named(String, bool),
    /// It runs a program of this name.
    Exec(String),
    Mapped(Mapping),
    /// Its images may have changed.
    Changed,
}

/// What changed of the memory of a process at a time.
#[derive(Debug)]
enum Change {
    /// It is a copy of that of this process.
    Forked(pid_t),
    Exec,
    Mapped(Mapping),
}

/// See the top of this file.
pub(super) struct Told {
    choice: Choice,
    /// The process that the recording is of, or a stand-in for all.
    pub(super) main: pid_t,
    /// Processes that are sampled.
    pub(super) members: HashMap<pid_t, Member>,
    /// Processes that were heard of and are not wanted.
    refused: HashSet<pid_t>,
    /// What the kernel is to be told of these: refused, or no longer.
    pub(super) verdicts: Vec<(pid_t, bool)>,
    /// The monotonic clock at the engine's 0.
    origin_ns: u64,
    /// Nanoseconds between two samples of a thread that runs all the time.
    period_ns: u64,
    /// Frames in the kernel are told.
    kernel_frames: bool,
    /// When ticks are due.
    pub(super) grid: Grid,
    batch: Vec<(Id, Happened)>,
    /// Processes that were started in the batch.
    forked: HashSet<pid_t>,
    /// What is to change with the time of the engine: time, process, what.
    changes: VecDeque<(u64, pid_t, Change)>,
    /// The time of the last record so far.
    last_ns: u64,
    /// Samples in the batch.
    samples: u64,
    /// Records that did not fit, of anybody, in the batch.
    dropped: u64,
    throttled_since_ns: Option<u64>,
    /// Time of samples that were dropped and not told yet: less than a period.
    unsampled_ns: u64,
    /// What processes used that are forgotten.
    forgotten_ns: u64,
    /// Processes that threads left in the batch before.
    leaving: Vec<pid_t>,
    /// Processes that have ended and are not forgotten.
    ended: Vec<pid_t>,
    /// Boxes, since the records that they go out in are small with them.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Capture>>,
    /// The shares of processes in a batch.
    shares: HashMap<pid_t, Share>,
}

/// What the samples of a process in a batch weigh.
#[derive(Clone, Copy, Debug)]
struct Share {
    /// CPU time that they and those that were dropped share; `None`: a period each.
    used_ns: Option<u64>,
    /// How many these are.
    samples: u64,
    dropped: u64,
    /// How many have been told.
    weighed: u64,
}

impl Share {
    /// Up to the sample of this number, whole nanoseconds that add up to all of it.
    fn up_to_ns(&self, used_ns: u64, number: u64) -> u64 {
        let all = (self.samples + self.dropped).max(1);
        (u128::from(used_ns) * u128::from(number) / u128::from(all)) as u64
    }

    /// The weight of the next sample, which was taken at this distance from the one before.
    fn next_ns(&mut self, period_ns: u64) -> u64 {
        self.weighed += 1;
        let share = |used_ns| self.up_to_ns(used_ns, self.weighed) - self.up_to_ns(used_ns, self.weighed - 1);
        self.used_ns.map_or(period_ns, share)
    }

    /// What the samples that were told were not given.
    fn rest_ns(&self, period_ns: u64) -> u64 {
        self.used_ns
            .map_or(self.dropped * period_ns, |used_ns| used_ns - self.up_to_ns(used_ns, self.weighed))
    }
}

impl Told {
    pub(super) fn new(
        choice: Choice,
        main: Member,
        origin_ns: u64,
        period_ns: u64,
        kernel_frames: bool,
    ) -> Told {
        let pid = main.pid();
        Told {
            choice,
            main: pid,
            members: HashMap::from([(pid, main)]),
            refused: HashSet::new(),
            verdicts: Vec::new(),
            origin_ns,
            period_ns,
            kernel_frames,
            grid: Grid::default(),
            batch: Vec::new(),
            forked: HashSet::new(),
            changes: VecDeque::new(),
            last_ns: 0,
            samples: 0,
            dropped: 0,
            throttled_since_ns: None,
            unsampled_ns: 0,
            forgotten_ns: 0,
            leaving: Vec::new(),
            ended: Vec::new(),
            spare: Vec::new(),
            shares: HashMap::new(),
        }
    }

    /// Takes the buffers of a sample back.
    pub(super) fn give_back(&mut self, capture: Box<Capture>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(capture);
        }
    }

    // ---- who is wanted

    /// Judges the processes that run now, before any is sampled.
    pub(super) fn judge_all(&mut self) {
        if self.choice.is_all() || self.choice.is_one() {
            return;
        }
        for pid in choice::all_processes() {
            self.judge(pid, None, 0);
        }
    }

    /// Whether a process is wanted; one that is new is judged. `parent` is known where it was just
    /// started; `depth` of its ancestors have been asked.
    pub(super) fn judge(&mut self, pid: pid_t, parent: Option<pid_t>, depth: u32) -> bool {
        if pid <= 0 || self.refused.contains(&pid) {
            return false;
        }
        if self.members.contains_key(&pid) {
            return true;
        }
        let of_wanted = self.choice.asks_parents() && depth < ANCESTORS_MAX && {
            let parent = parent.or_else(|| choice::parent_of(pid)).unwrap_or(0);
            self.judge(parent, None, depth + 1)
        };
        if !self.choice.wants(pid, of_wanted) {
            self.refused.insert(pid);
            self.verdicts.push((pid, true));
            return false;
        }
        let started_by = parent.and_then(|parent| self.members.get(&parent));
        let template = started_by.or_else(|| self.members.get(&self.main));
        let Some(member) = template.map(|from| from.new_for(pid, started_by.is_some())) else { return false };
        self.members.insert(pid, member);
        true
    }

    /// Processes that are sampled and have not ended.
    pub(super) fn running(&self) -> Vec<pid_t> {
        self.members.iter().filter(|(_, one)| one.ends_in.is_none()).map(|(pid, _)| *pid).collect()
    }

    // ---- records

    /// Takes a record of a ring in.
    pub(super) fn take(&mut self, id: Id, record: PerfRecord<'_>) {
        let refused = self.refused.contains(&id.pid) && !self.forked.contains(&id.pid);
        let happened = match record {
            // These two are of the ring, whoever's records were in it.
            PerfRecord::Lost(records) => return self.dropped += records,
            PerfRecord::Throttle => return self.throttled_since_ns = Some(id.time_ns),
            PerfRecord::Unthrottle => {
                if let Some(since_ns) = self.throttled_since_ns.take() {
                    self.dropped += id.time_ns.saturating_sub(since_ns) / self.period_ns;
                }
                return;
            }
            PerfRecord::Exit => Happened::Ended,
            _ if self.choice.is_one() && id.pid != self.main => return,
            PerfRecord::Fork { parent } if parent == id.pid => return,
            PerfRecord::Fork { parent } => {
                self.forked.insert(id.pid);
                Happened::Forked(parent)
            }
            PerfRecord::Comm { exec, .. } if refused && !(exec && self.choice.may_change()) => return,
            PerfRecord::Comm { name, exec } => {
                Happened::Named(String::from_utf8_lossy(name).into_owned(), exec)
            }
            _ if refused => return,
            PerfRecord::Mmap(mmap) => match mapped::mapping(&mmap) {
                Some(mapping) => Happened::Mapped(mapping),
                None => return,
            },
            PerfRecord::Sample(sample) => self.sample(&sample),
        };
        self.batch.push((id, happened));
    }

    fn sample(&mut self, sample: &Sample<'_>) -> Happened {
        if sample.compat {
            return Happened::Missed("32-bit code");
        }
        let mut capture = self.spare.pop().unwrap_or_else(|| Box::new(Capture::with_capacity(0)));
        capture.stack.clear();
        capture.stack.extend_from_slice(sample.stack);
        capture.kernel.clear();
        // All but the innermost are return addresses: looked up where the call is.
        let frames = sample.kernel().map(Avma).enumerate().map(|(depth, at)| match depth {
            0 => CodeAddress::Pc(at),
            _ => CodeAddress::Return(at),
        });
        capture.kernel.extend(frames.map(CodeAddress::lookup));
        // In the middle of an exec there are registers, but no program yet.
        capture.only_kernel = sample.registers.is_none_or(|registers| registers.pc() == Avma(0));
        capture.registers = sample.registers.unwrap_or_default();
        capture.stack_base = capture.registers.sp();
        (capture.pause_ns, capture.stood_ns, capture.stack_limit) = (0, 0, None);
        Happened::Sampled(capture)
    }

    /// The memory of processes is as it was at this time from now on.
    pub(super) fn go_to(&mut self, time_ns: u64) {
        while let Some((at_ns, pid, _)) = self.changes.front()
            && *at_ns <= time_ns
        {
            let (at_ns, pid) = (*at_ns, *pid);
            let Some((_, _, change)) = self.changes.pop_front() else { return };
            let copied = match &change {
                Change::Forked(parent) => self.members.get(parent).map(|parent| parent.mapped.clone()),
                _ => None,
            };
            let Some(member) = self.members.get_mut(&pid) else { continue };
            match change {
                Change::Forked(_) => member.forked_at(copied.unwrap_or_default(), at_ns),
                Change::Exec => member.exec_at(at_ns),
                Change::Mapped(mapping) => member.mapped.add(mapping),
            }
        }
    }

    /// The number is another process's from now on.
    fn forget_number(&mut self, pid: pid_t) {
        if self.refused.remove(&pid) {
            self.verdicts.push((pid, false));
        }
        if self.members.get(&pid).is_some_and(|member| member.ends_in.is_some())
            && let Some(member) = self.members.remove(&pid)
        {
            self.forgotten_ns += member.clock.used_ns();
        }
    }

    /// Judges the processes that records are of, and takes in what they say of them, in the order of
    /// times; what is left is for the engine.
    fn sift(&mut self, mut batch: Vec<(Id, Happened)>) -> Vec<(Id, Happened)> {
        let mut left = Vec::with_capacity(batch.len());
        for (id, happened) in batch.drain(..) {
            let pid = id.pid;
            match happened {
                Happened::Forked(parent) => {
                    self.forget_number(pid);
                    if self.judge(pid, Some(parent), 0) {
                        self.changes.push_back((id.time_ns, pid, Change::Forked(parent)));
                    }
                    continue;
                }
                Happened::Named(_, true) if self.choice.may_change() => {
                    self.forget_number(pid);
                    self.judge(pid, None, 0);
                }
                Happened::Ended if !self.members.contains_key(&pid) => {
                    if pid == id.tid {
                        self.forget_number(pid);
                    }
                    continue;
                }
                Happened::Sampled(_) | Happened::Missed(_) => {
                    self.judge(pid, None, 0);
                }
                _ => {}
            }
            let Some(member) = self.members.get_mut(&pid) else {
                if let Happened::Sampled(capture) = happened {
                    self.give_back(capture);
                }
                continue;
            };
            if member.waits_for_exec && !matches!(happened, Happened::Named(..)) {
                continue;
            }
            if matches!(happened, Happened::Sampled(_) | Happened::Missed(_)) {
                self.samples += 1;
                member.samples += 1;
                self.grid.see(id.cpu, id.time_ns);
                if !std::mem::replace(&mut member.told, true) {
                    left.push((id, Happened::Began(member.name().to_owned())));
                }
            }
            let told = member.told;
            left.push((
                id,
                match happened {
                    Happened::Sampled(mut capture) => {
                        member.sampled(&mut capture);
                        if !self.kernel_frames {
                            capture.kernel.clear();
                        }
                        Happened::Sampled(capture)
                    }
                    Happened::Named(name, exec) => {
                        member.names.insert(id.tid, name.clone());
                        if !exec {
                            continue;
                        }
                        member.replaced(&name);
                        self.changes.push_back((id.time_ns, pid, Change::Exec));
                        if std::mem::take(&mut member.waits_for_exec) || !told {
                            continue;
                        }
                        Happened::Exec(name)
                    }
                    Happened::Mapped(mapping) => {
                        member.mapped_now(&mapping);
                        self.changes.push_back((id.time_ns, pid, Change::Mapped(mapping)));
                        if !told {
                            continue;
                        }
                        Happened::Changed
                    }
                    Happened::Ended => {
                        member.names.remove(&id.tid);
                        Happened::Ended
                    }
                    other => other,
                },
            ));
        }
        self.batch = batch;
        self.forked.clear();
        // What the batch before left for later may be younger than the beginning of this one.
        self.changes.make_contiguous().sort_by_key(|(at_ns, ..)| *at_ns);
        left
    }

    fn record(&self, id: Id, what: What) -> Record {
        let thread = ThreadId(id.tid.unsigned_abs().into());
        let (at_ns, process) = (id.time_ns.saturating_sub(self.origin_ns), id.pid.unsigned_abs());
        Record { at_ns, process, thread, what }
    }

    // ---- batches

    /// Hands the batch over, in the order of its times. `by_clock`: samples share what the clocks
    /// of their processes say, those that were dropped included.
    pub(super) fn finish_batch(&mut self, by_clock: bool, into: &mut Vec<Record>) {
        let mut batch = std::mem::take(&mut self.batch);
        batch.sort_by_key(|(id, _)| id.time_ns);
        let mut batch = self.sift(batch);
        let dropped = self.dropped;
        let all = self.samples.max(1);
        let mut dropped_left = dropped;
        self.shares.clear();
        for (pid, member) in &mut self.members {
            if member.samples > 0 || dropped > 0 && self.samples == 0 && *pid == self.main {
                let of_it = if self.samples == 0 { dropped } else { dropped * member.samples / all };
                dropped_left -= of_it;
                // Asked where it is not used, too: then it is known up to here.
                let used_ns = member.clock.share_ns(*pid).filter(|_| by_clock);
                let samples = std::mem::take(&mut member.samples);
                self.shares.insert(*pid, Share { used_ns, samples, dropped: of_it, weighed: 0 });
            }
        }
        let late = self.drop_late(&mut batch);
        self.last_ns = batch.last().map_or(0, |(id, _)| id.time_ns).max(self.last_ns);
        let last_ns = self.last_ns;
        let mut left: Vec<pid_t> = Vec::new();
        for (id, happened) in batch.drain(..) {
            let what = match happened {
                Happened::Began(name) => What::Began { name },
                Happened::Sampled(mut capture) => {
                    capture.look = Some(self.used(id, into));
                    What::Sampled(capture)
                }
                Happened::Missed(why) => What::Missed(self.used(id, into), why),
                Happened::Ended => {
                    if let Some(member) = self.members.get_mut(&id.pid) {
                        member.first_left |= id.tid == id.pid;
                        member.leaving.push(id);
                        left.push(id.pid);
                    }
                    continue;
                }
                Happened::Exec(name) => {
                    let Some(member) = self.members.get_mut(&id.pid) else { continue };
                    // One of these numbers is that of the thread that goes on.
                    member.leaving.clear();
                    member.left.clear();
                    for (tid, cpu_ns) in std::mem::take(&mut member.threads) {
                        let what = What::Ended(Some(cpu_ns), "replaced by exec before its next sample");
                        into.push(self.record(Id { tid, ..id }, what));
                    }
                    What::Exec { name: Some(name) }
                }
                Happened::Changed => What::ImagesMayHaveChanged,
                Happened::Forked(_) | Happened::Named(..) | Happened::Mapped(_) => continue,
            };
            into.push(self.record(id, what));
        }
        self.tell_ends(left, last_ns, into);
        self.unsampled_ns += dropped_left * self.period_ns
            + self.shares.values().map(|share| share.rest_ns(self.period_ns)).sum::<u64>();
        let lost = self.unsampled_ns / self.period_ns;
        self.unsampled_ns %= self.period_ns;
        let nobody = Id { pid: self.main, time_ns: last_ns, ..Id::default() };
        if lost > 0 {
            into.push(self.record(nobody, What::Dropped(lost, "the kernel dropped them")));
        }
        if late > 0 {
            into.push(self.record(nobody, What::Late(late)));
        }
        (self.samples, self.dropped) = (0, 0);
    }

    /// Tells of threads that left in the batch before, since on its way out a thread still runs for
    /// a while after it is told to have ended, and of processes that have ended with them. `left`
    /// are the processes that threads left in this batch.
    fn tell_ends(&mut self, mut left: Vec<pid_t>, last_ns: u64, into: &mut Vec<Record>) {
        let (main, mut told, mut forgotten) = (self.main, Vec::new(), Vec::new());
        left.sort_unstable();
        left.dedup();
        let before = std::mem::replace(&mut self.leaving, left.clone());
        for pid in before {
            let Some(member) = self.members.get_mut(&pid) else { continue };
            for id in std::mem::take(&mut member.left) {
                if let Some(cpu_ns) = member.threads.remove(&id.tid) {
                    let id = Id { time_ns: last_ns.max(id.time_ns), ..id };
                    told.push((id, What::Ended(Some(cpu_ns), "thread ended before its next sample")));
                }
            }
            if pid == main || !member.first_left {
                continue;
            }
            if !member.has_ended() {
                // Its first thread has left, and the others are on their way out, or run on.
                self.leaving.push(pid);
                continue;
            }
            if member.told {
                // Behind what its threads tell at the same time.
                let last = Id { pid, tid: pid_t::MAX, time_ns: last_ns, ..Id::default() };
                told.push((last, What::Gone));
            }
            member.ends_in = Some(BATCHES_AFTER_END);
            self.ended.push(pid);
        }
        for pid in left {
            if let Some(member) = self.members.get_mut(&pid) {
                member.left.append(&mut member.leaving);
            }
        }
        for pid in &self.ended {
            match self.members.get_mut(pid).and_then(|member| member.ends_in.as_mut()) {
                Some(0) => forgotten.push(*pid),
                Some(batches) => *batches -= 1,
                None => {}
            }
        }
        self.ended.retain(|pid| !forgotten.contains(pid));
        for pid in forgotten {
            self.forget_number(pid);
        }
        for (id, what) in told {
            into.push(self.record(id, what));
        }
    }

    /// Takes samples out whose ticks were held up, unless a process has no others; how many. What
    /// threads used meanwhile is shared by the others, where they share what a clock says.
    fn drop_late(&mut self, batch: &mut Vec<(Id, Happened)>) -> u64 {
        let (grid, shares) = (&self.grid, &mut self.shares);
        let mut late_of: HashMap<pid_t, u64> = HashMap::new();
        let is_late = |(id, happened): &(Id, Happened)| {
            matches!(happened, Happened::Sampled(_)) && grid.is_late(id.cpu, id.time_ns)
        };
        for (id, _) in batch.iter().filter(|one| is_late(one)) {
            *late_of.entry(id.pid).or_default() += 1;
        }
        late_of.retain(|pid, late| match shares.get_mut(pid) {
            Some(share) if share.used_ns.is_some() && *late < share.samples => {
                share.samples -= *late;
                true
            }
            _ => false,
        });
        if !late_of.is_empty() {
            batch.retain(|one| !(late_of.contains_key(&one.0.pid) && is_late(one)));
        }
        late_of.values().sum()
    }

    /// At the end of a recording that saw user mode only: what was used of this, and no sample stands
    /// for, was used in the kernel.
    pub(super) fn tell_unseen(&self, used_ns: u64, at_ns: u64, into: &mut Vec<Record>) {
        let told_ns: u64 = self.members.values().map(|member| member.clock.told_ns).sum();
        let samples = used_ns.saturating_sub(self.forgotten_ns + told_ns) / self.period_ns;
        let what = What::Dropped(samples, IN_KERNEL);
        let process = self.main.unsigned_abs();
        into.push(Record { at_ns, process, thread: ThreadId(0), what });
    }

    /// CPU time of all of them while they were sampled, nanoseconds.
    pub(super) fn used_ns(&self) -> u64 {
        self.forgotten_ns + self.members.values().map(|member| member.clock.used_ns()).sum::<u64>()
    }

    /// What the thread of a sample has used by then, with what the sample weighs. One that is new
    /// is told first.
    fn used(&mut self, id: Id, into: &mut Vec<Record>) -> Look {
        let share = self.shares.get_mut(&id.pid);
        let period_ns = self.grid.period_ns(id.time_ns).unwrap_or(self.period_ns);
        let weight_ns = share.map_or(period_ns, |share| share.next_ns(period_ns));
        let Some(member) = self.members.get_mut(&id.pid) else { return look(weight_ns) };
        let mut started = None;
        if !member.threads.contains_key(&id.tid) {
            let stack_top = if id.tid == id.pid { member.main_stack_top() } else { None };
            started = Some(What::Started { stack_top, look: look(0), found: false });
        }
        member.clock.told_ns += weight_ns;
        let cpu_ns = member.threads.entry(id.tid).or_default();
        *cpu_ns += weight_ns;
        let used = look(*cpu_ns);
        if let Some(started) = started {
            into.push(self.record(id, started));
        }
        used
    }
}

/// A thread that runs and has used so much.
fn look(cpu_ns: u64) -> Look {
    Look { cpu_ns, switches: 0, activity: Activity::Running }
}

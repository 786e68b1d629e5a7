//! What the rings tell, in the words of the engine: processes and threads that are seen first,
//! samples with what each weighs, names, images.
//!
//! Input: records of rings, ring after ring; output: [`Record`]s in the order of their times.
//!
//! A batch of them is weighed and handed over in `batch.rs`.

use std::collections::VecDeque;

use hashbrown::{HashMap, HashSet};
use libc::pid_t;

use super::baseline::Baseline;
use super::below::Below;
use super::beyond::{BEYOND_BYTES, Beyond};
use super::buffers::{Pool, Usage};
use super::choice::Choice;
use super::events::WINDOW_BYTES_MAX;
use super::grid::Grid;
use super::leavers::{Leavers, NOBODY};
use super::mapped;
use super::member::Member;
use super::prefetch::Prefetch;
use super::record::{Id, PerfRecord, Sample};
use super::share::Share;
use super::switched::Switched;
use super::waits::{Stack, Switch};
use super::woken::{Seen, Woken};
use crate::addr::{Avma, CodeAddress};
use crate::binary::Mapping;
use crate::sources::pushed::{Record, What};
use crate::sources::{Capture, ThreadId};

/// Bytes of stacks that are read of rings before they are handed over, at most, where a batch takes long; and what a
/// sample takes beside its stack.
const HELD_BYTES_MAX: usize = 16 << 20;
const SAMPLE_BYTES: usize = 512;
/// Why a sample is none.
const COMPAT: &str = "32-bit code";
/// Why another one is none: what it was of is not known any more.
const LEAVER: &str = "of a thread that had ended";

/// What a record of a ring says, kept until the batch is whole: rings are read one after the
/// other, so that what they tell comes out of order.
#[derive(Debug)]
pub(super) enum Happened {
    /// It was started by this process, and which of its threads.
    Forked(pid_t, pid_t),
    /// A thread was started by this one of its process.
    ThreadBegan(pid_t),
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
    /// Those that were judged to be wanted since somebody asked.
    pub(super) begun: Vec<pid_t>,
    /// What the kernel is to be told of these: refused, or no longer.
    pub(super) verdicts: Vec<(pid_t, bool)>,
    /// The monotonic clock at the engine's 0.
    origin_ns: u64,
    /// Nanoseconds between two samples of a thread that runs all the time.
    pub(super) period_ns: u64,
    /// Frames in the kernel are told.
    pub(super) kernel_frames: bool,
    /// Waits, where they are recorded.
    pub(super) switched: Option<Switched>,
    /// What no record holds of large stacks, where there are such.
    pub(super) beyond: Option<Beyond>,
    /// Reads pieces of deep stacks.
    pub(super) prefetch: Option<Prefetch>,
    pub(super) below: Option<Below>,
    /// The number of sizes of the window so far, and since when stacks are copied by this one (monotonic clock).
    pub(super) window: u32,
    pub(super) window_since_ns: u64,
    /// CPU time from before threads run, where it is measured.
    pub(super) woken: Option<Woken>,
    /// When ticks are due.
    pub(super) grid: Grid,
    pub(super) batch: Vec<(Id, Happened)>,
    /// Bytes of stacks in it.
    pub(super) held_bytes: usize,
    /// And of what lies beyond them.
    pub(super) held_beyond_bytes: usize,
    batch_usage: Usage,
    /// Processes that were started in the batch.
    forked: HashSet<pid_t>,
    /// What is to change with the time of the engine: time, process, what.
    changes: VecDeque<(u64, pid_t, Change)>,
    /// The time of the last record so far.
    pub(super) last_ns: u64,
    /// When something was started, ended, named or mapped last.
    pub(super) changed_ns: u64,
    /// Samples in the batch.
    pub(super) samples: u64,
    /// Samples that did not fit, of anybody, in the batch, and the CPU time that they stand for.
    pub(super) dropped: u64,
    pub(super) dropped_ns: u64,
    /// Records that were read in the batch, and records of any kind that did not fit, where nobody counts samples
    /// apart from others.
    pub(super) records: u64,
    pub(super) lost_records: u64,
    /// What changed of processes may be among records that did not fit, which is made up for from this time on.
    pub(super) untold: bool,
    next_look_ns: u64,
    /// By CPU, where samples stopped to come.
    throttled_since_ns: HashMap<u32, u64>,
    pub(super) leavers: Leavers,
    /// Time of samples that were dropped and not told yet: less than a period.
    pub(super) unsampled_ns: u64,
    /// What processes used that are forgotten.
    pub(super) forgotten_ns: u64,
    /// What their samples weighed, and all those that were told as dropped.
    pub(super) told_ns: u64,
    /// What all used by what events counted, where the clocks of processes that were started do not tell.
    pub(super) counted_ns: u64,
    /// Threads that have ended, whose names nobody asks for after this batch: process, thread.
    pub(super) nameless: Vec<(pid_t, pid_t)>,
    /// Processes that threads left in the batch before.
    pub(super) leaving: Vec<pid_t>,
    /// Processes that have ended and are not forgotten.
    pub(super) ended: Vec<pid_t>,
    /// Boxes, since the records that they go out in are small with them.
    pub(super) spare: Pool<Box<Capture>>,
    /// The shares of processes in a batch.
    pub(super) shares: HashMap<pid_t, Share>,
    /// Of a whole machine: the processes that were there and of which no sample came yet.
    pub(super) baseline: Baseline,
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
            begun: Vec::new(),
            verdicts: Vec::new(),
            origin_ns,
            period_ns,
            kernel_frames,
            switched: None,
            beyond: None,
            prefetch: None,
            below: None,
            window: 0,
            window_since_ns: 0,
            woken: None,
            grid: Grid::default(),
            batch: Vec::new(),
            held_bytes: 0,
            held_beyond_bytes: 0,
            batch_usage: Usage::default(),
            forked: HashSet::new(),
            changes: VecDeque::new(),
            last_ns: 0,
            changed_ns: 0,
            samples: 0,
            dropped: 0,
            dropped_ns: 0,
            records: 0,
            lost_records: 0,
            untold: false,
            next_look_ns: 0,
            throttled_since_ns: HashMap::new(),
            leavers: Leavers::default(),
            unsampled_ns: 0,
            forgotten_ns: 0,
            told_ns: 0,
            counted_ns: 0,
            nameless: Vec::new(),
            leaving: Vec::new(),
            ended: Vec::new(),
            spare: Pool::default(),
            shares: HashMap::new(),
            baseline: Baseline::default(),
        }
    }

    /// How much of a batch was read that is not handed over yet, per mille of what may be: by what samples
    /// themselves have, which gives way where that is much.
    pub(super) fn held_per_mille(&self) -> u32 {
        (self.held_bytes.saturating_mul(1000) / HELD_BYTES_MAX).min(1000) as u32
    }

    /// The same with what lies beyond them.
    pub(super) fn held_in_all_per_mille(&self) -> u32 {
        let held_bytes = self.held_bytes.saturating_add(self.held_beyond_bytes);
        (held_bytes.saturating_mul(1000) / HELD_BYTES_MAX).min(1000) as u32
    }

    /// Reads what programs in the kernel copied so far: after the rings of samples, so that all of theirs is there.
    /// The bytes that are freed of buffers for it.
    pub(super) fn read_copies(&mut self) -> usize {
        self.beyond.as_mut().map_or(0, Beyond::read)
            + self.prefetch.as_mut().map_or(0, Prefetch::read)
            + self.below.as_mut().map_or(0, Below::read)
    }

    /// Takes the buffers of a sample back.
    pub(super) fn give_back(&mut self, capture: Box<Capture>) {
        self.spare.give_back(capture);
    }

    /// A buffer for a sample.
    pub(super) fn buffer(&mut self) -> Box<Capture> {
        self.spare.take().unwrap_or_else(|| Box::new(Capture::with_capacity(0)))
    }

    /// Takes in how many samples did not fit into the rings of CPUs at last; `None` where nobody counts them, and
    /// records tell of all records together.
    pub(super) fn take_lost(&mut self, samples: Option<Vec<(u32, u64)>>, now_ns: u64) {
        let Some(samples) = samples else { return };
        self.lost_records = 0;
        for (cpu, samples) in samples {
            self.note_dropped(samples, self.grid.period_ns(cpu, now_ns).unwrap_or(self.period_ns));
        }
    }

    /// So many samples were dropped, which stand for this time each.
    pub(super) fn note_dropped(&mut self, samples: u64, period_ns: u64) {
        self.dropped += samples;
        self.dropped_ns += samples * period_ns;
    }

    /// Takes a record of a ring in.
    pub(super) fn take(&mut self, id: Id, record: PerfRecord<'_>) {
        self.records += 1;
        let id = self.leavers.named(id, matches!(record, PerfRecord::Exit));
        let refused = self.refused.contains(&id.pid) && !self.forked.contains(&id.pid);
        if self.switched.is_some() {
            let other = self.choice.is_one() && id.pid != self.main;
            self.note_switch(id, &record, other || refused);
        }
        let unwanted = self.choice.is_one() && id.pid != self.main;
        match record {
            PerfRecord::SwitchIn { direct } => self.note_woken(id, Seen::In { direct }),
            PerfRecord::SwitchOut { preempted } => self.note_woken(id, Seen::Out { preempted }),
            PerfRecord::Lost(_) => self.note_woken(id, Seen::Dropped),
            PerfRecord::Sample(Sample { at_switch: false, .. }) => self.note_woken(id, Seen::Sampled),
            _ => {}
        }
        let happened = match record {
            // These two are of the ring, whoever's records were in it.
            PerfRecord::Lost(records) => {
                self.untold = true;
                self.lost_records += records;
                return;
            }
            PerfRecord::Throttle => {
                self.throttled_since_ns.insert(id.cpu, id.time_ns);
                return;
            }
            PerfRecord::Unthrottle => {
                if let Some(since_ns) = self.throttled_since_ns.remove(&id.cpu) {
                    let dropped = id.time_ns.saturating_sub(since_ns) / self.period_ns;
                    self.note_dropped(dropped, self.period_ns);
                }
                return;
            }
            PerfRecord::Exit => Happened::Ended,
            _ if unwanted => return,
            PerfRecord::Fork { parent, .. } if parent == id.pid && refused => return,
            PerfRecord::Fork { parent, creator } if parent == id.pid => {
                return self.batch.push((id, Happened::ThreadBegan(creator)));
            }
            PerfRecord::Fork { parent, creator } => {
                self.forked.insert(id.pid);
                Happened::Forked(parent, creator)
            }
            PerfRecord::Comm { exec, .. } if refused && !(exec && self.choice.may_change()) => return,
            PerfRecord::Comm { name, exec } => {
                Happened::Named(String::from_utf8_lossy(name).into_owned(), exec)
            }
            _ if refused => return,
            PerfRecord::SwitchIn { .. } | PerfRecord::SwitchOut { .. } => return,
            PerfRecord::Mmap(mmap) => match mapped::mapping(&mmap) {
                Some(mapping) => Happened::Mapped(mapping),
                None => return,
            },
            PerfRecord::Sample(sample) if sample.at_switch => return self.stack_at_switch(id, &sample),
            PerfRecord::Sample(_) if id.tid == NOBODY => {
                return self.batch.push((Id { tid: id.pid, ..id }, Happened::Missed(LEAVER)));
            }
            PerfRecord::Sample(sample) if self.is_unreadable(id, &sample) => Happened::Missed(COMPAT),
            PerfRecord::Sample(sample) => Happened::Sampled(self.capture(id, &sample)),
        };
        if !unwanted && !refused && !matches!(happened, Happened::Sampled(_) | Happened::Missed(_)) {
            self.changed_ns = id.time_ns;
        }
        self.batch.push((id, happened));
    }

    /// Notes what a record says of switches; `unwanted` is one of a process that is not recorded.
    fn note_switch(&mut self, id: Id, record: &PerfRecord<'_>, unwanted: bool) {
        let Some(switched) = &mut self.switched else { return };
        match record {
            PerfRecord::Lost(_) => switched.dropped(id),
            // That nothing runs is no thread, and one that has ended waits for nothing.
            _ if unwanted || id.pid <= 0 || id.tid == NOBODY => {}
            PerfRecord::SwitchIn { .. } => switched.note(id, Switch::In),
            PerfRecord::SwitchOut { preempted } => switched.left(id, *preempted),
            PerfRecord::Exit => switched.note(id, Switch::Ended),
            PerfRecord::Fork { .. } => switched.note(id, Switch::Began),
            PerfRecord::Comm { exec: true, .. } => switched.note(id, Switch::Exec),
            _ => {}
        }
        switched.saw(id);
    }

    /// Takes in where a thread is about to leave its CPU.
    fn stack_at_switch(&mut self, id: Id, sample: &Sample<'_>) {
        if self.switched.is_none() {
            if id.pid > 0 && sample.registers.is_some() && !self.is_unreadable(id, sample) {
                let capture = self.capture(id, sample);
                self.note_woken(id, Seen::Copied(capture));
            }
            return;
        }
        let unreadable = id.pid > 0 && self.is_unreadable(id, sample);
        let stack = match sample.registers {
            _ if id.pid <= 0 || id.tid == NOBODY => return,
            _ if unreadable => Stack::Missing(COMPAT),
            // A thread of the kernel, or one that is ending.
            None => Stack::Unwanted,
            Some(_) => Stack::Taken(self.capture(id, sample)),
        };
        let unused = self.switched.as_mut().and_then(|switched| switched.copied(id, stack));
        if let Some(Stack::Taken(capture)) = unused {
            self.give_back(capture);
        }
    }

    /// Whether a thread runs code of another size than its program's (emulators do): its stack and
    /// libraries are none that it was loaded with. One that is gone is believed to run its own.
    fn is_unreadable(&mut self, id: Id, sample: &Sample<'_>) -> bool {
        if !sample.compat {
            return false;
        }
        let of_32_bits = self.members.get_mut(&id.pid).and_then(Member::is_of_32_bits);
        sample.registers.is_none() || of_32_bits == Some(false)
    }

    fn capture(&mut self, id: Id, sample: &Sample<'_>) -> Box<Capture> {
        let mut capture = self.buffer();
        // Rings still hold what was copied by the size before.
        capture.window = self.window.wrapping_sub(u32::from(id.time_ns < self.window_since_ns));
        capture.stack.clear();
        capture.stack.extend_from_slice(sample.stack);
        self.held_bytes += sample.stack.len() + SAMPLE_BYTES;
        if self.beyond.is_some() && sample.stack.len() >= WINDOW_BYTES_MAX as usize {
            self.held_beyond_bytes += BEYOND_BYTES as usize;
        }
        capture.pieces.clear();
        capture.kernel.clear();
        // All but the innermost are return addresses: looked up where the call is.
        // Where a program called an emulated entry point, the kernel counts that among its own.
        let frames = sample.kernel().map(Avma).filter(|at| at.is_kernel());
        let frames = frames.enumerate().map(|(depth, at)| match depth {
            0 => CodeAddress::Pc(at),
            _ => CodeAddress::Return(at),
        });
        capture.kernel.extend(frames.map(CodeAddress::lookup));
        // In the middle of an exec there are registers, but no program yet.
        capture.only_kernel = sample.registers.is_none_or(|registers| registers.pc() == Avma(0));
        capture.registers = sample.registers.unwrap_or_default();
        capture.stack_base = capture.registers.sp();
        (capture.pause_ns, capture.stood_ns, capture.stack_limit) = (0, 0, None);
        capture
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

    /// Judges the processes that records are of, and takes in what they say of them, in the order of
    /// times; what is left is for the engine.
    pub(super) fn sift(&mut self, mut batch: Vec<(Id, Happened)>) -> Vec<(Id, Happened)> {
        let read = batch.len();
        let mut left = Vec::with_capacity(read);
        for (id, happened) in batch.drain(..) {
            let pid = id.pid;
            match happened {
                Happened::ThreadBegan(creator) => {
                    if let Some(member) = self.members.get_mut(&pid)
                        && let Some(name) = member.name_of(creator)
                    {
                        member.names.insert(id.tid, name);
                    }
                    continue;
                }
                Happened::Forked(parent, creator) => {
                    self.forget_number(pid);
                    self.choice.number_is_anothers(pid);
                    if self.judge(pid, Some(parent), 0) {
                        let name = self.members.get_mut(&parent).and_then(|parent| parent.name_of(creator));
                        if let Some((name, member)) = name.zip(self.members.get_mut(&pid)) {
                            member.names.insert(pid, name);
                        }
                        self.changes.push_back((id.time_ns, pid, Change::Forked(parent)));
                        // It will wait sooner or later, perhaps before it runs another program.
                        let member = self.members.get_mut(&pid).filter(|_| self.switched.is_some());
                        if let Some(member) = member
                            && !std::mem::replace(&mut member.told, true)
                        {
                            left.push((id, Happened::Began(member.name().to_owned())));
                        }
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
            member.seen_ns = member.seen_ns.max(id.time_ns);
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
                        let mut most_bytes = WINDOW_BYTES_MAX;
                        if let Some(beyond) = &mut self.beyond {
                            beyond.complete(id, &mut capture);
                            most_bytes += BEYOND_BYTES;
                        }
                        if let Some(prefetch) = &mut self.prefetch {
                            prefetch.complete(id, &mut capture);
                        }
                        member.bring_in_stack(id.tid, &capture, most_bytes);
                        if let Some(below) = &mut self.below {
                            below.complete(id, &mut capture);
                        }
                        if !self.kernel_frames {
                            capture.kernel.clear();
                        }
                        Happened::Sampled(capture)
                    }
                    Happened::Named(name, exec) => {
                        member.names.insert(id.tid, name.clone());
                        // After an exec a thread has the number of the first one, which has ended.
                        self.nameless.retain(|thread| *thread != (pid, id.tid));
                        if !exec {
                            // Later records of the thread find this name.
                            if told {
                                left.push((id, Happened::Named(name, false)));
                            }
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
                    other => other,
                },
            ));
        }
        self.batch_usage.shrink(&mut batch, read);
        self.batch = batch;
        self.forked.clear();
        // What the batch before left for later may be younger than the beginning of this one.
        self.changes.make_contiguous().sort_by_key(|(at_ns, ..)| *at_ns);
        left
    }

    pub(super) fn record(&self, id: Id, what: What) -> Record {
        let thread = ThreadId(id.tid.unsigned_abs().into());
        let (at_ns, process) = (id.time_ns.saturating_sub(self.origin_ns), id.pid.unsigned_abs());
        Record { at_ns, process, thread, what }
    }
}

mod wanted;

#[cfg(test)]
mod tests;

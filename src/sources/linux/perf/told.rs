//! What the rings tell of one process, in the words of the engine: threads that are seen first,
//! samples with what each weighs, names, images.
//!
//! Input: records of rings, ring after ring; output: [`Record`]s in the order of their times.
//!
//! Weights: the process's own CPU clock tells exactly what all of its threads have used, and the
//! samples of a batch share what was used since the batch before. So counts add up to CPU seconds
//! × hz, the time of threads that ended before a sample included, and each sample has the same
//! chance to be taken at any moment of that time.

use hashbrown::HashMap;
use libc::pid_t;

use super::grid::Grid;
use super::mapped::Mapped;
use super::record::{Id, PerfRecord, Sample};
use crate::addr::{Avma, CodeAddress};
use crate::sources::pushed::{Record, What};
use crate::sources::{Activity, Capture, Look, ThreadId};

/// Buffers that are kept for samples to come.
const SPARE_MAX: usize = 1024;

/// A thread that was sampled.
#[derive(Debug, Default)]
struct Seen {
    /// What it used, as far as its samples say, nanoseconds.
    cpu_ns: u64,
}

/// What a record of a ring says, kept until the batch is whole: rings are read one after the
/// other, so that what they tell comes out of order.
#[derive(Debug)]
enum Happened {
    Sampled(Box<Capture>),
    Missed(&'static str),
    Ended,
    Exec,
    Mapped,
}

/// See the top of this file.
#[derive(Debug)]
pub(super) struct Told {
    pid: pid_t,
    /// The monotonic clock at the engine's 0.
    origin_ns: u64,
    /// Nanoseconds between two samples of a thread that runs all the time.
    period_ns: u64,
    threads: HashMap<pid_t, Seen>,
    /// Names that threads gave themselves.
    names: HashMap<pid_t, String>,
    /// Threads that have ended, whose names nobody asks for after this batch.
    forget: Vec<pid_t>,
    /// Of the command that is to be run, nothing was seen yet.
    waits_for_exec: bool,
    /// A new program was named and has not run yet.
    in_exec: bool,
    /// Frames in the kernel are told.
    kernel_frames: bool,
    /// Executable memory by what the records say.
    pub(super) mapped: Mapped,
    /// When ticks are due.
    pub(super) grid: Grid,
    /// Where the first thread's stack begins.
    pub(super) main_stack_top: Option<Avma>,
    batch: Vec<(Id, Happened)>,
    /// Threads that are told to have ended in the batch.
    leaving: Vec<Id>,
    /// Samples in the batch.
    samples: u64,
    /// Records that did not fit, of anybody, in the batch.
    dropped: u64,
    throttled_since_ns: Option<u64>,
    /// Time of samples that were dropped and not told yet: less than a period.
    unsampled_ns: u64,
    /// What all samples so far weigh, and those that are told as dropped.
    told_ns: u64,
    /// Boxes, since the records that they go out in are small with them.
    #[allow(clippy::vec_box)]
    spare: Vec<Box<Capture>>,
}

impl Told {
    pub(super) fn new(
        pid: pid_t,
        origin_ns: u64,
        period_ns: u64,
        kernel_frames: bool,
        waits_for_exec: bool,
    ) -> Told {
        Told {
            pid,
            origin_ns,
            period_ns,
            threads: HashMap::new(),
            names: HashMap::new(),
            forget: Vec::new(),
            waits_for_exec,
            in_exec: false,
            kernel_frames,
            mapped: Mapped::default(),
            grid: Grid::default(),
            main_stack_top: None,
            batch: Vec::new(),
            leaving: Vec::new(),
            samples: 0,
            dropped: 0,
            throttled_since_ns: None,
            unsampled_ns: 0,
            told_ns: 0,
            spare: Vec::new(),
        }
    }

    /// The name that a thread gave itself while it was watched.
    pub(super) fn name(&self, thread: ThreadId) -> Option<&String> {
        self.names.get(&pid_t::try_from(thread.0).ok()?)
    }

    /// Takes the buffers of a sample back.
    pub(super) fn give_back(&mut self, capture: Box<Capture>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(capture);
        }
    }

    /// Takes a record of a ring in.
    pub(super) fn take(&mut self, id: Id, record: PerfRecord<'_>) {
        match record {
            // These two are of the ring, whoever's records were in it.
            PerfRecord::Lost(records) => self.dropped += records,
            PerfRecord::Throttle => self.throttled_since_ns = Some(id.time_ns),
            PerfRecord::Unthrottle => {
                if let Some(since_ns) = self.throttled_since_ns.take() {
                    self.dropped += id.time_ns.saturating_sub(since_ns) / self.period_ns;
                }
            }
            _ if id.pid != self.pid => {}
            PerfRecord::Comm { name, exec } => self.named(id, name, exec),
            _ if self.waits_for_exec => {}
            PerfRecord::Sample(sample) => self.sampled(id, &sample),
            PerfRecord::Mmap(mmap) => {
                self.mapped.add(&mmap);
                self.batch.push((id, Happened::Mapped));
            }
            // Its name is asked for when its samples are taken in, which is later.
            PerfRecord::Exit => self.batch.push((id, Happened::Ended)),
        }
    }

    fn named(&mut self, id: Id, name: &[u8], exec: bool) {
        self.names.insert(id.tid, String::from_utf8_lossy(name).into_owned());
        // After an exec a thread has the number of the first one, which has ended.
        self.forget.retain(|tid| *tid != id.tid);
        if !exec {
            return;
        }
        self.mapped.clear();
        self.main_stack_top = None;
        self.in_exec = true;
        if !std::mem::take(&mut self.waits_for_exec) {
            self.batch.push((id, Happened::Exec));
        }
    }

    fn sampled(&mut self, id: Id, sample: &Sample<'_>) {
        self.samples += 1;
        self.grid.see(id.cpu, id.time_ns);
        if sample.compat {
            return self.batch.push((id, Happened::Missed("32-bit code")));
        }
        let mut capture = self.spare.pop().unwrap_or_else(|| Box::new(Capture::with_capacity(0)));
        capture.stack.clear();
        capture.stack.extend_from_slice(sample.stack);
        capture.kernel.clear();
        if self.kernel_frames {
            // All but the innermost are return addresses: looked up where the call is.
            let frames = sample.kernel().map(Avma).enumerate().map(|(depth, at)| match depth {
                0 => CodeAddress::Pc(at),
                _ => CodeAddress::Return(at),
            });
            capture.kernel.extend(frames.map(CodeAddress::lookup));
        }
        // In the middle of an exec there are registers, but no program yet.
        capture.only_kernel = sample.registers.is_none_or(|registers| registers.pc() == Avma(0));
        capture.registers = sample.registers.unwrap_or_default();
        if self.in_exec {
            // Until the new program runs, the registers are those of the one that it replaced.
            self.in_exec = !self.mapped.contains(capture.registers.pc());
            capture.only_kernel |= self.in_exec && sample.kernel().next().is_some();
        }
        capture.stack_base = capture.registers.sp();
        (capture.pause_ns, capture.stood_ns, capture.stack_limit) = (0, 0, None);
        self.batch.push((id, Happened::Sampled(capture)));
    }

    fn record(&self, id: Id, what: What) -> Record {
        let thread = ThreadId(id.tid.unsigned_abs().into());
        Record { at_ns: id.time_ns.saturating_sub(self.origin_ns), thread, what }
    }

    /// How many samples the batch has.
    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// How many more the kernel dropped, as far as it says.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Hands the batch over, in the order of its times. `used_ns` is the CPU time that its
    /// samples, and those that were dropped, share: without, each stands for its period.
    pub(super) fn finish_batch(&mut self, used_ns: Option<u64>, into: &mut Vec<Record>) {
        for tid in self.forget.drain(..) {
            self.names.remove(&tid);
        }
        let mut batch = std::mem::take(&mut self.batch);
        batch.sort_by_key(|(id, _)| id.time_ns);
        let late = self.drop_late(&mut batch);
        let share = used_ns.map(|used_ns| (used_ns, (self.samples + self.dropped).max(1)));
        let (mut weighed, period_ns) = (0, self.period_ns);
        let mut next_weight_ns = || {
            // Whole nanoseconds that add up to all of it.
            let weight_ns = share.map_or(period_ns, |(used_ns, samples)| {
                let up_to = |n: u64| (u128::from(used_ns) * u128::from(n) / u128::from(samples)) as u64;
                up_to(weighed + 1) - up_to(weighed)
            });
            weighed += 1;
            weight_ns
        };
        // On its way out a thread still runs for a while after it is told to have ended.
        let mut leaving = std::mem::take(&mut self.leaving);
        let last_ns = batch.last().map_or(0, |(id, _)| id.time_ns);
        for (id, happened) in batch.drain(..) {
            let what = match happened {
                Happened::Sampled(mut capture) => {
                    capture.look = Some(self.used(id, next_weight_ns(), into));
                    What::Sampled(capture)
                }
                Happened::Missed(why) => What::Missed(self.used(id, next_weight_ns(), into), why),
                Happened::Ended => {
                    self.leaving.push(id);
                    continue;
                }
                Happened::Exec => {
                    // One of these numbers is that of the thread that goes on.
                    leaving.clear();
                    self.leaving.clear();
                    for (tid, seen) in std::mem::take(&mut self.threads) {
                        let what = What::Ended(Some(seen.cpu_ns), "replaced by exec before its next sample");
                        into.push(self.record(Id { tid, ..id }, what));
                    }
                    What::Exec
                }
                Happened::Mapped => What::ImagesMayHaveChanged,
            };
            into.push(self.record(id, what));
        }
        self.batch = batch;
        for id in leaving {
            self.forget.push(id.tid);
            if let Some(seen) = self.threads.remove(&id.tid) {
                let what = What::Ended(Some(seen.cpu_ns), "thread ended before its next sample");
                into.push(self.record(Id { time_ns: last_ns.max(id.time_ns), ..id }, what));
            }
        }
        // What the samples above were not given of the time that they share.
        self.unsampled_ns += match share {
            Some((used_ns, all)) if self.dropped > 0 => {
                (u128::from(used_ns) * u128::from(self.dropped) / u128::from(all)) as u64
            }
            Some(_) => 0,
            None => self.dropped * period_ns,
        };
        let dropped = self.unsampled_ns / period_ns;
        if dropped > 0 {
            self.unsampled_ns %= period_ns;
            self.told_ns += dropped * period_ns;
            let nobody = Id { pid: self.pid, time_ns: last_ns, ..Id::default() };
            into.push(self.record(nobody, What::Dropped(dropped, "the kernel dropped them")));
        }
        if late > 0 {
            let nobody = Id { pid: self.pid, time_ns: last_ns, ..Id::default() };
            into.push(self.record(nobody, What::Late(late)));
        }
        (self.samples, self.dropped) = (0, 0);
    }

    /// Takes samples out whose ticks were held up, unless no others are there; how many. What
    /// threads used meanwhile is shared by the others.
    fn drop_late(&mut self, batch: &mut Vec<(Id, Happened)>) -> u64 {
        let grid = &self.grid;
        let is_late = |(id, happened): &(Id, Happened)| {
            matches!(happened, Happened::Sampled(_)) && grid.is_late(id.cpu, id.time_ns)
        };
        let late = batch.iter().filter(|one| is_late(one)).count() as u64;
        if late == 0 || late == self.samples {
            return 0;
        }
        self.samples -= late;
        batch.retain(|one| !is_late(one));
        late
    }

    /// At the end of a recording: what of `used_ns` nothing stands for that was told so far is lost
    /// for this reason.
    pub(super) fn tell_rest(&self, used_ns: u64, at_ns: u64, reason: &'static str, into: &mut Vec<Record>) {
        let samples = used_ns.saturating_sub(self.told_ns) / self.period_ns;
        into.push(Record { at_ns, thread: ThreadId(0), what: What::Dropped(samples, reason) });
    }

    /// What a thread has used with a sample of this weight. One that is new is told first.
    fn used(&mut self, id: Id, weight_ns: u64, into: &mut Vec<Record>) -> Look {
        if !self.threads.contains_key(&id.tid) {
            let stack_top = self.main_stack_top.filter(|_| id.tid == self.pid);
            into.push(self.record(id, What::Started { stack_top, look: look(0), found: false }));
        }
        let seen = self.threads.entry(id.tid).or_default();
        seen.cpu_ns += weight_ns;
        self.told_ns += weight_ns;
        look(seen.cpu_ns)
    }

    /// The threads of the process that were sampled and have not ended.
    pub(super) fn sampled_threads(&self) -> impl Iterator<Item = pid_t> {
        self.threads.keys().copied()
    }
}

/// A thread that runs and has used so much.
fn look(cpu_ns: u64) -> Look {
    Look { cpu_ns, switches: 0, activity: Activity::Running }
}

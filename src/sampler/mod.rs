//! The sampler: at each tick, which threads to stop; of each stop, a weighed stack in the
//! trie; of everything lost, a count by cause.
//!
//! Knows a target only through its trait and time only through the clock it is given,
//! so a simulated run is the same code. Stacks are walked after their threads run again.
//! A source that is *pushed* samples by the kernel plugs in beside this file and feeds
//! the same trie.

mod budget;
mod decide;
mod lifecycle;
mod postponed;
mod snapshot;
mod thread;
mod ticks;
mod walking;
mod window;

use hashbrown::HashMap;

use crate::binary::Mapping;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::images::{Images, Made};
use crate::live::Live;
use crate::recording::{Frame, Profile, Root, Stats, Thread};
use crate::sources::{Activity, Capture, Event, Fault, Look, Outcome, Target, ThreadId};
use crate::trie::{NodeId, Trie};
use crate::walk::{Ended, Frames, How, Unwinder};
use budget::Budget;
use postponed::{Captured, Postponed};
use thread::{Account, KnownStack, Waits, unknown_look};
use ticks::Ticks;

pub use snapshot::{Snapshot, ThreadStack, snapshot};

/// Events handled in a row before the engine looks at the time again.
const EVENTS_AT_ONCE: u32 = 256;
/// How long the stops of the last tick are waited for, nanoseconds.
const LAST_STOPS_NS: u64 = 30_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// The stop wish is looked at this often even at 1 Hz, nanoseconds.
const ATTENTION_NS: u64 = 50_000_000;
/// A tick's looks at threads take this long at most, or a period of the rate if that is longer,
/// nanoseconds; the next tick goes on with the other threads.
const LOOKS_NS: u64 = 20_000_000;

/// How to record.
#[derive(Clone, Debug)]
pub struct Options {
    /// After the wish to stop, how long the end of the process is waited for, nanoseconds.
    pub linger_ns: u64,
    /// Ticks per second.
    pub hz: u32,
    /// End after this long; `None`: when the process ends or the wish to stop comes.
    pub duration_ns: Option<u64>,
    /// Also record waiting threads: weights are wall-clock time.
    pub idle: bool,
    /// Keep the stacks of each thread apart. Otherwise all threads share one root: memory
    /// then does not grow with the number of threads that come and go.
    pub threads: bool,
    /// Frames kept per stack.
    pub max_depth: usize,
    /// How stacks are walked.
    pub unwind: How,
    /// Seed of the ticks' jitter.
    pub seed: u64,
    /// Share of its time that the target may stand still: 0.02 is 2 %, 1 or more no limit.
    pub max_stop: f64,
}

/// Records a target until it ends, the time is over or `live` says stop.
///
/// # Errors
/// [`ErrorKind::System`] when the system fails in a way that leaves nothing to go on
/// with. A target that ends is no error: the profile so far is returned.
pub fn record(target: &mut dyn Target, clock: &dyn Clock, options: &Options, live: &Live) -> Result<Profile> {
    let mut recording = Recording::new(target, clock, options, live);
    match recording.run() {
        Ok(()) | Err(Fault::Gone) => Ok(recording.finish()),
        Err(fault) => Err(Error::new(ErrorKind::System, format!("the recording failed: {fault}"))),
    }
}

/// Stop, walk and weigh in one place; see [`record`].
struct Recording<'a> {
    target: &'a mut dyn Target,
    clock: &'a dyn Clock,
    options: &'a Options,
    live: &'a Live,
    start_ns: u64,
    /// When the recording is over, whatever calls of the target cost.
    end_ns: u64,
    trie: Trie<Frame>,
    images: Images,
    /// Code that belongs to none of them.
    made: Made,
    threads: Vec<Thread>,
    accounts: HashMap<ThreadId, Account>,
    stats: Stats,
    /// Captured in this tick and not yet walked; buffers are kept in `spare`.
    captured: Vec<Captured>,
    /// Captured before the images were read again, and waiting for that.
    postponed: Vec<Postponed>,
    spare: Vec<Capture>,
    unwinder: Unwinder,
    frames: Frames,
    order: Vec<ThreadId>,
    /// The source tells of some threads that they certainly are on a CPU, or are not.
    tells_running: bool,
    /// The thread that the last tick had no time for; the next one begins with it.
    next_look: Option<ThreadId>,
    /// Threads of which a tick does not know whether they are on a CPU.
    doubtful: Vec<ThreadId>,
    mappings: Vec<Mapping>,
    images_read_ns: u64,
    images_wait_ns: u64,
    /// What reading them cost makes the next time wait at least.
    images_cost_ns: u64,
    /// How often in a row reading them showed nothing new.
    images_fruitless: u32,
    /// The target says that they changed, and they were not read yet.
    images_changed: bool,
    budget: Budget,
    /// The tick may stop threads: the target has not stood for too long.
    may_stop: bool,
    /// Up to when the target's time was taken into account.
    earned_until_ns: u64,
    /// This is the last tick.
    closing: bool,
    runnable: usize,
    ended: bool,
}

impl<'a> Recording<'a> {
    fn new(target: &'a mut dyn Target, clock: &'a dyn Clock, options: &'a Options, live: &'a Live) -> Self {
        Recording {
            target,
            clock,
            options,
            live,
            start_ns: clock.now_ns(),
            end_ns: u64::MAX,
            trie: Trie::new(),
            images: Images::default(),
            made: Made::default(),
            threads: Vec::new(),
            accounts: HashMap::new(),
            stats: Stats::default(),
            captured: Vec::new(),
            postponed: Vec::new(),
            spare: Vec::new(),
            unwinder: Unwinder::default(),
            frames: Frames::default(),
            order: Vec::new(),
            tells_running: false,
            next_look: None,
            doubtful: Vec::new(),
            mappings: Vec::new(),
            images_read_ns: 0,
            images_wait_ns: 0,
            images_cost_ns: 0,
            images_fruitless: 0,
            images_changed: false,
            budget: Budget::new(options.max_stop),
            may_stop: true,
            earned_until_ns: clock.now_ns(),
            closing: false,
            runnable: 0,
            ended: false,
        }
    }

    fn run(&mut self) -> std::result::Result<(), Fault> {
        self.add_threads();
        self.read_images();
        self.start_ns = self.clock.now_ns();
        self.end_ns =
            self.options.duration_ns.map_or(u64::MAX, |duration| self.start_ns.saturating_add(duration));
        let end_ns = self.end_ns;
        let mut ticks = Ticks::new(self.start_ns, self.options.hz, self.options.seed);
        while !self.ended {
            let due_ns = ticks.deadline_ns().min(end_ns);
            self.attend_until(due_ns)?;
            if self.ended || self.live.shall_stop() || self.clock.now_ns() >= end_ns {
                break;
            }
            self.tick()?;
            *if self.may_stop { &mut self.stats.ticks } else { &mut self.stats.ticks_spared } += 1;
            ticks.done(self.clock.now_ns());
            self.stats.ticks_late = ticks.late();
            self.publish();
        }
        if !self.ended {
            // What was used since the last tick belongs to the recording, too.
            self.stats.duration_ns = self.clock.now_ns() - self.start_ns;
            self.closing = true;
            self.tick()?;
            let until_ns = self.clock.now_ns() + LAST_STOPS_NS;
            while self.accounts.values().any(|account| account.asked) && self.clock.now_ns() < until_ns {
                self.one_event(until_ns)?;
            }
            self.walk_captured();
            let until_ns = self.clock.now_ns().saturating_add(self.options.linger_ns);
            while self.live.shall_stop()
                && !self.ended
                && self.clock.now_ns() < until_ns
                && self.one_event(until_ns)?
            {}
        }
        Ok(())
    }

    /// Handles what happens until `until_ns`; then it is the tick's turn, whatever waits.
    fn attend_until(&mut self, until_ns: u64) -> std::result::Result<(), Fault> {
        while !self.ended {
            let wait_ns = until_ns.min(self.clock.now_ns().saturating_add(ATTENTION_NS));
            self.one_event(wait_ns)?;
            if !self.captured.is_empty() {
                // Others may stand already: walk only when none does.
                self.collect()?;
                self.walk_captured();
            }
            if self.clock.now_ns() >= until_ns || self.live.shall_stop() {
                break;
            }
        }
        Ok(())
    }

    /// Takes the stops that come at once.
    fn collect(&mut self) -> std::result::Result<(), Fault> {
        for _ in 0..EVENTS_AT_ONCE {
            if !self.one_event(0)? || self.is_over() {
                break;
            }
        }
        Ok(())
    }

    /// One tick: look at every thread, ask those that ran to stop, collect and weigh.
    fn tick(&mut self) -> std::result::Result<(), Fault> {
        if self.images_are_old() {
            self.read_images();
        }
        let now_ns = self.clock.now_ns();
        let passed_ns = now_ns.saturating_sub(self.earned_until_ns);
        if self.target.process().stops_hold_all {
            self.budget.earn(passed_ns);
        } else if self.options.idle {
            // Wall-clock time is what is recorded: that of each thread that could run.
            self.budget.earn(passed_ns.saturating_mul(self.runnable.max(1) as u64));
        }
        self.earned_until_ns = now_ns;
        // The last tick is one more stop, and what was used since is of no use without.
        self.may_stop = self.closing || self.budget.allows_stops();
        self.order.clear();
        self.order.extend(self.accounts.keys());
        self.order.sort_unstable();
        let order = std::mem::take(&mut self.order);
        let (mut runnable, mut on_the_way) = (0, 0);
        // No more threads can be on a CPU than there are CPUs, and asking one that is not costs
        // it the CPU that it waits for. So where they outnumber CPUs, those of which it is not
        // certain are asked last, as far as CPUs are left for them.
        let cpus = self.target.process().cpus;
        let scarce = self.tells_running && !self.options.idle && self.runnable > cpus;
        self.doubtful.clear();
        let until_ns = now_ns.saturating_add(LOOKS_NS.max(SECOND_NS / u64::from(self.options.hz.max(1))));
        let start = self.next_look.map_or(0, |last| order.partition_point(|id| *id < last));
        self.next_look = None;
        for id in order[start..].iter().chain(&order[..start]) {
            if self.clock.now_ns() >= until_ns || self.is_over() {
                self.next_look = Some(*id);
                runnable = runnable.max(self.runnable);
                break;
            }
            // A stop already asked for will tell; until it comes the thread had no CPU.
            if self.accounts.get(id).is_some_and(|account| account.asked) {
                runnable += 1;
                continue;
            }
            let Ok(look) = self.target.look(*id) else { continue };
            runnable += usize::from(look.activity.wants_cpu());
            self.tells_running |= matches!(look.activity, Activity::Running | Activity::Ready);
            if scarce && look.activity == Activity::Runnable {
                self.doubtful.push(*id);
                self.note(*id, look);
                continue;
            }
            if self.decide(*id, look) {
                on_the_way += 1;
                if on_the_way % self.target.stops_at_once() == 0 {
                    self.collect()?;
                }
            }
        }
        self.runnable = runnable;
        self.order = order;
        self.ask_doubtful(cpus.saturating_sub(on_the_way))?;
        self.collect()?;
        self.walk_captured();
        Ok(())
    }

    /// Whether the recording shall end, and nothing more be begun.
    fn is_over(&self) -> bool {
        !self.closing && (self.live.shall_stop() || self.clock.now_ns() >= self.end_ns)
    }

    fn lose(&mut self, reason: &'static str, counts: u64) {
        if counts > 0 {
            *self.stats.samples_lost.entry(reason).or_default() += counts;
        }
    }

    /// Takes the next event; false if none came before `until_ns`.
    fn one_event(&mut self, until_ns: u64) -> std::result::Result<bool, Fault> {
        let mut capture = self.spare.pop().unwrap_or_else(|| Capture::with_capacity(0));
        match self.target.next(until_ns, &mut capture) {
            Ok(Event::Stopped { thread, outcome }) => {
                self.stopped(thread, outcome, capture);
                return Ok(true);
            }
            Ok(Event::Timeout) => {
                self.spare.push(capture);
                return Ok(false);
            }
            Ok(event) => self.happened(event),
            Err(fault) => return Err(fault),
        }
        self.spare.push(capture);
        Ok(true)
    }

    fn happened(&mut self, event: Event) {
        match event {
            Event::ThreadStarted { thread, stack_top } => {
                self.add_thread(
                    thread,
                    stack_top,
                    Look { cpu_ns: 0, switches: 0, activity: Activity::Runnable },
                    false,
                );
            }
            Event::ThreadExited { thread, cpu_ns } => self.remove_thread(thread, cpu_ns),
            Event::Exec { thread, stack_top } => {
                self.walk_captured();
                self.settle_postponed(None);
                let look = self.target.look(thread).unwrap_or_else(|_| unknown_look());
                let gone: Vec<ThreadId> = self.accounts.keys().copied().collect();
                for id in gone {
                    self.remove_thread(id, (id == thread).then_some(look.cpu_ns));
                }
                self.images.begin_space();
                self.unwinder.images_changed();
                self.add_thread(thread, stack_top, look, false);
                self.read_images();
            }
            Event::Exited(status) => {
                self.stats.exit_status = Some(status);
                self.ended = true;
            }
            Event::ImagesChanged => self.images_changed(),
            Event::Terminate => self.live.ask_to_stop(),
            Event::Timeout | Event::Stopped { .. } => {}
        }
    }

    fn stopped(&mut self, id: ThreadId, outcome: Outcome, capture: Capture) {
        self.stats.stops += 1;
        self.stats.pause.add(capture.pause_ns);
        self.stats.stood_ns += capture.stood_ns;
        let mut waited = false;
        if let Some(account) = self.accounts.get_mut(&id) {
            account.asked = false;
            account.unreadable = if let Outcome::Unreadable(why) = outcome { Some(why) } else { None };
            waited = account.asked_waiting;
        }
        // A thread that waits loses no time.
        if !waited || self.target.process().stops_hold_all {
            let copied = if outcome == Outcome::Captured { capture.stack.len() } else { 0 };
            self.stats.held_up_ns += self.budget.spend(capture.stood_ns, copied);
        }
        match outcome {
            Outcome::Captured => {
                self.captured.push(Captured { thread: id, capture, at_ns: self.clock.now_ns() });
                return;
            }
            // Its time is not lost: the next sample carries it.
            Outcome::BeganToWait => self.stats.stops_let_go += 1,
            Outcome::NotOnCpu => self.stats.stops_not_on_cpu += 1,
            Outcome::Unreadable(why) => {
                let counts = self.weigh(id, capture.look);
                self.lose(why, counts.unwrap_or(0));
            }
        }
        self.spare.push(capture);
    }

    /// Walks, weighs and inserts what was captured; the threads run.
    fn walk_captured(&mut self) {
        let mut captured = std::mem::take(&mut self.captured);
        for one in captured.drain(..) {
            if let Some(one) = self.walk_one(one) {
                self.spare.push(one.capture);
            }
        }
        self.captured = captured;
        self.take_up_postponed();
    }

    /// Counts for a thread that was just stopped; `None` if it is accounted for already.
    fn weigh(&mut self, id: ThreadId, stopped: Option<Look>) -> Option<u64> {
        // The stop took the thread off its CPU, so the figure is exact up to there.
        let look = stopped.or_else(|| self.target.look(id).ok());
        let (now_ns, hz) = (self.clock.now_ns(), self.options.hz);
        let account = self.accounts.get_mut(&id)?;
        let counts = if self.options.idle {
            account.weigh_wall(look.unwrap_or_else(unknown_look), now_ns, hz)
        } else {
            account.weigh_cpu(look, now_ns, hz)
        };
        self.earn(id);
        Some(counts)
    }

    /// Gives back what is done with.
    fn walk_one(&mut self, one: Captured) -> Option<Captured> {
        let id = one.thread;
        let Some(counts) = self.weigh(id, one.capture.look) else { return Some(one) };
        let window_bytes = self.accounts.get(&id).map_or(0, |account| account.window.bytes());
        let ended = self.walk(id, &one.capture);
        if counts == 0 && !self.options.idle {
            return Some(one);
        }
        self.ask_name(id);
        let one = self.postpone(one, ended, counts)?;
        let waiting = self.options.idle && self.accounts.get(&id)?.asked_waiting;
        let node = self.insert(id, ended, counts, waiting);
        let account = self.accounts.get_mut(&id)?;
        // With a larger window the same stack may be complete: not one to keep.
        let grew = account.window.bytes() > window_bytes;
        account.waits = match node {
            Some(node) if account.asked_waiting && !(grew && ended == Ended::WindowRanOut) => {
                let at = (one.capture.registers.sp(), one.capture.registers.pc());
                Waits::Returning { stack: KnownStack { node, ended }, at }
            }
            _ => Waits::Unknown,
        };
        Some(one)
    }

    /// Puts the frames that were found into the trie.
    fn insert(&mut self, id: ThreadId, ended: Ended, counts: u64, waiting: bool) -> Option<NodeId> {
        let (complete, fiber) = (ended.is_complete(), ended == Ended::Fiber);
        let root = Root { thread: self.accounts.get(&id)?.index, complete, fiber, waiting };
        match self.trie.insert((root, self.images.space()), &self.frames.addresses, counts) {
            Ok(node) => {
                self.weighed(ended, counts);
                for method in &self.frames.methods {
                    self.stats.frames_by_method[*method as usize] += 1;
                }
                Some(node)
            }
            Err(full) => {
                self.lose(full.reason(), counts);
                None
            }
        }
    }

    fn weighed(&mut self, ended: Ended, counts: u64) {
        self.stats.samples += counts;
        if ended.is_complete() {
            self.stats.stacks_complete += counts;
        } else if counts > 0 {
            *self.stats.stacks_incomplete.entry(ended.reason()).or_default() += counts;
        }
    }

    fn publish(&self) {
        use std::sync::atomic::Ordering::Relaxed;
        self.live.ticks.store(self.stats.ticks, Relaxed);
        self.live.samples.store(self.stats.samples, Relaxed);
        self.live.threads.store(self.accounts.len() as u64, Relaxed);
        self.live.pause_ns.store(self.stats.stood_ns, Relaxed);
        let alive_ns: u64 = self.accounts.values().map(Account::used_cpu_ns).sum();
        self.live.target_cpu_ns.store(self.stats.target_cpu_ns + alive_ns, Relaxed);
    }
}

//! The sampler: at each tick, which threads to stop; of each stop, a weighed stack in the
//! trie; of everything lost, a count by cause.
//!
//! Knows a target only through its trait and time only through the clock it is given,
//! so a simulated run is the same code. Stacks are walked after their threads run again.
//! A source that is *pushed* samples by the kernel plugs in beside this file and feeds
//! the same trie.

mod thread;
mod ticks;

use hashbrown::HashMap;

use crate::addr::Avma;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::image::Images;
use crate::live::Live;
use crate::profile::{Profile, Root, Stats, Thread};
use crate::target::{Activity, Capture, Event, Fault, Look, Mapping, Outcome, Target, ThreadId};
use crate::trie::Trie;
use crate::walk::{self, Code, Ended, StackBytes, root};
use thread::{Account, Taken, Waits, unknown_look};
use ticks::Ticks;

/// Stops that may be on their way at once: enough to hide the way, few enough that the
/// first to stand is not kept by the last.
const STOPS_AT_ONCE: usize = 4;
/// Mappings are read again this often to notice images that were unloaded, and at most
/// once per [`RETRY_IMAGES_NS`] when an address is in none.
const REFRESH_IMAGES_NS: u64 = 1_000_000_000;
const RETRY_IMAGES_NS: u64 = 20_000_000;
/// Tries to list the mappings at one time.
const LIST_TRIES: u32 = 3;
/// Reading mappings may take this share of the time, at most: 1/100.
const REFRESH_COST: u64 = 100;
/// How long the stops of the last tick are waited for, nanoseconds.
const LAST_STOPS_NS: u64 = 30_000_000;
/// Tries of a snapshot to copy a whole stack, and the time each waits for threads to stop.
const SNAPSHOT_ROUNDS: u32 = 5;
const SNAPSHOT_NS: u64 = 200_000_000;
/// The stop wish is looked at this often even at 1 Hz, nanoseconds.
const ATTENTION_NS: u64 = 50_000_000;

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
    /// Frames kept per stack.
    pub max_depth: usize,
    /// Seed of the ticks' jitter.
    pub seed: u64,
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

/// The stack of every thread at one moment (each thread's own).
#[derive(Debug)]
pub struct Snapshot {
    /// One per thread, by thread number.
    pub stacks: Vec<ThreadStack>,
    /// The images they run in.
    pub images: Images,
}

/// One thread's stack.
#[derive(Debug)]
pub struct ThreadStack {
    /// Whose.
    pub thread: ThreadId,
    /// The thread's name, or empty.
    pub name: String,
    /// What it did when it was looked at.
    pub activity: Activity,
    /// Look-up addresses (Avma), leaf first; empty if it could not be stopped.
    pub addresses: Vec<u64>,
    /// Why the walk ended; `None` if it could not be stopped.
    pub ended: Option<Ended>,
}

/// Stops each thread once, for as long as its registers and stack take to copy.
///
/// # Errors
/// [`ErrorKind::Attach`] when the process has gone.
pub fn snapshot(target: &mut dyn Target, clock: &dyn Clock, max_depth: usize) -> Result<Snapshot> {
    let options = Options { hz: 1, duration_ns: None, idle: true, max_depth, seed: 0, linger_ns: 0 };
    let live = Live::default();
    let mut recording = Recording::new(target, clock, &options, &live);
    let gone = |fault| Error::new(ErrorKind::Attach, format!("cannot look at the process: {fault}"));
    recording.add_threads();
    recording.read_images();
    let mut stacks: Vec<ThreadStack> = Vec::new();
    for (id, account) in &recording.accounts {
        let Ok(look) = recording.target.look(*id) else { continue };
        let name = recording.threads.get(account.index as usize).map(|thread| thread.name.clone());
        let activity = look.activity;
        stacks.push(ThreadStack {
            thread: *id,
            name: name.unwrap_or_default(),
            activity,
            addresses: Vec::new(),
            ended: None,
        });
    }
    stacks.sort_by_key(|stack| stack.thread);
    // A thread whose stack is deeper than the window is asked again with a larger one.
    for _ in 0..SNAPSHOT_ROUNDS {
        let again = |stack: &&mut ThreadStack| matches!(stack.ended, None | Some(Ended::WindowRanOut));
        for stack in stacks.iter_mut().filter(again) {
            // A thread stopped by job control must be left alone.
            if stack.activity != Activity::Stopped {
                recording.ask(stack.thread, stack.activity == Activity::Waiting);
            }
        }
        let until_ns = clock.now_ns() + SNAPSHOT_NS;
        while recording.accounts.values().any(|account| account.asked)
            && recording.one_event(until_ns).map_err(gone)?
        {}
        for (id, capture) in std::mem::take(&mut recording.captured) {
            let ended = recording.walk(id, &capture);
            if let Some(stack) = stacks.iter_mut().find(|stack| stack.thread == id) {
                stack.addresses.clone_from(&recording.addresses);
                stack.ended = Some(ended);
            }
        }
    }
    Ok(Snapshot { stacks, images: recording.images })
}

/// Stop, walk and weigh in one place; see [`record`].
struct Recording<'a> {
    target: &'a mut dyn Target,
    clock: &'a dyn Clock,
    options: &'a Options,
    live: &'a Live,
    start_ns: u64,
    trie: Trie,
    images: Images,
    threads: Vec<Thread>,
    accounts: HashMap<ThreadId, Account>,
    stats: Stats,
    /// Captured in this tick and not yet walked; buffers are kept in `spare`.
    captured: Vec<(ThreadId, Capture)>,
    spare: Vec<Capture>,
    addresses: Vec<u64>,
    order: Vec<ThreadId>,
    mappings: Vec<Mapping>,
    images_read_ns: u64,
    images_wait_ns: u64,
    runnable: usize,
    ended: bool,
}

/// The code of the known images, for the walker.
struct ImageCode<'a>(&'a Images);

impl Code for ImageCode<'_> {
    fn code(&self, at: Avma) -> Option<&[u8]> {
        self.0.code(at)
    }
}

impl<'a> Recording<'a> {
    fn new(target: &'a mut dyn Target, clock: &'a dyn Clock, options: &'a Options, live: &'a Live) -> Self {
        Recording {
            target,
            clock,
            options,
            live,
            start_ns: clock.now_ns(),
            trie: Trie::new(),
            images: Images::default(),
            threads: Vec::new(),
            accounts: HashMap::new(),
            stats: Stats::default(),
            captured: Vec::new(),
            spare: Vec::new(),
            addresses: Vec::new(),
            order: Vec::new(),
            mappings: Vec::new(),
            images_read_ns: 0,
            images_wait_ns: 0,
            runnable: 0,
            ended: false,
        }
    }

    fn run(&mut self) -> std::result::Result<(), Fault> {
        self.add_threads();
        self.read_images();
        self.start_ns = self.clock.now_ns();
        let end_ns =
            self.options.duration_ns.map_or(u64::MAX, |duration| self.start_ns.saturating_add(duration));
        let mut ticks = Ticks::new(self.start_ns, self.options.hz, self.options.seed);
        while !self.ended {
            let due_ns = ticks.deadline_ns().min(end_ns);
            self.attend_until(due_ns)?;
            if self.ended || self.live.shall_stop() || self.clock.now_ns() >= end_ns {
                break;
            }
            self.tick()?;
            self.stats.ticks += 1;
            ticks.done(self.clock.now_ns());
            self.stats.ticks_late = ticks.late();
            self.publish();
        }
        if !self.ended {
            // What was used since the last tick belongs to the recording, too.
            self.stats.duration_ns = self.clock.now_ns() - self.start_ns;
            self.tick()?;
            let until_ns = self.clock.now_ns() + LAST_STOPS_NS;
            while self.accounts.values().any(|account| account.asked) && self.clock.now_ns() < until_ns {
                self.one_event(until_ns)?;
            }
            self.walk_captured();
            let until_ns = self.clock.now_ns().saturating_add(self.options.linger_ns);
            while self.live.shall_stop() && !self.ended && self.one_event(until_ns)? {}
        }
        Ok(())
    }

    /// Takes in the threads that the target has from the beginning.
    fn add_threads(&mut self) {
        let mut threads = Vec::new();
        self.target.threads(&mut threads);
        for (id, stack_top) in threads {
            let look = self.target.look(id);
            self.add_thread(id, stack_top, look.unwrap_or_else(|_| unknown_look()), true);
        }
    }

    /// Handles what happens until `until_ns`.
    fn attend_until(&mut self, until_ns: u64) -> std::result::Result<(), Fault> {
        while !self.ended {
            let wait_ns = until_ns.min(self.clock.now_ns().saturating_add(ATTENTION_NS));
            if !self.one_event(wait_ns)? {
                self.walk_captured();
                if self.clock.now_ns() >= until_ns || self.live.shall_stop() {
                    return Ok(());
                }
            } else if !self.captured.is_empty() {
                // Others may stand already: walk only when none does.
                while self.one_event(0)? {}
                self.walk_captured();
            }
        }
        Ok(())
    }

    /// One tick: look at every thread, ask those that ran to stop, collect and weigh.
    fn tick(&mut self) -> std::result::Result<(), Fault> {
        let now_ns = self.clock.now_ns();
        if now_ns.saturating_sub(self.images_read_ns) >= self.images_wait_ns.max(REFRESH_IMAGES_NS) {
            self.read_images();
        }
        self.order.clear();
        self.order.extend(self.accounts.keys());
        self.order.sort_unstable();
        let order = std::mem::take(&mut self.order);
        let (mut runnable, mut on_the_way) = (0, 0);
        for id in &order {
            let Some(look) = self.look(*id) else { continue };
            runnable += usize::from(look.activity == Activity::Runnable);
            if self.decide(*id, look) {
                on_the_way += 1;
                if on_the_way % STOPS_AT_ONCE == 0 {
                    while self.one_event(0)? {}
                }
            }
        }
        self.runnable = runnable;
        self.order = order;
        while self.one_event(0)? {}
        self.walk_captured();
        Ok(())
    }

    fn look(&mut self, id: ThreadId) -> Option<Look> {
        // A stop already asked for will tell; until it comes the thread had no CPU.
        if self.accounts.get(&id)?.asked {
            return None;
        }
        self.target.look(id).ok()
    }

    /// Acts on a look: asks the thread to stop, or weighs a known waiting stack again.
    /// True if a stop is on its way.
    fn decide(&mut self, id: ThreadId, look: Look) -> bool {
        let Some(account) = self.accounts.get_mut(&id) else { return false };
        let moved = account.seen(look);
        match look.activity {
            // A thread that is ready but got no CPU since its last sample weighs nothing.
            // Without a change to show it may still be running on: then every runnable
            // thread has a CPU.
            Activity::Runnable if moved || self.runnable <= self.target.process().cpus => self.ask(id, false),
            Activity::Waiting if self.options.idle => self.decide_waiting(id, look),
            // It is left alone, and its next stack must not stand for this time.
            Activity::Stopped if self.options.idle => {
                let counts = account.weigh_wall(look, self.clock.now_ns(), self.options.hz);
                self.lose("stopped by job control", counts);
                false
            }
            _ => false,
        }
    }

    fn decide_waiting(&mut self, id: ThreadId, look: Look) -> bool {
        let Some(account) = self.accounts.get_mut(&id) else { return false };
        let stack = match account.waits {
            Waits::With { stack, look: then } if then == look => stack,
            // Back from our stop, at the same place as far as the system tells.
            Waits::Returning { stack, at } if self.target.waits_at(id).is_none_or(|now| now == at) => {
                account.waits = Waits::With { stack, look };
                stack
            }
            _ => return self.ask(id, true),
        };
        let counts = account.weigh_wall(look, self.clock.now_ns(), self.options.hz);
        self.trie.add(stack.node, counts);
        self.stats.samples_idle_reused += counts;
        self.weighed(stack.ended, counts);
        false
    }

    fn ask(&mut self, id: ThreadId, waiting: bool) -> bool {
        let Some(account) = self.accounts.get_mut(&id) else { return false };
        match self.target.interrupt(id, account.window_bytes, self.options.idle) {
            Ok(()) => {
                account.asked = true;
                account.asked_waiting = waiting;
                true
            }
            // Its end is told by an event, and what it used is counted then.
            Err(_) => false,
        }
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
                let look = self.target.look(thread).unwrap_or_else(|_| unknown_look());
                let gone: Vec<ThreadId> = self.accounts.keys().copied().collect();
                for id in gone {
                    self.remove_thread(id, (id == thread).then_some(look.cpu_ns));
                }
                self.images.begin_space();
                self.add_thread(thread, stack_top, look, false);
                self.read_images();
            }
            Event::Exited(status) => {
                self.stats.exit_status = Some(status);
                self.ended = true;
            }
            Event::Terminate => self.live.ask_to_stop(),
            Event::Timeout | Event::Stopped { .. } => {}
        }
    }

    fn stopped(&mut self, id: ThreadId, outcome: Outcome, capture: Capture) {
        self.stats.stops += 1;
        self.stats.pause.add(capture.pause_ns);
        if let Some(account) = self.accounts.get_mut(&id) {
            account.asked = false;
        }
        match outcome {
            Outcome::Captured => {
                self.captured.push((id, capture));
                return;
            }
            // Its time is not lost: the next sample carries it.
            Outcome::BeganToWait => {}
            Outcome::Unreadable(why) => {
                let counts = self.weigh(id);
                self.lose(why, counts.unwrap_or(0));
            }
        }
        self.spare.push(capture);
    }

    /// Walks, weighs and inserts what was captured; the threads run.
    fn walk_captured(&mut self) {
        let mut captured = std::mem::take(&mut self.captured);
        for (id, capture) in captured.drain(..) {
            self.walk_one(id, &capture);
            self.spare.push(capture);
        }
        self.captured = captured;
    }

    /// Counts for a thread that was just stopped; `None` if it is accounted for already.
    fn weigh(&mut self, id: ThreadId) -> Option<u64> {
        // The stop took the thread off its CPU, so the figure is exact up to there.
        let look = self.target.look(id).ok();
        let (now_ns, hz) = (self.clock.now_ns(), self.options.hz);
        let account = self.accounts.get_mut(&id)?;
        Some(if self.options.idle {
            account.weigh_wall(look.unwrap_or_else(unknown_look), now_ns, hz)
        } else {
            account.weigh_cpu(look, now_ns, hz)
        })
    }

    fn walk_one(&mut self, id: ThreadId, capture: &Capture) {
        let Some(counts) = self.weigh(id) else { return };
        let window_bytes = self.accounts.get(&id).map_or(0, |account| account.window_bytes);
        let ended = self.walk(id, capture);
        if counts == 0 && !self.options.idle {
            return;
        }
        let Some(account) = self.accounts.get_mut(&id) else { return };
        let root = Root { thread: account.index, complete: ended == Ended::Root };
        match self.trie.insert(root.number(), self.images.space(), &self.addresses, counts) {
            Ok(node) => {
                // With a larger window the same stack may be complete: not one to keep.
                let grew = account.window_bytes > window_bytes;
                account.waits = if account.asked_waiting && !(grew && ended == Ended::WindowRanOut) {
                    let at = (capture.registers.sp(), capture.registers.pc());
                    Waits::Returning { stack: Taken { node, ended }, at }
                } else {
                    Waits::Unknown
                };
                self.weighed(ended, counts);
            }
            Err(full) => self.lose(full.reason(), counts),
        }
    }

    fn weighed(&mut self, ended: Ended, counts: u64) {
        self.stats.samples += counts;
        if ended == Ended::Root {
            self.stats.stacks_complete += counts;
        } else if counts > 0 {
            *self.stats.stacks_incomplete.entry(ended.reason()).or_default() += counts;
        }
    }

    /// Walks a capture into `self.addresses`, with the images it needs.
    fn walk(&mut self, id: ThreadId, capture: &Capture) -> Ended {
        let sp = capture.registers.sp();
        let stack = StackBytes { base: sp, bytes: &capture.stack };
        if !self.images.contains(capture.registers.pc()) {
            self.retry_images();
        }
        let Some(account) = self.accounts.get_mut(&id) else { return Ended::BadFrame };
        let mut ended;
        loop {
            let code = ImageCode(&self.images);
            let input = walk::Input {
                stack,
                stack_top: account.stack_top,
                max_depth: self.options.max_depth,
                code_mask: self.target.process().code_mask,
                code: &code,
            };
            let walked = walk::walk(&capture.registers, &input, &mut self.addresses);
            ended = walked.ended;
            account.fit_window(&walked, sp);
            // A thread that already ran when we came: where was it born?
            if ended != Ended::Root && account.stack_top.is_none() && account.birth_searches_left > 0 {
                account.birth_searches_left -= 1;
                account.stack_top = root::find_birth(stack, walked.reached, &code);
                if account.stack_top.is_some() {
                    continue;
                }
                account.window_bytes = account.window_bytes.max(capture.stack.len().saturating_mul(2));
            }
            break;
        }
        if self.addresses.iter().any(|address| !self.images.contains(Avma(*address))) {
            self.retry_images();
        }
        ended
    }

    fn retry_images(&mut self) {
        let since_ns = self.clock.now_ns().saturating_sub(self.images_read_ns);
        if since_ns >= self.images_wait_ns.max(RETRY_IMAGES_NS) {
            self.read_images();
        }
    }

    /// Brings the images up to date. A failure leaves the known ones: later addresses
    /// may then be unknown, which the summary shows.
    fn read_images(&mut self) {
        let before_ns = self.clock.now_ns();
        let mut mappings = std::mem::take(&mut self.mappings);
        let mut listed = self.target.mappings(&mut mappings);
        for _ in 1..LIST_TRIES {
            // A list in motion is mostly whole a moment later. Without images there are
            // no names, and the walk cannot tell a leaf without a frame record.
            if matches!(listed, Err(Fault::Transient(_))) {
                listed = self.target.mappings(&mut mappings);
            }
        }
        if listed.is_ok() {
            let target = &mut self.target;
            let changed = self.images.update(&mappings, &mut |mapping| target.image_bytes(mapping));
            let took_ns = self.clock.now_ns().saturating_sub(before_ns);
            // Code without a file (JIT) is never found: ask less often the longer nothing changes.
            self.images_wait_ns = if changed {
                took_ns.saturating_mul(REFRESH_COST)
            } else {
                (self.images_wait_ns * 2).clamp(
                    took_ns.saturating_mul(REFRESH_COST),
                    REFRESH_IMAGES_NS.max(took_ns.saturating_mul(REFRESH_COST)),
                )
            };
        }
        self.mappings = mappings;
        self.images_read_ns = self.clock.now_ns();
    }

    fn add_thread(&mut self, id: ThreadId, stack_top: Option<Avma>, look: Look, found: bool) {
        let index = u32::try_from(self.threads.len()).unwrap_or(u32::MAX);
        let name = self.target.thread_name(id).unwrap_or_default();
        self.threads.push(Thread { id: id.0, name });
        self.accounts.insert(id, Account::new(index, stack_top, look, self.clock.now_ns(), found));
    }

    fn remove_thread(&mut self, id: ThreadId, cpu_ns: Option<u64>) {
        self.walk_captured();
        if let Some(mut account) = self.accounts.remove(&id) {
            let counts = self.unsampled(&mut account, cpu_ns);
            self.lose("thread ended before its next sample", counts);
        }
    }

    /// Closes an account: counts that no sample will take.
    fn unsampled(&mut self, account: &mut Account, cpu_ns: Option<u64>) -> u64 {
        let now_ns = self.clock.now_ns();
        let counts = account.unsampled(cpu_ns, now_ns, self.options.hz, self.options.idle);
        self.stats.target_cpu_ns += account.used_cpu_ns();
        counts
    }

    fn publish(&self) {
        use std::sync::atomic::Ordering::Relaxed;
        self.live.ticks.store(self.stats.ticks, Relaxed);
        self.live.samples.store(self.stats.samples, Relaxed);
        self.live.threads.store(self.accounts.len() as u64, Relaxed);
        self.live.pause_ns.store(self.stats.pause.total_ns(), Relaxed);
        let alive_ns: u64 = self.accounts.values().map(Account::used_cpu_ns).sum();
        self.live.target_cpu_ns.store(self.stats.target_cpu_ns + alive_ns, Relaxed);
    }

    fn finish(mut self) -> Profile {
        self.walk_captured();
        if self.stats.duration_ns == 0 {
            self.stats.duration_ns = self.clock.now_ns() - self.start_ns;
        }
        let mut ids: Vec<ThreadId> = self.accounts.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let cpu_ns = self.target.look(id).ok().map(|look| look.cpu_ns);
            if let Some(mut account) = self.accounts.remove(&id) {
                // Threads name themselves after they start.
                if let Some(name) = self.target.thread_name(id)
                    && let Some(thread) = self.threads.get_mut(account.index as usize)
                {
                    thread.name = name;
                }
                let counts = self.unsampled(&mut account, cpu_ns);
                self.lose(
                    if self.options.idle {
                        "not sampled again before the end"
                    } else {
                        "used between looks and not caught running"
                    },
                    counts,
                );
            }
        }
        self.stats.threads_seen = self.threads.len() as u64;
        Profile {
            process: self.target.process().clone(),
            hz: self.options.hz,
            trie: self.trie,
            images: self.images,
            threads: self.threads,
            stats: self.stats,
        }
    }
}

//! Processes that the kernel samples: rings are read in batches, images and names are asked of
//! /proc. Nothing of them is stopped, or changed.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use libc::{c_int, pid_t};

use super::backlog::Backlog;
use super::baseline::Baseline;
use super::below;
use super::beyond::Beyond;
use super::buffers::Usage;
use super::choice::{self, Choice};
use super::events::{self, Events, How, Switches};
use super::member::Member;
use super::rates::Rates;
use super::sieve::Sieve;
use super::switched::Switched;
use super::sys;
use super::told::Told;
use super::window::Window;
use super::woken::{Turn, Woken};
use crate::addr::Avma;
use crate::binary::{Files, ImageBytes, Mapping, OpenError};
use crate::clock::{Clock, RealClock};
use crate::sources::linux::file_pages::FilePages;
use crate::sources::linux::{proc, reservation, sys as linux_sys, threads};
use crate::sources::pushed::{IN_KERNEL, NOT_SAMPLED_AGAIN, Needed, PushedSource, Record, What};
use crate::sources::{Capture, ExitStatus, Fault, Observed, Process, ThreadId, signals};

mod catch_up;
mod reopen;

/// Records are read at least this often, nanoseconds: what they tell is asked of /proc while it
/// is still there.
const BATCH_NS: u64 = 50_000_000;
/// Where nothing was started, ended or mapped for some time there is less to ask: whoever is woken takes a CPU
/// from somebody, and servers' latencies tell of it.
const STEADY_BATCHES_NS: u64 = 120_000_000;
const STEADY_AFTER_NS: u64 = 1_000_000_000;
/// At the beginning, when a program loads its libraries, more often.
const FIRST_BATCHES_NS: u64 = 5_000_000;
const BEGINNING_NS: u64 = 300_000_000;
/// Where large stacks are copied, so that their ring does not fill.
const LARGE_BATCHES_NS: u64 = 15_000_000;
/// The same where pieces of stacks are read.
const PIECES_BATCHES_NS: u64 = 40_000_000;
/// Buffers of so many bytes freed are worth giving their pages back to the system.
const TRIM_BYTES: usize = 4 << 20;
/// Clocks that are compared are read in this time, or again, so often at most.
const CLOCK_READS_NS: u64 = 3_000_000;
const CLOCK_READS_MAX: u32 = 8;
/// Pages of files that were looked at are given back each time after so many batches: a second or two.
const RELEASE_BATCHES: u32 = 16;
/// The rings are read so often until the clocks of processes are those of their end.
const READS_MAX: u32 = 4;
/// Between a record's time and when it can be read, nanoseconds.
const SETTLED_NS: u64 = 1_000_000;

/// What is sampled, and how it began.
pub(super) struct Begin {
    /// The process that the recording is of, or what stands for all.
    pub(super) main: Member,
    /// Those whose end is that of the recording; none for a whole machine.
    pub(super) listed: Vec<pid_t>,
    /// Which others are sampled.
    pub(super) choice: Choice,
    /// Frames in the kernel are kept.
    pub(super) kernel_frames: bool,
    /// It is a command that has not been run yet.
    pub(super) launched: bool,
}

/// See the top of this file.
pub(crate) struct PerfSource {
    main: pid_t,
    clock: RealClock,
    events: Events,
    sieve: Sieve,
    told: Told,
    window: Window,
    /// What rings have room for.
    backlog: Backlog,
    /// The reader runs before others.
    preferred: bool,
    /// The same for the stacks at which threads leave their CPUs.
    switch_window: Window,
    /// Of each process that the recording ends with: readable when it has ended.
    ends: Vec<(pid_t, Option<OwnedFd>)>,
    launched: bool,
    /// The kernel takes no program that reads pieces of stacks.
    prefetch_refused: bool,
    began_ns: u64,
    /// When sampling was ended (monotonic clock), if it was.
    ended_ns: Option<u64>,
    /// The monotonic clock at the engine's 0.
    origin_ns: u64,
    /// Of a whole machine: its ticks at the beginning, all and idle, and at the end.
    machine: Option<[(u64, u64); 2]>,
    disabled: bool,
    over: bool,
    /// Of the CPUs.
    rates: Rates,
    scratch: Vec<u8>,
    /// Of the records that are handed over.
    usage: Usage,
    /// The most bytes of stacks of a batch.
    stacks_bytes: usize,
    /// The batches since pages of files were given back.
    batches: u32,
    file_pages: FilePages,
    /// Bytes of buffers freed since pages were given back.
    freed_bytes: usize,
    readable: Vec<bool>,
}

impl PerfSource {
    /// Of processes whose `events` are open behind the `sieve`.
    pub(super) fn new(
        begin: Begin,
        clock: RealClock,
        events: Events,
        sieve: Sieve,
        window: Window,
    ) -> PerfSource {
        let Begin { mut main, listed, choice, kernel_frames, launched } = begin;
        let began_ns = clock.now_ns();
        let origin_ns = sys::monotonic_ns().saturating_sub(began_ns);
        main.waits_for_exec = launched;
        // The engine knows of it from the beginning.
        main.told = true;
        let pid = main.pid();
        let mut told = Told::new(choice, main, origin_ns, events.how.period_ns(), kernel_frames);
        told.switched =
            events.how.switches.map(|switches| Switched::new(switches.alone, launched.then_some(pid)));
        told.woken = events.how.switches.is_none().then(Woken::default);
        PerfSource {
            told,
            main: pid,
            clock,
            events,
            sieve,
            window,
            backlog: Backlog::default(),
            preferred: false,
            switch_window: Window::of_switches(),
            ends: listed.into_iter().map(|pid| (pid, sys::watch_end(pid).ok())).collect(),
            launched,
            prefetch_refused: false,
            began_ns,
            ended_ns: None,
            origin_ns,
            machine: None,
            disabled: false,
            over: false,
            rates: Rates::new(u64::from(pid.unsigned_abs())),
            scratch: Vec::new(),
            usage: Usage::default(),
            stacks_bytes: 0,
            batches: 0,
            file_pages: FilePages::default(),
            freed_bytes: 0,
            readable: Vec::new(),
        }
    }

    /// Begins to sample.
    pub(super) fn enable(&mut self) -> std::io::Result<()> {
        self.told.judge_all();
        self.open_those_already_started()?;
        self.tell_verdicts();
        if self.told.is_machine() {
            // All images are to be read first, while the rings fill.
            self.prefer();
        }
        self.at_one_time(|source| {
            for (pid, member) in &mut source.told.members {
                member.clock.begin(*pid);
            }
            if source.told.is_machine() {
                source.machine = machine_ticks().map(|ticks| [ticks, ticks]);
                source.told.baseline = Baseline::of(&choice::all_processes(), sys::process_cpu_ns);
            }
        });
        let now_ns = sys::monotonic_ns();
        self.events.enable()?;
        self.list_threads(now_ns);
        Ok(())
    }

    /// Reads clocks that are compared with each other; again where the reader was held up in between.
    fn at_one_time(&mut self, read: impl Fn(&mut PerfSource)) {
        for _ in 0..CLOCK_READS_MAX {
            let before_ns = sys::monotonic_ns();
            read(self);
            if sys::monotonic_ns() - before_ns < CLOCK_READS_NS {
                break;
            }
        }
    }

    /// Lists the threads that may have waited since before this time (monotonic clock), where waits
    /// are recorded: those that wait on never tell of it.
    fn list_threads(&mut self, now_ns: u64) {
        if self.told.switched.is_none() {
            return;
        }
        // When a CPU has nothing to do, that is a switch to no process.
        self.sieve.refuse(0, true);
        if self.launched {
            return;
        }
        if self.told.is_machine() {
            for pid in choice::all_processes().into_iter().filter(|pid| choice::has_user_memory(*pid)) {
                self.told.judge(pid, None, 0);
            }
            for (pid, member) in &mut self.told.members {
                member.clock.begin(*pid);
            }
        }
        for pid in self.told.running() {
            for tid in threads::list(pid).unwrap_or_default() {
                if let Some(switched) = &mut self.told.switched {
                    switched.list(pid, tid, now_ns);
                }
            }
        }
        self.told.look_at_threads();
    }

    /// The launched command runs, as `process`. What was used before is not its own.
    pub(super) fn set_spawned(&mut self, process: Process) {
        if let Some(main) = self.told.members.get_mut(&self.main) {
            main.set_spawned(process);
        }
    }

    /// Samples these processes, too.
    pub(super) fn add(&mut self, pids: &[pid_t]) {
        for pid in pids {
            self.told.judge(*pid, None, 0);
        }
    }

    fn tell_verdicts(&mut self) {
        for (pid, refused) in self.told.verdicts.drain(..) {
            self.sieve.refuse(pid, refused);
        }
    }

    /// Waits until records are to be read, the process has ended, or it is time.
    fn wait(&mut self, until_ns: u64) {
        let (now_ns, monotonic_ns) = (self.clock.now_ns(), sys::monotonic_ns());
        let batch_ns = match now_ns - self.began_ns {
            ..BEGINNING_NS => FIRST_BATCHES_NS,
            _ if self.told.beyond.is_some() => LARGE_BATCHES_NS,
            _ if self.told.prefetch.is_some() => PIECES_BATCHES_NS,
            _ if monotonic_ns < self.told.changed_ns.saturating_add(STEADY_AFTER_NS) => BATCH_NS,
            _ => STEADY_BATCHES_NS,
        };
        let woken = self.told.woken.as_ref().filter(|_| !self.disabled && !self.over);
        let ends_ns = woken.and_then(Woken::ends_ns);
        let batch_ns = ends_ns.map_or(batch_ns, |ends_ns| batch_ns.min(ends_ns.saturating_sub(monotonic_ns)));
        let at_most_ms = batch_ns.min(until_ns.saturating_sub(now_ns)).div_ceil(1_000_000);
        let ends = self.ends.iter().filter_map(|(_, end)| end.as_ref()).map(AsRawFd::as_raw_fd);
        let descriptors: Vec<RawFd> = ends.chain(self.events.descriptors()).collect();
        sys::wait_readable(
            &descriptors,
            c_int::try_from(at_most_ms).unwrap_or(c_int::MAX),
            &mut self.readable,
        );
    }

    /// Whether all processes have ended that the recording ends with.
    fn has_ended(&mut self) -> bool {
        let of_machine = self.ends.is_empty();
        let mut watched = self.readable.iter();
        self.ends.retain(|(pid, end)| match end {
            Some(_) => watched.next() != Some(&true),
            None => linux_sys::kill(*pid, 0).is_ok() && linux_sys::child_end(*pid).is_none(),
        });
        self.readable.clear();
        !of_machine && self.ends.is_empty()
    }

    /// Reads the rings; the time up to which everything was told.
    fn read(&mut self, into: &mut Vec<Record>) -> u64 {
        if !self.over {
            self.told.look_at_threads();
        }
        self.freed_bytes += self.told.spare.end_batch();
        let told_ns = self.clock.now_ns();
        let settled_ns =
            if self.over { u64::MAX } else { (told_ns + self.origin_ns).saturating_sub(SETTLED_NS) };
        for _ in 0..READS_MAX {
            let before_ns = sys::monotonic_ns();
            read_rings(&mut self.events, &mut self.scratch, &mut self.told);
            // Held up in between, more samples may be there than the clocks will be asked for.
            if sys::monotonic_ns() - before_ns < 2 * self.events.how.period_ns() {
                break;
            }
        }
        self.freed_bytes += self.told.read_copies();
        self.told.settle_woken();
        // Samples in user mode only say nothing of the time in the kernel.
        self.told.finish_batch(self.events.how.kernel, settled_ns, into);
        self.tell_verdicts();
        let stacks = into.iter().filter_map(|record| match &record.what {
            What::Sampled(capture) => Some(capture.stack.len()),
            _ => None,
        });
        self.stacks_bytes = self.stacks_bytes.max(stacks.sum());
        self.batches += 1;
        if self.batches.is_multiple_of(RELEASE_BATCHES) {
            self.file_pages.release();
        } else {
            self.file_pages.bound();
        }
        let used = into.len();
        self.freed_bytes += self.usage.shrink(into, used);
        if self.freed_bytes >= TRIM_BYTES {
            self.freed_bytes = 0;
            linux_sys::trim_heap();
        }
        self.relieve();
        self.watch_switches();
        let since_ns = sys::monotonic_ns();
        if !self.disabled && self.told.grid.may_change(since_ns) {
            let periods_ns = self.events.vary(&mut self.rates);
            self.told.grid.changed(since_ns, self.events.how.period_ns(), &periods_ns);
        }
        let misses = std::mem::take(&mut self.told.begun).into_iter().any(|pid| self.sieve.misses(pid));
        let lets_more_through = misses && self.sieve.let_unknown_through().is_ok();
        if !self.disabled && (lets_more_through || self.events.lack_a_cpu(since_ns)) {
            self.reopen(self.events.how);
        }
        if self.over {
            self.told.end_waits(self.ended_ns.unwrap_or_else(sys::monotonic_ns), into);
            for (pid, member) in &mut self.told.members {
                member.clock.end(*pid);
            }
            if self.follows_by_inheritance() {
                self.told.counted_ns += self.events.counted_ns();
            }
            if self.events.how.samples_running() {
                let reason = if self.events.how.kernel { NOT_SAMPLED_AGAIN } else { IN_KERNEL };
                self.told.tell_rest(self.clock.now_ns(), reason, into);
            }
        }
        told_ns.saturating_sub(SETTLED_NS)
    }

    /// Lets the reader run before others.
    fn prefer(&mut self) {
        self.preferred = true;
        linux_sys::prefer_this_thread();
        // Where none is to be had, rings are read when there is time, and less is copied.
        reservation::reserve_for_this_thread(events::cpu_count());
    }

    /// Acts on rings that fill up.
    fn relieve(&mut self) {
        let pressure = self.events.take_pressure().with(self.told.held_per_mille());
        if self.disabled {
            return;
        }
        if !self.preferred && Backlog::is_late(pressure) {
            // The next reads show whether that is enough.
            self.prefer();
            return;
        }
        let how = self.events.how;
        if self.backlog.read(pressure, how.window_bytes) {
            let window_bytes = self.backlog.limit(self.window.bytes());
            if window_bytes != how.window_bytes {
                self.reopen(How { window_bytes, ..how });
            }
        }
    }

    /// Opens or ends a window in which switches are told, where it is time.
    fn watch_switches(&mut self) {
        let now_ns = sys::monotonic_ns();
        let turn = self.told.woken.as_ref().map_or(Turn::Nothing, |woken| woken.turn(now_ns));
        match turn {
            _ if self.disabled || self.over => {}
            Turn::Nothing => {}
            Turn::Open if self.events.watch_switches(true) => self.told.turn_woken(turn),
            Turn::Open => {
                self.events.watch_switches(false);
                self.told.woken = None;
            }
            Turn::Close => {
                self.told.turn_woken(turn);
                self.events.watch_switches(false);
            }
        }
    }

    fn of_nobody(&self, what: What) -> Record {
        let process = self.main.unsigned_abs();
        Record { at_ns: self.clock.now_ns(), process, thread: ThreadId(0), what }
    }

    fn exit_status(&self) -> ExitStatus {
        let status = self.launched.then(|| linux_sys::child_end(self.main)).flatten();
        status.unwrap_or(ExitStatus::Unknown)
    }
}

fn machine_ticks() -> Option<(u64, u64)> {
    proc::machine_ticks(&std::fs::read("/proc/stat").ok()?)
}

/// Takes in all that rings hold, and how many samples they could not.
fn read_rings(events: &mut Events, scratch: &mut Vec<u8>, told: &mut Told) {
    events.drain(scratch, |id, record| told.take(id, record));
    told.take_lost(events.lost_samples(), sys::monotonic_ns());
}

impl PerfSource {
    fn main(&self) -> &Member {
        // It is there from the beginning to the end.
        self.told.members.get(&self.main).unwrap_or_else(|| unreachable!("the main process is kept"))
    }

    fn main_mut(&mut self) -> &mut Member {
        let main = self.told.members.get_mut(&self.main);
        main.unwrap_or_else(|| unreachable!("the main process is kept"))
    }
}

impl Observed for PerfSource {
    fn process(&self) -> &Process {
        self.main().process()
    }

    fn files(&mut self) -> Arc<dyn Files> {
        self.main_mut().files()
    }

    fn thread_name(&mut self, thread: ThreadId) -> Option<String> {
        self.main_mut().thread_name(thread)
    }

    fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
        self.main_mut().mappings(out)
    }

    fn image_bytes(&mut self, mapping: &Mapping) -> Result<ImageBytes, OpenError> {
        self.main_mut().image_bytes(mapping)
    }

    fn read_memory(&mut self, from: Avma, into: &mut [u8]) -> Result<usize, Fault> {
        self.main_mut().read_memory(from, into)
    }
}

impl PushedSource for PerfSource {
    fn observed(&mut self, process: u32) -> Option<&mut dyn Observed> {
        let pid = pid_t::try_from(process).ok()?;
        self.told.members.get_mut(&pid).map(|member| member as &mut dyn Observed)
    }

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
        if self.launched
            && let Some(signal) = signals::take_passed_on()
        {
            // The command decides what it does; the recording ends when it ends.
            let _ = linux_sys::kill(self.main, signal);
        }
        self.over = self.has_ended();
        let told_ns = self.read(into);
        if self.over {
            into.push(self.of_nobody(What::Exited(self.exit_status())));
            return Ok(None);
        }
        Ok(Some(told_ns))
    }

    fn keep_up(&mut self) {
        self.catch_up();
    }

    fn go_to(&mut self, at_ns: u64) {
        self.told.go_to(at_ns.saturating_add(self.origin_ns));
    }

    fn end(&mut self) {
        if !self.disabled {
            self.events.disable();
            self.disabled = true;
            self.ended_ns = Some(sys::monotonic_ns());
            self.at_one_time(|source| {
                if let (Some([_, end]), Some(now)) = (&mut source.machine, machine_ticks()) {
                    *end = now;
                }
                for (pid, member) in &mut source.told.members {
                    member.clock.stop_at(sys::process_cpu_ns(*pid));
                }
                source.told.baseline.stop(sys::process_cpu_ns);
            });
        }
    }

    fn exit_before(&mut self, until_ns: u64) -> Option<ExitStatus> {
        loop {
            let at_most_ms = until_ns.saturating_sub(self.clock.now_ns()).div_ceil(1_000_000);
            let ends = self.ends.iter().filter_map(|(_, end)| end.as_ref());
            let ends: Vec<RawFd> = ends.map(AsRawFd::as_raw_fd).collect();
            let at_most_ms = if ends.len() < self.ends.len() { at_most_ms.min(10) } else { at_most_ms };
            sys::wait_readable(&ends, c_int::try_from(at_most_ms).unwrap_or(c_int::MAX), &mut self.readable);
            if self.has_ended() {
                return Some(self.exit_status());
            }
            if self.clock.now_ns() >= until_ns {
                return None;
            }
        }
    }

    fn walked(&mut self, capture: Box<Capture>, needed: Needed) {
        let of_this_window = capture.window == self.told.window;
        self.told.give_back(capture);
        if self.disabled {
            return;
        }
        let how = self.events.how;
        // Others say nothing of what this size is good for.
        let window_bytes = of_this_window.then(|| self.window.walked(needed)).flatten();
        let window_bytes = window_bytes.map(|bytes| self.backlog.limit(bytes));
        let window_bytes = window_bytes.filter(|bytes| *bytes != how.window_bytes);
        let below = how.below || needed.below && below::HERE && self.may_copy();
        if window_bytes.is_some() || below != how.below {
            self.reopen(How { window_bytes: window_bytes.unwrap_or(how.window_bytes), below, ..how });
        }
    }

    fn prefetches(&self) -> bool {
        self.may_copy() && !self.prefetch_refused
    }

    fn prefetch(&mut self, thread: ThreadId, pieces: &[u64]) {
        let Ok(tid) = pid_t::try_from(thread.0) else { return };
        if !self.disabled && self.told.prefetch.is_none() && self.prefetches() {
            self.reopen(How { prefetch: true, ..self.events.how });
            self.prefetch_refused = self.told.prefetch.is_none();
        }
        if let Some(prefetch) = &mut self.told.prefetch {
            prefetch.set(tid, pieces);
        }
    }

    fn wait_walked(&mut self, capture: Box<Capture>, needed: Option<Needed>) {
        let of_this_window = capture.window == self.told.window;
        self.told.give_back(capture);
        if let Some(needed) = needed.filter(|_| !self.disabled && of_this_window)
            && let Some(switches) = self.events.how.switches
            && let Some(window_bytes) = self.switch_window.walked(needed)
        {
            self.reopen(How { switches: Some(Switches { window_bytes, ..switches }), ..self.events.how });
        }
    }

    fn machine_idle(&self) -> Option<f64> {
        let [began, ended] = self.machine?;
        let (all, idle) = (ended.0.checked_sub(began.0)?, ended.1.checked_sub(began.1)?);
        (all > 0).then(|| idle as f64 / all as f64)
    }

    fn memory_bytes(&self) -> (u64, u64) {
        let beyond = self.told.beyond.as_ref().map_or(0, Beyond::ring_bytes);
        (self.events.ring_bytes() + beyond, self.stacks_bytes as u64)
    }

    fn target_cpu_ns(&self) -> Option<u64> {
        Some(self.told.used_ns())
    }
}

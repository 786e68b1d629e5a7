//! One stack of every thread, once, for `dump stacks`. Uses the stops and walks of a recording, without ticks and
//! weights.

use super::super::budget::Budget;
use super::super::stack_size::FIRST_STACK_BYTES;
use super::{EVENTS_AT_ONCE, StopDriver, leads_as_far_as_a_stop};
use crate::addr::LookupAvma;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::images::Images;
use crate::live::Live;
use crate::sampler::Options;
use crate::sampler::captures::Sample;
use crate::sampler::processes::FIRST;
use crate::sources::{Activity, Fault, SleepingThread, Target, ThreadId};
use crate::walk::{Frames, Method, STACK_BYTES_MAX, StackEnd, UnwindMethod};

/// Growth factor of the stack size when a stack is deeper than the copied bytes, up to [`STACK_BYTES_MAX`]. A
/// stack that continues on another one gets as many attempts.
const STACK_GROWTH: usize = 4;

/// Time for ready threads to get a CPU and stop, nanoseconds.
const READY_NS: u64 = 10_000_000_000;
/// Time for other threads, which stop at once if they can be stopped.
const WAITING_NS: u64 = 200_000_000;
/// Interval at which threads are polled to distinguish the two groups.
const POLL_NS: u64 = 20_000_000;

/// Maximum number of attempts if the process execs meanwhile: on a busy machine most attempts can meet an exec of one
/// that does so again and again.
const ATTEMPTS_MAX: usize = 100;

/// Reasons for a missing stack of a thread that did not stop.
const NO_CPU: &str = "it got no CPU in 10 s, so it could not stop";
const UNINTERRUPTIBLE: &str = "it waits in the kernel where nothing can stop it";
/// Reason for a missing stack of a thread that must not be stopped in its wait.
const UNSHOWN: &str =
    "its seccomp filter forbids to stop it in a wait, and /proc does not show where it waits";
/// Reason for a missing stack of a thread that could not be stopped and ended unreported.
const ENDED: &str = "it ended before it was stopped";

/// The stack of every thread, each at one moment.
#[derive(Debug)]
pub struct Snapshot {
    /// One per thread, by thread number.
    pub stacks: Vec<ThreadStack>,
    /// The images that the threads run in.
    pub images: Images,
}

/// One thread's stack.
#[derive(Debug)]
pub struct ThreadStack {
    /// The thread.
    pub thread: ThreadId,
    /// The thread's name, or empty.
    pub name: String,
    /// Its activity when polled.
    pub activity: Activity,
    /// Lookup addresses of its frames, leaf first; empty if the stack could not be read.
    pub addresses: Vec<LookupAvma>,
    /// How each frame was found.
    pub methods: Vec<Method>,
    /// Why the walk ended, or why there is no stack.
    pub ended: std::result::Result<StackEnd, &'static str>,
}

impl ThreadStack {
    /// Stores the result of a walk.
    fn show(&mut self, frames: &Frames, ended: StackEnd) {
        self.addresses.clone_from(&frames.addresses);
        self.methods.clone_from(&frames.methods);
        self.ended = Ok(ended);
    }
}

/// Reads each thread once: waiting threads without a stop, if that gives a whole stack, others while stopped, for
/// as long as it takes to copy registers and stack.
///
/// # Errors
/// [`ErrorKind::Attach`] when the process has gone.
pub fn snapshot(
    target: &mut dyn Target,
    clock: &dyn Clock,
    max_depth: usize,
    unwind: UnwindMethod,
) -> Result<Snapshot> {
    let options = Options {
        hz: 1,
        duration_ns: None,
        idle: true,
        off_cpu: false,
        threads: true,
        timeline_bytes: 0,
        max_depth,
        unwind,
        seed: 0,
        linger_ns: 0,
        block_age_min_ns: 0,
        max_stop: 1.0,
    };
    let live = Live::default();
    let mut driver = StopDriver::new(target, clock, &options, &live);
    driver.budget = Budget::unlimited();
    driver.recorder.walker().follow_all_jit_code();
    let gone = |fault| Error::new(ErrorKind::Attach, format!("cannot look at the process: {fault}"));
    driver.add_threads();
    driver.recorder.read_images(FIRST, driver.target);
    let mut stacks = Vec::new();
    for _ in 0..ATTEMPTS_MAX {
        let of_program = driver.processes.programs_begun();
        stacks = driver.stacks_of_all().map_err(gone)?;
        // Captures of one program must not be shown as another's. A stop that an exec prevented shows nothing.
        let is_missing =
            |stack: &ThreadStack| stack.ended == Err(ENDED) && driver.threads.contains_key(&stack.thread);
        if of_program == driver.processes.programs_begun() && !stacks.iter().any(is_missing) {
            break;
        }
    }
    // Threads that ended before their turn have no stack; that is no error.
    stacks.retain(|stack| !stack.addresses.is_empty() || driver.threads.contains_key(&stack.thread));
    Ok(Snapshot { stacks, images: driver.recorder.into_images() })
}

impl StopDriver<'_> {
    /// One stack of every current thread.
    fn stacks_of_all(&mut self) -> std::result::Result<Vec<ThreadStack>, Fault> {
        let (mut stacks, mut frames) = (Vec::<ThreadStack>::new(), Frames::default());
        for (id, name) in self.recorder.named_threads() {
            let Ok(status) = self.target.poll(id) else { continue };
            stacks.push(ThreadStack {
                thread: id,
                name: name.to_owned(),
                activity: status.activity,
                addresses: Vec::new(),
                methods: Vec::new(),
                ended: Ok(StackEnd::DeeperThanCopied),
            });
        }
        stacks.sort_by_key(|stack| stack.thread);
        // A thread with a stack deeper than the copied bytes is captured again with a larger size.
        let mut stack_bytes = FIRST_STACK_BYTES;
        while stack_bytes <= STACK_BYTES_MAX as usize {
            let deeper = |stack: &&mut ThreadStack| {
                matches!(stack.ended, Ok(StackEnd::DeeperThanCopied | StackEnd::OtherStack))
            };
            for stack in stacks.iter_mut().filter(deeper) {
                if let Some(account) = self.recorder.account_mut(stack.thread) {
                    if stack.ended == Ok(StackEnd::DeeperThanCopied) {
                        account.stack.reach(stack_bytes, STACK_BYTES_MAX as usize);
                    }
                    if !self.walk_sleeping(stack, &mut frames) {
                        self.request_stop(stack.thread, stack.activity != Activity::Runnable);
                    }
                }
            }
            let samples = self.collect_asked()?;
            let most = self.budget.stack_max_bytes();
            for Sample { thread: id, capture, .. } in samples {
                if let Some(stack) = stacks.iter_mut().find(|stack| stack.thread == id)
                    && let (Activity::Unknown, Some(status)) = (stack.activity, capture.status)
                {
                    stack.activity = status.activity;
                }
                let walked = self.recorder.walk(self.target, id, &capture, most, &mut frames);
                // Its thread has ended since.
                let Some((ended, needed)) = walked else { continue };
                // It continues outside the copied bytes: the next stop reads the words needed there.
                if ended == StackEnd::OtherStack && self.target.prefetches() {
                    self.recorder.search_above(self.target, id, &capture, needed);
                    if let Some(ranges) = self.recorder.new_ranges(id) {
                        self.target.prefetch(id, ranges);
                    }
                }
                if let Some(stack) = stacks.iter_mut().find(|stack| stack.thread == id) {
                    stack.show(&frames, ended);
                }
            }
            for stack in &mut stacks {
                if let Some(state) = self.threads.get(&stack.thread)
                    && stack.addresses.is_empty()
                    && stack.ended != Err(UNSHOWN)
                    && let Ok(status) = self.target.poll(stack.thread)
                {
                    let why = match status.activity {
                        _ if !state.stop_pending => ENDED,
                        Activity::Runnable => NO_CPU,
                        _ => UNINTERRUPTIBLE,
                    };
                    stack.ended = Err(state.unreadable.unwrap_or(why));
                }
            }
            stack_bytes *= STACK_GROWTH;
        }
        Ok(stacks)
    }

    /// Captures a waiting thread without a stop, and walks the capture. Returns false if a stop may show more:
    /// registers that the stack alone does not restore.
    fn walk_sleeping(&mut self, stack: &mut ThreadStack, frames: &mut Frames) -> bool {
        let id = stack.thread;
        if stack.activity != Activity::Waiting {
            return false;
        }
        let mut capture = self.captures.buffer();
        let seen = self.target.capture_sleeping(id, self.stack_bytes(id), &mut capture);
        let shown = match seen {
            // A wait that has just begun tolerates a stop.
            SleepingThread::Awake => false,
            SleepingThread::Hidden => {
                let forbidden = self.target.is_harmed_by_stops(id);
                if forbidden {
                    stack.ended = Err(UNSHOWN);
                }
                forbidden
            }
            SleepingThread::Captured => {
                let most = self.budget.stack_max_bytes();
                let walked = self.recorder.walk(self.target, id, &capture, most, frames);
                let leads = walked.is_some_and(|(ended, _)| {
                    stack.show(frames, ended);
                    leads_as_far_as_a_stop(ended)
                });
                leads || self.target.is_harmed_by_stops(id)
            }
        };
        self.captures.give_back(capture);
        shown
    }

    /// Takes the requested stops while any can still arrive. Returns the captures in any case: in a recording, a
    /// change of images or of the program would walk them at once.
    fn collect_asked(&mut self) -> std::result::Result<Vec<Sample>, Fault> {
        let begun_ns = self.clock.now_ns();
        let mut samples = Vec::new();
        loop {
            while self.threads.values().any(|state| state.stop_pending)
                && self.one_event(self.clock.now_ns() + POLL_NS)?
            {
                samples.append(&mut self.captures.take_samples());
            }
            let asked: Vec<ThreadId> =
                self.threads.iter().filter(|(_, state)| state.stop_pending).map(|(id, _)| *id).collect();
            let mut ready = false;
            for id in &asked {
                ready |= self.target.poll(*id).is_ok_and(|status| status.activity == Activity::Runnable);
            }
            let patience_ns = if ready { READY_NS } else { WAITING_NS };
            if asked.is_empty() || self.clock.now_ns() - begun_ns >= patience_ns {
                // The process may exec after the last of these stops. If it has ended there is no event, and the
                // captures are shown.
                for _ in 0..EVENTS_AT_ONCE {
                    if !self.one_event(0).unwrap_or(false) {
                        break;
                    }
                    samples.append(&mut self.captures.take_samples());
                }
                return Ok(samples);
            }
        }
    }
}

//! One stack of every thread, once: what `dump stacks` shows. The same stops and walks as
//! a recording, without ticks and weights.

use super::postponed::Captured;
use super::{Options, Recording};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::image::Images;
use crate::live::Live;
use crate::target::{Activity, Target, ThreadId};
use crate::walk::{Ended, How, Method};

/// Tries of a snapshot to copy a whole stack, and the time each waits for threads to stop.
const SNAPSHOT_ROUNDS: u32 = 5;
const SNAPSHOT_NS: u64 = 200_000_000;

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
    /// How each was found.
    pub methods: Vec<Method>,
    /// Why the walk ended; `None` if it could not be stopped.
    pub ended: Option<Ended>,
}

/// Stops each thread once, for as long as its registers and stack take to copy.
///
/// # Errors
/// [`ErrorKind::Attach`] when the process has gone.
pub fn snapshot(
    target: &mut dyn Target,
    clock: &dyn Clock,
    max_depth: usize,
    unwind: How,
) -> Result<Snapshot> {
    let options = Options {
        hz: 1,
        duration_ns: None,
        idle: true,
        threads: true,
        max_depth,
        unwind,
        seed: 0,
        linger_ns: 0,
        max_stop: 1.0,
    };
    let live = Live::default();
    let mut recording = Recording::new(target, clock, &options, &live);
    recording.budget = super::budget::Budget::unlimited();
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
            methods: Vec::new(),
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
            && clock.now_ns() < until_ns
            && recording.one_event(until_ns).map_err(gone)?
        {}
        for Captured { thread: id, capture, .. } in std::mem::take(&mut recording.captured) {
            let ended = recording.walk(id, &capture);
            if let Some(stack) = stacks.iter_mut().find(|stack| stack.thread == id) {
                stack.addresses.clone_from(&recording.frames.addresses);
                stack.methods.clone_from(&recording.frames.methods);
                stack.ended = Some(ended);
            }
        }
    }
    Ok(Snapshot { stacks, images: recording.images })
}

//! The run state of a target and its threads.

use std::collections::VecDeque;

use hashbrown::HashSet;

use super::connection_error::ConnectionError;
use super::stop_reply::Tid;
use crate::sources::ExitStatus;
use crate::sources::signals::Hold;

/// Something that happened to the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TargetChange {
    /// It has begun another program; its path, if known.
    Exec(String, Option<Tid>),
    /// It has ended.
    Ended(ExitStatus),
}

/// What is known of the run of a target.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The stub knows of no threads: packets need not say which.
    pub(super) has_one_thread: bool,
    /// Each thread reports its own stop, and files and memory can be read while others run.
    pub(super) non_stop: bool,
    /// While the target is stopped: this process is neither suspended nor ended before it runs.
    pub(super) hold: Option<Hold>,
    /// The target runs, as far as is known.
    pub(super) running: bool,
    /// The process, if the stub reports it.
    pub(super) pid: Option<u64>,
    /// Its threads, by number.
    pub(super) threads: Vec<Tid>,
    /// Threads known to be stopped, in non-stop mode.
    pub(super) stopped: HashSet<u64>,
    /// Interrupts that were sent and have not stopped the target: a later stop is by them.
    pub(super) owed_interrupts: u32,
    /// Signals to pass on when it runs again.
    pub(super) deliver: Vec<(Tid, u8)>,
    pub(super) news: VecDeque<TargetChange>,
    pub(super) ended: bool,
}

/// Most threads of a target.
pub(super) const MAX_THREADS: usize = 16_384;

/// There are more than can be handled.
pub(super) fn too_many() -> ConnectionError {
    ConnectionError::Nonsense(format!("more than {MAX_THREADS} threads"))
}

/// By number, none twice.
pub(super) fn sorted(mut threads: Vec<Tid>) -> Vec<Tid> {
    threads.sort_unstable_by_key(|thread| thread.tid);
    threads.dedup_by_key(|thread| thread.tid);
    threads
}

/// An answer that cannot be one.
pub(super) fn unexpected(question: &str, answer: &[u8]) -> ConnectionError {
    let mut text = String::from_utf8_lossy(&answer[..answer.len().min(40)]).into_owned();
    text.retain(|c| !c.is_control());
    ConnectionError::Nonsense(format!("`{text}` in answer to `{question}`"))
}

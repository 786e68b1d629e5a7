//! The run state of a target and its threads.

use std::collections::VecDeque;

use hashbrown::HashSet;

use super::connection_error::ConnectionError;
use super::stop_reply::Tid;
use crate::sources::ExitStatus;
use crate::sources::signals::Hold;

/// An event of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum TargetChange {
    /// It executed a new program; its path, if known.
    Exec(String, Option<Tid>),
    /// It has exited.
    Ended(ExitStatus),
}

/// Run state of a target.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The stub has no threads: packets need not name one.
    pub(super) has_one_thread: bool,
    /// Each thread reports its stop separately, and files and memory can be read while others run.
    pub(super) non_stop: bool,
    /// Prevents suspension and end of this process while the target is stopped.
    pub(super) hold: Option<Hold>,
    /// The target is believed to run.
    pub(super) running: bool,
    /// The process, if the stub reports it.
    pub(super) pid: Option<u64>,
    /// Its threads, sorted by number.
    pub(super) threads: Vec<Tid>,
    /// Threads known to be stopped, in non-stop mode.
    pub(super) stopped: HashSet<u64>,
    /// Interrupts sent that have not stopped the target yet: a later stop is due to them.
    pub(super) owed_interrupts: u32,
    /// Signals to deliver on resumption.
    pub(super) deliver: Vec<(Tid, u8)>,
    pub(super) news: VecDeque<TargetChange>,
    pub(super) ended: bool,
}

/// Most threads of a target.
pub(super) const THREADS_MAX: usize = 16_384;

/// Error for too many threads.
pub(super) fn too_many() -> ConnectionError {
    ConnectionError::Nonsense(format!("more than {THREADS_MAX} threads"))
}

/// Sorts by number and removes duplicates.
pub(super) fn sorted(mut threads: Vec<Tid>) -> Vec<Tid> {
    threads.sort_unstable_by_key(|thread| thread.tid);
    threads.dedup_by_key(|thread| thread.tid);
    threads
}

/// Error for an invalid reply.
pub(super) fn unexpected(question: &str, answer: &[u8]) -> ConnectionError {
    let mut text = String::from_utf8_lossy(&answer[..answer.len().min(40)]).into_owned();
    text.retain(|c| !c.is_control());
    ConnectionError::Nonsense(format!("`{text}` in answer to `{question}`"))
}

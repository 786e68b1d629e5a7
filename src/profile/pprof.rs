//! pprof: gzipped protocol buffers, read and written without loss.
//!
//! Format: <https://github.com/google/pprof/blob/main/proto/profile.proto>. What it has no
//! field for stands where other tools show it: the family of a stack in labels (`process`,
//! `thread` and `tid`, `state`, `incomplete`), what is known of the recording in comments
//! (`stackprof.command: ./work`). Profiles of other programs are read too, also if they are
//! not compressed; see [`read`] for which of several values is taken.

mod metadata;
mod proto;
pub mod read;
pub mod write;

/// Keys of labels.
mod label {
    pub(super) const PROCESS: &str = "process";
    pub(super) const THREAD: &str = "thread";
    pub(super) const TID: &str = "tid";
    pub(super) const STATE: &str = "state";
    pub(super) const WAITING: &str = "waiting";
    pub(super) const RUNNING: &str = "running";
    pub(super) const INCOMPLETE: &str = "incomplete";
    pub(super) const YES: &str = "yes";
}

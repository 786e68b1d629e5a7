//! Processes to record on Linux: running ones, or a command.

use super::launch::Launch;
use crate::sources::ProcessSelection;

/// Processes to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A running process, by id.
    Attach(u32),
    /// A new process.
    Launch(Launch),
    /// Running processes, with more to come.
    Several(ProcessSelection),
}

//! Which processes a source of Linux records: running ones, or a command.

use super::launch::Launch;
use crate::sources::ProcessSelection;

/// Which process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A running one, by process id.
    Attach(u32),
    /// A new one.
    Launch(Launch),
    /// Running ones, of which there may be more later.
    Several(ProcessSelection),
}

//! Selection of processes by options.

use std::ffi::OsString;

/// The processes to record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessArguments {
    /// By process id.
    pub pids: Vec<u32>,
    /// All processes.
    pub all: bool,
    /// Those of a control group.
    pub cgroup: Option<OsString>,
    /// Those of a container, by the beginning of its id.
    pub container: Option<OsString>,
    /// Those of a user, by name or number.
    pub user: Option<OsString>,
}

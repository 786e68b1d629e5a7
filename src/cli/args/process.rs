//! Processes of the machine, as options name them.

use std::ffi::OsString;

/// Which processes of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessArguments {
    /// By process id.
    pub pids: Vec<u32>,
    /// All of them.
    pub all: bool,
    /// Those of a control group.
    pub cgroup: Option<OsString>,
    /// Those of a container, by the beginning of its id.
    pub container: Option<OsString>,
    /// Those of a user, by name or number.
    pub user: Option<OsString>,
}

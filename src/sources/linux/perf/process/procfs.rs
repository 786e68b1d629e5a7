//! The process stage's access to /proc: parent, owner, name and state of a process.
//!
//! Input: process and thread numbers; output: values, or `None` if gone. All access is through [`Procfs`], so that
//! the stage also runs on a simulated kernel.

use std::fs;

use libc::pid_t;

use crate::addr::Avma;
use crate::sources::linux::{cgroup, proc, threads};
use crate::sources::proc_file;

/// What /proc shows of processes.
pub(in super::super) trait Procfs {
    /// All processes, by number.
    fn processes(&self) -> Vec<pid_t>;

    /// The parent of a process.
    fn parent(&self, pid: pid_t) -> Option<pid_t>;

    /// The effective user.
    fn user(&self, pid: pid_t) -> Option<u32>;

    /// Whether a process is in a control group or one below it.
    fn is_in_cgroup(&self, pid: pid_t, group: &str) -> Option<bool>;

    /// Displayed name of a process: its name, or the kind of a kernel thread (`[kworker]`).
    fn name(&self, pid: pid_t) -> String;

    /// The file name of its program.
    fn program(&self, pid: pid_t) -> Option<Vec<u8>>;

    /// The threads of a process.
    fn threads(&self, pid: pid_t) -> Vec<pid_t>;

    /// The name of a thread.
    fn thread_name(&self, pid: pid_t, tid: pid_t) -> Option<String>;

    /// The initial stack pointer of the first thread.
    fn stack_top(&self, pid: pid_t) -> Option<Avma>;

    /// Whether a thread of the process runs or waits.
    fn is_alive(&self, pid: pid_t) -> bool;
}

/// The /proc of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub(in super::super) struct SystemProcfs;

impl Procfs for SystemProcfs {
    fn processes(&self) -> Vec<pid_t> {
        all_processes()
    }

    fn parent(&self, pid: pid_t) -> Option<pid_t> {
        parent_of(pid)
    }

    fn user(&self, pid: pid_t) -> Option<u32> {
        status_value(pid, "Uid")?.split_whitespace().nth(1)?.parse().ok()
    }

    fn is_in_cgroup(&self, pid: pid_t, group: &str) -> Option<bool> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        Some(cgroup::memberships(&text).any(|(_, path)| is_below(path, group)))
    }

    fn name(&self, pid: pid_t) -> String {
        let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name = String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned();
        let of_kernel = proc_file::head(format!("/proc/{pid}/cmdline"), 1)
            .is_ok_and(|command| command.is_empty())
            && fs::read_link(format!("/proc/{pid}/exe")).is_err();
        match name.split(['/', ':']).next() {
            Some(kind) if of_kernel => format!("[{kind}]"),
            _ => name,
        }
    }

    fn program(&self, pid: pid_t) -> Option<Vec<u8>> {
        let file = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
        Some(file.file_name()?.as_encoded_bytes().to_vec())
    }

    fn threads(&self, pid: pid_t) -> Vec<pid_t> {
        threads::list(pid).unwrap_or_default()
    }

    fn thread_name(&self, pid: pid_t, tid: pid_t) -> Option<String> {
        threads::name(pid, tid)
    }

    fn stack_top(&self, pid: pid_t) -> Option<Avma> {
        threads::start_stack(pid)
    }

    fn is_alive(&self, pid: pid_t) -> bool {
        threads::living_thread(pid).is_some()
    }
}

/// All processes, by number.
pub(in crate::sources::linux) fn all_processes() -> Vec<pid_t> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The current parent of a process, by /proc.
pub(in crate::sources::linux) fn parent_of(pid: pid_t) -> Option<pid_t> {
    status_value(pid, "PPid")?.trim().parse().ok()
}

/// Whether a process has user memory; kernel threads have none.
pub(in super::super) fn has_user_memory(pid: pid_t) -> bool {
    status_value(pid, "VmSize").is_some()
}

fn status_value(pid: pid_t, key: &str) -> Option<String> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    proc::status_value(&String::from_utf8_lossy(&status), key).map(str::to_owned)
}

fn is_below(path: &str, cgroup: &str) -> bool {
    let cgroup = cgroup.trim_end_matches('/');
    path.strip_prefix(cgroup).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_group_contains_itself_and_its_descendants() {
        assert!(is_below("/user.slice", "/user.slice"));
        assert!(is_below("/user.slice/a.scope", "/user.slice/"));
        assert!(!is_below("/user.slices", "/user.slice"));
        assert!(is_below("/anything", "/"));
    }

    #[test]
    fn our_own_process_has_a_parent_and_a_user() {
        let pid = std::process::id().cast_signed();
        assert!(parent_of(pid).is_some_and(|parent| parent >= 0));
        assert!(SystemProcfs.user(pid).is_some());
        assert!(all_processes().contains(&pid));
        assert!(has_user_memory(pid) && !has_user_memory(-1));
    }
}

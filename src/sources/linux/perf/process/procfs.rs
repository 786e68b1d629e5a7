//! What the process stage reads in /proc: who started a process, whose it is, its name, whether it runs.
//!
//! Input: numbers of processes and threads; output: values, `None` of what is gone. All is read through [`Procfs`], so
//! that the stage runs on a simulated kernel, too.

use std::fs;

use libc::pid_t;

use crate::addr::Avma;
use crate::sources::linux::{proc, threads};

/// What /proc shows of processes.
pub(in super::super) trait Procfs {
    /// All processes, by number.
    fn processes(&self) -> Vec<pid_t>;

    /// The process that started one.
    fn parent(&self, pid: pid_t) -> Option<pid_t>;

    /// The effective user.
    fn user(&self, pid: pid_t) -> Option<u32>;

    /// Whether a process is in a control group or one below it.
    fn is_in_cgroup(&self, pid: pid_t, cgroup: &str) -> Option<bool>;

    /// What a process is shown under: its name, or that of a kind of kernel threads (`[kworker]`).
    fn name(&self, pid: pid_t) -> String;

    /// The file name of its program.
    fn program(&self, pid: pid_t) -> Option<Vec<u8>>;

    /// The name of a thread.
    fn thread_name(&self, pid: pid_t, tid: pid_t) -> Option<String>;

    /// The stack pointer that the first thread began with.
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

    /// Lines of `/proc/PID/cgroup` are `HIERARCHY:CONTROLLERS:PATH` (cgroups(7)).
    fn is_in_cgroup(&self, pid: pid_t, cgroup: &str) -> Option<bool> {
        let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        Some(text.lines().filter_map(|line| line.splitn(3, ':').nth(2)).any(|path| is_below(path, cgroup)))
    }

    fn name(&self, pid: pid_t) -> String {
        let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        let name = String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned();
        let of_kernel = fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|command| command.is_empty())
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

    fn thread_name(&self, pid: pid_t, tid: pid_t) -> Option<String> {
        threads::name(pid, tid)
    }

    fn stack_top(&self, pid: pid_t) -> Option<Avma> {
        threads::start_stack(pid)
    }

    fn is_alive(&self, pid: pid_t) -> bool {
        threads::living(pid).is_some()
    }
}

/// All processes, by number.
pub(in crate::sources::linux) fn all_processes() -> Vec<pid_t> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// The process that started one, as /proc has it now.
pub(in crate::sources::linux) fn parent_of(pid: pid_t) -> Option<pid_t> {
    status_value(pid, "PPid")?.trim().parse().ok()
}

/// Whether a process has memory of its own, as threads of the kernel have not.
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
    fn a_group_holds_itself_and_what_is_below_it() {
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

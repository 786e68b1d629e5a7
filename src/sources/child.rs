//! A launched command after its recording: its exit status, and SIGTERM and SIGKILL for `--kill-after`.
#![allow(unsafe_code)]

use std::io;
use std::time::{Duration, Instant};

use super::ExitStatus;

/// Time that a command gets to exit after SIGTERM, and again after SIGKILL.
pub const GRACE: Duration = Duration::from_secs(5);
/// Interval between two waitpid(2) calls.
const POLL: Duration = Duration::from_millis(2);

/// Exit status of a child of this process; `None` while it runs. Reaps the child.
#[must_use]
pub fn child_end(pid: u32) -> Option<ExitStatus> {
    let Some(pid) = number(pid) else { return Some(ExitStatus::Unknown) };
    let mut status = 0;
    loop {
        // SAFETY: `status` is live and of the type that waitpid(2) fills.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
            0 => return None,
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            // Another thread has reaped it.
            -1 => return Some(ExitStatus::Unknown),
            _ if libc::WIFEXITED(status) => return Some(ExitStatus::Code(libc::WEXITSTATUS(status))),
            _ if libc::WIFSIGNALED(status) => return Some(ExitStatus::Signal(libc::WTERMSIG(status))),
            _ => return None,
        }
    }
}

/// Ends a child of this process by SIGTERM, and by SIGKILL if it still runs after [`GRACE`]. Returns its exit
/// status, or `None` if it did not exit (it is in an uninterruptible system call, or signals are refused).
#[must_use]
pub fn end_child(pid: u32) -> Option<ExitStatus> {
    end_child_after(pid, GRACE)
}

/// [`end_child`], with SIGKILL after `grace`.
fn end_child_after(pid: u32, grace: Duration) -> Option<ExitStatus> {
    // A child stopped by job control handles SIGTERM only once it runs again.
    for (signals, grace) in [(&[libc::SIGTERM, libc::SIGCONT][..], grace), (&[libc::SIGKILL], GRACE)] {
        if let Some(status) = child_end(pid) {
            return Some(status);
        }
        let send = |signal: libc::c_int| {
            // SAFETY: kill(2) takes two numbers. The child was not waited for, so the number is its own.
            number(pid).is_some_and(|pid| unsafe { libc::kill(pid, signal) } == 0)
        };
        // Refused if the child now belongs to another user (a setuid program).
        if signals.iter().filter(|signal| send(**signal)).count() == 0 {
            break;
        }
        let begun = Instant::now();
        while begun.elapsed() < grace {
            if let Some(status) = child_end(pid) {
                return Some(status);
            }
            std::thread::sleep(POLL);
        }
    }
    child_end(pid)
}

/// The pid as a `pid_t`; `None` for 0 and for values that would be negative, which address several processes.
fn number(pid: u32) -> Option<libc::pid_t> {
    libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    /// A shell that has set these traps. The code under test ends it.
    #[allow(clippy::zombie_processes)]
    fn shell(script: &str) -> u32 {
        let script = format!("{script}; echo ready; while :; do sleep 0.01; done");
        let mut child = Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().expect("sh");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        child.id()
    }

    #[test]
    fn a_child_ends_by_sigterm_or_sigkill() {
        for (script, grace, status) in [
            ("trap 'exit 7' TERM", GRACE, ExitStatus::Code(7)),
            (":", GRACE, ExitStatus::Signal(libc::SIGTERM)),
            ("trap '' TERM", Duration::ZERO, ExitStatus::Signal(libc::SIGKILL)),
        ] {
            let pid = shell(script);
            assert_eq!(child_end(pid), None, "{script}");
            assert_eq!(end_child_after(pid, grace), Some(status), "{script}");
            // It was reaped.
            assert_eq!(child_end(pid), Some(ExitStatus::Unknown), "{script}");
        }
    }

    #[test]
    fn a_stopped_child_ends_by_sigterm() {
        let pid = shell(":");
        // SAFETY: kill(2) takes two numbers; the child was not waited for.
        unsafe { libc::kill(pid.cast_signed(), libc::SIGSTOP) };
        assert_eq!(end_child(pid), Some(ExitStatus::Signal(libc::SIGTERM)));
    }

    #[test]
    fn pids_that_address_several_processes_are_refused() {
        for pid in [0, u32::MAX] {
            assert_eq!(
                (child_end(pid), end_child(pid)),
                (Some(ExitStatus::Unknown), Some(ExitStatus::Unknown))
            );
        }
    }
}

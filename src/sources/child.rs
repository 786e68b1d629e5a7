//! A launched command after its recording: whether it has ended, and SIGTERM and SIGKILL for `--kill-after`.
#![allow(unsafe_code)]

use std::io;
use std::time::{Duration, Instant};

use super::ExitStatus;

/// How long a command has between SIGTERM and SIGKILL, and again after that.
pub const GRACE: Duration = Duration::from_secs(5);
/// Interval between two waitpid(2) calls.
const POLL: Duration = Duration::from_millis(2);

/// How a child of this process has ended; `None` while it runs. Reaps it: it is no zombie
/// afterwards.
#[must_use]
pub fn child_end(pid: u32) -> Option<ExitStatus> {
    let Some(pid) = number(pid) else { return Some(ExitStatus::Unknown) };
    let mut status = 0;
    loop {
        // SAFETY: `status` is live and of the type that waitpid(2) fills.
        match unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } {
            0 => return None,
            -1 if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted => {}
            // Somebody else has taken its end.
            -1 => return Some(ExitStatus::Unknown),
            _ if libc::WIFEXITED(status) => return Some(ExitStatus::Code(libc::WEXITSTATUS(status))),
            _ if libc::WIFSIGNALED(status) => return Some(ExitStatus::Signal(libc::WTERMSIG(status))),
            _ => return None,
        }
    }
}

/// Ends a child of this process by SIGTERM, and by SIGKILL if it still runs after [`GRACE`]; how it
/// ended, or `None` if it did not (it is in a system call that nothing ends, or signals are refused).
#[must_use]
pub fn end_child(pid: u32) -> Option<ExitStatus> {
    // One that job control has stopped would not take SIGTERM before it runs again.
    for signals in [&[libc::SIGTERM, libc::SIGCONT][..], &[libc::SIGKILL]] {
        if let Some(status) = child_end(pid) {
            return Some(status);
        }
        let send = |signal: libc::c_int| {
            // SAFETY: kill(2) takes two numbers. The child was not waited for, so the number is its own.
            number(pid).is_some_and(|pid| unsafe { libc::kill(pid, signal) } == 0)
        };
        // Refused where the child has become another user's (a setuid program).
        if signals.iter().filter(|signal| send(**signal)).count() == 0 {
            break;
        }
        let begun = Instant::now();
        while begun.elapsed() < GRACE {
            if let Some(status) = child_end(pid) {
                return Some(status);
            }
            std::thread::sleep(POLL);
        }
    }
    child_end(pid)
}

/// The pid as the system takes it; `None` for 0 and what would be negative, which stand for several processes.
fn number(pid: u32) -> Option<libc::pid_t> {
    libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    /// A shell with these traps, which has set them. The tests end it by what they test.
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
    fn a_child_ends_as_it_chooses_or_by_force() {
        for (script, status) in [
            ("trap 'exit 7' TERM", ExitStatus::Code(7)),
            (":", ExitStatus::Signal(libc::SIGTERM)),
            ("trap '' TERM", ExitStatus::Signal(libc::SIGKILL)),
        ] {
            let pid = shell(script);
            assert_eq!(child_end(pid), None, "{script}");
            assert_eq!(end_child(pid), Some(status), "{script}");
            // No zombie stays.
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
    fn no_number_stands_for_several_processes() {
        for pid in [0, u32::MAX] {
            assert_eq!(
                (child_end(pid), end_child(pid)),
                (Some(ExitStatus::Unknown), Some(ExitStatus::Unknown))
            );
        }
    }
}

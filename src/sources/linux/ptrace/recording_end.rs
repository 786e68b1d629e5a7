//! What ends a recording: the exit of a command or of the listed processes. Input: exits. Output: whether it ends.

use libc::pid_t;

/// The processes that a recording ends with.
#[derive(Debug)]
pub(super) struct RecordingEnd {
    /// Those that have not exited yet.
    processes: Vec<pid_t>,
    command: Option<Command>,
    ended: bool,
}

/// A launched command.
#[derive(Clone, Copy, Debug)]
enum Command {
    /// `Command::spawn` has not returned: if its `exec` fails, it waits for the process.
    Spawning(pid_t),
    Running(pid_t),
}

impl RecordingEnd {
    /// The exit of the last of these processes.
    pub(super) fn of_processes(processes: Vec<pid_t>) -> RecordingEnd {
        RecordingEnd { processes, command: None, ended: false }
    }

    /// The exit of a command that is being started.
    pub(super) fn of_command(pid: pid_t) -> RecordingEnd {
        RecordingEnd { command: Some(Command::Spawning(pid)), ..RecordingEnd::of_processes(vec![pid]) }
    }

    /// Records that `Command::spawn` has returned.
    pub(super) fn set_running(&mut self) {
        self.command = self.command().map(Command::Running);
    }

    /// The launched command.
    pub(super) fn command(&self) -> Option<pid_t> {
        self.command.map(|(Command::Spawning(pid) | Command::Running(pid))| pid)
    }

    /// Whether `Command::spawn` waits for this process.
    pub(super) fn is_spawning(&self, pid: pid_t) -> bool {
        matches!(self.command, Some(Command::Spawning(command)) if command == pid)
    }

    /// Records the exit of a process. Returns whether the recording ends with it.
    pub(super) fn process_exited(&mut self, pid: pid_t) -> bool {
        let left = self.processes.len();
        self.processes.retain(|other| *other != pid);
        let ends = left > 0 && self.processes.is_empty();
        self.ended |= ends;
        ends
    }

    /// Records that nothing is traced any more.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_ends_once_and_with_the_last_process() {
        let mut end = RecordingEnd::of_processes(vec![7, 8]);
        let exits = [7, 9, 8, 9].map(|pid| end.process_exited(pid));
        assert_eq!((exits, end.has_ended()), ([false, false, true, false], true));
        let mut end = RecordingEnd::of_command(7);
        assert!(end.is_spawning(7) && !end.is_spawning(8));
        end.set_running();
        assert_eq!((end.command(), end.is_spawning(7), end.has_ended()), (Some(7), false, false));
    }
}

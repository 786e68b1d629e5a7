//! A process by its name: `--pid redis-server`. Input: the processes that run, and a name. Output: the id of the
//! one that has it, or an error that lists those that do. Pure; each system lists its processes itself.

use crate::error::{Error, ErrorKind, Result};

/// Most processes that an error lists.
const LISTED_MAX: usize = 10;
/// Most characters of a command line in it.
const COMMAND_CHARS_MAX: usize = 60;

/// A process that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningProcess {
    /// Process id.
    pub pid: u32,
    /// What it is called: the kernel's name, the paths of its executable and of what it was started as.
    pub names: Vec<String>,
    /// Its command line, for people.
    pub command: String,
}

/// The id of the one process that has a name: the whole of one, or the file name of a path.
///
/// # Errors
/// [`ErrorKind::Attach`]: there is none, or there are several.
pub fn pid_of(name: &str, processes: impl IntoIterator<Item = RunningProcess>) -> Result<u32> {
    let is_called = |process: &RunningProcess| {
        !name.is_empty() && {
            process.names.iter().any(|other| other == name || other.rsplit('/').next() == Some(name))
        }
    };
    let mut matches: Vec<RunningProcess> = processes.into_iter().filter(is_called).collect();
    matches.sort_unstable_by_key(|process| process.pid);
    let why = match &matches[..] {
        [one] => return Ok(one.pid),
        [] => "no process has this name (ps -e shows them)".to_owned(),
        several => {
            let list = several.iter().take(LISTED_MAX).map(|process| {
                let command: String = process.command.chars().take(COMMAND_CHARS_MAX).collect();
                format!("{} ({command})", process.pid)
            });
            let list = list.collect::<Vec<_>>().join(", ");
            let more = if several.len() > LISTED_MAX { ", ..." } else { "" };
            format!("{} processes have this name: {list}{more}; give the id of one", several.len())
        }
    };
    Err(Error::new(ErrorKind::Attach, format!("--pid `{name}`: {why}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, names: &[&str], command: &str) -> RunningProcess {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        RunningProcess { pid, names, command: command.to_owned() }
    }

    fn processes() -> Vec<RunningProcess> {
        vec![
            process(30, &["worker", "/usr/bin/python3.11", "python3"], "python3 worker.py"),
            process(
                7,
                &["redis-server", "/usr/bin/redis-check-rdb", "/usr/bin/redis-server"],
                "redis-server *:1",
            ),
            process(9, &["worker", "/opt/worker", "./worker"], "./worker 2"),
            process(1, &["init", "", ""], "init"),
        ]
    }

    #[test]
    fn one_process_is_found_by_each_of_its_names() {
        for (name, pid) in
            [("redis-server", 7), ("redis-check-rdb", 7), ("/opt/worker", 9), ("python3", 30), ("init", 1)]
        {
            assert_eq!(pid_of(name, processes()).ok(), Some(pid), "{name}");
        }
    }

    #[test]
    fn none_and_several_are_refused_with_the_next_step() {
        let refused = |name: &str| pid_of(name, processes()).expect_err("refused").to_string();
        assert_eq!(refused("redis"), "--pid `redis`: no process has this name (ps -e shows them)");
        assert_eq!(refused(""), "--pid ``: no process has this name (ps -e shows them)");
        assert_eq!(
            refused("worker"),
            "--pid `worker`: 2 processes have this name: 9 (./worker 2), 30 (python3 worker.py); give the id of one"
        );
        let many = (1..=11).map(|pid| process(pid, &["sh"], &"x".repeat(100)));
        let text = pid_of("sh", many).expect_err("refused").to_string();
        assert!(text.starts_with("--pid `sh`: 11 processes have this name: 1 (xxx"), "{text}");
        assert!(text.contains(&format!("10 ({}), ...; give", "x".repeat(60))), "{text}");
    }
}

//! Process selection by name: `--pid redis-server`. Input: the running processes, and a name. Output: the id
//! of the one with that name, or an error that lists the candidates. Pure; each system lists its processes
//! itself.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{Error, ErrorKind, Result};

/// Most processes listed in an error.
const LISTED_MAX: usize = 10;
/// Most characters of a command line in an error.
const COMMAND_CHARS_MAX: usize = 60;

/// A running process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunningProcess {
    /// Process id.
    pub pid: u32,
    /// Its names: the kernel's name, the paths of its executable and of its first argument.
    pub names: Vec<String>,
    /// Its command line, for people.
    pub command: String,
}

impl RunningProcess {
    /// Whether this is one of its names, or the file name of one.
    fn is_called(&self, name: &str) -> bool {
        !name.is_empty()
            && self.file_names().chain(self.names.iter().map(String::as_str)).any(|own| own == name)
    }

    fn file_names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().filter_map(|name| name.rsplit('/').next())
    }

    /// Kernel threads have no executable and no command line.
    fn is_of_kernel(&self) -> bool {
        self.names.iter().skip(1).all(String::is_empty)
    }
}

/// Completions of `--pid`: the unique process names, then all ids, each with a description. Excludes names
/// that a shell would have to quote: a process chooses its own name.
#[must_use]
pub fn words(processes: &[RunningProcess]) -> Vec<(String, String)> {
    let is_plain = |name: &str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '+' | '-' | '@'))
    };
    let mut listed: Vec<&RunningProcess> = processes.iter().filter(|one| !one.is_of_kernel()).collect();
    listed.sort_unstable_by_key(|process| process.pid);
    // As in `pid_of`, kernel threads are included.
    let mut bearers: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for process in processes {
        for name in process.file_names() {
            bearers.entry(name).or_default().insert(process.pid);
        }
    }
    let is_of_one = |name: &str| bearers.get(name).is_some_and(|pids| pids.len() == 1);
    let short_name = |process: &RunningProcess| process.names.first().cloned().unwrap_or_default();
    let mut names: Vec<(String, String)> = listed
        .iter()
        .map(|process| (short_name(process), process.pid.to_string()))
        .filter(|(name, _)| is_plain(name) && is_of_one(name))
        .collect();
    names.sort_unstable();
    names.extend(listed.iter().map(|process| (process.pid.to_string(), short_name(process))));
    names
}

/// The id of the only process with a name, given in full or as the file name of a path.
///
/// # Errors
/// [`ErrorKind::Attach`]: there is none, or there are several.
pub fn pid_of(name: &str, processes: impl IntoIterator<Item = RunningProcess>) -> Result<u32> {
    let mut matches: Vec<RunningProcess> =
        processes.into_iter().filter(|process| process.is_called(name)).collect();
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
    fn completion_offers_unique_names_that_need_no_quotes() {
        let mut all = processes();
        all.push(process(2, &["kthreadd", "", ""], "kthreadd"));
        for (pid, name) in
            [(40, "x;reboot"), (41, "$(id)"), (42, "two words"), (43, "-p"), (44, "a\tb"), (45, "")]
        {
            all.push(process(pid, &[name, "/bin/sh", "sh"], "sh"));
        }
        all.push(process(1, &["init", "/sbin/init", ""], "init"));
        let words = words(&all);
        let names: Vec<&str> =
            words.iter().map(|(word, _)| word.as_str()).filter(|word| word.parse::<u32>().is_err()).collect();
        assert_eq!(names, ["init", "redis-server"], "two are called worker");
        assert!(words.contains(&("7".to_owned(), "redis-server".to_owned())));
        assert!(words.contains(&("41".to_owned(), "$(id)".to_owned())));
        assert!(words.iter().all(|(word, _)| word != "2"), "a thread of the kernel");
    }

    #[test]
    fn no_match_and_several_matches_are_refused_with_the_next_step() {
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

//! Runs the program in a temporary directory, and prints everything on an unexpected result.

use crate::skip::skip;
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A directory in which the program runs.
pub(crate) struct Place {
    directory: tempfile::TempDir,
    program: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Place {
        Place {
            directory: tempfile::tempdir().unwrap(),
            program: PathBuf::from(env!("CARGO_BIN_EXE_stackprof")),
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// The program, set up to run here without the environment of the tester's shell.
    pub(crate) fn command(&self) -> Command {
        self.clean(Command::new(&self.program))
    }

    /// `script` for `sh -c`; the program is `$STACKPROF`.
    pub(crate) fn shell(&self, script: &str) -> Run {
        let mut command = Command::new("sh");
        command.args(["-c", script]).env("STACKPROF", &self.program);
        run(self.clean(command))
    }

    fn clean(&self, mut command: Command) -> Command {
        command.current_dir(self.directory.path());
        for variable in ["SUDO_UID", "SUDO_GID", "RUST_BACKTRACE", "COLUMNS"] {
            command.env_remove(variable);
        }
        command
    }

    /// Runs the program with these words, separated by spaces.
    pub(crate) fn run(&self, line: &str) -> Run {
        self.run_words(&line.split_whitespace().collect::<Vec<_>>())
    }

    pub(crate) fn run_words(&self, words: &[&str]) -> Run {
        let mut command = self.command();
        command.args(words);
        run(command)
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Names and lengths of the files here.
    pub(crate) fn files(&self) -> BTreeMap<String, u64> {
        let entries = fs::read_dir(self.directory.path()).unwrap();
        let entry = |entry: fs::DirEntry| {
            (entry.file_name().to_string_lossy().into_owned(), entry.metadata().unwrap().len())
        };
        entries.map(|found| entry(found.unwrap())).collect()
    }
}

/// Runs a command to its end.
pub(crate) fn run(mut command: Command) -> Run {
    let words = format!("{command:?}");
    Run::new(words, command.output().unwrap_or_else(|error| panic!("cannot run it: {error}")))
}

/// Result of a run. Printed in full if a check fails.
pub(crate) struct Run {
    words: String,
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Run { words, code, stdout, stderr } = self;
        write!(f, "\n{words}\ncode {code:?}\n--- stdout\n{stdout}\n--- stderr\n{stderr}\n---")
    }
}

impl Run {
    /// No run may print messages that only a programmer can read.
    pub(crate) fn new(words: String, output: Output) -> Run {
        let run = Run {
            words,
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        };
        for text in ["panicked", "RUST_BACKTRACE", "os error", "internal error", "Error {"] {
            assert!(!run.stderr.contains(text) && !run.stdout.contains(text), "{text:?} in {run}");
        }
        run
    }

    pub(crate) fn succeeds(self) -> Run {
        assert_eq!(self.code, Some(0), "{self}");
        self
    }

    /// Checks that it failed with one line for a person that contains `needles`, and nothing else.
    pub(crate) fn fails_with(self, code: i32, needles: &[&str]) -> Run {
        assert_eq!(self.code, Some(code), "{self}");
        assert_eq!(self.stdout, "", "{self}");
        let line = self.stderr.strip_suffix('\n').unwrap_or_else(|| panic!("no line end: {self}"));
        assert!(line.starts_with("stackprof: ") && !line.contains('\n'), "one line: {self}");
        assert!(!line.ends_with('.') && !line.ends_with(' '), "{self}");
        let first = line.trim_start_matches("stackprof: ").chars().next().unwrap_or_default();
        assert!(!first.is_uppercase(), "lower case: {self}");
        for needle in needles {
            assert!(line.contains(needle), "{needle:?} expected in {self}");
        }
        self
    }
}

/// Why processes cannot be traced here, if so. Any kernel or container may forbid it.
fn tracing_refused() -> Option<String> {
    let run = Place::new().run("-q -o - --hz 100 -- true");
    let refused =
        ["CAP_SYS_PTRACE", "ptrace_scope", "the kernel refused", "macOS lets only root", "macOS refused it"];
    refused.iter().any(|text| run.stderr.contains(text)).then_some(run.stderr)
}

/// True if a process's state is in /proc, and refusals are those of ptrace.
pub(crate) fn is_linux() -> bool {
    let linux = cfg!(target_os = "linux");
    if !linux {
        skip("this test looks at processes and refusals as they are on Linux");
    }
    linux
}

/// Whether a test that traces can run; otherwise prints why not.
pub(crate) fn can_trace() -> bool {
    let known = cfg!(any(target_os = "linux", target_vendor = "apple"));
    if !known {
        skip("there is no backend for this system");
    }
    known && tracing_refused().map(|why| skip(&why)).is_none()
}

pub(crate) fn is_root() -> bool {
    let mut command = Command::new("id");
    command.arg("-u");
    run(command).stdout.trim() == "0"
}

/// A loop for `sh` that uses CPU time; 300,000 rounds are some tenths of a second.
pub(crate) fn busy(rounds: u32) -> String {
    format!("i=0; while [ $i -lt {rounds} ]; do i=$((i+1)); done")
}

/// `stack count` lines of folded text.
pub(crate) fn folded(text: &str) -> Vec<(&str, u64)> {
    text.lines()
        .map(|line| {
            let (stack, count) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no count: {line}"));
            (stack, count.parse().unwrap_or_else(|_| panic!("no number: {line}")))
        })
        .collect()
}

pub(crate) fn total(text: &str) -> u64 {
    folded(text).iter().map(|(_, count)| count).sum()
}

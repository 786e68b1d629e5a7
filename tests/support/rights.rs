//! Permissions of live tests: to trace, to sample with perf_event, to run programs as another user.
//!
//! Without a permission a test prints `SKIP reason`; `STACKPROF_NO_SKIP=1` makes a refused ptrace a failure.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::{env, fs};

use tempfile::TempDir;

use super::{Fixture, copy_program, fixture, not_here, skip, skip_without, stackprof};

/// Whether ptrace is permitted.
pub(crate) fn live() -> bool {
    static REFUSED: LazyLock<Option<String>> = LazyLock::new(|| {
        let mut target = Fixture::start("shares", ["20"]);
        target.line("ready");
        let mut tracer = Fixture::start("tracer", [target.pid().to_string()]);
        let said = tracer.next_line();
        (said != "tracing").then(|| format!("ptrace does not work here: {said}"))
    });
    let Some(reason) = REFUSED.as_ref() else { return true };
    skip(reason);
    false
}

/// Whether ptrace and perf_event are permitted.
pub(crate) fn sampled() -> bool {
    static REFUSED: LazyLock<Option<String>> = LazyLock::new(|| {
        let tried = stackprof().args(["-q", "--source", "perf", "-o", "-", "--", "true"]).output().unwrap();
        let said = String::from_utf8_lossy(&tried.stderr).into_owned();
        said.contains("cannot sample by --source perf").then_some(said)
    });
    if !live() {
        return false;
    }
    if let Some(said) = REFUSED.as_ref() {
        not_here(said.trim());
    }
    REFUSED.is_none()
}

/// The permitted sources of samples; none without ptrace.
pub(crate) fn sources() -> &'static [&'static str] {
    match (live(), sampled()) {
        (true, true) => &["ptrace", "perf"],
        (true, false) => &["ptrace"],
        (false, _) => &[],
    }
}

/// A file that every suite on the machine can open, for the lock.
const LOCK: &str = "/proc/version";

pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").unwrap().uid() == 0
}

/// A user without rights, with copies of the programs: the build directory may be closed to others. Used by
/// one test on the machine at a time: the kernel limits the memory of all rings of a user together, and a test changes
/// what users may sample.
pub(crate) struct Somebody {
    dir: TempDir,
    /// Locked until it is closed.
    _one: File,
}

impl Somebody {
    /// `None`, after a message, if no command can be run as another user.
    pub(crate) fn new() -> Option<Somebody> {
        if !is_root() {
            not_here("only root can run a command as another user");
            return None;
        }
        if Command::new("setpriv").arg("--version").output().is_err() {
            skip_without("setpriv");
            return None;
        }
        let one = File::open(LOCK).unwrap();
        #[allow(unsafe_code)]
        // SAFETY: the descriptor is open.
        let locked = unsafe { libc::flock(one.as_raw_fd(), libc::LOCK_EX) };
        assert_eq!(locked, 0, "{LOCK} can be locked");
        let dir = TempDir::new().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        Some(Somebody { dir, _one: one })
    }

    /// A directory that everybody may write to.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn copy(&self, program: &Path) -> PathBuf {
        let copy = self.dir.path().join(program.file_name().unwrap());
        if !copy.exists() {
            copy_program(program, &copy);
        }
        copy
    }

    pub(crate) fn stackprof(&self) -> PathBuf {
        self.copy(Path::new(env!("CARGO_BIN_EXE_stackprof")))
    }

    pub(crate) fn fixture(&self, name: &str) -> PathBuf {
        self.copy(&fixture(name))
    }

    /// Starts building a command of this user.
    pub(crate) fn run(&self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(program);
        command
    }
}

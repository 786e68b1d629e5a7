//! Starts a command that is traced from its first instruction after `exec`, and otherwise runs as if it had been
//! started without the profiler.
//!
//! The new process waits on a pipe between `fork` and `exec` until it is seized. The thread that
//! [`serves`](Requests::serve) forks it while the sampler's thread waits: `Command::spawn` returns only after the
//! `exec`, which the tracer has to let pass, and to the kernel the thread that forks is the parent. When that thread
//! ends, the command gets the signal that it requested by PR_SET_PDEATHSIG, and the command inherits the thread's
//! settings (priority, timer slack). So it is the profiler's first thread, which sets nothing and ends with the
//! process.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};

use libc::pid_t;

use super::account::Account;
use super::sys;
use crate::sources::startup;

/// A command to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Program and arguments.
    pub words: Vec<OsString>,
    /// The user that it runs as; `None`: as this process does.
    pub account: Option<Account>,
    /// Variables that are set beside those that it inherits.
    pub environment: Vec<(OsString, OsString)>,
}

/// The limit of open files that this process was started with, before it raised its own.
static FILE_LIMIT: OnceLock<libc::rlimit> = OnceLock::new();

/// Has launched commands get this limit of open files.
pub(super) fn inherit(files: Option<libc::rlimit>) {
    if let Some(files) = files {
        let _ = FILE_LIMIT.set(files);
    }
}

/// Undoes, in a new process, what this process has changed for itself: the limit of open files,
/// dispositions and mask of signals, and those of the `streams` that were closed. Only system calls,
/// nothing is allocated.
fn restore(streams: &[RawFd]) {
    if let Some(files) = FILE_LIMIT.get() {
        sys::set_file_limit(files);
    }
    for stream in streams.iter().filter(|stream| startup::was_closed(**stream)) {
        // SAFETY: of this process's standard streams, which nothing of ours uses between fork and exec.
        unsafe { libc::close(*stream) };
    }
    startup::restore_signals();
}

/// Starts a command that is not traced, whose standard input and output are set. To be called in the
/// first thread.
///
/// # Errors
/// When it could not be run.
pub(super) fn spawn(command: &mut Command) -> io::Result<std::process::Child> {
    // SAFETY: between fork and exec the closure only makes system calls; it allocates nothing and takes
    // no lock (signal-safety(7)).
    unsafe {
        command.pre_exec(|| {
            restore(&[libc::STDERR_FILENO]);
            Ok(())
        });
    }
    startup::with_signals_blocked(|| command.spawn())
}

/// Has commands forked by another thread, the one with the [`Requests`].
pub(super) struct Spawner(Sender<Request>);

impl Spawner {
    /// Notifies the first thread that this recording launches no more commands.
    pub(super) fn finish(self) {
        // The other thread may have ended.
        let _ = self.0.send(Request::Finish);
    }
}

/// A request of a [`Spawner`].
pub(super) struct Requests(Receiver<Request>);

enum Request {
    Spawn { command: Box<Command>, outcome: Sender<io::Result<()>> },
    Finish,
}

/// Why there are no more [`Requests`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestsEnd {
    /// Nothing more is launched.
    All,
    /// The [`Spawner`] was dropped; another one may follow.
    Left,
}

/// A channel from the sampler to the thread that forks for it.
pub(super) fn spawner() -> (Spawner, Requests) {
    let (ask, asked) = channel();
    (Spawner(ask), Requests(asked))
}

impl Requests {
    /// Forks the requested commands in the calling thread, until the [`Spawner`] is dropped.
    pub(super) fn serve(self) -> RequestsEnd {
        for request in self.0 {
            let Request::Spawn { mut command, outcome } = request else { return RequestsEnd::All };
            let result = startup::with_signals_blocked(|| command.spawn()).map(drop);
            // With it the ends of its pipes go.
            drop(command);
            let _ = outcome.send(result);
        }
        RequestsEnd::Left
    }
}

/// A process that waits before its `exec`.
pub(super) struct HeldChild {
    /// Its process id.
    pub(super) pid: pid_t,
    /// `None` once it was released.
    waits: Option<(PipeWriter, Outcome)>,
}

/// A `Command::spawn` that runs in the first thread.
struct Outcome(Receiver<io::Result<()>>);

impl Outcome {
    fn wait(self) -> io::Result<()> {
        self.0.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    }
}

/// Forks; the new process waits before `exec`.
///
/// # Errors
/// When no process could be made.
pub(super) fn hold(spawner: &Spawner, launch: &Launch) -> io::Result<HeldChild> {
    let (program, arguments) =
        launch.words.split_first().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let (mut ready, tell_ready) = io::pipe()?;
    let (wait_go, go) = io::pipe()?;
    let mut command = Command::new(program);
    command.args(arguments);
    let account = launch.account.clone();
    if let Some(account) = &account {
        command.env_clear().envs(account.environment());
    }
    command.envs(launch.environment.iter().map(|(name, value)| (name, value)));
    let go_fd = go.as_raw_fd();
    // SAFETY: between fork and exec the closure only makes system calls, on descriptors that it owns or
    // that the parent keeps open until then; it allocates nothing and takes no lock (signal-safety(7)).
    unsafe {
        let (mut tell_ready, mut wait_go) = (tell_ready, wait_go);
        command.pre_exec(move || {
            restore(&[libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO]);
            announce_and_wait(&mut tell_ready, &mut wait_go, go_fd)?;
            // Last: until `exec` the process has the profiler's memory and descriptors.
            account.as_ref().map_or(Ok(()), Account::take_on)
        });
    }
    let (tell_outcome, outcome) = channel();
    let request = Request::Spawn { command: Box::new(command), outcome: tell_outcome };
    spawner.0.send(request).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
    let outcome = Outcome(outcome);
    let mut pid = [0; 4];
    if ready.read_exact(&mut pid).is_err() {
        // The other ends are closed: fork itself failed, and the outcome has the reason.
        return Err(outcome.wait().err().unwrap_or_else(|| io::ErrorKind::Other.into()));
    }
    Ok(HeldChild { pid: pid_t::from_ne_bytes(pid), waits: Some((go, outcome)) })
}

fn announce_and_wait(tell_ready: &mut PipeWriter, wait_go: &mut PipeReader, go: RawFd) -> io::Result<()> {
    // SAFETY: getpid(2) takes nothing.
    let pid = unsafe { libc::getpid() };
    tell_ready.write_all(&pid.to_ne_bytes())?;
    // SAFETY: this process's copy of the parent's end; while it is open, the parent's
    // death would not end the wait below.
    unsafe { libc::close(go) };
    // An end of file means that the profiler gave up: do not run the command.
    wait_go.read_exact(&mut [0])
}

impl HeldChild {
    /// Lets the process continue to its `exec`; [`ExecOutcome::join`] has the result.
    pub(super) fn go(mut self) -> io::Result<ExecOutcome> {
        let (mut go, outcome) = self.waits.take().ok_or(io::ErrorKind::BrokenPipe)?;
        go.write_all(&[1])?;
        Ok(ExecOutcome { outcome, known: None })
    }
}

impl Drop for HeldChild {
    /// Waits for the end of a process that is not released: it reports to the thread that forked it that it could not
    /// run the command, and aborts with a message of its own if that thread has ended.
    fn drop(&mut self) {
        if let Some((go, outcome)) = self.waits.take() {
            drop(go);
            let _ = outcome.wait();
        }
    }
}

/// A process on its way through `exec`.
pub(super) struct ExecOutcome {
    outcome: Outcome,
    known: Option<io::Result<()>>,
}

impl ExecOutcome {
    /// Whether it is known how `exec` went, so that [`ExecOutcome::join`] returns at once. The thread that
    /// forked waits for a process that could not run its command, and such a wait, by any thread of the
    /// tracer's process, takes its stop before its end as well (kernel/exit.c,
    /// `wait_consider_task`): the tracer may never see one.
    pub(super) fn is_known(&mut self) -> bool {
        if self.known.is_none() {
            self.known = self.outcome.0.try_recv().ok();
        }
        self.known.is_some()
    }

    /// Whether `exec` worked. To be called once the tracer has seen the exec, or the end
    /// of the process, or when it [is known](Started::is_known).
    ///
    /// # Errors
    /// What `exec` failed with.
    pub(super) fn join(self) -> io::Result<()> {
        self.known.unwrap_or_else(|| self.outcome.wait())
    }
}

//! Starts a command that is traced from its first instruction after `exec`, and otherwise runs as if started
//! without the profiler.
//!
//! The new process waits on a pipe between `fork` and `exec` until it is seized. The thread that
//! [`serves`](Requests::serve) forks it while the sampler's thread waits, because `Command::spawn` returns
//! only after the `exec`, which the tracer has to let pass. To the kernel the forking thread is the parent:
//! when it exits, the command gets the signal that it requested by PR_SET_PDEATHSIG, and the command inherits
//! the thread's settings (priority, timer slack). So it is the profiler's main thread, which sets nothing and
//! exits with the process.
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
use super::terminal::{self, InputFilter};
use crate::sources::{signals, startup};

/// A command to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Program and arguments.
    pub words: Vec<OsString>,
    /// The user that it runs as; `None`: this process's user.
    pub account: Option<Account>,
    /// Variables that are set in addition to inherited ones.
    pub environment: Vec<(OsString, OsString)>,
}

/// The limit of open files at the start of this process, before it raised its limit.
static FILE_LIMIT: OnceLock<libc::rlimit> = OnceLock::new();

/// Sets the limit of open files for launched commands.
pub(super) fn inherit(files: Option<libc::rlimit>) {
    if let Some(files) = files {
        let _ = FILE_LIMIT.set(files);
    }
}

/// Restores, in a new process, what this process changed for itself: the limit of open files, dispositions
/// and mask of signals, and closes the `streams` that were closed at its start. Only makes system calls, does
/// not allocate.
fn restore(streams: &[RawFd]) {
    if let Some(files) = FILE_LIMIT.get() {
        sys::set_file_limit(files);
    }
    for stream in streams.iter().filter(|stream| startup::was_closed(**stream)) {
        // SAFETY: this process's standard streams, which our code does not use between fork and exec.
        unsafe { libc::close(*stream) };
    }
    startup::restore_signals();
}

/// Starts an untraced command with standard input and output set. Must be called in the main thread.
///
/// # Errors
/// It could not be run.
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

/// Sends a command the signal that this process received for it, if any. The command handles the signal; the
/// recording ends with the command.
pub(super) fn forward_signal(command: pid_t) {
    if let Some(signal) = signals::take_forwarded() {
        // It may have ended.
        let _ = sys::kill(command, signal);
    }
}

/// Makes another thread, which has the [`Requests`], fork commands.
pub(super) struct Spawner(Sender<Request>);

impl Spawner {
    /// Notifies the main thread that this recording launches no more commands.
    pub(super) fn finish(self) {
        // The other thread may have exited.
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
            // Closes the ends of its pipes.
            drop(command);
            let _ = outcome.send(result);
        }
        RequestsEnd::Left
    }
}

/// A process that waits before its `exec`.
pub(super) struct HeldChild {
    /// Process id.
    pub(super) pid: pid_t,
    /// `None` once it was released.
    waits: Option<(PipeWriter, SpawnResult)>,
}

/// A `Command::spawn` that runs in the first thread.
struct SpawnResult(Receiver<io::Result<()>>);

impl SpawnResult {
    fn wait(self) -> io::Result<()> {
        self.0.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    }
}

/// Forks; the new process waits before `exec`.
///
/// # Errors
/// No process could be created.
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
    let filter = (account.is_some() && terminal::is_shared()).then(InputFilter::new);
    let go_fd = go.as_raw_fd();
    // SAFETY: between fork and exec the closure only makes system calls, on descriptors that it owns or
    // that the parent keeps open until then; it allocates nothing and takes no lock (signal-safety(7)).
    unsafe {
        let (mut tell_ready, mut wait_go) = (tell_ready, wait_go);
        command.pre_exec(move || {
            restore(&[libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO]);
            announce_and_wait(&mut tell_ready, &mut wait_go, go_fd)?;
            // As root, whose privileges it needs.
            filter.as_ref().map_or(Ok(()), InputFilter::install)?;
            // Last: until `exec` the process has the profiler's memory and descriptors.
            account.as_ref().map_or(Ok(()), Account::become_user)
        });
    }
    let (tell_outcome, outcome) = channel();
    let request = Request::Spawn { command: Box::new(command), outcome: tell_outcome };
    spawner.0.send(request).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
    let outcome = SpawnResult(outcome);
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
    // SAFETY: this process's copy of the parent's end; while it is open, the parent's death would not end the
    // wait below.
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
    /// Waits for the exit of an unreleased process: it reports to the thread that forked it that it could not
    /// run the command, and aborts with a message of its own if that thread has exited.
    fn drop(&mut self) {
        if let Some((go, outcome)) = self.waits.take() {
            drop(go);
            let _ = outcome.wait();
        }
    }
}

/// A process in transition through `exec`.
pub(super) struct ExecOutcome {
    outcome: SpawnResult,
    known: Option<io::Result<()>>,
}

impl ExecOutcome {
    /// Whether the result of `exec` is known, so that [`ExecOutcome::join`] returns at once. The forking
    /// thread waits for a process that could not run its command. Such a wait, by any thread of the tracer's
    /// process, also consumes the stop before its exit (kernel/exit.c, `wait_consider_task`): the tracer may
    /// never see one.
    pub(super) fn is_known(&mut self) -> bool {
        if self.known.is_none() {
            self.known = self.outcome.0.try_recv().ok();
        }
        self.known.is_some()
    }

    /// Returns the result of `exec`. Must be called once the tracer has seen the exec or the exit of the
    /// process, or when it [is known](ExecOutcome::is_known).
    ///
    /// # Errors
    /// The error of `exec`.
    pub(super) fn join(self) -> io::Result<()> {
        self.known.unwrap_or_else(|| self.outcome.wait())
    }
}

//! Starts a command that is traced from its first instruction after `exec`, and otherwise runs as if started
//! without the profiler.
//!
//! The new process waits on a pipe between `fork` and `exec` until it is seized. Until then it only makes
//! async-signal-safe calls (signal-safety(7)): all else is prepared before, and it ends without a word if this process ends.
//! The thread that [`serves`](Requests::serve) forks it while the sampler's thread waits, because the result is known
//! only after the `exec`, which the tracer has to let pass. To the kernel the forking thread is the parent:
//! when it exits, the command gets the signal that it requested by PR_SET_PDEATHSIG, and the command inherits
//! the thread's settings (priority, timer slack). So it is the profiler's main thread, which sets nothing and
//! exits with the process.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::ffi::{CString, OsString, c_char};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::OsStringExt;
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
    Spawn { child: Box<NewProcess>, outcome: Sender<io::Result<()>> },
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
            let Request::Spawn { child, outcome } = request else { return RequestsEnd::All };
            let _ = outcome.send(child.start());
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
    let account = launch.account.clone();
    let filter = (account.is_some() && terminal::is_shared()).then(InputFilter::new);
    let environment = match &account {
        None if launch.environment.is_empty() => None,
        None => Some(std::env::vars_os().collect()),
        Some(account) => Some(account.environment()),
    };
    let environment = environment.map(|inherited: Vec<_>| {
        let variables: BTreeMap<_, _> =
            inherited.into_iter().chain(launch.environment.iter().cloned()).collect();
        CStrings::new(variables.into_iter().map(|(mut variable, value)| {
            variable.push("=");
            variable.push(value);
            variable
        }))
    });
    let child = NewProcess {
        arguments: CStrings::new(std::iter::once(program).chain(arguments).cloned())?,
        environment: environment.transpose()?,
        account,
        filter,
        tell_ready,
        wait_go,
        go: go.as_raw_fd(),
    };
    let (tell_outcome, outcome) = channel();
    let request = Request::Spawn { child: Box::new(child), outcome: tell_outcome };
    spawner.0.send(request).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
    let outcome = SpawnResult(outcome);
    let mut pid = [0; 4];
    if ready.read_exact(&mut pid).is_err() {
        // The other ends are closed: fork itself failed, and the outcome has the reason.
        return Err(outcome.wait().err().unwrap_or_else(|| io::ErrorKind::Other.into()));
    }
    Ok(HeldChild { pid: pid_t::from_ne_bytes(pid), waits: Some((go, outcome)) })
}

/// C strings, and the list of their addresses that `execve` takes.
struct CStrings {
    _strings: Vec<CString>,
    addresses: Vec<*const c_char>,
}

// SAFETY: the addresses are of the strings, which belong to it and never change.
unsafe impl Send for CStrings {}

impl CStrings {
    fn new(strings: impl Iterator<Item = OsString>) -> io::Result<CStrings> {
        let strings: Vec<CString> =
            strings.map(|string| Ok(CString::new(string.into_vec())?)).collect::<io::Result<_>>()?;
        let addresses = strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect();
        Ok(CStrings { _strings: strings, addresses })
    }
}

/// All that a new process needs, prepared before the fork.
struct NewProcess {
    /// Program and arguments.
    arguments: CStrings,
    /// `None`: that of this process.
    environment: Option<CStrings>,
    account: Option<Account>,
    filter: Option<InputFilter>,
    tell_ready: PipeWriter,
    wait_go: PipeReader,
    /// The parent's end of the pipe that it waits on.
    go: RawFd,
}

impl NewProcess {
    /// Forks in the calling thread; returns when the new process has executed its program or has ended.
    fn start(self) -> io::Result<()> {
        let (mut failed, tell_failure) = io::pipe()?;
        let pid = startup::with_signals_blocked(|| {
            // SAFETY: the child only makes async-signal-safe calls, and never returns from `run`.
            match unsafe { libc::fork() } {
                0 => self.run(tell_failure.as_raw_fd()),
                pid => pid,
            }
        });
        let forked = if pid < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        // Closes the child's ends of the pipes.
        drop((self, tell_failure));
        forked?;
        let mut number = [0; 4];
        if failed.read_exact(&mut number).is_err() {
            return Ok(());
        }
        // SAFETY: waitpid(2) of the child, which has failed and ends.
        unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) };
        Err(io::Error::from_raw_os_error(i32::from_ne_bytes(number)))
    }

    /// The new process: waits, and executes its program; reports an error to its parent.
    fn run(&self, tell_failure: RawFd) -> ! {
        let error = self.execute();
        let number = error.raw_os_error().unwrap_or(libc::ECANCELED).to_ne_bytes();
        // SAFETY: a write of live bytes, and the end of this process without destructors. If the parent has ended, SIGPIPE
        // ends this process.
        unsafe {
            libc::write(tell_failure, number.as_ptr().cast(), number.len());
            libc::_exit(1)
        }
    }

    fn execute(&self) -> io::Error {
        // SAFETY: the variable of that name in every libc has this type.
        unsafe extern "C" {
            static mut environ: *const *const c_char;
        }
        restore(&[libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO]);
        // SAFETY: getpid(2) takes nothing.
        let pid = unsafe { libc::getpid() }.to_ne_bytes();
        let mut byte = [0u8];
        // SAFETY: live bytes and open descriptors. That of the parent is this process's copy: while it is open, the parent's
        // death would not end the wait.
        let is_released = unsafe {
            libc::write(self.tell_ready.as_raw_fd(), pid.as_ptr().cast(), pid.len())
                == pid.len().cast_signed()
                && libc::close(self.go) == 0
                && loop {
                    let length = libc::read(self.wait_go.as_raw_fd(), byte.as_mut_ptr().cast(), byte.len());
                    if length >= 0 || *libc::__errno_location() != libc::EINTR {
                        break length == 1;
                    }
                }
        };
        if !is_released {
            // The profiler gave up: the command is not to run.
            return io::Error::from_raw_os_error(libc::ECANCELED);
        }
        // As root, whose privileges it needs.
        if let Some(Err(error)) = self.filter.as_ref().map(InputFilter::install) {
            return error;
        }
        // Last: until `exec` the process has the profiler's memory and descriptors.
        if let Some(Err(error)) = self.account.as_ref().map(Account::become_user) {
            return error;
        }
        // SAFETY: lists of C strings that end with null. The program is looked up in the PATH of its environment.
        unsafe {
            if let Some(environment) = &self.environment {
                environ = environment.addresses.as_ptr();
            }
            libc::execvp(self.arguments.addresses[0], self.arguments.addresses.as_ptr());
        }
        io::Error::last_os_error()
    }
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
    /// Waits for the exit of an unreleased process.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A process that runs a program once it may, and the parent's ends of its pipes.
    fn new_process(program: &str) -> (NewProcess, PipeReader, PipeWriter) {
        let ((ready, tell_ready), (wait_go, go)) = (io::pipe().unwrap(), io::pipe().unwrap());
        let child = NewProcess {
            arguments: CStrings::new([program.into()].into_iter()).unwrap(),
            environment: None,
            account: None,
            filter: None,
            tell_ready,
            wait_go,
            go: go.as_raw_fd(),
        };
        (child, ready, go)
    }

    #[test]
    fn a_process_that_is_never_released_ends_without_running_its_command() {
        let (child, mut ready, go) = new_process("/bin/true");
        drop(go);
        let error = child.start().unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ECANCELED));
        let mut pid = [0; 4];
        ready.read_exact(&mut pid).unwrap();
        // Its end was awaited: it is no zombie.
        assert_eq!(sys::kill(pid_t::from_ne_bytes(pid), 0).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn the_error_of_exec_is_reported() {
        for (program, expected) in
            [("/bin/true", None), ("/no/such/program", Some(libc::ENOENT)), ("/", Some(libc::EACCES))]
        {
            let (child, _ready, mut go) = new_process(program);
            go.write_all(&[1]).unwrap();
            assert_eq!(child.start().err().and_then(|error| error.raw_os_error()), expected, "{program}");
        }
        let nul = CStrings::new(["a\0b".into()].into_iter());
        assert!(nul.is_err());
    }
}

//! Starting a command so that it is traced from its first instruction after `exec`.
//!
//! The new process waits on a pipe between `fork` and `exec` until it is seized. It is
//! started by a helper thread, because `Command::spawn` returns only after the `exec`
//! that the tracer has to let pass.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;
use std::thread::JoinHandle;

use libc::pid_t;

use super::sys;

/// What this process was started with and changes for itself: a command gets it as it was.
#[derive(Clone, Copy)]
struct Inheritance {
    mask: libc::sigset_t,
    files: Option<libc::rlimit>,
    /// Ctrl-C is ignored, as in what a script starts in the background.
    interrupt_ignored: bool,
}

impl Inheritance {
    /// For the calling thread; allocates nothing.
    fn restore(&self) {
        if let Some(files) = &self.files {
            sys::set_file_limit(files);
        }
        if self.interrupt_ignored {
            // Our handler is none after `exec`, but what was ignored would be so still.
            sys::ignore_interrupt();
        }
        sys::set_signal_mask(&self.mask);
    }
}

static INHERITANCE: OnceLock<Inheritance> = OnceLock::new();

/// The signal mask and the limit of open files that launched commands shall have; Ctrl-C is as it
/// is now.
pub(super) fn inherit(mask: libc::sigset_t, files: Option<libc::rlimit>) {
    let interrupt_ignored = sys::is_interrupt_ignored();
    let _ = INHERITANCE.set(Inheritance { mask, files, interrupt_ignored });
}

/// Starts a command that is not traced, as this process was started.
///
/// # Errors
/// When it could not be run.
pub(super) fn spawn(command: &mut Command) -> io::Result<std::process::Child> {
    if let Some(inheritance) = INHERITANCE.get().copied() {
        // SAFETY: between fork and exec the closure only makes the system calls sigprocmask,
        // sigaction and setrlimit; it allocates nothing and takes no lock (signal-safety(7)).
        unsafe {
            command.pre_exec(move || {
                inheritance.restore();
                Ok(())
            });
        }
    }
    command.spawn()
}

/// A process that waits to be let go to its `exec`.
pub(super) struct Held {
    /// Its process id.
    pub(super) pid: pid_t,
    /// There until it is let go.
    waits: Option<(PipeWriter, JoinHandle<io::Result<()>>)>,
}

/// Forks; the new process waits before `exec`.
///
/// # Errors
/// When no process could be made.
pub(super) fn hold(command: &[OsString]) -> io::Result<Held> {
    let (program, arguments) =
        command.split_first().ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    let (mut ready, tell_ready) = io::pipe()?;
    let (wait_go, go) = io::pipe()?;
    let mut command = Command::new(program);
    command.args(arguments);
    let go_fd = go.as_raw_fd();
    let inheritance = INHERITANCE.get().copied();
    // SAFETY: between fork and exec the closure only makes the system calls sigprocmask,
    // sigaction, setrlimit, write, close and read, on descriptors that it owns or that the parent keeps
    // open until then; it allocates nothing and takes no lock (signal-safety(7)).
    unsafe {
        let (mut tell_ready, mut wait_go) = (tell_ready, wait_go);
        command.pre_exec(move || {
            if let Some(inheritance) = inheritance {
                inheritance.restore();
            }
            announce_and_wait(&mut tell_ready, &mut wait_go, go_fd)
        });
    }
    let spawner =
        std::thread::Builder::new().name("spawn".to_owned()).spawn(move || command.spawn().map(drop))?;
    let mut pid = [0; 4];
    if ready.read_exact(&mut pid).is_err() {
        // The other ends are closed: fork itself failed, and the spawner knows why.
        return Err(joined(spawner).err().unwrap_or_else(|| io::ErrorKind::Other.into()));
    }
    Ok(Held { pid: pid_t::from_ne_bytes(pid), waits: Some((go, spawner)) })
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

fn joined(spawner: JoinHandle<io::Result<()>>) -> io::Result<()> {
    spawner.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
}

impl Held {
    /// Lets the process go on to its `exec`; the result of that is for [`Started::join`].
    pub(super) fn go(mut self) -> io::Result<Started> {
        let (mut go, spawner) = self.waits.take().ok_or(io::ErrorKind::BrokenPipe)?;
        go.write_all(&[1])?;
        Ok(Started(spawner))
    }
}

impl Drop for Held {
    /// Waits for the end of a process that is not let go: it tells its spawner that it could not run
    /// the command, and aborts with a message of its own if nobody is there any more.
    fn drop(&mut self) {
        if let Some((go, spawner)) = self.waits.take() {
            drop(go);
            let _ = joined(spawner);
        }
    }
}

/// A process on its way through `exec`.
pub(super) struct Started(JoinHandle<io::Result<()>>);

impl Started {
    /// Whether it is known how `exec` went, so that [`Started::join`] returns at once. The spawner
    /// waits for a process that could not run its command, and such a wait, by any thread of the
    /// tracer's process, takes its stop before its end as well (kernel/exit.c,
    /// `wait_consider_task`): the tracer may never see one.
    pub(super) fn is_known(&self) -> bool {
        self.0.is_finished()
    }

    /// Whether `exec` worked. To be called once the tracer has seen the exec, or the end
    /// of the process, or when it [is known](Started::is_known).
    ///
    /// # Errors
    /// What `exec` failed with.
    pub(super) fn join(self) -> io::Result<()> {
        joined(self.0)
    }
}

//! Starts a command that is traced from its first instruction after `exec`, and otherwise runs as if started
//! without the profiler.
//!
//! `Launch` is the command, `Account` the user that it runs as, `InputFilter` keeps one of another user from typing
//! into root's terminal.
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
use std::ffi::{CStr, CString, OsStr, OsString, c_char};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};

use libc::pid_t;

use super::sys;
use crate::error::{self, Error, ErrorKind};
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
    let filter = (account.is_some() && is_shared()).then(InputFilter::new);
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

// ---- The user that a launched command runs as, with the groups and environment of a login. Input: a user name
// or id. Output: ids, groups, variables.

/// Variables that a command inherits: those of the terminal and of the language. All others belong to the
/// caller of sudo.
const KEPT: [&str; 6] = ["TERM", "COLORTERM", "NO_COLOR", "LANG", "LANGUAGE", "TZ"];
/// Prefix of further inherited variables.
const KEPT_BEGIN: &[u8] = b"LC_";

/// Configuration of `PATH` for logins.
const LOGIN_DEFS: &str = "/etc/login.defs";
/// Default `PATH` (login(1)).
const PATH: &str = "/usr/local/bin:/usr/bin:/bin";
const PATH_OF_ROOT: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// First and largest buffer sizes, in bytes and in groups.
const TEXT_BYTES: usize = 4 << 10;
const TEXT_BYTES_MAX: usize = 1 << 20;
const GROUPS_MAX: usize = 65_536;

/// An entry of passwd(5), with its groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    name: OsString,
    uid: libc::uid_t,
    gid: libc::gid_t,
    groups: Vec<libc::gid_t>,
    home: OsString,
    shell: OsString,
}

/// The account of a user, by name or number, that a command is to run as.
///
/// # Errors
/// [`ErrorKind::Attach`]: this process is not root, or the user does not exist.
pub fn account(name: &OsStr) -> error::Result<Account> {
    let failed = |why: &str| Error::new(ErrorKind::Attach, format!("--as `{}`: {why}", name.display()));
    if sys::effective_uid() != 0 {
        return Err(failed("only root may run a command as another user; run stackprof by sudo"));
    }
    let number = || name.to_str()?.parse::<libc::uid_t>().ok();
    let found = by_name(name).or_else(|| by_number(number()?));
    found.ok_or_else(|| failed("there is no such user; `getent passwd` lists them"))
}

/// Whether this process is root.
#[must_use]
pub fn is_root() -> bool {
    sys::effective_uid() == 0
}

fn by_name(name: &OsStr) -> Option<Account> {
    let name = CString::new(name.as_bytes()).ok()?;
    look_up(|entry, text, len, found| {
        // SAFETY: a C string, and live buffers of the given sizes.
        unsafe { libc::getpwnam_r(name.as_ptr(), entry, text, len, found) }
    })
}

fn by_number(uid: libc::uid_t) -> Option<Account> {
    look_up(|entry, text, len, found| {
        // SAFETY: live buffers of the given sizes.
        unsafe { libc::getpwuid_r(uid, entry, text, len, found) }
    })
}

/// Calls getpwnam_r(3) or getpwuid_r(3) with as much memory as the entry takes.
fn look_up(
    call: impl Fn(*mut libc::passwd, *mut libc::c_char, usize, *mut *mut libc::passwd) -> libc::c_int,
) -> Option<Account> {
    let mut text: Vec<libc::c_char> = vec![0; TEXT_BYTES];
    loop {
        // SAFETY: passwd is plain data for which zeros are valid.
        let mut entry: libc::passwd = unsafe { std::mem::zeroed() };
        let mut found = std::ptr::null_mut();
        match call(&raw mut entry, text.as_mut_ptr(), text.len(), &raw mut found) {
            libc::ERANGE if text.len() < TEXT_BYTES_MAX => text.resize(text.len() * 4, 0),
            0 if !found.is_null() => {
                let string = |text: *const libc::c_char| {
                    // SAFETY: null, or one of the entry's strings, which point into the live `text`.
                    let text = (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) });
                    OsString::from_vec(text.map(|text| text.to_bytes().to_vec()).unwrap_or_default())
                };
                let or = |text: OsString, default: &str| {
                    if text.is_empty() { OsString::from(default) } else { text }
                };
                return Some(Account {
                    name: string(entry.pw_name),
                    uid: entry.pw_uid,
                    gid: entry.pw_gid,
                    groups: groups(entry.pw_name, entry.pw_gid),
                    home: or(string(entry.pw_dir), "/"),
                    shell: or(string(entry.pw_shell), "/bin/sh"),
                });
            }
            _ => return None,
        }
    }
}

/// All groups of a user, including the primary one.
fn groups(name: *const libc::c_char, gid: libc::gid_t) -> Vec<libc::gid_t> {
    let mut groups = vec![0; 64];
    loop {
        let mut count = libc::c_int::try_from(groups.len()).unwrap_or(libc::c_int::MAX);
        // SAFETY: `name` is the live C string of an entry, `groups` has room for `count` numbers.
        let result = unsafe { libc::getgrouplist(name, gid, groups.as_mut_ptr(), &raw mut count) };
        let count = usize::try_from(count).unwrap_or(0);
        if result != -1 {
            groups.truncate(count);
            return groups;
        }
        if groups.len() >= GROUPS_MAX {
            return vec![gid];
        }
        groups.resize(count.max(groups.len() * 2).min(GROUPS_MAX), 0);
    }
}

impl Account {
    /// The user's name.
    pub(super) fn name(&self) -> &OsStr {
        &self.name
    }

    /// The environment of a login, with the inherited variables.
    pub(super) fn environment(&self) -> Vec<(OsString, OsString)> {
        let is_kept =
            |name: &OsStr| KEPT.iter().any(|kept| name == *kept) || name.as_bytes().starts_with(KEPT_BEGIN);
        let mut variables: Vec<_> = std::env::vars_os().filter(|(name, _)| is_kept(name)).collect();
        let definitions = std::fs::read(LOGIN_DEFS).unwrap_or_default();
        for (name, value) in [
            ("HOME", &self.home),
            ("USER", &self.name),
            ("LOGNAME", &self.name),
            ("SHELL", &self.shell),
            ("PATH", &path(&String::from_utf8_lossy(&definitions), self.uid == 0).into()),
        ] {
            variables.push((name.into(), value.clone()));
        }
        variables
    }

    /// Makes the calling process one of this user, irrevocably. For a new process between fork and `exec`:
    /// only makes system calls, does not allocate.
    ///
    /// # Errors
    /// Errors of the kernel; the process must then not continue.
    pub(super) fn become_user(&self) -> io::Result<()> {
        let Account { uid, gid, groups, .. } = self;
        let result = |code: libc::c_long| if code == -1 { Err(io::Error::last_os_error()) } else { Ok(()) };
        // The kernel's calls: the C library's affect all threads of a process, of which there is one here,
        // and may take locks. SAFETY: `groups` is live and its length is given; all others are numbers.
        unsafe {
            result(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
            result(libc::syscall(libc::SYS_setresgid, *gid, *gid, *gid))?;
            if *uid != 0 {
                // Ambient capabilities survive `exec` (Linux 4.3); earlier kernels have none.
                libc::prctl(
                    libc::PR_CAP_AMBIENT,
                    libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong,
                    0 as libc::c_ulong,
                    0 as libc::c_ulong,
                    0 as libc::c_ulong,
                );
            }
            result(libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid))
        }
    }
}

/// `PATH` of a login in these definitions (login.defs(5)).
fn path(definitions: &str, of_root: bool) -> String {
    let (key, default) = if of_root { ("ENV_SUPATH", PATH_OF_ROOT) } else { ("ENV_PATH", PATH) };
    let value = definitions.lines().find_map(|line| {
        let (name, value) = line.trim_start().split_once(char::is_whitespace)?;
        (name == key).then(|| value.trim().trim_matches('"'))
    });
    let value = value.map(|value| value.strip_prefix("PATH=").unwrap_or(value));
    value.filter(|value| !value.is_empty()).unwrap_or(default).to_owned()
}

// ---- A terminal that a command of another user shares with root: the command must not type into it.
//
// TIOCSTI puts a byte into the input of a process's own terminal, and TIOCLINUX pastes into a console; the shell of
// the user who called stackprof would run what was typed. A seccomp filter refuses both for the command and its
// children. Its other calls, its session and its job control are unchanged, which a terminal of its own would change.

/// Architecture and number of each call of `ioctl` that this processor's kernel serves (linux/audit.h).
#[cfg(target_arch = "x86_64")]
const IOCTLS: [(u32, u32); 4] = [
    (0xc000_003e, 16),
    // x32: the number that it lists, and the one that old kernels serve, too.
    (0xc000_003e, 0x4000_0000 | 514),
    (0xc000_003e, 0x4000_0000 | 16),
    (0x4000_0003, 54),
];
#[cfg(target_arch = "aarch64")]
const IOCTLS: [(u32, u32); 2] = [(0xc000_00b7, 29), (0x4000_0028, 54)];

/// asm-generic/ioctls.h. The kernel looks at 32 bits only.
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541c;

/// Offsets in `struct seccomp_data`; of the low half of the second argument.
const NUMBER: u32 = 0;
const ARCHITECTURE: u32 = 4;
const REQUEST: u32 = 24;

/// Whether a command of this process has its terminal.
pub(super) fn is_shared() -> bool {
    let has_controlling = || std::fs::File::open("/dev/tty").is_ok();
    // SAFETY: isatty(3) takes a number.
    let is_terminal = |stream: i32| unsafe { libc::isatty(stream) == 1 };
    [0, 1, 2].into_iter().any(is_terminal) || has_controlling()
}

/// The filter's program.
pub(super) struct InputFilter(Vec<libc::sock_filter>);

impl InputFilter {
    pub(super) fn new() -> InputFilter {
        let load = |offset| instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, offset);
        let equal =
            |value, then, or| instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, then, or, value);
        let answer = |value| instruction(libc::BPF_RET | libc::BPF_K, 0, 0, value);
        let mut program = Vec::new();
        for (index, (architecture, number)) in IOCTLS.into_iter().enumerate() {
            // From the last instruction of this block behind the answer that follows all blocks.
            let to_request = ((IOCTLS.len() - 1 - index) * 4 + 1) as u8;
            program.extend([load(ARCHITECTURE), equal(architecture, 0, 2), load(NUMBER)]);
            program.push(equal(number, to_request, 0));
        }
        program.push(answer(libc::SECCOMP_RET_ALLOW));
        program.extend([load(REQUEST), equal(TIOCSTI, 1, 0), equal(TIOCLINUX, 0, 1)]);
        program.push(answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
        program.push(answer(libc::SECCOMP_RET_ALLOW));
        InputFilter(program)
    }

    /// Installs the filter in the calling process, for good. For a new process between fork and `exec`: only makes
    /// system calls, does not allocate. Without CAP_SYS_ADMIN the process then gains no privileges by `exec`.
    ///
    /// # Errors
    /// The kernel has no such filters; the process must then not continue.
    pub(super) fn install(&self) -> io::Result<()> {
        let program =
            libc::sock_fprog { len: self.0.len() as libc::c_ushort, filter: self.0.as_ptr().cast_mut() };
        let set = |option: libc::c_int, value: libc::c_ulong, pointer: *const libc::sock_fprog| {
            // SAFETY: prctl(2) with numbers and, for PR_SET_SECCOMP, a pointer to a live program of the stated length,
            // which the kernel copies.
            unsafe { libc::prctl(option, value, pointer, 0 as libc::c_ulong, 0 as libc::c_ulong) }
        };
        let filter =
            || set(libc::PR_SET_SECCOMP, libc::c_ulong::from(libc::SECCOMP_MODE_FILTER), &raw const program);
        if filter() == 0 {
            return Ok(());
        }
        if set(libc::PR_SET_NO_NEW_PRIVS, 1, std::ptr::null()) == 0 && filter() == 0 {
            return Ok(());
        }
        Err(io::Error::last_os_error())
    }
}

fn instruction(code: u32, then: u8, or: u8, value: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: then, jf: or, k: value }
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

#[cfg(test)]
mod account_tests {
    use super::*;

    #[test]
    fn path_comes_from_login_defs() {
        let definitions = "# ENV_PATH x\nENV_SUPATH\tPATH=/sbin:/bin\n  ENV_PATH  PATH=/usr/bin:/games \n";
        assert_eq!(path(definitions, false), "/usr/bin:/games");
        assert_eq!(path(definitions, true), "/sbin:/bin");
        assert_eq!(path("ENV_PATH /a:/b", false), "/a:/b");
        assert_eq!(path("ENV_PATH \nENV_PATHS x", false), PATH);
        assert_eq!(path("", true), PATH_OF_ROOT);
    }

    #[test]
    fn finds_users_by_name_and_number() {
        let root = by_name("root".as_ref());
        let found = root.as_ref().map(|root| (root.uid, root.gid, root.groups.contains(&0)));
        assert_eq!(found, Some((0, 0, true)));
        assert_eq!(by_number(0), root);
        assert_eq!(by_name("no such user".as_ref()), None);
        assert_eq!(by_name("nul\0".as_ref()), None);
        assert_eq!(by_number(4_000_000_000), None);
    }

    #[test]
    fn the_environment_is_that_of_a_login() {
        let account = Account {
            name: "eve".into(),
            uid: 1000,
            gid: 1000,
            groups: vec![1000],
            home: "/home/eve".into(),
            shell: "/bin/zsh".into(),
        };
        let variables = account.environment();
        let value =
            |name: &str| variables.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        for (name, expected) in
            [("HOME", "/home/eve"), ("USER", "eve"), ("LOGNAME", "eve"), ("SHELL", "/bin/zsh")]
        {
            assert_eq!(value(name), Some(expected.into()), "{name}");
        }
        assert!(value("PATH").is_some_and(|path| !path.is_empty()));
        // Set by cargo for this test.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some() && value("CARGO_MANIFEST_DIR").is_none());
    }
}

#[cfg(test)]
mod terminal_tests {
    use super::*;

    /// Runs the program on a call.
    fn answer(architecture: u32, number: u32, request: u64) -> u32 {
        let InputFilter(program) = InputFilter::new();
        let (mut at, mut value) = (0, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            match u32::from(code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    value = match k {
                        NUMBER => number,
                        ARCHITECTURE => architecture,
                        REQUEST => request as u32,
                        other => unreachable!("{other}"),
                    };
                }
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    at += usize::from(if value == k { jt } else { jf });
                }
                code if code == libc::BPF_RET | libc::BPF_K => return k,
                other => unreachable!("{other}"),
            }
        }
    }

    #[test]
    fn only_calls_that_type_are_refused() {
        let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
        for (architecture, number) in IOCTLS {
            for (request, expected) in [
                (u64::from(TIOCSTI), refused),
                (u64::from(TIOCLINUX), refused),
                // The upper half is ignored by the kernel.
                (0xffff_ffff_0000_0000 | u64::from(TIOCSTI), refused),
                (0x5401, libc::SECCOMP_RET_ALLOW),
                (0x5413, libc::SECCOMP_RET_ALLOW),
            ] {
                assert_eq!(answer(architecture, number, request), expected, "{number:x} {request:x}");
            }
            let other = answer(architecture, number + 1, TIOCSTI.into());
            assert_eq!(other, libc::SECCOMP_RET_ALLOW);
        }
        assert_eq!(answer(1, 16, TIOCSTI.into()), libc::SECCOMP_RET_ALLOW);
    }
}

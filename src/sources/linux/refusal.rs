//! Explains why a process cannot be attached or sampled, and what to do about it.
//!
//! Input: a pid and the error. Output: part of a message. The kernel returns EPERM for a dozen reasons; the user
//! needs the actual one and the command that changes it: `refusal/causes.rs` observes the facts and has the table
//! of causes. Messages about commands that cannot be run, and `why_not_running` for processes that use no CPU time,
//! are here, too.

mod causes;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use libc::pid_t;

use super::launch::Launch;
use super::{Source, cgroup, images, proc, sys};
use crate::addr::Avma;
use crate::arch::Arch;
use crate::error::{self, Error, ErrorKind, io_text};
use crate::sources::target_file::{Copying, FileLocation, Patience, open_linked};
use crate::sources::{Process, proc_file};
use causes::Facts;

pub(super) use causes::{Call, Cause, EventScope, SYS_PTRACE, capabilities_of};

/// Why a call was refused.
pub(super) fn cause(call: Call, errno: i32, pid: Option<pid_t>, is_launched: bool) -> Cause {
    causes::cause(&Facts::now(call, errno, pid.map(|pid| (pid, is_launched))))
}

/// Status of a process that is readable without attaching.
struct Status {
    name: String,
    tgid: pid_t,
    tracer: pid_t,
    has_memory: bool,
    is_of_kernel: bool,
}

fn status_of(pid: pid_t) -> Option<Status> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let value = |key| proc::status_value(&status, key);
    let number = |key| value(key).and_then(|value| value.split_whitespace().next()?.parse().ok());
    Some(Status {
        name: value("Name")?.to_owned(),
        tgid: number("Tgid")?,
        tracer: number("TracerPid").unwrap_or(0),
        has_memory: value("VmSize").is_some(),
        is_of_kernel: proc::is_of_kernel(pid)?,
    })
}

/// Refuses processes that no user can attach to: missing, a thread, a zombie, a kernel thread, ourselves.
///
/// # Errors
/// One line for a person.
pub(super) fn check(pid: pid_t) -> Result<(), Error> {
    check_process(pid)?;
    let Some(Status { name, tracer, .. }) = status_of(pid).filter(|status| status.tracer != 0) else {
        return Ok(());
    };
    if is_own_thread(tracer) {
        return Ok(());
    }
    let by = fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
    let by = by.trim();
    let by = if by.is_empty() { String::new() } else { format!(" ({by})") };
    Err(refuse(pid, Some(&name), &format!("pid {tracer}{by} already traces it; end that one first")))
}

/// Whether a thread of this process traces a process.
pub(super) fn is_traced_by_us(pid: pid_t) -> bool {
    let tracer = status_of(pid).map_or(0, |status| status.tracer);
    is_own_thread(tracer)
}

/// Whether a tid belongs to this process. Needs no file descriptor.
fn is_own_thread(tid: pid_t) -> bool {
    tid != 0 && fs::metadata(format!("/proc/self/task/{tid}")).is_ok()
}

/// Least number of files that a recording needs to open.
const OPEN_FILES_MIN: usize = 16;

/// Refuses to begin if too few files may be opened to read a process completely.
///
/// # Errors
/// One line for a person.
pub(super) fn check_open_files(source: &Source) -> Result<(), Error> {
    let opened: io::Result<Vec<fs::File>> =
        (0..OPEN_FILES_MIN).map(|_| fs::File::open("/proc/self")).collect();
    let why = match opened.map_err(|error| error.raw_os_error()) {
        Err(Some(libc::EMFILE)) => "the limit of open files is too low; raise it: ulimit -n 1024",
        Err(Some(libc::ENFILE)) => {
            "the system has too many open files; raise it: sudo sysctl fs.file-max=1000000"
        }
        _ => return Ok(()),
    };
    let what = match source {
        Source::Attach(pid) => format!("cannot attach to pid {pid}"),
        Source::Launch(command) => {
            let program = command.words.first().map(|program| program.display().to_string());
            format!("cannot run `{}`", program.unwrap_or_default())
        }
        Source::Several(_) => "cannot attach".to_owned(),
    };
    Err(Error::new(ErrorKind::Attach, format!("{what}: {why}")))
}

/// Whether a program gains rights at its start, by its owner, group or capabilities, that this process lacks:
/// the kernel shows such a program only to processes with these rights, and grants none while it is traced.
#[must_use]
pub fn gains_rights(program: &OsStr) -> bool {
    if has_capability(SYS_PTRACE) {
        return false;
    }
    let Some(found) = find_program(program) else { return false };
    let Ok(metadata) = fs::metadata(&found) else { return false };
    let by_owner = metadata.mode() & libc::S_ISUID != 0 && metadata.uid() != sys::effective_uid();
    let by_group = metadata.mode() & libc::S_ISGID != 0 && metadata.mode() & libc::S_IXGRP != 0;
    by_owner || by_group || sys::has_file_capabilities(&found)
}

/// The file of a program, searched like execvp(3).
pub(super) fn find_program(program: &OsStr) -> Option<PathBuf> {
    let path = Path::new(program);
    if program.as_bytes().contains(&b'/') {
        return Some(path.to_owned()).filter(|path| path.is_file());
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).map(|folder| folder.join(path)).find(|path| path.is_file())
}

/// Whether this process holds a capability.
fn has_capability(number: u32) -> bool {
    causes::set(&fs::read_to_string("/proc/self/status").unwrap_or_default(), "CapEff").has(number)
}

/// Refuses processes that cannot be attached to, except those that another process may trace.
///
/// # Errors
/// One line for a person.
pub(super) fn check_process(pid: pid_t) -> Result<(), Error> {
    let Some(facts) = status_of(pid) else {
        return Err(refuse(pid, None, "no such process; `ps -e` lists those that run"));
    };
    let name = Some(facts.name.as_str());
    if facts.tgid != pid {
        let tgid = facts.tgid;
        return Err(refuse(pid, name, &format!("it is a thread of process {tgid}; use --pid {tgid}")));
    }
    if pid as u32 == std::process::id() {
        return Err(refuse(pid, name, "a profiler cannot stop itself; use another process's pid"));
    }
    let living = proc::living_thread(pid);
    // An exiting process releases its memory first.
    let is_ending = living == Some(pid) && !facts.has_memory && !facts.is_of_kernel;
    if is_ending || living.is_none() {
        return Err(refuse(
            pid,
            name,
            "it has exited and only waits for its parent to notice (a zombie); \
             start the program under stackprof: stackprof -- COMMAND",
        ));
    }
    if facts.is_of_kernel {
        return Err(refuse(pid, name, "it is a kernel thread, which has no program to profile; try `perf`"));
    }
    match elf_class_and_machine(living.unwrap_or(pid)) {
        Some((1, NARROW_MACHINE)) => Ok(()),
        Some((class, _)) if class != 2 => Err(refuse(pid, name, NARROW)),
        Some((_, machine)) if machine != NATIVE_MACHINE => Err(refuse(
            pid,
            name,
            &format!(
                "its program is for another processor (ELF machine {machine}) and runs under an emulator"
            ),
        )),
        _ => Ok(()),
    }
}

#[cfg(target_arch = "x86_64")]
const NATIVE_MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const NATIVE_MACHINE: u16 = 183;

/// e_machine of supported 32-bit programs: i386, and Arm.
#[cfg(target_arch = "x86_64")]
const NARROW_MACHINE: u16 = 3;
#[cfg(target_arch = "aarch64")]
const NARROW_MACHINE: u16 = 40;

#[cfg(target_arch = "x86_64")]
const NARROW: &str =
    "unsupported 32-bit program: only those of i386 are supported beside 64-bit ones; try `perf`";
#[cfg(target_arch = "aarch64")]
const NARROW: &str =
    "unsupported 32-bit program: only those of Arm are supported beside 64-bit ones; try `perf`";

/// EI_CLASS and e_machine of the program, if its file may be read.
fn elf_class_and_machine(pid: pid_t) -> Option<(u8, u16)> {
    let link = format!("/proc/{pid}/exe");
    let read = move |copying: &Copying| open_linked(pid, &link, copying)?.head::<20>();
    let head = Patience::default().wait_for(FileLocation::of("/proc/exe"), read).ok()?;
    head.starts_with(b"\x7fELF").then(|| (head[4], u16::from_le_bytes([head[18], head[19]])))
}

/// The error for a PTRACE_SEIZE that failed with `error`.
pub(super) fn explain(pid: pid_t, error: &std::io::Error) -> Error {
    // Then nothing more can be found out.
    if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE)) {
        return refuse(pid, None, &format!("{}; raise `ulimit -n`", io_text(error)));
    }
    // It may have become a zombie or been traced by another since the check.
    if let Err(refused) = check(pid) {
        return refused;
    }
    let name = status_of(pid).map(|status| status.name);
    refuse(pid, name.as_deref(), &why(Call::Trace, error, pid))
}

fn why(call: Call, error: &io::Error, pid: pid_t) -> String {
    match error.raw_os_error() {
        Some(errno @ (libc::EPERM | libc::EACCES | libc::ENOSYS)) => {
            cause(call, errno, Some(pid), false).to_string()
        }
        _ => io_text(error),
    }
}

/// The error for a command that may not be traced: PTRACE_SEIZE failed with `error`, and the process that would have
/// become the command ends.
pub(super) fn explain_launched(command: &Launch, pid: pid_t, error: &io::Error) -> Error {
    let why = match error.raw_os_error() {
        Some(errno @ (libc::EPERM | libc::EACCES | libc::ENOSYS)) => {
            cause(Call::Trace, errno, Some(pid), true).to_string()
        }
        _ => io_text(error),
    };
    Error::new(ErrorKind::Attach, format!("cannot trace {}: {why}", program(command)))
}

/// Refuses what cannot be recorded by ptrace, which a filter forbids. `no_samples`: why not by the kernel's samples,
/// either.
///
/// # Errors
/// One line for a person.
pub(super) fn check_trace(source: &Source, no_samples: Option<&String>) -> Result<(), Error> {
    let facts = Facts::now(Call::Trace, libc::EPERM, None);
    if facts.reaches_kernel() {
        return Ok(());
    }
    let what = match source {
        Source::Attach(pid) => format!("cannot attach to pid {pid}"),
        Source::Launch(command) => format!("cannot record {}", program(command)),
        Source::Several(_) => "cannot attach".to_owned(),
    };
    let why = causes::cause(&facts);
    let either = no_samples.map(|why| format!("; nor does the kernel sample it: {why}")).unwrap_or_default();
    Err(Error::new(ErrorKind::Attach, format!("{what}: {why}{either}")))
}

/// Reads what names need of a process: its mappings, and the way to its files, which newer kernels show to fewer
/// (`may_access_mm` in kernel/fork.c).
///
/// # Errors
/// The system's error.
pub(super) fn try_reading(pid: pid_t) -> io::Result<()> {
    // The first thread may have exited before the others.
    let living = proc::living_thread(pid).unwrap_or(pid);
    proc_file::head(format!("/proc/{living}/maps"), 1)?;
    fs::read_link(format!("/proc/{living}/root")).map(drop)
}

/// Checks that a process can be read with the rights that are left: mappings and files, and with `by_calls` its memory
/// by process_vm_readv(2). One that has ended can.
///
/// # Errors
/// One line for a person.
pub(super) fn check_readable(pid: pid_t, is_launched: bool, by_calls: bool) -> Result<(), Error> {
    let files = try_reading(pid).err();
    let memory = || {
        // Nothing is mapped at 0: EFAULT says that it could be read.
        let read = sys::read_memory(pid, 0, &mut [0]);
        read.err().filter(|_| by_calls)
    };
    let refused = |call, error: Option<io::Error>| match error?.raw_os_error() {
        Some(errno @ (libc::EPERM | libc::EACCES | libc::ENOSYS)) => Some((call, errno)),
        _ => None,
    };
    let refused = refused(Call::ReadProc, files).or_else(|| refused(Call::ReadMemory, memory()));
    let Some((call, errno)) = refused else { return Ok(()) };
    let Some(Status { name, .. }) = status_of(pid) else { return Ok(()) };
    let why = cause(call, errno, Some(pid), is_launched);
    let text = format!("cannot read pid {pid} ({name}), so no function would have a name: {why}");
    Err(Error::new(ErrorKind::Attach, text))
}

fn refuse(pid: pid_t, name: Option<&str>, why: &str) -> Error {
    let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
    Error::new(ErrorKind::Attach, format!("cannot attach to pid {pid}{name}: {why}"))
}

// ---- Facts about a process before it is sampled, and messages for a command that cannot be run.

/// Most bytes kept of a command line.
const COMMAND_BYTES_MAX: usize = 64 << 10;

#[cfg(target_arch = "x86_64")]
const ARCH: Arch = Arch::X86_64;
#[cfg(target_arch = "aarch64")]
const ARCH: Arch = Arch::Aarch64;

/// Address bits of a code pointer: 47 on x86_64; on aarch64 pointers may be signed (PAC) above the 48 bits of
/// the usual user address space.
#[cfg(target_arch = "x86_64")]
const ADDRESS_MASK: u64 = u64::MAX;
#[cfg(target_arch = "aarch64")]
const ADDRESS_MASK: u64 = (1 << 48) - 1;

/// Converts a process number to a `pid_t`.
///
/// # Errors
/// No process can have this number.
pub(super) fn process_id(pid: u32) -> error::Result<pid_t> {
    pid_t::try_from(pid).map_err(|_| {
        Error::new(
            ErrorKind::Attach,
            format!("cannot attach to pid {pid}: no process has such a number; `ps -e` lists those that run"),
        )
    })
}

/// The program of a command, quoted, and the user to run it, for messages.
pub(super) fn program(command: &Launch) -> String {
    let program = command.words.first().map(|program| program.to_string_lossy()).unwrap_or_default();
    let user = command.account.as_ref().map(|account| format!(" as {}", account.name().display()));
    format!("`{program}`{}", user.unwrap_or_default())
}

/// Error for a command that could not be started.
pub(super) fn cannot_run(command: &Launch, error: &std::io::Error) -> Error {
    let path = command.words.first().map(Path::new).filter(|path| path.components().count() > 1);
    let is = |check: fn(&Path) -> bool| path.is_some_and(check);
    let next = match error.raw_os_error() {
        Some(libc::ENOENT) if is(Path::exists) => {
            "; the file is there, but not its interpreter: see its first line, or its dynamic linker (file(1))"
        }
        Some(libc::EACCES) if is(Path::is_dir) => "; it is a directory: name a program in it",
        Some(libc::ENOENT) => "; check the name or give a path",
        Some(libc::EPERM) if command.account.is_some() => "; root here may lack CAP_SETUID or CAP_SETGID",
        Some(libc::EACCES) if command.account.is_some() => {
            "; that user must be able to run it and to enter its folder"
        }
        Some(libc::EACCES) => "; chmod +x makes it executable",
        Some(libc::EMFILE | libc::ENFILE) => "; raise `ulimit -n`",
        _ => "",
    };
    let program = program(command);
    Error::new(ErrorKind::Attach, format!("cannot run {program}: {}{next}", io_text(error)))
}

/// The placeholder for several processes.
pub(super) fn of_several(count: usize) -> Process {
    let own = describe(std::process::id().cast_signed());
    Process { pid: 0, name: format!("{count} processes"), command: String::new(), ..own }
}

/// The processor of a program with this initial stack pointer.
pub(super) fn arch(start_stack: Option<Avma>) -> Arch {
    match start_stack.is_some_and(images::is_of_32_bits) {
        true if ARCH == Arch::X86_64 => Arch::X86,
        true => Arch::Arm,
        false => ARCH,
    }
}

/// Description of a traced process.
pub(super) fn describe(pid: pid_t) -> Process {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let living = proc::living_thread(pid).unwrap_or(pid);
    let command = proc_file::head(format!("/proc/{living}/cmdline"), COMMAND_BYTES_MAX).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    Process {
        pid: pid.unsigned_abs(),
        name: String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned(),
        command: command.trim_end().to_owned(),
        arch: arch(proc::start_stack(pid)),
        backend: "ptrace",
        backend_why: String::new(),
        cpus: sys::cpus_of(pid),
        address_mask: ADDRESS_MASK,
        fp_always: false,
        cfi: true,
        stops_interrupt_syscalls: true,
        stops_hold_all: false,
    }
}

// ---- Explains why a process uses no CPU time, and how to continue it.
//
// Input: a process. Output: part of a message. Sources: /proc and the control group.

/// More CPU time than a thread needs to stop again.
const STOPPED_CPU_NS_MAX: u64 = 1_000_000;
/// Longest wait for a thread that gets no CPU.
const CPU_WAIT: Duration = Duration::from_secs(10);

/// The reason why no thread of a process can run, and the next step; `None` if there is none known.
#[must_use]
pub fn why_not_running(pid: u32) -> Option<String> {
    let pid = pid_t::try_from(pid).ok()?;
    let stat = |tid: pid_t| fs::read(format!("/proc/{pid}/task/{tid}/stat")).ok();
    let states = proc::list(pid).ok()?.into_iter().filter_map(|tid| proc::stat_state(&stat(tid)?));
    // The first thread may have exited before the others.
    let states: Vec<u8> = states.filter(|state| !matches!(state, b'Z' | b'X')).collect();
    let all = |of: &[u8]| !states.is_empty() && states.iter().all(|state| of.contains(state));
    if all(b"T") {
        return Some(format!("it is stopped by job control; let it run: kill -CONT {pid}"));
    }
    if all(b"tT") {
        let status = fs::read(format!("/proc/{pid}/status")).unwrap_or_default();
        let status = String::from_utf8_lossy(&status);
        let tracer: pid_t = proc::status_value(&status, "TracerPid")?.parse().ok()?;
        let name = proc::name(tracer, tracer).map(|name| format!(" ({name})")).unwrap_or_default();
        return Some(format!("pid {tracer}{name} traces it and has stopped it; continue it there"));
    }
    if let Some(why) = why_frozen(pid) {
        return Some(why);
    }
    all(b"D").then(|| {
        "it waits in the kernel where no signal wakes it (state D), mostly for a disk or a file system"
            .to_owned()
    })
}

/// [`why_not_running`] for a process that was just released: a stopped thread runs once more to stop again,
/// possibly late on a busy machine. A running thread ends the wait by its CPU time.
#[must_use]
pub fn why_still_not_running(pid: u32) -> Option<String> {
    let tids = proc::list(pid_t::try_from(pid).ok()?).ok()?;
    let read = |tid: &pid_t, name: &str| fs::read(format!("/proc/{pid}/task/{tid}/{name}"));
    let is_ready = |tid: &pid_t| read(tid, "stat").is_ok_and(|stat| proc::stat_state(&stat) == Some(b'R'));
    let used_ns = |tid: &pid_t| Some(proc::parse_schedstat(&read(tid, "schedstat").ok()?)?.cpu_ns);
    let begun_ns: Vec<Option<u64>> = tids.iter().map(used_ns).collect();
    let about_to_stop = |(tid, begun_ns): (&pid_t, &Option<u64>)| {
        let used_ns = begun_ns.and_then(|begun_ns| used_ns(tid)?.checked_sub(begun_ns));
        is_ready(tid) && used_ns.is_some_and(|used_ns| used_ns < STOPPED_CPU_NS_MAX)
    };
    let begun = Instant::now();
    while begun.elapsed() < CPU_WAIT && tids.iter().zip(&begun_ns).any(about_to_stop) {
        std::thread::sleep(Duration::from_millis(1));
    }
    why_not_running(pid)
}

/// The frozen control group, and the next step; `None` if the process may run.
#[must_use]
pub fn why_it_is_frozen(pid: u32) -> Option<String> {
    why_frozen(pid_t::try_from(pid).ok()?)
}

fn why_frozen(pid: pid_t) -> Option<String> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    cgroup::memberships(&groups)
        .find_map(|(controllers, path)| frozen_group(Path::new(cgroup::MOUNTED), controllers, path))
}

/// The next step for the frozen group at `path` or above.
fn frozen_group(mounted: &Path, controllers: &str, path: &str) -> Option<String> {
    // Version 2 has one hierarchy, version 1 one for the freezer.
    let (root, file, frozen, thawed) = match controllers {
        "" => (mounted.to_owned(), "cgroup.freeze", "1", "0"),
        "freezer" => (mounted.join("freezer"), "freezer.state", "FROZEN", "THAWED"),
        _ => return None,
    };
    let groups = Path::new(path).ancestors().filter_map(|group| group.strip_prefix("/").ok());
    groups.map(|group| root.join(group)).find_map(|group| {
        let state = fs::read_to_string(group.join(file)).ok()?;
        let group = group.display();
        (state.trim() == frozen)
            .then(|| format!("its control group is frozen; let it run: echo {thawed} > {group}/{file}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unattachable_processes_are_named() {
        let own = std::process::id() as pid_t;
        let text = |pid| check(pid).map_or_else(|error| error.to_string(), |()| "attached".to_owned());
        assert!(text(own).contains("cannot stop itself"), "{}", text(own));
        assert!(text(4_194_305).contains("no such process"), "{}", text(4_194_305));
        let thread = std::thread::spawn(move || {
            let tid = fs::read_link("/proc/thread-self").ok()?;
            let tid: pid_t = tid.file_name()?.to_str()?.parse().ok()?;
            check(tid).err().map(|error| error.to_string())
        });
        let said = thread.join().ok().flatten().unwrap_or_default();
        assert!(said.contains(&format!("use --pid {own}")), "{said}");
    }
}

#[cfg(test)]
mod not_running_tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn frozen_groups_and_parents_are_found_in_both_versions() {
        let mounted = tempfile::TempDir::new().unwrap();
        let write = |file: &str, text: &str| {
            let file = mounted.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        write("a/cgroup.freeze", "1\n");
        write("a/b/cgroup.freeze", "0\n");
        write("c/cgroup.freeze", "0\n");
        write("freezer/d/freezer.state", "FROZEN\n");
        let found = |controllers, path| frozen_group(mounted.path(), controllers, path);
        let said = found("", "/a/b").unwrap();
        assert!(said.starts_with("its control group is frozen; let it run: echo 0 > /"), "{said}");
        assert!(said.ends_with("/a/cgroup.freeze"), "{said}");
        assert_eq!((found("", "/c"), found("memory", "/a/b"), found("", "/")), (None, None, None));
        let said = found("freezer", "/d").unwrap();
        assert!(said.contains("echo THAWED > ") && said.ends_with("/freezer/d/freezer.state"), "{said}");
    }

    #[test]
    fn a_running_process_has_no_reason() {
        assert_eq!(why_not_running(std::process::id()), None);
        assert_eq!(why_still_not_running(std::process::id()), None);
        assert_eq!(why_not_running(u32::MAX).or_else(|| why_still_not_running(u32::MAX)), None);
    }
}

//! Explains why a process cannot be attached, by /proc, and what to do about it.
//!
//! Input: a pid and the error. Output: part of a message. The kernel returns EPERM for a dozen reasons
//! (ptrace(2), "Ptrace access mode checking"); the user needs the actual one and the command that changes it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use libc::pid_t;

use super::{Source, proc, sys, threads};
use crate::error::{Error, ErrorKind, io_text};
use crate::sources::target_file::{Copying, FileLocation, Patience, open_linked};

/// CAP_SYS_PTRACE of capabilities(7).
const CAP_SYS_PTRACE: u32 = 19;

/// Facts that are readable without attaching.
struct Facts {
    name: String,
    tgid: pid_t,
    tracer: pid_t,
    uid: u32,
    has_memory: bool,
    is_of_kernel: bool,
}

fn facts(pid: pid_t) -> Option<Facts> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let value = |key| proc::status_value(&status, key);
    let number = |key| value(key).and_then(|value| value.split_whitespace().next()?.parse().ok());
    Some(Facts {
        name: value("Name")?.to_owned(),
        tgid: number("Tgid")?,
        tracer: number("TracerPid").unwrap_or(0),
        uid: value("Uid").and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok())?,
        has_memory: value("VmSize").is_some(),
        is_of_kernel: fs::read(format!("/proc/{pid}/stat"))
            .ok()
            .and_then(|stat| proc::stat_is_of_kernel(&stat))?,
    })
}

/// Refuses processes that no user can attach to: missing, a thread, a zombie, a kernel thread, ourselves.
///
/// # Errors
/// One line for a person.
pub(super) fn check(pid: pid_t) -> Result<(), Error> {
    check_process(pid)?;
    let Some(Facts { name, tracer, .. }) = facts(pid).filter(|facts| facts.tracer != 0) else {
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
    let tracer = facts(pid).map_or(0, |facts| facts.tracer);
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
    if has_capability(CAP_SYS_PTRACE) {
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
    let own = fs::read_to_string("/proc/self/status").unwrap_or_default();
    proc::status_value(&own, "CapEff")
        .and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .is_some_and(|effective| effective >> number & 1 == 1)
}

/// Refuses processes that cannot be attached to, except those that another process may trace.
///
/// # Errors
/// One line for a person.
pub(super) fn check_process(pid: pid_t) -> Result<(), Error> {
    let Some(facts) = facts(pid) else {
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
    let living = threads::living_thread(pid);
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
    let name = facts(pid).map(|facts| facts.name);
    let name = name.as_deref();
    if error.raw_os_error() != Some(libc::EPERM) {
        return refuse(pid, name, &io_text(error));
    }
    let capable = has_capability(CAP_SYS_PTRACE);
    let yama = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let uid = sys::effective_uid();
    let why = match (yama.trim(), uid) {
        ("3", _) => "kernel.yama.ptrace_scope is 3: nothing may attach until the next boot; \
                     start the program under stackprof instead: stackprof -- COMMAND"
            .to_owned(),
        (_, 0) if !capable => "root here lacks CAP_SYS_PTRACE, as in a container started without it; \
                               start the container with --cap-add=SYS_PTRACE"
            .to_owned(),
        ("2", _) if !capable => {
            format!("kernel.yama.ptrace_scope is 2: only root may attach; run: sudo stackprof --pid {pid}")
        }
        _ if !capable && facts(pid).is_some_and(|facts| facts.uid != uid) => {
            let owner = facts(pid).map_or(0, |facts| facts.uid);
            format!("it belongs to user {owner} and you are user {uid}; run: sudo stackprof --pid {pid}")
        }
        ("1", _) if !capable => format!(
            "kernel.yama.ptrace_scope is 1: only a program's own children may be attached to; \
             run: sudo stackprof --pid {pid}  or allow it: sudo sysctl kernel.yama.ptrace_scope=0"
        ),
        _ if !capable => format!(
            "the kernel refused (operation not permitted); the program may have switched users or forbidden \
             core dumps; run: sudo stackprof --pid {pid}"
        ),
        _ => "the kernel refused (operation not permitted) although CAP_SYS_PTRACE is held; \
              a security module or a seccomp filter of this container forbids ptrace"
            .to_owned(),
    };
    refuse(pid, name, &why)
}

fn refuse(pid: pid_t, name: Option<&str>, why: &str) -> Error {
    let name = name.map(|name| format!(" ({name})")).unwrap_or_default();
    Error::new(ErrorKind::Attach, format!("cannot attach to pid {pid}{name}: {why}"))
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

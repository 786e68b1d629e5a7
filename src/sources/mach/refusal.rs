//! Explains why a process cannot be attached, checked before and after trying, and what to do about it.
//!
//! `task_for_pid` returns KERN_FAILURE for a dozen reasons (bsd/kern/kern_proc.c); the user needs the actual
//! one and the command that changes it.

use super::kernel::{BsdInfo, Errno, KernReturn, MachKernel, TaskPort};
use crate::arch::Arch;
use crate::binary::macho::{CPU_ARM64, CPU_X86_64};
use crate::error::{Error, ErrorKind};
use crate::sources::ExitStatus;

/// The same errno on macOS and Linux.
const ESRCH: Errno = Errno(3);
const EPERM: Errno = Errno(1);

/// `pbi_flags` and `pbi_status` (bsd/sys/proc_info.h, bsd/sys/proc.h).
const FLAG_IN_EXIT: u32 = 0x4;
const FLAG_LP64: u32 = 0x10;
const FLAG_TRANSLATED: u32 = 0x0200_0000;
const STOPPED: u32 = 4;
const ZOMBIE: u32 = 5;
const SIGKILL: i32 = 9;

/// Code signing flags (osfmk/kern/cs_blobs.h).
const CS_GET_TASK_ALLOW: u32 = 0x4;
pub(super) const CS_RUNTIME: u32 = 0x1_0000;
pub(super) const CS_PLATFORM_BINARY: u32 = 0x0400_0000;

const DYLD_INFO_COUNT: u32 = 5;

/// Programs guarded by System Integrity Protection (`/usr/local` is not).
const PROTECTED: [&str; 5] = ["/System/", "/usr/", "/bin/", "/sbin/", "/var/db/com.apple."];
const FREE: [&str; 3] = ["/usr/local/", "/System/Volumes/Data/", "/System/Volumes/Update/"];

/// Facts about a process that need no task; any of them may be refused.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) pid: i32,
    /// It is the command that this program started, which does not continue by itself.
    launched: bool,
    info: Option<BsdInfo>,
    path: Option<String>,
}

impl Facts {
    pub(super) fn of(kernel: &dyn MachKernel, pid: i32, launched: bool) -> Facts {
        let path = kernel.proc_pidpath(pid).ok().filter(|path| !path.is_empty());
        Facts { pid, launched, info: kernel.proc_bsdinfo(pid).ok(), path }
    }

    fn known_name(&self) -> Option<String> {
        let short = self.info.as_ref().map(|info| info.name.clone()).filter(|name| !name.is_empty());
        short.or_else(|| self.path.as_ref().and_then(|path| path.rsplit('/').next()).map(str::to_owned))
    }

    /// The process's short name; `pid N` if it is unknown.
    pub(super) fn name(&self) -> String {
        self.known_name().unwrap_or_else(|| format!("pid {}", self.pid))
    }

    fn flags(&self) -> u32 {
        self.info.as_ref().map_or(0, |info| info.flags)
    }

    /// The command with which root profiles it.
    fn as_root(&self) -> String {
        if self.launched {
            "sudo stackprof -- COMMAND".to_owned()
        } else {
            format!("sudo stackprof --pid {}", self.pid)
        }
    }

    fn refuse(&self, why: &str) -> Error {
        let name = self.known_name().map(|name| format!(" ({name})")).unwrap_or_default();
        Error::new(ErrorKind::Attach, format!("cannot attach to pid {}{name}: {why}", self.pid))
    }
}

/// Error for a number that cannot be a process.
pub(super) fn no_such_process(pid: u32) -> Error {
    Error::new(
        ErrorKind::Attach,
        format!("cannot attach to pid {pid}: no such process; `ps -ax` lists those that run"),
    )
}

/// Refuses processes that no user can attach to.
///
/// # Errors
/// One line for a person.
pub(super) fn check(kernel: &dyn MachKernel, pid: i32, launched: bool) -> Result<Facts, Error> {
    let facts = Facts::of(kernel, pid, launched);
    if pid == kernel.own_pid() {
        return Err(facts.refuse("a profiler cannot stop itself; use another process's pid"));
    }
    if pid == 0 {
        return Err(facts.refuse("it is the kernel, which has no program to profile; try Instruments"));
    }
    if kernel.sysctl_i32("sysctl.proc_translated") == Ok(1) {
        return Err(facts.refuse(
            "this stackprof is the Intel build and runs under Rosetta, which hides the registers of others; \
             use the arm64 build: rustup target add aarch64-apple-darwin; \
             cargo build --release --target aarch64-apple-darwin",
        ));
    }
    let known = facts.info.as_ref();
    if known.is_some_and(|info| info.status == ZOMBIE) {
        return Err(zombie(&facts));
    }
    if known.is_none() && kernel.kill(pid, 0) == Err(ESRCH) {
        return Err(no_such_process(pid.unsigned_abs()));
    }
    if facts.flags() & FLAG_TRANSLATED != 0 {
        return Err(translated(&facts));
    }
    Ok(facts)
}

fn zombie(facts: &Facts) -> Error {
    facts.refuse(
        "it has exited and only waits for its parent to notice (a zombie); \
         start the program under stackprof: stackprof -- COMMAND",
    )
}

fn translated(facts: &Facts) -> Error {
    facts.refuse(
        "it is an Intel program that Rosetta translates: its registers are those of the translation and its \
         stacks would be wrong; profile an arm64 build of it",
    )
}

/// Refuses a 32-bit task.
///
/// # Errors
/// One line for a person.
pub(super) fn check_task(kernel: &dyn MachKernel, task: TaskPort, facts: &Facts) -> Result<(), Error> {
    let info = kernel.task_dyld_info(task, DYLD_INFO_COUNT).ok().filter(|info| info.all_image_info_addr != 0);
    let narrow = match info {
        Some(info) => info.all_image_info_format == 0,
        None => facts.flags() != 0 && facts.flags() & FLAG_LP64 == 0,
    };
    if narrow {
        return Err(facts.refuse("it is a 32-bit program; stackprof profiles 64-bit ones"));
    }
    Ok(())
}

/// Refuses a program for another processor than ours.
///
/// # Errors
/// One line for a person.
pub(super) fn check_program(
    kernel: &dyn MachKernel,
    facts: &Facts,
    cpu_type: Option<u32>,
) -> Result<(), Error> {
    match (kernel.arch(), cpu_type) {
        (Arch::Aarch64, Some(CPU_X86_64)) => Err(translated(facts)),
        (Arch::X86_64, Some(CPU_ARM64)) => Err(facts
            .refuse("it is an arm64 program and this is the Intel build of stackprof; use the arm64 build")),
        _ => Ok(()),
    }
}

/// Whether a process that existed when it was checked may just be executing a new program, so that another
/// attempt helps.
pub(super) fn may_be_between_programs(kernel: &dyn MachKernel, facts: &Facts) -> bool {
    !is_protected(kernel, facts) && !has_ended(kernel, facts.pid)
}

/// Whether a process is an Intel program translated by Rosetta, if reported.
pub(super) fn is_translated(kernel: &dyn MachKernel, pid: i32) -> bool {
    kernel.proc_bsdinfo(pid).is_ok_and(|info| info.flags & FLAG_TRANSLATED != 0)
}

/// Whether a process is stopped by job control, if reported.
pub(super) fn is_job_stopped(kernel: &dyn MachKernel, pid: i32) -> bool {
    kernel.proc_bsdinfo(pid).is_ok_and(|info| info.status == STOPPED)
}

/// Whether a process has exited, if reported.
pub(super) fn has_ended(kernel: &dyn MachKernel, pid: i32) -> bool {
    match kernel.proc_bsdinfo(pid) {
        Ok(info) => info.status == ZOMBIE || info.flags & FLAG_IN_EXIT != 0,
        Err(failed) => failed == ESRCH || kernel.kill(pid, 0) == Err(ESRCH),
    }
}

fn is_protected(kernel: &dyn MachKernel, facts: &Facts) -> bool {
    let signed = kernel.code_signing_flags(facts.pid).unwrap_or(0);
    signed & CS_PLATFORM_BINARY != 0 || facts.path.as_deref().is_some_and(is_protected_path)
}

pub(super) fn is_protected_path(path: &str) -> bool {
    let below = |roots: &[&str]| roots.iter().any(|root| path.starts_with(root));
    below(&PROTECTED) && !below(&FREE)
}

/// Error for a command that exited before it could be attached to.
pub(super) fn ended_early(program: &str, status: ExitStatus) -> Error {
    let how = match status {
        ExitStatus::Code(code) => format!("it ended with status {code}"),
        ExitStatus::Signal(signal) => format!("it was ended by signal {signal}"),
        ExitStatus::Unknown => "it ended".to_owned(),
    };
    let next = match status {
        // Code signing kills a program before its first instruction.
        ExitStatus::Signal(SIGKILL) => format!(
            "macOS kills a program whose code signature is invalid: check it (codesign --verify {program}), sign it \
             anew (codesign --force --sign - {program})"
        ),
        _ => "run it without stackprof to see why".to_owned(),
    };
    Error::new(
        ErrorKind::Attach,
        format!("cannot profile `{program}`: {how} before it could be attached to; {next}"),
    )
}

/// Error for a failed `task_for_pid`.
pub(super) fn explain(kernel: &dyn MachKernel, pid: i32, launched: bool, failed: KernReturn) -> Error {
    // It may have exited since it was checked.
    let facts = match check(kernel, pid, launched) {
        Ok(facts) => facts,
        Err(refused) => return refused,
    };
    if has_ended(kernel, pid) {
        return facts.refuse("it is exiting; start the program under stackprof: stackprof -- COMMAND");
    }
    match failed {
        KernReturn::Failure => {}
        KernReturn::ProtectionFailure => {
            return facts
                .refuse("whoever guards its task port has died (kern_return 2); restart the program");
        }
        KernReturn::Aborted => {
            return facts
                .refuse("asking taskgated was interrupted again and again (kern_return 14); try again");
        }
        other => {
            return facts
                .refuse(&format!("task_for_pid failed ({other}); try again, as root: {}", facts.as_root()));
        }
    }
    let root = kernel.effective_uid() == 0;
    let signed = kernel.code_signing_flags(pid).unwrap_or(0);
    if is_protected(kernel, &facts) {
        let path = facts.path.as_deref().unwrap_or("it");
        return facts.refuse(&format!(
            "System Integrity Protection guards {path}: nobody may attach to programs of macOS, root neither; \
             profile a build of your own, or one from Homebrew or another place outside /System and /usr"
        ));
    }
    let other_user = facts.info.as_ref().is_some_and(|info| info.uid != kernel.effective_uid())
        || facts.info.is_none() && kernel.kill(pid, 0) == Err(EPERM);
    if !root && other_user {
        let owner = facts.info.as_ref().map(|info| format!("user {}", info.uid));
        let owner = owner.unwrap_or_else(|| "another user".to_owned());
        let own = kernel.effective_uid();
        return facts
            .refuse(&format!("it belongs to {owner} and you are user {own}; run: {}", facts.as_root()));
    }
    if signed & CS_RUNTIME != 0 && signed & CS_GET_TASK_ALLOW == 0 {
        let path = facts.path.clone().unwrap_or_else(|| "PATH".to_owned());
        return facts.refuse(&format!(
            "it is signed with the hardened runtime, which forbids debuggers; sign a copy that allows them with \
             the entitlement com.apple.security.get-task-allow: codesign --force --sign - --entitlements FILE {path}"
        ));
    }
    if !root {
        return facts.refuse(&format!(
            "macOS lets only root and signed debuggers in; run: {}  or sign stackprof \
             once after each build: scripts/codesign-macos.sh, which runs codesign --force --options runtime \
             --sign - --entitlements with com.apple.security.cs.debugger",
            facts.as_root()
        ));
    }
    facts.refuse(
        "macOS refused it to root, too (kern_return 5): a policy of this Mac forbids it \
         (System Integrity Protection, Developer Mode, device management, kern.tfp.policy)",
    )
}

/// Error for a task with threads that cannot be listed.
pub(super) fn cannot_list(kernel: &dyn MachKernel, facts: &Facts, failed: KernReturn) -> Error {
    if has_ended(kernel, facts.pid) {
        return match check(kernel, facts.pid, facts.launched) {
            Ok(facts) => zombie(&facts),
            Err(refused) => refused,
        };
    }
    facts.refuse(&format!("its threads cannot be listed (task_threads: {failed}); try again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_system_paths_are_protected() {
        for path in ["/usr/bin/yes", "/bin/sh", "/System/Library/CoreServices/Finder.app/x", "/usr/libexec/x"]
        {
            assert!(is_protected_path(path), "{path}");
        }
        for path in
            ["/usr/local/bin/x", "/opt/homebrew/bin/x", "/Users/me/bin/x", "/Applications/X.app/x", "x"]
        {
            assert!(!is_protected_path(path), "{path}");
        }
    }
}

//! Facts about a process before it is sampled, and messages for a command that cannot be run.

use std::fs;
use std::path::Path;

use libc::pid_t;

use super::launch::Launch;
use super::{images, sys, threads};
use crate::addr::Avma;
use crate::arch::Arch;
use crate::error::{Error, ErrorKind, Result, io_text};
use crate::sources::{Process, proc_file};

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
pub(super) fn process_id(pid: u32) -> Result<pid_t> {
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
    let living = threads::living_thread(pid).unwrap_or(pid);
    let command = proc_file::head(format!("/proc/{living}/cmdline"), COMMAND_BYTES_MAX).unwrap_or_default();
    let command = String::from_utf8_lossy(&command).replace('\0', " ");
    Process {
        pid: pid.unsigned_abs(),
        name: String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned(),
        command: command.trim_end().to_owned(),
        arch: arch(threads::start_stack(pid)),
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

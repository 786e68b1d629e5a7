//! What /proc tells: parsers of its files (bytes in, values out, no I/O); the threads of a process; running
//! processes with their names; whether a process found by name is still the same (`ProcessDescriptor`); and the
//! stack of a waiting thread (`capture`).
//!
//! Formats: proc_pid_stat(5), proc_pid_status(5), proc_pid_maps(5); schedstat is
//! Documentation/scheduler/sched-stats.rst: CPU time, wait time (ns), times put on a CPU.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use libc::pid_t;

use super::perf::registers_of_waiting;
use super::{images, sys};
use crate::addr::Avma;
use crate::error::{self, Error, ErrorKind};
use crate::sources::maps_line::{MapsLine, without_deleted};
use crate::sources::process_name::RunningProcess;
use crate::sources::{Activity, Capture, SleepingThread, proc_file};

/// The three counters of `/proc/PID/task/TID/schedstat`. Exact for a thread that is on no CPU; for a running
/// one, CPU time lags by up to a scheduler tick.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sched {
    /// CPU time, nanoseconds.
    pub(super) cpu_ns: u64,
    /// Time spent ready without a CPU, nanoseconds; updated when it gets one.
    pub(super) delay_ns: u64,
    /// Number of times that it was put on a CPU.
    pub(super) switches: u64,
}

/// `/proc/PID/task/TID/schedstat`.
pub(super) fn parse_schedstat(text: &[u8]) -> Option<Sched> {
    let mut fields = text.split(|byte| byte.is_ascii_whitespace()).map(number);
    Some(Sched { cpu_ns: fields.next()??, delay_ns: fields.next()??, switches: fields.next()?? })
}

/// A decimal number, without the UTF-8 check of `str::parse`: this runs per thread and tick.
fn number(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u64, |value, digit| {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 { None } else { value.checked_mul(10)?.checked_add(digit.into()) }
    })
}

/// The state letter of `/proc/PID/stat`, which follows the last `)`: the name before it may contain anything.
pub(super) fn stat_state(text: &[u8]) -> Option<u8> {
    let close = text.iter().rposition(|byte| *byte == b')')?;
    text.get(close + 2).copied()
}

/// Whether it is a kernel thread: `PF_KTHREAD` in its flags (field 9; include/linux/sched.h).
pub(super) fn stat_is_of_kernel(text: &[u8]) -> Option<bool> {
    const PF_KTHREAD: u64 = 0x0020_0000;
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let flags = number(text.get(close + 2..)?.split(|byte| *byte == b' ').nth(9 - 3)?)?;
    Some(flags & PF_KTHREAD != 0)
}

/// The last CPU of a thread (field 39).
pub(super) fn stat_cpu(text: &[u8]) -> Option<u32> {
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let field = text.get(close + 2..)?.split(|byte| *byte == b' ').nth(39 - 3)?;
    number(field)?.try_into().ok()
}

/// Time of all CPUs since boot, and the idle part of it, in ticks: the first line of `/proc/stat`
/// (proc_stat(5)). Its last two numbers are included in others.
pub(super) fn machine_ticks(stat: &[u8]) -> Option<(u64, u64)> {
    let line = stat.split(|byte| *byte == b'\n').next()?;
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let ticks: Vec<u64> = words.by_ref().skip(1).take(8).filter_map(|word| word.parse().ok()).collect();
    let &[_, _, _, idle, waiting, ..] = &ticks[..] else { return None };
    Some((ticks.iter().sum(), idle + waiting))
}

/// Start time of a process, in seconds since 1970, rounded down: field 22 of `/proc/PID/stat` plus the boot
/// time, `btime` in `/proc/stat`.
pub(super) fn began_s(stat: &[u8], system: &[u8]) -> Option<u64> {
    /// `USER_HZ`, part of the kernel's interface on both processors.
    const TICKS_PER_SECOND: u64 = 100;
    let ticks = stat_start_ticks(stat)?;
    let boot = system.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"btime "))?;
    number(boot)?.checked_add(ticks / TICKS_PER_SECOND)
}

/// Start time of a process, in ticks since boot (field 22).
pub(super) fn stat_start_ticks(stat: &[u8]) -> Option<u64> {
    let close = stat.iter().rposition(|byte| *byte == b')')?;
    stat.get(close + 2..)?.split(|byte| *byte == b' ').nth(22 - 3).and_then(number)
}

/// The initial stack pointer of the process's first thread (field 28), if the kernel reports it (0 without
/// the right to trace).
pub(super) fn stat_start_stack(text: &[u8]) -> Option<Avma> {
    let close = text.iter().rposition(|byte| *byte == b')')?;
    // The state is field 3.
    let field = text.get(close + 2..)?.split(|byte| *byte == b' ').nth(28 - 3)?;
    number(field).filter(|avma| *avma != 0).map(Avma)
}

/// Stack pointer and program counter of a waiting thread, the last two fields of
/// `/proc/PID/task/TID/syscall`; `None` for `running`.
pub(super) fn waits_at(text: &[u8]) -> Option<(Avma, Avma)> {
    let text = std::str::from_utf8(text).ok()?;
    let mut fields = text.split_ascii_whitespace().rev();
    let mut hex = || u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok().map(Avma);
    let pc = hex()?;
    Some((hex()?, pc))
}

/// A system call that a thread waits in.
#[cfg(any(test, target_arch = "aarch64"))]
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BlockedCall {
    /// System call number.
    pub(super) number: i64,
    /// Its first argument.
    pub(super) first: u64,
    /// Stack pointer and program counter.
    pub(super) sp: Avma,
    pub(super) pc: Avma,
}

/// The call in `/proc/TID/syscall`; `None` for a thread that runs or waits outside of a call.
#[cfg(any(test, target_arch = "aarch64"))]
pub(super) fn waiting(text: &[u8]) -> Option<BlockedCall> {
    let mut fields = std::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let number = fields.next()?.parse().ok().filter(|number| *number >= 0)?;
    let first = u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()?;
    let (sp, pc) = waits_at(text)?;
    Some(BlockedCall { number, first, sp, pc })
}

/// Activity for a state letter.
pub(super) fn activity(state: u8) -> Activity {
    match state {
        b'R' => Activity::Runnable,
        // Stopped by job control (T) or by a tracer, which is us (t).
        b'T' | b't' => Activity::Stopped,
        _ => Activity::Waiting,
    }
}

/// The value of a line `Key:\tvalue` of `/proc/PID/status`.
pub(super) fn status_value<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':').map(str::trim))
}

/// Bytes of a line `Key:\tN kB` of `/proc/PID/status`.
pub(super) fn status_bytes(status: &str, key: &str) -> Option<u64> {
    let kib = status_value(status, key)?.split_whitespace().next()?.parse::<u64>().ok()?;
    Some(kib * 1024)
}

/// Resident memory of a process that is of no file (proc_pid_status(5)).
pub(super) fn resident_bytes(pid: libc::pid_t) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status_bytes(&status, "RssAnon")
}

/// The lines of `/proc/PID/maps`, in its order (by address), without malformed ones.
pub(super) fn mappings(text: &[u8]) -> impl Iterator<Item = MapsLine> + '_ {
    text.split(|byte| *byte == b'\n').filter_map(mapping)
}

/// A line, with the kernel's own dev_t encoding of its device, as makedev(3) of the two numbers.
pub(super) fn mapping(line: &[u8]) -> Option<MapsLine> {
    MapsLine::parse(line, |major, minor| Some(libc::makedev(major.try_into().ok()?, minor.try_into().ok()?)))
}

// ---- The threads of a process by /proc: listed, named.

/// The scheduler counters from an open `schedstat` of any thread.
pub(super) fn sched(schedstat: &File) -> Option<Sched> {
    let mut buffer = [0; 96];
    let len = schedstat.read_at(&mut buffer, 0).ok()?;
    parse_schedstat(&buffer[..len])
}

/// Whether a process is a thread of the kernel.
pub(super) fn is_of_kernel(pid: pid_t) -> Option<bool> {
    stat_is_of_kernel(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The name of an existing thread.
pub(super) fn name(pid: pid_t, tid: pid_t) -> Option<String> {
    let name = std::fs::read(format!("/proc/{pid}/task/{tid}/comm")).ok()?;
    Some(String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned())
}

/// The process of a thread and its parent, until the thread is reaped: `Tgid` and `PPid` of
/// `/proc/TID/status`.
pub(super) fn tgid_and_ppid(tid: pid_t) -> Option<(pid_t, pid_t)> {
    let status = std::fs::read(format!("/proc/{tid}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let number = |key| status_value(&status, key)?.parse().ok();
    Some((number("Tgid")?, number("PPid")?))
}

/// A thread of a process that has not exited: the first one, unless it exited before the others, as by
/// `pthread_exit` in `main`. /proc shows memory, files and arguments of the process through it. `None`: the
/// process has exited.
pub(super) fn living_thread(pid: pid_t) -> Option<pid_t> {
    let lives = |tid: &pid_t| {
        let stat = std::fs::read(format!("/proc/{tid}/stat")).unwrap_or_default();
        !matches!(stat_state(&stat), None | Some(b'Z' | b'X'))
    };
    Some(pid).filter(lives).or_else(|| list(pid).ok()?.into_iter().find(lives))
}

/// The initial stack pointer of a process's program. `None` also for a process without memory.
pub(super) fn start_stack(pid: pid_t) -> Option<Avma> {
    stat_start_stack(&std::fs::read(format!("/proc/{}/stat", living_thread(pid)?)).ok()?)
}

/// The tids of a process, from `/proc/PID/task`.
pub(super) fn list(pid: pid_t) -> io::Result<Vec<pid_t>> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// Time that the threads of a process, of many the first ones, have waited for a CPU, nanoseconds.
pub(super) fn delayed_ns(pid: pid_t) -> u64 {
    const THREADS_MAX: usize = 1000;
    let delay = |tid: pid_t| {
        let text = std::fs::read(format!("/proc/{pid}/task/{tid}/schedstat")).ok()?;
        Some(parse_schedstat(&text)?.delay_ns)
    };
    list(pid).unwrap_or_default().into_iter().take(THREADS_MAX).filter_map(delay).sum()
}

// ---- The running processes with their names: `/proc/PID/comm`, `exe` and `cmdline` (proc(5)).

/// Most bytes read of a command line; a process can make its own as long as it likes.
const COMMAND_LINE_BYTES_MAX: usize = 4096;

/// All other processes. The path of the executable may be missing for those of other users.
pub fn processes() -> Vec<RunningProcess> {
    let own = std::process::id();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| *pid != own).filter_map(process).collect()
}

/// `None` for a process that has exited.
fn process(pid: u32) -> Option<RunningProcess> {
    let directory = Path::new("/proc").join(pid.to_string());
    let comm = fs::read(directory.join("comm")).ok()?;
    let comm = String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm)).into_owned();
    let exe = fs::read_link(directory.join("exe")).map(|path| path.to_string_lossy().into_owned());
    let command = proc_file::head(directory.join("cmdline"), COMMAND_LINE_BYTES_MAX).unwrap_or_default();
    let command = String::from_utf8_lossy(&command);
    let mut words = command.split('\0');
    let started_as = words.next().unwrap_or_default().to_owned();
    let command = match started_as.is_empty() {
        true => comm.clone(),
        false => command.trim_end_matches('\0').replace('\0', " "),
    };
    let exe = exe.unwrap_or_default();
    // The file was replaced while the program runs.
    let exe = without_deleted(&exe).0.to_owned();
    Some(RunningProcess { pid, names: vec![comm, exe, started_as], command })
}

// ---- Whether a process that was found by its name is the one that was attached to: its id may be another process's by
// then. A descriptor (pidfd_open(2)) stays that of one process: it is opened when the name is found, and checked when
// the process is attached to. Without one (Linux before 5.3, a seccomp filter) nothing is known.

static DESCRIPTORS: Mutex<Vec<ProcessDescriptor>> = Mutex::new(Vec::new());

/// A process, by its id and a descriptor.
#[derive(Debug)]
struct ProcessDescriptor {
    pid: u32,
    process: OwnedFd,
}

impl ProcessDescriptor {
    /// Whether the id belongs to another process. One that has ended keeps its id until its parent knows.
    fn is_replaced(&self) -> bool {
        sys::is_reaped(&self.process) && Path::new(&format!("/proc/{}", self.pid)).exists()
    }
}

/// Remembers the process that now has an id; the caller looks the name up once more afterwards.
pub fn remember_process(pid: u32) {
    let process = pid.try_into().ok().and_then(|pid| sys::open_process(pid).ok());
    let descriptor = process.map(|process| ProcessDescriptor { pid, process });
    DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner).extend(descriptor);
}

/// Checks that an id still belongs to the process that was remembered, if one was.
///
/// # Errors
/// One line: it belongs to another one.
pub fn check_process(pid: u32) -> error::Result<()> {
    let processes = DESCRIPTORS.lock().unwrap_or_else(PoisonError::into_inner);
    if processes.iter().any(|process| process.pid == pid && process.is_replaced()) {
        let why =
            format!("the process of that name has ended, and pid {pid} is another one; run stackprof again");
        return Err(Error::new(ErrorKind::Attach, why));
    }
    Ok(())
}

// ---- The registers and the stack of a waiting thread, read without a stop.
//
// `/proc/PID/task/TID/syscall` shows stack pointer and program counter of a waiting thread (proc_pid_syscall(5)),
// and its memory is readable. It was off its CPU throughout if the scheduler's counters did not change. The other
// registers are unknown: a walk continues if unwind rows restore them, or the instructions show the frame pointer.

/// Captures up to `stack_bytes` of a thread's stack.
pub(super) fn capture(pid: pid_t, tid: pid_t, stack_bytes: usize, capture: &mut Capture) -> SleepingThread {
    let path = |file: &str| format!("/proc/{pid}/task/{tid}/{file}");
    let figures = || (fs::read(path("syscall")).ok(), fs::read(path("schedstat")).ok());
    let before = figures();
    let (Some(call), Some(_)) = &before else {
        let stat = fs::read(path("stat")).ok();
        let waits = stat.and_then(|stat| stat_state(&stat)).is_some_and(|state| state != b'R');
        return if waits { SleepingThread::Hidden } else { SleepingThread::Awake };
    };
    let Some((sp, pc)) = waits_at(call) else { return SleepingThread::Awake };
    capture.reset();
    // With the thread's tid: the first thread may have exited, and /proc shows no memory through it.
    let read = sys::read_memory_into(tid, sp.0, stack_bytes, &mut capture.stack);
    if figures() != before {
        return SleepingThread::Awake;
    }
    if read.is_err() {
        return SleepingThread::Hidden;
    }
    // Addresses above 4 GiB are 64-bit; below may be either.
    let stat = u32::try_from(sp.0.max(pc.0)).ok().and_then(|_| fs::read(path("stat")).ok());
    let start_stack = stat.and_then(|stat| stat_start_stack(&stat));
    capture.registers = registers_of_waiting(sp, pc, start_stack.is_some_and(images::is_of_32_bits));
    capture.stack_base = sp;
    SleepingThread::Captured
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedstat_is_three_numbers() {
        let sched = Sched { cpu_ns: 24_551_908, delay_ns: 16_060, switches: 2 };
        assert_eq!(parse_schedstat(b"24551908 16060 2\n"), Some(sched));
        assert_eq!(parse_schedstat(b"1 2\n"), None);
        assert_eq!(parse_schedstat(b""), None);
        assert_eq!(parse_schedstat(b"99999999999999999999 0 0\n"), None);
        assert_eq!(parse_schedstat(b"-1 0 0\n"), None);
    }

    #[test]
    fn guest_time_is_part_of_user_time() {
        let stat = b"cpu  100 20 30 400 50 6 7 8 90 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(machine_ticks(stat), Some((621, 450)));
        assert_eq!(machine_ticks(b"cpu  1 2 3 4\n"), None);
        assert_eq!(machine_ticks(b""), None);
    }

    #[test]
    fn a_name_may_look_like_the_rest_of_the_line() {
        let mut line = b"4404 (a) R (b) S 1".to_vec();
        for field in 5..=52 {
            line.extend(format!(" {field}").bytes());
        }
        assert_eq!(stat_state(&line), Some(b'S'));
        assert_eq!(stat_start_stack(&line), Some(Avma(28)));
        assert_eq!(stat_cpu(&line), Some(39));
        assert_eq!(stat_is_of_kernel(&line), Some(false));
        assert_eq!(stat_state(b"4404 (a"), None);
    }

    #[test]
    fn kernel_threads_are_recognised_by_their_flag() {
        assert_eq!(stat_is_of_kernel(b"2 (kthreadd) S 0 0 0 0 -1 2129984 0 0"), Some(true));
        // An exiting one that has released its memory.
        assert_eq!(stat_is_of_kernel(b"7 (a) R 1 7 7 0 -1 4194380 0 0"), Some(false));
        assert_eq!(stat_is_of_kernel(b"7 (a) R 1 7"), None);
    }

    #[test]
    fn a_waiting_thread_has_stack_pointer_and_program_counter() {
        let text = b"34 0x0 0x0 0x0 0x7f 0x0 0x7f 0x7ffcab0fe1d8 0x7f6562011d17\n";
        assert_eq!(waits_at(text), Some((Avma(0x7ffc_ab0f_e1d8), Avma(0x7f65_6201_1d17))));
        assert_eq!(waits_at(b"running\n"), None);
        let in_call = b"22 0x5 0x0 0x0 0x7f 0x0 0x7f 0xffffcab0fe10 0xffff62011d17\n";
        let (sp, pc) = (Avma(0xffff_cab0_fe10), Avma(0xffff_6201_1d17));
        assert_eq!(waiting(in_call), Some(BlockedCall { number: 22, first: 5, sp, pc }));
        assert_eq!(waiting(b"-1 0xffffcab0fe10 0xffff62011d17\n"), None);
        assert_eq!(waiting(b"running\n"), None);
    }

    #[test]
    fn start_time_is_relative_to_boot() {
        let stat = b"7 (a) b) S 1 7 7 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 12399 27 28";
        assert_eq!(began_s(stat, b"cpu 1 2\nbtime 1700000000\nprocesses 5\n"), Some(1_700_000_123));
        assert_eq!(began_s(stat, b"cpu 1 2\n"), None);
        assert_eq!(began_s(b"7 (a) S 1", b"btime 1700000000\n"), None);
    }

    #[test]
    fn status_lines_are_found_by_key() {
        assert_eq!(status_value("Name:\tx\nTracerPid:\t0\n", "TracerPid"), Some("0"));
        assert_eq!(status_value("Name:\tx\n", "TracerPid"), None);
    }
}

#[cfg(test)]
mod process_list_tests {
    use super::*;

    #[test]
    fn this_process_has_a_name_and_is_not_listed() {
        let own = process(std::process::id()).expect("runs");
        assert!(own.names.iter().all(|name| !name.is_empty()) && !own.command.is_empty(), "{own:?}");
        assert!(processes().iter().all(|process| process.pid != own.pid));
    }
}

#[cfg(test)]
mod process_descriptor_tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn the_id_of_a_process_that_ended_can_belong_to_another_one() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let process = sys::open_process(child.id().cast_signed()).unwrap();
        let mut descriptor = ProcessDescriptor { pid: child.id(), process };
        assert!(!descriptor.is_replaced(), "it runs");
        drop(child.stdin.take());
        child.wait().unwrap();
        // As if this process had got its id.
        descriptor.pid = std::process::id();
        assert!(descriptor.is_replaced());
        descriptor.pid = u32::MAX;
        assert!(!descriptor.is_replaced(), "nothing has the id");
    }
}

#[cfg(test)]
mod sleeping_thread_tests {
    #![allow(clippy::unwrap_used)]
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_waiting_child_has_a_stack_and_an_exited_one_none() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id().cast_signed();
        let mut buffer = Capture::with_capacity(0);
        let shown = || fs::read(format!("/proc/{pid}/task/{pid}/syscall")).is_ok();
        // It will read sooner or later; during its exec it has no readable memory.
        let seen = loop {
            match capture(pid, pid, 60 << 10, &mut buffer) {
                SleepingThread::Captured if !buffer.stack.is_empty() => break SleepingThread::Captured,
                SleepingThread::Hidden if !shown() => break SleepingThread::Hidden,
                _ => std::thread::yield_now(),
            }
        };
        match seen {
            SleepingThread::Captured => assert_eq!(buffer.registers.sp(), buffer.stack_base),
            // Without permission to trace the child.
            other => assert!(!shown(), "{other:?}"),
        }
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(capture(pid, pid, 4096, &mut buffer), SleepingThread::Awake);
    }
}

//! Linux: a process sampled by the kernel (perf_event_open(2)), which nobody stops for it.
//!
//! A timer in the kernel looks at what runs: the sample holds the user registers, the bytes of the user stack
//! and the frames in the kernel at one moment, so it is exact where a stop by ptrace shows the thread a few
//! microseconds later. `events.rs` says what is opened, `bpf/filter_program.rs` which samples the kernel drops at once,
//! `cpu_time/tick_schedule.rs` which come late, `ring/record.rs` reads what it wrote, `told.rs` weighs it, `stack/stack_size.rs` decides how
//! much of each stack is copied, `stack/stack_tail.rs` and `stack/red_zone.rs` have a program copy what no record holds, `stack/prefetch.rs`
//! reads the words that walks of deep stacks need, `cpu_time/wakeup_latency.rs`
//! measures CPU time from before threads run, `cpu_time/wakeup_charge.rs` has samples stand for it, `source.rs` is the whole. Waits:
//! `waits/context_switches.rs` puts switches in order, `waits/wait.rs` finds the waits between them, `waits/sleeping_thread.rs` looks at threads
//! that slept before. `buffers.rs` frees what a backlog made larger than batches need.

mod batch;
mod bpf;
mod buffers;
mod cpu_time;
mod events;
mod process;
mod reorder;
mod ring;
mod source;
mod stack;
mod told;
mod waits;

use std::io;
use std::sync::Arc;

use libc::pid_t;

use super::files::TargetFiles;
use super::launch::{Launch, Spawner};
use super::{attach, launch, refusal, threads};
use crate::clock::RealClock;
use crate::error::Result;
use crate::sources::{Chosen, Process, Sampling};
use bpf::sample_filter::SampleFilter;
use events::{EventOptions, Events, Scope, SwitchOptions};
use process::entry::ProcessEntry;
use process::filter::ProcessFilter;
use source::Begin;
use stack::stack_size::StackSize;

pub(super) use bpf::kernel_names;
pub(super) use process::filter::{all_processes, parent_of};
pub(super) use ring::registers::of_waiting as registers_of_waiting;
pub(super) use ring::sys::{bring_clocks_up, process_cpu_ns};
pub(super) use source::PerfSource;

/// Why the kernel does not sample this process for us, and what to do about it: a part of a line.
pub(super) type Refused = String;

/// What became of an attempt: the source, or why not, which need not end the recording.
type Attempt = Result<std::result::Result<PerfSource, Refused>>;

/// Samples processes that run, as `sampling` says.
///
/// # Errors
/// [`ErrorKind::Attach`](crate::error::ErrorKind::Attach) for what is no process to profile.
pub(super) fn attach(chosen: &Chosen, sampling: &Sampling, clock: RealClock) -> Attempt {
    let mut listed = Vec::new();
    for pid in &chosen.pids {
        let pid = attach::process_id(*pid)?;
        refusal::check_process(pid)?;
        if let Err(error) = std::fs::read(format!("/proc/{pid}/maps")) {
            if error.kind() == std::io::ErrorKind::NotFound {
                // It may have ended just now.
                refusal::check_process(pid)?;
            }
            return Ok(Err(format!("/proc/{pid}/maps cannot be read: {error}")));
        }
        listed.push(pid);
    }
    let choice = ProcessFilter::new(chosen.clone());
    let sieve = match listed[..] {
        _ if choice.is_all() => SampleFilter::open(),
        [pid] if choice.is_one() => SampleFilter::of_process(pid),
        _ => SampleFilter::unless_refused(),
    };
    let window = if choice.is_one() { StackSize::new() } else { StackSize::of_many() };
    let events = match open(&listed, !choice.is_one(), &sieve, &window, sampling) {
        Ok(events) => events,
        Err(refused) => return Ok(Err(refused)),
    };
    prepare_names(events.how);
    let mut members: Vec<ProcessEntry> = Vec::new();
    for pid in &listed {
        members.push(ProcessEntry::new(describe(*pid, events.how), Arc::new(TargetFiles::of(*pid))));
    }
    let main = members.pop().filter(|_| members.is_empty()).unwrap_or_else(|| of_all(chosen, events.how));
    let others = if members.is_empty() { &[][..] } else { &listed[..] };
    let kernel_frames = sampling.kernel;
    let begin = Begin { main, listed: listed.clone(), choice, kernel_frames, launched: false };
    let mut source = PerfSource::new(begin, clock, events, sieve, window);
    source.add(others);
    Ok(source.enable().map(|()| source).map_err(|error| refused(&error)))
}

/// Starts a command and samples it from its first instruction on, as `sampling` says.
///
/// # Errors
/// [`ErrorKind::Attach`](crate::error::ErrorKind::Attach) when it cannot be run.
pub(super) fn launch(command: &Launch, sampling: &Sampling, clock: RealClock, spawner: &Spawner) -> Attempt {
    let Sampling { children, kernel: kernel_frames, .. } = *sampling;
    let held = launch::hold(spawner, command).map_err(|error| attach::cannot_run(command, &error))?;
    let pid = held.pid;
    let sieve = if children { SampleFilter::unless_refused() } else { SampleFilter::of_process(pid) };
    // If refused, `held` is dropped, and the new process ends without running the command.
    let window = StackSize::new();
    let events = match open(&[pid], children, &sieve, &window, sampling) {
        Ok(events) => events,
        Err(refused) => return Ok(Err(refused)),
    };
    let how = events.how;
    prepare_names(how);
    let chosen = Chosen { pids: vec![pid.unsigned_abs()], children, ..Chosen::default() };
    let main = ProcessEntry::new(describe(pid, how), Arc::new(TargetFiles::of(pid)));
    let choice = ProcessFilter::new(chosen);
    let begin = Begin { main, listed: vec![pid], choice, kernel_frames, launched: true };
    let mut source = PerfSource::new(begin, clock, events, sieve, window);
    if let Err(error) = source.enable() {
        return Ok(Err(refused(&error)));
    }
    let started = held.go().map_err(|error| attach::cannot_run(command, &error))?;
    started.join().map_err(|error| attach::cannot_run(command, &error))?;
    source.set_spawned(describe(pid, how));
    Ok(Ok(source))
}

/// The kernel's names are asked for when the privileges to ask for them have gone.
fn prepare_names(how: EventOptions) {
    if how.kernel {
        kernel_names::prepare();
    }
}

/// What stands for several processes.
fn of_all(chosen: &Chosen, how: EventOptions) -> ProcessEntry {
    let own = std::process::id().cast_signed();
    let name = match chosen {
        Chosen { all: true, .. } => "all processes".to_owned(),
        Chosen { cgroup: Some(cgroup), .. } => format!("processes of {cgroup}"),
        Chosen { uid: Some(uid), .. } => format!("processes of user {uid}"),
        Chosen { pids, .. } => format!("{} processes", pids.len()),
    };
    let process = Process { pid: 0, name, command: String::new(), ..describe(own, how) };
    ProcessEntry::new(process, Arc::new(TargetFiles::of(own)))
}

fn describe(pid: pid_t, how: EventOptions) -> Process {
    let over = match how.scope {
        Scope::Cpus => "on each CPU",
        Scope::Threads => "for each thread",
    };
    let kernel = if how.kernel { "user and kernel" } else { "user code only" };
    let waits = match how.switches {
        Some(SwitchOptions { alone: true, .. }) => ", where threads wait",
        Some(_) => ", and where threads wait",
        None => "",
    };
    Process {
        backend: "perf_event",
        backend_why: format!("{kernel}, {over}{waits}"),
        stops_waits_unseen: true,
        ..attach::describe(pid)
    }
}

/// Opens the best events that the system allows: of user code and the kernel on each CPU, then of
/// the threads of the processes, then of user code only. `many`: there may be more processes.
fn open(
    pids: &[pid_t],
    many: bool,
    sieve: &SampleFilter,
    window: &StackSize,
    sampling: &Sampling,
) -> std::result::Result<Events, Refused> {
    let window_bytes = window.bytes();
    let Sampling { hz, idle, off_cpu, kernel: kernel_frames, .. } = *sampling;
    let switches = (idle || off_cpu).then(|| SwitchOptions {
        window_bytes: StackSize::of_switches().bytes(),
        alone: off_cpu,
        kernel_frames,
        many: pids.is_empty(),
    });
    let threads = pids.iter().map(|pid| threads::list(*pid).map_or(1, |threads| threads.len())).sum();
    // Of many, each process that is started would inherit an event for each CPU.
    let first = if many { Scope::Cpus } else { events::scope_for(events::cpu_count(), threads) };
    let other = if first == Scope::Cpus { Scope::Threads } else { Scope::Cpus };
    // Of the least that can be asked for: why that is refused is the reason that nothing works.
    let mut why = None;
    for (scope, kernel) in [(first, true), (other, true), (Scope::Threads, false)] {
        // Where nobody is listed there is no thread to begin with.
        if scope == Scope::Threads && pids.is_empty() {
            continue;
        }
        // A thread leaves its CPU in the kernel, which events of user code do not see.
        if switches.is_some() && !kernel {
            continue;
        }
        match Events::open(
            pids,
            sieve,
            EventOptions { scope, kernel, hz, window_bytes, below: false, prefetch: false, switches },
        ) {
            Ok(events) => return Ok(events),
            Err(error) => why = Some(error),
        }
    }
    let why = why.map_or_else(|| "perf_event is refused".to_owned(), |error| refused(&error));
    // Events of all that runs on a CPU take more than those of threads.
    Err(if pids.is_empty() { why.replace("paranoid=1", "paranoid=0") } else { why })
}

/// The words for perf_event_open(2) having failed with `error`.
fn refused(error: &io::Error) -> Refused {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
    if events::is_limit(error) {
        return error.to_string();
    }
    match (error.raw_os_error(), paranoid) {
        (Some(libc::EACCES | libc::EPERM), Ok(level)) if level.trim().parse::<i32>().is_ok_and(|n| n > 1) => {
            let level = level.trim();
            format!(
                "perf_event refused by kernel.perf_event_paranoid {level}: sudo, or sysctl kernel.perf_event_paranoid=1"
            )
        }
        (Some(libc::EACCES | libc::EPERM), _) => {
            "perf_event refused: it is another user's process, or a container's filter forbids the call; sudo"
                .to_owned()
        }
        (Some(libc::ENOSYS | libc::ENOENT | libc::EOPNOTSUPP), _) => {
            "this kernel has no perf_event".to_owned()
        }
        (Some(libc::EMFILE), _) => "perf_event needs more open files: raise `ulimit -n`".to_owned(),
        _ => format!("perf_event failed: {}", crate::error::io_text(error)),
    }
}

//! Linux: processes sampled by the kernel (perf_event_open(2)), without a stop.
//!
//! A timer in the kernel samples running threads: user registers, bytes of the user stack and kernel frames at one
//! moment, whereas a stop by ptrace shows the thread a few microseconds later. `events/` opens the events, `bpf/`
//! builds their programs. Their records pass these stages, each a type with private state (`pipeline.rs`):
//!
//! | stage | input | output |
//! |---|---|---|
//! | `ring/` | bytes of a ring | records |
//! | `reorder/` | records, ring after ring | events in time order |
//! | `process/` | events | events of selected processes |
//! | `stack/` | samples | samples with complete stacks, the next stack size |
//! | `cpu_time/` | samples, CPU clocks, losses | weights, losses |
//! | `waits/` | context switches | waits |
//!
//! `source.rs` drives them and the events.
mod bpf;
mod buffers;
mod cpu_time;
mod events;
mod heap_probes;
mod pipeline;
mod process;
pub(super) mod reorder;
pub(super) mod ring;
#[cfg(test)]
mod simulated_kernel;
mod source;
mod stack;
pub(super) mod waits;

use std::io;
use std::sync::Arc;

use libc::pid_t;

use self::events::set::{self, cpu_count, scope_for};
use super::files::TargetFiles;
use super::launch::{self, Launch, Spawner};
use super::proc;
use super::refusal::{self, Call, EventScope};
use crate::clock::RealClock;
use crate::error::Error;
use crate::sources::signals::{self, Phase};
use crate::sources::{Process, ProcessSelection, Sampling};
use bpf::sample_filter::SampleFilter;
use events::attributes::{EventOptions, Scope, SwitchOptions};
use events::set::Events;
use process::entry::ProcessEntry;
use process::filter::ProcessFilter;
use source::SourceStart;
use stack::stack_size::EventStackSize;
use stack::stacks::Stacks;

pub(super) use bpf::kernel_names;
pub(super) use heap_probes::{HeapProbes, HeapSample, ProbeCost, TargetMappings, is_c_library};
pub(super) use process::filter::{all_processes, parent_of};
pub(super) use ring::of_waiting as registers_of_waiting;
pub(super) use source::PerfSource;

#[cfg(test)]
pub(crate) use stack::SimKernel;

/// Why the kernel does not sample this process for us, with a remedy: part of a line.
pub(super) type Refusal = String;

/// Why there is no source.
pub(super) enum OpenFailure {
    /// The kernel refuses to sample this process; another source may work.
    Refused(Refusal),
    /// There is nothing to record.
    Failed(Error),
}

impl From<Error> for OpenFailure {
    fn from(error: Error) -> OpenFailure {
        OpenFailure::Failed(error)
    }
}

/// The source, or why there is none.
type Attempt = std::result::Result<PerfSource, OpenFailure>;

/// Samples running processes, with these options.
///
/// # Errors
/// [`ErrorKind::Attach`](crate::error::ErrorKind::Attach) if the process cannot be profiled.
pub(super) fn attach(chosen: &ProcessSelection, sampling: &Sampling, clock: RealClock) -> Attempt {
    let mut listed = Vec::new();
    for pid in &chosen.pids {
        let pid = refusal::process_id(*pid)?;
        refusal::check_process(pid)?;
        if let Err(error) = refusal::try_reading(pid) {
            if error.kind() == std::io::ErrorKind::NotFound {
                // It may have just ended.
                refusal::check_process(pid)?;
            }
            let errno = error.raw_os_error().unwrap_or(0);
            let cause = refusal::cause(Call::ReadProc, errno, Some(pid), false);
            return Err(OpenFailure::Refused(format!("/proc/{pid} cannot be read: {cause}")));
        }
        listed.push(pid);
    }
    let selected = ProcessFilter::new(chosen.clone());
    let mut filter = match listed[..] {
        _ if selected.is_all() => SampleFilter::open(),
        [pid] if selected.is_one() => SampleFilter::of_process(pid),
        _ => SampleFilter::unless_excluded(),
    };
    let size = if selected.is_one() { EventStackSize::new() } else { EventStackSize::for_many_processes() };
    let mut stacks = Stacks::new(sampling.kernel, size);
    let target = listed.first().map(|pid| (*pid, false));
    let events = match open(&listed, !selected.is_one(), &mut filter, &mut stacks, sampling, target) {
        Ok(events) => events,
        Err(refused) => return Err(OpenFailure::Refused(refused)),
    };
    prepare_names(events.options());
    let mut entries: Vec<ProcessEntry> = Vec::new();
    for pid in &listed {
        entries.push(ProcessEntry::new(describe(*pid, events.options()), Arc::new(TargetFiles::of(*pid))));
    }
    let main =
        entries.pop().filter(|_| entries.is_empty()).unwrap_or_else(|| of_all(chosen, events.options()));
    let others = if entries.is_empty() { &[][..] } else { &listed[..] };
    let begin = SourceStart { main, listed: listed.clone(), filter: selected, launched: false };
    let mut source = PerfSource::new(begin, clock, events, filter, stacks);
    source.add(others);
    source
        .enable()
        .map(|()| source)
        .map_err(|error| OpenFailure::Refused(refused(&error, EventScope::OwnCode, target)))
}

/// Starts a command and samples it from its first instruction on, with these options.
///
/// # Errors
/// [`ErrorKind::Attach`](crate::error::ErrorKind::Attach) when it cannot be run.
pub(super) fn launch(command: &Launch, sampling: &Sampling, clock: RealClock, spawner: &Spawner) -> Attempt {
    let children = sampling.children;
    let held = launch::hold(spawner, command).map_err(|error| refusal::cannot_run(command, &error))?;
    let pid = held.pid;
    let mut filter = if children { SampleFilter::unless_excluded() } else { SampleFilter::of_process(pid) };
    // On refusal, `held` is dropped, and the new process ends without running the command.
    let mut stacks = Stacks::new(sampling.kernel, EventStackSize::new());
    let events = match open(&[pid], children, &mut filter, &mut stacks, sampling, Some((pid, true))) {
        Ok(events) => events,
        Err(refused) => return Err(OpenFailure::Refused(refused)),
    };
    let options = events.options();
    prepare_names(options);
    let chosen = ProcessSelection { pids: vec![pid.unsigned_abs()], children, ..ProcessSelection::default() };
    let main = ProcessEntry::new(describe(pid, options), Arc::new(TargetFiles::of(pid)));
    let selected = ProcessFilter::new(chosen);
    let begin = SourceStart { main, listed: vec![pid], filter: selected, launched: true };
    let mut source = PerfSource::new(begin, clock, events, filter, stacks);
    if let Err(error) = source.enable() {
        return Err(OpenFailure::Refused(refused(&error, EventScope::OwnCode, Some((pid, true)))));
    }
    signals::enter(Phase::Launch);
    let started = held.go().map_err(|error| refusal::cannot_run(command, &error))?;
    started.join().map_err(|error| refusal::cannot_run(command, &error))?;
    source.set_spawned(describe(pid, options));
    Ok(source)
}

/// Prepares kernel names, since they are read after privileges are dropped.
fn prepare_names(options: EventOptions) {
    if options.kernel {
        kernel_names::prepare();
    }
}

/// The placeholder for several processes.
fn of_all(chosen: &ProcessSelection, options: EventOptions) -> ProcessEntry {
    let own = std::process::id().cast_signed();
    let name = match chosen {
        ProcessSelection { all: true, .. } => "all processes".to_owned(),
        ProcessSelection { cgroup: Some(cgroup), .. } => format!("processes of {cgroup}"),
        ProcessSelection { uid: Some(uid), .. } => format!("processes of user {uid}"),
        ProcessSelection { pids, .. } => format!("{} processes", pids.len()),
    };
    let process = Process { pid: 0, name, command: String::new(), ..describe(own, options) };
    ProcessEntry::new(process, Arc::new(TargetFiles::of(own)))
}

fn describe(pid: pid_t, options: EventOptions) -> Process {
    let over = match options.scope {
        Scope::Cpus => "on each CPU",
        Scope::Threads => "for each thread",
    };
    let kernel = if options.kernel { "user and kernel" } else { "user code only" };
    let waits = match options.switches {
        Some(SwitchOptions { alone: true, .. }) => ", where threads wait",
        Some(_) => ", and where threads wait",
        None => "",
    };
    Process {
        backend: "perf_event",
        backend_why: format!("{kernel}, {over}{waits}"),
        stops_interrupt_syscalls: false,
        ..refusal::describe(pid)
    }
}

/// Opens the best events that the system allows: of user code and the kernel on each CPU, then of
/// the threads of the processes, then of user code only. `many`: there may be more processes. `target`: for messages.
fn open(
    pids: &[pid_t],
    many: bool,
    filter: &mut SampleFilter,
    stacks: &mut Stacks,
    sampling: &Sampling,
    target: Option<(pid_t, bool)>,
) -> std::result::Result<Events, Refusal> {
    let Sampling { hz, idle, off_cpu, kernel: kernel_frames, .. } = *sampling;
    let switches = (idle || off_cpu).then(|| SwitchOptions {
        stack_bytes: EventStackSize::for_switches().bytes(),
        alone: off_cpu,
        kernel_frames,
        many: pids.is_empty(),
    });
    let threads = pids.iter().map(|pid| proc::list(*pid).map_or(1, |threads| threads.len())).sum();
    // Otherwise each started process would inherit an event per CPU.
    let first = if many { Scope::Cpus } else { scope_for(cpu_count(), threads) };
    let other = if first == Scope::Cpus { Scope::Threads } else { Scope::Cpus };
    let options = EventOptions {
        scope: first,
        kernel: true,
        hz,
        stack_bytes: stacks.stack_bytes(),
        red_zone: false,
        prefetch: !off_cpu,
        switches,
    };
    let options = stacks.prepare(options, true, |program| filter.copy(program));
    // Report the refusal of the least request: it is why nothing works.
    let mut refusal = None;
    for (scope, kernel) in [(first, true), (other, true), (Scope::Threads, false)] {
        // Without a listed process there is no thread to open events for.
        if scope == Scope::Threads && pids.is_empty() {
            continue;
        }
        // A thread leaves its CPU in kernel mode, which user-only events do not see.
        if switches.is_some() && !kernel {
            continue;
        }
        match Events::open(pids, filter, EventOptions { scope, kernel, ..options }) {
            Ok(events) => return Ok(events),
            Err(error) => refusal = Some((scope, kernel, error)),
        }
    }
    Err(refusal.map_or_else(
        || "perf_event is refused".to_owned(),
        |(scope, kernel, error)| refused(&error, event_scope(scope, kernel, pids), target),
    ))
}

/// What is sampled, for the cause of a refusal. Users who may see the kernel may see their own threads there.
fn event_scope(scope: Scope, kernel: bool, pids: &[pid_t]) -> EventScope {
    match (scope, kernel) {
        (Scope::Cpus, _) if pids.is_empty() => EventScope::Machine,
        (_, true) => EventScope::Kernel,
        (_, false) => EventScope::OwnCode,
    }
}

/// The refusal for this error of perf_event_open(2). `target`: the process, and whether this one started it.
fn refused(error: &io::Error, scope: EventScope, target: Option<(pid_t, bool)>) -> Refusal {
    if set::is_limit(error) {
        return error.to_string();
    }
    let Some(errno) = error.raw_os_error() else {
        return format!("perf_event failed: {}", crate::error::io_text(error));
    };
    let (pid, is_launched) = target.unzip();
    let cause = refusal::cause(Call::Sample(scope), errno, pid, is_launched.unwrap_or(false));
    format!("perf_event refused: {cause}")
}

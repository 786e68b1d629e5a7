//! Attaches or launches, samples until the end, and returns the profile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::binary::Files;
use crate::cli::args::Heap;
use crate::cli::args::{LaunchOptions, Source, Verbosity};
use crate::cli::progress::Progress;
use crate::cli::stats::CommandState;
use crate::cli::{demo, messages, system, text};
use crate::clock::{Clock, FakeClock, RealClock};
use crate::error::{Error, ErrorKind, Result, io_text};
use crate::live::Live;
use crate::recording::Recording;
use crate::sampler::{self, Options};
use crate::sources::gdb::{self, GdbHeap, GdbHeapSource};
use crate::sources::signals::{self, Phase};
use crate::sources::sim::{SimConfig, SimTarget};
use crate::sources::{Role, SampleSource, Sampling, SamplingMethod};

/// A profile, and the files of its process.
type Sampled = (Recording, Arc<dyn Files>);

/// Placeholder for a process id that is not known yet.
const NO_PID: u32 = 0;

/// The system-specific sampling options.
#[derive(Clone, Copy, Debug)]
pub(super) struct SamplingMode<'h> {
    /// Source of the samples.
    pub(super) method: SamplingMethod,
    /// With kernel frames.
    pub(super) kernel: bool,
    /// With child processes; and whether there must be some.
    pub(super) children: bool,
    pub(super) children_needed: bool,
    /// Records allocations instead of CPU time; with a seed.
    pub(super) allocations: Option<(&'h Heap, u64)>,
}

/// Bytes of stack copied per allocation behind a stub: the target is stopped meanwhile.
const GDB_STACK_BYTES: usize = 4 << 10;

/// Samples `source`. `check_name` is called once the process name and id are known, before the first sample.
///
/// # Errors
/// One line: attaching refused, or the error of `check_name`.
pub(super) fn run(
    source: &Source,
    launch: &LaunchOptions,
    mode: SamplingMode<'_>,
    options: &Options,
    verbosity: Verbosity,
    check_name: &(dyn Fn(&str, u32) -> Result<()> + Sync),
) -> Result<(Sampled, CommandState)> {
    let live = Arc::new(Live::default());
    let pid = AtomicU32::new(NO_PID);
    signals::watch(&live, matches!(source, Source::Launch(_) | Source::Demo));
    let recorder = Recorder { source, options, verbosity, live: &live, pid: &pid, check_name };
    let process = match source {
        Source::Sim { seed } => {
            let clock = FakeClock::default();
            let mut target = SimTarget::new(SimConfig::from_seed(*seed), clock.clone());
            return recorder.record(SampleSource::Stopped(&mut target), &clock).map(not_launched);
        }
        Source::Gdb(stub) => {
            let clock = RealClock::new();
            let state = match mode.allocations {
                // Breakpoints are set before it runs: a target stopped at its start has not lost any block.
                Some(_) => gdb::InitialState::Stopped,
                None => gdb::InitialState::Running,
            };
            let mut target = gdb::attach(&stub.place, stub.exec.as_deref(), state, clock.clone())?;
            if let Some((heap, _)) = mode.allocations {
                let heap = GdbHeap::new(target, &heap.allocator, GDB_STACK_BYTES)?;
                let mut source = GdbHeapSource::new(heap, clock.clone());
                return recorder.record(SampleSource::Pushed(&mut source), &clock).map(not_launched);
            }
            return recorder.record(SampleSource::Stopped(&mut target), &clock).map(not_launched);
        }
        Source::Pid(pid) => {
            if verbosity != Verbosity::Quiet
                && let Some(why) = system::why_not_running(*pid)
            {
                messages::note(&format!("pid {pid} does not run now: {why}"));
            }
            system::Process::Running(*pid)
        }
        Source::Launch(words) => system::Process::New { words: words.clone(), user: launch.run_as.clone() },
        Source::Several(several) => system::Process::Several(several.clone()),
        Source::Demo => {
            let program = std::env::current_exe().map_err(|error| {
                Error::new(ErrorKind::System, format!("cannot find my own program: {}", io_text(&error)))
                    .caused_by(error)
            })?;
            let words = vec![program.into_os_string(), demo::WORKLOAD.into()];
            system::Process::New { words, user: None }
        }
    };
    let SamplingMode { method, kernel, children, children_needed, allocations } = mode;
    match (allocations, &process) {
        (Some((heap, seed)), system::Process::New { words, .. }) => {
            let every = (heap.every_bytes, seed, heap.records_mappings);
            let sampled =
                system::with_heap_source(words, every, |sampled, clock| recorder.record(sampled, clock));
            return end_command(pid.into_inner(), launch.kill_after, sampled.and_then(|sampled| sampled));
        }
        (Some((heap, _)), system::Process::Running(process)) => {
            let (every_bytes, max_percent) = (heap.every_bytes, heap.max_slowdown_percent);
            let sampled = system::with_probed_heap(*process, every_bytes, max_percent, |sampled, clock| {
                recorder.record(sampled, clock)
            });
            return sampled.and_then(|sampled| sampled).map(not_launched);
        }
        _ => {}
    }
    let &Options { hz, idle, off_cpu, .. } = options;
    let sampling = Sampling { method, hz, idle, off_cpu, kernel, children, children_needed };
    let sampled = system::with_source(&process, sampling, |sampled, clock| recorder.record(sampled, clock));
    let sampled = sampled.and_then(|sampled| sampled);
    if !matches!(process, system::Process::New { .. }) {
        return sampled.map(not_launched);
    }
    end_command(pid.into_inner(), launch.kill_after, sampled)
}

/// Records from an attached or launched source.
struct Recorder<'a> {
    source: &'a Source,
    options: &'a Options,
    verbosity: Verbosity,
    live: &'a Arc<Live>,
    /// Set once the process is known.
    pid: &'a AtomicU32,
    check_name: &'a (dyn Fn(&str, u32) -> Result<()> + Sync),
}

impl Recorder<'_> {
    fn record(&self, mut sampled: SampleSource<'_>, clock: &dyn Clock) -> Result<Sampled> {
        let observed = sampled.observed();
        // Now, because the target may have exited when the profile is complete.
        let files = observed.files();
        let process = observed.process();
        self.pid.store(process.pid, Ordering::Relaxed);
        let title = text::process(&process.name, process.pid);
        (self.check_name)(&process.name, process.pid)?;
        // The command was forked before, with all privileges.
        system::restrict_sampler(match (&sampled, self.source) {
            (_, Source::Sim { .. } | Source::Gdb(_)) => Role::SamplingByStub,
            // The tracer thread makes the ptrace calls.
            (SampleSource::Stopped(target), _) if target.call_thread().is_some() => Role::Tracing,
            (SampleSource::Stopped(_), _) => Role::SamplingByPtrace,
            (SampleSource::Pushed(_), _) => Role::SamplingByKernel,
        })?;
        let limit = self.options.duration_ns.map(Duration::from_nanos);
        let progress =
            Progress::start(Arc::clone(self.live), title, limit, self.verbosity == Verbosity::Quiet);
        signals::enter(Phase::Recording);
        let recording = match sampled {
            SampleSource::Stopped(target) => sampler::record(target, clock, self.options, self.live),
            SampleSource::Pushed(source) => sampler::pushed::record(source, clock, self.options, self.live),
        };
        progress.finish();
        let mut recording = recording?;
        // A simulated run has no wall-clock time.
        if !matches!(self.source, Source::Sim { .. }) {
            let passed_ns = clock.now_ns().saturating_sub(recording.stats.begun_ns);
            recording.stats.begun_unix_ns = unix_ns().map(|now_ns| now_ns.saturating_sub(passed_ns));
        }
        Ok((recording, files))
    }
}

/// Current time, nanoseconds since 1970 (UTC).
fn unix_ns() -> Option<u64> {
    let since = std::time::UNIX_EPOCH.elapsed().ok()?;
    u64::try_from(since.as_nanos()).ok()
}

fn not_launched(sampled: Sampled) -> (Sampled, CommandState) {
    (sampled, CommandState::Ended)
}

/// Checks whether a launched command still runs, and ends it with `--kill-after`. The recording is over, so its
/// end is not in the profile.
fn end_command(pid: u32, kill: bool, sampled: Result<Sampled>) -> Result<(Sampled, CommandState)> {
    if pid == NO_PID {
        // The command has not been run.
        return sampled.map(not_launched);
    }
    let before = system::command_end(pid, false);
    let end = if kill { before.or_else(|| system::command_end(pid, true)) } else { before };
    let state = match (before, end) {
        (Some(_), _) => CommandState::Ended,
        (None, Some(_)) => CommandState::Killed,
        (None, None) if kill => CommandState::Survived,
        (None, None) => CommandState::Runs,
    };
    let (mut recording, files) = sampled.map_err(|error| match state {
        _ if state.still_runs() => {
            Error::new(error.kind(), format!("{error}; the command runs on as pid {pid}"))
        }
        _ => error,
    })?;
    recording.stats.exit_status = recording.stats.exit_status.or(end);
    Ok(((recording, files), state))
}

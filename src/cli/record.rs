//! `stackprof record`: check, record, symbolicate, write, report.
//!
//! [`run`] has these steps in order. `Destinations` has the outputs and checks them before the recording,
//! `Recorder` attaches or launches and samples, `RecordingRun` and `OutputJob` are what the steps after it work on;
//! `record/report.rs` reports the result.

mod report;

use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::args::{
    self, Destination, Heap, Output, Pattern, RecordOptions, RecordingOptions, Source, Verbosity,
};
use super::embedded_code::EmbeddedCode;
use super::file::{OutputFiles, check_stdout};
use super::messages::{self, Progress};
use super::outputs::{self, Failure, Format, FormatOptions, Presentation, check_options};
use super::stats::{CommandState, Memory, RunFigures};
use super::{demo, open, summary, system, text};
use crate::binary::Files;
use crate::clock::{Clock, FakeClock, RealClock};
use crate::conversion::{self, ConversionOptions};
use crate::error::{Error, ErrorKind, Result, io_text};
use crate::flamegraph::Caption;
use crate::heap::HeapValues;
use crate::live::Live;
use crate::profile::SavedProfile;
use crate::recording::Recording;
use crate::sampler::{self, Options};
use crate::sources::gdb::{self, GdbHeap, GdbHeapSource};
use crate::sources::signals::{self, Phase};
use crate::sources::sim::{SimConfig, SimTarget};
use crate::sources::user_files::UserFiles;
use crate::sources::{HeapOptions, Role, SampleSource, Sampling};
use crate::symbol;
use crate::trie::FrameId;

/// Ctrl-C in a terminal also signals a launched command; we wait this long for it to end, so that the summary can
/// report it.
const LINGER_NS: u64 = 500_000_000;

/// Every recorded stack can be read back from every format.
const _: () = assert!(args::DEPTH_MAX <= crate::profile::DEPTH_MAX);

/// Records and writes the outputs.
///
/// # Errors
/// One line: attaching refused, an output that cannot be written, nothing sampled.
pub fn run(request: &RecordOptions) -> Result<()> {
    let launched = matches!(request.source, Source::Launch(_) | Source::Demo);
    let files = OutputFiles::new();
    let destinations = Destinations {
        files: &files,
        requested: &request.recording.output.outputs,
        default_format: request.recording.output.format.unwrap_or(Format::Svg),
        demo: request.source == Source::Demo,
    };
    // A command must not run only to find that its profile cannot be written.
    check(request, &destinations)?;
    let RecordingRun { mut recording, target_files, command, user_behind_root, memory } =
        record(request, launched, &destinations)?;

    let begun = Instant::now();
    let outputs = destinations.outputs(&recording.process.name, recording.process.pid);
    // While this thread still may take the ids of recorded users.
    let source_files = source_files(request, &recording, &outputs);
    system::restrict_to_symbolizing(&files);
    let names = symbolicate(request, &recording, &*target_files, &outputs);
    let named = Instant::now();

    system::restrict(Role::Writing);
    // What `--kill-after` ended is not the whole run of the command.
    let is_whole = launched && command == CommandState::Ended;
    let conversion_options = conversion_options(request, is_whole, &recording, &outputs);
    let heap = request.heap.as_ref().and_then(|heap| Some((heap, heap_values(heap, &mut recording)?)));
    let mut saved = profile(&recording, &names, conversion_options, heap.as_ref())?;
    if let Some(cut) = saved.cut_names().filter(|_| request.verbosity() != Verbosity::Quiet) {
        messages::note(&cut);
    }
    saved.about.exit = recording.stats.exit_status.filter(|_| is_whole).and_then(text::exit_status);
    let counted = heap
        .as_ref()
        .map(|(heap, values)| super::heap::counted(heap, values, recording.stats.processes_seen));
    let presentation = presentation(
        request,
        &recording,
        counted.as_deref(),
        &saved,
        source_files.map(|source_files| (target_files, source_files)),
    );
    let figures = || RunFigures {
        command,
        memory,
        user_behind_root,
        symbolicate_s: (named - begun).as_secs_f64(),
        heap: heap.as_ref().map(|(_, values)| super::heap::figures(&recording, values)),
        ..report::figures(&recording, &names, launched, &outputs)
    };
    let result = OutputJob {
        request,
        files: &files,
        outputs: &outputs,
        recording: &recording,
        saved: &saved,
        presentation: &presentation,
    };
    let (figures, failures) = write(&result, named, figures);
    match &heap {
        Some((options, values)) => {
            let continues_unrecorded =
                recording.heap.as_ref().is_some_and(|heap| heap.losses.ended_early.is_some());
            let has_ended = recording.stats.exit_status.is_some() && !continues_unrecorded;
            let table = super::heap::leak_table(&saved, options, has_ended, messages::width());
            report::heap_summary(request.verbosity(), &recording, &names, &figures, (options, values), table);
        }
        None => report::summary(request, &recording, &names, &figures),
    }
    let mut written = outputs::report(failures);
    let output = &request.recording.output;
    if output.open {
        // Ctrl-C in the viewer ends the process before it returns.
        if let Err(error) = &written {
            messages::error(error);
            written = Err(Error::new(ErrorKind::Output, "not all outputs could be written, see above"));
        }
        signals::enter(Phase::Server);
        let Presentation { page_title, source, code, .. } = presentation;
        if let Some(code) = &code {
            let code = open::Code::Embedded(code);
            open::show(saved, &page_title, source.as_deref(), code, &output.viewer, request.verbosity())?;
        }
    }
    written?;
    report::cut_short(&recording).map_or(Ok(()), Err)
}

/// Refuses destinations that cannot be written.
fn check(request: &RecordOptions, destinations: &Destinations<'_>) -> Result<()> {
    let RecordingOptions { output, pprof_timestamps, picture, .. } = &request.recording;
    // The viewer may be the page.
    let source_directories = output.source_directories().filter(|_| !output.open).unwrap_or_default();
    let (reverse, pprof_timestamps) = (picture.reverse, *pprof_timestamps);
    let options = FormatOptions { reverse, pprof_timestamps, source_directories };
    destinations.check(&options, output.stats.as_ref())
}

/// A recording with samples, and what only its run knows.
struct RecordingRun {
    recording: Recording,
    target_files: Arc<dyn Files>,
    command: CommandState,
    /// The user for whom sudo or doas ran the command as root, without `--as`.
    user_behind_root: Option<String>,
    /// Memory of the profiler itself at the end of the recording.
    memory: Memory,
}

fn record(request: &RecordOptions, launched: bool, destinations: &Destinations<'_>) -> Result<RecordingRun> {
    let check_name = |name: &str, pid: u32| destinations.check_default(name, pid);
    let is_own = matches!(request.source, Source::Launch(_)) && request.launch.run_as.is_none();
    // Before this thread switches to that user.
    let user_behind_root = is_own.then(system::user_behind_root).flatten();
    let ((recording, target_files), command) =
        sample(request, &sampling_options(request, launched), &check_name)?;
    let memory = system::own_memory();
    signals::enter(Phase::Output);
    if recording.stats.samples == 0 {
        return Err(nothing_recorded(request, &recording, command));
    }
    Ok(RecordingRun { recording, target_files, command, user_behind_root, memory })
}

/// The profile of a recording, with the values of its allocations if it is one of them.
fn profile(
    recording: &Recording,
    names: &symbol::Names,
    conversion_options: ConversionOptions,
    heap: Option<&(&Heap, HeapValues)>,
) -> Result<SavedProfile> {
    let saved = match heap {
        Some((heap, values)) => {
            conversion::saved_heap_profile(recording, names, conversion_options, values, heap.shown())
        }
        None => conversion::saved_profile(recording, names, conversion_options),
    };
    let mut saved = saved.map_err(|full| Error::new(ErrorKind::Output, full.to_string()).caused_by(full))?;
    if let Some((heap, _)) = heap {
        saved.group_inuse(heap.callers.unwrap_or(1), &|name| Pattern::any_matches(&heap.skip, name));
    }
    Ok(saved)
}

/// Why there is nothing to write.
fn nothing_recorded(request: &RecordOptions, recording: &Recording, command: CommandState) -> Error {
    let program = match &request.source {
        Source::Launch(command) => command.first().map(|program| &**program),
        _ => None,
    };
    match &request.heap {
        Some(heap) => super::heap::nothing_recorded(recording, program, heap),
        None => {
            let nothing = report::EmptyRecording {
                idle: request.recording.cpu.idle,
                off_cpu: request.scope.off_cpu,
                program,
                command,
            };
            report::nothing_sampled(recording, &nothing)
        }
    }
}

/// Memory figures of a heap recording. Only old blocks are in use if that was requested.
fn heap_values(heap: &Heap, recording: &mut Recording) -> Option<HeapValues> {
    let end_ns = recording.stats.begun_ns + recording.stats.duration_ns;
    let recorded = recording.heap.as_mut()?;
    if heap.older_than.is_some() {
        recorded.model.forget_young(end_ns);
    }
    let mut values = recorded.model.values(heap.moment());
    values.add_losses(&recorded.losses.allocations, recorded.losses.frees);
    Some(values)
}

/// Symbolicates the frames of a recording.
fn symbolicate(
    request: &RecordOptions,
    recording: &Recording,
    files: &dyn Files,
    outputs: &[Output],
) -> symbol::Names {
    let symbols = &request.recording.picture.symbols;
    let lines = symbols.lines
        || request.recording.output.open
        || outputs.iter().any(keeps_lines)
        // The table of leaks tells sites apart by them.
        || request.heap.as_ref().is_some_and(|heap| heap.callers.is_none());
    let options = symbol::Options { lines, files_by_process: &recording.files, ..symbols.with(files) };
    let frames = recording.trie.frames().enumerate();
    let frames = frames.map(|(index, frame)| (FrameId(index as u32), frame));
    symbol::symbolicate(frames, &recording.images, &options)
}

/// A finished recording: its profile and its outputs.
#[derive(Clone, Copy)]
struct OutputJob<'r, 'a> {
    request: &'r RecordOptions,
    files: &'a OutputFiles,
    outputs: &'a [Output],
    recording: &'a Recording,
    saved: &'a SavedProfile,
    presentation: &'a Presentation,
}

/// Writes the outputs and the statistics. Returns the figures, and what could not be written. Files are written
/// before pipes: a signal while a pipe has no reader then loses none of them. Statistics in a file name
/// pipes, which may still fail.
fn write(
    job: &OutputJob<'_, '_>,
    named: Instant,
    figures: impl FnOnce() -> RunFigures,
) -> (RunFigures, Vec<Failure>) {
    let &OutputJob { request, files, outputs, recording, saved, presentation } = job;
    let may_wait = |output: &Output| write_may_wait(&output.to);
    let (waiting, immediate): (Vec<Output>, Vec<Output>) = outputs.iter().cloned().partition(may_wait);
    let mut failures = outputs::write(files, saved, &immediate, presentation);
    let mut figures = figures();
    figures.outputs = outputs::written(outputs, &failures);
    figures.write_s = named.elapsed().as_secs_f64();
    let (waiting_stats, stats_files): (Vec<_>, Vec<_>) =
        request.recording.output.stats.iter().partition(|to| write_may_wait(to));
    let write_stats = |to: &Destination, figures: &RunFigures| {
        report::stats(files, to, recording, figures).err().map(|error| Failure::of(to, error))
    };
    failures.extend(stats_files.into_iter().filter_map(|to| write_stats(to, &figures)));
    failures.extend(outputs::write(files, saved, &waiting, presentation));
    figures.outputs = outputs::written(outputs, &failures);
    if request.verbosity() != Verbosity::Quiet && request.heap.is_none() {
        match hottest(saved) {
            Ok(line) => figures.hottest = line,
            Err(error) => failures.push(error.into()),
        }
    }
    figures.write_s = named.elapsed().as_secs_f64();
    failures.extend(waiting_stats.into_iter().filter_map(|to| write_stats(to, &figures)));
    (figures, failures)
}

/// The summary line with the functions that have the most self counts.
fn hottest(saved: &SavedProfile) -> Result<Option<String>> {
    let table = summary::read(saved, false)?;
    let width = messages::width().saturating_sub(summary::LABEL_CHARS);
    Ok(summary::hottest(&table, &saved.processes(), width))
}

/// Metadata of the recording outside of its profile.
fn conversion_options(
    request: &RecordOptions,
    launched: bool,
    recording: &Recording,
    outputs: &[Output],
) -> ConversionOptions {
    let keeps_times = |output: &Output| {
        output.format.keeps_times() || (request.recording.pprof_timestamps && output.format == Format::Pprof)
    };
    ConversionOptions {
        time_unix_ns: recording.stats.begun_unix_ns,
        launched,
        idle: request.recording.cpu.idle || request.scope.off_cpu,
        per_process: request.scope.per_process,
        without_times: !request.recording.output.open && !outputs.iter().any(keeps_times),
    }
}

/// Options of the sampler.
fn sampling_options(request: &RecordOptions, launched: bool) -> sampler::Options {
    let args::SamplingOptions { duration, threads, unwind, max_depth, seed } = request.recording.sampling;
    sampler::Options {
        hz: request.hz(),
        duration_ns: duration.map(|duration| duration.as_nanos().try_into().unwrap_or(u64::MAX)),
        idle: request.recording.cpu.idle,
        off_cpu: request.scope.off_cpu,
        threads,
        timeline_bytes: request.timeline_bytes(),
        max_depth,
        unwind,
        seed: seed.unwrap_or(match request.source {
            // The seed alone replays a simulated run.
            Source::Sim { seed } => seed,
            _ => u64::from(std::process::id()),
        }),
        max_stop: request.max_stop_percent() / 100.0,
        block_age_min_ns: request.heap.as_ref().and_then(Heap::older_than_ns).unwrap_or(0),
        linger_ns: if launched { LINGER_NS } else { 0 },
    }
}

/// What source is read by for pages and viewers; `None` if none is shown.
fn source_files(
    request: &RecordOptions,
    recording: &Recording,
    outputs: &[Output],
) -> Option<Arc<UserFiles>> {
    let output = &request.recording.output;
    if !output.open && !outputs.iter().any(|output| output.format == Format::Html) {
        return None;
    }
    let is_asked = output.source_directories().is_some_and(|named| !named.is_empty());
    Some(Arc::new(UserFiles::of_recorded(&recording.users, is_asked)))
}

/// Whether a format stores lines; the others need not pay for them.
fn keeps_lines(output: &Output) -> bool {
    !matches!(output.format, Format::Svg | Format::Folded)
}

/// Presentation of the outputs.
fn presentation(
    request: &RecordOptions,
    recording: &Recording,
    counted: Option<&str>,
    saved: &SavedProfile,
    code_files: Option<(Arc<dyn Files>, Arc<UserFiles>)>,
) -> Presentation {
    let stats = &recording.stats;
    let samples = text::plural(stats.samples, "sample");
    let caption = Caption {
        process: &recording.process.name,
        pid: Some(recording.process.pid).filter(|pid| *pid > 0),
        hz_requested: saved.about.hz,
        ticks: saved.about.hz.and(stats.achieved_hz()).map(|_| stats.ticks),
        duration_ns: Some(stats.duration_ns),
        counted: counted.unwrap_or(&samples),
        lost: stats.samples_lost.values().sum(),
        incomplete: stats.stacks_incomplete.values().sum(),
    };
    let RecordingOptions { output, pprof_timestamps, picture, .. } = &request.recording;
    let (title, subtitle) = caption.headings(output.title.as_deref());
    let page_title = match (counted, &output.title) {
        (Some(counted), None) => format!("{title}: {counted}"),
        _ => title.clone(),
    };
    let unit = if request.heap.is_some() { saved.about.unit.clone() } else { String::new() };
    Presentation {
        graph: picture.graph.graph(title, subtitle, unit),
        page_title,
        title: output.title.clone(),
        source: summary::source(&recording.process),
        code: code_files.map(|(images, sources)| {
            let is_quiet = request.verbosity() == Verbosity::Quiet;
            EmbeddedCode::new(output.source_directories(), images, sources, is_quiet)
        }),
        lines: picture.symbols.lines,
        pprof_timestamps: *pprof_timestamps,
        reverse: picture.reverse,
    }
}

// ---- The outputs of a recording: the requested ones, or one named after the process. Checks before recording
// whether they can be written.

/// Whether writing there may wait for a reader: a pipe, a terminal, standard output.
fn write_may_wait(to: &Destination) -> bool {
    match to {
        Destination::File(path) => {
            std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir())
        }
        Destination::Stdout => true,
    }
}

/// Where the profile goes.
#[derive(Clone, Copy, Debug)]
struct Destinations<'a> {
    /// Keeps the directories of outputs open until they are written.
    files: &'a OutputFiles,
    /// Requested outputs; if empty, the default one, `stackprof-NAME-PID.svg`.
    requested: &'a [Output],
    /// Format of the default output.
    default_format: Format,
    /// The process is the built-in workload, which has its own default output name.
    demo: bool,
}

impl Destinations<'_> {
    /// The outputs of a recording of this process.
    fn outputs(&self, process: &str, pid: impl Display) -> Vec<Output> {
        if !self.requested.is_empty() {
            return self.requested.to_vec();
        }
        let (extension, pid) = (self.default_format.extension(), pid.to_string());
        let path = if self.demo {
            format!("stackprof-demo.{extension}")
        } else {
            // The placeholder for several processes has no number.
            let pid = if pid == "0" { String::new() } else { format!("-{pid}") };
            format!("stackprof-{}{pid}.{extension}", file_name(process))
        };
        vec![Output { to: Destination::File(path.into()), format: self.default_format }]
    }

    /// Checks everything that does not depend on the process; `stats` is the destination of the
    /// statistics.
    ///
    /// # Errors
    /// One line: an option for a format that is not written, a file that cannot be written.
    fn check(&self, options: &FormatOptions<'_>, stats: Option<&Destination>) -> Result<()> {
        // The name of the default output is not known yet; its directory and its format are.
        let (process, pid) = ("NAME", "PID");
        check_options(options, &self.outputs(process, pid))?;
        for to in self.requested.iter().map(|output| &output.to).chain(stats) {
            match to {
                Destination::File(path) => self.files.check(path)?,
                Destination::Stdout => check_stdout()?,
            }
        }
        self.check_default(process, pid)
    }

    /// Checks whether the default output can be written, if it is used.
    ///
    /// # Errors
    /// One line: the reason, and the next step.
    fn check_default(&self, process: &str, pid: impl Display) -> Result<()> {
        if !self.requested.is_empty() {
            return Ok(());
        }
        self.outputs(process, pid)
            .iter()
            .try_for_each(|output| self.files.check(output.to.as_path()))
            .map_err(|error| {
                // The remedy is -o.
                let why = error.to_string();
                let why = why.strip_suffix("; name a file where you may write").unwrap_or(&why);
                Error::new(error.kind(), format!("{why}; name another output with -o FILE")).caused_by(error)
            })
    }
}

/// The name of a process as a part of a file name. A process can have any name; the file stays in
/// this directory.
fn file_name(process: &str) -> String {
    let name: String = process
        .chars()
        .map(|c| if c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '+') { c } else { '_' })
        .take(64)
        .collect();
    if name.is_empty() { "process".to_owned() } else { name }
}

// ---- Attaches or launches, samples until the end, and returns the recording.

/// A recording, and the files of its process.
type Sampled = (Recording, Arc<dyn Files>);

/// Placeholder for a process id that is not known yet.
const NO_PID: u32 = 0;

/// Bytes of stack copied per allocation behind a stub: the target is stopped meanwhile.
const GDB_STACK_BYTES: usize = 4 << 10;

/// Samples the requested source. `check_name` is called once the process name and id are known, before the first sample.
///
/// # Errors
/// One line: attaching refused, or the error of `check_name`.
fn sample(
    request: &RecordOptions,
    options: &Options,
    check_name: &(dyn Fn(&str, u32) -> Result<()> + Sync),
) -> Result<(Sampled, CommandState)> {
    let RecordOptions { source, launch, heap, .. } = request;
    let verbosity = request.verbosity();
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
            let state = match heap {
                // Breakpoints are set before it runs: a target stopped at its start has not lost any block.
                Some(_) => gdb::InitialState::Stopped,
                None => gdb::InitialState::Running,
            };
            let mut target = gdb::attach(&stub.place, stub.exec.as_deref(), state, clock.clone())?;
            if let Some(heap) = heap {
                let heap = GdbHeap::new(target, &heap.allocator(), GDB_STACK_BYTES)?;
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
    match (heap, &process) {
        (Some(heap), system::Process::New { words, .. }) => {
            let seed = request.recording.sampling.seed.unwrap_or(0);
            let every = HeapOptions { every_bytes: heap.every_bytes(), seed, records_mappings: heap.mmap };
            let sampled =
                system::with_heap_source(words, every, |sampled, clock| recorder.record(sampled, clock));
            return end_command(pid.into_inner(), launch.kill_after, sampled.and_then(|sampled| sampled));
        }
        (Some(heap), system::Process::Running(process)) => {
            let (every_bytes, max_percent) = (heap.every_bytes(), heap.max_slowdown_percent());
            let sampled = system::with_probed_heap(*process, every_bytes, max_percent, |sampled, clock| {
                recorder.record(sampled, clock)
            });
            return sampled.and_then(|sampled| sampled).map(not_launched);
        }
        _ => {}
    }
    let sampling = Sampling {
        method: request.method(),
        hz: options.hz,
        idle: options.idle,
        off_cpu: options.off_cpu,
        kernel: !request.recording.cpu.no_kernel,
        children: request.children(),
        children_needed: request.children_needed(),
    };
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

#[cfg(test)]
mod destinations_tests {
    use super::*;

    fn outputs(
        requested: &[Output],
        default_format: Format,
        demo: bool,
        name: &str,
    ) -> Vec<(String, Format)> {
        let files = &OutputFiles::default();
        let outputs = Destinations { files, requested, default_format, demo }.outputs(name, 42);
        outputs.iter().map(|output| (output.to.as_path().display().to_string(), output.format)).collect()
    }

    #[test]
    fn the_default_output_names_the_process() {
        for (name, format, expected) in [
            ("work", Format::Svg, "stackprof-work-42.svg"),
            ("../../a b\n", Format::Svg, "stackprof-.._.._a_b_-42.svg"),
            ("", Format::Svg, "stackprof-process-42.svg"),
            ("w", Format::Folded, "stackprof-w-42.folded"),
            ("w", Format::Pprof, "stackprof-w-42.pb.gz"),
        ] {
            assert_eq!(outputs(&[], format, false, name), [(expected.to_owned(), format)]);
        }
        assert_eq!(outputs(&[], Format::Svg, true, "w"), [("stackprof-demo.svg".to_owned(), Format::Svg)]);
    }

    #[test]
    fn requested_outputs_replace_the_default() {
        let requested = [Output { to: Destination::File("a.svg".into()), format: Format::Svg }];
        assert_eq!(outputs(&requested, Format::Folded, false, "w"), [("a.svg".to_owned(), Format::Svg)]);
    }
}

//! `stackprof record`: attach or launch, record, name, write, tell.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::args::{Destination, Naming, Output, Recording, Source, Verbosity};
use super::outputs::{self, Shown};
use super::progress::Progress;
use super::stats::{self, RunFigures};
use super::{demo, hints, messages, summary, system, text};
use crate::binary::Files;
use crate::cli::file;
use crate::cli::format::Format;
use crate::clock::{Clock, FakeClock};
use crate::error::{Error, ErrorKind, Result, io_text};
use crate::flamegraph::{Caption, Graph};
use crate::live::Live;
use crate::profile::{Circumstances, Saved};
use crate::recording::Profile;
use crate::sampler::{self, Options};
use crate::sources::sim::{SimConfig, SimTarget};
use crate::sources::{ExitStatus, Target, swift_demangle};
use crate::symbol::{self, Names};

/// After Ctrl-C a launched command gets the signal from the terminal, too; its end is
/// waited for this long so that the summary can tell how it ended.
const LINGER_NS: u64 = 500_000_000;

/// Exit code of a second Ctrl-C: 128 + SIGINT, as shells report it.
const GIVEN_UP: i32 = 130;

/// What is recorded can be read again from every form.
const _: () = assert!(super::args::DEPTH_MAX <= crate::profile::MAX_DEPTH);

/// Records and writes what `recording` asks for.
///
/// # Errors
/// One line: attaching refused, an output that cannot be written, nothing sampled.
pub fn run(recording: &Recording) -> Result<()> {
    outputs::check_reverse(recording.reverse, &recording.outputs_for("NAME", "PID"))?;
    for path in destinations(recording) {
        file::check_writable(path)?;
    }
    // The name of the default output is not known before the process is, its directory is;
    // a command must not run only to hear that its profile cannot be kept.
    check_default_output(recording, "NAME", "PID")?;
    let live = Arc::new(Live::default());
    let circumstances = circumstances(recording);
    let (profile, files) = acquire(recording, &live)?;
    if profile.stats.samples == 0 {
        return Err(nothing_sampled(&profile, recording));
    }
    let begun = Instant::now();
    let frames = profile.trie.frames().enumerate();
    let frames = frames.map(|(index, frame)| (crate::trie::FrameId(index as u32), frame));
    let outputs = recording.outputs_for(&profile.process.name, profile.process.pid);
    // These forms have a place for lines, which others need not pay for.
    let keeps_lines = |output: &Output| matches!(output.format, Format::Pprof | Format::Speedscope);
    let lines = recording.naming.lines || outputs.iter().any(keeps_lines);
    let options = naming(Naming { lines, ..recording.naming }, &*files);
    let names = symbol::symbolicate(frames, &profile.images, &options);
    let symbolicated = Instant::now();
    let saved = Saved::from_recording(&profile, &names, circumstances)
        .map_err(|full| Error::new(ErrorKind::Output, full.to_string()))?;
    outputs::write(&saved, &outputs, &shown(recording, &profile))?;
    drop(saved);
    let mut figures = figures(&profile, &names, recording, &outputs);
    figures.symbolicate_s = (symbolicated - begun).as_secs_f64();
    figures.write_s = symbolicated.elapsed().as_secs_f64();
    if let Some(to) = &recording.stats {
        let json = stats::json(&profile.process, profile.hz, &profile.stats, &figures);
        outputs::write_to(to, &mut |out| out.write_all(json.as_bytes()))?;
    }
    if recording.verbosity != Verbosity::Quiet {
        let hints = hints::of(&profile, &names, recording);
        messages::block(&summary::text(&profile.process, profile.hz, &profile.stats, &figures, &hints));
        if recording.verbosity == Verbosity::Verbose {
            messages::block(&details(&profile, &names));
        }
    }
    Ok(())
}

/// How the symbols are to be read.
pub(super) fn naming(naming: Naming, files: &dyn Files) -> symbol::Options<'_> {
    let Naming { inlines, lines, style } = naming;
    let swift = swift_demangle;
    symbol::Options { inlines, lines, style, swift, files, ..symbol::Options::default() }
}

/// Files that will be written, as far as they are known before the process is.
fn destinations(recording: &Recording) -> impl Iterator<Item = &Path> {
    let outputs = recording.outputs.iter().map(|output| &output.to).chain(&recording.stats);
    outputs.filter_map(|to| match to {
        Destination::File(path) => Some(path.as_path()),
        Destination::Stdout => None,
    })
}

/// Finds out whether the output that nobody named can be written, if there is one.
fn check_default_output(recording: &Recording, process: &str, pid: impl std::fmt::Display) -> Result<()> {
    if !recording.outputs.is_empty() {
        return Ok(());
    }
    let outputs = recording.outputs_for(process, pid);
    outputs
        .iter()
        .try_for_each(|output| file::check_writable(output.to.as_path()))
        .map_err(|error| Error::new(error.kind(), format!("{error}; name another output with -o FILE")))
}

/// Runs the recording on whatever it is of.
fn acquire(recording: &Recording, live: &Arc<Live>) -> Result<(Profile, Arc<dyn Files>)> {
    let launched = matches!(recording.source, Source::Launch(_) | Source::Demo);
    let options = Options {
        hz: recording.hz,
        duration_ns: recording.duration.map(|duration| duration.as_nanos().try_into().unwrap_or(u64::MAX)),
        idle: recording.idle,
        threads: recording.threads,
        max_depth: recording.max_depth,
        unwind: recording.unwind,
        seed: recording.seed.unwrap_or(match recording.source {
            // A simulated run replays from its one number.
            Source::Sim { seed } => seed,
            _ => u64::from(std::process::id()),
        }),
        max_stop: recording.max_stop_percent / 100.0,
        linger_ns: if launched { LINGER_NS } else { 0 },
    };
    let record = |target: &mut dyn Target, clock: &dyn Clock| -> Result<(Profile, Arc<dyn Files>)> {
        // Now: when the profile is there, the target may be gone.
        let files = target.files();
        let process = target.process();
        check_default_output(recording, &process.name, process.pid)?;
        let title = format!("{} (pid {})", process.name, process.pid);
        let quiet = recording.verbosity == Verbosity::Quiet;
        let progress = Progress::start(Arc::clone(live), title, recording.duration, quiet);
        let profile = sampler::record(target, clock, &options, live);
        progress.finish();
        Ok((profile?, files))
    };
    match &recording.source {
        Source::Sim { seed } => {
            let clock = FakeClock::default();
            let mut target = SimTarget::new(SimConfig::from_seed(*seed), clock.clone());
            record(&mut target, &clock)
        }
        Source::Pid(pid) => on_this_system(&system::Process::Running(*pid), live, record),
        Source::Launch(command) => on_this_system(&system::Process::New(command.clone()), live, record),
        Source::Demo => {
            let program = std::env::current_exe().map_err(|error| {
                Error::new(ErrorKind::System, format!("cannot find my own program: {}", io_text(&error)))
            })?;
            let command = vec![program.into_os_string(), demo::WORKLOAD.into()];
            on_this_system(&system::Process::New(command), live, record)
        }
    }
}

/// Records a process of this system.
fn on_this_system<R: Send>(
    process: &system::Process,
    live: &Arc<Live>,
    record: impl FnOnce(&mut dyn Target, &dyn Clock) -> Result<R> + Send,
) -> Result<R> {
    system::prepare();
    end_on_interrupt(live)?;
    system::with_target(process, record)?
}

/// The first Ctrl-C ends the recording and lets the outputs be written, a second one
/// gives up at once. Either way the target runs on.
fn end_on_interrupt(live: &Arc<Live>) -> Result<()> {
    let live = Arc::clone(live);
    let pressed = AtomicU32::new(0);
    ctrlc::set_handler(move || {
        if pressed.fetch_add(1, Ordering::Relaxed) > 0 {
            std::process::exit(GIVEN_UP);
        }
        live.ask_to_stop();
    })
    .map_err(|error| Error::new(ErrorKind::System, format!("cannot watch for Ctrl-C: {error}")))
}

fn nothing_sampled(profile: &Profile, recording: &Recording) -> Error {
    let process = format!("{} (pid {})", profile.process.name, profile.process.pid);
    let seconds = profile.stats.duration_ns as f64 / 1e9;
    let why = match profile.stats.exit_status {
        Some(status) => {
            let how = match status {
                ExitStatus::Code(code) => format!("exited with code {code}"),
                ExitStatus::Signal(signal) => format!("was ended by signal {signal}"),
                ExitStatus::Unknown => "exited".to_owned(),
            };
            format!(
                "it {how} after {seconds:.3} s, before the first sample; a higher --hz sees shorter programs"
            )
        }
        None if recording.idle && profile.stats.samples_lost.contains_key("stopped by job control") => {
            let pid = profile.process.pid;
            format!("in {seconds:.1} s it was stopped by job control; let it run: kill -CONT {pid}")
        }
        None if recording.idle => format!("in {seconds:.1} s no thread could be stopped"),
        None => format!("in {seconds:.1} s it used no CPU time; --idle also records threads that wait"),
    };
    Error::new(ErrorKind::NoData, format!("nothing was sampled of {process}: {why}"))
}

/// What the outputs show.
fn shown(recording: &Recording, profile: &Profile) -> Shown {
    let stats = &profile.stats;
    let caption = Caption {
        process: &profile.process.name,
        pid: Some(profile.process.pid),
        hz_requested: Some(profile.hz),
        ticks: Some(stats.ticks),
        duration_ns: Some(stats.duration_ns),
        counted: &text::plural(stats.samples, "sample"),
        lost: stats.samples_lost.values().sum(),
        incomplete: stats.stacks_incomplete.values().sum(),
    };
    let (title, subtitle) = caption.headings(recording.title.as_deref());
    let graph = Graph {
        title,
        subtitle,
        unit: String::new(),
        min_width_percent: recording.min_width_percent,
        colors: recording.colors,
        dark: recording.dark,
        inverted: recording.inverted,
    };
    Shown { graph, title: recording.title.clone(), lines: recording.naming.lines, reverse: recording.reverse }
}

/// What is known of the recording beside its profile.
fn circumstances(recording: &Recording) -> Circumstances {
    let simulated = matches!(recording.source, Source::Sim { .. });
    let now = std::time::UNIX_EPOCH.elapsed().ok().and_then(|since| u64::try_from(since.as_nanos()).ok());
    Circumstances {
        // A simulated run has no time of its own.
        time_unix_ns: now.filter(|_| !simulated),
        launched: matches!(recording.source, Source::Launch(_) | Source::Demo),
        idle: recording.idle,
    }
}

fn figures(profile: &Profile, names: &Names, recording: &Recording, outputs: &[Output]) -> RunFigures {
    let (profiler_cpu_ns, profiler_peak_rss_bytes) = system::own_usage();
    RunFigures {
        launched: matches!(recording.source, Source::Launch(_) | Source::Demo),
        distinct_stacks: profile.trie.distinct_stacks() as u64,
        trie_nodes: profile.trie.node_count() as u64,
        trie_bytes: profile.trie.memory_bytes() as u64,
        addresses_unique: names.addresses_unique,
        addresses_looked_up: names.addresses_looked_up,
        addresses_named: names.addresses_named,
        profiler_cpu_s: profiler_cpu_ns as f64 / 1e9,
        profiler_peak_rss_bytes,
        symbolicate_s: 0.0,
        write_s: 0.0,
        outputs: outputs.iter().map(|output| output.to.as_path().display().to_string()).collect(),
    }
}

/// `-v`: each cause of a missing name, by image.
fn details(profile: &Profile, names: &Names) -> String {
    let mut out = String::new();
    for unnamed in &names.unnamed_by_image {
        let image = profile.images.images().get(unnamed.image as usize);
        let path = image.map_or("", |image| image.path.as_str());
        out += &text::visible(&format!("  unnamed  {} of {path}: {}", unnamed.addresses, unnamed.why));
        out.push('\n');
    }
    for note in &names.notes {
        out += &text::visible(&format!("  symbols  {note}"));
        out.push('\n');
    }
    out
}

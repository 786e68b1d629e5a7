//! `stackprof record`: check, record, name, write, tell.
//!
//! [`run`] is that order. Only this file knows all that was asked for; each step, in a file of
//! its own, gets what it uses: `destinations.rs` where the profile goes, `sampling.rs` attaches
//! or launches and samples, `tell.rs` says how it went.

mod destinations;
mod sampling;
mod tell;

use std::sync::Arc;
use std::time::Instant;

use super::args::{self, Naming, Output, Recording, Source, Verbosity};
use super::code_texts::CodeTexts;
use super::file::OutputFiles;
use super::format::Format;
use super::outputs::{self, Presentation};
use super::{functions, messages, naming, open, summary, system, text};
use crate::binary::Files;
use crate::error::{Error, ErrorKind, Result};
use crate::flamegraph::{Caption, Graph};
use crate::profile::{Circumstances, FunctionTable, Saved};
use crate::recording::Profile;
use crate::sampler;
use crate::sources::Role;
use crate::sources::signals::{self, Phase};
use crate::symbol;
use crate::trie::FrameId;
use destinations::Destinations;

/// After Ctrl-C a launched command gets the signal from the terminal, too; its end is
/// waited for this long so that the summary can tell how it ended.
const LINGER_NS: u64 = 500_000_000;

/// What is recorded can be read again from every form.
const _: () = assert!(args::DEPTH_MAX <= crate::profile::MAX_DEPTH);

/// Records and writes what was asked for.
///
/// # Errors
/// One line: attaching refused, an output that cannot be written, nothing sampled.
pub fn run(asked: &Recording) -> Result<()> {
    let launched = matches!(asked.source, Source::Launch(_) | Source::Demo);
    let files = OutputFiles::new();
    let destinations = Destinations {
        files: &files,
        asked: &asked.outputs,
        default_format: asked.default_format,
        demo: asked.source == Source::Demo,
    };

    // Check: a command must not run only to hear that its profile cannot be kept.
    destinations.check((asked.reverse, asked.pprof_timestamps), asked.stats.as_ref())?;

    // Record.
    let check_name = |name: &str, pid: u32| destinations.check_default(name, pid);
    let options = sampling_options(asked, launched);
    let is_own = matches!(asked.source, Source::Launch(_)) && asked.launch.run_as.is_none();
    // Before this thread becomes that user.
    let user_behind_root = is_own.then(system::user_behind_root).flatten();
    let &Recording { way, kernel, children, children_needed, .. } = asked;
    let how = sampling::SamplingChoice { way, kernel, children, children_needed };
    let ((profile, target_files), command) =
        sampling::run(&asked.source, &asked.launch, how, &options, asked.verbosity, &check_name)?;
    let memory = system::own_memory();
    signals::enter(Phase::Output);
    if profile.stats.samples == 0 {
        let program = match &asked.source {
            Source::Launch(command) => command.first().map(|program| &**program),
            _ => None,
        };
        let nothing = tell::Nothing { idle: asked.idle, off_cpu: asked.off_cpu, program, command };
        return Err(tell::nothing_sampled(&profile, &nothing));
    }

    // Name.
    let begun = Instant::now();
    let outputs = destinations.outputs(&profile.process.name, profile.process.pid);
    system::restrict_to_naming(&files);
    let lines = asked.naming.lines || asked.open.is_some() || outputs.iter().any(keeps_lines);
    let options = naming::options(Naming { lines, ..asked.naming }, &*target_files);
    let options = symbol::Options { files_by_process: &profile.files, ..options };
    let frames = profile.trie.frames().enumerate();
    let frames = frames.map(|(index, frame)| (FrameId(index as u32), frame));
    let names = symbol::symbolicate(frames, &profile.images, &options);
    let named = Instant::now();

    // Write.
    system::restrict(Role::Writing);
    let circumstances = Circumstances {
        without_times: asked.open.is_none()
            && !outputs.iter().any(|output| {
                output.format.keeps_times() || (asked.pprof_timestamps && output.format == Format::Pprof)
            }),
        ..circumstances(asked, launched, &profile)
    };
    let saved = Saved::from_recording(&profile, &names, circumstances)
        .map_err(|full| Error::new(ErrorKind::Output, full.to_string()).caused_by(full))?;
    // First what waits for nobody: a signal that ends the wait for a reader then loses none of it.
    let shown = shown(asked, &profile, target_files);
    let may_wait = |output: &Output| destinations::may_wait(&output.to);
    let (waiting, immediate): (Vec<Output>, Vec<Output>) = outputs.iter().cloned().partition(may_wait);
    outputs::write(&files, &saved, &immediate, &shown)?;
    let mut figures = tell::figures(&profile, &names, launched, &outputs);
    figures.command = command;
    figures.memory = memory;
    figures.user_behind_root = user_behind_root;
    figures.symbolicate_s = (named - begun).as_secs_f64();
    figures.write_s = named.elapsed().as_secs_f64();
    let (stats_waits, stats_file): (Vec<_>, Vec<_>) =
        asked.stats.iter().partition(|to| destinations::may_wait(to));
    for to in stats_file {
        tell::stats(&files, to, &profile, &figures)?;
    }
    outputs::write(&files, &saved, &waiting, &shown)?;
    if asked.verbosity != Verbosity::Quiet {
        figures.hottest = hottest(&saved)?;
    }
    let saved = asked.open.is_some().then_some(saved);
    figures.write_s = named.elapsed().as_secs_f64();

    // Tell.
    for to in stats_waits {
        tell::stats(&files, to, &profile, &figures)?;
    }
    tell::summary(asked.verbosity, &profile, &names, &figures, asked.unwind);
    if let (Some(opening), Some(saved)) = (&asked.open, saved) {
        signals::enter(Phase::Server);
        let Presentation { graph, source, code, .. } = shown;
        open::show(saved, &graph.title, source.as_deref(), code.as_ref(), opening, asked.verbosity)?;
    }
    tell::cut_short(&profile).map_or(Ok(()), Err)
}

/// The line of the summary that names the functions with the most self counts.
fn hottest(saved: &Saved) -> Result<Option<String>> {
    let table = FunctionTable::of(saved, false)
        .map_err(|full| Error::new(ErrorKind::Output, full.to_string()).caused_by(full))?;
    let width = messages::width().saturating_sub(summary::LABEL_CHARS);
    Ok(functions::hottest(&table, &saved.processes(), width))
}

/// What is known of the recording beside its profile.
fn circumstances(asked: &Recording, launched: bool, profile: &Profile) -> Circumstances {
    Circumstances {
        time_unix_ns: profile.stats.begun_unix_ns,
        launched,
        idle: asked.idle || asked.off_cpu,
        per_process: asked.per_process,
        without_times: false,
    }
}

/// How the sampler is to work.
fn sampling_options(asked: &Recording, launched: bool) -> sampler::Options {
    sampler::Options {
        hz: asked.hz,
        duration_ns: asked.duration.map(|duration| duration.as_nanos().try_into().unwrap_or(u64::MAX)),
        idle: asked.idle,
        off_cpu: asked.off_cpu,
        threads: asked.threads,
        timeline_bytes: asked.timeline_bytes,
        max_depth: asked.max_depth,
        unwind: asked.unwind,
        seed: asked.seed.unwrap_or(match asked.source {
            // A simulated run replays from its one number.
            Source::Sim { seed } => seed,
            _ => u64::from(std::process::id()),
        }),
        max_stop: asked.max_stop_percent / 100.0,
        linger_ns: if launched { LINGER_NS } else { 0 },
    }
}

/// Whether a form has a place for lines, which others need not pay for.
fn keeps_lines(output: &Output) -> bool {
    !matches!(output.format, Format::Svg | Format::Folded)
}

/// What the outputs show.
fn shown(asked: &Recording, profile: &Profile, files: Arc<dyn Files>) -> Presentation {
    let stats = &profile.stats;
    let caption = Caption {
        process: &profile.process.name,
        pid: Some(profile.process.pid).filter(|pid| *pid > 0),
        hz_requested: Some(profile.hz),
        ticks: stats.achieved_hz().map(|_| stats.ticks),
        duration_ns: Some(stats.duration_ns),
        counted: &text::plural(stats.samples, "sample"),
        lost: stats.samples_lost.values().sum(),
        incomplete: stats.stacks_incomplete.values().sum(),
    };
    let (title, subtitle) = caption.headings(asked.title.as_deref());
    let graph = Graph {
        title,
        subtitle,
        unit: String::new(),
        min_width_percent: asked.min_width_percent,
        colors: asked.colors,
        dark: asked.dark,
        inverted: asked.inverted,
    };
    Presentation {
        graph,
        title: asked.title.clone(),
        source: summary::source(&profile.process),
        code: Some(CodeTexts::new(asked.source_directories.as_deref(), files)),
        lines: asked.naming.lines,
        pprof_timestamps: asked.pprof_timestamps,
        reverse: asked.reverse,
    }
}

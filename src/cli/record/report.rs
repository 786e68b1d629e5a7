//! Reports on a recording: statistics, the closing summary, or why nothing was recorded.

use std::ffi::OsStr;

use crate::cli::args::{Destination, Heap, Output, RecordOptions, Verbosity};
use crate::cli::file::OutputFiles;
use crate::cli::stats::{self, CommandState, RunFigures};
use crate::cli::{hints, messages, outputs, summary, system, text};
use crate::error::{Error, ErrorKind, Result};
use crate::escape::escape_line;
use crate::heap::HeapValues;
use crate::recording::{Recording, Stats};
use crate::sources::ExitStatus;
use crate::symbol::Names;

/// Numbers of the run that are not in the profile's own counters; the times are left at zero.
pub(super) fn figures(
    recording: &Recording,
    names: &Names,
    launched: bool,
    outputs: &[Output],
) -> RunFigures {
    let (profiler_cpu_ns, profiler_peak_rss_bytes) = system::own_usage();
    RunFigures {
        launched,
        command: CommandState::default(),
        user_behind_root: None,
        problem: hints::problem(recording, names),
        hottest: None,
        heap: None,
        times: recording.timeline.as_ref().and_then(|timeline| summary::times_line(timeline, recording.hz)),
        distinct_stacks: recording.trie.distinct_stacks() as u64,
        trie_nodes: recording.trie.node_count() as u64,
        trie_bytes: recording.trie.memory_bytes() as u64,
        addresses_unique: names.addresses_unique,
        addresses_looked_up: names.addresses_looked_up,
        addresses_named: names.addresses_named,
        profiler_cpu_s: profiler_cpu_ns as f64 / 1e9,
        profiler_peak_rss_bytes,
        memory: stats::Memory::default(),
        symbolicate_s: 0.0,
        write_s: 0.0,
        outputs: outputs.iter().map(|output| output.to.as_path().display().to_string()).collect(),
    }
}

/// Why CPU time was used and none of it sampled; `None` if next to none was used.
fn why_unsampled(stats: &Stats) -> Option<String> {
    let (seconds, used) = (stats.duration_ns as f64 / 1e9, stats.target_cpu_ns as f64 / 1e9);
    let most = stats.samples_lost.iter().max_by_key(|(_, count)| **count);
    let why = most.map_or("each stop came too late", |(reason, _)| reason);
    (stats.target_cpu_ns >= USED_NS_MIN)
        .then(|| format!("in {seconds:.1} s it used {used:.1} s of CPU time, none of it sampled: {why}"))
}

/// Writes the statistics as JSON.
///
/// # Errors
/// One line with the file and the obstacle.
pub(super) fn stats(
    files: &OutputFiles,
    to: &Destination,
    recording: &Recording,
    figures: &RunFigures,
) -> Result<()> {
    let json = stats::json(&recording.process, recording.hz, &recording.stats, figures);
    outputs::write_to(files, to, &mut |out| out.write_all(json.as_bytes()))
}

/// Prints the closing summary of a recording with these options.
pub(super) fn summary(request: &RecordOptions, recording: &Recording, names: &Names, figures: &RunFigures) {
    let verbosity = request.verbosity();
    if verbosity == Verbosity::Quiet {
        return;
    }
    let hints = hints::of(recording, names, request);
    messages::block(&summary::text(request, &recording.process, &recording.stats, figures, &hints));
    if verbosity == Verbosity::Verbose {
        messages::block(&missing_names(recording, names));
    }
}

/// Prints the closing summary of a heap recording, with the `table` of leaks.
pub(super) fn heap_summary(
    verbosity: Verbosity,
    recording: &Recording,
    names: &Names,
    figures: &RunFigures,
    (heap, values): (&Heap, &HeapValues),
    table: String,
) {
    if verbosity == Verbosity::Quiet {
        return;
    }
    let lines = crate::cli::heap::lines(recording, heap, values);
    messages::block(&summary::heap_text(
        &recording.process,
        heap.every_bytes(),
        &recording.stats,
        figures,
        &lines,
        &table,
    ));
    if verbosity == Verbosity::Verbose {
        messages::block(&missing_names(recording, names));
    }
}

/// Causes of missing names, by image.
fn missing_names(recording: &Recording, names: &Names) -> String {
    let mut out = String::new();
    for unnamed in &names.unnamed_by_image {
        let image = recording.images.images().get(unnamed.image as usize);
        let path = image.map_or("", |image| image.path.as_str());
        out += &escape_line(&format!("  unnamed  {} of {path}: {}", unnamed.addresses, unnamed.why));
        out.push('\n');
    }
    for note in &names.notes {
        out += &escape_line(&format!("  symbols  {note}"));
        out.push('\n');
    }
    out
}

/// Why a recording ended early; the samples until then are written.
pub(super) fn cut_short(recording: &Recording) -> Option<Error> {
    let why = recording.stats.cut_short.as_ref()?;
    let seconds = recording.stats.duration_ns as f64 / 1e9;
    Some(Error::new(ErrorKind::System, format!("the recording ended after {seconds:.1} s: {why}")))
}

/// The request of a recording without samples.
pub(super) struct EmptyRecording<'a> {
    /// Waiting threads were to be recorded, too.
    pub(super) idle: bool,
    /// Only waiting threads were to be recorded.
    pub(super) off_cpu: bool,
    /// The launched program.
    pub(super) program: Option<&'a OsStr>,
    /// State of the launched command.
    pub(super) command: CommandState,
}

/// Least CPU time of a target that is reported, nanoseconds.
const USED_NS_MIN: u64 = 50_000_000;

/// Why a recording has no samples.
pub(super) fn nothing_sampled(recording: &Recording, request: &EmptyRecording<'_>) -> Error {
    let &EmptyRecording { idle, off_cpu, program, command } = request;
    let process = text::process(&recording.process.name, recording.process.pid);
    let seconds = recording.stats.duration_ns as f64 / 1e9;
    if let Some(why) = &recording.stats.cut_short {
        let text = format!("nothing was sampled of {process}: after {seconds:.1} s {why}");
        return Error::new(ErrorKind::System, text);
    }
    // A command that --kill-after ended was not too short.
    let ended_by_itself = recording.stats.exit_status.filter(|_| command != CommandState::Killed);
    let is_of_this_system = matches!(recording.process.backend, "ptrace" | "perf_event");
    let why_not_running = match recording.process.pid {
        0 => None,
        pid if is_of_this_system && recording.stats.exit_status.is_none() => {
            system::why_still_not_running(pid)
        }
        _ => None,
    };
    let after = match command {
        CommandState::Runs => "; the command still runs, --kill-after ends it with the recording",
        CommandState::Survived => "; the command still runs, although it was sent SIGKILL",
        CommandState::Ended | CommandState::Killed => "",
    };
    let error =
        |why: &str| Error::new(ErrorKind::NoData, format!("nothing was sampled of {process}: {why}{after}"));
    if let Some(program) = program.filter(|program| system::gains_rights(program)) {
        let how =
            recording.stats.exit_status.map_or(String::new(), |status| text::exit_clause(status) + "; ");
        let program = program.display();
        return error(&format!(
            "{how}`{program}` gains rights when it starts (setuid, setgid or file capabilities), and only root \
             may sample such programs: sudo stackprof -- {program} ..."
        ));
    }
    if let Some(why) = why_not_running {
        return error(&format!("in {seconds:.1} s it did not run: {why}"));
    }
    if let Some(why) = why_unsampled(&recording.stats).filter(|_| ended_by_itself.is_none() && !off_cpu) {
        return error(&why);
    }
    let why = match ended_by_itself {
        _ if off_cpu => {
            format!(
                "in {seconds:.1} s no thread waited for a period; without --off-cpu the CPU time is recorded"
            )
        }
        Some(status) => {
            let how = text::exit_clause(status);
            let advice = match status {
                ExitStatus::Signal(_) => "",
                _ => "; a higher --hz sees shorter programs",
            };
            format!("{how} after {seconds:.3} s, before the first sample{advice}")
        }
        None if idle && recording.stats.samples_lost.contains_key("stopped by job control") => {
            let pid = recording.process.pid;
            format!(
                "in {seconds:.1} s it did not run: it is stopped by job control; let it run: kill -CONT {pid}"
            )
        }
        None if idle && recording.process.backend == "ptrace" => {
            format!("in {seconds:.1} s no thread could be stopped")
        }
        None if idle => format!("in {seconds:.1} s no thread ran or waited for a period"),
        None if recording.process.pid == 0 => {
            format!("in {seconds:.1} s they used no CPU time; --idle also records threads that wait")
        }
        None => format!("in {seconds:.1} s it used no CPU time; --idle also records threads that wait"),
    };
    error(&why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn used_cpu_time_is_reported() {
        let mut stats = Stats { duration_ns: 2_000_000_000, ..Stats::default() };
        assert_eq!(why_unsampled(&stats), None);
        stats.target_cpu_ns = 700_000_000;
        let said = |stats: &Stats| why_unsampled(stats).unwrap_or_default();
        let begin = "in 2.0 s it used 0.7 s of CPU time, none of it sampled: ";
        assert_eq!(said(&stats), format!("{begin}each stop came too late"));
        stats.samples_lost = [("too slow", 5), ("no memory", 600)].into();
        assert_eq!(said(&stats), format!("{begin}no memory"));
    }
}

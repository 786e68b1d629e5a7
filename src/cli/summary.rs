//! The closing summary: what was recorded, what was lost and why, what it cost. Input: the
//! profile's counters and the run's figures; output: text for standard error. Pure. Lines and
//! categories without content are left out.
//!
//! `text` is the summary of a CPU recording, `heap_text` that of a heap recording; `hottest` and `table` list the
//! hottest functions, also for `render --top`.

use super::args::RecordOptions;
use super::stats::{CommandState, RunFigures, frames_by_method};
use super::text::{causes, duration, grouped, percent, plural, shortened, signal};
use crate::error::{Error, ErrorKind, Result};
use crate::escape::escape_line;
use crate::profile::{FunctionRow, FunctionTable, SavedProfile};
use crate::recording::timeline::Detail;
use crate::recording::{Stats, Timeline};
use crate::sources::{ExitStatus, Process};

/// Characters before the text of a line: two blanks, the label, a blank.
pub const LABEL_CHARS: usize = 12;

/// The summary, with newlines. `hints`: what the user can do better, one line each.
#[must_use]
pub fn text(
    request: &RecordOptions,
    process: &Process,
    stats: &Stats,
    figures: &RunFigures,
    hints: &[String],
) -> String {
    let mut text = format!("stackprof: {}\n", headline(process, request.hz(), stats));
    let hints: String = hints.iter().map(|hint| format!("  {:<9} {}\n", "hint", escape_line(hint))).collect();
    // What is wrong comes before figures that mean little then.
    let problem = problem(figures);
    let (first, last) = if problem.is_empty() { ("", &*hints) } else { (&*hints, "") };
    text += &(problem + first);
    let lines = [
        ("command", still_runs(process, figures)),
        ("user", user(figures)),
        ("hottest", figures.hottest.clone()),
        ("stacks", stacks(stats)),
        ("frames", frames(stats)),
        ("lost", lost(stats)),
        ("names", names(figures)),
        ("times", figures.times.clone()),
        ("suspend", suspended(stats)),
        ("pause", pause(process, stats)),
        ("machine", stats.machine_idle.map(machine)),
        ("source", source(process)),
        ("exit", exit(stats, figures)),
        ("wrote", wrote(figures)),
    ];
    for (label, line) in lines {
        if let Some(line) = line {
            text += &format!("  {label:<9} {line}\n");
        }
    }
    text + last
}

/// The line with what makes the recording nearly worthless; empty if nothing does.
fn problem(figures: &RunFigures) -> String {
    let problem = figures.problem.as_ref();
    problem.map_or(String::new(), |problem| format!("  {:<9} {}\n", "problem", escape_line(problem)))
}

/// The summary of a heap recording, with newlines: `memory` has its own lines, `table` the memory in use.
#[must_use]
pub fn heap_text(
    process: &Process,
    every_bytes: u64,
    stats: &Stats,
    figures: &RunFigures,
    memory: &[(&str, String)],
    table: &str,
) -> String {
    let every = match every_bytes {
        1 => "every allocation".to_owned(),
        every => format!("one in {}", crate::cli::text::bytes(every)),
    };
    let mut text = format!(
        "stackprof: {}: {} of {}{} in {} ({every})\n",
        crate::cli::text::process(&process.name, process.pid),
        plural(stats.samples, "sample"),
        plural(stats.threads_seen, "thread"),
        of_processes(stats),
        duration(stats.duration_ns),
    );
    text += &problem(figures);
    let mut lines = vec![("command", still_runs(process, figures)), ("user", user(figures))];
    lines.extend(memory.iter().map(|(label, line)| (*label, Some(line.clone()))));
    lines.extend([
        ("stacks", stacks(stats)),
        ("lost", lost(stats)),
        ("names", names(figures)),
        // The shim costs next to nothing; probes and breakpoints do not.
        ("source", source(process).filter(|_| process.backend != "heap")),
        ("suspend", suspended(stats)),
        ("exit", exit(stats, figures)),
        ("wrote", wrote(figures)),
    ]);
    for (label, line) in lines {
        if let Some(line) = line {
            text += &format!("  {label:<9} {line}\n");
        }
    }
    text + table
}

/// ` of 3 processes`, if there are several.
fn of_processes(stats: &Stats) -> String {
    match stats.processes_seen {
        0 | 1 => String::new(),
        processes => format!(" of {processes} processes"),
    }
}

fn headline(process: &Process, hz: u32, stats: &Stats) -> String {
    let mut rate = match stats.achieved_hz() {
        Some(achieved) => format!("{achieved:.1} of {hz} Hz"),
        None => format!("at {hz} Hz"),
    };
    if stats.ticks_late > 0 {
        // If the source pushes its samples, a late tick is still a sample.
        let what = if stats.samples_pushed > 0 { "late" } else { "missed" };
        rate += &format!(", {} {what}", stats.ticks_late);
        if let Some(wakeup) = stats.ticks_late_wakeup {
            let work = stats.ticks_late.saturating_sub(wakeup);
            let causes = [("late wakeups", wakeup), ("busy with other samples", work)];
            rate += &format!(": {}", self::causes(causes));
        }
    }
    if stats.ticks_skipped > 0 {
        rate += &format!(", {} skipped by --max-stop", stats.ticks_skipped);
    }
    format!(
        "{}: {} of {}{} in {} ({rate})",
        crate::cli::text::process(&process.name, process.pid),
        plural(stats.samples, "sample"),
        plural(stats.threads_seen, "thread"),
        of_processes(stats),
        duration(stats.duration_ns),
    )
}

fn still_runs(process: &Process, figures: &RunFigures) -> Option<String> {
    let why = match figures.command {
        CommandState::Ended | CommandState::Killed => return None,
        CommandState::Runs => "--kill-after ends it with the recording",
        CommandState::Survived => "SIGTERM and SIGKILL of --kill-after did not end it",
    };
    Some(format!("still runs (pid {}); {why}", process.pid))
}

fn user(figures: &RunFigures) -> Option<String> {
    let user = escape_line(figures.user_behind_root.as_ref()?);
    Some(format!("the command ran as root; --as {user} runs it as {user}"))
}

fn machine(idle: f64) -> String {
    format!("the CPUs had nothing to do for {:.1}% of their time", idle * 100.0)
}

fn stacks(stats: &Stats) -> Option<String> {
    let incomplete: u64 = stats.stacks_incomplete.values().sum();
    let all = stats.stacks_complete + incomplete;
    if all == 0 {
        return None;
    }
    let mut line = format!("{} complete", percent(stats.stacks_complete, all));
    if incomplete > 0 {
        line +=
            &format!("; incomplete: {}", causes(stats.stacks_incomplete.iter().map(|(why, n)| (*why, *n))));
    }
    if let Some(few) = few_effective(stats) {
        line += &format!("; effective sample size: {few}");
    }
    Some(line)
}

/// Number of equally weighted samples with as much information (Kish's effective sample size), if less than half
/// of the samples.
fn few_effective(stats: &Stats) -> Option<u64> {
    let few = stats.samples_effective;
    (few > 0 && few.saturating_mul(2) < stats.samples).then_some(few)
}

fn frames(stats: &Stats) -> Option<String> {
    let all: u64 = frames_by_method(stats).map(|(_, count)| count).sum();
    (all > 0).then(|| {
        let by_method =
            frames_by_method(stats).map(|(name, count)| format!("{} {name}", percent(count, all)));
        format!("found by {}", by_method.collect::<Vec<_>>().join(", "))
    })
}

fn lost(stats: &Stats) -> Option<String> {
    let lost: u64 = stats.samples_lost.values().sum();
    (lost > 0).then(|| {
        let why = causes(stats.samples_lost.iter().map(|(why, n)| (*why, *n)));
        format!("{}: {why}", plural(lost, "sample"))
    })
}

fn suspended(stats: &Stats) -> Option<String> {
    let time = Some(stats.suspended_ns).filter(|ns| *ns > 0).map(duration)?;
    Some(format!("stackprof itself was suspended for {time}, which is no part of the recording"))
}

fn names(figures: &RunFigures) -> Option<String> {
    let RunFigures { addresses_unique: unique, addresses_looked_up: looked_up, .. } = *figures;
    if unique == 0 {
        return None;
    }
    let addresses = if unique == 1 { "1 address".to_string() } else { format!("{unique} addresses") };
    // Each address is looked up once; if that ever fails, the real number is shown.
    let again = if looked_up == unique { String::new() } else { format!(", {looked_up} looked up") };
    Some(format!("{} of {addresses}{again}", percent(figures.addresses_named, unique)))
}

fn pause(process: &Process, stats: &Stats) -> Option<String> {
    let pause = &stats.pause;
    if pause.count() == 0 {
        return None;
    }
    let mut line = format!(
        "median {}, p99 {}, max {} per stop",
        duration(pause.quantile_ns(0.5)),
        duration(pause.quantile_ns(0.99)),
        duration(pause.max_ns())
    );
    // A stop of all threads costs the time of all.
    let (whole_ns, of_what) = match process.stops_hold_all {
        true => (stats.duration_ns, "the time"),
        false => (stats.target_cpu_ns, "its CPU time"),
    };
    if whole_ns > 0 {
        let of_whole = |ns: u64| 100.0 * ns as f64 / whole_ns as f64;
        let (share, held_up) = (of_whole(stats.stopped_ns), of_whole(stats.held_up_ns));
        line += &match share {
            0.0..0.005 => format!("; stopped for under 0.01% of {of_what}"),
            _ => format!("; stopped for {share:.2}% of {of_what}"),
        };
        if held_up >= 0.1 {
            line += &format!(", {held_up:.2}% in stops that the machine delayed");
        }
    }
    if stats.stops_released_waiting > 0 {
        line += &format!("; {} released that had begun to wait", stats.stops_released_waiting);
    }
    if stats.stops_not_on_cpu > 0 {
        line += &format!("; {} released that had no CPU", stats.stops_not_on_cpu);
    }
    Some(line)
}

/// How the stacks were sampled, and why so.
#[must_use]
pub fn source(process: &Process) -> Option<String> {
    let Process { backend, backend_why, .. } = process;
    (!backend_why.is_empty()).then(|| format!("{backend}; {}", escape_line(backend_why)))
}

fn exit(stats: &Stats, figures: &RunFigures) -> Option<String> {
    if !figures.launched {
        return None;
    }
    let killed = figures.command == CommandState::Killed;
    let how = match stats.exit_status? {
        ExitStatus::Unknown => return None,
        ExitStatus::Code(0) if !killed => return None,
        ExitStatus::Code(code) => format!("the command ended with status {code}"),
        ExitStatus::Signal(number) => format!("the command was ended by {}", signal(number)),
    };
    Some(if killed { how + ", by --kill-after" } else { how })
}

fn wrote(figures: &RunFigures) -> Option<String> {
    let named: Vec<_> = figures
        .outputs
        .iter()
        .map(|output| if output == "-" { "standard output".into() } else { escape_line(output) })
        .collect();
    (!named.is_empty()).then(|| named.join(", "))
}

// ---- Resolution of sample times in the timeline.

/// The line, by cause; `None` if all times are kept.
#[must_use]
pub fn times_line(timeline: &Timeline, hz: u32) -> Option<String> {
    let mut causes = Vec::new();
    match timeline.detail() {
        Detail::Samples => {}
        Detail::Runs => causes.push("samples in a row with one stack have one time".to_owned()),
        Detail::Steps(step_ns) => causes.push(format!("in steps of {}", duration(step_ns))),
        Detail::TimesOnly(step_ns) => {
            causes.push(format!("in steps of {}, without stacks", duration(step_ns)));
        }
    }
    let dropped = (u128::from(timeline.dropped_ns()) * u128::from(hz)).div_ceil(1_000_000_000) as u64;
    if dropped > 0 {
        causes.push(format!("none for {} of threads beyond the limit", plural(dropped, "sample")));
    }
    if timeline.events_dropped() > 0 {
        causes.push(format!("none for {}", plural(timeline.events_dropped(), "event")));
    }
    let bytes = size(timeline.memory_max_bytes());
    let why = format!("--timeline-memory {bytes} is full; a larger one keeps more");
    (!causes.is_empty()).then(|| format!("{}: {why}", causes.join(", ")))
}

/// A size in the syntax of the option.
fn size(bytes: usize) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 30) => format!("{}G", bytes >> 30),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

// ---- The hottest functions of a profile as text: the `hottest` line of the summary, and the table of
// `render --top`. Input: a [`FunctionTable`]. Output: text without control characters.

/// Most functions in the line.
const LINE_FUNCTIONS_MAX: usize = 5;
/// Most characters of a name in the line.
const LINE_NAME_CHARS_MAX: usize = 60;

/// The functions of a profile; with `lines`, a function per line of source.
///
/// # Errors
/// One line: there are too many names.
pub fn read(saved: &SavedProfile, lines: bool) -> Result<FunctionTable> {
    FunctionTable::of(saved, lines)
        .map_err(|full| Error::new(ErrorKind::Output, full.to_string()).caused_by(full))
}

/// The functions with the most self counts, as many as fit into `width` characters, at least one:
/// `41.2% alpha_kernel · 9.1% memcpy (libc.so.6)`. `None` if nothing was counted.
///
/// The module is shown unless it is the program itself, recognized by a file named like one of
/// `processes`.
#[must_use]
pub fn hottest(table: &FunctionTable, processes: &[&str], width: usize) -> Option<String> {
    let mut line = String::new();
    let mut chars = 0;
    for row in table.rows().iter().take(LINE_FUNCTIONS_MAX).filter(|row| row.self_count > 0) {
        let name = shortened(table.text(row.name), LINE_NAME_CHARS_MAX);
        let mut part = format!("{} {name}", percent(row.self_count, table.total()));
        if let Some(module) = foreign_module(table, row, processes) {
            part += &format!(" ({module})");
        }
        let separator = if line.is_empty() { "" } else { " · " };
        let more = separator.chars().count() + part.chars().count();
        if !line.is_empty() && chars + more > width {
            break;
        }
        line = line + separator + &part;
        chars += more;
    }
    (!line.is_empty()).then_some(line)
}

/// The module of a function, unless it is the program itself or part of the name.
fn foreign_module<'t>(table: &'t FunctionTable, row: &FunctionRow, processes: &[&str]) -> Option<&'t str> {
    let name = table.text(row.name);
    let says_it = name.starts_with('[') || name.ends_with("_[k]");
    Some(table.text(row.module)).filter(|module| !says_it && is_foreign(module, processes))
}

/// Whether a module is a file other than the executables of these processes, judged by their names:
/// `python3` runs `python3.11`, and a process name has at most 15 characters on Linux (TASK_COMM_LEN).
#[must_use]
pub fn is_foreign(module: &str, processes: &[impl AsRef<str>]) -> bool {
    let is_own = || processes.iter().any(|process| module.starts_with(process.as_ref()));
    !module.is_empty() && !module.starts_with('[') && !is_own()
}

/// The functions with the most self counts as a table of at most `rows_max` rows; `unit` is the counted
/// unit.
#[must_use]
pub fn table(functions: &FunctionTable, unit: &str, rows_max: usize) -> String {
    let all = functions.total();
    let rows = functions.rows().iter().take(rows_max);
    let cells = |row: &FunctionRow| {
        [
            percent(row.self_count, all),
            grouped(row.self_count),
            percent(row.total_count, all),
            grouped(row.total_count),
        ]
    };
    let numbers: Vec<[String; 4]> = rows.clone().map(cells).collect();
    let heads = ["self %", "self", "total %", "total"];
    let widths: [usize; 4] = std::array::from_fn(|column| {
        let cells = numbers.iter().map(|row| row.get(column).map_or(0, String::len));
        cells.chain(heads.get(column).map(|head| head.len())).max().unwrap_or(0)
    });
    let line = |cells: &[&str; 4], name: &str, module: &str| {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            line += &format!("{cell:>width$}  ");
        }
        line += name;
        if !module.is_empty() {
            line += &format!("  ({module})");
        }
        line.push('\n');
        line
    };
    let mut text = line(&heads, "function  (module)", "");
    for (row, numbers) in rows.zip(&numbers) {
        let numbers: [&str; 4] = numbers.each_ref().map(String::as_str);
        text += &line(&numbers, functions.text(row.name), functions.text(row.module));
    }
    let left = functions.rows().len().saturating_sub(rows_max);
    let more = match left {
        0 => String::new(),
        1 => "; 1 more function".to_owned(),
        _ => format!("; {} more functions", grouped(left as u64)),
    };
    text += &format!("{} {unit} in all{more}\n", grouped(all));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args;
    use crate::cli::stats::tests::process;
    use std::collections::BTreeMap;

    /// A recording with every category.
    fn stats() -> Stats {
        let mut stats = Stats {
            duration_ns: 10_000_000_000,
            ticks: 9968,
            ticks_late: 3,
            stops: 9970,
            samples: 9970,
            threads_seen: 4,
            stacks_complete: 9951,
            stacks_incomplete: BTreeMap::from([
                ("broken frame chain", 5),
                ("deeper than copied", 14),
                ("depth limit", 0),
            ]),
            target_cpu_ns: 20_000_000,
            ..Stats::default()
        };
        for ns in [&[8_000; 7][..], &[27_000], &[1_000]].concat() {
            stats.pause.add(ns);
            stats.stopped_ns += ns;
        }
        stats
    }

    fn figures() -> RunFigures {
        RunFigures {
            addresses_unique: 312,
            addresses_looked_up: 312,
            addresses_named: 310,
            outputs: vec!["flame.svg".into(), "flame.folded".into()],
            ..RunFigures::default()
        }
    }

    fn request() -> RecordOptions {
        match args::parse(["-p", "1"].map(Into::into), &|_| unreachable!("it has a number")) {
            Ok(args::Command::Record(request)) => request,
            other => panic!("no recording: {other:?}"),
        }
    }

    fn check(stats: &Stats, figures: &RunFigures, hints: &[String], expected: &str) {
        assert_eq!(text(&request(), &process(), stats, figures, hints), expected);
    }

    #[test]
    fn late_ticks_are_reported_by_known_cause() {
        let headline = |late, wakeup| {
            let stats = Stats { ticks_late: late, ticks_late_wakeup: wakeup, ..stats() };
            super::headline(&process(), 997, &stats)
        };
        assert!(headline(3, None).ends_with(" (996.8 of 997 Hz, 3 missed)"));
        let both = headline(3, Some(2));
        assert!(both.ends_with(", 3 missed: 2 late wakeups, 1 busy with other samples)"), "{both}");
        assert!(headline(3, Some(3)).ends_with(", 3 missed: 3 late wakeups)"));
        assert!(headline(3, Some(0)).ends_with(", 3 missed: 3 busy with other samples)"));
        assert!(headline(0, Some(0)).ends_with(" (996.8 of 997 Hz)"));
    }

    #[test]
    fn a_rate_is_shown_only_for_enough_ticks_and_samples() {
        let headline = |ticks, samples_pushed| {
            let stats = Stats { ticks, samples_pushed, ticks_late: 0, duration_ns: 100_000_000, ..stats() };
            super::headline(&process(), 997, &stats)
        };
        for (ticks, pushed, expected) in [
            (1, 1, "in 100 ms (at 997 Hz)"),
            (99, 0, "in 100 ms (at 997 Hz)"),
            (100, 0, "in 100 ms (1000.0 of 997 Hz)"),
            (126, 99, "in 100 ms (at 997 Hz)"),
            (100, 100, "in 100 ms (1000.0 of 997 Hz)"),
        ] {
            let headline = headline(ticks, pushed);
            assert!(headline.ends_with(expected), "{headline}");
        }
    }

    #[test]
    fn the_hottest_functions_come_first() {
        let figures = RunFigures { hottest: Some("41.2% a · 9.1% b".into()), ..figures() };
        let text = text(&request(), &process(), &stats(), &figures, &[]);
        assert_eq!(text.lines().nth(1), Some("  hottest   41.2% a · 9.1% b"));
    }

    #[test]
    fn the_summary_matches_the_contract() {
        check(
            &stats(),
            &figures(),
            &[],
            "\
stackprof: work (pid 4242): 9970 samples of 4 threads in 10.0 s (996.8 of 997 Hz, 3 missed)
  stacks    99.8% complete; incomplete: 14 deeper than copied, 5 broken frame chain
  names     99.4% of 312 addresses
  pause     median 8 us, p99 27 us, max 27 us per stop; stopped for 0.42% of its CPU time
  wrote     flame.svg, flame.folded
",
        );
    }

    #[test]
    fn a_suspension_has_its_line() {
        let stats = Stats { suspended_ns: 61_500_000_000, ..stats() };
        let text = text(&request(), &process(), &stats, &figures(), &[]);
        let line =
            "\n  suspend   stackprof itself was suspended for 61.5 s, which is no part of the recording\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn every_failure_has_its_line() {
        let stats = Stats {
            samples_lost: BTreeMap::from([("thread ended", 2), ("stack unreadable", 10), ("other", 0)]),
            exit_status: Some(ExitStatus::Signal(9)),
            ticks_late: 0,
            ..stats()
        };
        let figures = RunFigures { launched: true, addresses_looked_up: 400, ..figures() };
        check(
            &stats,
            &figures,
            &["most stacks of libfoo.so are incomplete: it has no frame pointers".into()],
            "\
stackprof: work (pid 4242): 9970 samples of 4 threads in 10.0 s (996.8 of 997 Hz)
  stacks    99.8% complete; incomplete: 14 deeper than copied, 5 broken frame chain
  lost      12 samples: 10 stack unreadable, 2 thread ended
  names     99.4% of 312 addresses, 400 looked up
  pause     median 8 us, p99 27 us, max 27 us per stop; stopped for 0.42% of its CPU time
  exit      the command was ended by signal 9 (SIGKILL)
  wrote     flame.svg, flame.folded
  hint      most stacks of libfoo.so are incomplete: it has no frame pointers
",
        );
    }

    #[test]
    fn a_problem_and_its_hints_come_first() {
        let figures = RunFigures { problem: Some("no function has a name (stripped)".into()), ..figures() };
        let text = text(&request(), &process(), &stats(), &figures, &["install its debug symbols".into()]);
        let lines: Vec<&str> = text.lines().skip(1).take(3).collect();
        let first =
            ["  problem   no function has a name (stripped)", "  hint      install its debug symbols"];
        assert_eq!(lines[..2], first);
        assert!(lines[2].starts_with("  stacks "), "{text}");
        assert_eq!(text.matches("  hint ").count(), 1);
    }

    #[test]
    fn counts_of_one_are_singular_and_nothing_is_omitted() {
        let mut stats = Stats {
            duration_ns: 50_000_000,
            ticks: 50,
            ticks_late: 1,
            samples: 1,
            threads_seen: 1,
            stacks_complete: 1,
            target_cpu_ns: 1_000_000_000,
            samples_lost: BTreeMap::from([("thread ended", 1)]),
            ..Stats::default()
        };
        stats.pause.add(3_000_000);
        stats.stopped_ns = 3_000_000;
        let figures = RunFigures {
            addresses_unique: 1,
            addresses_looked_up: 1,
            addresses_named: 1,
            outputs: vec!["-".into()],
            ..RunFigures::default()
        };
        check(
            &stats,
            &figures,
            &[],
            "\
stackprof: work (pid 4242): 1 sample of 1 thread in 50 ms (at 997 Hz, 1 missed)
  stacks    100% complete
  lost      1 sample: 1 thread ended
  names     100% of 1 address
  pause     median 3.0 ms, p99 3.0 ms, max 3.0 ms per stop; stopped for 0.30% of its CPU time
  wrote     standard output
",
        );
    }

    #[test]
    fn an_empty_recording_is_one_line() {
        check(
            &Stats::default(),
            &RunFigures::default(),
            &[],
            "stackprof: work (pid 4242): 0 samples of 0 threads in 0 ns (at 997 Hz)\n",
        );
    }

    #[test]
    fn only_our_command_has_an_exit_status_and_only_nonzero() {
        let launched = RunFigures { launched: true, ..RunFigures::default() };
        let attached = RunFigures::default();
        for (figures, status, expected) in [
            (&launched, Some(ExitStatus::Code(0)), None),
            (&launched, Some(ExitStatus::Unknown), None),
            (&launched, None, None),
            (&launched, Some(ExitStatus::Code(3)), Some("the command ended with status 3")),
            (&launched, Some(ExitStatus::Signal(64)), Some("the command was ended by signal 64")),
            (&attached, Some(ExitStatus::Code(3)), None),
        ] {
            let stats = Stats { exit_status: status, ..Stats::default() };
            assert_eq!(exit(&stats, figures).as_deref(), expected, "{status:?}");
        }
    }

    #[test]
    fn a_running_command_comes_first() {
        let head = "stackprof: work (pid 4242): 0 samples of 0 threads in 0 ns (at 997 Hz)\n";
        for (command, status, expected) in [
            (
                CommandState::Runs,
                None,
                "  command   still runs (pid 4242); --kill-after ends it with the recording\n",
            ),
            (
                CommandState::Survived,
                None,
                "  command   still runs (pid 4242); SIGTERM and SIGKILL of --kill-after did not end it\n",
            ),
            (
                CommandState::Killed,
                Some(ExitStatus::Signal(15)),
                "  exit      the command was ended by signal 15 (SIGTERM), by --kill-after\n",
            ),
            (
                CommandState::Killed,
                Some(ExitStatus::Code(0)),
                "  exit      the command ended with status 0, by --kill-after\n",
            ),
        ] {
            let figures = RunFigures { launched: true, command, ..RunFigures::default() };
            let stats = Stats { exit_status: status, ..Stats::default() };
            check(&stats, &figures, &[], &format!("{head}{expected}"));
        }
    }

    #[test]
    fn a_command_that_ran_as_root_is_reported() {
        let figures = RunFigures {
            launched: true,
            user_behind_root: Some("al\u{1b}ice".into()),
            ..RunFigures::default()
        };
        let expected = r"the command ran as root; --as al\u{1b}ice runs it as al\u{1b}ice";
        assert_eq!(user(&figures).as_deref(), Some(expected));
        assert_eq!(user(&RunFigures::default()), None);
    }

    #[test]
    fn a_tiny_pause_is_not_zero() {
        let mut stats = Stats { target_cpu_ns: 1_000_000_000_000, ..Stats::default() };
        stats.pause.add(900);
        stats.stopped_ns = 900;
        assert_eq!(
            pause(&process(), &stats).as_deref(),
            Some("median 900 ns, p99 900 ns, max 900 ns per stop; stopped for under 0.01% of its CPU time")
        );
        (stats.target_cpu_ns, stats.held_up_ns) = (10_000, 500);
        assert_eq!(
            pause(&process(), &stats).as_deref(),
            Some(
                "median 900 ns, p99 900 ns, max 900 ns per stop; stopped for 9.00% of its CPU time, \
                 5.00% in stops that the machine delayed"
            )
        );
        stats.target_cpu_ns = 0;
        assert_eq!(
            pause(&process(), &stats).as_deref(),
            Some("median 900 ns, p99 900 ns, max 900 ns per stop")
        );
    }
}

#[cfg(test)]
mod timeline_detail_tests {
    use super::*;
    use crate::recording::timeline::{EventKind, TimedSample};
    use crate::trie::NodeId;

    fn sample(at_ns: u64, node: NodeId) -> TimedSample {
        TimedSample { at_ns, node, weight_ns: 1_000_000, cpu: None }
    }

    /// A thread with a different stack at each sample, in this much memory.
    fn timeline(memory_bytes: usize, samples: u64) -> Timeline {
        let mut timeline = Timeline::new(0, 1000, memory_bytes);
        let thread = timeline.add_thread(1, 1, 0, true);
        for at in 1..=samples {
            timeline.add_sample(thread, sample(at * 1_000_000, NodeId(1 + (at % 5) as u32)));
        }
        timeline
    }

    #[test]
    fn each_cause_is_named_with_the_limit() {
        assert_eq!(times_line(&timeline(64 << 10, 100), 1000), None);
        assert_eq!(
            times_line(&timeline(64 << 10, 100_000), 1000).as_deref(),
            Some("in steps of 128 ms: --timeline-memory 64K is full; a larger one keeps more")
        );
        let mut many = timeline(64 << 10, 1);
        for id in 2..2000 {
            let thread = many.add_thread(id, 1, 0, false);
            many.add_sample(thread, sample(5_000_000, NodeId(1)));
        }
        (0..1000).for_each(|at| many.add_event(EventKind::Exec, 1, at, "sh"));
        let said = times_line(&many, 1000).expect("something is left out");
        assert!(said.contains(" samples of threads beyond the limit, none for "), "{said}");
        assert!(said.contains(" events: --timeline-memory 64K is full"), "{said}");
    }

    #[test]
    fn sizes_use_the_syntax_of_the_option() {
        assert_eq!([64 << 20, 65 << 10, 2 << 30, 100_001].map(size), ["64M", "65K", "2G", "100001"]);
    }
}

#[cfg(test)]
mod functions_tests {
    use super::*;
    use crate::profile::formats::folded;

    fn functions(folded: &str) -> FunctionTable {
        let saved = folded::read(folded.as_bytes(), "a").expect("reads");
        FunctionTable::of(&saved, false).expect("fits")
    }

    #[test]
    fn the_line_names_at_most_five_functions() {
        let six = functions("p;a 10\np;b 20\np;c 30\np;d 15\np;e 16\np;f 9\n");
        let line = hottest(&six, &["p"], 200);
        assert_eq!(line.as_deref(), Some("30.0% c · 20.0% b · 16.0% e · 15.0% d · 10.0% a"));
    }

    #[test]
    fn the_line_fits_its_width_and_names_at_least_one() {
        let three = functions("p;first 10\np;second 20\np;third 70\n");
        assert_eq!(hottest(&three, &[], 80).as_deref(), Some("70.0% third · 20.0% second · 10.0% first"));
        assert_eq!(hottest(&three, &[], 26).as_deref(), Some("70.0% third · 20.0% second"));
        assert_eq!(hottest(&three, &[], 25).as_deref(), Some("70.0% third"));
        assert_eq!(hottest(&three, &[], 1).as_deref(), Some("70.0% third"));
        assert_eq!(hottest(&functions(""), &[], 80), None);
    }

    #[test]
    fn time_of_callees_does_not_make_a_caller_hot() {
        assert_eq!(hottest(&functions("p;main;a 4\n"), &[], 80).as_deref(), Some("100% a"));
    }

    #[test]
    fn the_table_has_both_counts_and_reports_omitted_rows() {
        let text = table(&functions("p;main;a 1200\np;main;b 300\np;main 100\n"), "samples", 2);
        let expected = "\
self %   self  total %  total  function  (module)
 75.0%  1,200    75.0%  1,200  a
 18.8%    300    18.8%    300  b
1,600 samples in all; 1 more function
";
        assert_eq!(text, expected);
    }
}

//! `stackprof diff`: reads two profiles and writes the changes.

use std::ops::Range;
use std::path::{Path, PathBuf};

use super::args::compare::{Diff, ReportFormat};
use super::args::render::InputOptions;
use super::args::{Destination, Verbosity, Written};
use super::file::OutputFiles;
use super::outputs::write_to;
use super::{messages, saved_files, system};
use crate::diff::compare::{Comparison, Measure};
use crate::diff::report::{self, headline, measure_words};
use crate::diff::stacks;
use crate::diff::stacks::Stacks;
use crate::error::{Error, ErrorKind, Result};
use crate::flamegraph::{self, Compared};
use crate::profile::SavedProfile;
use crate::profile::formats::html;
use crate::sources::Role;

/// Reads and compares two profiles, writes and prints the changes.
///
/// # Errors
/// One line: an invalid profile, profiles that cannot be compared, an output that cannot be
/// written.
pub fn run(diff: &Diff) -> Result<()> {
    let outputs = diff.output.iter().map(|output| &output.to);
    let files = OutputFiles::new();
    saved_files::check_outputs(&files, &diff.input.profiles, outputs)?;
    system::restrict_to_symbolizing(&files);
    let mut stacks = Stacks::new(diff.matching());
    let [base, new] = match diff.parts() {
        Some(parts) => read_ranges(&diff.input, parts)?,
        None => read_both(&diff.input, diff.paths())?,
    };
    // Programs with different names are compared as one: only the call paths matter.
    let process = add(&mut stacks, &base, None)?;
    let process = add(&mut stacks, &new, process.as_deref())?;
    let comparison = Comparison::of(&stacks, diff.measure())
        .map_err(|why| Error::new(ErrorKind::NoData, why.to_string()).caused_by(why))?;
    system::restrict(Role::Writing);
    for output in &diff.output {
        let write_text =
            |text: String| write_to(&files, &output.to, &mut |out| out.write_all(text.as_bytes()));
        match output.format {
            ReportFormat::Markdown => write_text(report::markdown(&comparison, diff.top))?,
            // Only `gate` has a verdict, and `diff` has no option for JUnit XML.
            ReportFormat::Json | ReportFormat::Junit => write_text(report::json(&comparison))?,
            ReportFormat::Folded => {
                write_to(&files, &output.to, &mut |out| report::write(&stacks, &comparison, out))?;
            }
            ReportFormat::Svg => picture(&files, diff, &stacks, &comparison, &output.to)?,
            ReportFormat::Html => {
                let page = page(diff, &stacks, &comparison, [&base.1, &new.1], process.as_deref())?;
                write_to(&files, &output.to, &mut |out| page.write(out))?;
            }
        }
    }
    let on_stdout = diff.output.iter().any(|output| output.to == Destination::Stdout);
    if diff.common.verbosity() != Verbosity::Quiet && !on_stdout {
        messages::result(&report::text(&comparison, diff.top))?;
    }
    Ok(())
}

/// Reads the two profiles, concurrently unless one may be typed on a terminal: the user would wait even if the other
/// is unreadable.
fn read_both(input: &InputOptions, [base, new]: [&Path; 2]) -> Result<[(String, SavedProfile); 2]> {
    let read = |path: &Path| {
        let (name, saved) = saved_files::read_input(path, input)?;
        let saved = saved_files::compared(&name, saved)?;
        Ok::<_, Error>((name, saved))
    };
    if [base, new].contains(&Path::new("-")) {
        let base = read(base)?;
        return Ok([base, read(new)?]);
    }
    std::thread::scope(|scope| {
        let new = scope.spawn(|| read(new));
        let base = read(base);
        let new = new.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok([base?, new?])
    })
}

/// Reads one profile and extracts two time ranges from it.
fn read_ranges(
    input: &InputOptions,
    [base, new]: [&Written<Range<u64>>; 2],
) -> Result<[(String, SavedProfile); 2]> {
    let path = input.profiles.first().map_or(Path::new(""), PathBuf::as_path);
    let (name, saved) = saved_files::read_input(path, input)?;
    let select = |option: &str, Written { value, text }: &Written<Range<u64>>| {
        Ok::<_, Error>((format!("{name} {text}"), saved_files::extract(&saved, value, option, &name)?))
    };
    Ok([select("--base", base)?, select("--new", new)?])
}

/// Adds a profile and returns the process name to use for the other side: the only one, or none if there are
/// several.
fn add(
    stacks: &mut Stacks,
    (name, saved): &(String, SavedProfile),
    process: Option<&str>,
) -> Result<Option<String>> {
    let processes = saved.processes();
    let only = match processes.as_slice() {
        [only] => Some((*only).to_owned()),
        _ => None,
    };
    let process = process.filter(|_| only.is_some());
    stacks
        .add(name, saved, process)
        .map_err(|full| Error::new(ErrorKind::Input, format!("{name}: {full}")).caused_by(full))?;
    Ok(process.map(str::to_owned).or(only))
}

/// The page with both profiles; functions are matched as in the other reports.
fn page(
    diff: &Diff,
    stacks: &Stacks,
    comparison: &Comparison,
    saved: [&SavedProfile; 2],
    process: Option<&str>,
) -> Result<html::Page> {
    let name = |name: &str| stacks.matched_name(name);
    let is_one = |saved: &SavedProfile| saved.processes().len() == 1;
    let matching = |of: &SavedProfile| html::Matching {
        name: &name,
        process: process.filter(|_| is_one(of) && saved.iter().all(|saved| is_one(saved))),
        inlines: diff.matching().inlines,
        waiting: diff.matching().waiting,
    };
    let compare = html::Compare {
        measure: match comparison.measure {
            Measure::Share => html::Measure::Shares,
            Measure::Seconds => html::Measure::Seconds,
            Measure::Samples => html::Measure::Samples,
        },
        scales: comparison.scales(),
        words: format!("{}, by {}", headline(comparison), measure_words(comparison)),
    };
    let [base, new] = saved;
    let sides = [
        (comparison.base.source.as_str(), base, matching(base)),
        (comparison.new.source.as_str(), new, matching(new)),
    ];
    let title =
        diff.title.clone().unwrap_or(format!("{} → {}", comparison.base.source, comparison.new.source));
    html::Page::compared(sides, &title, compare)
        .map_err(|full| Error::new(ErrorKind::Output, full.to_string()).caused_by(full))
}

fn picture(
    files: &OutputFiles,
    diff: &Diff,
    stacks: &Stacks,
    comparison: &Comparison,
    to: &Destination,
) -> Result<()> {
    let nodes = stacks::nodes(stacks, comparison);
    let nodes: Vec<flamegraph::Frame<'_>> = nodes
        .iter()
        .map(|node| flamegraph::Frame { depth: node.depth, name: node.name, base: node.base, new: node.new })
        .collect();
    let compared = match comparison.measure {
        Measure::Share => Compared::Shares,
        Measure::Seconds | Measure::Samples => Compared::Counts,
    };
    let default = format!("{} → {}", comparison.base.source, comparison.new.source);
    let subtitle = format!("{}, by {}", headline(comparison), measure_words(comparison));
    let title = diff.title.clone().unwrap_or(default);
    let graph = diff.graph.graph(title, subtitle, comparison.unit.clone());
    write_to(files, to, &mut |out| flamegraph::write_diff(&graph, compared, &nodes, out))
}

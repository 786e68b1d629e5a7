//! `stackprof render`: reads, merges and filters saved profiles, and writes any format.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::args::render::{InputOptions, Render};
use super::args::{Pattern, Verbosity};
use super::embedded_code::EmbeddedCode;
use super::file::OutputFiles;
use super::outputs::{self, Failure, Presentation};
use super::text::plural;
use super::{messages, saved_files, summary, system};
use crate::error::{Error, ErrorKind, Result};
use crate::flamegraph::Caption;
use crate::profile::filter::{self, Filter, RemainingCounts};
use crate::profile::{Full, MergeError, SAMPLES, SavedBuilder, SavedProfile};
use crate::recording::RATE_COUNT_MIN;
use crate::sources::Role;
use crate::sources::user_files::UserFiles;

/// Reads, merges, filters and writes.
///
/// # Errors
/// One line: an invalid profile, incompatible profiles, nothing left.
pub fn run(render: &Render) -> Result<()> {
    let files = OutputFiles::new();
    saved_files::check_outputs(
        &files,
        &render.input.profiles,
        render.outputs.iter().map(|output| &output.to),
    )?;
    let options = outputs::FormatOptions {
        reverse: render.reverse,
        pprof_timestamps: render.pprof_timestamps,
        source_directories: &render.source_dir,
    };
    outputs::check_options(&options, &render.outputs)?;
    let sources = (!render.source_dir.is_empty()).then(|| Arc::new(UserFiles::of_caller()));
    system::restrict_to_symbolizing(&files);
    let saved = in_time_range(render, merged(render)?)?;
    let saved = filtered(render, saved)?;
    let (title, subtitle) = headings(&saved, render.title.as_deref());
    let shown = Presentation {
        page_title: title.clone(),
        graph: render.graph.graph(title, subtitle, saved.about.unit.clone()),
        title: render.title.clone(),
        source: None,
        code: sources.map(|sources| {
            let is_quiet = render.common.verbosity() == Verbosity::Quiet;
            let images = Arc::<UserFiles>::clone(&sources);
            EmbeddedCode::new(Some(&render.source_dir), images, sources, is_quiet)
        }),
        lines: render.lines,
        pprof_timestamps: render.pprof_timestamps,
        reverse: render.reverse,
    };
    system::restrict(Role::Writing);
    let mut failures = outputs::write(&files, &saved, &render.outputs, &shown);
    if let Some(rows_max) = render.rows {
        let printed = summary::read(&saved, render.lines)
            .and_then(|functions| messages::result(&summary::table(&functions, &saved.about.unit, rows_max)));
        failures.extend(printed.err().map(Failure::from));
    }
    let files = outputs::written(&render.outputs, &failures);
    if render.common.verbosity() != Verbosity::Quiet && !files.is_empty() {
        let files: Vec<&str> =
            files.iter().map(|file| if file == "-" { "standard output" } else { file }).collect();
        messages::note(&format!(
            "{}: {} in {}, wrote {}",
            named(&saved),
            counted(&saved, saved.total()),
            plural(saved.trie().distinct_stacks() as u64, "stack"),
            files.join(", ")
        ));
    }
    outputs::report(failures)
}

/// Merges all profiles.
fn merged(render: &Render) -> Result<SavedProfile> {
    let mut paths = render.input.profiles.iter();
    let read_one = |path: &Path| read_one(path, &render.input);
    let Some(first_path) = paths.next() else { return Ok(SavedProfile::default()) };
    let first = read_one(first_path)?;
    let mut others = paths.peekable();
    if others.peek().is_none() {
        return Ok(first);
    }
    let mut builder = SavedBuilder::new(first.about.clone());
    let full = |path: &Path, full: Full| {
        Error::new(ErrorKind::Input, format!("{}: {full}", path.display())).caused_by(full)
    };
    builder.add_stacks(&first).map_err(|why| full(first_path, why))?;
    drop(first);
    for path in others {
        builder.merge(&read_one(path)?).map_err(|refused| match refused {
            MergeError::Full(why) => full(path, why),
            MergeError::Metadata(why) => Error::new(
                ErrorKind::Input,
                format!(
                    "`{}` and `{}` cannot be merged: {why}; render each by itself",
                    first_path.display(),
                    path.display()
                ),
            )
            .caused_by(why),
        })?;
    }
    Ok(builder.finish())
}

fn read_one(path: &Path, input: &InputOptions) -> Result<SavedProfile> {
    let (name, saved) = saved_files::read_input(path, input)?;
    if saved.total() == 0 {
        let why = match saved.about.sampled_every {
            Some(_) => "the heap profile has nothing of this type; try --type alloc_space",
            None if saved.about.unit != SAMPLES => "it counts nothing; record for longer",
            None => "the profile has no samples; record for longer, or with --idle",
        };
        return Err(Error::new(ErrorKind::NoData, format!("{name}: {why}")));
    }
    Ok(saved)
}

/// Applies the time range of `--from` and `--to`.
fn in_time_range(render: &Render, saved: SavedProfile) -> Result<SavedProfile> {
    let Some(range) = render.time() else { return Ok(saved) };
    if render.input.profiles.len() > 1 {
        let why = "--from and --to: several profiles have no common time; render each by itself";
        return Err(Error::new(ErrorKind::Input, why));
    }
    let name = render.input.profiles.first().map_or(String::new(), |path| saved_files::name(path));
    saved_files::extract(&saved, &range, "--from", &name)
}

fn filtered(render: &Render, saved: SavedProfile) -> Result<SavedProfile> {
    let options = [
        ("--thread", &render.thread),
        ("--include", &render.include),
        ("--exclude", &render.exclude),
        ("--root", &render.root),
    ];
    if options.iter().all(|(_, patterns)| patterns.is_empty()) {
        return Ok(saved);
    }
    // Times distinguish the threads of a profile that merged them.
    let saved = match render.thread.is_empty() || !saved.has_merged_threads() {
        true => saved,
        false => saved
            .split_by_thread()
            .map_err(|full| Error::new(ErrorKind::Input, full.to_string()).caused_by(full))?,
    };
    let matches = options.map(|(_, patterns)| move |name: &str| Pattern::any_matches(patterns, name));
    let [thread, include, exclude, root] = &matches;
    let given = |patterns: &[Pattern]| !patterns.is_empty();
    let filter = Filter {
        thread: given(&render.thread).then_some(thread as _),
        include: given(&render.include).then_some(include as _),
        exclude: given(&render.exclude).then_some(exclude as _),
        root: given(&render.root).then_some(root as _),
    };
    let (kept, left) = filter::apply(&saved, &filter, render.lines)
        .map_err(|full| Error::new(ErrorKind::Input, full.to_string()).caused_by(full))?;
    if left.root > 0 {
        return Ok(kept);
    }
    Err(nothing_left(&saved, &options, left))
}

/// Reports the option that left nothing.
fn nothing_left(saved: &SavedProfile, options: &[(&str, &Vec<Pattern>); 4], left: RemainingCounts) -> Error {
    let mut before = saved.total();
    let mut what = String::new();
    for ((option, patterns), after) in
        options.iter().zip([left.thread, left.include, left.exclude, left.root])
    {
        if after == 0 {
            let patterns = patterns.iter().map(Pattern::as_str).collect::<Vec<_>>().join("`, `");
            what = format!("{option} `{patterns}` left nothing of {}", counted(saved, before));
            break;
        }
        before = after;
    }
    if left.thread == 0 && saved.roots().iter().all(|root| root.thread.is_none()) {
        what += "; the profile does not keep threads apart (record with --threads)";
    }
    Error::new(ErrorKind::NoData, what)
}

/// `3 samples`, or another unit that the profile counts.
fn counted(saved: &SavedProfile, count: u64) -> String {
    if let Some(heap) = super::heap::counted_in(saved, count) {
        return heap;
    }
    match saved.about.unit.strip_suffix('s') {
        Some(unit) => plural(count, unit),
        None => format!("{count} {}", saved.about.unit),
    }
}

/// The heading of the graph, and the line under it with facts about the recording.
fn headings(saved: &SavedProfile, title: Option<&str>) -> (String, String) {
    let about = &saved.about;
    let sum =
        |counts: &BTreeMap<String, u64>| counts.values().fold(0u64, |sum, count| sum.saturating_add(*count));
    let caption = Caption {
        process: &named(saved),
        pid: about.pid,
        hz_requested: about.hz,
        ticks: about.ticks.filter(|ticks| (*ticks).min(saved.total()) >= RATE_COUNT_MIN),
        duration_ns: about.duration_ns,
        counted: &counted(saved, saved.total()),
        lost: sum(&about.lost),
        incomplete: sum(&about.incomplete),
    };
    caption.headings(title)
}

/// The processes of a profile.
fn named(saved: &SavedProfile) -> String {
    let names = saved.processes();
    let short = |name: &&str| match name.char_indices().nth(NAME_CHARS_MAX) {
        Some((end, _)) => format!("{}…", name.get(..end).unwrap_or_default()),
        None if name.is_empty() => UNKNOWN.to_owned(),
        None => (*name).to_owned(),
    };
    let named = names.iter().take(NAMES_MAX).map(short).collect::<Vec<_>>().join(", ");
    if names.len() > NAMES_MAX { format!("{named}, …") } else { named }
}

/// Placeholder for a process without a name.
const UNKNOWN: &str = "[unknown]";
/// Most processes named in a line.
const NAMES_MAX: usize = 5;
/// Most characters of each name; names from files have no limit.
const NAME_CHARS_MAX: usize = 200;

//! `stackprof gate`: reads recordings of a baseline and a new version, and writes a verdict.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::args::Verbosity;
use super::args::compare::{Gate, ReportFormat};
use super::outputs::write_to;
use super::text::plural;
use super::{messages, saved_files, system};
use crate::cli::file::OutputFiles;
use crate::diff::stacks::Stacks;
use crate::error::{Error, ErrorKind, Result, cannot_read};
use crate::gate::report::{self, ci};
use crate::gate::{self, Report, Verdict};
use crate::profile::SavedProfile;
use crate::profile::formats::detect::Strictness;
use crate::profile::formats::pprof;
use crate::sources::Role;

/// Most recordings per side.
pub const RUNS_MAX: usize = 1000;

/// Prefix of the names of a baseline's recordings: `base-001.pb.gz`.
const KEPT: &str = "base-";
const SUFFIX: &str = ".pb.gz";

/// Reads the runs, compares them, writes the reports.
///
/// # Errors
/// One line: an invalid profile, runs that cannot be compared, an output that cannot be written.
pub fn run(request: &Gate) -> Result<Verdict> {
    let outputs = OutputFiles::new();
    let base = files("--base", &request.base)?;
    let new = files("--new", &request.new)?;
    check_distinct(&base, &new)?;
    let to = request.outputs().map(|output| &output.to);
    saved_files::check_outputs(&outputs, base.iter().chain(&new), to)?;
    let summary = step_summary(&outputs, request, base.iter().chain(&new))?;
    if let Some(directory) = &request.update_baseline {
        check_baseline(directory)?;
        outputs.check_directory(directory)?;
    }
    match &request.update_baseline {
        None => system::restrict_to_symbolizing(&outputs),
        // The files are not known yet.
        Some(_) => system::restrict(Role::Symbolizing),
    }
    let mut stacks = Stacks::new(request.matching());
    let mut kept = Vec::new();
    // Programs with different names are compared as one.
    let mut process = None;
    for (index, path) in base.iter().chain(&new).enumerate() {
        let (name, saved) = saved_files::read(path, Strictness::Lenient, request.value_type.as_deref())?;
        if index >= base.len() && request.update_baseline.is_some() {
            kept.push(saved.clone());
        }
        let saved = saved_files::compared(&name, saved)?;
        let first = process.get_or_insert_with(|| saved.processes().first().map(|name| (*name).to_owned()));
        let same = first.as_deref().filter(|_| request.allow_different_names && saved.processes().len() == 1);
        stacks
            .add(&name, &saved, same)
            .map_err(|full| Error::new(ErrorKind::Input, format!("{name}: {full}")).caused_by(full))?;
    }
    system::restrict(Role::Writing);
    if base.is_empty() {
        gate::check_side(stacks.runs(), request.allow_different_names)
            .map_err(|why| Error::new(ErrorKind::NoData, why.to_string()).caused_by(why))?;
        update(&outputs, request, &kept)?;
        return Ok(Verdict::Pass);
    }
    let report = gate::check(&stacks, base.len(), request.allow_different_names, &request.options())
        .map_err(|why| Error::new(ErrorKind::NoData, why.to_string()).caused_by(why))?;
    write_reports(&outputs, request, &report, summary.as_ref())?;
    match report.verdict {
        Verdict::Pass => update(&outputs, request, &kept)?,
        Verdict::Regression => {
            if let Some(directory) = &request.update_baseline
                && request.common.verbosity() != Verbosity::Quiet
            {
                messages::note(&format!(
                    "{} stays as it is; to accept the change: stackprof gate --new FILE... --update-baseline {}",
                    directory.display(),
                    directory.display()
                ));
            }
        }
    }
    Ok(report.verdict)
}

/// The step summary of GitHub Actions.
struct StepSummary {
    path: PathBuf,
    is_empty: bool,
}

/// Writes the requested reports of a verdict, and prints it.
fn write_reports(
    outputs: &OutputFiles,
    request: &Gate,
    report: &Report,
    summary: Option<&StepSummary>,
) -> Result<()> {
    for output in request.outputs() {
        let text = match output.format {
            ReportFormat::Json => ci::json(report),
            ReportFormat::Junit => ci::junit(report, request.top),
            _ => report::markdown(report, request.top),
        };
        write_to(outputs, &output.to, &mut |out| out.write_all(text.as_bytes()))?;
    }
    if request.common.verbosity() != Verbosity::Quiet && !request.is_on_stdout() {
        let text = report::text(report, request.top);
        messages::result(&if request.github { ci::without_commands(&text) } else { text })?;
    }
    if request.github {
        messages::result(&ci::annotations(report))?;
    }
    if let Some(summary) = summary {
        let text = report::markdown(report, request.top);
        outputs.write(&summary.path, |out| {
            // The text of an earlier step may lack its newline.
            out.write_all(if summary.is_empty { b"" } else { b"\n" })?;
            out.write_all(text.as_bytes())
        })?;
    }
    Ok(())
}

/// Opens the file named by GITHUB_STEP_SUMMARY. Without it (outside of GitHub) there is nothing to
/// open, which is reported.
fn step_summary<'a>(
    outputs: &OutputFiles,
    request: &Gate,
    mut inputs: impl Iterator<Item = &'a PathBuf>,
) -> Result<Option<StepSummary>> {
    const VARIABLE: &str = "GITHUB_STEP_SUMMARY";
    if !request.github {
        return Ok(None);
    }
    let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from) else {
        if request.common.verbosity() != Verbosity::Quiet {
            messages::note(&format!(
                "--github: {VARIABLE} is not set, as outside of GitHub Actions: no step summary"
            ));
        }
        return Ok(None);
    };
    let identity = saved_files::identity(&path);
    if inputs.any(|input| saved_files::identity(input) == identity) {
        let text =
            format!("--github: {VARIABLE} is `{}`, which this gate reads; name another file", path.display());
        return Err(Error::new(ErrorKind::Usage, text));
    }
    let is_empty = outputs.check_append(&path)?;
    Ok(Some(StepSummary { path, is_empty }))
}

/// The files that the user named; a directory stands for its files, sorted by name.
fn files(option: &str, paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let cannot = |error: std::io::Error| cannot_read(path.display(), error);
        let mut inside = Vec::new();
        for entry in fs::read_dir(path).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if !hidden && entry.path().is_file() {
                inside.push(entry.path());
            }
        }
        if inside.is_empty() {
            return Err(Error::new(
                ErrorKind::NoData,
                format!(
                    "{option}: there are no files in `{0}`; record into it: stackprof -o {0}/1.pb.gz -- ./prog",
                    path.display()
                ),
            ));
        }
        inside.sort();
        files.append(&mut inside);
    }
    if files.len() > RUNS_MAX {
        let text = format!("{option}: {} recordings; at most {RUNS_MAX} are compared", files.len());
        return Err(Error::new(ErrorKind::Usage, text));
    }
    Ok(files)
}

/// Refuses a recording that is given twice, on one side or on both: it would pass for a run without
/// noise.
fn check_distinct(base: &[PathBuf], new: &[PathBuf]) -> Result<()> {
    let mut seen = BTreeSet::new();
    match base.iter().chain(new).find(|path| !seen.insert(saved_files::identity(path))) {
        Some(twice) => {
            let text = format!("`{}` is given twice; each run is recorded by itself", twice.display());
            Err(Error::new(ErrorKind::Usage, text))
        }
        None => Ok(()),
    }
}

/// The number of a baseline recording with this name.
fn number_of(name: &str) -> Option<usize> {
    let number = name.strip_prefix(KEPT)?.strip_suffix(SUFFIX)?;
    number.parse().ok().filter(|number| (1..=RUNS_MAX).contains(number) && name_of(*number) == name)
}

fn name_of(number: usize) -> String {
    format!("{KEPT}{number:03}{SUFFIX}")
}

/// Refuses a baseline directory with recordings of other names: they would stay part of the
/// baseline after an update.
fn check_baseline(directory: &Path) -> Result<()> {
    if directory.is_file() {
        let text = format!("--update-baseline `{}`: it is a file; name a directory", directory.display());
        return Err(Error::new(ErrorKind::Usage, text));
    }
    let Ok(entries) = fs::read_dir(directory) else { return Ok(()) };
    for name in entries.flatten().filter(|entry| entry.path().is_file()).map(|entry| entry.file_name()) {
        let name = name.to_string_lossy();
        if !name.starts_with('.') && number_of(&name).is_none() {
            let text = format!(
                "--update-baseline: `{}` would stay part of the base; name a directory of its own",
                directory.join(&*name).display()
            );
            return Err(Error::new(ErrorKind::Usage, text));
        }
    }
    Ok(())
}

/// Stores `runs` as the baseline, replacing the previous recordings.
fn update(outputs: &OutputFiles, request: &Gate, runs: &[SavedProfile]) -> Result<()> {
    let Some(directory) = &request.update_baseline else { return Ok(()) };
    outputs.make_directories(directory)?;
    for (number, run) in (1..).zip(runs) {
        outputs.write(&directory.join(name_of(number)), |out| pprof::write::write(run, out))?;
    }
    // Leftovers of an earlier, larger baseline.
    for number in runs.len() + 1..=RUNS_MAX {
        let path = directory.join(name_of(number));
        if fs::symlink_metadata(&path).is_ok() {
            outputs.remove(&path)?;
        }
    }
    if request.common.verbosity() != Verbosity::Quiet {
        let kept = plural(runs.len() as u64, "recording");
        messages::note(&format!("{}: {kept} kept as base", directory.display()));
    }
    Ok(())
}

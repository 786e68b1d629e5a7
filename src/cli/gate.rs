//! `stackprof gate`: recordings of both sides in, a verdict out.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::args::Destination;
use super::args::Verbosity;
use super::args::compare::ReportFormat;
use super::args::gate::Gate;
use super::outputs::write_to;
use super::{messages, saved_files};
use crate::diff::stacks::Stacks;
use crate::error::{Error, ErrorKind, Result, io_text};
use crate::gate::report::{json, markdown, text};
use crate::gate::{self, Verdict};
use crate::output::file;
use crate::profile::{Saved, pprof};

/// Most recordings a side.
pub const RUNS_MAX: usize = 1000;

/// How recordings of a baseline begin; files of other names in its directory are left alone.
const KEPT: &str = "base-";

/// Reads, judges, tells.
///
/// # Errors
/// One line: a file that is no profile, runs that cannot be compared, an output that cannot
/// be written.
pub fn run(asked: &Gate) -> Result<Verdict> {
    for output in &asked.outputs {
        if let Destination::File(path) = &output.to {
            file::check_writable(path)?;
        }
    }
    let base = files("--base", &asked.base)?;
    let new = files("--new", &asked.new)?;
    if asked.base.is_empty() {
        update(asked, &read_all(&new)?)?;
        return Ok(Verdict::Pass);
    }
    let mut stacks = Stacks::new(asked.matching);
    let kept = if asked.update_baseline.is_some() { read_all(&new)? } else { Vec::new() };
    // Where names may differ they are compared as one program.
    let mut process = None;
    for path in base.iter().chain(&new) {
        let (name, saved) = saved_files::read(path)?;
        let first = process.get_or_insert_with(|| saved.processes().first().map(|name| (*name).to_owned()));
        let same = first.as_deref().filter(|_| asked.allow_different_names && saved.processes().len() == 1);
        stacks
            .add(&name, &saved, same)
            .map_err(|full| Error::new(ErrorKind::Input, format!("{name}: {full}")))?;
    }
    let report = gate::check(&stacks, base.len(), asked.allow_different_names, &asked.options)
        .map_err(|why| Error::new(ErrorKind::NoData, why))?;
    for output in &asked.outputs {
        let text = match output.format {
            ReportFormat::Json => json::json(&report),
            _ => markdown::markdown(&report, asked.top),
        };
        write_to(&output.to, &mut |out| out.write_all(text.as_bytes()))?;
    }
    let on_stdout = asked.outputs.iter().any(|output| output.to == Destination::Stdout);
    if asked.verbosity != Verbosity::Quiet && !on_stdout {
        messages::lines(&text::text(&report, asked.top));
    }
    match report.verdict {
        Verdict::Pass => update(asked, &kept)?,
        Verdict::Regression => {
            if let Some(directory) = &asked.update_baseline {
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

/// The files that the user named; a directory stands for what is in it, by name.
fn files(option: &str, paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let cannot = |error: std::io::Error| {
            Error::new(ErrorKind::Input, format!("cannot read `{}`: {}", path.display(), io_text(&error)))
        };
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
                format!("{option}: there are no files in `{}`", path.display()),
            ));
        }
        inside.sort();
        files.append(&mut inside);
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = files.iter().find(|path| !seen.insert(path.as_path())) {
        // A copy would pass for a run without noise.
        let text = format!("{option}: `{}` is given twice; each run is recorded by itself", twice.display());
        return Err(Error::new(ErrorKind::Usage, text));
    }
    if files.len() > RUNS_MAX {
        let text = format!("{option}: {} recordings; at most {RUNS_MAX} are compared", files.len());
        return Err(Error::new(ErrorKind::Usage, text));
    }
    Ok(files)
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<Saved>> {
    paths.iter().map(|path| saved_files::read(path).map(|(_, saved)| saved)).collect()
}

/// Keeps `runs` as the baseline, in place of those kept before.
fn update(asked: &Gate, runs: &[Saved]) -> Result<()> {
    let Some(directory) = &asked.update_baseline else { return Ok(()) };
    if let Some(empty) = runs.iter().position(|run| run.total() == 0) {
        let text = format!("new recording {} has no samples; it cannot be a base", empty + 1);
        return Err(Error::new(ErrorKind::NoData, text));
    }
    let cannot = |path: &Path, error: &std::io::Error| {
        Error::new(ErrorKind::Output, format!("cannot write `{}`: {}", path.display(), io_text(error)))
    };
    fs::create_dir_all(directory).map_err(|error| cannot(directory, &error))?;
    let name = |index: usize| format!("{KEPT}{:03}.pb.gz", index + 1);
    for (index, run) in runs.iter().enumerate() {
        file::write(&directory.join(name(index)), |out| pprof::write::write(run, out))?;
    }
    // What an earlier, larger baseline has left.
    for index in runs.len()..RUNS_MAX {
        let path = directory.join(name(index));
        if path.exists() {
            fs::remove_file(&path).map_err(|error| cannot(&path, &error))?;
        }
    }
    if asked.verbosity != Verbosity::Quiet {
        messages::note(&format!("{}: {} recordings kept as base", directory.display(), runs.len()));
    }
    Ok(())
}

//! Saved profiles on the command line: reads them from a path or standard input, with a name for messages, extracts
//! a time range, and refuses outputs that would overwrite inputs.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{fs, io};

use super::args::Destination;
use super::args::render::InputOptions;
use super::messages;
use super::text::duration;
use crate::cli::file::{OutputFiles, check_stdout};
use crate::error::{Error, ErrorKind, Result};
use crate::profile::SavedProfile;
use crate::profile::formats::detect::{self, Strictness};

/// Reads the profile and its display name; `-` is standard input. Prints what was not understood even with `--quiet`:
/// the profile is then incomplete.
///
/// # Errors
/// One line that names the file and the position.
pub(super) fn read(
    path: &Path,
    strictness: Strictness,
    value_type: Option<&str>,
) -> Result<(String, SavedProfile)> {
    let name = name(path);
    let read = if path == Path::new("-") {
        detect::read_of_type(io::stdin().lock(), &name, 0, strictness, value_type)?
    } else {
        detect::read_file_of_type(path, strictness, value_type)?
    };
    for remark in &read.remarks {
        messages::note(remark);
    }
    Ok((name, read.saved))
}

/// The profile in the form that is compared: a heap profile is attributed to the callers of the
/// allocator.
///
/// # Errors
/// One line that names the file.
pub(super) fn compared(name: &str, saved: SavedProfile) -> Result<SavedProfile> {
    if !saved.about.is_heap() {
        return Ok(saved);
    }
    saved
        .without_wrappers()
        .map_err(|full| Error::new(ErrorKind::Input, format!("{name}: {full}")).caused_by(full))
}

/// Display name of a path's profile.
pub(super) fn name(path: &Path) -> String {
    if path == Path::new("-") { "standard input".to_owned() } else { path.display().to_string() }
}

/// [`read`] with the options of a command.
///
/// # Errors
/// One line that names the file and the position.
pub(super) fn read_input(path: &Path, input: &InputOptions) -> Result<(String, SavedProfile)> {
    read(path, strictness(input.strict), input.value_type.as_deref())
}

/// Strictness of `--strict`.
pub(super) fn strictness(strict: bool) -> Strictness {
    if strict { Strictness::Strict } else { Strictness::Lenient }
}

/// The identity of the file behind a path; if it does not exist, its path.
pub(super) fn identity(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Checks before reading anything whether the outputs can be written, and that none of them is an
/// input under another spelling.
///
/// # Errors
/// One line that names the output.
pub(super) fn check_outputs<'a>(
    files: &OutputFiles,
    inputs: impl IntoIterator<Item = &'a PathBuf>,
    outputs: impl IntoIterator<Item = &'a Destination>,
) -> Result<()> {
    let inputs: Vec<PathBuf> = inputs.into_iter().map(|path| identity(path)).collect();
    for output in outputs {
        let Destination::File(path) = output else {
            check_stdout()?;
            continue;
        };
        let identity = identity(path);
        // Devices and pipes are written to, not replaced.
        let is_replaced = fs::metadata(path).map_or(true, |metadata| metadata.is_file());
        if is_replaced && inputs.contains(&identity) {
            let text = format!("`{}` is read and written; name another output", path.display());
            return Err(Error::new(ErrorKind::Usage, text));
        }
        files.check(path)?;
    }
    Ok(())
}

// ---- Selects a time range of a saved profile.

/// Readable formats that store the times of samples.
const FORMATS_WITH_TIMES: &str = ".otlp.gz";

/// The samples of a time range, nanoseconds since the recording began. `option`: the option with its start;
/// `name`: of the profile in messages.
///
/// # Errors
/// One line: a profile without times, a range beyond the recording or without samples.
pub(super) fn extract(
    saved: &SavedProfile,
    range: &Range<u64>,
    option: &str,
    name: &str,
) -> Result<SavedProfile> {
    let Some(all_ns) = saved.time_ns() else {
        let why = match saved.about.sampled_every {
            Some(_) => format!(
                "{name} is a heap profile, which has no times of samples; a page of the recording shows what was in use \
                 over time: stackprof heap -o NAME.html"
            ),
            None => format!(
                "{name} has no times of samples; record with -o NAME{FORMATS_WITH_TIMES}, which keeps them, and cut that"
            ),
        };
        return Err(Error::new(ErrorKind::Input, why));
    };
    let long = duration(all_ns);
    if range.start >= all_ns {
        let why =
            format!("{option}: {name} is {long} long, and the part begins at {}", duration(range.start));
        return Err(Error::new(ErrorKind::Input, why));
    }
    let selected = saved
        .in_time_range(range)
        .map_err(|full| Error::new(ErrorKind::Input, full.to_string()).caused_by(full))?;
    selected.filter(|selected| selected.total() > 0).ok_or_else(|| {
        let to = duration(range.end.min(all_ns));
        let why = format!(
            "{option}: {name} has no samples from {} to {to} of its {long}; take a longer part",
            duration(range.start)
        );
        Error::new(ErrorKind::NoData, why)
    })
}

#[cfg(test)]
mod time_range_tests {
    use super::*;
    use crate::profile::{About, SavedBuilder};

    #[test]
    fn a_heap_profile_gets_no_advice_that_cannot_work() {
        let why = |sampled_every| {
            let saved = SavedBuilder::new(About { sampled_every, ..About::default() }).finish();
            extract(&saved, &(0..1), "--from", "a.otlp.gz").expect_err("refused").to_string()
        };
        assert!(why(None).starts_with("a.otlp.gz has no times of samples; record with -o NAME.otlp.gz"));
        assert!(
            why(Some(1)).starts_with("a.otlp.gz is a heap profile, which has no times of samples; a page")
        );
    }
}

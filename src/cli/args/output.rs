//! Destinations and formats of outputs: `--output` and `--format` as [`Output`]s.

use std::path::{Path, PathBuf};

use super::values::usage;
use crate::cli::format::Format;
use crate::error::Result;

/// Destination of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// A file.
    File(PathBuf),
}

impl Destination {
    /// The path as the user wrote it, or `-`.
    #[must_use]
    pub fn as_path(&self) -> &Path {
        match self {
            Destination::Stdout => Path::new("-"),
            Destination::File(path) => path,
        }
    }
}

impl From<PathBuf> for Destination {
    fn from(path: PathBuf) -> Destination {
        if path == Path::new("-") { Destination::Stdout } else { Destination::File(path) }
    }
}

/// An output of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Its destination.
    pub to: Destination,
    /// Its format.
    pub format: Format,
}

/// The outputs of `--output` and `--format`.
pub(super) fn outputs(paths: &[PathBuf], format: Option<Format>) -> Result<Vec<Output>> {
    let mut format_used = paths.is_empty();
    let mut outputs = Vec::with_capacity(paths.len());
    for path in paths {
        let by_extension = Format::from_path(path)?;
        let to = Destination::from(path.clone());
        format_used |= by_extension.is_none();
        let format = match (by_extension.or(format), &to) {
            (Some(format), _) => format,
            (None, Destination::Stdout) => Format::Folded,
            (None, Destination::File(_)) => {
                return Err(usage(format!(
                    "--output `{}`: unknown extension; use .svg, .folded or .pb.gz, or add --format",
                    path.display()
                )));
            }
        };
        outputs.push(Output { to, format });
    }
    if let Some(format) = format
        && !format_used
    {
        return Err(usage(format!(
            "--format {} would do nothing: each output has an extension that sets its format",
            format.name()
        )));
    }
    Ok(outputs)
}

/// Refuses two outputs with the same destination: only the last would survive.
pub(super) fn check_distinct<'a>(destinations: impl Iterator<Item = &'a Destination>) -> Result<()> {
    let mut seen: Vec<&Path> = Vec::new();
    for path in destinations.map(Destination::as_path) {
        if seen.contains(&path) && !path.starts_with("/dev") {
            return Err(usage(format!(
                "`{}` is given twice; each output needs its own file",
                path.display()
            )));
        }
        seen.push(path);
    }
    Ok(())
}

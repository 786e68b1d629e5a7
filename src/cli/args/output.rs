//! Where outputs go and in which format: `--output` and `--format` as [`Output`]s.

use std::path::{Path, PathBuf};

use super::values::usage;
use crate::cli::format::Format;
use crate::error::Result;

/// Where an output goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Standard output.
    Stdout,
    /// A file.
    File(PathBuf),
}

impl Destination {
    /// As the user wrote it: the path, or `-`.
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

/// One output of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Output {
    /// Where it goes.
    pub to: Destination,
    /// In which format.
    pub format: Format,
}

/// The outputs that `--output` and `--format` ask for.
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

/// Two outputs to one place would leave only the last.
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

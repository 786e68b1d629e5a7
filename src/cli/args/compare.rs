//! Options shared by `diff` and `gate`: matching of functions, report outputs, percentages. No I/O.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use clap::Args;

use super::output::{Destination, check_distinct};
use super::values::{number, percent, usage};
use crate::diff::stacks::Matching;
use crate::error::Result;

/// Default of `--top`: rows of a table.
pub const TOP_DEFAULT: usize = 20;

pub(super) const MATCHING: &str = "Matching";

/// How functions of two builds are matched.
#[derive(Debug, Args)]
pub(super) struct MatchingFlags {
    /// Match names as they are. Without this, what differs between builds is left
    /// out: hashes, {closure#3}, .llvm.123, .cold, .part.0, .constprop.0,
    /// .isra.0, lambda numbers, offsets in [module+0x1f40], lines
    #[arg(long, help_heading = MATCHING)]
    no_normalize: bool,
}

impl MatchingFlags {
    /// The flags as values; the parameters are the defaults of the command.
    pub(super) fn matching(&self, inlines: bool, waiting: bool) -> Matching {
        Matching { normalize: !self.no_normalize, inlines, waiting }
    }
}

/// A report format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportFormat {
    /// Differential flame graph.
    Svg,
    /// One HTML page with both profiles.
    Html,
    /// `stack BASE NEW`.
    Folded,
    /// A Markdown table for a comment.
    Markdown,
    /// All data, for programs.
    Json,
    /// JUnit XML, for CI systems.
    Junit,
}

/// Extensions of reports.
const EXTENSIONS: [(&str, ReportFormat); 6] = [
    (".svg", ReportFormat::Svg),
    (".html", ReportFormat::Html),
    (".folded", ReportFormat::Folded),
    (".txt", ReportFormat::Folded),
    (".md", ReportFormat::Markdown),
    (".json", ReportFormat::Json),
];

/// A report to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportOutput {
    /// Its destination.
    pub to: Destination,
    /// Its format.
    pub format: ReportFormat,
}

/// The outputs of `-o`; the extension selects the format, `-` is `stdout`.
pub(super) fn report_outputs(
    paths: &[PathBuf],
    allowed: &[ReportFormat],
    stdout: ReportFormat,
) -> Result<Vec<ReportOutput>> {
    let mut outputs = Vec::with_capacity(paths.len());
    for path in paths {
        let to = Destination::from(path.clone());
        let format = match &to {
            Destination::Stdout => stdout,
            Destination::File(path) => format_of(path, allowed)?,
        };
        outputs.push(ReportOutput { to, format });
    }
    check_distinct(outputs.iter().map(|output| &output.to))?;
    Ok(outputs)
}

fn format_of(path: &Path, allowed: &[ReportFormat]) -> Result<ReportFormat> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let known = EXTENSIONS.iter().filter(|(_, format)| allowed.contains(format));
    let format = known.clone().find(|(extension, _)| name.ends_with(extension)).map(|(_, format)| *format);
    format.ok_or_else(|| {
        let extensions: Vec<&str> = known.map(|(extension, _)| *extension).collect();
        usage(format!(
            "--output `{}`: expected a name that ends with {}",
            path.display(),
            extensions.join(", ")
        ))
    })
}

/// Number of rows, at least 1.
pub(super) fn top(flag: Option<&OsStr>) -> Result<usize> {
    flag.map_or(Ok(TOP_DEFAULT), |text| number("--top", text, "a whole number, 1 or more", |top| top >= 1))
}

/// Parses `5%` or `5` as 0.05.
pub(super) fn percentage(
    option: &str,
    flag: Option<&OsString>,
    default: f64,
    expected: &str,
    allowed: impl Fn(f64) -> bool,
) -> Result<f64> {
    flag.map_or(Ok(default), |text| Ok(percent(option, text, expected, allowed)? / 100.0))
}

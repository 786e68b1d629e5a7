//! Option values shared by several commands, and their errors: numbers and percentages, destinations and formats
//! (`Output`), options of flame graphs (`GraphOptions`), time ranges.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::Parser;

use crate::cli::flags::{CommonFlags, LookFlags, SymbolFlags, usage_error};
use crate::cli::outputs::Format;
use crate::error::{Error, ErrorKind, Result};
use crate::flamegraph::{Colors, Graph};
use crate::symbol::Style;

/// Default of `--min-width`, percent.
const MIN_WIDTH_DEFAULT_PERCENT: f64 = 0.01;

/// Verbosity on standard error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verbosity {
    /// Errors only.
    Quiet,
    /// Progress and summary.
    Normal,
    /// Also the cause of each loss.
    Verbose,
}

/// Symbol options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SymbolOptions {
    /// A frame for each inlined function.
    pub inlines: bool,
    /// `function (file:line)`.
    pub lines: bool,
    /// How names are written.
    pub style: Style,
}

impl From<&SymbolFlags> for SymbolOptions {
    fn from(flags: &SymbolFlags) -> SymbolOptions {
        let style = match (flags.mangled, flags.short_names) {
            (true, _) => Style::Mangled,
            (false, true) => Style::Short,
            (false, false) => Style::Readable,
        };
        SymbolOptions { inlines: !flags.no_inline, lines: flags.lines, style }
    }
}

/// A parsed command line.
pub(super) enum ParsedFlags<F> {
    /// Its options.
    Flags(F),
    /// Text to print instead: help or version.
    Print(String),
}

pub(super) fn parse_flags<F: Parser>(command: &str, words: &[OsString]) -> Result<ParsedFlags<F>> {
    match F::try_parse_from(std::iter::once(OsStr::new(command)).chain(words.iter().map(AsRef::as_ref))) {
        Ok(flags) => Ok(ParsedFlags::Flags(flags)),
        Err(error) => match error.kind() {
            clap::error::ErrorKind::DisplayHelp | clap::error::ErrorKind::DisplayVersion => {
                Ok(ParsedFlags::Print(error.render().to_string()))
            }
            _ => Err(usage_error(&error, command)),
        },
    }
}

pub(super) fn usage(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, text)
}

pub(super) fn invalid_value(option: &str, value: &OsStr, expected: &str) -> Error {
    usage(format!("{option} `{}`: expected {expected}", value.display()))
}

/// An option value as a number in `allowed`. (No range contains NaN, so it is refused, too.)
pub(super) fn number<N: std::str::FromStr + Copy>(
    option: &str,
    text: &OsStr,
    expected: &str,
    allowed: impl Fn(N) -> bool,
) -> Result<N> {
    text.to_str()
        // Rust accepts `+5`; nobody who types that means only 5.
        .filter(|text| !text.starts_with('+'))
        .and_then(|text| text.parse().ok())
        .filter(|number| allowed(*number))
        .ok_or_else(|| invalid_value(option, text, expected))
}

/// A percentage, `5` or `5%`, as 5.
pub(super) fn percent(
    option: &str,
    text: &OsStr,
    expected: &str,
    allowed: impl Fn(f64) -> bool,
) -> Result<f64> {
    let number =
        text.to_str().and_then(|text| text.strip_suffix('%').unwrap_or(text).trim().parse::<f64>().ok());
    number
        .filter(|percent| percent.is_finite() && allowed(*percent))
        .ok_or_else(|| invalid_value(option, text, expected))
}

/// Frames of a flame graph narrower than this percentage are left out.
pub(super) fn min_width_percent(flag: Option<&OsStr>) -> Result<f64> {
    flag.map_or(Ok(MIN_WIDTH_DEFAULT_PERCENT), |width| {
        percent("--min-width", width, "a percentage from 0 to below 100", |width| {
            (0.0..100.0).contains(&width)
        })
    })
}

pub(super) fn colors(text: &OsStr) -> Result<Colors> {
    text.to_str()
        .and_then(Colors::from_name)
        .ok_or_else(|| invalid_value("--colors", text, &format!("one of {}", Colors::NAMES.join(", "))))
}

pub(super) fn verbosity(flags: &CommonFlags) -> Result<Verbosity> {
    match (flags.quiet, flags.verbose) {
        (true, true) => Err(usage("--quiet and --verbose exclude each other; leave one out")),
        (true, false) => Ok(Verbosity::Quiet),
        (false, true) => Ok(Verbosity::Verbose),
        (false, false) => Ok(Verbosity::Normal),
    }
}

// ---- Destinations and formats of outputs: `--output` and `--format` as [`Output`]s.

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

// ---- The options of flame graphs: the same for recordings, `render` and `diff`.

/// How a flame graph looks.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphOptions {
    /// Its heading; `None` is the default one.
    pub title: Option<String>,
    /// Frames narrower than this percentage are left out.
    pub min_width_percent: f64,
    /// Its colours.
    pub colors: Colors,
    /// Whether its background is dark.
    pub dark: bool,
    /// Whether its root is at the top, not at the bottom.
    pub inverted: bool,
}

impl GraphOptions {
    /// Parses the flags.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`](crate::error::ErrorKind::Usage) with one line.
    pub(super) fn new(
        title: Option<String>,
        min_width: Option<&OsStr>,
        look: &LookFlags,
    ) -> Result<GraphOptions> {
        Ok(GraphOptions {
            title,
            min_width_percent: min_width_percent(min_width)?,
            colors: look.colors.as_deref().map_or(Ok(Colors::default()), colors)?,
            dark: look.dark,
            inverted: look.root_at_the_top(),
        })
    }

    /// A flame graph with these headings.
    pub(crate) fn graph(&self, title: String, subtitle: String, unit: String) -> Graph {
        Graph {
            title,
            subtitle,
            unit,
            min_width_percent: self.min_width_percent,
            colors: self.colors,
            dark: self.dark,
            inverted: self.inverted,
        }
    }
}

// ---- Parses time ranges of a recording: `--from 2.5s --to 4s`, `--base 0s..5s`.

/// Nanoseconds since the recording began; `None` if neither end is given.
///
/// # Errors
/// [`ErrorKind::Usage`](crate::error::ErrorKind::Usage) with one line.
pub(super) fn time_range(from: Option<&OsStr>, to: Option<&OsStr>) -> Result<Option<Range<u64>>> {
    if from.is_none() && to.is_none() {
        return Ok(None);
    }
    let start = from.map_or(Ok(0), |text| time("--from", text))?;
    let end = to.map_or(Ok(u64::MAX), |text| time("--to", text))?;
    if start < end {
        return Ok(Some(start..end));
    }
    let (from, to) = (from.unwrap_or(OsStr::new("0")), to.unwrap_or_default());
    Err(usage(format!(
        "--from {} --to {}: nothing lies between; give a later end",
        from.to_string_lossy(),
        to.to_string_lossy()
    )))
}

/// The value of an option that may be given only once.
///
/// # Errors
/// [`ErrorKind::Usage`](crate::error::ErrorKind::Usage) with one line.
pub(super) fn once<'a>(option: &str, given: &'a [OsString]) -> Result<Option<&'a OsStr>> {
    match given {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        [first, second, ..] => Err(usage(format!(
            "{option} is given twice, `{}` and `{}`; give one",
            first.display(),
            second.display()
        ))),
    }
}

/// A range in one word, `FROM..TO`; either end may be omitted.
///
/// # Errors
/// [`ErrorKind::Usage`](crate::error::ErrorKind::Usage) with one line.
pub(super) fn range(option: &str, text: &OsStr) -> Result<Range<u64>> {
    let refused = || invalid_value(option, text, "two times since the recording began, such as 2.5s..4s");
    let (from, to) = text.to_str().and_then(|text| text.split_once("..")).ok_or_else(refused)?;
    // `0s...5s` would be `0s..` and `.5s`, which nobody means.
    if to.starts_with('.') {
        return Err(refused());
    }
    let end = |text: &str, open| match text {
        "" => Ok(open),
        _ => time(option, OsStr::new(text)).map_err(|_| refused()),
    };
    let (start, end) = (end(from, 0)?, end(to, u64::MAX)?);
    match start < end {
        true => Ok(start..end),
        false => Err(usage(format!("{option} `{from}..{to}`: nothing lies between; give a later end"))),
    }
}

fn time(option: &str, text: &OsStr) -> Result<u64> {
    let expected = "a time since the recording began, such as 2.5s, 300ms or 1m";
    let refused = || invalid_value(option, text, expected);
    let written = text.to_str().ok_or_else(refused)?;
    let number = written.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ns = match &written[number.len()..] {
        "" | "s" => 1e9,
        "ms" => 1e6,
        "us" => 1e3,
        "ns" => 1.0,
        "m" | "min" => 60e9,
        _ => return Err(refused()),
    };
    let number = number.parse::<f64>().map_err(|_| refused())?;
    // 2^63 nanoseconds are 292 years.
    let ns = Some(number * unit_ns).filter(|ns| (0.0..9.2e18).contains(ns)).ok_or_else(refused)?;
    Ok(ns.round() as u64)
}

#[cfg(test)]
mod time_range_tests {
    use super::*;

    fn parse(from: &str, to: &str) -> Result<Option<Range<u64>>> {
        let given = |text| Some(OsStr::new(text)).filter(|text: &&OsStr| !text.is_empty());
        time_range(given(from), given(to))
    }

    #[test]
    fn times_have_units_and_either_end_may_be_open() {
        for (from, to, expected) in [
            ("2.5s", "4s", 2_500_000_000..4_000_000_000),
            ("2.5", "", 2_500_000_000..u64::MAX),
            ("", "300ms", 0..300_000_000),
            ("1m", "2min", 60_000_000_000..120_000_000_000),
            ("5us", "7000ns", 5_000..7_000),
        ] {
            assert_eq!(parse(from, to).expect("a range"), Some(expected), "{from} {to}");
        }
        assert_eq!(parse("", "").expect("none"), None);
    }

    #[test]
    fn invalid_ranges_are_refused() {
        for (from, to, expected) in [
            ("4s", "2s", "--from 4s --to 2s: nothing lies between; give a later end"),
            ("0", "0", "--from 0 --to 0: nothing lies between; give a later end"),
            ("-1s", "", "--from `-1s`: expected a time since the recording began, such as 2.5s, 300ms or 1m"),
            ("", "soon", "--to `soon`: expected a time since the recording began, such as 2.5s, 300ms or 1m"),
            ("nan", "", "--from `nan`: expected a time since the recording began, such as 2.5s, 300ms or 1m"),
            (
                "1e30s",
                "",
                "--from `1e30s`: expected a time since the recording began, such as 2.5s, 300ms or 1m",
            ),
        ] {
            assert_eq!(parse(from, to).expect_err("refused").to_string(), expected);
        }
    }
}

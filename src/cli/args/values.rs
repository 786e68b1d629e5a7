//! Option values shared by several commands, and their errors.

use std::ffi::{OsStr, OsString};

use clap::Parser;

use crate::cli::clap_text::usage_error;
use crate::cli::flags::{CommonFlags, SymbolFlags};
use crate::error::{Error, ErrorKind, Result};
use crate::flamegraph::Colors;
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

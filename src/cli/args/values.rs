//! Option values shared by several commands: parsers of numbers, percentages, times, ranges and outputs for clap;
//! `check` refuses what breaks a rule; clap's errors become one line of ours. No I/O.
//!
//! Numbers accept any word that begins with `-`: clap's own test for negative numbers does not know `-5e-1`, and
//! would treat it as an option.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{OsStringValueParser, PathBufValueParser, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind as Clap};
use clap::{CommandFactory, Parser};
use regex_lite::Regex;

use crate::cli::outputs::Format;
use crate::error::{Error, ErrorKind, Result};

/// Longest `--duration` in seconds: 31 years, which fit into 64 bits of nanoseconds.
const DURATION_MAX_S: f64 = 1e9;

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

/// Why a command line is no request.
pub(super) enum Stop {
    /// Text to print instead: help or version.
    Print(String),
    /// It is wrong.
    Refuse(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Refuse(error)
    }
}

const TEMPLATE: &str = "{about}\n\nUsage: {usage}\n\n{before-help}{all-args}{after-help}\n";

/// A command with what all commands have in common.
pub(super) fn command<F: CommandFactory>() -> clap::Command {
    F::command()
        .version(env!("CARGO_PKG_VERSION"))
        .help_template(TEMPLATE)
        .max_term_width(80)
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args_override_self(true)
}

/// Parses the words of a command; `no_option` is why it does not have an option of that name, if there is more to say.
pub(super) fn parse_flags<F: Parser>(
    words: &[OsString],
    no_option: impl FnOnce(&str) -> Option<String>,
) -> std::result::Result<F, Stop> {
    let command = command::<F>();
    let name = command.get_name().to_owned();
    let words = std::iter::once(OsStr::new(&name)).chain(words.iter().map(AsRef::as_ref));
    let flags = command.try_get_matches_from(words).and_then(|matches| F::from_arg_matches(&matches));
    flags.map_err(|error| match error.kind() {
        Clap::DisplayHelp | Clap::DisplayVersion => Stop::Print(error.render().to_string()),
        _ => Stop::Refuse(usage_error(&error, &name, no_option)),
    })
}

/// One line for a clap error: lower case, the option named, with the next step. `command` is the command that the
/// suggested `--help` belongs to.
fn usage_error(error: &clap::Error, command: &str, no_option: impl FnOnce(&str) -> Option<String>) -> Error {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(ContextValue::Strings(texts)) => texts.first().cloned(),
        _ => None,
    };
    // clap names an option with its value: `--hz <N>`.
    let option =
        |kind| context(kind).unwrap_or_default().split([' ', '=']).next().unwrap_or_default().to_owned();
    let value = context(ContextKind::InvalidValue);
    let source = std::error::Error::source(error);
    let option_or = |text: &str| format!("option `{}` {text}", option(ContextKind::InvalidArg));
    let text = match error.kind() {
        Clap::ValueValidation => {
            let own = source.and_then(|source| source.downcast_ref::<Error>()).map(ToString::to_string);
            let (option, value) = (option(ContextKind::InvalidArg), value.unwrap_or_default());
            let why = source.map(ToString::to_string).unwrap_or_default();
            return usage(own.unwrap_or_else(|| format!("{option} `{value}`: {why}")));
        }
        Clap::ArgumentConflict => {
            let mut both = [option(ContextKind::InvalidArg), option(ContextKind::PriorArg)];
            both.sort_unstable();
            return usage(format!("{} exclude each other; leave one out", both.join(" and ")));
        }
        Clap::UnknownArgument => {
            let option = option(ContextKind::InvalidArg);
            match (no_option(&option), context(ContextKind::SuggestedArg)) {
                (Some(why), _) => return usage(why),
                // clap suggests `--idle` for `--pid`; typos in the first letter are rare.
                (None, Some(near)) if near.chars().nth(2) == option.chars().nth(2) => {
                    format!("there is no option `{option}`; did you mean `{near}`?")
                }
                _ => format!("there is no option `{option}`"),
            }
        }
        Clap::InvalidValue | Clap::TooFewValues | Clap::WrongNumberOfValues | Clap::NoEquals => {
            option_or("needs a value")
        }
        Clap::TooManyValues => match value {
            Some(value) => option_or(&format!("takes no value, but `{value}` was given")),
            None => option_or("takes no value"),
        },
        Clap::InvalidUtf8 => "an argument is not UTF-8".to_owned(),
        // Not reached with our flags; falls back to the first line of clap's text.
        _ => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            line.strip_prefix("error: ").unwrap_or(line).to_owned()
        }
    };
    usage(format!("{text} (try '{command} --help')"))
}

pub(super) fn usage(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Usage, text)
}

/// Refuses a request by the first rule that it breaks, each with its advice.
pub(super) fn check(rules: &[(bool, &str)]) -> Result<()> {
    rules.iter().find(|(is_broken, _)| *is_broken).map_or(Ok(()), |(_, why)| Err(usage(*why)))
}

/// Words as the user could have typed them.
pub(super) fn joined(words: &[OsString]) -> String {
    words.join(OsStr::new(" ")).display().to_string()
}

// ---- Parsers of values. An error is what follows the quoted value in the message.

/// A value that `parse` understands.
pub(super) fn value<T: Clone + Send + Sync + 'static, E: Into<Box<dyn std::error::Error + Send + Sync>>>(
    parse: impl Fn(&str) -> std::result::Result<T, E> + Clone + Send + Sync + 'static,
) -> impl TypedValueParser<Value = T> {
    OsStringValueParser::new().try_map(move |text: OsString| parse(&text.to_string_lossy()))
}

/// A value that `parse` understands; otherwise the message says what was expected.
pub(super) fn expected<T: Clone + Send + Sync + 'static>(
    expected: impl Display,
    parse: impl Fn(&str) -> Option<T> + Clone + Send + Sync + 'static,
) -> impl TypedValueParser<Value = T> {
    let expected = format!("expected {expected}");
    value(move |text| parse(text).ok_or_else(|| expected.clone()))
}

/// A number. Rust accepts `+5`; nobody who types that means only 5.
pub(super) fn number<N: FromStr>(text: &str) -> Option<N> {
    text.parse().ok().filter(|_| !text.starts_with('+'))
}

/// A whole number.
pub(super) fn whole<N>(min: N, max: N) -> impl TypedValueParser<Value = N>
where
    N: FromStr + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    let text = format!("a whole number from {min} to {max}");
    expected(text, move |text| number(text).filter(|number| (min..=max).contains(number)))
}

/// Rows of a table.
pub(super) fn rows() -> impl TypedValueParser<Value = usize> {
    expected("a whole number, 1 or more", |text| number(text).filter(|rows| *rows >= 1))
}

/// A seed.
pub(super) fn seed() -> impl TypedValueParser<Value = u64> {
    expected("a whole number", number)
}

/// A percentage, `5` or `5%`, as 5.
pub(super) fn percentage(text: &'static str, allowed: fn(f64) -> bool) -> impl TypedValueParser<Value = f64> {
    expected(format!("a percentage {text}"), move |text| {
        let percent: f64 = text.strip_suffix('%').unwrap_or(text).trim().parse().ok()?;
        (percent.is_finite() && allowed(percent)).then_some(percent)
    })
}

/// A time in seconds, more than none.
pub(super) fn seconds() -> impl TypedValueParser<Value = Duration> {
    expected("seconds, more than 0 (10 or 0.5)", |text| {
        let seconds = number(text).filter(|seconds| *seconds > 0.0 && *seconds <= DURATION_MAX_S)?;
        // Less than a nanosecond is none.
        Duration::try_from_secs_f64(seconds).ok().filter(|duration| !duration.is_zero())
    })
}

/// Bytes: a whole number with an optional suffix K, M or G (powers of 1024).
pub(super) fn size(text: &'static str, min: u64, max: u64) -> impl TypedValueParser<Value = u64> {
    expected(text, move |text| {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit_bits = match &text[digits.len()..] {
            "" | "B" => 0,
            "K" | "k" | "KB" | "KiB" => 10,
            "M" | "m" | "MB" | "MiB" => 20,
            "G" | "g" | "GB" | "GiB" => 30,
            _ => return None,
        };
        let bytes = digits.parse::<u64>().ok()?.checked_mul(1 << unit_bits)?;
        (min..=max).contains(&bytes).then_some(bytes)
    })
}

/// A destination of an output.
pub(super) fn destination<T: Clone + Send + Sync + 'static>(
    of: impl Fn(Destination) -> T + Clone + Send + Sync + 'static,
) -> impl TypedValueParser<Value = T> {
    PathBufValueParser::new().map(move |path| of(path.into()))
}

/// A value as the user wrote it.
#[derive(Clone, Debug, PartialEq)]
pub struct Written<T> {
    /// Its meaning.
    pub value: T,
    /// Its text.
    pub text: String,
}

/// The value of an option that may be given only once.
pub(super) fn once<'a, T>(option: &str, given: &'a [Written<T>]) -> Result<Option<&'a Written<T>>> {
    match given {
        [] => Ok(None),
        [one] => Ok(Some(one)),
        [first, second, ..] => {
            let (first, second) = (&first.text, &second.text);
            Err(usage(format!("{option} is given twice, `{first}` and `{second}`; give one")))
        }
    }
}

/// A time since the recording began, nanoseconds: `2.5s`.
pub(super) fn time() -> impl TypedValueParser<Value = Written<u64>> {
    expected("a time since the recording began, such as 2.5s, 300ms or 1m", |text| {
        Some(Written { value: time_ns(text)?, text: text.to_owned() })
    })
}

/// A range in one word, `FROM..TO`; either end may be omitted.
pub(super) fn range() -> impl TypedValueParser<Value = Written<Range<u64>>> {
    value(|text| {
        let refused = "expected two times since the recording began, such as 2.5s..4s";
        let (from, to) = text.split_once("..").ok_or(refused)?;
        // `0s...5s` would be `0s..` and `.5s`, which nobody means.
        if to.starts_with('.') {
            return Err(refused);
        }
        let end = |text: &str, open| if text.is_empty() { Some(open) } else { time_ns(text) };
        let (start, end) = (end(from, 0).ok_or(refused)?, end(to, u64::MAX).ok_or(refused)?);
        match start < end {
            true => Ok(Written { value: start..end, text: text.to_owned() }),
            false => Err("nothing lies between; give a later end"),
        }
    })
}

fn time_ns(text: &str) -> Option<u64> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_ns = match &text[number.len()..] {
        "" | "s" => 1e9,
        "ms" => 1e6,
        "us" => 1e3,
        "ns" => 1.0,
        "m" | "min" => 60e9,
        _ => return None,
    };
    let ns = number.parse::<f64>().ok()? * unit_ns;
    // 2^63 nanoseconds are 292 years.
    (0.0..9.2e18).contains(&ns).then_some(ns.round() as u64)
}

/// A regular expression.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl Pattern {
    /// Whether one of them matches somewhere in a name.
    #[must_use]
    pub fn any_matches(patterns: &[Pattern], name: &str) -> bool {
        patterns.iter().any(|pattern| pattern.0.is_match(name))
    }

    /// As the user wrote it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.as_str() == other.as_str()
    }
}

/// A regular expression.
pub(super) fn regex() -> impl TypedValueParser<Value = Pattern> {
    value(|text| {
        Regex::new(text).map(Pattern).map_err(|error| {
            let error = error.to_string().lines().next().unwrap_or_default().to_lowercase();
            format!("expected a regular expression: {error}")
        })
    })
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
    if let Some(format) = format.filter(|_| !format_used) {
        let name = format.name();
        let why = "would do nothing: each output has an extension that sets its format";
        return Err(usage(format!("--format {name} {why}")));
    }
    Ok(outputs)
}

/// Refuses two outputs with the same destination: only the last would survive.
pub(super) fn check_distinct<'a>(destinations: impl Iterator<Item = &'a Destination>) -> Result<()> {
    let mut seen: Vec<&Path> = Vec::new();
    for path in destinations.map(Destination::as_path) {
        if seen.contains(&path) && !path.starts_with("/dev") {
            let path = path.display();
            return Err(usage(format!("`{path}` is given twice; each output needs its own file")));
        }
        seen.push(path);
    }
    Ok(())
}

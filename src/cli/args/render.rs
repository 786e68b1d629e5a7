//! `stackprof render`: its options, which are the request (`Render`), and those of reading saved profiles
//! (`InputOptions`). No I/O.

use std::ffi::OsString;
use std::ops::Range;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser, ValueHint};
use clap::{ArgAction, Args, Parser};

use super::compare::TOP_DEFAULT;
use super::record::{CommonOptions, GraphOptions, is_number};
use super::values::{
    Destination, Output, Pattern, Stop, Written, check, check_distinct, once, outputs, parse_flags, regex,
    time, usage, value,
};
use crate::cli::outputs::Format;
use crate::error::Result;

/// `stackprof render ...`
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(
    name = "stackprof render",
    about = "Turn saved profiles into a flame graph or any other format; several are merged.",
    override_usage = "stackprof render PROFILE... (-o FILE | --top [N]) [OPTIONS]",
    before_help = "Profiles: pprof, folded stacks, speedscope, Firefox Profiler, OTLP, `perf
script` text, compressed with gzip or not; their content tells which. - is
standard input.

Examples:
  stackprof render a.pb.gz -o a.svg
  stackprof render a.pb.gz --top                        the hottest functions
  stackprof render 1.pb.gz 2.pb.gz -o both.pb.gz        merge
  stackprof render a.pb.gz --include parse -o -         stacks through parse
  stackprof render a.pb.gz --root '^main$' -o a.svg     seen from main on
",
    mut_arg("verbose", |arg| arg.hide(true))
)]
pub struct Render {
    /// Write the profile here; may be given more than once. The extension
    /// selects the format (.svg .html .folded .txt .pb.gz .pprof .speedscope.json
    /// .firefox.json .otlp .otlp.gz), - is folded stacks on standard output
    #[arg(short, long, value_name = "FILE", action = ArgAction::Append, help_heading = "Output")]
    output: Vec<PathBuf>,
    /// Format of outputs whose extension is none of these: svg, html, folded,
    /// pprof, speedscope, firefox or otlp (OpenTelemetry profiles, experimental)
    #[arg(long, value_name = "FORMAT", value_parser = value(Format::from_name), help_heading = "Output")]
    format: Option<Format>,
    /// The outputs with their formats; empty only with a table.
    #[arg(skip)]
    pub outputs: Vec<Output>,
    /// Print the N functions with the most self samples as a table [default: 20]
    #[arg(long, value_name = "N", num_args = 0..=1, allow_negative_numbers = true, help_heading = "Output")]
    top: Option<Option<OsString>>,
    /// Rows of that table.
    #[arg(skip)]
    pub rows: Option<usize>,
    /// Heading of the flame graph [default: the name of the process]
    #[arg(long, value_name = "TEXT", help_heading = "Output")]
    pub title: Option<String>,
    /// In pprof files, write each sample by itself, with its time as a label
    /// (end_timestamp_ns), if the profile has times
    #[arg(long, help_heading = "Output")]
    pub pprof_timestamps: bool,
    /// Stack-reversed flame graph: leaf functions at the root, then their callers
    #[arg(long, help_heading = "Output")]
    pub reverse: bool,
    /// Frames with their source line: function (file:line), where the profile
    /// has them
    #[arg(long, help_heading = "Output")]
    pub lines: bool,
    /// How flame graphs look.
    #[command(flatten)]
    pub graph: GraphOptions,
    /// Only samples since this time of the recording, such as 2.5s or 300ms
    #[arg(long, value_name = "TIME", value_parser = time(), action = ArgAction::Append)]
    #[arg(allow_hyphen_values = true, help_heading = STACKS)]
    from: Vec<Written<u64>>,
    /// Only samples before this time of the recording
    #[arg(long, value_name = "TIME", value_parser = time(), action = ArgAction::Append)]
    #[arg(allow_hyphen_values = true, help_heading = STACKS)]
    to: Vec<Written<u64>>,
    /// Only threads whose name, or `name (id)`, matches; for profiles recorded
    /// with --threads, or with times of samples
    #[arg(long, value_name = "REGEX", value_parser = regex(), action = ArgAction::Append, help_heading = STACKS)]
    pub thread: Vec<Pattern>,
    /// Source and instructions in .html outputs: source files below this directory
    /// that the profile names; may be given more than once
    #[arg(long, value_name = "DIR", action = ArgAction::Append, help_heading = "Output")]
    pub source_dir: Vec<PathBuf>,
    /// Only stacks with a matching frame; given twice, one match is enough
    #[arg(long, value_name = "REGEX", value_parser = regex(), action = ArgAction::Append, help_heading = STACKS)]
    pub include: Vec<Pattern>,
    /// No stacks with a matching frame
    #[arg(long, value_name = "REGEX", value_parser = regex(), action = ArgAction::Append, help_heading = STACKS)]
    pub exclude: Vec<Pattern>,
    /// Only stacks with a matching function, seen from the outermost one on
    #[arg(long, value_name = "REGEX", value_parser = regex(), action = ArgAction::Append, help_heading = STACKS)]
    pub root: Vec<Pattern>,
    /// What is read.
    #[command(flatten)]
    pub input: InputOptions,
    /// What every command takes.
    #[command(flatten)]
    pub common: CommonOptions,
}

const STACKS: &str = "Which stacks";

/// Saved profiles to read.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Input")]
pub struct InputOptions {
    /// Value of a heap profile to read: inuse_space, inuse_objects, alloc_space,
    /// alloc_objects or another one in the file [default: the one it shows]
    #[arg(long = "type", value_name = "TYPE")]
    pub value_type: Option<String>,
    /// Refuse a file with lines or samples that are not understood. Without
    /// this they are left out and counted, up to half of them
    #[arg(long)]
    pub strict: bool,
    // `-` is standard input.
    #[arg(hide = true, value_parser = OsStringValueParser::new().map(PathBuf::from), value_hint = ValueHint::AnyPath)]
    pub(crate) profiles: Vec<PathBuf>,
}

impl InputOptions {
    /// Adds the words after `--`: every one is a file.
    pub(super) fn add(&mut self, launch: Option<Vec<OsString>>) {
        self.profiles.extend(launch.into_iter().flatten().map(PathBuf::from));
    }

    /// Refuses names that no profile can have; `form` is how the command is used.
    pub(super) fn check(&self, form: &str) -> Result<()> {
        check(&[
            (
                self.profiles.iter().any(|path| path.as_os_str().is_empty()),
                &format!("a profile's name is empty; name a file: {form}"),
            ),
            (
                self.profiles.iter().filter(|path| path.as_os_str() == "-").count() > 1,
                "standard input can be read only once; give one -",
            ),
        ])
    }
}

impl Render {
    /// Time range to keep, nanoseconds since the recording began; `None` if neither end is given.
    #[must_use]
    pub fn time(&self) -> Option<Range<u64>> {
        let (from, to) = (self.from.first(), self.to.first());
        (from.is_some() || to.is_some())
            .then(|| from.map_or(0, |from| from.value)..to.map_or(u64::MAX, |to| to.value))
    }

    /// Finds the rows of the table; the word behind `--top` may be a profile.
    fn find_rows(&mut self) -> Result<()> {
        let Some(given) = &self.top else { return Ok(()) };
        let text = given.as_ref().map(|text| text.to_string_lossy());
        let rows = text.as_ref().and_then(|text| text.parse::<usize>().ok());
        if let Some(text) = text.filter(|text| rows == Some(0) || (rows.is_none() && is_number(text))) {
            return Err(usage(format!("--top `{text}`: expected a whole number, 1 or more")));
        }
        self.rows = Some(rows.unwrap_or(TOP_DEFAULT));
        self.input.profiles.extend(given.iter().filter(|_| rows.is_none()).map(PathBuf::from));
        Ok(())
    }
}

/// Parses the arguments after `render`.
pub(super) fn parse(words: &[OsString], launch: Option<Vec<OsString>>) -> std::result::Result<Render, Stop> {
    const FORM: &str = "stackprof render PROFILE... -o FILE";
    let mut render: Render = parse_flags(words, |_| None)?;
    // First: one of these may have taken the next option for its value.
    let (from, to) = (once("--from", &render.from)?, once("--to", &render.to)?);
    let text = |end: Option<&Written<u64>>| end.map_or("0", |end| &end.text).to_owned();
    let (from, to) = (text(from), text(to));
    check(&[(
        render.time().is_some_and(|time| time.is_empty()),
        &format!("--from {from} --to {to}: nothing lies between; give a later end"),
    )])?;
    render.find_rows()?;
    render.input.add(launch);
    check(&[(render.input.profiles.is_empty(), &format!("missing argument PROFILE: {FORM}"))])?;
    render.input.check(FORM)?;
    check(&[(
        render.output.is_empty() && render.rows.is_none(),
        &format!("say what to write: {FORM} (-o - prints folded stacks, --top the hottest functions)"),
    )])?;
    render.outputs = outputs(&render.output, render.format)?;
    check_distinct(render.outputs.iter().map(|output| &output.to))?;
    check(&[(
        render.rows.is_some() && render.outputs.iter().any(|output| output.to == Destination::Stdout),
        "--top and -o - both print on standard output; give one of them",
    )])?;
    Ok(render)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Command;
    use crate::cli::args::Verbosity;
    use crate::cli::args::tests::parsed;
    use crate::flamegraph::Colors;

    #[test]
    fn times_have_units_and_either_end_may_be_open() {
        for (line, expected) in [
            ("--from 2.5s --to 4s", Some(2_500_000_000..4_000_000_000)),
            ("--from 2.5", Some(2_500_000_000..u64::MAX)),
            ("--to 300ms", Some(0..300_000_000)),
            ("--from 1m --to 2min", Some(60_000_000_000..120_000_000_000)),
            ("--from 5us --to 7000ns", Some(5_000..7_000)),
            ("", None),
        ] {
            let Ok(Command::Render(render)) = parsed(&format!("render a -o - {line}")) else {
                panic!("{line}")
            };
            assert_eq!(render.time(), expected, "{line}");
        }
    }

    #[test]
    fn every_option_is_parsed() {
        let line = "render a b.pb.gz -o x.svg -o - --from 1s --to 2s --thread io --include a --include b --exclude c --root ^m$ \
                    --title T --reverse --lines --min-width 2 --colors blue-orange --dark --no-inverted --source-dir s --strict -q -- -d";
        let Ok(Command::Render(render)) = parsed(line) else { panic!("no render: {line}") };
        assert_eq!(render.input.profiles, ["a", "b.pb.gz", "-d"].map(PathBuf::from));
        assert_eq!(
            render.outputs.iter().map(|output| output.format).collect::<Vec<_>>(),
            [Format::Svg, Format::Folded]
        );
        assert_eq!(render.time(), Some(1_000_000_000..2_000_000_000));
        assert_eq!(render.include.iter().map(Pattern::as_str).collect::<Vec<_>>(), ["a", "b"]);
        let matches = Pattern::any_matches;
        assert!(matches(&render.include, "xbx") && !matches(&render.include, "c"));
        assert!(matches(&render.root, "m") && !matches(&render.root, "main"));
        let graph = render.graph.graph(String::new(), String::new(), String::new());
        assert!(render.reverse && render.lines && graph.dark && render.input.strict && !graph.inverted);
        assert_eq!((render.title.as_deref(), graph.min_width_percent), (Some("T"), 2.0));
        assert_eq!(render.source_dir, [PathBuf::from("s")]);
        assert_eq!((graph.colors, render.common.verbosity()), (Colors::BlueOrange, Verbosity::Quiet));
    }

    #[test]
    fn the_table_needs_no_output_and_its_number_is_optional() {
        for (line, rows, profiles) in [
            ("render a --top", 20, vec!["a"]),
            ("render a --top 5", 5, vec!["a"]),
            ("render --top=3 a b", 3, vec!["a", "b"]),
            ("render --top a", 20, vec!["a"]),
            ("render --top 7 a -o x.svg", 7, vec!["a"]),
        ] {
            let Ok(Command::Render(render)) = parsed(line) else { panic!("no render: {line}") };
            assert_eq!(
                (render.rows, render.input.profiles),
                (Some(rows), profiles.iter().map(PathBuf::from).collect())
            );
        }
    }
}

//! `stackprof render`: its clap flags and parsed request. No I/O.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::path::PathBuf;

use clap::{ArgAction, Parser};
use regex_lite::Regex;

use super::values::{
    Destination, GraphOptions, Output, ParsedFlags, Verbosity, check_distinct, invalid_value, once, outputs,
    parse_flags, time_range, usage, verbosity,
};
use crate::cli::flags::{CommonFlags, LookFlags, TEMPLATE};
use crate::cli::outputs::Format;
use crate::error::Result;

/// `stackprof render ...`
#[derive(Debug, Parser)]
#[command(
    name = "stackprof render",
    version,
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
    help_template = TEMPLATE,
    max_term_width = 80,
    disable_help_flag = true,
    disable_version_flag = true,
    args_override_self = true,
    mut_arg("verbose", |arg| arg.hide(true))
)]
pub(super) struct RenderFlags {
    /// Write the profile here; may be given more than once. The extension
    /// selects the format (.svg .html .folded .txt .pb.gz .pprof .speedscope.json
    /// .firefox.json .otlp .otlp.gz), - is folded stacks on standard output
    #[arg(short, long, value_name = "FILE", action = ArgAction::Append, help_heading = OUTPUT)]
    output: Vec<PathBuf>,
    /// Format of outputs whose extension is none of these: svg, html, folded,
    /// pprof, speedscope, firefox or otlp (OpenTelemetry profiles, experimental)
    #[arg(long, value_name = "FORMAT", help_heading = OUTPUT)]
    format: Option<OsString>,
    /// Print the N functions with the most self samples as a table [default: 20]
    #[arg(long, value_name = "N", num_args = 0..=1, allow_negative_numbers = true, help_heading = OUTPUT)]
    top: Option<Option<OsString>>,
    /// Heading of the flame graph [default: the name of the process]
    #[arg(long, value_name = "TEXT", help_heading = OUTPUT)]
    title: Option<String>,
    /// In pprof files, write each sample by itself, with its time as a label
    /// (end_timestamp_ns), if the profile has times
    #[arg(long, help_heading = OUTPUT)]
    pprof_timestamps: bool,
    /// Stack-reversed flame graph: leaf functions at the root, then their callers
    #[arg(long, help_heading = OUTPUT)]
    reverse: bool,
    /// Frames with their source line: function (file:line), where the profile
    /// has them
    #[arg(long, help_heading = OUTPUT)]
    lines: bool,
    /// Leave out frames narrower than this part of the graph [default: 0.01]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, help_heading = OUTPUT)]
    min_width: Option<OsString>,
    #[command(flatten)]
    look: LookFlags,
    /// Only samples since this time of the recording, such as 2.5s or 300ms
    #[arg(long, value_name = "TIME", action = ArgAction::Append, allow_hyphen_values = true, help_heading = STACKS)]
    from: Vec<OsString>,
    /// Only samples before this time of the recording
    #[arg(long, value_name = "TIME", action = ArgAction::Append, allow_hyphen_values = true, help_heading = STACKS)]
    to: Vec<OsString>,
    /// Only threads whose name, or `name (id)`, matches; for profiles recorded
    /// with --threads, or with times of samples
    #[arg(long, value_name = "REGEX", action = ArgAction::Append, help_heading = STACKS)]
    thread: Vec<OsString>,
    /// Source and instructions in .html outputs: source files below this directory
    /// that the profile names; may be given more than once
    #[arg(long, value_name = "DIR", action = ArgAction::Append, help_heading = OUTPUT)]
    source_dir: Vec<PathBuf>,
    /// Only stacks with a matching frame; given twice, one match is enough
    #[arg(long, value_name = "REGEX", action = ArgAction::Append, help_heading = STACKS)]
    include: Vec<OsString>,
    /// No stacks with a matching frame
    #[arg(long, value_name = "REGEX", action = ArgAction::Append, help_heading = STACKS)]
    exclude: Vec<OsString>,
    /// Only stacks with a matching function, seen from the outermost one on
    #[arg(long, value_name = "REGEX", action = ArgAction::Append, help_heading = STACKS)]
    root: Vec<OsString>,
    /// Value of a heap profile to read: inuse_space, inuse_objects, alloc_space,
    /// alloc_objects or another one in the file [default: the one it shows]
    #[arg(long = "type", value_name = "TYPE", help_heading = INPUT)]
    value_type: Option<String>,
    /// Refuse a file with lines or samples that are not understood. Without
    /// this they are left out and counted, up to half of them
    #[arg(long, help_heading = INPUT)]
    strict: bool,
    #[command(flatten)]
    common: CommonFlags,
    #[arg(
        hide = true,
        value_hint = clap::ValueHint::AnyPath,
        value_parser = clap::builder::OsStringValueParser::new()
    )]
    profiles: Vec<OsString>,
}

const INPUT: &str = "Input";

const OUTPUT: &str = "Output";
const STACKS: &str = "Which stacks";

/// Saved profiles to convert.
#[derive(Clone, Debug, PartialEq)]
pub struct Render {
    /// Profiles to read and, if several, merge; never empty. `-` is standard input.
    pub profiles: Vec<PathBuf>,
    /// Outputs to write; empty only with `top`.
    pub outputs: Vec<Output>,
    /// Rows of the printed table of functions.
    pub top: Option<usize>,
    /// Time range to keep, nanoseconds since the recording began.
    pub time: Option<Range<u64>>,
    /// Threads to keep.
    pub thread: Patterns,
    /// Stacks to keep.
    pub include: Patterns,
    /// Stacks to drop.
    pub exclude: Patterns,
    /// Functions that become the root.
    pub root: Patterns,
    /// How flame graphs look.
    pub graph: GraphOptions,
    /// One pprof sample per time.
    pub pprof_timestamps: bool,
    /// Stack-reversed flame graph.
    pub reverse: bool,
    /// `function (file:line)`.
    pub lines: bool,
    /// Whether a file that is only partly understood is refused.
    pub strict: bool,
    /// The value type to read, if a stack has several.
    pub value_type: Option<String>,
    /// Directories of source files for pages; empty is no source and no instructions.
    pub source_directories: Vec<PathBuf>,
    /// Verbosity on standard error.
    pub verbosity: Verbosity,
}

/// Regular expressions of one option; one match is enough.
#[derive(Clone, Debug, Default)]
pub struct Patterns(Vec<Regex>);

impl Patterns {
    pub(super) fn new(option: &str, texts: &[OsString]) -> Result<Patterns> {
        let regex = |text: &OsString| {
            let text = text.to_string_lossy();
            Regex::new(&text).map_err(|error| {
                usage(format!("{option} `{text}`: expected a regular expression: {}", first_line(&error)))
            })
        };
        texts.iter().map(regex).collect::<Result<_>>().map(Patterns)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of them matches somewhere in a name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.0.iter().any(|regex| regex.is_match(name))
    }

    /// As the user wrote them.
    #[must_use]
    pub fn texts(&self) -> Vec<&str> {
        self.0.iter().map(Regex::as_str).collect()
    }
}

impl PartialEq for Patterns {
    fn eq(&self, other: &Patterns) -> bool {
        self.texts() == other.texts()
    }
}

fn first_line(error: &regex_lite::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_lowercase()
}

/// Parses the arguments after `render`.
///
/// # Errors
/// [`ErrorKind::Usage`](crate::error::ErrorKind::Usage) with one line.
pub(super) fn parse(words: &[OsString], launch: Option<&[OsString]>) -> Result<ParsedFlags<Render>> {
    const FORM: &str = "stackprof render PROFILE... -o FILE";
    const TOP_DEFAULT: usize = 20;
    const TOP_EXPECTED: &str = "a whole number, 1 or more";
    let is_number = |text: Option<&OsStr>| text.and_then(OsStr::to_str).is_some_and(super::record::is_number);
    let mut flags: RenderFlags = match parse_flags("stackprof render", words)? {
        ParsedFlags::Flags(flags) => flags,
        ParsedFlags::Print(text) => return Ok(ParsedFlags::Print(text)),
    };
    // First: one of these may have taken the next option for its value.
    let time = time_range(once("--from", &flags.from)?, once("--to", &flags.to)?)?;
    let mut top = None;
    if let Some(rows) = &flags.top {
        let count = rows.as_ref().map(|rows| rows.to_str().and_then(|rows| rows.parse::<usize>().ok()));
        top = Some(count.flatten().unwrap_or(TOP_DEFAULT));
        match count {
            Some(Some(0)) => return Err(invalid_value("--top", OsStr::new("0"), TOP_EXPECTED)),
            Some(None) if is_number(rows.as_deref()) => {
                return Err(invalid_value("--top", rows.as_deref().unwrap_or_default(), TOP_EXPECTED));
            }
            // `render --top FILE`: the word is a profile.
            Some(None) => flags.profiles.extend(rows.as_ref().cloned()),
            _ => {}
        }
    }
    // After `--`, every word is a file.
    flags.profiles.extend(launch.unwrap_or_default().iter().cloned());
    if flags.profiles.is_empty() {
        return Err(usage(format!("missing argument PROFILE: {FORM}")));
    }
    if flags.profiles.iter().any(|path| path.is_empty()) {
        return Err(usage(format!("a profile's name is empty; name a file: {FORM}")));
    }
    if flags.profiles.iter().filter(|path| *path == "-").count() > 1 {
        return Err(usage("standard input can be read only once; give one -"));
    }
    if flags.output.is_empty() && top.is_none() {
        return Err(usage(format!(
            "say what to write: {FORM} (-o - prints folded stacks, --top the hottest functions)"
        )));
    }
    let format =
        flags.format.as_deref().map(|name| Format::from_name(&name.to_string_lossy())).transpose()?;
    let outputs = outputs(&flags.output, format)?;
    check_distinct(outputs.iter().map(|output| &output.to))?;
    if top.is_some() && outputs.iter().any(|output| output.to == Destination::Stdout) {
        return Err(usage("--top and -o - both print on standard output; give one of them"));
    }
    let graph = GraphOptions::new(flags.title, flags.min_width.as_deref(), &flags.look)?;
    Ok(ParsedFlags::Flags(Render {
        profiles: flags.profiles.into_iter().map(PathBuf::from).collect(),
        strict: flags.strict,
        value_type: flags.value_type,
        outputs,
        top,
        time,
        thread: Patterns::new("--thread", &flags.thread)?,
        include: Patterns::new("--include", &flags.include)?,
        exclude: Patterns::new("--exclude", &flags.exclude)?,
        root: Patterns::new("--root", &flags.root)?,
        graph,
        pprof_timestamps: flags.pprof_timestamps,
        reverse: flags.reverse,
        lines: flags.lines,
        source_directories: flags.source_dir,
        verbosity: verbosity(&flags.common)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Command;
    use crate::cli::args::tests::parsed;
    use crate::flamegraph::Colors;

    fn refused(line: &str) -> String {
        parsed(line).expect_err("refused").to_string()
    }

    #[test]
    fn every_option_is_parsed() {
        let line = "render a b.pb.gz -o x.svg -o - --from 1s --to 2s --thread io --include a --include b --exclude c --root ^m$ \
                    --title T --reverse --lines --min-width 2 --colors blue-orange --dark --no-inverted --source-dir s --strict -q -- -d";
        let Ok(Command::Render(render)) = parsed(line) else { panic!("no render: {line}") };
        assert_eq!(render.profiles, ["a", "b.pb.gz", "-d"].map(PathBuf::from));
        assert_eq!(
            render.outputs.iter().map(|output| output.format).collect::<Vec<_>>(),
            [Format::Svg, Format::Folded]
        );
        assert_eq!(render.time, Some(1_000_000_000..2_000_000_000));
        assert_eq!(render.include.texts(), ["a", "b"]);
        assert!(render.include.matches("xbx") && !render.include.matches("c"));
        assert!(render.root.matches("m") && !render.root.matches("main"));
        assert!(
            render.reverse && render.lines && render.graph.dark && render.strict && !render.graph.inverted
        );
        assert_eq!((render.graph.title.as_deref(), render.graph.min_width_percent), (Some("T"), 2.0));
        assert_eq!(render.source_directories, [PathBuf::from("s")]);
        assert_eq!((render.graph.colors, render.verbosity), (Colors::BlueOrange, Verbosity::Quiet));
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
                (render.top, render.profiles),
                (Some(rows), profiles.iter().map(PathBuf::from).collect())
            );
        }
        assert_eq!(refused("render a --top 0"), "--top `0`: expected a whole number, 1 or more");
        assert_eq!(
            refused("render a --top -o -"),
            "--top and -o - both print on standard output; give one of them"
        );
    }

    #[test]
    fn invalid_options_are_refused() {
        assert_eq!(refused("render"), "missing argument PROFILE: stackprof render PROFILE... -o FILE");
        assert_eq!(
            refused("render a"),
            "say what to write: stackprof render PROFILE... -o FILE (-o - prints folded stacks, --top the hottest \
             functions)"
        );
        assert_eq!(refused("render - - -o -"), "standard input can be read only once; give one -");
        assert_eq!(
            refused("render a -o - --from 1s --from 2s"),
            "--from is given twice, `1s` and `2s`; give one"
        );
        assert_eq!(
            refused("render a --from -o -"),
            "--from `-o`: expected a time since the recording began, such as 2.5s, 300ms or 1m"
        );
        assert_eq!(refused("render a -o - --to 1s --to 2s"), "--to is given twice, `1s` and `2s`; give one");
        let error = refused("render a -o - --root (");
        assert!(error.starts_with("--root `(`: expected a regular expression: "), "{error}");
    }
}

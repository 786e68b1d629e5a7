//! `stackprof diff`: its clap flags and parsed request. No I/O.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::path::PathBuf;

use clap::{ArgAction, Parser};

use super::compare::{MATCHING, MatchingFlags, ReportFormat, ReportOutput, report_outputs, top};
use super::graph_options::GraphOptions;
use super::time_range::{once, range};
use super::values::{ParsedFlags, Verbosity, parse_flags, usage, verbosity};
use crate::cli::flags::{CommonFlags, LookFlags, TEMPLATE};
use crate::diff::compare::MeasureChoice;
use crate::diff::stacks::Matching;
use crate::error::Result;

/// `stackprof diff ...`
#[derive(Debug, Parser)]
#[command(
    name = "stackprof diff",
    version,
    about = "Show what changed between two profiles: self and total of every function.",
    override_usage = "stackprof diff BASE NEW [-o FILE] [OPTIONS]
       stackprof diff PROFILE --base FROM..TO --new FROM..TO [-o FILE] [OPTIONS]",
    before_help = "Two recordings of a whole command, or two that took equally long, are compared
by CPU seconds, others by shares of the profile; the output says which and why.
One profile a side tells nothing about noise: see stackprof gate.

Examples:
  stackprof diff old.pb.gz new.pb.gz
  stackprof diff old.pb.gz new.pb.gz -o diff.svg   differential flame graph
  stackprof diff old.folded new.folded --absolute  by samples
  stackprof diff a.firefox.json --base 0s..5s --new 5s..10s   two parts of one
",
    help_template = TEMPLATE,
    max_term_width = 80,
    disable_help_flag = true,
    disable_version_flag = true,
    args_override_self = true,
    mut_arg("verbose", |arg| arg.hide(true))
)]
pub(super) struct DiffFlags {
    /// The part of the time that is the base, of one profile with times, such as
    /// 0s..500ms; either end may be left out
    #[arg(long, value_name = "RANGE", action = ArgAction::Append, allow_hyphen_values = true, help_heading = INPUT)]
    base: Vec<OsString>,
    /// The part of the time that is compared with it
    #[arg(long, value_name = "RANGE", action = ArgAction::Append, allow_hyphen_values = true, help_heading = INPUT)]
    new: Vec<OsString>,
    /// Compare CPU seconds, or numbers of samples if a file does not state its rate
    #[arg(long, help_heading = COMPARING)]
    absolute: bool,
    /// Compare shares of each profile
    #[arg(long, help_heading = COMPARING)]
    share: bool,
    /// Also compare waiting threads, for profiles recorded with --idle
    #[arg(long, help_heading = COMPARING)]
    idle: bool,
    #[command(flatten)]
    matching: MatchingFlags,
    /// Count inlined functions as the function they became part of, where the
    /// profile tells them apart. For builds that inline differently
    #[arg(long, help_heading = MATCHING)]
    no_inline: bool,
    /// Write the comparison here; may be given more than once. The extension
    /// selects the format: .svg differential flame graph, .html page with both
    /// profiles, .folded `stack BASE NEW`, .md and .json tables; - is folded on standard output
    #[arg(short, long, value_name = "FILE", action = ArgAction::Append, help_heading = OUTPUT)]
    output: Vec<PathBuf>,
    /// Functions shown [default: 20]
    #[arg(long, value_name = "N", allow_hyphen_values = true, help_heading = OUTPUT)]
    top: Option<OsString>,
    /// Heading of the flame graph
    #[arg(long, value_name = "TEXT", help_heading = OUTPUT)]
    title: Option<String>,
    /// Leave out frames narrower than this part of the graph [default: 0.01]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, help_heading = OUTPUT)]
    min_width: Option<OsString>,
    #[command(flatten)]
    look: LookFlags,
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

const COMPARING: &str = "Comparing";
const OUTPUT: &str = "Output";

/// Two profiles to compare.
#[derive(Clone, Debug, PartialEq)]
pub struct Diff {
    /// The baseline profile.
    pub base: PathBuf,
    /// The new profile.
    pub new: PathBuf,
    /// Two time ranges of one profile, baseline first, nanoseconds since it began, and their text in the options; then
    /// `new` is `base`.
    pub parts: Option<[(Range<u64>, String); 2]>,
    /// The compared quantity.
    pub measure: MeasureChoice,
    /// How functions are matched.
    pub matching: Matching,
    /// Reports to write.
    pub outputs: Vec<ReportOutput>,
    /// Number of functions in tables.
    pub top: usize,
    /// How flame graphs look.
    pub graph: GraphOptions,
    /// Whether a file that is only partly understood is refused.
    pub strict: bool,
    /// The value type to read, if a stack has several.
    pub value_type: Option<String>,
    /// Verbosity on standard error.
    pub verbosity: Verbosity,
}

/// Parses the arguments after `diff`.
///
/// # Errors
/// [`ErrorKind::Usage`](crate::error::ErrorKind::Usage) with one line.
pub(super) fn parse(words: &[OsString], launch: Option<&[OsString]>) -> Result<ParsedFlags<Diff>> {
    const FORM: &str = "stackprof diff BASE NEW [-o FILE]";
    let mut flags: DiffFlags = match parse_flags("stackprof diff", words)? {
        ParsedFlags::Flags(flags) => flags,
        ParsedFlags::Print(text) => return Ok(ParsedFlags::Print(text)),
    };
    // After `--`, every word is a file.
    flags.profiles.extend(launch.unwrap_or_default().iter().cloned());
    const PARTS: &str = "stackprof diff PROFILE --base FROM..TO --new FROM..TO";
    let parts = match (once("--base", &flags.base)?, once("--new", &flags.new)?) {
        (None, None) => None,
        (Some(base), Some(new)) => {
            let range = |option: &str, text: &OsStr| {
                Ok::<_, crate::error::Error>((range(option, text)?, text.to_string_lossy().into_owned()))
            };
            Some([range("--base", base)?, range("--new", new)?])
        }
        _ => return Err(usage(format!("--base and --new go together: {PARTS}"))),
    };
    let [base, new] = match (flags.profiles.as_slice(), &parts) {
        ([base, new], None) => [base, new],
        ([one], Some(_)) => [one, one],
        (given, Some(_)) => {
            let given = given.len();
            return Err(usage(format!("--base and --new are parts of one profile, {given} given: {PARTS}")));
        }
        (given, None) => {
            return Err(usage(format!("diff compares two profiles, {} given: {FORM}", given.len())));
        }
    };
    if base.is_empty() || new.is_empty() {
        return Err(usage(format!("a profile's name is empty; name a file: {FORM}")));
    }
    if base == new && base == "-" && parts.is_none() {
        return Err(usage("standard input can be read only once; give one -"));
    }
    let measure = match (flags.absolute, flags.share) {
        (true, true) => return Err(usage("--absolute and --share exclude each other; leave one out")),
        (true, false) => MeasureChoice::Absolute,
        (false, true) => MeasureChoice::Share,
        (false, false) => MeasureChoice::Auto,
    };
    let forms = [
        ReportFormat::Svg,
        ReportFormat::Html,
        ReportFormat::Folded,
        ReportFormat::Markdown,
        ReportFormat::Json,
    ];
    let outputs = report_outputs(&flags.output, &forms, ReportFormat::Folded)?;
    let graph = GraphOptions::new(flags.title, flags.min_width.as_deref(), &flags.look)?;
    Ok(ParsedFlags::Flags(Diff {
        base: base.into(),
        new: new.into(),
        parts,
        strict: flags.strict,
        value_type: flags.value_type,
        measure,
        matching: flags.matching.matching(!flags.no_inline, flags.idle),
        outputs,
        top: top(flags.top.as_deref())?,
        graph,
        verbosity: verbosity(&flags.common)?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Command;
    use crate::cli::args::tests::parsed;

    #[test]
    fn all_options_are_parsed() {
        let line = "diff a b -o x.svg -o x.md -o - --share --idle --no-normalize --no-inline --strict --top 3 --min-width 2";
        let Ok(Command::Diff(diff)) = parsed(line) else { panic!("no diff: {line}") };
        assert_eq!((diff.base, diff.new), (PathBuf::from("a"), PathBuf::from("b")));
        assert_eq!(
            diff.outputs.iter().map(|output| output.format).collect::<Vec<_>>(),
            [ReportFormat::Svg, ReportFormat::Markdown, ReportFormat::Folded]
        );
        assert_eq!(diff.matching, Matching { normalize: false, inlines: false, waiting: true });
        assert!(diff.strict);
        assert_eq!(diff.parts, None);
        let Ok(Command::Diff(diff)) = parsed("diff a --base 0s..5s --new 5s..") else { panic!("no diff") };
        assert_eq!((diff.base, diff.new), (PathBuf::from("a"), PathBuf::from("a")));
        let [base, new] = diff.parts.expect("two parts");
        assert_eq!(base, (0..5_000_000_000, "0s..5s".to_owned()));
        assert_eq!(new, (5_000_000_000..u64::MAX, "5s..".to_owned()));
        let Ok(Command::Diff(diff)) = parsed(line) else { panic!("no diff: {line}") };
        assert_eq!((diff.measure, diff.top, diff.graph.min_width_percent), (MeasureChoice::Share, 3, 2.0));
    }

    #[test]
    fn invalid_options_are_refused() {
        for (line, expected) in [
            ("diff a", "diff compares two profiles, 1 given: stackprof diff BASE NEW [-o FILE]"),
            ("diff a b c", "diff compares two profiles, 3 given: stackprof diff BASE NEW [-o FILE]"),
            ("diff a --", "diff compares two profiles, 1 given: stackprof diff BASE NEW [-o FILE]"),
            ("diff - -", "standard input can be read only once; give one -"),
            ("diff a b --share --absolute", "--absolute and --share exclude each other; leave one out"),
            (
                "diff a --base 0s..1s",
                "--base and --new go together: stackprof diff PROFILE --base FROM..TO --new FROM..TO",
            ),
            (
                "diff a b --base 0s..1s --new 1s..2s",
                "--base and --new are parts of one profile, 2 given: stackprof diff PROFILE --base FROM..TO --new FROM..TO",
            ),
            (
                "diff a --base 0s --new 1s..2s",
                "--base `0s`: expected two times since the recording began, such as 2.5s..4s",
            ),
            ("diff a --base 0s..1s --new 2s..1s", "--new `2s..1s`: nothing lies between; give a later end"),
            (
                "diff a --base 0s...1s --new 1s..2s",
                "--base `0s...1s`: expected two times since the recording began, such as 2.5s..4s",
            ),
            (
                "diff a --base 0s..1s --new 1s..2s --base 1s..3s",
                "--base is given twice, `0s..1s` and `1s..3s`; give one",
            ),
            ("diff a b --top 0", "--top `0`: expected a whole number, 1 or more"),
            (
                "diff a b -o x.pb.gz",
                "--output `x.pb.gz`: expected a name that ends with .svg, .html, .folded, .txt, .md, .json",
            ),
        ] {
            assert_eq!(parsed(line).expect_err("refused").to_string(), expected, "{line}");
        }
    }
}

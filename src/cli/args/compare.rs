//! `stackprof diff` and `stackprof gate`: their clap flags (`DiffFlags`, `GateFlags`) and parsed requests (`Diff`,
//! `Gate`), and the options that they share: matching of functions, report outputs, percentages. No I/O.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::{ArgAction, Args, Parser};

use super::values::{
    Destination, GraphOptions, ParsedFlags, Verbosity, check_distinct, number, once, parse_flags, percent,
    range, usage, verbosity,
};
use crate::cli::flags::{CommonFlags, LookFlags, TEMPLATE};
use crate::diff::compare::MeasureChoice;
use crate::diff::stacks::Matching;
use crate::error::Result;
use crate::gate::Options;

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

// ---- `stackprof diff`: its clap flags and parsed request. No I/O.

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
    #[arg(short, long, value_name = "FILE", action = ArgAction::Append, help_heading = DIFF_OUTPUT)]
    output: Vec<PathBuf>,
    /// Functions shown [default: 20]
    #[arg(long, value_name = "N", allow_hyphen_values = true, help_heading = DIFF_OUTPUT)]
    top: Option<OsString>,
    /// Heading of the flame graph
    #[arg(long, value_name = "TEXT", help_heading = DIFF_OUTPUT)]
    title: Option<String>,
    /// Leave out frames narrower than this part of the graph [default: 0.01]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, help_heading = DIFF_OUTPUT)]
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
const DIFF_OUTPUT: &str = "Output";

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
pub(super) fn parse_diff(words: &[OsString], launch: Option<&[OsString]>) -> Result<ParsedFlags<Diff>> {
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

// ---- `stackprof gate`: its clap flags and parsed request. No I/O.

/// `stackprof gate ...`
#[derive(Debug, Parser)]
#[command(
    name = "stackprof gate",
    version,
    about = "Fail when a program got slower: several recordings before, several after.",
    override_usage = "stackprof gate --base FILE... --new FILE... [OPTIONS]",
    before_help = "Record the same command 5 to 10 times a side, in turn (base, new, base, ...), on
one machine. A directory stands for all files in it.

It fails if the program's CPU time grew by more than the limit, or a function's
own did, and a permutation test finds chance unlikely. Cost that only moved
between functions is reported and passes. With too few runs for a test
(fewer than 4 a side at the default --false-alarms) only growth beyond limit and
usual noise in every run is reported.

Examples:
  mkdir base new
  for i in 1 2 3 4 5 6 7; do stackprof -q -o base/$i.pb.gz -- old/prog
                             stackprof -q -o new/$i.pb.gz -- new/prog; done
  stackprof gate --base base --new new
  stackprof gate --base base --new new --max-increase 3% -o gate.md -o gate.json
  stackprof gate --base base --new new --github --junit gate.xml
  stackprof gate --new new --update-baseline kept

Exit codes: 0 passed, 1 error, 2 wrong usage, 3 something got slower,
            4 no data to compare
",
    help_template = TEMPLATE,
    max_term_width = 80,
    disable_help_flag = true,
    disable_version_flag = true,
    args_override_self = true,
    mut_arg("verbose", |arg| arg.hide(true))
)]
pub(super) struct GateFlags {
    /// Recordings before the change, or a directory of them
    #[arg(long, value_name = "FILE", num_args = 1.., action = ArgAction::Append, help_heading = RUNS)]
    base: Vec<PathBuf>,
    /// Recordings after the change, or a directory of them
    #[arg(long, value_name = "FILE", num_args = 1.., action = ArgAction::Append, help_heading = RUNS)]
    new: Vec<PathBuf>,
    /// If the gate passes, or without --base, keep the new recordings here as
    /// the base of later gates, in place of those kept before; the directory
    /// is for these only
    #[arg(long, value_name = "DIR", help_heading = RUNS)]
    update_baseline: Option<PathBuf>,
    /// Value of a heap profile to read: inuse_space, inuse_objects, alloc_space,
    /// alloc_objects or another one in the file [default: the one it shows]
    #[arg(long = "type", value_name = "TYPE", help_heading = RUNS)]
    value_type: Option<String>,
    /// Compare programs of different names
    #[arg(long, help_heading = RUNS)]
    allow_different_names: bool,
    /// Growth that passes, of the program's CPU time and of a function's own
    /// [default: 5%]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, help_heading = VERDICT)]
    max_increase: Option<OsString>,
    /// A function's growth by less than this part of the program's CPU time is
    /// no regression; functions too small for it are not tested [default: 0.5%]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, help_heading = VERDICT)]
    min_share: Option<OsString>,
    /// How often a gate of unchanged code may fail [default: 5%]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, help_heading = VERDICT)]
    false_alarms: Option<OsString>,
    /// Also fail when cost moved from one function to another
    #[arg(long, help_heading = VERDICT)]
    strict: bool,
    /// Seed of the permutations; the same files and seed give the same report
    /// [default: 0]
    #[arg(long, value_name = "N", allow_hyphen_values = true, help_heading = VERDICT)]
    seed: Option<OsString>,
    #[command(flatten)]
    matching: MatchingFlags,
    /// Test inlined functions by themselves. Without this, their time is that
    /// of the function they became part of, where the profile tells them apart
    #[arg(long, help_heading = MATCHING)]
    inline: bool,
    /// Write the report here; may be given more than once (.md, .json; - is
    /// JSON on standard output)
    #[arg(short, long, value_name = "FILE", action = ArgAction::Append, help_heading = GATE_OUTPUT)]
    output: Vec<PathBuf>,
    /// Write the report as Markdown, whatever the file is called
    #[arg(long, value_name = "FILE", help_heading = GATE_OUTPUT)]
    markdown: Option<PathBuf>,
    /// Write the verdict as JUnit XML, for CI systems: one test case for the
    /// total and one for each function that failed or to which cost moved
    #[arg(long, value_name = "FILE", help_heading = GATE_OUTPUT)]
    junit: Option<PathBuf>,
    /// For GitHub Actions: print the verdict as annotations, and append the
    /// Markdown report to the file that GITHUB_STEP_SUMMARY names
    #[arg(long, help_heading = GATE_OUTPUT)]
    github: bool,
    /// Functions shown [default: 20]
    #[arg(long, value_name = "N", allow_hyphen_values = true, help_heading = GATE_OUTPUT)]
    top: Option<OsString>,
    #[command(flatten)]
    common: CommonFlags,
    #[arg(hide = true)]
    stray: Vec<OsString>,
}

const RUNS: &str = "Runs";
const VERDICT: &str = "Verdict";
const GATE_OUTPUT: &str = "Output";

/// Runs to compare.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// Recordings of the baseline, or directories of them; empty only to create a baseline.
    pub base: Vec<PathBuf>,
    /// New recordings, or directories of them; never empty.
    pub new: Vec<PathBuf>,
    /// Where the new recordings are stored.
    pub update_baseline: Option<PathBuf>,
    /// Whether process names may differ.
    pub allow_different_names: bool,
    /// The value type to read, if a stack has several.
    pub value_type: Option<String>,
    /// Thresholds of a regression.
    pub options: Options,
    /// How functions are matched.
    pub matching: Matching,
    /// Reports to write.
    pub outputs: Vec<ReportOutput>,
    /// Whether GitHub Actions reads standard output and the step summary.
    pub github: bool,
    /// Number of functions in tables.
    pub top: usize,
    /// Verbosity on standard error.
    pub verbosity: Verbosity,
}

/// Parses the arguments after `gate`.
///
/// # Errors
/// [`ErrorKind::Usage`](crate::error::ErrorKind::Usage) with one line.
pub(super) fn parse_gate(words: &[OsString], launch: Option<&[OsString]>) -> Result<ParsedFlags<Gate>> {
    const FORM: &str = "stackprof gate --base FILE... --new FILE...";
    let flags: GateFlags = match parse_flags("stackprof gate", words)? {
        ParsedFlags::Flags(flags) => flags,
        ParsedFlags::Print(text) => return Ok(ParsedFlags::Print(text)),
    };
    if let Some(word) = flags.stray.first().or_else(|| launch?.first()) {
        return Err(usage(format!(
            "unexpected argument `{}`; give it to --base or to --new: {FORM}",
            word.display()
        )));
    }
    if flags.new.is_empty() {
        return Err(usage(format!("missing --new FILE: {FORM}")));
    }
    if flags.base.is_empty() && flags.update_baseline.is_none() {
        return Err(usage(format!(
            "say what to compare with: {FORM} (--update-baseline DIR makes a first base)"
        )));
    }
    if flags.base.is_empty()
        && (!flags.output.is_empty() || flags.markdown.is_some() || flags.junit.is_some() || flags.github)
    {
        return Err(usage("there is no report without --base; leave the outputs out"));
    }
    let mut outputs =
        report_outputs(&flags.output, &[ReportFormat::Markdown, ReportFormat::Json], ReportFormat::Json)?;
    outputs
        .extend(flags.markdown.map(|path| ReportOutput { to: path.into(), format: ReportFormat::Markdown }));
    outputs.extend(flags.junit.map(|path| ReportOutput { to: path.into(), format: ReportFormat::Junit }));
    check_distinct(outputs.iter().map(|output| &output.to))?;
    if flags.github && outputs.iter().any(|output| output.to == Destination::Stdout) {
        return Err(usage("--github prints annotations on standard output; name a file in place of `-`"));
    }
    let default = Options::default();
    let share = "a percentage from 0 to 100";
    let options = Options {
        max_increase: percentage(
            "--max-increase",
            flags.max_increase.as_ref(),
            default.max_increase,
            "a percentage from 0 to 1000 (5%)",
            |percent| (0.0..=1000.0).contains(&percent),
        )?,
        min_share: percentage(
            "--min-share",
            flags.min_share.as_ref(),
            default.min_share,
            share,
            |percent| (0.0..=100.0).contains(&percent),
        )?,
        alpha: percentage(
            "--false-alarms",
            flags.false_alarms.as_ref(),
            default.alpha,
            "a percentage from 0.1 to 50",
            |percent| (0.1..=50.0).contains(&percent),
        )?,
        strict: flags.strict,
        seed: flags
            .seed
            .as_deref()
            .map_or(Ok(default.seed), |seed| number("--seed", seed, "a whole number", |_: u64| true))?,
    };
    Ok(ParsedFlags::Flags(Gate {
        base: flags.base,
        new: flags.new,
        update_baseline: flags.update_baseline,
        allow_different_names: flags.allow_different_names,
        value_type: flags.value_type,
        options,
        matching: flags.matching.matching(flags.inline, false),
        outputs,
        github: flags.github,
        top: top(flags.top.as_deref())?,
        verbosity: verbosity(&flags.common)?,
    }))
}

#[cfg(test)]
mod diff_tests {
    use super::super::Command;
    use super::super::tests::parsed;
    use super::*;

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

#[cfg(test)]
mod gate_tests {
    use super::super::Command;
    use super::super::tests::parsed;
    use super::*;

    #[test]
    fn all_options_are_parsed() {
        let line = "gate --base a b --new c --new d --max-increase 3% --min-share 1 --false-alarms 1% --strict \
                    --seed 7 --top 3 -o x.md -o x.json --markdown summary --allow-different-names \
                    --update-baseline kept --inline --junit j.xml --github";
        let Ok(Command::Gate(gate)) = parsed(line) else { panic!("no gate: {line}") };
        assert_eq!((gate.base, gate.new), (vec!["a".into(), "b".into()], vec!["c".into(), "d".into()]));
        let options = Options { max_increase: 0.03, min_share: 0.01, alpha: 0.01, strict: true, seed: 7 };
        assert_eq!((gate.options, gate.top), (options, 3));
        assert!(gate.allow_different_names && gate.matching.inlines && gate.matching.normalize);
        let formats: Vec<_> = gate.outputs.iter().map(|output| output.format).collect();
        assert_eq!(
            formats,
            [ReportFormat::Markdown, ReportFormat::Json, ReportFormat::Markdown, ReportFormat::Junit]
        );
        assert!(gate.github);
        assert_eq!(gate.update_baseline, Some("kept".into()));
        let Ok(Command::Gate(gate)) = parsed("gate --base a --new b") else { panic!("no gate") };
        assert_eq!(gate.options, Options::default());
        assert!(!gate.matching.inlines, "helpers that are inlined everywhere tell no place");
    }

    #[test]
    fn invalid_options_are_refused() {
        for (line, expected) in [
            ("gate", "missing --new FILE: stackprof gate --base FILE... --new FILE..."),
            (
                "gate a --new b",
                "unexpected argument `a`; give it to --base or to --new: stackprof gate --base FILE... --new FILE...",
            ),
            (
                "gate --new b",
                "say what to compare with: stackprof gate --base FILE... --new FILE... \
                 (--update-baseline DIR makes a first base)",
            ),
            (
                "gate --new b --update-baseline d -o x.md",
                "there is no report without --base; leave the outputs out",
            ),
            (
                "gate --new b --update-baseline d --junit x.xml",
                "there is no report without --base; leave the outputs out",
            ),
            (
                "gate --base a --new b --github -o -",
                "--github prints annotations on standard output; name a file in place of `-`",
            ),
            (
                "gate --base a --new b --max-increase -1",
                "--max-increase `-1`: expected a percentage from 0 to 1000 (5%)",
            ),
            ("gate --base a --new b --min-share x%", "--min-share `x%`: expected a percentage from 0 to 100"),
            (
                "gate --base a --new b --false-alarms 0",
                "--false-alarms `0`: expected a percentage from 0.1 to 50",
            ),
            ("gate --base a --new b -o x.svg", "--output `x.svg`: expected a name that ends with .md, .json"),
            (
                "gate --base a --new b -o x.md --markdown x.md",
                "`x.md` is given twice; each output needs its own file",
            ),
        ] {
            assert_eq!(parsed(line).expect_err("refused").to_string(), expected, "{line}");
        }
    }
}

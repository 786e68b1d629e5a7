//! `stackprof gate`: its clap flags and parsed request. No I/O.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Parser};

use super::compare::{MATCHING, MatchingFlags, ReportFormat, ReportOutput, percentage, report_outputs, top};
use super::output::{Destination, check_distinct};
use super::values::{ParsedFlags, Verbosity, number, parse_flags, usage, verbosity};
use crate::cli::flags::{CommonFlags, TEMPLATE};
use crate::diff::stacks::Matching;
use crate::error::Result;
use crate::gate::Options;

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
    #[arg(short, long, value_name = "FILE", action = ArgAction::Append, help_heading = OUTPUT)]
    output: Vec<PathBuf>,
    /// Write the report as Markdown, whatever the file is called
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    markdown: Option<PathBuf>,
    /// Write the verdict as JUnit XML, for CI systems: one test case for the
    /// total and one for each function that failed or to which cost moved
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    junit: Option<PathBuf>,
    /// For GitHub Actions: print the verdict as annotations, and append the
    /// Markdown report to the file that GITHUB_STEP_SUMMARY names
    #[arg(long, help_heading = OUTPUT)]
    github: bool,
    /// Functions shown [default: 20]
    #[arg(long, value_name = "N", allow_hyphen_values = true, help_heading = OUTPUT)]
    top: Option<OsString>,
    #[command(flatten)]
    common: CommonFlags,
    #[arg(hide = true)]
    stray: Vec<OsString>,
}

const RUNS: &str = "Runs";
const VERDICT: &str = "Verdict";
const OUTPUT: &str = "Output";

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
pub(super) fn parse(words: &[OsString], launch: Option<&[OsString]>) -> Result<ParsedFlags<Gate>> {
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
mod tests {
    use super::*;
    use crate::cli::args::Command;
    use crate::cli::args::tests::parsed;

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

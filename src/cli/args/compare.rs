//! `stackprof diff` and `stackprof gate`: their options, which are the request (`Diff`, `Gate`), and those that they
//! share: matching of functions and report outputs. No I/O.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser, ValueHint};
use clap::{ArgAction, Args, Parser};

use super::record::{CommonOptions, GraphOptions};
use super::render::InputOptions;
use super::values::{
    Destination, Stop, Written, check, check_distinct, destination, once, parse_flags, percentage, range,
    rows, seed, usage,
};
use crate::diff::compare::MeasureChoice;
use crate::diff::stacks::Matching;
use crate::gate::Options;

/// Default of `--top`: rows of a table.
pub const TOP_DEFAULT: usize = 20;

/// How functions of two builds are matched.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Matching")]
pub struct MatchingOptions {
    /// Match names as they are. Without this, what differs between builds is left
    /// out: hashes, {closure#3}, .llvm.123, .cold, .part.0, .constprop.0,
    /// .isra.0, lambda numbers, offsets in [module+0x1f40], lines
    #[arg(long)]
    no_normalize: bool,
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

/// Reports of `diff` by the extensions of their files.
const DIFF_REPORTS: &[(&str, ReportFormat)] = &[
    (".svg", ReportFormat::Svg),
    (".html", ReportFormat::Html),
    (".folded", ReportFormat::Folded),
    (".txt", ReportFormat::Folded),
    (".md", ReportFormat::Markdown),
    (".json", ReportFormat::Json),
];

/// Reports of `gate`.
const GATE_REPORTS: &[(&str, ReportFormat)] =
    &[(".md", ReportFormat::Markdown), (".json", ReportFormat::Json)];

/// A report to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReportOutput {
    /// Its destination.
    pub to: Destination,
    /// Its format.
    pub format: ReportFormat,
}

/// A report; the extension selects the format, `-` is `stdout`.
fn report(
    known: &'static [(&'static str, ReportFormat)],
    stdout: ReportFormat,
) -> impl TypedValueParser<Value = ReportOutput> {
    PathBufValueParser::new().try_map(move |path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let of_name =
            known.iter().find(|(extension, _)| name.ends_with(extension)).map(|(_, format)| *format);
        let to = Destination::from(path);
        let format = if to == Destination::Stdout { Some(stdout) } else { of_name };
        format.map(|format| ReportOutput { to, format }).ok_or_else(|| {
            let extensions: Vec<&str> = known.iter().map(|(extension, _)| *extension).collect();
            format!("expected a name that ends with {}", extensions.join(", "))
        })
    })
}

/// A report in this format, whatever the file is called.
fn report_as(format: ReportFormat) -> impl TypedValueParser<Value = ReportOutput> {
    destination(move |to| ReportOutput { to, format })
}

/// `stackprof diff ...`
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(
    name = "stackprof diff",
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
    mut_arg("verbose", |arg| arg.hide(true))
)]
pub struct Diff {
    /// The part of the time that is the base, of one profile with times, such as
    /// 0s..500ms; either end may be left out
    #[arg(long, value_name = "RANGE", action = ArgAction::Append, value_parser = range())]
    #[arg(allow_hyphen_values = true, help_heading = "Input")]
    base: Vec<Written<Range<u64>>>,
    /// The part of the time that is compared with it
    #[arg(long, value_name = "RANGE", action = ArgAction::Append, value_parser = range())]
    #[arg(allow_hyphen_values = true, help_heading = "Input")]
    new: Vec<Written<Range<u64>>>,
    /// Compare CPU seconds, or numbers of samples if a file does not state its rate
    #[arg(long, conflicts_with = "share", help_heading = "Comparing")]
    absolute: bool,
    /// Compare shares of each profile
    #[arg(long, help_heading = "Comparing")]
    share: bool,
    /// Also compare waiting threads, for profiles recorded with --idle
    #[arg(long, help_heading = "Comparing")]
    idle: bool,
    #[command(flatten)]
    matching: MatchingOptions,
    /// Count inlined functions as the function they became part of, where the
    /// profile tells them apart. For builds that inline differently
    #[arg(long, help_heading = "Matching")]
    no_inline: bool,
    /// Write the comparison here; may be given more than once. The extension
    /// selects the format: .svg differential flame graph, .html page with both
    /// profiles, .folded `stack BASE NEW`, .md and .json tables; - is folded on standard output
    #[arg(short, long, value_name = "FILE", action = ArgAction::Append, help_heading = "Output")]
    #[arg(value_parser = report(DIFF_REPORTS, ReportFormat::Folded), value_hint = ValueHint::AnyPath)]
    pub output: Vec<ReportOutput>,
    /// Functions shown [default: 20]
    #[arg(long, value_name = "N", value_parser = rows(), default_value_t = TOP_DEFAULT)]
    #[arg(hide_default_value = true, allow_hyphen_values = true, help_heading = "Output")]
    pub top: usize,
    /// Heading of the flame graph
    #[arg(long, value_name = "TEXT", help_heading = "Output")]
    pub title: Option<String>,
    /// How flame graphs look.
    #[command(flatten)]
    pub graph: GraphOptions,
    /// What is read.
    #[command(flatten)]
    pub input: InputOptions,
    /// What every command takes.
    #[command(flatten)]
    pub common: CommonOptions,
}

impl Diff {
    /// The baseline profile and the new one; the same one if its parts are compared.
    #[must_use]
    pub fn paths(&self) -> [&Path; 2] {
        let profiles = &self.input.profiles;
        [profiles.first(), profiles.last()].map(|path| path.map_or(Path::new(""), PathBuf::as_path))
    }

    /// Two time ranges of one profile, baseline first, nanoseconds since it began.
    #[must_use]
    pub fn parts(&self) -> Option<[&Written<Range<u64>>; 2]> {
        Some([self.base.first()?, self.new.first()?])
    }

    /// The compared quantity.
    #[must_use]
    pub fn measure(&self) -> MeasureChoice {
        match (self.absolute, self.share) {
            (true, _) => MeasureChoice::Absolute,
            (false, true) => MeasureChoice::Share,
            (false, false) => MeasureChoice::Auto,
        }
    }

    /// How functions are matched.
    #[must_use]
    pub fn matching(&self) -> Matching {
        let normalize = !self.matching.no_normalize;
        Matching { normalize, inlines: !self.no_inline, waiting: self.idle }
    }
}

/// Parses the arguments after `diff`.
pub(super) fn parse_diff(words: &[OsString], launch: Option<Vec<OsString>>) -> Result<Diff, Stop> {
    const FORM: &str = "stackprof diff BASE NEW [-o FILE]";
    const PARTS: &str = "stackprof diff PROFILE --base FROM..TO --new FROM..TO";
    let mut diff: Diff = parse_flags(words, |_| None)?;
    diff.input.add(launch);
    let (base, new) = (once("--base", &diff.base)?, once("--new", &diff.new)?);
    let (given, has_parts) = (diff.input.profiles.len(), base.is_some());
    check(&[
        (base.is_some() != new.is_some(), &format!("--base and --new go together: {PARTS}")),
        (
            has_parts && given != 1,
            &format!("--base and --new are parts of one profile, {given} given: {PARTS}"),
        ),
        (!has_parts && given != 2, &format!("diff compares two profiles, {given} given: {FORM}")),
    ])?;
    diff.input.check(FORM)?;
    check_distinct(diff.output.iter().map(|output| &output.to))?;
    Ok(diff)
}

// ---- `stackprof gate`.

/// `stackprof gate ...`
#[derive(Clone, Debug, PartialEq, Parser)]
#[command(
    name = "stackprof gate",
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
    mut_arg("verbose", |arg| arg.hide(true))
)]
pub struct Gate {
    /// Recordings before the change, or a directory of them
    #[arg(long, value_name = "FILE", num_args = 1.., action = ArgAction::Append, help_heading = "Runs")]
    pub base: Vec<PathBuf>,
    /// Recordings after the change, or a directory of them
    #[arg(long, value_name = "FILE", num_args = 1.., action = ArgAction::Append, help_heading = "Runs")]
    pub new: Vec<PathBuf>,
    /// If the gate passes, or without --base, keep the new recordings here as
    /// the base of later gates, in place of those kept before; the directory
    /// is for these only
    #[arg(long, value_name = "DIR", help_heading = "Runs")]
    pub update_baseline: Option<PathBuf>,
    /// Value of a heap profile to read: inuse_space, inuse_objects, alloc_space,
    /// alloc_objects or another one in the file [default: the one it shows]
    #[arg(long = "type", value_name = "TYPE", help_heading = "Runs")]
    pub value_type: Option<String>,
    /// Compare programs of different names
    #[arg(long, help_heading = "Runs")]
    pub allow_different_names: bool,
    /// Growth that passes, of the program's CPU time and of a function's own
    /// [default: 5%]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, help_heading = "Verdict")]
    #[arg(value_parser = percentage("from 0 to 1000 (5%)", |growth| (0.0..=1000.0).contains(&growth)))]
    max_increase: Option<f64>,
    /// A function's growth by less than this part of the program's CPU time is
    /// no regression; functions too small for it are not tested [default: 0.5%]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, help_heading = "Verdict")]
    #[arg(value_parser = percentage("from 0 to 100", |share| (0.0..=100.0).contains(&share)))]
    min_share: Option<f64>,
    /// How often a gate of unchanged code may fail [default: 5%]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, help_heading = "Verdict")]
    #[arg(value_parser = percentage("from 0.1 to 50", |alpha| (0.1..=50.0).contains(&alpha)))]
    false_alarms: Option<f64>,
    /// Also fail when cost moved from one function to another
    #[arg(long, help_heading = "Verdict")]
    strict: bool,
    /// Seed of the permutations; the same files and seed give the same report
    /// [default: 0]
    #[arg(long, value_name = "N", value_parser = seed(), allow_hyphen_values = true, help_heading = "Verdict")]
    seed: Option<u64>,
    #[command(flatten)]
    matching: MatchingOptions,
    /// Test inlined functions by themselves. Without this, their time is that
    /// of the function they became part of, where the profile tells them apart
    #[arg(long, help_heading = "Matching")]
    inline: bool,
    /// Write the report here; may be given more than once (.md, .json; - is
    /// JSON on standard output)
    #[arg(short, long, value_name = "FILE", action = ArgAction::Append, help_heading = "Output")]
    #[arg(value_parser = report(GATE_REPORTS, ReportFormat::Json), value_hint = ValueHint::AnyPath)]
    output: Vec<ReportOutput>,
    /// Write the report as Markdown, whatever the file is called
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    #[arg(value_parser = report_as(ReportFormat::Markdown), value_hint = ValueHint::AnyPath)]
    markdown: Option<ReportOutput>,
    /// Write the verdict as JUnit XML, for CI systems: one test case for the
    /// total and one for each function that failed or to which cost moved
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    #[arg(value_parser = report_as(ReportFormat::Junit), value_hint = ValueHint::AnyPath)]
    junit: Option<ReportOutput>,
    /// For GitHub Actions: print the verdict as annotations, and append the
    /// Markdown report to the file that GITHUB_STEP_SUMMARY names
    #[arg(long, help_heading = "Output")]
    pub github: bool,
    /// Functions shown [default: 20]
    #[arg(long, value_name = "N", value_parser = rows(), default_value_t = TOP_DEFAULT)]
    #[arg(hide_default_value = true, allow_hyphen_values = true, help_heading = "Output")]
    pub top: usize,
    /// What every command takes.
    #[command(flatten)]
    pub common: CommonOptions,
    #[arg(hide = true)]
    stray: Vec<OsString>,
}

impl Gate {
    /// Reports to write.
    pub fn outputs(&self) -> impl Iterator<Item = &ReportOutput> {
        self.output.iter().chain(&self.markdown).chain(&self.junit)
    }

    /// Whether a report goes to standard output.
    #[must_use]
    pub fn is_on_stdout(&self) -> bool {
        self.outputs().any(|output| output.to == Destination::Stdout)
    }

    /// How functions are matched.
    #[must_use]
    pub fn matching(&self) -> Matching {
        Matching { normalize: !self.matching.no_normalize, inlines: self.inline, waiting: false }
    }

    /// Thresholds of a regression.
    #[must_use]
    pub fn options(&self) -> Options {
        let default = Options::default();
        let share = |percent: Option<f64>, default| percent.map_or(default, |percent| percent / 100.0);
        Options {
            max_increase: share(self.max_increase, default.max_increase),
            min_share: share(self.min_share, default.min_share),
            alpha: share(self.false_alarms, default.alpha),
            strict: self.strict,
            seed: self.seed.unwrap_or(default.seed),
        }
    }
}

/// Parses the arguments after `gate`.
pub(super) fn parse_gate(words: &[OsString], launch: Option<Vec<OsString>>) -> Result<Gate, Stop> {
    const FORM: &str = "stackprof gate --base FILE... --new FILE...";
    let gate: Gate = parse_flags(words, |_| None)?;
    if let Some(word) = gate.stray.iter().chain(launch.iter().flatten()).next() {
        let word = word.display();
        let why = format!("unexpected argument `{word}`; give it to --base or to --new: {FORM}");
        return Err(usage(why).into());
    }
    let has_base = !gate.base.is_empty();
    check(&[
        (gate.new.is_empty(), &format!("missing --new FILE: {FORM}")),
        (
            !has_base && gate.update_baseline.is_none(),
            &format!("say what to compare with: {FORM} (--update-baseline DIR makes a first base)"),
        ),
        (
            !has_base && (gate.github || gate.outputs().next().is_some()),
            "there is no report without --base; leave the outputs out",
        ),
    ])?;
    check_distinct(gate.outputs().map(|output| &output.to))?;
    check(&[(
        gate.github && gate.is_on_stdout(),
        "--github prints annotations on standard output; name a file in place of `-`",
    )])?;
    Ok(gate)
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
        assert_eq!(diff.paths(), [Path::new("a"), Path::new("b")]);
        assert_eq!(
            diff.output.iter().map(|output| output.format).collect::<Vec<_>>(),
            [ReportFormat::Svg, ReportFormat::Markdown, ReportFormat::Folded]
        );
        assert_eq!(diff.matching(), Matching { normalize: false, inlines: false, waiting: true });
        assert!(diff.input.strict);
        assert_eq!(diff.parts(), None);
        let Ok(Command::Diff(diff)) = parsed("diff a --base 0s..5s --new 5s..") else { panic!("no diff") };
        assert_eq!(diff.paths(), [Path::new("a"), Path::new("a")]);
        let [base, new] = diff.parts().expect("two parts");
        assert_eq!((base.value.clone(), &*base.text), (0..5_000_000_000, "0s..5s"));
        assert_eq!((new.value.clone(), &*new.text), (5_000_000_000..u64::MAX, "5s.."));
        let Ok(Command::Diff(diff)) = parsed(line) else { panic!("no diff: {line}") };
        let graph = diff.graph.graph(String::new(), String::new(), String::new());
        assert_eq!((diff.measure(), diff.top, graph.min_width_percent), (MeasureChoice::Share, 3, 2.0));
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
        assert_eq!(
            (&gate.base[..], &gate.new[..]),
            (&["a".into(), "b".into()][..], &["c".into(), "d".into()][..])
        );
        let options = Options { max_increase: 0.03, min_share: 0.01, alpha: 0.01, strict: true, seed: 7 };
        assert_eq!((gate.options(), gate.top), (options, 3));
        assert!(gate.allow_different_names && gate.matching().inlines && gate.matching().normalize);
        let formats: Vec<_> = gate.outputs().map(|output| output.format).collect();
        assert_eq!(
            formats,
            [ReportFormat::Markdown, ReportFormat::Json, ReportFormat::Markdown, ReportFormat::Junit]
        );
        assert!(gate.github);
        assert_eq!(gate.update_baseline, Some("kept".into()));
        let Ok(Command::Gate(gate)) = parsed("gate --base a --new b") else { panic!("no gate") };
        assert_eq!(gate.options(), Options::default());
        assert!(!gate.matching().inlines, "helpers that are inlined everywhere tell no place");
    }
}

//! `stackprof heap`: its options (`Heap`), and the rules for their combinations. No I/O.

use std::ffi::OsString;
use std::time::Duration;

use clap::builder::TypedValueParser;
use clap::{ArgAction, Args, Parser};

use super::record::{
    CommonOptions, CpuOptions, FindProcess, LaunchOptions, OutputOptions, PictureOptions, RecordOptions,
    RecordingOptions, SamplingOptions, ScopeOptions, Source, SourceFlags, source,
};
use super::values::{
    Pattern, Stop, check, expected, number, parse_flags, regex, seconds, size, usage, whole,
};
use crate::error::Result;
use crate::heap::{Moment, ValueKind};
use crate::sources::gdb::AllocatorNames;

/// Default of `--every`, as in Go and jemalloc.
const EVERY_DEFAULT_BYTES: u64 = 512 << 10;
/// Default of `--max-slowdown`.
const MAX_SLOWDOWN_PERCENT: f64 = 10.0;
/// Nominal rate of a heap recording: each sample counts once, whatever its weight.
const HZ: u32 = 1000;

/// `stackprof heap ...`
#[derive(Debug, Parser)]
#[command(
    name = "stackprof heap",
    about = "Record who allocates the memory of a command, and who never frees it.",
    override_usage = "stackprof heap [OPTIONS] -- COMMAND [ARGS...]
       stackprof heap --pid N [OPTIONS]
       stackprof heap --gdb HOST:PORT --exec FILE [OPTIONS]",
    before_help = "Samples one allocation per 512 KiB allocated, on average, with its stack, and
weights it so that sums are right on average; the summary states the error.
The dynamic linker loads a library into the command (Linux, macOS) and the
processes that it starts. A process that runs already (Linux, as root) gets
probes at its allocator, which cost more. Behind a gdb stub, breakpoints show
every block of a board or an emulator.

Examples:
  stackprof heap -- ./prog                   what is in use at the end
  stackprof heap --peak -o a.html -- ./prog  what was in use at the peak
  stackprof heap --every 1 -- ./prog         all allocations: exact, and slower
  stackprof heap --callers 3 -- ./prog       three callers per row of the table
  stackprof heap --pid 42 --older-than 30    what lives longer than 30 seconds
  stackprof heap --gdb :3333 --exec fw.elf   leaks of firmware
  stackprof heap -o a.pb.gz -- ./prog        keep it; go tool pprof -inuse_space
  stackprof gate --type inuse_space --base base --new new
",
    mut_arg("pid", |arg| arg.help("Process to attach to, by id or name"))
)]
pub(super) struct HeapFlags {
    #[command(flatten)]
    heap: Heap,
    #[command(flatten)]
    source: SourceFlags,
    /// One root frame per process, `name (pid)`, instead of one per name
    #[arg(long, help_heading = "Heap")]
    per_process: bool,
    /// End a command that still runs when the recording ends: SIGTERM, after 5 s
    /// SIGKILL [default: it runs on]
    #[arg(long, help_heading = "Process")]
    kill_after: bool,
    #[command(flatten)]
    sampling: SamplingOptions,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    picture: PictureOptions,
    #[command(flatten)]
    common: CommonOptions,
    #[arg(hide = true, trailing_var_arg = true)]
    stray: Vec<OsString>,
}

/// How allocations are recorded and shown.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Heap")]
pub struct Heap {
    /// Bytes allocated per sample, on average, such as 64K; 1 samples all allocations
    /// [default: 512K]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    #[arg(value_parser = size("a size from 1 to 1G, such as 512K", 1, 1 << 30))]
    pub(crate) every: Option<u64>,
    /// Also record anonymous mappings (mmap) of the command, which are freed page by
    /// page: arenas of Python, garbage collectors and other allocators
    #[arg(long)]
    pub mmap: bool,
    /// Report the memory in use at the peak [default: at the end]
    #[arg(long)]
    pub(crate) peak: bool,
    /// Value in flame graphs and folded stacks: inuse_space, inuse_objects, alloc_space,
    /// alloc_objects, churn_space or churn_objects (freed within 1 ms); pprof and OTLP
    /// have all [default: inuse_space]
    #[arg(long = "type", value_name = "TYPE", value_parser = value_kind())]
    pub(crate) value_type: Option<ValueKind>,
    /// Callers per row of the table of leaks, 1 to 64 [default: as needed]
    #[arg(long, value_name = "N", value_parser = whole::<usize>(1, 64), allow_hyphen_values = true)]
    pub callers: Option<usize>,
    /// Functions to skip in the table of leaks, like operator new and xmalloc: their
    /// callers are shown; may be given more than once
    #[arg(long, value_name = "REGEX", value_parser = regex(), action = ArgAction::Append)]
    pub skip: Vec<Pattern>,
    /// Count as in use only blocks that are at least this old at the end: what is
    /// freed soon is no leak
    #[arg(long, value_name = "SECS", value_parser = seconds(), allow_hyphen_values = true)]
    pub(crate) older_than: Option<Duration>,
    /// With --pid: end the recording if the probes slow the process by more than this
    /// [default: 10]
    #[arg(long, value_name = "PERCENT", value_parser = slowdown(), allow_hyphen_values = true)]
    pub(crate) max_slowdown: Option<f64>,
    /// With --gdb: a function that allocates as many bytes as its first argument says;
    /// may be given more than once [default: malloc and other known names]
    #[arg(long, value_name = "NAME", action = ArgAction::Append)]
    pub(crate) alloc: Vec<String>,
    /// With --gdb: a function that frees the block that its first argument points to
    #[arg(long, value_name = "NAME", action = ArgAction::Append)]
    pub(crate) free: Vec<String>,
}

fn value_kind() -> impl TypedValueParser<Value = ValueKind> {
    expected(format!("one of {}", ValueKind::ALL.map(ValueKind::name).join(", ")), ValueKind::from_name)
}

fn slowdown() -> impl TypedValueParser<Value = f64> {
    expected("a percentage above 0, such as 10", |text| number(text).filter(|percent| *percent > 0.0))
}

impl Heap {
    /// Bytes per sample on average.
    #[must_use]
    pub fn every_bytes(&self) -> u64 {
        self.every.unwrap_or(EVERY_DEFAULT_BYTES)
    }

    /// The moment of the in-use values.
    #[must_use]
    pub fn moment(&self) -> Moment {
        if self.peak { Moment::Peak } else { Moment::End }
    }

    /// The value type for formats with a single one.
    #[must_use]
    pub fn shown(&self) -> ValueKind {
        self.value_type.unwrap_or(ValueKind::InuseSpace)
    }

    /// Minimum age of blocks that count as in use at the end, nanoseconds: at most 31 years.
    #[must_use]
    pub fn older_than_ns(&self) -> Option<u64> {
        self.older_than.map(|age| age.as_nanos() as u64)
    }

    /// Slowdown limit of an attached process, percent of the elapsed time, or of its CPU time if that is more.
    #[must_use]
    pub fn max_slowdown_percent(&self) -> f64 {
        self.max_slowdown.unwrap_or(MAX_SLOWDOWN_PERCENT)
    }

    /// Functions of the firmware's allocator.
    #[must_use]
    pub fn allocator(&self) -> AllocatorNames {
        AllocatorNames { allocate: self.alloc.clone(), free: self.free.clone() }
    }

    /// Refuses options that do not apply to the source.
    fn check(&self, source: &Source) -> Result<()> {
        let is_stub = matches!(source, Source::Gdb(_));
        check(&[
            (
                self.max_slowdown.is_some() && !matches!(source, Source::Pid(_)),
                "--max-slowdown is for a process that runs already; leave it out without --pid",
            ),
            (
                self.mmap && !matches!(source, Source::Launch(_)),
                "--mmap is for a command, which loads the library that records it; leave it out",
            ),
            (
                !is_stub && (!self.alloc.is_empty() || !self.free.is_empty()),
                "--alloc and --free name the functions of firmware; leave them out without --gdb",
            ),
            (
                self.alloc.is_empty() != self.free.is_empty(),
                "--alloc and --free belong together; name a function for each",
            ),
            (
                self.peak && self.older_than.is_some(),
                "--older-than counts the blocks at the end; leave it out with --peak",
            ),
            (
                self.every.is_some() && is_stub,
                "--every is for sampling; behind a stub each block is recorded, leave it out",
            ),
        ])
    }
}

/// Why there is no such option of `heap`, if it is one of a recording of CPU time.
fn no_option(option: &str) -> Option<String> {
    let of_cpu_time = RecordingOptions::augment_args(LaunchOptions::augment_args(clap::Command::new("")));
    let arg = of_cpu_time.get_arguments().find(|arg| {
        let long = arg.get_long().is_some_and(|long| option.strip_prefix("--") == Some(long));
        long || arg.get_short().is_some_and(|short| option == format!("-{short}"))
    })?;
    Some(match arg.get_long()? {
        "as" => "heap --as is not in this version; run stackprof as that user: sudo -u USER stackprof heap"
            .to_owned(),
        long => format!("--{long} is for recordings of CPU time; leave it out of heap"),
    })
}

/// Parses the arguments after `heap`.
pub(super) fn parse(
    words: &[OsString],
    launch: Option<Vec<OsString>>,
    find: FindProcess<'_>,
) -> std::result::Result<RecordOptions, Stop> {
    const FORM: &str = "stackprof heap [OPTIONS] -- COMMAND";
    let flags: HeapFlags = parse_flags(words, no_option)?;
    if let Some(word) = flags.stray.first() {
        return Err(usage(format!("`{}`: put the command after --: {FORM}", word.display())).into());
    }
    let HeapFlags { mut heap, sampling, output, picture, common, .. } = flags;
    let SourceFlags { pid, gdb, exec, .. } = &flags.source;
    let launch = launch.filter(|command| !command.is_empty());
    check(&[
        (
            pid.is_empty() && gdb.is_none() && exec.is_none() && launch.is_none(),
            &format!("say which program: {FORM}, --pid N or --gdb STUB"),
        ),
        (pid.len() > 1, "heap follows one process; give one --pid"),
    ])?;
    let source = source(flags.source, launch, find)?;
    heap.check(&source)?;
    if matches!(source, Source::Gdb(_)) {
        heap.every = Some(1);
    }
    let cpu = CpuOptions { hz: Some(HZ), no_timeline: true, ..CpuOptions::default() };
    let launch = LaunchOptions { run_as: None, kill_after: flags.kill_after };
    let scope = ScopeOptions { per_process: flags.per_process, ..ScopeOptions::default() };
    let recording = RecordingOptions { cpu, sampling, output, pprof_timestamps: false, picture, common };
    Ok(RecordOptions { source, launch, heap: Some(heap), scope, recording }.checked()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Command;
    use crate::cli::args::tests::parsed;

    fn recording(line: &str) -> RecordOptions {
        match parsed(line) {
            Ok(Command::Record(recording)) => recording,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn all_options_are_parsed() {
        let plain = recording("heap -- prog -x").heap.expect("of allocations");
        assert_eq!((plain.every_bytes(), plain.moment(), plain.callers), (512 << 10, Moment::End, None));
        assert_eq!(plain.shown(), ValueKind::InuseSpace);
        let line = "heap --every 64K --peak --type alloc_space --callers 3 --skip ^my_ -o a.pb.gz -q -- prog";
        let given = recording(line).heap.expect("of allocations");
        assert_eq!((given.every_bytes(), given.moment(), given.callers), (64 << 10, Moment::Peak, Some(3)));
        assert_eq!((given.shown(), given.skip[0].as_str()), (ValueKind::AllocSpace, "^my_"));
        assert_eq!(recording("-- prog").heap, None);
    }
}

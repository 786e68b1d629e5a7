//! `stackprof heap`: its clap flags (`HeapFlags`) and the parsed request (`Heap`). No I/O.

use std::ffi::OsString;

use clap::{ArgAction, Parser};

use super::record::{self, FindProcess, RecordOptions, SamplingOptions, Source, seconds, size};
use super::render::Patterns;
use super::values::{ParsedFlags, invalid_value, number, parse_flags, usage};
use crate::cli::flags::{LaunchFlags, RecordingFlags, ScopeFlags, SourceFlags, TEMPLATE};
use crate::error::Result;
use crate::heap::{Moment, ValueKind};
use crate::sources::gdb::AllocatorNames;

/// Default of `--every`, as in Go and jemalloc.
pub const EVERY_DEFAULT_BYTES: u64 = 512 << 10;
/// Highest `--every`.
const EVERY_MAX_BYTES: u64 = 1 << 30;
/// Highest `--callers`.
const CALLERS_MAX: usize = 64;
/// Default of `--max-slowdown`.
const MAX_SLOWDOWN_PERCENT: f64 = 10.0;
/// Nominal rate of a heap recording: each sample counts once, whatever its weight.
const HZ: u32 = 1000;

/// `stackprof heap ...`
#[derive(Debug, Parser)]
#[command(
    name = "stackprof heap",
    version,
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
    help_template = TEMPLATE,
    max_term_width = 80,
    disable_help_flag = true,
    disable_version_flag = true,
    args_override_self = true,
    mut_arg("pid", |arg| arg.help("Process to attach to, by id or name")),
    mut_arg("hz", |arg| arg.hide(true)),
    mut_arg("idle", |arg| arg.hide(true)),
    mut_arg("timeline_memory", |arg| arg.hide(true)),
    mut_arg("no_timeline", |arg| arg.hide(true)),
    mut_arg("source", |arg| arg.hide(true)),
    mut_arg("kernel", |arg| arg.hide(true)),
    mut_arg("no_kernel", |arg| arg.hide(true)),
    mut_arg("max_stop", |arg| arg.hide(true)),
    mut_arg("pprof_timestamps", |arg| arg.hide(true)),
    mut_arg("run_as", |arg| arg.hide(true))
)]
pub(super) struct HeapFlags {
    /// Bytes allocated per sample, on average, such as 64K; 1 samples all allocations
    /// [default: 512K]
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true, help_heading = HEAP)]
    every: Option<OsString>,
    /// Also record anonymous mappings (mmap) of the command, which are freed page by
    /// page: arenas of Python, garbage collectors and other allocators
    #[arg(long, help_heading = HEAP)]
    mmap: bool,
    /// Report the memory in use at the peak [default: at the end]
    #[arg(long, help_heading = HEAP)]
    peak: bool,
    /// Value in flame graphs and folded stacks: inuse_space, inuse_objects, alloc_space,
    /// alloc_objects, churn_space or churn_objects (freed within 1 ms); pprof and OTLP
    /// have all [default: inuse_space]
    #[arg(long = "type", value_name = "TYPE", help_heading = HEAP)]
    value_type: Option<String>,
    /// Callers per row of the table of leaks, 1 to 64 [default: as needed]
    #[arg(long, value_name = "N", allow_hyphen_values = true, help_heading = HEAP)]
    callers: Option<OsString>,
    /// Functions to skip in the table of leaks, like operator new and xmalloc: their
    /// callers are shown; may be given more than once
    #[arg(long, value_name = "REGEX", action = ArgAction::Append, help_heading = HEAP)]
    skip: Vec<OsString>,
    /// Count as in use only blocks that are at least this old at the end: what is
    /// freed soon is no leak
    #[arg(long, value_name = "SECS", allow_hyphen_values = true, help_heading = HEAP)]
    older_than: Option<OsString>,
    /// With --pid: end the recording if the probes slow the process by more than this
    /// [default: 10]
    #[arg(long, value_name = "PERCENT", allow_hyphen_values = true, help_heading = HEAP)]
    max_slowdown: Option<OsString>,
    /// With --gdb: a function that allocates as many bytes as its first argument says;
    /// may be given more than once [default: malloc and other known names]
    #[arg(long, value_name = "NAME", action = ArgAction::Append, help_heading = HEAP)]
    alloc: Vec<String>,
    /// With --gdb: a function that frees the block that its first argument points to
    #[arg(long, value_name = "NAME", action = ArgAction::Append, help_heading = HEAP)]
    free: Vec<String>,
    #[command(flatten)]
    source: SourceFlags,
    /// One root frame per process, `name (pid)`, instead of one per name
    #[arg(long, help_heading = HEAP)]
    per_process: bool,
    #[command(flatten)]
    launch: LaunchFlags,
    #[command(flatten)]
    recording: RecordingFlags,
    #[arg(hide = true, trailing_var_arg = true)]
    stray: Vec<OsString>,
}

const HEAP: &str = "Heap";

/// Parses the arguments after `heap`.
///
/// # Errors
/// [`ErrorKind::Usage`](crate::error::ErrorKind::Usage) with one line.
pub(super) fn parse(
    words: &[OsString],
    launch: Option<Vec<OsString>>,
    find: FindProcess<'_>,
) -> Result<ParsedFlags<RecordOptions>> {
    const FORM: &str = "stackprof heap [OPTIONS] -- COMMAND";
    let flags: HeapFlags = match parse_flags("stackprof heap", words)? {
        ParsedFlags::Flags(flags) => flags,
        ParsedFlags::Print(text) => return Ok(ParsedFlags::Print(text)),
    };
    if let Some(word) = flags.stray.first() {
        return Err(usage(format!("`{}`: put the command after --: {FORM}", word.display())));
    }
    let none = flags.source.pid.is_empty() && flags.source.gdb.is_none() && flags.source.exec.is_none();
    let launch = launch.filter(|command| !command.is_empty());
    if none && launch.is_none() {
        return Err(usage(format!("say which program: {FORM}, --pid N or --gdb STUB")));
    }
    if flags.source.pid.len() > 1 {
        return Err(usage("heap follows one process; give one --pid"));
    }
    let source = record::source(&flags.source, launch, find)?;
    check(&flags, &source)?;
    let heap = request(&flags, matches!(source, Source::Gdb(_)))?;
    let launch = record::launch_options(&source, flags.launch)?;
    let scope = ScopeFlags { per_process: flags.per_process, ..ScopeFlags::default() };
    let recording = record::recording(source, launch, &scope, flags.recording)?;
    let sampling = SamplingOptions { hz: HZ, timeline_bytes: 0, ..recording.sampling };
    Ok(ParsedFlags::Flags(RecordOptions { heap: Some(heap), sampling, ..recording }))
}

/// Refuses options that do not apply to the source.
fn check(flags: &HeapFlags, source: &Source) -> Result<()> {
    let is_probed = matches!(source, Source::Pid(_));
    let is_stub = matches!(source, Source::Gdb(_));
    if flags.max_slowdown.is_some() && !is_probed {
        return Err(usage("--max-slowdown is for a process that runs already; leave it out without --pid"));
    }
    if flags.mmap && !matches!(source, Source::Launch(_)) {
        return Err(usage("--mmap is for a command, which loads the library that records it; leave it out"));
    }
    if !is_stub && (!flags.alloc.is_empty() || !flags.free.is_empty()) {
        return Err(usage("--alloc and --free name the functions of firmware; leave them out without --gdb"));
    }
    if flags.alloc.is_empty() != flags.free.is_empty() {
        return Err(usage("--alloc and --free belong together; name a function for each"));
    }
    if flags.peak && flags.older_than.is_some() {
        return Err(usage("--older-than counts the blocks at the end; leave it out with --peak"));
    }
    if flags.every.is_some() && is_stub {
        return Err(usage("--every is for sampling; behind a stub each block is recorded, leave it out"));
    }
    if flags.launch.run_as.is_some() {
        return Err(usage(
            "heap --as is not in this version; run stackprof as that user: sudo -u USER stackprof heap",
        ));
    }
    let recording = &flags.recording;
    let of_cpu_time = [
        ("--hz", recording.hz.is_some()),
        ("--idle", recording.idle),
        ("--timeline-memory", recording.timeline_memory.is_some()),
        ("--no-timeline", recording.no_timeline),
        ("--source", recording.source.is_some()),
        ("--kernel", recording.kernel),
        ("--no-kernel", recording.no_kernel),
        ("--max-stop", recording.max_stop.is_some()),
        ("--pprof-timestamps", recording.pprof_timestamps),
    ];
    if let Some((option, _)) = of_cpu_time.iter().find(|(_, given)| *given) {
        return Err(usage(format!("{option} is for recordings of CPU time; leave it out of heap")));
    }
    Ok(())
}

/// Options of the recording and its presentation.
fn request(flags: &HeapFlags, is_stub: bool) -> Result<Heap> {
    Ok(Heap {
        every_bytes: match &flags.every {
            Some(text) => size("--every", text, "a size from 1 to 1G, such as 512K", 1..=EVERY_MAX_BYTES)?,
            None if is_stub => 1,
            None => EVERY_DEFAULT_BYTES,
        },
        records_mappings: flags.mmap,
        moment: if flags.peak { Moment::Peak } else { Moment::End },
        shown: match &flags.value_type {
            Some(name) => ValueKind::from_name(name).ok_or_else(|| {
                let names = ValueKind::ALL.map(ValueKind::name).join(", ");
                invalid_value("--type", name.as_ref(), &format!("one of {names}"))
            })?,
            None => ValueKind::InuseSpace,
        },
        callers: match &flags.callers {
            Some(text) => {
                let expected = format!("a whole number from 1 to {CALLERS_MAX}");
                Some(number("--callers", text, &expected, |callers| (1..=CALLERS_MAX).contains(&callers))?)
            }
            None => None,
        },
        skip: Patterns::new("--skip", &flags.skip)?,
        older_than_ns: match &flags.older_than {
            // At most 31 years.
            Some(text) => Some(seconds("--older-than", text)?.as_nanos() as u64),
            None => None,
        },
        max_slowdown_percent: match &flags.max_slowdown {
            Some(text) => {
                number("--max-slowdown", text, "a percentage above 0, such as 10", |percent: f64| {
                    percent > 0.0
                })?
            }
            None => MAX_SLOWDOWN_PERCENT,
        },
        allocator: AllocatorNames { allocate: flags.alloc.clone(), free: flags.free.clone() },
    })
}

// ---- The parsed options of a heap recording.

/// How allocations are recorded and shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Heap {
    /// Bytes per sample on average.
    pub every_bytes: u64,
    /// Records anonymous mappings, too.
    pub records_mappings: bool,
    /// The moment of the in-use values.
    pub moment: Moment,
    /// The value type for formats with a single one.
    pub shown: ValueKind,
    /// Number of callers in the table of leaks; `None`: as many as tell sites apart.
    pub callers: Option<usize>,
    /// Functions skipped in the table of leaks.
    pub skip: Patterns,
    /// Minimum age of blocks that count as in use at the end, nanoseconds.
    pub older_than_ns: Option<u64>,
    /// Slowdown limit of an attached process, percent of the elapsed time, or of its CPU time if that is more.
    pub max_slowdown_percent: f64,
    /// Functions of the firmware's allocator.
    pub allocator: AllocatorNames,
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
        assert_eq!((plain.every_bytes, plain.moment, plain.callers), (512 << 10, Moment::End, None));
        assert_eq!(plain.shown, ValueKind::InuseSpace);
        let line = "heap --every 64K --peak --type alloc_space --callers 3 --skip ^my_ -o a.pb.gz -q -- prog";
        let asked = recording(line).heap.expect("of allocations");
        assert_eq!((asked.every_bytes, asked.moment, asked.callers), (64 << 10, Moment::Peak, Some(3)));
        assert_eq!((asked.shown, asked.skip.texts()), (ValueKind::AllocSpace, vec!["^my_"]));
        assert_eq!(recording("-- prog").heap, None);
    }

    #[test]
    fn invalid_options_are_refused() {
        for (line, expected) in [
            ("heap", "say which program: stackprof heap [OPTIONS] -- COMMAND, --pid N or --gdb STUB"),
            ("heap prog", "`prog`: put the command after --: stackprof heap [OPTIONS] -- COMMAND"),
            ("heap --pid 1 --pid 2", "heap follows one process; give one --pid"),
            (
                "heap --max-slowdown 5 -- p",
                "--max-slowdown is for a process that runs already; leave it out without --pid",
            ),
            (
                "heap --peak --older-than 5 -- p",
                "--older-than counts the blocks at the end; leave it out with --peak",
            ),
            ("heap --alloc a --gdb :1", "--alloc and --free belong together; name a function for each"),
            (
                "heap --alloc a --free b -- p",
                "--alloc and --free name the functions of firmware; leave them out without --gdb",
            ),
            (
                "heap --every 1 --gdb :1",
                "--every is for sampling; behind a stub each block is recorded, leave it out",
            ),
            ("heap --hz 9 -- p", "--hz is for recordings of CPU time; leave it out of heap"),
            ("heap --every 0 -- p", "--every `0`: expected a size from 1 to 1G, such as 512K"),
            ("heap --every -1 -- p", "--every `-1`: expected a size from 1 to 1G, such as 512K"),
            ("heap --callers 0 -- p", "--callers `0`: expected a whole number from 1 to 64"),
            (
                "heap --type bytes -- p",
                "--type `bytes`: expected one of alloc_objects, alloc_space, inuse_objects, inuse_space, churn_objects, churn_space",
            ),
        ] {
            assert_eq!(parsed(line).expect_err("refused").to_string(), expected, "{line}");
        }
    }
}

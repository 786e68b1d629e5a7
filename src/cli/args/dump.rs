//! Options of `dump`: what it shows ([`Listing`]) of which process, and how ([`DumpOptions`]).

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Parser};

use super::Command;
use super::record::{
    CommonOptions, DEPTH_DEFAULT, FindProcess, Source, SourceFlags, SymbolOptions, check_unwind, source,
    unwind,
};
use super::values::{Stop, Verbosity, check, parse_flags, usage, whole};
use crate::walk::UnwindMethod;

/// `stackprof dump ...`
#[derive(Debug, Parser)]
#[command(
    name = "stackprof dump",
    about = "Show the threads, images, symbols or stacks of a process, without recording.",
    override_usage = "stackprof dump {threads|images|symbols|stacks} --pid N
       stackprof dump {threads|images|symbols|stacks} --gdb HOST:PORT",
    before_help = "What:
  threads  every thread: number, name, state, CPU time
  images   the loaded executable and libraries, and where they are
  symbols  the functions of these images
  stacks   the call stack of every thread, once, with how each frame was found

Examples:
  stackprof dump stacks --pid 4242       what does it do right now?
  stackprof dump threads --pid nginx     which threads use CPU time?
  stackprof dump images --pid 4242       which files does it run?
",
    mut_arg("pid", |arg| arg.help("Process to show, by id or name")),
    mut_arg("quiet", |arg| arg.hide(true)),
    mut_arg("verbose", |arg| arg.hide(true))
)]
pub(super) struct DumpFlags {
    #[command(flatten)]
    source: SourceFlags,
    #[command(flatten)]
    dump: DumpOptions,
    #[command(flatten)]
    common: CommonOptions,
    #[arg(hide = true)]
    what: Vec<OsString>,
}

/// How a dump shows what it shows.
#[derive(Clone, Debug, PartialEq, Args)]
#[command(next_help_heading = "Stacks")]
pub struct DumpOptions {
    /// How stacks are walked: auto, cfi (unwind information) or fp (frame
    /// pointers); 32-bit Arm also exidx, code or scan [default: auto]
    #[arg(long, value_name = "HOW", value_parser = unwind(), default_value = "auto", hide_default_value = true)]
    pub unwind: UnwindMethod,
    /// Frames shown of a stack, 1 to 1048576 [default: 1024]
    #[arg(long, value_name = "N", default_value_t = DEPTH_DEFAULT, hide_default_value = true)]
    #[arg(value_parser = whole(1, DUMP_DEPTH_MAX), allow_hyphen_values = true)]
    pub max_depth: usize,
    /// With `dump symbols FILE`: names the addresses that a file lists, one in hex on each
    /// line (`-` is standard input). For comparisons with other tools.
    #[arg(long, hide = true, value_name = "LIST")]
    pub addresses: Option<PathBuf>,
    /// How code is named.
    #[command(flatten)]
    pub symbols: SymbolOptions,
}

/// Addresses of a file to symbolicate.
#[derive(Clone, Debug, PartialEq)]
pub struct Addresses {
    /// The executable or library.
    pub file: PathBuf,
    /// The file with the list of addresses.
    pub list: PathBuf,
    /// How code is named.
    pub symbols: SymbolOptions,
    /// Verbosity on standard error.
    pub verbosity: Verbosity,
}

/// Highest `--max-depth` of a dump: more frames than fit into the bytes of a stack that are read.
pub const DUMP_DEPTH_MAX: usize = 1 << 20;

/// What `dump` shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listing {
    /// Every thread.
    Threads,
    /// The loaded images.
    Images,
    /// The symbols of these images.
    Symbols,
    /// Every thread's stack, once.
    Stacks,
}

/// A parsed `dump`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dump {
    /// The listing to show.
    pub what: Listing,
    /// The process: [`Source::Pid`], [`Source::Gdb`] or [`Source::Sim`].
    pub source: Source,
    /// How it is shown.
    pub options: DumpOptions,
}

/// Parses the words after `dump`; `launch` are those after `--`.
pub(super) fn parse(
    words: &[OsString],
    launch: Option<Vec<OsString>>,
    find: FindProcess<'_>,
) -> Result<Command, Stop> {
    const FORM: &str = "stackprof dump {threads|images|symbols|stacks} --pid N";
    let DumpFlags { source: from, dump: options, common, what: subject } = parse_flags(words, |_| None)?;
    let what = match subject.first().map(|word| word.to_string_lossy()).as_deref() {
        Some("threads") => Listing::Threads,
        Some("images") => Listing::Images,
        Some("symbols") => Listing::Symbols,
        Some("stacks") => Listing::Stacks,
        Some(other) => return Err(usage(format!("dump does not know `{other}`: {FORM}")).into()),
        None => return Err(usage(format!("missing argument WHAT: {FORM}")).into()),
    };
    if let (Listing::Symbols, Some(list), [_, file]) = (what, &options.addresses, &subject[..]) {
        let (file, list, verbosity) = (file.into(), list.clone(), common.verbosity());
        return Ok(Command::Addresses(Addresses { file, list, symbols: options.symbols, verbosity }));
    }
    if let Some(word) = subject.iter().skip(1).chain(launch.iter().flatten()).next() {
        let word = word.display();
        return Err(
            usage(format!("dump shows a running process; unexpected argument `{word}`: {FORM}")).into()
        );
    }
    let is_none = from.pid.is_empty() && from.target.is_none() && from.gdb.is_none() && from.exec.is_none();
    check(&[
        (is_none, &format!("missing --pid N: {FORM}")),
        (from.pid.len() > 1, "dump shows one process; give one --pid"),
    ])?;
    let source = source(from, None, find)?;
    check_unwind(options.unwind, &source)?;
    Ok(Command::Dump(Dump { what, source, options }))
}

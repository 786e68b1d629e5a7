//! Options of `dump`, parsed into [`Dump`] or [`Addresses`], or one usage error.

use std::ffi::OsString;
use std::path::PathBuf;

use super::record::{FindProcess, Source, depth, source, unwind};
use super::values::{ParsedFlags, SymbolOptions, Verbosity, parse_flags, usage, verbosity};
use crate::cli::flags::DumpFlags;
use crate::error::Result;
use crate::walk::UnwindMethod;

/// Addresses of a file to symbolicate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The executable or library.
    pub file: PathBuf,
    /// The file with the list of addresses.
    pub list: PathBuf,
    /// Symbol options.
    pub symbol_options: SymbolOptions,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dump {
    /// The listing to show.
    pub what: Listing,
    /// The process: [`Source::Pid`], [`Source::Gdb`] or [`Source::Sim`].
    pub source: Source,
    /// How stacks are walked.
    pub unwind: UnwindMethod,
    /// Most frames shown per stack, 1 to [`DUMP_DEPTH_MAX`].
    pub max_depth: usize,
    /// Symbol options.
    pub symbol_options: SymbolOptions,
    /// Verbosity on standard error.
    pub verbosity: Verbosity,
}

/// The subject of `dump`.
pub(super) enum DumpCommand {
    /// A process.
    Process(Dump),
    /// Names of addresses of a file.
    Addresses(Addresses),
}

/// Parses the words after `dump`; `launch` are those after `--`.
pub(super) fn parse(
    words: &[OsString],
    launch: Option<Vec<OsString>>,
    find: FindProcess<'_>,
) -> Result<ParsedFlags<DumpCommand>> {
    let flags: DumpFlags = match parse_flags("stackprof dump", words)? {
        ParsedFlags::Flags(flags) => flags,
        ParsedFlags::Print(text) => return Ok(ParsedFlags::Print(text)),
    };
    const FORM: &str = "stackprof dump {threads|images|symbols|stacks} --pid N";
    let what = match flags.what.first().map(|word| word.to_string_lossy()).as_deref() {
        Some("threads") => Listing::Threads,
        Some("images") => Listing::Images,
        Some("symbols") => Listing::Symbols,
        Some("stacks") => Listing::Stacks,
        Some(other) => return Err(usage(format!("dump does not know `{other}`: {FORM}"))),
        None => return Err(usage(format!("missing argument WHAT: {FORM}"))),
    };
    if let (Listing::Symbols, Some(list), [_, file]) = (what, &flags.addresses, flags.what.as_slice()) {
        return Ok(ParsedFlags::Flags(DumpCommand::Addresses(Addresses {
            file: file.into(),
            list: list.clone(),
            symbol_options: SymbolOptions::from(&flags.symbol_options),
            verbosity: verbosity(&flags.common)?,
        })));
    }
    if let Some(word) = flags.what.get(1).or_else(|| launch.as_ref()?.first()) {
        return Err(usage(format!(
            "dump shows a running process; unexpected argument `{}`: {FORM}",
            word.display()
        )));
    }
    if flags.source.pid.is_empty()
        && flags.source.target.is_none()
        && flags.source.gdb.is_none()
        && flags.source.exec.is_none()
    {
        return Err(usage(format!("missing --pid N: {FORM}")));
    }
    if flags.source.pid.len() > 1 {
        return Err(usage("dump shows one process; give one --pid"));
    }
    let source = source(&flags.source, None, find)?;
    Ok(ParsedFlags::Flags(DumpCommand::Process(Dump {
        what,
        max_depth: depth(flags.max_depth.as_deref(), DUMP_DEPTH_MAX)?,
        unwind: unwind(flags.unwind.as_deref(), &source)?,
        source,
        symbol_options: SymbolOptions::from(&flags.symbol_options),
        verbosity: verbosity(&flags.common)?,
    })))
}

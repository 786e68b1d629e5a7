//! `stackprof dump`: the profiler's view of a process, on standard output: threads, stacks, mappings, images.
//!
//! `run_symbols` is `dump symbols`: names for a list of addresses in a file.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;
use std::sync::Arc;

use super::args::{Addresses, DUMP_DEPTH_MAX, Dump, Listing, Source, Verbosity};
use super::file::OutputFiles;
use super::{messages, summary, system};
use crate::addr::LookupAvma;
use crate::binary::{Files, Mapping, files};
use crate::clock::{Clock, FakeClock, RealClock};
use crate::error::{Error, ErrorKind, Result, io_text};
use crate::escape::escape_line;
use crate::images::Images;
use crate::recording::Frame;
use crate::sampler::{self, Snapshot};
use crate::sources::sim::{SimConfig, SimTarget};
use crate::sources::{
    Activity, Capture, Fault, LocalFiles, Role, Target, TargetEvent, ThreadId, ThreadStatus, gdb,
};
use crate::symbol::table::SymbolTable;
use crate::symbol::{self, Style, demangle};
use crate::trie::FrameId;
use crate::walk::{STACK_BYTES_MAX, StackEnd};

/// Timeout for a thread to stop when it is polled, and for a changing list of mappings to settle,
/// nanoseconds.
const POLL_NS: u64 = 1_000_000_000;

/// Minimum number of times that a changing list is read: a delayed reader sees few in the timeout, and each
/// read may coincide with another exec.
const LISTS_MIN: u32 = 20;

/// Delay before a list that changed while being read is read again, nanoseconds.
const AGAIN_NS: u64 = 5_000_000;

/// Prints what `dump` requests.
///
/// # Errors
/// One line: attaching refused, the process exited, or a part could not be read; the rest is printed before
/// that.
pub fn run(dump: &Dump) -> Result<()> {
    let role = match dump.source {
        Source::Pid(_) => Role::SamplingByPtrace,
        _ => Role::SamplingByStub,
    };
    let show = |target: &mut dyn Target, clock: &dyn Clock| -> Result<DumpText> {
        system::restrict_sampler(role)?;
        match dump.what {
            Listing::Threads => threads(target, clock).map(DumpText::whole),
            Listing::Images => images(target, clock).map(DumpText::whole),
            Listing::Symbols => symbols(target, clock, dump.options.symbols.style()).map(DumpText::whole),
            Listing::Stacks => {
                let files = target.files();
                let snapshot = sampler::snapshot(target, clock, dump.options.max_depth, dump.options.unwind)?;
                let process = target.process().name.clone();
                Ok(DumpText {
                    stacks: Some(Stacks { snapshot, files, process }),
                    ..DumpText::whole(String::new())
                })
            }
        }
    };
    let mut shown = match &dump.source {
        Source::Sim { seed } => {
            let clock = FakeClock::default();
            show(&mut SimTarget::new(SimConfig::from_seed(*seed), clock.clone()), &clock)?
        }
        Source::Pid(pid) => {
            if let Some(why) = system::why_it_is_frozen(*pid) {
                messages::note(&format!("pid {pid} does not run now: {why}"));
            }
            system::with_target(&system::Process::Running(*pid), show)??
        }
        Source::Gdb(stub) => {
            let clock = RealClock::new();
            let mut target =
                gdb::attach(&stub.place, stub.exec.as_deref(), gdb::InitialState::Stopped, clock.clone())?;
            show(&mut target, &clock)?
        }
        Source::Launch(_) | Source::Demo | Source::Several(_) => DumpText::whole(String::new()),
    };
    // Symbolication takes too long to delay a signal to the target, so the target is released
    // first.
    if let Some(stacks) = shown.stacks.take() {
        let options = dump.options.symbols.with(&*stacks.files);
        shown.text = stacks.text(dump.options.max_depth, &options);
        shown.missing = missing(&stacks.snapshot);
    }
    messages::result(&shown.text)?;
    shown.missing.map_or(Ok(()), Err)
}

/// The printed text, and what could not be read.
struct DumpText {
    text: String,
    missing: Option<Error>,
    /// Stacks to symbolicate once the target runs again.
    stacks: Option<Stacks>,
}

/// The stacks of a process, and what is needed to symbolicate them.
struct Stacks {
    snapshot: Snapshot,
    files: Arc<dyn Files>,
    /// Process name.
    process: String,
}

impl DumpText {
    fn whole(text: String) -> DumpText {
        DumpText { text, missing: None, stacks: None }
    }
}

fn failed(fault: &Fault) -> Error {
    Error::new(ErrorKind::Attach, format!("cannot look at the process: {fault}"))
}

fn activity_name(activity: Activity) -> &'static str {
    match activity {
        Activity::Running | Activity::Runnable | Activity::Ready => "running",
        Activity::Waiting => "waiting",
        Activity::Stopped => "stopped",
        Activity::Unknown => "-",
    }
}

/// The state of the threads before they were stopped for this poll, all at once if the source
/// supports it.
fn poll_by_stop(
    target: &mut dyn Target,
    clock: &dyn Clock,
    ids: &[ThreadId],
) -> Vec<(ThreadId, ThreadStatus)> {
    let mut left = ids.iter().filter(|id| target.interrupt(**id, 0, true).is_ok()).count();
    let mut capture = Capture::with_capacity(0);
    let until_ns = clock.now_ns().saturating_add(POLL_NS);
    let mut statuses = Vec::new();
    while left > 0 {
        match target.next(until_ns, &mut capture) {
            Ok(TargetEvent::Stopped { thread, .. }) => {
                left -= 1;
                statuses.extend(capture.status.map(|status| (thread, status)));
            }
            Ok(TargetEvent::Timeout) | Err(_) => break,
            Ok(_) => {}
        }
    }
    statuses
}

fn threads(target: &mut dyn Target, clock: &dyn Clock) -> Result<String> {
    let mut list = Vec::new();
    target.threads(&mut list);
    let mut rows = Vec::new();
    for (id, _) in list {
        let Ok(status) = target.poll(id) else { continue };
        rows.push((id, status, escape_line(&target.thread_name(id).unwrap_or_default()).into_owned()));
    }
    let is_unknown = |status: &ThreadStatus| status.activity == Activity::Unknown;
    let unknown: Vec<ThreadId> = rows.iter().filter(|row| is_unknown(&row.1)).map(|row| row.0).collect();
    for (id, status) in poll_by_stop(target, clock, &unknown) {
        rows.iter_mut().filter(|row| row.0 == id).for_each(|row| row.1 = status);
    }
    let mut out = String::from("thread      state    cpu seconds  name\n");
    for (id, status, name) in rows {
        let state = activity_name(status.activity);
        let _ = writeln!(out, "{:<10}  {state:<7}  {:>11.3}  {name}", id.0, status.cpu_ns as f64 / 1e9);
    }
    Ok(out)
}

/// The mappings and their images. A process has none for a moment after exec, and the source may first have to
/// notice the exec: waits for both.
fn read_images(target: &mut dyn Target, clock: &dyn Clock) -> Result<(Vec<Mapping>, Images)> {
    let until_ns = clock.now_ns().saturating_add(POLL_NS);
    let (mut mappings, mut lists) = (Vec::new(), 0);
    loop {
        lists += 1;
        match target.mappings(&mut mappings) {
            Ok(()) => break,
            Err(Fault::Transient(_)) if clock.now_ns() < until_ns || lists < LISTS_MIN => {}
            Err(fault) => return Err(failed(&fault)),
        }
        let next_poll_ns = clock.now_ns().saturating_add(AGAIN_NS);
        match target.next(next_poll_ns, &mut Capture::with_capacity(0)) {
            Ok(TargetEvent::Exited(_)) => return Err(failed(&Fault::Gone)),
            Ok(_) => {}
            Err(fault) => return Err(failed(&fault)),
        }
    }
    let mut images = Images::default();
    images.update(0, &mappings, &mut |mapping| target.image_bytes(mapping));
    Ok((mappings, images))
}

fn images(target: &mut dyn Target, clock: &dyn Clock) -> Result<String> {
    let (mappings, images) = read_images(target, clock)?;
    let mut out = String::from("code                               build id          path\n");
    for mapping in &mappings {
        let located = images.locate(images.of(0).space(), mapping.avma.start);
        let build_id = located.and_then(|located| located.image.build_id.as_deref()).unwrap_or_default();
        let build_id: String = build_id.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let path = if mapping.path.is_empty() { "[no file]" } else { &mapping.path };
        let problem = located.and_then(|located| located.image.problem());
        let problem = problem.map(|problem| format!("  ({problem})")).unwrap_or_default();
        let range = format!("{:x}-{:x}", mapping.avma.start.0, mapping.avma.end.0);
        let _ = writeln!(out, "{range:<33}  {build_id:<16}  {}{problem}", escape_line(path));
    }
    Ok(out)
}

fn symbols(target: &mut dyn Target, clock: &dyn Clock, style: Style) -> Result<String> {
    let (_, images) = read_images(target, clock)?;
    let mut out = String::new();
    for image in images.images() {
        let _ = writeln!(out, "{}", escape_line(&image.path));
        let table = match &image.bytes {
            Ok(bytes) => SymbolTable::parse(bytes).map_err(|why| why.to_string()),
            Err(why) => Err(why.to_string()),
        };
        match table {
            Ok(table) => {
                for symbol in table.symbols() {
                    let name = match style {
                        Style::Mangled => String::from_utf8_lossy(&symbol.name).into_owned(),
                        Style::Readable => demangle::demangle(symbol.name),
                        Style::Short => demangle::shorten(&demangle::demangle(symbol.name)),
                    };
                    let name = escape_line(&name);
                    let _ =
                        writeln!(out, "  {:#014x} {:>7}  {name}", symbol.start.0, symbol.end - symbol.start);
                }
            }
            Err(why) => {
                let _ = writeln!(out, "  (no symbols: {why})");
            }
        }
    }
    Ok(out)
}

/// The threads without a stack, as an error.
fn missing(snapshot: &Snapshot) -> Option<Error> {
    let missing: Vec<_> =
        snapshot.stacks.iter().filter_map(|stack| Some((stack.thread.0, stack.ended.err()?))).collect();
    let (thread, why) = missing.first()?;
    let (count, all) = (missing.len(), snapshot.stacks.len());
    Some(Error::new(
        ErrorKind::System,
        format!("no stack of {count} of {all} threads; thread {thread}: {why}; try again later"),
    ))
}

/// Why a walk ended, with the limit that caused it.
fn end_text(ended: StackEnd, max_depth: usize) -> String {
    let reason = ended.reason();
    match ended {
        StackEnd::DeeperThanCopied => {
            format!("{reason} (at most {} MiB of a stack are read)", STACK_BYTES_MAX >> 20)
        }
        StackEnd::DepthLimit if max_depth < DUMP_DEPTH_MAX => {
            format!("{reason} ({max_depth} frames; --max-depth shows more)")
        }
        _ => reason.to_owned(),
    }
}

impl Stacks {
    /// Each thread's stack, leaf first, one line per function: its number, address, unwind method, name, and the
    /// file name of its module unless that is the program itself.
    fn text(&self, max_depth: usize, options: &symbol::Options<'_>) -> String {
        let Stacks { snapshot, process, .. } = self;
        // One frame id per distinct address, as in a recording.
        let mut addresses: Vec<LookupAvma> =
            snapshot.stacks.iter().flat_map(|stack| stack.addresses.iter().copied()).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let space = snapshot.images.of(0).space();
        let frames = addresses.iter().enumerate();
        let frames =
            frames.map(|(index, address)| (FrameId(index as u32), Frame::Code { space, address: *address }));
        let names = symbol::symbolicate(frames, &snapshot.images, options);
        let name_of = |address: &LookupAvma| -> Vec<Arc<str>> {
            let index = addresses.binary_search(address).unwrap_or_default();
            names.get(FrameId(index as u32)).to_vec()
        };
        let mut out = String::new();
        for stack in &snapshot.stacks {
            let end = match stack.ended {
                Ok(ended) if ended.is_complete() => String::new(),
                Ok(ended) => format!(", incomplete: {}", end_text(ended, max_depth)),
                Err(why) => format!(", no stack: {why}"),
            };
            let state = activity_name(stack.activity);
            let name = match &*stack.name {
                "" => String::new(),
                name => format!(" ({})", escape_line(name)),
            };
            let _ = writeln!(out, "thread {}{name} {state}{end}", stack.thread.0);
            let mut number = 0;
            for (address, method) in stack.addresses.iter().zip(&stack.methods) {
                let module =
                    snapshot.images.locate(space, address.at()).map_or("", |at| at.image.shown_name());
                let module = match summary::is_foreign(module, &[process]) {
                    true => format!("  ({})", escape_line(module)),
                    false => String::new(),
                };
                let method = method.name();
                // Inlined functions are stored outermost first, but the leaf is shown first.
                for name in name_of(address).iter().rev() {
                    let name = escape_line(name);
                    let module = if name.starts_with('[') { "" } else { &module };
                    let _ = writeln!(out, "  #{number:<3} {:#014x}  {method:<7}  {name}{module}", address.0);
                    number += 1;
                }
            }
            out.push('\n');
        }
        out
    }
}

// ---- `stackprof dump symbols FILE --addresses LIST`: names for a list of addresses in a file, for comparison with
// other tools. Hidden from the help: profiling does not need it.
//
// Output as of `llvm-symbolizer`: the functions of an address, innermost first, each followed by its `file:line`
// if lines are requested, and an empty line.

/// Prints the names.
///
/// # Errors
/// One line: an unreadable file, or a line that is not an address.
pub fn run_symbols(request: &Addresses) -> Result<()> {
    system::restrict_to_symbolizing(&OutputFiles::new());
    let input = |path: &Path, why: &str| Error::new(ErrorKind::Input, format!("{}: {why}", path.display()));
    let mut listed = String::new();
    let unreadable = |path: &Path, error: std::io::Error| input(path, &io_text(&error)).caused_by(error);
    if request.list == Path::new("-") {
        std::io::stdin().read_to_string(&mut listed).map_err(|error| unreadable(&request.list, error))?;
    } else {
        listed = std::fs::read_to_string(&request.list).map_err(|error| unreadable(&request.list, error))?;
    }
    let address = |line: &str| u64::from_str_radix(line.trim().trim_start_matches("0x"), 16);
    let listed: Vec<u64> = listed
        .lines()
        .map(|line| {
            address(line).map_err(|_| input(&request.list, &format!("`{line}`: expected an address in hex")))
        })
        .collect::<Result<_>>()?;
    let path = std::fs::canonicalize(&request.file).map_err(|error| unreadable(&request.file, error))?;
    let path = path.to_string_lossy().into_owned();
    let bytes = files::map_regular(Path::new(&path))
        .map_err(|why| input(&request.file, &why.to_string()).caused_by(why))?;
    let named = symbol::name_addresses(&path, bytes, &listed, &request.symbols.with(&LocalFiles));
    let mut out = String::with_capacity(listed.len() * 64);
    for functions in &named.names {
        match functions {
            Ok(functions) => {
                for function in functions.iter().rev() {
                    let _ = writeln!(out, "{}", escape_line(function.name.as_deref().unwrap_or("??")));
                    if request.symbols.lines {
                        let file = function.file.as_deref().unwrap_or("??");
                        let _ = writeln!(out, "{}:{}", escape_line(file), function.line);
                    }
                }
            }
            Err(_) => out.push_str(if request.symbols.lines { "??\n??:0\n" } else { "??\n" }),
        }
        out.push('\n');
    }
    messages::result(&out)?;
    if request.verbosity == Verbosity::Verbose {
        for problem in &named.problems {
            messages::note(problem);
        }
    }
    Ok(())
}

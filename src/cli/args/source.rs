//! The source of samples, parsed from options.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::process::ProcessArguments;
use super::values::{invalid_value, number, usage};
use crate::cli::flags::{SeveralFlags, SourceFlags};
use crate::cli::system;
use crate::error::Result;
use crate::sources::gdb::StubAddress;
use crate::walk::UnwindMethod;

/// Source of samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A running process.
    Pid(u32),
    /// Several running processes, a selection of the machine's, or all of them.
    Several(ProcessArguments),
    /// A command to launch: program and arguments, never empty.
    Launch(Vec<OsString>),
    /// A target behind a stub of the gdb remote protocol.
    Gdb(Stub),
    /// The built-in workload.
    Demo,
    /// A simulated process.
    Sim {
        /// Seed that replays a run.
        seed: u64,
    },
}

/// A stub, and the program that runs behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stub {
    /// Address of the stub.
    pub place: StubAddress,
    /// The program's file, if the stub does not name it.
    pub exec: Option<PathBuf>,
}

/// Finds the only process with a name. Passed in by the caller, because this module does no I/O.
pub type FindProcess<'a> = &'a dyn Fn(&str) -> Result<u32>;

/// The source, if it may be more than one process.
pub(super) fn several(
    flags: &SourceFlags,
    many: SeveralFlags,
    launch: Option<Vec<OsString>>,
    find: FindProcess<'_>,
) -> Result<Source> {
    let SeveralFlags { all, cgroup, container, user } = many;
    let chosen = [
        ("-a", all),
        ("--cgroup", cgroup.is_some()),
        ("--container", container.is_some()),
        ("--user", user.is_some()),
    ];
    let mut chosen = chosen.into_iter().filter_map(|(name, given)| given.then_some(name));
    let Some(option) = chosen.next() else {
        if flags.pid.len() < 2 {
            return source(flags, launch, find);
        }
        if launch.is_some() || flags.target.is_some() || flags.gdb.is_some() {
            return Err(usage("give processes by --pid, or one as a command after --"));
        }
        let mut pids = flags.pid.iter().map(|pid| process_id(pid, find)).collect::<Result<Vec<u32>>>()?;
        pids.sort_unstable();
        pids.dedup();
        return Ok(match pids[..] {
            [pid] => Source::Pid(pid),
            _ => Source::Several(ProcessArguments { pids, ..ProcessArguments::default() }),
        });
    };
    if let Some(other) = chosen.next() {
        return Err(usage(format!("{option} and {other} both say which processes; give one of them")));
    }
    if flags.gdb.is_some() {
        return Err(usage(format!("{option} and --gdb both say what is recorded; give one of them")));
    }
    if !flags.pid.is_empty() || flags.target.is_some() {
        return Err(usage(format!("{option} and --pid both say which processes; give one of them")));
    }
    if let Some(command) = launch {
        let command: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        return Err(usage(format!(
            "{option} records what runs; without it, stackprof -- {} records the command and what it starts",
            command.join(" ")
        )));
    }
    Ok(Source::Several(ProcessArguments { pids: Vec::new(), all, cgroup, container, user }))
}

/// A process by its id or, if the text is not a number, by its name.
pub(super) fn process_id(text: &OsStr, find: FindProcess<'_>) -> Result<u32> {
    match text.to_str() {
        Some(name) if !name.is_empty() && !is_number(name) => find(name),
        _ => number("--pid", text, "a process id, 1 or more, or a name (ps -e shows them)", |pid| pid >= 1),
    }
}

/// Whether a text is meant as a number, valid or not.
pub(super) fn is_number(text: &str) -> bool {
    text.starts_with(['-', '+']) || text.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | ' '))
}

pub(super) fn source(
    flags: &SourceFlags,
    launch: Option<Vec<OsString>>,
    find: FindProcess<'_>,
) -> Result<Source> {
    const EXAMPLES: &str = "stackprof --pid 4242 attaches, stackprof -- ./prog arg launches";
    if let Some(place) = &flags.gdb {
        return stub(place, flags, launch);
    }
    if flags.exec.is_some() {
        return Err(usage("--exec names the program behind a stub; give the stub with --gdb HOST:PORT"));
    }
    let given = flags.pid.len() + usize::from(launch.is_some()) + usize::from(flags.target.is_some());
    if given > 1 {
        return Err(usage(format!("give one process, by --pid or as a command after --: {EXAMPLES}")));
    }
    if let Some(pid) = flags.pid.first() {
        return Ok(Source::Pid(process_id(pid, find)?));
    }
    if let Some(command) = launch {
        if command.is_empty() {
            return Err(usage("no command after --: stackprof -- ./prog arg"));
        }
        return Ok(Source::Launch(command));
    }
    if let Some(target) = &flags.target {
        let seed = target.to_str().and_then(|target| target.strip_prefix("sim:")?.parse().ok());
        return seed
            .map(|seed| Source::Sim { seed })
            .ok_or_else(|| invalid_value("--target", target, "sim:SEED"));
    }
    Err(usage(format!("say what to profile: {EXAMPLES} (try 'stackprof --help')")))
}

pub(super) fn stub(place: &OsStr, flags: &SourceFlags, launch: Option<Vec<OsString>>) -> Result<Source> {
    if !flags.pid.is_empty() || flags.target.is_some() {
        return Err(usage("--gdb and --pid both say which process; give one of them"));
    }
    if let Some(command) = launch {
        let command: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        let why = "--gdb records what its stub runs; a command that is a stub goes into it";
        return Err(usage(format!("{why}: --gdb '|{}'", command.join(" "))));
    }
    let expected = "HOST:PORT, or '|COMMAND' for a stub on its standard input and output";
    let parsed =
        place.to_str().and_then(StubAddress::parse).ok_or_else(|| invalid_value("--gdb", place, expected))?;
    Ok(Source::Gdb(Stub { place: parsed, exec: flags.exec.clone() }))
}

/// Unwind method for a source.
pub(super) fn unwind(text: Option<&OsStr>, of: &Source) -> Result<UnwindMethod> {
    let Some(text) = text else { return Ok(UnwindMethod::Auto) };
    let named = UnwindMethod::ALL.iter().find(|(_, name)| text.to_str() == Some(*name));
    let how = named.map(|(how, _)| *how).ok_or_else(|| {
        invalid_value("--unwind", text, "auto, fp or cfi; for 32-bit Arm also exidx, code or scan")
    })?;
    // Elsewhere, Arm processors are reached only through stubs.
    if how.is_of_arm() && !system::RUNS_ARM && !matches!(of, Source::Gdb(_)) {
        let text = text.display();
        return Err(usage(format!("--unwind {text} is for 32-bit Arm behind --gdb; leave it out here")));
    }
    Ok(how)
}

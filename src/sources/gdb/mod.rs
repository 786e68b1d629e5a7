//! A target behind a stub of the gdb remote protocol: QEMU, OpenOCD, J-Link, gdbserver, lldb-server, Apple's
//! debugserver. Compiled on all systems.
//!
//! `transport.rs` has the bytes, `link.rs` packets and their encoding, `session.rs` requests and replies. `run.rs`
//! (stop, continue, detach), `threads.rs` (list, names, registers, and which threads wait) and `memory.rs` build on
//! these. `description.rs` describes the target and its registers, `images.rs` its mappings; `tasks.rs` finds the
//! tasks of an operating system that the stub does not know. `stops.rs` makes the captures, `target.rs` implements
//! the sampler's trait. `heap.rs` traces an allocator with breakpoints; a CPU recording sets none, and neither
//! writes memory or registers.
//!
//! A stub may send anything at any time: lengths, counts and depths are bounded, and each reply has a deadline. A
//! failing stub gets a detach request.

pub mod description;
mod heap;
mod images;
pub mod link;
mod memory;
pub mod run;
mod session;
mod stops;
#[cfg(unix)]
mod sys;
mod target;
mod tasks;
pub mod threads;
mod transport;

use std::path::Path;
use std::time::Duration;

pub use heap::{AllocatorNames, GdbHeap, GdbHeapSource};
pub use target::{GdbTarget, InitialState};
pub use transport::{ConnectionError, StubAddress, StubStream};

use crate::addr::Avma;
use crate::arch::Arch;
use crate::binary::elf;
use crate::clock::{Clock, RealClock};
use crate::error::{Error, ErrorKind, Result};
use crate::sources::Process;
use crate::sources::signals::Hold;
use description::{Description, Layout};
use images::{Exec, Images};
use link::Link;
use session::Stub;
use target::Parts;
use tasks::Tasks;
use threads::System;
use transport::Transport;

/// Time for all requests before the target first runs: links to boards are slow.
const BEGIN: Duration = Duration::from_secs(30);
/// Most registers that are described one by one.
const REGISTER_QUESTIONS_MAX: usize = 1024;
/// Longest displayed command line.
const COMMAND_BYTES_MAX: usize = 64 << 10;

impl From<String> for ConnectionError {
    /// A parse error of received data.
    fn from(what: String) -> ConnectionError {
        ConnectionError::Nonsense(what)
    }
}

/// Connects to a stub and describes its target. `exec` is the program's file, if the stub does not name it.
///
/// # Errors
/// [`ErrorKind::Attach`]: no connection, no process, a processor without a stack walker, or a stub that
/// replies with nonsense, late or never; [`ErrorKind::Input`] for `exec`. The target then keeps running if
/// the stub lets it.
pub fn attach(
    place: &StubAddress,
    exec: Option<&Path>,
    begin: InitialState,
    clock: RealClock,
) -> Result<GdbTarget> {
    let exec = exec.map(Exec::open).transpose()?;
    let stream = Box::new(Transport::open(place)?);
    let target = describe_and_begin(stream, place, exec, begin, Box::new(clock))?;
    super::prefer_this_thread();
    Ok(target)
}

/// Describes the target of the stub at the other end of a stream, for stubs that are simulated; `place` is its name in
/// messages. `clock` and that of the stream show the same time.
///
/// # Errors
/// Attaches through an open stream.
pub fn attach_to_stream(
    stream: Box<dyn StubStream>,
    place: &StubAddress,
    begin: InitialState,
    clock: Box<dyn Clock>,
) -> Result<GdbTarget> {
    describe_and_begin(stream, place, None, begin, clock)
}

fn describe_and_begin(
    stream: Box<dyn StubStream>,
    place: &StubAddress,
    exec: Option<Exec>,
    begin: InitialState,
    clock: Box<dyn Clock>,
) -> Result<GdbTarget> {
    let failed = |broken: ConnectionError| {
        let next =
            if broken == ConnectionError::Closed { "; does it speak the gdb remote protocol?" } else { "" };
        Error::new(ErrorKind::Attach, format!("cannot attach: the stub at {place} {broken}{next}"))
    };
    let link = Link::new(stream).map_err(failed)?;
    // Most stubs stop their target on connection.
    let mut stub = Stub::new(link);
    stub.run.hold = Some(Hold::of_stopped_target());
    match stub.greet().map_err(DescribeError::from).and_then(|()| describe(&mut stub, exec)) {
        Ok(TargetFacts { process, system, layout, images, tasks }) => {
            let place = place.to_string();
            let parts = Parts { stub, process, system, layout, images, tasks, place };
            GdbTarget::begin(parts, begin, clock).map_err(failed)
        }
        Err(DescribeError::Unsupported(why)) => {
            stub.detach(false);
            Err(Error::new(ErrorKind::Attach, format!("cannot attach to the target at {place}: {why}")))
        }
        Err(DescribeError::Connection(broken)) => {
            stub.detach(true);
            Err(failed(broken))
        }
    }
}

/// Facts about a target.
struct TargetFacts {
    process: Process,
    system: System,
    layout: Layout,
    images: Images,
    tasks: Option<Tasks>,
}

/// Why a target could not be described.
enum DescribeError {
    /// It cannot be recorded, through no fault of the stub.
    Unsupported(String),
    /// The stub cannot be reached.
    Connection(ConnectionError),
}

impl From<ConnectionError> for DescribeError {
    fn from(broken: ConnectionError) -> DescribeError {
        DescribeError::Connection(broken)
    }
}

/// Requests the description of the stopped target.
fn describe(stub: &mut Stub, exec: Option<Exec>) -> std::result::Result<TargetFacts, DescribeError> {
    stub.within(BEGIN, "telling what its target is");
    let mut description = Description::default();
    if stub.offers.lldb {
        let host = stub.call(b"qHostInfo")?;
        let process = stub.call(b"qProcessInfo")?;
        description.add_info(&process);
        description.add_info(&host);
        stub.run.pid = pid_of(&process);
    }
    stub.begin()?;
    stub.choose_any_thread()?;
    if let Some(described) = registers_described(stub)? {
        description.registers = described.registers;
        let replace_known = |new: String, known: &mut String| {
            if !new.is_empty() {
                *known = new;
            }
        };
        replace_known(described.architecture, &mut description.architecture);
        if !stub.offers.lldb {
            replace_known(described.system, &mut description.system);
        }
    }
    if description.architecture.is_empty()
        && let Some(exec) = &exec
    {
        description.architecture = match exec.elf.machine {
            elf::X86_64 => "x86_64".to_owned(),
            elf::AARCH64 => "aarch64".to_owned(),
            elf::X86 => "i386".to_owned(),
            elf::ARM => "arm".to_owned(),
            other => format!("ELF machine {other}"),
        };
    }
    let layout = description::arch(&description.architecture).and_then(|arch| {
        Layout::of(arch, &description)
            .map_err(|why| format!("its registers are not described as expected: {why}"))
    });
    let mut layout = layout.map_err(DescribeError::Unsupported)?;
    let system = system_of(stub, &description);
    if system == System::Bare {
        stub.memory_ends_at = memory::BOARD_RAM_BYTES;
    }
    let mut images = Images::new(exec.clone(), system, layout.arch.pointer_bytes() as usize);
    let first = stub.run.threads.first().copied();
    let answer = match first {
        Some(first) => stub.registers(&[first], &layout)?.pop().flatten(),
        None => None,
    };
    if let Some(answer) = &answer {
        layout.learn(answer);
    }
    let address_mask = address_mask(stub, &description, layout.arch, system)?;
    let pc = answer.map(|answer| answer.registers.pc()).map(|Avma(pc)| pc & address_mask);
    images.learn(stub, pc)?;
    if let (Some(exec), System::Bare) = (&exec, system)
        && let Some(why) = images.problem()
    {
        return Err(DescribeError::Unsupported(format!("what it runs is not {}: {why}", exec.name())));
    }
    let process = process(stub, &images, exec.as_ref(), layout.arch, system, address_mask)?;
    // Several threads are tasks known to the stub, or processors.
    let knows_tasks = system == System::Bare && layout.arch == Arch::Arm && stub.run.threads.len() == 1;
    let kernel = exec.and_then(|exec| exec.kernel).filter(|_| knows_tasks);
    Ok(TargetFacts { process, system, layout, images, tasks: kernel.map(Tasks::new) })
}

/// `pid:1f;...`
fn pid_of(process_info: &[u8]) -> Option<u64> {
    let mut pairs = process_info.split(|byte| *byte == b';');
    link::number(pairs.find_map(|pair| pair.strip_prefix(b"pid:"))?)
}

/// The registers as the stub describes them; `None` if it does not.
fn registers_described(stub: &mut Stub) -> std::result::Result<Option<Description>, ConnectionError> {
    if stub.offers.features_xml {
        let mut fetch = |name: &str| stub.transfer("features", name, description::DOCUMENT_BYTES_MAX);
        if let Some(description) = Description::read::<ConnectionError>(&mut fetch)? {
            return Ok(Some(description));
        }
    }
    if !stub.offers.lldb {
        return Ok(None);
    }
    let mut description = Description::default();
    for number in 0..REGISTER_QUESTIONS_MAX {
        let answer = stub.call(format!("qRegisterInfo{number:x}").as_bytes())?;
        if !description.add_register_info(&answer) {
            break;
        }
    }
    Ok(Some(description))
}

fn system_of(stub: &Stub, description: &Description) -> System {
    match description.system.as_str() {
        "linux" => System::Linux,
        "macosx" | "ios" | "tvos" | "watchos" | "bridgeos" | "maccatalyst" => System::Mach,
        // Boards describe registers like Linux, but only processes have an auxiliary vector.
        _ if stub.offers.auxv => System::Linux,
        _ => System::Bare,
    }
}

/// The address bits of a code pointer, without signature bits (PAC), if the stub reports them.
fn address_mask(
    stub: &mut Stub,
    description: &Description,
    arch: Arch,
    system: System,
) -> std::result::Result<u64, ConnectionError> {
    const USER_BITS: u32 = 48;
    const APPLE_USER_BITS: u32 = 47;
    let is_mask = |name: &str| matches!(name, "pauth_cmask" | "code_mask");
    let mask = description.registers.iter().find(|register| is_mask(&register.name) && register.bits == 64);
    if let (Some(mask), Some(thread)) = (mask, stub.run.threads.first().copied()) {
        let (select, suffix) = stub.thread_words(thread);
        if let Some(select) = select {
            stub.call(&select)?;
        }
        let answer = stub.call(format!("p{:x}{suffix}", mask.number).as_bytes())?;
        let bytes = link::decode(&answer).and_then(|bytes| bytes.get(..8)?.try_into().ok());
        if let Some(bytes) = bytes {
            return Ok(!u64::from_le_bytes(bytes));
        }
    }
    Ok(match (arch, system) {
        (Arch::Aarch64, System::Linux) => (1 << USER_BITS) - 1,
        (Arch::Aarch64, System::Mach) => (1 << APPLE_USER_BITS) - 1,
        _ => u64::MAX,
    })
}

/// Initial facts about the process.
fn process(
    stub: &mut Stub,
    images: &Images,
    exec: Option<&Exec>,
    arch: Arch,
    system: System,
    address_mask: u64,
) -> std::result::Result<Process, ConnectionError> {
    let (mut name, mut command) = (None, String::new());
    if let Some(pid) = stub.run.pid.filter(|_| system == System::Linux && images.are_the_kernels()) {
        name = stub.read_file(&format!("/proc/{pid}/comm"), COMMAND_BYTES_MAX)?;
        let words = stub.read_file(&format!("/proc/{pid}/cmdline"), COMMAND_BYTES_MAX)?.unwrap_or_default();
        let words: Vec<_> = words.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        command = words.join(" ").trim_end().to_owned();
    }
    let name = name.map(|name| String::from_utf8_lossy(&name).trim_end_matches('\n').to_owned());
    let name = name.filter(|name| !name.is_empty()).or_else(|| exec.map(|exec| exec.name().to_owned()));
    let name = name.or_else(|| images.first_name()).unwrap_or_else(|| "target".to_owned());
    let mode = if stub.run.non_stop { "non-stop" } else { "all-stop" };
    let pid = stub.run.pid.filter(|_| system != System::Bare).and_then(|pid| u32::try_from(pid).ok());
    Ok(Process {
        pid: pid.unwrap_or(0),
        name,
        command,
        arch,
        backend: "gdb",
        backend_why: format!(
            "a stub in {mode} mode, which tells no CPU time: each stop stands for the time since the one before"
        ),
        // Unknown; all threads found running count.
        cpus: usize::MAX,
        address_mask,
        fp_always: system == System::Mach && arch == Arch::Aarch64,
        cfi: true,
        stops_interrupt_syscalls: system == System::Linux,
        stops_hold_all: true,
    })
}

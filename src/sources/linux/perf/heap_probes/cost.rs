//! Cost of a probe to the thread that hits it, measured on this process.
//!
//! Input: the programs run by probes; output: nanoseconds per call, on this machine and kernel. The cost depends
//! on the instruction under the probe: the kernel emulates a `push` and single-steps others
//! (arch/x86/kernel/uprobes.c), which takes many times as long on a virtual machine. The function here begins with
//! one of those, like `free` of glibc.
#![allow(unsafe_code)]

use super::super::clocks::thread_cpu_ns;
use super::functions;
use super::probe::{Probe, mapped_file};
use super::programs::{self, ReturnKind, Shared};
use crate::binary::Mapping;
use crate::sources::linux::images::Maps;
use std::hint::black_box;
use std::io;

/// Calls per measurement: some milliseconds.
const CALLS: u32 = 2000;

/// The probed function. Its argument is in the register of the first one, the number of bytes: none.
// SAFETY: the instructions are a complete function of the C ABI: they change only rax, and return.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
extern "C" fn probed(bytes: u64) -> u64 {
    std::arch::naked_asm!("test rdi, rdi", "mov rax, rdi", "ret")
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(never)]
extern "C" fn probed(bytes: u64) -> u64 {
    black_box(bytes)
}

/// Cost of a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sources::linux) struct ProbeCost {
    /// At a function's entry, with a single-stepped instruction, nanoseconds.
    pub(in crate::sources::linux) entry_ns: u64,
    /// At a function's return, nanoseconds.
    pub(in crate::sources::linux) return_ns: u64,
}

impl ProbeCost {
    /// Measures the cost.
    ///
    /// # Errors
    /// The kernel's error for the first probe: a probe in the target would be refused, too.
    pub(super) fn measure(shared: Shared) -> io::Result<ProbeCost> {
        measure(shared)
    }
}

fn measure(shared: Shared) -> io::Result<ProbeCost> {
    let at = probed as *const () as u64;
    let pid = std::process::id().cast_signed();
    let mut mappings: Vec<Mapping> = Vec::new();
    Maps::default().read(pid, &mut mappings).map_err(|fault| io::Error::other(fault.to_string()))?;
    let own = mappings.iter().find(|mapping| (mapping.avma.start.0..mapping.avma.end.0).contains(&at));
    let own = own.ok_or(io::ErrorKind::NotFound)?;
    let (file, offset) = (mapped_file(pid, own), at - own.avma.start.0 + own.file_offset);
    let each = |ns: u64| ns / u64::from(CALLS);
    let bare_ns = time_calls();
    let entry = programs::at_entry(0, &functions::FUNCTIONS[0].1, shared);
    let at_entry = Probe::set(pid, &file, offset, false, &entry)?;
    let entered_ns = time_calls();
    let at_return =
        Probe::set(pid, &file, offset, true, &programs::at_return(ReturnKind::Trampoline, shared))?;
    let returned_ns = time_calls();
    drop((at_entry, at_return));
    Ok(ProbeCost {
        entry_ns: each(entered_ns.saturating_sub(bare_ns)),
        return_ns: each(returned_ns.saturating_sub(entered_ns)),
    })
}

/// CPU time of this thread: interrupts are not part of the cost.
fn time_calls() -> u64 {
    let begun_ns = thread_cpu_ns();
    for _ in 0..CALLS {
        black_box(probed(black_box(0)));
    }
    thread_cpu_ns().saturating_sub(begun_ns)
}

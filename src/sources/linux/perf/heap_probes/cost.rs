//! What a probe costs the thread that runs into it, measured on this process.
//!
//! Input: the programs that probes run; output: nanoseconds of a call, of this machine and kernel.

use super::super::clocks::thread_cpu_ns;
use super::probe::{Probe, mapped_file};
use super::programs::{self, Role, Shared};
use crate::binary::Mapping;
use crate::sources::linux::images::Maps;
use std::hint::black_box;
use std::io;

/// Calls of each measurement: some milliseconds.
const CALLS: u32 = 2000;

/// What is called and probed. Its argument is in the register of a function's first one: no bytes.
#[inline(never)]
extern "C" fn probed(bytes: u64) -> u64 {
    black_box(bytes)
}

/// Nanoseconds that a call of an allocating function takes longer, entry and return together.
///
/// # Errors
/// What the kernel says to the first probe: that of the target would be refused, too.
pub(super) fn call_ns(shared: Shared) -> io::Result<u64> {
    let at = probed as *const () as u64;
    let pid = std::process::id().cast_signed();
    let mut mappings: Vec<Mapping> = Vec::new();
    Maps::default().read(pid, &mut mappings).map_err(|fault| io::Error::other(fault.to_string()))?;
    let own = mappings.iter().find(|mapping| (mapping.avma.start.0..mapping.avma.end.0).contains(&at));
    let own = own.ok_or(io::ErrorKind::NotFound)?;
    let (file, offset) = (mapped_file(pid, own), at - own.avma.start.0 + own.file_offset);
    let before_ns = time_calls();
    let entry = programs::at_entry(Role::Allocate { bytes: 0 }, shared);
    let probes = [
        Probe::set(pid, &file, offset, false, &entry)?,
        Probe::set(pid, &file, offset, true, &programs::at_return(shared))?,
    ];
    let probed_ns = time_calls();
    drop(probes);
    Ok(probed_ns.saturating_sub(before_ns) / u64::from(CALLS))
}

/// CPU time of this thread: what interrupts it is no part of the cost.
fn time_calls() -> u64 {
    let begun_ns = thread_cpu_ns();
    for _ in 0..CALLS {
        black_box(probed(black_box(0)));
    }
    thread_cpu_ns().saturating_sub(begun_ns)
}

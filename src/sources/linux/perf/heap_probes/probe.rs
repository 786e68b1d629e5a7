//! Uprobes: an instruction of a file that, in one process, runs a BPF program.
//!
//! Sources: perf_event_open(2) (`uprobe`, `config1` the path, `config2` the offset in the file), and
//! Documentation/trace/uprobetracer.rst.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;

use libc::pid_t;
use perf_event_open_sys::bindings::perf_event_attr;

use super::super::bpf::bpf_sys::{self, ProgramKind};
use super::super::ring::sys;
use crate::binary::Mapping;

/// The file of a process's mapping, by an unambiguous path (proc_pid_map_files(5)).
pub(super) fn mapped_file(pid: pid_t, mapping: &Mapping) -> String {
    format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.avma.start.0, mapping.avma.end.0)
}

/// A probe, removed when this is dropped or this process ends.
#[derive(Debug)]
pub(super) struct Probe(#[allow(dead_code, reason = "it is held, not read")] OwnedFd);

impl Probe {
    /// Sets a probe in the memory of one process, at a function's entry, or at its return if `returns`.
    ///
    /// # Errors
    /// The kernel's error: EACCES without CAP_PERFMON, ENOENT without uprobes.
    pub(super) fn set(
        pid: pid_t,
        file: &str,
        file_offset: u64,
        returns: bool,
        program: &[u64],
    ) -> io::Result<Probe> {
        let program = bpf_sys::load_program(ProgramKind::Probe, program)?;
        let path = CString::new(file).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut attributes = perf_event_attr {
            type_: kind()?,
            size: size_of::<perf_event_attr>() as u32,
            config: u64::from(returns),
            ..perf_event_attr::default()
        };
        attributes.__bindgen_anon_3.uprobe_path = path.as_ptr() as u64;
        attributes.__bindgen_anon_4.probe_offset = file_offset;
        let event = sys::open(&attributes, pid, -1)?;
        sys::set_filter(&event, &program)?;
        sys::enable(&event)?;
        Ok(Probe(event))
    }
}

/// The event type of uprobes on this kernel.
fn kind() -> io::Result<u32> {
    let text = fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

//! Uprobes: an instruction of a file, in one process, that runs a program in the kernel.
//!
//! Source of facts: perf_event_open(2) (`uprobe`, `config1` the path, `config2` the offset in the file), and
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

/// The file behind a mapping of a process, by a path that leads to nothing else (proc_pid_map_files(5)).
pub(super) fn mapped_file(pid: pid_t, mapping: &Mapping) -> String {
    format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.avma.start.0, mapping.avma.end.0)
}

/// A probe. It is removed when this is dropped, or when this process ends.
#[derive(Debug)]
pub(super) struct Probe(#[allow(dead_code, reason = "it is held, not read")] OwnedFd);

impl Probe {
    /// Sets a probe in the memory of one process. At a function's entry, or where it returns if `returns`.
    ///
    /// # Errors
    /// What the kernel says: EACCES without CAP_PERFMON, ENOENT where it has no uprobes.
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

/// The number that this kernel has for events at uprobes.
fn kind() -> io::Result<u32> {
    let text = fs::read_to_string("/sys/bus/event_source/devices/uprobe/type")?;
    text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
}

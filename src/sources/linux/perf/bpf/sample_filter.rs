//! The sample filter: a BPF program that drops samples of excluded processes, and the set of these. Input: pids.
//! Output: a program to attach to events.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use libc::pid_t;

use super::super::ring::sys;
use super::bpf_sys;
use super::bpf_sys::ProgramKind;
use super::filter_program::{self, FilterRule};

/// Maximum number of processes excluded in the kernel; samples of further ones are copied and discarded here.
const EXCLUDED_MAX: u32 = 16_384;

/// The program and its data. If the kernel refuses programs, all samples pass.
#[derive(Debug, Default)]
pub(in crate::sources::linux::perf) struct SampleFilter {
    /// Which samples pass, and our namespace; `None` if namespaces are unknown.
    rule: Option<(FilterRule, (u64, u64))>,
    program: Option<OwnedFd>,
    excluded: Option<OwnedFd>,
    /// The filter followed by the code that copies memory for passed samples.
    copy_program: Option<OwnedFd>,
}

impl SampleFilter {
    /// Passes the samples of one process.
    pub(in crate::sources::linux::perf) fn of_process(pid: pid_t) -> SampleFilter {
        let ours = pid_namespace("self");
        // A process of another container has no number for the program.
        let ours = ours.filter(|ours| {
            filter_program::numbers_all(*ours)
                || pid_namespace(&pid.to_string()).is_none_or(|its| its == *ours)
        });
        let rule = ours.map(|ours| (FilterRule::OfProcess(pid), ours));
        SampleFilter { rule, program: rule.and_then(loaded), ..SampleFilter::default() }
    }

    /// Passes the samples of all processes of our namespace that are not excluded.
    pub(in crate::sources::linux::perf) fn unless_excluded() -> SampleFilter {
        let made = pid_namespace("self").and_then(|namespace| {
            let excluded = bpf_sys::create_map(EXCLUDED_MAX).ok()?;
            let rule = (FilterRule::UnlessIn(excluded.as_raw_fd()), namespace);
            let program = Some(loaded(rule)?);
            Some(SampleFilter { rule: Some(rule), program, excluded: Some(excluded), copy_program: None })
        });
        made.unwrap_or_default()
    }

    /// Passes all samples.
    pub(in crate::sources::linux::perf) fn open() -> SampleFilter {
        // In other namespaces a program would drop threads without a number here.
        let first = pid_namespace("self").filter(|namespace| filter_program::numbers_all(*namespace));
        SampleFilter { rule: first.map(|first| (FilterRule::All, first)), ..SampleFilter::default() }
    }

    /// Whether a process with a number here has none for the program, since it is in a namespace below ours.
    pub(in crate::sources::linux::perf) fn is_outside_namespace(&self, pid: pid_t) -> bool {
        let Some((FilterRule::UnlessIn(_), ours)) = self.rule else { return false };
        !filter_program::numbers_all(ours) && pid_namespace(&pid.to_string()).is_some_and(|its| its != ours)
    }

    /// Also passes samples of other PID namespaces, in events attached from now on. Costs other processes a few us
    /// per sample, so it is initially off.
    ///
    /// # Errors
    /// Errors of bpf(2); nothing is changed then.
    pub(in crate::sources::linux::perf) fn let_unknown_through(&mut self) -> io::Result<()> {
        let Some((FilterRule::UnlessIn(set), ours)) = self.rule else { return Ok(()) };
        let rule = (FilterRule::UnlessInOrUnknown(set), ours);
        let program = bpf_sys::load_program(ProgramKind::Event, &filter_program::program(rule.0, ours, &[]))?;
        (self.rule, self.program) = (Some(rule), Some(program));
        self.exclude(0, false);
        Ok(())
    }

    /// Adds or removes an excluded process: its number may have been reused.
    pub(in crate::sources::linux::perf) fn exclude(&self, pid: pid_t, excluded: bool) {
        if let Some(set) = &self.excluded {
            bpf_sys::change_map(set, pid.cast_unsigned(), excluded.then_some(1));
        }
    }

    /// Sets additional code for passed samples, in events attached from now on; an empty list removes it.
    ///
    /// # Errors
    /// Errors of bpf(2), or an error if there is no program; nothing more is done then.
    pub(in crate::sources::linux::perf) fn copy(&mut self, copy_code: &[u64]) -> io::Result<()> {
        self.copy_program = None;
        if !copy_code.is_empty() {
            let (rule, namespace) = self.rule.ok_or(io::ErrorKind::Unsupported)?;
            let program = filter_program::program(rule, namespace, copy_code);
            self.copy_program = Some(bpf_sys::load_program(ProgramKind::Event, &program)?);
        }
        Ok(())
    }

    /// Attaches the filter to an event.
    pub(in crate::sources::linux::perf) fn attach(&self, event: &OwnedFd) {
        if let Some(program) = &self.program {
            // A refusal for one event applies to all.
            let _ = sys::set_filter(event, program);
        }
    }

    /// Attaches the filter to an event, with the additional code of [`SampleFilter::copy`].
    pub(in crate::sources::linux::perf) fn attach_with_copy(&self, event: &OwnedFd) {
        match &self.copy_program {
            Some(program) if sys::set_filter(event, program).is_ok() => {}
            _ => self.attach(event),
        }
    }

    /// Whether the kernel accepted the program.
    pub(in crate::sources::linux::perf) fn is_loaded(&self) -> bool {
        self.program.is_some()
    }

    /// Attaches the code of [`SampleFilter::copy`] to an event with samples that need no filter.
    pub(in crate::sources::linux::perf) fn attach_copy(&self, event: &OwnedFd) {
        if let Some(program) = &self.copy_program {
            // Without it stacks are as deep as the event's copies.
            let _ = sys::set_filter(event, program);
        }
    }
}

fn loaded((rule, namespace): (FilterRule, (u64, u64))) -> Option<OwnedFd> {
    bpf_sys::load_program(ProgramKind::Event, &filter_program::program(rule, namespace, &[])).ok()
}

/// Device and inode of the PID namespace of a process.
pub(in crate::sources::linux::perf) fn pid_namespace(pid: &str) -> Option<(u64, u64)> {
    let meta = fs::metadata(format!("/proc/{pid}/ns/pid")).ok()?;
    Some((meta.dev(), meta.ino()))
}

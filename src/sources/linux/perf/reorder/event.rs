//! Events of threads and processes, before the records of all CPUs are in order.
//!
//! Input: a record, and whether its process is selected. Output: an event, if a later stage needs it.

use libc::pid_t;

use super::super::ring::record::{Mmap, PerfRecord, SampleId};
use crate::addr::Avma;
use crate::binary::{Mapping, MappingKind};
use crate::sources::Capture;

/// Whether a process is recorded, as far as known when its record is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::sources::linux::perf) enum Selection {
    /// Recorded, or not decided yet.
    Selected,
    /// Excluded by the filter.
    Excluded,
    /// Another process in a recording of only one.
    Other,
}

/// An event of a thread or process.
#[derive(Debug)]
pub(in crate::sources::linux::perf) enum Event {
    /// The process was started by this thread of this process.
    Fork {
        /// Its parent process.
        parent: pid_t,
        /// The thread that started it.
        creator: pid_t,
    },
    /// The thread was started by this one of its process.
    ThreadStart {
        /// The thread that started it.
        creator: pid_t,
    },
    /// A timer sample.
    Sample(Box<Capture>),
    /// A sample with an unusable stack, for this reason.
    Missed(&'static str),
    /// The thread exited.
    ThreadExit,
    /// The new name of a thread, or of a process after an exec.
    Comm {
        /// The name.
        name: String,
        /// Whether it is that of a new program.
        exec: bool,
    },
    /// Executable memory was mapped.
    Mmap(Mapping),
    /// /proc shows that the process executed a program of this name.
    ProgramFound(String),
    /// The mappings of the process may have changed without a record.
    MappingsStale,
}

impl Event {
    /// The event of a non-sample record. `selection`: of its process; `may_select_at_exec`: an excluded process
    /// may be selected at its next exec.
    pub(in crate::sources::linux::perf) fn of(
        id: SampleId,
        record: &PerfRecord<'_>,
        selection: Selection,
        may_select_at_exec: bool,
    ) -> Option<Event> {
        let is_excluded = selection == Selection::Excluded;
        match record {
            PerfRecord::Exit => Some(Event::ThreadExit),
            _ if selection == Selection::Other => None,
            PerfRecord::Fork { parent, creator } if *parent == id.pid => {
                (!is_excluded).then_some(Event::ThreadStart { creator: *creator })
            }
            PerfRecord::Fork { parent, creator } => Some(Event::Fork { parent: *parent, creator: *creator }),
            PerfRecord::Comm { name, exec } => (!is_excluded || *exec && may_select_at_exec)
                .then(|| Event::Comm { name: String::from_utf8_lossy(name).into_owned(), exec: *exec }),
            PerfRecord::Mmap(mmap) if !is_excluded => mapping(mmap).map(Event::Mmap),
            PerfRecord::Mmap(_)
            | PerfRecord::Sample(_)
            | PerfRecord::SwitchIn { .. }
            | PerfRecord::SwitchOut { .. }
            | PerfRecord::Lost(_)
            | PerfRecord::Throttle
            | PerfRecord::Unthrottle => None,
        }
    }

    /// Whether this is a timer sample, with a usable stack or not.
    pub(in crate::sources::linux::perf) fn is_sample(&self) -> bool {
        matches!(self, Event::Sample(_) | Event::Missed(_))
    }
}

/// The mapping of a record; `None` if it is empty.
pub(in crate::sources::linux::perf) fn mapping(mmap: &Mmap<'_>) -> Option<Mapping> {
    let end = mmap.start.checked_add(mmap.len).filter(|end| *end > mmap.start)?;
    let path = String::from_utf8_lossy(mmap.path).into_owned();
    let kind = match () {
        () if path == "[vdso]" => MappingKind::Vdso,
        // `//anon`, `[heap]`; `/memfd:…` has an inode.
        () if mmap.inode != 0 && path.starts_with('/') => MappingKind::File,
        () => MappingKind::Anonymous,
    };
    // Like /proc/PID/maps: no name for memory without a file.
    let path = if kind == MappingKind::Anonymous && path == "//anon" { String::new() } else { path };
    let identity = (libc::makedev(mmap.device.0, mmap.device.1), mmap.inode);
    Some(Mapping { avma: Avma(mmap.start)..Avma(end), file_offset: mmap.file_offset, path, kind, identity })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mmap(start: u64, len: u64, inode: u64, path: &'static [u8]) -> Option<Mapping> {
        mapping(&Mmap { start, len, file_offset: 0x1000, device: (8, 1), inode, path })
    }

    #[test]
    fn memory_with_an_inode_is_a_file() {
        let kind =
            |inode, path| mmap(0x10_000, 0x4000, inode, path).map(|mapping| (mapping.kind, mapping.path));
        assert_eq!(kind(3, b"/lib/x.so"), Some((MappingKind::File, "/lib/x.so".to_owned())));
        assert_eq!(kind(0, b"//anon"), Some((MappingKind::Anonymous, String::new())));
        assert_eq!(kind(0, b"[vdso]"), Some((MappingKind::Vdso, "[vdso]".to_owned())));
    }

    #[test]
    fn mappings_with_an_invalid_end_are_dropped() {
        assert_eq!(mmap(u64::MAX - 1, 0x1000, 5, b"/lib/x.so"), None);
        assert_eq!(mmap(0x40_000, 0, 5, b"/lib/x.so"), None);
    }
}

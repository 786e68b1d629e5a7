//! One of the processes that a recorder records: which addresses it has, what is known of its code,
//! and under which names its stacks are kept.
//!
//! Thousands of processes come and go on a whole machine: of one that has ended only the numbers
//! are kept, and of those that have not been walked for long nothing of what walks learned.

use std::sync::Arc;

use super::image_refresh::ImageRefresh;
use super::recorded_process::{ProcessIndex, RecordedProcess, UNSAMPLED};
use super::recorder::Recorder;
use crate::binary::Files;
use crate::recording::{Program, Thread, Track};
use crate::sources::{Observed, ThreadId};

/// Threads and programs that are kept apart; later ones share an entry.
const MAX_TRACKS: usize = 65_536;
/// Processes of which what walks learned is kept; some tens of kilobytes each.
const MAX_UNWIND_CACHES: usize = 256;

impl Recorder<'_> {
    /// Takes another process in, which runs a program of this name; `None` where no more fit.
    pub fn add_process(&mut self, pid: u32, name: &str) -> Option<ProcessIndex> {
        let image_space_id = self.images.begin_process()?;
        let index = ProcessIndex(u32::try_from(self.processes.len()).ok()?);
        let program = self.add_program(pid, name);
        self.processes.push(RecordedProcess::new(image_space_id, pid, program, &self.facts));
        Some(index)
    }

    pub(super) fn add_program(&mut self, pid: u32, name: &str) -> u32 {
        if self.programs.len() >= MAX_TRACKS {
            return (MAX_TRACKS - 1) as u32;
        }
        let name = if self.programs.len() == MAX_TRACKS - 1 {
            format!("programs after the first {MAX_TRACKS}")
        } else {
            name.to_owned()
        };
        self.programs.push(Program { pid, name });
        (self.programs.len() - 1) as u32
    }

    /// The process runs another program: addresses mean something else from now on. Its stacks are
    /// kept under the name that the process, of this number, has now, if it is given.
    pub fn begin_program(&mut self, of: ProcessIndex, renamed: Option<(u32, &str)>) {
        if of.0 as usize >= self.processes.len() {
            return;
        }
        let program = renamed.map(|(pid, name)| self.add_program(pid, name));
        let Some(process) = self.processes.get_mut(of.0 as usize) else { return };
        self.images.begin_space(process.image_space_id);
        process.unwinder.images_changed();
        process.refresh.begin_program();
        process.files = None;
        if let Some(program) = program {
            (process.program, process.merged) = (program, None);
        }
    }

    /// The images of a process are not known: they are read as soon as a stack is walked.
    pub(super) fn forget_images_read(&mut self, of: ProcessIndex) {
        if let Some(process) = self.processes.get_mut(of.0 as usize) {
            process.refresh = ImageRefresh::default();
        }
    }

    /// A thread that was taken in as one of an [`UNSAMPLED`] process is of this one.
    pub(super) fn place_thread(&mut self, of: ProcessIndex, process: &mut dyn Observed, id: ThreadId) {
        if self.threads.get(&id).is_some_and(|account| account.process == UNSAMPLED) {
            let track = self.track(of, process, id);
            if let Some(account) = self.threads.get_mut(&id) {
                (account.process, account.track) = (of, track);
            }
        }
    }

    /// Forgets what only a process that runs needs. Its deferred samples are walked before.
    pub fn end_process(&mut self, of: ProcessIndex) {
        if let Some(process) = self.processes.get_mut(of.0 as usize) {
            let (merged, files) = (process.merged, process.files.take());
            let RecordedProcess { image_space_id, pid, program, .. } = *process;
            *process = RecordedProcess {
                merged,
                files,
                ..RecordedProcess::new(image_space_id, pid, program, &self.facts)
            };
            self.with_unwind_cache.retain(|other| *other != of);
        }
    }

    /// The entry that a thread's stacks are kept under.
    pub(super) fn track(&mut self, of: ProcessIndex, process: &mut dyn Observed, id: ThreadId) -> u32 {
        let Some(recorded) = self.processes.get_mut(of.0 as usize) else { return 0 };
        let program = recorded.program;
        if !self.options.threads {
            let tracks = &mut self.tracks;
            return *recorded.merged.get_or_insert_with(|| {
                if tracks.len() <= MAX_TRACKS {
                    tracks.push(Track { program, thread: None });
                }
                (tracks.len() - 1) as u32
            });
        }
        if self.tracks.len() < MAX_TRACKS {
            let name = process.thread_name(id).unwrap_or_default();
            self.tracks.push(Track { program, thread: Some(Thread { id: id.0, name }) });
        } else if self.tracks.len() == MAX_TRACKS {
            let name = format!("threads after the first {MAX_TRACKS}");
            self.tracks.push(Track { program, thread: Some(Thread { id: 0, name }) });
        }
        u32::try_from(self.tracks.len() - 1).unwrap_or(u32::MAX)
    }

    /// The entry of a thread at an index, if that is its own.
    pub(super) fn own_track(&mut self, track: u32, id: ThreadId) -> Option<&mut Thread> {
        let thread = self.tracks.get_mut(track as usize)?.thread.as_mut();
        thread.filter(|thread| thread.id == id.0)
    }

    /// Notes that a process is walked: where too many were, what was learned of them is forgotten.
    pub(super) fn note_walked(&mut self, of: ProcessIndex) {
        let Some(process) = self.processes.get_mut(of.0 as usize).filter(|process| !process.has_unwind_cache)
        else {
            return;
        };
        process.has_unwind_cache = true;
        self.with_unwind_cache.push(of);
        if self.with_unwind_cache.len() > MAX_UNWIND_CACHES {
            for other in self.with_unwind_cache.drain(..).filter(|other| *other != of) {
                if let Some(other) = self.processes.get_mut(other.0 as usize) {
                    other.unwinder.images_changed();
                    other.has_unwind_cache = false;
                }
            }
            self.with_unwind_cache.push(of);
        }
    }

    /// The files of processes that made code at run time, by their numbers in the images.
    pub(super) fn files(&mut self) -> Vec<(u32, Arc<dyn Files>)> {
        self.processes
            .iter_mut()
            .filter_map(|process| Some((process.image_space_id, process.files.take()?)))
            .collect()
    }
}

#[cfg(test)]
mod tests;

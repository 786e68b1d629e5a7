//! Tracks that stacks are kept under: one for each thread, or one for all threads of a program.
//!
//! Input: processes and threads as they are seen. Output: the programs and tracks of a profile, a bounded number.

use crate::recording::{Program, Root, Thread, Track};
use crate::sources::ThreadId;

/// Maximum number of separate threads and programs; later ones share an entry.
const MAX_TRACKS: usize = 65_536;

/// The programs and tracks of a recording.
pub(super) struct Tracks {
    by_thread: bool,
    programs: Vec<Program>,
    tracks: Vec<Track>,
}

impl Tracks {
    /// `by_thread`: each thread has its own track.
    pub(super) fn new(by_thread: bool) -> Tracks {
        Tracks { by_thread, programs: Vec::new(), tracks: Vec::new() }
    }

    /// Adds a program; returns its index.
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

    /// The track of a thread's stacks. `merged`: the shared track of the program's threads, if it exists; `name`
    /// is called only for a thread with its own track.
    pub(super) fn add_thread(
        &mut self,
        program: u32,
        merged: &mut Option<u32>,
        id: ThreadId,
        name: impl FnOnce() -> String,
    ) -> u32 {
        if !self.by_thread {
            return *merged.get_or_insert_with(|| {
                if self.tracks.len() <= MAX_TRACKS {
                    self.tracks.push(Track { program, thread: None });
                }
                (self.tracks.len() - 1) as u32
            });
        }
        if self.tracks.len() < MAX_TRACKS {
            self.tracks.push(Track { program, thread: Some(Thread { id: id.0, name: name() }) });
        } else if self.tracks.len() == MAX_TRACKS {
            let name = format!("threads after the first {MAX_TRACKS}");
            self.tracks.push(Track { program, thread: Some(Thread { id: 0, name }) });
        }
        u32::try_from(self.tracks.len() - 1).unwrap_or(u32::MAX)
    }

    /// The thread of a track, if the track is its own.
    pub(super) fn thread_mut(&mut self, track: u32, id: ThreadId) -> Option<&mut Thread> {
        let thread = self.tracks.get_mut(track as usize)?.thread.as_mut();
        thread.filter(|thread| thread.id == id.0)
    }

    /// The thread name of a track, if threads have tracks.
    pub(super) fn thread_name(&self, track: u32) -> Option<&str> {
        Some(&self.tracks.get(track as usize)?.thread.as_ref()?.name)
    }

    /// Sort key of roots: not the order in which they were seen, which is random.
    pub(super) fn place(&self, root: Root) -> impl Ord + use<'_> {
        let track = self.tracks.get(root.track as usize);
        let program = track.and_then(|track| self.programs.get(track.program as usize));
        let thread = track.and_then(|track| track.thread.as_ref()).map(|thread| thread.id);
        let Root { complete, fiber, waiting, .. } = root;
        (program.map(|program| (&*program.name, program.pid)), thread, fiber, waiting, !complete)
    }

    /// Programs and tracks.
    pub(super) fn into_parts(self) -> (Vec<Program>, Vec<Track>) {
        (self.programs, self.tracks)
    }
}

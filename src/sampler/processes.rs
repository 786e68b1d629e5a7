//! The recorded processes: their images and code, for walks.
//!
//! `Processes` has all, `RecordedProcess` is one, `StackGroups` says which stacks are kept together.
//!
//! Input: start, exec and exit of processes; lists of their mappings. Output: the code of a process for a walk,
//! and the files it mapped. A whole-machine recording sees thousands of processes: of exited ones only the numbers
//! are kept, and the unwind caches of processes not walked recently are dropped.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::image_refresh::ImageRefresh;
use crate::binary::{FileUser, Files};
use crate::clock::Clock;
use crate::images::{ImageView, Images, JitCode};
use crate::recording::{Program, RecordedThread, Root, StackGroup};
use crate::sources::{Observed, ThreadId};
use crate::walk::{FileFacts, Unwinder};

/// Maximum number of processes with unwind caches; some tens of kilobytes each.
const UNWIND_CACHES_MAX: usize = 256;

/// Maximum number of users kept.
const USERS_MAX: usize = 1024;

/// A file that a process mapped while it was recorded.
pub(super) struct ImageLoad {
    pub(super) pid: u32,
    /// When the mapping was seen, nanoseconds of the sampler's clock.
    pub(super) at_ns: u64,
    pub(super) path: String,
}

/// The parts of a process that a walk needs.
pub(super) struct ProcessCode<'p> {
    pub(super) images: ImageView<'p>,
    pub(super) jit: &'p mut JitCode,
    pub(super) unwinder: &'p mut Unwinder,
}

/// The processes of a recording, by index.
pub(super) struct Processes {
    images: Images,
    list: Vec<RecordedProcess>,
    /// Processes with a non-empty unwind cache.
    with_unwind_cache: Vec<ProcessIndex>,
    /// Facts that walks learned about files, shared by all processes.
    facts: FileFacts,
    loads: Vec<ImageLoad>,
    users: BTreeSet<FileUser>,
}

impl Processes {
    /// A single process with index [`FIRST`] and this program index.
    pub(super) fn new(pid: u32, program: u32) -> Processes {
        let facts = FileFacts::default();
        Processes {
            images: Images::default(),
            list: vec![RecordedProcess::new(0, pid, program, &facts)],
            with_unwind_cache: Vec::new(),
            facts,
            loads: Vec::new(),
            users: BTreeSet::new(),
        }
    }

    fn get(&self, of: ProcessIndex) -> Option<&RecordedProcess> {
        self.list.get(of.0 as usize)
    }

    fn get_mut(&mut self, of: ProcessIndex) -> Option<&mut RecordedProcess> {
        self.list.get_mut(of.0 as usize)
    }

    // ---- from its beginning to its end

    /// Adds a process with this program name; `None` if there is no room.
    pub(super) fn add(&mut self, pid: u32, name: &str, groups: &mut StackGroups) -> Option<ProcessIndex> {
        let image_space_id = self.images.begin_process()?;
        let index = ProcessIndex(u32::try_from(self.list.len()).ok()?);
        let program = groups.add_program(pid, name);
        self.list.push(RecordedProcess::new(image_space_id, pid, program, &self.facts));
        Some(index)
    }

    /// Handles an exec: addresses change their meaning. `renamed`: the process's number and new name, if its
    /// stacks are kept under a new one.
    pub(super) fn begin_program(
        &mut self,
        of: ProcessIndex,
        renamed: Option<(u32, &str)>,
        groups: &mut StackGroups,
    ) {
        let Some(process) = self.list.get_mut(of.0 as usize) else { return };
        self.images.begin_space(process.image_space_id);
        process.unwinder.images_changed();
        process.refresh.begin_program();
        process.files = None;
        if let Some((pid, name)) = renamed {
            (process.program, process.shared_group) = (groups.add_program(pid, name), None);
        }
    }

    /// Drops what only a running process needs. Its deferred samples must be walked before.
    pub(super) fn end(&mut self, of: ProcessIndex) {
        if let Some(process) = self.list.get_mut(of.0 as usize) {
            let (shared_group, files) = (process.shared_group, process.files.take());
            let RecordedProcess { image_space_id, pid, program, .. } = *process;
            *process = RecordedProcess {
                shared_group,
                files,
                ..RecordedProcess::new(image_space_id, pid, program, &self.facts)
            };
            self.with_unwind_cache.retain(|other| *other != of);
        }
    }

    /// The group of a thread's stacks.
    pub(super) fn group(
        &mut self,
        of: ProcessIndex,
        process: &mut dyn Observed,
        id: ThreadId,
        groups: &mut StackGroups,
    ) -> u32 {
        self.get_mut(of).map_or(0, |recorded| {
            let name = || process.thread_name(id).unwrap_or_default();
            groups.add_thread(recorded.program, &mut recorded.shared_group, id, name)
        })
    }

    /// The pid of a process.
    pub(super) fn pid(&self, of: ProcessIndex) -> Option<u32> {
        Some(self.get(of)?.pid)
    }

    // ---- walks

    /// Notes that a process is walked; with too many unwind caches, drops them all.
    pub(super) fn note_walked(&mut self, of: ProcessIndex) {
        let Some(process) = self.get_mut(of).filter(|process| !process.has_unwind_cache) else { return };
        process.has_unwind_cache = true;
        self.with_unwind_cache.push(of);
        if self.with_unwind_cache.len() > UNWIND_CACHES_MAX {
            for other in self.with_unwind_cache.drain(..).filter(|other| *other != of) {
                if let Some(other) = self.list.get_mut(other.0 as usize) {
                    other.unwinder.images_changed();
                    other.has_unwind_cache = false;
                }
            }
            self.with_unwind_cache.push(of);
        }
    }

    /// The code of a process, for a walk.
    pub(super) fn code(&mut self, of: ProcessIndex) -> Option<ProcessCode<'_>> {
        let RecordedProcess { image_space_id, jit, unwinder, .. } = self.list.get_mut(of.0 as usize)?;
        Some(ProcessCode { images: self.images.of(*image_space_id), jit, unwinder })
    }

    /// Says whether the red zones of a process are read after its stops.
    pub(super) fn set_red_zone_read_later(&mut self, of: ProcessIndex, later: bool) {
        if let Some(recorded) = self.get_mut(of) {
            recorded.unwinder.set_red_zone_read_later(later);
        }
    }

    // ---- images

    /// The images that a process has now.
    pub(super) fn images_of(&self, of: ProcessIndex) -> Option<ImageView<'_>> {
        Some(self.images.of(self.get(of)?.image_space_id))
    }

    /// The refresh state of a process's images.
    pub(super) fn refresh(&self, of: ProcessIndex) -> Option<&ImageRefresh> {
        self.get(of).map(|recorded| &recorded.refresh)
    }

    /// Notes that a process reported a change of its images.
    pub(super) fn note_change(&mut self, of: ProcessIndex) {
        if let Some(recorded) = self.get_mut(of) {
            recorded.refresh.note_change();
        }
    }

    /// Marks the images of a process as unread: the next walk reads them.
    pub(super) fn forget_images_read(&mut self, of: ProcessIndex) {
        if let Some(recorded) = self.get_mut(of) {
            recorded.refresh = ImageRefresh::default();
        }
    }

    /// Reads the images of a process; returns whether they changed.
    pub(super) fn read_images(
        &mut self,
        of: ProcessIndex,
        process: &mut dyn Observed,
        clock: &dyn Clock,
    ) -> bool {
        let Some(recorded) = self.list.get_mut(of.0 as usize) else { return false };
        let at_ns = clock.now_ns();
        let changed = recorded.read_images(process, &|| clock.now_ns(), &mut self.images);
        if changed {
            for user in process.files().users() {
                if self.users.len() < USERS_MAX {
                    self.users.insert(user);
                }
            }
            let load = |path| ImageLoad { pid: recorded.pid, at_ns, path };
            self.loads.extend(recorded.refresh.take_new_paths().into_iter().map(load));
        }
        changed
    }

    /// Reads the images again unless just read; returns whether they changed.
    pub(super) fn retry_images(
        &mut self,
        of: ProcessIndex,
        process: &mut dyn Observed,
        clock: &dyn Clock,
    ) -> bool {
        let now_ns = clock.now_ns();
        let may = self.refresh(of).is_some_and(|refresh| refresh.may_retry(now_ns));
        may && self.read_images(of, process, clock)
    }

    /// Files mapped by processes since the last call.
    pub(super) fn take_loads(&mut self) -> Vec<ImageLoad> {
        std::mem::take(&mut self.loads)
    }

    /// Time up to which the images are known, and the number of consecutive reads without changes.
    pub(super) fn images_read(&self, of: ProcessIndex) -> (u64, u32) {
        self.refresh(of).map_or((0, 0), |refresh| (refresh.covers_ns(), refresh.unchanged_reads()))
    }

    // ---- the end

    /// The files of processes with JIT code, by address space number.
    pub(super) fn files(&mut self) -> Vec<(u32, Arc<dyn Files>)> {
        self.list
            .iter_mut()
            .filter_map(|process| Some((process.image_space_id, process.files.take()?)))
            .collect()
    }

    /// The users as whom the processes opened files.
    pub(super) fn take_users(&mut self) -> BTreeSet<FileUser> {
        std::mem::take(&mut self.users)
    }

    /// Number of rules that walks learned about files.
    #[cfg(test)]
    pub(super) fn facts_learned(&self) -> usize {
        self.facts.len()
    }

    /// The images of all processes.
    pub(super) fn into_images(self) -> Images {
        self.images
    }
}

// ---- One recorded process: its images, its unwinder, and where its stacks are kept.

/// Index of a process in a recorder, in order of addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessIndex(pub(super) u32);

/// The process that a recorder is created with.
pub const FIRST: ProcessIndex = ProcessIndex(0);

/// Placeholder for a process without samples: nothing is kept for it.
pub(super) const UNSAMPLED: ProcessIndex = ProcessIndex(u32::MAX);

/// A recorded process: its images, its unwinder, and where its stacks are kept.
pub(super) struct RecordedProcess {
    /// Its address space in the images.
    pub(super) image_space_id: u32,
    /// Its pid.
    pub(super) pid: u32,
    /// Index of its current program.
    pub(super) program: u32,
    /// Shared group of all threads of that program, if any were sampled.
    pub(super) shared_group: Option<u32>,
    /// Code outside all images.
    pub(super) jit: JitCode,
    pub(super) refresh: ImageRefresh,
    pub(super) unwinder: Unwinder,
    /// Its files, once it has code outside all images.
    pub(super) files: Option<Arc<dyn Files>>,
    /// Whether its unwinder was used since the unwind caches were last dropped.
    pub(super) has_unwind_cache: bool,
}

impl RecordedProcess {
    pub(super) fn new(image_space_id: u32, pid: u32, program: u32, facts: &FileFacts) -> RecordedProcess {
        RecordedProcess {
            image_space_id,
            pid,
            program,
            shared_group: None,
            jit: JitCode::default(),
            refresh: ImageRefresh::default(),
            unwinder: Unwinder::new(facts),
            files: None,
            has_unwind_cache: false,
        }
    }

    /// Reads the images; returns whether they changed.
    pub(super) fn read_images(
        &mut self,
        process: &mut dyn Observed,
        now_ns: &dyn Fn() -> u64,
        images: &mut Images,
    ) -> bool {
        let changed = self.refresh.read(process, now_ns, images, self.image_space_id, &mut self.jit);
        if changed {
            self.unwinder.images_changed();
            if self.files.is_none() && self.jit.is_any() {
                self.files = Some(process.files());
            }
        }
        changed
    }
}

// ---- Groups of stacks: one for each thread, or one for all threads of a program.
//
// Input: processes and threads as they are seen. Output: the programs and groups of a profile, a bounded number.

/// Maximum number of separate threads and programs; later ones share an entry.
const GROUPS_MAX: usize = 65_536;

/// The programs and groups of a recording.
pub(super) struct StackGroups {
    by_thread: bool,
    programs: Vec<Program>,
    groups: Vec<StackGroup>,
}

impl StackGroups {
    /// `by_thread`: each thread has its own group.
    pub(super) fn new(by_thread: bool) -> StackGroups {
        StackGroups { by_thread, programs: Vec::new(), groups: Vec::new() }
    }

    /// Adds a program; returns its index.
    pub(super) fn add_program(&mut self, pid: u32, name: &str) -> u32 {
        if self.programs.len() >= GROUPS_MAX {
            return (GROUPS_MAX - 1) as u32;
        }
        let name = if self.programs.len() == GROUPS_MAX - 1 {
            format!("programs after the first {GROUPS_MAX}")
        } else {
            name.to_owned()
        };
        self.programs.push(Program { pid, name });
        (self.programs.len() - 1) as u32
    }

    /// The group of a thread's stacks. `shared_group`: the shared group of the program's threads, if it exists; `name`
    /// is called only for a thread with its own group.
    pub(super) fn add_thread(
        &mut self,
        program: u32,
        shared_group: &mut Option<u32>,
        id: ThreadId,
        name: impl FnOnce() -> String,
    ) -> u32 {
        if !self.by_thread {
            return *shared_group.get_or_insert_with(|| {
                if self.groups.len() <= GROUPS_MAX {
                    self.groups.push(StackGroup { program, thread: None });
                }
                (self.groups.len() - 1) as u32
            });
        }
        if self.groups.len() < GROUPS_MAX {
            self.groups.push(StackGroup { program, thread: Some(RecordedThread { id: id.0, name: name() }) });
        } else if self.groups.len() == GROUPS_MAX {
            let name = format!("threads after the first {GROUPS_MAX}");
            self.groups.push(StackGroup { program, thread: Some(RecordedThread { id: 0, name }) });
        }
        u32::try_from(self.groups.len() - 1).unwrap_or(u32::MAX)
    }

    /// The thread of a group, if the group is its own.
    pub(super) fn thread_mut(&mut self, group: u32, id: ThreadId) -> Option<&mut RecordedThread> {
        let thread = self.groups.get_mut(group as usize)?.thread.as_mut();
        thread.filter(|thread| thread.id == id.0)
    }

    /// The thread name of a group, if threads have groups.
    pub(super) fn thread_name(&self, group: u32) -> Option<&str> {
        Some(&self.groups.get(group as usize)?.thread.as_ref()?.name)
    }

    /// Sort key of roots: not the order in which they were seen, which is random.
    pub(super) fn sort_key(&self, root: Root) -> impl Ord + use<'_> {
        let group = self.groups.get(root.group as usize);
        let program = group.and_then(|group| self.programs.get(group.program as usize));
        let thread = group.and_then(|group| group.thread.as_ref()).map(|thread| thread.id);
        let Root { complete, fiber, waiting, .. } = root;
        (program.map(|program| (&*program.name, program.pid)), thread, fiber, waiting, !complete)
    }

    /// Programs and groups.
    pub(super) fn into_parts(self) -> (Vec<Program>, Vec<StackGroup>) {
        (self.programs, self.groups)
    }
}

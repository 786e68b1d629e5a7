//! Groups of stacks: one for each thread, or one for all threads of a program.
//!
//! Input: processes and threads as they are seen. Output: the programs and groups of a profile, a bounded number.

use crate::recording::{Program, Root, StackGroup, Thread};
use crate::sources::ThreadId;

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
            self.groups.push(StackGroup { program, thread: Some(Thread { id: id.0, name: name() }) });
        } else if self.groups.len() == GROUPS_MAX {
            let name = format!("threads after the first {GROUPS_MAX}");
            self.groups.push(StackGroup { program, thread: Some(Thread { id: 0, name }) });
        }
        u32::try_from(self.groups.len() - 1).unwrap_or(u32::MAX)
    }

    /// The thread of a group, if the group is its own.
    pub(super) fn thread_mut(&mut self, group: u32, id: ThreadId) -> Option<&mut Thread> {
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

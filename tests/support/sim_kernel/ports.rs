//! The client's port name space: send rights with user references, and send-once rights.
//!
//! A released name is reused as soon as possible, for any right, to catch a client that treats names as
//! identities. (XNU changes a generation number in the name for a while: osfmk/ipc/ipc_entry.c; nothing
//! guarantees that.)

use std::collections::BTreeMap;

/// MACH_PORT_UREFS_MAX: a count that reaches it stays there (osfmk/ipc/ipc_right.c).
pub const UREFS_PEGGED: u32 = 65_535;

/// Meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Right {
    /// Index of a task.
    Task(usize),
    /// Index of a task and of its thread.
    Thread(usize, usize),
    /// A suspension of a task by `task_suspend2`; the number distinguishes them.
    Token(usize, u64),
}

/// An entry of the name space.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub right: Right,
    pub urefs: u32,
    /// A call has reported to the client that this name is dead.
    pub told_dead: bool,
}

/// The names.
#[derive(Clone, Debug, Default)]
pub struct Names {
    entries: BTreeMap<u32, Entry>,
    by_right: BTreeMap<Right, u32>,
    free: Vec<u32>,
    made: u32,
    /// Most names at one time.
    pub peak: usize,
}

impl Names {
    /// Adds a reference to a right.
    pub fn give(&mut self, right: Right) -> u32 {
        if let Some(name) = self.by_right.get(&right) {
            let entry = self.entries.get_mut(name).expect("a name of a right");
            entry.urefs = (entry.urefs + 1).min(UREFS_PEGGED);
            return *name;
        }
        let name = self.free.pop().unwrap_or_else(|| {
            self.made += 1;
            self.made << 8 | 3
        });
        self.entries.insert(name, Entry { right, urefs: 1, told_dead: false });
        self.by_right.insert(right, name);
        self.peak = self.peak.max(self.entries.len());
        name
    }

    pub fn get(&self, name: u32) -> Option<Entry> {
        self.entries.get(&name).copied()
    }

    pub fn tell_dead(&mut self, name: u32) {
        if let Some(entry) = self.entries.get_mut(&name) {
            entry.told_dead = true;
        }
    }

    /// Removes a reference; the last one frees the name. False without such a name.
    pub fn take(&mut self, name: u32) -> bool {
        let Some(entry) = self.entries.get_mut(&name) else { return false };
        if entry.urefs == UREFS_PEGGED {
            return true;
        }
        entry.urefs -= 1;
        if entry.urefs == 0 {
            let right = entry.right;
            self.by_right.remove(&right);
            self.entries.remove(&name);
            self.free.push(name);
        }
        true
    }

    /// All names with their entries.
    pub fn all(&self) -> impl Iterator<Item = (u32, Entry)> + '_ {
        self.entries.iter().map(|(name, entry)| (*name, *entry))
    }

    /// Handles the client's death.
    pub fn clear(&mut self) {
        *self = Names { peak: self.peak, ..Names::default() };
    }
}

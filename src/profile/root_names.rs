//! The frames that stand before the code of a stack: the process, `name (id)` where threads
//! are kept apart, `[incomplete]`.
//!
//! Input: a root of a [`Saved`]. Output: texts of another table. A process has many threads, so
//! its name, which a hostile file can make as long as all names together, is looked at once.

use std::collections::HashMap;

use super::saved::{Full, Saved, StackRoot};
use super::texts::{TextId, Texts};
use super::{INCOMPLETE, shown};

/// What processes are called in a table.
#[derive(Default)]
pub(super) struct RootNames {
    processes: HashMap<TextId, TextId>,
}

impl RootNames {
    /// Calls `visit` with the names of a root, outermost first, as texts of `texts`.
    pub(super) fn of(
        &mut self,
        saved: &Saved,
        root: &StackRoot,
        texts: &mut Texts,
        mut visit: impl FnMut(TextId) -> Result<(), Full>,
    ) -> Result<(), Full> {
        let process = match self.processes.get(&root.process) {
            Some(known) => *known,
            None => {
                let new = texts.intern(&shown(saved.text(root.process)))?;
                self.processes.insert(root.process, new);
                new
            }
        };
        visit(process)?;
        if let Some((name, id)) = root.thread {
            visit(texts.intern(&thread_name(saved.text(name), id))?)?;
        }
        if root.complete { Ok(()) } else { visit(texts.intern(INCOMPLETE)?) }
    }
}

/// A thread as one frame of a line; `(18)` without a name.
pub(super) fn thread_name(name: &str, id: u64) -> String {
    shown(&format!("{name} ({id})")).into_owned()
}

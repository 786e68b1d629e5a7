//! The frames before the code of a stack: the process, `name (id)` unless threads are merged,
//! `[incomplete]`.
//!
//! Input: a root of a [`SavedProfile`]. Output: texts of another table. A process has many threads, so its
//! name, which a hostile file can make very long, is processed once.

use std::collections::HashMap;

use std::borrow::Cow;

use super::full::Full;
use super::saved::{SavedProfile, StackRoot, UNKNOWN};
use super::texts::{TextId, Texts};

/// A stack that could not be walked to its thread's root starts with this frame.
pub const INCOMPLETE: &str = "[incomplete]";

/// Names of processes in a table.
#[derive(Default)]
pub(super) struct RootNames {
    processes: HashMap<TextId, TextId>,
}

impl RootNames {
    /// Calls `visit` with the names of a root, outermost first, as texts of `texts`.
    pub(super) fn of(
        &mut self,
        saved: &SavedProfile,
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

/// A name as one frame of a folded line: `;` becomes `:`, and a blank name is `[unknown]`.
/// Invisible characters and newlines are already escaped by interning.
#[must_use]
pub fn shown(name: &str) -> Cow<'_, str> {
    let name = name.trim();
    if name.is_empty() {
        return Cow::Borrowed(UNKNOWN);
    }
    if name.contains(';') { Cow::Owned(name.replace(';', ":")) } else { Cow::Borrowed(name) }
}

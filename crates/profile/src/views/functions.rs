//! The functions of a profile with their self and total counts.
//!
//! Input: a [`SavedProfile`]. Output: one row per function and module, the most self counts first, as in `perf
//! report` and `pprof -top`. A recursive function counts once per stack; an inlined function is a function.
//! The time is linear in the nodes of the trie.

use crate::StackFrame;
use crate::escape::file_name;
use crate::saved::shown;
use crate::saved::{Full, SavedProfile};
use crate::table::{Lists, Numbered};
use crate::texts::{TextId, Texts};
use crate::trie::NodeId;

/// A row of a [`FunctionTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FunctionRow {
    /// Its name, a text of the table; the name of the process for one without frames.
    pub name: TextId,
    /// File name of its module, a text of the table; empty if not known.
    pub module: TextId,
    /// Self count: stacks that end in it.
    pub self_count: u64,
    /// Total count: stacks through it.
    pub total_count: u64,
}

/// The functions of a profile.
#[derive(Clone, Debug, Default)]
pub struct FunctionTable {
    texts: Texts,
    rows: Vec<FunctionRow>,
    total: u64,
}

impl FunctionTable {
    /// All functions of a profile; with `lines`, `function (file:line)`.
    ///
    /// # Errors
    /// [`Full`] if there are more names than fit.
    pub fn of(saved: &SavedProfile, lines: bool) -> Result<FunctionTable, Full> {
        let mut functions = Functions::of(saved, lines)?;
        functions.count(saved);
        let (texts, mut rows) = (functions.texts, functions.rows.into_items());
        rows.retain(|row| row.total_count > 0);
        let key = |row: &FunctionRow| (texts.get(row.name), texts.get(row.module));
        rows.sort_unstable_by(|a, b| {
            let heavier = (b.self_count, b.total_count).cmp(&(a.self_count, a.total_count));
            heavier.then_with(|| key(a).cmp(&key(b)))
        });
        Ok(FunctionTable { texts, rows, total: saved.total() })
    }

    /// The rows, the most self counts first.
    #[must_use]
    pub fn rows(&self) -> &[FunctionRow] {
        &self.rows
    }

    /// Counts of all stacks.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// A text of the table.
    #[must_use]
    pub fn text(&self, id: TextId) -> &str {
        self.texts.get(id)
    }
}

/// The functions of each frame of the trie.
struct Functions {
    texts: Texts,
    /// By name and module.
    rows: Numbered<(TextId, TextId), FunctionRow>,
    /// By frame of the trie: its rows, outermost first.
    of_frames: Lists<u32>,
}

impl Functions {
    fn of(saved: &SavedProfile, lines: bool) -> Result<Functions, Full> {
        let mut all =
            Functions { texts: Texts::new(), rows: Numbered::default(), of_frames: Lists::default() };
        for frame in saved.trie().frames() {
            match frame {
                StackFrame::Root(root) => {
                    let process =
                        saved.roots().get(root as usize).map_or("", |root| saved.text(root.process));
                    all.add(process, TextId::EMPTY)?;
                }
                StackFrame::Frame(frame) => {
                    let module = all.texts.intern(module_name(saved, frame))?;
                    let mut added = Ok(());
                    saved.names_of(frame, lines, &mut |name| {
                        if added.is_ok() {
                            added = all.add(name, module);
                        }
                    });
                    added?;
                }
            }
            all.of_frames.end();
        }
        Ok(all)
    }

    fn add(&mut self, name: &str, module: TextId) -> Result<(), Full> {
        let name = self.texts.intern(&shown(name))?;
        let row = FunctionRow { name, module, self_count: 0, total_count: 0 };
        self.of_frames.push(self.rows.number_with((name, module), || row));
        Ok(())
    }

    /// Adds the counts of all stacks.
    fn count(&mut self, saved: &SavedProfile) {
        let trie = saved.trie();
        // By node: the counts of all stacks through it.
        let mut subtotals: Vec<u64> =
            (0..trie.node_count() as u32).map(|node| trie.count(NodeId(node))).collect();
        trie.add_to_callers(&mut subtotals, |sum, count| *sum = sum.saturating_add(count));
        let (rows, of_frames) = (self.rows.items_mut(), &self.of_frames);
        // The rows of the stack that leads to a node, and how often each occurs in it.
        let (mut stack, mut ends): (Vec<u32>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut uses = vec![0u32; rows.len()];
        trie.children().walk(0, &mut |node, depth| {
            let Some(caller_depth) = depth.checked_sub(1) else { return };
            ends.truncate(caller_depth);
            for row in stack.drain(ends.last().copied().unwrap_or(0)..) {
                uses[row as usize] -= 1;
            }
            let here = trie.frame_of(NodeId(node)).map_or(&[][..], |frame| of_frames.get(frame.0 as usize));
            // A root is a function only if the stack ends there.
            let is_root = matches!(trie.key(NodeId(node)), Some(StackFrame::Root(_)));
            let count = trie.count(NodeId(node));
            if let Some(leaf) = here.last() {
                let leaf = &mut rows[*leaf as usize];
                leaf.self_count = leaf.self_count.saturating_add(count);
                if is_root {
                    leaf.total_count = leaf.total_count.saturating_add(count);
                }
            }
            for row in here.iter().filter(|_| !is_root) {
                let used = &mut uses[*row as usize];
                if *used == 0 {
                    let total = &mut rows[*row as usize].total_count;
                    *total = total.saturating_add(subtotals[node as usize]);
                }
                *used += 1;
                stack.push(*row);
            }
            ends.push(stack.len());
        });
    }
}

/// File name of a frame's module; empty if not known.
fn module_name(saved: &SavedProfile, frame: u32) -> &str {
    let mapping = saved.frames().get(frame as usize).and_then(|frame| frame.mapping);
    let mapping = mapping.and_then(|mapping| saved.mappings().get(mapping as usize));
    mapping.map_or("", |mapping| file_name(saved.text(mapping.path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::folded;
    use crate::{About, Function, Line, Mapping, SavedBuilder, StackRoot};

    /// `name module self total` of each function.
    fn rows(saved: &SavedProfile) -> Vec<String> {
        let table = FunctionTable::of(saved, false).expect("fits");
        let text = |row: &FunctionRow| {
            let (name, module) = (table.text(row.name), table.text(row.module));
            format!("{name} {module} {} {}", row.self_count, row.total_count)
        };
        table.rows().iter().map(text).collect()
    }

    #[test]
    fn a_recursive_function_counts_once_per_stack() {
        let text = "p;main;a;b;a 3\np;main;a 1\np;main;b;b 2\np;main;c 9\n";
        let saved = folded::read(text.as_bytes(), "a").expect("reads");
        assert_eq!(rows(&saved), ["c  9 9", "a  4 4", "b  2 5", "main  0 15"]);
    }

    #[test]
    fn a_process_without_frames_is_a_row() {
        let saved = folded::read(&b"p 5\np;main 1\n"[..], "a").expect("reads");
        assert_eq!(rows(&saved), ["p  5 5", "main  1 1"]);
    }

    #[test]
    fn modules_and_inlined_functions_have_separate_rows() {
        let mut builder = SavedBuilder::new(About::default());
        let process = builder.text("p").expect("fits");
        let root = StackRoot::of(process);
        let root = builder.root(root).expect("fits");
        let mut in_module = |path: &str, name: &str, inlined: &str, address: u64| {
            let path = builder.text(path).expect("fits");
            let mapping = Mapping { start: 0, limit: 9, file_offset: 0, path, build_id: TextId::EMPTY };
            let mapping = builder.mapping(mapping).expect("fits");
            let mut line = |name: &str| {
                let name = builder.text(name).expect("fits");
                let function = builder.function(Function { name, ..Function::default() }).expect("fits");
                Line { function, line: 1 }
            };
            let lines = [line(name), line(inlined)];
            let lines = if inlined.is_empty() { &lines[..1] } else { &lines[..] };
            let frame = builder.frame(address, Some(mapping), lines).expect("fits");
            builder.add(root, &[frame], 1 + address).expect("fits");
        };
        in_module("/lib/a.so", "f", "", 1);
        in_module("/lib/b.so", "f", "inner", 2);
        assert_eq!(rows(&builder.finish()), ["inner b.so 3 3", "f a.so 2 2", "f b.so 0 3"]);
    }

    #[test]
    fn an_empty_profile_has_none() {
        assert!(rows(&SavedProfile::default()).is_empty());
    }
}

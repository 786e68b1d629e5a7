//! Source files and instructions in a page: for the functions with the most counts, within limits.

use std::collections::BTreeMap;

use super::tables::Tables;
use crate::escape::escape_source;
use crate::profile::full::Full;
use crate::trie::NodeId;

/// Most functions with instructions in a page.
const FUNCTIONS_MAX: usize = 200;
/// Most instructions of a page.
const INSTRUCTIONS_MAX: usize = 200_000;
/// Most bytes of all source files of a page.
pub const SOURCES_BYTES_MAX: usize = 16 << 20;

/// Reads source and instructions.
pub trait CodeReader {
    /// The text of a source file, if it may be shown.
    fn source(&mut self, file: &str) -> Option<String>;

    /// The instructions of the function at a file offset in the file with a build id: offset and text of
    /// each. Empty if unavailable.
    fn instructions(&mut self, path: &str, build_id: &str, offset: u64) -> Vec<(u64, String)>;

    /// Called for a source file that was omitted for lack of room.
    fn leave_out(&mut self, file: &str);
}

/// A function with code to show.
struct HotFunction {
    function: u32,
    total: u64,
    /// An address of its own code, not of a function that it was inlined into.
    offset: u64,
}

impl Tables {
    /// Reads source and instructions of the functions, those with the most counts first.
    pub(super) fn read_code(&mut self, reader: &mut dyn CodeReader) -> Result<(), Full> {
        let functions = self.hot_functions();
        let mut left = SOURCES_BYTES_MAX;
        for hot in &functions {
            let Some(file) = self.source_of(hot.function).filter(|file| !file.is_empty()) else { continue };
            if self.code.sources.contains_key(&file) {
                continue;
            }
            let Some(text) = reader.source(&file) else { continue };
            let text = escape_source(&text).into_owned();
            match left.checked_sub(text.len()) {
                Some(rest) => {
                    left = rest;
                    self.code.sources.insert(file, text);
                }
                None => reader.leave_out(&file),
            }
        }
        let with_code = functions.iter().filter(|hot| hot.offset > 0).take(FUNCTIONS_MAX);
        for hot in with_code {
            let Some((path, build_id)) = self.library_of(hot.function) else { continue };
            let instructions = reader.instructions(&path, &build_id, hot.offset);
            if self.code.instructions.len() + instructions.len() > INSTRUCTIONS_MAX {
                break;
            }
            for (offset, text) in instructions {
                let text = self.intern(&text)?;
                self.code.instructions.push((hot.function, offset, text));
            }
        }
        Ok(())
    }

    /// Functions with counts, the hottest first.
    fn hot_functions(&self) -> Vec<HotFunction> {
        let totals = self.totals();
        let mut functions: BTreeMap<u32, HotFunction> = BTreeMap::new();
        for (node, total) in (0..).map(NodeId).zip(totals).skip(1) {
            let Some(frame) = self.frame(node).filter(|_| total > 0) else { continue };
            let hot = functions.entry(frame.function).or_insert(HotFunction {
                function: frame.function,
                total: 0,
                offset: 0,
            });
            hot.total = hot.total.saturating_add(total);
            if !frame.inlined && hot.offset == 0 {
                hot.offset = frame.address;
            }
        }
        let mut functions: Vec<HotFunction> = functions.into_values().collect();
        functions.sort_by_key(|hot| (std::cmp::Reverse(hot.total), hot.function));
        functions
    }
}

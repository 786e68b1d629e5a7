//! The exports trie of a Mach-O image: names as paths, addresses in their terminal nodes.
//!
//! Input: the bytes of the trie, hostile. Output: the exported addresses, and the name of each, built on request.
//! Not for: re-exports, thread-local variables, absolute values.
//!
//! Format: `<mach-o/loader.h>`, `EXPORT_SYMBOL_FLAGS_*`. A node is: ULEB size of its terminal data; that data
//! (ULEB flags, then values by flags); a byte with the number of edges; and for each its NUL-terminated letters
//! and the ULEB offset of the next node.

use super::NAME_BYTES_MAX;
use crate::binary::ImageBytes;
use crate::leb128::take_unsigned;

/// Limit on edges from the root to a node. Linkers branch where names differ; twenty is usual.
const DEPTH_MAX: u32 = 1024;

/// Bits of a terminal's flags for its kind; 0 is code or data at an address.
const KIND: u64 = 0x03;
/// Flag of a re-export from another library.
const REEXPORT: u64 = 0x08;

/// "No edge": the root.
const ROOT: u32 = u32::MAX;

/// One edge of a trie; together with the edges before it, a name.
#[derive(Clone, Copy, Debug)]
struct Edge {
    /// Index of the preceding edge, always lower, or [`ROOT`].
    parent: u32,
    /// Offset of its letters in the trie.
    letters: u32,
    /// Number of letters from the root to its end.
    length: u32,
}

/// The names of a trie.
#[derive(Debug)]
pub(super) struct Exports {
    trie: ImageBytes,
    edges: Vec<Edge>,
}

/// An exported symbol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Export {
    /// Offset from the start of `__TEXT`. For a function with a resolver: the offset of its stub.
    pub offset: u64,
    /// Argument for [`Exports::name`].
    pub name: u32,
}

impl Exports {
    /// Reads a trie up to malformed parts; its exports in trie order.
    pub(super) fn read(trie: &ImageBytes) -> (Exports, Vec<Export>) {
        let bytes = trie.bytes();
        let mut walk = Walk { trie: bytes, left: bytes.len(), ..Walk::default() };
        walk.pending.push(ExportNode { at: 0, edge: ROOT, depth: 0 });
        while let Some(node) = walk.pending.pop() {
            let first_child = walk.pending.len();
            if walk.node(&node).is_none() {
                break;
            }
            // The last one pushed is read first.
            walk.pending[first_child..].reverse();
        }
        walk.edges.shrink_to_fit();
        (Exports { trie: trie.clone(), edges: walk.edges }, walk.exports)
    }

    /// Drops all names, if none of the exports is used.
    pub(super) fn clear(&mut self) {
        self.edges = Vec::new();
    }

    /// The name of an export, truncated at `max_bytes`.
    pub(super) fn name(&self, name: u32, max_bytes: usize) -> Vec<u8> {
        let edge = |index: u32| self.edges.get(index as usize);
        let length = |index| edge(index).map_or(0, |edge| edge.length as usize);
        let mut out = vec![0; length(name).min(max_bytes)];
        let mut at = name;
        while let Some(Edge { parent, letters, .. }) = edge(at) {
            let (start, end) = (length(*parent), length(at).min(out.len()));
            if let Some(into) = out.get_mut(start..end) {
                let letters = *letters as usize;
                into.copy_from_slice(&self.trie.bytes()[letters..letters + into.len()]);
            }
            at = *parent;
        }
        out
    }

    /// Memory for the names, in bytes, besides the trie.
    pub(super) fn memory_bytes(&self) -> usize {
        self.edges.capacity() * size_of::<Edge>()
    }
}

/// A node to read.
#[derive(Debug)]
struct ExportNode {
    at: usize,
    edge: u32,
    depth: u32,
}

#[derive(Default)]
struct Walk<'a> {
    trie: &'a [u8],
    /// Bytes that may still be read: each belongs to one node, so a walk that reads more is in a cycle, or in
    /// overlapping nodes.
    left: usize,
    edges: Vec<Edge>,
    exports: Vec<Export>,
    pending: Vec<ExportNode>,
}

impl Walk<'_> {
    /// Reads one node; `None` if it is malformed, or the byte limit is reached.
    fn node(&mut self, node: &ExportNode) -> Option<()> {
        // A node outside the trie loses only its own names.
        let Some(rest) = self.trie.get(node.at..).filter(|rest| !rest.is_empty()) else { return Some(()) };
        let mut rest = &rest[..rest.len().min(self.left)];
        let before = rest.len();

        let terminal_bytes = usize::try_from(take_unsigned(&mut rest)?).ok()?;
        let (mut terminal, mut rest) = rest.split_at_checked(terminal_bytes)?;
        if node.edge != ROOT
            && let Some(flags) = take_unsigned(&mut terminal)
            && flags & (KIND | REEXPORT) == 0
            && let Some(offset) = take_unsigned(&mut terminal)
        {
            self.exports.push(Export { offset, name: node.edge });
        }

        let (&children, after) = rest.split_first()?;
        rest = after;
        let length = self.edges.get(node.edge as usize).map_or(0, |edge| edge.length as usize);
        for _ in 0..children {
            let letters = rest.iter().position(|&byte| byte == 0)?;
            // In the trie itself, which is longer than the remaining limit.
            let at = rest.as_ptr().addr() - self.trie.as_ptr().addr();
            rest = &rest[letters + 1..];
            let child = usize::try_from(take_unsigned(&mut rest)?).ok()?;
            // No letters: ld64 creates a separate terminal node for a name that is a prefix of another.
            let length = length + letters;
            if length > NAME_BYTES_MAX || node.depth == DEPTH_MAX {
                continue;
            }
            let edge = u32::try_from(self.edges.len()).ok()?;
            self.edges.push(Edge {
                parent: node.edge,
                letters: u32::try_from(at).ok()?,
                length: length as u32,
            });
            self.pending.push(ExportNode { at: child, edge, depth: node.depth + 1 });
        }
        self.left -= before - rest.len();
        Some(())
    }
}

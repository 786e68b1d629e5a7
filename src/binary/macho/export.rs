//! Finds one name in an exports trie.
//!
//! Input: the bytes of the trie, hostile, and the name as stored in the trie (with its underscore). Output: its
//! address. For all names at once see `symbol::table`.
//!
//! Format: `<mach-o/loader.h>`, `EXPORT_SYMBOL_FLAGS_*`.

use crate::leb128::take_unsigned;

/// Limit on edges from the root to a name: each consumes a letter of it, except in malformed tries.
const EDGES_MAX: usize = 1024;
/// Flags of re-exports and resolvers, which have no address in this image.
const NOT_HERE: u64 = 0x08 | 0x10;

/// Offset of `name` from the start of `__TEXT`; `None` if this image does not export it, or the trie is malformed
/// on the path.
#[must_use]
pub fn find(trie: &[u8], name: &[u8]) -> Option<u64> {
    let (mut at, mut rest) = (0, name);
    for _ in 0..EDGES_MAX {
        let mut node = trie.get(at..)?;
        let terminal_bytes = usize::try_from(take_unsigned(&mut node)?).ok()?;
        let (mut terminal, children) = node.split_at_checked(terminal_bytes)?;
        if rest.is_empty() {
            let flags = take_unsigned(&mut terminal)?;
            return if flags & NOT_HERE == 0 { take_unsigned(&mut terminal) } else { None };
        }
        let (count, mut children) = children.split_first()?;
        let mut next = None;
        for _ in 0..*count {
            let end = children.iter().position(|byte| *byte == 0)?;
            let (letters, after) = (&children[..end], &children[end + 1..]);
            children = after;
            let offset = take_unsigned(&mut children)?;
            if let Some(left) = rest.strip_prefix(letters) {
                next = Some((usize::try_from(offset).ok()?, left));
                break;
            }
        }
        (at, rest) = next?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `_a` at 0x10, `_ab` at 0x20, and `_x`, re-exported from another library.
    const TRIE: &[u8] = &[
        0, 1, b'_', 0, 5, // 0: the root, "_" leads to 5
        0, 2, b'a', 0, 13, b'x', 0, 24, // 5: "a", "x"
        2, 0, 0x10, 1, b'b', 0, 20, // 13: _a; "b"
        2, 0, 0x20, 0, // 20: _ab
        2, 0x08, 1, 0, // 24: _x, of another library
    ];

    #[test]
    fn names_lead_to_addresses() {
        assert_eq!(find(TRIE, b"_a"), Some(0x10));
        assert_eq!(find(TRIE, b"_ab"), Some(0x20));
        for missing in [&b"_x"[..], b"_", b"_abc", b"_y", b"", b"a"] {
            assert_eq!(find(TRIE, missing), None, "{missing:?}");
        }
    }

    #[test]
    fn malformed_tries_end_the_search() {
        for length in 0..TRIE.len() {
            assert!(find(&TRIE[..length], b"_ab").is_none_or(|found| found == 0x20), "cut at {length}");
        }
        for at in 0..TRIE.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut damaged = TRIE.to_vec();
                damaged[at] = byte;
                let _ = find(&damaged, b"_ab");
            }
        }
        // A node with an edge to itself that consumes no letter.
        assert_eq!(find(&[0, 1, 0, 0], b"_a"), None);
    }
}

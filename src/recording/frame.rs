//! The frames of recorded stacks: a root, then code by address.

use std::cmp::Ordering;

use crate::addr::LookupAvma;
use crate::trie::{FrameWords, Key, StackKey};

/// Root of a stack: its program or thread, whether stacks below reached the thread's root, and whether the
/// thread waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Root {
    /// Index into [`Recording::stack_groups`](super::Recording::stack_groups).
    pub group: u32,
    /// False for stacks that are shown under `[incomplete]`.
    pub complete: bool,
    /// True for stacks of fibers, which are shown under `[fiber]`.
    pub fiber: bool,
    /// True for stacks of a waiting thread (`--idle`).
    pub waiting: bool,
}

impl Root {
    /// The root with this [`Root::number`].
    fn of(number: u64) -> Root {
        let is_set = |bit: u64| number >> bit & 1 == 1;
        let group = (number >> 3) as u32;
        Root { group, fiber: is_set(2), waiting: is_set(1), complete: !is_set(0) }
    }

    /// Packs the root into one number with the order of roots: by group, complete before incomplete ones,
    /// then waiting ones and fibers.
    fn number(self) -> u32 {
        self.group << 3
            | u32::from(self.fiber) << 2
            | u32::from(self.waiting) << 1
            | u32::from(!self.complete)
    }
}

impl Ord for Root {
    fn cmp(&self, other: &Root) -> Ordering {
        self.number().cmp(&other.number())
    }
}

impl PartialOrd for Root {
    fn partial_cmp(&self, other: &Root) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A frame of a recorded stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Frame {
    /// The outermost frame.
    Root(Root),
    /// Code: a look-up address in one of the target's address spaces over time (a new space begins when an
    /// image is unmapped or replaced, or at `exec`).
    Code {
        /// Number of the address space.
        space: u32,
        /// Look-up address.
        address: LookupAvma,
    },
}

/// Marks a root in place of an address space number.
const ROOT: u64 = u64::MAX;

impl Key for Frame {
    #[inline]
    fn words(self) -> FrameWords {
        match self {
            Frame::Root(root) => (ROOT, root.number().into()),
            Frame::Code { space, address } => (space.into(), address.0),
        }
    }

    #[inline]
    fn of((place, number): FrameWords) -> Frame {
        match place {
            ROOT => Frame::Root(Root::of(number)),
            space => Frame::Code { space: space as u32, address: LookupAvma(number) },
        }
    }
}

impl StackKey for Frame {
    /// The root, and the number of the address space.
    type Head = (Root, u32);
    type Word = LookupAvma;

    #[inline]
    fn head((root, _): (Root, u32)) -> Frame {
        Frame::Root(root)
    }

    #[inline]
    fn word((_, space): (Root, u32), address: LookupAvma) -> Frame {
        Frame::Code { space, address }
    }

    #[inline]
    fn bits((root, space): (Root, u32)) -> u64 {
        u64::from(root.number()) << 32 | u64::from(space)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_roots_have_different_bits_sorted_by_track() {
        let mut roots = Vec::new();
        for group in [0, 1, 77] {
            for fiber in [false, true] {
                for waiting in [false, true] {
                    for complete in [true, false] {
                        roots.push(Root { group, complete, fiber, waiting });
                    }
                }
            }
        }
        assert!(roots.is_sorted());
        let bits: std::collections::BTreeSet<u64> =
            roots.iter().flat_map(|root| [Frame::bits((*root, 0)), Frame::bits((*root, 7))]).collect();
        assert_eq!(bits.len(), 2 * roots.len());
        let code =
            [(0, 0), (u32::MAX, u64::MAX)].map(|(space, at)| Frame::word((roots[0], space), LookupAvma(at)));
        for frame in roots.into_iter().map(Frame::Root).chain(code) {
            assert_eq!(Frame::of(frame.words()), frame);
        }
    }
}

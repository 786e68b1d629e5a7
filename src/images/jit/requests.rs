//! Requests of one walk for JIT code: the address whose bytes are missing, the instructions decoded, and the blocks
//! that its next conclusion depends on.
//!
//! Input: requests, through a shared reference, as the walker has one. Output: whether the walk is valid, or the
//! bytes to read before it is repeated.

use std::cell::{Cell, RefCell};

use crate::addr::Avma;
use crate::walk::NeedsBytes;

/// Bytes are read in blocks of this size, a power of two; more than a walker decodes from one address on (see
/// [`Code::note_search`](crate::walk::Code::note_search)).
pub(super) const BLOCK_BYTES: u64 = 8 << 10;
/// Most blocks that one walk reads, two at once, before it is repeated: a deep stack has code of this many functions.
pub(super) const BLOCKS_MAX: usize = 512;

/// The requests of one walk.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// An address whose bytes are missing.
    missing: Cell<Option<u64>>,
    /// Bytes that can be read were missing since the last conclusion.
    lacked: Cell<bool>,
    /// Bytes were not given since the last finding, as the walk may read no more.
    refused: Cell<bool>,
    blocks_read: usize,
    /// Instructions that may be decoded, and that were.
    budget: u64,
    spent: Cell<u64>,
    /// Something was not followed since there was no budget for it.
    is_over_budget: Cell<bool>,
    /// Blocks, by aligned address, whose bytes were given since the last finding.
    touched: RefCell<Vec<u64>>,
}

impl Requests {
    /// Begins a walk, with this budget of instructions.
    pub(super) fn begin(&mut self, budget: u64) {
        let touched = std::mem::take(&mut self.touched);
        *self = Requests { budget, touched, ..Requests::default() };
        self.touched.get_mut().clear();
    }

    /// Continues the walk, of whose stack more may be known now.
    pub(super) fn go_on(&mut self) {
        self.missing.set(None);
        self.touched.get_mut().clear();
    }

    /// Requests bytes from an address on, which are not read yet.
    pub(super) fn request(&self, at: u64) {
        if self.is_missing() {
            self.lacked.set(true);
        } else if self.blocks_read < BLOCKS_MAX {
            self.missing.set(Some(at));
            self.lacked.set(true);
        } else {
            self.refused.set(true);
        }
    }

    /// Whether bytes are missing: no others are given until they are read, since all that follows is for nothing.
    pub(super) fn is_missing(&self) -> bool {
        self.missing.get().is_some()
    }

    /// The bytes that the walk needs, if it is to be repeated with them.
    pub(super) fn missing_bytes(&self) -> Option<NeedsBytes> {
        self.missing.get().filter(|_| !self.is_over_budget.get()).map(|at| NeedsBytes(Avma(at)))
    }

    /// Notes that blocks are read.
    pub(super) fn note_read(&mut self, blocks: usize) {
        self.go_on();
        self.blocks_read += blocks;
    }

    /// Notes that bytes of a block were given.
    pub(super) fn touch(&self, at: u64) {
        let block = at & !(BLOCK_BYTES - 1);
        let mut touched = self.touched.borrow_mut();
        if touched.last() != Some(&block) {
            touched.push(block);
        }
    }

    /// Whether the current look-up had all bytes that it requested; if not, its result is void. Begins the next one.
    pub(super) fn is_whole(&self) -> bool {
        let is_whole = !self.lacked.take();
        if !is_whole {
            self.touched.borrow_mut().clear();
        }
        is_whole
    }

    /// Calls `act` with the blocks that the look-up depends on, and whether those are all.
    pub(super) fn with_dependencies(&self, act: impl FnOnce(&[u64], bool)) {
        let mut touched = self.touched.borrow_mut();
        touched.sort_unstable();
        touched.dedup();
        let is_all = !self.refused.take() && !touched.is_empty();
        act(&touched, is_all);
        touched.clear();
    }

    pub(super) fn spend(&self, instructions: u64) {
        self.spent.set(self.spent.get().saturating_add(instructions));
    }

    pub(super) fn spent(&self) -> u64 {
        self.spent.get()
    }

    pub(super) fn has_budget(&self) -> bool {
        self.spent.get() < self.budget
    }

    /// Notes that something was not followed since there was no budget for it.
    pub(super) fn note_over_budget(&self) {
        self.is_over_budget.set(true);
    }

    pub(super) fn is_over_budget(&self) -> bool {
        self.is_over_budget.get()
    }
}

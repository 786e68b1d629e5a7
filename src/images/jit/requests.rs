//! Requests of one walk for JIT code: the address of missing bytes, the number of decoded instructions, and the
//! blocks that its next conclusion depends on.
//!
//! Input: requests, through the walker's shared reference. Output: whether the walk is valid, or the bytes to read
//! before it is repeated.

use std::cell::{Cell, RefCell};

use crate::addr::Avma;
use crate::walk::NeedsBytes;

/// Bytes are read in blocks of this size, a power of two; more than a walker decodes from one address (see
/// [`Code::note_search`](crate::walk::Code::note_search)).
pub(super) const BLOCK_BYTES: u64 = 8 << 10;
/// Limit on blocks that one walk reads, two at once, before it is repeated: enough code for a deep stack.
pub(super) const BLOCKS_MAX: usize = 512;

/// The requests of one walk.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Address of the missing bytes.
    missing: Cell<Option<u64>>,
    /// Readable bytes were missing since the last conclusion.
    lacked: Cell<bool>,
    /// Bytes were withheld since the last conclusion, because the walk reached its limit of reads.
    refused: Cell<bool>,
    blocks_read: usize,
    /// Limit on decoded instructions, and their number so far.
    budget: u64,
    spent: Cell<u64>,
    /// A search was skipped because the budget was spent.
    is_over_budget: Cell<bool>,
    /// Blocks with bytes returned since the last conclusion, by aligned address.
    touched: RefCell<Vec<u64>>,
}

impl Requests {
    /// Begins a walk, with this budget of instructions.
    pub(super) fn begin(&mut self, budget: u64) {
        let touched = std::mem::take(&mut self.touched);
        *self = Requests { budget, touched, ..Requests::default() };
        self.touched.get_mut().clear();
    }

    /// Continues the walk, possibly with more of its stack.
    pub(super) fn go_on(&mut self) {
        self.missing.set(None);
        self.touched.get_mut().clear();
    }

    /// Requests bytes from an address on, which have not been read.
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

    /// Whether bytes are missing. No others are returned until they are read, since the rest of the walk is void.
    pub(super) fn is_missing(&self) -> bool {
        self.missing.get().is_some()
    }

    /// The bytes that the walk needs before it is repeated.
    pub(super) fn missing_bytes(&self) -> Option<NeedsBytes> {
        self.missing.get().filter(|_| !self.is_over_budget.get()).map(|at| NeedsBytes(Avma(at)))
    }

    /// Records that blocks were read.
    pub(super) fn note_read(&mut self, blocks: usize) {
        self.go_on();
        self.blocks_read += blocks;
    }

    /// Records that bytes of a block were returned.
    pub(super) fn touch(&self, at: u64) {
        let block = at & !(BLOCK_BYTES - 1);
        let mut touched = self.touched.borrow_mut();
        if touched.last() != Some(&block) {
            touched.push(block);
        }
    }

    /// Whether the current look-up had all bytes that it requested; if not, its result is void. Begins the next
    /// one.
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

    /// Records that a search was skipped because the budget was spent.
    pub(super) fn note_over_budget(&self) {
        self.is_over_budget.set(true);
    }

    pub(super) fn is_over_budget(&self) -> bool {
        self.is_over_budget.get()
    }
}

//! A few bytes of JIT code at an address, read during a walk. A walk that needs a block of code must be repeated,
//! which is too expensive for words that only resemble return addresses (all memory of Chez Scheme is executable).
//!
//! Input: reads of the target's memory. Output: [`Glance`]s, cached as long as conclusions on JIT code.

use std::cell::RefCell;

use hashbrown::HashMap;

use super::memory::CodeMemory;
use crate::addr::Avma;
use crate::walk::{GLANCE_BYTES, Glance};

/// Limit on cached glances.
const KEPT_MAX: usize = 1 << 14;

/// Bytes read, by address.
#[derive(Debug, Default)]
pub(super) struct Glances(RefCell<HashMap<u64, Glance>>);

impl Glances {
    /// Forgets all.
    pub(super) fn clear(&mut self) {
        self.0.get_mut().clear();
    }

    /// The bytes read at an address before.
    pub(super) fn get(&self, at: Avma) -> Option<Glance> {
        self.0.borrow().get(&at.0).copied()
    }

    /// Reads the bytes at an address.
    pub(super) fn read(&self, at: Avma, memory: &CodeMemory<'_>) -> Glance {
        let mut bytes = [0; GLANCE_BYTES];
        let len = memory.read(at, &mut bytes);
        let glance = Glance::of(bytes.get(..len).unwrap_or_default());
        let mut kept = self.0.borrow_mut();
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(at.0, glance);
        glance
    }
}

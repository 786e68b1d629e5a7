//! Rows by the paths from a function's entry, to which a call leads: what a call tells of its callee's frame (see
//! `intel/call_check.rs`). Kept, since the same calls are asked of again and again. Void when the images change.

use hashbrown::HashMap;

use crate::addr::{Avma, CodeAddress};
use crate::walk::processor::{Processor, RowOf};
use crate::walk::{Code, flow};

/// Most rows that are kept.
const ROWS_MAX: usize = 4096;

/// An entry, an address, and whether a call has just come back there.
type Key = (u64, u64, bool);

/// Rows by entry and address.
#[derive(Clone, Debug, Default)]
pub(in crate::walk) struct CallRows<P: Processor>(HashMap<Key, Option<Box<RowOf<P>>>>);

impl<P: Processor> CallRows<P> {
    pub(in crate::walk) fn clear(&mut self) {
        self.0.clear();
    }

    /// Forgets what was learned of the addresses that `is_gone` names.
    pub(in crate::walk) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.0.retain(|(_, at, _), _| !is_gone(Avma(*at)));
    }

    /// The row at `address` by the paths from `entry`.
    pub(in crate::walk) fn row(
        &mut self,
        entry: Avma,
        address: CodeAddress,
        code: &dyn Code,
    ) -> Option<&RowOf<P>> {
        let (at, returned) = (address.at(), address.is_return());
        if self.0.len() >= ROWS_MAX {
            self.0.clear();
        }
        let key = (entry.0, at.0, returned);
        if !self.0.contains_key(&key) {
            let row = flow::since_entry_on_all_paths::<P>(entry, at, returned, code);
            if !code.may_keep(at) {
                return None;
            }
            self.0.insert(key, row.map(Box::new));
        }
        self.0.get(&key)?.as_deref()
    }
}

//! Rows by the paths from a function's entry, the target of a call: they show where the callee's frame must be
//! (see `intel/call_check.rs`). Cached, since the same calls occur on most stacks. Void when the images change,
//! except for rows of files, which processes share.

use hashbrown::HashMap;

use crate::addr::{Avma, CodeAddress};
use crate::walk::image_facts::{ImageFacts, Scope};
use crate::walk::processor::{Processor, RowOf};
use crate::walk::{Code, flow};

/// Limit on cached rows.
const ROWS_MAX: usize = 4096;

/// An entry, an address, and whether a call has just returned there.
type Key = (u64, u64, bool);

/// Rows of code in files, by the distance from address to entry.
pub(in crate::walk) type SharedCallRows<P> = ImageFacts<u64, Option<Box<RowOf<P>>>>;

/// Bytes were missing: the result is not cached.
struct NotLasting;

/// Rows by entry and address.
#[derive(Clone, Debug, Default)]
pub(in crate::walk) struct CallRows<P: Processor> {
    rows: HashMap<Key, Option<Box<RowOf<P>>>>,
    shared: SharedCallRows<P>,
}

impl<P: Processor> CallRows<P> {
    pub(in crate::walk) fn new(shared: &SharedCallRows<P>) -> CallRows<P> {
        CallRows { rows: HashMap::new(), shared: shared.clone() }
    }

    pub(in crate::walk) fn clear(&mut self) {
        self.rows.clear();
    }

    /// Forgets facts about the addresses for which `is_gone` returns true.
    pub(in crate::walk) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.rows.retain(|(_, at, _), _| !is_gone(Avma(*at)));
    }

    /// The row at `address` by the paths from `entry`.
    pub(in crate::walk) fn row(
        &mut self,
        entry: Avma,
        address: CodeAddress,
        code: &dyn Code,
    ) -> Option<&RowOf<P>> {
        if self.rows.len() >= ROWS_MAX {
            self.rows.clear();
        }
        let key = (entry.0, address.at().0, address.is_return());
        if !self.rows.contains_key(&key) {
            let row = self.learn(entry, address, code).ok()?;
            self.rows.insert(key, row);
        }
        self.rows.get(&key)?.as_deref()
    }

    /// The row by the paths, if they agree.
    fn learn(
        &self,
        entry: Avma,
        address: CodeAddress,
        code: &dyn Code,
    ) -> Result<Option<Box<RowOf<P>>>, NotLasting> {
        let (at, returned) = (address.at(), address.is_return());
        let since_entry =
            |code: &dyn Code| flow::since_entry_on_all_paths::<P>(entry, at, returned, code).map(Box::new);
        let from_entry = at.0.wrapping_sub(entry.0);
        let Some(fact_key) = self.shared.key(address, code) else {
            let row = since_entry(code);
            return if code.commit_dependencies(at) { Ok(row) } else { Err(NotLasting) };
        };
        if let Some(row) = self.shared.get(&fact_key, from_entry) {
            return Ok(row);
        }
        let scope = Scope::new(code, fact_key.mapped.clone());
        let row = since_entry(&scope);
        if !code.commit_dependencies(at) {
            return Err(NotLasting);
        }
        if !scope.is_left() {
            self.shared.insert(&fact_key, from_entry, row.clone(), row.is_some());
        }
        Ok(row)
    }
}

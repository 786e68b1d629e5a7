//! Bytes in use over time, by the callers of the allocator in the table of leaks.
//!
//! Input: a heap profile of a recording. Output: areas of its
//! [history](crate::profile::inuse_history::InuseHistory), for the callers with the most bytes at some time;
//! everything else is the rest.

use std::collections::HashMap;

use crate::profile::saved::{SavedProfile, UNKNOWN};
use crate::trie::NodeId;

/// Callers with their own area: as many as there are distinguishable colors.
const AREAS: usize = 8;

impl SavedProfile {
    /// Groups the memory in use over time by this many callers of the allocator. Functions for which `skip` is true are
    /// skipped as in [`SavedProfile::leaks`].
    pub fn group_inuse(&mut self, callers: usize, skip: &dyn Fn(&str) -> bool) {
        let Some(mut history) = self.values.as_mut().and_then(|values| values.history.take()) else { return };
        let mut names: HashMap<NodeId, String> = HashMap::new();
        let own = self.own_wrappers(skip);
        for change in history.changes() {
            names.entry(change.node).or_insert_with(|| {
                let callers =
                    self.names_of_callers(change.node, callers, &|name| skip(name) || own.contains(name));
                if callers.is_empty() { UNKNOWN.to_owned() } else { callers.join(" < ") }
            });
        }
        history.set_areas(&names, AREAS);
        if let Some(values) = &mut self.values {
            values.history = Some(history);
        }
    }
}

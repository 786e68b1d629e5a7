//! Facts that a processor caches about called functions, for its rows by instructions. Only processors that follow
//! code past calls need it; the others use `()`.

use std::fmt::Debug;

/// Cached facts about called functions.
pub(in crate::walk) trait CalleeCache: Clone + Debug + Default {
    /// Facts about called functions in files, for all processes. Clones share it.
    type Shared: Clone + Debug + Default;

    /// A cache that shares its facts about files.
    fn new(shared: &Self::Shared) -> Self;

    /// Forgets facts about addresses.
    fn clear(&mut self);

    /// Begins another row, with a full budget of instructions for callees.
    fn begin_row(&mut self);

    /// Whether the last row used up its budget: with the facts cached since, the row may be more exact next time.
    fn is_exhausted(&self) -> bool;
}

impl CalleeCache for () {
    type Shared = ();

    fn new(_shared: &()) {}

    fn clear(&mut self) {}

    fn begin_row(&mut self) {}

    fn is_exhausted(&self) -> bool {
        false
    }
}

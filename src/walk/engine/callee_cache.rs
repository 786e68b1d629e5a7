//! What a processor keeps about the functions that code calls, for its rows by instructions. Only those that follow
//! code past calls need it; the others use `()`.

use std::fmt::Debug;

/// What is known about called functions, kept from row to row.
pub(in crate::walk) trait CalleeCache: Clone + Debug + Default {
    /// What is known about called functions in files, for all processes. Copies share it.
    type Shared: Clone + Debug + Default;

    /// A cache that shares what it learns about files.
    fn new(shared: &Self::Shared) -> Self;

    /// Forgets what was learned about addresses.
    fn clear(&mut self);

    /// Begins another row: the budget of instructions for callees is full again.
    fn begin_row(&mut self);

    /// Whether the last row used up its budget: with what is cached by now, the same row may be found out more exactly
    /// another time.
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

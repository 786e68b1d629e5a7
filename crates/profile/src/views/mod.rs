//! Views of a saved profile: by name in the order of folded lines and by thread, as a call tree, by function, and
//! memory in use by the callers of the allocator.

pub mod by_name;
pub mod call_tree;
pub mod functions;
pub mod leaks;

//! Views of a saved profile: by name in the order of folded lines, as a call tree, by function, by thread.

pub mod by_name;
pub mod call_tree;
pub mod functions;
pub mod leaks;

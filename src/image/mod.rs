//! The images of a process over time: which image a code address belongs to, and where in it.

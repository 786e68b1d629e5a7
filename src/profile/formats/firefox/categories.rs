//! Categories of the Firefox Profiler: what kind of code a frame is, or what a marker tells of.

/// Names and colours; the numbers below are their places in `meta.categories`.
pub(super) const CATEGORIES: [(&str, &str); 7] = [
    ("Other", "grey"),
    ("User", "yellow"),
    ("Kernel", "orange"),
    ("JIT", "magenta"),
    ("Library", "lightblue"),
    ("Event", "green"),
    ("Lost", "red"),
];
pub(super) const OTHER: u8 = 0;
pub(super) const USER: u8 = 1;
pub(super) const KERNEL: u8 = 2;
pub(super) const JIT: u8 = 3;
pub(super) const LIBRARY: u8 = 4;
pub(super) const EVENT: u8 = 5;
pub(super) const LOST: u8 = 6;

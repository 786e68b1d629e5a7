//! DWARF: addresses of one file → the functions inlined at each, and lines.
//!
//! Input: the sections of a file, hostile, and sorted addresses. Output: for each address
//! the chain of functions, outermost first. Not for: finding files (see `locate`), types,
//! variables, unwinding.
//!
//! The addresses are known before anything is read, so nothing is kept that could answer
//! other questions: each unit that has addresses is walked once, its functions are compared
//! with the addresses on the way, and the unit is forgotten. A reader that must answer any
//! address at any time (addr2line, blazesym) builds tables of all functions and all lines of
//! a unit, which is most of the time and nearly all of the memory that such readers take.
//!
//! Format: DWARF 2 to 5 (<https://dwarfstd.org>), through `gimli`.

mod budget;
mod debug;
mod index;
mod lines;
mod names;
mod split;
mod unit;
mod walk;

pub use budget::MAX_INLINED;
pub use debug::{Ask, Chain, Debug, LineInfo, Sections};
pub use index::{Index, Job};
pub use names::{Texts, TextsShared};
pub use split::SplitFiles;

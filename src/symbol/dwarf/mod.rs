//! DWARF: addresses of one file → the inlined functions at each, and lines.
//!
//! Input: the sections of a file, hostile, and sorted addresses. Output: the chain of functions at each address,
//! outermost first. Not for: finding files (see `locate`), types, variables, unwinding.
//!
//! The addresses are known in advance, so nothing else is stored: each unit with addresses is walked once,
//! comparing its functions with the addresses, and dropped. A reader that must answer any address at any time
//! (addr2line, blazesym) builds tables of all functions and lines of a unit, which takes most of its time and
//! nearly all of its memory.
//!
//! Format: DWARF 2 to 5 (<https://dwarfstd.org>), through `gimli`.

mod debug;
mod names;
mod unit;
mod walk;

pub use debug::{Chain, Debug, DwarfParts, LineInfo, Sections, SplitFiles};
pub use names::{Texts, TextsShared};
pub use unit::{INLINED_MAX, Index, Job};

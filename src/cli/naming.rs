//! Symbol options shared by the commands.

use super::args::Naming;
use crate::binary::Files;
use crate::sources::swift_demangle;
use crate::symbol;

/// Options of symbolication; debug files are opened through `files`.
pub(super) fn options(naming: Naming, files: &dyn Files) -> symbol::Options<'_> {
    let Naming { inlines, lines, style } = naming;
    let swift = swift_demangle;
    symbol::Options { inlines, lines, style, swift, files, ..symbol::Options::default() }
}

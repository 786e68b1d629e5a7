//! Symbol options shared by the commands.

use super::args::SymbolOptions;
use crate::binary::Files;
use crate::sources::swift_demangle;
use crate::symbol;

/// Options of symbolication; debug files are opened through `files`.
pub(super) fn options(symbol_options: SymbolOptions, files: &dyn Files) -> symbol::Options<'_> {
    let SymbolOptions { inlines, lines, style } = symbol_options;
    let swift = swift_demangle;
    symbol::Options { inlines, lines, style, swift, files, ..symbol::Options::default() }
}

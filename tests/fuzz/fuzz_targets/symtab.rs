//! The symbol table of a file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::addr::Svma;
use stackprof::symbol::table::SymbolTable;
use stackprof::binary::ImageBytes;

fuzz_target!(|data: &[u8]| {
    if let Ok(table) = SymbolTable::parse(&ImageBytes::new(data.to_vec())) {
        for address in (0..4096).map(|index| Svma(index * 16)) {
            let _ = table.lookup(address);
        }
    }
});

//! An object file that a JIT compiler registered: linked, and read as an executable is.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::addr::Svma;
use stackprof::binary::cfi::Cfi;
use stackprof::binary::elf::{Elf, functions::Functions, relocated_object};

fuzz_target!(|data: &[u8]| {
    let Some(linked) = relocated_object::link(data.to_vec()) else { return };
    let _ = Elf::parse(&linked.bytes);
    let functions = Functions::read(&linked.bytes);
    let cfi = Cfi::find(&linked.bytes);
    for range in linked.code {
        let _ = functions.at(Svma(range.start.0), &linked.bytes);
        let _ = cfi.as_ref().and_then(|cfi| cfi.any_row(&linked.bytes, Svma(range.start.0)));
    }
});

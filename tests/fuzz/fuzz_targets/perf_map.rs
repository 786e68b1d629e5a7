//! The map of a JIT compiler.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::symbol::jit;

fuzz_target!(|data: &[u8]| {
    let wanted: Vec<u64> = (0..256).map(|index| index * 256).collect();
    let _ = jit::names(data, &wanted);
});

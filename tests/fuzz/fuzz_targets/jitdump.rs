//! The dump of a JIT compiler.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::symbol::jit;

fuzz_target!(|data: &[u8]| {
    let _ = jit::loads(data);
});

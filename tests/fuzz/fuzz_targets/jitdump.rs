//! The dump of a JIT compiler.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::symbol::jitdump;

fuzz_target!(|data: &[u8]| {
    let _ = jitdump::loads(data);
});

//! Packed bytes: zlib, zstd and xz.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::binary::unpack::{self, Packing};

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    let _ = match kind % 3 {
        0 => unpack::exact(Packing::Zlib, rest, rest.len() as u64 * 4),
        1 => unpack::exact(Packing::Zstd, rest, rest.len() as u64 * 4),
        _ => unpack::xz(rest),
    };
});

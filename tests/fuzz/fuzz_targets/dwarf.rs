//! A whole file: inlined functions and lines of addresses all over it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::symbol::{Options, name_addresses};
use stackprof::binary::ImageBytes;

fuzz_target!(|data: &[u8]| {
    let addresses: Vec<u64> = (0..4096).map(|index| index * 16).collect();
    let options = Options { lines: true, threads: 1, ..Options::default() };
    let _ = name_addresses("/a", ImageBytes::new(data.to_vec()), &addresses, &options);
});

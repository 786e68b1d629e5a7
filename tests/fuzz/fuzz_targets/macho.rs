//! A Mach-O file for one processor or several: symbols, function bounds, stubs, debug map.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::binary::macho::{self, CPU_ARM64, MachO, function_starts};
use stackprof::symbol::{Options, name_addresses};
use stackprof::binary::ImageBytes;

fuzz_target!(|data: &[u8]| {
    let _ = macho::slices(data);
    let bytes = ImageBytes::new(data.to_vec());
    let wanted = macho::ImageIdentity { uuid: None, cpu_type: CPU_ARM64, cpu_subtype: 0 };
    let Ok(bytes) = macho::choose(&bytes, &wanted) else { return };
    let Ok(macho) = MachO::parse(bytes.bytes()) else { return };
    let _ = function_starts(data, macho.text.start).take(4096).count();
    let start = macho.text.start.0;
    let addresses: Vec<u64> = (0..4096).map(|index| start.wrapping_add(index * 8)).collect();
    let options = Options { lines: true, threads: 1, ..Options::default() };
    let _ = name_addresses("/a", bytes, &addresses, &options);
});

//! The unwind information of a Mach-O image, as a section and as part of a file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::addr::Svma;
use stackprof::binary::macho::MachO;
use stackprof::binary::macho::unwind::Unwind;
use stackprof::binary::macho::unwind;
use stackprof::binary::ImageBytes;

fuzz_target!(|data: &[u8]| {
    for offset in (0..1024).map(|index| index * 16) {
        if let Some(entry) = unwind::find(data, offset) {
            let _ = (unwind::x86_64(entry.encoding, data), unwind::arm64(entry.encoding));
        }
    }
    let Ok(macho) = MachO::parse(data) else { return };
    let Some(unwind) = Unwind::find(&macho) else { return };
    let bytes = ImageBytes::new(data.to_vec());
    for offset in (0..1024).map(|index| index * 16) {
        let _ = unwind.body(&macho, &bytes, Svma(macho.text.start.0.wrapping_add(offset)));
    }
});

//! Descriptions of a gdb stub: documents that may include each other, and the layout of registers that
//! they give for bytes of any length.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::arch::Arch;
use stackprof::sources::gdb::description::Description;
use stackprof::sources::gdb::description::Layout;

fuzz_target!(|data: &[u8]| {
    // The first byte says where the first document ends, and how many bytes of registers are sent.
    let Some((cut, rest)) = data.split_first() else { return };
    let (first, second) = rest.split_at(rest.len() * usize::from(*cut) / 256);
    let mut fetch = |name: &str| -> Result<Option<Vec<u8>>, String> {
        Ok(match name {
            "target.xml" => Some(first.to_vec()),
            "a.xml" => Some(second.to_vec()),
            _ => None,
        })
    };
    let Ok(Some(description)) = Description::read(&mut fetch) else { return };
    for arch in [Arch::X86_64, Arch::Aarch64, Arch::X86, Arch::Arm] {
        if let Ok(layout) = Layout::of(arch, &description) {
            let sent = vec![Some(7); usize::from(*cut) * 4];
            let _ = layout.registers(&sent, &|number| number.is_multiple_of(2).then_some(1));
            let _ = layout.beyond(sent.len());
        }
    }
});

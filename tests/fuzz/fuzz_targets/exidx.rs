//! The bytes of `.ARM.exidx` and `.ARM.extab` in an otherwise sound file of 32-bit Arm: the entry at
//! addresses all over its code.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::addr::Svma;
use stackprof::binary::exidx::Exidx;

const CODE: u32 = 0x1000;
const CODE_BYTES: u32 = 0x1000;

/// A file whose one segment, at address 0, is the input behind its headers.
fn file(content: &[u8], table_bytes: u32) -> Vec<u8> {
    let size = (116 + content.len()) as u32;
    let mut file = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x28\0".to_vec();
    let head = [1, CODE, 52, 0, 0, 52 | 32 << 16, 2, 0];
    let headers = [[0x7000_0001, 116, CODE - 0x800, 0, table_bytes, 0, 4, 4], [1, 0, CODE - 0x800 - 116, 0, size, 0, 5, 4]];
    for word in head.iter().chain(headers.as_flattened()) {
        file.extend_from_slice(&u32::to_le_bytes(*word));
    }
    file.extend_from_slice(content);
    file
}

fuzz_target!(|data: &[u8]| {
    let Some((&[low, high], content)) = data.split_first_chunk() else { return };
    let file = file(content, u16::from_le_bytes([low, high]).into());
    let Some(exidx) = Exidx::find(&file) else { return };
    for at in (CODE..CODE + CODE_BYTES).step_by(16) {
        let _ = exidx.entry(&file, Svma(at.into()));
    }
    // Anything may be one.
    if let Some(exidx) = Exidx::find(data) {
        let _ = exidx.entry(data, Svma(CODE.into()));
    }
});

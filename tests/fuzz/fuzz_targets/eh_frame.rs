//! The bytes of `.eh_frame`, `.eh_frame_hdr` and `.debug_frame` in an otherwise sound file:
//! the row at addresses all over its code.
#![no_main]

#[path = "../elf_with.rs"]
mod elf_with;

use elf_with::{TEXT_BYTES, TEXT_SVMA, elf_with, images_of};
use libfuzzer_sys::fuzz_target;
use stackprof::addr::Avma;
use stackprof::walk::Code;

fuzz_target!(|data: &[u8]| {
    let Some((kind, rest)) = data.split_first() else { return };
    let (frames, header) = match kind & 1 {
        0 => (rest, &[][..]),
        _ => rest.split_at(rest.len() * usize::from(kind >> 1) / 128),
    };
    let names = [".eh_frame", ".eh_frame_hdr", ".debug_frame"];
    let images = images_of(elf_with(&[(names[0], frames), (names[1], header), (names[2], frames)]));
    for pc in (TEXT_SVMA..TEXT_SVMA + TEXT_BYTES).step_by(16) {
        let _ = images.of(0).row(Avma(pc));
        let _ = images.of(0).frame_rule(Avma(pc));
    }
});

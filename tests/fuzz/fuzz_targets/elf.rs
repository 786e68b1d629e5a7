//! A whole ELF or Mach-O file: headers, and where its bytes and addresses belong together.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stackprof::addr::Svma;
use stackprof::binary::elf::{same_file, functions};
use stackprof::binary::object::Object;
use stackprof::symbol::sections;

fuzz_target!(|data: &[u8]| {
    let _ = sections::all(data);
    // What the tasks of a board are found by; the last name is that of fuzz.sh's seeds.
    let _ = functions::find_structures(data, &["xLIST", "tskTaskControlBlock", "seed"]);
    let _ = functions::find_variables(data, &["pxCurrentTCB", "entry"]);
    let (head, file) = data.split_at(data.len() / 2);
    let _ = same_file(head, file);
    let Ok(object) = Object::parse(data) else { return };
    let (_, _, _) = (object.base_svma(), object.build_id(), object.entry());
    for at in (0..4096).map(|index| index * 16).chain([u64::MAX, u64::MAX / 2]) {
        if let Some(offset) = object.svma_of(at).and_then(|svma| object.file_offset_of(svma)) {
            let _ = object.svma_of(offset);
        }
        let _ = object.file_offset_of(Svma(at));
    }
});

//! Code of PE files in a Linux program, as under Wine: named by exports, walked by `.pdata`, both mapped from
//! the file and read into anonymous memory.

#[path = "../../crates/unwind/src/binary/pe/build.rs"]
mod build;

use std::path::PathBuf;

use build::{File, Function, TEXT};
use tempfile::TempDir;

use crate::support::{Stack, compile, launch, record_until, sources};

/// `pe_outer`: push %rbp; push %rbx; sub $0x28,%rsp; call pe_burn; add $0x28,%rsp; pop %rbx; pop %rbp; ret,
/// padded.
const OUTER: [u8; 32] = [
    0x55, 0x53, 0x48, 0x83, 0xec, 0x28, 0xe8, 0x15, 0, 0, 0, 0x48, 0x83, 0xc4, 0x28, 0x5b, 0x5d, 0xc3, 0xcc,
    0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
];
/// `pe_burn`: push %rbp; xor %ebp,%ebp; dec %rdi; jne to the dec; pop %rbp; ret. Its caller cannot be found
/// by rbp.
const BURN: [u8; 10] = [0x55, 0x31, 0xed, 0x48, 0xff, 0xcf, 0x75, 0xfb, 0x5d, 0xc3];

fn library(dir: &TempDir, is_mappable: bool) -> PathBuf {
    let (outer, burn) = (TEXT, TEXT + OUTER.len() as u32);
    let functions = vec![
        Function { begin: outer, end: outer + 18, info: vec![1, 6, 3, 0, 6, 0x42, 2, 0x30, 1, 0x50, 0, 0] },
        Function { begin: burn, end: burn + 10, info: vec![1, 1, 1, 0, 1, 0x50, 0, 0] },
    ];
    let exports = vec![("pe_burn", burn), ("pe_outer", outer)];
    let file =
        File { code: [&OUTER[..], &BURN].concat(), functions, exports, is_mappable, ..File::default() };
    let path = dir.path().join("work.dll");
    std::fs::write(&path, file.build()).unwrap();
    path
}

#[test]
fn code_of_pe_files_has_names_and_callers() {
    let loader = compile("pe_loader", "pe_loader", &["-O1", "-fno-omit-frame-pointer"]);
    for (source, is_mappable) in
        sources().iter().flat_map(|source| [true, false].map(|mapped| (source, mapped)))
    {
        let dir = TempDir::new().unwrap();
        let library = library(&dir, is_mappable);
        let arguments = [library.as_os_str(), "150".as_ref()];
        let is_whole = |stack: &Stack| {
            let of_pe = |pair: &[String]| pair[0].ends_with("pe_outer") && pair[1].ends_with("pe_burn");
            stack.has("main") && stack.frames.windows(2).any(of_pe) && stack.is_complete()
        };
        // Until the mapping is read again, the caller is unknown, and the stack says that it is incomplete.
        let is_short = |stack: &Stack| stack.has("pe_burn") && !is_whole(stack);
        let recorded = || {
            let recorded = launch(&["--hz", "997", "--source", source], &loader, &arguments);
            recorded.check_none("wrong", |stack| is_short(stack) && stack.is_complete());
            recorded
        };
        record_until(format!("code of the library, {source}, mapped: {is_mappable}"), recorded, |recorded| {
            recorded.count(is_whole) > 10 * recorded.count(is_short)
        });
    }
}

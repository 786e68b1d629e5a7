//! capstone.

use capstone::arch::{arm, arm64, x86};
use capstone::prelude::*;
use disassemblers::{arguments, print, unknown_set};

fn main() {
    let (set, bytes, start) = arguments();
    let (built, step) = match set.as_str() {
        "x64" => (Capstone::new().x86().mode(x86::ArchMode::Mode64).build(), 1),
        "x86" => (Capstone::new().x86().mode(x86::ArchMode::Mode32).build(), 1),
        "a64" => (Capstone::new().arm64().mode(arm64::ArchMode::Arm).build(), 4),
        "a32" => (Capstone::new().arm().mode(arm::ArchMode::Arm).build(), 4),
        "t32" => (Capstone::new().arm().mode(arm::ArchMode::Thumb).build(), 2),
        _ => unknown_set(),
    };
    let capstone = built.expect("a decoder");
    print(&bytes, start, |rest, address| {
        let found = capstone.disasm_count(&rest[..rest.len().min(16)], address, 1);
        match found.as_ref().ok().and_then(|found| found.first()) {
            Some(one) => {
                let text = format!("{} {}", one.mnemonic().unwrap_or(""), one.op_str().unwrap_or(""));
                (one.bytes().len(), Some(text))
            }
            None => (step, None),
        }
    });
}

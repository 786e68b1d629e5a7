//! What the programs share: `PROGRAM SET FILE ADDRESS`, and a line for each instruction.

use std::io::{BufWriter, Write};

/// The instruction set, the bytes, and the address of the first.
pub fn arguments() -> (String, Vec<u8>, u64) {
    let words: Vec<String> = std::env::args().collect();
    let bytes = std::fs::read(&words[2]).expect("the file");
    (words[1].clone(), bytes, u64::from_str_radix(&words[3], 16).expect("an address in hex"))
}

/// The program has no such instruction set.
pub fn unknown_set() -> ! {
    std::process::exit(2)
}

/// Prints all instructions; `decode` gives length and text of the first one, or a length without text.
pub fn print(bytes: &[u8], start: u64, mut decode: impl FnMut(&[u8], u64) -> (usize, Option<String>)) {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut at = 0;
    while at < bytes.len() {
        let address = start + at as u64;
        let (length, text) = decode(&bytes[at..], address);
        writeln!(out, "{address:x}\t{length}\t{}", text.as_deref().unwrap_or("(bad)")).expect("written");
        at += length.max(1);
    }
}

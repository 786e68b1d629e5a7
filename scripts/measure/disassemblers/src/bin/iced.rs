//! iced-x86.

use disassemblers::{arguments, print, unknown_set};
use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

fn main() {
    let (set, bytes, start) = arguments();
    let bits = match set.as_str() {
        "x64" => 64,
        "x86" => 32,
        _ => unknown_set(),
    };
    let mut formatter = IntelFormatter::new();
    print(&bytes, start, |rest, address| {
        let mut decoder = Decoder::with_ip(bits, rest, address, DecoderOptions::NONE);
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return (1, None);
        }
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        (instruction.len(), Some(text))
    });
}

//! x86_64 and i386, by iced-x86: its boundaries are those of `objdump` at every instruction of a C library.

use iced_x86::{Decoder, DecoderOptions, Formatter, FormatterOutput, FormatterTextKind, IntelFormatter};

use super::Instruction;
use crate::addr::Svma;

/// The text of one instruction.
#[derive(Default)]
struct Text(String);

impl FormatterOutput for Text {
    fn write(&mut self, text: &str, _kind: FormatterTextKind) {
        self.0.push_str(text);
    }
}

/// Decodes the instructions that begin in the first `length` bytes.
pub(super) fn decode(bits: u32, code: &[u8], start: Svma, length: usize, take: &mut dyn FnMut(Instruction)) {
    let mut decoder = Decoder::with_ip(bits, code, start.0, DecoderOptions::NONE);
    let mut formatter = IntelFormatter::new();
    let options = formatter.options_mut();
    // As `objdump -M intel` writes numbers.
    options.set_hex_prefix("0x");
    options.set_hex_suffix("");
    options.set_uppercase_hex(false);
    options.set_small_hex_numbers_in_decimal(false);
    options.set_branch_leading_zeros(false);
    options.set_space_after_operand_separator(false);
    options.set_rip_relative_addresses(true);
    while decoder.can_decode() && decoder.position() < length {
        let from = decoder.position();
        let svma = Svma(start.0.wrapping_add(from as u64));
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            // One byte, and on from the next, as objdump does.
            let byte = code.get(from).copied().unwrap_or_default();
            take(Instruction { svma, bytes: vec![byte], text: format!(".byte 0x{byte:02x}") });
            if decoder.set_position(from + 1).is_err() {
                return;
            }
            decoder.set_ip(start.0.wrapping_add(from as u64 + 1));
            continue;
        }
        let mut text = Text::default();
        formatter.format(&instruction, &mut text);
        let bytes = code.get(from..decoder.position()).unwrap_or_default().to_vec();
        take(Instruction { svma, bytes, text: text.0 });
    }
}

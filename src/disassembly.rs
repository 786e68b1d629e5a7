//! Machine code as text: the instructions of a function.
//!
//! Input: the bytes of an image, hostile, and a range of stated addresses. Output: each instruction with its address,
//! its bytes and its text, or why there are none. Boundaries never depend on a decoder of Arm: A64 and A32 have four
//! bytes, T32 two or four by its first half-word. What a decoder does not know is shown as data, so that a listing
//! always covers its range. Not for: following code, which `walk` does.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

use iced_x86::{DecoderOptions, Formatter, FormatterOutput, FormatterTextKind, IntelFormatter};
use yaxpeax_arch::{AddressBase, Decoder, LengthedInstruction, U8Reader};
use yaxpeax_arm::{armv7, armv8};

use crate::addr::Svma;
use crate::binary::elf::functions::Functions;
use crate::binary::object::Object;
use crate::binary::{FormatError, ImageBytes};

/// Most bytes of code in one listing. The largest functions of real programs (interpreters, parsers) have some
/// hundred kilobytes.
pub const BYTES_MAX: u64 = 1 << 20;

/// An instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InstructionSet {
    /// AMD64 / Intel 64.
    X86_64,
    /// 32-bit programs of Intel processors.
    X86,
    /// AArch64.
    A64,
    /// 32-bit Arm, four bytes each.
    A32,
    /// 32-bit Arm, two or four bytes each (Thumb).
    T32,
}

impl InstructionSet {
    /// The name that symbol servers use: `x86_64`, `i686`, `aarch64`, `arm`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            InstructionSet::X86_64 => "x86_64",
            InstructionSet::X86 => "i686",
            InstructionSet::A64 => "aarch64",
            InstructionSet::A32 | InstructionSet::T32 => "arm",
        }
    }

    /// The lowest bits of an address that are 0 where an instruction begins.
    #[must_use]
    pub fn alignment_mask(self) -> u32 {
        match self {
            InstructionSet::X86_64 | InstructionSet::X86 => 0,
            InstructionSet::A64 | InstructionSet::A32 => 3,
            InstructionSet::T32 => 1,
        }
    }

    /// The syntax of the text: `Intel` or `ARM`.
    #[must_use]
    pub fn syntax(self) -> &'static str {
        match self {
            InstructionSet::X86_64 | InstructionSet::X86 => "Intel",
            InstructionSet::A64 | InstructionSet::A32 | InstructionSet::T32 => "ARM",
        }
    }
}

/// An instruction, or bytes that are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instruction {
    /// Its first byte.
    pub svma: Svma,
    /// Its bytes, never empty.
    pub bytes: Vec<u8>,
    /// Mnemonic and operands; targets of branches are stated addresses. Bytes that are no known instruction are
    /// `.byte`, `.short` or `.inst` with their value.
    pub text: String,
}

/// The instructions of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listing {
    /// What they are of.
    pub set: InstructionSet,
    /// By address, without a gap.
    pub instructions: Vec<Instruction>,
    /// The range was longer than [`BYTES_MAX`], or than its segment: the rest is left out.
    pub is_truncated: bool,
}

/// Why there is no listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DisassemblyError {
    /// The file is not understood.
    Format(FormatError),
    /// No decoder for this processor.
    Processor,
    /// The file has no bytes there.
    Outside(Svma),
    /// The file was written to since it was opened.
    Replaced,
}

impl fmt::Display for DisassemblyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DisassemblyError::Format(why) => why.fmt(f),
            DisassemblyError::Processor => f.write_str("no disassembler for this processor"),
            DisassemblyError::Outside(svma) => write!(f, "no code at {:#x} in the file", svma.0),
            DisassemblyError::Replaced => f.write_str("the file was overwritten meanwhile"),
        }
    }
}

impl std::error::Error for DisassemblyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            DisassemblyError::Format(why) => Some(why),
            DisassemblyError::Processor | DisassemblyError::Outside(_) | DisassemblyError::Replaced => None,
        }
    }
}

/// The instruction set at a stated address. Of 32-bit Arm the symbol of the function tells T32 from A32; without
/// one it is T32, which compilers for Armv7 write.
fn set_at(object: &Object, bytes: &[u8], svma: Svma) -> Option<InstructionSet> {
    use ::object::{elf, macho, pe};
    Some(match object {
        Object::Elf(file) => match elf::Machine(file.machine) {
            elf::EM_X86_64 => InstructionSet::X86_64,
            elf::EM_386 => InstructionSet::X86,
            elf::EM_AARCH64 => InstructionSet::A64,
            elf::EM_ARM => match Functions::read(bytes).is_t32(svma) {
                Some(false) => InstructionSet::A32,
                Some(true) | None => InstructionSet::T32,
            },
            _ => return None,
        },
        Object::MachO(file) => match macho::CpuType(file.cpu_type) {
            macho::CPU_TYPE_X86_64 => InstructionSet::X86_64,
            macho::CPU_TYPE_X86 => InstructionSet::X86,
            macho::CPU_TYPE_ARM64 => InstructionSet::A64,
            _ => return None,
        },
        Object::Pe(file) => match pe::Machine(file.machine) {
            pe::IMAGE_FILE_MACHINE_AMD64 => InstructionSet::X86_64,
            pe::IMAGE_FILE_MACHINE_I386 => InstructionSet::X86,
            pe::IMAGE_FILE_MACHINE_ARM64 => InstructionSet::A64,
            _ => return None,
        },
    })
}

/// Lists the instructions that begin in a range of stated addresses of an image.
///
/// # Errors
/// Why there are none.
pub fn list(image: &ImageBytes, range: Range<Svma>) -> Result<Listing, DisassemblyError> {
    let object = Object::parse(image.bytes()).map_err(DisassemblyError::Format)?;
    let set = set_at(&object, image.bytes(), range.start).ok_or(DisassemblyError::Processor)?;
    let start = Svma(range.start.0 & !u64::from(set.alignment_mask()));
    let asked = range.end.0.saturating_sub(start.0);
    let length = asked.min(BYTES_MAX);
    let outside = || DisassemblyError::Outside(range.start);
    let offset = object.file_offset_of(start).ok_or_else(outside)?;
    let last = length.checked_sub(1).and_then(|last| start.checked_add(last)).ok_or_else(outside)?;
    // A range that leaves its segment ends there.
    let is_whole = object.file_offset_of(last) == offset.checked_add(length - 1);
    let inside = if is_whole { length } else { bytes_in_segment(&object, start, length) };
    let code = image.from_offset(offset);
    // The last instruction may begin in the range and end behind it.
    let inside = usize::try_from(inside).unwrap_or(usize::MAX).min(code.len());
    if inside == 0 {
        return Err(outside());
    }
    let mut instructions = Vec::new();
    let rest = &code[..code.len().min(inside + LOOKAHEAD_BYTES)];
    decode(set, rest, start, inside, &mut |instruction| instructions.push(instruction));
    image.unchanged().map_err(|_| DisassemblyError::Replaced)?;
    Ok(Listing { set, instructions, is_truncated: (inside as u64) < asked })
}

/// Bytes behind the range that its last instruction may have: the longest x86 instruction (15; Intel 64 manual,
/// 2.3.11), minus one.
const LOOKAHEAD_BYTES: usize = 14;

/// How many bytes from an address on are in its segment, at most `length`, which are too many.
fn bytes_in_segment(object: &Object, start: Svma, length: u64) -> u64 {
    let offset = object.file_offset_of(start);
    let is_inside = |bytes: u64| {
        let at = start.checked_add(bytes).and_then(|at| object.file_offset_of(at));
        at.is_some() && at == offset.and_then(|offset| offset.checked_add(bytes))
    };
    let (mut inside, mut outside) = (0, length);
    while outside - inside > 1 {
        let middle = inside + (outside - inside) / 2;
        if is_inside(middle) { inside = middle } else { outside = middle }
    }
    inside + 1
}

/// Decodes the instructions that begin in the first `length` bytes; they are handed over in order.
pub fn decode(
    set: InstructionSet,
    code: &[u8],
    start: Svma,
    length: usize,
    take: &mut dyn FnMut(Instruction),
) {
    match set {
        InstructionSet::X86_64 => decode_intel(64, code, start, length, take),
        InstructionSet::X86 => decode_intel(32, code, start, length, take),
        InstructionSet::A64 | InstructionSet::A32 | InstructionSet::T32 => {
            decode_arm(set, code, start, length, take);
        }
    }
}

// ---- A64, A32 and T32, by yaxpeax-arm.
//
// The decoder gives the text only: it panics at some encodings that no compiler writes, and does not know others.
// Panics are caught here, without a message, and such encodings are shown as data.

/// Decodes the instructions that begin in the first `length` bytes.
fn decode_arm(
    set: InstructionSet,
    code: &[u8],
    start: Svma,
    length: usize,
    take: &mut dyn FnMut(Instruction),
) {
    let mut at = 0;
    while at < length && at < code.len() {
        let rest = &code[at..];
        let bytes = &rest[..instruction_bytes(set, rest).min(rest.len())];
        let svma = Svma(start.0.wrapping_add(at as u64));
        let text = text(set, bytes, svma).unwrap_or_else(|| data(set, bytes));
        at += bytes.len();
        take(Instruction { svma, bytes: bytes.to_vec(), text });
    }
}

/// How long the first instruction is (Arm Architecture Reference Manual, F3.1: half-words from 0b11101 on begin
/// one of four bytes).
fn instruction_bytes(set: InstructionSet, code: &[u8]) -> usize {
    match (set, code) {
        (InstructionSet::T32, [_, high, ..]) if *high < 0b1110_1000 => 2,
        _ => 4,
    }
}

/// What is no known instruction.
fn data(set: InstructionSet, bytes: &[u8]) -> String {
    match *bytes {
        [a, b, c, d] if set == InstructionSet::T32 => {
            format!(".inst.w 0x{:04x}{:04x}", u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))
        }
        [a, b, c, d] => format!(".inst 0x{:08x}", u32::from_le_bytes([a, b, c, d])),
        [a, b] => format!(".short 0x{:04x}", u16::from_le_bytes([a, b])),
        _ => {
            let digits: Vec<String> = bytes.iter().map(|byte| format!("0x{byte:02x}")).collect();
            format!(".byte {}", digits.join(", "))
        }
    }
}

/// The text of an instruction that is all of `bytes`; `None` where the decoder does not know it.
fn text(set: InstructionSet, bytes: &[u8], svma: Svma) -> Option<String> {
    let reader = &mut U8Reader::new(bytes);
    let text = quietly(|| match set {
        InstructionSet::A64 => Some(armv8::a64::InstDecoder::default().decode(reader).ok()?.to_string()),
        _ => {
            let decoder = armv7::InstDecoder::default().with_thumb_mode(set == InstructionSet::T32);
            let instruction = decoder.decode(reader).ok()?;
            let length = 0u32.wrapping_offset(instruction.len()) as usize;
            (length == bytes.len()).then(|| instruction.to_string())
        }
    })?;
    // So the decoder writes what it does not know.
    let is_known = !text.contains("??") && !text.contains("<illegal");
    let Some((before, offset)) = text.split_once('$').filter(|_| is_known) else {
        return Some(text).filter(|_| is_known);
    };
    let target = target(set, bytes, svma, before, offset)?;
    Some(format!("{before}0x{target:x}"))
}

/// The address that a branch leads to or that an instruction computes. The decoder writes it as an offset: of A64
/// from the instruction (`adrp`: from its page); what it writes of T32 depends on the encoding and is not used.
fn target(set: InstructionSet, bytes: &[u8], svma: Svma, before: &str, offset: &str) -> Option<u64> {
    match (set, bytes) {
        (InstructionSet::A64, _) => {
            let is_page = before.starts_with("adrp");
            let from = if is_page { svma.0 & !0xfff } else { svma.0 };
            let (sign, digits) = offset.split_at_checked(1)?;
            let distance = u64::from_str_radix(digits.strip_prefix("0x")?, 16).ok()?;
            match sign {
                "+" => Some(from.wrapping_add(distance)),
                "-" => Some(from.wrapping_sub(distance)),
                _ => None,
            }
        }
        (InstructionSet::A32, &[a, b, c, d]) => a32_target(u32::from_le_bytes([a, b, c, d]), svma.0 as u32),
        (InstructionSet::T32, &[a, b]) => t16_target(u16::from_le_bytes([a, b]).into(), svma.0 as u32),
        (InstructionSet::T32, &[a, b, c, d]) => {
            t32_target(u16::from_le_bytes([a, b]).into(), u16::from_le_bytes([c, d]).into(), svma.0 as u32)
        }
        _ => None,
    }
    .map(|target| if set == InstructionSet::A64 { target } else { target & 0xffff_ffff })
}

/// The lowest `bits` bits as a signed number.
fn signed(value: u32, bits: u32) -> u32 {
    let unused = 32 - bits;
    (((value << unused) as i32) >> unused) as u32
}

/// B, BL and BLX of A32 (F5.1.18, F5.1.25): 24 bits of words, from two instructions ahead.
fn a32_target(word: u32, at: u32) -> Option<u64> {
    let is_exchange = word >> 28 == 0b1111;
    let half = if is_exchange { (word >> 24 & 1) << 1 } else { 0 };
    let distance = signed((word & 0xff_ffff) << 2, 26) | half;
    (word >> 25 & 0b111 == 0b101).then(|| u64::from(at.wrapping_add(8).wrapping_add(distance)))
}

/// B (T1, T2), CBZ and CBNZ of T32: from four bytes ahead.
fn t16_target(half: u32, at: u32) -> Option<u64> {
    let distance = match half >> 11 {
        0b11010 | 0b11011 => signed((half & 0xff) << 1, 9),
        0b11100 => signed((half & 0x7ff) << 1, 12),
        0b10110 | 0b10111 if half & 0x500 == 0x100 => (half >> 9 & 1) << 6 | (half >> 3 & 0x1f) << 1,
        _ => return None,
    };
    Some(u64::from(at.wrapping_add(4).wrapping_add(distance)))
}

/// B (T3, T4), BL and BLX of T32: from four bytes ahead; BLX from there rounded down to a word.
fn t32_target(first: u32, second: u32, at: u32) -> Option<u64> {
    if first >> 11 != 0b11110 || second >> 15 != 1 {
        return None;
    }
    let sign = first >> 10 & 1;
    let (j1, j2) = (second >> 13 & 1, second >> 11 & 1);
    let from = at.wrapping_add(4);
    let far = || {
        let (i1, i2) = (!(j1 ^ sign) & 1, !(j2 ^ sign) & 1);
        signed(sign << 24 | i1 << 23 | i2 << 22 | (first & 0x3ff) << 12 | (second & 0x7ff) << 1, 25)
    };
    let near = || signed(sign << 20 | j2 << 19 | j1 << 18 | (first & 0x3f) << 12 | (second & 0x7ff) << 1, 21);
    let (from, distance) = match (second >> 14 & 1, second >> 12 & 1) {
        (0, 0) => (from, near()),
        (0, _) | (1, 1) => (from, far()),
        _ => (from & !3, far() & !3),
    };
    Some(u64::from(from.wrapping_add(distance)))
}

thread_local! {
    /// This thread decodes: what panics does so without a message.
    static DECODES: Cell<bool> = const { Cell::new(false) };
}

/// What `work` gives; `None` if it panics.
fn quietly<T>(work: impl FnOnce() -> Option<T>) -> Option<T> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !DECODES.get() {
                before(info);
            }
        }));
    });
    DECODES.set(true);
    let done = panic::catch_unwind(AssertUnwindSafe(work));
    DECODES.set(false);
    done.ok().flatten()
}

// ---- x86_64 and i386, by iced-x86: its boundaries are those of `objdump` at every instruction of a C library.

/// The text of one instruction.
#[derive(Default)]
struct Text(String);

impl FormatterOutput for Text {
    fn write(&mut self, text: &str, _kind: FormatterTextKind) {
        self.0.push_str(text);
    }
}

/// Decodes the instructions that begin in the first `length` bytes.
fn decode_intel(bits: u32, code: &[u8], start: Svma, length: usize, take: &mut dyn FnMut(Instruction)) {
    let mut decoder = iced_x86::Decoder::with_ip(bits, code, start.0, DecoderOptions::NONE);
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

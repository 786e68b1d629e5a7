//! Machine code as text: the instructions of a function.
//!
//! Input: the bytes of an image, hostile, and a range of stated addresses. Output: each instruction with its address,
//! its bytes and its text, or why there are none. Boundaries never depend on a decoder of Arm: A64 and A32 have four
//! bytes, T32 two or four by its first half-word. What a decoder does not know is shown as data, so that a listing
//! always covers its range. Not for: following code, which `walk` does.

mod arm;
mod intel;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;

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
        InstructionSet::X86_64 => intel::decode(64, code, start, length, take),
        InstructionSet::X86 => intel::decode(32, code, start, length, take),
        InstructionSet::A64 | InstructionSet::A32 | InstructionSet::T32 => {
            arm::decode(set, code, start, length, take);
        }
    }
}

//! The function table that each Go program contains for its tracebacks, stripped or not (`.gopclntab`): addresses
//! and names of functions, and the distance of the stack pointer from the return address at each instruction.
//!
//! Input: the bytes of an ELF file, hostile, and a stated address. Output: functions, and a [`Row`]. Stores only
//! the offsets of its parts. Not for: lines and inlined functions, which the table also has (the latter only
//! through runtime data at an unknown address); or Mach-O files, which keep their symbols and have code with frame
//! pointers.
//!
//! Format: Go, src/runtime/symtab.go (`pcHeader`, `_func`, `pcvalue`), src/debug/gosym/pclntab.go; versions 1.2,
//! 1.16, 1.18 and 1.20, which is the newest.

use std::ops::Range;

use hashbrown::HashMap;
use object::{Architecture, Object, ObjectSection, ObjectSymbol, RelocationTarget, SymbolKind};

use super::frame_rule::{
    AARCH64_COLUMNS, ARM_COLUMNS, COLUMNS, Cfa, Column, Columns, RETURN_ADDRESS, Row, X86_COLUMNS,
    X86_RETURN_ADDRESS,
};
use crate::addr::Svma;
use crate::leb128::take_unsigned;

/// Section names; the second in a position-independent file.
const SECTIONS: [&str; 2] = [".gopclntab", ".data.rel.ro.gopclntab"];
/// The section that C linkers merge it into in position-independent files, the mark of every Go program, and the
/// table's alignment.
const MERGED_SECTION: &str = ".data.rel.ro";
const BUILD_ID_SECTION: &str = ".note.go.buildid";
const ALIGNMENT: usize = 8;
/// Limit on steps of the stack pointer's distance read per function. Generated code has thousands.
const STEPS_MAX: u32 = 1 << 16;
/// Limits on functions with an address known from elsewhere, and on the length of their names.
const LANDMARKS_MAX: usize = 1 << 12;
const LANDMARK_BYTES_MAX: usize = 256;
/// The flag of a function without a caller (`abi.FuncFlagTopFrame`).
const TOP_FRAME: u8 = 1;
/// Minimum bytes of a table per function: its list entry and its data.
const FUNCTION_BYTES_MIN: usize = 40;

/// Header layout of a version of the table.
struct Version {
    /// The first four bytes, as a number.
    magic: u32,
    /// Number of pointer-sized words after the eight bytes common to all versions.
    words: usize,
    /// Indexes of the words with the base of function addresses, and with the offsets of names, steps and
    /// functions.
    text: Option<usize>,
    parts: Option<[usize; 3]>,
    /// Offset of the flags of a function from its entry.
    flags_at: Option<usize>,
}

/// Newest first.
const VERSIONS: [Version; 4] = [
    Version { magic: 0xffff_fff1, words: 8, text: Some(2), parts: Some([3, 6, 7]), flags_at: Some(37) },
    Version { magic: 0xffff_fff0, words: 8, text: Some(2), parts: Some([3, 6, 7]), flags_at: Some(33) },
    Version { magic: 0xffff_fffa, words: 7, text: None, parts: Some([2, 5, 6]), flags_at: Some(33) },
    Version { magic: 0xffff_fffb, words: 1, text: None, parts: None, flags_at: None },
];

/// The conventions of Go's code on a processor for finding a caller.
#[derive(Clone, Copy, Debug)]
struct Convention {
    columns: usize,
    /// By DWARF number.
    stack_pointer: u8,
    /// The column of the return address.
    returns: usize,
    /// Calls push the return address on the stack, instead of a link register that the callee stores at its stack
    /// pointer.
    pushes: bool,
}

/// Go's function table: its range in the file, and the offsets of its parts.
#[derive(Clone, Debug)]
pub struct GoFunctions {
    /// Range in the file.
    table: Range<usize>,
    /// Base of function addresses.
    text: u64,
    /// Number of functions.
    count: usize,
    /// Size of an address or offset in the list of functions, which begins at offset `functions` of the table.
    field_bytes: usize,
    functions: usize,
    /// Base of the offsets of function data, and offsets of names and steps.
    base: usize,
    names: usize,
    steps: usize,
    /// Size of a pointer, and of the shortest instruction.
    pointer_bytes: usize,
    instruction_bytes: u64,
    flags_at: Option<usize>,
    convention: Convention,
}

/// A function of a Go program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GoFunction {
    /// From its first address to that of the next function.
    pub range: Range<Svma>,
    /// Offset of its name, which is NUL-terminated, from [`GoFunctions::names`].
    pub name: u32,
    /// Offset of the steps of its stack pointer.
    steps: usize,
    /// It has no caller: threads and goroutines begin in it.
    is_top_frame: bool,
}

impl GoFunctions {
    /// Finds the table; `None` if the file has none, or one of unknown format.
    #[must_use]
    pub fn find(bytes: &[u8]) -> Option<GoFunctions> {
        let file = object::File::parse(bytes).ok()?;
        let (address, table) = place(&file, bytes)?;
        let content = bytes.get(table.clone())?;
        let (version, instruction_bytes, pointer_bytes) = head(content)?;
        let pointer_bytes = usize::from(pointer_bytes);
        let word = |index: usize| number(content, 8 + index * pointer_bytes, pointer_bytes);
        let part = |index: usize| usize::try_from(word(index)?).ok();
        let [names, steps, functions] = match version.parts {
            Some([names, steps, functions]) => [part(names)?, part(steps)?, part(functions)?],
            None => [0, 0, 0],
        };
        // 0 in a position-independent file, and in those of the newest linkers.
        let slot = |at: usize| address.wrapping_add(8 + (at * pointer_bytes) as u64);
        let text = version.text.map_or(Some(0), |at| match word(at)? {
            0 => relocated(&file, slot(at)),
            text => Some(text),
        });
        let list = if version.parts.is_some() { functions } else { 8 + version.words * pointer_bytes };
        let mut found = GoFunctions {
            text: text.unwrap_or(0),
            count: part(0)?.min(content.len() / FUNCTION_BYTES_MIN),
            field_bytes: if version.text.is_some() { 4 } else { pointer_bytes },
            functions: list,
            base: functions,
            names,
            steps,
            pointer_bytes,
            instruction_bytes: instruction_bytes.into(),
            flags_at: version.flags_at,
            convention: convention(file.architecture())?,
            table,
        };
        if text.is_none() {
            found.text = found.text_by_landmarks(bytes, &file)?;
        }
        Some(found)
    }

    /// The base of addresses, by functions with an address known from elsewhere; `None` if none is known, or if
    /// they disagree.
    fn text_by_landmarks(&self, bytes: &[u8], file: &object::File<'_>) -> Option<u64> {
        let landmarks = landmarks(file);
        let of_symbols = self.text_where(bytes, |name| landmarks.get(name).copied());
        // Valid if Go's linker created the file; otherwise the entry point is C's start code.
        of_symbols.or_else(|| self.text_where(bytes, |name| is_first(name).then(|| file.entry())))
    }

    fn text_where(&self, bytes: &[u8], place: impl Fn(&[u8]) -> Option<u64>) -> Option<u64> {
        let pool = bytes.get(self.names())?;
        let mut texts = self.iter(bytes).filter_map(|function| {
            let name = pool.get(function.name as usize..)?;
            let name = &name[..memchr::memchr(0, &name[..name.len().min(LANDMARK_BYTES_MAX)])?];
            place(name)?.checked_sub(function.range.start.0)
        });
        let text = texts.next()?;
        texts.all(|other| other == text).then_some(text)
    }

    /// Range of the file from the first function name to the end of the table.
    #[must_use]
    pub fn names(&self) -> Range<usize> {
        self.table.start.saturating_add(self.names).min(self.table.end)..self.table.end
    }

    /// The functions in the order of the table, sorted by address. `bytes` are those passed to
    /// [`GoFunctions::find`].
    pub fn iter<'a>(&'a self, bytes: &'a [u8]) -> impl Iterator<Item = GoFunction> + 'a {
        (0..self.count).filter_map(|index| self.get(bytes, index))
    }

    /// The function at a stated address.
    #[must_use]
    pub fn at(&self, bytes: &[u8], svma: Svma) -> Option<GoFunction> {
        let content = self.content(bytes)?;
        let (mut first, mut behind) = (0, self.count);
        while first < behind {
            let middle = first + (behind - first) / 2;
            match self.start(content, middle)? <= svma.0 {
                true => first = middle + 1,
                false => behind = middle,
            }
        }
        self.get(bytes, first.checked_sub(1)?).filter(|function| function.range.contains(&svma))
    }

    /// The row at an instruction; `None` outside the functions, and for the rows of another processor.
    #[must_use]
    pub fn row<C: Columns>(&self, bytes: &[u8], pc: Svma) -> Option<Row<C>> {
        let Convention { columns, stack_pointer, returns, pushes } = self.convention;
        if C::COUNT != columns {
            return None;
        }
        let function = self.at(bytes, pc)?;
        let distance = i64::from(self.distance(bytes, &function, pc)?);
        let pointer_bytes = self.pointer_bytes as i64;
        let above = if pushes { pointer_bytes } else { 0 };
        let mut row: Row<C> = Row::new(Cfa::Register(stack_pointer, distance + above));
        let column = row.columns.as_mut().get_mut(returns)?;
        if pushes {
            *column = Column::At(-pointer_bytes);
            return Some(row);
        }
        // Like Go's `.debug_frame`, including the stack pointer's column.
        if function.is_top_frame {
            *column = Column::Undefined;
        } else if distance > 0 {
            *column = Column::At(-distance);
        }
        *row.columns.as_mut().get_mut(usize::from(stack_pointer))? = Column::Is(0);
        Some(row)
    }

    /// The distance of the stack pointer below its value at the function's first instruction.
    fn distance(&self, bytes: &[u8], function: &GoFunction, pc: Svma) -> Option<i32> {
        let content = self.content(bytes)?;
        let mut steps = content.get(self.steps.checked_add(function.steps)?..)?;
        let (mut at, mut distance) = (function.range.start.0, -1_i32);
        for step in 0..STEPS_MAX {
            let change = u32::try_from(take_unsigned(&mut steps)?).ok()?;
            if change == 0 && step > 0 {
                return None;
            }
            let half = (change >> 1) as i32;
            distance = distance.checked_add(if change & 1 == 0 { half } else { !half })?;
            at = at.checked_add(take_unsigned(&mut steps)?.checked_mul(self.instruction_bytes)?)?;
            if pc.0 < at {
                return Some(distance);
            }
        }
        None
    }

    fn get(&self, bytes: &[u8], index: usize) -> Option<GoFunction> {
        let content = self.content(bytes)?;
        let (start, end) = (self.start(content, index)?, self.start(content, index + 1)?);
        let place = self.functions.checked_add((2 * index + 1).checked_mul(self.field_bytes)?)?;
        let function = usize::try_from(number(content, place, self.field_bytes)?).ok()?;
        // `entry`, `nameOff`, `args`, `deferreturn`, `pcsp`.
        let fields = self.base.checked_add(function)?.checked_add(self.field_bytes)?;
        let field = |index: usize| number(content, fields.checked_add(4 * index)?, 4);
        let (name, steps) = (u32::try_from(field(0)?).ok()?, usize::try_from(field(3)?).ok()?);
        let flags = self.flags_at.and_then(|at| content.get(fields.checked_add(at)?));
        let is_top_frame = flags.is_some_and(|flags| flags & TOP_FRAME != 0);
        (start < end).then_some(GoFunction { range: Svma(start)..Svma(end), name, steps, is_top_frame })
    }

    /// The start of a function; the index after the last one gives its end.
    fn start(&self, content: &[u8], index: usize) -> Option<u64> {
        let place = self.functions.checked_add(index.checked_mul(2 * self.field_bytes)?)?;
        self.text.checked_add(number(content, place, self.field_bytes)?)
    }

    fn content<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        bytes.get(self.table.clone())
    }
}

/// The place of the table: its stated address, its start in the file, and its latest end.
fn place(file: &object::File<'_>, bytes: &[u8]) -> Option<(u64, Range<usize>)> {
    let of = |name: &str| {
        let section = file.section_by_name(name)?;
        let (offset, size) = section.file_range()?;
        let start = usize::try_from(offset).ok()?;
        Some((section.address(), start..start.checked_add(usize::try_from(size).ok()?)?))
    };
    if let Some(found) = SECTIONS.iter().find_map(|name| of(name)) {
        return Some(found);
    }
    // Other linkers put it among data of this kind.
    file.section_by_name(BUILD_ID_SECTION)?;
    let (address, range) = of(MERGED_SECTION)?;
    let content = bytes.get(range.clone())?;
    let begins = |at: &usize| content.get(*at..).and_then(head).is_some();
    let into = (0..content.len()).step_by(ALIGNMENT).find(begins)?;
    Some((address.checked_add(into as u64)?, range.start + into..range.end))
}

/// The start of a table: its version, the size of the shortest instruction, and of a pointer.
fn head(content: &[u8]) -> Option<(&'static Version, u8, u8)> {
    let (magic, rest) = content.split_first_chunk::<4>()?;
    let version = VERSIONS.iter().find(|version| version.magic == u32::from_le_bytes(*magic))?;
    match *rest {
        [0, 0, instruction_bytes @ (1 | 2 | 4), pointer_bytes @ (4 | 8), ..] => {
            Some((version, instruction_bytes, pointer_bytes))
        }
        _ => None,
    }
}

/// The base of addresses in a position-independent file, by the relocation at `slot` of its table.
fn relocated(file: &object::File<'_>, slot: u64) -> Option<u64> {
    let (_, relocation) = file.dynamic_relocations()?.find(|(at, _)| *at == slot)?;
    let is_relative = relocation.target() == RelocationTarget::Absolute;
    is_relative.then(|| u64::try_from(relocation.addend()).ok()).flatten().filter(|text| *text > 0)
}

/// The exported functions by name, with their addresses: a program that contains C needs some of Go's.
fn landmarks<'a>(file: &object::File<'a>) -> HashMap<&'a [u8], u64> {
    let functions =
        file.dynamic_symbols().filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text);
    functions
        .filter_map(|symbol| Some((symbol.name_bytes().ok()?, symbol.address())))
        .take(LANDMARKS_MAX)
        .collect()
}

/// Whether a name is the entry point of Go programs: `_rt0_amd64_linux`, but not `_rt0_amd64` or
/// `_rt0_amd64_linux_lib` (Go, src/runtime/rt0_linux_amd64.s).
fn is_first(name: &[u8]) -> bool {
    name.strip_prefix(b"_rt0_").is_some_and(|rest| rest.iter().filter(|byte| **byte == b'_').count() == 1)
}

fn convention(of: Architecture) -> Option<Convention> {
    let (columns, stack_pointer, returns, pushes) = match of {
        Architecture::X86_64 => (COLUMNS, 7, RETURN_ADDRESS, true),
        Architecture::I386 => (X86_COLUMNS, 4, X86_RETURN_ADDRESS, true),
        Architecture::Aarch64 => (AARCH64_COLUMNS, 31, 30, false),
        Architecture::Arm => (ARM_COLUMNS, 13, 14, false),
        _ => return None,
    };
    Some(Convention { columns, stack_pointer, returns, pushes })
}

/// A number of 4 or 8 bytes.
fn number(content: &[u8], at: usize, bytes: usize) -> Option<u64> {
    let mut number = [0; 8];
    number.get_mut(..bytes)?.copy_from_slice(content.get(at..at.checked_add(bytes)?)?);
    Some(u64::from_le_bytes(number))
}

#[cfg(test)]
mod tests;

//! ELF: section headers → function symbols, one name per address.
//!
//! Input: the bytes of a file, hostile. Output: entries sorted by address, each with its end and the enclosing
//! one. Not for: look-ups, symbols in separate debug files.
//!
//! Format: System V ABI (gABI), chapter "Symbol Table"; for Go see `binary::gopclntab`.

use std::cmp::Reverse;
use std::ops::Range;

use object::elf;

use super::{Entry, NONE, OPEN_ENDED, compared_bytes, name_at};
use crate::binary::FormatError;
use crate::binary::elf::file::{File, Sections, Symbol};
use crate::binary::elf::{ARM, CodeSections};
use crate::binary::gopclntab::GoFunctions;
use crate::symbol::{Why, table};

/// The function symbols of `.symtab`, or of `.dynsym` if the former has none (stripped files), plus those in a Go
/// program's function table; and the file ranges of their names: the offset of a name continues in the second
/// range as if it followed the first.
pub(super) fn read(data: &[u8]) -> Result<(Vec<Entry>, [Range<usize>; 2]), Why> {
    let collected = collect(File::parse(data)?);
    let is_whole = collected.as_ref().is_ok_and(|collected| !collected.exported_only);
    let go = if is_whole { None } else { GoFunctions::find(data) };
    let go = go.filter(|go| go.iter(data).next().is_some());
    let SymbolSections { mut entries, strings, code, machine, exported_only } = match (collected, &go) {
        (Err(_), Some(_)) => SymbolSections::default(),
        (collected, _) => collected?,
    };
    let mut of_go = 0..0;
    if let Some(go) = go {
        of_go = go.names();
        let first = strings.len() as u64;
        entries.extend(go.iter(data).filter_map(|function| {
            let name = u32::try_from(first + u64::from(function.name)).ok()?;
            Some(Entry { start: function.range.start.0, end: function.range.end.0, name, link: 0 })
        }));
    }
    resolve(&mut entries, data.get(strings.clone()).unwrap_or_default());
    if exported_only {
        end_at_returns(&mut entries, &code, machine);
    }
    Ok((entries, [strings, of_go]))
}

/// The symbol data of a file.
#[derive(Default)]
struct SymbolSections<'a> {
    /// The function symbols, in file order.
    entries: Vec<Entry>,
    /// File range of their names.
    strings: Range<usize>,
    /// The sections with instructions, by stated address.
    code: Vec<(u64, &'a [u8])>,
    machine: u16,
    /// The file was stripped: functions that are not exported have no symbol.
    exported_only: bool,
}

fn collect(file: File<'_>) -> Result<SymbolSections<'_>, Why> {
    let sections = file.sections()?;
    let code = CodeSections::new(sections);
    let mut why = Why::NoSymbols;
    for kind in [elf::SHT_SYMTAB, elf::SHT_DYNSYM] {
        match collect_from(file, sections, kind, &code) {
            Ok((entries, strings)) if !entries.is_empty() => {
                let code = sections.iter().filter(|section| section.is_code());
                return Ok(SymbolSections {
                    entries,
                    strings,
                    code: code.map(|section| (section.svma, file.content(&section.file))).collect(),
                    machine: file.machine(),
                    exported_only: kind == elf::SHT_DYNSYM,
                });
            }
            Ok(_) => {}
            Err(error) => why = Why::from(error),
        }
    }
    Err(why)
}

fn collect_from(
    file: File<'_>,
    sections: Sections<'_>,
    kind: elf::SectionType,
    code: &CodeSections,
) -> Result<(Vec<Entry>, Range<usize>), FormatError> {
    let table = sections.symbols(kind)?;
    if table.is_empty() {
        return Ok((Vec::new(), 0..0));
    }
    let strings = table.names_at.clone()?;
    let clip = |offset| usize::try_from(offset).unwrap_or(usize::MAX).min(file.bytes.len());
    let strings = clip(strings.start)..clip(strings.end);
    let (names, is_arm) = (&file.bytes[strings.clone()], file.machine() == ARM);

    // Counted first: large tables would otherwise be copied while they grow.
    let mut entries = Vec::with_capacity(table.iter().filter(maybe_code).count());
    for (index, symbol) in table.iter().enumerate() {
        if !maybe_code(&symbol) {
            continue;
        }
        // An invalid section number loses one symbol, not the table.
        let Some(section) = table.section(index, &symbol) else { continue };
        let Symbol { name, value, bytes, kind, .. } = symbol;
        // The lowest bit of a function marks T32 ("ELF for the Arm Architecture", 5.5.3).
        let is_function = kind != elf::STT_NOTYPE;
        let start = if is_arm && is_function { value & !1 } else { value };
        let Some(section) = code.of_symbol(section, start, is_function).filter(|_| name != 0) else {
            continue;
        };
        if !is_function && is_mark(name_at(names, name, MARK_BYTES_MAX)) {
            continue;
        }
        let end = if bytes == 0 { section.end } else { start.saturating_add(bytes) };
        entries.push(Entry { start, end, name, link: rank(&symbol) });
    }
    Ok((entries, strings))
}

/// Whether a symbol's type may name code: functions, and assembly labels without `.type`.
fn maybe_code(symbol: &Symbol) -> bool {
    matches!(symbol.kind, elf::STT_FUNC | elf::STT_GNU_IFUNC | elf::STT_NOTYPE) && !symbol.is_undefined()
}

/// Whether a label is a marker for tools rather than a name of code: AArch64 mapping symbols (`$x`, `$d` and
/// `$x.anything`: "ELF for the Arm 64-bit Architecture", 5.5.4), local labels kept by an assembler (`.L`), and the
/// notes of the annobin compiler plugin at each function of Fedora's and Red Hat's packages.
pub(super) fn is_mark(name: &[u8]) -> bool {
    matches!(name, [b'$', b'a' | b'd' | b't' | b'x'] | [b'$', b'a' | b'd' | b't' | b'x', b'.', ..])
        || name.starts_with(b".L")
        || name.starts_with(b".annobin_")
}

/// Ends symbols without a size at an obvious end of their code: an exported symbol may be followed by functions
/// without a symbol, so the next symbol may be far away.
fn end_at_returns(entries: &mut [Entry], code: &[(u64, &[u8])], machine: u16) {
    for entry in entries.iter_mut().filter(|entry| entry.link & OPEN_ENDED != 0) {
        let code = code.iter().find_map(|(svma, code)| {
            let into = usize::try_from(entry.start.checked_sub(*svma)?).ok()?;
            let length = usize::try_from(entry.end - entry.start).ok()?;
            code[..into.checked_add(length)?.min(code.len())].get(into..)
        });
        if let Some(end) = code.and_then(|code| table::of(code, entry.start, machine)) {
            entry.end = end;
        }
    }
}

const UNSIZED: u32 = 1;
/// Bytes read of the name of a symbol that may be a mark; none is longer.
const MARK_BYTES_MAX: usize = 16;

/// The rank of a symbol's name for its address, lower is better: functions before labels, global before weak
/// before local, with size before without.
fn rank(symbol: &Symbol) -> u32 {
    let label = u32::from(symbol.kind == elf::STT_NOTYPE);
    let binding = match symbol.binding {
        elf::STB_GLOBAL | elf::STB_GNU_UNIQUE => 0,
        elf::STB_WEAK => 1,
        _ => 2,
    };
    label << 3 | binding << 1 | if symbol.bytes == 0 { UNSIZED } else { 0 }
}

/// Sorts the entries, chooses among aliases, sets the end of symbols without a size, and links each entry to the
/// enclosing one.
pub(super) fn resolve(entries: &mut Vec<Entry>, names: &[u8]) {
    entries.sort_unstable_by_key(|entry| (entry.start, entry.link));
    let (mut kept, mut group, mut covered_to) = (0, 0, 0);
    while group < entries.len() {
        let start = entries[group].start;
        let length = entries[group..].iter().take_while(|entry| entry.start == start).count();
        let sized = entries[group..group + length].iter().filter(|entry| entry.link & UNSIZED == 0);
        let sized_end = sized.map(|entry| entry.end).max();
        // A label without a size inside a sized function is a position in that function, not a function: gdb
        // decides in the same way.
        let keep = if sized_end.is_none() && start < covered_to {
            0
        } else {
            choose(&mut entries[group..group + length], sized_end, names)
        };
        entries.copy_within(group..group + keep, kept);
        covered_to = covered_to.max(sized_end.unwrap_or(0));
        kept += keep;
        group += length;
    }
    entries.truncate(kept);

    let mut next_start = u64::MAX;
    for index in (0..entries.len()).rev() {
        let entry = &mut entries[index];
        if entry.link & UNSIZED != 0 {
            entry.end = entry.end.min(next_start);
        }
        next_start = entry.start;
    }
    for index in 0..entries.len() {
        let mut around = (index as u32).checked_sub(1).unwrap_or(NONE);
        while around != NONE && entries[around as usize].end <= entries[index].end {
            around = entries[around as usize].link & !OPEN_ENDED;
        }
        let open_ended = if entries[index].link & UNSIZED == 0 { 0 } else { OPEN_ENDED };
        entries[index].link = around | open_ended;
    }
}

/// Moves the aliases of one address to be kept to the front, sorted by descending end, best last; returns their
/// number. More than one is kept only if the better one is shorter.
fn choose(aliases: &mut [Entry], sized_end: Option<u64>, names: &[u8]) -> usize {
    if aliases.len() > 1 {
        let bytes_max = compared_bytes(aliases.len());
        let key = |entry: &Entry| {
            let name = name_at(names, entry.name, bytes_max);
            let underscores = name.iter().take_while(|&&byte| byte == b'_').count();
            (name.is_empty(), entry.link, underscores, name.len(), name, Reverse(entry.end))
        };
        // Mostly one name is the best and none extends further: then the order of the others is irrelevant.
        let best = aliases.iter().enumerate().map(|(index, entry)| (key(entry), index)).min();
        aliases.swap(0, best.map_or(0, |(_, index)| index));
        let reach = |entry: &Entry| sized_end.filter(|_| entry.link & UNSIZED != 0).unwrap_or(entry.end);
        if aliases[1..].iter().any(|entry| reach(entry) > reach(&aliases[0])) {
            aliases.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
        }
    }
    let (mut kept, mut end) = (0, 0);
    for index in 0..aliases.len() {
        let mut entry = aliases[index];
        if let Some(sized_end) = sized_end.filter(|_| entry.link & UNSIZED != 0) {
            entry.end = sized_end;
            entry.link &= !UNSIZED;
        }
        if entry.end > end {
            end = entry.end;
            aliases[kept] = entry;
            kept += 1;
        }
    }
    aliases[..kept].reverse();
    kept
}

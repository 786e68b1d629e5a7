//! One pass over the entries of a unit: the functions at each address, including inlined ones.
//!
//! `walk` is the pass, `UnitFunctions` its result; `Lines` is one run of a unit's line program.
//!
//! Input: a unit, hostile, and the addresses in it, sorted. Output: the innermost function at each address, and
//! the parent of each function. Names are built later, for the remaining functions.

use std::sync::Arc;

use gimli::{
    AttributeSpecification, AttributeValue, DebugLineOffset, Reader as _, Section as _, UnitOffset,
    constants as c,
};
use hashbrown::HashMap;

use super::names::{Texts, text};
use super::unit::{
    Budget, Dwarf, DwarfResult, INLINED_MAX, OpenUnit, PcAttributes, Slice, TEXT_BYTES_PER_STEP, Unit,
};

/// No function.
pub(super) const NONE: u32 = u32::MAX;

/// Typical size of an entry in most files, in bytes.
const ENTRY_BYTES: u64 = 8;
/// More attributes than compilers emit per entry.
const MANY_ATTRIBUTES: usize = 32;

/// A function at some of the addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct FunctionNode {
    /// The function it is inlined in, or [`NONE`]; always an earlier one.
    pub parent: u32,
    /// Number of functions around it.
    pub depth: u32,
    /// Its entry.
    pub entry: UnitOffset,
    /// Call site in the function around it.
    pub call_file: u64,
    pub call_line: u32,
}

/// The functions at the addresses of a unit.
#[derive(Debug)]
pub(super) struct UnitFunctions {
    pub nodes: Vec<FunctionNode>,
    /// The innermost function at each address, or [`NONE`].
    pub leaf: Vec<u32>,
}

/// Walks the entries of a unit. `wanted` is sorted.
///
/// Of functions inlined in each other the inner one wins, which comes later; of several that claim an address
/// (folded by the linker) one of them.
pub(super) fn walk<'a>(
    dwarf: &Dwarf<'a>,
    unit: &Unit<'a>,
    wanted: &[u64],
    code_start: u64,
    budget: &Budget<'_>,
) -> UnitFunctions {
    let mut walk = Walk {
        dwarf,
        unit,
        wanted,
        code_start,
        budget,
        found: UnitFunctions { nodes: Vec::new(), leaf: vec![NONE; wanted.len()] },
        around: Vec::new(),
        covered: Vec::new(),
        left: wanted.len(),
        jumped: false,
    };
    // Malformed data ends the walk; earlier results are kept.
    let _ = walk.pass(true);
    // Nested functions (Fortran, Ada) were skipped together with their parents.
    if walk.jumped && walk.found.leaf.contains(&NONE) {
        walk.found = UnitFunctions { nodes: Vec::new(), leaf: vec![NONE; wanted.len()] };
        walk.around.clear();
        walk.left = wanted.len();
        let _ = walk.pass(false);
    }
    walk.found
}

struct Walk<'w, 'a, 'b> {
    dwarf: &'w Dwarf<'a>,
    unit: &'w Unit<'a>,
    wanted: &'w [u64],
    code_start: u64,
    budget: &'w Budget<'b>,
    found: UnitFunctions,
    /// The functions with addresses around the current entry: depth in the tree, node.
    around: Vec<(isize, u32)>,
    /// Addresses of the current function, as ranges of indices.
    covered: Vec<(usize, usize)>,
    /// Addresses without a function so far.
    left: usize,
    jumped: bool,
}

/// The data read from a function's entry.
#[derive(Default)]
struct FunctionEntry<'a> {
    pc: PcAttributes<'a>,
    call_file: u64,
    call_line: u32,
    sibling: Option<UnitOffset>,
}

impl<'a> Walk<'_, 'a, '_> {
    fn pass(&mut self, jump: bool) -> DwarfResult<()> {
        let mut entries = self.unit.entries_raw(None)?;
        // Depth where a jump restarts.
        let mut base = 0;
        // Once for all entries, of which there may be millions: in malicious files all units may refer to the same
        // unit of a split file.
        self.budget.spend(self.unit.header.length_including_self() as u64 / ENTRY_BYTES)?;
        while !entries.is_empty() {
            let (offset, depth) = (entries.next_offset(), base + entries.next_depth());
            let Some(abbrev) = entries.read_abbreviation()? else { continue };
            // An entry of one byte can have many attributes without data.
            if abbrev.attributes().len() > MANY_ATTRIBUTES {
                self.budget.spend(abbrev.attributes().len() as u64)?;
            }
            // At every entry: a block next to a function may contain others.
            while self.around.last().is_some_and(|(around, _)| *around >= depth) {
                self.around.pop();
            }
            // All addresses are found and no function with addresses is open: most units have types after their
            // last function.
            if self.around.is_empty() && self.left == 0 {
                return Ok(());
            }
            let specs = abbrev.attributes();
            let sibling = match abbrev.tag() {
                c::DW_TAG_subprogram | c::DW_TAG_inlined_subroutine => {
                    let inlined = abbrev.tag() == c::DW_TAG_inlined_subroutine;
                    // Inlined functions in functions without addresses are irrelevant.
                    let parent = self.around.last().map_or(NONE, |(_, node)| *node);
                    if inlined && parent == NONE {
                        entries.skip_attributes(specs)?;
                        continue;
                    }
                    let function = read(&mut entries, specs)?;
                    let parent = if inlined { parent } else { NONE };
                    if self.function(&function, offset, depth, parent)? { None } else { function.sibling }
                }
                // Skips types and similar entries if they state their length (GCC does, LLVM does not).
                tag if jump
                    && abbrev.has_children()
                    && !matches!(
                        tag,
                        c::DW_TAG_compile_unit
                            | c::DW_TAG_namespace
                            | c::DW_TAG_module
                            | c::DW_TAG_lexical_block
                    )
                    && specs.iter().any(|spec| spec.name() == c::DW_AT_sibling) =>
                {
                    read(&mut entries, specs)?.sibling
                }
                _ => {
                    entries.skip_attributes(specs)?;
                    None
                }
            };
            if let Some(sibling) = sibling.filter(|sibling| jump && *sibling > entries.next_offset()) {
                entries = self.unit.entries_raw(Some(sibling))?;
                base = depth;
                self.jumped = true;
            }
        }
        Ok(())
    }

    /// Records a function for the addresses that it covers; false if there are none.
    fn function(
        &mut self,
        function: &FunctionEntry<'a>,
        entry: UnitOffset,
        depth: isize,
        parent: u32,
    ) -> DwarfResult<bool> {
        let Walk { wanted, covered, code_start, .. } = self;
        covered.clear();
        function.pc.each(self.dwarf, self.unit, self.budget, |begin, end| {
            let first = wanted.partition_point(|address| *address < begin);
            if wanted.get(first).is_some_and(|address| *address < end) && begin >= *code_start {
                let end = first + wanted[first..].partition_point(|address| *address < end);
                covered.push((first, end));
            }
        })?;
        if self.covered.is_empty() {
            return Ok(false);
        }
        let around = self.found.nodes.get(parent as usize).map_or(0, |node| node.depth + 1);
        if around as usize >= INLINED_MAX {
            return Ok(true);
        }
        let node = self.found.nodes.len() as u32;
        let (call_file, call_line) = (function.call_file, function.call_line);
        self.found.nodes.push(FunctionNode { parent, depth: around, entry, call_file, call_line });
        for (first, end) in &self.covered {
            self.budget.spend((end - first) as u64)?;
            let leaf = &mut self.found.leaf[*first..*end];
            self.left -= leaf.iter().filter(|leaf| **leaf == NONE).count();
            leaf.fill(node);
        }
        self.around.push((depth, node));
        Ok(true)
    }
}

fn read<'a>(
    entries: &mut gimli::EntriesRaw<'_, Slice<'a>>,
    specs: &[AttributeSpecification],
) -> DwarfResult<FunctionEntry<'a>> {
    let mut found = FunctionEntry { call_file: NO_FILE, ..FunctionEntry::default() };
    for spec in specs {
        let attribute = entries.read_attribute(*spec)?;
        match attribute.name() {
            c::DW_AT_low_pc => found.pc.low = Some(attribute.value()),
            c::DW_AT_high_pc => found.pc.high = Some(attribute.value()),
            c::DW_AT_ranges => found.pc.ranges = Some(attribute.value()),
            c::DW_AT_call_file => {
                found.call_file = match attribute.value() {
                    AttributeValue::FileIndex(file) => file,
                    value => value.udata_value().unwrap_or(0),
                }
            }
            c::DW_AT_call_line => {
                found.call_line =
                    attribute.udata_value().and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
            }
            c::DW_AT_sibling => {
                if let AttributeValue::UnitRef(sibling) = attribute.value() {
                    found.sibling = Some(sibling);
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

// ---- One run of a unit's line program: the source line of each address.
//
// Does not build a table of rows: each is compared with the addresses when it is read.

type Program<'a> = gimli::IncompleteLineProgram<Slice<'a>>;

/// The line program of a unit, and the paths of its files.
pub(super) struct Lines<'l, 'a> {
    dwarf: &'l Dwarf<'a>,
    unit: &'l Unit<'a>,
    comp_dir: Option<Slice<'a>>,
    program: Option<Program<'a>>,
    budget: Budget<'l>,
    paths: HashMap<u64, Option<Arc<str>>>,
}

/// File number and line of an address.
pub(super) type Row = (u64, u32);
/// No file: from DWARF 5 on, 0 is a valid file number.
pub(super) const NO_FILE: u64 = u64::MAX;
/// No row for an address.
pub(super) const NO_ROW: Row = (NO_FILE, 0);

impl<'l, 'a> Lines<'l, 'a> {
    /// Reads the program's header.
    pub(super) fn open(dwarf: &'l Dwarf<'a>, opened: &'l OpenUnit<'a>, budget: &Budget<'l>) -> Lines<'l, 'a> {
        let unit = &opened.unit;
        let string = |value: Option<_>| value.and_then(|value| dwarf.attr_string(unit, value).ok());
        let (comp_dir, name) = (string(opened.comp_dir), string(opened.name));
        let program = opened.line.and_then(|offset| {
            // Many units of a file can refer to one program, with a long header or few rows.
            budget.spend(length_at(dwarf, offset)?).ok()?;
            dwarf.debug_line.program(offset, unit.header.address_size(), comp_dir, name).ok()
        });
        Lines { dwarf, unit, comp_dir, program, budget: *budget, paths: HashMap::new() }
    }

    /// The rows of sorted addresses; [`NO_ROW`] if there is none.
    pub(super) fn rows(&self, wanted: &[u64], code_start: u64) -> Vec<Row> {
        let mut found = vec![NO_ROW; wanted.len()];
        if let Some(program) = self.program.clone() {
            let _ = run(program, wanted, code_start, &self.budget, &mut found);
        }
        found
    }

    /// The path of a file by its number.
    pub(super) fn path(&mut self, file: u64, texts: &mut Texts<'_>) -> Option<Arc<str>> {
        if let Some(known) = self.paths.get(&file) {
            return known.clone();
        }
        let path = self.make_path(file).and_then(|path| texts.plain(&path));
        self.paths.insert(file, path.clone());
        path
    }

    fn make_path(&self, file: u64) -> Option<String> {
        let header = self.program.as_ref()?.header();
        let entry = header.file(file)?;
        let string = |value: AttributeValue<Slice<'a>>| self.dwarf.attr_string(self.unit, value).ok();
        let name = string(entry.path_name())?;
        // Before DWARF 5, directory 0 is the compilation directory and not in the table.
        let directory = match entry.directory_index() {
            0 if header.version() < 5 => None,
            _ => entry.directory(header).and_then(string),
        };
        let before = [directory, self.comp_dir].map(|before| before.map_or(0, |before| before.len()));
        let bytes = (name.len() + before[0] + before[1]) as u64;
        self.budget.spend(bytes / TEXT_BYTES_PER_STEP).ok()?;
        let mut path = text(name).into_owned();
        for before in [directory, self.comp_dir].into_iter().flatten() {
            if path.starts_with('/') || before.is_empty() {
                break;
            }
            let before = text(before);
            path = format!("{}/{path}", before.trim_end_matches('/'));
        }
        Some(path)
    }
}

/// The size of a program including its header, by the length at an offset.
fn length_at(dwarf: &Dwarf<'_>, offset: DebugLineOffset) -> Option<u64> {
    let mut rest = *dwarf.debug_line.reader();
    rest.skip(offset.0).ok()?;
    let (length, _) = rest.read_initial_length().ok()?;
    Some(length.min(rest.len()) as u64)
}

/// Runs the program. A row is valid from its address to that of the next row.
fn run(
    program: Program<'_>,
    wanted: &[u64],
    code_start: u64,
    budget: &Budget<'_>,
    found: &mut [Row],
) -> DwarfResult<()> {
    let mut rows = program.rows();
    // The previous row of the same sequence, and the first address at or after it.
    let mut before: Option<(u64, Row)> = None;
    let (mut at, mut steps) = (0, 0u32);
    while let Some((_, row)) = rows.next_row()? {
        steps += 1;
        if steps == 1024 {
            budget.spend(1024)?;
            steps = 0;
        }
        let address = row.address();
        match before {
            // A sequence begins, or is out of order.
            None => at = wanted.partition_point(|wanted| *wanted < address),
            Some((from, _)) if address < from => {
                at = wanted.partition_point(|wanted| *wanted < address);
            }
            Some((from, known)) => {
                while let Some(found) =
                    wanted.get(at).filter(|wanted| **wanted < address).and(found.get_mut(at))
                {
                    // Sequences of code that the linker dropped begin at address 0.
                    if *found == NO_ROW && from >= code_start {
                        *found = known;
                    }
                    at += 1;
                }
            }
        }
        before = (!row.end_sequence()).then(|| {
            let line = row.line().and_then(|line| u32::try_from(line.get()).ok()).unwrap_or(0);
            (address, (row.file_index(), line))
        });
    }
    Ok(())
}

//! One run of a unit's line program: the source line of each address.
//!
//! Input: a line program, hostile, and sorted addresses. Output: file and line for each. Does not build a table of
//! rows: each is compared with the addresses when it is read.

use std::sync::Arc;

use gimli::{AttributeValue, DebugLineOffset, Reader as _, Section as _};
use hashbrown::HashMap;

use super::budget::{Budget, Dwarf, Result, Slice, TEXT_BYTES_PER_STEP};
use super::names::{Texts, text};
use super::unit::{OpenUnit, Unit};

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
) -> Result<()> {
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

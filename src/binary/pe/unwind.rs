//! The function table of a PE file for x86_64 (`.pdata`): the function at an address, and its rows.
//!
//! Input: a summary and the file's bytes, hostile. Output: bounds, a [`Row`] in the body or the prologue.
//! Epilogues are not described (see [`epilogue`](super::epilogue)). By the ABI a function without an entry saves
//! nothing and calls nothing; assembly violates this, so these functions get no row.
//!
//! Format: "x64 exception handling" (Microsoft), "struct RUNTIME_FUNCTION".

use std::ops::Range;

use super::Pe;
use super::entry::Entry;
use super::unwind_info::{self, UnwindInfo};
use crate::addr::Svma;
use crate::binary::frame_rule::{CALLED_FROM_ELSEWHERE, Cfa, Column, RETURN_ADDRESS, Row};

/// Size of an entry: start, end, and address of the unwind information.
const ENTRY_BYTES: usize = 12;
/// Limit on pieces of one function that are joined.
const PIECES_MAX: usize = 256;
/// Limit on entries from a piece to its function. Compilers emit one or two.
pub(super) const CHAINED_MAX: usize = 32;
/// Flag of an entry with the address of another entry in place of unwind information.
const INDIRECT: u32 = 1;

/// The library where Windows threads start, and the functions: the second runs in a new thread before the first
/// does.
const LIBRARY: &str = "ntdll.dll";
const THREAD_STARTS: [&str; 2] = ["RtlUserThreadStart", "LdrInitializeThunk"];
/// The function called by the other side of a system call, from a separate stack.
const CALLBACK: &str = "KiUserCallbackDispatcher";
/// Functions that resume interrupted code. With rbp as their frame register they have stored a return address at
/// the interrupted code's stack pointer.
const INTERRUPTS: [&str; 2] = ["KiUserExceptionDispatcher", "KiUserApcDispatcher"];
const RBP: u8 = 6;

/// The function table of an image.
#[derive(Clone, Copy, Debug)]
pub struct Functions<'a> {
    pe: &'a Pe,
    bytes: &'a [u8],
    table: &'a [u8],
}

impl<'a> Functions<'a> {
    /// Finds the table; `None` if there is none, or the file is for another processor.
    #[must_use]
    pub fn find(pe: &'a Pe, bytes: &'a [u8]) -> Option<Functions<'a>> {
        let range = &pe.functions;
        let table = pe.bytes_at(bytes, range.start).filter(|_| pe.is_x86_64() && !range.is_empty())?;
        let table = &table[..table.len().min((range.end - range.start) as usize)];
        Some(Functions { pe, bytes, table })
    }

    /// The entry that contains a relative address.
    #[must_use]
    pub fn entry(&self, rva: u32) -> Option<Entry> {
        self.get(self.last_at(rva)?).filter(|entry| rva < entry.end)
    }

    /// The bounds of the function at a stated address.
    #[must_use]
    pub fn function(&self, at: Svma) -> Option<Range<Svma>> {
        self.last_function(at).filter(|function| function.contains(&at))
    }

    /// The bounds of the last function that begins at or before a stated address: from its first piece on, if its
    /// pieces are adjacent; else of the piece.
    #[must_use]
    pub fn last_function(&self, at: Svma) -> Option<Range<Svma>> {
        let last = self.last_at(self.pe.rva(at)?)?;
        let piece = self.get(last)?;
        let begin = self.first_piece(piece)?.begin;
        let mut start = piece;
        for index in (0..last).rev().take(PIECES_MAX) {
            if start.begin == begin {
                break;
            }
            let before = self.get(index).filter(|before| before.end == start.begin);
            match before.filter(|before| self.first_piece(*before).is_some_and(|first| first.begin == begin))
            {
                Some(before) => start = before,
                None => return Some(self.pe.svmas(&(piece.begin..piece.end))),
            }
        }
        Some(self.pe.svmas(&(start.begin..piece.end)))
    }

    /// The row at a stated address: in the body of its function, or at this instruction of its prologue.
    #[must_use]
    pub fn row(&self, at: Svma) -> Option<Row> {
        let rva = self.pe.rva(at)?;
        let entry = self.entry(rva)?;
        unwind_info::row(&self.infos(entry)?, rva - entry.begin)
    }

    /// The unwind information of an entry, and of those that it is chained to.
    #[must_use]
    pub fn infos(&self, entry: Entry) -> Option<Vec<UnwindInfo<'a>>> {
        let mut infos = Vec::with_capacity(1);
        let mut at = self.direct(entry)?;
        loop {
            let info = UnwindInfo::read(self.pe.bytes_at(self.bytes, at.info)?)?;
            let next = info.chained;
            infos.push(info);
            match next {
                None => return Some(infos),
                Some(_) if infos.len() >= CHAINED_MAX => return None,
                Some(next) => at = self.direct(next)?,
            }
        }
    }

    /// Whether a function with a callable entry begins at an address: not one that starts with an existing frame,
    /// like the rarely executed part of a function that gcc moves elsewhere.
    #[must_use]
    pub fn is_entry(&self, rva: u32) -> bool {
        let Some(entry) = self.entry(rva) else { return true };
        let infos = if entry.begin == rva { self.infos(entry) } else { None };
        infos.is_some_and(|infos| matches!(&*infos, [only] if only.prologue_bytes > 0 || only.is_empty()))
    }

    /// The code at a relative address.
    #[must_use]
    pub fn code(&self, rva: u32) -> &'a [u8] {
        self.pe.bytes_at(self.bytes, rva).unwrap_or_default()
    }

    /// Functions where Windows stacks begin, in the file with this name.
    #[must_use]
    pub fn stack_starts(&self, file_name: &str) -> StackStarts {
        if !file_name.eq_ignore_ascii_case(LIBRARY) {
            return StackStarts::default();
        }
        let function = |name: &str| {
            let rva = self.pe.export(self.bytes, name)?;
            let entry = self.entry(rva).filter(|entry| entry.begin == rva)?;
            Some(self.pe.svmas(&(entry.begin..entry.end)))
        };
        let functions = |names: &[&str]| names.iter().filter_map(|name| function(name)).collect();
        StackStarts {
            threads: functions(&THREAD_STARTS),
            interrupts: functions(&INTERRUPTS),
            callback: function(CALLBACK),
        }
    }

    /// The entry of the function that a piece belongs to.
    fn first_piece(&self, piece: Entry) -> Option<Entry> {
        let mut at = self.direct(piece)?;
        for _ in 0..CHAINED_MAX {
            match UnwindInfo::read(self.pe.bytes_at(self.bytes, at.info)?)?.chained {
                None => return Some(at),
                Some(next) => at = self.direct(next)?,
            }
        }
        None
    }

    /// The entry itself, or the one that it refers to.
    fn direct(&self, entry: Entry) -> Option<Entry> {
        match entry.info & INDIRECT {
            0 => Some(entry),
            _ => {
                let other = Entry::read(self.pe.bytes_at(self.bytes, entry.info & !INDIRECT)?)?;
                (other.info & INDIRECT == 0).then_some(Entry { info: other.info, ..entry })
            }
        }
    }

    /// The index of the last entry that begins at or before an address.
    fn last_at(&self, rva: u32) -> Option<usize> {
        let begin = |index: usize| {
            let entry = self.table.get(index.checked_mul(ENTRY_BYTES)?..)?;
            Some(u32::from_le_bytes(*entry.first_chunk()?))
        };
        let (mut low, mut high) = (0, self.table.len() / ENTRY_BYTES);
        while low < high {
            let middle = low + (high - low) / 2;
            if begin(middle)? <= rva {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low.checked_sub(1)
    }

    fn get(&self, index: usize) -> Option<Entry> {
        Entry::read(self.table.get(index.checked_mul(ENTRY_BYTES)?..)?)
    }
}

/// Functions that are not called, by stated address.
#[derive(Clone, Debug, Default)]
pub struct StackStarts {
    threads: Vec<Range<Svma>>,
    interrupts: Vec<Range<Svma>>,
    callback: Option<Range<Svma>>,
}

impl StackStarts {
    /// The row at an address, adapted if it is in one of these functions: the outermost function of a thread has
    /// no caller, that of a callback has it on another stack, and that of an exception at the interrupted code.
    #[must_use]
    pub fn row(&self, at: Svma, row: Row) -> Row {
        let mut row = row;
        let is_in = |functions: &[Range<Svma>]| functions.iter().any(|function| function.contains(&at));
        if is_in(&self.threads) {
            row.columns[RETURN_ADDRESS] = Column::Undefined;
        } else if is_in(self.callback.as_slice()) {
            row.columns[RETURN_ADDRESS] = CALLED_FROM_ELSEWHERE;
        } else if is_in(&self.interrupts) {
            match row.cfa {
                Cfa::Register(RBP, _) => row.signal = true,
                // The return address has not been stored yet.
                _ => row.columns[RETURN_ADDRESS] = CALLED_FROM_ELSEWHERE,
            }
        }
        row
    }
}

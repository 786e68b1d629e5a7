//! The function table of a PE file for x86_64 (`.pdata`): the function at an address, and its rows.
//!
//! `Functions` finds the `Entry` of an address, `UnwindInfo` has the operations of a prologue, `epilogue_row`
//! follows an epilogue.
//!
//! Input: a summary and the file's bytes, hostile. Output: bounds, a [`Row`] in the body or the prologue.
//! Epilogues are not described (see [`epilogue`](self)). By the ABI a function without an entry saves
//! nothing and calls nothing; assembly violates this, so these functions get no row.
//!
//! Format: "x64 exception handling" (Microsoft), "struct RUNTIME_FUNCTION".

use std::ops::Range;

use super::Pe;
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
        row(&self.infos(entry)?, rva - entry.begin)
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

// ---- An entry of the function table (`.pdata`): bytes in, addresses out.

/// A `RUNTIME_FUNCTION`: addresses relative to the image base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First address.
    pub begin: u32,
    /// First address after it.
    pub end: u32,
    /// Address of its unwind information.
    pub info: u32,
}

impl Entry {
    /// Reads an entry; `None` if it is malformed.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Entry> {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        Some(Entry { begin: word(0)?, end: word(4)?, info: word(8)? }).filter(|entry| entry.begin < entry.end)
    }
}

// ---- `UNWIND_INFO`: the operations of a function's prologue → the row at an address in it or after it.
//
// Format: "x64 exception handling" (Microsoft), "struct UNWIND_INFO"; for version 2, with epilogue codes that are
// skipped here: `EPILOG` of LLVM, include/llvm/Support/Win64EH.h.

/// Flag of an entry that is chained to another one.
const CHAINED: u8 = 4;

/// Operation codes, the low half of their second byte.
const PUSH_NONVOL: u8 = 0;
const ALLOC_LARGE: u8 = 1;
const ALLOC_SMALL: u8 = 2;
const SET_FPREG: u8 = 3;
const SAVE_NONVOL: u8 = 4;
const SAVE_NONVOL_FAR: u8 = 5;
const EPILOG: u8 = 6;
const SAVE_XMM128: u8 = 8;
const SAVE_XMM128_FAR: u8 = 9;
const PUSH_MACHFRAME: u8 = 10;

/// Register number in instructions → DWARF number.
pub(super) const DWARF_NUMBERS: [u8; 16] = [0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15];
const RSP: u8 = 7;

/// `DW_OP_breg0`.
const BREG0: u8 = 0x70;

/// The unwind information of a function, or of a piece of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnwindInfo<'a> {
    /// Size of the prologue.
    pub prologue_bytes: u8,
    /// The frame register by DWARF number, and its distance from the stack pointer at the time it was set.
    pub frame: Option<(u8, i64)>,
    /// Two bytes each, last instruction of the prologue first.
    slots: &'a [[u8; 2]],
    /// The entry that it is chained to.
    pub chained: Option<Entry>,
}

/// An operation of a prologue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A register, by DWARF number, was pushed.
    Push(u8),
    /// The stack pointer was decremented by bytes.
    Allocate(i64),
    /// The frame register was set.
    SetFrame,
    /// A register was stored at an offset from the frame's base.
    Save(u8, i64),
    /// The processor pushed a machine frame, with an error code or without.
    Interrupt(bool),
    /// Irrelevant for rows: a vector register was stored.
    Nothing,
}

impl<'a> UnwindInfo<'a> {
    /// Reads the header and finds the codes; `None` for unknown versions.
    #[must_use]
    pub fn read(bytes: &'a [u8]) -> Option<UnwindInfo<'a>> {
        let (&[version, prologue_bytes, count, frame], rest) = bytes.split_first_chunk::<4>()?;
        let (slots, _) = rest.as_chunks::<2>();
        let count = usize::from(count);
        let slots = slots.get(..count)?;
        let slots = match version & 7 {
            1 => slots,
            2 => without_epilogues(slots),
            _ => return None,
        };
        let chained = match version >> 3 & CHAINED {
            0 => None,
            // After an even number of codes.
            _ => Some(Entry::read(rest.get(2 * count.next_multiple_of(2)..)?)?),
        };
        let register = DWARF_NUMBERS[usize::from(frame & 15)];
        let frame = (frame & 15 != 0).then_some((register, 16 * i64::from(frame >> 4)));
        Some(UnwindInfo { prologue_bytes, frame, slots, chained })
    }

    /// Whether it has no codes: the function does not move the stack pointer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The operations, last one first, each with its end offset in the function. An item is `None` if codes are
    /// malformed or unknown.
    pub fn steps(&self) -> impl Iterator<Item = Option<(u8, Step)>> + '_ {
        let mut left = self.slots;
        std::iter::from_fn(move || {
            let (&[done_at, code], rest) = left.split_first()?;
            let info = code >> 4;
            let half = |index: usize| rest.get(index).map(|slot| i64::from(u16::from_le_bytes(*slot)));
            let word = || Some(half(0)? | half(1)? << 16);
            let register = DWARF_NUMBERS[usize::from(info)];
            let (step, operands) = match (code & 15, info) {
                (PUSH_NONVOL, _) => (Some(Step::Push(register)), 0),
                (ALLOC_LARGE, 0) => (half(0).map(|size| Step::Allocate(8 * size)), 1),
                (ALLOC_LARGE, 1) => (word().map(Step::Allocate), 2),
                (ALLOC_SMALL, _) => (Some(Step::Allocate(8 * i64::from(info) + 8)), 0),
                (SET_FPREG, _) => (Some(Step::SetFrame), 0),
                (SAVE_NONVOL, _) => (half(0).map(|at| Step::Save(register, 8 * at)), 1),
                (SAVE_NONVOL_FAR, _) => (word().map(|at| Step::Save(register, at)), 2),
                (SAVE_XMM128, _) => (half(0).map(|_| Step::Nothing), 1),
                (SAVE_XMM128_FAR, _) => (word().map(|_| Step::Nothing), 2),
                (PUSH_MACHFRAME, 0 | 1) => (Some(Step::Interrupt(info == 1)), 0),
                _ => (None, 0),
            };
            // The length of an unknown code is unknown, so nothing can follow.
            left = if step.is_some() { rest.get(operands..).unwrap_or_default() } else { &[] };
            Some(step.map(|step| (done_at, step)))
        })
    }
}

/// The slots after the epilogue codes, which version 2 has first: an even number, padded with zeros.
fn without_epilogues(slots: &[[u8; 2]]) -> &[[u8; 2]] {
    let epilogues = slots.iter().take_while(|slot| slot[1] & 15 == EPILOG).count();
    let filled = epilogues % 2 == 1 && slots.get(epilogues) == Some(&[0, 0]);
    slots.get(epilogues + usize::from(filled)..).unwrap_or_default()
}

/// A position in the frame: an offset from the stack pointer, or from the frame register.
#[derive(Clone, Copy, Debug)]
struct FrameOffset {
    /// By DWARF number.
    register: u8,
    offset: i64,
}

impl FrameOffset {
    fn behind(self, bytes: i64) -> Option<FrameOffset> {
        Some(FrameOffset { offset: self.offset.checked_add(bytes)?, ..self })
    }
}

/// The row at an address `into` bytes after the start of the first of `infos`, which is chained to the others.
/// `None` if they have none, or one that is unknown.
#[must_use]
pub fn row(infos: &[UnwindInfo<'_>], into: u32) -> Option<Row> {
    let mut sp = FrameOffset { register: RSP, offset: 0 };
    let mut saved: [Option<FrameOffset>; 16] = [None; 16];
    let mut interrupt = None;
    for (number, info) in infos.iter().enumerate() {
        // The prologues of chained entries are complete.
        let is_done =
            |done_at: u8| number > 0 || into >= info.prologue_bytes.into() || into >= done_at.into();
        let mut is_set = info.frame.is_some();
        for step in info.steps() {
            if let (done_at, Step::SetFrame) = step? {
                is_set &= is_done(done_at);
            }
        }
        let frame = match info.frame.filter(|_| is_set) {
            Some((register, above)) => FrameOffset { register, offset: -above },
            None => FrameOffset { register: RSP, offset: 0 },
        };
        for step in info.steps() {
            let (done_at, step) = step?;
            // Nothing is pushed before the machine frame.
            if interrupt.is_some() {
                return None;
            }
            if !is_done(done_at) {
                continue;
            }
            match step {
                Step::Push(register) => {
                    saved[usize::from(register)] = Some(sp);
                    sp = sp.behind(8)?;
                }
                Step::Allocate(bytes) => sp = sp.behind(bytes)?,
                Step::SetFrame if info.frame.is_none() => return None,
                Step::SetFrame => sp = frame,
                Step::Save(register, at) => saved[usize::from(register)] = Some(frame.behind(at)?),
                Step::Interrupt(error_code) => interrupt = Some(sp.behind(if error_code { 8 } else { 0 })?),
                Step::Nothing => {}
            }
        }
    }
    let cfa = match interrupt {
        // rip, cs, rflags, rsp, ss
        Some(frame) => frame.behind(40)?,
        None => sp.behind(8)?,
    };
    let mut row: Row = Row::new(Cfa::Register(cfa.register, cfa.offset));
    for (column, place) in row.columns.iter_mut().zip(saved) {
        *column = match place {
            None => Column::Same,
            Some(place) if place.register == cfa.register => Column::At(place.offset - cfa.offset),
            Some(place) => Column::AtExpression(based(place)),
        };
    }
    // The stack pointer is the CFA, whatever was pushed.
    row.columns[usize::from(RSP)] = Column::Same;
    row.columns[RETURN_ADDRESS] = Column::At(-8);
    if interrupt.is_some() {
        row.signal = true;
        (row.columns[usize::from(RSP)], row.columns[RETURN_ADDRESS]) = (Column::At(-16), Column::At(-40));
    }
    Some(row)
}

/// The DWARF expression of a place.
fn based(place: FrameOffset) -> Box<[u8]> {
    let mut code = vec![BREG0 + place.register];
    let mut left = place.offset;
    loop {
        let byte = (left & 0x7f) as u8;
        left >>= 7;
        if left == 0 && byte & 0x40 == 0 || left == -1 && byte & 0x40 != 0 {
            code.push(byte);
            return code.into();
        }
        code.push(byte | 0x80);
    }
}

// ---- Epilogues of PE code for x86_64, which unwind information does not describe: the row at an instruction that
// pops registers, returns, or jumps to another function.
//
// An epilogue is `add $n,%rsp` or `lea n(%reg),%rsp`, then pops, then a return or a jump ("x64 prolog and epilog",
// Microsoft). It pops registers in the reverse order of the prologue's pushes: code that pops others is no
// epilogue.

/// The end of an epilogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// A return.
    Return,
    /// A jump that always leads to another function: through memory, as to imports, or with a REX.W that no other
    /// jump has.
    JumpAway,
    /// A jump to a relative address.
    JumpTo(u32),
}

/// The row at a stated address after the first instruction of an epilogue.
#[must_use]
pub fn epilogue_row(pe: &Pe, functions: &Functions<'_>, at: Svma) -> Option<Row> {
    let rva = pe.rva(at)?;
    let entry = functions.entry(rva)?;
    let infos = functions.infos(entry)?;
    let is_in_prologue = infos.first().is_some_and(|info| rva - entry.begin < info.prologue_bytes.into());
    if is_in_prologue || infos.iter().all(UnwindInfo::is_empty) {
        return None;
    }
    let (popped, end) = instructions(functions.code(rva), rva)?;
    let leaves = match end {
        End::Return | End::JumpAway => true,
        End::JumpTo(target) => leaves(functions, entry, target, popped.is_empty()),
    };
    if !leaves || !is_tail_of_pushes(&infos, &popped)? {
        return None;
    }
    let cfa = 8 * (popped.len() as i64 + 1);
    let mut epilogue_row: Row = Row::new(Cfa::Register(RSP, cfa));
    for (slot, register) in popped.into_iter().enumerate() {
        epilogue_row.columns[usize::from(register)] = Column::At(8 * slot as i64 - cfa);
    }
    epilogue_row.columns[RETURN_ADDRESS] = Column::At(-8);
    Some(epilogue_row)
}

/// The registers popped from here on, by DWARF number, and the end of the epilogue.
fn instructions(code: &[u8], at: u32) -> Option<(Vec<u8>, End)> {
    let (mut left, mut popped) = (code, Vec::new());
    loop {
        let from = at.wrapping_add((code.len() - left.len()) as u32);
        let target =
            |behind: u32, distance: i32| End::JumpTo(from.wrapping_add(behind).wrapping_add_signed(distance));
        let (register, rest) = match left {
            [low @ 0x58..=0x5f, rest @ ..] => (low - 0x58, rest),
            // With a REX prefix, of which only B matters here.
            [rex @ 0x40..=0x4f, low @ 0x58..=0x5f, rest @ ..] => (low - 0x58 + 8 * (rex & 1), rest),
            [0xc3 | 0xc2, ..] | [0xf3, 0xc3, ..] => return Some((popped, End::Return)),
            [0xeb, distance, ..] => return Some((popped, target(2, i32::from(distance.cast_signed())))),
            [0xe9, rest @ ..] => {
                let distance = i32::from_le_bytes(*rest.first_chunk()?);
                return Some((popped, target(5, distance)));
            }
            // jmp *n(%rip), with or without REX.W.
            [0xff, 0x25, ..] | [0x48, 0xff, 0x25, ..] => return Some((popped, End::JumpAway)),
            // Other jumps without REX.W may belong to a switch.
            [0x48..=0x4f, 0xff, operand, ..] if operand >> 3 & 7 == 4 => {
                return Some((popped, End::JumpAway));
            }
            [0xff, operand, ..] | [0x40..=0x47, 0xff, operand, ..]
                if operand >> 3 & 7 == 4 && !popped.is_empty() =>
            {
                return Some((popped, End::JumpAway));
            }
            _ => return None,
        };
        if popped.len() >= DWARF_NUMBERS.len() {
            return None;
        }
        popped.push(DWARF_NUMBERS[usize::from(register)]);
        left = rest;
    }
}

/// Whether a jump leaves the function. After pops any address in another function is enough; without pops it must
/// be an entry: the frame may still exist, and the target be a part of the function.
fn leaves(functions: &Functions<'_>, entry: Entry, target: u32, is_bare: bool) -> bool {
    let is_inside = (entry.begin..entry.end).contains(&target);
    // A jump to the function's own first instruction is a recursive tail call.
    if is_inside {
        target == entry.begin && functions.is_entry(target)
    } else {
        !is_bare || functions.is_entry(target)
    }
}

/// Whether registers are the first that the prologue pushed, in reverse order; `None` for malformed codes.
fn is_tail_of_pushes(infos: &[UnwindInfo<'_>], popped: &[u8]) -> Option<bool> {
    let mut pushed = Vec::new();
    for info in infos {
        for step in info.steps() {
            if let (_, Step::Push(register)) = step? {
                pushed.push(register);
            }
        }
    }
    Some(pushed.ends_with(popped))
}

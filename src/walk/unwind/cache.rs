//! What was learned of each code address that a stack led to: its row, packed into one
//! cache line, and whether a call returns there. Input: look-up addresses; output:
//! entries. Direct-mapped, so that its size is fixed; void when the images change.

use super::code::{self, Leads};
use super::{body, flow};
use crate::addr::{Avma, CodeAddress};
use crate::frame_rule::{Body, BodyRow, COLUMNS, Cfa, Column, RETURN_ADDRESS, Row};
use crate::walk::frames::Method;
use crate::walk::{Code, call};

/// Entries, a power of two: 256 KiB.
const ENTRIES: usize = 4096;
/// Most rows of unusual form; beyond it the cache is emptied.
const UNUSUAL_MAX: usize = 1024;
/// An ordinary row saves at most rbx, rbp and r12 to r15.
const SAVED_MAX: usize = 6;
/// Bytes of start code behind an image's entry point that may do without unwind
/// information: `_start` of ld.so and of musl.
const START_BYTES: u64 = 128;

/// A row whose CFA is a register plus a number and whose registers lie below it, in words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ordinary {
    pub cfa_offset: i32,
    pub cfa_register: u8,
    saved: u8,
    pub return_words: i16,
    registers: [(u8, i16); SAVED_MAX],
}

impl Ordinary {
    /// The saved registers by DWARF number, and where they are, in words from the CFA.
    pub(super) fn saved(&self) -> &[(u8, i16)] {
        self.registers.get(..self.saved.into()).unwrap_or_default()
    }

    fn pack(row: &Row) -> Option<Ordinary> {
        let words = |bytes: i64| i16::try_from(bytes / 8).ok().filter(|_| bytes % 8 == 0);
        let Cfa::Register(cfa_register, offset) = row.cfa else { return None };
        let Column::At(return_at) = row.columns[RETURN_ADDRESS] else { return None };
        if row.signal || usize::from(cfa_register) >= RETURN_ADDRESS {
            return None;
        }
        let mut packed = Ordinary {
            cfa_offset: i32::try_from(offset).ok()?,
            cfa_register,
            return_words: words(return_at)?,
            ..Ordinary::default()
        };
        for (register, column) in row.columns[..RETURN_ADDRESS].iter().enumerate() {
            match column {
                Column::Same | Column::Undefined => {}
                // The stack pointer of the caller is the CFA, but where a row says otherwise.
                Column::At(at) if register != super::RSP => {
                    *packed.registers.get_mut(usize::from(packed.saved))? = (register as u8, words(*at)?);
                    packed.saved += 1;
                }
                _ => return None,
            }
        }
        Some(packed)
    }
}

/// How the caller of a frame at an address is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Ordinary(Ordinary, Method),
    /// Index of a row of another form.
    Unusual(u16),
    /// The thread's first function.
    Root,
    /// Neither unwind information nor understandable code.
    Unknown,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    key: u64,
    pub rule: Rule,
    /// For a return address: a call (or what stands for one) is in front of it.
    pub returns: bool,
}

/// See the top of this file.
#[derive(Clone, Debug)]
pub(super) struct Cache {
    entries: Box<[Entry]>,
    unusual: Vec<Row>,
}

/// A key that no address has: addresses in user mode leave the upper bits alone.
const NO_KEY: u64 = u64::MAX;

impl Default for Cache {
    fn default() -> Cache {
        let empty = Entry { key: NO_KEY, rule: Rule::Unknown, returns: false };
        Cache { entries: vec![empty; ENTRIES].into(), unusual: Vec::new() }
    }
}

impl Cache {
    pub(super) fn clear(&mut self) {
        self.entries.iter_mut().for_each(|entry| entry.key = NO_KEY);
        self.unusual.clear();
    }

    pub(super) fn unusual(&self, index: u16) -> Option<&Row> {
        self.unusual.get(usize::from(index))
    }

    /// What is known of an address.
    #[inline]
    pub(super) fn entry(&mut self, address: CodeAddress, code: &dyn Code) -> Entry {
        let is_return = matches!(address, CodeAddress::Return(_));
        // Canonical user addresses are below 2^63.
        let key = address.lookup().0 & (u64::MAX >> 1) | u64::from(is_return) << 63;
        let index = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize % ENTRIES;
        if self.entries[index].key == key {
            return self.entries[index];
        }
        self.learn(address, key, index, code)
    }

    #[cold]
    fn learn(&mut self, address: CodeAddress, key: u64, index: usize, code: &dyn Code) -> Entry {
        let (rule, returns) = self.find(address, code);
        let entry = Entry { key, rule, returns };
        self.entries[index] = entry;
        entry
    }

    fn find(&mut self, address: CodeAddress, code: &dyn Code) -> (Rule, bool) {
        let (at, is_return) = match address {
            CodeAddress::Pc(at) => (at, false),
            CodeAddress::Return(at) => (at, true),
        };
        let follows_call = is_return && call::returns_x86_64(at, code);
        if let Some(into) = start_of_context(at, code) {
            return (Rule::Root, follows_call || (is_return && into == 0));
        }
        if let Some(row) = code.row(address.lookup()) {
            // A handler returns to `__restore_rt`, which begins one byte before itself for
            // unwinders that look up return addresses minus one (glibc, libc_sigaction.c).
            let returns = follows_call || (is_return && row.signal && code.is_code(at));
            return (self.keep(row, Method::Cfi), returns);
        }
        if code.begins_threads(address.lookup()).is_some() {
            return (self.in_macho(address, code), follows_call);
        }
        let here = code.code(at).unwrap_or_default();
        if call::is_sigreturn(here) {
            return (self.keep(signal_frame(), Method::Code), true);
        }
        if is_return && !follows_call {
            return (Rule::Unknown, false);
        }
        if code.entry(at).is_some_and(|entry| at >= entry && at - entry < START_BYTES) {
            return (Rule::Root, follows_call);
        }
        if is_return && begins_function(here) {
            return (Rule::Unknown, follows_call);
        }
        let rule = match code::follow(at, code) {
            Some(Leads::Back(row)) => self.keep(*row, Method::Code),
            Some(Leads::ToExit) => Rule::Root,
            None => Rule::Unknown,
        };
        (rule, follows_call)
    }

    /// In a Mach-O image, whose unwind information is of the bodies of functions.
    fn in_macho(&mut self, address: CodeAddress, code: &dyn Code) -> Rule {
        let said = match code.body(address.lookup()) {
            Some(Body { row: BodyRow::X86_64(row), compact }) => Some((*row, body::method(compact))),
            _ => None,
        };
        let found = match said {
            Some((row, method)) if row.signal => Some((row, method)),
            said => body::row::<flow::x86_64::X86_64, _>(address, said, code),
        };
        found.map_or(Rule::Unknown, |(row, method)| self.keep(row, method))
    }

    fn keep(&mut self, row: Row, method: Method) -> Rule {
        if row.columns[RETURN_ADDRESS] == Column::Undefined {
            return Rule::Root;
        }
        if let Some(packed) = Ordinary::pack(&row) {
            return Rule::Ordinary(packed, method);
        }
        if self.unusual.len() >= UNUSUAL_MAX {
            self.clear();
        }
        self.unusual.push(row);
        Rule::Unusual((self.unusual.len() - 1) as u16)
    }
}

/// How far into `__start_context` an address is. The first function of a `makecontext`
/// stack returns there; nothing called it, although its rows say so.
/// Source: glibc sysdeps/unix/sysv/linux/x86_64/__start_context.S.
fn start_of_context(at: Avma, code: &dyn Code) -> Option<u64> {
    // mov %rbx,%rsp; mov (%rsp),%rdi; test %rdi,%rdi; je; call setcontext
    const START: [u8; 13] = [0x48, 0x89, 0xdc, 0x48, 0x8b, 0x3c, 0x24, 0x48, 0x85, 0xff, 0x74, 0x08, 0xe8];
    const BYTES: u64 = 26;
    let before = at.0.checked_sub(BYTES - 1)?;
    let (start, bytes) =
        [before, at.0].into_iter().find_map(|start| Some((start, code.code(Avma(start))?)))?;
    let window = bytes.get(..bytes.len().min(BYTES as usize - 1 + START.len()))?;
    let found = window.windows(START.len()).position(|bytes| bytes == START)?;
    at.0.checked_sub(start + found as u64).filter(|into| *into < BYTES)
}

/// Whether code after a call is none that the call returns to, but the next function or
/// the padding before it: the callee does not return.
fn begins_function(code: &[u8]) -> bool {
    const STARTS: [&[u8]; 6] =
        [&[0xf3, 0x0f, 0x1e, 0xfa], &[0x55], &[0x66, 0x2e, 0x0f, 0x1f], &[0x0f, 0x1f], &[0x90], &[0xcc]];
    STARTS.iter().any(|start| code.starts_with(start))
}

/// The row of a trampoline that calls `rt_sigreturn` with the context at the stack pointer.
/// Source: Linux arch/x86/include/asm/sigframe.h and uapi/asm/sigcontext.h; registers
/// begin 40 bytes into `struct ucontext`.
fn signal_frame() -> Row {
    // r8..r15 rdi rsi rbp rbx rdx rax rcx rsp rip, by DWARF number
    const SAVED: [usize; COLUMNS] = [8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, RETURN_ADDRESS];
    let mut row = Row { cfa: Cfa::Register(super::RSP as u8, 0), columns: Default::default(), signal: true };
    for (index, column) in SAVED.into_iter().enumerate() {
        row.columns[column] = Column::At(40 + 8 * index as i64);
    }
    row
}

/// The address that follows a call, in tests of addresses.
pub(super) fn is_return(address: Avma, cache: &mut Cache, code: &dyn Code) -> bool {
    cache.entry(CodeAddress::Return(address), code).returns
}

const _: () = assert!(size_of::<Entry>() <= 64, "one cache line");

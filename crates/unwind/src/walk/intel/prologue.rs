//! The frame record of a function with unknown entry that may never return, like loops in JIT code. Input: an
//! address and the code before it; output: the row, if a prologue that creates a frame record leads to the
//! address.
//!
//! `entry` says where a thread continues that has run no instruction yet.
//!
//! The nearest matching bytes may be part of other instructions, or of another function: so the paths from there
//! must reach the address, all with that record as their frame. Paths with a call may cross into a second
//! function, if the first ends in a noreturn call (Mono throws exceptions like that): their row needs
//! confirmation.

use memchr::memrchr_iter;

use super::Intel;
use super::instructions::decode_of;
use crate::addr::Avma;
use crate::binary::frame_rule::Cfa;
use crate::walk::engine::Proof;
use crate::walk::processor::RowOf;
use crate::walk::{Code, flow};

/// `push %rbp; mov %rsp,%rbp` in both encodings, and in 32-bit mode.
const LONG_PROLOGUES: [&[u8]; 2] = [&[0x55, 0x48, 0x89, 0xe5], &[0x55, 0x48, 0x8b, 0xec]];
const PROLOGUES: [&[u8]; 2] = [&[0x55, 0x89, 0xe5], &[0x55, 0x8b, 0xec]];
/// First byte of all prologues.
const PUSH_RBP: u8 = 0x55;
/// Bytes searched before an address, at first and at most.
const SEARCHED_MIN: u64 = 4 << 10;
const SEARCHED_MAX: u64 = 32 << 10;
/// Limit on prologues tried.
const TRIES_MAX: u32 = 4;

/// The row at `at` with its proof; `returned`: a call has just returned there.
pub(crate) fn row<P: Intel>(at: Avma, returned: bool, code: &dyn Code) -> Option<(RowOf<P>, Proof)> {
    let prologues = if P::IS_LONG { LONG_PROLOGUES } else { PROLOGUES };
    let prologue_bytes = prologues[0].len() as u64;
    let (mut bytes, mut tries_left) = (SEARCHED_MIN, TRIES_MAX);
    // Including a prologue at the address itself, where the record is directly below the return address, or does
    // not exist yet.
    let mut end = at.checked_add(prologue_bytes)?;
    loop {
        let start = start_of_code(at, bytes, code);
        let before = code.code(start)?;
        let before = &before[..usize::try_from(end - start).ok()?.min(before.len())];
        code.note_search(start, end);
        let begins = |at: &usize| prologues.iter().any(|prologue| before[*at..].starts_with(prologue));
        for last in memrchr_iter(PUSH_RBP, before).filter(begins) {
            tries_left = tries_left.checked_sub(1)?;
            let entry = start + last as u64;
            let keeps_record = |row: &RowOf<P>| row.cfa == Cfa::Register(P::FRAME_POINTER, 2 * P::POINTER);
            let fits = |row: &RowOf<P>| keeps_record(row) || at - entry < prologue_bytes;
            let row = flow::since_entry_past_no_call::<P>(entry, at, returned, code).filter(fits);
            if let Some(row) = row {
                return Some((row, Proof::Certain));
            }
            let row = flow::since_entry_on_all_paths::<P>(entry, at, returned, code).filter(fits);
            if let Some(row) = row {
                return Some((row, Proof::NeedsCall));
            }
        }
        if at - start < bytes || bytes >= SEARCHED_MAX {
            return None;
        }
        end = start + (prologue_bytes - 1);
        bytes *= 2;
    }
}

/// Combines the row by the preceding prologue with an uncertain one by the paths to a return: the row after a call
/// that has just returned, or may not return.
pub(crate) fn row_with<P: Intel>(
    to_return: Option<Box<RowOf<P>>>,
    at: Avma,
    returned: bool,
    code: &dyn Code,
) -> Option<(Box<RowOf<P>>, Proof)> {
    match (row::<P>(at, returned, code), to_return) {
        (Some((row, Proof::Certain)), _) => Some((Box::new(row), Proof::Certain)),
        (Some((row, _)), Some(other)) if flow::is_same_frame::<P>(&row, &other) => {
            Some((other, Proof::Certain))
        }
        (_, Some(other)) => Some((other, Proof::NeedsConfirmation)),
        (row, None) => row.map(|(row, proof)| (Box::new(row), proof)),
    }
}

/// The lowest address, at most this many bytes before `at`, from which code reaches `at`: the mapping may begin in
/// between.
fn start_of_code(at: Avma, bytes: u64, code: &dyn Code) -> Avma {
    let reaches = |bytes: u64| {
        let start = at.0.checked_sub(bytes).map(Avma);
        start.and_then(|start| code.code(start)).is_some_and(|code| code.len() as u64 >= bytes)
    };
    let (mut known, mut unknown) = (0, bytes + 1);
    if reaches(bytes) {
        return Avma(at.0 - bytes);
    }
    while unknown - known > 1 {
        let middle = known + (unknown - known) / 2;
        if reaches(middle) {
            known = middle;
        } else {
            unknown = middle;
        }
    }
    Avma(at.0 - known)
}

// ---- A thread that has run no instruction yet: its program counter is where its creator's system call returns,
// its stack is empty, and unwind information there describes the creator. The kernel returns 0 to the new thread
// (clone(2)), and the code then branches to the start of threads.

/// Limit on instructions that test the result, in glibc (sysdeps/unix/sysv/linux/x86_64/clone3.S and
/// i386/clone3.S) and in musl (src/thread/x86_64/clone.s): a test and two jumps.
const INSTRUCTIONS_MAX: u32 = 4;

/// The address where a thread continues if its program counter follows a system call that returned `result`, which
/// is 0, and the code tests that.
pub(crate) fn entry<P: Intel>(pc: Avma, result: u64, code: &dyn Code) -> Option<Avma> {
    // syscall; sysenter; int $0x80
    const CALLS: [[u8; 2]; 3] = [[0x0f, 0x05], [0x0f, 0x34], [0xcd, 0x80]];
    let call = code.glance(Avma(pc.0.checked_sub(2)?));
    if result != 0 || !CALLS.iter().any(|form| call.bytes().starts_with(form)) {
        return None;
    }
    let (mut at, mut is_tested) = (pc, false);
    for _ in 0..INSTRUCTIONS_MAX {
        let instruction = decode_of::<P>(code.code(at)?)?;
        let next = at + instruction.length as u64;
        at = match (instruction.map, instruction.opcode) {
            // test %eax,%eax
            (0, 0x85) if instruction.modrm == Some(0xc0) && instruction.rex & 5 == 0 => {
                is_tested = true;
                next
            }
            // On 0: equal, and neither less nor negative.
            (0, 0x74) | (1, 0x84) if is_tested => P::from(next, instruction.immediate),
            (0, 0x75 | 0x78 | 0x7c) | (1, 0x85 | 0x88 | 0x8c) if is_tested => next,
            _ => return is_tested.then_some(at),
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::X86_64;
    use crate::binary::frame_rule::{Column, Row};
    use crate::walk::intel::forward::{self, Callees, CodeEnd};
    use crate::walk::text::Text;

    const RBP: usize = X86_64::RBP;
    const RSP: usize = X86_64::RSP;

    fn row(at: Avma, returned: bool, code: &dyn Code) -> Option<Row> {
        super::row::<X86_64>(at, returned, code).map(|(row, _)| row)
    }

    const TEXT: u64 = 0x7000_0000_1000;

    /// An endless loop after `before` bytes of padding.
    fn looping(before: usize) -> Text {
        let mut code = vec![0xcc; before];
        code.extend([
            0x55, 0x48, 0x89, 0xe5, //       +00 push %rbp; mov %rsp,%rbp
            0x48, 0x83, 0xec, 0x20, //       +04 sub $32,%rsp
            0xb8, 0x55, 0x48, 0x89, 0xe5, // +08 mov $0xe5894855,%eax
            0xff, 0xd0, // +0d call *%rax, which pops its argument
            0x50, //                         +0f push %rax
            0xeb, 0xf6, //                   +10 jmp +08
            0x55, 0x48, 0x89, 0xe5, 0xf4, // +12 another
        ]);
        Text::new(TEXT, code)
    }

    #[test]
    fn an_endless_loop_has_the_record_of_its_prologue() {
        for before in [0, 0x10, 0x2345] {
            let text = looping(before);
            let at = |offset: u64| Avma(TEXT + before as u64 + offset);
            for (offset, returned) in [(0x0f, true), (0x10, false), (0x0d, false), (4, false)] {
                let row = row(at(offset), returned, &text).expect("a row");
                assert_eq!(row.cfa, Cfa::Register(RBP as u8, 16));
                assert_eq!(row.columns[RBP], Column::At(-16));
            }
            // In the prologue itself.
            for (offset, cfa) in [(0, 8), (1, 16)] {
                let row = row(at(offset), false, &text).expect("a row");
                assert_eq!(row.cfa, Cfa::Register(RSP as u8, cfa));
            }
            // Not reached.
            assert_eq!(row(at(0x17), false, &text), None);
        }
    }

    /// Like Mono's code: the first ends in a call that throws, and the start of the second is unknown.
    fn two_functions() -> Text {
        Text::new(
            TEXT,
            vec![
                0x55, 0x48, 0x89, 0xe5, //       +00 push %rbp; mov %rsp,%rbp
                0x48, 0x83, 0xec, 0x20, //       +04 sub $32,%rsp
                0x85, 0xc0, //                   +08 test %eax,%eax
                0x74, 0x02, //                   +0a je +0e
                0xc9, 0xc3, //                   +0c leave; ret
                0xe8, 0, 0x10, 0, 0, // +0e call the one that throws
                0x0f, 0x1f, 0, //                +13 a nop
                0x48, 0x83, 0xec, 0x18, //       +16 sub $24,%rsp
                0xe8, 0, 0x20, 0, 0, //          +1a call another
                0x48, 0x83, 0xc4, 0x18, 0xc3, // +1f add $24,%rsp; ret
            ],
        )
    }

    #[test]
    fn a_function_after_a_throwing_call_does_not_have_the_previous_frame() {
        let (text, at) = (two_functions(), Avma(TEXT + 0x1f));
        let (row, proof) = super::row::<X86_64>(at, true, &text).expect("paths lead there");
        assert_eq!((row.cfa, proof), (Cfa::Register(RBP as u8, 16), Proof::NeedsCall));
        let leads = forward::follow::<X86_64>(at, true, &text, &mut Callees::default());
        let Some(CodeEnd::Returns(to_return, Proof::NeedsConfirmation)) = leads else { panic!("{leads:?}") };
        let (row, proof) = row_with::<X86_64>(Some(to_return), at, true, &text).expect("a row");
        assert_eq!((row.cfa, proof), (Cfa::Register(RSP as u8, 32), Proof::NeedsConfirmation));
        // There is no call on this path.
        let (row, proof) = super::row::<X86_64>(Avma(TEXT + 0x13), true, &text).expect("a row");
        assert_eq!((row.cfa, proof), (Cfa::Register(RBP as u8, 16), Proof::Certain));
    }

    #[test]
    fn addresses_at_the_ends_of_memory_have_no_row() {
        for at in [0, 1, TEXT - 1, TEXT, u64::MAX] {
            assert_eq!(row(Avma(at), false, &Text::new(TEXT, vec![0x55])), None, "{at:#x}");
        }
    }
}

#[cfg(test)]
mod new_thread_tests {
    use super::*;
    use crate::arch::{X86, X86_64};
    use crate::walk::text::Text;

    const TEXT: u64 = 0x40_1000;

    /// Where it continues, in bytes from the program counter.
    fn long(code: &[u8], result: u64) -> Option<u64> {
        let at = entry::<X86_64>(Avma(TEXT + 2), result, &Text::new(TEXT, code.to_vec()));
        at.map(|at| at.0 - TEXT - 2)
    }

    #[test]
    fn a_new_thread_continues_where_the_result_is_0() {
        // glibc 2.36, clone3: syscall; test %rax,%rax; jl error; je thread_start; ret; xor %ebp,%ebp
        const CLONE3: &[u8] =
            &[0x0f, 0x05, 0x48, 0x85, 0xc0, 0x0f, 0x8c, 1, 0, 0, 0, 0x74, 1, 0xc3, 0x31, 0xed, 0x90, 0x90];
        assert_eq!(long(CLONE3, 0), Some(12));
        // Its creator continues after the call, and without the system call there is no new thread.
        assert_eq!(long(CLONE3, 4711), None);
        assert_eq!(long(&[&[0x90, 0x90], &CLONE3[2..]].concat(), 0), None);
        // musl 1.2, __clone: syscall; test %eax,%eax; jnz 1f; xor %ebp,%ebp
        const CLONE: &[u8] = &[0x0f, 0x05, 0x85, 0xc0, 0x75, 0x11, 0x31, 0xed, 0x5f, 0x90, 0x90, 0x90];
        assert_eq!(long(CLONE, 0), Some(4));
        // Code that does not test the result, or cannot be read.
        assert_eq!(long(&[0x0f, 0x05, 0xc3, 0x90], 0), None);
        assert_eq!(long(&[0x0f, 0x05, 0x48, 0x85], 0), None);
        // glibc 2.36 for i386, clone3: int $0x80; test %eax,%eax; je thread_start; pop %esi
        let mut clone3 = vec![0xcd, 0x80, 0x85, 0xc0, 0x74, 0x09, 0x5e, 0x5b];
        clone3.resize(32, 0x90);
        let narrow = Text::new(TEXT, clone3);
        let at = entry::<X86>(Avma(TEXT + 2), 0, &narrow);
        assert_eq!(at, Some(Avma(TEXT + 2 + 13)));
    }
}

//! Walking on i386, with the code in `intel/` that it shares with x86_64: implements `Processor` and `Unwind` for
//! the engine, walks by frame pointers with the caller of the leaf, and recognizes frame records and start code.
//!
//! Differences from x86_64: words of four bytes, no red zone, arguments on the stack (a function may pop them on
//! return), and calls of the next instruction, which read their own address. The stack is not scanned.

#[cfg(test)]
mod records_tests;

use std::ops::Range;

use super::engine::{Cache, CallRows, CallerRule, Engine, FrameSwitch, Proof, RuleKind, Unwind};
use super::flow::paths::{Effect, FlowState};
use super::fp::{self, Facts};
use super::frames::{Frame, Frames, Method, UnwindMethod};
use super::input::StepError;
use super::intel::forward::{self, Callees, CodeEnd};
use super::intel::{Intel, call, instructions, prologue, switch_instructions};
use super::processor::{Processor, row};
use super::{Code, Input, StackEnd, WalkResult, flow};
use crate::addr::{Avma, CodeAddress, LookupAvma};
use crate::arch::{Arch, X86};
use crate::binary::frame_rule::{Cfa, Column, RowX86, X86_COLUMNS, X86_RETURN_ADDRESS};

// ---- i386: the caller of the leaf frame, for walks by frame pointers. In a leaf function without a frame record, on
// entry, between the two instructions of the prologue and at `ret` ebp belongs to the caller: following it alone
// would lose the caller. The rule at the leaf's address decides.

/// Walks from the registers of a stopped thread; see [`unwind`](super::unwind).
fn walk(
    registers: &X86,
    input: &Input<'_>,
    cache: &mut Cache<X86>,
    facts: &mut Facts,
    out: &mut Vec<LookupAvma>,
) -> WalkResult {
    let frame = Frame::new(registers, input.address_mask);
    let sp = frame.sp();
    out.push(frame.address.lookup());
    let rule = cache.rule(frame.address, input.code);
    let step = match rule.kind {
        RuleKind::Root | RuleKind::Fiber { .. } => return WalkResult { ended: StackEnd::Root, reached: sp },
        RuleKind::OrdinaryRow(row, _) => frame.ordinary(&row, input),
        RuleKind::Unusual(index) => match cache.unusual(index) {
            // A signal frame is no record, and ebp is still that of the interrupted code.
            Some(unusual) if !unusual.row.signal => frame.caller_by_row(&unusual.row, input),
            _ => Err(StepError::NotACaller),
        },
        RuleKind::Unknown => frame.by_record(input),
    };
    match step {
        Ok(next) if next.sp() > sp => {
            let CodeAddress::Return(address) = next.address else {
                return from_record(&frame, input, facts, out);
            };
            let Some(lookup) = facts.lookup::<X86>(address, input.code) else {
                return from_record(&frame, input, facts, out);
            };
            if out.len() >= input.max_depth {
                return WalkResult { ended: StackEnd::DepthLimit, reached: sp };
            }
            out.push(lookup);
            let (at, above) = (next.registers[EBP], Avma(next.registers[ESP]));
            fp::follow::<X86>(at, above, Some(address), input, facts, out)
        }
        Err(StepError::OutsideCopy) => WalkResult { ended: StackEnd::DeeperThanCopied, reached: sp },
        _ => from_record(&frame, input, facts, out),
    }
}

/// From the record that ebp points to, if the leaf's own caller is unknown.
fn from_record(
    frame: &Frame<X86>,
    input: &Input<'_>,
    facts: &mut Facts,
    out: &mut Vec<LookupAvma>,
) -> WalkResult {
    fp::follow::<X86>(frame.registers[EBP], frame.sp(), None, input, facts, out)
}

// ---- The methods of i386 for the engine: rules by unwind information, start code and instructions. Input: addresses,
// code; output: rows and other rules.

impl Unwind for X86 {
    type Callees = Callees;
    const REPORTS_UNDESCRIBED: bool = true;
    const RECORD_BESIDE_UNUSUAL: bool = true;

    fn find(address: CodeAddress, code: &dyn Code, callees: &mut Callees) -> (CallerRule<X86>, bool) {
        find(address, code, callees)
    }

    fn is_outermost(row: &RowX86) -> bool {
        row.columns[X86_RETURN_ADDRESS] == Column::Undefined
    }

    fn switch(address: CodeAddress, row: &RowX86, code: &dyn Code) -> FrameSwitch {
        switch_instructions::at::<X86>(address, row, code)
    }

    /// By the paths to a return, if they are certain, or by all paths from the function's entry. Unwind
    /// information of glibc's assembly is not always right (the CFA after a return in the middle of `memcpy`).
    fn row_by_code(pc: Avma, code: &dyn Code, callees: &mut Callees) -> Option<Box<RowX86>> {
        let since_entry = || {
            let function = code.described_function(pc)?;
            flow::since_entry_on_all_paths::<X86>(function.start, pc, false, code).map(Box::new)
        };
        match forward::follow::<X86>(pc, false, code, callees) {
            Some(CodeEnd::Returns(row, Proof::Certain)) => Some(row),
            _ => since_entry(),
        }
    }

    fn without_record(leaf: &Frame<X86>, input: &Input<'_>) -> Result<Option<(u64, u64)>, StepError> {
        let CodeAddress::Pc(pc) = leaf.address else { return Ok(None) };
        let Some(slot) = unframed_return_slot(pc, leaf.sp(), input.code) else { return Ok(None) };
        Ok(Some((slot.0.wrapping_add(POINTER), leaf.word(slot, input)?)))
    }

    fn is_record_certain(_: &Frame<X86>, _: &Frame<X86>, _: &Input<'_>) -> bool {
        false
    }

    fn is_called(
        proof: Proof,
        from: &Frame<X86>,
        next: &Frame<X86>,
        rows: &mut CallRows<X86>,
        input: &Input<'_>,
    ) -> bool {
        match proof {
            Proof::NeedsCall => call::is_called_from(from, next, rows, input),
            _ => call::is_caller(from, next, rows, input),
        }
    }

    fn new_thread_entry(&self, code: &dyn Code) -> Option<Avma> {
        prologue::entry::<X86>(Avma(self.eip), self.gpr[EAX], code)
    }
}

/// The rule at an address, and for a return address whether a call precedes it.
fn find(address: CodeAddress, code: &dyn Code, callees: &mut Callees) -> (CallerRule<X86>, bool) {
    let (at, is_return) = (address.at(), address.is_return());
    let follows_call = is_return && X86::returns(at, code);
    if let Some(into) = into_context(at, code) {
        let not_called = is_return && into == 0;
        return (CallerRule::Fiber { not_called }, follows_call || not_called);
    }
    if !is_return && is_pc_thunk(at, code) {
        return (CallerRule::certain(bare(), Method::Code), false);
    }
    let here = code.code(at).unwrap_or_default();
    let row = row::<X86>(code, address.lookup().at());
    if let Some(context) = context_at(here)
        && row.as_ref().is_none_or(|row| !row.signal)
    {
        return (CallerRule::certain(signal_frame(context), Method::Code), is_return);
    }
    if let Some(row) = row {
        // If nothing was pushed before the call, and the code continues to the end of the thread, this is the
        // thread's first function.
        let below = is_below_stack_pointer(&row);
        if (row == bare() || below) && (follows_call || !is_return) {
            // glibc's assembly pushes without describing it in its rows, or with the wrong sign: string functions,
            // contexts (sysdeps/i386/strchr.S, setcontext.S of glibc 2.36).
            match in_bare_code(address, code, callees) {
                CallerRule::Root if is_return => return (CallerRule::Root, true),
                CallerRule::Row(by_code, method, proof)
                    if by_code.cfa != row.cfa && (below || proof == Proof::Certain) =>
                {
                    return (CallerRule::Row(by_code, method, proof), follows_call);
                }
                _ => {}
            }
        }
        // A handler returns to the vDSO's trampoline, with a row that begins one byte before it for unwinders that
        // look up return addresses minus one (vdso32/sigreturn.S).
        let returns = follows_call || (is_return && row.signal && code.is_code(at));
        return (CallerRule::certain(row, Method::Cfi), returns);
    }
    if is_return && !follows_call {
        return (CallerRule::Nothing, false);
    }
    if code.entry(at).is_some_and(|entry| forward::is_start::<X86>(entry, address, code)) {
        return (CallerRule::Root, follows_call);
    }
    (in_bare_code(address, code, callees), follows_call)
}

/// Whether the return address according to a row is below the stack pointer, where nothing is stored.
fn is_below_stack_pointer(row: &RowX86) -> bool {
    let (Cfa::Register(register, cfa), Column::At(at)) = (&row.cfa, &row.columns[X86_RETURN_ADDRESS]) else {
        return false;
    };
    !row.signal && usize::from(*register) == ESP && cfa.saturating_add(*at) < 0
}

/// The row of a function that has pushed nothing.
fn bare() -> RowX86 {
    let mut row = RowX86::new(Cfa::Register(ESP as u8, POINTER.cast_signed()));
    row.columns[X86_RETURN_ADDRESS] = Column::At(-POINTER.cast_signed());
    row
}

/// The rule by instructions, for code without unwind information.
fn in_bare_code(address: CodeAddress, code: &dyn Code, callees: &mut Callees) -> CallerRule<X86> {
    let (at, is_return) = (address.at(), address.is_return());
    let next_function = is_return && code.code(at).is_some_and(begins_function);
    let leads = match next_function {
        true => None,
        false => forward::follow::<X86>(at, is_return, code, callees),
    };
    let unproved = match leads {
        Some(CodeEnd::Returns(row, Proof::Certain)) => {
            return CallerRule::Row(row, Method::Code, Proof::Certain);
        }
        Some(CodeEnd::ExitsThread) => return CallerRule::Root,
        Some(CodeEnd::Returns(row, _)) => Some(row),
        None => None,
    };
    let since_entry =
        |function: Range<Avma>| flow::since_entry_on_all_paths::<X86>(function.start, at, is_return, code);
    let by_entry = match code.function(address.lookup().at()) {
        Some(function) => since_entry(function),
        None => {
            let row = prologue::row_with::<X86>(unproved, at, is_return, code);
            return row.map_or(CallerRule::Nothing, |(row, proof)| CallerRule::Row(row, Method::Code, proof));
        }
    };
    match (by_entry, unproved) {
        (Some(row), _) => CallerRule::Row(Box::new(row), Method::Code, Proof::Certain),
        (None, Some(row)) => CallerRule::Row(row, Method::Code, Proof::NeedsConfirmation),
        (None, None) => CallerRule::Nothing,
    }
}

/// Whether code after a call is the next function or the padding before it: then the callee does not return.
fn begins_function(code: &[u8]) -> bool {
    // endbr32; push %ebp; lea 0(%esi,%eiz,1),%esi and nops, which pad; int3
    const STARTS: [&[u8]; 8] = [
        &[0xf3, 0x0f, 0x1e, 0xfb],
        &[0x55],
        &[0x8d, 0xb4, 0x26],
        &[0x8d, 0x74, 0x26],
        &[0x66, 0x90],
        &[0x0f, 0x1f],
        &[0x90],
        &[0xcc],
    ];
    STARTS.iter().any(|start| code.starts_with(start))
}

/// The row of a trampoline that restores the registers `context` bytes above the stack pointer. Source: Linux
/// arch/x86/include/uapi/asm/sigcontext.h (`struct sigcontext_32`).
fn signal_frame(context: i64) -> RowX86 {
    // edi esi ebp esp ebx edx ecx eax by DWARF number, from byte 16 on; eip is at 56.
    const SAVED: [usize; 8] = [7, 6, 5, 4, 3, 2, 1, 0];
    let mut row = RowX86::new(Cfa::Register(ESP as u8, 0));
    row.signal = true;
    for (index, column) in SAVED.into_iter().enumerate() {
        row.columns[column] = Column::At(context + 16 + 4 * index as i64);
    }
    row.columns[X86_RETURN_ADDRESS] = Column::At(context + 56);
    row
}

// ---- The walker's view of i386: registers by DWARF number, and properties of its code.

const EAX: usize = 0;
const EBP: usize = X86::EBP;
const ESP: usize = X86::ESP;
/// Bytes of an address.
const POINTER: u64 = Arch::X86.pointer_bytes();

impl Processor for X86 {
    type Columns = [Column; X86_COLUMNS];
    type Word = u32;
    const RED_ZONE_BYTES: u64 = Arch::X86.red_zone_bytes_max();
    const STACK_POINTER: u8 = ESP as u8;
    const FRAME_POINTER: u8 = EBP as u8;
    const FRAME_RECORD_AT: i64 = 0;
    const LINK: Option<u8> = None;
    const RETURN_COLUMN: usize = X86_RETURN_ADDRESS;
    const SAVED: &'static [u8] = &[3, EBP as u8, 6, 7];

    fn values(&self, _mask: u64) -> [u64; X86_COLUMNS] {
        let mut all = [0; X86_COLUMNS];
        all[..X86_RETURN_ADDRESS].copy_from_slice(&self.gpr);
        all[X86_RETURN_ADDRESS] = self.eip;
        all
    }

    fn step(at: Avma, bytes: &[u8], state: &mut FlowState) -> Option<(Effect, u64)> {
        instructions::step::<X86>(at, bytes, state)
    }

    fn returns(address: Avma, code: &dyn Code) -> bool {
        call::returns::<X86>(address, code)
    }

    fn is_sigreturn(code: &[u8]) -> bool {
        context_at(code).is_some()
    }

    fn is_start_code(code: &[u8]) -> bool {
        is_start_code(code)
    }

    fn ends_thread(code: &[u8]) -> bool {
        ends_thread(code)
    }
}

impl Intel for X86 {
    const IS_LONG: bool = false;
    // The register numbers in instructions, of which there are eight.
    const DWARF: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7];
    // add $16,%esp; mov %eax,%edi
    const KEEPS_ENTRY: &'static [u8] = &[0x83, 0xc4, 0x10, 0x89, 0xc7];
}

const _: () = assert!(ESP < EBP && EBP < X86_RETURN_ADDRESS);

// ---- i386: whether ebp points to the frame record of the function at a program counter, and if not, the slot of
// the return address.
//
// These are patterns of compiler output; if none matches, ebp is assumed to point to the record.

/// The stack slot of the return address if the leaf has no frame record at `pc`, or `None` if ebp points to its
/// record (or the code is unknown).
///
/// ```text
/// at                    return address in
/// endbr32               [esp]      function entry
/// push %ebp             [esp]      entry, followed by mov %esp,%ebp
/// mov %esp,%ebp         [esp+4]    ebp was pushed, not yet set
/// ret                   [esp]      ebp was popped
/// jmp *mem              [esp]      PLT stub, tail call through a pointer
/// ```
fn unframed_return_slot(pc: Avma, sp: Avma, code: &dyn Code) -> Option<Avma> {
    const ENDBR32: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfb];
    const PUSH_EBP: u8 = 0x55;
    let at = code.code(pc)?;
    let before = || code.code(Avma(pc.0.wrapping_sub(1)))?.first().copied();
    let moves_esp_to_ebp = |code: &[u8]| code.starts_with(&[0x89, 0xe5]) || code.starts_with(&[0x8b, 0xec]);
    match at {
        _ if at.starts_with(&ENDBR32) => Some(sp),
        [PUSH_EBP, rest @ ..] if moves_esp_to_ebp(rest) => Some(sp),
        _ if moves_esp_to_ebp(at) && before()? == PUSH_EBP => Some(Avma(sp.0.wrapping_add(POINTER))),
        // ret; repz ret; ret imm16; bnd ret
        [0xc3 | 0xc2, ..] | [0xf2 | 0xf3, 0xc3, ..] => Some(sp),
        // jmp *mem; jmp *N(%ebx)
        [0xff, 0x25 | 0xa3, ..] => Some(sp),
        _ => None,
    }
}

// ---- i386 by frame pointers. A chain of records is complete only if unwind information leads to the same frames, and
// then through start code, which keeps no records. Without it, the end of the chain decides. Input: registers,
// copied stack; output: [`Frames`] and the [`StackEnd`].

/// Limit on frames of start code, which keeps no records, between the outermost record and a thread's first
/// function: `__libc_start_call_main`, `__libc_start_main` and `_start`; or `start_thread` and `clone`.
const START_FRAMES_MAX: usize = 4;

impl Engine<X86> {
    /// Walks from the registers of a stopped thread; see [`unwind`](super::unwind).
    pub(crate) fn unwind(
        &mut self,
        unwind_method: UnwindMethod,
        registers: &X86,
        input: &Input<'_>,
        facts: &mut Facts,
        out: &mut Frames,
    ) -> WalkResult {
        match unwind_method {
            UnwindMethod::FramePointer => self.by_records(registers, input, facts, out),
            _ => self.walk(unwind_method, registers, input, out),
        }
    }

    fn by_records(
        &mut self,
        registers: &X86,
        input: &Input<'_>,
        facts: &mut Facts,
        out: &mut Frames,
    ) -> WalkResult {
        let cache = &mut self.cache;
        let walked = fp::by_records(out, |out| walk(registers, input, cache, facts, out));
        if walked.ended == StackEnd::Root && !fp::can_be_checked(&out.addresses, input.code) {
            return walked;
        }
        let mut confirmed = std::mem::take(&mut self.confirmed);
        confirmed.clear();
        let proved = self.walk(UnwindMethod::Cfi, registers, input, &mut confirmed);
        let more = confirmed.addresses.strip_prefix(out.addresses.as_slice()).unwrap_or_default();
        let is_whole = proved.ended.is_complete()
            && confirmed.addresses.starts_with(&out.addresses)
            && more.len() <= START_FRAMES_MAX;
        let ended = match walked.ended {
            _ if is_whole => {
                let found = out.len();
                out.addresses.extend_from_slice(more);
                out.methods.extend_from_slice(&confirmed.methods[found..]);
                proved.ended
            }
            StackEnd::Root => StackEnd::UnverifiedFrameRecord,
            other => other,
        };
        self.confirmed = confirmed;
        WalkResult { ended, ..walked }
    }
}

// ---- Start and exit code of threads and signal handlers on i386, recognized by the instructions that compilers
// generate from C library sources. Input: bytes; output: yes or no, and the offset of a trampoline's saved
// registers.

/// Whether code follows the call of `main` or of a thread's function: the result is passed to `exit`, or stored
/// for `pthread_join`. Sources: see x86_64.
fn is_start_code(code: &[u8]) -> bool {
    const FORMS: [&[u8]; 7] = [
        // glibc: add $16,%esp; sub $12,%esp; push %eax; call exit
        &[0x83, 0xc4, 0x10, 0x83, 0xec, 0x0c, 0x50, 0xe8],
        // the same with both adjustments merged by the compiler
        &[0x83, 0xc4, 0x04, 0x50, 0xe8],
        &[0x89, 0x04, 0x24, 0xe8],
        // glibc: mov %eax,%gs:result, with or without the argument still on the stack
        &[0x65, 0xa3],
        &[0x83, 0xc4, 0x10, 0x65, 0xa3],
        // hlt, in _start after __libc_start_main
        &[0xf4],
        // a thread created by clone directly: mov %eax,%ebx; mov $1,%eax; int $0x80
        &[0x89, 0xc3, 0xb8, 1, 0, 0, 0, 0xcd, 0x80],
    ];
    FORMS.iter().any(|form| code.starts_with(form))
}

/// Whether code makes the `exit` system call that follows a thread's first function, mostly with its result.
///
/// Sources: glibc sysdeps/unix/sysv/linux/i386/clone.S and clone3.S, musl src/thread/i386/clone.s.
fn ends_thread(code: &[u8]) -> bool {
    const FORMS: [&[u8]; 4] = [
        // glibc: mov %eax,%ebx; mov $1,%eax; int $0x80
        &[0x89, 0xc3, 0xb8, 1, 0, 0, 0, 0xcd, 0x80],
        // musl: mov %eax,%ebx; xor %eax,%eax; inc %eax; int $0x80
        &[0x89, 0xc3, 0x31, 0xc0, 0x40, 0xcd, 0x80],
        // musl, by other assemblers
        &[0x93, 0x31, 0xc0, 0x40, 0xcd, 0x80],
        // xchg %eax,%ebx; mov $1,%eax; int $0x80
        &[0x93, 0xb8, 1, 0, 0, 0, 0xcd, 0x80],
    ];
    FORMS.iter().any(|form| code.starts_with(form))
}

/// Bytes from the stack pointer to the saved registers (`struct sigcontext`) if code is a signal trampoline;
/// `None` otherwise. There are two frames: `struct sigframe`, with a signal number that is popped first, and
/// `struct rt_sigframe`, with the registers 20 bytes into a `struct ucontext`, after signal number, two pointers
/// and 128 bytes of siginfo. Both are above the return address.
///
/// Sources: Linux arch/x86/include/asm/sigframe.h and arch/x86/entry/vdso/vdso32/sigreturn.S; musl
/// src/signal/i386/restore.s and glibc sysdeps/unix/sysv/linux/i386/libc_sigaction.c have the same instructions.
fn context_at(code: &[u8]) -> Option<i64> {
    // mov $119,%eax; int $0x80
    const SIGRETURN: &[u8] = &[0xb8, 119, 0, 0, 0, 0xcd, 0x80];
    // mov $173,%eax; int $0x80
    const RT_SIGRETURN: &[u8] = &[0xb8, 173, 0, 0, 0, 0xcd, 0x80];
    match code {
        // pop %eax
        [0x58, rest @ ..] if rest.starts_with(SIGRETURN) => Some(4),
        _ if code.starts_with(SIGRETURN) => Some(0),
        _ if code.starts_with(RT_SIGRETURN) => Some(3 * 4 + 128 + 20),
        _ => None,
    }
}

/// The offset of an address in the code that the first function of a `makecontext` stack returns to, without
/// having been called. Source: glibc sysdeps/unix/sysv/linux/i386/makecontext.S.
fn into_context(at: Avma, code: &dyn Code) -> Option<u64> {
    // lea (%esp,%ebx,4),%esp; cmpl $0,(%esp); je; call setcontext
    const START: &[u8] = &[0x8d, 0x24, 0x9c, 0x83, 0x3c, 0x24, 0, 0x74, 7, 0xe8];
    // Up to the call of exit.
    const BYTES: u64 = 0x1f;
    (0..BYTES).find(|into| {
        let start = at.0.checked_sub(*into).and_then(|start| code.code(Avma(start)));
        start.is_some_and(|code| code.starts_with(START))
    })
}

/// Whether an address is in code that only returns its caller's address: `mov (%esp),%ebx; ret`, or with another
/// register. Start code has a copy (glibc sysdeps/i386/start.S), and the row of a function without a caller covers
/// it too.
fn is_pc_thunk(at: Avma, code: &dyn Code) -> bool {
    let is_thunk = |start: Avma| {
        let code = code.code(start).unwrap_or_default();
        matches!(code, [0x8b, to, 0x24, 0xc3, ..] if to & 0xc7 == 0x04)
    };
    is_thunk(at) || at.0.checked_sub(3).is_some_and(|start| is_thunk(Avma(start)))
}

#[cfg(test)]
mod record_tests {
    use super::super::text::Text;
    use super::*;

    #[test]
    fn prologues_and_returns_have_no_record() {
        // endbr32; push %ebp; mov %esp,%ebp; nop; pop %ebp; ret
        let text = Text::new(0x1000, [0xf3, 0x0f, 0x1e, 0xfb, 0x55, 0x89, 0xe5, 0x90, 0x5d, 0xc3]);
        let slot = |at: u64| unframed_return_slot(Avma(0x1000 + at), Avma(0x100), &text).map(|slot| slot.0);
        assert_eq!([0, 4, 5].map(slot), [Some(0x100), Some(0x100), Some(0x104)]);
        assert_eq!([7, 8, 9].map(slot), [None, None, Some(0x100)]);
        assert_eq!(slot(0x100), None);
    }
}

#[cfg(test)]
mod start_tests {
    use super::super::text::Text;
    use super::*;

    #[test]
    fn every_instruction_of_the_makecontext_return_code_is_recognized() {
        let text = Text::new(
            0x1000,
            [
                0xc3, // +00 ret
                0x8d, 0x24, 0x9c, // +01 lea (%esp,%ebx,4),%esp
                0x83, 0x3c, 0x24, 0, // +04 cmpl $0,(%esp)
                0x74, 0x07, // +08 je
                0xe8, 0, 0, 0, 0, // +0a call setcontext
                0xeb, 0x02, // +0f jmp
            ],
        );
        let into = |at: u64| into_context(Avma(0x1000 + at), &text);
        assert_eq!([0, 1, 4, 8, 0xf].map(into), [None, Some(0), Some(3), Some(7), Some(14)]);
        assert_eq!(into(0x40), None);
    }

    #[test]
    fn a_pc_thunk_is_recognized_at_both_instructions() {
        // mov (%esp),%ebx; ret; mov (%esp),%eax; ret; mov 4(%esp),%eax; ret
        let text =
            Text::new(0x1000, [0x8b, 0x1c, 0x24, 0xc3, 0x8b, 0x04, 0x24, 0xc3, 0x8b, 0x44, 0x24, 4, 0xc3]);
        let found: Vec<u64> = (0..16).filter(|at| is_pc_thunk(Avma(0x1000 + at), &text)).collect();
        assert_eq!(found, [0, 3, 4, 7]);
    }

    #[test]
    fn each_trampoline_has_its_own_register_offset() {
        let code: [u8; 8] = [0x58, 0xb8, 119, 0, 0, 0, 0xcd, 0x80];
        assert_eq!((context_at(&code), context_at(&code[1..])), (Some(4), Some(0)));
        assert_eq!(context_at(&[0xb8, 173, 0, 0, 0, 0xcd, 0x80]), Some(160));
        for other in [&[0xb8, 120, 0, 0, 0, 0xcd, 0x80][..], &code[2..], &code[..4], &[]] {
            assert_eq!(context_at(other), None, "{other:x?}");
        }
    }
}

//! Follows frame records: each holds the caller's frame pointer and, one word above it, the return address.
//! [`Processor::FRAME_RECORD_AT`] is the offset of a record from its frame pointer. Input: the first frame pointer;
//! output: one look-up address per record. `Facts` caches what walks by frame pointers ask of code. The processor's
//! folder finds the caller of a leaf without a record. Not for 32-bit Arm, where compilers differ in their records
//! (`arm/unwinder.rs`).

use super::frames::{Frames, Method};
use super::image_facts::Table;
use super::input::{STACK_BYTES_MAX, Words};
use super::processor::Processor;
use super::{Code, Input, StackEnd, WalkResult, root};
use crate::addr::{Avma, CodeAddress, LookupAvma};

/// Follows the records from `frame_pointer`, pushing to `out`.
///
/// `above` is the lowest possible address of the first record (the stack pointer), `leaf_return` the return
/// address of a leaf without a record. Each record must be above the last and aligned to the pointer size, so the
/// walk terminates for any bytes.
pub(super) fn follow<P: Processor>(
    mut frame_pointer: u64,
    above: Avma,
    leaf_return: Option<Avma>,
    input: &Input<'_>,
    facts: &mut Facts,
    out: &mut Vec<LookupAvma>,
) -> WalkResult {
    let words: Words<'_, P::Word> = Words::new(input.stack);
    let mut reached = above;
    let mut outermost = leaf_return;
    loop {
        let chain = root::Chain { next: frame_pointer, above, reached, outermost };
        let record = Avma(P::frame_record(frame_pointer));
        if frame_pointer == 0 || record < reached || !record.0.is_multiple_of(P::POINTER_BYTES) {
            return WalkResult { ended: chain.end::<P>(input), reached };
        }
        if input.stack_limit.is_some_and(|limit| record.0.saturating_add(P::POINTER_BYTES) >= limit.0) {
            return WalkResult { ended: chain.end::<P>(input), reached };
        }
        let word = |at: Avma| words.word(at.0).or_else(|| input.read_outer::<P::Word>(at));
        let (Some(saved), Some(word)) = (word(record), word(record + P::POINTER_BYTES)) else {
            return WalkResult { ended: outside_copy::<P>(record, &chain, input), reached };
        };
        // Swift marks the record of an async function by bit 60 of the saved frame pointer, on arm64 and x86_64
        // (LLVM, AArch64FrameLowering.cpp and X86FrameLowering.cpp: SwiftAsyncFramePointer). A word that becomes 0
        // only by the mask does not end a chain.
        let next = if saved & input.address_mask == 0 { saved } else { saved & input.address_mask };
        // On aarch64, bits 63..47 may hold a signature.
        let return_address = word & input.address_mask;
        if return_address == 0 {
            let begins =
                outermost.and_then(|at| input.code.begins_threads(CodeAddress::Return(at).lookup().at()));
            let ended =
                if next == 0 && begins != Some(false) { StackEnd::Root } else { StackEnd::BrokenFrameChain };
            return WalkResult { ended, reached: record + 2 * P::POINTER_BYTES };
        }
        let Some(lookup) = facts.lookup::<P>(Avma(return_address), input.code) else {
            let is_root = next == 0 && outermost.is_some_and(|at| root::ends_program::<P>(at, input.code));
            let ended = if is_root { StackEnd::Root } else { StackEnd::BrokenFrameChain };
            return WalkResult { ended, reached };
        };
        reached = record + 2 * P::POINTER_BYTES;
        if out.len() >= input.max_depth {
            return WalkResult { ended: StackEnd::DepthLimit, reached };
        }
        out.push(lookup);
        outermost = Some(Avma(return_address));
        frame_pointer = next;
    }
}

/// The end of a chain at a record outside the copied bytes: a deeper stack than copied, or no record.
fn outside_copy<P: Processor>(record: Avma, chain: &root::Chain, input: &Input<'_>) -> StackEnd {
    let limit = input.stack_top.map_or(u64::MAX, |top| top.0);
    if record.0 < limit && record.0 - chain.above.0 < STACK_BYTES_MAX {
        return StackEnd::DeeperThanCopied;
    }
    chain.end::<P>(input)
}

/// Whether a walk by frame records that found these look-up addresses can be checked: one of their images has
/// unwind information, even if not for that function, or the code of one is known. (For Mach-O images without
/// unwind information, the end of the chain decides.)
pub(super) fn can_be_checked(addresses: &[LookupAvma], code: &dyn Code) -> bool {
    let is_bare = |lookup: Avma| code.begins_threads(lookup).is_none() && code.code(lookup).is_some();
    addresses.iter().map(|lookup| lookup.at()).any(|lookup| code.describes_frames(lookup) || is_bare(lookup))
}

/// Walks by frame records alone: `walk` pushes the look-up addresses, starting with that of the thread's program
/// counter.
pub(super) fn by_records(
    out: &mut Frames,
    walk: impl FnOnce(&mut Vec<LookupAvma>) -> WalkResult,
) -> WalkResult {
    out.clear();
    let walked = walk(&mut out.addresses);
    out.methods.resize(out.addresses.len(), Method::FramePointer);
    if let Some(leaf) = out.methods.first_mut() {
        *leaf = Method::Context;
    }
    walked
}

// ---- Cached facts for walking by frame pointers, by address: whether a return address is in code, and whether a leaf
// has a record. Input: addresses, `Code`; output: answers. Void when the images change.

/// Facts about return addresses and program counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    returns: Table<ReturnsTo>,
    /// By program counter: whether the frame pointer points to the record of the function there.
    own_records: Table<Option<bool>>,
}

/// The target of a return address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReturnsTo {
    #[default]
    NoCode,
    /// Code that contains the call.
    Caller,
    /// A signal trampoline, to which handlers return, and which called nothing.
    Trampoline,
}

impl Facts {
    pub(crate) fn clear(&mut self) {
        self.returns.clear();
        self.own_records.clear();
    }

    /// Forgets facts about the addresses for which `is_gone` returns true.
    pub(crate) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.returns.retain(|lookup| !is_gone(Avma(lookup)));
        self.own_records.retain(|pc| !is_gone(Avma(pc)));
    }

    /// The cached result of `find`, which reads much of a function: whether the function at a program counter has
    /// a record. Not cached for JIT code.
    pub(crate) fn own_record(
        &mut self,
        pc: Avma,
        code: &dyn Code,
        find: impl FnOnce() -> Option<bool>,
    ) -> Option<bool> {
        if let Some(known) = self.own_records.get(pc.0) {
            return known;
        }
        let found = find();
        if !code.traits(pc).is_jit && code.commit_dependencies(pc) {
            self.own_records.insert(pc.0, found);
        }
        found
    }

    /// The look-up address of the frame that a return address belongs to; `None` outside code.
    #[inline(always)]
    pub(crate) fn lookup<P: Processor>(&mut self, address: Avma, code: &dyn Code) -> Option<LookupAvma> {
        let lookup = CodeAddress::Return(address).lookup();
        let known = match self.returns.get(lookup.0) {
            Some(known) => known,
            None => self.classify::<P>(address, lookup.at(), code),
        };
        match known {
            ReturnsTo::NoCode => None,
            ReturnsTo::Caller => Some(lookup),
            ReturnsTo::Trampoline => Some(CodeAddress::Pc(address).lookup()),
        }
    }

    #[cold]
    #[inline(never)]
    fn classify<P: Processor>(&mut self, address: Avma, lookup: Avma, code: &dyn Code) -> ReturnsTo {
        let known = match code.is_code(lookup) {
            true if code.code(address).is_some_and(P::is_sigreturn) => ReturnsTo::Trampoline,
            true => ReturnsTo::Caller,
            false => ReturnsTo::NoCode,
        };
        if code.commit_dependencies(lookup) {
            self.returns.insert(lookup.0, known);
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use super::super::StackBytes;
    use super::super::text::Text;
    use super::*;
    use crate::arch::X86_64;

    const BASE: u64 = 0x7fff_0000_1000;

    /// Code with unknown bytes.
    fn no_bytes() -> Text {
        Text { without_bytes: 0..0x10_0000, ..Text::default() }
    }

    /// Walks from `fp` over a stack of words from `BASE` up.
    fn walk(
        code: &Text,
        words: &[u64],
        fp: u64,
        top: Option<u64>,
        limit: Option<u64>,
    ) -> (Vec<u64>, StackEnd) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let input = Input {
            stack_top: top.map(Avma),
            stack_limit: limit.map(Avma),
            max_depth: 4,
            address_mask: 0x7fff_ffff_ffff,
            ..Input::new(StackBytes { base: Avma(BASE), bytes: &bytes }, code)
        };
        let mut out = Vec::new();
        let walked = follow::<X86_64>(fp, Avma(BASE), None, &input, &mut Facts::default(), &mut out);
        (out.into_iter().map(u64::from).collect(), walked.ended)
    }

    #[track_caller]
    fn check(words: &[u64], fp: u64, stack_top: Option<u64>, expected: &[u64], ended: StackEnd) {
        assert_eq!(walk(&no_bytes(), words, fp, stack_top, None), (expected.to_vec(), ended));
    }

    #[test]
    fn a_chain_that_ends_in_zero_is_complete() {
        let words = [
            BASE + 0x18, // BASE+00 saved fp
            0x1005,      // BASE+08 return address
            0xdead,      // BASE+10 a local
            0,           // BASE+18 saved fp of the outermost frame
            0x2005,      // BASE+20
        ];
        check(&words, BASE, None, &[0x1004, 0x2004], StackEnd::Root);
    }

    #[test]
    fn a_zero_far_below_the_stack_top_is_a_broken_chain() {
        // Code without frame pointers uses rbp for anything, including zero.
        check(&[0, 0x1005], BASE, Some(BASE + 0x10000), &[0x1004], StackEnd::UnverifiedFrameRecord);
        check(&[0, 0x1005], BASE, Some(BASE + 0x80), &[0x1004], StackEnd::Root);
    }

    #[test]
    fn a_null_frame_pointer_without_a_record_is_no_complete_stack() {
        check(&[0, 0x1005], 0, Some(BASE + 0x100), &[], StackEnd::UnverifiedFrameRecord);
        // A thread's first function has no caller.
        check(&[0], 0, Some(BASE), &[], StackEnd::Root);
    }

    #[test]
    fn a_word_outside_code_is_no_return_address() {
        check(&[BASE + 16, 0x20_0000, 0, 0x1005], BASE, Some(BASE + 0x80), &[], StackEnd::BrokenFrameChain);
    }

    #[test]
    fn libc_start_code_leaves_any_word_in_the_outermost_record() {
        check(&[1, 0x1005], BASE, Some(BASE + 0x80), &[0x1004], StackEnd::Root);
        check(&[1, 0x1005], BASE, None, &[0x1004], StackEnd::BrokenFrameChain);
    }

    /// dyld of macOS 11 for Intel.
    #[test]
    fn argc_above_a_null_frame_pointer_ends_a_program() {
        const EXITS: &[u8] = &[0x89, 0xc7, 0xe8, 0, 0, 0, 0];
        let ended = |begins, code, record: [u64; 2]| {
            let text = Text { without_bytes: 0x1000..0x1005, ..Text::new(0x1005, code) };
            walk(&text.with_threads(begins), &[BASE + 16, 0x1005, record[0], record[1]], BASE, None, None).1
        };
        assert_eq!(ended(true, EXITS, [0, 2]), StackEnd::Root);
        assert_eq!(ended(true, EXITS, [0, 0]), StackEnd::Root, "macOS 12 and later");
        assert_eq!(ended(true, EXITS, [8, 2]), StackEnd::BrokenFrameChain, "the frame pointer is not null");
        assert_eq!(ended(false, EXITS, [0, 2]), StackEnd::BrokenFrameChain, "a program");
        assert_eq!(ended(true, &[0x90], [0, 2]), StackEnd::BrokenFrameChain, "no start code");
    }

    #[test]
    fn records_must_progress_and_be_aligned() {
        check(&[BASE, 0x1005], BASE, None, &[0x1004], StackEnd::BrokenFrameChain);
        check(&[BASE + 0x13, 0x1005, 0, 0], BASE, None, &[0x1004], StackEnd::BrokenFrameChain);
        check(&[0; 4], BASE - 8, None, &[], StackEnd::BrokenFrameChain);
    }

    #[test]
    fn a_record_above_the_copy_is_distinguished_from_garbage() {
        check(&[BASE + 0x4000, 0x1005], BASE, None, &[0x1004], StackEnd::DeeperThanCopied);
        check(&[BASE + 0x4000, 0x1005], BASE, Some(BASE + 0x8000), &[0x1004], StackEnd::DeeperThanCopied);
        check(&[0x8000_0000_0000_0000, 0x1005], BASE, None, &[0x1004], StackEnd::BrokenFrameChain);
        check(&[BASE + 0x4000, 0x1005], BASE, Some(BASE + 0x2000), &[0x1004], StackEnd::BrokenFrameChain);
        check(&[u64::MAX - 7, 0x1005], BASE, None, &[0x1004], StackEnd::BrokenFrameChain);
    }

    #[test]
    fn depth_is_limited_and_reported() {
        let mut words = Vec::new();
        for frame in 0..8u64 {
            words.extend([BASE + (frame + 1) * 16, 0x1001 + frame]);
        }
        check(&words, BASE, None, &[0x1000, 0x1001, 0x1002, 0x1003], StackEnd::DepthLimit);
    }

    #[test]
    fn signed_return_addresses_are_stripped() {
        check(&[0, 0xabcd_8000_0000_1005], BASE, None, &[0x1004], StackEnd::Root);
    }

    #[test]
    fn a_null_return_address_is_the_root_only_with_a_null_frame() {
        check(&[0, 0], BASE, None, &[], StackEnd::Root);
        check(&[BASE + 16, 0], BASE, None, &[], StackEnd::BrokenFrameChain);
    }

    #[test]
    fn the_mark_of_swift_async_frames_is_removed() {
        let marked = 1 << 60 | (BASE + 0x18);
        check(&[marked, 0x1005, 0xdead, 0, 0x2005], BASE, None, &[0x1004, 0x2004], StackEnd::Root);
        // A marked zero, or another word that becomes 0 only by the mask, does not end a chain.
        check(&[1 << 60, 0x1005], BASE, None, &[0x1004], StackEnd::BrokenFrameChain);
    }

    #[test]
    fn a_record_beyond_the_end_of_the_stack_is_none() {
        let words = [BASE + 0x10, 0x1005, 0, 0x2005, BASE + 0x30, 0x3005];
        let check = |fp, limit: u64, expected: &[u64], ended| {
            let found = walk(&no_bytes(), &words, fp, None, Some(limit));
            assert_eq!(found, (expected.to_vec(), ended), "{fp:#x}, {limit:#x}");
        };
        check(BASE, BASE + 0x20, &[0x1004, 0x2004], StackEnd::Root);
        // The second record would lie beyond the end, partly or completely.
        check(BASE, BASE + 0x18, &[0x1004], StackEnd::BrokenFrameChain);
        check(BASE, BASE + 0x10, &[0x1004], StackEnd::BrokenFrameChain);
        // Above the copied bytes, below the limit and beyond it.
        check(BASE + 0x20, BASE + 0x100, &[0x3004], StackEnd::DeeperThanCopied);
        check(BASE + 0x20, BASE + 0x40, &[0x3004], StackEnd::DeeperThanCopied);
        check(BASE + 0x20, BASE + 0x38, &[0x3004], StackEnd::BrokenFrameChain);
        check(u64::MAX - 7, u64::MAX, &[], StackEnd::BrokenFrameChain);
    }
}

#[cfg(test)]
mod facts_tests {
    use std::cell::Cell;

    use super::super::CodeTraits;
    use super::*;
    use crate::arch::{Aarch64, X86_64};

    /// A function, two signal trampolines, and a count of requests.
    struct CountingCode(Cell<u32>);

    impl Code for CountingCode {
        fn is_code(&self, at: Avma) -> bool {
            self.0.set(self.0.get() + 1);
            [0x1000, 0x3000, 0x4000].contains(&at.0)
        }
        fn code(&self, at: Avma) -> Option<&[u8]> {
            match at.0 {
                0x1000 => Some(&[0x55, 0x48, 0x89, 0xe5]),
                // The signal trampolines of x86_64 and aarch64.
                0x3001 => Some(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]),
                0x4001 => Some(&[0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4]),
                _ => None,
            }
        }
    }

    #[test]
    fn an_address_is_looked_up_once_until_the_images_change() {
        let (code, mut facts) = (CountingCode(Cell::new(0)), Facts::default());
        for _ in 0..3 {
            assert_eq!(facts.lookup::<X86_64>(Avma(0x1001), &code), Some(LookupAvma(0x1000)));
            assert_eq!(facts.lookup::<X86_64>(Avma(0x2001), &code), None);
        }
        assert_eq!(code.0.get(), 2);
        facts.clear();
        assert_eq!(facts.lookup::<X86_64>(Avma(0x1001), &code), Some(LookupAvma(0x1000)));
        assert_eq!(code.0.get(), 3);
        // The reserved key.
        assert_eq!(facts.lookup::<X86_64>(Avma(0), &code), None);
    }

    /// Code of a file below 0x2000, JIT code above it.
    struct PartlyJit;

    impl Code for PartlyJit {
        fn is_code(&self, _: Avma) -> bool {
            true
        }
        fn code(&self, _: Avma) -> Option<&[u8]> {
            None
        }
        fn traits(&self, at: Avma) -> CodeTraits {
            CodeTraits { is_jit: at.0 >= 0x2000, ..CodeTraits::default() }
        }
    }

    #[test]
    fn record_searches_are_cached_for_files_but_not_for_jit_code() {
        let (count, mut facts) = (Cell::new(0), Facts::default());
        let classify = |facts: &mut Facts, pc: u64, found: Option<bool>| {
            let find = || {
                count.set(count.get() + 1);
                found
            };
            facts.own_record(Avma(pc), &PartlyJit, find)
        };
        for _ in 0..3 {
            assert_eq!(classify(&mut facts, 0x1000, Some(true)), Some(true));
            assert_eq!(classify(&mut facts, 0x1004, None), None);
        }
        assert_eq!(count.get(), 2);
        for found in [Some(true), Some(false), None] {
            assert_eq!(classify(&mut facts, 0x2000, found), found);
        }
        assert_eq!(count.replace(0), 5);
        facts.forget(&|at| at == Avma(0x1000));
        assert_eq!(classify(&mut facts, 0x1000, Some(false)), Some(false));
        assert_eq!((classify(&mut facts, 0x1004, Some(true)), count.get()), (None, 1));
        facts.clear();
        assert_eq!((classify(&mut facts, 0x1004, Some(true)), count.get()), (Some(true), 2));
    }

    #[test]
    fn a_signal_trampoline_has_no_call_before_it() {
        let (code, mut facts) = (CountingCode(Cell::new(0)), Facts::default());
        for _ in 0..2 {
            assert_eq!(facts.lookup::<X86_64>(Avma(0x3001), &code), Some(LookupAvma(0x3001)));
            assert_eq!(facts.lookup::<Aarch64>(Avma(0x4001), &code), Some(LookupAvma(0x4001)));
        }
        assert_eq!(code.0.get(), 2);
        // Trampolines of the other processor are ordinary code.
        facts.clear();
        assert_eq!(facts.lookup::<Aarch64>(Avma(0x3001), &code), Some(LookupAvma(0x3000)));
        assert_eq!(facts.lookup::<X86_64>(Avma(0x4001), &code), Some(LookupAvma(0x4000)));
    }
}

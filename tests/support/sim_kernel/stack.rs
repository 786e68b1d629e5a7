//! Stacks of simulated threads: registers and bytes generated from a known list of functions.
//!
//! A `key` moves the frames, and selects the program counter and the bytes between the frames: a running
//! thread gets another key with each call of the client, so that registers and memory of two moments never
//! match.
//!
//! Roots: libpthread `pthread_asm.s` (arm64 `thread_start` makes no record, so that of `_pthread_start` is
//! {0, thread_start+8}; x86_64 `thread_start` has {0, 0}); dyld `dyldStartup.s` (fp and lr are 0 when `start`
//! is entered; before macOS 12 `main` returns to the second instruction of `start` in libdyld.dylib, and on
//! x86_64 the outermost record is {0, argc}).

use stackprof::arch::Arch;

use super::images::{FunctionRef, Images};
use super::spec::Birth;
use stackprof::rng::hash;

/// Bytes below the stack pointer with leftovers of earlier calls.
const BELOW: u64 = 512;
/// Bit of a saved frame pointer: Swift async frame.
pub const ASYNC: u64 = 1 << 60;
/// Bits of an arm64 user address (machdep.virtual_address_size).
pub const ADDRESS_BITS: u32 = 47;

/// Specification of a stack.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    pub arch: Arch,
    pub images: &'a Images,
    /// From the leaf outward, including the functions that start threads.
    pub frames: &'a [FunctionRef],
    pub birth: Birth,
    /// The high end.
    pub high: u64,
    pub key: u64,
    pub locals: u64,
    pub pac: bool,
    pub swift: bool,
}

/// A stack.
#[derive(Clone, Debug)]
pub struct Made {
    pub key: u64,
    pub pc: u64,
    pub sp: u64,
    pub fp: u64,
    pub lr: u64,
    /// Address of the first of `bytes`, which reach to the high end.
    pub base: u64,
    pub bytes: Vec<u8>,
}

fn signed(wanted: &Wanted<'_>, address: u64, place: u64) -> u64 {
    if !wanted.pac || wanted.arch == Arch::X86_64 {
        return address;
    }
    sign(address, place)
}

/// Signs an address like pointer authentication.
pub fn sign(address: u64, place: u64) -> u64 {
    // Bit 55 selects the half of the address space and is not part of a signature.
    let signature = hash(&[address, place]) & !(1 << 55) & (u64::MAX << ADDRESS_BITS);
    address | signature | 1 << 48
}

/// Generates a stack.
pub fn make(wanted: &Wanted<'_>) -> Made {
    let Wanted { arch, images, frames, .. } = *wanted;
    let count = frames.len();
    let frameless_leaf = count > 1 && images.is_frameless(frames[0]);
    let recordless_root = arch == Arch::Aarch64 && wanted.birth == Birth::Pthread;
    let has_record =
        |index: usize| (index != 0 || !frameless_leaf) && (index != count - 1 || !recordless_root);
    let old_root = images.is_start_of_libdyld(frames[count - 1]);
    let locals = |index: usize| {
        if old_root && index + 1 == count {
            return 0;
        }
        let moved = if index + 3 == count || index == 0 { wanted.key % 31 } else { 0 };
        (wanted.locals + 16 * (hash(&[wanted.key, index as u64]) % 6 + moved)).next_multiple_of(16)
    };

    // From the root down to the leaf.
    let mut records = vec![0; count];
    let mut at = (wanted.high - 64) & !15;
    let mut below = at;
    for index in (0..count).rev().filter(|index| has_record(*index)) {
        records[index] = at;
        below = at - locals(index);
        at = below - 16;
    }
    let returned_to = |callee: usize| match frames.get(callee + 1) {
        Some(caller) => images.return_address(*caller, frames[callee]),
        None => 0,
    };
    let mut sp = below;
    if frameless_leaf && arch == Arch::X86_64 {
        sp = below - 8;
    }

    let base = (sp - BELOW) & !7;
    let mut words: Vec<u64> = (0..(wanted.high - base) / 8).map(|index| leftover(wanted, index)).collect();
    let mut put = |address: u64, word: u64| words[((address - base) / 8) as usize] = word;
    for index in (0..count).filter(|index| has_record(*index)) {
        let next = (index + 1..count).find(|next| has_record(*next)).map_or(0, |next| records[next]);
        let is_async = wanted.swift && next != 0 && hash(&[wanted.key, index as u64, 7]).is_multiple_of(2);
        put(records[index], if is_async { next | ASYNC } else { next });
        put(records[index] + 8, signed(wanted, returned_to(index), records[index] + 16));
    }
    if old_root && arch == Arch::X86_64 {
        const ARGC: u64 = 1;
        put(records[count - 1] + 8, ARGC);
    }
    if frameless_leaf && arch == Arch::X86_64 {
        put(sp, returned_to(0));
    }
    // In the body of a framed function lr has the value left by an earlier call.
    let lr = match frameless_leaf || wanted.key.is_multiple_of(2) {
        true => signed(wanted, returned_to(0), sp),
        false => signed(wanted, images.return_address(frames[0], frames[0]), sp),
    };
    let leaf_record = (0..count).find(|index| has_record(*index)).map_or(0, |index| records[index]);
    Made {
        key: wanted.key,
        pc: images.pc(frames[0], hash(&[wanted.key, 11])),
        sp,
        fp: leaf_record,
        lr: if arch == Arch::Aarch64 { lr } else { 0 },
        base,
        bytes: words.iter().flat_map(|word| word.to_le_bytes()).collect(),
    }
}

/// Words between records: numbers, and leftover addresses of code and stack.
fn leftover(wanted: &Wanted<'_>, index: u64) -> u64 {
    let random = hash(&[wanted.key, index]);
    match random % 8 {
        0 => wanted.images.pc(wanted.frames[(random >> 8) as usize % wanted.frames.len()], random >> 16),
        1 => wanted.high - (random >> 8) % 4096 / 16 * 16,
        2 | 3 => 0,
        _ => random,
    }
}

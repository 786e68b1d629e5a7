//! Registers, a stack, code and unwind information, all from the input: every walk ends
//! within its depth.
#![no_main]

#[path = "../elf_with.rs"]
mod elf_with;

use elf_with::{TEXT_SVMA, elf_with, images_of};
use libfuzzer_sys::fuzz_target;
use stackprof::addr::Avma;
use stackprof::arch::{Aarch64, Registers, X86_64};
use stackprof::walk::{Frames, UnwindMethod, Input, StackBytes, Unwinder, unwind};

/// Where the copied stack is.
const STACK: u64 = 0x7fff_0000;
const DEPTH_MAX: usize = 64;

/// A word of the input; most lead near the code or the stack, as those of a real stack do.
fn word(kind: u8, bytes: [u8; 2]) -> u64 {
    let value = u64::from(u16::from_le_bytes(bytes));
    match kind & 3 {
        0 => TEXT_SVMA + value % 0x2000,
        1 => STACK.wrapping_add(value & !7).wrapping_sub(64),
        2 => value << (kind >> 2),
        _ => !value,
    }
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<3>().0.iter().map(|[kind, low, high]| word(*kind, [*low, *high])).collect()
}

fuzz_target!(|data: &[u8]| {
    let Some((&[kind, stack_words, code_bytes], rest)) = data.split_first_chunk() else { return };
    let (registers, rest) = rest.split_at(rest.len().min(33 * 3));
    let (stack, rest) = rest.split_at(rest.len().min(usize::from(stack_words) * 3));
    let (text, frames) = rest.split_at(rest.len().min(usize::from(code_bytes) * 4));
    let images = images_of(elf_with(&[(".text", text), (".eh_frame", frames)]));
    let code = images.of(0);

    let stack: Vec<u8> = words(stack).into_iter().flat_map(u64::to_le_bytes).collect();
    let mut from = words(registers).into_iter().chain(std::iter::repeat(0));
    let mut next = || from.next().unwrap_or_default();
    let registers = if kind & 1 == 0 {
        let mut gpr: [u64; 16] = std::array::from_fn(|_| next());
        gpr[X86_64::RSP] = STACK;
        Registers::X86_64(X86_64 { gpr, rip: next(), fs_base: next() })
    } else {
        Registers::Aarch64(Aarch64 { x: std::array::from_fn(|_| next()), sp: STACK, pc: next() })
    };
    let input = Input {
        stack_top: (kind & 2 != 0).then_some(Avma(STACK + 0x400)),
        stack_limit: (kind & 4 != 0).then_some(Avma(STACK + 0x800)),
        fp_always: kind & 8 != 0,
        max_depth: DEPTH_MAX,
        address_mask: if kind & 16 == 0 { u64::MAX } else { (1 << 47) - 1 },
        ..Input::new(StackBytes { base: Avma(STACK), bytes: &stack }, &code)
    };
    let (mut unwinder, mut frames) = (Unwinder::default(), Frames::default());
    for how in [UnwindMethod::Auto, UnwindMethod::Cfi, UnwindMethod::FramePointer] {
        unwind(how, &registers, &input, &mut unwinder, &mut frames).expect("all code is in images");
        assert!(
            (1..=DEPTH_MAX).contains(&frames.addresses.len())
                && frames.methods.len() == frames.addresses.len()
        );
    }
});

//! Registers, a stack and code of 32-bit Arm from the input: each way of walking follows the
//! instructions, in A32 and in T32, and ends within its depth.
#![no_main]

use std::ops::Range;

use libfuzzer_sys::fuzz_target;
use stackprof::addr::Avma;
use stackprof::arch::{Arm, Registers};
use stackprof::walk::{Code, Frames, UnwindMethod, Input, OtherStack, StackBytes, Unwinder, unwind_on_two};

const TEXT: u64 = 0x8000;
const STACK: u64 = 0x2000_0000;
const DEPTH_MAX: usize = 32;

struct Text<'a> {
    bytes: &'a [u8],
    function: Option<Range<u64>>,
}

impl Code for Text<'_> {
    fn is_code(&self, at: Avma) -> bool {
        self.code(at).is_some()
    }
    fn code(&self, at: Avma) -> Option<&[u8]> {
        self.bytes.get(usize::try_from(at.0.checked_sub(TEXT)?).ok()?..).filter(|bytes| !bytes.is_empty())
    }
    fn function(&self, at: Avma) -> Option<Range<Avma>> {
        self.function.clone().filter(|function| function.contains(&at.0)).map(|f| Avma(f.start)..Avma(f.end))
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&[kind, start, length, stack_words], rest)) = data.split_first_chunk() else { return };
    let (words, bytes) = rest.split_at(rest.len().min(2 * (16 + usize::from(stack_words))));
    // Most words lead into the code or the stack, as those of a real stack do.
    let mut words = words.as_chunks::<2>().0.iter().map(|pair| {
        let value = u64::from(u16::from_le_bytes(*pair));
        match value >> 14 {
            0 | 1 => TEXT + value % (bytes.len() as u64 + 2),
            2 => STACK + value % 0x400,
            _ => 0xffff_0000 | value,
        }
    });
    let mut r: [u64; 16] = std::array::from_fn(|_| words.next().unwrap_or_default());
    r[Arm::SP] = STACK;
    let stack: Vec<u8> = words.flat_map(|word| (word as u32).to_le_bytes()).collect();
    let from = TEXT + 2 * u64::from(start);
    let function = (kind & 1 != 0).then_some(from..from + 2 * u64::from(length));
    let code = Text { bytes, function };
    let input = Input {
        stack_limit: (kind & 2 != 0).then_some(Avma(STACK + 0x800)),
        max_depth: DEPTH_MAX,
        ..Input::new(StackBytes { base: Avma(STACK), bytes: &stack }, &code)
    };
    // Where the process stack pointer may be: in the same memory.
    let process = StackBytes { base: Avma(STACK + 0x200), bytes: stack.get(0x200..).unwrap_or_default() };
    let other = (kind & 16 != 0).then_some(OtherStack { stack: process, limit: None });
    // Told or not, in A32 or in T32.
    let cpsr = (kind & 32 == 0).then_some(if kind & 4 != 0 { 1 << 5 } else { 0 });
    let registers = Registers::Arm(Arm { r, cpsr, m_profile: kind & 8 != 0 });
    let (mut unwinder, mut frames) = (Unwinder::default(), Frames::default());
    for (how, _) in UnwindMethod::ALL {
        unwind_on_two(how, &registers, &input, other, &mut unwinder, &mut frames).expect("all code is in images");
        assert!(
            (1..=DEPTH_MAX).contains(&frames.addresses.len())
                && frames.methods.len() == frames.addresses.len()
        );
    }
});

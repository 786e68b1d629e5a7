//! Tests: unwinding hostile stacks and registers over this test's own image ends, whatever
//! the bytes are. Seeded; a failure prints its seed.

use super::tests::{Rows, STACK, TEXT, row};
use super::*;
use crate::binary::frame_rule::{Cfa, Column};
use crate::walk::StackBytes;

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// A word as damaged stacks have it: near the code, near the stack, or anything.
fn word(random: &mut Random) -> u64 {
    match random.below(4) {
        0 | 1 => TEXT + random.below(520),
        2 => STACK.wrapping_add(random.below(0x900)).wrapping_sub(0x80),
        _ => random.next() >> random.below(64),
    }
}

fn column(random: &mut Random) -> Column {
    let offset = (random.below(400) as i64 - 200) * [1, 8, 8, 1 << 40][random.below(4) as usize];
    let code = |random: &mut Random| (0..random.below(12)).map(|_| random.next() as u8).collect();
    match random.below(8) {
        0 => Column::Undefined,
        1 => Column::Is(offset),
        2 => Column::In(random.below(20) as u8),
        3 => Column::AtExpression(code(random)),
        4 => Column::IsExpression(code(random)),
        5 => Column::Same,
        _ => Column::At(offset),
    }
}

#[test]
fn hostile_rows_stacks_and_registers_end_within_the_depth() {
    for seed in 1..=4000u64 {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut rows = Vec::new();
        for at in 0..512 {
            let cfa = match random.below(3) {
                0 => Cfa::Expression((0..random.below(9)).map(|_| random.next() as u8).collect()),
                _ => Cfa::Register(random.below(20) as u8, random.below(64) as i64 * 8),
            };
            let saved: Vec<_> =
                (0..random.below(4)).map(|_| (random.below(17) as usize, column(&mut random))).collect();
            let mut row = row(cfa, &saved);
            row.signal = random.below(8) == 0;
            if random.below(3) > 0 {
                rows.push((at, row));
            }
        }
        let rows = Rows(rows.into_iter().collect());
        let bytes: Vec<u8> = (0..random.below(256)).flat_map(|_| word(&mut random).to_le_bytes()).collect();
        let mut registers = X86_64 { rip: word(&mut random), ..X86_64::default() };
        registers.gpr = std::array::from_fn(|_| word(&mut random));
        registers.gpr[RSP] = if random.below(4) > 0 { STACK } else { registers.gpr[RSP] };
        let input = Input {
            stack_top: (random.below(2) == 0).then_some(Avma(STACK + 0x800)),
            stack_limit: (random.below(2) == 0).then_some(Avma(STACK + 0x1000)),
            max_depth: 64,
            ..Input::new(StackBytes { base: Avma(registers.gpr[RSP]), bytes: &bytes }, &rows)
        };
        let (mut unwinder, mut out) = (Unwinder::default(), Frames::default());
        for how in [UnwindMethod::Auto, UnwindMethod::Cfi] {
            out.clear();
            unwinder.walk(how, &registers, &input, &mut out);
            assert!((1..=64).contains(&out.len()) && out.methods.len() == out.len(), "seed {seed}");
        }
    }
}

//! Unwinding hostile stacks and registers over this test's own image terminates, whatever the bytes are. Seeded; a
//! failure prints its seed.

use super::tests::{STACK, TEXT, calls, row};
use super::*;
use crate::binary::frame_rule::{Cfa, Column};
use crate::rng::Rng;
use crate::walk::StackBytes;

/// A word of a damaged stack: near the code, near the stack, or anything.
fn word(random: &mut Rng) -> u64 {
    match random.within(0, 3) {
        0 | 1 => TEXT + random.within(0, 519),
        2 => STACK.wrapping_add(random.within(0, 0x8ff)).wrapping_sub(0x80),
        _ => random.next() >> random.within(0, 63),
    }
}

fn column(random: &mut Rng) -> Column {
    let offset = (random.within(0, 399) as i64 - 200) * [1, 8, 8, 1 << 40][random.within(0, 3) as usize];
    let code = |random: &mut Rng| (0..random.within(0, 11)).map(|_| random.next() as u8).collect();
    match random.within(0, 7) {
        0 => Column::Undefined,
        1 => Column::Is(offset),
        2 => Column::In(random.within(0, 19) as u8),
        3 => Column::AtExpression(code(random)),
        4 => Column::IsExpression(code(random)),
        5 => Column::Same,
        _ => Column::At(offset),
    }
}

#[test]
fn hostile_rows_stacks_and_registers_end_within_the_depth() {
    for seed in 1..=4000u64 {
        let mut random = Rng::new(seed);
        let mut rows = Vec::new();
        for at in 0..512 {
            let cfa = match random.within(0, 2) {
                0 => Cfa::Expression((0..random.within(0, 8)).map(|_| random.next() as u8).collect()),
                _ => Cfa::Register(random.within(0, 19) as u8, random.within(0, 63) as i64 * 8),
            };
            let saved: Vec<_> = (0..random.within(0, 3))
                .map(|_| (random.within(0, 16) as usize, column(&mut random)))
                .collect();
            let mut row = row(cfa, &saved);
            row.signal = random.within(0, 7) == 0;
            if random.within(0, 2) > 0 {
                rows.push((at, row));
            }
        }
        let rows = calls(rows);
        let bytes: Vec<u8> =
            (0..random.within(0, 255)).flat_map(|_| word(&mut random).to_le_bytes()).collect();
        let mut registers = X86_64 { rip: word(&mut random), ..X86_64::default() };
        registers.gpr = std::array::from_fn(|_| word(&mut random));
        registers.gpr[RSP] = if random.within(0, 3) > 0 { STACK } else { registers.gpr[RSP] };
        let input = Input {
            stack_top: (random.within(0, 1) == 0).then_some(Avma(STACK + 0x800)),
            stack_limit: (random.within(0, 1) == 0).then_some(Avma(STACK + 0x1000)),
            max_depth: 64,
            ..Input::new(StackBytes { base: Avma(registers.gpr[RSP]), bytes: &bytes }, &rows)
        };
        let (mut unwinder, mut out) = (Unwinder::default(), Frames::default());
        for unwind_method in [UnwindMethod::Auto, UnwindMethod::Cfi] {
            out.clear();
            unwinder.walk(unwind_method, &registers, &input, &mut out);
            assert!((1..=64).contains(&out.len()) && out.methods.len() == out.len(), "seed {seed}");
        }
    }
}

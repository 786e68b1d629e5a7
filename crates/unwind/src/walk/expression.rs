//! DWARF expressions of unwind information. Input: bytes, registers and the copied stack; output: a number.
//! Bounded: a fixed stack, and a limit on operations.
//!
//! Source: DWARF 5, 2.5 and 7.7.1. Only operations allowed in call frame information (6.4.2).

use std::marker::PhantomData;

use super::input::{StepError, Word, is_in_stack, why_not};
use crate::addr::Avma;
use crate::leb128::Leb128;
use crate::walk::Input;

/// Limit on the depth of the value stack.
const VALUES_MAX: usize = 32;
/// Limit on operations of one evaluation: a backward branch may loop forever.
const OPERATIONS_MAX: usize = 256;

/// The inputs of an expression.
pub(super) struct Machine<'a, W: Word> {
    /// The address type.
    pub word: PhantomData<W>,
    /// Registers by DWARF number; the last is the program counter.
    pub registers: &'a [u64],
    /// Lowest address where the frame may have a word: its callees are below.
    pub lowest: Avma,
    pub input: &'a Input<'a>,
}

struct Values {
    values: [u64; VALUES_MAX],
    len: usize,
}

impl Values {
    fn push(&mut self, value: u64) -> Option<()> {
        *self.values.get_mut(self.len)? = value;
        self.len += 1;
        Some(())
    }
    fn pop(&mut self) -> Option<u64> {
        self.len = self.len.checked_sub(1)?;
        Some(self.values[self.len])
    }
    /// The value `depth` below the top.
    fn pick(&self, depth: usize) -> Option<u64> {
        Some(self.values[self.len.checked_sub(depth + 1)?])
    }
}

impl<W: Word> Machine<'_, W> {
    /// Evaluates an expression with `initial` on its stack.
    ///
    /// # Errors
    /// [`StepError::OutsideCopy`] for stack memory above the copied bytes; [`StepError::NotACaller`] for other memory,
    /// unknown operations and malformed expressions.
    pub(super) fn evaluate(&self, code: &[u8], initial: Option<u64>) -> Result<u64, StepError> {
        let mut values = Values { values: [0; VALUES_MAX], len: 0 };
        if let Some(initial) = initial {
            values.push(initial).ok_or(StepError::NotACaller)?;
        }
        let mut at = 0;
        let mut left = OPERATIONS_MAX;
        let mut is_pointer = false;
        while at < code.len() {
            left = left.checked_sub(1).ok_or(StepError::NotACaller)?;
            at = match code.get(at) {
                Some(0x06) => {
                    self.load(&mut values, is_pointer)?;
                    is_pointer = true;
                    at + 1
                }
                _ => self.operation(code, at, &mut values).ok_or(StepError::NotACaller)?,
            };
        }
        values.pop().ok_or(StepError::NotACaller)
    }

    /// deref; `is_pointer`: of a value from memory, which may lead to other memory (that of the stack from which a
    /// fiber of OCaml was resumed).
    fn load(&self, values: &mut Values, is_pointer: bool) -> Result<(), StepError> {
        let at = Avma(values.pop().ok_or(StepError::NotACaller)?);
        let is_elsewhere = is_pointer && !is_in_stack(at, self.input);
        if at < self.lowest && !is_elsewhere {
            return Err(StepError::NotACaller);
        }
        let word = match self.input.read::<W>(at) {
            Some(word) => word,
            None if is_elsewhere => {
                let outer = self.input.outer.and_then(|outer| outer.word(at, 1 << W::SHIFT));
                outer.ok_or(StepError::OtherStack)?
            }
            None => return Err(why_not(at, self.input)),
        };
        values.push(word).ok_or(StepError::NotACaller)
    }

    /// Executes the operation at `at`; returns the offset of the next one.
    fn operation(&self, code: &[u8], at: usize, values: &mut Values) -> Option<usize> {
        let mut operands = Operands { code, at: at + 1 };
        let register = |number: u64| self.registers.get(usize::try_from(number).ok()?).copied();
        let operation = *code.get(at)?;
        match operation {
            // addr, then const8u, const8s
            0x03 => values.push(operands.fixed(1 << W::SHIFT)?)?,
            0x0e | 0x0f => values.push(operands.fixed(8)?)?,
            0x08 => values.push(operands.fixed(1)?)?,
            0x09 => values.push(sign_extended(operands.fixed(1)?, 8))?,
            0x0a => values.push(operands.fixed(2)?)?,
            0x0b => values.push(sign_extended(operands.fixed(2)?, 16))?,
            0x0c => values.push(operands.fixed(4)?)?,
            0x0d => values.push(sign_extended(operands.fixed(4)?, 32))?,
            0x10 => values.push(operands.uleb()?)?,
            0x11 => values.push(operands.sleb()?)?,
            // dup, drop, over, pick, swap, rot
            0x12 => values.push(values.pick(0)?)?,
            0x13 => drop(values.pop()?),
            0x14 => values.push(values.pick(1)?)?,
            0x15 => values.push(values.pick(usize::try_from(operands.fixed(1)?).ok()?)?)?,
            0x16 => {
                let (top, below) = (values.pop()?, values.pop()?);
                values.push(top)?;
                values.push(below)?;
            }
            0x17 => {
                let (first, second, third) = (values.pop()?, values.pop()?, values.pop()?);
                values.push(first)?;
                values.push(third)?;
                values.push(second)?;
            }
            // abs, neg, not
            0x19 => unary(values, |value| value.cast_signed().unsigned_abs())?,
            0x1f => unary(values, u64::wrapping_neg)?,
            0x20 => unary(values, |value| !value)?,
            0x23 => {
                let add = operands.uleb()?;
                unary(values, |value| value.wrapping_add(add))?;
            }
            // bra, skip
            0x28 | 0x2f => {
                let distance = sign_extended(operands.fixed(2)?, 16).cast_signed();
                if operation == 0x2f || values.pop()? != 0 {
                    let target = i64::try_from(operands.at).ok()?.checked_add(distance)?;
                    return usize::try_from(target).ok().filter(|target| *target <= code.len());
                }
            }
            0x1a..=0x2e => {
                let (top, below) = (values.pop()?, values.pop()?);
                values.push(binary(operation, below, top)?)?;
            }
            // lit0..31
            0x30..=0x4f => values.push((operation - 0x30).into())?,
            // breg0..31
            0x70..=0x8f => {
                let offset = operands.sleb()?;
                values.push(register((operation - 0x70).into())?.wrapping_add(offset))?;
            }
            // bregx
            0x92 => {
                let number = operands.uleb()?;
                values.push(register(number)?.wrapping_add(operands.sleb()?))?;
            }
            // nop
            0x96 => {}
            _ => return None,
        }
        Some(operands.at)
    }
}

fn unary(values: &mut Values, apply: impl Fn(u64) -> u64) -> Option<()> {
    let value = values.pop()?;
    values.push(apply(value))
}

fn binary(operation: u8, below: u64, top: u64) -> Option<u64> {
    let (signed_below, signed_top) = (below.cast_signed(), top.cast_signed());
    let shift = |by: u64| u32::try_from(by).ok().filter(|by| *by < 64);
    Some(match operation {
        0x1a => below & top,
        0x1b => signed_below.checked_div(signed_top)?.cast_unsigned(),
        0x1c => below.wrapping_sub(top),
        0x1d => below.checked_rem(top)?,
        0x1e => below.wrapping_mul(top),
        0x21 => below | top,
        0x22 => below.wrapping_add(top),
        0x24 => shift(top).map_or(0, |by| below << by),
        0x25 => shift(top).map_or(0, |by| below >> by),
        0x26 => (signed_below >> shift(top).unwrap_or(63)).cast_unsigned(),
        0x27 => below ^ top,
        0x29 => (signed_below == signed_top).into(),
        0x2a => (signed_below >= signed_top).into(),
        0x2b => (signed_below > signed_top).into(),
        0x2c => (signed_below <= signed_top).into(),
        0x2d => (signed_below < signed_top).into(),
        0x2e => (signed_below != signed_top).into(),
        _ => return None,
    })
}

fn sign_extended(value: u64, bits: u32) -> u64 {
    let unused = 64 - bits;
    ((value << unused).cast_signed() >> unused).cast_unsigned()
}

struct Operands<'a> {
    code: &'a [u8],
    at: usize,
}

impl Operands<'_> {
    fn fixed(&mut self, len: usize) -> Option<u64> {
        let bytes = self.code.get(self.at..self.at + len)?;
        self.at += len;
        let mut word = [0; 8];
        word[..len].copy_from_slice(bytes);
        Some(u64::from_le_bytes(word))
    }

    fn uleb(&mut self) -> Option<u64> {
        self.leb().map(|number| number.bits)
    }

    fn sleb(&mut self) -> Option<u64> {
        self.leb().map(|number| number.signed().cast_unsigned())
    }

    /// A LEB128 number, which may be padded beyond the bytes of 64 bits.
    fn leb(&mut self) -> Option<Leb128> {
        let mut rest = self.code.get(self.at..)?.iter();
        let number = Leb128::read(&mut rest.by_ref().copied(), 11)?;
        self.at = self.code.len() - rest.len();
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walk::StackBytes;
    use crate::walk::text::Text;

    fn evaluate(code: &[u8], initial: Option<u64>, lowest: u64) -> Result<u64, StepError> {
        let mut registers = [0; 17];
        registers[6] = 0x1008; // rbp
        registers[7] = 0x1000; // rsp
        registers[16] = 0x40_100b; // rip
        let words = [
            0x3333u64, // 0xff8, below the stack pointer
            7,         // 0x1000
            0x2222,    // 0x1008
        ];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let no_code = Text::default();
        let input = Input {
            stack_top: Some(Avma(0x9000)),
            max_depth: 9,
            ..Input::new(StackBytes { base: Avma(0xff8), bytes: &bytes }, &no_code)
        };
        let (word, lowest) = (PhantomData::<u64>, Avma(lowest));
        Machine { word, registers: &registers, lowest, input: &input }.evaluate(code, initial)
    }

    fn value(code: &[u8], initial: Option<u64>) -> Option<u64> {
        evaluate(code, initial, 0x1000).ok()
    }

    #[test]
    fn only_a_leaf_has_words_below_the_stack_pointer() {
        // sha512_block_data_order_avx2 of OpenSSL: breg7 -8; deref; plus_uconst 8
        let row = [0x77, 0x78, 0x06, 0x23, 8];
        assert_eq!(evaluate(&row, None, 0x1000 - 128), Ok(0x333b));
        assert_eq!(evaluate(&row, None, 0x1000), Err(StepError::NotACaller));
    }

    #[test]
    fn a_word_above_the_copy_is_distinguished_from_one_off_the_stack() {
        // breg6 N; deref, of realigned frames
        assert_eq!(evaluate(&[0x76, 0x08, 0x06], None, 0x1000), Err(StepError::OutsideCopy));
        assert_eq!(evaluate(&[0x76, 0x80, 0x80, 0x02, 0x06], None, 0x1000), Err(StepError::NotACaller));
    }

    #[test]
    fn expressions_of_linkers_and_compilers() {
        // .plt of GNU ld: breg7 8; breg16 0; lit15; and; lit11; ge; lit3; shl; plus
        let plt = [0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22];
        assert_eq!(value(&plt, None), Some(0x1010));
        // gcc, realigned stack: breg6 0; deref
        assert_eq!(value(&[0x76, 0, 0x06], None), Some(0x2222));
        // breg6 -8; deref
        assert_eq!(value(&[0x76, 0x78, 0x06], None), Some(7));
        // __restore_rt: breg7 160 (two bytes of LEB128)
        assert_eq!(value(&[0x77, 0xa0, 0x01], None), Some(0x10a0));
        assert_eq!(value(&[0x08, 5, 0x22], Some(2)), Some(7));
    }

    #[test]
    fn dwarf_operations_are_signed_where_specified() {
        assert_eq!(value(&[0x09, 0xfe, 0x32, 0x1b], None), Some(u64::MAX));
        assert_eq!(value(&[0x11, 0x7f, 0x30, 0x2d], None), Some(1));
        assert_eq!(value(&[0x31, 0x32, 0x33, 0x17], None), Some(2));
        assert_eq!(value(&[0x31, 0x28, 1, 0, 0x35, 0x36], None), Some(6));
    }

    #[test]
    fn malformed_expressions_have_no_value() {
        for code in [
            &[][..],
            &[0x22],
            &[0x06],
            &[0x77],
            &[0x30, 0x06],       // deref outside the stack
            &[0x31, 0x30, 0x1b], // division by zero
            &[0x2f, 0xfd, 0xff], // skip to itself
            &[0x2f, 0x00, 0x80], // skip out of the code
            &[0x92, 0x50, 0],    // no such register
            &[0xff],
            &[0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1],
        ] {
            assert_eq!(value(code, None), None, "{code:x?}");
        }
        assert_eq!(value(&[0x12; 64], Some(1)), None, "more values than fit");
    }
}

//! Interprets the instructions of an unwind table entry: bytes in, a row out. Bounded by their number; an
//! instruction can only increase the virtual stack pointer.
//!
//! Source: IHI 0038, 10.3, table 4; B4 and B5 of the Armv8.1-M pointer authentication in release 2020Q4.

use crate::binary::frame_rule::{ARM_COLUMNS, Cfa, Column, RowArm};
use crate::leb128::Leb128;

/// Register numbers (AADWARF32, 4.1).
const SP: u8 = 13;
const LR: usize = 14;
const PC: usize = 15;

/// `DW_OP_breg0`, `DW_OP_deref`, `DW_OP_plus_uconst`, `DW_OP_consts`, `DW_OP_plus`.
const BREG0: u8 = 0x70;
const DEREF: u8 = 0x06;
const CONSTS: u8 = 0x11;
const PLUS: u8 = 0x22;

/// A memory slot: a register of the frame plus bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Slot {
    register: u8,
    offset: i64,
}

/// The base of the virtual stack pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Base {
    /// A register of the frame.
    Register(u8),
    /// A word that was popped.
    Word(Slot),
}

struct Machine {
    base: Base,
    /// Bytes from the base to the virtual stack pointer.
    offset: i64,
    popped: [Option<Slot>; ARM_COLUMNS],
}

impl Machine {
    /// Pops the registers of a mask, lowest first.
    fn pop(&mut self, mask: u16) -> Option<()> {
        // After popping the stack pointer itself, nothing can be popped.
        let Base::Register(register) = self.base else { return None };
        let mut loaded = None;
        for number in (0..ARM_COLUMNS).filter(|number| mask >> number & 1 == 1) {
            let slot = Slot { register, offset: self.offset };
            self.popped[number] = Some(slot);
            self.offset += 4;
            if number == usize::from(SP) {
                loaded = Some(slot);
            }
        }
        if let Some(slot) = loaded {
            (self.base, self.offset) = (Base::Word(slot), 0);
        }
        Some(())
    }

    /// Sets the virtual stack pointer to the current value of a register.
    fn set(&mut self, register: u8) {
        let popped = self.popped.get(usize::from(register)).copied().flatten();
        self.base = popped.map_or(Base::Register(register), Base::Word);
        self.offset = 0;
    }

    fn row(&self) -> Option<RowArm> {
        let cfa = match self.base {
            Base::Register(register) => Cfa::Register(register, self.offset),
            Base::Word(slot) => {
                let mut code = breg(slot);
                code.extend([DEREF, CONSTS]);
                sleb(self.offset, &mut code);
                code.push(PLUS);
                Cfa::Expression(code.into())
            }
        };
        let mut row = RowArm::new(cfa);
        for (number, slot) in self.popped.iter().enumerate() {
            let Some(slot) = slot else { continue };
            if number == usize::from(SP) {
                continue;
            }
            // The return address is the saved program counter, if there is one.
            let column = if number == PC { LR } else { number };
            row.columns[column] = match self.base {
                Base::Register(register) if register == slot.register => {
                    Column::At(slot.offset.checked_sub(self.offset)?)
                }
                _ => Column::AtExpression(breg(*slot).into()),
            };
        }
        Some(row)
    }
}

/// The row of these instructions; `None` if they refuse to unwind, are reserved, or truncated.
pub(super) fn row(code: &[u8]) -> Option<RowArm> {
    let mut machine = Machine { base: Base::Register(SP), offset: 0, popped: [None; ARM_COLUMNS] };
    let mut bytes = code.iter().copied();
    while let Some(byte) = bytes.next() {
        let low = i64::from(byte & 0x3f);
        match byte {
            0x00..=0x3f => machine.offset += (low << 2) + 4,
            0x40..=0x7f => machine.offset -= (low << 2) + 4,
            0x80..=0x8f => {
                let mask = u16::from(byte & 0xf) << 12 | u16::from(bytes.next()?) << 4;
                // Refuse to unwind.
                if mask == 0 {
                    return None;
                }
                machine.pop(mask)?;
            }
            // Reserved for moves between registers.
            0x9d | 0x9f => return None,
            0x90..=0x9e => machine.set(byte & 0xf),
            0xa0..=0xaf => {
                // r4 to r[4+n], and r14.
                let mask = ((2u16 << (byte & 7)) - 1) << 4;
                machine.pop(mask | u16::from(byte >> 3 & 1) << 14)?;
            }
            // Finish.
            0xb0 => break,
            0xb1 => {
                let mask = bytes.next()?;
                if mask == 0 || mask > 0xf {
                    return None;
                }
                machine.pop(mask.into())?;
            }
            0xb2 => machine.offset += 0x204 + (uleb(&mut bytes)? << 2),
            // VFP registers saved by FSTMX: one word more.
            0xb3 => machine.offset += registers(bytes.next()?) * 8 + 4,
            // The return address authentication code.
            0xb4 => machine.offset += 4,
            // The stack pointer at this point is the signing modifier.
            0xb5 => {}
            0xb8..=0xbf => machine.offset += (i64::from(byte & 7) + 1) * 8 + 4,
            // WMMX registers: data, then control.
            0xc0..=0xc5 => machine.offset += (i64::from(byte & 7) + 1) * 8,
            0xc6 => machine.offset += registers(bytes.next()?) * 8,
            0xc7 => {
                let mask = bytes.next()?;
                if mask == 0 || mask > 0xf {
                    return None;
                }
                machine.offset += i64::from(mask.count_ones()) * 4;
            }
            // VFP registers saved by VPUSH: from d16, d0 or d8.
            0xc8 | 0xc9 => machine.offset += registers(bytes.next()?) * 8,
            0xd0..=0xd7 => machine.offset += (i64::from(byte & 7) + 1) * 8,
            _ => return None,
        }
    }
    machine.row()
}

/// The number of registers from a byte with the first register and the count minus one.
fn registers(byte: u8) -> i64 {
    i64::from(byte & 0xf) + 1
}

/// An unsigned number of at most 32 bits.
fn uleb(bytes: &mut impl Iterator<Item = u8>) -> Option<i64> {
    Leb128::read(bytes, 5).map(|number| number.bits.cast_signed())
}

fn breg(slot: Slot) -> Vec<u8> {
    let mut code = vec![BREG0 + slot.register];
    sleb(slot.offset, &mut code);
    code
}

fn sleb(mut value: i64, into: &mut Vec<u8>) {
    loop {
        let byte = (value & 0x7f) as u8;
        value >>= 7;
        if value == 0 && byte & 0x40 == 0 || value == -1 && byte & 0x40 != 0 {
            into.push(byte);
            return;
        }
        into.push(byte | 0x80);
    }
}

//! The rule for a frame's caller at one instruction: a leaf that images and walk share. [`Row`] has all of the unwind
//! information, [`FrameRule`] its packed common form.

use std::fmt::Debug;
use std::ops::IndexMut;

/// Columns of a [`Row`]: the 16 general registers of x86_64 by DWARF number, then the
/// return address (System V AMD64 ABI, figure 3.36).
pub const COLUMNS: usize = 17;

/// The column of the return address.
pub const RETURN_ADDRESS: usize = 16;

/// Columns of a row of aarch64: x0 to x30 and the stack pointer by DWARF number, then the
/// program counter, which only signal frames have apart from x30 (AADWARF64, 4.1).
pub const AARCH64_COLUMNS: usize = 33;

/// The column of the program counter that a signal interrupted, on aarch64.
pub const AARCH64_PC: usize = 32;

/// Columns of a row of i386: the 8 general registers by DWARF number, then the return address (System
/// V i386 ABI, table 2.14).
pub const X86_COLUMNS: usize = 9;

/// The column of the return address, on i386.
pub const X86_RETURN_ADDRESS: usize = 8;

/// Columns of a row of 32-bit Arm: r0 to r15 by DWARF number (AADWARF32, 4.1). The return address is
/// in the column of r14; only signal frames have one of their own in that of r15.
pub const ARM_COLUMNS: usize = 16;

/// The columns of a [`Row`]: one for each register of a processor that a row may name.
pub trait Columns:
    Clone + Debug + PartialEq + Eq + IndexMut<usize, Output = Column> + AsRef<[Column]> + AsMut<[Column]>
{
    /// The values of these registers.
    type Values: Copy + Debug + IndexMut<usize, Output = u64> + AsRef<[u64]> + AsMut<[u64]>;

    /// How many they are.
    const COUNT: usize;

    /// Every register of the caller is still in its register.
    fn same() -> Self;

    /// A row with these columns; `None` for one of another processor.
    fn row(any: AnyRow) -> Option<Row<Self>>;
}

/// A row, by processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnyRow {
    /// x86_64.
    X86_64(Box<Row>),
    /// aarch64.
    Aarch64(Box<RowAarch64>),
    /// i386.
    X86(Box<RowX86>),
    /// 32-bit Arm.
    Arm(Box<RowArm>),
}

macro_rules! columns {
    ($count:expr, $processor:ident) => {
        impl Columns for [Column; $count] {
            type Values = [u64; $count];

            const COUNT: usize = $count;

            fn same() -> [Column; $count] {
                [const { Column::Same }; $count]
            }

            fn row(any: AnyRow) -> Option<Row<[Column; $count]>> {
                match any {
                    AnyRow::$processor(row) => Some(*row),
                    _ => None,
                }
            }
        }

        impl From<Row<[Column; $count]>> for AnyRow {
            fn from(row: Row<[Column; $count]>) -> AnyRow {
                AnyRow::$processor(Box::new(row))
            }
        }
    };
}

columns!(COLUMNS, X86_64);
columns!(AARCH64_COLUMNS, Aarch64);
columns!(X86_COLUMNS, X86);
columns!(ARM_COLUMNS, Arm);

/// A full row of unwind information; of x86_64 unless it has another processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row<C: Columns = [Column; COLUMNS]> {
    /// Where the canonical frame address (CFA) is: the stack pointer before the call.
    pub cfa: Cfa,
    /// Where each register of the caller is.
    pub columns: C,
    /// The "caller" was interrupted by a signal: its registers are all exact, and its
    /// program counter is one, not a return address.
    pub signal: bool,
}

/// How the CFA is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cfa {
    /// A register by DWARF number plus bytes.
    Register(u8, i64),
    /// The value of a DWARF expression.
    Expression(Box<[u8]>),
}

/// Where a register of the caller is (DWARF 5, 6.4.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Column {
    /// In its register still.
    #[default]
    Same,
    /// Nowhere. For the return address: there is no caller.
    Undefined,
    /// In memory, bytes from the CFA.
    At(i64),
    /// It is the CFA plus bytes.
    Is(i64),
    /// In another register.
    In(u8),
    /// In memory, at the value of a DWARF expression that begins with the CFA.
    AtExpression(Box<[u8]>),
    /// It is the value of such an expression.
    IsExpression(Box<[u8]>),
}

/// Placeholder for the return address of a function that was entered from another stack, without a call: no address
/// of code.
pub const CALLED_FROM_ELSEWHERE: Column = Column::Is(0);

/// A row of aarch64.
pub type RowAarch64 = Row<[Column; AARCH64_COLUMNS]>;

/// A row of i386.
pub type RowX86 = Row<[Column; X86_COLUMNS]>;

/// A row of 32-bit Arm.
pub type RowArm = Row<[Column; ARM_COLUMNS]>;

/// An entry of the tables of 32-bit Arm's exception handling ABI, for the body of its functions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TableSays {
    /// How the caller is found.
    Row(Box<RowArm>),
    /// That it cannot be found: start code, code in assembly, or what no entry describes.
    CannotUnwind,
    /// Nothing that is understood: reserved or damaged instructions, or "refuse to unwind".
    Refused,
}

impl<C: Columns> Row<C> {
    /// A row that saves nothing.
    #[must_use]
    pub fn new(cfa: Cfa) -> Row<C> {
        Row { cfa, columns: C::same(), signal: false }
    }
}

/// Unwind information for the body of a function. Its prologue and epilogue, which Mach-O does not describe, are read
/// from the instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// The row in the body.
    pub row: AnyRow,
    /// By compact unwind information, otherwise DWARF.
    pub compact: bool,
}

impl Row {
    /// The row in its ordinary form, if it has that.
    #[must_use]
    pub fn ordinary(&self) -> Option<FrameRule> {
        const RBP: u8 = 6;
        const RSP: u8 = 7;
        // The interrupted caller of a signal frame is in its saved context, not below the CFA.
        if self.signal {
            return None;
        }
        let (base, cfa_offset) = match self.cfa {
            Cfa::Register(RSP, offset) => (CfaBase::StackPointer, offset),
            Cfa::Register(RBP, offset) => (CfaBase::FramePointer, offset),
            _ => return None,
        };
        let frame_pointer_at = match self.columns[usize::from(RBP)] {
            Column::At(at) => Some(at),
            Column::Same | Column::Undefined => None,
            _ => return None,
        };
        let return_at = match self.columns[RETURN_ADDRESS] {
            Column::At(at) => Some(at),
            Column::Undefined => None,
            _ => return None,
        };
        Some(FrameRule { base, cfa_offset, frame_pointer_at, return_at })
    }
}

/// A row of unwind information in the only form that compilers use for ordinary code:
/// the canonical frame address (CFA, the stack pointer before the call) is a register
/// plus an offset, and what was saved lies at offsets from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRule {
    /// What the CFA is counted from.
    pub base: CfaBase,
    /// Bytes from there to the CFA.
    pub cfa_offset: i64,
    /// Where the caller's frame pointer was saved, bytes from the CFA; `None`: it is in
    /// its register still.
    pub frame_pointer_at: Option<i64>,
    /// Where the return address is, bytes from the CFA; `None`: there is no caller.
    pub return_at: Option<i64>,
}

/// The register that a CFA is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CfaBase {
    /// Stack pointer.
    StackPointer,
    /// Frame pointer.
    FramePointer,
}

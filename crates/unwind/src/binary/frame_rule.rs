//! The rule for a frame's caller at one instruction: a leaf module that images and walk share. [`Row`] has all of
//! the unwind information, [`FrameRule`] its packed common form.

use std::fmt::Debug;
use std::ops::IndexMut;

/// Number of columns of a [`Row`]: the 16 general registers of x86_64 by DWARF number, then the return address
/// (System V AMD64 ABI, figure 3.36).
pub const COLUMNS: usize = 17;

/// The column of the return address.
pub const RETURN_ADDRESS: usize = 16;

/// Number of columns of an aarch64 row: x0 to x30 and the stack pointer by DWARF number, then the program counter,
/// which only signal frames have separate from x30 (AADWARF64, 4.1).
pub const AARCH64_COLUMNS: usize = 33;

/// The column of the interrupted program counter in signal frames, on aarch64.
pub const AARCH64_PC: usize = 32;

/// Number of columns of an i386 row: the 8 general registers by DWARF number, then the return address (System V
/// i386 ABI, table 2.14).
pub const X86_COLUMNS: usize = 9;

/// The column of the return address, on i386.
pub const X86_RETURN_ADDRESS: usize = 8;

/// Number of columns of a 32-bit Arm row: r0 to r15 by DWARF number (AADWARF32, 4.1). The return address is in the
/// column of r14; only signal frames have a separate one in that of r15.
pub const ARM_COLUMNS: usize = 16;

/// The columns of a [`Row`]: one for each register of a processor that rows refer to.
pub trait Columns:
    Clone + Debug + PartialEq + Eq + IndexMut<usize, Output = Column> + AsRef<[Column]> + AsMut<[Column]>
{
    /// The values of these registers.
    type Values: Copy + Debug + IndexMut<usize, Output = u64> + AsRef<[u64]> + AsMut<[u64]>;

    /// Number of columns.
    const COUNT: usize;

    /// All registers of the caller unchanged.
    fn same() -> Self;

    /// The row with these columns; `None` for another processor.
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

/// A full row of unwind information; for x86_64 by default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row<C: Columns = [Column; COLUMNS]> {
    /// The canonical frame address (CFA): the stack pointer before the call.
    pub cfa: Cfa,
    /// The place of each of the caller's registers.
    pub columns: C,
    /// The "caller" was interrupted by a signal: its registers are all exact, and its program counter is no return
    /// address.
    pub signal: bool,
}

/// The rule for the CFA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cfa {
    /// A register by DWARF number plus bytes.
    Register(u8, i64),
    /// The value of a DWARF expression.
    Expression(Box<[u8]>),
}

/// The place of a register of the caller (DWARF 5, 6.4.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Column {
    /// Unchanged, in its register.
    #[default]
    Same,
    /// Unrecoverable. For the return address: there is no caller.
    Undefined,
    /// In memory, at the CFA plus bytes.
    At(i64),
    /// The CFA plus bytes.
    Is(i64),
    /// In another register.
    In(u8),
    /// In memory, at the value of a DWARF expression with the CFA as initial stack.
    AtExpression(Box<[u8]>),
    /// The value of a DWARF expression with the CFA as initial stack.
    IsExpression(Box<[u8]>),
}

/// Placeholder for the return address of a function entered from another stack without a call: no code address.
pub const CALLED_FROM_ELSEWHERE: Column = Column::Is(0);

/// A row of aarch64.
pub type RowAarch64 = Row<[Column; AARCH64_COLUMNS]>;

/// A row of i386.
pub type RowX86 = Row<[Column; X86_COLUMNS]>;

/// A row of 32-bit Arm.
pub type RowArm = Row<[Column; ARM_COLUMNS]>;

/// An entry of the tables of 32-bit Arm's exception handling ABI, for function bodies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExidxEntry {
    /// The rule for the caller.
    Row(Box<RowArm>),
    /// No caller can be found: start code, assembly, or code without an entry.
    CannotUnwind,
    /// Reserved or malformed instructions, or "refuse to unwind".
    Refused,
}

impl<C: Columns> Row<C> {
    /// A row that saves no registers.
    #[must_use]
    pub fn new(cfa: Cfa) -> Row<C> {
        Row { cfa, columns: C::same(), signal: false }
    }
}

/// Unwind information for the body of a function. Mach-O does not describe prologue and epilogue, which are
/// decoded from instructions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    /// The row in the body.
    pub row: AnyRow,
    /// From compact unwind information, otherwise DWARF.
    pub compact: bool,
}

impl Row {
    /// The row in ordinary form, if it fits.
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

/// A row of unwind information in the only form that compilers use for ordinary code: the canonical frame address
/// (CFA, the stack pointer before the call) is a register plus an offset, and saved registers are at offsets from
/// it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRule {
    /// The base register of the CFA.
    pub base: CfaBase,
    /// Bytes from the base to the CFA.
    pub cfa_offset: i64,
    /// Offset of the caller's frame pointer from the CFA in bytes; `None`: it is unchanged in its register.
    pub frame_pointer_at: Option<i64>,
    /// Offset of the return address from the CFA in bytes; `None`: there is no caller.
    pub return_at: Option<i64>,
}

/// The base register of a CFA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CfaBase {
    /// Stack pointer.
    StackPointer,
    /// Frame pointer.
    FramePointer,
}

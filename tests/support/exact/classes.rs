//! The kind of instruction at which a walk failed. Input: the images and the address of the frame without a
//! caller; output: one of [`CLASSES`]. Only names for a table: nothing is decided by them.

use stackprof::addr::Avma;
use stackprof::arch::Arch;
use stackprof::binary::frame_rule::{COLUMNS, Cfa, Column, Columns, Row, X86_COLUMNS};
use stackprof::images::Images;
use stackprof::walk::Code;

/// Bytes before and after an address to search for a stack switch.
const SWITCH_BYTES: u64 = 48;

const RBX: u8 = 3;

/// The class of the frame at `at`; `is_leaf`: it is the executing one.
pub(crate) fn class(images: &Images, at: Avma, is_leaf: bool, arch: Arch) -> &'static str {
    if arch == Arch::X86 {
        return class_of(
            images.of(0).row(at).and_then(<[Column; X86_COLUMNS]>::row).as_ref(),
            images,
            at,
            is_leaf,
        );
    }
    class_of(images.of(0).row(at).and_then(<[Column; COLUMNS]>::row).as_ref(), images, at, is_leaf)
}

fn class_of<C: Columns>(row: Option<&Row<C>>, images: &Images, at: Avma, is_leaf: bool) -> &'static str {
    let Some(code) = images.of(0).code(at) else { return "outside images" };
    if is_leaf && is_plt(code) {
        return "PLT";
    }
    match row {
        None => return "no unwind information",
        Some(row) if row.signal => return "signal frame",
        Some(row) if matches!(row.cfa, Cfa::Register(RBX, _)) => return "lazy resolver",
        Some(_) => {}
    }
    if switches_stacks(images, at) {
        return "context switch";
    }
    if row.is_some_and(|row| {
        matches!(row.cfa, Cfa::Expression(_))
            || row.columns.as_ref().iter().any(|column| matches!(column, Column::AtExpression(_)))
    }) {
        return "realigned stack";
    }
    match (is_leaf, code) {
        (false, _) => "caller",
        // push; endbr64; sub $N,%rsp; mov %rsp,%rbp
        (_, [0x50..=0x57, ..] | [0x41, 0x50..=0x57, ..] | [0xf3, 0x0f, 0x1e, 0xfa, ..])
        | (_, [0x48, 0x83 | 0x81, 0xec, ..] | [0x48, 0x89, 0xe5, ..]) => "prologue",
        // pop; ret; leave; add $N,%rsp
        (_, [0x58..=0x5f, ..] | [0x41, 0x58..=0x5f, ..] | [0xc2 | 0xc3 | 0xc9, ..] | [0xf3, 0xc3, ..])
        | (_, [0x48, 0x83 | 0x81, 0xc4, ..]) => "epilogue",
        _ => "body",
    }
}

/// `jmp *slot(%rip)`, with or without `bnd`; the lazy binding stub: `push $N; jmp`.
fn is_plt(code: &[u8]) -> bool {
    let code = code.strip_prefix(&[0xf3, 0x0f, 0x1e, 0xfa]).unwrap_or(code);
    matches!(code, [0xff, 0x25 | 0x35, ..] | [0xf2, 0xff, 0x25, ..] | [0x68, _, _, _, _, 0xe9 | 0xf2, ..])
}

/// Whether nearby code loads the stack pointer from memory or from a register other than rbp.
fn switches_stacks(images: &Images, at: Avma) -> bool {
    let start = Avma(at.0.saturating_sub(SWITCH_BYTES));
    let Some(code) = images.of(0).code(start).or_else(|| images.of(0).code(at)) else { return false };
    let near = &code[..code.len().min(2 * SWITCH_BYTES as usize)];
    near.windows(3).any(|bytes| match bytes {
        // mov %register,%rsp
        [0x48 | 0x4c, 0x89, modrm] => modrm & 0xc7 == 0xc4 && *modrm != 0xec && *modrm != 0xe4,
        // mov memory,%rsp; mov %register,%rsp
        [0x48 | 0x49, 0x8b, modrm] => modrm >> 3 & 7 == 4 && *modrm != 0xe5,
        _ => false,
    })
}

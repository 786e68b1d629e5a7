//! The allocator functions of a program: their entries, their roles, and how calls pass their arguments.
//! Pure.
//!
//! Sources of facts: newlib's `reent.h` (`_malloc_r` and others take the thread's structure first),
//! FreeRTOS's `portable.h` (`pvPortMalloc`, `vPortFree`); calls by AAPCS32 6.1, AAPCS64 6.8 and the System V
//! ABI 3.2.3.

use crate::addr::Svma;
use crate::arch::Registers;
use crate::binary::elf::entries;
use crate::sources::allocator::AllocatorRole;

/// An allocator function of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AllocatorFunction {
    /// Its entry as the file states it; on 32-bit Arm the last bit marks T32.
    pub(super) entry: Svma,
    pub(super) role: AllocatorRole,
}

/// Functions with well-known names.
const KNOWN: [(&str, AllocatorRole); 12] = [
    ("malloc", AllocatorRole::Allocate { bytes: 0 }),
    ("calloc", AllocatorRole::AllocateItems { count: 0, bytes: 1 }),
    ("realloc", AllocatorRole::Reallocate { block: 0, bytes: 1 }),
    ("free", AllocatorRole::Free { block: 0 }),
    ("_malloc_r", AllocatorRole::Allocate { bytes: 1 }),
    ("_calloc_r", AllocatorRole::AllocateItems { count: 1, bytes: 2 }),
    ("_realloc_r", AllocatorRole::Reallocate { block: 1, bytes: 2 }),
    ("_free_r", AllocatorRole::Free { block: 1 }),
    ("pvPortMalloc", AllocatorRole::Allocate { bytes: 0 }),
    ("pvPortCalloc", AllocatorRole::AllocateItems { count: 0, bytes: 1 }),
    ("pvPortRealloc", AllocatorRole::Reallocate { block: 0, bytes: 1 }),
    ("vPortFree", AllocatorRole::Free { block: 0 }),
];

/// Names of a custom allocator's functions, from options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllocatorNames {
    /// Functions that return a block of the size in their first argument.
    pub allocate: Vec<String>,
    /// Functions that free the block in their first argument.
    pub free: Vec<String>,
}

/// Finds the allocator functions of a program: the named ones, otherwise the well-known ones.
///
/// # Errors
/// One line: the program lacks a name, or has no function that allocates or none that frees.
pub(super) fn find(file: &[u8], names: &AllocatorNames) -> Result<Vec<AllocatorFunction>, String> {
    let named = names.allocate.iter().map(|name| (name.as_str(), AllocatorRole::Allocate { bytes: 0 }));
    let named = named.chain(names.free.iter().map(|name| (name.as_str(), AllocatorRole::Free { block: 0 })));
    let named: Vec<(&str, AllocatorRole)> = named.collect();
    let is_known = named.is_empty();
    let wanted = if is_known { KNOWN.to_vec() } else { named };
    let entries = entries::find(file, &wanted.iter().map(|(name, _)| *name).collect::<Vec<_>>());
    let mut functions: Vec<AllocatorFunction> = Vec::new();
    for ((name, role), entry) in wanted.into_iter().zip(entries) {
        match entry {
            // Of several names for one function, the first counts.
            Some(entry) if functions.iter().all(|known| known.entry != entry.svma) => {
                functions.push(AllocatorFunction { entry: entry.svma, role });
            }
            Some(_) => {}
            None if is_known => {}
            None => return Err(format!("it has no function `{name}`; check the name with nm")),
        }
    }
    let frees = |function: &AllocatorFunction| matches!(function.role, AllocatorRole::Free { .. });
    let next = "name its functions with --alloc NAME and --free NAME";
    if !functions.iter().any(|function| !frees(function)) {
        return Err(format!("no allocator was found in it; {next}"));
    }
    if !functions.iter().any(frees) {
        return Err(format!("no function was found in it that frees blocks; {next}"));
    }
    Ok(functions)
}

/// Offset in bytes from the stack pointer at the function's entry to an argument; `None` if it is in a
/// register.
pub(super) fn stack_offset(registers: &Registers, argument: usize) -> Option<u64> {
    match registers {
        Registers::X86(_) => Some(4 * (argument as u64 + 1)),
        _ => None,
    }
}

/// An argument that is in a register at the function's entry. Allocator functions have at most four.
pub(super) fn argument(registers: &Registers, number: usize) -> Option<u64> {
    /// rdi, rsi, rdx and rcx by DWARF number.
    const X86_64_ARGUMENTS: [usize; 4] = [5, 4, 1, 2];
    match registers {
        Registers::X86_64(x86_64) => Some(x86_64.gpr[*X86_64_ARGUMENTS.get(number)?]),
        Registers::Aarch64(aarch64) => aarch64.x.get(number).copied(),
        Registers::Arm(arm) => arm.r.get(number).copied(),
        Registers::X86(_) => None,
    }
}

/// Return value of a function that has just returned.
pub(super) fn result(registers: &Registers) -> u64 {
    match registers {
        Registers::X86_64(x86_64) => x86_64.gpr[0],
        Registers::X86(x86) => x86.gpr[0],
        Registers::Aarch64(aarch64) => aarch64.x[0],
        Registers::Arm(arm) => arm.r[0],
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::arch::{Arm, X86_64};

    #[test]
    fn arguments_are_found_by_calling_convention() {
        let mut gpr = [0; 16];
        (gpr[5], gpr[4], gpr[0]) = (24, 3, 0x5000);
        let x86_64 = Registers::X86_64(X86_64 { gpr, rip: 0, fs_base: 0 });
        assert_eq!(
            (argument(&x86_64, 0), argument(&x86_64, 1), result(&x86_64)),
            (Some(24), Some(3), 0x5000)
        );
        let mut arm = Arm::default();
        (arm.r[0], arm.r[1]) = (7, 8);
        let arm = Registers::Arm(arm);
        assert_eq!((argument(&arm, 0), argument(&arm, 1), result(&arm)), (Some(7), Some(8), 7));
        assert_eq!(argument(&Registers::X86(Default::default()), 0), None);
        assert_eq!(stack_offset(&Registers::X86(Default::default()), 1), Some(8));
    }

    #[test]
    fn a_program_without_an_allocator_gets_the_next_step() {
        let refused = |names: &AllocatorNames| find(b"\x7fELF", names).unwrap_err();
        assert!(refused(&AllocatorNames::default()).ends_with("--alloc NAME and --free NAME"));
        let names = AllocatorNames { allocate: vec!["take".to_owned()], free: Vec::new() };
        assert!(refused(&names).contains("no function `take`"));
    }
}

//! Addresses, with a type for each address space.
//!
//! Separate types keep the spaces apart: mixing them "works until the first program that is not loaded where it
//! was linked". Input and output: plain numbers.

use std::fmt;
use std::ops::{Add, Range, Sub};

/// An actual virtual memory address: a location in the target's address space as it runs.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Avma(pub u64);

/// A stated virtual memory address: a location as the image's file states it (ELF `p_vaddr`, Mach-O `vmaddr`).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Svma(pub u64);

impl Avma {
    /// Whether the address is in the kernel's half of the address space: on 64-bit processors, with the highest
    /// bit set (Documentation/arch/x86/x86_64/mm.rst, Documentation/arch/arm64/memory.rst).
    #[must_use]
    pub fn is_kernel(self) -> bool {
        self.0 >> 63 == 1 && !self.is_vsyscall()
    }

    /// Whether the address is in the vsyscall page, which the x86_64 kernel emulates for programs
    /// (Documentation/arch/x86/x86_64/mm.rst: "legacy vsyscall ABI") and which lies among kernel addresses.
    #[must_use]
    pub fn is_vsyscall(self) -> bool {
        const PAGE: u64 = 0xffff_ffff_ff60_0000;
        self.0 & !0xfff == PAGE
    }
}

/// Base of the pseudo addresses for exception frames of M-profile cores; the exception number is added. No program
/// has these addresses on any processor.
const EXCEPTIONS: u64 = 0x7fff_ffff_0000_0000;
/// Exception numbers have nine bits (Armv7-M Architecture Reference Manual, B1.4.2).
const EXCEPTION_MAX: u32 = 0x1ff;

impl Avma {
    /// The pseudo address of the exception frame between a handler and the code that it interrupted; 0 if the
    /// number is unknown.
    #[must_use]
    pub fn exception(number: u32) -> Avma {
        Avma(EXCEPTIONS + u64::from(number.min(EXCEPTION_MAX)))
    }

    /// The exception number of a pseudo address.
    #[must_use]
    pub fn as_exception(self) -> Option<u32> {
        let number = u32::try_from(self.0.checked_sub(EXCEPTIONS)?).ok()?;
        (number <= EXCEPTION_MAX).then_some(number)
    }
}

/// Address for code look-ups: inside the instruction that executes or calls, so a return address minus one.
/// Created by [`CodeAddress::lookup`].
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LookupAvma(pub u64);

impl LookupAvma {
    /// The address as a plain [`Avma`].
    #[must_use]
    #[inline(always)]
    pub fn at(self) -> Avma {
        Avma(self.0)
    }
}

impl From<LookupAvma> for u64 {
    #[inline(always)]
    fn from(address: LookupAvma) -> u64 {
        address.0
    }
}

/// The origin of a code address in a stack, which decides how it is looked up.
///
/// A return address names the instruction *after* the call. When the call was the
/// last instruction of its function (a `noreturn` callee), that address already
/// belongs to the next function, so look-ups use the address minus one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodeAddress {
    /// The program counter of a thread, or of a frame that a signal interrupted.
    Pc(Avma),
    /// An address that a call pushed (or that the link register holds).
    Return(Avma),
}

impl CodeAddress {
    /// The address itself.
    #[must_use]
    #[inline(always)]
    pub fn at(self) -> Avma {
        let (CodeAddress::Pc(at) | CodeAddress::Return(at)) = self;
        at
    }

    /// Whether it is a return address.
    #[must_use]
    #[inline(always)]
    pub fn is_return(self) -> bool {
        matches!(self, CodeAddress::Return(_))
    }

    /// The address to look up: inside the instruction that executes or calls.
    #[must_use]
    #[inline]
    pub fn lookup(self) -> LookupAvma {
        match self {
            CodeAddress::Pc(avma) => LookupAvma(avma.0),
            CodeAddress::Return(avma) => LookupAvma(avma.0.wrapping_sub(1)),
        }
    }
}

macro_rules! address {
    ($type:ident) => {
        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($type), "({:#x})"), self.0)
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
        impl Add<u64> for $type {
            type Output = $type;
            /// Wraps: the operand may come from a hostile file; range checks follow the addition.
            fn add(self, bytes: u64) -> $type {
                $type(self.0.wrapping_add(bytes))
            }
        }
        impl Sub<$type> for $type {
            type Output = u64;
            fn sub(self, other: $type) -> u64 {
                self.0.wrapping_sub(other.0)
            }
        }
        impl $type {
            /// `self + bytes`, or `None` past the end of the address space.
            #[must_use]
            pub fn checked_add(self, bytes: u64) -> Option<$type> {
                self.0.checked_add(bytes).map($type)
            }
        }
    };
}
address!(Avma);
address!(Svma);
address!(LookupAvma);

/// Number of bytes in an address range; 0 for a reversed one.
#[must_use]
pub fn len(range: &Range<Avma>) -> u64 {
    range.end.0.saturating_sub(range.start.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_return_address_is_looked_up_inside_its_call() {
        assert_eq!(CodeAddress::Return(Avma(0x1005)).lookup(), LookupAvma(0x1004));
        assert_eq!(CodeAddress::Pc(Avma(0x1005)).lookup(), LookupAvma(0x1005));
    }

    #[test]
    fn the_vsyscall_page_is_not_the_kernels() {
        let is_kernel = |at: u64| (Avma(at).is_kernel(), Avma(at).is_vsyscall());
        assert_eq!(is_kernel(0xffff_ffff_ff60_0400), (false, true));
        assert_eq!(is_kernel(0xffff_ffff_ff60_1000), (true, false));
        assert_eq!(is_kernel(0xffff_ffff_8100_0000), (true, false));
        assert_eq!(is_kernel(0x7fff_ff60_0400), (false, false));
    }

    #[test]
    fn reversed_and_overflowing_ranges_have_no_length() {
        assert_eq!(CodeAddress::Return(Avma(0)).lookup(), LookupAvma(u64::MAX));
        assert_eq!(Avma(u64::MAX).checked_add(1), None);
        assert_eq!(len(&(Avma(5)..Avma(3))), 0);
    }
}

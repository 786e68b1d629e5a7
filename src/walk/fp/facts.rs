//! What walks by frame pointers need to know about return addresses, cached: whether there is
//! code that a frame returns to. Input: addresses, `Code`; output: look-up addresses. Void when the images
//! change.

use crate::addr::{Avma, CodeAddress, LookupAvma};
use crate::walk::Code;
use crate::walk::processor::Processor;
use crate::walk::table::Table;

/// What is known about return addresses.
#[derive(Clone, Debug, Default)]
pub(in crate::walk) struct Facts {
    returns: Table<ReturnsTo>,
}

/// What a return address leads to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReturnsTo {
    #[default]
    NoCode,
    /// Code in which the call is.
    Caller,
    /// The trampoline that handlers of signals return to, which called nothing.
    Trampoline,
}

impl Facts {
    pub(in crate::walk) fn clear(&mut self) {
        self.returns.clear();
    }

    /// Forgets what was learned about the addresses for which `is_gone` returns true.
    pub(in crate::walk) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.returns.retain(|lookup| !is_gone(Avma(lookup)));
    }

    /// The look-up address of the frame that a return address belongs to; `None` where there is no code.
    #[inline(always)]
    pub(in crate::walk) fn lookup<P: Processor>(
        &mut self,
        address: Avma,
        code: &dyn Code,
    ) -> Option<LookupAvma> {
        let lookup = CodeAddress::Return(address).lookup();
        let known = match self.returns.get(lookup.0) {
            Some(known) => known,
            None => self.ask::<P>(address, lookup.at(), code),
        };
        match known {
            ReturnsTo::NoCode => None,
            ReturnsTo::Caller => Some(lookup),
            ReturnsTo::Trampoline => Some(CodeAddress::Pc(address).lookup()),
        }
    }

    #[cold]
    #[inline(never)]
    fn ask<P: Processor>(&mut self, address: Avma, lookup: Avma, code: &dyn Code) -> ReturnsTo {
        let known = match code.is_code(lookup) {
            true if code.code(address).is_some_and(P::is_sigreturn) => ReturnsTo::Trampoline,
            true => ReturnsTo::Caller,
            false => ReturnsTo::NoCode,
        };
        if code.commit_dependencies(lookup) {
            self.returns.insert(lookup.0, known);
        }
        known
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::arch::{Aarch64, X86_64};

    /// A function, two trampolines of signals, and a count of requests.
    struct CountingCode(Cell<u32>);

    impl Code for CountingCode {
        fn is_code(&self, at: Avma) -> bool {
            self.0.set(self.0.get() + 1);
            [0x1000, 0x3000, 0x4000].contains(&at.0)
        }
        fn code(&self, at: Avma) -> Option<&[u8]> {
            match at.0 {
                0x1000 => Some(&[0x55, 0x48, 0x89, 0xe5]),
                // The trampolines of x86_64 and aarch64.
                0x3001 => Some(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]),
                0x4001 => Some(&[0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4]),
                _ => None,
            }
        }
    }

    #[test]
    fn an_address_is_asked_for_once_until_the_images_change() {
        let (code, mut facts) = (CountingCode(Cell::new(0)), Facts::default());
        for _ in 0..3 {
            assert_eq!(facts.lookup::<X86_64>(Avma(0x1001), &code), Some(LookupAvma(0x1000)));
            assert_eq!(facts.lookup::<X86_64>(Avma(0x2001), &code), None);
        }
        assert_eq!(code.0.get(), 2);
        facts.clear();
        assert_eq!(facts.lookup::<X86_64>(Avma(0x1001), &code), Some(LookupAvma(0x1000)));
        assert_eq!(code.0.get(), 3);
        // The key that is no address.
        assert_eq!(facts.lookup::<X86_64>(Avma(0), &code), None);
    }

    #[test]
    fn nothing_stands_in_front_of_a_trampoline_of_signals() {
        let (code, mut facts) = (CountingCode(Cell::new(0)), Facts::default());
        for _ in 0..2 {
            assert_eq!(facts.lookup::<X86_64>(Avma(0x3001), &code), Some(LookupAvma(0x3001)));
            assert_eq!(facts.lookup::<Aarch64>(Avma(0x4001), &code), Some(LookupAvma(0x4001)));
        }
        assert_eq!(code.0.get(), 2);
        // Those of the other processor are ordinary code.
        facts.clear();
        assert_eq!(facts.lookup::<Aarch64>(Avma(0x3001), &code), Some(LookupAvma(0x3000)));
        assert_eq!(facts.lookup::<X86_64>(Avma(0x4001), &code), Some(LookupAvma(0x4000)));
    }
}

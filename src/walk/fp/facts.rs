//! Cached facts for walking by frame pointers, by address: whether a return address is in code, and whether a leaf
//! has a record. Input: addresses, `Code`; output: answers. Void when the images change.

use crate::addr::{Avma, CodeAddress, LookupAvma};
use crate::walk::Code;
use crate::walk::processor::Processor;
use crate::walk::table::Table;

/// Facts about return addresses and program counters.
#[derive(Clone, Debug, Default)]
pub(in crate::walk) struct Facts {
    returns: Table<ReturnsTo>,
    /// By program counter: whether the frame pointer points to the record of the function there.
    own_records: Table<Option<bool>>,
}

/// The target of a return address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ReturnsTo {
    #[default]
    NoCode,
    /// Code that contains the call.
    Caller,
    /// A signal trampoline, to which handlers return, and which called nothing.
    Trampoline,
}

impl Facts {
    pub(in crate::walk) fn clear(&mut self) {
        self.returns.clear();
        self.own_records.clear();
    }

    /// Forgets facts about the addresses for which `is_gone` returns true.
    pub(in crate::walk) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.returns.retain(|lookup| !is_gone(Avma(lookup)));
        self.own_records.retain(|pc| !is_gone(Avma(pc)));
    }

    /// The cached result of `find`, which reads much of a function: whether the function at a program counter has
    /// a record. Not cached for JIT code.
    pub(in crate::walk) fn own_record(
        &mut self,
        pc: Avma,
        code: &dyn Code,
        find: impl FnOnce() -> Option<bool>,
    ) -> Option<bool> {
        if let Some(known) = self.own_records.get(pc.0) {
            return known;
        }
        let found = find();
        if !code.traits(pc).is_jit && code.commit_dependencies(pc) {
            self.own_records.insert(pc.0, found);
        }
        found
    }

    /// The look-up address of the frame that a return address belongs to; `None` outside code.
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
    use crate::walk::CodeTraits;

    /// A function, two signal trampolines, and a count of requests.
    struct CountingCode(Cell<u32>);

    impl Code for CountingCode {
        fn is_code(&self, at: Avma) -> bool {
            self.0.set(self.0.get() + 1);
            [0x1000, 0x3000, 0x4000].contains(&at.0)
        }
        fn code(&self, at: Avma) -> Option<&[u8]> {
            match at.0 {
                0x1000 => Some(&[0x55, 0x48, 0x89, 0xe5]),
                // The signal trampolines of x86_64 and aarch64.
                0x3001 => Some(&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05]),
                0x4001 => Some(&[0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4]),
                _ => None,
            }
        }
    }

    #[test]
    fn an_address_is_looked_up_once_until_the_images_change() {
        let (code, mut facts) = (CountingCode(Cell::new(0)), Facts::default());
        for _ in 0..3 {
            assert_eq!(facts.lookup::<X86_64>(Avma(0x1001), &code), Some(LookupAvma(0x1000)));
            assert_eq!(facts.lookup::<X86_64>(Avma(0x2001), &code), None);
        }
        assert_eq!(code.0.get(), 2);
        facts.clear();
        assert_eq!(facts.lookup::<X86_64>(Avma(0x1001), &code), Some(LookupAvma(0x1000)));
        assert_eq!(code.0.get(), 3);
        // The reserved key.
        assert_eq!(facts.lookup::<X86_64>(Avma(0), &code), None);
    }

    /// Code of a file below 0x2000, JIT code above it.
    struct PartlyJit;

    impl Code for PartlyJit {
        fn is_code(&self, _: Avma) -> bool {
            true
        }
        fn code(&self, _: Avma) -> Option<&[u8]> {
            None
        }
        fn traits(&self, at: Avma) -> CodeTraits {
            CodeTraits { is_jit: at.0 >= 0x2000, ..CodeTraits::default() }
        }
    }

    #[test]
    fn record_searches_are_cached_for_files_but_not_for_jit_code() {
        let (count, mut facts) = (Cell::new(0), Facts::default());
        let ask = |facts: &mut Facts, pc: u64, found: Option<bool>| {
            let find = || {
                count.set(count.get() + 1);
                found
            };
            facts.own_record(Avma(pc), &PartlyJit, find)
        };
        for _ in 0..3 {
            assert_eq!(ask(&mut facts, 0x1000, Some(true)), Some(true));
            assert_eq!(ask(&mut facts, 0x1004, None), None);
        }
        assert_eq!(count.get(), 2);
        for found in [Some(true), Some(false), None] {
            assert_eq!(ask(&mut facts, 0x2000, found), found);
        }
        assert_eq!(count.replace(0), 5);
        facts.forget(&|at| at == Avma(0x1000));
        assert_eq!(ask(&mut facts, 0x1000, Some(false)), Some(false));
        assert_eq!((ask(&mut facts, 0x1004, Some(true)), count.get()), (None, 1));
        facts.clear();
        assert_eq!((ask(&mut facts, 0x1004, Some(true)), count.get()), (Some(true), 2));
    }

    #[test]
    fn a_signal_trampoline_has_no_call_before_it() {
        let (code, mut facts) = (CountingCode(Cell::new(0)), Facts::default());
        for _ in 0..2 {
            assert_eq!(facts.lookup::<X86_64>(Avma(0x3001), &code), Some(LookupAvma(0x3001)));
            assert_eq!(facts.lookup::<Aarch64>(Avma(0x4001), &code), Some(LookupAvma(0x4001)));
        }
        assert_eq!(code.0.get(), 2);
        // Trampolines of the other processor are ordinary code.
        facts.clear();
        assert_eq!(facts.lookup::<Aarch64>(Avma(0x3001), &code), Some(LookupAvma(0x3000)));
        assert_eq!(facts.lookup::<X86_64>(Avma(0x4001), &code), Some(LookupAvma(0x4000)));
    }
}

//! What walking by frame pointers asks of the code, remembered by address: whether there is
//! code that a frame returns to, and how a leaf's caller is found. Input: addresses, `Code`; output: answers. Void
//! when the images change.

use crate::addr::{Avma, CodeAddress};
use crate::binary::frame_rule::FrameRule;
use crate::walk::table::Table;
use crate::walk::x86_64::record;
use crate::walk::{Code, call};

/// See the top of this file.
#[derive(Clone, Debug, Default)]
pub(in crate::walk) struct Facts {
    returns: Table<ReturnsTo>,
    leaves: Table<Leaf>,
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

/// What is known of an x86_64 instruction that a thread was stopped at.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::walk) struct Leaf {
    /// The ordinary form of its unwind information.
    pub rule: Option<FrameRule>,
    /// Bytes from the stack pointer to the return address, if the code shows that there is no
    /// frame record.
    pub unframed_return_at: Option<u64>,
}

impl Facts {
    pub(in crate::walk) fn clear(&mut self) {
        self.returns.clear();
        self.leaves.clear();
    }

    /// Forgets what was learned of the addresses that `is_gone` names.
    pub(in crate::walk) fn forget(&mut self, is_gone: &dyn Fn(Avma) -> bool) {
        self.returns.retain(|lookup| !is_gone(Avma(lookup)));
        self.leaves.retain(|pc| !is_gone(Avma(pc)));
    }

    /// The look-up address of the frame that a return address is of; `None` where no code is.
    #[inline(always)]
    pub(in crate::walk) fn lookup(&mut self, address: Avma, code: &dyn Code) -> Option<Avma> {
        let lookup = CodeAddress::Return(address).lookup();
        let known = match self.returns.get(lookup.0) {
            Some(known) => known,
            None => self.ask(address, lookup, code),
        };
        match known {
            ReturnsTo::NoCode => None,
            ReturnsTo::Caller => Some(lookup),
            ReturnsTo::Trampoline => Some(address),
        }
    }

    #[cold]
    #[inline(never)]
    fn ask(&mut self, address: Avma, lookup: Avma, code: &dyn Code) -> ReturnsTo {
        let is_sigreturn = |code: &[u8]| call::is_sigreturn(code) || call::is_sigreturn_aarch64(code);
        let known = match code.is_code(lookup) {
            true if code.code(address).is_some_and(is_sigreturn) => ReturnsTo::Trampoline,
            true => ReturnsTo::Caller,
            false => ReturnsTo::NoCode,
        };
        if !code.lacked() {
            self.returns.insert(lookup.0, known);
        }
        known
    }

    pub(in crate::walk) fn leaf(&mut self, pc: Avma, code: &dyn Code) -> Leaf {
        if let Some(leaf) = self.leaves.get(pc.0) {
            return leaf;
        }
        let slot = record::unframed_return_slot(pc, Avma(0), code);
        let leaf = Leaf { rule: code.frame_rule(pc), unframed_return_at: slot.map(|slot| slot.0) };
        if !code.lacked() {
            self.leaves.insert(pc.0, leaf);
        }
        leaf
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::binary::frame_rule::CfaBase;

    /// `push %rbp; mov %rsp,%rbp` at 0x1000, and how often it was asked.
    struct Asked(Cell<u32>);

    impl Code for Asked {
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
        fn frame_rule(&self, pc: Avma) -> Option<FrameRule> {
            self.0.set(self.0.get() + 1);
            let rule = FrameRule {
                base: CfaBase::StackPointer,
                cfa_offset: 8,
                frame_pointer_at: None,
                return_at: Some(-8),
            };
            (pc.0 == 0x1000).then_some(rule)
        }
    }

    #[test]
    fn an_address_is_asked_for_once_until_the_images_change() {
        let (code, mut facts) = (Asked(Cell::new(0)), Facts::default());
        for _ in 0..3 {
            assert_eq!(facts.lookup(Avma(0x1001), &code), Some(Avma(0x1000)));
            assert_eq!(facts.lookup(Avma(0x2001), &code), None);
        }
        assert_eq!(code.0.get(), 2);
        facts.clear();
        assert_eq!(facts.lookup(Avma(0x1001), &code), Some(Avma(0x1000)));
        assert_eq!(code.0.get(), 3);
        // The key that is no address.
        assert_eq!(facts.lookup(Avma(0), &code), None);
    }

    #[test]
    fn nothing_stands_in_front_of_a_trampoline_of_signals() {
        let (code, mut facts) = (Asked(Cell::new(0)), Facts::default());
        for at in [0x3001, 0x4001, 0x3001].map(Avma) {
            assert_eq!(facts.lookup(at, &code), Some(at));
        }
        assert_eq!(code.0.get(), 2);
    }

    #[test]
    fn a_leafs_rule_and_its_code_are_kept() {
        let (code, mut facts) = (Asked(Cell::new(0)), Facts::default());
        for _ in 0..3 {
            let leaf = facts.leaf(Avma(0x1000), &code);
            assert_eq!((leaf.rule.map(|rule| rule.cfa_offset), leaf.unframed_return_at), (Some(8), Some(0)));
            let other = facts.leaf(Avma(0x1001), &code);
            assert_eq!((other.rule, other.unframed_return_at), (None, None));
        }
        assert_eq!(code.0.get(), 2);
    }
}

//! What walking by frame pointers asks of the code, remembered by address: whether there is
//! code, and how a leaf's caller is found. Input: addresses, `Code`; output: answers. Void
//! when the images change.

use super::Code;
use super::table::Table;
use super::x86_64::record;
use crate::addr::Avma;
use crate::frame_rule::FrameRule;

/// See the top of this file.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    is_code: Table<bool>,
    leaves: Table<Leaf>,
}

/// What is known of an x86_64 instruction that a thread was stopped at.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Leaf {
    /// The ordinary form of its unwind information.
    pub rule: Option<FrameRule>,
    /// Bytes from the stack pointer to the return address, if the code shows that there is no
    /// frame record.
    pub unframed_return_at: Option<u64>,
}

impl Facts {
    pub(super) fn clear(&mut self) {
        self.is_code.clear();
        self.leaves.clear();
    }

    #[inline(always)]
    pub(super) fn is_code(&mut self, at: Avma, code: &dyn Code) -> bool {
        match self.is_code.get(at.0) {
            Some(is_code) => is_code,
            None => self.ask(at, code),
        }
    }

    #[cold]
    #[inline(never)]
    fn ask(&mut self, at: Avma, code: &dyn Code) -> bool {
        let is_code = code.is_code(at);
        self.is_code.insert(at.0, is_code);
        is_code
    }

    pub(super) fn leaf(&mut self, pc: Avma, code: &dyn Code) -> Leaf {
        if let Some(leaf) = self.leaves.get(pc.0) {
            return leaf;
        }
        let slot = record::unframed_return_slot(pc, Avma(0), code);
        let leaf = Leaf { rule: code.frame_rule(pc), unframed_return_at: slot.map(|slot| slot.0) };
        self.leaves.insert(pc.0, leaf);
        leaf
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::frame_rule::CfaBase;

    /// `push %rbp; mov %rsp,%rbp` at 0x1000, and how often it was asked.
    struct Asked(Cell<u32>);

    impl Code for Asked {
        fn is_code(&self, at: Avma) -> bool {
            self.0.set(self.0.get() + 1);
            at.0 == 0x1000
        }
        fn code(&self, at: Avma) -> Option<&[u8]> {
            (at.0 == 0x1000).then_some(&[0x55, 0x48, 0x89, 0xe5])
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
            assert!(facts.is_code(Avma(0x1000), &code));
            assert!(!facts.is_code(Avma(0x2000), &code));
        }
        assert_eq!(code.0.get(), 2);
        facts.clear();
        assert!(facts.is_code(Avma(0x1000), &code));
        assert_eq!(code.0.get(), 3);
        // The key that is no address.
        assert!(!facts.is_code(Avma(u64::MAX), &code));
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

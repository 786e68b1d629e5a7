//! How much code without unwind information is followed in vain. Input: walks, and how many instructions
//! were followed to nothing certain; output: whether more may be followed now.
//!
//! Programs whose code has no unwind information and never returns by `ret` (Chez Scheme keeps its frames on
//! a stack of its own) lead every sample to an address that nothing is known of. What is found of one is kept,
//! but there are always new ones. What is certain costs nothing here: a program that is understood is never
//! refused.

/// Instructions that are followed in vain before anything is refused: some 0.2 s of CPU time.
const INSTRUCTIONS_MAX: u32 = 2 << 20;
/// What each walk adds: at 1000 Hz some 2 % of a CPU.
const INSTRUCTIONS_OF_WALK: u32 = 256;

/// What may still be followed in vain.
#[derive(Clone, Debug)]
pub(in crate::walk) struct Budget {
    instructions: u32,
    has_refused: bool,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { instructions: INSTRUCTIONS_MAX, has_refused: false }
    }
}

impl Budget {
    /// A walk has ended, and is not made again with more code.
    pub(super) fn end_walk(&mut self) {
        self.instructions = self.instructions.saturating_add(INSTRUCTIONS_OF_WALK).min(INSTRUCTIONS_MAX);
    }

    /// Whether code may be followed now; if not, whoever asked knows nothing of it that could be kept.
    pub(super) fn allows(&mut self) -> bool {
        let allows = self.instructions > 0;
        self.has_refused |= !allows;
        allows
    }

    /// So many instructions led to nothing certain.
    pub(super) fn spend(&mut self, instructions: u32) {
        self.instructions = self.instructions.saturating_sub(instructions);
    }

    /// Whether anything was refused since this was asked last.
    pub(super) fn take_refusal(&mut self) -> bool {
        std::mem::take(&mut self.has_refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_spent_comes_back_walk_by_walk() {
        let mut budget = Budget::default();
        assert!(budget.allows());
        budget.spend(INSTRUCTIONS_MAX - 1);
        assert!(budget.allows() && !budget.take_refusal());
        budget.spend(2048);
        assert!(!budget.allows() && budget.take_refusal() && !budget.take_refusal());
        budget.end_walk();
        assert!(budget.allows());
        (0..2 * INSTRUCTIONS_MAX / INSTRUCTIONS_OF_WALK).for_each(|_| budget.end_walk());
        budget.spend(INSTRUCTIONS_MAX);
        assert!(!budget.allows(), "it does not grow beyond what it began with");
    }
}

//! How much JIT code is followed: an address of code without unwind information costs up to some thousand instructions
//! once, and runtimes that move their code, or have no stack that code tells, show new ones with each sample.
//!
//! Input: the time of samples, and how many instructions were looked at; output: how many may be. It is counted in
//! instructions and not in time, so that what a recording shows does not depend on the speed of the machine. All
//! processes of a recording share it: it is the profiler's CPU time that is bounded.

/// Instructions of each second of a recording: some 2 % of a CPU.
const PER_SECOND: u64 = 1_000_000;
/// What may be saved up for programs that begin, and is there at first.
const SAVED_MAX: u64 = 10 * PER_SECOND;
const SECOND_NS: u64 = 1_000_000_000;

/// Instructions of JIT code that may still be looked at.
#[derive(Debug)]
pub(super) struct JitBudget {
    left: u64,
    /// Up to when it was filled.
    filled_ns: u64,
    has_limit: bool,
}

impl Default for JitBudget {
    fn default() -> JitBudget {
        JitBudget { left: SAVED_MAX, filled_ns: 0, has_limit: true }
    }
}

impl JitBudget {
    /// For what is done once.
    pub(super) fn unlimited() -> JitBudget {
        JitBudget { has_limit: false, ..JitBudget::default() }
    }

    /// Instructions that may be looked at for a sample of this time.
    pub(super) fn left(&mut self, now_ns: u64) -> u64 {
        if !self.has_limit {
            return u64::MAX;
        }
        let passed_ns = now_ns.saturating_sub(self.filled_ns);
        let more = u128::from(passed_ns) * u128::from(PER_SECOND) / u128::from(SECOND_NS);
        if more > 0 {
            self.filled_ns = now_ns;
            self.left =
                u64::try_from(more).map_or(SAVED_MAX, |more| SAVED_MAX.min(self.left.saturating_add(more)));
        }
        self.left
    }

    /// So many were looked at.
    pub(super) fn spend(&mut self, instructions: u64) {
        self.left = self.left.saturating_sub(instructions);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_followed_is_what_there_is_per_second_and_what_was_saved() {
        let (mut budget, mut spent) = (JitBudget::default(), 0);
        // A thousand samples a second for a minute, each with more to follow than there is.
        for sample in 0..60_000 {
            let now_ns = sample * SECOND_NS / 1000;
            let wanted = 5_000.min(budget.left(now_ns));
            budget.spend(wanted);
            spent += wanted;
        }
        assert!((69 * PER_SECOND..=70 * PER_SECOND).contains(&spent), "{spent}");
        // It is saved again.
        assert_eq!(budget.left(60 * SECOND_NS + 30 * SECOND_NS), SAVED_MAX);
        assert_eq!(budget.left(0), SAVED_MAX, "samples of other CPUs may come a little later");
    }

    #[test]
    fn what_is_done_once_has_no_limit() {
        let mut budget = JitBudget::unlimited();
        budget.spend(u64::MAX);
        assert_eq!(budget.left(1), u64::MAX);
    }
}

//! Budget for following JIT code: an address in code without unwind information costs up to some thousand
//! instructions once, and runtimes that move their code, or have stacks that code does not describe, show new ones
//! with each sample.
//!
//! Input: sample times, and the number of instructions examined; output: how many may be. The unit is
//! instructions, not time, so that a recording does not depend on the speed of the machine. All processes of a
//! recording share the budget: it bounds the profiler's CPU time.

/// Instructions per second of recording: about 2 % of a CPU.
const PER_SECOND: u64 = 1_000_000;
/// Maximum savings, for starting programs; also the initial budget.
const SAVED_MAX: u64 = 10 * PER_SECOND;
const SECOND_NS: u64 = 1_000_000_000;

/// Instructions of JIT code that may still be examined.
#[derive(Debug)]
pub(super) struct JitBudget {
    left: u64,
    /// Time of the last refill.
    filled_ns: u64,
    has_limit: bool,
}

impl Default for JitBudget {
    fn default() -> JitBudget {
        JitBudget { left: SAVED_MAX, filled_ns: 0, has_limit: true }
    }
}

impl JitBudget {
    /// No limit, for one-off work.
    pub(super) fn unlimited() -> JitBudget {
        JitBudget { has_limit: false, ..JitBudget::default() }
    }

    /// Instructions that may be examined for a sample at this time.
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

    /// Charges examined instructions.
    pub(super) fn spend(&mut self, instructions: u64) {
        self.left = self.left.saturating_sub(instructions);
    }
}

#[cfg(test)]
mod tests {
    use super::super::recorded_process::FIRST;
    use super::super::thread::unknown_status;
    use super::super::{Options, Recorder};
    use super::*;
    use crate::addr::Avma;
    use crate::arch::{Arch, Registers, X86_64};
    use crate::binary::{ImageBytes, Mapping, MappingKind, OpenError};
    use crate::clock::FakeClock;
    use crate::sources::{Capture, Fault, Observed, Process, ThreadId};
    use crate::walk::{Frames, StackEnd, UnwindMethod};

    const START: u64 = 0x7000_0000_0000;
    const BYTES: u64 = 1 << 20;
    const THREAD: ThreadId = ThreadId(7);

    /// A process with only JIT code made of one instruction, `nop`.
    struct Nops(Process);

    impl Observed for Nops {
        fn process(&self) -> &Process {
            &self.0
        }
        fn thread_name(&mut self, _: ThreadId) -> Option<String> {
            None
        }
        fn mappings(&mut self, out: &mut Vec<Mapping>) -> Result<(), Fault> {
            out.clear();
            out.push(Mapping {
                avma: Avma(START)..Avma(START + BYTES),
                file_offset: 0,
                path: String::new(),
                kind: MappingKind::Anonymous,
                identity: (0, 0),
            });
            Ok(())
        }
        fn image_bytes(&mut self, _: &Mapping) -> Result<ImageBytes, OpenError> {
            Err(OpenError::Anonymous)
        }
        fn read_memory(&mut self, at: Avma, into: &mut [u8]) -> Result<usize, Fault> {
            let end = (at.0 + into.len() as u64).min(START + BYTES);
            let len = end.saturating_sub(at.0) as usize;
            into[..len].fill(0x90);
            Ok(len)
        }
    }

    #[test]
    fn a_walk_over_budget_reports_it_and_later_walks_continue() {
        let clock = FakeClock::default();
        let options = Options {
            hz: 997,
            duration_ns: None,
            idle: false,
            off_cpu: false,
            timeline_bytes: 0,
            block_age_min_ns: 0,
            linger_ns: 0,
            threads: true,
            max_depth: 64,
            unwind: UnwindMethod::Auto,
            seed: 1,
            max_stop: 1.0,
        };
        let mut process = Nops(Process {
            pid: 7,
            name: "nops".to_owned(),
            command: String::new(),
            arch: Arch::X86_64,
            backend: "sim",
            backend_why: String::new(),
            cpus: 1,
            address_mask: u64::MAX,
            fp_always: false,
            cfi: true,
            stops_interrupt_syscalls: false,
            stops_hold_all: false,
        });
        let mut recorder = Recorder::new(&clock, &options, &process.0.clone());
        recorder.add_thread(FIRST, &mut process, THREAD, None, unknown_status(), true);
        recorder.read_images(FIRST, &mut process);
        let mut ended = |recorder: &mut Recorder<'_>, pc: u64| {
            let mut capture = Capture::with_capacity(64);
            let mut gpr = [0; 16];
            gpr[X86_64::RSP] = 0x7fff_0000;
            capture.registers = Registers::X86_64(X86_64 { gpr, rip: START + 0x1000 + pc, fs_base: 0 });
            capture.stack_base = Avma(0x7fff_0000);
            capture.stack.resize(64, 0);
            let frames = &mut Frames::default();
            recorder.walk(&mut process, THREAD, &capture, 1 << 16, frames).expect("known").0
        };
        // Each address costs at least some hundred instructions.
        let first =
            (0..100_000).find(|pc| ended(&mut recorder, *pc) == StackEnd::TooMuchJitCode).expect("an end");
        assert!(first > 100, "{first}");
        assert_eq!(ended(&mut recorder, first + 1), StackEnd::TooMuchJitCode);
        assert_ne!(ended(&mut recorder, 0), StackEnd::TooMuchJitCode, "what is known costs nothing");
        clock.advance(SECOND_NS / 2);
        assert_ne!(ended(&mut recorder, first + 1), StackEnd::TooMuchJitCode);
    }

    #[test]
    fn the_budget_is_the_rate_plus_the_savings() {
        let (mut budget, mut spent) = (JitBudget::default(), 0);
        // 1000 samples a second for a minute, each wanting more than the budget.
        for sample in 0..60_000 {
            let now_ns = sample * SECOND_NS / 1000;
            let wanted = 5_000.min(budget.left(now_ns));
            budget.spend(wanted);
            spent += wanted;
        }
        assert!((69 * PER_SECOND..=70 * PER_SECOND).contains(&spent), "{spent}");
        // Savings build up again.
        assert_eq!(budget.left(60 * SECOND_NS + 30 * SECOND_NS), SAVED_MAX);
        assert_eq!(budget.left(0), SAVED_MAX, "samples of other CPUs may come a little later");
    }

    #[test]
    fn one_off_work_has_no_limit() {
        let mut budget = JitBudget::unlimited();
        budget.spend(u64::MAX);
        assert_eq!(budget.left(1), u64::MAX);
    }
}

//! A simulated thread: its position at a time of its task's clock, and the CPU time it used.
//!
//! Its phases repeat from its start to its end, so its state is a function of the time.

use super::images::FunctionRef;
use super::spec::{Birth, Doing, Turns};
use super::stack::Made;

/// A phase with resolved functions.
#[derive(Clone, Debug)]
pub struct Stretch {
    pub doing: Doing,
    pub ns: u64,
    /// From the leaf outward, including those that start threads.
    pub frames: Vec<FunctionRef>,
    /// Names from the root to the leaf.
    pub names: Vec<String>,
}

/// Addresses of the parts of a stack.
#[derive(Clone, Copy, Debug, Default)]
pub struct StackPlace {
    /// First byte of the guard; it reaches to `low`.
    pub guard: u64,
    pub low: u64,
    /// End of the stack itself, with the thread's own data above.
    pub high: u64,
    /// End of the mapping.
    pub end: u64,
    pub tag: u32,
}

/// A thread.
#[derive(Clone, Debug)]
pub struct Thread {
    pub thread_id: u64,
    pub name: String,
    pub birth: Birth,
    pub stretches: Vec<Stretch>,
    /// Without the last stretch, if there is time before the program started.
    pub cycle_ns: u64,
    /// Time in the last stretch, before all others.
    pub boot_ns: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    pub stack: StackPlace,
    pub handle: u64,
    pub qaddr: u64,
    /// Content of `qaddr`.
    pub queue: u64,
    pub suspended_by_others: i32,
    pub swift: bool,
    pub locals: u64,
    /// The CPU that it shares.
    pub turns: Option<Turns>,
    /// The last hold in which it got a CPU, to run to its stop, and the total time of these.
    pub dispatched_in: u64,
    pub dispatch_ns: u64,
    /// The last generated stack.
    pub made: Option<Made>,
}

/// State of a thread at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub stretch: usize,
    /// Time since the stretch began.
    pub into_ns: u64,
    /// CPU time so far.
    pub cpu_ns: u64,
}

impl Thread {
    pub fn is_alive(&self, ran_ns: u64) -> bool {
        self.start_ns <= ran_ns && ran_ns < self.end_ns
    }

    pub fn doing(&self, ran_ns: u64) -> Doing {
        self.stretches[self.at(ran_ns).stretch].doing
    }

    /// Threads suspended by others stay at their start.
    fn lived(&self, ran_ns: u64) -> u64 {
        if self.suspended_by_others > 0 {
            return 0;
        }
        let (from_ns, to_ns) = (self.start_ns, ran_ns.min(self.end_ns).max(self.start_ns));
        match self.turns {
            Some(turns) => turns.had(to_ns) - turns.had(from_ns),
            None => to_ns - from_ns,
        }
    }

    /// Whether it is on a CPU.
    pub fn is_on_cpu(&self, ran_ns: u64) -> bool {
        let has_turn = self.turns.is_none_or(|turns| turns.is_on(ran_ns));
        has_turn && self.suspended_by_others == 0 && self.doing(ran_ns) == Doing::Run
    }

    /// Whether it is ready without a CPU.
    pub fn is_ready(&self, ran_ns: u64) -> bool {
        self.doing(ran_ns) == Doing::Run && self.suspended_by_others == 0 && !self.is_on_cpu(ran_ns)
    }

    fn cpu_of(&self, stretch: usize, ns: u64) -> u64 {
        if self.stretches[stretch].doing == Doing::Run { ns } else { 0 }
    }

    fn repeated(&self) -> usize {
        self.stretches.len() - usize::from(self.boot_ns > 0)
    }

    pub fn at(&self, ran_ns: u64) -> Moment {
        let lived = self.lived(ran_ns);
        if lived < self.boot_ns {
            return Moment { stretch: self.stretches.len() - 1, into_ns: lived, cpu_ns: lived };
        }
        let lived = lived - self.boot_ns;
        let (cycles, mut left) = (lived / self.cycle_ns, lived % self.cycle_ns);
        let repeated = self.repeated();
        let per_cycle: u64 = (0..repeated).map(|n| self.cpu_of(n, self.stretches[n].ns)).sum();
        let mut cpu_ns = self.boot_ns + cycles * per_cycle;
        for (index, stretch) in self.stretches[..repeated].iter().enumerate() {
            if left < stretch.ns {
                cpu_ns += self.cpu_of(index, left);
                return Moment { stretch: index, into_ns: left, cpu_ns };
            }
            left -= stretch.ns;
            cpu_ns += self.cpu_of(index, stretch.ns);
        }
        unreachable!("the stretches fill the cycle")
    }

    /// CPU time as a lagging kernel shows it: updated at context switches, at the ends of quanta of 10 ms,
    /// and when the task was last stopped.
    pub fn lagging_cpu_ns(&self, ran_ns: u64, last_stop_ns: u64) -> u64 {
        const QUANTUM_NS: u64 = 10_000_000;
        let now = self.at(ran_ns);
        if !self.is_on_cpu(ran_ns) {
            return now.cpu_ns;
        }
        let on_cpu_ns = self.turns.map_or(u64::MAX, |turns| turns.since(ran_ns));
        let since_stop_ns = ran_ns.saturating_sub(last_stop_ns);
        now.cpu_ns - (now.into_ns % QUANTUM_NS).min(since_stop_ns).min(on_cpu_ns)
    }

    /// Time in each stretch so far.
    pub fn times(&self, ran_ns: u64) -> Vec<u64> {
        let booted = self.lived(ran_ns).min(self.boot_ns);
        let lived = self.lived(ran_ns) - booted;
        let (cycles, mut left) = (lived / self.cycle_ns, lived % self.cycle_ns);
        let mut times: Vec<u64> = self.stretches[..self.repeated()]
            .iter()
            .map(|stretch| {
                let part = left.min(stretch.ns);
                left -= part;
                cycles * stretch.ns + part
            })
            .collect();
        if self.boot_ns > 0 {
            times.push(booted);
        }
        times
    }
}

//! CPU time that a process used and none of its threads that are known: threads that cannot be stopped (workers that
//! the kernel makes for io_uring), and threads whose last figures nobody could read.
//!
//! Input: the CPU clocks of processes, and what their threads used; output: the difference, which is lost and counted.

use hashbrown::HashMap;

use super::stops::StopDriver;
use super::target_process::CpuBalance;

/// Why time of a process is lost that no thread used that is known.
pub(super) const BY_NO_KNOWN_THREAD: &str = "used by threads that could not be sampled";

impl StopDriver<'_> {
    /// Begins the balance of all processes that were found. After their threads were polled: what is used between
    /// would be taken for that of others.
    pub(super) fn begin_balances(&mut self) {
        for (pid, known) in &mut self.known {
            known.cpu = CpuBalance::new(self.target.process_cpu_ns(*pid));
        }
    }

    /// The clocks of all processes now.
    pub(super) fn process_clocks(&mut self) -> HashMap<u32, u64> {
        let target = &mut *self.target;
        self.known.keys().filter_map(|pid| Some((*pid, target.process_cpu_ns(*pid)?))).collect()
    }

    /// Loses for this reason what processes used by these clocks beside their threads.
    pub(super) fn lose_rests(&mut self, clocks: &HashMap<u32, u64>, reason: &'static str) {
        let mut alive_ns: HashMap<u32, u64> = HashMap::new();
        for (id, state) in &self.threads {
            let used_ns = self.recorder.threads.get(id).map_or(0, |account| account.used_cpu_ns());
            *alive_ns.entry(state.process).or_default() += used_ns;
        }
        let mut rest_ns = 0;
        for (pid, known) in &mut self.known {
            let alive_ns = alive_ns.get(pid).copied().unwrap_or(0);
            rest_ns += known.cpu.take_rest_ns(clocks.get(pid).copied(), alive_ns);
        }
        self.lose_rest(reason, rest_ns);
    }

    /// Loses what one process that has ended, with its threads, used beside them.
    pub(super) fn lose_rest_of_ended(&mut self, pid: u32) {
        let clock_ns = self.target.process_cpu_ns(pid);
        let rest_ns = self.known.get_mut(&pid).map_or(0, |known| known.cpu.take_rest_ns(clock_ns, 0));
        self.lose_rest(BY_NO_KNOWN_THREAD, rest_ns);
    }

    fn lose_rest(&mut self, reason: &'static str, rest_ns: u64) {
        self.recorder.stats.target_cpu_ns += rest_ns;
        // Wall-clock time is that of threads which are known.
        if !self.options.idle {
            self.recorder.lose_since(reason, self.start_ns, rest_ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_thread_used_is_reported_once() {
        let mut balance = CpuBalance::new(Some(1_000));
        balance.thread_ended(300);
        assert_eq!(balance.take_rest_ns(Some(2_000), 500), 200);
        assert_eq!(balance.take_rest_ns(Some(2_000), 500), 0, "reported before");
        assert_eq!(balance.take_rest_ns(Some(2_900), 1_100), 300);
        // The clock of a thread may be ahead of that of its process.
        assert_eq!(balance.take_rest_ns(Some(2_950), 1_400), 0);
        assert_eq!(balance.take_rest_ns(None, 0), 0);
    }

    #[test]
    fn without_a_clock_nothing_is_known() {
        let mut balance = CpuBalance::new(None);
        assert_eq!(balance.take_rest_ns(Some(5_000), 0), 0);
    }
}

//! Context switches of all CPUs, with the stacks copied at them.
//!
//! Input: records of switches, samples at them, and losses; those of one CPU come in order. Output: switches in
//! time order. A thread leaves one CPU and gets another, so switches wait for the next batch until all rings were
//! read past them.

use hashbrown::HashMap;
use libc::pid_t;

use super::super::reorder::queue::Queue;
use super::super::ring::record::SampleId;
use super::wait::{STACK_DROPPED, SwitchStack, ThreadEvent};

/// Switches not yet in order.
#[derive(Debug)]
pub(super) struct ContextSwitches {
    queue: Queue<ThreadEvent>,
    /// By CPU: the copied stack of the next thread to leave it.
    copied: HashMap<u32, (pid_t, SwitchStack)>,
    /// The time span of accepted switches: two sets of events may record the same ones.
    from_ns: u64,
    until_ns: u64,
    /// By CPU: the time of the last record.
    last_ns: HashMap<u32, u64>,
}

impl Default for ContextSwitches {
    fn default() -> ContextSwitches {
        ContextSwitches {
            queue: Queue::default(),
            copied: HashMap::new(),
            from_ns: 0,
            until_ns: u64::MAX,
            last_ns: HashMap::new(),
        }
    }
}

impl ContextSwitches {
    /// Accepts switches up to this time from the rings read next, and later ones from others.
    pub(super) fn accept_until(&mut self, until_ns: u64) {
        self.until_ns = until_ns;
    }

    /// Accepts switches from this time on, see [`ContextSwitches::accept_until`].
    pub(super) fn accept_from(&mut self, from_ns: u64) {
        (self.from_ns, self.until_ns) = (from_ns, u64::MAX);
    }

    fn is_accepted(&self, time_ns: u64) -> bool {
        (self.from_ns..self.until_ns).contains(&time_ns)
    }

    /// Notes that a record was read.
    pub(super) fn note_record(&mut self, id: SampleId) {
        self.last_ns.insert(id.cpu, id.time_ns);
    }

    /// Records of a CPU were lost.
    pub(super) fn dropped(&mut self, id: SampleId) {
        // The lost records may include the one of its thread leaving; the next thread must not get its stack.
        self.copied.remove(&id.cpu);
        let since_ns = self.last_ns.get(&id.cpu).copied().unwrap_or(0);
        self.queue.push(id, ThreadEvent::Dropped { since_ns });
    }

    /// Records the stack of a thread about to leave its CPU. Returns a stack left over from another thread.
    pub(super) fn copied(&mut self, id: SampleId, stack: SwitchStack) -> Option<SwitchStack> {
        if !self.is_accepted(id.time_ns) {
            return Some(stack);
        }
        self.copied.insert(id.cpu, (id.tid, stack)).map(|(_, stack)| stack)
    }

    /// Records that a thread leaves its CPU; its switch sample comes right before.
    pub(super) fn left(&mut self, id: SampleId, preempted: bool) {
        if !self.is_accepted(id.time_ns) {
            return;
        }
        let stack = match self.copied.remove(&id.cpu) {
            Some((tid, stack)) if tid == id.tid => stack,
            _ => SwitchStack::Missing(STACK_DROPPED),
        };
        self.queue.push(id, ThreadEvent::Out { stack, preempted });
    }

    /// Records another event of a thread.
    pub(super) fn note(&mut self, id: SampleId, switch: ThreadEvent) {
        if !matches!(switch, ThreadEvent::In) || self.is_accepted(id.time_ns) {
            self.queue.push(id, switch);
        }
    }

    /// The events before this time, in time order.
    pub(super) fn release(&mut self, watermark_ns: u64) -> Vec<(SampleId, ThreadEvent)> {
        self.queue.release_before(watermark_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(tid: pid_t, time_ns: u64, cpu: u32) -> SampleId {
        SampleId { pid: 1, tid, time_ns, cpu }
    }

    fn released(switches: &mut ContextSwitches, until_ns: u64) -> Vec<(pid_t, u64, &'static str)> {
        let words = |switch| match switch {
            ThreadEvent::Out { stack: SwitchStack::NotRecorded, .. } => "out",
            ThreadEvent::Out { stack: SwitchStack::Missing(why), .. } => why,
            ThreadEvent::In => "in",
            other => panic!("{other:?}"),
        };
        switches
            .release(until_ns)
            .into_iter()
            .map(|(id, switch)| (id.tid, id.time_ns, words(switch)))
            .collect()
    }

    #[test]
    fn events_after_the_watermark_wait_for_the_next_batch() {
        let mut switches = ContextSwitches::default();
        // Ring 0 is read before thread 5 leaves CPU 0, ring 1 after it has CPU 1.
        switches.note(id(5, 900, 1), ThreadEvent::In);
        assert_eq!(released(&mut switches, 800), []);
        assert!(switches.copied(id(5, 850, 0), SwitchStack::NotRecorded).is_none());
        switches.left(id(5, 851, 0), false);
        assert_eq!(released(&mut switches, 1_000), [(5, 851, "out"), (5, 900, "in")]);
    }

    #[test]
    fn a_stack_belongs_to_the_thread_that_leaves_next() {
        let mut switches = ContextSwitches::default();
        assert!(switches.copied(id(5, 10, 0), SwitchStack::NotRecorded).is_none());
        switches.left(id(6, 20, 0), false);
        switches.left(id(5, 30, 0), false);
        assert_eq!(released(&mut switches, 100), [(6, 20, STACK_DROPPED), (5, 30, STACK_DROPPED)]);
    }

    #[test]
    fn after_losses_a_stack_is_not_attributed_to_a_later_wait() {
        let mut switches = ContextSwitches::default();
        assert!(switches.copied(id(5, 10, 0), SwitchStack::NotRecorded).is_none());
        switches.dropped(id(5, 20, 0));
        switches.left(id(5, 30, 0), false);
        let left = switches.release(100).pop();
        let missing =
            |switch| matches!(switch, ThreadEvent::Out { stack: SwitchStack::Missing(STACK_DROPPED), .. });
        assert!(left.is_some_and(|(_, switch)| missing(switch)));
    }

    #[test]
    fn switches_recorded_by_two_sets_of_events_count_once() {
        let mut switches = ContextSwitches::default();
        switches.accept_until(100);
        for time_ns in [90, 110] {
            switches.note(id(5, time_ns, 0), ThreadEvent::In);
        }
        switches.accept_from(100);
        for time_ns in [91, 111] {
            switches.note(id(5, time_ns, 0), ThreadEvent::In);
        }
        assert_eq!(released(&mut switches, 1_000), [(5, 90, "in"), (5, 111, "in")]);
    }
}

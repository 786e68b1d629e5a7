//! Joins the threads of a recording that an exec continues: each exec is recorded as a new thread.

use std::collections::{HashMap, HashSet};

use crate::recording::Timeline;
use crate::recording::timeline::EventKind;

/// Threads continued by an exec, by their indexes in the timeline.
pub(super) struct ExecChains {
    continued: HashSet<usize>,
    continuing: HashSet<usize>,
    ended: HashSet<u32>,
}

impl ExecChains {
    pub(super) fn of(timeline: &Timeline) -> ExecChains {
        let mut marks: HashMap<u32, Vec<(u64, EventKind)>> = HashMap::new();
        let mut ended = HashSet::new();
        for event in timeline.events().iter().filter(|event| event.kind != EventKind::ImageLoad) {
            marks.entry(event.pid).or_default().push((event.at_ns, event.kind));
            if event.kind == EventKind::ProcessEnd {
                ended.insert(event.pid);
            }
        }
        let (mut continued, mut continuing) = (HashSet::new(), HashSet::new());
        let mut last: HashMap<u64, usize> = HashMap::new();
        for (index, thread) in timeline.threads().iter().enumerate() {
            let Some(before) = last.insert(thread.id, index) else { continue };
            let since_ns = timeline.threads().get(before).map_or(0, |before| before.begun_ns);
            let marks = marks.get(&thread.pid).map_or(&[][..], Vec::as_slice);
            let mut between = marks.iter().filter(|(at_ns, _)| (since_ns..=thread.begun_ns).contains(at_ns));
            if between.next_back().is_some_and(|(_, kind)| *kind == EventKind::Exec) {
                continued.insert(before);
                continuing.insert(index);
            }
        }
        ExecChains { continued, continuing, ended }
    }

    /// Whether a thread continues an earlier one with another program.
    pub(super) fn continues_one(&self, index: usize) -> bool {
        self.continuing.contains(&index)
    }

    /// Whether another thread continues this one.
    pub(super) fn is_continued(&self, index: usize) -> bool {
        self.continued.contains(&index)
    }

    /// Whether the end of a process was recorded.
    pub(super) fn has_ended(&self, pid: u32) -> bool {
        self.ended.contains(&pid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_continues_through_an_exec_but_not_an_end() {
        let mut timeline = Timeline::new(0, 1000, 1 << 20);
        let life = |timeline: &mut Timeline, from_ns: u64, until_ns: u64| {
            let thread = timeline.add_thread(7, 7, from_ns, false);
            timeline.end_thread(thread, until_ns);
        };
        life(&mut timeline, 10, 20);
        timeline.add_event(EventKind::Exec, 7, 21, "b");
        life(&mut timeline, 25, 30);
        timeline.add_event(EventKind::ProcessEnd, 7, 31, "");
        // Its id belongs to another process.
        life(&mut timeline, 40, 50);
        let chains = ExecChains::of(&timeline);
        assert_eq!([0, 1, 2].map(|index| chains.continues_one(index)), [false, true, false]);
        assert_eq!([0, 1, 2].map(|index| chains.is_continued(index)), [true, false, false]);
        assert!(chains.has_ended(7) && !chains.has_ended(8));
    }
}

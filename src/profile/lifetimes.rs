//! Derives the start and end of a timeline's threads from its events.
//!
//! Files store starts and ends only as events. A thread without a start existed when the recording began, even if it
//! was sampled later; one without an end outlived the recording. A thread that ran several programs in sequence has a
//! part for each.

use std::collections::HashMap;

use super::timeline::{EventKind, ThreadTimeline, Timeline};

/// Starts and ends by time, for one id.
#[derive(Default)]
struct Marks {
    starts_ns: Vec<u64>,
    ends_ns: Vec<u64>,
}

impl Timeline {
    /// Sets the start and end of each thread.
    pub(super) fn set_lifetimes(&mut self) {
        let mut by_thread: HashMap<u64, Marks> = HashMap::new();
        let mut by_process: HashMap<u32, Marks> = HashMap::new();
        for event in &self.events {
            let marks = by_thread.entry(event.thread).or_default();
            match event.kind {
                EventKind::ProcessStart | EventKind::ThreadStart => marks.starts_ns.push(event.at_ns),
                EventKind::ThreadEnd => marks.ends_ns.push(event.at_ns),
                EventKind::ProcessEnd => {
                    by_process.entry(event.pid).or_default().ends_ns.push(event.at_ns);
                }
                EventKind::Exec | EventKind::ImageLoad => {}
            }
        }
        let mut parts: HashMap<u64, Vec<usize>> = HashMap::new();
        for (index, thread) in self.threads.iter().enumerate() {
            parts.entry(thread.id).or_default().push(index);
        }
        let none = Marks::default();
        for (id, mut parts) in parts {
            parts.sort_by_key(|index| self.threads.get(*index).map(first_ns));
            let own = by_thread.get(&id).unwrap_or(&none);
            let mut before: Option<usize> = None;
            for index in parts {
                let Some((sampled_ns, until_ns, pid)) =
                    self.threads.get(index).map(|thread| (first_ns(thread), last_ns(thread), thread.pid))
                else {
                    continue;
                };
                let before_ns = before.and_then(|before| self.threads.get(before)).map_or(0, last_ns);
                let started = |at_ns: &&u64| (before_ns..=sampled_ns).contains(*at_ns);
                let begun_ns =
                    own.starts_ns.iter().rfind(started).copied().unwrap_or(before_ns).min(sampled_ns);
                if let Some(before) = before.and_then(|before| self.threads.get_mut(before)) {
                    before.ended_ns = Some(before.ended_ns.unwrap_or(begun_ns).min(begun_ns).max(before_ns));
                }
                let of_process = pid.and_then(|pid| by_process.get(&pid)).unwrap_or(&none);
                let ended = |marks: &Marks| marks.ends_ns.iter().find(|at_ns| **at_ns >= sampled_ns).copied();
                let ended_ns = ended(own).into_iter().chain(ended(of_process)).min();
                if let Some(thread) = self.threads.get_mut(index) {
                    thread.begun_ns = begun_ns;
                    thread.ended_ns = ended_ns.map(|ended_ns| ended_ns.max(until_ns));
                }
                before = Some(index);
            }
        }
    }
}

/// Time of its first sample: the period of that sample may have begun before the thread.
fn first_ns(thread: &ThreadTimeline) -> u64 {
    thread.samples.first().map_or(0, |sample| sample.at_ns)
}

/// Time of its last sample.
fn last_ns(thread: &ThreadTimeline) -> u64 {
    thread.samples.last().map_or(0, |sample| sample.at_ns)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::TextId;
    use crate::profile::timeline::{Event, TimedSample};

    const MS: u64 = 1_000_000;

    fn thread(pid: u32, id: u64, samples_ms: &[u64]) -> ThreadTimeline {
        let sample =
            |ms: &u64| TimedSample { at_ns: ms * MS, weight_ns: MS, node: None, count: 1, cpu: None };
        ThreadTimeline {
            process: TextId::EMPTY,
            pid: Some(pid),
            name: TextId::EMPTY,
            id,
            begun_ns: 99 * MS,
            ended_ns: None,
            samples: samples_ms.iter().map(sample).collect(),
        }
    }

    fn event(ms: u64, kind: EventKind, pid: u32, thread: u64) -> Event {
        Event { at_ns: ms * MS, kind, process: TextId::EMPTY, pid, thread, text: TextId::EMPTY }
    }

    #[test]
    fn missing_starts_and_ends_extend_to_the_recording() {
        let mut timeline = Timeline {
            threads: vec![thread(7, 7, &[50, 60]), thread(7, 8, &[20, 21]), thread(9, 9, &[70])],
            events: vec![
                event(20, EventKind::ThreadStart, 7, 8),
                event(25, EventKind::ThreadEnd, 7, 8),
                event(30, EventKind::ProcessStart, 9, 9),
                event(80, EventKind::ProcessEnd, 9, 9),
            ],
            ..Timeline::default()
        };
        timeline.set_lifetimes();
        let of = |thread: &ThreadTimeline| (thread.begun_ns / MS, thread.ended_ns.map(|ns| ns / MS));
        let lives: Vec<_> = timeline.threads.iter().map(of).collect();
        assert_eq!(lives, [(0, None), (20, Some(25)), (30, Some(80))]);
    }

    #[test]
    fn programs_of_one_thread_follow_each_other() {
        // A fork and exec, and later another process with the same id.
        let mut timeline = Timeline {
            threads: vec![thread(5, 5, &[12, 14]), thread(5, 5, &[16, 20]), thread(5, 5, &[60])],
            events: vec![
                event(11, EventKind::ProcessStart, 5, 5),
                event(22, EventKind::ProcessEnd, 5, 5),
                event(55, EventKind::ProcessStart, 5, 5),
            ],
            ..Timeline::default()
        };
        timeline.set_lifetimes();
        let of = |thread: &ThreadTimeline| (thread.begun_ns / MS, thread.ended_ns.map(|ns| ns / MS));
        let lives: Vec<_> = timeline.threads.iter().map(of).collect();
        assert_eq!(lives, [(11, Some(14)), (14, Some(22)), (55, None)]);
    }
}

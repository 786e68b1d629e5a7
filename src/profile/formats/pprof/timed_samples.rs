//! Samples of a timeline in pprof: separate ones, with labels for time and thread.

use std::collections::HashMap;
use std::io;

use super::label;
use super::proto::{Label, Sample, field};
use super::write::{Keys, Writer, set_values};
use crate::profile::StackFrame;
use crate::profile::formats::thread_times::weight_ns;
use crate::profile::saved::{SavedProfile, StackRoot};
use crate::profile::timeline::Timeline;
use crate::trie::NodeId;

impl Writer<'_, '_> {
    /// Writes the samples; marks their frames in `used`.
    pub(super) fn timed_samples(
        &mut self,
        timeline: &Timeline,
        keys: &Keys,
        used: &mut [bool],
        period_ns: Option<f64>,
    ) -> io::Result<()> {
        let saved = self.saved;
        let [pid, cpu_key, time, weight, unit] =
            [label::PID, label::CPU, label::TIME, label::WEIGHT, label::NANOSECONDS]
                .map(|text| self.strings.own(text));
        let number =
            |key, num: u64| Label { key, num: num.cast_signed(), num_unit: unit, ..Label::default() };
        let begin_ns = saved.about.time_unix_ns.unwrap_or(0);
        let mut stacks: HashMap<NodeId, Stack> = HashMap::new();
        let mut sample = Sample::default();
        for thread in &timeline.threads {
            let lost = StackRoot::of(thread.process);
            for timed in &thread.samples {
                let stack = timed.node.map(|node| {
                    &*stacks.entry(node).or_insert_with(|| {
                        let stack = Stack::of(saved, node);
                        for id in &stack.frames {
                            if let Some(used) = used.get_mut(*id as usize - 1) {
                                *used = true;
                            }
                        }
                        stack
                    })
                });
                let root = stack.and_then(|stack| stack.root).unwrap_or(&lost);
                sample.location_id.clear();
                sample.location_id.extend(stack.iter().flat_map(|stack| &stack.frames));
                sample.label.clear();
                self.labels(root, keys, &mut sample.label);
                if root.thread.is_none() {
                    let (str, num) = (self.strings.text(thread.name), thread.id.cast_signed());
                    sample.label.push(Label { key: keys.thread, str, ..Label::default() });
                    sample.label.push(Label { key: keys.tid, num, ..Label::default() });
                }
                if let Some(id) = thread.pid {
                    sample.label.push(Label { key: pid, num: id.into(), ..Label::default() });
                }
                if let Some(cpu) = timed.cpu {
                    sample.label.push(Label { key: cpu_key, num: cpu.into(), ..Label::default() });
                }
                sample.label.push(number(time, begin_ns.saturating_add(timed.at_ns)));
                if timed.weight_ns != weight_ns(timed.count, period_ns.unwrap_or(0.0)) {
                    sample.label.push(number(weight, timed.weight_ns));
                }
                set_values(&mut sample, timed.count, root.waiting, period_ns)?;
                self.message(field::SAMPLE, &sample)?;
            }
        }
        Ok(())
    }
}

/// A stack of a timeline.
struct Stack<'s> {
    root: Option<&'s StackRoot>,
    /// Ids of its locations, leaf first.
    frames: Vec<u64>,
}

impl Stack<'_> {
    fn of(saved: &SavedProfile, node: NodeId) -> Stack<'_> {
        let mut stack = Stack { root: None, frames: Vec::new() };
        let mut at = Some(node);
        while let Some(here) = at {
            match saved.trie().key(here) {
                Some(StackFrame::Root(root)) => stack.root = saved.roots().get(root as usize),
                Some(StackFrame::Frame(frame)) => stack.frames.push(u64::from(frame) + 1),
                None => {}
            }
            at = saved.trie().parent(here);
        }
        stack
    }
}

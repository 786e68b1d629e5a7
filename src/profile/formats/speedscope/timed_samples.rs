//! Samples in the order of their times, for speedscope: a profile for each thread.
//!
//! A weight is the duration of a sample. The weights of a stack add up to its counts, as those of the whole
//! profile do, so a weight is that duration up to the rounding of the stack's counts. Viewers place a sample
//! at the sum of the previous weights: one that would end after its time is shortened, and its stack gets the
//! rest in small gaps before later samples of it, or in a separate profile after all threads ([`ROUNDING`]).
//! So differences do not accumulate. A pause is a sample without a stack. The exact times and counts are in a
//! custom key.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

use super::{ExtraThread, Frames, begin, json};
use crate::profile::StackFrame;
use crate::profile::saved::{SavedProfile, StackRoot};
use crate::profile::timeline::{ThreadTimeline, TimedSample, Timeline};
use crate::trie::NodeId;

/// Shorter pauses are ignored: samples of a running thread are not exactly a period apart.
const PAUSE_PERIODS: f64 = 0.5;
/// Tolerated end of a sample after its time: weights are not exactly the time since the previous one.
const LATE_PERIODS: f64 = 0.25;
/// Name of the profile with the remaining rounding differences.
const ROUNDING: &str = "[rounding]";
/// Most frames of all samples together, each written separately: 100 MB. Larger profiles are written without
/// times.
const FRAMES_MAX: u64 = 1 << 24;

/// Whether viewers can open a file with the times, and weights are times.
pub(super) fn fits(saved: &SavedProfile, timeline: &Timeline, frames: &Frames<'_>) -> bool {
    let depths = saved.trie().map_nodes(0u64, |_, frame, caller| match frame {
        StackFrame::Root(_) => 2,
        StackFrame::Frame(frame) => caller + frames.of_frame(frame).len() as u64,
    });
    let samples = timeline.threads.iter().flat_map(|thread| &thread.samples);
    let depth = |sample: &TimedSample| {
        sample.node.map_or(1, |node| depths.get(node.0 as usize).copied().unwrap_or(1))
    };
    saved.about.period_ns().is_some() && samples.map(depth).fold(0, u64::saturating_add) <= FRAMES_MAX
}

/// Writes the threads of a timeline.
pub(super) fn write(
    saved: &SavedProfile,
    timeline: &Timeline,
    frames: &Frames<'_>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let period_ns = saved.about.period_ns().unwrap_or(0.0);
    // By node: the sums that convert times to weights.
    let mut sums: BTreeMap<NodeId, (u64, u64)> = BTreeMap::new();
    for sample in timeline.threads.iter().flat_map(|thread| &thread.samples) {
        if let Some(node) = sample.node {
            let (weight_ns, count) = sums.entry(node).or_default();
            *weight_ns = weight_ns.saturating_add(sample.weight_ns);
            *count = count.saturating_add(sample.count);
        }
    }
    let factor = |(node, (weight_ns, count)): (NodeId, (u64, u64))| {
        (node, if weight_ns > 0 { count as f64 * period_ns / weight_ns as f64 } else { 0.0 })
    };
    let factors = sums.into_iter().map(factor).collect();
    let rests_ns = BTreeMap::new();
    let mut writer = Writer { saved, frames, period_ns, factors, rests_ns, stacks: HashMap::new() };
    for (index, thread) in timeline.threads.iter().enumerate() {
        if index > 0 {
            writeln!(out, ",")?;
        }
        writer.thread(thread, out)?;
    }
    writer.rounding(out)
}

struct Writer<'s> {
    saved: &'s SavedProfile,
    frames: &'s Frames<'s>,
    period_ns: f64,
    factors: HashMap<NodeId, f64>,
    /// By node: the shortened part of its samples that was not restored.
    rests_ns: BTreeMap<NodeId, f64>,
    /// By node: its serialized stack.
    stacks: HashMap<NodeId, String>,
}

impl Writer<'_> {
    fn thread(&mut self, thread: &ThreadTimeline, out: &mut dyn Write) -> io::Result<()> {
        let saved = self.saved;
        let mut extra =
            ExtraThread::of(saved.text(thread.process), Some((saved.text(thread.name), thread.id)));
        extra.pid = thread.pid;
        // Entries: node and weight.
        let mut entries: Vec<(Option<NodeId>, f64)> = Vec::new();
        let mut now_ns = 0.0;
        // By node: the shortened part of its samples.
        let mut rests_ns: BTreeMap<NodeId, f64> = BTreeMap::new();
        for sample in &thread.samples {
            let factor = sample.node.map_or(1.0, |node| self.factors.get(&node).copied().unwrap_or(1.0));
            // Without times to distribute, counts are the weights.
            let weight_ns = match sample.weight_ns {
                0 => sample.count as f64 * self.period_ns,
                weight_ns => weight_ns as f64 * factor,
            };
            let weight_ns = match sample.node {
                Some(node) => {
                    let rest_ns = rests_ns.remove(&node).unwrap_or(0.0);
                    let wanted_ns = weight_ns + rest_ns.min(self.period_ns * PAUSE_PERIODS);
                    let taken_ns = wanted_ns
                        .min((sample.at_ns as f64 + self.period_ns * LATE_PERIODS - now_ns).max(0.0));
                    let left_ns = weight_ns + rest_ns - taken_ns;
                    if left_ns > 0.0 {
                        rests_ns.insert(node, left_ns);
                    }
                    taken_ns
                }
                None => weight_ns,
            };
            let pause_ns = sample.at_ns as f64 - weight_ns - now_ns;
            if pause_ns > self.period_ns * PAUSE_PERIODS {
                entries.push((None, pause_ns));
                extra.at_ns.push(sample.at_ns);
                extra.weight_ns.push(0);
                extra.counts.push(0);
                now_ns += pause_ns;
            }
            entries.push((sample.node, weight_ns));
            extra.at_ns.push(sample.at_ns);
            extra.weight_ns.push(sample.weight_ns);
            extra.counts.push(sample.count);
            now_ns += weight_ns;
        }
        for (node, rest_ns) in rests_ns {
            *self.rests_ns.entry(node).or_default() += rest_ns;
        }
        self.profile(extra, &entries, out)
    }

    /// Writes the remaining differences of all threads, without times.
    fn rounding(&mut self, out: &mut dyn Write) -> io::Result<()> {
        let rests_ns = std::mem::take(&mut self.rests_ns);
        if rests_ns.values().sum::<f64>() < self.period_ns * LATE_PERIODS {
            return Ok(());
        }
        let mut extra = ExtraThread::of(ROUNDING, None);
        let none = vec![0; rests_ns.len()];
        (extra.at_ns, extra.weight_ns, extra.counts) = (none.clone(), none.clone(), none);
        let entries: Vec<_> = rests_ns.into_iter().map(|(node, rest_ns)| (Some(node), rest_ns)).collect();
        writeln!(out, ",")?;
        self.profile(extra, &entries, out)
    }

    /// Writes a profile of samples, each with its node and its weight.
    fn profile(
        &mut self,
        extra: ExtraThread<'_>,
        entries: &[(Option<NodeId>, f64)],
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let total_ns: f64 = entries.iter().map(|(_, weight_ns)| weight_ns).sum();
        begin(extra, out)?;
        for (index, (node, _)) in entries.iter().enumerate() {
            let stack = match node {
                Some(node) => self.stack(*node),
                None => "",
            };
            write!(out, "{}[{stack}]", if index > 0 { ",\n" } else { "" })?;
        }
        write!(out, "],\n\"weights\":[")?;
        for (index, (_, weight_ns)) in entries.iter().enumerate() {
            write!(out, "{}{}", if index > 0 { "," } else { "" }, json(&(weight_ns / 1e6))?)?;
        }
        write!(
            out,
            "],\n\"unit\":\"milliseconds\",\"startValue\":0,\"endValue\":{}}}",
            json(&(total_ns / 1e6))?
        )
    }

    fn stack(&mut self, node: NodeId) -> &str {
        let (saved, frames) = (self.saved, self.frames);
        self.stacks.entry(node).or_insert_with(|| {
            let trie = saved.trie();
            let none = StackRoot::of(crate::profile::TextId::EMPTY);
            let (mut root, mut stack) = (&none, Vec::new());
            let mut at = Some(node);
            while let Some(here) = at {
                match trie.key(here) {
                    Some(StackFrame::Root(index)) => {
                        root = saved.roots().get(index as usize).unwrap_or(&none)
                    }
                    Some(StackFrame::Frame(frame)) => stack.push(frame),
                    None => {}
                }
                at = trie.parent(here);
            }
            let mut line = String::new();
            frames.push_stack(root, stack.into_iter().rev(), &mut line);
            line
        })
    }
}

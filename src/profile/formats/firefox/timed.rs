//! Samples at their times, for the Firefox Profiler: a thread for each thread of the recording.
//!
//! Viewers take the CPU time of a sample since the one before it. So in front of a sample that follows a pause stands
//! one without a stack and without CPU time: a pause is a gap, not a low line. What was lost is a sample of the same kind.

use std::collections::HashMap;

use fxprof_processed_profile::{
    CpuDelta, FrameInfo, ProcessHandle, Profile, StackHandle, ThreadHandle, Timestamp, WeightType,
};

use super::Labels;
use crate::profile::root_names::INCOMPLETE;
use crate::profile::saved::Saved;
use crate::profile::texts::TextId;
use crate::profile::timeline::{ThreadTimeline, Timeline};
use crate::trie::NodeId;

/// Pauses shorter than this are none: samples of a thread that runs are not exactly a period apart.
const PAUSE_PERIODS: f64 = 0.5;

/// Writes the threads of a timeline. Gives the thread of each.
pub(super) fn write(
    profile: &mut Profile,
    saved: &Saved,
    timeline: &Timeline,
    labels: &mut Labels<'_>,
    weights: &WeightType,
) -> Vec<ThreadHandle> {
    let mut handles = Vec::with_capacity(timeline.threads.len());
    let pause_ns = (saved.about.period_ns().unwrap_or(0.0) * PAUSE_PERIODS) as u64;
    let mut processes: HashMap<(TextId, Option<u32>), ProcessHandle> = HashMap::new();
    for thread in &timeline.threads {
        let begun = Timestamp::from_nanos_since_reference(thread.begun_ns);
        let pid = thread.pid.or(saved.about.pid).unwrap_or(0);
        let process = *processes
            .entry((thread.process, thread.pid))
            .or_insert_with(|| profile.add_process(saved.text(thread.process), pid, begun));
        let id = u32::try_from(thread.id).unwrap_or(u32::MAX);
        let handle = profile.add_thread(process, id, begun, false);
        profile.set_thread_name(handle, saved.text(thread.name));
        if let Some(ended_ns) = thread.ended_ns {
            profile.set_thread_end_time(handle, Timestamp::from_nanos_since_reference(ended_ns));
        }
        profile.set_thread_samples_weight_type(handle, weights.clone());
        let mut samples = Samples { saved, handle, stacks: HashMap::new() };
        samples.write(profile, labels, thread, pause_ns);
        handles.push(handle);
    }
    handles
}

/// The samples of one thread.
struct Samples<'s> {
    saved: &'s Saved,
    handle: ThreadHandle,
    /// By node: its stack, and whether the thread waits there.
    stacks: HashMap<NodeId, (Option<StackHandle>, bool)>,
}

impl Samples<'_> {
    fn write(
        &mut self,
        profile: &mut Profile,
        labels: &mut Labels<'_>,
        thread: &ThreadTimeline,
        pause_ns: u64,
    ) {
        let mut before_ns = thread.begun_ns;
        profile.add_sample(
            self.handle,
            Timestamp::from_nanos_since_reference(before_ns),
            None,
            CpuDelta::ZERO,
            0,
        );
        for sample in &thread.samples {
            let (stack, waiting) = match sample.node {
                Some(node) => self.stack(profile, labels, node),
                None => (None, false),
            };
            let since_ns = sample.at_ns.saturating_sub(sample.weight_ns);
            if since_ns > before_ns.saturating_add(pause_ns) {
                let since = Timestamp::from_nanos_since_reference(since_ns);
                profile.add_sample(self.handle, since, None, CpuDelta::ZERO, 0);
            }
            // No CPU time means that the thread waited.
            let cpu = if waiting { CpuDelta::ZERO } else { CpuDelta::from_nanos(sample.weight_ns) };
            let at = Timestamp::from_nanos_since_reference(sample.at_ns);
            let count = i32::try_from(sample.count).unwrap_or(i32::MAX);
            profile.add_sample(self.handle, at, stack, cpu, count);
            before_ns = sample.at_ns;
        }
    }

    fn stack(
        &mut self,
        profile: &mut Profile,
        labels: &mut Labels<'_>,
        node: NodeId,
    ) -> (Option<StackHandle>, bool) {
        if let Some(known) = self.stacks.get(&node) {
            return *known;
        }
        let mut stack = Vec::new();
        let root = self.saved.path_of(node, &mut stack);
        let is_incomplete = root.is_some_and(|root| !root.complete);
        let mark = is_incomplete.then(|| labels.mark(profile, INCOMPLETE));
        let frames: Vec<FrameInfo> = mark.into_iter().chain(labels.of(profile, &stack)).collect();
        let handle = profile.intern_stack_frames(self.handle, frames.into_iter());
        let found = (handle, root.is_some_and(|root| root.waiting));
        self.stacks.insert(node, found);
        found
    }
}

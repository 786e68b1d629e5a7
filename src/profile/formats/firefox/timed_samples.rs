//! Samples at their times, for the Firefox Profiler: a thread for each thread of the recording.
//!
//! Viewers take the CPU time of a sample since the previous one. So a sample after a pause is preceded by one
//! without a stack and CPU time: a pause is a gap, not a low line. Lost time appears as a gap, too; a marker
//! names the cause.

use std::collections::HashMap;
use std::io;

use super::thread::{Code, Identity, Thread};
use super::{Threads, markers, unique_pid};
use crate::profile::texts::TextId;
use crate::profile::timeline::{ThreadTimeline, Timeline};
use crate::trie::NodeId;

/// Shorter pauses are ignored: samples of a running thread are not exactly a period apart.
const PAUSE_PERIODS: f64 = 0.5;

/// Writes the threads of a timeline.
pub(super) fn write(code: &Code<'_>, timeline: &Timeline, threads: &mut Threads<'_>) -> io::Result<()> {
    let saved = code.saved;
    let pause_ns = (saved.about.period_ns().unwrap_or(0.0) * PAUSE_PERIODS) as u64;
    // By process and its number: its number in the file. Process numbers recur after an exec.
    let mut pids: HashMap<(TextId, u32), String> = HashMap::new();
    let mut programs: HashMap<u32, usize> = HashMap::new();
    for (thread, markers) in timeline.threads.iter().zip(markers::by_thread(saved, timeline)) {
        let pid = thread.pid.or(saved.about.pid).unwrap_or(0);
        let file_pid = pids.entry((thread.process, pid)).or_insert_with(|| {
            let others = programs.entry(pid).or_default();
            *others += 1;
            unique_pid(Some(pid), *others - 1)
        });
        let identity = Identity {
            process: saved.text(thread.process),
            pid: file_pid.clone(),
            name: saved.text(thread.name),
            tid: thread.id,
            is_main: thread.id == u64::from(pid),
            begun_ns: thread.begun_ns,
            ended_ns: thread.ended_ns,
        };
        let mut written = Thread::new(code, identity);
        samples(code, thread, pause_ns, &mut written);
        written.add_markers(markers);
        threads.add(written)?;
    }
    Ok(())
}

/// Adds the samples of a thread.
fn samples(code: &Code<'_>, thread: &ThreadTimeline, pause_ns: u64, into: &mut Thread<'_, '_>) {
    // By node: its stack, and whether the thread waits there.
    let mut stacks: HashMap<NodeId, (Option<u32>, bool)> = HashMap::new();
    let mut frames = Vec::new();
    let mut before_ns = thread.begun_ns;
    into.add_sample(before_ns, None, 0, 0);
    for sample in &thread.samples {
        let (stack, waiting) = match sample.node {
            Some(node) => *stacks.entry(node).or_insert_with(|| {
                frames.clear();
                let root = code.saved.path_of(node, &mut frames);
                let stack = into.stack(root.is_none_or(|root| root.complete), frames.iter().copied());
                (stack, root.is_some_and(|root| root.waiting))
            }),
            None => (None, false),
        };
        let since_ns = sample.at_ns.saturating_sub(sample.weight_ns);
        if since_ns > before_ns.saturating_add(pause_ns) {
            into.add_sample(since_ns, None, 0, 0);
        }
        // Zero CPU time means that the thread waited.
        into.add_sample(sample.at_ns, stack, if waiting { 0 } else { sample.weight_ns }, sample.count);
        before_ns = sample.at_ns;
    }
}

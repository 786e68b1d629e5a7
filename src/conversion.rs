//! Converts a recording to a saved profile: its frames with their names, without its images.
//!
//! Input: a recording, its names, and for a heap recording its statistics. Output: [`SavedProfile`], with every
//! name, address and count of the recording. `ExecChains` are the threads that an exec continues. Not for: looking up
//! names.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::heap::{HeapValues, InuseHistory, Moment, NodeValues, ValueKind};
use crate::profile::about::About;
use crate::profile::saved::{
    Full, Function, LabelsId, Line, Mapping, SavedProfile, StackRoot, StackValues, ValueType,
};
use crate::profile::timeline::{Event, EventKind, Loss, ThreadTimeline, TimedSample, Timeline};
use crate::profile::{FIBER, RING_FULL, SavedBuilder, TextId};
use crate::recording::{self, Frame, Recording, timeline};
use crate::symbol::Names;
use crate::trie::{FrameId, NodeId};

/// What a recording does not know of itself, and what of it to leave out.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConversionOptions {
    /// Start of the recording, nanoseconds since 1970 (UTC).
    pub time_unix_ns: Option<u64>,
    /// The process was launched for it.
    pub launched: bool,
    /// Waiting threads were recorded too.
    pub idle: bool,
    /// Processes with the same name are separated by their ids.
    pub per_process: bool,
    /// Leaves out the times of samples, because no output stores them.
    pub without_times: bool,
}

impl ConversionOptions {
    /// Process name that the stacks of a program are shown under.
    fn name<'p>(&self, recording: &'p Recording, program: u32) -> Cow<'p, str> {
        let Some(program) = recording.programs.get(program as usize) else { return Cow::Borrowed("") };
        if self.per_process {
            Cow::Owned(format!("{} ({})", program.name, program.pid))
        } else {
            Cow::Borrowed(&program.name)
        }
    }
}

/// Converts a recording of CPU time.
///
/// # Errors
/// [`Full`] if a table is full.
pub fn saved_profile(
    recording: &Recording,
    names: &Names,
    options: ConversionOptions,
) -> Result<SavedProfile, Full> {
    let mut conversion = Conversion::new(about(recording, options), recording, names, options);
    let mut full = Ok(());
    recording.trie.for_each_stack(|path, count| {
        if full.is_ok() {
            full = conversion.add(path, count).map(drop);
        }
    });
    full?;
    if let Some(timeline) = recording.timeline.as_ref().filter(|_| !options.without_times) {
        let timeline = conversion.timeline(timeline)?;
        conversion.builder.set_timeline(timeline);
    }
    Ok(conversion.builder.finish())
}

/// A conversion in progress.
struct Conversion<'p> {
    builder: SavedBuilder,
    recording: &'p Recording,
    names: &'p Names,
    options: ConversionOptions,
    /// By frame of the recording: its index in the saved form, once converted.
    frames: Vec<Option<u32>>,
    /// The current stack; reused to avoid allocations.
    stack: Vec<u32>,
}

impl<'p> Conversion<'p> {
    /// An empty conversion.
    fn new(
        about: About,
        recording: &'p Recording,
        names: &'p Names,
        options: ConversionOptions,
    ) -> Conversion<'p> {
        Conversion {
            builder: SavedBuilder::new(about),
            recording,
            names,
            options,
            frames: vec![None; recording.trie.frame_count()],
            stack: Vec::new(),
        }
    }
}

impl Conversion<'_> {
    /// Adds the count of a stack, given root first. Returns its node; `None` if the path is not a
    /// stack.
    fn add(&mut self, path: &[FrameId], count: u64) -> Result<Option<NodeId>, Full> {
        let recording = self.recording;
        let Some((root, code)) = path.split_first() else { return Ok(None) };
        let Some(Frame::Root(recorded_root)) = recording.trie.frame(*root) else { return Ok(None) };
        let Some(group) = recording.stack_groups.get(recorded_root.group as usize) else { return Ok(None) };
        let thread = match &group.thread {
            Some(thread) => Some((self.builder.text(&thread.name)?, thread.id)),
            None => None,
        };
        let process = self.builder.text(&self.options.name(recording, group.program))?;
        let (complete, waiting) = (recorded_root.complete, recorded_root.waiting);
        let root =
            self.builder.root(StackRoot { process, thread, complete, waiting, labels: LabelsId::NONE })?;
        self.stack.clear();
        if recorded_root.fiber {
            self.stack.push(self.builder.named_frame(FIBER)?);
        }
        for id in code {
            let known = self.frames.get(id.0 as usize).copied().flatten();
            let frame = match known {
                Some(frame) => frame,
                None => frame_of(&mut self.builder, recording, self.names, *id)?,
            };
            if let Some(slot) = self.frames.get_mut(id.0 as usize) {
                *slot = Some(frame);
            }
            self.stack.push(frame);
        }
        self.builder.add(root, &self.stack, count).map(Some)
    }

    /// Converts the times of samples, whose counts are those of the profile. A thread that ran several programs becomes one thread for
    /// each.
    fn timeline(&mut self, recorded: &recording::Timeline) -> Result<Timeline, Full> {
        let mut nodes: Vec<Option<Stack>> = vec![None; self.recording.trie.node_count()];
        let mut threads = Vec::new();
        for thread in recorded.threads() {
            let name = self.builder.text(&thread.name)?;
            let mut parts: Vec<(u32, Vec<TimedSample>)> = Vec::new();
            for sample in thread.samples() {
                let known = nodes.get(sample.node.0 as usize).copied().flatten();
                let stack = match known {
                    Some(known) => known,
                    None => {
                        let stack = self.stack_of(sample.node)?;
                        if let Some(place) = nodes.get_mut(sample.node.0 as usize) {
                            *place = Some(stack);
                        }
                        stack
                    }
                };
                let before = parts.last().map(|(program, _)| *program);
                let Some(program) = stack.program.or(before) else { continue };
                if before != Some(program) {
                    parts.push((program, Vec::new()));
                }
                let recording::timeline::TimedSample { at_ns, weight_ns, cpu, .. } = sample;
                if let Some((_, samples)) = parts.last_mut() {
                    samples.push(TimedSample { at_ns, weight_ns, node: stack.node, count: 0, cpu });
                }
            }
            let last = parts.len().saturating_sub(1);
            // A thread older than the recording is shown from its start: it may have waited unseen.
            let mut begun_ns = if thread.preexisting { 0 } else { thread.begun_ns };
            for (number, (program, samples)) in parts.into_iter().enumerate() {
                let ended_ns = match number == last {
                    true => thread.ended_ns,
                    false => samples.last().map(|sample| sample.at_ns),
                };
                let process = self.builder.text(&self.options.name(self.recording, program))?;
                let pid = self.recording.programs.get(program as usize).map(|program| program.pid);
                let pid = pid.filter(|pid| *pid > 0);
                threads.push(ThreadTimeline {
                    process,
                    pid,
                    name,
                    id: thread.id,
                    begun_ns,
                    ended_ns,
                    samples,
                });
                begun_ns = ended_ns.unwrap_or(begun_ns);
            }
        }
        let mut losses = Vec::new();
        for recording::timeline::Loss { reason, since_ns, at_ns, lost_ns } in recorded.losses() {
            losses.push(Loss { since_ns, at_ns, lost_ns, reason: self.builder.text(reason)? });
        }
        let step_ns = recorded.detail().step_ns();
        let events = self.events(recorded)?;
        Ok(Timeline { step_ns, threads, losses, events })
    }

    /// Events of processes and threads, by time. No start for threads that existed at the beginning, and no end for
    /// those that outlived the recording.
    fn events(&mut self, recorded: &recording::Timeline) -> Result<Vec<Event>, Full> {
        let mut programs: HashMap<u32, u32> = HashMap::new();
        for (index, program) in (0..).zip(&self.recording.programs) {
            programs.insert(program.pid, index);
        }
        let mut processes: HashMap<u32, TextId> = HashMap::new();
        for (pid, index) in programs {
            let name = self.options.name(self.recording, index);
            processes.insert(pid, self.builder.text(&name)?);
        }
        let process = |pid: u32| processes.get(&pid).copied().unwrap_or_default();
        let mut events = Vec::new();
        for event in recorded.events() {
            let kind = match event.kind {
                timeline::EventKind::Exec => EventKind::Exec,
                timeline::EventKind::ImageLoad => EventKind::ImageLoad,
                timeline::EventKind::ProcessEnd => EventKind::ProcessEnd,
            };
            let (pid, text) = (event.pid, self.builder.text(&event.text)?);
            events.push(Event {
                at_ns: event.at_ns,
                kind,
                process: process(pid),
                pid,
                thread: pid.into(),
                text,
            });
        }
        let chains = ExecChains::of(recorded);
        for (index, thread) in recorded.threads().iter().enumerate() {
            let is_first = thread.id == u64::from(thread.pid);
            let (pid, id) = (thread.pid, thread.id);
            let text = self.builder.text(&thread.name)?;
            let event = |at_ns, kind| Event { at_ns, kind, process: process(pid), pid, thread: id, text };
            if !thread.preexisting && !chains.continues_one(index) {
                let kind = if is_first { EventKind::ProcessStart } else { EventKind::ThreadStart };
                events.push(event(thread.begun_ns, kind));
            }
            let ended_ns = thread.ended_ns.filter(|_| !chains.is_continued(index));
            if let Some(ended_ns) = ended_ns.filter(|_| !is_first || !chains.has_ended(pid)) {
                let kind = if is_first { EventKind::ProcessEnd } else { EventKind::ThreadEnd };
                events.push(event(ended_ns, kind));
            }
        }
        events.sort_by_key(|event| (event.at_ns, event.kind, event.pid, event.thread));
        Ok(events)
    }

    /// Converts the stack of a node of the recording's trie.
    fn stack_of(&mut self, node: NodeId) -> Result<Stack, Full> {
        let recording = self.recording;
        let mut path = Vec::new();
        let mut at = Some(node);
        while let Some(here) = at {
            path.extend(recording.trie.frame_of(here));
            at = recording.trie.parent(here);
        }
        path.reverse();
        let program = match path.first().and_then(|root| recording.trie.frame(*root)) {
            Some(Frame::Root(root)) => {
                recording.stack_groups.get(root.group as usize).map(|group| group.program)
            }
            _ => None,
        };
        let node = if recording.trie.count(node) > 0 { self.add(&path, 0)? } else { None };
        Ok(Stack { node, program })
    }
}

/// A stack of a timeline.
#[derive(Clone, Copy)]
struct Stack {
    /// Its node in the saved form; `None` if its count is zero, or the stack was not kept.
    node: Option<NodeId>,
    /// Index of its program.
    program: Option<u32>,
}

/// Metadata of a recording.
fn about(recording: &Recording, options: ConversionOptions) -> About {
    let stats = &recording.stats;
    let owned = |counts: &std::collections::BTreeMap<&'static str, u64>| {
        counts.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
    };
    About {
        hz: Some(recording.hz),
        time_unix_ns: options.time_unix_ns,
        duration_ns: Some(stats.duration_ns),
        pid: Some(recording.process.pid).filter(|pid| *pid > 0),
        arch: Some(recording.process.arch.name().to_owned()),
        command: Some(recording.process.command.clone()).filter(|command| !command.is_empty()),
        // `launched` means that the recording covers the whole run: not if the program still ran at
        // the end.
        launched: Some(options.launched && stats.exit_status.is_some()),
        idle: Some(options.idle),
        lost: owned(&stats.samples_lost),
        incomplete: owned(&stats.stacks_incomplete),
        ticks: Some(stats.ticks),
        version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        ..About::default()
    }
}

fn frame_of(
    builder: &mut SavedBuilder,
    recording: &Recording,
    names: &Names,
    id: FrameId,
) -> Result<u32, Full> {
    let Some(Frame::Code { space, address }) = recording.trie.frame(id) else {
        return builder.frame(0, None, &[]);
    };
    let mapping = match recording.images.mapping_of(space, address.at()) {
        Some((image, range, file_offset)) => {
            let path = builder.text(image.shown_path())?;
            let digits = image.build_id.iter().flatten().map(|byte| format!("{byte:02x}"));
            let build_id = builder.text(&digits.collect::<String>())?;
            let (start, limit) = (range.start.0, range.end.0);
            Some(builder.mapping(Mapping { start, limit, file_offset, path, build_id })?)
        }
        None => None,
    };
    let mut lines = Vec::new();
    for function in names.functions(id) {
        let name = builder.text(function.name.as_deref().unwrap_or_default())?;
        let file = builder.text(function.file.as_deref().unwrap_or_default())?;
        let index = builder.function(Function { name, file, ..Function::default() })?;
        lines.push(Line { function: index, line: function.line });
    }
    // A profile goes to others, and where the kernel is in memory is a secret of root.
    let address = if address.at().is_kernel() { 0 } else { address.0 };
    builder.frame(address, mapping, &lines)
}

/// Converts a heap recording, with all values; its counts are the values of `kind`.
///
/// # Errors
/// [`Full`] if a table is full.
pub fn saved_heap_profile(
    recording: &Recording,
    names: &Names,
    options: ConversionOptions,
    heap: &HeapValues,
    kind: ValueKind,
) -> Result<SavedProfile, Full> {
    let mut about = about(recording, options);
    about.hz = None;
    about.ticks = None;
    about.sampled_every = Some(heap.rate.every_bytes());
    about.is_peak = heap.moment == Moment::Peak;
    about.value_type = Some(kind.name().to_owned());
    let types = ValueKind::ALL.map(|kind| ValueType { kind: kind.name().into(), unit: kind.unit().into() });
    types[kind as usize].counted_unit().clone_into(&mut about.unit);
    let mut values = StackValues::new(types.to_vec());
    // `lost` is in the unit of the counts. `incomplete` counts samples, so it is left out: roots mark such stacks.
    about.incomplete.clear();
    let lost_bytes = lost_bytes(recording, heap);
    about.lost = lost_bytes.filter(|_| kind.unit() == "bytes").into_iter().collect();
    let by_node: HashMap<u32, &NodeValues> = heap.nodes.iter().map(|known| (known.node.0, known)).collect();
    let mut conversion = Conversion::new(about, recording, names, options);
    let mut saved_nodes = HashMap::new();
    let mut full = Ok(());
    recording.trie.for_each_leaf(|node, path, _| {
        let (Some(known), true) = (by_node.get(&node.0), full.is_ok()) else { return };
        full = conversion.add(path, known.values[kind as usize]).map(|here| {
            if let Some(here) = here {
                values.add(here, &known.values);
                values.add_inuse(here, known.inuse);
                saved_nodes.insert(node, here);
            }
        });
    });
    full?;
    if kind == ValueKind::InuseSpace {
        let stats = &recording.stats;
        let recorded = stats.begun_ns..stats.begun_ns.saturating_add(stats.duration_ns);
        values
            .set_history(InuseHistory::of(&heap.history, &recorded, |node| saved_nodes.get(&node).copied()));
    }
    let mut saved = conversion.builder.finish();
    saved.set_values(values);
    Ok(saved)
}

/// The reason for lost samples, and an estimate of their bytes.
#[must_use]
pub fn lost_bytes(recording: &Recording, heap: &HeapValues) -> Option<(String, u64)> {
    let losses = &recording.heap.as_ref()?.losses;
    let classes = losses.allocations.iter();
    let bytes = classes
        .fold(0u64, |sum, (count, bytes)| sum.saturating_add(heap.rate.estimated_bytes(*count, *bytes)));
    (bytes > 0).then(|| (RING_FULL.to_owned(), bytes))
}

// ---- An exec ends one thread entry of a recording and begins another: pairs them, so that no end and start is shown.

/// Thread entries that an exec joins, by their indexes in the timeline.
struct ExecChains {
    continued: HashSet<usize>,
    continuing: HashSet<usize>,
    ended: HashSet<u32>,
}

impl ExecChains {
    fn of(timeline: &timeline::Timeline) -> ExecChains {
        let mut marks: HashMap<u32, Vec<(u64, timeline::EventKind)>> = HashMap::new();
        let mut ended = HashSet::new();
        for event in timeline.events().iter().filter(|event| event.kind != timeline::EventKind::ImageLoad) {
            marks.entry(event.pid).or_default().push((event.at_ns, event.kind));
            if event.kind == timeline::EventKind::ProcessEnd {
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
            if between.next_back().is_some_and(|(_, kind)| *kind == timeline::EventKind::Exec) {
                continued.insert(before);
                continuing.insert(index);
            }
        }
        ExecChains { continued, continuing, ended }
    }

    /// Whether a thread continues an earlier one with another program.
    fn continues_one(&self, index: usize) -> bool {
        self.continuing.contains(&index)
    }

    /// Whether another thread continues this one.
    fn is_continued(&self, index: usize) -> bool {
        self.continued.contains(&index)
    }

    /// Whether the end of a process was recorded.
    fn has_ended(&self, pid: u32) -> bool {
        self.ended.contains(&pid)
    }
}

#[cfg(test)]
mod exec_chains_tests {
    use super::*;

    #[test]
    fn a_thread_continues_through_an_exec_but_not_an_end() {
        let mut timeline = timeline::Timeline::new(0, 1000, 1 << 20);
        let life = |timeline: &mut timeline::Timeline, from_ns: u64, until_ns: u64| {
            let thread = timeline.add_thread(7, 7, from_ns, false);
            timeline.end_thread(thread, until_ns);
        };
        life(&mut timeline, 10, 20);
        timeline.add_event(timeline::EventKind::Exec, 7, 21, "b");
        life(&mut timeline, 25, 30);
        timeline.add_event(timeline::EventKind::ProcessEnd, 7, 31, "");
        // Its id belongs to another process.
        life(&mut timeline, 40, 50);
        let chains = ExecChains::of(&timeline);
        assert_eq!([0, 1, 2].map(|index| chains.continues_one(index)), [false, true, false]);
        assert_eq!([0, 1, 2].map(|index| chains.is_continued(index)), [true, false, false]);
        assert!(chains.has_ended(7) && !chains.has_ended(8));
    }
}

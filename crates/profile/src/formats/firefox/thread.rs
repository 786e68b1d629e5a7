//! A thread of a file to be written: its samples, and the tables that these need.
//!
//! `write` orders samples by their times, for a thread of the recording each; `Marker` is an event or a loss.
//!
//! Input: frames of a [`SavedProfile`], samples in order of time. Output: the thread as JSON. A frame of the profile
//! becomes one frame per function, outermost first; inlined ones share its address.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::libraries::Libraries;
use super::tables::{
    ConstantColumn, EVENT, FileThread, FrameColumns, FuncColumns, JIT, KERNEL, LIBRARY, LOST, MarkerColumns,
    MarkerData, NativeSymbolColumns, OTHER, Programs, ResourceColumns, SampleColumns, StackColumns, USER,
    milliseconds,
};
use super::{Threads, unique_pid};
use crate::formats::html::{FunctionKind, kind_of};
use crate::saved::INCOMPLETE;
use crate::saved::{SavedProfile, UNKNOWN};
use crate::texts::TextId;
use crate::timeline::{Event, EventKind, ThreadIndex, ThreadTimeline, Timeline};
use crate::trie::NodeId;

/// Resource type of libraries.
const RESOURCE_TYPE_LIBRARY: u8 = 1;

/// Facts about code, for all threads.
pub(super) struct Code<'s> {
    pub(super) saved: &'s SavedProfile,
    pub(super) libraries: &'s Libraries,
    /// By library and function name: its lowest address in the profile.
    starts: HashMap<(u32, TextId), u32>,
    has_modules: bool,
    programs: Programs<'s>,
}

impl<'s> Code<'s> {
    /// Collects them from a profile.
    pub(super) fn of(saved: &'s SavedProfile, libraries: &'s Libraries) -> Code<'s> {
        let mut starts: HashMap<(u32, TextId), u32> = HashMap::new();
        for (frame, place) in saved.frames().iter().zip(&libraries.frames) {
            if let (Some((library, address)), Some(line)) = (place, saved.lines_of(frame).first()) {
                let name = saved.function(line.function).shown_name();
                let start = starts.entry((*library, name)).or_insert(*address);
                *start = (*start).min(*address);
            }
        }
        let has_modules = !saved.mappings().is_empty();
        Code { saved, libraries, starts, has_modules, programs: Programs::of(saved) }
    }
}

/// Process and name of a thread.
#[derive(Clone)]
pub(super) struct Identity<'s> {
    pub(super) process: &'s str,
    pub(super) pid: String,
    pub(super) name: &'s str,
    pub(super) tid: u64,
    pub(super) is_main: bool,
    pub(super) begun_ns: u64,
    pub(super) ended_ns: Option<u64>,
}

/// A row of the table of frames.
struct FrameRow {
    func: u32,
    address: i64,
    inline_depth: u32,
    category: u8,
    native_symbol: Option<u32>,
    line: Option<u32>,
}

/// Key of a row of the function table: name, library, file, line.
type FuncKey = (u32, Option<u32>, Option<u32>, u32);

/// The tables of a thread, built on demand.
pub(super) struct Thread<'c, 's> {
    code: &'c Code<'s>,
    identity: Identity<'s>,
    strings: Vec<Cow<'s, str>>,
    string_of: HashMap<Cow<'s, str>, u32>,
    frames: Vec<FrameRow>,
    /// By frame of the profile: its frames in this thread.
    frame_of: HashMap<u32, Vec<u32>>,
    incomplete_frame: Option<u32>,
    funcs: Vec<FuncKey>,
    func_of: HashMap<FuncKey, u32>,
    /// Library and name.
    resources: Vec<(u32, u32)>,
    resource_of: HashMap<u32, u32>,
    /// Address, library and name.
    symbols: Vec<(u32, u32, u32)>,
    symbol_of: HashMap<(u32, u32), u32>,
    prefixes: Vec<Option<u32>>,
    stack_frames: Vec<u32>,
    stack_of: HashMap<(Option<u32>, u32), u32>,
    stacks: Vec<Option<u32>>,
    at_ns: Vec<u64>,
    weights: Vec<u64>,
    cpu_us: Vec<u64>,
    /// CPU time of all samples so far, and the part already written.
    used_ns: u64,
    written_us: u64,
    markers: MarkerColumns,
}

impl<'c, 's> Thread<'c, 's> {
    /// Returns a thread without samples.
    pub(super) fn new(code: &'c Code<'s>, identity: Identity<'s>) -> Thread<'c, 's> {
        Thread {
            code,
            identity,
            strings: Vec::new(),
            string_of: HashMap::new(),
            frames: Vec::new(),
            frame_of: HashMap::new(),
            incomplete_frame: None,
            funcs: Vec::new(),
            func_of: HashMap::new(),
            resources: Vec::new(),
            resource_of: HashMap::new(),
            symbols: Vec::new(),
            symbol_of: HashMap::new(),
            prefixes: Vec::new(),
            stack_frames: Vec::new(),
            stack_of: HashMap::new(),
            stacks: Vec::new(),
            at_ns: Vec::new(),
            weights: Vec::new(),
            cpu_us: Vec::new(),
            used_ns: 0,
            written_us: 0,
            markers: MarkerColumns::default(),
        }
    }

    /// Adds a sample, not earlier than the previous one.
    pub(super) fn add_sample(&mut self, at_ns: u64, stack: Option<u32>, cpu_ns: u64, weight: u64) {
        let at_ns = at_ns.max(self.at_ns.last().copied().unwrap_or(0));
        self.stacks.push(stack);
        self.at_ns.push(at_ns);
        self.weights.push(weight);
        // The format has whole microseconds, so the difference of two sums is written: it does not drift.
        // Zero would mean that the thread waited.
        self.used_ns = self.used_ns.saturating_add(cpu_ns);
        let cpu_us =
            if cpu_ns == 0 { 0 } else { (self.used_ns / 1000).saturating_sub(self.written_us).max(1) };
        self.written_us = self.written_us.saturating_add(cpu_us);
        self.cpu_us.push(cpu_us);
    }

    /// Adds markers.
    pub(super) fn add_markers(&mut self, markers: Vec<Marker>) {
        self.markers = columns(markers, |text| self.string(text));
    }

    /// The stack for frames of the profile, outermost first.
    pub(super) fn stack(&mut self, complete: bool, frames: impl Iterator<Item = u32>) -> Option<u32> {
        let mut stack = None;
        if !complete {
            let incomplete_frame = self.incomplete_frame();
            stack = Some(self.descend(stack, incomplete_frame));
        }
        for frame in frames {
            let rows = match self.frame_of.get(&frame) {
                Some(rows) => rows.clone(),
                None => {
                    let rows = self.rows(frame);
                    self.frame_of.insert(frame, rows.clone());
                    rows
                }
            };
            for row in rows {
                stack = Some(self.descend(stack, row));
            }
        }
        stack
    }

    fn descend(&mut self, prefix: Option<u32>, frame: u32) -> u32 {
        let (prefixes, frames) = (&mut self.prefixes, &mut self.stack_frames);
        *self.stack_of.entry((prefix, frame)).or_insert_with(|| {
            prefixes.push(prefix);
            frames.push(frame);
            frames.len() as u32 - 1
        })
    }

    /// The placeholder frame for the missing part of a stack.
    fn incomplete_frame(&mut self) -> u32 {
        if let Some(incomplete_frame) = self.incomplete_frame {
            return incomplete_frame;
        }
        let name = self.string(INCOMPLETE);
        let func = self.func((name, None, None, 0));
        self.frames.push(FrameRow {
            func,
            address: -1,
            inline_depth: 0,
            category: OTHER,
            native_symbol: None,
            line: None,
        });
        *self.incomplete_frame.insert(self.frames.len() as u32 - 1)
    }

    /// The rows for a frame of the profile, outermost first.
    fn rows(&mut self, index: u32) -> Vec<u32> {
        let code = self.code;
        let saved = code.saved;
        let place = code.libraries.frames.get(index as usize).copied().flatten();
        let frame = saved.frames().get(index as usize);
        let lines = frame.map(|frame| saved.lines_of(frame)).unwrap_or_default();
        let resource = place.map(|(library, _)| self.resource(library));
        let path = place.and_then(|(library, _)| code.libraries.list.get(library as usize));
        let path = path.map_or("", |library| library.path.as_str());
        let mut rows = Vec::with_capacity(lines.len().max(1));
        if lines.is_empty() {
            let mut name = String::new();
            saved.names_of(index, false, &mut |text| text.clone_into(&mut name));
            let category = self.category(&name, path);
            let name = self.string(name);
            let func = self.func((name, resource, None, 0));
            rows.push(self.row(func, place, 0, category, None, 0));
            return rows;
        }
        let mut symbol = None;
        for (depth, line) in (0u32..).zip(lines) {
            let function = saved.function(line.function);
            let shown = function.shown_name();
            let text = if shown == TextId::EMPTY { UNKNOWN } else { saved.text(shown) };
            let category = self.category(text, path);
            let name = self.string(text);
            let file = Some(saved.text(function.file)).filter(|file| !file.is_empty());
            let file = file.map(|file| self.string(file));
            let func = self.func((name, resource, file, function.start_line));
            if depth == 0 {
                symbol = place.map(|(library, address)| self.symbol(library, (shown, name), address));
            }
            rows.push(self.row(func, place, depth, category, symbol, line.line));
        }
        rows
    }

    fn row(
        &mut self,
        func: u32,
        place: Option<(u32, u32)>,
        inline_depth: u32,
        category: u8,
        native_symbol: Option<u32>,
        line: u32,
    ) -> u32 {
        let address = place.map_or(-1, |(_, address)| i64::from(address));
        let line = Some(line).filter(|line| *line > 0);
        self.frames.push(FrameRow { func, address, inline_depth, category, native_symbol, line });
        self.frames.len() as u32 - 1
    }

    fn category(&self, name: &str, path: &str) -> u8 {
        match kind_of(name, path, self.code.has_modules) {
            FunctionKind::Kernel => KERNEL,
            FunctionKind::Jit => JIT,
            FunctionKind::Mark => OTHER,
            FunctionKind::Code | FunctionKind::NoSymbol
                if !path.is_empty() && !self.code.programs.has(path) =>
            {
                LIBRARY
            }
            FunctionKind::Code | FunctionKind::NoSymbol => USER,
        }
    }

    fn string(&mut self, text: impl Into<Cow<'s, str>>) -> u32 {
        let text = text.into();
        if let Some(known) = self.string_of.get(&text) {
            return *known;
        }
        let index = self.strings.len() as u32;
        self.strings.push(text.clone());
        self.string_of.insert(text, index);
        index
    }

    fn func(&mut self, key: FuncKey) -> u32 {
        let funcs = &mut self.funcs;
        *self.func_of.entry(key).or_insert_with(|| {
            funcs.push(key);
            funcs.len() as u32 - 1
        })
    }

    fn resource(&mut self, library: u32) -> u32 {
        if let Some(known) = self.resource_of.get(&library) {
            return *known;
        }
        let libraries = self.code.libraries;
        let name =
            self.string(libraries.list.get(library as usize).map_or("", |library| library.name.as_str()));
        let index = self.resources.len() as u32;
        self.resources.push((library, name));
        self.resource_of.insert(library, index);
        index
    }

    fn symbol(&mut self, library: u32, (function, name): (TextId, u32), address: u32) -> u32 {
        let start = self.code.starts.get(&(library, function)).copied().unwrap_or(address);
        let symbols = &mut self.symbols;
        *self.symbol_of.entry((library, name)).or_insert_with(|| {
            symbols.push((start, library, name));
            symbols.len() as u32 - 1
        })
    }

    /// Writes the thread.
    pub(super) fn write(self, weight_type: &'static str, out: &mut dyn Write) -> io::Result<()> {
        let (frames, funcs) = (self.frames.len(), self.funcs.len());
        let of_frames = || self.frames.iter();
        let of_funcs = || self.funcs.iter();
        let thread = FileThread {
            name: self.identity.name,
            is_main_thread: self.identity.is_main,
            process_type: "default",
            // Without a process name, readers use the name of the thread.
            process_name: if self.identity.process.is_empty() { UNKNOWN } else { self.identity.process },
            process_startup_time: 0.0,
            process_shutdown_time: None,
            register_time: milliseconds(self.identity.begun_ns),
            unregister_time: self.identity.ended_ns.map(milliseconds),
            paused_ranges: [],
            show_markers_in_timeline: self.markers.length > 0,
            pid: &self.identity.pid,
            tid: self.identity.tid,
            samples: SampleColumns {
                length: self.stacks.len(),
                weight_type,
                stack: &self.stacks,
                time_deltas: time_deltas(&self.at_ns),
                weight: &self.weights,
                thread_cpu_delta: &self.cpu_us,
            },
            markers: self.markers,
            stack_table: StackColumns {
                length: self.stack_frames.len(),
                prefix: &self.prefixes,
                frame: &self.stack_frames,
            },
            frame_table: FrameColumns {
                length: frames,
                address: of_frames().map(|row| row.address).collect(),
                inline_depth: of_frames().map(|row| row.inline_depth).collect(),
                category: of_frames().map(|row| row.category).collect(),
                subcategory: ConstantColumn(0, frames),
                func: of_frames().map(|row| row.func).collect(),
                native_symbol: of_frames().map(|row| row.native_symbol).collect(),
                inner_window_id: ConstantColumn(0, frames),
                line: of_frames().map(|row| row.line).collect(),
                column: ConstantColumn((), frames),
            },
            func_table: FuncColumns {
                length: funcs,
                name: of_funcs().map(|func| func.0).collect(),
                is_js: ConstantColumn(false, funcs),
                relevant_for_js: ConstantColumn(false, funcs),
                resource: of_funcs().map(|func| func.1.map_or(-1, i64::from)).collect(),
                file_name: of_funcs().map(|func| func.2).collect(),
                line_number: of_funcs().map(|func| Some(func.3).filter(|line| *line > 0)).collect(),
                column_number: ConstantColumn((), funcs),
            },
            resource_table: ResourceColumns {
                length: self.resources.len(),
                lib: self.resources.iter().map(|resource| resource.0).collect(),
                name: self.resources.iter().map(|resource| resource.1).collect(),
                host: ConstantColumn((), self.resources.len()),
                kind: ConstantColumn(RESOURCE_TYPE_LIBRARY, self.resources.len()),
            },
            native_symbols: NativeSymbolColumns {
                length: self.symbols.len(),
                address: self.symbols.iter().map(|symbol| symbol.0).collect(),
                function_size: ConstantColumn((), self.symbols.len()),
                lib_index: self.symbols.iter().map(|symbol| symbol.1).collect(),
                name: self.symbols.iter().map(|symbol| symbol.2).collect(),
            },
            string_array: &self.strings,
        };
        serde_json::to_writer(out, &thread).map_err(io::Error::from)
    }
}

/// Converts times to the format's deltas.
fn time_deltas(at_ns: &[u64]) -> Vec<f64> {
    let before = std::iter::once(&0).chain(at_ns);
    at_ns
        .iter()
        .zip(before)
        .map(|(at_ns, before_ns)| milliseconds(at_ns.saturating_sub(*before_ns)))
        .collect()
}

// ---- Samples at their times, for the Firefox Profiler: a thread for each thread of the recording.
//
// Viewers take the CPU time of a sample since the previous one. So a sample after a pause is preceded by one
// without a stack and CPU time: a pause is a gap, not a low line. Lost time appears as a gap, too; a marker
// names the cause.

/// Shorter pauses are ignored: samples of a running thread are not exactly a period apart.
const PAUSE_PERIODS: f64 = 0.5;

/// Writes the threads of a timeline.
pub(super) fn write(code: &Code<'_>, timeline: &Timeline, threads: &mut Threads<'_>) -> io::Result<()> {
    let saved = code.saved;
    let pause_ns = (saved.about.period_ns().unwrap_or(0.0) * PAUSE_PERIODS) as u64;
    // By process and its number: its number in the file. Process numbers recur after an exec.
    let mut pids: HashMap<(TextId, u32), String> = HashMap::new();
    let mut programs: HashMap<u32, usize> = HashMap::new();
    for (thread, markers) in timeline.threads.iter().zip(by_thread(saved, timeline)) {
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

// ---- Events and losses as markers of the Firefox Profiler: in its marker chart and table, at their times.

/// Name of the common marker type.
const TYPE: &str = "stackprof";

/// A marker: an event or a loss.
#[derive(Clone, Debug)]
pub(super) struct Marker {
    pub(super) name: &'static str,
    pub(super) text: String,
    pub(super) category: u8,
    pub(super) at_ns: u64,
    /// `None` for an instant.
    pub(super) end_ns: Option<u64>,
}

/// The marker schema for viewers.
pub(super) fn schema() -> Value {
    json!({
        "name": TYPE,
        "display": ["marker-chart", "marker-table", "timeline-overview"],
        "chartLabel": "{marker.data.text}",
        "tableLabel": "{marker.name}: {marker.data.text}",
        "fields": [{ "key": "text", "label": "Details", "format": "string", "searchable": true }],
    })
}

/// The markers of each thread of a timeline. Those without a thread that has samples are shown with the first
/// one.
pub(super) fn by_thread(saved: &SavedProfile, timeline: &Timeline) -> Vec<Vec<Marker>> {
    let mut markers = vec![Vec::new(); timeline.threads.len()];
    if markers.is_empty() {
        return markers;
    }
    let threads = ThreadIndex::new(timeline);
    for event in &timeline.events {
        let index = threads.of_process(event).filter(|index| *index < markers.len()).unwrap_or(0);
        markers[index].push(Marker {
            name: event.kind.words(),
            text: details(saved, event),
            category: EVENT,
            at_ns: event.at_ns,
            end_ns: None,
        });
    }
    let period_ns = saved.about.period_ns().unwrap_or(f64::INFINITY);
    markers[0].extend(timeline.losses.iter().map(|loss| Marker {
        name: "lost samples",
        text: format!("about {}: {}", loss.words(period_ns), saved.text(loss.reason)),
        category: LOST,
        at_ns: loss.since_ns,
        end_ns: Some(loss.at_ns),
    }));
    markers
}

/// The subject of an event.
fn details(saved: &SavedProfile, event: &Event) -> String {
    let text = saved.text(event.text);
    // A process without samples is named after its first thread.
    let process = Some(saved.text(event.process)).filter(|name| !name.is_empty()).unwrap_or(text);
    match event.kind {
        EventKind::ThreadStart | EventKind::ThreadEnd => format!("{text} ({})", event.thread),
        EventKind::Exec => format!("{text} ({})", event.pid),
        EventKind::ImageLoad => text.to_owned(),
        EventKind::ProcessStart | EventKind::ProcessEnd => format!("{process} ({})", event.pid),
    }
}

/// The marker columns of a thread; `string` returns the index of a text.
pub(super) fn columns(markers: Vec<Marker>, mut string: impl FnMut(&'static str) -> u32) -> MarkerColumns {
    let mut columns = MarkerColumns::default();
    for marker in markers {
        columns.length += 1;
        columns.category.push(marker.category);
        columns.data.push(MarkerData { kind: TYPE, text: marker.text });
        columns.name.push(string(marker.name));
        columns.start_time.push(milliseconds(marker.at_ns));
        columns.end_time.push(marker.end_ns.map(milliseconds));
        // 0 is an instant, 1 an interval.
        columns.phase.push(u8::from(marker.end_ns.is_some()));
    }
    columns
}

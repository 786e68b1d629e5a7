//! A thread of a file to be written: its samples, and the tables that these need.
//!
//! `write` orders samples by their times, for a thread of the recording each; `Marker` is an event or a loss.
//!
//! Input: frames of a [`SavedProfile`], samples in order of time. Output: the thread as JSON. A frame of the profile
//! becomes one frame per function, outermost first; inlined ones share its address.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use serde_json::{Value, json};

use super::libraries::Libraries;
use super::tables::{EVENT, JIT, KERNEL, LIBRARY, LOST, OTHER, Programs, USER};
use super::{Threads, unique_pid};
use crate::formats::html::{FunctionKind, kind_of};
use crate::saved::INCOMPLETE;
use crate::saved::{SavedProfile, UNKNOWN};
use crate::table::Numbered;
use crate::texts::TextId;
use crate::timeline::{ThreadIndex, ThreadTimeline, Timeline};
use crate::trie::NodeId;

/// Resource type of libraries.
const RESOURCE_TYPE_LIBRARY: u32 = 1;

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
    address: Option<u32>,
    inline_depth: u32,
    category: u8,
    native_symbol: Option<u32>,
    line: Option<u32>,
}

/// A row of the table of stacks: the stack of its callers, and its frame.
type StackRow = (Option<u32>, u32);
/// A row of the table of functions: name, library, file, line.
type FuncRow = (u32, Option<u32>, Option<u32>, u32);
/// A row of the table of libraries: library and name.
type ResourceRow = (u32, u32);
/// A row of the table of functions as the linker knows them: address, library and name.
type SymbolRow = (u32, u32, u32);

/// The tables of a thread, built on demand.
pub(super) struct Thread<'c, 's> {
    code: &'c Code<'s>,
    identity: Identity<'s>,
    strings: Numbered<Cow<'s, str>>,
    frames: Vec<FrameRow>,
    /// By frame of the profile: its rows in `frames`.
    frame_of: HashMap<u32, Range<u32>>,
    incomplete_frame: Option<u32>,
    funcs: Numbered<FuncRow>,
    resources: Numbered<ResourceRow>,
    /// By library and name.
    symbols: Numbered<(u32, u32), SymbolRow>,
    stack_table: Numbered<StackRow>,
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
            strings: Numbered::default(),
            frames: Vec::new(),
            frame_of: HashMap::new(),
            incomplete_frame: None,
            funcs: Numbered::default(),
            resources: Numbered::default(),
            symbols: Numbered::default(),
            stack_table: Numbered::default(),
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
        self.markers = columns(markers, |text| self.strings.number(Cow::Borrowed(text)));
    }

    /// The stack for frames of the profile, outermost first.
    pub(super) fn stack(&mut self, complete: bool, frames: impl Iterator<Item = u32>) -> Option<u32> {
        let mut stack = None;
        if !complete {
            let incomplete_frame = self.incomplete_frame();
            stack = Some(self.stack_table.number((stack, incomplete_frame)));
        }
        for frame in frames {
            let known = self.frame_of.get(&frame).cloned();
            for row in known.unwrap_or_else(|| self.add_frame(frame)) {
                stack = Some(self.stack_table.number((stack, row)));
            }
        }
        stack
    }

    /// The placeholder frame for the missing part of a stack.
    fn incomplete_frame(&mut self) -> u32 {
        if let Some(incomplete_frame) = self.incomplete_frame {
            return incomplete_frame;
        }
        let name = self.strings.number(Cow::Borrowed(INCOMPLETE));
        let func = self.funcs.number((name, None, None, 0));
        self.add_row(func, None, 0, OTHER, None, 0);
        *self.incomplete_frame.insert(self.frames.len() as u32 - 1)
    }

    /// Adds the rows for a frame of the profile, outermost first.
    fn add_frame(&mut self, index: u32) -> Range<u32> {
        let first = self.frames.len() as u32;
        let code = self.code;
        let saved = code.saved;
        let place = code.libraries.frames.get(index as usize).copied().flatten();
        let frame = saved.frames().get(index as usize);
        let lines = frame.map(|frame| saved.lines_of(frame)).unwrap_or_default();
        let resource = place.map(|(library, _)| self.resource(library));
        let path = place.and_then(|(library, _)| code.libraries.list.get(library as usize));
        let path = path.map_or("", |library| library.path.as_str());
        let address = place.map(|(_, address)| address);
        if lines.is_empty() {
            let name = frame.map_or_else(|| UNKNOWN.to_owned(), |frame| saved.place_of(frame));
            let category = self.category(&name, path);
            let name = self.strings.number(Cow::Owned(name));
            let func = self.funcs.number((name, resource, None, 0));
            self.add_row(func, address, 0, category, None, 0);
        }
        let mut symbol = None;
        for (depth, line) in (0u32..).zip(lines) {
            let function = saved.function(line.function);
            let shown = function.shown_name();
            let text = if shown == TextId::EMPTY { UNKNOWN } else { saved.text(shown) };
            let category = self.category(text, path);
            let name = self.strings.number(Cow::Borrowed(text));
            let file = Some(saved.text(function.file)).filter(|file| !file.is_empty());
            let file = file.map(|file| self.strings.number(Cow::Borrowed(file)));
            let func = self.funcs.number((name, resource, file, function.start_line));
            if depth == 0 {
                symbol = place.map(|(library, address)| self.symbol(library, (shown, name), address));
            }
            self.add_row(func, address, depth, category, symbol, line.line);
        }
        let rows = first..self.frames.len() as u32;
        self.frame_of.insert(index, rows.clone());
        rows
    }

    fn add_row(
        &mut self,
        func: u32,
        address: Option<u32>,
        inline_depth: u32,
        category: u8,
        native_symbol: Option<u32>,
        line: u32,
    ) {
        let line = Some(line).filter(|line| *line > 0);
        self.frames.push(FrameRow { func, address, inline_depth, category, native_symbol, line });
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

    fn resource(&mut self, library: u32) -> u32 {
        let found = self.code.libraries.list.get(library as usize);
        let name = found.map_or("", |library| library.name.as_str());
        let name = self.strings.number(Cow::Borrowed(name));
        self.resources.number((library, name))
    }

    fn symbol(&mut self, library: u32, (function, name): (TextId, u32), address: u32) -> u32 {
        let start = self.code.starts.get(&(library, function)).copied().unwrap_or(address);
        self.symbols.number_with((library, name), || (start, library, name))
    }

    /// Writes the thread.
    pub(super) fn write(self, weight_type: &'static str, out: &mut dyn Write) -> io::Result<()> {
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
            stack_table: Columns(
                self.stack_table.items(),
                &[("prefix", |row| row.0.into()), ("frame", |row| row.1.into())],
            ),
            frame_table: Columns(
                &self.frames,
                &[
                    ("address", |row| row.address.map_or(Cell::NoIndex, Cell::from)),
                    ("inlineDepth", |row| row.inline_depth.into()),
                    ("category", |row| u32::from(row.category).into()),
                    ("subcategory", |_| Cell::Number(0)),
                    ("func", |row| row.func.into()),
                    ("nativeSymbol", |row| row.native_symbol.into()),
                    ("innerWindowID", |_| Cell::Number(0)),
                    ("line", |row| row.line.into()),
                    ("column", |_| Cell::Null),
                ],
            ),
            func_table: Columns(
                self.funcs.items(),
                &[
                    ("name", |row| row.0.into()),
                    ("isJS", |_| Cell::False),
                    ("relevantForJS", |_| Cell::False),
                    ("resource", |row| row.1.map_or(Cell::NoIndex, Cell::from)),
                    ("fileName", |row| row.2.into()),
                    ("lineNumber", |row| Some(row.3).filter(|line| *line > 0).into()),
                    ("columnNumber", |_| Cell::Null),
                ],
            ),
            resource_table: Columns(
                self.resources.items(),
                &[
                    ("lib", |row| row.0.into()),
                    ("name", |row| row.1.into()),
                    ("host", |_| Cell::Null),
                    ("type", |_| Cell::Number(RESOURCE_TYPE_LIBRARY)),
                ],
            ),
            native_symbols: Columns(
                self.symbols.items(),
                &[
                    ("address", |row| row.0.into()),
                    ("functionSize", |_| Cell::Null),
                    ("libIndex", |row| row.1.into()),
                    ("name", |row| row.2.into()),
                ],
            ),
            string_array: self.strings.items(),
        };
        serde_json::to_writer(out, &thread).map_err(io::Error::from)
    }
}

// ---- A thread in the file's layout: tables as columns of equal length (version 55 of the format).

/// A thread.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FileThread<'t> {
    name: &'t str,
    is_main_thread: bool,
    process_type: &'static str,
    process_name: &'t str,
    process_startup_time: f64,
    process_shutdown_time: Option<f64>,
    register_time: f64,
    unregister_time: Option<f64>,
    paused_ranges: [(); 0],
    show_markers_in_timeline: bool,
    pid: &'t str,
    tid: u64,
    samples: SampleColumns<'t>,
    markers: MarkerColumns,
    stack_table: Columns<'t, StackRow>,
    frame_table: Columns<'t, FrameRow>,
    func_table: Columns<'t, FuncRow>,
    resource_table: Columns<'t, ResourceRow>,
    native_symbols: Columns<'t, SymbolRow>,
    string_array: &'t [Cow<'t, str>],
}

/// Samples.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SampleColumns<'t> {
    length: usize,
    weight_type: &'static str,
    stack: &'t [Option<u32>],
    /// Milliseconds since the previous sample.
    time_deltas: Vec<f64>,
    weight: &'t [u64],
    #[serde(rename = "threadCPUDelta")]
    thread_cpu_delta: &'t [u64],
}

/// Markers: events and losses.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct MarkerColumns {
    length: usize,
    category: Vec<u8>,
    data: Vec<MarkerData>,
    start_time: Vec<f64>,
    end_time: Vec<Option<f64>>,
    name: Vec<u32>,
    phase: Vec<u8>,
}

/// Data of a marker besides its name.
#[derive(Serialize)]
struct MarkerData {
    #[serde(rename = "type")]
    kind: &'static str,
    text: String,
}

/// The name of a column, and its value of a row.
type NamedColumn<R> = (&'static str, fn(&R) -> Cell);

/// Rows of a table, and its columns.
struct Columns<'t, R>(&'t [R], &'t [NamedColumn<R>]);

/// One column.
struct Column<'t, R>(&'t [R], fn(&R) -> Cell);

/// A value of a column.
#[derive(Clone, Copy)]
enum Cell {
    Null,
    /// -1: none.
    NoIndex,
    False,
    Number(u32),
}

impl From<u32> for Cell {
    fn from(number: u32) -> Cell {
        Cell::Number(number)
    }
}

impl From<Option<u32>> for Cell {
    fn from(number: Option<u32>) -> Cell {
        number.map_or(Cell::Null, Cell::Number)
    }
}

impl<R> Serialize for Columns<'_, R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut table = serializer.serialize_map(None)?;
        table.serialize_entry("length", &self.0.len())?;
        self.1.iter().try_for_each(|(name, cell)| table.serialize_entry(name, &Column(self.0, *cell)))?;
        table.end()
    }
}

impl<R> Serialize for Column<'_, R> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().map(self.1))
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Cell::Null => serializer.serialize_unit(),
            Cell::NoIndex => serializer.serialize_i8(-1),
            Cell::False => serializer.serialize_bool(false),
            Cell::Number(number) => serializer.serialize_u32(*number),
        }
    }
}

/// Converts a time to the format's unit.
fn milliseconds(ns: u64) -> f64 {
    ns as f64 / 1e6
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
            text: event.subject(saved),
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

/// The marker columns of a thread; `string` returns the index of a text.
fn columns(markers: Vec<Marker>, mut string: impl FnMut(&'static str) -> u32) -> MarkerColumns {
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

//! The tables of a page: libraries, functions, frames, threads, nodes, counts.
//!
//! `Tables` collects; `Columns` are the numbers as bytes; `InuseTable` has the bytes in use over time.
//!
//! Nodes are paths of frames without their thread: threads with the same paths share them, and a count, or a
//! sample with a time, is a row of root, node and value. A frame is a function with its line and address;
//! inlined functions are separate frames. In a comparison frames are only functions: lines and addresses
//! differ between builds.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::{Library, Matching, matched};
use crate::escape::file_name;
use crate::heap::InuseHistory;
use crate::saved::INCOMPLETE;
use crate::saved::{Full, Mapping, SavedProfile, StackRoot, UNKNOWN};
use crate::table::Numbered;
use crate::texts::{TextId, Texts};
use crate::timeline::{ThreadIndex, Timeline};
use crate::trie::{FrameWords, Key, NodeId, Trie};
use crate::views::by_name::FIBER;
use crate::{StackFrame, shown};

/// Bits of a root's flags.
const ROOT_INCOMPLETE: u64 = 1;
const ROOT_WAITING: u64 = 2;

/// Kind of a function's code; the numbers are those of crates/profile/src/html/data.js.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum FunctionKind {
    #[default]
    Code = 0,
    Kernel = 1,
    Jit = 2,
    NoSymbol = 3,
    Mark = 4,
}

/// A frame of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PageFrame {
    pub(super) function: u32,
    line: u32,
    /// Offset in the library's file; 0 if unknown.
    pub(super) address: u64,
    pub(super) inlined: bool,
}

impl Key for PageFrame {
    fn words(self) -> FrameWords {
        (u64::from(self.function) << 32 | u64::from(self.line), self.address << 1 | u64::from(self.inlined))
    }

    fn from_words((code, place): FrameWords) -> PageFrame {
        let (function, line) = ((code >> 32) as u32, code as u32);
        PageFrame { function, line, address: place >> 1, inlined: place & 1 == 1 }
    }
}

struct Function {
    name: TextId,
    /// Index of the library, plus one; 0 if unknown.
    library: u32,
    file: TextId,
    line: u32,
    kind: FunctionKind,
}

/// Counts of a stack at a point in time.
struct TimedCount {
    at_ns: u64,
    root: u32,
    node: u32,
    value: u64,
}

/// An event or a loss.
struct PageEvent {
    at_ns: u64,
    duration_ns: u64,
    kind: u64,
    /// Index of the thread, plus one; 0 for none.
    thread: u64,
    text: TextId,
}

/// A loss of most of the interval; crates/profile/src/html/data.js has these numbers, too.
const EVENT_GAP: u64 = 0;
/// A loss spread over an interval that is mostly known.
const EVENT_LOSS: u64 = 1;
/// The first kind of the profile's own events.
const EVENT_OWN: u64 = 2;

/// Most samples of a page; beyond that, each represents several counts.
const SAMPLES_MAX: u64 = 1 << 21;

struct Count {
    root: u32,
    node: u32,
    side: usize,
    value: u64,
}

/// Source and instructions.
#[derive(Default)]
pub(super) struct Code {
    /// Text by path.
    pub(super) sources: BTreeMap<String, String>,
    /// Function, offset in its library's file, and index of the text.
    pub(super) instructions: Vec<(u32, u64, u32)>,
}

/// The tables.
#[derive(Default)]
pub(super) struct Tables {
    texts: Texts,
    /// File name, path and build id.
    libraries: Numbered<TextId, (TextId, TextId, TextId)>,
    functions: Numbered<(TextId, u32, TextId), Function>,
    /// Process, and name and id, plus one, if threads are kept apart.
    threads: Numbered<(TextId, TextId, u64)>,
    /// Thread and flags.
    roots: Numbered<(u32, u64)>,
    nodes: Trie<PageFrame>,
    counts: Vec<Count>,
    samples: Vec<TimedCount>,
    events: Vec<PageEvent>,
    /// Of a recording of allocations.
    pub(super) inuse: Option<InuseTable>,
    sides: usize,
    pub(super) code: Code,
}

impl Tables {
    /// The index of a text.
    pub(super) fn intern(&mut self, text: &str) -> Result<u32, Full> {
        self.texts.intern(text).map(|text| text.0)
    }

    /// The source file of a function.
    pub(super) fn source_of(&self, function: u32) -> Option<String> {
        self.functions.items().get(function as usize).map(|function| self.texts.get(function.file).to_owned())
    }

    /// Path and build id of the library of a function.
    pub(super) fn file_of(&self, function: u32) -> Option<(String, String)> {
        let index = self.functions.items().get(function as usize)?.library.checked_sub(1)?;
        let (_, path, build_id) = self.libraries.items().get(index as usize)?;
        Some((self.texts.get(*path).to_owned(), self.texts.get(*build_id).to_owned()))
    }

    /// The frame of a node.
    pub(super) fn frame(&self, node: NodeId) -> Option<PageFrame> {
        self.nodes.frame(self.nodes.frame_of(node)?)
    }

    /// Inclusive counts of each node.
    pub(super) fn totals(&self) -> Vec<u64> {
        let mut totals = vec![0u64; self.nodes.node_count()];
        for count in &self.counts {
            if let Some(total) = totals.get_mut(count.node as usize) {
                *total = total.saturating_add(count.value);
            }
        }
        self.nodes.add_to_callers(&mut totals, |sum, count| *sum = sum.saturating_add(count));
        totals
    }

    /// Adds a profile as the next side. Returns the added counts.
    pub(super) fn add(&mut self, saved: &SavedProfile, matching: Option<&Matching<'_>>) -> Result<u64, Full> {
        // In a comparison times are meaningless.
        let timeline = saved.timeline().filter(|_| matching.is_none());
        let side = self.sides;
        self.sides += 1;
        let frames = self.frames(saved, matching)?;
        let mut total = 0u64;
        let trie = saved.trie();
        let places = trie.try_map_nodes(None, |there, frame, caller: &Option<(u32, NodeId)>| {
            let here = match (frame, caller) {
                (StackFrame::Root(root), _) => match saved.roots().get(root as usize) {
                    Some(root) => self.root(saved, root, matching)?.map(|root| (root, NodeId(0))),
                    None => None,
                },
                (StackFrame::Frame(frame), Some((root, caller))) => {
                    let mut node = *caller;
                    for frame in frames.get(frame as usize).map_or(&[][..], Vec::as_slice) {
                        node = self.nodes.descend(node, *frame)?;
                    }
                    Some((*root, node))
                }
                (StackFrame::Frame(_), None) => None,
            };
            let value = trie.count(there);
            if let Some((root, node)) = here.filter(|_| value > 0) {
                total = total.saturating_add(value);
                if timeline.is_none() {
                    self.counts.push(Count { root, node: node.0, side, value });
                }
            }
            Ok::<_, Full>(here)
        })?;
        if matching.is_none() {
            let history = saved.values().and_then(|values| values.history());
            self.inuse = history.map(|history| InuseTable::of(history, &places));
        }
        if let Some(timeline) = timeline {
            self.add_timeline(saved, timeline, &places)?;
            // Samples of threads that did not fit in the timeline.
            let untimed = timeline.untimed(trie);
            for (there, place) in (0..).map(NodeId).zip(&places) {
                let value = untimed(there);
                if let Some((root, node)) = place.filter(|_| value > 0) {
                    self.counts.push(Count { root, node: node.0, side, value });
                }
            }
        }
        Ok(total)
    }

    /// Adds the timed samples of a profile, and their counts, by thread. `places` has the root and the node
    /// of each node of the profile.
    fn add_timeline(
        &mut self,
        saved: &SavedProfile,
        timeline: &Timeline,
        places: &[Option<(u32, NodeId)>],
    ) -> Result<(), Full> {
        let all = timeline.threads.iter().flat_map(|thread| &thread.samples);
        let all = all.fold(0u64, |sum, sample| sum.saturating_add(sample.count));
        let each = all.div_ceil(SAMPLES_MAX);
        for thread in &timeline.threads {
            let process = self.texts.intern(&shown(saved.text(thread.process)))?;
            let name = self.texts.intern(saved.text(thread.name))?;
            for sample in thread.samples.iter().filter(|sample| sample.count > 0) {
                let place = sample.node.and_then(|node| places.get(node.0 as usize)).copied().flatten();
                let Some((root, node)) = place else { continue };
                let flags = self.roots.items().get(root as usize).map_or(0, |(_, flags)| *flags);
                let root = self.root_of_thread((process, name, thread.id.wrapping_add(1)), flags);
                self.counts.push(Count { root, node: node.0, side: 0, value: sample.count });
                for (at_ns, value) in sample.parts(each) {
                    self.samples.push(TimedCount { at_ns, root, node: node.0, value });
                }
            }
        }
        self.samples.sort_by_key(|sample| sample.at_ns);
        self.add_events(saved, timeline)
    }

    /// Adds losses, each with its number of samples, and events.
    fn add_events(&mut self, saved: &SavedProfile, timeline: &Timeline) -> Result<(), Full> {
        let period_ns = saved.about.period_ns().unwrap_or(f64::INFINITY);
        for loss in &timeline.losses {
            let text = format!("lost: about {}: {}", loss.words(period_ns), saved.text(loss.reason));
            let kind = if loss.is_gap() { EVENT_GAP } else { EVENT_LOSS };
            let (at_ns, duration_ns) = (loss.since_ns, loss.at_ns.saturating_sub(loss.since_ns));
            let text = self.texts.intern(&text)?;
            self.events.push(PageEvent { at_ns, duration_ns, kind, thread: 0, text });
        }
        let threads = ThreadIndex::new(timeline);
        for event in &timeline.events {
            let mut thread = 0;
            if let Some(own) = threads.own(event).and_then(|index| timeline.threads.get(index)) {
                let process = self.texts.intern(&shown(saved.text(own.process)))?;
                let name = self.texts.intern(saved.text(own.name))?;
                let lane = self.threads.find(&(process, name, own.id.wrapping_add(1)));
                thread = lane.map_or(0, |lane| u64::from(lane) + 1);
            }
            let text = format!("{}: {}", event.kind.words(), event.subject(saved));
            let text = self.texts.intern(&text)?;
            let kind = EVENT_OWN + event.kind as u64;
            self.events.push(PageEvent { at_ns: event.at_ns, duration_ns: 0, kind, thread, text });
        }
        self.events.sort_by_key(|event| event.at_ns);
        Ok(())
    }

    /// The frames of each frame of a profile, outermost first.
    fn frames(
        &mut self,
        saved: &SavedProfile,
        matching: Option<&Matching<'_>>,
    ) -> Result<Vec<Vec<PageFrame>>, Full> {
        let has_modules = !saved.mappings().is_empty();
        let mut all = Vec::with_capacity(saved.frames().len());
        for (index, frame) in saved.frames().iter().enumerate() {
            let mapping = frame.mapping.and_then(|mapping| saved.mappings().get(mapping as usize));
            let library = match mapping {
                Some(mapping) => self.library(saved, mapping, matching.is_some())?,
                None => 0,
            };
            let offset = mapping.map_or(frame.address, |mapping| {
                frame.address.wrapping_sub(mapping.start).wrapping_add(mapping.file_offset)
            });
            let address = if matching.is_some() || offset > NUMBER_MAX { 0 } else { offset };
            let lines = saved.lines_of(frame);
            let mut here: Vec<PageFrame> = Vec::with_capacity(lines.len().max(1));
            let mut result = Ok(());
            saved.names_of(index as u32, false, &mut |name| {
                // The outermost is the function that the others were inlined into.
                if result.is_err() || matching.is_some_and(|m| !m.inlines && !here.is_empty()) {
                    return;
                }
                let line = lines.get(here.len());
                let path = mapping.map_or("", |mapping| saved.text(mapping.path));
                let kind = kind_of(name, path, has_modules);
                let (file, start_line) = match line.map(|line| saved.function(line.function)) {
                    Some(function) => (saved.text(function.file), function.start_line),
                    None => ("", 0),
                };
                match self.function(&matched(name, matching), library, file, matching.is_some()) {
                    Ok(function) => {
                        if let Some(known) = self.functions.items_mut().get_mut(function as usize) {
                            known.kind = kind;
                            known.line = known.line.max(start_line);
                        }
                        let line = line.filter(|_| matching.is_none()).map_or(0, |line| line.line);
                        let inlined = !here.is_empty();
                        here.push(PageFrame { function, line, address, inlined });
                    }
                    Err(full) => result = Err(full),
                }
            });
            result?;
            all.push(here);
        }
        Ok(all)
    }

    /// Index of a library, plus one. In a comparison libraries are distinguished by file name.
    fn library(&mut self, saved: &SavedProfile, mapping: &Mapping, by_name: bool) -> Result<u32, Full> {
        let path = saved.text(mapping.path);
        let name = file_name(path);
        if name.is_empty() {
            return Ok(0);
        }
        let (name, path) = (self.texts.intern(name)?, self.texts.intern(path)?);
        let build_id = self.texts.intern(saved.text(mapping.build_id))?;
        let key = if by_name { name } else { path };
        Ok(self.libraries.number_with(key, || (name, path, build_id)) + 1)
    }

    /// Index of a function. In a comparison functions of one name are merged, whatever their source file.
    fn function(&mut self, name: &str, library: u32, file: &str, by_name: bool) -> Result<u32, Full> {
        let name = self.texts.intern(if name.is_empty() { UNKNOWN } else { name })?;
        let file = self.texts.intern(file)?;
        let key = (name, library, if by_name { TextId::EMPTY } else { file });
        let function = || Function { name, library, file, line: 0, kind: FunctionKind::default() };
        Ok(self.functions.number_with(key, function))
    }

    /// Index of a root; `None` for one that is excluded from the comparison.
    fn root(
        &mut self,
        saved: &SavedProfile,
        root: &StackRoot,
        matching: Option<&Matching<'_>>,
    ) -> Result<Option<u32>, Full> {
        if root.waiting && matching.is_some_and(|matching| !matching.waiting) {
            return Ok(None);
        }
        let process = matching.and_then(|matching| matching.process).unwrap_or(saved.text(root.process));
        let process = self.texts.intern(&shown(process))?;
        let (name, id) = match root.thread {
            // Thread numbers differ from run to run.
            Some((name, id)) => {
                (self.texts.intern(saved.text(name))?, if matching.is_some() { 0 } else { id })
            }
            None => (TextId::EMPTY, u64::MAX),
        };
        let incomplete = if root.complete { 0 } else { ROOT_INCOMPLETE };
        let flags = incomplete | if root.waiting { ROOT_WAITING } else { 0 };
        Ok(Some(self.root_of_thread((process, name, id.wrapping_add(1)), flags)))
    }

    /// Index of the root of a thread (process, name, number plus one) with these flags.
    fn root_of_thread(&mut self, thread: (TextId, TextId, u64), flags: u64) -> u32 {
        let thread = self.threads.number(thread);
        self.roots.number((thread, flags))
    }

    /// All strings, by number.
    pub(super) fn strings(&self) -> Vec<&str> {
        (0..self.texts.count() as u32).map(|id| self.texts.get(TextId(id))).collect()
    }

    /// The libraries.
    pub(super) fn libraries(&self) -> Vec<Library<'_>> {
        let text = |id: TextId| self.texts.get(id);
        let library = |&(name, path, build_id): &(TextId, TextId, TextId)| Library {
            name: text(name),
            path: text(path),
            build_id: text(build_id),
        };
        self.libraries.items().iter().map(library).collect()
    }

    /// The numbers.
    pub(super) fn columns(&self, compares: bool) -> Columns {
        use Form::{Back, Delta, Plain};
        let mut out = Columns::default();
        let functions = || self.functions.items().iter();
        out.add("function.name", Delta, functions().map(|function| function.name.0.into()));
        out.add("function.library", Plain, functions().map(|function| function.library.into()));
        out.add("function.file", Delta, functions().map(|function| function.file.0.into()));
        out.add("function.line", Plain, functions().map(|function| function.line.into()));
        out.add("function.kind", Plain, functions().map(|function| function.kind as u64));
        let frames = || self.nodes.frames();
        out.add("frame.function", Delta, frames().map(|frame| frame.function.into()));
        out.add("frame.line", Delta, frames().map(|frame| frame.line.into()));
        out.add("frame.address", Delta, frames().map(|frame| frame.address));
        out.add("frame.inlined", Plain, frames().map(|frame| frame.inlined.into()));
        let threads = || self.threads.items().iter();
        out.add("thread.process", Plain, threads().map(|(process, ..)| process.0.into()));
        out.add("thread.name", Plain, threads().map(|(_, name, _)| name.0.into()));
        out.add("thread.id", Delta, threads().map(|(.., id)| *id));
        let roots = || self.roots.items().iter();
        out.add("root.thread", Delta, roots().map(|(thread, _)| (*thread).into()));
        out.add("root.flags", Plain, roots().map(|(_, flags)| *flags));
        let nodes = || (0..self.nodes.node_count() as u32).map(NodeId);
        out.add(
            "node.parent",
            Back,
            nodes().map(|node| self.nodes.parent(node).map_or(0, |node| node.0.into())),
        );
        out.add(
            "node.frame",
            Plain,
            nodes().map(|node| self.nodes.frame_of(node).map_or(0, |frame| frame.0.into())),
        );
        let rows = self.rows();
        out.add("count.root", Delta, rows.iter().map(|row| row.0.into()));
        out.add("count.node", Delta, rows.iter().map(|row| row.1.into()));
        let value = |row: &(u32, u32, [u64; 2])| row.2[usize::from(compares)];
        out.add("count.value", Plain, rows.iter().map(value));
        if compares {
            out.add("count.base", Plain, rows.iter().map(|row| row.2[0]));
        }
        if !self.samples.is_empty() {
            let samples = || self.samples.iter();
            out.add("sample.time", Delta, samples().map(|sample| sample.at_ns));
            out.add("sample.root", Plain, samples().map(|sample| sample.root.into()));
            out.add("sample.node", Delta, samples().map(|sample| sample.node.into()));
            out.add("sample.value", Plain, samples().map(|sample| sample.value));
        }
        if !self.code.instructions.is_empty() {
            let instructions = || self.code.instructions.iter();
            out.add("instruction.function", Delta, instructions().map(|(function, ..)| (*function).into()));
            out.add("instruction.address", Delta, instructions().map(|(_, address, _)| *address));
            out.add("instruction.text", Delta, instructions().map(|(.., text)| (*text).into()));
        }
        if !self.events.is_empty() {
            let events = || self.events.iter();
            out.add("event.time", Delta, events().map(|event| event.at_ns));
            out.add("event.duration", Plain, events().map(|event| event.duration_ns));
            out.add("event.kind", Plain, events().map(|event| event.kind));
            out.add("event.thread", Plain, events().map(|event| event.thread));
            out.add("event.text", Plain, events().map(|event| event.text.0.into()));
        }
        if let Some(inuse) = &self.inuse {
            inuse.add_to(&mut out);
        }
        out
    }

    /// Root, node, and the counts of each side, sorted; each pair once.
    fn rows(&self) -> Vec<(u32, u32, [u64; 2])> {
        let mut order: Vec<&Count> = self.counts.iter().collect();
        order.sort_unstable_by_key(|count| (count.root, count.node, count.side));
        let mut rows: Vec<(u32, u32, [u64; 2])> = Vec::with_capacity(order.len());
        for count in order {
            let is_known = rows.last().is_some_and(|last| (last.0, last.1) == (count.root, count.node));
            if !is_known {
                rows.push((count.root, count.node, [0; 2]));
            }
            if let Some(value) = rows.last_mut().and_then(|row| row.2.get_mut(count.side)) {
                *value = value.saturating_add(count.value);
            }
        }
        rows
    }
}

/// The kind of a function's code, by its name and the path of its module. Without modules JIT code cannot be
/// recognised.
pub(crate) fn kind_of(name: &str, path: &str, has_modules: bool) -> FunctionKind {
    let is_jit_path = path.is_empty()
        || ["[jit]", "[anon", "//anon", "/memfd:", "[heap]"].iter().any(|p| path.starts_with(p));
    if name.ends_with("_[k]") {
        FunctionKind::Kernel
    } else if name == INCOMPLETE || name == FIBER || name == "[waiting]" {
        FunctionKind::Mark
    } else if name.starts_with('[') && name.ends_with(" jit]") {
        FunctionKind::Jit
    } else if name == UNKNOWN || name.starts_with('[') && name.ends_with(']') && name.contains('+') {
        FunctionKind::NoSymbol
    } else if has_modules && is_jit_path {
        FunctionKind::Jit
    } else {
        FunctionKind::Code
    }
}

// ---- Columns of numbers as bytes: each number little-endian in base 128 ("varint"), plain, as the difference to
// the previous number, or as the distance to its own index. Adjacent numbers are similar, so that gzip
// compresses well.

/// Largest number that a script represents exactly.
pub(super) const NUMBER_MAX: u64 = (1 << 53) - 1;

/// Encoding of the numbers of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Unchanged.
    Plain,
    /// The difference to the previous number, with its sign in the lowest bit ("zigzag").
    Delta,
    /// The distance from a number to its index.
    Back,
}

impl Form {
    fn name(self) -> &'static str {
        match self {
            Form::Plain => "plain",
            Form::Delta => "delta",
            Form::Back => "back",
        }
    }
}

/// Concatenated columns.
#[derive(Default)]
pub(super) struct Columns {
    list: Vec<(&'static str, &'static str, usize, usize)>,
    bytes: Vec<u8>,
}

impl Columns {
    /// Adds a column.
    pub(super) fn add(&mut self, name: &'static str, form: Form, numbers: impl IntoIterator<Item = u64>) {
        let start = self.bytes.len();
        let (mut count, mut before) = (0u64, 0u64);
        for number in numbers {
            let number = number.min(NUMBER_MAX);
            self.push(match form {
                Form::Plain => number,
                Form::Delta if number >= before => (number - before) << 1,
                Form::Delta => ((before - number - 1) << 1) | 1,
                Form::Back => count.saturating_sub(number),
            });
            before = number;
            count += 1;
        }
        self.list.push((name, form.name(), count as usize, self.bytes.len() - start));
    }

    fn push(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    /// Name, form, numbers and bytes of each column.
    pub(super) fn list(&self) -> &[(&'static str, &'static str, usize, usize)] {
        &self.list
    }

    /// All columns.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

// ---- Columns of a page with the bytes in use over time: the times, and for each stack its bytes from a time on.
//
// A stack is a root and a node, as in the columns of counts.

/// Index of the peak in the times; callers with an area of their own.
#[derive(Serialize)]
pub(super) struct InuseHeader {
    /// Index of the time when most was in use.
    peak: u32,
    /// Callers that had most, the largest first.
    areas: Vec<String>,
}

/// Bytes of a stack from a time on.
struct Row {
    /// Index into the times.
    time: u32,
    /// Root and node.
    stack: (u32, u32),
    area: usize,
    bytes: u64,
}

/// What was in use over time.
pub(super) struct InuseTable {
    times_ns: Vec<u64>,
    rows: Vec<Row>,
    pub(super) header: InuseHeader,
}

impl InuseTable {
    /// The history of a profile. `stacks` has the root and the node of each node of the profile.
    pub(super) fn of(history: &InuseHistory, stacks: &[Option<(u32, NodeId)>]) -> InuseTable {
        let areas = history.areas();
        // Stacks that differ in nothing that the page shows are one.
        let mut changes: BTreeMap<(u32, (u32, u32)), (usize, i64)> = BTreeMap::new();
        for change in history.changes() {
            let Some((root, node)) = stacks.get(change.node.0 as usize).copied().flatten() else { continue };
            let area = history.area_of(change.node).unwrap_or(areas.len());
            let (_, by) = changes.entry((change.time, (root, node.0))).or_insert((area, 0));
            *by = by.saturating_add(change.by_bytes);
        }
        let mut bytes: HashMap<(u32, u32), i64> = HashMap::new();
        let row = |((time, stack), (area, by)): (_, (_, i64))| {
            let now = bytes.entry(stack).or_default();
            *now = now.saturating_add(by);
            Row { time, stack, area, bytes: u64::try_from(*now).unwrap_or(0) }
        };
        InuseTable {
            rows: changes.into_iter().map(row).collect(),
            times_ns: history.times_ns().to_vec(),
            header: InuseHeader { peak: history.peak(), areas: areas.to_vec() },
        }
    }

    /// Adds the numbers.
    pub(super) fn add_to(&self, out: &mut Columns) {
        use Form::{Delta, Plain};
        let rows = || self.rows.iter();
        out.add("moment.time", Delta, self.times_ns.iter().copied());
        out.add("inuse.moment", Delta, rows().map(|row| row.time.into()));
        out.add("inuse.root", Plain, rows().map(|row| row.stack.0.into()));
        out.add("inuse.node", Delta, rows().map(|row| row.stack.1.into()));
        out.add("inuse.area", Plain, rows().map(|row| row.area as u64));
        out.add("inuse.bytes", Plain, rows().map(|row| row.bytes));
    }
}

#[cfg(test)]
mod columns_tests {
    use super::*;

    fn bytes(form: Form, numbers: &[u64]) -> Vec<u8> {
        let mut columns = Columns::default();
        columns.add("a", form, numbers.iter().copied());
        assert_eq!(columns.list(), [("a", form.name(), numbers.len(), columns.bytes().len())]);
        columns.bytes().to_vec()
    }

    #[test]
    fn numbers_have_variable_length() {
        assert_eq!(bytes(Form::Plain, &[0, 127, 128, 300]), [0, 127, 0x80, 1, 0xac, 2]);
        assert_eq!(bytes(Form::Delta, &[5, 5, 4, 70]), [10, 0, 1, 0x84, 1]);
        assert_eq!(bytes(Form::Back, &[0, 0, 1, 1]), [0, 1, 1, 2]);
        assert_eq!(bytes(Form::Plain, &[u64::MAX]), bytes(Form::Plain, &[NUMBER_MAX]));
        assert_eq!(bytes(Form::Delta, &[0, u64::MAX, 0]).len(), 17);
    }
}

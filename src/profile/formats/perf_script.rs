//! The text that `perf script` prints, as a saved profile.
//!
//! Input: events, each a line `comm pid/tid [cpu] time: period event:` and below it the
//! stack, leaf first, a line `address symbol+0x1f (module)` each. Output: [`Saved`] with
//! addresses, modules and source lines. An event weighs its period where periods vary, as in
//! perf report, else it is one sample; only events of the first one's name count, and how many
//! others there are is told. Where each event has its time, samples are kept over time, with their CPU and thread. Records that are no samples are passed over. Any other line is
//! skipped and counted (`tally.rs`); where it stood in a stack, that one is incomplete.

mod line;
#[cfg(test)]
mod tests;

use std::io::{self, BufRead};

use super::encoding;
use super::failure::broken;
use super::malformed::Malformed;
use super::tally::Tally;
use super::thread_times::{MAX_TIMED_SAMPLES, ThreadKey, ThreadTimes};
use crate::error::{Error, ErrorKind, Result};
use crate::profile::MAX_DEPTH;
use crate::profile::builder::SavedBuilder;
use crate::profile::full::Full;
use crate::profile::saved::{Function, Line, Mapping, Saved, StackRoot};
use crate::profile::texts::TextId;
use crate::profile::timeline::TimedSample;
use crate::trie::NodeId;
use line::{
    EventLine, FrameLine, UNKNOWN, bare_event, event, frame, is_detail, is_record, is_source_code,
    source_line, without_inner_tabs, without_unit,
};

/// Longest line that is read; the longest names of functions are some 64 KiB.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Why an event is not counted.
const ANOTHER_KIND: &str = "events of another kind";
/// Why a line is skipped.
const NO_EVENT: &str = "expected an event of perf script: \"comm pid/tid time: event:\"";
const NO_FRAME: &str = "expected \"address symbol (module)\"";
/// Events whose periods are nanoseconds.
const CLOCKS: [&str; 2] = ["cpu-clock", "task-clock"];
/// Longest period of a clock that is a rate: one sample a second.
const PERIOD_NS_MAX: u64 = 1_000_000_000;

/// Reads the text; `file` is the name that errors carry.
///
/// # Errors
/// [`ErrorKind::Input`]: `FILE:LINE: expected …` if more than half of the lines are neither events
/// nor frames, and what does not fit.
pub fn read(reader: impl BufRead, file: &str) -> Result<Saved> {
    let mut tally = Tally::new(file);
    let saved = read_lines(reader, file, &mut tally)?;
    tally.judge(false).map(|_| saved)
}

/// Reads the text, and counts the lines that are not understood.
pub(super) fn read_lines(mut reader: impl BufRead, file: &str, tally: &mut Tally) -> Result<Saved> {
    let mut state = State::default();
    let mut line = Vec::new();
    for number in 1u64.. {
        let refuse =
            |why: Malformed| Error::new(ErrorKind::Input, format!("{file}:{number}: {why}")).caused_by(why);
        line.clear();
        match io::Read::take(&mut reader, LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => return Err(broken(file, error)),
        }
        if line.len() as u64 == LINE_BYTES_MAX && line.last() != Some(&b'\n') {
            return Err(refuse(format!("line longer than {} MiB", LINE_BYTES_MAX >> 20).into()));
        }
        // Names of threads can be any bytes.
        let text = encoding::text(&line);
        match state.line(&without_inner_tabs(text.trim_end())).map_err(refuse)? {
            Outcome::Blank => {}
            Outcome::Understood => tally.understand(),
            Outcome::Skipped(why) => tally.skip_line(number, why),
        }
    }
    state.finish(tally).map_err(|why| Error::new(ErrorKind::Input, format!("{file}: {why}")).caused_by(why))
}

/// Whether a text begins as `perf script` prints it: with its header, or among the first lines
/// an event with a frame on it or below it, or a record.
#[must_use]
pub fn is_perf_script(head: &str) -> bool {
    if head.starts_with("# ========") {
        return true;
    }
    let lines = head.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#'));
    let mut lines = lines.map(without_inner_tabs).peekable();
    let mut is_first = true;
    let mut events = 0;
    while let Some(line) = lines.next() {
        let line = &*line;
        let Some(event) = event(line).or_else(|| bare_event(line)) else {
            is_first = false;
            continue;
        };
        // Tracepoints without call chains have nothing but their names.
        events += u32::from(event.has_time && !event.kind.is_empty());
        let below = lines.peek().is_some_and(|line| line.starts_with([' ', '\t']) && frame(line).is_some());
        if below
            || events > 1
            || event.frame.is_some()
            || is_record(line)
            || is_first && line.trim_end().ends_with(':')
        {
            return true;
        }
        is_first = false;
    }
    false
}

/// Whether a line that is not indented is surely a frame.
fn is_bare_frame(line: &str) -> bool {
    const DIGITS_MIN: usize = 6;
    line.ends_with(')')
        && line.split(' ').next().is_some_and(|word| word.len() >= DIGITS_MIN)
        && frame(line).is_some()
}

/// What a line is.
enum Outcome {
    Blank,
    Understood,
    Skipped(&'static str),
}

/// The functions of a name that perf-map-agent wrote of Java's code (`unfoldall`): `Ljava/A;::f->Ljava/B;::g`, where
/// `g` was inlined into `f`. `operator->` of C++ is one name.
fn java_functions(symbol: &str) -> (&str, impl Iterator<Item = &str>) {
    let is_method = |part: &str| part.starts_with('L') && part.contains(";::");
    let is_java = symbol.split("->").all(is_method);
    let (name, rest) = match symbol.split_once("->") {
        Some((name, rest)) if is_java => (name, Some(rest)),
        _ => (symbol, None),
    };
    (name, rest.into_iter().flat_map(|rest| rest.split("->")))
}

/// A frame that may get a source line yet.
struct PendingFrame {
    address: u64,
    mapping: Option<u32>,
    name: TextId,
    /// Functions that were inlined into it, outermost first.
    inlined: Vec<TextId>,
    file: TextId,
    line: u32,
}

/// The event that counts.
struct CountedEvent {
    name: String,
    /// Whether each of its events told a period, and the first one's.
    period: Option<u64>,
    varies: bool,
}

/// What a stack counts.
#[derive(Clone, Copy, Default)]
struct Weight {
    events: u64,
    periods: u64,
}

/// An event that counts, and when it was.
struct TimedEvent {
    thread: ThreadKey,
    node: NodeId,
    at_ns: u64,
    cpu: Option<u32>,
    period: u64,
}

#[derive(Default)]
struct State {
    builder: SavedBuilder,
    kind: Option<CountedEvent>,
    /// Events of other kinds.
    others: u64,
    /// By node of the profile.
    weights: Vec<Weight>,
    /// The event at hand, if it counts, its period and its stack so far.
    root: Option<StackRoot>,
    period: u64,
    thread: ThreadKey,
    time_ns: Option<u64>,
    cpu: Option<u32>,
    /// The events that count, over time.
    times: Vec<TimedEvent>,
    /// One of them had none, or there are too many.
    lacks_times: bool,
    in_event: bool,
    /// The event has frames as perf prints them, behind a tab.
    has_tabs: bool,
    /// The only frame so far stood on the line of the event.
    has_place: bool,
    leaf_first: Vec<u32>,
    pending: Option<PendingFrame>,
}

impl State {
    fn line(&mut self, line: &str) -> std::result::Result<Outcome, Malformed> {
        if line.starts_with('#') {
            return Ok(Outcome::Blank);
        }
        if line.is_empty() {
            self.end_event()?;
            return Ok(Outcome::Blank);
        }
        // Stacks are indented by a tab; events may be padded with blanks.
        let is_indented = line.starts_with([' ', '\t']);
        if line.starts_with('\t') {
            self.has_tabs = true;
            return self.frame_line(line);
        }
        if is_record(line) {
            self.end_event()?;
            return Ok(Outcome::Understood);
        }
        if let Some(event) = event(line) {
            self.end_event()?;
            self.event_line(&event)?;
            return Ok(Outcome::Understood);
        }
        if !self.in_event
            && let Some(event) = bare_event(line)
        {
            self.event_line(&event)?;
            return Ok(Outcome::Understood);
        }
        let is_behind_stack = self.in_event && self.has_tabs && source_line(line).is_none();
        if is_behind_stack && is_detail(line) || is_source_code(line) {
            return Ok(Outcome::Understood);
        }
        // Copied text has lost its indentation.
        if is_indented || self.in_event && is_bare_frame(line) {
            return self.frame_line(line);
        }
        // A message that came in between does not end the stack.
        Ok(Outcome::Skipped(NO_EVENT))
    }

    fn event_line(&mut self, event: &EventLine<'_>) -> std::result::Result<(), Malformed> {
        (self.in_event, self.has_tabs, self.has_place) = (true, false, event.frame.is_some());
        match &mut self.kind {
            None => {
                let (name, period) = (event.kind.to_owned(), event.period);
                self.kind = Some(CountedEvent { name, period, varies: false });
            }
            Some(kind) if without_unit(&kind.name) == without_unit(event.kind) => {
                kind.varies |= event.period != kind.period;
                // Where one tells none, periods are no measure.
                if event.period.is_none() {
                    kind.period = None;
                }
            }
            Some(_) => {
                self.others += 1;
                return Ok(());
            }
        }
        let process = self.builder.text(if event.comm.is_empty() { UNKNOWN } else { event.comm })?;
        self.period = event.period.unwrap_or(0);
        self.thread = (process, event.pid, process, event.tid.unwrap_or(0));
        (self.time_ns, self.cpu) = (event.time_ns, event.cpu);
        self.root = Some(StackRoot { process, thread: None, complete: true, waiting: false });
        if let Some(frame) = &event.frame {
            self.frame(frame)?;
        }
        Ok(())
    }

    fn frame_line(&mut self, line: &str) -> std::result::Result<Outcome, Malformed> {
        if !self.in_event {
            return Ok(Outcome::Skipped(NO_EVENT));
        }
        if let Some(frame) = frame(line) {
            // Beside a call chain the place on the line of the event is that of its data.
            if std::mem::take(&mut self.has_place) {
                self.pending = None;
            }
            if self.root.is_some() {
                if self.leaf_first.len() >= MAX_DEPTH {
                    return Err(format!("a stack has more than {MAX_DEPTH} frames").into());
                }
                self.frame(&frame)?;
            }
            return Ok(Outcome::Understood);
        }
        if let Some((file, number)) = source_line(line) {
            let file = self.builder.text(file)?;
            if let Some(pending) = &mut self.pending {
                (pending.file, pending.line) = (file, number);
            }
            return Ok(Outcome::Understood);
        }
        // A frame is missing.
        if let Some(root) = &mut self.root {
            root.complete = false;
        }
        Ok(Outcome::Skipped(NO_FRAME))
    }

    /// Counts the event at hand.
    fn end_event(&mut self) -> std::result::Result<(), Full> {
        self.in_event = false;
        self.end_frame()?;
        let stack: Vec<u32> = self.leaf_first.drain(..).rev().collect();
        if let Some(root) = self.root.take() {
            let root = self.builder.root(root)?;
            let node = self.builder.add(root, &stack, 0)?;
            self.note_time(node);
            let node = node.0 as usize;
            if self.weights.len() <= node {
                self.weights.resize(node + 1, Weight::default());
            }
            if let Some(weight) = self.weights.get_mut(node) {
                weight.events += 1;
                weight.periods = weight.periods.saturating_add(self.period);
            }
        }
        Ok(())
    }

    /// Keeps when the event at hand was.
    fn note_time(&mut self, node: NodeId) {
        let &mut State { thread, time_ns, cpu, period, .. } = self;
        match time_ns.filter(|_| self.times.len() < MAX_TIMED_SAMPLES) {
            Some(at_ns) if !self.lacks_times => {
                self.times.push(TimedEvent { thread, node, at_ns, cpu, period });
            }
            _ => {
                self.lacks_times = true;
                self.times = Vec::new();
            }
        }
    }

    /// Gives the profile its times, which count from the first sample on, or from what that stands for. Periods of a
    /// clock are how long a sample stands for; of what others count, no time is known.
    fn put_times(&mut self, by_period: bool, is_clock: bool) -> std::result::Result<(), Malformed> {
        let events = std::mem::take(&mut self.times);
        let weight_ns = |event: &TimedEvent| if is_clock { event.period.min(PERIOD_NS_MAX) } else { 0 };
        let begun_ns = events.iter().map(|event| event.at_ns.saturating_sub(weight_ns(event))).min();
        let Some(begun_ns) = begun_ns else { return Ok(()) };
        let mut times = ThreadTimes::default();
        for event in &events {
            let sample = TimedSample {
                at_ns: event.at_ns - begun_ns,
                weight_ns: weight_ns(event),
                node: Some(event.node),
                count: if by_period { event.period } else { 1 },
                cpu: event.cpu,
            };
            times.add(event.thread, [sample].into_iter())?;
        }
        times.finish(&mut self.builder);
        Ok(())
    }

    /// Takes a frame in; one that is a process's name in brackets is none.
    fn frame(&mut self, frame: &FrameLine<'_>) -> std::result::Result<(), Full> {
        self.end_frame()?;
        // A process's name is all of it; `(anonymous namespace)::f(int)` is a function.
        let in_brackets = frame.symbol.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
        if in_brackets.is_some_and(|name| !name.contains(['(', ')'])) {
            return Ok(());
        }
        let builder = &mut self.builder;
        let known_module = !frame.module.is_empty() && frame.module != UNKNOWN;
        let mapping = match known_module {
            // perf tells where a function lies, not where its module does.
            true => Some(Mapping {
                start: 0,
                limit: 0,
                file_offset: 0,
                path: builder.text(frame.module)?,
                build_id: builder.text("")?,
            }),
            false => None,
        };
        let mapping = mapping.map(|mapping| builder.mapping(mapping)).transpose()?;
        let mut inlined = Vec::new();
        let name = if frame.symbol.is_empty() || frame.symbol == UNKNOWN {
            let module = frame.module.rsplit('/').next().unwrap_or_default();
            let module = module.trim_start_matches('[').trim_end_matches(']');
            if known_module { builder.text(&format!("[{module}]"))? } else { builder.text(UNKNOWN)? }
        } else {
            let (name, rest) = java_functions(frame.symbol);
            for name in rest {
                inlined.push(builder.text(name)?);
            }
            builder.text(name)?
        };
        let pending =
            PendingFrame { address: frame.address, mapping, name, inlined, file: TextId::EMPTY, line: 0 };
        self.pending = Some(pending);
        Ok(())
    }

    /// Adds the frame that waited for its source line.
    fn end_frame(&mut self) -> std::result::Result<(), Full> {
        let Some(frame) = self.pending.take() else { return Ok(()) };
        let mut lines = Vec::with_capacity(1 + frame.inlined.len());
        for name in std::iter::once(frame.name).chain(frame.inlined) {
            let function = Function { name, file: frame.file, ..Function::default() };
            lines.push(Line { function: self.builder.function(function)?, line: frame.line });
        }
        self.leaf_first.push(self.builder.frame(frame.address, frame.mapping, &lines)?);
        Ok(())
    }

    /// Counts all stacks, now that it is known what a count is.
    fn finish(mut self, tally: &mut Tally) -> std::result::Result<Saved, Malformed> {
        self.end_event()?;
        let Some(kind) = self.kind.take() else { return Ok(self.builder.finish()) };
        let (plain, _) = without_unit(&kind.name);
        let is_clock = CLOCKS.contains(&plain);
        let by_period = kind.varies && kind.period.is_some();
        let about = self.builder.about();
        match kind.period {
            Some(_) if by_period => about.unit = if is_clock { "nanoseconds" } else { plain }.to_owned(),
            Some(period @ 1..=PERIOD_NS_MAX) if is_clock => {
                about.hz = u32::try_from((1_000_000_000 + period / 2) / period).ok();
            }
            _ => {}
        }
        if self.others > 0 {
            about.lost.insert(ANOTHER_KIND.to_owned(), self.others);
            let others = match self.others {
                1 => "1 event of another kind".to_owned(),
                others => format!("{others} {ANOTHER_KIND}"),
            };
            tally.remark(&format!("left out: {others} than {}", kind.name));
        }
        for (node, weight) in (0u32..).zip(&self.weights) {
            let count = if by_period { weight.periods } else { weight.events };
            self.builder.count(NodeId(node), count)?;
        }
        self.put_times(by_period, is_clock && kind.period.is_some())?;
        Ok(self.builder.finish())
    }
}

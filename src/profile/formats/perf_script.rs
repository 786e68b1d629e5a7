//! Converts the output of `perf script` to a saved profile.
//!
//! Input: events, each a line `comm pid/tid [cpu] time: period event:`, followed by the stack, leaf first,
//! with a line `address symbol+0x1f (module)` each. Output: [`SavedProfile`] with addresses, modules and source
//! lines. An event weighs its period if periods vary, as in perf report, else it is one sample; only events
//! with the first one's name count, and the number of others is reported. If each event has its time, samples
//! keep it, with their CPU and thread. Records other than samples are ignored. Any other line is skipped and
//! counted (`tally.rs`); within a stack it makes that one incomplete.

mod line;
#[cfg(test)]
mod tests;

use std::io::{self, BufRead};

use super::encoding;
use super::failure::broken;
use super::malformed::Malformed;
use super::tally::Tally;
use super::thread_times::{TIMED_SAMPLES_MAX, ThreadKey, ThreadTimes};
use crate::error::{Error, ErrorKind, Result};
use crate::profile::DEPTH_MAX;
use crate::profile::builder::SavedBuilder;
use crate::profile::full::Full;
use crate::profile::saved::{Function, Line, Mapping, SavedProfile, StackRoot};
use crate::profile::texts::TextId;
use crate::profile::timeline::TimedSample;
use crate::trie::NodeId;
use line::{
    EventLine, FrameLine, UNKNOWN, bare_event, event, frame, is_detail, is_record, is_source_code,
    source_line, without_inner_tabs, without_unit,
};

/// Longest line; the longest function names are some 64 KiB.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Why an event is not counted.
const ANOTHER_KIND: &str = "events of another kind";
/// Why a line is skipped.
const NO_EVENT: &str = "expected an event of perf script: \"comm pid/tid time: event:\"";
const NO_FRAME: &str = "expected \"address symbol (module)\"";
/// Events with periods in nanoseconds.
const CLOCKS: [&str; 2] = ["cpu-clock", "task-clock"];
/// Longest period of a clock that is a rate: one sample a second.
const PERIOD_NS_MAX: u64 = 1_000_000_000;

/// Reads the text; `file` is its name in errors.
///
/// # Errors
/// [`ErrorKind::Input`]: `FILE:LINE: expected …` if more than half of the lines are neither events nor
/// frames, and for anything beyond a limit.
pub fn read(reader: impl BufRead, file: &str) -> Result<SavedProfile> {
    let mut tally = Tally::new(file);
    let saved = read_lines(reader, file, &mut tally)?;
    tally.judge(false).map(|_| saved)
}

/// Reads the text, and counts invalid lines.
pub(super) fn read_lines(mut reader: impl BufRead, file: &str, tally: &mut Tally) -> Result<SavedProfile> {
    let mut script = ScriptReader::default();
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
        // Thread names can be any bytes.
        let text = encoding::text(&line);
        match script.line(&without_inner_tabs(text.trim_end())).map_err(refuse)? {
            Outcome::Blank => {}
            Outcome::Understood => tally.understand(),
            Outcome::Skipped(why) => tally.skip_line(number, why),
        }
    }
    script.finish(tally).map_err(|why| Error::new(ErrorKind::Input, format!("{file}: {why}")).caused_by(why))
}

/// Whether a text looks like output of `perf script`: it begins with its header, or the first lines have an
/// event with a frame, or a record.
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
        // Tracepoints without call chains have only their names.
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

/// Whether an unindented line is certainly a frame.
fn is_bare_frame(line: &str) -> bool {
    const DIGITS_MIN: usize = 6;
    line.ends_with(')')
        && line.split(' ').next().is_some_and(|word| word.len() >= DIGITS_MIN)
        && frame(line).is_some()
}

/// Kind of a line.
enum Outcome {
    Blank,
    Understood,
    Skipped(&'static str),
}

/// The functions in perf-map-agent's name for Java code (`unfoldall`): `Ljava/A;::f->Ljava/B;::g`, with `g`
/// inlined into `f`. `operator->` of C++ is one name.
fn java_functions(symbol: &str) -> (&str, impl Iterator<Item = &str>) {
    let is_method = |part: &str| part.starts_with('L') && part.contains(";::");
    let is_java = symbol.split("->").all(is_method);
    let (name, rest) = match symbol.split_once("->") {
        Some((name, rest)) if is_java => (name, Some(rest)),
        _ => (symbol, None),
    };
    (name, rest.into_iter().flat_map(|rest| rest.split("->")))
}

/// A frame that may still get a source line.
struct PendingFrame {
    address: u64,
    mapping: Option<u32>,
    name: TextId,
    /// Functions inlined into it, outermost first.
    inlined: Vec<TextId>,
    file: TextId,
    line: u32,
}

/// The event to count.
struct CountedEvent {
    name: String,
    /// The first event's period, if every event has one.
    period: Option<u64>,
    varies: bool,
}

/// Counts of a stack.
#[derive(Clone, Copy, Default)]
struct Weight {
    events: u64,
    periods: u64,
}

/// An event to count, and its time.
struct TimedEvent {
    thread: ThreadKey,
    node: NodeId,
    at_ns: u64,
    cpu: Option<u32>,
    period: u64,
}

/// The event being read, with its stack so far.
#[derive(Default)]
struct CurrentEvent {
    /// Its line was read, and the end of its stack was not.
    is_open: bool,
    /// Its root, if it counts.
    root: Option<StackRoot>,
    period: u64,
    thread: ThreadKey,
    time_ns: Option<u64>,
    cpu: Option<u32>,
    /// It has frames in perf's format, after a tab.
    has_tabs: bool,
    /// Its only frame so far was on its line.
    has_place: bool,
    leaf_first: Vec<u32>,
    pending: Option<PendingFrame>,
}

/// The profile read so far.
#[derive(Default)]
struct ScriptReader {
    builder: SavedBuilder,
    kind: Option<CountedEvent>,
    /// Number of other events.
    others: u64,
    /// By node of the profile.
    weights: Vec<Weight>,
    event: CurrentEvent,
    /// The counted events, over time.
    times: Vec<TimedEvent>,
    /// An event lacked a time, or there are too many.
    lacks_times: bool,
}

impl ScriptReader {
    fn line(&mut self, line: &str) -> std::result::Result<Outcome, Malformed> {
        if line.starts_with('#') {
            return Ok(Outcome::Blank);
        }
        if line.is_empty() {
            self.end_event()?;
            return Ok(Outcome::Blank);
        }
        // Stacks are indented by a tab; events may be padded with spaces.
        let is_indented = line.starts_with([' ', '\t']);
        if line.starts_with('\t') {
            self.event.has_tabs = true;
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
        if !self.event.is_open
            && let Some(event) = bare_event(line)
        {
            self.event_line(&event)?;
            return Ok(Outcome::Understood);
        }
        let is_behind_stack = self.event.is_open && self.event.has_tabs && source_line(line).is_none();
        if is_behind_stack && is_detail(line) || is_source_code(line) {
            return Ok(Outcome::Understood);
        }
        // Copied text may have lost its indentation.
        if is_indented || self.event.is_open && is_bare_frame(line) {
            return self.frame_line(line);
        }
        // An interleaved message does not end the stack.
        Ok(Outcome::Skipped(NO_EVENT))
    }

    fn event_line(&mut self, event: &EventLine<'_>) -> std::result::Result<(), Malformed> {
        (self.event.is_open, self.event.has_tabs, self.event.has_place) =
            (true, false, event.frame.is_some());
        match &mut self.kind {
            None => {
                let (name, period) = (event.kind.to_owned(), event.period);
                self.kind = Some(CountedEvent { name, period, varies: false });
            }
            Some(kind) if without_unit(&kind.name) == without_unit(event.kind) => {
                kind.varies |= event.period != kind.period;
                // If one is missing, periods are not comparable.
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
        self.event.period = event.period.unwrap_or(0);
        self.event.thread = (process, event.pid, process, event.tid.unwrap_or(0));
        (self.event.time_ns, self.event.cpu) = (event.time_ns, event.cpu);
        self.event.root = Some(StackRoot::of(process));
        if let Some(frame) = &event.frame {
            self.frame(frame)?;
        }
        Ok(())
    }

    fn frame_line(&mut self, line: &str) -> std::result::Result<Outcome, Malformed> {
        if !self.event.is_open {
            return Ok(Outcome::Skipped(NO_EVENT));
        }
        if let Some(frame) = frame(line) {
            // With a call chain, the place on the line of the event is that of its data.
            if std::mem::take(&mut self.event.has_place) {
                self.event.pending = None;
            }
            if self.event.root.is_some() {
                if self.event.leaf_first.len() >= DEPTH_MAX {
                    return Err(format!("a stack has more than {DEPTH_MAX} frames").into());
                }
                self.frame(&frame)?;
            }
            return Ok(Outcome::Understood);
        }
        if let Some((file, number)) = source_line(line) {
            let file = self.builder.text(file)?;
            if let Some(pending) = &mut self.event.pending {
                (pending.file, pending.line) = (file, number);
            }
            return Ok(Outcome::Understood);
        }
        // A frame is missing.
        if let Some(root) = &mut self.event.root {
            root.complete = false;
        }
        Ok(Outcome::Skipped(NO_FRAME))
    }

    /// Counts the current event.
    fn end_event(&mut self) -> std::result::Result<(), Full> {
        self.event.is_open = false;
        self.end_frame()?;
        let stack: Vec<u32> = self.event.leaf_first.drain(..).rev().collect();
        if let Some(root) = self.event.root.take() {
            let root = self.builder.root(root)?;
            let node = self.builder.add(root, &stack, 0)?;
            self.note_time(node);
            let node = node.0 as usize;
            if self.weights.len() <= node {
                self.weights.resize(node + 1, Weight::default());
            }
            if let Some(weight) = self.weights.get_mut(node) {
                weight.events += 1;
                weight.periods = weight.periods.saturating_add(self.event.period);
            }
        }
        Ok(())
    }

    /// Records the time of the current event.
    fn note_time(&mut self, node: NodeId) {
        let CurrentEvent { thread, time_ns, cpu, period, .. } = self.event;
        match time_ns.filter(|_| self.times.len() < TIMED_SAMPLES_MAX) {
            Some(at_ns) if !self.lacks_times => {
                self.times.push(TimedEvent { thread, node, at_ns, cpu, period });
            }
            _ => {
                self.lacks_times = true;
                self.times = Vec::new();
            }
        }
    }

    /// Adds times to the profile, relative to the start of the first sample. Periods of a clock are the
    /// durations of samples; other events have unknown durations.
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

    /// Adds a frame, except a process's name in parentheses.
    fn frame(&mut self, frame: &FrameLine<'_>) -> std::result::Result<(), Full> {
        self.end_frame()?;
        // A process's name is in parentheses as a whole; `(anonymous namespace)::f(int)` is a function.
        let in_brackets = frame.symbol.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
        if in_brackets.is_some_and(|name| !name.contains(['(', ')'])) {
            return Ok(());
        }
        let builder = &mut self.builder;
        let known_module = !frame.module.is_empty() && frame.module != UNKNOWN;
        let mapping = match known_module {
            // perf prints the address of a function, not of its module.
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
        self.event.pending = Some(pending);
        Ok(())
    }

    /// Adds the pending frame.
    fn end_frame(&mut self) -> std::result::Result<(), Full> {
        let Some(frame) = self.event.pending.take() else { return Ok(()) };
        let mut lines = Vec::with_capacity(1 + frame.inlined.len());
        for name in std::iter::once(frame.name).chain(frame.inlined) {
            let function = Function { name, file: frame.file, ..Function::default() };
            lines.push(Line { function: self.builder.function(function)?, line: frame.line });
        }
        self.event.leaf_first.push(self.builder.frame(frame.address, frame.mapping, &lines)?);
        Ok(())
    }

    /// Counts all stacks, once the unit of counts is known.
    fn finish(mut self, tally: &mut Tally) -> std::result::Result<SavedProfile, Malformed> {
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

//! Converts the output of `perf script` to a saved profile.
//!
//! `ScriptReader` keeps the state between lines; `EventLine` and `FrameLine` parse one.
//!
//! Input: events, each a line `comm pid/tid [cpu] time: period event:`, followed by the stack, leaf first,
//! with a line `address symbol+0x1f (module)` each. Output: [`SavedProfile`] with addresses, modules and source
//! lines. An event weighs its period if periods vary, as in perf report, else it is one sample; only events
//! with the first one's name count, and the number of others is reported. If each event has its time, samples
//! keep it, with their CPU and thread. Records other than samples are ignored. Any other line is skipped and
//! counted (`tally.rs`); within a stack it makes that one incomplete.

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::io::{self, BufRead};

use super::detect::broken;
use super::encoding;
use super::samples::{TIMED_SAMPLES_MAX, ThreadKey, ThreadTimes};
use super::tally::{Malformed, Tally};
use crate::DEPTH_MAX;
use crate::builder::SavedBuilder;
use crate::error::{Error, ErrorKind, Result};
use crate::saved::{Full, Function, Line, Mapping, SavedProfile, StackRoot};
use crate::texts::TextId;
use crate::timeline::TimedSample;
use crate::trie::NodeId;

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

// ---- The lines of `perf script`: events, frames, source lines and other records.
//
// No state: the context of lines is not checked here.

/// Longest thread name, in bytes.
const COMM_BYTES_MAX: usize = 15;
/// perf's placeholder for unknown values.
const UNKNOWN: &str = "[unknown]";
/// Least digits of an address after other text.
const LONG_DIGITS: usize = 8;
/// perf's placeholder for the module of an inlined function (`perf script --inline`).
const INLINED: &str = "inlined";
/// Prefix of records other than samples (`--show-mmap-events` and others).
const RECORD: &str = "PERF_RECORD_";
/// Letters of the field `misc`: the processor mode, and the kind of a record.
const MISC: &[u8] = b"KUHGgMESpF";

/// The first line of an event.
#[derive(Debug)]
struct EventLine<'t> {
    /// Thread name; empty if not printed.
    comm: &'t str,
    /// Event name with its modifiers; empty if not printed.
    kind: &'t str,
    /// Number of events that the sample represents.
    period: Option<u64>,
    /// Without call chains the place of the event is on its line.
    frame: Option<FrameLine<'t>>,
    has_time: bool,
    /// Time, nanoseconds of perf's clock.
    time_ns: Option<u64>,
    /// The CPU.
    cpu: Option<u32>,
    /// Process and thread, if printed.
    pid: Option<u32>,
    tid: Option<u64>,
}

/// Replaces tabs between fields by spaces, for simpleperf, which is perf on Android; names may contain tabs.
fn without_inner_tabs(line: &str) -> Cow<'_, str> {
    let fields = line.trim_start();
    if !fields.contains('\t') || event(line).is_some() || frame(line).is_some() {
        return Cow::Borrowed(line);
    }
    let indent = line.get(..line.len() - fields.len()).unwrap_or_default();
    Cow::Owned(format!("{indent}{}", fields.replace('\t', " ")))
}

/// `comm pid time: period event:`, `comm pid/tid [cpu] time: event:  address symbol (module)`.
fn event(line: &str) -> Option<EventLine<'_>> {
    // Thread names may contain spaces and numbers, so the text after them determines their end. A time is the
    // most reliable; in lines without one the first matching number is the process.
    let whole = [true, false].into_iter().find_map(|with_time| {
        ids(line).find_map(|(start, end)| {
            let comm = line.get(..start)?.trim();
            let tail = tail(comm, line.get(end..)?, with_time)?;
            let (pid, tid) = process_and_thread(line.get(start..end)?);
            Some(EventLine { pid, tid, ..tail })
        })
    });
    whole.or_else(|| ids(line).find_map(|(start, end)| bare_place(line, start, end)))
}

/// `comm pid/tid  address symbol`: an event without time, name and call chain.
fn bare_place(line: &str, start: usize, end: usize) -> Option<EventLine<'_>> {
    const DIGITS_MIN: usize = 4;
    let (comm, ids, rest) = (line.get(..start)?.trim(), line.get(start..end)?, line.get(end..)?);
    let (address, symbol) = first_word(rest);
    let digits_min = if ids.contains('/') { DIGITS_MIN } else { LONG_DIGITS };
    let is_place = is_hex(address) && address.len() >= digits_min && !symbol.is_empty() && !is_number(symbol);
    if comm.is_empty() || !is_place {
        return None;
    }
    let (pid, tid) = process_and_thread(ids);
    Some(EventLine { pid, tid, frame: frame(rest), ..EventLine::new(comm) })
}

/// `comm pid/tid`: an event without time and name. Only the context distinguishes it from other text: a blank
/// line before it, and a stack after it.
fn bare_event(line: &str) -> Option<EventLine<'_>> {
    let (comm, ids) = line.trim().rsplit_once(' ')?;
    let comm = comm.trim();
    // Folded stacks end in a number, too; no thread name is longer (TASK_COMM_LEN).
    if comm.is_empty()
        || comm.len() > COMM_BYTES_MAX
        || ids.split('/').count() > 2
        || !ids.split('/').all(is_signed)
    {
        return None;
    }
    let (pid, tid) = process_and_thread(ids);
    Some(EventLine { pid, tid, ..EventLine::new(comm) })
}

/// Parses `pid/tid`; a single number is the thread's.
fn process_and_thread(ids: &str) -> (Option<u32>, Option<u64>) {
    match ids.split_once('/') {
        Some((pid, tid)) => (pid.parse().ok(), tid.parse().ok()),
        None => (None, ids.parse().ok()),
    }
}

impl<'t> EventLine<'t> {
    fn new(comm: &'t str) -> EventLine<'t> {
        EventLine {
            comm,
            kind: "",
            period: None,
            frame: None,
            has_time: false,
            time_ns: None,
            cpu: None,
            pid: None,
            tid: None,
        }
    }
}

/// Whether a line is a record other than a sample: `app 40/40 1.0: PERF_RECORD_FORK(40:41):(40:40)`.
fn is_record(line: &str) -> bool {
    if line.starts_with('\t') {
        return false;
    }
    line.match_indices(RECORD).any(|(at, _)| {
        let before = line.get(..at).unwrap_or_default();
        before.trim().is_empty() || before.ends_with(' ')
    })
}

/// Start and end of each word that may be `pid` or `pid/tid`.
fn ids(line: &str) -> impl Iterator<Item = (usize, usize)> {
    let mut at = 0;
    line.split(' ').filter_map(move |word| {
        let start = at;
        at += word.len() + 1;
        let is_id = word.split('/').count() <= 2 && word.split('/').all(is_signed);
        is_id.then_some((start, start + word.len()))
    })
}

fn is_signed(id: &str) -> bool {
    is_number(id.strip_prefix('-').unwrap_or(id))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Parses the text after the process: `[cpu] misc time: period event: ...`.
fn tail<'t>(comm: &'t str, rest: &'t str, with_time: bool) -> Option<EventLine<'t>> {
    let mut rest = rest.trim_start();
    let mut event = EventLine::new(comm);
    loop {
        if let Some(after) = rest.strip_prefix('[') {
            let (cpu, after) = after.split_once(']')?;
            if !is_number(cpu) {
                return None;
            }
            event.cpu = cpu.parse().ok();
            rest = after.trim_start();
            continue;
        }
        let (word, after) = first_word(rest);
        if word.is_empty() || !word.bytes().all(|byte| MISC.contains(&byte)) {
            break;
        }
        rest = after;
    }
    rest = without_time_of_day(rest);
    let (word, after) = first_word(rest);
    let time = word.strip_suffix(':').filter(|time| {
        time.starts_with(|c: char| c.is_ascii_digit())
            && time.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    });
    if time.is_some() != with_time {
        return None;
    }
    if let Some(time) = time {
        event.time_ns = nanoseconds(time);
        rest = after;
    }
    event.has_time = with_time;
    let (word, after) = first_word(rest);
    let period = is_number(word).then(|| word.parse().ok()).flatten();
    let after_period = if period.is_some() { after } else { rest };
    let (word, after) = first_word(after_period);
    match word.strip_suffix(':').filter(|kind| !kind.is_empty() && !kind.starts_with('[')) {
        Some(kind) => Some(EventLine { kind, period, frame: place(after), ..event }),
        // Without a name, only its time identifies an event.
        None if with_time => {
            let (period, rest) = if word.is_empty() { (period, after_period) } else { (None, rest) };
            let frame = place(rest);
            (rest.is_empty() || frame.is_some()).then_some(EventLine { period, frame, ..event })
        }
        None => None,
    }
}

/// Parses perf's time, `4711.123456` seconds.
fn nanoseconds(seconds: &str) -> Option<u64> {
    const DIGITS: usize = 9;
    let (whole, fraction) = seconds.split_once('.').unwrap_or((seconds, "0"));
    if !is_number(whole) || !is_number(fraction) || fraction.len() > DIGITS {
        return None;
    }
    let fraction: u64 = format!("{fraction:0<DIGITS$}").parse().ok()?;
    whole.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction)
}

/// The first word, and the text after the following spaces.
fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_once(' ').map_or((text, ""), |(word, rest)| (word, rest.trim_start()))
}

/// The text after the field `tod`: `2026-11-27 04:10:00.123456`.
fn without_time_of_day(text: &str) -> &str {
    let is_of = |word: &str, separator: char, parts: usize| {
        let digits = |part: &str| part.split('.').all(is_number);
        word.split(separator).count() == parts && word.split(separator).all(digits)
    };
    let (day, rest) = first_word(text);
    let (time, after) = first_word(rest);
    if is_of(day, '-', 3) && is_of(time, ':', 3) { after } else { text }
}

/// The frame on the line of its event, after the data's address, source (`|OP LOAD|LVL L1 hit|`) and weight
/// and before registers, if these are printed.
fn place(text: &str) -> Option<FrameLine<'_>> {
    let text = match text.rfind(')').map(|end| text.split_at(end + 1)) {
        Some((place, after)) if after.trim().is_empty() || is_detail(after) => place,
        _ => return None,
    };
    let text = text.rsplit_once('|').map_or(text, |(source, after)| {
        let is_source =
            source.split_once('|').is_some_and(|(before, _)| before.split(' ').all(is_hex_or_none));
        let mut rest = after.trim_start();
        while is_source && !rest.is_empty() && !is_hex(first_word(rest).0) {
            rest = first_word(rest).1;
        }
        if is_source { rest } else { text }
    });
    let is_address = |rest: &str| is_hex(first_word(rest).0) && !first_word(rest).1.is_empty();
    // The data's address has a symbol and a module, too.
    let mut ends = text.rmatch_indices(") ").filter_map(|(at, _)| text.get(at + 2..));
    let mut rest = ends.find(|rest| is_address(rest)).unwrap_or(text).trim();
    // Fields of a tracepoint come first; then the address has leading spaces and many digits.
    if !is_address(rest) {
        let is_long = |part: &&str| {
            let digits = part.bytes().take_while(u8::is_ascii_hexdigit).count();
            digits >= LONG_DIGITS && part.as_bytes().get(digits) == Some(&b' ')
        };
        let mut parts = rest.rmatch_indices(' ').filter_map(|(at, _)| rest.get(at + 1..));
        rest = parts.find(is_long).filter(|part| !first_word(part).1.starts_with('('))?;
    }
    loop {
        let (word, after) = first_word(rest);
        if !is_hex(word) || !is_hex(first_word(after).0) || first_word(after).1.starts_with('(') {
            break;
        }
        rest = after;
    }
    frame(rest).filter(|frame| frame.address > 0)
}

fn is_hex_or_none(word: &str) -> bool {
    word.is_empty() || is_hex(word)
}

/// Output of `perf script -F` after a stack, on a separate line without a leading tab: registers, branches,
/// bytes of instructions, a physical address, sizes of pages, instructions per cycle.
fn is_detail(line: &str) -> bool {
    let line = line.trim();
    let word = line.split(' ').next().unwrap_or_default();
    let is_branch = |word: &str| {
        let mut parts = word.split('/');
        let mut address = || parts.next().and_then(|part| part.strip_prefix("0x")).is_some_and(is_hex);
        address() && address() && parts.next().is_some()
    };
    let names = ["ABI:", "insn:", "IPC:", "ilen:"];
    names.iter().any(|name| line.starts_with(name))
        || is_branch(word)
        || is_hex(line)
        || ["4K", "8K", "64K", "2M", "1G", "N/A"].contains(&word)
}

/// A line of source code, as `-F +srccode` prints it after an event: `|12       x += 1;`.
fn is_source_code(line: &str) -> bool {
    let digits = |rest: &str| rest.bytes().take_while(u8::is_ascii_digit).count();
    line.strip_prefix('|').is_some_and(|rest| {
        digits(rest) > 0
            && rest.get(digits(rest)..).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    })
}

/// The name of an event without its PMU: a hybrid processor has one for each kind of core,
/// `cpu_core/cycles/u` and `cpu_atom/cycles/u`, which are both `cycles` and `u`.
fn without_unit(kind: &str) -> (&str, &str) {
    let of_processor = kind.split_once('/').filter(|(unit, _)| *unit == "cpu" || unit.starts_with("cpu_"));
    match of_processor.and_then(|(_, rest)| rest.rsplit_once('/')) {
        Some((name, modifiers)) => (name, modifiers),
        None => match kind.rsplit_once(':') {
            // Tracepoints have a colon between group and name.
            Some((name, modifiers)) if modifiers.bytes().all(|byte| b"ukhIGHpPSDWeb".contains(&byte)) => {
                (name, modifiers)
            }
            _ => (kind, ""),
        },
    }
}

/// A line of a stack.
#[derive(Debug, PartialEq, Eq)]
struct FrameLine<'t> {
    /// 0 if not printed.
    address: u64,
    /// Without its offset.
    symbol: &'t str,
    module: &'t str,
}

/// `    7f533952bc77 _dl_check_map_versions+0x597 (/usr/lib/ld-2.28.so)`; without the module, or with the
/// address alone, if no more fields were requested.
fn frame(line: &str) -> Option<FrameLine<'_>> {
    let line = line.trim();
    let (address, rest) = line.split_once(' ').unwrap_or((line, ""));
    let address = u64::from_str_radix(address, 16).ok()?;
    let rest = rest.trim();
    let (symbol, module) = symbol_and_module(rest);
    // Printed in place of the module, which is that of the enclosing frame.
    let module = if module == INLINED { UNKNOWN } else { module };
    let symbol = match symbol.rsplit_once("+0x") {
        Some((name, offset)) if !name.is_empty() && is_hex(offset) => name,
        _ => symbol,
    };
    Some(FrameLine { address, symbol, module })
}

fn is_hex(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Splits `symbol+0x1f (module)`. Both may contain spaces and parentheses: `f(int (*)(int))+0x3 (/opt/Program
/// Files (x86)/app (deleted))`.
fn symbol_and_module(text: &str) -> (&str, &str) {
    let Some(inner) = text.strip_suffix(')') else { return (text, "") };
    let split = if text.starts_with('(') && matching(text) == Some(0) {
        Some((0, 1))
    } else {
        // The offset ends a symbol; else a path or `[kernel]` does; else the last pair of parentheses.
        let after_offset = text.match_indices("+0x").find_map(|(at, _)| {
            let digits = text.get(at + 3..)?;
            let len = digits.bytes().take_while(u8::is_ascii_hexdigit).count();
            digits.get(len..).filter(|rest| len > 0 && rest.starts_with(" (")).map(|_| at + 3 + len)
        });
        let unknown = text.starts_with("[unknown] (").then_some(UNKNOWN.len());
        let path = || [" (/", " (["].iter().filter_map(|start| text.find(start)).min();
        let found = unknown.or(after_offset).or_else(path);
        let last = || {
            matching(text)?
                .checked_sub(1)
                .filter(|at| text.get(*at..).is_some_and(|rest| rest.starts_with(' ')))
        };
        found.or_else(last).or_else(|| text.rfind(" (")).map(|at| (at, at + 2))
    };
    let Some((symbol, module)) = split.and_then(|(end, start)| Some((text.get(..end)?, inner.get(start..)?)))
    else {
        return (text, "");
    };
    // The field `dsoff` adds an offset.
    let module = match module.rsplit_once("+0x") {
        Some((path, offset)) if !path.is_empty() && is_hex(offset) => path,
        _ => module,
    };
    // The mark of a deleted file.
    (symbol.trim(), module.strip_suffix(" (deleted)").unwrap_or(module))
}

/// Position of the opening parenthesis for the closing last byte.
fn matching(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, byte) in text.bytes().enumerate().rev() {
        match byte {
            b')' => depth += 1,
            b'(' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at);
                }
            }
            _ => {}
        }
    }
    None
}

/// A line of `perf script -F +srcline`, below its frame: `  app.c:12`. The file, and the line if known; perf
/// prints `app[29d90]` or `??:0` for unknown ones.
fn source_line(line: &str) -> Option<(&str, u32)> {
    let line = line.strip_prefix("  ")?.trim();
    if let Some((file, number)) = line.rsplit_once(':')
        && is_number(number)
        && !file.is_empty()
    {
        return match number.parse() {
            Ok(number) if number > 0 && file != "??" => Some((file, number)),
            _ => Some(("", 0)),
        };
    }
    let (module, offset) = line.strip_suffix(']')?.rsplit_once('[')?;
    (!module.is_empty() && is_hex(offset)).then_some(("", 0))
}

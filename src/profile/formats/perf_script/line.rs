//! The lines of `perf script`: events, frames, source lines and other records.
//!
//! Input: a line. Output: its parts, or nothing for another format. No state: the context of lines is not
//! checked here.

use std::borrow::Cow;

/// Longest thread name, in bytes.
const COMM_BYTES_MAX: usize = 15;
/// perf's placeholder for unknown values.
pub(super) const UNKNOWN: &str = "[unknown]";
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
pub(super) struct EventLine<'t> {
    /// Thread name; empty if not printed.
    pub(super) comm: &'t str,
    /// Event name with its modifiers; empty if not printed.
    pub(super) kind: &'t str,
    /// Number of events that the sample represents.
    pub(super) period: Option<u64>,
    /// Without call chains the place of the event is on its line.
    pub(super) frame: Option<FrameLine<'t>>,
    pub(super) has_time: bool,
    /// Time, nanoseconds of perf's clock.
    pub(super) time_ns: Option<u64>,
    /// The CPU.
    pub(super) cpu: Option<u32>,
    /// Process and thread, if printed.
    pub(super) pid: Option<u32>,
    pub(super) tid: Option<u64>,
}

/// Replaces tabs between fields by spaces, for simpleperf, which is perf on Android; names may contain tabs.
pub(super) fn without_inner_tabs(line: &str) -> Cow<'_, str> {
    let fields = line.trim_start();
    if !fields.contains('\t') || event(line).is_some() || frame(line).is_some() {
        return Cow::Borrowed(line);
    }
    let indent = line.get(..line.len() - fields.len()).unwrap_or_default();
    Cow::Owned(format!("{indent}{}", fields.replace('\t', " ")))
}

/// `comm pid time: period event:`, `comm pid/tid [cpu] time: event:  address symbol (module)`.
pub(super) fn event(line: &str) -> Option<EventLine<'_>> {
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
pub(super) fn bare_event(line: &str) -> Option<EventLine<'_>> {
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
pub(super) fn is_record(line: &str) -> bool {
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
pub(super) fn is_detail(line: &str) -> bool {
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
pub(super) fn is_source_code(line: &str) -> bool {
    let digits = |rest: &str| rest.bytes().take_while(u8::is_ascii_digit).count();
    line.strip_prefix('|').is_some_and(|rest| {
        digits(rest) > 0
            && rest.get(digits(rest)..).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    })
}

/// The name of an event without its PMU: a hybrid processor has one for each kind of core,
/// `cpu_core/cycles/u` and `cpu_atom/cycles/u`, which are both `cycles` and `u`.
pub(super) fn without_unit(kind: &str) -> (&str, &str) {
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
pub(super) struct FrameLine<'t> {
    /// 0 if not printed.
    pub(super) address: u64,
    /// Without its offset.
    pub(super) symbol: &'t str,
    pub(super) module: &'t str,
}

/// `    7f533952bc77 _dl_check_map_versions+0x597 (/usr/lib/ld-2.28.so)`; without the module, or with the
/// address alone, if no more fields were requested.
pub(super) fn frame(line: &str) -> Option<FrameLine<'_>> {
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
pub(super) fn source_line(line: &str) -> Option<(&str, u32)> {
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

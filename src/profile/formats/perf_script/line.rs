//! The lines that `perf script` prints: events, frames, source lines and other records.
//!
//! Input: a line. Output: its parts, or nothing if it has another form. No state: whether a line
//! may stand where it does is not decided here.

/// What perf prints for what it does not know.
pub(super) const UNKNOWN: &str = "[unknown]";
/// What perf prints in place of the module of an inlined function (`perf script --inline`).
const INLINED: &str = "inlined";
/// How the names of records begin that are no samples (`--show-mmap-events` and others).
const RECORD: &str = "PERF_RECORD_";
/// Letters of the field `misc`: where the processor was, and the kind of a record.
const MISC: &[u8] = b"KUHGgMESpF";

/// A line that begins an event.
#[derive(Debug)]
pub(super) struct EventLine<'t> {
    /// Name of the thread; empty where perf prints none.
    pub(super) comm: &'t str,
    /// Name of the event with its modifiers; empty where it is not printed.
    pub(super) kind: &'t str,
    /// How many events the sample stands for.
    pub(super) period: Option<u64>,
    /// Without call chains the place of the event stands on its line.
    pub(super) frame: Option<FrameLine<'t>>,
}

/// `comm pid time: period event:`, `comm pid/tid [cpu] time: event:  address symbol (module)`.
pub(super) fn event(line: &str) -> Option<EventLine<'_>> {
    // Names of threads may have blanks and numbers, so what comes after them tells where they end.
    // A time is the surest; of lines without one the first number that fits is the process.
    [true, false].into_iter().find_map(|with_time| {
        ids(line).find_map(|(start, end)| {
            let comm = line.get(..start)?.trim();
            tail(comm, line.get(end..)?, with_time)
        })
    })
}

/// Whether a line is a record that is no sample: `app 40/40 1.0: PERF_RECORD_FORK(40:41):(40:40)`.
pub(super) fn is_record(line: &str) -> bool {
    if line.starts_with('\t') {
        return false;
    }
    line.match_indices(RECORD).any(|(at, _)| {
        let before = line.get(..at).unwrap_or_default();
        before.trim().is_empty() || before.ends_with(' ')
    })
}

/// Where each word begins and ends that may be `pid` or `pid/tid`.
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

/// What comes after the process: `[cpu] misc time: period event: ...`.
fn tail<'t>(comm: &'t str, rest: &'t str, with_time: bool) -> Option<EventLine<'t>> {
    let mut rest = rest.trim_start();
    loop {
        if let Some(after) = rest.strip_prefix('[') {
            let (cpu, after) = after.split_once(']')?;
            if !is_number(cpu) {
                return None;
            }
            rest = after.trim_start();
            continue;
        }
        let (word, after) = first_word(rest);
        if word.is_empty() || !word.bytes().all(|byte| MISC.contains(&byte)) {
            break;
        }
        rest = after;
    }
    let (word, after) = first_word(rest);
    let time = word.strip_suffix(':').filter(|time| {
        time.starts_with(|c: char| c.is_ascii_digit())
            && time.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
    });
    if time.is_some() != with_time {
        return None;
    }
    if time.is_some() {
        rest = after;
    }
    let (word, after) = first_word(rest);
    let period = is_number(word).then(|| word.parse().ok()).flatten();
    let after_period = if period.is_some() { after } else { rest };
    let (word, after) = first_word(after_period);
    match word.strip_suffix(':').filter(|kind| !kind.is_empty() && !kind.starts_with('[')) {
        Some(kind) => Some(EventLine { comm, kind, period, frame: place(after) }),
        // Without its name, an event is told by its time only.
        None if with_time => {
            let (period, rest) = if word.is_empty() { (period, after_period) } else { (None, rest) };
            let frame = place(rest);
            (rest.is_empty() || frame.is_some()).then_some(EventLine { comm, kind: "", period, frame })
        }
        None => None,
    }
}

/// The first word and what comes after the blanks behind it.
fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_once(' ').map_or((text, ""), |(word, rest)| (word, rest.trim_start()))
}

/// The frame that stands on the line of its event.
fn place(text: &str) -> Option<FrameLine<'_>> {
    frame(text).filter(|frame| frame.address > 0 && text.trim_end().ends_with(')'))
}

/// The name of an event without the unit that counted it: a processor with two kinds of cores
/// has one for each, `cpu_core/cycles/u` and `cpu_atom/cycles/u`, which are `cycles` and `u` both.
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
    /// 0 where perf printed none.
    pub(super) address: u64,
    /// Without its offset.
    pub(super) symbol: &'t str,
    pub(super) module: &'t str,
}

/// `    7f533952bc77 _dl_check_map_versions+0x597 (/usr/lib/ld-2.28.so)`; without the module, or
/// the address alone, where perf was asked for no more.
pub(super) fn frame(line: &str) -> Option<FrameLine<'_>> {
    let line = line.trim();
    let (address, rest) = line.split_once(' ').unwrap_or((line, ""));
    let address = u64::from_str_radix(address, 16).ok()?;
    let rest = rest.trim();
    let (symbol, module) = symbol_and_module(rest);
    // Stands where the module would, which is that of the frame around it.
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

/// The two parts of `symbol+0x1f (module)`. Both may have blanks and parentheses:
/// `f(int (*)(int))+0x3 (/opt/Program Files (x86)/app (deleted))`.
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
    // Of a file that is gone.
    (symbol.trim(), module.strip_suffix(" (deleted)").unwrap_or(module))
}

/// Where the parenthesis opens that the last byte closes.
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

/// A line of `perf script -F +srcline`, which stands below its frame: `  app.c:12`. The file, and
/// the line if it is known; perf prints `app[29d90]` or `??:0` where it knows none.
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

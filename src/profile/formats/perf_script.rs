//! The text that `perf script` prints, as a saved profile.
//!
//! Input: events, each a line `comm pid/tid [cpu] time: period event:` and below it the
//! stack, leaf first, a line `address symbol+0x1f (module)` each. Output: [`Saved`] with
//! addresses and modules, one sample an event; only events of the first one's kind count, as
//! in stackcollapse-perf, and how many others there are is told. inferno's reader gives text alone, warns of what it does not
//! understand and goes on, and asserts what a file can break; here a line that is neither
//! an event nor a frame stops with its number.

use std::io::{self, BufRead};

use super::detect::broken;
use super::malformed::Malformed;
use crate::error::{Error, ErrorKind, Result};
use crate::profile::MAX_DEPTH;
use crate::profile::builder::SavedBuilder;
use crate::profile::saved::{Full, Function, Line, Mapping, Saved, StackRoot};

/// Longest line that is read; the longest names of functions are some 64 KiB.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Why an event is not counted.
const ANOTHER_KIND: &str = "events of another kind";

/// Reads the text; `file` is the name that errors carry.
///
/// # Errors
/// [`ErrorKind::Input`]: `FILE:LINE: expected …`.
pub fn read(mut reader: impl BufRead, file: &str) -> Result<Saved> {
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
        let text = String::from_utf8_lossy(&line);
        state.line(text.trim_end()).map_err(refuse)?;
    }
    state
        .end_event()
        .map_err(|full| Error::new(ErrorKind::Input, format!("{file}: {full}")).caused_by(full))?;
    Ok(state.builder.finish())
}

/// Whether a text begins as `perf script` prints it: remarks, or an event with a frame below.
#[must_use]
pub fn is_perf_script(head: &str) -> bool {
    let mut lines = head.lines().filter(|line| !line.trim().is_empty());
    if head.starts_with("# ========") {
        return true;
    }
    let mut lines = lines.by_ref().skip_while(|line| line.starts_with('#'));
    let (Some(first), second) = (lines.next(), lines.next()) else { return false };
    let stack_below = second.is_some_and(|line| line.starts_with([' ', '\t']) && frame(line).is_some());
    event(first).is_some_and(|event| stack_below || event.frame.is_some() || first.trim_end().ends_with(':'))
}

#[derive(Default)]
struct State {
    builder: SavedBuilder,
    /// The event that counts.
    kind: Option<String>,
    /// The event at hand, if it counts, and its stack so far.
    root: Option<StackRoot>,
    in_event: bool,
    leaf_first: Vec<u32>,
}

impl State {
    fn line(&mut self, line: &str) -> std::result::Result<(), Malformed> {
        if line.starts_with('#') {
            return Ok(());
        }
        if line.is_empty() {
            return Ok(self.end_event()?);
        }
        if self.in_event && line.starts_with([' ', '\t']) {
            let frame = frame(line).ok_or("expected \"address symbol (module)\"")?;
            if self.root.is_some() {
                if self.leaf_first.len() >= MAX_DEPTH {
                    return Err(format!("a stack has more than {MAX_DEPTH} frames").into());
                }
                let frame = self.frame(&frame)?;
                self.leaf_first.extend(frame);
            }
            return Ok(());
        }
        self.end_event()?;
        let event = event(line).ok_or("expected an event of perf script: \"comm pid/tid time: event:\"")?;
        self.in_event = true;
        if self.kind.as_deref().is_none_or(|kind| kind == event.kind) {
            self.kind.get_or_insert_with(|| event.kind.to_owned());
            let process = self.builder.text(event.comm)?;
            self.root = Some(StackRoot { process, thread: None, complete: true, waiting: false });
        } else {
            let lost = self.builder.about().lost.entry(ANOTHER_KIND.to_owned()).or_default();
            *lost = lost.saturating_add(1);
        }
        if let Some(frame) = event.frame
            && self.root.is_some()
        {
            let frame = self.frame(&frame)?;
            self.leaf_first.extend(frame);
        }
        Ok(())
    }

    /// Counts the event at hand.
    fn end_event(&mut self) -> std::result::Result<(), Full> {
        self.in_event = false;
        let stack: Vec<u32> = self.leaf_first.drain(..).rev().collect();
        if let Some(root) = self.root.take() {
            let root = self.builder.root(root)?;
            self.builder.add(root, &stack, 1)?;
        }
        Ok(())
    }

    /// The frame of a line; `None` for one that is a process's name in brackets.
    fn frame(&mut self, frame: &FrameLine<'_>) -> std::result::Result<Option<u32>, Full> {
        // A process's name is all of it; `(anonymous namespace)::f(int)` is a function.
        let in_brackets = frame.symbol.strip_prefix('(').and_then(|rest| rest.strip_suffix(')'));
        if in_brackets.is_some_and(|name| !name.contains(['(', ')'])) {
            return Ok(None);
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
        if frame.symbol.is_empty() || frame.symbol == UNKNOWN {
            let module = frame.module.rsplit('/').next().unwrap_or_default();
            let module = module.trim_start_matches('[').trim_end_matches(']');
            let name = if known_module { format!("[{module}]") } else { UNKNOWN.to_owned() };
            return self.named(frame.address, mapping, &name).map(Some);
        }
        self.named(frame.address, mapping, frame.symbol).map(Some)
    }

    fn named(&mut self, address: u64, mapping: Option<u32>, name: &str) -> std::result::Result<u32, Full> {
        let name = self.builder.text(name)?;
        let function = self.builder.function(Function { name, ..Function::default() })?;
        self.builder.frame(address, mapping, &[Line { function, line: 0 }])
    }
}

/// What perf prints for what it does not know.
const UNKNOWN: &str = "[unknown]";
/// What perf prints in place of the module of an inlined function (`perf script --inline`).
const INLINED: &str = "inlined";

/// A line that begins an event.
struct EventLine<'t> {
    comm: &'t str,
    kind: &'t str,
    /// Stacks of one frame may stand on the same line.
    frame: Option<FrameLine<'t>>,
}

/// `comm pid time: period event:`, `comm pid/tid [cpu] time: event:  address symbol (module)`.
fn event(line: &str) -> Option<EventLine<'_>> {
    // The name of a thread may have spaces, so the first word that is numbers ends it.
    let mut at = 0;
    let (comm, rest) = loop {
        let word_at = at + line.get(at..)?.find(|c: char| c != ' ')?;
        let word = line.get(word_at..)?.split(' ').next()?;
        let is_id = word.split('/').count() <= 2
            && word.split('/').all(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()));
        at = word_at + word.len();
        if is_id && word_at > 0 {
            break (line.get(..word_at)?.trim(), line.get(at..)?);
        }
    };
    let mut rest = rest.trim_start();
    if let Some(after) = rest.strip_prefix('[') {
        rest = after.split_once(']')?.1.trim_start();
    }
    let (time, rest) = rest.split_once(": ").or_else(|| Some((rest.strip_suffix(':')?, "")))?;
    if comm.is_empty() || time.is_empty() || !time.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    let rest = rest.trim_start();
    let (event, after) = rest.split_once(": ").unwrap_or((rest, ""));
    // The period stands before the event: `257597 cycles:u`.
    let event = event.rsplit(' ').next().unwrap_or_default().trim_end_matches(':');
    // The first colon ends the name, what follows are its modifiers.
    let kind = plain(event.split(':').next().unwrap_or_default());
    Some(EventLine { comm, kind, frame: frame(after) })
}

/// The event without the kind of processor that counted it: one of several kinds names each
/// event for each, `cpu_core/cycles/P` and `cpu_atom/cycles/P`.
fn plain(event: &str) -> &str {
    let of_processor = event.split_once('/').filter(|(unit, _)| *unit == "cpu" || unit.starts_with("cpu_"));
    let inner = of_processor.and_then(|(_, rest)| rest.rsplit_once('/'));
    inner.map_or(event, |(inner, _)| inner)
}

/// A line of a stack.
struct FrameLine<'t> {
    address: u64,
    /// Without its offset.
    symbol: &'t str,
    module: &'t str,
}

/// `    7f533952bc77 _dl_check_map_versions+0x597 (/usr/lib/ld-2.28.so)`.
fn frame(line: &str) -> Option<FrameLine<'_>> {
    let line = line.trim();
    let (address, rest) = line.split_once(' ')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let rest = rest.trim().strip_suffix(')')?;
    // Of a file that is gone: `(/memfd:jit (deleted))`.
    let rest = rest.strip_suffix(" (deleted)").unwrap_or(rest);
    let (symbol, module) = match rest.rsplit_once(" (") {
        Some((symbol, module)) => (symbol.trim(), module),
        None => ("", rest.strip_prefix('(')?),
    };
    // Stands where the module would, which is that of the frame around it.
    let module = if module == INLINED { UNKNOWN } else { module };
    let symbol = match symbol.rsplit_once("+0x") {
        Some((name, offset)) if !name.is_empty() && offset.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            name
        }
        _ => symbol,
    };
    Some(FrameLine { address, symbol, module })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::ByName;
    use crate::profile::formats::folded;

    const TEXT: &str = "\
# ========
# captured on: today
java 24636/25607 [000] 4794564.109216:     257597 cycles:uppp:
            7f533952bc77 _dl_check+0x597 (/usr/lib/ld-2.28.so)
            7f53389994d0 [unknown] (/usr/lib/libx.so)
                       0 [unknown] ([unknown])

V8 WorkerThread 25607 4794564.109218: cycles:u:
\tffffffff8103ce3b native halt ([kernel.kallsyms])
\t    7f533952bc77 operator new(unsigned long) (/a b/c.so)

java 24636/25607 [000] 4794564.2: 1 instructions:
\t1 skipped (/x)

java 913 72.176760:     257597 cycles:  ffffffff9aa3c8de single+0x1 ([k])
java 913 72.2: cycles:
";

    fn text(text: &str) -> String {
        let saved = read(text.as_bytes(), "p").expect("reads");
        let mut out = Vec::new();
        folded::write(&ByName::of(&saved, false).expect("fits"), &mut out).expect("a Vec takes everything");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn events_become_stacks() {
        assert!(is_perf_script(TEXT));
        assert_eq!(
            text(TEXT),
            "V8 WorkerThread;operator new(unsigned long);native halt 1\njava 1\n\
             java;[unknown];[libx.so];_dl_check 1\njava;single 1\n"
        );
    }

    #[test]
    fn events_of_another_kind_are_counted() {
        let event = |kind: &str| format!("a 5/6 [001] 10.5: 250000 {kind}:\n\t 55 f+0x1 (/x)\n\n");
        let hybrid = ["cpu_core/cycles/P", "cpu_atom/cycles/P", "cpu_atom/cycles/u", "cycles:u"];
        let saved = |kinds: &[&str]| {
            let text: String = kinds.iter().map(|kind| event(kind)).collect();
            read(text.as_bytes(), "p").expect("reads")
        };
        let one = saved(&hybrid);
        assert_eq!((one.total(), one.about.lost.len()), (4, 0));
        let two = saved(&["cpu_core/cycles/P", "cpu_core/instructions/P", "cycles", "faults", "cpu-clock"]);
        assert_eq!((two.total(), two.about.lost[ANOTHER_KIND]), (2, 3));
    }

    #[test]
    fn odd_frames_are_kept() {
        let input = "\
prog 5/6 [001] 10.5: 250000 cycles:
\t 55d0 (anonymous namespace)::inner(int)+0x10 (/bin/work)
\t 55d4 jitted+0x14 (/memfd:jit (deleted))
\t 55d8 inl (inlined)
\t 55d8 (process) (/bin/work)
\t 5500 main+0x5 (/bin/work)

";
        assert_eq!(text(input), "prog;main;inl;jitted;(anonymous namespace)::inner(int) 1\n");
        let saved = read(input.as_bytes(), "p").expect("reads");
        let paths: Vec<&str> = saved.mappings().iter().map(|mapping| saved.text(mapping.path)).collect();
        assert_eq!(paths, ["/bin/work", "/memfd:jit"]);
    }

    #[test]
    fn frames_on_the_line_of_their_event_are_known() {
        let flat =
            "perf 913 72.176760:     257597 cycles:  ffffffff9aa3c8de single+0x1 ([kernel.kallsyms])\n";
        assert!(is_perf_script(flat));
        assert_eq!(text(&flat.repeat(2)), "perf;single 2\n");
    }

    /// On what both understand, inferno and this say the same.
    #[test]
    fn inferno_reads_the_same() {
        use inferno::collapse::Collapse;
        let input = "\
perf 5/6 [001] 10.5: 250000 cpu-clock:
\t     55d0 inner+0x10 (/bin/work)
\t     5500 main+0x5 (/bin/work)
\t     7f00 [unknown] (/lib/libc.so.6)

perf 5/6 [001] 10.6: 250000 cpu-clock:
\t     5500 main+0x9 (/bin/work)

";
        let mut theirs = Vec::new();
        let mut folder = inferno::collapse::perf::Folder::default();
        folder.collapse(input.as_bytes(), &mut theirs).expect("collapses");
        let stacks = |text: &str| -> Vec<String> {
            text.lines().map(|line| line.rsplit_once(' ').expect("a count").0.to_owned()).collect()
        };
        assert_eq!(stacks(&String::from_utf8(theirs).expect("UTF-8")), stacks(&text(input)));
    }

    #[test]
    fn other_lines_are_refused_by_number() {
        let refused = |text: &str| read(text.as_bytes(), "p").expect_err("refused").to_string();
        assert_eq!(
            refused("\nnothing\n"),
            "p:2: expected an event of perf script: \"comm pid/tid time: event:\""
        );
        assert_eq!(refused("a 1 1.0: cycles:\n  xyz\n"), "p:2: expected \"address symbol (module)\"");
        for other in ["a;b 1\n", "", "a 1\n", "{}"] {
            assert!(!is_perf_script(other), "{other}");
        }
    }
}

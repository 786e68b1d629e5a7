//! Folded stacks: `process;frame;frame COUNT`, root first, one line per distinct stack.
//!
//! [`Folder`] takes stacks as frame names with a count and adds up those that read
//! the same; its memory grows with distinct stacks. [`parse`] reads such lines back and
//! refuses every other line by file and number. Not for symbol look-up or demangling.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io::{self, BufRead, Write};

use crate::error::{Error, ErrorKind, Result, io_text};

/// A stack that could not be walked to its thread's root starts with this frame.
pub const INCOMPLETE: &str = "[incomplete]";

/// A frame of which nothing is known.
pub const UNKNOWN: &str = "[unknown]";

/// Longest line that is read: the deepest stack there can be (65,536 frames) with
/// names of 256 bytes. A longer one is not a profile but, say, a binary file.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// The frames that stand before the code of a stack.
#[derive(Clone, Copy, Debug)]
pub struct Root<'a> {
    /// Name of the process: the first frame.
    pub process: &'a str,
    /// Name and system number of the thread; `None` when threads are merged.
    pub thread: Option<(&'a str, u64)>,
    /// False for a stack that was not walked to its thread's root.
    pub complete: bool,
}

/// Adds up stacks by the text they are shown as.
#[derive(Debug, Default)]
pub struct Folder {
    stacks: HashMap<Box<str>, u64>,
    /// The stack at hand; keeps its allocation from one to the next.
    text: String,
}

impl Folder {
    /// Adds `count` samples of the stack `frames`, given root first. Inlined functions
    /// are frames of their own, outer first.
    pub fn add<N: AsRef<str>>(&mut self, root: Root<'_>, frames: impl IntoIterator<Item = N>, count: u64) {
        if count == 0 {
            return;
        }
        self.text.clear();
        push_name(&mut self.text, root.process);
        if let Some((name, id)) = root.thread {
            self.text.push(';');
            push_name(&mut self.text, &format!("{name} ({id})"));
        }
        if !root.complete {
            self.text.push(';');
            self.text.push_str(INCOMPLETE);
        }
        for frame in frames {
            self.text.push(';');
            push_name(&mut self.text, frame.as_ref());
        }
        self.add_text(count);
    }

    fn add_text(&mut self, count: u64) {
        match self.stacks.get_mut(self.text.as_str()) {
            Some(sum) => *sum = sum.saturating_add(count),
            None => {
                self.stacks.insert(self.text.as_str().into(), count);
            }
        }
    }

    /// The distinct stacks with their counts, in the order of their lines' bytes.
    #[must_use]
    pub fn finish(self) -> Vec<(String, u64)> {
        let mut lines: Vec<(String, u64)> =
            self.stacks.into_iter().map(|(stack, count)| (stack.into(), count)).collect();
        lines.sort_unstable_by(by_line);
        lines
    }
}

/// The order of `LC_ALL=C sort` on the written lines. It differs from the order of the
/// stacks only where one is the start of the other: there the count takes part.
fn by_line(a: &(String, u64), b: &(String, u64)) -> Ordering {
    if a.0.starts_with(&b.0) || b.0.starts_with(&a.0) {
        let line = |(stack, count): &(String, u64)| format!("{stack} {count}");
        line(a).cmp(&line(b))
    } else {
        a.0.cmp(&b.0)
    }
}

/// Appends a name as one frame: the separator `;` becomes `:`, control characters
/// (line ends above all) become spaces, and a blank name is `[unknown]`.
fn push_name(text: &mut String, name: &str) {
    let name = name.trim_matches(|c: char| c.is_whitespace() || c.is_control());
    if name.is_empty() {
        text.push_str(UNKNOWN);
        return;
    }
    text.extend(name.chars().map(|c| match c {
        ';' => ':',
        // U+2028 and U+2029 end a line for some readers.
        '\u{2028}' | '\u{2029}' => ' ',
        c if c.is_control() => ' ',
        c => c,
    }));
}

/// Writes the lines of [`Folder::finish`].
///
/// # Errors
/// What the writer reports.
pub fn write(lines: &[(String, u64)], out: &mut dyn Write) -> io::Result<()> {
    for (stack, count) in lines {
        writeln!(out, "{stack} {count}")?;
    }
    Ok(())
}

/// Reads folded stacks; `file` is the name that errors carry. Equal stacks are added
/// up and the result is sorted as [`Folder::finish`] does it. Blank lines are allowed.
///
/// # Errors
/// [`ErrorKind::Input`]: `FILE:LINE: expected "stack count"` for any other line.
pub fn parse(mut reader: impl BufRead, file: &str) -> Result<Vec<(String, u64)>> {
    let mut folder = Folder::default();
    let mut line = Vec::new();
    for number in 1u64.. {
        let refuse = |what: String| Error::new(ErrorKind::Input, format!("{file}:{number}: {what}"));
        line.clear();
        let read = io::Read::take(&mut reader, LINE_BYTES_MAX).read_until(b'\n', &mut line);
        match read {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => return Err(Error::new(ErrorKind::Input, format!("{file}: {}", io_text(&error)))),
        }
        if line.len() as u64 == LINE_BYTES_MAX && line.last() != Some(&b'\n') {
            return Err(refuse(format!(
                "line longer than {} MiB; this is not a profile",
                LINE_BYTES_MAX >> 20
            )));
        }
        let text =
            std::str::from_utf8(&line).map_err(|_| refuse("not UTF-8; this is not a profile".into()))?;
        let text = text.trim_end_matches(['\n', '\r']);
        if text.trim().is_empty() {
            continue;
        }
        let (stack, count) = text
            .rsplit_once(' ')
            .filter(|(stack, count)| {
                !stack.trim().is_empty() && !count.is_empty() && count.bytes().all(|b| b.is_ascii_digit())
            })
            .ok_or_else(|| refuse("expected \"stack count\"".into()))?;
        let too_large = || refuse("the count does not fit in 64 bits".into());
        let count: u64 = count.parse().map_err(|_| too_large())?;
        let sum = folder.stacks.get(stack).copied().unwrap_or(0);
        let sum = sum.checked_add(count).ok_or_else(too_large)?;
        folder.stacks.insert(stack.into(), sum);
    }
    Ok(folder.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: Root<'static> = Root { process: "work", thread: None, complete: true };

    fn text(folder: Folder) -> String {
        let mut out = Vec::new();
        write(&folder.finish(), &mut out).expect("a Vec takes everything");
        String::from_utf8(out).expect("UTF-8")
    }

    fn parse_error(bytes: &[u8]) -> String {
        parse(bytes, "a.folded").expect_err("refused").to_string()
    }

    #[test]
    fn stacks_are_sorted_and_equal_ones_added_up() {
        let mut folder = Folder::default();
        folder.add(ROOT, ["main", "spin"], 3);
        folder.add(ROOT, ["main"], 1);
        folder.add(ROOT, ["main", "spin"], 4);
        folder.add(ROOT, ["main", "alloc"], 2);
        folder.add(ROOT, ["main", "never"], 0);
        assert_eq!(text(folder), "work;main 1\nwork;main;alloc 2\nwork;main;spin 7\n");
    }

    #[test]
    fn thread_and_incomplete_stand_before_the_code() {
        let mut folder = Folder::default();
        folder.add(Root { thread: Some(("io", 17)), ..ROOT }, ["main"], 1);
        folder.add(Root { thread: Some(("io", 17)), complete: false, ..ROOT }, ["read"], 2);
        folder.add(Root { thread: Some(("", 18)), complete: false, ..ROOT }, ["read"], 3);
        folder.add(Root { complete: false, ..ROOT }, ["read"], 4);
        assert_eq!(
            text(folder),
            "work;(18);[incomplete];read 3\nwork;[incomplete];read 4\n\
             work;io (17);[incomplete];read 2\nwork;io (17);main 1\n"
        );
    }

    #[test]
    fn names_cannot_break_the_form() {
        let mut folder = Folder::default();
        folder.add(ROOT, ["a;b", "c\nd\r\te\0f", "", " \0 ", "\u{2028}x", "[u8: 4]"], 1);
        assert_eq!(text(folder), "work;a:b;c d  e f;[unknown];[unknown];x;[u8: 4] 1\n");
    }

    #[test]
    fn lines_are_in_the_order_of_their_bytes() {
        let mut folder = Folder::default();
        for name in ["a", "a 1", "a!", "a::b", "a-b", "a<T>", "é"] {
            folder.add(Root { process: name, ..ROOT }, ["x"], 5);
            folder.add(Root { process: name, ..ROOT }, None::<&str>, 9);
        }
        let text = text(folder);
        let mut sorted: Vec<&str> = text.lines().collect();
        sorted.sort_unstable();
        assert_eq!(text.lines().collect::<Vec<_>>(), sorted);
    }

    #[test]
    fn what_is_written_reads_back() {
        let mut folder = Folder::default();
        folder.add(ROOT, ["main", "operator new(unsigned long)", "x 12"], 3);
        folder.add(ROOT, ["main"], u64::MAX);
        let lines = folder.finish();
        let mut out = Vec::new();
        write(&lines, &mut out).expect("a Vec takes everything");
        assert_eq!(parse(out.as_slice(), "a").expect("reads back"), lines);
    }

    #[test]
    fn blank_lines_and_windows_line_ends_are_allowed() {
        let lines = parse(&b"\na;b 1\r\n  \n\na;b 2\nc 4"[..], "a").expect("reads");
        assert_eq!(lines, [("a;b".to_string(), 3), ("c".to_string(), 4)]);
    }

    #[test]
    fn any_other_line_is_refused_by_file_and_number() {
        for bad in ["a;b", "a;b x", "a;b -1", "a;b 1.5", "a;b ", " 12", "12", "a;b\t1", "a +1"] {
            let input = format!("ok 1\n\n{bad}\n");
            assert_eq!(parse_error(input.as_bytes()), "a.folded:3: expected \"stack count\"", "{bad:?}");
        }
        assert_eq!(parse_error(b"a 18446744073709551616\n"), "a.folded:1: the count does not fit in 64 bits");
        assert_eq!(
            parse_error(b"a 18446744073709551615\na 1\n"),
            "a.folded:2: the count does not fit in 64 bits"
        );
        assert_eq!(parse_error(b"a 1\n\xff\xfe 1\n"), "a.folded:2: not UTF-8; this is not a profile");
    }

    #[test]
    fn an_endless_line_is_refused_without_reading_it_all() {
        let endless = io::BufReader::new(io::repeat(b'x'));
        let error = parse(endless, "/dev/zero").expect_err("refused");
        assert_eq!(error.to_string(), "/dev/zero:1: line longer than 16 MiB; this is not a profile");
        assert_eq!(error.kind(), ErrorKind::Input);
    }
}

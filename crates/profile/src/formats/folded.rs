//! Folded stacks, written and read: `process;frame;frame COUNT`, root first, one line per distinct stack.
//!
//! `write` gets stacks by name, already in the order of their lines. `read` takes text in any order, of any size,
//! and adds equal stacks up.

#[cfg(test)]
mod folded_read_tests;

use std::io::{self, ErrorKind as IoErrorKind, Read, Write};

use memchr::{memchr, memrchr};

use super::detect::broken;
use super::encoding;
use super::tally::{Fractions, NO_STACK, Tally};
use crate::error::{self, Error, ErrorKind};
use crate::trie::NodeId;
use crate::views::by_name::ByName;
use crate::{About, DEPTH_MAX, INCOMPLETE, SavedBuilder, SavedProfile, StackRoot, UNKNOWN};

/// Writes the stacks, sorted bytewise.
///
/// # Errors
/// Errors of the writer.
pub fn write(stacks: &ByName, out: &mut dyn Write) -> io::Result<()> {
    let mut written = Ok(());
    stacks.for_each_stack(|names, count| {
        let mut line = || {
            for (index, name) in names.iter().enumerate() {
                if index > 0 {
                    out.write_all(b";")?;
                }
                out.write_all(stacks.text(*name).as_bytes())?;
            }
            writeln!(out, " {count}")
        };
        if written.is_ok() {
            written = line();
        }
    });
    written
}

// ---- Reads folded stacks, `process;frame;frame COUNT` per line, directly into a profile.
//
// Only the current line is in memory. A line mostly has a common prefix with the previous one: those frames are
// known nodes already, and only the rest is looked up. Any other line is an error with file and line number.
// Writing is not done here.

/// Longest line: the deepest possible stack ([`DEPTH_MAX`]) with names of 64 bytes. A longer one means that
/// the file is not a profile but, say, binary.
pub const LINE_BYTES_MAX: usize = 16 << 20;

/// Initial size of the input buffer; a longer line makes it grow.
const BLOCK_BYTES: usize = 1 << 20;

/// Most names of a line before the code: process, thread, `[incomplete]`.
const ROOT_NAMES_MAX: usize = 3;

const NO_TEXT: &str = "not text; this is not a profile";

/// Reads folded stacks; `file` is its name in errors. Blank lines and comments are allowed. The first name is
/// the process; a following `name (17)` is a thread, and `[incomplete]` after these means that the stack was
/// not walked to its thread's root.
///
/// # Errors
/// [`ErrorKind::Input`]: `FILE:LINE: expected "stack count"` if more than half of the lines are invalid, and
/// for anything beyond a limit: a line, a count, the sum of all counts, a table of the profile.
pub fn read(input: impl Read, file: &str) -> error::Result<SavedProfile> {
    let mut tally = Tally::new(file);
    let saved = read_lines(input, file, &mut tally)?;
    tally.judge(false).map(|_| saved)
}

/// Reads folded stacks, and counts invalid lines.
pub(super) fn read_lines(mut input: impl Read, file: &str, tally: &mut Tally) -> error::Result<SavedProfile> {
    let mut reader = Reader::new(file, tally);
    let mut buffer = vec![0; BLOCK_BYTES];
    // The range of unused bytes, and how many of them are known to contain no newline.
    let (mut from, mut to, mut searched) = (0, 0, 0);
    loop {
        if to == buffer.len() {
            buffer.copy_within(from..to, 0);
            (from, to) = (0, to - from);
            if to == buffer.len() {
                buffer.resize(buffer.len() * 2, 0);
            }
        }
        let free = buffer.get_mut(to..).unwrap_or_default();
        let read = match input.read(free) {
            Ok(read) => read.min(free.len()),
            Err(error) if error.kind() == IoErrorKind::Interrupted => continue,
            Err(error) => return Err(broken(file, error)),
        };
        if read == 0 {
            reader.line(buffer.get(from..to).unwrap_or_default())?;
            return reader.finish();
        }
        to += read;
        while let Some(at) = memchr(b'\n', buffer.get(from + searched..to).unwrap_or_default()) {
            let end = from + searched + at;
            reader.line(buffer.get(from..end).unwrap_or_default())?;
            (from, searched) = (end + 1, 0);
        }
        searched = to - from;
        if searched > LINE_BYTES_MAX {
            return Err(reader.too_long());
        }
    }
}

struct Reader<'a> {
    file: &'a str,
    tally: &'a mut Tally,
    fractions: Fractions,
    /// Lines with a stack that ends in another number.
    two_counts: u64,
    /// The last name of the first line with two counts, without its number, and whether others differ: one
    /// function may be called `worker 12`, not all.
    numbered_name: Vec<u8>,
    numbered_names_differ: bool,
    /// Current line number.
    number: u64,
    builder: SavedBuilder,
    /// Sum of all counts so far.
    total: u64,
    /// The previous stack.
    before: Vec<u8>,
    /// Where each of its names ends, and the node of the names so far.
    names: Vec<(usize, NodeId)>,
    /// Number of names before the code.
    root_names: usize,
}

impl<'a> Reader<'a> {
    fn new(file: &'a str, tally: &'a mut Tally) -> Reader<'a> {
        Reader {
            file,
            tally,
            fractions: Fractions::default(),
            two_counts: 0,
            numbered_name: Vec::new(),
            numbered_names_differ: false,
            number: 0,
            builder: SavedBuilder::new(About::default()),
            total: 0,
            before: Vec::new(),
            names: Vec::new(),
            root_names: 0,
        }
    }

    fn refuse(&self, what: impl std::fmt::Display) -> Error {
        Error::new(ErrorKind::Input, format!("{}:{}: {what}", self.file, self.number))
    }

    fn too_long(&mut self) -> Error {
        self.number += 1;
        self.refuse(format_args!("line longer than {} MiB; this is not a profile", LINE_BYTES_MAX >> 20))
    }

    /// Reads one line, without its newline.
    fn line(&mut self, line: &[u8]) -> error::Result<()> {
        if line.len() > LINE_BYTES_MAX {
            return Err(self.too_long());
        }
        self.number += 1;
        let mut line = line;
        while let [rest @ .., b'\r'] = line {
            line = rest;
        }
        let parts = memrchr(b' ', line).and_then(|at| Some((line.get(..at)?, line.get(at + 1..)?)));
        let is_stack = |stack: &[u8], digits: &[u8]| {
            let is_plain = stack.first() != Some(&b'#') && stack.last() != Some(&b'\t');
            is_plain && is_number(digits) && !is_blank(stack)
        };
        match parts.filter(|(stack, digits)| is_stack(stack, digits)) {
            Some((stack, digits)) => self.stack(stack, digits, 0.0),
            None => self.other_line(line),
        }
    }

    /// Counts a stack: digits, and a fraction from 0 to below 1.
    fn stack(&mut self, stack: &[u8], digits: &[u8], fraction: f64) -> error::Result<()> {
        let Some(count) = number(digits) else {
            return Err(self.refuse("the count does not fit in 64 bits"));
        };
        let node = match self.node_of(stack)? {
            Some(node) => node,
            None if stack.iter().any(|byte| byte.is_ascii_control() && *byte != b'\t') => {
                self.tally.skip_line(self.number, NO_TEXT);
                return Ok(());
            }
            None => {
                let text = encoding::text(stack);
                self.node_of(text.as_bytes())?.unwrap_or(NodeId(0))
            }
        };
        self.tally.understand();
        if let Some(name) = numbered_name(stack) {
            self.two_counts += 1;
            if self.two_counts == 1 {
                self.numbered_name = name.to_vec();
            }
            self.numbered_names_differ |= self.numbered_name != name;
        }
        let sum = self.builder.so_far().trie().count(node).checked_add(count);
        let total = sum.and_then(|_| self.total.checked_add(count));
        self.total = total.ok_or_else(|| match sum {
            None => self.refuse("the count does not fit in 64 bits"),
            Some(_) => self.refuse("the counts together do not fit in 64 bits"),
        })?;
        self.fractions.add(&mut self.builder, node, count, fraction).map_err(|full| self.refuse(full))
    }

    /// Handles a line other than `stack count`: blank, a comment, or a count in another notation. Skips
    /// anything else.
    #[cold]
    fn other_line(&mut self, line: &[u8]) -> error::Result<()> {
        let line = line.trim_ascii_end();
        let is_remark = line.first() == Some(&b'#');
        if is_blank(line) || (is_remark && memchr(b';', line).is_none()) {
            return Ok(());
        }
        let at = line.iter().rposition(|byte| matches!(byte, b' ' | b'\t'));
        let parts = at.and_then(|at| Some((line.get(..at)?.trim_ascii_end(), line.get(at + 1..)?)));
        // py-spy writes a sample without frames as ` 1`.
        let parts =
            parts.map(|(stack, value)| (if stack.is_empty() { UNKNOWN.as_bytes() } else { stack }, value));
        if let Some((stack, value)) = parts.filter(|(stack, _)| !is_blank(stack))
            && let Some((digits, fraction)) = decimal(value)
        {
            return self.stack(stack, digits, fraction);
        }
        if !is_remark {
            let is_text =
                std::str::from_utf8(line).is_ok() || line.iter().all(|byte| !byte.is_ascii_control());
            self.tally.skip_line(self.number, if is_text { NO_STACK } else { NO_TEXT });
        }
        Ok(())
    }

    /// Builds the profile after the last line.
    fn finish(mut self) -> error::Result<SavedProfile> {
        let lines = self.tally.understood();
        if self.numbered_names_differ && self.two_counts == lines {
            let what = "two counts on every line: a differential profile, as difffolded.pl and stackprof diff \
                        write it; render one of the two profiles";
            return Err(Error::new(ErrorKind::Input, format!("{}: {what}", self.file)));
        }
        let fractions = std::mem::take(&mut self.fractions);
        fractions.finish(&mut self.builder).map_err(|full| self.refuse(full))?;
        Ok(self.builder.finish())
    }

    /// The node of a stack; `None` if it is not UTF-8.
    fn node_of(&mut self, stack: &[u8]) -> error::Result<Option<NodeId>> {
        let shared = self.shared_names(stack);
        self.names.truncate(shared);
        // The shared prefix was validated as text, and ends before a `;`.
        let begin = self.names.last().map_or(0, |(end, _)| *end + 1);
        let new = match stack.get(begin..) {
            Some(new) => match std::str::from_utf8(new) {
                Ok(new) => new,
                Err(_) => return Ok(None),
            },
            // The stack is a prefix with a known node.
            None => return Ok(Some(self.remember(stack))),
        };
        let mut names = new.split(';');
        let (mut node, mut end) = match self.names.last() {
            Some(&(end, node)) => (node, end),
            None => self.root(&mut names)?,
        };
        for name in names {
            if self.names.len() - self.root_names >= DEPTH_MAX {
                return Err(
                    self.refuse(format_args!("a stack has more than {DEPTH_MAX} functions (DEPTH_MAX)"))
                );
            }
            end += 1 + name.len();
            let child = self.builder.named_frame(name).and_then(|frame| self.builder.child_node(node, frame));
            node = child.map_err(|full| self.refuse(full))?;
            self.names.push((end, node));
        }
        Ok(Some(self.remember(stack)))
    }

    /// Records the stack for the next line, and returns its node.
    fn remember(&mut self, stack: &[u8]) -> NodeId {
        self.before.clear();
        self.before.extend_from_slice(stack);
        self.names.last().map_or(NodeId(0), |(_, node)| *node)
    }

    /// Number of leading names shared with the previous stack; 0 if so few that the root may differ.
    fn shared_names(&self, stack: &[u8]) -> usize {
        let same = same_bytes(&self.before, stack);
        let ends_here = |end: usize| end == stack.len() || stack.get(end) == Some(&b';');
        let shared = self.names.partition_point(|(end, _)| *end < same || (*end == same && ends_here(same)));
        if shared > ROOT_NAMES_MAX { shared } else { 0 }
    }

    /// Reads the names before the code. Returns the root's node and the end of the last of them.
    fn root<'t>(&mut self, names: &mut std::str::Split<'t, char>) -> error::Result<(NodeId, usize)> {
        let mut ends = [0; ROOT_NAMES_MAX];
        let mut count = 0;
        let mut end = 0;
        let mut took = |name: &str| {
            end += usize::from(count > 0) + name.len();
            if let Some(slot) = ends.get_mut(count) {
                *slot = end;
            }
            count += 1;
        };
        let process = names.next().unwrap_or_default();
        took(process);
        let mut thread = None;
        let mut ahead = names.clone();
        let mut next = ahead.next();
        if let Some((name, id)) = next.and_then(thread_of) {
            took(next.unwrap_or_default());
            thread = Some((name, id));
            *names = ahead.clone();
            next = ahead.next();
        }
        let complete = next != Some(INCOMPLETE);
        if !complete {
            took(INCOMPLETE);
            *names = ahead;
        }
        let builder = &mut self.builder;
        let mut make = || {
            let process = builder.text(process)?;
            let thread = match thread {
                Some((name, id)) => Some((builder.text(name)?, id)),
                None => None,
            };
            let root = builder.root(StackRoot {
                process,
                thread,
                complete,
                waiting: false,
                labels: crate::LabelsId::NONE,
            })?;
            builder.root_node(root)
        };
        let node = make().map_err(|full| self.refuse(full))?;
        self.names.extend(ends.iter().take(count).map(|end| (*end, node)));
        self.root_names = count;
        Ok((node, end))
    }
}

/// Name and number of a thread in stackprof's notation: `io (17)`, `(18)` without a name. `None` for any
/// other notation.
fn thread_of(name: &str) -> Option<(&str, u64)> {
    let (name, id) = name.strip_suffix(')')?.rsplit_once('(')?;
    let canonical = id == "0" || !id.starts_with('0');
    let id = number(id.as_bytes()).filter(|_| is_number(id.as_bytes()) && canonical)?;
    if name.is_empty() {
        return Some(("", id));
    }
    name.strip_suffix(' ').filter(|name| !name.is_empty() && name.trim() == *name).map(|name| (name, id))
}

/// True for invisible text; text that is not UTF-8 is not blank.
fn is_blank(stack: &[u8]) -> bool {
    match stack.first() {
        Some(first) if first.is_ascii_graphic() => false,
        _ => std::str::from_utf8(stack).is_ok_and(|stack| stack.trim().is_empty()),
    }
}

/// The last name of a stack that ends in another number, without that number.
fn numbered_name(stack: &[u8]) -> Option<&[u8]> {
    if !stack.last().is_some_and(u8::is_ascii_digit) {
        return None;
    }
    let digits = stack.iter().rev().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
    let before = stack.get(..stack.len() - digits)?;
    let (b' ' | b'\t') = before.last()? else { return None };
    before.rsplit(|byte| *byte == b';').next()
}

/// The digits before the point, and the fraction after it.
fn decimal(value: &[u8]) -> Option<(&[u8], f64)> {
    let point = memchr(b'.', value).unwrap_or(value.len());
    let digits = value.get(..point)?;
    let fraction = match value.get(point + 1..) {
        None => 0.0,
        Some(decimals) if is_number(decimals) => {
            std::str::from_utf8(value.get(point..)?).ok()?.parse().ok()?
        }
        Some(_) => return None,
    };
    is_number(digits).then_some((digits, fraction))
}

fn is_number(digits: &[u8]) -> bool {
    !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
}

/// The value of decimal digits; `None` beyond 64 bits.
fn number(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0u64, |value, digit| {
        value.checked_mul(10)?.checked_add(u64::from(digit.wrapping_sub(b'0')))
    })
}

/// Length of the common prefix of two texts.
fn same_bytes(a: &[u8], b: &[u8]) -> usize {
    const CHUNK: usize = 32;
    let chunks = a.chunks_exact(CHUNK).zip(b.chunks_exact(CHUNK));
    let begin = CHUNK * chunks.take_while(|(a, b)| a == b).count();
    let rest = a.iter().skip(begin).zip(b.iter().skip(begin));
    begin + rest.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SavedProfile;

    fn saved(text: &str) -> SavedProfile {
        super::read(text.as_bytes(), "a").expect("reads")
    }

    fn text(saved: &SavedProfile) -> String {
        let mut out = Vec::new();
        write(&ByName::of(saved, false).expect("fits"), &mut out).expect("a Vec takes everything");
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn folded_stacks_round_trip() {
        let lines = "\
work 5
work;(18);[incomplete];read 3
work;[incomplete] 8
work;[incomplete];read 4
work;io (017);main 1
work;io (17) 18446744073709550000
work;io (17);[incomplete];x 12 2
work;io (17);main;operator new(unsigned long);x (3) 1
";
        assert_eq!(text(&saved(lines)), lines);
    }

    #[test]
    fn lines_are_sorted_and_blank_names_are_shown() {
        let saved = saved("b 4\na;b 1\na;b 2\na;;c 1");
        assert_eq!(text(&saved), "a;[unknown];c 1\na;b 3\nb 4\n");
        assert_eq!(saved.total(), 8);
    }
}

//! Labels of the frames: inferno draws frames named by numbers, and this writer replaces the
//! numbers with names and tooltips.
//!
//! inferno colors by name, parses `worker 12` as two counts and `# x` as a comment, merges only
//! neighbors, and has no tooltip for two profiles. Numbers avoid these problems. Input: the bytes
//! of its file. Output: the same with new `<title>` and `<text>` elements for each frame, and our
//! style rules after its own.

use std::borrow::Cow;
use std::io::{self, Write};

use super::layout::{Compared, Frame, FrameBox, Picture};
use crate::escape::escape_line;

/// Inferno's width of the picture without margins, and of a character.
const PICTURE_PX: f64 = 1200.0;
const CHARACTER_PX: f64 = 12.0 * 0.59;

/// Inferno's name for the dummy frame: the uncovered part of `all`.
pub(super) const NOTHING: &str = "nothing";

/// The parts of inferno's page that `page.js` moves.
const PARTS: [&str; 6] = ["title", "subtitle", "details", "unzoom", "search", "matched"];

/// Code added to inferno's script.
const SCRIPT: &str =
    concat!("<script type=\"text/ecmascript\"><![CDATA[\n", include_str!("page.js"), "]]></script>");

/// Start of a frame in inferno's file.
const OPEN: &str = "<g>";
const CLOSE: &str = "</g>";

/// Forwards inferno's bytes with labels of `picture`.
pub(super) struct Labels<'a, W> {
    out: W,
    picture: &'a Picture<'a>,
    compared: Option<Compared>,
    /// Unit of the counts, in the plural.
    unit: &'a str,
    style: &'static str,
    /// Bytes after the last complete frame.
    pending: Vec<u8>,
    /// How much of it has been searched for the end of a frame.
    searched: usize,
    styled: bool,
}

impl<'a, W: Write> Labels<'a, W> {
    pub(super) fn new(
        out: W,
        picture: &'a Picture<'a>,
        compared: Option<Compared>,
        unit: &'a str,
        style: &'static str,
    ) -> Labels<'a, W> {
        Labels { out, picture, compared, unit, style, pending: Vec::new(), searched: 0, styled: false }
    }

    /// Writes the bytes after the last frame.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.out.write_all(&self.pending)?;
        self.out.flush()
    }

    /// Writes one frame, and the bytes before it.
    fn relabel(&mut self, piece: &str) -> io::Result<()> {
        let (before, frame) = piece.rsplit_once(OPEN).ok_or_else(unexpected)?;
        if self.styled {
            self.out.write_all(before.as_bytes())?;
        } else {
            let (head, rest) = before.split_once("</style>").ok_or_else(unexpected)?;
            if PARTS.iter().any(|part| !rest.contains(&format!(" id=\"{part}\""))) {
                return Err(unexpected());
            }
            write!(self.out, "{head}{}</style>{SCRIPT}{rest}", self.style)?;
            self.styled = true;
        }
        let (_, title, rest) = element(frame, "<title>", "</title>").ok_or_else(unexpected)?;
        let (rect, text) = rest.split_once("<text").ok_or_else(unexpected)?;
        let (attributes, _) = text.split_once('>').ok_or_else(unexpected)?;
        let number = title.split(' ').next().unwrap_or_default();
        if number == NOTHING {
            return Ok(());
        }
        let (tooltip, label) = if number == "all" {
            (self.whole(), Cow::Borrowed("all"))
        } else {
            let shown = number.parse().ok().and_then(|index: usize| self.picture.frames.get(index));
            let shown = shown.ok_or_else(unexpected)?;
            (self.tooltip(shown), fitting(shown, self.picture.width))
        };
        write!(self.out, "{OPEN}<title>{}</title>{rect}", in_xml(&tooltip))?;
        write!(self.out, "<text{attributes}>{}</text>{CLOSE}", in_xml(&label))
    }

    /// The tooltip of a frame. Inferno's script strips the last pair of parentheses from the name,
    /// so there are no others in it.
    fn tooltip(&self, shown: &FrameBox<'_>) -> String {
        let Frame { name, base, new, .. } = shown.node;
        let figures = match self.compared {
            None => format!("{}, {:.2}%", counted(new, self.unit), percent(new, self.picture.new)),
            Some(compared) => self.change(base, new, compared),
        };
        format!("{} ({figures})", escape_line(name))
    }

    fn whole(&self) -> String {
        let Picture { base, new, .. } = *self.picture;
        match self.compared {
            None => format!("all ({}, 100%)", counted(new, self.unit)),
            Some(compared) => format!("all ({})", self.change(base, new, compared)),
        }
    }

    /// `base 120 samples, 12.00%; new 150 samples, 15.00%; +25.0%`: the last is the frame's own
    /// change, or that of its share if shares are compared.
    fn change(&self, base: u64, new: u64, compared: Compared) -> String {
        let (base_percent, new_percent) = (percent(base, self.picture.base), percent(new, self.picture.new));
        let side = |name, count, percent| format!("{name} {}, {percent:.2}%", counted(count, self.unit));
        let (before, after) = match compared {
            Compared::Counts => (base as f64, new as f64),
            Compared::Shares => (base_percent, new_percent),
        };
        let change = match (base, new) {
            (0, _) => "only in new".to_owned(),
            (_, 0) => "only in base".to_owned(),
            _ => format!("{:+.1}%", 100.0 * (after - before) / before),
        };
        format!("{}; {}; {change}", side("base", base, base_percent), side("new", new, new_percent))
    }
}

impl<W: Write> Write for Labels<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        // The end marker may start in the searched part.
        let from = self.searched.saturating_sub(CLOSE.len());
        let tail = self.pending.get(from..).unwrap_or_default();
        let found = tail.windows(CLOSE.len()).position(|window| window == CLOSE.as_bytes());
        let Some(at) = found else {
            self.searched = self.pending.len();
            return Ok(bytes.len());
        };
        let mut piece = std::mem::take(&mut self.pending);
        self.pending = piece.split_off((from + at + CLOSE.len()).min(piece.len()));
        self.searched = 0;
        piece.truncate(from + at);
        self.relabel(std::str::from_utf8(&piece).map_err(|_| unexpected())?)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A release of inferno with another output format; tests notice it first.
fn unexpected() -> io::Error {
    io::Error::other("inferno wrote a frame in a form that is not known here")
}

/// Splits text into the parts before, in and after an element.
fn element<'t>(text: &'t str, open: &str, close: &str) -> Option<(&'t str, &'t str, &'t str)> {
    let (before, rest) = text.split_once(open)?;
    let (inside, after) = rest.split_once(close)?;
    Some((before, inside, after))
}

fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { 100.0 * part as f64 / whole as f64 }
}

/// `1 sample`, `9,970 samples`, with the unit.
fn counted(count: u64, unit: &str) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() * 2);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    let one = unit.strip_suffix('s').filter(|_| count == 1);
    // Parentheses would end the name for inferno's script.
    let unit = escape_line(one.unwrap_or(unit)).replace(['(', ')'], " ");
    format!("{text} {unit}")
}

/// The end of a name, as much as fits into the frame at inferno's width, for viewers without
/// scripts. The end is more informative than the start, which is a path of modules.
fn fitting<'t>(shown: &FrameBox<'t>, whole: u64) -> Cow<'t, str> {
    let px = PICTURE_PX * shown.width as f64 / whole.max(1) as f64 - 3.0;
    let room = (px / CHARACTER_PX).max(0.0) as usize;
    let name = escape_line(shown.node.name);
    let length = name.chars().count();
    if length <= room {
        return name;
    }
    if room < 4 {
        return Cow::Borrowed("");
    }
    Cow::Owned(name.chars().skip(length - (room - 2)).fold("..".to_owned(), |mut text, c| {
        text.push(c);
        text
    }))
}

/// The text escaped as element content; characters that XML 1.0 forbids are already escaped.
fn in_xml(text: &str) -> Cow<'_, str> {
    if !text.contains(['&', '<', '>']) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part before the first frame, as far as it is parsed.
    fn head() -> String {
        "<style>x</style>".to_owned() + &PARTS.map(|part| format!("<text id=\"{part}\"/>")).concat()
    }

    #[test]
    fn counts_are_grouped_by_thousands() {
        for (count, text) in [
            (0, "0 samples"),
            (1, "1 sample"),
            (999, "999 samples"),
            (1000, "1,000 samples"),
            (1_234_567, "1,234,567 samples"),
        ] {
            assert_eq!(counted(count, "samples"), text);
        }
        assert_eq!((counted(1, "bytes"), counted(2, "alloc (x)")), ("1 byte".into(), "2 alloc  x ".into()));
    }

    #[test]
    fn an_unexpected_frame_is_an_error_and_not_a_wrong_picture() {
        let picture = super::super::layout::lay_out(&[], 0, 0.0);
        let all = "<g><title>all (1 s)</title><rect/><text>all</text></g>";
        let head = head();
        for (file, good) in [
            (format!("{head}{all}"), true),
            ("<g>x</g>".to_owned(), false),
            (format!("{head}<g><title>7 (1 s)</title><rect/><text>7</text></g>"), false),
            // Lacks a part that the script looks up.
            (format!("{}{all}", head.replace("unzoom", "reset")), false),
        ] {
            let mut labels = Labels::new(Vec::new(), &picture, None, "samples", "");
            assert_eq!(labels.write_all(file.as_bytes()).is_ok(), good, "{file}");
        }
    }

    #[test]
    fn writes_of_any_size_produce_the_same_file() {
        let nodes = [Frame { depth: 0, name: "é<b>", base: 0, new: 3 }];
        let picture = super::super::layout::lay_out(&nodes, 3, 0.0);
        let head = head();
        let file =
            format!("{head}<g><title>0 (3 samples, 100%)</title><rect/><text x=\"1\">0</text></g>tail");
        for size in 1..file.len() {
            let mut out = Vec::new();
            let mut labels = Labels::new(&mut out, &picture, None, "samples", "!");
            for piece in file.as_bytes().chunks(size) {
                labels.write_all(piece).expect("a Vec takes everything");
            }
            labels.finish().expect("a Vec takes everything");
            assert_eq!(
                String::from_utf8(out).expect("UTF-8"),
                head.replace("</style>", &format!("!</style>{SCRIPT}"))
                    + "<g><title>é&lt;b&gt; (3 samples, 100.00%)</title><rect/>\
                       <text x=\"1\">é&lt;b&gt;</text></g>tail",
                "{size}"
            );
        }
    }
}

//! The flame graph: folded stacks in, one interactive SVG file out, drawn by inferno.
//!
//! Same input, same bytes: colours come from the names, the order from the stacks.
//! What inferno would read wrongly (`name 12` as two counts, `# x` as a remark,
//! siblings that sort between a frame and its children) is made safe here.
//! Not for empty profiles: the caller reports those as "nothing was sampled".

use std::borrow::Cow;
use std::io::{self, Write};

use inferno::flamegraph::color::{BackgroundColor, Color, PaletteMap};
use inferno::flamegraph::{self, Options};

use super::folded::UNKNOWN;

/// How the graph is drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// The heading.
    pub title: String,
    /// The line under it.
    pub subtitle: String,
    /// Merge stacks from the leaf: what is under a function are its callers.
    pub reverse: bool,
    /// Frames narrower than this percentage of the whole are left out.
    pub min_width_percent: f64,
}

/// What heading and subtitle tell of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Caption<'a> {
    /// Name of the process.
    pub process: &'a str,
    /// Process id.
    pub pid: u32,
    /// Ticks per second that were asked for.
    pub hz_requested: u32,
    /// Ticks per second that happened.
    pub hz_achieved: f64,
    /// Length of the recording, seconds.
    pub duration_s: f64,
    /// Samples in the graph.
    pub samples: u64,
    /// Samples that are not in it.
    pub lost: u64,
    /// Stacks that were not walked to their thread's root.
    pub incomplete: u64,
}

impl Caption<'_> {
    /// Heading and subtitle: `title` replaces the default heading `NAME (pid N)`,
    /// which then moves to the front of the subtitle.
    #[must_use]
    pub fn headings(&self, title: Option<&str>) -> (String, String) {
        let process = format!("{} (pid {})", self.process, self.pid);
        let mut subtitle = String::new();
        if title.is_some() {
            subtitle = format!("{process} · ");
        }
        let samples = if self.samples == 1 { "sample" } else { "samples" };
        subtitle += &format!(
            "{} {samples} in {:.1} s · {:.1} of {} Hz",
            self.samples, self.duration_s, self.hz_achieved, self.hz_requested
        );
        if self.lost > 0 {
            subtitle += &format!(" · {} missed", self.lost);
        }
        if self.incomplete > 0 {
            let stacks = if self.incomplete == 1 { "stack" } else { "stacks" };
            subtitle += &format!(" · {} incomplete {stacks}", self.incomplete);
        }
        (title.map_or(process, str::to_string), subtitle)
    }
}

/// Writes the flame graph of `lines` (as `folded` makes them).
///
/// # Errors
/// What the writer reports, and [`io::ErrorKind::InvalidData`] for an empty profile.
pub fn write(graph: &Graph, lines: &[(String, u64)], out: impl Write) -> io::Result<()> {
    let mut stacks: Vec<(String, u64)> = lines
        .iter()
        .filter(|(_, count)| *count > 0)
        .map(|(stack, count)| (drawable(stack, graph.reverse), *count))
        .collect();
    stacks.sort_by(|a, b| tree_order(&a.0).cmp(tree_order(&b.0)));

    let mut palette = PaletteMap::default();
    palette.insert("", Color { r: 205, g: 205, b: 205 });
    for name in stacks.iter().flat_map(|(stack, _)| stack.split(';')) {
        if palette.get(name).is_none() {
            palette.insert(name, color(name));
        }
    }

    let text: Vec<String> = stacks.iter().map(|(stack, count)| format!("{stack} {count}")).collect();
    let mut options = Options::default();
    options.title = printable(&graph.title).into_owned();
    options.subtitle = Some(printable(&graph.subtitle).into_owned());
    options.count_name = "samples".into();
    options.min_width = graph.min_width_percent;
    // The default background is as yellow as the frames.
    options.bgcolors = Some(BackgroundColor::Grey);
    options.palette_map = Some(&mut palette);
    // The only mode in which inferno keeps the order it is given: its own sort compares
    // whole lines, where `a::b` falls between `a` and `a;c` and tears `a` in two. In
    // this mode it reads from the last line to the first.
    options.flame_chart = true;
    flamegraph::from_lines(&mut options, text.iter().rev().map(String::as_str), out)
}

/// Sorts a stack directly before the stacks that go on from it, and these before all
/// others: the separator counts less than any character of a name.
fn tree_order(stack: &str) -> impl Iterator<Item = u8> + '_ {
    stack.bytes().map(|byte| if byte == b';' { 0 } else { byte })
}

/// A stack with names that inferno and XML take as they are; leaf first if `reverse`.
fn drawable(stack: &str, reverse: bool) -> String {
    let mut names: Vec<Cow<'_, str>> = stack.split(';').map(drawable_name).collect();
    if reverse {
        names.reverse();
    }
    names.join(";")
}

fn drawable_name(name: &str) -> Cow<'_, str> {
    let name = name.trim();
    if name.is_empty() {
        return Cow::Borrowed(UNKNOWN);
    }
    let mut name = printable(name);
    // `worker 12` at the end of a stack would be a second count, and `# x` at the start
    // a remark: a space that does not break looks the same and is no separator.
    if name.starts_with("# ") {
        name = Cow::Owned(name.replacen(' ', "\u{a0}", 1));
    }
    let count_like = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    match name.rsplit_once(' ') {
        Some((front, tail)) if count_like(tail) => Cow::Owned(format!("{front}\u{a0}{tail}")),
        _ => name,
    }
}

/// The text without the characters that XML 1.0 cannot hold.
fn printable(text: &str) -> Cow<'_, str> {
    let bad = |c: char| c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}');
    if text.contains(bad) { Cow::Owned(text.replace(bad, " ")) } else { Cow::Borrowed(text) }
}

/// A function has the same colour in every graph: warm, and light enough for black
/// text. Frames that stand for something not known (`[incomplete]`, `[lib+0x1f40]`) are grey.
fn color(name: &str) -> Color {
    // FNV-1a, mixed once more because its high bits hardly change with the last characters.
    let hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let hash = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // The largest step of a span is 255, so that the sum stays within a byte.
    let pick = |shift: u32, low: u64, span: u64| (low + (hash >> shift & 0xff) * span / 255) as u8;
    if name.starts_with('[') {
        let grey = pick(56, 180, 20);
        return Color { r: grey, g: grey, b: grey };
    }
    Color { r: pick(56, 225, 30), g: pick(48, 115, 110), b: pick(40, 45, 55) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> Graph {
        Graph {
            title: "work (pid 4242)".into(),
            subtitle: "10 samples".into(),
            reverse: false,
            min_width_percent: 0.0,
        }
    }

    fn draw(graph: &Graph, lines: &[(&str, u64)]) -> String {
        let lines: Vec<(String, u64)> =
            lines.iter().map(|(stack, count)| (stack.to_string(), *count)).collect();
        let mut out = Vec::new();
        write(graph, &lines, &mut out).expect("drawn");
        String::from_utf8(out).expect("UTF-8")
    }

    /// The tooltips, sorted: `name (count samples, share)`.
    fn frames(svg: &str) -> Vec<String> {
        let mut frames: Vec<String> = svg
            .split("<title>")
            .skip(1)
            .map(|rest| rest.split("</title>").next().unwrap_or_default().to_string())
            .collect();
        frames.sort();
        frames
    }

    #[test]
    fn a_frame_is_one_box_even_between_siblings_that_sort_into_it() {
        let svg = draw(&graph(), &[("p;a", 1), ("p;a::b", 2), ("p;a;c", 3), ("p;a b;c", 4)]);
        assert_eq!(
            frames(&svg),
            [
                "a (4 samples, 40.00%)",
                "a b (4 samples, 40.00%)",
                "a::b (2 samples, 20.00%)",
                "all (10 samples, 100%)",
                "c (3 samples, 30.00%)",
                "c (4 samples, 40.00%)",
                "p (10 samples, 100.00%)",
            ]
        );
    }

    #[test]
    fn names_that_look_like_counts_or_remarks_are_drawn() {
        let svg =
            draw(&graph(), &[("worker 12", 1), ("# x;a", 2), ("#  7", 3), (" ; b ", 4), ("v 1.5;v 1.5", 5)]);
        let frames = frames(&svg).join("\n").replace('\u{a0}', " ");
        for frame in
            ["worker 12 (1 samples", "# x (2 ", "#  7 (3 ", "[unknown] (4 ", "b (4 ", "v 1.5 (5 ", "all (15 "]
        {
            assert!(frames.contains(frame), "{frame} in {frames}");
        }
    }

    #[test]
    fn names_are_escaped_and_never_break_the_file() {
        let mut graph = graph();
        graph.title = "<b>\u{0}&\u{ffff}".into();
        let svg = draw(&graph, &[("p;Vec<T>::push(&str)", 1), ("p;\u{1}x\u{fffe}y", 1)]);
        assert!(svg.contains("&lt;b&gt; &amp; </text>"), "{svg}");
        assert!(svg.contains("Vec&lt;T&gt;::push(&amp;str) (1 samples"), "{svg}");
        assert!(svg.contains(" x y (1 samples"), "{svg}");
    }

    #[test]
    fn same_input_same_bytes_and_a_function_keeps_its_color() {
        let lines = [("p;main;f", 3), ("p;main;g", 4), ("p;[incomplete];f", 1)];
        assert_eq!(draw(&graph(), &lines), draw(&graph(), &lines));
        // Pinned: colours must not change from one version to the next.
        let rgb = |name| {
            let color = color(name);
            (color.r, color.g, color.b)
        };
        assert_eq!(rgb("main"), (239, 203, 46));
        let (r, g, b) = rgb("[incomplete]");
        assert!(r == g && g == b, "grey");
        assert_ne!(rgb("spin_a"), rgb("spin_b"));
    }

    #[test]
    fn reversed_stacks_grow_from_the_leaf() {
        let mut graph = graph();
        graph.reverse = true;
        let svg = draw(&graph, &[("p;main;f;hot", 3), ("p;main;g;hot", 4)]);
        let frames = frames(&svg);
        assert!(frames.contains(&"hot (7 samples, 100.00%)".to_string()), "{frames:?}");
        assert_eq!(frames.iter().filter(|frame| frame.starts_with("main")).count(), 2, "{frames:?}");
    }

    #[test]
    fn narrow_frames_are_left_out() {
        let mut graph = graph();
        graph.min_width_percent = 10.0;
        let svg = draw(&graph, &[("p;wide", 95), ("p;thin", 5)]);
        assert!(svg.contains("wide (") && !svg.contains("thin ("), "{svg}");
    }

    #[test]
    fn headings_name_the_process_and_what_is_missing() {
        let caption = Caption {
            process: "work",
            pid: 4242,
            hz_requested: 997,
            hz_achieved: 996.8,
            duration_s: 10.0,
            samples: 9970,
            lost: 0,
            incomplete: 0,
        };
        assert_eq!(
            caption.headings(None),
            ("work (pid 4242)".into(), "9970 samples in 10.0 s · 996.8 of 997 Hz".into())
        );
        let torn = Caption { samples: 1, lost: 12, incomplete: 1, ..caption };
        assert_eq!(
            torn.headings(Some("Before")),
            (
                "Before".into(),
                "work (pid 4242) · 1 sample in 10.0 s · 996.8 of 997 Hz · 12 missed · 1 incomplete stack"
                    .into()
            )
        );
    }
}

//! The flame graph: weighed frames in, one interactive SVG file out, drawn by inferno.
//!
//! Same input, same bytes: colours come from names and weights, the order from the caller.
//! Frames that are too narrow are left out before anything is drawn (`layout.rs`); inferno
//! draws numbered frames, and `labels.rs` puts names and tooltips in their place.
//! Not for empty profiles: the caller reports those as "nothing was sampled".

mod caption;
mod labels;
mod layout;
mod lines;
mod palette;

use std::io::{self, Write};

use inferno::flamegraph::color::{BackgroundColor, PaletteMap};
use inferno::flamegraph::{self, Options};

pub use caption::Caption;
use labels::{Labels, NOTHING, printable};
pub use layout::{FRAMES_DRAWN_MAX, LEVELS_DRAWN_MAX};
use layout::{Picture, Shown};
pub use palette::Colors;

/// How the graph is drawn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// The heading.
    pub title: String,
    /// The line under it.
    pub subtitle: String,
    /// Merge stacks from the leaf: what is under a function are its callers.
    pub reverse: bool,
    /// Frames narrower than this percentage of the whole are left out.
    pub min_width_percent: f64,
    /// The colours of the frames.
    pub colors: Colors,
    /// Light text on a dark page.
    pub dark: bool,
}

/// A frame at its place in the tree. A list of them in pre-order is a tree: each is
/// followed by what it calls, one deeper than itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node<'a> {
    /// Frames below it; 0 for the outermost one.
    pub depth: u32,
    /// What is shown.
    pub name: &'a str,
    /// Samples in the profile that is compared with, those of all that it calls included; 0
    /// where nothing is compared.
    pub base: u64,
    /// Samples, those of all that it calls included.
    pub new: u64,
}

/// What a comparison takes for equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// Equal numbers of samples: two runs of the same work.
    Counts,
    /// Equal shares of the whole: two recordings of different length.
    Shares,
}

/// Writes the flame graph of `lines` (as `folded` makes them).
///
/// # Errors
/// What the writer reports, and [`io::ErrorKind::InvalidData`] for an empty profile.
pub fn write(graph: &Graph, lines: &[(String, u64)], out: impl Write) -> io::Result<()> {
    write_nodes(graph, &lines::nodes(lines, graph.reverse), out)
}

/// Writes the flame graph of `nodes`, in pre-order, which already stand as they are to be
/// drawn: `graph.reverse` changes nothing.
///
/// # Errors
/// What the writer reports, and [`io::ErrorKind::InvalidData`] for an empty profile.
pub fn write_nodes(graph: &Graph, nodes: &[Node<'_>], out: impl Write) -> io::Result<()> {
    draw(graph, nodes, None, out)
}

/// Writes the differential flame graph of `nodes`, in pre-order: each frame is as wide as
/// before and after on average (so frames of one side are there, half as wide, and
/// frames of equal work stand on one another without gaps) and has the colour of the
/// change of its samples, those of all that it calls included.
///
/// # Errors
/// What the writer reports, and [`io::ErrorKind::InvalidData`] for two empty profiles.
pub fn write_diff(graph: &Graph, compared: Compared, nodes: &[Node<'_>], out: impl Write) -> io::Result<()> {
    draw(graph, nodes, Some(compared), out)
}

fn draw(graph: &Graph, nodes: &[Node<'_>], compared: Option<Compared>, out: impl Write) -> io::Result<()> {
    let picture = layout::lay_out(nodes, compared, graph.min_width_percent);
    let page = palette::page(graph.dark);
    if picture.width == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no samples to draw"));
    }
    let mut palette = palette(&picture, graph.colors, compared);
    let mut options = Options::default();
    options.title = printable(&graph.title).into_owned();
    options.subtitle = Some(printable(&subtitle(graph, &picture, compared)).into_owned());
    options.uicolor = page.text;
    options.bgcolors = Some(BackgroundColor::Flat(page.background));
    options.palette_map = Some(&mut palette);
    // The narrow ones are left out already.
    options.min_width = 0.0;
    // The only mode in which inferno keeps the order it is given. In it, it reads from the
    // last line to the first.
    options.flame_chart = true;
    let text = paths(&picture);
    let mut labels = Labels::new(out, &picture, compared, page.style);
    flamegraph::from_lines(&mut options, text.iter().rev().map(String::as_str), &mut labels)?;
    labels.finish()
}

/// The subtitle, with what the colours mean and what was left out.
fn subtitle(graph: &Graph, picture: &Picture<'_>, compared: Option<Compared>) -> String {
    let mut parts = vec![graph.subtitle.clone()];
    if let Some(compared) = compared {
        let what = match compared {
            Compared::Counts => "samples",
            Compared::Shares => "shares",
        };
        parts.push(format!("{} · width: mean of both {what}", graph.colors.legend(true)));
    } else {
        parts.push(graph.colors.legend(false).to_owned());
    }
    if let Some(percent) = picture.raised_to_percent {
        parts.push(format!("too many frames: those below {percent:.2}% are not drawn"));
    }
    if picture.too_deep {
        parts.push(format!("levels above {LEVELS_DRAWN_MAX} are not drawn"));
    }
    parts.retain(|part| !part.is_empty());
    parts.join(" · ")
}

/// Every frame's colour, by its number.
fn palette(picture: &Picture<'_>, colors: Colors, compared: Option<Compared>) -> PaletteMap {
    let mut palette = PaletteMap::default();
    palette.insert("", palette::ALL);
    for (index, shown) in picture.frames.iter().enumerate() {
        let color = match compared {
            None => colors.of_frame(shown.node.name, shown.own as f64 / shown.width.max(1) as f64),
            Some(compared) => colors.of_change(change(picture, shown, compared)),
        };
        palette.insert(index, color);
    }
    palette
}

/// How much a frame grew, from -1 (gone) over 0 (unchanged) to 1 (new).
fn change(picture: &Picture<'_>, shown: &Shown<'_>, compared: Compared) -> f64 {
    let (mut base, mut new) = (shown.node.base as f64, shown.node.new as f64);
    if compared == Compared::Shares && picture.base > 0 && picture.new > 0 {
        base /= picture.base as f64;
        new /= picture.new as f64;
    }
    if base + new > 0.0 { (new - base) / (new + base) } else { 0.0 }
}

/// The lines that inferno reads: for each frame with a part on which nothing stands the
/// numbers of the frames that lead to it, and the width of that part. Where nothing stands on
/// `all`, inferno is given a frame that is then not written.
fn paths(picture: &Picture<'_>) -> Vec<String> {
    let mut lines = Vec::new();
    let mut path: Vec<usize> = Vec::new();
    for (index, shown) in picture.frames.iter().enumerate() {
        while path.last().copied() != shown.parent && path.pop().is_some() {}
        path.push(index);
        if shown.bare > 0 {
            let numbers: Vec<String> = path.iter().map(usize::to_string).collect();
            lines.push(format!("{} {}", numbers.join(";"), shown.bare));
        }
    }
    if picture.bare > 0 {
        lines.push(format!("{NOTHING} {}", picture.bare));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> Graph {
        Graph { title: "work (pid 4242)".into(), subtitle: "10 samples".into(), ..Graph::default() }
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
        let frames = frames(&svg).join("\n");
        for frame in
            ["worker 12 (1 sample,", "# x (2 ", "#  7 (3 ", "[unknown] (4 ", "b (4 ", "v 1.5 (5 ", "all (15 "]
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
        assert!(svg.contains("Vec&lt;T&gt;::push(&amp;str) (1 sample,"), "{svg}");
        assert!(svg.contains(" x y (1 sample,"), "{svg}");
    }

    #[test]
    fn same_input_same_bytes() {
        let lines = [("p;main;f", 3), ("p;main;g", 4), ("p;[incomplete];f", 1)];
        assert_eq!(draw(&graph(), &lines), draw(&graph(), &lines));
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
}

//! The flame graph: weighted frames in, one interactive SVG file out, drawn by inferno.
//!
//! `Graph` is the request, `Caption` the heading and subtitle.
//!
//! Same input, same bytes: colors come from names and weights, the order from the caller. Frames
//! that are too narrow are left out before drawing (`layout.rs`); inferno draws numbered frames,
//! and `labels.rs` replaces the numbers with names and tooltips. `page.js` keeps the heading in the
//! window and opens the page at the root; `layout.rs` reports where it is thin. Not for empty
//! profiles: the caller reports those as "nothing was sampled".

mod labels;
mod layout;
mod palette;
#[cfg(test)]
mod tests;

use std::io::{self, Write};

use inferno::flamegraph::color::{BackgroundColor, PaletteMap};
use inferno::flamegraph::{self, Direction, Options};

use crate::escape::escape_line;
use labels::{Labels, NOTHING};
use layout::{FrameBox, Picture};

pub use layout::{Compared, FRAMES_DRAWN_MAX, Frame, LEVELS_DRAWN_MAX};
pub use palette::Colors;

/// Appearance of the graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Graph {
    /// The heading.
    pub title: String,
    /// The line under the heading.
    pub subtitle: String,
    /// Unit of the counts, in the plural (`bytes`); empty for samples.
    pub unit: String,
    /// Frames narrower than this percentage of the whole are left out.
    pub min_width_percent: f64,
    /// Frame colors.
    pub colors: Colors,
    /// Light text on a dark page.
    pub dark: bool,
    /// Root at the top (an icicle graph), not at the bottom.
    pub inverted: bool,
}

/// Writes the flame graph of `nodes`, in pre-order. `total` is the samples of the whole profile:
/// `nodes` may lack frames too light to be seen, even outermost ones.
///
/// # Errors
/// The errors of the writer, and [`io::ErrorKind::InvalidData`] for an empty profile.
pub fn write(graph: &Graph, nodes: &[Frame<'_>], total: u64, out: impl Write) -> io::Result<()> {
    draw(graph, &layout::lay_out(nodes, total, graph.min_width_percent), None, out)
}

/// Writes the differential flame graph of `nodes`, in pre-order. Each frame's width is the average
/// of before and after (so frames of one side are drawn at half their width, and frames of equal
/// work stack without gaps); its color shows the change of its total samples.
///
/// # Errors
/// The errors of the writer, and [`io::ErrorKind::InvalidData`] for two empty profiles.
pub fn write_diff(graph: &Graph, compared: Compared, nodes: &[Frame<'_>], out: impl Write) -> io::Result<()> {
    let picture = layout::lay_out_compared(nodes, compared, graph.min_width_percent);
    draw(graph, &picture, Some(compared), out)
}

/// Writes a picture without frames: heading and caption. A heap profile with nothing in use is a good result.
///
/// # Errors
/// The errors of the writer.
pub fn write_empty(graph: &Graph, mut out: impl Write) -> io::Result<()> {
    let page = palette::page(graph.dark);
    let text = |text: &str| quick_xml::escape::escape(escape_line(text).into_owned()).into_owned();
    let (title, subtitle) = (text(&graph.title), text(&graph.subtitle));
    writeln!(
        out,
        "<svg version=\"1.1\" width=\"1200\" height=\"70\" viewBox=\"0 0 1200 70\" xmlns=\"http://www.w3.org/2000/svg\">\
         <rect width=\"100%\" height=\"100%\" fill=\"{background}\"/>\
         <g font-family=\"monospace\" fill=\"{color}\" text-anchor=\"middle\">\
         <text x=\"600\" y=\"24\" font-size=\"17\">{title}</text>\
         <text x=\"600\" y=\"48\" font-size=\"12\">{subtitle}</text></g></svg>",
        background = page.background,
        color = page.text,
    )
}

fn draw(graph: &Graph, picture: &Picture<'_>, compared: Option<Compared>, out: impl Write) -> io::Result<()> {
    let page = palette::page(graph.dark);
    if picture.width == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no samples to draw"));
    }
    let mut palette = palette(picture, graph.colors, compared);
    let mut options = Options::default();
    options.title = escape_line(&graph.title).into_owned();
    options.subtitle = Some(escape_line(&subtitle(graph, picture, compared)).into_owned());
    options.uicolor = page.text;
    options.direction = if graph.inverted { Direction::Inverted } else { Direction::Straight };
    options.bgcolors = Some(BackgroundColor::Flat(page.background));
    options.palette_map = Some(&mut palette);
    // Narrow frames have already been removed.
    options.min_width = 0.0;
    // The only mode in which inferno keeps the given order. In this mode, it reads from the last
    // line to the first.
    options.flame_chart = true;
    let text = paths(picture);
    let mut labels = Labels::new(out, picture, compared, unit(graph), page.style);
    flamegraph::from_lines(&mut options, text.iter().rev().map(String::as_str), &mut labels)?;
    labels.finish()
}

fn unit(graph: &Graph) -> &str {
    if graph.unit.is_empty() { "samples" } else { &graph.unit }
}

/// The subtitle, with the legend of the colors and what was left out.
fn subtitle(graph: &Graph, picture: &Picture<'_>, compared: Option<Compared>) -> String {
    let mut parts = vec![graph.subtitle.clone()];
    if let Some(compared) = compared {
        let what = match compared {
            Compared::Counts => "",
            Compared::Shares => " shares",
        };
        parts.push(format!("{} · width: mean of both{what}", graph.colors.legend(true)));
    } else {
        let names = picture.frames.iter().map(|shown| shown.node.name);
        parts.push(palette::legend_of_names(graph.colors.legend(false), names));
    }
    if let Some(percent) = picture.raised_to_percent {
        parts.push(format!("too many frames: those below {percent:.2}% are not drawn"));
    }
    parts.extend(layout::thin(picture, graph.inverted, unit(graph)));
    if picture.too_deep {
        parts.push(format!("levels above {LEVELS_DRAWN_MAX} are not drawn"));
    }
    parts.retain(|part| !part.is_empty());
    parts.join(" · ")
}

/// Colors of the frames, by number.
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

/// Growth of a frame, from -1 (gone) over 0 (unchanged) to 1 (new).
fn change(picture: &Picture<'_>, shown: &FrameBox<'_>, compared: Compared) -> f64 {
    let (mut base, mut new) = (shown.node.base as f64, shown.node.new as f64);
    if compared == Compared::Shares && picture.base > 0 && picture.new > 0 {
        base /= picture.base as f64;
        new /= picture.new as f64;
    }
    if base + new > 0.0 { (new - base) / (new + base) } else { 0.0 }
}

/// The input lines of inferno: for each frame that its drawn callees do not cover, the numbers of
/// its path and the uncovered width. An uncovered part of `all` becomes a dummy frame that is not
/// written.
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

// ---- Heading and subtitle of a flame graph: what was recorded, and what is missing.

/// Facts about a recording for heading and subtitle; `None` is unknown.
#[derive(Clone, Copy, Debug)]
pub struct Caption<'a> {
    /// Name of the process, or of several.
    pub process: &'a str,
    /// Process id.
    pub pid: Option<u32>,
    /// Requested ticks per second.
    pub hz_requested: Option<u32>,
    /// Ticks that happened, if enough were counted for a rate.
    pub ticks: Option<u64>,
    /// Length of the recording, nanoseconds.
    pub duration_ns: Option<u64>,
    /// The content of the graph (`9970 samples`).
    pub counted: &'a str,
    /// Samples missing from it.
    pub lost: u64,
    /// Incomplete stacks: not walked to their thread's root.
    pub incomplete: u64,
}

impl Caption<'_> {
    /// Heading and subtitle: `title` replaces the default heading `NAME (pid N)`,
    /// which then moves to the front of the subtitle.
    #[must_use]
    pub fn headings(&self, title: Option<&str>) -> (String, String) {
        let process = match self.pid {
            Some(pid) => format!("{} (pid {pid})", self.process),
            None => self.process.to_owned(),
        };
        let mut parts = Vec::new();
        if title.is_some() {
            parts.push(process.clone());
        }
        let duration_s = self.duration_ns.map(|ns| ns as f64 / 1e9);
        parts.push(match duration_s {
            Some(seconds) => format!("{} in {seconds:.1} s", self.counted),
            None => self.counted.to_owned(),
        });
        let achieved = match (self.ticks, duration_s) {
            (Some(_), Some(0.0)) => Some(0.0),
            (Some(ticks), Some(seconds)) => Some(ticks as f64 / seconds),
            _ => None,
        };
        match (self.hz_requested, achieved) {
            (Some(hz), Some(achieved)) => parts.push(format!("{achieved:.1} of {hz} Hz")),
            (Some(hz), None) => parts.push(format!("{hz} Hz")),
            (None, _) => {}
        }
        if self.lost > 0 {
            parts.push(format!("{} missed", self.lost));
        }
        if self.incomplete > 0 {
            let stacks = if self.incomplete == 1 { "stack" } else { "stacks" };
            parts.push(format!("{} incomplete {stacks}", self.incomplete));
        }
        (title.map_or(process, str::to_string), parts.join(" · "))
    }
}

#[cfg(test)]
mod caption_tests {
    use super::*;

    #[test]
    fn headings_name_the_process_and_what_is_missing() {
        let caption = Caption {
            process: "work",
            pid: Some(4242),
            hz_requested: Some(997),
            ticks: Some(9968),
            duration_ns: Some(10_000_000_000),
            counted: "9970 samples",
            lost: 0,
            incomplete: 0,
        };
        assert_eq!(
            caption.headings(None),
            ("work (pid 4242)".into(), "9970 samples in 10.0 s · 996.8 of 997 Hz".into())
        );
        let torn = Caption { counted: "1 sample", lost: 12, incomplete: 1, ..caption };
        assert_eq!(
            torn.headings(Some("Before")),
            (
                "Before".into(),
                "work (pid 4242) · 1 sample in 10.0 s · 996.8 of 997 Hz · 12 missed · 1 incomplete stack"
                    .into()
            )
        );
        let little = Caption { pid: None, ticks: None, duration_ns: None, ..caption };
        assert_eq!(little.headings(None), ("work".into(), "9970 samples · 997 Hz".into()));
        let nothing = Caption { hz_requested: None, ..little };
        assert_eq!(nothing.headings(Some("T")), ("T".into(), "work · 9970 samples".into()));
    }
}

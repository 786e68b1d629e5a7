//! Lays out a tree of weighted frames: widths of the boxes, and which frames are left out.
//!
//! `Frame` is the input, `Picture` the result; `thin` detects pictures whose outermost levels are nearly empty.
//!
//! Input: [`Frame`]s in pre-order. Output: a [`Picture`]. Narrow frames are left out before
//! drawing, so that the cost of a graph is that of its picture; their weight stays with their
//! callers, and figures do not change. No colors, no text.

/// Most frames that are drawn. With inferno's script, a browser takes about a second to open that
/// many and seven to open 50,000; for a graph with more, the minimum width is raised, which the
/// subtitle says.
pub const FRAMES_DRAWN_MAX: usize = 10_000;

/// Most levels that are drawn: browsers cut off pictures higher than 32,768 pixels when they are
/// saved. Deeper frames are counted in their callers.
pub const LEVELS_DRAWN_MAX: u32 = 2_000;

/// Most frames in all output paths: each path repeats all its frames.
const PATH_FRAMES_MAX: u64 = 4 << 20;

/// Upper limit of widths that are not samples: a browser represents integers up to here exactly.
const SCALE: u64 = 1 << 52;

/// A drawn frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FrameBox<'a> {
    pub(super) node: Frame<'a>,
    /// Index of its caller; `None` for the outermost frames, on top of `all`.
    pub(super) parent: Option<usize>,
    pub(super) width: u64,
    /// The part of the width that no drawn callee covers.
    pub(super) bare: u64,
    /// The part of the width that is the function's self time.
    pub(super) own: u64,
}

/// The layout of a picture.
#[derive(Debug)]
pub(super) struct Picture<'a> {
    /// The frames, callers before callees.
    pub(super) frames: Vec<FrameBox<'a>>,
    /// Width of the whole picture.
    pub(super) width: u64,
    /// The part of the width that no drawn frame covers.
    pub(super) bare: u64,
    /// Total samples, before and after.
    pub(super) base: u64,
    pub(super) new: u64,
    /// Minimum width of drawn frames, percent, if it was raised above the requested one.
    pub(super) raised_to_percent: Option<f64>,
    /// Whether deeper levels were left out.
    pub(super) too_deep: bool,
}

/// Lays out the `nodes` with at least `min_width_percent` of the `total` samples.
pub(super) fn lay_out<'a>(nodes: &[Frame<'a>], total: u64, min_width_percent: f64) -> Picture<'a> {
    // At least the sum of the outermost frames.
    let new = total.max(samples_of_roots(nodes).1);
    let measure = Measure::new(None, 0, new);
    let mut widths = Widths::of(nodes, &measure);
    widths.total = measure.width(0, new);
    arrange(nodes, &widths, (0, new), min_width_percent)
}

/// Lays out the nodes of a comparison with at least `min_width_percent` of the whole, which is
/// their sum.
pub(super) fn lay_out_compared<'a>(
    nodes: &[Frame<'a>],
    compared: Compared,
    min_width_percent: f64,
) -> Picture<'a> {
    let (base, new) = samples_of_roots(nodes);
    let widths = Widths::of(nodes, &Measure::new(Some(compared), base, new));
    arrange(nodes, &widths, (base, new), min_width_percent)
}

/// Samples of the outermost frames, before and after.
fn samples_of_roots(nodes: &[Frame<'_>]) -> (u64, u64) {
    let roots = nodes.iter().filter(|node| node.depth == 0);
    roots.fold((0u64, 0u64), |(base, new), node| {
        (base.saturating_add(node.base), new.saturating_add(node.new))
    })
}

fn arrange<'a>(
    nodes: &[Frame<'a>],
    widths: &Widths,
    (base, new): (u64, u64),
    min_width_percent: f64,
) -> Picture<'a> {
    let asked = (min_width_percent / 100.0 * widths.total as f64).ceil().max(1.0) as u64;
    let least = least_width(nodes, widths, asked);
    let mut picture = Picture {
        frames: Vec::new(),
        width: widths.total,
        bare: widths.total,
        base,
        new,
        raised_to_percent: (least > asked).then(|| 100.0 * least as f64 / widths.total as f64),
        too_deep: false,
    };
    // The path to the current frame, by depth; `None` for a frame that is left out.
    let mut open: Vec<Option<usize>> = Vec::new();
    for (node, (&width, &own)) in nodes.iter().zip(widths.of_node.iter().zip(&widths.own)) {
        open.truncate(node.depth as usize);
        let parent = open.last().copied().flatten();
        let wide = width >= least && (node.depth == 0 || parent.is_some());
        picture.too_deep |= wide && node.depth >= LEVELS_DRAWN_MAX;
        if !wide || node.depth >= LEVELS_DRAWN_MAX {
            open.push(None);
            continue;
        }
        let below = match parent.and_then(|parent| picture.frames.get_mut(parent)) {
            Some(parent) => &mut parent.bare,
            None => &mut picture.bare,
        };
        *below = below.saturating_sub(width);
        open.push(Some(picture.frames.len()));
        picture.frames.push(FrameBox { node: *node, parent, width, bare: width, own });
    }
    picture
}

/// Conversion of samples to widths.
struct Measure {
    base_total: u64,
    new_total: u64,
    full: u64,
}

impl Measure {
    fn new(compared: Option<Compared>, base: u64, new: u64) -> Measure {
        match compared {
            Some(Compared::Shares) if base > 0 && new > 0 => {
                Measure { base_total: base, new_total: new, full: SCALE / 2 }
            }
            _ => {
                let total = if compared.is_some() { base.saturating_add(new) } else { new };
                Measure { base_total: total, new_total: total, full: total.min(SCALE) }
            }
        }
    }

    /// Rounded down, so that callees are never wider than their caller.
    fn width(&self, base: u64, new: u64) -> u64 {
        let part = |samples: u64, total: u64| {
            let part = u128::from(samples) * u128::from(self.full) / u128::from(total.max(1));
            part.min(u128::from(self.full)) as u64
        };
        part(base, self.base_total).saturating_add(part(new, self.new_total))
    }
}

struct Widths {
    of_node: Vec<u64>,
    own: Vec<u64>,
    total: u64,
}

impl Widths {
    fn of(nodes: &[Frame<'_>], measure: &Measure) -> Widths {
        let of_node: Vec<u64> = nodes.iter().map(|node| measure.width(node.base, node.new)).collect();
        let mut own = of_node.clone();
        let mut total = 0u64;
        let mut open: Vec<usize> = Vec::new();
        for (index, (node, &width)) in nodes.iter().zip(&of_node).enumerate() {
            open.truncate(node.depth as usize);
            match open.last().and_then(|&parent| own.get_mut(parent)) {
                Some(own) => *own = own.saturating_sub(width),
                None => total = total.saturating_add(width),
            }
            open.push(index);
        }
        Widths { of_node, own, total }
    }
}

/// Minimum width of drawn frames: the requested one, or more if that would exceed
/// [`FRAMES_DRAWN_MAX`] frames or [`PATH_FRAMES_MAX`] in all paths.
fn least_width(nodes: &[Frame<'_>], widths: &Widths, asked: u64) -> u64 {
    let wide = nodes.iter().zip(&widths.of_node).filter(|(_, width)| **width >= asked);
    let mut wide: Vec<(u64, u32)> = wide.map(|(node, &width)| (width, node.depth)).collect();
    if wide.len() <= FRAMES_DRAWN_MAX
        && wide.iter().map(|(_, depth)| u64::from(*depth)).sum::<u64>() <= PATH_FRAMES_MAX
    {
        return asked;
    }
    wide.sort_unstable_by(|a, b| b.cmp(a));
    let mut path_frames = 0u64;
    let fits = wide.iter().take(FRAMES_DRAWN_MAX).take_while(|(_, depth)| {
        path_frames += u64::from((*depth).min(LEVELS_DRAWN_MAX));
        path_frames <= PATH_FRAMES_MAX
    });
    let fitting = fits.count();
    // Frames with the same width are drawn together or not at all; those with the full width
    // always.
    let first_out = wide.get(fitting).map_or(0, |(width, _)| *width);
    (first_out + 1).min(widths.total).max(asked)
}

// ---- Detects thin pictures: how many of the outermost levels hold hardly any samples.

/// Number of levels that a window shows at once, approximately.
const LEVELS_SEEN: usize = 40;

/// Least number of thin levels that are reported.
const THIN_LEVELS_MIN: usize = 20;

/// Levels are thin if together they have at most this part of the picture's width.
const THIN_SHARE: f64 = 0.05;

/// `upper 151 of 250 levels: 4.9% of samples`: the visible levels far from the root have few
/// samples.
pub(super) fn thin(picture: &Picture<'_>, inverted: bool, unit: &str) -> Option<String> {
    let mut widths: Vec<u64> = Vec::new();
    for shown in &picture.frames {
        let level = shown.node.depth as usize;
        if widths.len() <= level {
            widths.resize(level + 1, 0);
        }
        let width = widths.get_mut(level)?;
        *width = width.saturating_add(shown.width);
    }
    let share = |width: u64| width as f64 / picture.width.max(1) as f64;
    // A level is never wider than that of its callers.
    let thick = widths.iter().take_while(|width| share(**width) > THIN_SHARE).count();
    let thin = widths.len() - thick;
    if widths.len() <= LEVELS_SEEN || thin < THIN_LEVELS_MIN {
        return None;
    }
    let end = if inverted { "lower" } else { "upper" };
    let percent = 100.0 * widths.get(thick).map_or(0.0, |width| share(*width));
    Some(format!("{end} {thin} of {} levels: {percent:.1}% of {unit}", widths.len()))
}

// ---- Input of a flame graph: frames with their weights.

/// A frame at its place in the tree. A list of them in pre-order is a tree: each is followed by its
/// callees, which are one deeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Distance from the outermost frame, which has 0.
    pub depth: u32,
    /// The displayed name.
    pub name: &'a str,
    /// Total samples in the baseline profile; 0 without a comparison.
    pub base: u64,
    /// Total samples in the profile.
    pub new: u64,
}

/// The quantity that a comparison treats as equal on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compared {
    /// Equal numbers of samples: two runs of the same work.
    Counts,
    /// Equal shares of the whole: two recordings of different length.
    Shares,
}

#[cfg(test)]
mod levels_tests {
    use super::Frame;
    use super::*;

    /// A stack of `levels` frames; all after the first `thick` have one sample of `all`.
    fn spike(levels: u32, thick: u32, all: u64) -> Vec<Frame<'static>> {
        let weight = |depth| if depth < thick { all } else { 1 };
        (0..levels).map(|depth| Frame { depth, name: "f", base: 0, new: weight(depth) }).collect()
    }

    fn said(levels: u32, thick: u32, all: u64, inverted: bool) -> Option<String> {
        let nodes = spike(levels, thick, all);
        thin(&super::lay_out(&nodes, all, 0.0), inverted, "samples")
    }

    #[test]
    fn thin_levels_of_a_tall_picture_are_reported() {
        let upper = said(250, 99, 40, false);
        assert_eq!(upper.as_deref(), Some("upper 151 of 250 levels: 2.5% of samples"));
        let lower = said(250, 99, 40, true);
        assert_eq!(lower.as_deref(), Some("lower 151 of 250 levels: 2.5% of samples"));
    }

    #[test]
    fn low_and_thick_pictures_report_nothing() {
        assert_eq!(said(40, 2, 40, false), None, "it fits a window");
        assert_eq!(said(250, 231, 40, false), None, "only a few levels");
        assert_eq!(said(250, 99, 10, false), None, "a tenth of the samples");
        assert_eq!(thin(&super::lay_out(&[], 0, 0.0), false, "samples"), None);
    }
}
